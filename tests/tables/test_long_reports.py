"""A long report keeps little of a molecule, in the process that makes it and in its page."""

import gc
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from rdkit import Chem
from reports import BLOCK, read_report

import graphxai as gx
from graphxai.datasets.training_set import training_set_of
from graphxai.explainers import get_explainer
from graphxai.explanation.explanation import Explanation
from graphxai.runtime.workers import FEWEST, GROWTH
from graphxai.tables.report import cards as report_cards
from graphxai.tables.report.cards import MoleculeCard
from graphxai.tables.report.molecules import ReportRow, Spool
from graphxai.tables.run import explain_table
from toy import random_graphormer

SMILES = ["C" * k + "O" for k in range(1, 97)]


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


def alike(a, b) -> bool:
    """Return whether two values have the same types and parts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Chem.Mol):
        return Chem.MolToMolBlock(a) == Chem.MolToMolBlock(b)
    if is_dataclass(a):
        return all(alike(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return alike([*a.items()], [*b.items()])
    return a == b


def test_an_explanation_comes_back_from_its_file_as_it_was():
    bace, spool = gx.load("bace"), Spool()
    given = Chem.MolFromMolBlock(Chem.MolToMolBlock(Chem.MolFromSmiles("OCC[C@H](N)C.Cl")))
    explanations = gx.explain(bace, ["CC(=O)[O-].[Na+]", "c1ccccc1O", given])
    for number, explanation in enumerate(explanations):
        spool.append((ReportRow(number, "−name \ud800", "CCO", {"pIC50": 7.0}), explanation))
    spool.append((ReportRow(3, "", ValueError("odd")), replace(explanations[0], smiles=None)))
    again = [spool[place] for place in range(len(spool))]
    for (row, made), expected in zip(again, explanations, strict=False):
        assert alike(made, expected)
        assert (row.name, row.measured) == ("−name \ud800", {"pIC50": 7.0})
        assert made.to_dict() == expected.to_dict()
        assert made.prediction.conformal is expected.prediction.conformal  # not one each
    assert again[3][0].value.args == ("odd",)
    assert training_set_of(bace) is not None  # so that nearness was written, too


def test_a_report_holds_no_more_cards_than_a_piece_has(model, tmp_path, monkeypatch):
    """Explanations and cards are counted while the last piece is made."""
    held = []
    make = report_cards._cards_of

    def counting(*arguments):
        gc.collect()
        held.append(sum(isinstance(o, Explanation | MoleculeCard) for o in gc.get_objects()))
        return make(*arguments)

    monkeypatch.setattr(report_cards, "_cards_of", counting)
    monkeypatch.setattr(report_cards, "CHUNK", 8)
    gx.report(model, SMILES, tmp_path / "r.html", detailed=0, workers=1)
    assert len(held) == len(SMILES) / 8
    assert max(held) - held[0] <= 2 * (8 + 2)  # of the piece before; the first and last molecule


def test_a_page_has_few_bytes_of_a_molecule_that_is_not_shown(model, tmp_path):
    """Unpacked, the details alone of such an alcohol take 4 kB."""
    pages = [
        gx.report(model, SMILES[-n:], tmp_path / f"{n}.html", detailed=0).read_text("utf-8")
        for n in (16, 96)
    ]
    records = [len(BLOCK.sub("", page)) for page in pages]
    assert (records[1] - records[0]) / 80 < 500  # record and map
    assert (len(pages[1]) - len(pages[0])) / 80 < 1_000
    shown = read_report(pages[1])["molecules"]
    assert [molecule["smiles"] for molecule in shown] == SMILES


def test_how_long_a_table_or_a_report_takes_is_known_after_a_few_rows(model, tmp_path, monkeypatch):
    table, done = tmp_path / "t.csv", []
    table.write_text("\n".join(["smiles", *SMILES]))
    explain_table(model, table, tmp_path / "run", get_explainer("lrp"), progress=done.append)
    assert done[:2] == [FEWEST, GROWTH * FEWEST]
    pieces = []
    make = report_cards._cards_of
    monkeypatch.setattr(
        report_cards, "_cards_of", lambda how, rows: pieces.append(len(rows)) or make(how, rows)
    )
    gx.report(model, table, tmp_path / "r.html", detailed=0, workers=1)
    assert pieces == [FEWEST, GROWTH * FEWEST, len(SMILES) - (1 + GROWTH) * FEWEST]
