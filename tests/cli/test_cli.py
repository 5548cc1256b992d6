"""The command line explains and runs tables; an error is one line and a non-zero status."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from PIL import Image
from rdkit import Chem

import graphxai as gx
from graphxai.cli import listing
from graphxai.cli import main as cli
from graphxai.cli.listing import listed_methods
from graphxai.contract.intervals import Conformal
from graphxai.contract.tasks import Task
from graphxai.datasets.samples import digit_paths, example_files
from graphxai.explainers import REGISTRY
from graphxai.models.graphormer import pretrained_names, save_checkpoint
from toy import random_graphormer

ASSAY = example_files()["assay.csv"]
ROWS = [
    ("aspirin", "CC(=O)Oc1ccccc1C(=O)O"),
    ("broken", "C1CC"),
    ("salt", "CC(=O)[O-].[Na+]"),
    ("empty", ""),
    ("methane", "C"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(save_checkpoint(random_graphormer(), tmp_path_factory.mktemp("model") / "toy"))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "molecules.csv"
    lines = ["name,smiles", *(f"{name},{smiles}" for name, smiles in ROWS)]
    path.write_text("\r\n".join(lines) + "\r\n", encoding="utf-8-sig")
    return path


def read(path):
    with path.open(newline="", encoding="utf-8-sig") as file:  # as the table is written
        return list(csv.DictReader(file))


def test_one_molecule_is_printed_and_drawn(run, checkpoint, tmp_path):
    out = tmp_path / "pictures" / "aspirin.png"
    code, text, _ = run("explain", ROWS[0][1], "--model", checkpoint, "--out", out)
    assert code == 0
    assert "relevance for active" in text
    assert "unexplained" in text
    with Image.open(out) as picture:
        assert picture.format == "PNG"


@pytest.mark.parametrize("command", ["explain", "predict", "fragments", "report"])
def test_a_command_says_which_model_it_took(run, command, tmp_path):
    table, page = tmp_path / "ethanol.csv", tmp_path / "page.html"
    table.write_text("smiles\nCCO\n")
    options = [table, "--out", page, "--detailed", "0"] if command == "report" else ["CCO"]
    if command == "fragments":
        options += ["--out", tmp_path / "fragments.csv"]
    _, _, text = run(command, *options)
    assert "model: bace (the default; --model chooses another)" in text
    _, _, text = run(command, *options, "--model", "solubility")
    assert "model: solubility\n" in text


def test_several_methods_are_compared_in_one_picture(run, checkpoint, tmp_path):
    out = tmp_path / "compared.svg"
    methods = ("--method", "lrp", "--method", "gae", "--method", "random")
    code, _, _ = run("explain", "CCO", "--model", checkpoint, *methods, "--out", out)
    assert code == 0
    assert "Generic attention explainability" in out.read_text()


def test_a_table_gives_one_row_and_one_picture_each(run, checkpoint, table, tmp_path):
    out = tmp_path / "results"
    code, _, text = run("explain", table, "--model", checkpoint, "--out", out)
    assert code == 0
    assert "3 explained, 2 left out" in text
    rows = read(out / "explanations.csv")
    assert [row["row"] for row in rows] == ["1", "3", "5"]
    assert [len(row["relevance"].split()) for row in rows] == [13, 5, 1]
    for row in rows:
        assert (out / row["picture"]).read_text().startswith("<")
        relevance = sum(map(float, row["relevance"].split()))
        assert relevance == pytest.approx(float(row["nodes"]), abs=1e-3)
    rejected = read(out / "rejected.csv")
    assert [row["row"] for row in rejected] == ["2", "4"]
    assert "ring 1 is opened but never closed" in rejected[0]["reason"]


def test_an_interrupted_table_resumes_and_repeats_nothing(run, checkpoint, table, tmp_path):
    out = tmp_path / "results"
    arguments = ("explain", table, "--model", checkpoint, "--out", out)
    run(*arguments)
    before = read(out / "explanations.csv")
    complete = (out / "explanations.csv").read_bytes()
    cut = complete.rindex(b"\n", 0, len(complete) - 1) + 20  # in the middle of the last row
    (out / "explanations.csv").write_bytes(complete[:cut])
    code, _, error = run(*arguments)
    assert code == 1
    assert "already holds results: continue with --resume" in error
    code, _, text = run(*arguments, "--resume")
    assert code == 0
    assert "1 explained, 0 left out, 4 rows done before" in text
    after = read(out / "explanations.csv")
    assert [row["row"] for row in after] == ["1", "3", "5"]
    assert after[:2] == before[:2]
    assert float(after[2]["output"]) == pytest.approx(float(before[2]["output"]), abs=1e-4)
    code, _, error = run(*arguments, "--resume", "--method", "gae")
    assert code == 1
    assert "holds a run with method = 'lrp', not 'gae'" in error


def test_the_pictures_of_a_table_share_a_scale_unless_each_should_have_its_own(
    run, checkpoint, table, tmp_path
):
    from graphxai.visualization import Scale

    for options, is_shared in (((), True), (("--scale", "own"), False)):
        out = tmp_path / f"results-{is_shared}"
        code, _, _ = run("explain", table, "--model", checkpoint, "--out", out, *options)
        assert code == 0
        rows = [
            (np.array(row["relevance"].split(), float), (out / row["picture"]).read_text())
            for row in read(out / "explanations.csv")
        ]
        limit = np.quantile(np.abs(np.concatenate([values for values, _ in rows])), 0.975)
        for values, svg in rows:
            scale = Scale(limit if is_shared else np.abs(values).max())
            assert scale.hex(values[:1])[0] in svg
            assert ("one scale for all pictures of this table" in svg) is is_shared


def test_a_scale_in_numbers_is_what_is_shown_in_full_colour(run, checkpoint, tmp_path):
    from graphxai.visualization import Scale

    out = tmp_path / "ethanol.svg"
    code, _, _ = run("explain", "CCO", "--model", checkpoint, "--scale", "2.5", "--out", out)
    assert code == 0
    relevance = gx.explain(checkpoint, "CCO").relevance
    assert all(color in out.read_text() for color in Scale(2.5).hex(relevance))
    for wrong in ("0", "inf", "nan", "wide"):
        code, _, error = run("explain", "CCO", "--model", checkpoint, "--scale", wrong)
        assert code == 2
        assert f"a positive number, not '{wrong}'" in " ".join(error.replace("│", " ").split())


def test_predictions_of_a_table(run, checkpoint, table, tmp_path):
    out = tmp_path / "predictions.csv"
    code, _, error = run("predict", table, "--model", checkpoint, "--out", out)
    assert code == 0
    assert "model: toy\n" in error
    assert "3 predicted, 2 left out" in error
    rejected = read(tmp_path / "predictions.rejected.csv")
    assert [row["row"] for row in rejected] == ["2", "4"]
    assert "left out: row 2" in error
    rows = read(out)
    assert list(rows[0]) == [
        "row",
        "name",
        "smiles",
        "activity",
        "activity: inactive",
        "activity: active",
        "pIC50",
        "nearest_similarity",
        "training_set",
        "parent",
        "note",
    ]
    assert "training set: unknown" in error
    for other in ("p.tsv", "p.parquet"):
        assert run("predict", table, "--model", checkpoint, "--out", tmp_path / other)[0] == 0
    cells = {"keep_default_na": False, "na_values": {"nearest_similarity": [""]}}
    frame = pd.read_csv(out, **cells)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "p.tsv", sep="\t", **cells), frame)
    parquet = pd.read_parquet(tmp_path / "p.parquet")
    pd.testing.assert_frame_equal(parquet, frame, check_dtype=False)
    code, text, _ = run("predict", table, "--model", checkpoint)
    assert text.splitlines()[0].startswith("row,name,smiles,activity")
    code, text, _ = run("predict", "CCO", "--model", checkpoint)
    assert text.startswith("activity: ")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a checkpoint that holds its training molecules: methane and an acetate."""
    folder = save_checkpoint(random_graphormer(), tmp_path_factory.mktemp("trained") / "toy")
    (folder / "training.csv").write_text("smiles\nC\nCC(=O)[O-]\n")
    return folder


def test_atoms_of_a_salt_have_the_numbers_of_the_molecule_that_was_given(run, tmp_path):
    given = "[Na+].CC(C)Cc1ccc(cc1)C(C)C(=O)[O-]"
    _, printed, _ = run("explain", given, "--model", "lipophilicity", "--out", tmp_path / "a.svg")
    listed = re.findall(r"^    ([A-Z][a-z]?)(\d+) +[+-]", printed, re.MULTILINE)
    atoms = Chem.MolFromSmiles(given).GetAtoms()
    assert len(listed) == 5
    assert all(atoms[int(number)].GetSymbol() == symbol for symbol, number in listed)
    assert {"14", "15"} & {number for _, number in listed}  # oxygens; the parent ends with 14


def test_several_models_predict_one_row_with_all_properties(run, tmp_path):
    table = tmp_path / "molecules.csv"
    table.write_text("SMILES\tID\nCCO\ta\nnonsense\tb\n=1+1\tc\n[Na+].CC(=O)[O-]\td\n")
    two = ["--model", "lipophilicity", "--model", "solubility"]
    wish = ["--goal", "log D 1 to 3, solubility > -4 (weight 2)", "--name-column", "ID"]
    code, printed, error = run("predict", str(table), *two, *wish)
    assert (code, "2 predicted, 2 left out" in error) == (0, True)
    rows = list(csv.DictReader(printed.splitlines(), delimiter="\t"))
    assert [row["ID"] for row in rows] == ["a", "d"]
    for row in rows:
        alone = gx.predict("solubility", row["SMILES"])["solubility"]
        assert float(row["solubility (log mol/L)"]) == pytest.approx(alone.value, abs=1e-4)
        assert row["solubility_training_set"] == alone.nearness.word
        assert float(row["log D at pH 7.4_low"]) < float(row["log D at pH 7.4"])
        d = float(row["log D at pH 7.4_desirability"]) * float(row["solubility_desirability"]) ** 2
        assert float(row["desirability"]) == pytest.approx(d ** (1 / 3), rel=1e-4)
    assert rows[1]["note"].startswith("salt removed")
    code, printed, _ = run("predict", "CCO", *two, *wish[:2])
    assert printed.count("training set") + printed.count("a training compound") == 2
    assert "desirability: " in printed


def test_every_row_says_how_near_it_is_to_the_training_set(run, trained, table, tmp_path):
    out = tmp_path / "results"
    code, _, error = run("explain", table, "--model", trained, "--out", out, "--format", "sdf")
    assert code == 0, error
    line = "training set: of 3 rows, 2 far from it, 1 a training compound (column training_set)"
    assert line in error
    rows = read(out / "explanations.csv")
    assert [row["training_set"] for row in rows] == ["far", "far", "training compound"]
    assert [row["nearest_similarity"] for row in rows][2] == "1"
    assert 0 < float(rows[1]["nearest_similarity"]) < 1
    assert (out / "explanations.sdf").read_text().count("Training set") == 3
    code, text, error = run("predict", table, "--model", trained)
    assert code == 0
    assert [row["training_set"] for row in csv.DictReader(text.splitlines())] == [
        row["training_set"] for row in rows
    ]
    assert line in error


def test_a_molecule_far_from_the_training_set_is_said_to_be(run, trained):
    for command in ("explain", "predict"):
        code, text, _ = run(command, "OCC=CF", "--model", trained)
        assert code == 0
        assert "training set: no training compound contains F" in text
    assert "training set: a training compound" in run("predict", "C", "--model", trained)[1]


def test_models_are_listed(run):
    code, text, words = run("models")
    assert code == 0
    lines = text.splitlines()
    (activity,) = (line for line in lines if "BACE-1" in line)
    assert "bace" in activity
    assert "ROC-AUC" in activity
    (potency,) = (line for line in lines if "pIC50" in line)
    assert "R2" in potency
    assert "random split" in " ".join(text.split())
    assert "0.86 on new scaffolds" in words
    assert "mnist-superpixels" in text
    (start,) = (line for line in lines if "molecules" in line)
    assert "weights" in start
    for name in pretrained_names():
        parameters = sum(weight.numel() for weight in gx.load(name).parameters())
        assert any(f"{parameters:,}" in line for line in lines)


def test_methods_are_listed_as_their_classes_describe_them(run):
    code, text, _ = run("methods")
    assert code == 0
    assert "lrp_ah_ln" in text
    expected = [
        (name, f"{cls.title} ({cls.traits.note})".removesuffix(" ()"), cls.source, cls.traits.cost)
        for name, cls in REGISTRY.items()
    ]
    assert listed_methods() == expected


def test_the_shell_completes_models_and_methods(run, monkeypatch):
    assert listing.model_names("s") == ["solubility", "solubility-ph68"]
    assert listing.method_names("lrp,ga") == ["lrp,gae", "lrp,gae_rollout"]
    assert set(listing.model_names("")) == set(pretrained_names())
    assert set(listing.method_names("")) == {*REGISTRY, "best"}
    monkeypatch.setenv("_GRAPHXAI_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "graphxai explain CCO --method lrp_p")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert run()[1].split() == ["lrp_path"]


@pytest.mark.parametrize("command", ["explain", "predict", "report"])
def test_weights_to_start_from_are_refused(run, table, command):
    source = table if command == "report" else "CCO"
    code, text, error = run(command, source, "--model", "molecules")
    assert (code, text) == (1, "")
    assert error.startswith("error: 'molecules' has only weights to start training from: choose")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return a checkpoint with conformal scores."""
    model = random_graphormer()
    model.conformal = {"pIC50": Conformal({"": [0.5] * 99}), "activity": Conformal({})}
    return save_checkpoint(model, tmp_path_factory.mktemp("measured") / "toy")


@pytest.mark.parametrize("command", ["explain", "predict"])
def test_the_level_of_intervals_is_chosen(run, measured, checkpoint, command):
    code, text, error = run(command, "CCO", "--model", measured, "--level", "0.8")
    assert (code, "has no intervals" in error) == (0, False)
    value = gx.predict(gx.load(measured), "CCO")["pIC50"].value
    assert f"(80 %: {value - 0.5:.2f} to {value + 0.5:.2f})" in text
    assert "(80 %: inactive or active)" in text
    code, text, error = run(command, "CCO", "--model", checkpoint, "--level", "0.8")
    assert code == 0
    assert "%:" not in text
    assert error.startswith("model 'toy' has no intervals: ")
    assert error.count("no intervals") == 1
    code, _, error = run(command, "CCO", "--model", measured, "--level", "90")
    assert code == 1
    assert "between 0 and 1" in error


def test_tables_have_intervals_at_the_level(run, measured, table, tmp_path):
    out = tmp_path / "results"
    options = ("--model", measured, "--level", "0.5", "--pictures", "none", "--out", out)
    code, _, error = run("explain", table, *options)
    assert code == 0, error
    for row in read(out / "explanations.csv"):
        assert float(row["pIC50_high"]) - float(row["pIC50_low"]) == pytest.approx(1, rel=1e-4)
        assert row["activity_set"] == "inactive or active"
    code, _, error = run("explain", table, *options[:3], "0.6", *options[4:], "--resume")
    assert code == 1
    assert "level = 0.5" in error


def test_json_and_csv_hold_the_values(run, checkpoint, tmp_path):
    out = tmp_path / "a.json"
    code, _, _ = run("explain", "CCO", "--model", checkpoint, "--out", out)
    assert code == 0
    assert len(json.loads(out.read_text())["relevance"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "C1CC"), "ring 1 is opened but never closed"),
        (("explain", "missing.csv"), "missing.csv: no such file"),
        (("explain", "CCO", "--model", "nothing"), "neither a folder nor the name"),
        (("explain", "CCO", "--model", "bac"), "Did you mean 'bace'?"),
        (("explain", "CCO", "--method", "lime"), "unknown method 'lime'"),
        (("explain", "CCO", "--method", "LPR"), "Did you mean 'lrp'?"),
        (("explain", "CCO", "--target", "toxic"), "no class 'toxic'"),
        (
            ("explain", "CCO", "--model", "bace", "--target", "toxic"),
            "'BACE-1 inhibition' (inactive, active), 'pIC50'",
        ),
        (("explain", "CCO", "--model", "tox21", "--target", "active"), "name the task too"),
        (("explain", "CCO", "--out", "x.doc"), "use one of .svg"),
        (("predict", ASSAY, "--out", "x.xlsx"), "use one of .csv, .tsv, .parquet"),
        (("report", ASSAY, "--out", "x.pdf"), "use one of .html"),
        (("changes", ASSAY, "--out", "x"), "use one of .csv"),
        (("explain", "CCO", "--scale", "-1"), "--scale is 'own', 'shared' or a positive number"),
        (("explain", "CCO", "--palette", "rainbow"), "rainbow"),
        (("explain", ASSAY, "--model", "bace", "--model", "tox21"), "--model is given 2 times"),
        (("explain", ""), "the SMILES is empty"),
        (("predict", "C" * 501), "has 501 atoms, more than the limit of 500"),
    ],
)
def test_bad_input_is_one_readable_line(run, checkpoint, arguments, message):
    model = () if "--model" in arguments else ("--model", checkpoint)
    code, _, error = run(*arguments, *model)
    assert code != 0
    assert message in " ".join(error.replace("│", " ").split())
    assert "Traceback" not in error


def test_a_smiles_may_be_longer_than_a_file_name(run, checkpoint):
    code, text, error = run("predict", "C" * 300, "--model", checkpoint)
    assert code == 0, error
    assert text.startswith("activity: ")


def test_a_file_called_like_a_molecule_does_not_hide_it(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("CCO", "letter.doc"):
        (tmp_path / name).touch()
    assert run("predict", "CCO", "--model", checkpoint)[0] == 0
    code, _, error = run("predict", "letter.doc", "--model", checkpoint)
    assert code == 1
    assert "cannot read this type of file; use .csv" in error


def test_scores_that_are_not_shares_of_the_output_have_no_ledger(run, checkpoint):
    _, text, _ = run("explain", "CCO", "--model", checkpoint, "--method", "gae,lrp")
    scores, shares = text.split("LRP, relevance")
    assert "scores, not shares of the output" in scores
    assert "unexplained" not in scores
    assert "unexplained" in shares


def test_a_table_is_not_explained_into_a_file(run, checkpoint, table, tmp_path):
    code, _, error = run("explain", table, "--model", checkpoint, "--out", tmp_path / "a.svg")
    assert code != 0
    assert "a folder, not a file" in " ".join(error.replace("│", " ").split())
    assert not (tmp_path / "a.svg").exists()


def test_a_missing_column_lists_the_existing_ones(run, checkpoint, table, tmp_path):
    code, _, error = run(
        "explain", table, "--model", checkpoint, "--smiles-column", "mol", "--out", tmp_path / "r"
    )
    assert code == 1
    assert "has no column 'mol'; its columns: 'name', 'smiles'" in error


def test_a_run_that_failed_before_its_first_row_can_be_corrected(run, checkpoint, table, tmp_path):
    arguments = ("explain", table, "--model", checkpoint, "--out", tmp_path / "r")
    assert run(*arguments, "--smiles-column", "mol")[0] == 1
    assert run(*arguments, "--method", "lrp", "--target", "toxic", "--pictures", "none")[0] == 1
    code, _, text = run(*arguments)
    assert code == 0
    assert "3 explained" in text


def test_debug_shows_the_traceback(run, checkpoint):
    with pytest.raises(ValueError, match="cannot be read"):
        run("explain", "C1CC", "--model", checkpoint, "--debug")


def test_nothing_is_printed_for_a_table_without_the_column(run, checkpoint, table):
    code, text, error = run("predict", table, "--model", checkpoint, "--smiles-column", "mol")
    assert code == 1
    assert text == ""
    assert "no column 'mol'" in error
    code, text, error = run("predict", table, "--model", checkpoint, "--name-column", "ID")
    assert (code, text) == (1, "")
    assert "no column 'ID'; its columns: 'name', 'smiles'" in error


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("command", ["predict", "explain"])
def test_every_command_lists_the_existing_columns_if_one_is_missing(
    command, delimiter, run, checkpoint, tmp_path
):
    path = tmp_path / "molecules.csv"
    path.write_text(
        delimiter.join(["ID", "mol", "pIC50, measured"][: 3 if delimiter != "," else 2])
    )
    out = tmp_path / ("out.csv" if command == "predict" else "folder")
    code, text, error = run(command, path, "--model", checkpoint, "--out", out)
    assert (code, text) == (1, "")
    assert "no column of structures" in error
    assert "name it with --smiles-column" in error
    assert "its columns: 'ID', 'mol'" in error


@pytest.mark.parametrize("name", ["rows.csv", "rows.xlsx", "rows.tsv"])
def test_a_table_is_not_explained_into_a_folder_with_the_name_of_a_file(
    run, checkpoint, table, tmp_path, name
):
    code, _, error = run("explain", table, "--model", checkpoint, "--out", tmp_path / name)
    assert code == 2
    assert "for a table, name a folder, not a file" in " ".join(error.split())
    assert not (tmp_path / name).exists()


def test_predictions_have_the_names_of_the_compounds(run, checkpoint, table):
    code, text, _ = run("predict", table, "--model", checkpoint, "--name-column", "name")
    assert code == 0
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["name"] for row in rows] == ["aspirin", "salt", "methane"]
    code, _, error = run("predict", "CCO", "--model", checkpoint, "--name-column", "name")
    assert code == 2
    assert "--name-column is for a table or --engine ray, not for a SMILES" in error


def test_an_empty_table_has_a_header_of_predictions(run, checkpoint, tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("smiles\n")
    code, text, _ = run("predict", path, "--model", checkpoint)
    assert code == 0
    assert text.startswith("row,smiles,activity")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(("r2", "warnings"), [(-0.2, 1), (0.3, 0)])
def test_a_model_worse_than_the_mean_gives_one_warning(run, tmp_path, r2, warnings):
    scores = {"graphormer": {"R2": [r2, r2, r2]}, "dummy": {"R2": [-0.01, -0.1, 0.0]}}
    metadata = {"scores": {"pIC50": {"kind": "regression", "scores": scores}}}
    folder = save_checkpoint(random_graphormer(), tmp_path / "poor" / "model", metadata=metadata)
    table = tmp_path / "one.csv"
    table.write_text("smiles\nCCO\n")
    for arguments in (
        ("predict", "CCO"),
        ("explain", "CCO"),
        ("report", table, "--out", tmp_path / "report.html", "--detailed", 0),
    ):
        code, _, error = run(*arguments, "--model", folder)
        assert code == 0
        line = "warning: model 'poor' is worse than predicting the training mean of pIC50"
        assert error.count(line) == warnings
        assert error.count("do not use it") == warnings


def test_version_is_printed(run):
    folder = Path(gx.__file__).parent  # another project has the same name
    assert run("--version") == (0, f"graphxai {gx.__version__} from {folder}\n", "")


@pytest.mark.parametrize("command", [None, *typer.main.get_command(cli.app).commands])
def test_help_shows_a_type_only_for_options_that_take_a_value(command, run):
    _, text, _ = run(*([command] if command else []), "--help")
    assert "<bool>" not in text
    assert re.search(r"--help +Show this message", text)
    for option in ("--resume", "--no-teacher", "--learning-curve", "--debug", "--version"):
        assert not re.search(rf"{option} +<", text)
    if command in ("explain", "train"):
        assert re.search(r"--smiles-column +<str>", text)


def test_the_words_of_the_ledger_are_explained_once(run):
    _, _, text = run("explain", "CCO", "--method", "lrp", "--method", "gradient_input")
    assert text.count("The output for the target, active, is a logit: +0.7 doubles the odds.") == 1
    glossary = " ".join(text.split("doubles the odds.")[1].split())
    for word in ("Without nodes: ", "centrality: ", "graph token: ", "biases: "):
        assert glossary.count(word) == 1
    assert "\x1b" not in text


def test_the_output_of_a_regression_is_a_value_and_scores_have_no_ledger_to_explain(run):
    _, text, words = run("explain", "CCO", "--target", "pIC50", "--method", "gae")
    assert "The output for the target, pIC50, is the predicted value." in words
    assert "graph token" not in text + words


def test_help_has_examples(run):
    for command in ("explain", "predict", "train", "demo"):
        code, text, _ = run(command, "--help")
        assert code == 0
        assert f"graphxai {command}" in text


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_a_table_without_one_usable_row_is_an_error(command, run, checkpoint, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("smiles\nC1CC\n", encoding="utf-8")
    out = tmp_path / ("out.csv" if command == "predict" else "folder")
    code, _, _ = run(command, path, "--model", checkpoint, "--out", out)
    assert code == 1


def test_atom_numbers_are_drawn_on_request(run, checkpoint, table, tmp_path):
    common = ("--model", checkpoint, "--atom-numbers")
    assert run("explain", "CCO", *common, "--out", tmp_path / "one.svg")[0] == 0
    assert (tmp_path / "one.svg").read_text().count("class='note'") == 3
    both = ("--method", "lrp", "--method", "gae", "--out", tmp_path / "two.svg")
    assert run("explain", "CCO", *common, *both)[0] == 0
    assert (tmp_path / "two.svg").read_text().count('class="note"') == 6
    assert run("explain", table, *common, "--out", tmp_path / "many")[0] == 0
    first = sorted((tmp_path / "many" / "pictures").iterdir())[0]
    assert "class='note'" in first.read_text()
    code, _, error = run("explain", digit_paths()[3], "--atom-numbers")
    assert code != 0
    assert "--atom-numbers is for a SMILES or a table, not for a picture" in error


def test_predictions_have_a_column_with_the_unit(run, tmp_path):
    tasks = (Task("solvation", "regression", unit="kcal/mol"), Task("logS", "regression"))
    folder = save_checkpoint(random_graphormer(tasks=tasks), tmp_path / "own")
    source = tmp_path / "m.csv"
    source.write_text("smiles\nCCO\n")
    _, text, _ = run("predict", source, "--model", folder)
    assert text.splitlines()[0] == (
        "row,smiles,solvation (kcal/mol),logS,nearest_similarity,training_set,parent,note"
    )
    _, text, _ = run("explain", source, "--model", folder, "--out", tmp_path / "out")
    (row,) = read(tmp_path / "out" / "explanations.csv")
    assert float(row["solvation (kcal/mol)"]) == float(row["output"])
    _, text, _ = run("explain", "CCO", "--model", folder)
    assert "relevance for solvation in kcal/mol" in text


def test_fragments_that_are_not_printed_are_counted(run, tmp_path):
    table, out = example_files()["assay.csv"], tmp_path / "f.csv"
    code, _, text = run("fragments", table, "--limit", "12", "--minimum", "1", "--out", out)
    assert code == 0
    hidden = len(read(out)) - 16
    assert hidden > 0
    assert f"{hidden} of {len(read(out))} fragments are left out here; all are in {out}" in text


@pytest.mark.parametrize("guard", [True, False])
def test_names_of_fragments_are_guarded_against_spreadsheets_on_request(guard, run, tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "f.csv"
    table.write_text("smiles\nOCCc1ccccc1\nOCCC\n")
    options = ["--smarts", "=1+1:[OX2H]", "--minimum", "1", *["--excel-safe"] * guard]
    code, _, error = run("fragments", table, "--out", out, *options)
    assert code == 0, error
    assert ("'=1+1" if guard else "=1+1") in {row["name"] for row in read(out)}


def test_the_fragments_of_one_molecule_have_the_relevance_of_the_target(run, tmp_path):
    out = tmp_path / "f.csv"
    code, _, text = run("fragments", ROWS[0][1], "--target", "pIC50", "--out", out)
    assert code == 0
    assert "relevance for pIC50" in text
    explanation = gx.explain("bace", ROWS[0][1], target="pIC50")
    total = sum(float(row["mean"]) for row in read(out))
    assert total == pytest.approx(float(explanation.relevance.sum()), rel=1e-4)


def test_a_note_of_training_is_printed_once(run, tmp_path, small_networks):
    table, out = tmp_path / "t.csv", tmp_path / "run"
    parts = ["train"] * 30 + ["valid"] * 5 + ["test"] * 5
    rare = (3, 20, 33, 38, 40)
    rows = [f"{'C' * k}O,{int(k in rare)},{part}" for k, part in enumerate(parts, start=1)]
    table.write_text("\n".join(["smiles,y,part", *rows]))
    options = ("--no-teacher", "--init-weights", "none", "--epochs", "1", "--split-column", "part")
    code, _, error = run("train", table, "--target-column", "y", "--out", out, *options)
    assert code == 0, error
    assert error.count("of the training molecules") == 1
