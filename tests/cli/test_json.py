"""A machine reads one JSON document of each command, valid against the schema, errors included."""

import json
import logging
import math
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
import torch
import typer
from torch_geometric.data import Data

import graphxai as gx
from graphxai.cli import answers, main
from graphxai.cli.listing import listed_methods, model_names
from graphxai.datasets.graph_folders import save_graphs
from graphxai.datasets.samples import digit_paths
from graphxai.models.graphormer import locate, save_checkpoint
from graphxai.runtime.notices import LOGGER, warn
from toy import random_graphormer

SCHEMA = json.loads(answers.SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TABLE = "smiles,name\nCCO,ethanol\nC1CC,broken\nCCN,ethylamine\n"


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "three.csv"
    path.write_text(TABLE)
    return path


@pytest.fixture
def answered(run, tmp_path, monkeypatch):
    """Return a function that runs a command with --json: the document, and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[dict, str]:
        code, out, err = run(*arguments, "--json")
        document = json.loads(out)  # which fails if anything else is on standard output
        assert out.count("\n") == 1
        VALIDATOR.validate(document)
        assert document["status"] == code
        return document, err

    return call


def test_the_schema_is_one_and_knows_every_command_that_answers(run):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(run("--schema")[1]) == SCHEMA
    known = [each["properties"]["command"]["const"] for each in SCHEMA["then"]["oneOf"]]
    assert sorted(known) == sorted(answers.ANSWERING)
    statuses = {each["const"] for each in SCHEMA["properties"]["status"]["oneOf"]}
    assert statuses == {0, 1, 2, answers.REJECTED, 130, 143}


def test_a_prediction_is_that_of_python(answered):
    document, _ = answered("predict", "CCO", "--level", "0.8")
    expected = [p.at(0.8).to_dict() for p in gx.predict("bace", "CCO").values()]
    stated = document["result"]["predictions"]
    assert [{**p, "training_set": None} for p in stated] == [
        {**p, "training_set": None} for p in json.loads(json.dumps(expected))
    ]
    assert stated[0]["training_set"]["word"] == "far"


def test_several_models_state_how_desirable_a_molecule_is(answered):
    goal = "pIC50 > 5, solubility > -4"
    models = ("--model", "bace", "--model", "solubility")
    result = answered("predict", "CCO", *models, "--goal", goal)[0]["result"]
    assert result["models"] == ["bace", "solubility"]
    assert 0 < result["desirability"] <= 1


def test_the_rows_of_a_table_have_the_numbers_of_its_file(answered, run, table, tmp_path):
    result = answered("predict", table)[0]["result"]
    assert result["counts"] == {"done": 2, "rejected": 1, "earlier": 0}
    assert result["rejected"][0]["row"] == 2
    run("predict", table, "--out", tmp_path / "out.csv")
    written = pd.read_csv(tmp_path / "out.csv")
    assert [row["pIC50"] for row in result["rows"]] == written["pIC50"].tolist()
    assert [row["row"] for row in result["rows"]] == [1, 3]
    assert [row["name"] for row in result["rows"]] == ["ethanol", "ethylamine"]
    kept = answered("predict", table, "--out", tmp_path / "out.csv")[0]["result"]
    assert kept["files"] == [str(tmp_path / "out.csv")]


def test_an_explanation_is_that_of_python(answered):
    result = answered("explain", "CC(=O)[O-].[Na+]", "--out", "x.svg")[0]["result"]
    expected = gx.explain("bace", "CC(=O)[O-].[Na+]").to_dict()
    assert result["explanations"][0]["relevance"] == pytest.approx(expected["relevance"])
    assert result["explanations"][0]["as_given"]["changes"] == list(expected["as_given"]["changes"])
    assert result["files"] == ["x.svg"]


def test_a_digit_has_an_explanation_without_a_molecule(answered):
    (explanation,) = answered("explain", digit_paths()[0])[0]["result"]["explanations"]
    assert explanation["smiles"] is None
    assert answered("predict", digit_paths()[0])[0]["result"]["predictions"][0]["task"] == "digit"


def test_a_table_that_was_explained_counts_its_rows(answered, table):
    result = answered("explain", table, "--out", "night", "--pictures", "none")[0]["result"]
    assert result["counts"] == {"done": 2, "rejected": 1, "earlier": 0}
    again = answered("explain", table, "--out", "night", "--pictures", "none", "--resume")
    assert again[0]["result"]["counts"]["earlier"] == 3
    assert Path(result["files"][0], "explanations.csv").is_file()


def test_a_folder_of_graphs_counts_those_that_are_left_out(answered):
    fields = {"node_cardinalities": (), "edge_cardinalities": (), "num_node_features": 2}
    save_checkpoint(random_graphormer(**fields, node_feature_names=("a", "b")), Path("small"))
    edges = torch.tensor([[0, 1], [1, 0]])
    values = ([1.0, 2.0], [math.nan, 2.0], [3.0, 4.0])
    save_graphs([Data(x=torch.tensor([v, v]), edge_index=edges) for v in values], Path("pairs"))
    document, _ = answered("explain", "pairs", "--model", "small", "--fail-on-rejected")
    assert document["status"] == answers.REJECTED
    assert document["result"]["counts"] == {"done": 2, "rejected": 1, "earlier": 0}


def test_counterfactuals_are_those_of_the_file(answered, tmp_path):
    result = answered("counterfactuals", "CCOc1ccccc1", "--towards", ">5.5", "-n", 2)[0]["result"]
    written = pd.read_csv(tmp_path / "counterfactuals.csv")
    assert [each["smiles"] for each in result["counterfactuals"]] == written["smiles"].tolist()
    goals = ("--towards", "pIC50 > 6, inactive", "-n", 1)
    assert answered("counterfactuals", "CCOc1ccccc1", *goals)[0]["result"]["counterfactuals"]


def test_counterfactuals_of_a_table_count_its_rows(answered, table):
    goal = ("--towards", ">5.5", "-n", 1, "--fail-on-rejected")
    document, _ = answered("counterfactuals", table, *goal)
    assert document["status"] == answers.REJECTED
    assert document["result"]["counts"]["done"] == 2


def test_models_and_methods_are_those_there_are(answered):
    models = answered("models")[0]["result"]["models"]
    assert {each["name"] for each in models} == set(model_names(""))
    methods = answered("methods")[0]["result"]["methods"]
    assert methods == [method._asdict() for method in listed_methods()]


def test_training_answers_with_the_stored_scores(answered, tmp_path):
    pytest.importorskip("lightning")
    rows = [f"{'C' * k}O,{k}" for k in range(1, 31)] + [f"{'C' * k}N,{k}" for k in range(1, 31)]
    (tmp_path / "t.csv").write_text("\n".join(["smiles,size", *rows]))
    options = ("--target-column", "size", "--split", "random", "--model", "process")
    document, _ = answered("train", tmp_path / "t.csv", *options, "--out", "made")
    result = document["result"]
    stored = json.loads(Path(result["files"][0], "scores.json").read_text())
    assert result["scores"] == stored["scores"]
    assert result["notes"] == stored["notes"]


def test_a_legend_of_intervals_needs_intervals(run, tmp_path):
    for length, legend in ((20, "too small for bootstrap intervals"), (60, "in brackets 95 %")):
        path = tmp_path / f"{length}.csv"
        path.write_text("\n".join(["smiles,y", *(f"{'C' * k}O,{k}" for k in range(1, length + 1))]))
        options = ("--target-column", "y", "--split", "random", "--model", "process")
        assert legend in run("train", path, *options, "--out", tmp_path / f"of-{length}")[2]


def test_a_named_training_answers_with_its_score(answered, run, monkeypatch):
    def trained(*_, **__) -> Path:
        return Path(locate("mnist-superpixels"))

    monkeypatch.setattr("graphxai.cli.train._train_named", trained)
    document, _ = answered("train", "mnist-superpixels", "--out", "made")
    (score,) = document["result"]["notes"]
    assert re.fullmatch(r"on the test part: accuracy 0\.\d{4}", score)
    assert score in run("train", "mnist-superpixels", "--out", "made")[2]


@pytest.mark.parametrize(
    ("arguments", "status", "kind"),
    [
        (("predict", "C1CC"), 1, "MoleculeError"),
        (("predict", "missing.csv"), 1, "FileNotFoundError"),
        (("explain", "CCO", "--method", "lpr"), 1, "ValueError"),
        (("explain", "CCO", "--methd", "lrp"), 2, "NoSuchOption"),
        (("explain",), 2, "MissingParameter"),
        (("counterfactuals", "CCO"), 2, "MissingParameter"),
        (("counterfactuals", "CCO", "--towards", "maybe"), 1, "ValueError"),
        (("train", "missing.csv", "--out", "x"), 1, "FileNotFoundError"),
        (("models", "too", "many"), 2, "UsageError"),
        (("methods", "--model"), 2, "NoSuchOption"),
        (("no-such-command",), 2, "UsageError"),
    ],
)
def test_an_error_is_a_document_and_a_line_on_standard_error(answered, arguments, status, kind):
    document, err = answered(*arguments)
    assert document["status"] == status
    assert document["error"]["type"] == kind
    assert document["error"]["message"] in err


def test_a_table_without_a_readable_row_says_so_in_its_document(answered, tmp_path):
    (tmp_path / "bad.csv").write_text("smiles\nC1CC\nCCO(\n")
    document, _ = answered("predict", tmp_path / "bad.csv", "--smiles-column", "smiles")
    assert document["status"] == 1
    assert document["result"]["counts"] == {"done": 0, "rejected": 2, "earlier": 0}


SUFFIXES = {"predict": ".csv", "explain": "", "report": ".html", "fragments": ".csv"}


@pytest.mark.parametrize("command", SUFFIXES)
def test_rows_left_out_have_a_status_of_their_own_if_that_is_wanted(run, table, tmp_path, command):
    places = [tmp_path / f"{k}{SUFFIXES[command]}" for k in range(3)]
    assert run(command, table, "--out", places[0])[0] == 0
    assert run(command, table, "--out", places[1], "--fail-on-rejected")[0] == answers.REJECTED
    table.write_text("smiles\nCCO\n")
    assert run(command, table, "--out", places[2], "--fail-on-rejected")[0] == 0


def typed(*arguments: str, given: str = "") -> subprocess.CompletedProcess:
    """Run the command in a process of its own, with pipes at all three streams."""
    command = [sys.executable, "-m", "graphxai", *arguments]
    return subprocess.run(command, input=given.encode(), capture_output=True, env=os.environ)


def test_a_dash_is_standard_input_and_standard_output(run, table, tmp_path):
    run("predict", table, "--out", tmp_path / "p.csv")
    run("explain", table, "--out", tmp_path / "e", "--pictures", "none")
    predicted = typed("predict", "-", "--out", "-", given=TABLE)
    assert predicted.stdout == (tmp_path / "p.csv").read_bytes()
    by_device = typed("predict", "/dev/stdin", "--out=/dev/stdout", given=TABLE)
    assert by_device.stdout == predicted.stdout
    explained = typed("explain", "-", "--out", "-", given=TABLE)
    assert b"3 explained" not in explained.stdout
    written = (tmp_path / "e" / "explanations.csv").read_bytes()
    assert explained.stdout == written.removeprefix(b"\xef\xbb\xbf")


def test_words_call_standard_streams_by_their_names_and_keep_the_reasons():
    explained = typed("explain", "-", "--out", "-", "--fail-on-rejected", given=TABLE)
    words = explained.stderr.decode()
    assert "2 explained, 1 left out: standard output\n" in words
    assert "left out: row 2: " in words
    assert "graphxai-" not in words
    assert explained.returncode == 3
    assert "\nwritten: standard output\n" in typed("explain", "CCO", "--out", "-").stderr.decode()
    missing = typed("predict", "-", "--smiles-column", "drawn", given=TABLE).stderr.decode()
    assert missing.startswith("error: standard input has no column 'drawn'")


@pytest.mark.parametrize(
    "arguments",
    [
        ("adapt", "mdr1-efflux", "t.csv"),
        ("train", "t.csv"),
        ("benchmark", "t.csv"),
        ("explain", "t.csv", "--engine", "ray"),
    ],
)
def test_results_that_fill_a_folder_are_not_lost_on_standard_output(
    run, arguments, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TABLE)
    status, _, words = run(*arguments, "--out", "-")
    assert status == 2
    assert "--out -: the results fill a folder: name it." in words


def test_the_commands_that_fill_a_folder_are_those_whose_help_says_so():
    commands = typer.main.get_command(main.app).commands
    helps = {n: p.help for n, c in commands.items() for p in c.params if "--out" in p.opts}
    filling = {n for n, text in helps.items() if text.startswith(("Folder", "Output folder"))}
    assert filling == {*answers.INTO_FOLDERS}


def test_a_table_on_standard_output_has_no_words_of_the_answer_before_it(run, tmp_path):
    run("explain", "CCO", "--out", tmp_path / "e.csv")
    _, out, err = run("explain", "CCO", "--out", "-")
    assert out == (tmp_path / "e.csv").read_text(encoding="utf-8-sig")
    assert "BACE-1 inhibition: inactive" in err


def test_answers_are_on_standard_output_and_words_on_standard_error(run, table, tmp_path):
    _, out, err = run("predict", table, "--out", tmp_path / "p.csv")
    assert out == ""
    assert "2 predicted, 1 left out" in err
    _, out, err = run("explain", "CCO", "--out", tmp_path / "x.svg")
    assert out.startswith("BACE-1 inhibition: inactive")
    assert "written: " not in out
    assert "model: bace" in err


def test_quiet_leaves_only_answers_warnings_and_errors(run, table, tmp_path):
    assert run("predict", table, "--out", tmp_path / "p.csv", "--quiet") == (0, "", "")
    assert run("predict", "CCO", "--quiet")[1] == run("predict", "CCO")[1]
    assert "error: " in run("predict", "C1CC", "--quiet")[2]


def test_a_log_file_gets_words_warnings_and_errors_of_every_run(run, table, tmp_path):
    log = tmp_path / "run.log"
    run("predict", table, "--out", tmp_path / "p.csv", "--quiet", "--log-file", log)
    run("predict", "C1CC", "--log-file", log)
    lines = log.read_text().splitlines()
    assert any("INFO 2 predicted, 1 left out" in line for line in lines)
    assert " ERROR error: " in lines[-1]
    assert [type(each) for each in LOGGER.handlers] == [logging.NullHandler]


def test_python_hears_a_warning_every_time_in_the_log(caplog_of_graphxai):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            warn("the models disagree")
    assert caplog_of_graphxai == ["the models disagree"] * 2
    with pytest.warns(UserWarning, match="disagree") as caught:
        warn("the models disagree")
    assert caught[0].filename == __file__


@pytest.fixture
def caplog_of_graphxai():
    """Return the list that the logger of the package fills with messages."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    LOGGER.addHandler(handler)
    yield heard
    LOGGER.removeHandler(handler)


@pytest.mark.parametrize("command", ["models", "methods"])
def test_a_list_that_is_piped_is_a_plain_table_that_cuts_nothing(run, command):
    _, out, _ = run(command)
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert {len(row) for row in rows} == {len(head)}
    assert "…" not in out
    names = {row[0] for row in rows}
    assert names == set(model_names("")) or names == {each.name for each in listed_methods()}


@pytest.mark.parametrize("command", ["models", "methods"])
def test_a_terminal_of_80_columns_shows_names_whole(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    _, out, _ = run(command)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    words = {word for line in out.splitlines() for word in line.split()}
    expected = {method.name for method in listed_methods()}
    if command == "models":
        expected = {*model_names(""), "inhibition", "NR-PPAR-gamma", "non-penetrant"}
    assert expected <= words


def test_python_saves_the_json_that_the_command_answers_with(answered, tmp_path):
    folder = save_checkpoint(random_graphormer(), tmp_path / "toy")
    result = answered("explain", "CCO", "--model", folder)[0]["result"]
    saved = gx.explain(folder, "CCO").save(tmp_path / "e.json")
    assert set(json.loads(saved.read_text())) == set(result["explanations"][0])
