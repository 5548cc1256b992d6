"""An option that does not apply to a source is refused, and one that applies is read."""

import ast
import dataclasses
import inspect
import sys
import textwrap
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import get_args

import pytest
import torch
import typer
from torch_geometric.data import Data
from typer.testing import CliRunner

from graphxai.cli import main as cli
from graphxai.cli.listing import PRETRAINED
from graphxai.cli.options import SOURCES, AppliesTo, settings_as_options
from graphxai.cli.predict import predict
from graphxai.cli.train import TableReading
from graphxai.contract.tasks import Task
from graphxai.datasets.graph_folders import save_graphs
from graphxai.datasets.samples import digit_paths
from graphxai.learning.settings import CHOSEN_FOR_A_RUN, TrainingSettings
from graphxai.models.graphormer import save_checkpoint
from graphxai.runtime.options import option
from graphxai.tables import cluster
from graphxai.tables.settings import ExplanationSettings, PredictionSettings, RaySettings
from toy import SMALL, random_graphormer

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
    "audit": {"table": ["molecules.csv"]},
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
    "adapt": {None: ["lipophilicity", "two.csv", "--out", "run"]},
    "benchmark": {
        "bace": ["bace"],
        "mnist-superpixels": ["mnist-superpixels"],
        "ogb": ["ogbg-molbace", "--model", "runs/mine"],
        "rules": ["rules"],
        "checkpoint": ["runs/mine", "molecules.csv"],
        "cliffs": ["runs/mine", "molecules.csv", "--truth", "cliffs"],
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


def test_a_new_option_of_predict_is_none_of_explain():
    """`explain` would accept it, and ignore it."""
    assert not issubclass(ExplanationSettings, PredictionSettings)


class Reached(ValueError):
    """Raised in place of work that takes long, when everything that it needs was handed over."""


# What each command is called with, for each kind of source. Where options exclude each other, each
# has a line. What would take long is left out: see `Reached` and `quick`.
LINES = {
    "explain": {
        "smiles": ["CCO --out out.svg"],
        "table": ["two.csv --out out --format csv,sdf --scale shared --workers 1"],
        "image": ["seven.png --out out.svg"],
        "graphs": ["squares --model small --out out"],
        "ray": ["two.csv --engine ray"],
    },
    "predict": {
        "smiles": ["CCO"],
        "table": ["two.csv --out out.csv --workers 1"],
        "image": ["seven.png"],
        "graphs": ["squares --model small"],
    },
    "report": {"table": ["two.csv --workers 1 --detailed 0"]},
    "fragments": {"smiles": ["CCO"], "table": ["two.csv --workers 1 --minimum 1"]},
    "audit": {"table": ["two.csv --measured-column y --workers 1 --minimum 1"]},
    "changes": {
        "table": ["two.csv --measured-column y", "two.csv --measured-column y --core c1ccccc1"]
    },
    "counterfactuals": {
        "smiles": [
            "CCO --towards active -n 1 --predictions 5 --steps 1 --measured two.csv"
            " --measured-column y"
        ],
        "table": ["two.csv --towards active -n 1 --predictions 5 --steps 1"],
    },
    "fit-explainer": {
        "training": [""],
        "table": ["two.csv --graphs 1"],
        "mnist-superpixels": ["mnist-superpixels --model mnist-superpixels --graphs 1"],
    },
    "fit-masked-atoms": {"training": [""], "table": ["two.csv"]},
    "adapt": {None: ["lipophilicity two.csv --out out"]},
    "benchmark": {
        "bace": ["bace --refit roar"],
        "mnist-superpixels": ["mnist-superpixels --refit roar"],
        "ogb": ["ogbg-molbace --model trained --refit roar"],
        "rules": ["rules two.csv", "rules two.csv --out squares --resume"],
        "checkpoint": ["trained two.csv --refit roar --training two.csv --label-column y"],
        "cliffs": [
            "trained two.csv --truth cliffs --label-column y",
            "trained two.csv --truth cliffs --label-column y --out squares --resume",
        ],
    },
    "app": {None: ["--no-browser", "--as-drawn"]},
    "demo": {None: [""]},
}
SLOW = (
    "graphxai.tables.cluster.explain_on_ray",
    "graphxai.explainers.fit_explainer",
    "graphxai.learning.recipes.masked_atoms.fit_masked_atoms",
    "graphxai.learning.processes.adapting.adapt",
    "graphxai.evaluation.evaluate",
    "graphxai.learning.recipes.rules.benchmark_rule",
    "graphxai.chemistry.cliff_truth.evaluate_cliffs",
    "graphxai.tables.app.server.serve",
    "graphxai.cli.demo.run",
)


def reached(*arguments, **keywords):
    raise Reached("reached")


@pytest.fixture(scope="module")
def graph_model(tmp_path_factory):
    """Return the folder of a small model of graphs, which is nothing like a trained one."""
    model = random_graphormer(
        tasks=(Task("y", "binary", ("no", "yes")),),
        node_cardinalities=(),
        edge_cardinalities=(),
        num_node_features=2,
        node_feature_names=("a", "b"),
        **SMALL,
    )
    return save_checkpoint(model, tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def quick(monkeypatch, tmp_path, data_folder, graph_model):
    """Provide the inputs of `LINES`, and let commands end where work begins that takes long."""
    (tmp_path / "small").symlink_to(graph_model)
    (tmp_path / "trained").symlink_to(PRETRAINED / "bace")
    (tmp_path / "seven.png").write_bytes(digit_paths()[7].read_bytes())
    (tmp_path / "two.csv").write_text("smiles,y\nc1ccccc1C,1\nc1ccccc1CC,0\nc1ccccc1CCC,1\n")
    square = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])
    save_graphs([Data(x=torch.rand(4, 2), edge_index=square)] * 2, tmp_path / "squares")
    monkeypatch.setenv("GRAPHXAI_DATA", str(data_folder))
    images = torch.zeros(3, 28, 28, dtype=torch.uint8).numpy()
    labels = torch.tensor([0, 1, 2]).numpy()
    monkeypatch.setattr("graphxai.datasets.mnist.load_mnist", lambda *_, **__: (images, labels))
    for name in SLOW:
        monkeypatch.setattr(name, reached)


def settings_of(command):
    """Return the classes of settings whose fields are options of a command."""
    function = inspect.unwrap(COMMANDS[command].callback)
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return [p.annotation for p in parameters if dataclasses.is_dataclass(p.annotation)]


@pytest.fixture
def reads(monkeypatch):
    """Return a function that records which fields of classes are read from then on.

    What dataclasses do with all fields alike, such as `replace`, does not count, and neither does
    the check of values in `__post_init__`.
    """

    def record(classes):
        names = set()

        def read(self, name):
            code = sys._getframe(1).f_code
            of_all_fields = code.co_filename in (dataclasses.__file__, "<string>")
            if not of_all_fields and code.co_name != "__post_init__":
                names.add(name)
            return object.__getattribute__(self, name)

        for each in classes:
            monkeypatch.setattr(each, "__getattribute__", read)
        return names

    return record


def unread(command, kind, names):
    """Return the options of a command for a kind of source whose fields were not read."""
    fields = {f.name for each in settings_of(command) for f in dataclasses.fields(each)}
    declared = {parameter.name: applicability(a) for parameter, a in annotations(command).items()}
    return [
        name
        for name, applies in declared.items()
        if name in fields - names and (applies.kinds is None or kind in applies.kinds)
    ]


@pytest.mark.parametrize(
    ("command", "kind"), [(command, kind) for command, kinds in LINES.items() for kind in kinds]
)
def test_every_option_that_applies_is_read(command, kind, run, quick, reads):
    names = reads(settings_of(command))
    for line in LINES[command][kind]:
        code, _, error = run(command, *line.split())
        assert code == 0 or error.endswith("error: reached\n"), error
    assert unread(command, kind, names) == []


def test_an_option_that_nobody_reads_is_noticed(run, quick, reads):
    names = reads(settings_of("predict"))
    run("predict", "CCO")
    assert "workers" in unread("predict", "table", names)


def test_the_lines_above_have_every_command_and_kind_of_source():
    told_apart = {command: set(kinds) for command, kinds in EXAMPLES.items() if kinds}
    incomplete = [name for name, kinds in told_apart.items() if kinds - set(LINES.get(name, ()))]
    assert incomplete == ["train"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_parameter_of_a_command_is_used(command):
    function = inspect.unwrap(COMMANDS[command].callback)
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    parameters = inspect.signature(function).parameters
    assert [name for name in parameters if name not in used] == []
    assert len(parameters) <= 12 or command in ("counterfactuals", "train")


def test_every_setting_of_a_run_on_ray_is_read_there():
    tree = ast.parse(inspect.getsource(cluster))
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {field.name for field in dataclasses.fields(RaySettings)} <= read


def test_every_setting_of_a_training_is_read_where_models_are_trained():
    """To train for each kind of source would take minutes."""
    command = Path(inspect.getfile(TableReading))  # where the columns of a table are chosen
    files = [command, *Path(inspect.getfile(TrainingSettings)).parent.rglob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)} | {*CHOSEN_FOR_A_RUN}
    for each in settings_of("train"):
        declared = {field.name for field in dataclasses.fields(each) if "option" in field.metadata}
        assert declared <= read
