"""What is made of a table has its columns and is written as it is, whatever program wrote it."""

import csv
from pathlib import Path

import pandas as pd
import pytest
from rdkit import Chem
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from graphxai.explainers import get_explainer
from graphxai.tables.files import above_noise
from graphxai.tables.run import explain_table
from toy import random_graphormer

GERMAN = (
    "Säure;SMILES;pIC50;Bemerkung\n"
    "Essigsäure;CC(=O)O;4,76;=1+1\n"
    "kaputt;C1CC;3,2;\n"
    "zu viel;CCO;5;x;y\n"
    "Äpfelsäure;OC(CC(=O)O)C(=O)O;3,46;\n"
)


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


@pytest.fixture
def german(tmp_path: Path) -> Path:
    path = tmp_path / "säuren.csv"
    path.write_text(GERMAN, encoding="cp1252")
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    assert path.read_bytes().startswith("\ufeff".encode())  # else Excel shows "SÃ¤ure"
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter=";"))


def test_a_run_over_a_german_table_is_a_german_table(model, german: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    options = {"name_column": "Säure", "formats": ("csv", "sdf")}
    explain_table(model, german, folder, get_explainer("lrp"), **options)
    done = rows_of(folder / "explanations.csv")
    assert [row["row"] for row in done] == ["1", "4"]
    assert [row["Säure"] for row in done] == ["Essigsäure", "Äpfelsäure"]
    assert [row["input pIC50"] for row in done] == ["4,76", "3,46"]  # the model has a task pIC50
    assert done[0]["Bemerkung"] == "=1+1"
    for row in done:
        assert "." not in row["pIC50"] + row["output"] + row["relevance"]
        explanation = gx.explain(model, row["SMILES"])
        values = [float(v.replace(",", ".")) for v in row["relevance"].split()]
        digits = [*map(float, above_noise(explanation.relevance.tolist()))]
        assert values == pytest.approx(digits, abs=1e-5)
    rejected = rows_of(folder / "rejected.csv")
    assert [(row["row"], row["input pIC50"]) for row in rejected] == [("2", "3,2"), ("3", "")]
    assert "it has 5 cells, the header has 4" in rejected[1]["reason"]
    records = Chem.SDMolSupplier(str(folder / "explanations.sdf"))
    assert [mol.GetProp("input pIC50") for mol in records] == ["4,76", "3,46"]
    again = explain_table(model, german, folder, get_explainer("lrp"), **options, resume=True)
    assert again.earlier == 4


def test_parquet_made_of_a_german_run_has_numbers(model, german: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "out"
    explain_table(model, german, folder, get_explainer("lrp"), formats=("csv", "parquet"))
    frame = pd.read_parquet(folder / "explanations.parquet")
    expected = gx.predict(model, "CC(=O)O")["pIC50"].value
    assert frame["pIC50"][0] == pytest.approx(expected, rel=1e-4)
    assert len(frame["relevance"][0]) == 4


def test_predict_keeps_columns_counts_what_it_left_out_and_writes_why(
    german: Path, tmp_path: Path
) -> None:
    out = tmp_path / "predictions.csv"
    result = CliRunner().invoke(app, ["predict", str(german), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "2 predicted, 2 left out" in result.output
    assert "column 'SMILES', by its name" in result.output
    rows = rows_of(out)
    assert [row["Säure"] for row in rows] == ["Essigsäure", "Äpfelsäure"]
    assert [row["input pIC50"] for row in rows] == ["4,76", "3,46"]
    assert "," in rows[0]["pIC50"]
    rejected = rows_of(tmp_path / "predictions.rejected.csv")
    assert [row["Säure"] for row in rejected] == ["kaputt", ""]


@pytest.mark.parametrize("name", ["table.smi", "table.sdf", "table.csv.gz", "table.xlsx"])
def test_the_command_line_takes_every_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frame = pd.DataFrame({"Smiles": ["CCO", "CCN"], "ID": ["a", "b"]})
    if name.endswith(".smi"):
        path.write_text("CCO a\nCCN b\n")
    elif name.endswith(".sdf"):
        blocks = [Chem.MolToMolBlock(Chem.MolFromSmiles(smiles)) for smiles in frame.Smiles]
        path.write_text("$$$$\n".join(blocks))
    elif name.endswith(".xlsx"):
        pytest.importorskip("openpyxl")
        frame.to_excel(path, index=False)
    else:
        frame.to_csv(path, index=False)
    result = CliRunner().invoke(app, ["predict", str(path), "--model", "solubility"])
    assert result.exit_code == 0, result.output
    assert "2 predicted, 0 left out" in result.output


def test_a_single_molecule_has_fragments(tmp_path: Path) -> None:
    out = tmp_path / "fragments.csv"
    arguments = ["fragments", "CC(=O)Nc1ccc(OC)cc1", "--scheme", "groups", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    frame = pd.read_csv(out)
    parts = gx.fragments(gx.explain("bace", "CC(=O)Nc1ccc(OC)cc1"), "groups")
    assert frame["mean"].sum() == pytest.approx(parts.total, rel=1e-4)


def test_a_number_is_a_value_to_cross(model) -> None:
    value = gx.predict(model, "CCO")["pIC50"].value
    for limit, sign in ((value + 1, ">"), (value - 1, "<")):
        counterfactuals = gx.counterfactuals(model, "CCO", limit, 1, predictions=5, progress=False)
        assert str(counterfactuals.goal).startswith(f"pIC50 {sign} ")


def test_what_an_sd_file_cannot_hold_is_one_sentence(model, tmp_path: Path, capfd) -> None:
    with pytest.raises(
        ValueError, match=r"cannot be written as an SD record \(Atomic number not found\): write"
    ):
        gx.explain(model, "C[*+]").save(tmp_path / "x.sdf")
    assert capfd.readouterr().err == ""  # no trace of C++


@pytest.mark.parametrize("path", ["/dev/zero", "folder", "pipe"])
def test_pictures_that_are_no_files_are_refused(tmp_path: Path, path: str) -> None:
    import os

    pytest.importorskip("PIL")
    place = Path(path) if path.startswith("/") else tmp_path / f"{path}.png"
    if path == "folder":
        place.mkdir()
    elif path == "pipe":
        os.mkfifo(place)
    with pytest.raises(OSError, match=r"is a folder|device or a pipe"):
        gx.explain("mnist-superpixels", place)
