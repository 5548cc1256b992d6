"""Substituents have names, and so has what was exchanged for what."""

import pytest
from rdkit import Chem

from graphxai.chemistry.search.neighbours import exchanged
from graphxai.chemistry.substituents import exchange_name, substituent_name


@pytest.mark.parametrize(
    ("smiles", "name"),
    [
        ("*c1ccccc1", "phenyl"),
        ("*c1ccc(Cl)c(Cl)c1", "3,4-dichlorophenyl"),
        ("*c1cc(F)ccc1C", "5-fluoro-2-methylphenyl"),
        ("*c1ccc(S(C)(=O)=O)cc1", "4-(methylsulfonyl)phenyl"),
        ("*c1cccnc1", "pyridin-3-yl"),
        ("*c1nccs1", "thiazol-2-yl"),
        ("*c1c[nH]c2ccccc12", "indol-3-yl"),
        ("*c1ccc2[nH]ccc2c1", "indol-5-yl"),
        ("*c1ccnc2ccccc12", "quinolin-4-yl"),
        ("*c1cnc2ccccn12", "imidazo[1,2-a]pyridin-3-yl"),
        ("*c1ccc2c(c1)OCO2", "1,3-benzodioxol-5-yl"),
        ("*N1CCOCC1", "morpholin-4-yl"),
        ("*N1CCN(C)CC1", "4-methylpiperazin-1-yl"),
        ("*N1C(=O)c2ccccc2C1=O", "1,3-dioxoisoindolin-2-yl"),
        ("*OCC", "ethoxy"),
        ("*OC(C)(C)C", "tert-butoxy"),
        ("*Oc1ccc(Cl)cc1", "(4-chlorophenyl)oxy"),
        ("*CCO", "2-hydroxyethyl"),
        ("*CCCN(C)C", "3-(dimethylamino)propyl"),
        ("*N(C)CC", "ethyl(methyl)amino"),
        ("*Cc1ccccn1", "(pyridin-2-yl)methyl"),
        ("*C(=O)NC1CC1", "(cyclopropylamino)carbonyl"),
        ("*NS(=O)(=O)c1ccccc1", "(phenylsulfonyl)amino"),
        ("[1*][C@H]1CCCNC1", "piperidin-3-yl"),
        ("*C(C)(C)CCCO", None),  # a branched chain
        ("*CC*", None),
        ("*=CC", None),
    ],
)
def test_substituents_are_named_as_chemists_write_them(smiles, name):
    assert substituent_name(smiles) == name


def test_the_name_does_not_depend_on_how_the_smiles_is_written():
    mol = Chem.MolFromSmiles("*c1ccc2[nH]c(C)cc2c1Cl")
    written = {Chem.MolToSmiles(mol, rootedAtAtom=k) for k in range(mol.GetNumAtoms())}
    assert len(written) > 1
    assert {substituent_name(smiles) for smiles in written} == {"4-chloro-2-methylindol-5-yl"}


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("[1*]c1cccnc1", "[1*]c1ccccn1", "pyridin-3-yl to pyridin-2-yl"),
        ("[1*]OC", "[1*]C(C)(C)CCCO", "methoxy to C(CH3)2CH2CH2CH2OH"),
        ("[1*][C@H](C)NC", "[1*][C@@H](C)NC", "CH(CH3)NHCH3 to its stereoisomer"),
        ("[1*]C(C)(C)CCCO", "[1*]C(C)(C)CCOC", "C(CH3)2CH2CH2CH2OH to C(CH3)2CH2CH2OCH3"),
    ],
)
def test_an_exchange_says_what_became_of_what(old, new, name):
    assert exchange_name(old, new) == name


def test_exchanged_fragments_carry_the_names_of_both():
    mol = Chem.MolFromSmiles("O=C(Nc1ccc(F)cc1)c1ccccn1")
    names = {change.name for change in exchanged(mol, {"16": ["[1*]c1ccc(Cl)cc1"]})}
    assert names == {"4-fluorophenyl to 4-chlorophenyl"}
