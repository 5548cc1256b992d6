"""The compounds that a model was trained on come with it, and the nearest are found."""

from types import SimpleNamespace

import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.datasets import canonical_form, training_set
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.datasets.molecules import molecule_graph
from graphxai.datasets.training_set import KEPT_FROM, kept_at
from graphxai.models.graphormer import load_checkpoint, save_checkpoint
from toy import random_graphormer


@pytest.mark.parametrize("smiles", ["CCO", "[2H]C", "[H][H]", "*C", "[Na+].[Cl-]", "c1cc[nH]c1Br"])
def test_elements_are_those_of_the_atoms(smiles, tmp_path):
    """Hydrogens that are not atoms of the graph do not count, nor do their isotopes."""
    (tmp_path / "training.csv").write_text(f"smiles\n{smiles}\n")
    training_set = gx.training_set_of(SimpleNamespace(origin=SimpleNamespace(folder=tmp_path)))
    graph = molecule_graph(smiles, canonical=True)
    assert training_set.elements == {atom.GetSymbol() for atom in graph.read.GetAtoms()}
    assert len(graph.x) == graph.read.GetNumAtoms()


def test_a_compound_that_rdkit_remarks_on_is_canonicalised_in_silence(capfd):
    """RDKit tries ways to draw this pyrazole, and reports each that fails."""
    assert gx.TrainingSet(("CCCn1[nH]cc2nc(C3CCCCC3)nc1-2",)).smiles
    assert capfd.readouterr().err == ""


def test_a_training_set_is_shown_in_one_line():
    """`hiv` was trained on 8,000 compounds, whose SMILES would fill pages."""
    assert repr(gx.TrainingSet(("CCO",) * 8000, {"C": "test"})) == (
        "TrainingSet(8,000 compounds, 1 held out)"
    )


def test_structures_are_read_when_a_nearness_is_first_asked_for(tmp_path, monkeypatch):
    """To read thousands of them takes longer than to explain a molecule."""
    folder = save_checkpoint(random_graphormer(), tmp_path / "model")
    compounds = [
        "no structure that another test reads",
        *("O=S" + "C" * count for count in range(40, 60)),
    ]
    (folder / "training.csv").write_text("\n".join(["smiles", *compounds]))
    read, parse = [], Chem.MolFromSmiles
    monkeypatch.setattr(Chem, "MolFromSmiles", lambda *args: read.append(args[0]) or parse(*args))
    explanation = gx.explain(load_checkpoint(folder), "CCO")
    assert compounds[-1] not in read
    assert explanation.nearness.word == "far"
    assert set(compounds) <= set(read)
    training = gx.training_set_of(load_checkpoint(folder))
    assert training.written == tuple(compounds[1:])
    last = ecfp4_bits(Chem.MolFromSmiles(compounds[-1]))
    assert len(training.fingerprints) == len(compounds) - 1
    assert training.fingerprints[-1] == last
    assert training.elements == {"C", "O", "S"}


@pytest.fixture
def chains(tmp_path, monkeypatch):
    """Compounds that are enough to keep their fingerprints, in a cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ("unreadable", *("S" + "C" * n + "F" for n in range(KEPT_FROM)))


def parses_of_a_nearness(chains, monkeypatch):
    """Return a nearness to the compounds, and how many compounds were read for it."""
    training_set._compound.cache_clear()  # as in another process
    training_set._canonical.cache_clear()
    read, parse = [], Chem.MolFromSmiles
    with monkeypatch.context() as counted:
        counted.setattr(Chem, "MolFromSmiles", lambda *args: read.append(args) or parse(*args))
        known = gx.TrainingSet(chains)
        nearness = known.nearness(parse("FCCCCCSO"))
    assert known.elements == {"C", "F", "S"}
    assert known.written == chains[1:]
    return nearness, len(set(chains) & {smiles for smiles, *_ in read})


def test_another_process_reads_no_compound_until_the_nearest_is_shown(chains, monkeypatch):
    nearness, parses = parses_of_a_nearness(chains, monkeypatch)
    assert nearness.unseen == ("O",)
    assert parses == len(chains)
    again, parses = parses_of_a_nearness(chains, monkeypatch)
    assert (again, parses) == (nearness, 0)
    assert again.nearest == nearness.nearest
    assert parses_of_a_nearness(chains[:-1], monkeypatch)[1] == KEPT_FROM  # another table


def test_a_compound_that_is_read_as_its_form_is_recognised_without_making_that_form(monkeypatch):
    """To make it takes as long as all the rest of a nearness, and most rows of a table are so."""
    made, make = [], canonical_form.canonical_form
    monkeypatch.setattr(canonical_form, "canonical_form", lambda mol: made.append(mol) or make(mol))
    known = gx.TrainingSet(("OCCCS", "C/C=C/S", "OC[C@@H](F)S"))
    for drawn in ("SCCCO", "S/C=C/C", "F[C@@H](S)CO"):
        assert known.nearness(Chem.MolFromSmiles(drawn)).word == "training compound"
    assert not made
    assert known.nearness(Chem.MolFromSmiles("OC[C@H](F)S")).word != "training compound"
    assert known.nearness(Chem.MolFromSmiles("[13CH2](O)CCS")).word == "training compound"
    assert made


@pytest.mark.parametrize("content", [b"", b"PK", None])
def test_a_broken_or_forbidden_file_of_fingerprints_does_no_harm(
    chains, monkeypatch, tmp_path, content
):
    nearness, parses = parses_of_a_nearness(chains, monkeypatch)
    (kept,) = (tmp_path / "cache" / "graphxai" / "fingerprints").iterdir()
    assert kept.stat().st_mode & 0o077 == 0  # others see no compounds of this user
    kept.unlink()
    if content is None:
        kept.mkdir()
    else:
        kept.write_bytes(content)
    assert parses_of_a_nearness(chains, monkeypatch) == (nearness, parses)
    assert kept.is_dir() or kept_at(kept) is not None
