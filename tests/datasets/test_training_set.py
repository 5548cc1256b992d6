"""The compounds a model was trained on."""

from types import SimpleNamespace

import pytest
from rdkit import Chem

import graphxai as gx


@pytest.mark.parametrize("smiles", ["CCO", "[2H]C", "[H][H]", "*C", "[Na+].[Cl-]", "c1cc[nH]c1Br"])
def test_elements_are_those_of_the_atoms(smiles, tmp_path):
    """Hydrogens that are not atoms of the graph do not count."""
    (tmp_path / "training.csv").write_text(f"smiles\n{smiles}\n")
    found = gx.training_set_of(SimpleNamespace(origin=SimpleNamespace(folder=tmp_path)))
    assert found.elements == {atom.GetSymbol() for atom in Chem.MolFromSmiles(smiles).GetAtoms()}
