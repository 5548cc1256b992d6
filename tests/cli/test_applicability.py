"""An option that does not apply to a source is refused, because its declaration says so."""

import inspect
from dataclasses import dataclass
from enum import Enum
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

from graphxai.cli import main as cli
from graphxai.cli.options import SOURCES, AppliesTo, settings_as_options
from graphxai.cli.predict import predict
from graphxai.runtime.options import option
from graphxai.tables.settings import PredictionSettings

COMMANDS = typer.main.get_command(cli.app).commands
EXAMPLES = {  # what a user gives for each kind of source that a command tells apart
    "explain": {
        "smiles": ["CCO"],
        "table": ["molecules.csv"],
        "image": ["digit.png"],
        "graphs": ["graphs"],
        "ray": ["molecules.parquet", "--engine", "ray"],
    },
    "predict": {
        "smiles": ["CCO"],
        "table": ["molecules.csv"],
        "image": ["digit.png"],
        "graphs": ["graphs"],
    },
    "report": {"table": ["molecules.csv"]},
    "fragments": {"table": ["molecules.csv"]},
    "changes": {"table": ["molecules.csv"]},
    "examples": {},  # its argument is a folder to write
    "counterfactuals": {
        "smiles": ["CCO", "--towards", "active"],
        "table": ["molecules.csv", "--towards", "active"],
    },
    "fit-explainer": {
        "training": [],
        "table": ["molecules.csv"],
        "mnist-superpixels": ["mnist-superpixels"],
    },
    "fit-masked-atoms": {"training": [], "table": ["molecules.csv"]},
    "benchmark": {
        "bace": ["bace"],
        "mnist-superpixels": ["mnist-superpixels"],
        "ogb": ["ogbg-molbace", "--model", "runs/mine"],
        "rules": ["rules"],
        "checkpoint": ["runs/mine", "molecules.csv"],
    },
    "train": {
        "bace": ["bace", "--out", "run"],
        "mnist-superpixels": ["mnist-superpixels", "--out", "run"],
        "ogb": ["ogbg-molbace", "--out", "run"],
        "table": ["molecules.csv", "--out", "run", "--target-column", "activity"],
    },
}


def annotations(command):
    """Return the annotated type of each option of a command."""
    signature = inspect.signature(COMMANDS[command].callback, eval_str=True)
    return {
        parameter: signature.parameters[parameter.name].annotation
        for parameter in COMMANDS[command].params
        if parameter.param_type_name == "option" and parameter.name in signature.parameters
    }


def applicability(annotation):
    """Return what an annotation says that an option applies to, or None if it says nothing."""
    metadata = getattr(annotation, "__metadata__", ())
    return next((m for m in metadata if isinstance(m, AppliesTo)), None)


def as_given(parameter, annotation):
    """Return an option as a user might give it, with a value that it accepts."""
    name = max(parameter.opts + parameter.secondary_opts, key=len)
    (value_type, *_) = get_args(annotation)
    (value_type, *_) = get_args(value_type) or (value_type,)  # of a union or a list
    (value_type, *_) = get_args(value_type) or (value_type,)  # of a list in a union
    if value_type is bool:
        return [name]
    if issubclass(value_type, Enum):
        return [name, next(iter(value_type)).value]
    return [name, {int: "20", float: "1"}.get(value_type, "text")]


def inapplicable():
    for command, examples in EXAMPLES.items():
        for parameter, annotation in annotations(command).items():
            kinds = getattr(applicability(annotation), "kinds", None)
            for kind in examples if kinds is not None else ():
                if kind not in kinds:
                    given = as_given(parameter, annotation)
                    yield pytest.param(command, kind, given, id=f"{command}-{kind}-{given[0]}")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graphs").mkdir()
    for name in ("molecules.csv", "digit.png", "graphs/graphs.safetensors"):
        (tmp_path / name).touch()


@pytest.mark.parametrize(("command", "kind", "given"), inapplicable())
def test_an_option_that_does_not_apply_to_the_source_is_refused(command, kind, given, run):
    code, printed, error = run(command, *EXAMPLES[command][kind], *given)
    assert code == 2
    assert printed == ""
    assert f"{given[0]} is for" in error
    assert f"not for {SOURCES[kind]}." in error


def test_the_commands_of_all_kinds_of_source_are_covered():
    cases = [case.id for case in inapplicable()]
    assert len(cases) > 60
    for command in ("explain", "predict", "benchmark", "fit-explainer", "fit-masked-atoms"):
        assert any(case.startswith(f"{command}-") for case in cases)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_with_a_source_says_what_it_applies_to(command):
    has_source = any(p.param_type_name == "argument" for p in COMMANDS[command].params)
    silent = [p.name for p, a in annotations(command).items() if applicability(a) is None]
    assert not (has_source and silent), silent
    assert command in EXAMPLES or not has_source


@dataclass(frozen=True)
class LongerSettings(PredictionSettings):
    """Settings as somebody may extend them: by one more field, and nothing else."""

    limit: int | None = option(None, "Read at most this many rows.", applies_to=("table",))


def test_a_new_option_for_tables_is_refused_for_a_molecule():

    def longer(**arguments):
        predict.__wrapped__(**arguments)

    declared = inspect.signature(predict.__wrapped__, eval_str=True).parameters
    replaced = declared["settings"].replace(annotation=LongerSettings)
    longer.__signature__ = inspect.Signature((declared | {"settings": replaced}).values())
    app = typer.Typer()
    app.command()(settings_as_options(longer))
    refused = CliRunner().invoke(app, ["CCO", "--limit", "2"])
    assert refused.exit_code == 2
    text = " ".join(refused.output.replace("│", " ").split())
    assert "--limit is for a table, not for a SMILES." in text
    for accepted in (["CCO"], ["molecules.csv", "--limit", "2", "--model", "no-such-model"]):
        assert CliRunner().invoke(app, accepted).exit_code != 2
