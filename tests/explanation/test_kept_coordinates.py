"""The coordinates that a chemist drew are those of pictures, reports and files."""

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import AllChem

import graphxai as gx
from graphxai.tables.drawing import drawing

# ibuprofen as its sodium salt, whose parent is explained
SMILES = ["CC(C)Cc1ccc(cc1)C(C)C(=O)[O-].[Na+]", "O=C(Nc1ccc(F)cc1)c1ccccn1"]


def drawn_molecule(smiles: str, length: float) -> Chem.Mol:
    """Return a molecule as an editor saves it: turned, mirrored, and with short bonds."""
    mol = Chem.MolFromSmiles(smiles)
    AllChem.Compute2DCoords(mol)
    points = mol.GetConformer().GetPositions() * length / 1.5
    turn = np.array([[np.cos(0.7), np.sin(0.7), 0], [np.sin(0.7), -np.cos(0.7), 0], [0, 0, 1]])
    mol.GetConformer().SetPositions(points @ turn + (3, 4, 0))
    return mol


def distances(mol: Chem.Mol, points: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """Return the vectors between bonded atoms, by their ranks, in bond lengths."""
    ranks = list(Chem.CanonicalRankAtoms(mol, breakTies=False))
    length = np.median(
        [
            np.linalg.norm(points[b.GetBeginAtomIdx()] - points[b.GetEndAtomIdx()])
            for b in mol.GetBonds()
        ]
    )
    vectors: dict[tuple[int, int], list[np.ndarray]] = {}
    for bond in mol.GetBonds():
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        i, j = (i, j) if ranks[i] < ranks[j] else (j, i)
        vectors.setdefault((ranks[i], ranks[j]), []).append((points[j] - points[i]) / length)
    return {key: np.sum(each, axis=0) for key, each in vectors.items()}


def plane(mol: Chem.Mol) -> np.ndarray:
    return mol.GetConformer().GetPositions()[:, :2]


def drawing_points(picture: dict) -> np.ndarray:
    return np.stack([picture["x"], -np.array(picture["y"])], axis=1) / 100


@pytest.fixture(scope="module")
def sd_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("drawn") / "drawn.sdf"
    with Chem.SDWriter(str(path)) as writer:
        for smiles in SMILES:
            writer.write(drawn_molecule(smiles, 0.825))
    return path


@pytest.mark.parametrize("inputs", ["molecules", "file"])
@pytest.mark.parametrize("model", ["bace", "solubility"])
def test_an_explanation_is_drawn_with_the_coordinates_given(model, inputs, sd_file):
    given = [drawn_molecule(smiles, 0.825) for smiles in SMILES]
    for explanation, mol in zip(
        gx.explain(model, given if inputs == "molecules" else sd_file), given, strict=True
    ):
        shown = explanation.atoms()
        expected = Chem.GetMolFrags(mol, asMols=True)[0]
        seen = drawing_points(drawing(shown))
        # neutral and charged forms have the same ranks but for the acid's oxygens
        want, got = distances(expected, plane(expected)), distances(shown, seen)
        close = [np.abs(got[key] - want[key]).max() < 0.03 for key in want.keys() & got.keys()]
        assert len(close) > 8
        assert all(close)
