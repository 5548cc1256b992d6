"""Names of rings are those of Hantzsch and Widman."""

import pytest
from rdkit import Chem

from graphxai.chemistry.names import described, ring_systems
from graphxai.chemistry.ring_system_names import ring_system_name, single_ring_name


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


@pytest.mark.parametrize(
    ("smiles", "name"),
    [
        ("C1CC2CNC1C2", "2-azabicyclo[2.2.1]heptane"),
        ("C1CN2CCN1CC2", "1,4-diazabicyclo[2.2.2]octane"),  # DABCO
        ("C1CC2CCC1CNC2", "3-azabicyclo[3.2.2]nonane"),
        ("C1CC2CCCC1N2C", "tropane"),
        ("C1C2CC3CC1CC(C2)C3", "adamantane"),
        ("C1CNCCC12CCCC2", "8-azaspiro[4.5]decane"),
        ("C1COC2(C1)CCNCC2", "1-oxa-8-azaspiro[4.5]decane"),
        ("C1CC2C=CC1C2", "norbornene"),
        ("C1=CC2CCC1CC2", "bicyclo[2.2.2]oct-2-ene"),
        ("C1NCC2C1CNC2", "octahydropyrrolopyrrole"),
        ("C1NC2C1CN2", "2,6-diazabicyclo[2.2.0]hexane"),
        ("CC1OCC2N=C(N)SCC12", "tetrahydrofuro[1,3-thiazine]"),  # as in elenbecestat
        ("c1cn2c(n1)CNCC2", "tetrahydroimidazopyrazine"),
        ("c1cc2c(s1)CCNC2", "tetrahydrothienopyridine"),
        ("c1ccc2c(c1)CCCN2", "tetrahydroquinoline"),
        ("C1CCC2NCCCC2C1", "decahydroquinoline"),
        ("c1ccc2c(c1)CNCCO2", "tetrahydrobenzo[1,4-oxazepine]"),
        ("c1cnc2nnccc2c1", "pyridopyridazine"),
        ("c1ccc2c(c1)C1(CCNCC1)CN2", "spiro[indoline-piperidine]"),
        ("O=C1CCCCCCCCCCCCO1", "oxacyclotetradecane"),  # the ring of erythromycin
        ("C1=CCCCCCC1", "cyclooctene"),
        ("c1ccc2c(c1)CN1CCN=C21", "tricycle of benzene, imidazolidine and pyrrolidine"),
        ("C1CC1.[Fe]", "cyclopropane"),
        ("C1=C[Fe]C=C1", None),
    ],
)
def test_a_ring_system_has_the_name_that_chemists_give_it(smiles, name):
    mol = Chem.MolFromSmiles(smiles)
    (system,) = ring_systems(mol)
    assert ring_system_name(mol, system) == name


def test_the_numbering_of_atoms_does_not_change_the_name():
    for smiles in ("C1COC2(C1)CCNCC2", "C1NCC2C1CNC2", "C1=CC2CC1CO2", "c1cn2c(n1)CNCC2"):
        mol = Chem.MolFromSmiles(smiles)
        atoms = list(range(mol.GetNumAtoms()))
        turned = [Chem.RenumberAtoms(mol, atoms[k:] + atoms[:k]) for k in atoms]
        turned += [Chem.RenumberAtoms(mol, atoms[::-1])]
        assert len({ring_system_name(each, tuple(atoms)) for each in turned}) == 1
