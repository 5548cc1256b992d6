"""Every row of `docs/trust.md` on how a molecule is drawn happens as it says."""

import csv
import lzma
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from kernels import rows_stand_alone
from rdkit import Chem, rdBase
from rdkit.Chem.MolStandardize import rdMolStandardize
from torch import nn

import graphxai as gx
from graphxai.tables.batches import PredictBatch
from ogb_folders import BACE

ROOT = Path(__file__).resolve().parents[2]
PRETRAINED = ROOT / "models" / "graphormer" / "pretrained"
ETHYLAMINES = ("C[C@H](N)c1ccccc1", "C[C@@H](N)c1ccccc1")
UNDRAWN = "CC(N)c1ccccc1"


def read(drawn, model="lipophilicity"):
    """Return the explained output, the note and the relevance of a drawing."""
    e = gx.explain(model, drawn)
    return e.output, e.note, e.relevance


def answers(drawings, model="lipophilicity"):
    return [read(drawn, model)[0] for drawn in drawings]


def protons_between_nitrogens():
    pairs = [
        ("Cn1c(=O)c2[nH]cnc2n(C)c1=O", "Cn1c(=O)c2nc[nH]c2n(C)c1=O"),  # theophylline, an azole
        ("NC(=N)Nc1ccccc1", "NC(N)=Nc1ccccc1"),  # a guanidine
    ]
    for pair in pairs:
        (first, note), (second, other) = (read(drawn)[:2] for drawn in pair)
        assert first == second
        assert sorted((note, other)) == ["", "proton moved between nitrogens"]


def other_tautomers():
    with lzma.open(BACE, "rt", newline="") as file:
        smiles = [row["mol"] for row in csv.DictReader(file)]
    model, canonical = gx.load("bace"), rdMolStandardize.TautomerEnumerator().Canonicalize
    tested = [smiles[k] for k in model.origin.metadata["split"]["test"]]
    with rdBase.BlockLogs():
        others = [Chem.MolToSmiles(canonical(Chem.MolFromSmiles(drawn))) for drawn in tested]
    first, second = (
        [next(iter(p.values())) for p in gx.predict(model, drawn)] for drawn in (tested, others)
    )
    changes = [abs(p.probability - q.probability) for p, q in zip(first, second, strict=True)]
    differ = [k for k, change in enumerate(changes) if change > 1e-5]
    assert (len(differ), len(tested)) == (9, 152)
    assert [first[k].label for k in differ] == [second[k].label for k in differ]
    assert np.mean([changes[k] for k in differ]) == pytest.approx(0.02, abs=0.005)


def salts_and_charges():
    unlisted = "Cc1ccc([B-](c2ccccc2)(c2ccccc2)c2ccccc2)cc1"
    base, salt = "CC(C)NCC(O)COc1cccc2ccccc12", "CC(C)NCC(O)COc1cccc2ccccc12.Cl"
    (alone, none), (of_salt, note) = read(base)[:2], read(salt)[:2]
    assert alone == of_salt
    assert (none, note) == ("", "salt removed: hydrochloride")
    assert "not listed" in read(f"CC(C)[NH2+]CC(O)COc1cccc2ccccc12.{unlisted}")[1]
    assert "charge" in read("C[N+](C)(C)CCO")[1]
    as_drawn = gx.load("lipophilicity", as_drawn=True)
    assert len(set(answers((base, salt), as_drawn))) == 2


def isotopes_and_labels():
    plain = answers(["CCO"])
    drawn = ["[13CH3]CO", "[2H]OCC", "[3H]CCO", "[CH3:7][CH2:2]O"]
    assert answers(drawn) == plain * 4
    assert [len(read(each)[2]) for each in drawn] == [3] * 4
    assert {read(each)[1] for each in drawn[:3]} == {"isotope not seen by the model"}


def hydrogens_bonds_and_perception():
    cinnamic, old = "O=C(O)/C=C/c1ccccc1", Chem.GetUseLegacyStereoPerception()
    molecule = Chem.MolFromSmiles(cinnamic)
    drawn = [cinnamic, molecule, Chem.AddHs(molecule)]
    crossed = Chem.MolFromMolBlock(Chem.MolToMolBlock(Chem.MolFromSmiles("O=C(O)C=Cc1ccccc1")))
    try:
        answered = []
        for legacy in (True, False):
            Chem.SetUseLegacyStereoPerception(legacy)
            answered += answers(drawn)
    finally:
        Chem.SetUseLegacyStereoPerception(old)
    assert len(set(answered)) == 1
    assert answers([crossed]) == answers(["O=C(O)C=Cc1ccccc1"])


def resonance_forms():
    e = gx.explain("bace", "O=[N+]([O-])c1ccccc1", target="active")
    assert e.relevance[[0, 2]] == pytest.approx([-0.17, -0.40], abs=0.005)


def racemates():
    racemic = [f"{image} |&1:1|" for image in ETHYLAMINES]
    of_images = answers(ETHYLAMINES, "bace")
    assert answers(racemic, "bace") == pytest.approx([np.mean(of_images)] * 2, abs=1e-5)
    assert len(set(of_images)) == 2
    of_both = answers([*racemic, *ETHYLAMINES], "solubility")
    assert len(set(of_both)) == 1 if rows_stand_alone() else np.ptp(of_both) < 1e-6
    for drawn in (racemic[0], "C[C@H](N)[C@H](O)c1ccccc1 |&1:1,3|"):
        assert "the mean over its 2 isomers; they get" in read(drawn, "bace")[1]


def centres_that_are_not_drawn():
    model = gx.load("bace")
    (plain,), (with_forms,) = (PredictBatch(model, forms=f)([UNDRAWN], [1]) for f in (False, True))
    assert not plain["note"]
    assert "its 2 isomers get" in with_forms["note"]


class Atoms(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 1)

    def forward(self, x, batch):
        return self.last(torch.zeros(int(batch.max()) + 1, 1).index_add(0, batch, x))


def fed_by_their_own_code():
    from torch_geometric.data import Data

    def featurize(smiles):
        n = Chem.MolFromSmiles(smiles).GetNumAtoms()
        return Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 0).long())

    model = gx.wrap(Atoms().eval(), kind="regression", featurize=featurize, inputs="molecules")
    assert gx.explain(model, "CCO").note == "read as drawn"
    assert not gx.explain("bace", "CCO").note


def stereocentres():
    same = ["C[C@H](N)c1ccccc1", "N[C@@H](C)c1ccccc1", "c1ccccc1[C@@H](N)C"]
    assert len({Chem.CanonSmiles(drawn) for drawn in same}) == 1
    assert answers(same, "bace") == pytest.approx(answers(same[:1], "bace") * 3, abs=1e-5)
    configs = {folder.parent.name: folder for folder in PRETRAINED.glob("*/config.json")}
    symmetric = [n for n, f in configs.items() if re.search('"symmetric": true', f.read_text())]
    assert sorted(symmetric) == ["lipophilicity", "solubility"]
    for model in symmetric:
        first, second = answers(ETHYLAMINES, model)
        assert first == pytest.approx(second, abs=1e-6)
    assert len(set(answers(ETHYLAMINES, "bace"))) == 2


ROWS = {
    "protons that move": protons_between_nitrogens,
    "other tautomers": other_tautomers,
    "salts and charges": salts_and_charges,
    "isotopes": isotopes_and_labels,
    "explicit hydrogens": hydrogens_bonds_and_perception,
    "resonance forms": resonance_forms,
    "racemates": racemates,
    "centres that are not drawn": centres_that_are_not_drawn,
    "models that are fed": fed_by_their_own_code,
    "stereocentres": stereocentres,
}


@pytest.mark.parametrize("row", ROWS)
def test_what_the_page_says_of_a_drawing_happens(row):
    ROWS[row]()


def test_every_row_of_the_page_has_a_test():
    page = (ROOT / "docs" / "trust.md").read_text("utf-8")
    section = page.split("### How a molecule is drawn\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)[1:]
    assert len(rows) == len(ROWS)
    for row in rows:
        assert any(row.startswith(start) for start in ROWS), row
