"""Peptides come as residues, degraders as ligands and linker, series as core and R-groups."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.modalities import Core
from graphxai.chemistry.schemes import SCHEMES, named_scheme
from toy import random_graphormer

KNOWN = json.loads((Path(__file__).parents[1] / "data" / "modalities.json").read_text())
PEPTIDES, DEGRADERS = KNOWN["peptides"], KNOWN["degraders"]
# Charged, of several components, and strange
OTHERS = [
    "C[N+](C)(C)CC([O-])=O",
    "CC(=O)[O-].[Na+]",
    "CCN(CC)CC.Cl",
    "[Na+].[Cl-]",
    "*CC",
    "[CH-]1C=CC=C1.[CH-]1C=CC=C1.[Fe+2]",
    "C",
]
SERIES = ["COc1ccc(C(=O)NC)cc1", "CCc1ccc(C(=O)NCC)cc1F", "Clc1ccc(C(N)=O)cc1", "NC(=O)c1ccccc1"]


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=2)


@pytest.mark.parametrize("name", PEPTIDES)
def test_a_peptide_comes_as_its_named_residues(model, name):
    parts = gx.fragments(gx.explain(model, PEPTIDES[name]["smiles"]))
    assert parts.scheme == "residues"
    assert Counter(part.name for part in parts) == Counter(PEPTIDES[name]["residues"])


def test_mirror_images_have_the_other_letters():
    mol = Chem.MolFromSmiles(PEPTIDES["oxytocin"]["smiles"])
    for atom in mol.GetAtoms():
        atom.InvertChirality()
    _, parts = named_scheme("auto", mol)
    mirrored = {"Gly-NH2": "Gly-NH2"}
    expected = [mirrored.get(name, f"D-{name}") for name in PEPTIDES["oxytocin"]["residues"]]
    assert Counter(name for name, _ in parts) == Counter(expected)


@pytest.mark.parametrize("name", DEGRADERS)
def test_a_degrader_comes_as_warhead_linker_and_ligand(model, name):
    expected = DEGRADERS[name]
    parts = gx.fragments(gx.explain(model, expected["smiles"]))
    assert parts.scheme == "protac"
    pieces = {part.name.partition(":")[0]: part.smiles for part in parts}
    assert pieces.keys() == {expected["ligand"], "linker", "warhead"}
    for part in ("linker", "warhead"):
        assert pieces[part] == Chem.CanonSmiles(expected[part])
    assert "degrader" in parts.svg()


@pytest.mark.parametrize("name", KNOWN["neither"])
def test_small_molecules_are_divided_as_before(model, name):
    assert named_scheme("auto", Chem.MolFromSmiles(KNOWN["neither"][name]))[0] == "brics"


def test_the_numbering_of_atoms_does_not_change_the_parts():
    every = [known["smiles"] for known in (*PEPTIDES.values(), *DEGRADERS.values())]
    rng = np.random.default_rng(0)
    for mol in map(Chem.MolFromSmiles, every):
        order = rng.permutation(mol.GetNumAtoms()).tolist()
        before, after = (named_scheme("auto", m) for m in (mol, Chem.RenumberAtoms(mol, order)))
        assert before[0] == after[0]
        moved = {(name or "", tuple(sorted(order[a] for a in part))) for name, part in after[1]}
        assert moved == {(name or "", part) for name, part in before[1]}


def test_the_common_core_of_a_series_is_the_same_atoms_in_each(model):
    core = Core.of(SERIES)
    pattern = Chem.MolFromSmarts(core.smarts)
    benzamide = Chem.MolFromSmiles("NC(=O)c1ccccc1")
    assert pattern.GetNumAtoms() == benzamide.GetNumAtoms()
    named = [{part.name for part in gx.fragments(e, core)} for e in gx.explain(model, SERIES)]
    assert named[3] == {"core"}
    assert all("core" in names for names in named)
    groups = [{name.partition(": ")[2] for name in names - {"core"}} for names in named]
    assert groups == [{"methoxy", "methyl"}, {"ethyl", "fluoro"}, {"chloro"}, set()]
    places = [{name.partition(":")[0] for name in names if "eth" in name} for names in named[:2]]
    assert places[0] == places[1]  # para, and at nitrogen
    table = gx.fragment_table(gx.explain(model, SERIES), core)
    assert table.set_index("name").loc["core", "molecules"] == 4


def test_a_core_names_the_places_of_its_groups(model):
    core = Core("NC(=O)c1ccc([*:1])c([*:2])c1")
    parts = gx.fragments(gx.explain(model, "NC(=O)c1ccc(Cl)c(OC)c1"), core)
    assert sorted(part.name for part in parts) == ["R1: chloro", "R2: methoxy", "core"]
    assert parts.scheme == "core"
    without = gx.fragments(gx.explain(model, "CCO"), core)
    assert [part.name for part in without] == ["rest"]
    joined = gx.fragments(gx.explain(model, "NC(=O)c1ccc2OCOc2c1"), core)
    assert sorted(part.name for part in joined) == ["R1,R2: *OCO*", "core"]


def test_molecules_without_a_common_core_are_refused():
    with pytest.raises(ValueError, match="fewer than 3 connected atoms in common"):
        Core.of(["CCO", "c1ccccc1"])
    with pytest.raises(ValueError, match="two or more molecules"):
        Core.of(["CCO"])
    with pytest.raises(ValueError, match="RDKit cannot read the SMARTS"):
        Core("C((").parts(Chem.MolFromSmiles("CC"))


EVERY = [known["smiles"] for known in (*PEPTIDES.values(), *DEGRADERS.values())] + OTHERS + SERIES
DIVISIONS = [*SCHEMES, "auto", Core("C=O"), {"carbonyl": "C=O"}]


def sums_close(explanations):
    """Check that fragments and their table sum to atoms, and bonds where the ledger has them."""
    for division in DIVISIONS:
        for e in explanations:
            parts = gx.fragments(e, division)
            ledger = e.ledger.nodes + e.ledger.others.get("edge_attr", 0.0)
            tolerance = 1e-5 * max(1.0, float(np.abs(e.relevance_with_edges).sum()))
            assert parts.total == pytest.approx(ledger, abs=tolerance)
            assert sorted(a for part in parts for a in part.atoms) == list(range(len(e)))
            table = gx.fragment_table([e], division)
            assert (table["mean"] * table["count"]).sum() == pytest.approx(ledger, abs=tolerance)


@pytest.mark.parametrize(
    "name", ["bace", "blood-brain-barrier", "hiv", "lipophilicity", "solubility", "tox21"]
)
def test_every_table_of_a_bundled_model_sums_to_its_ledger(name):
    given = gx.load(name, as_drawn=True)  # so that salts and charges stay
    molecules = EVERY if name == "bace" else [*EVERY[1:3], EVERY[9], *OTHERS[:3], *SERIES[:2]]
    sums_close(gx.explain(given, molecules, on_error="raise"))


@pytest.mark.parametrize("passing", ["Bond", "Atom"])
def test_every_table_of_a_model_with_bonds_sums_to_its_ledger(passing):
    pytest.importorskip("chemprop", reason="chemprop is an extra")
    from chemprop_models import mpnn

    explanations = gx.explain(gx.wrap(mpnn(passing)), [*EVERY[:4], *EVERY[7:9], *OTHERS, *SERIES])
    assert all("edge_attr" in e.ledger.others for e in explanations if e.molecule.GetNumBonds())
    sums_close(explanations)


def test_every_table_of_a_model_of_mixtures_sums_to_its_ledger():
    pytest.importorskip("chemprop", reason="chemprop is an extra")
    model = gx.load(Path(__file__).parents[1] / "data" / "chemprop" / "heads" / "two_2.2.4.pt")
    sums_close(gx.explain(model, [f"{SERIES[0]}.O", f"{PEPTIDES['oxytocin']['smiles']}.CCO"]))
