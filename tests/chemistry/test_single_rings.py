"""Names of rings are those of Hantzsch and Widman."""

import pytest
from rdkit import Chem

from graphxai.chemistry.names import described, ring_systems, single_ring_name


@pytest.mark.parametrize(
    ("smiles", "name"),
    [
        ("C1CS(=O)(=O)NC(N)=N1", "dihydro-1,2,4-thiadiazine"),
        ("C1CS(=O)(=O)NC(=N)N1", "1,2,4-thiadiazinane"),
        ("C1COCCN1", "1,4-oxazinane"),  # morpholine
        ("C1CSC=N1", "dihydro-1,3-thiazole"),
        ("C1COCO1", "1,3-dioxolane"),
        ("C1COCCO1", "1,4-dioxane"),
        ("C1=NNCCO1", "dihydro-1,3,4-oxadiazine"),
        ("C1CNCCNC1", "1,4-diazepane"),
        ("C1=CNCCC1", "tetrahydroazine"),
        ("C1=CC=CC=CN1", "azepine"),
        ("C1=CSC=CO1", "1,4-oxathiine"),
        ("C1CSNCO1", "1,4,3-oxathiazinane"),
        ("C1CCCCC1", None),
        ("c1ccncc1", None),
        ("C1CC2CNC1C2", None),
    ],
)
def test_a_ring_has_the_name_of_hantzsch_and_widman(smiles, name):
    mol = Chem.MolFromSmiles(smiles)
    (system,) = ring_systems(mol)
    assert single_ring_name(mol, system) == name


def test_the_head_of_verubecestat_has_a_name():
    head = "*C1(C)CS(=O)(=O)N(C)C(N)=N1"
    assert described(head) == ("dihydro-1,2,4-thiadiazine dioxide ring with amino, 2 methyl")
