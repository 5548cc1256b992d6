"""Features of whole molecules equal those that OGB reads from each atom and bond."""

import itertools

import numpy as np
import pytest
from ogb.utils.features import atom_to_feature_vector, bond_to_feature_vector
from rdkit import Chem, rdBase
from rdkit.Chem import AllChem

from graphxai.datasets.features import atom_features, bond_features
from graphxai.datasets.fingerprints import structure_counts
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import MOLECULES

ODD = {
    "single atom": "C",
    "salt": "[Na+].[O-]C(=O)c1ccccc1.O",
    "isotopes": "C[13CH2]C([2H])([2H])O",
    "isotope of a large number": "[999C]CC",
    "atom maps": "C[CH2:7]C[NH:300]C",
    "wildcards": "*c1cc([*:2])ccc1[1*]",
    "labels": "CC* |$;;R1$|",
    "radicals": "C[CH]C[O].[CH2]",
    "charges beyond OGB's vocabulary": "[Te-6].[U+6].[C+127]",
    "hydrogens beyond OGB's vocabulary": "[FeH12].[UH10].C",
    "degree beyond OGB's vocabulary": "[U](C)(C)(C)(C)(C)(C)(C)(C)(C)(C)(C)C",
    "dative bonds": "C[NH2]->[Cu](<-[OH2])Cl",
    "quadruple bond": "[Re]$[Re]",
    "zero-order bond": "N~[Fe]",
    "allene": "C=C=C=C",
    "stereo": "F/C=C/[C@H](Cl)/C=C\\[C@@](N)(O)C",
    "square planar": "[Pt@SP1](Cl)(Cl)([NH3])[NH3]",
    "octahedral": "F[Co@OH3](Cl)(Br)(I)(N)O",
    "enhanced stereo": "C[C@H](F)[C@H](Cl)O |o1:1,&1:3|",
    "coordinates": "CC |(0,0,;1.5,0,)|",
    "charged aromatics": "c1cc[n+]([O-])cc1.c1cc[cH-]c1.[nH]1cccc1",
    "boat of rings": "C12C3C4C1C5C2C3C45",
    "255 atoms": "C" * 249 + "c1ccccc1",
    "256 atoms": "C" * 250 + "c1ccccc1",
    "301 atoms": "C/C=C/" * 100 + "C",
}


def ogb_features(mol: Chem.Mol) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loop as OGB's `smiles2graph` does, over a molecule that may have no SMILES."""
    atoms = [atom_to_feature_vector(atom) for atom in mol.GetAtoms()]
    ends, bonds = [], []
    for bond in mol.GetBonds():
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        ends += [(i, j), (j, i)]
        bonds += [bond_to_feature_vector(bond)] * 2
    return (
        np.array(atoms, dtype=np.int64).reshape(-1, 9),
        np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        np.array(bonds, dtype=np.int64).reshape(-1, 3),
    )


def assert_equals_ogb(mol: Chem.Mol) -> None:
    features = atom_features(mol), *bond_features(mol)
    for array, expected in zip(features, ogb_features(mol), strict=True):
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected), Chem.MolToSmiles(mol)


@pytest.mark.parametrize("smiles", ODD.values(), ids=ODD.keys())
def test_odd_molecules_have_the_features_of_ogb(smiles: str) -> None:
    assert_equals_ogb(Chem.MolFromSmiles(smiles))


@pytest.mark.parametrize(
    "smiles",
    [
        *ODD.values(),
        "[H]C([2H])([3H])O[H]",
        "[#1][#6](F)Cl",
        "[H][C@](F)(Cl)Br",
        "C[C@H](C)O",  # a tag where there is no stereocentre
        "C[C@H]1CC[C@@H](C)CC1",
        "C/C=C(/C)C",  # a direction where there is no stereo
        "C1=CC=CC=C1N(=O)=O",  # Kekule form, and a nitro group to be charged
    ],
)
def test_a_smiles_has_the_features_that_ogb_reads_from_the_molecule_of_rdkit(smiles: str) -> None:
    data = molecule_to_data(smiles)
    expected = ogb_features(Chem.MolFromSmiles(smiles))
    for tensor, wanted in zip((data.x, data.edge_index, data.edge_attr), expected, strict=True):
        assert np.array_equal(tensor.numpy(), wanted)


def test_every_element_charge_and_number_of_hydrogens_has_the_features_of_ogb() -> None:
    table = Chem.GetPeriodicTable()
    symbols = [table.GetElementSymbol(number) for number in range(1, 119)]
    hydrogens, charges = ("", "H", "H3", "H8", "H9"), ("", "+", "-", "+5", "-6")
    with rdBase.BlockLogs():
        for symbol, h, charge in itertools.product(symbols, hydrogens, charges):
            mol = Chem.MolFromSmiles(f"[{symbol}{h}{charge}]")
            if mol is not None:
                assert_equals_ogb(mol)


def test_types_of_bonds_have_the_features_of_ogb() -> None:
    for kind in Chem.BondType.values.values():
        mol = Chem.RWMol(Chem.MolFromSmiles("[Fe][Fe]"))
        mol.GetBondWithIdx(0).SetBondType(kind)
        assert_equals_ogb(mol)


def test_unknown_and_cis_trans_stereo_have_the_features_of_ogb() -> None:
    for stereo in ("STEREONONE", "STEREOANY", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS"):
        for named in (True, False):
            mol = Chem.MolFromSmiles("CC=CC")
            bond = mol.GetBondWithIdx(1)
            if named:
                bond.SetStereoAtoms(0, 3)
            elif stereo not in ("STEREONONE", "STEREOANY"):
                continue
            bond.SetStereo(getattr(Chem.BondStereo, stereo))
            assert_equals_ogb(mol)


def test_an_atropisomer_which_ogb_refuses_has_no_stereo() -> None:
    mol = Chem.MolFromSmiles("Cc1cccc(F)c1-c1c(C)cccc1F")
    axis = mol.GetBondBetweenAtoms(7, 8)
    _, expected = bond_features(mol)
    axis.SetStereoAtoms(1, 9)
    axis.SetStereo(Chem.BondStereo.STEREOATROPCW)
    assert np.array_equal(bond_features(mol)[1], expected)


def test_coordinates_properties_and_groups_of_a_file_change_nothing() -> None:
    mol = Chem.AddHs(Chem.MolFromSmiles("C[C@H](N)C(=O)O"))
    AllChem.EmbedMultipleConfs(mol, 2, randomSeed=1)
    mol.SetProp("_Name", "alanine")
    mol.GetAtomWithIdx(0).SetProp("note", "methyl")
    mol.GetBondWithIdx(0).SetDoubleProp("length", 1.5)
    Chem.CreateMolSubstanceGroup(mol, "DAT").AddAtomWithIdx(1)
    assert_equals_ogb(mol)
    assert_equals_ogb(Chem.MolFromMolBlock(Chem.MolToMolBlock(mol)))


def test_residues_and_queries_have_the_features_of_ogb() -> None:
    assert_equals_ogb(Chem.MolFromSequence("GAVC"))
    query = Chem.MolFromSmarts("[#6;R]~[N,O;+0]-,=C")
    Chem.SanitizeMol(query)
    assert_equals_ogb(query)
    replaced = Chem.RWMol(Chem.MolFromSmiles("CCO"))
    replaced.ReplaceAtom(1, Chem.MolFromSmarts("[C,N]").GetAtomWithIdx(0))
    Chem.SanitizeMol(replaced)
    assert_equals_ogb(replaced)


def test_explicit_hydrogens_kekulised_rings_and_any_order_have_the_features_of_ogb() -> None:
    rng = np.random.default_rng(0)
    for smiles in MOLECULES.values():
        mol = Chem.MolFromSmiles(smiles)
        kekulised = Chem.Mol(mol)
        Chem.Kekulize(kekulised, clearAromaticFlags=True)
        order = rng.permutation(mol.GetNumAtoms()).tolist()
        for other in (Chem.AddHs(mol), kekulised, Chem.RenumberAtoms(mol, order)):
            assert_equals_ogb(other)


def test_a_cage_with_hundreds_of_rings_has_the_features_of_ogb() -> None:
    cage = Chem.RWMol()
    for _ in range(16):
        cage.AddAtom(Chem.Atom("U"))
    for i, j in itertools.combinations(range(16), 2):
        cage.AddBond(i, j, Chem.BondType.SINGLE)
    Chem.SanitizeMol(cage)
    assert_equals_ogb(cage)


def test_five_kinds_of_counts_see_five_different_things():
    """Of two mirror images, of two halogens and of two positions, some kinds see no difference."""

    def seen(first, second):
        kinds = structure_counts([first, second])
        return [bool((kind[0] != kind[1]).any()) for kind in kinds]

    ecfp6, pairs, chiral, torsions, roles = range(5)
    mirrored = seen("C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O")
    assert [k for k in range(5) if mirrored[k]] == [chiral]
    halogens = seen("Fc1ccccc1", "Clc1ccccc1")
    assert not halogens[roles]
    assert all(halogens[kind] for kind in (ecfp6, pairs, chiral, torsions))
    assert not any(seen("Oc1ccccc1", "c1ccccc1O"))
    (fluoro,) = structure_counts(["Fc1ccccc1"])[pairs]
    assert fluoro.sum() == 7 * 6 / 2  # one count for every pair of atoms
