"""Counter-ions and solvents of drugs, by what a chemist calls them when they are removed.

Structures are neutral and have no configuration, except where two names differ only by it. Names
are those of salts in pharmacopoeias (Stahl and Wermuth 2002), and of solvents.
"""

from functools import cache

_ARYL = "c{0}cc(C(F)(F)F)cc(C(F)(F)F)c{0}"
_BARF = f"[B-]({_ARYL.format(1)})({_ARYL.format(2)})({_ARYL.format(3)}){_ARYL.format(4)}"

_SALTS = {
    "hydrochloride": "Cl",
    "hydrobromide": "Br",
    "hydroiodide": "I",
    "hydrofluoride": "F",
    "sulfate": "OS(=O)(=O)O",
    "nitrate": "O[N+](=O)[O-]",
    "phosphate": "OP(=O)(O)O",
    "perchlorate": "OCl(=O)(=O)=O",
    "sulfamate": "NS(=O)(=O)O",
    "thiocyanate": "N#CS",
    "carbonate": "OC(=O)O",
    "borate": "OB(O)O",
    "tetrafluoroborate": "F[B-](F)(F)F",
    "hexafluorophosphate": "F[P-](F)(F)(F)(F)F",
    "hexafluoroarsenate": "F[As-](F)(F)(F)(F)F",
    "hexafluoroantimonate": "F[Sb-](F)(F)(F)(F)F",
    "tetraphenylborate": "c1ccc([B-](c2ccccc2)(c2ccccc2)c2ccccc2)cc1",
    "tetrakis[3,5-bis(trifluoromethyl)phenyl]borate": _BARF,
    "bistriflimide": "O=S(=O)(NS(=O)(=O)C(F)(F)F)C(F)(F)F",
    "ammonium": "N",
    "formate": "OC=O",
    "acetate": "CC(=O)O",
    "trifluoroacetate": "OC(=O)C(F)(F)F",
    "propionate": "CCC(=O)O",
    "glycolate": "OCC(=O)O",
    "lactate": "CC(O)C(=O)O",
    "oxalate": "OC(=O)C(=O)O",
    "malonate": "OC(=O)CC(=O)O",
    "succinate": "OC(=O)CCC(=O)O",
    "glutarate": "OC(=O)CCCC(=O)O",
    "adipate": "OC(=O)CCCCC(=O)O",
    "fumarate": "OC(=O)/C=C/C(=O)O",
    "maleate": "OC(=O)/C=C\\C(=O)O",
    "fumarate or maleate": "OC(=O)C=CC(=O)O",
    "malate": "OC(=O)CC(O)C(=O)O",
    "tartrate": "OC(=O)C(O)C(O)C(=O)O",
    "citrate": "OC(=O)CC(O)(CC(=O)O)C(=O)O",
    "mandelate": "OC(=O)C(O)c1ccccc1",
    "benzoate": "OC(=O)c1ccccc1",
    "salicylate": "OC(=O)c1ccccc1O",
    "gentisate": "OC(=O)c1cc(O)ccc1O",
    "hippurate": "OC(=O)CNC(=O)c1ccccc1",
    "xinafoate": "OC(=O)c1ccc2ccccc2c1O",
    "pamoate": "OC(=O)c1cc2ccccc2c(Cc2c(O)c(C(=O)O)cc3ccccc23)c1O",
    "gluconate": "OCC(O)C(O)C(O)C(O)C(=O)O",
    "glucuronate": "O=C(O)C1OC(O)C(O)C(O)C1O",
    "glucoheptonate": "OCC(O)C(O)C(O)C(O)C(O)C(=O)O",
    "lactobionate": "OCC1OC(OC(C(O)CO)C(O)C(O)C(=O)O)C(O)C(O)C1O",
    "orotate": "O=C(O)c1cc(=O)[nH]c(=O)[nH]1",
    "pyroglutamate": "O=C1CCC(C(=O)O)N1",
    "aspartate": "NC(CC(=O)O)C(=O)O",
    "glutamate": "NC(CCC(=O)O)C(=O)O",
    "stearate": "CCCCCCCCCCCCCCCCCC(=O)O",
    "mesylate": "CS(=O)(=O)O",
    "esylate": "CCS(=O)(=O)O",
    "isethionate": "OCCS(=O)(=O)O",
    "edisylate": "OS(=O)(=O)CCS(=O)(=O)O",
    "triflate": "OS(=O)(=O)C(F)(F)F",
    "besylate": "OS(=O)(=O)c1ccccc1",
    "tosylate": "Cc1ccc(S(=O)(=O)O)cc1",
    "napsylate": "OS(=O)(=O)c1ccc2ccccc2c1",
    "napadisylate": "OS(=O)(=O)c1cccc2c(S(=O)(=O)O)cccc12",
    "camsylate": "CC1(C)C2CCC1(CS(=O)(=O)O)C(=O)C2",
    "cyclamate": "OS(=O)(=O)NC1CCCCC1",
    "saccharinate": "O=C1NS(=O)(=O)c2ccccc21",
    "dicyanamide": "N#CN=C=N",
    "methylsulfate": "COS(=O)(=O)O",
    "ethylsulfate": "CCOS(=O)(=O)O",
    "laurylsulfate": "CCCCCCCCCCCCOS(=O)(=O)O",
    "picrate": "O=[N+]([O-])c1cc([N+](=O)[O-])c(O)c([N+](=O)[O-])c1",
    "olamine": "NCCO",
    "diolamine": "OCCNCCO",
    "trolamine": "OCCN(CCO)CCO",
    "tromethamine": "NC(CO)(CO)CO",
    "meglumine": "CNCC(O)C(O)C(O)C(O)CO",
    "choline": "C[N+](C)(C)CCO",
    "lysine": "NCCCCC(N)C(=O)O",
    "arginine": "N=C(N)NCCCC(N)C(=O)O",
    "diethylamine": "CCNCC",
    "triethylamine": "CCN(CC)CC",
    "erbumine": "CC(C)(C)N",
    "ethylenediamine": "NCCN",
    "piperazine": "C1CNCCN1",
    "dicyclohexylamine": "C1CCC(NC2CCCCC2)CC1",
    "benzathine": "C(NCCNCc1ccccc1)c1ccccc1",
    "tetramethylammonium": "C[N+](C)(C)C",
    "tetrabutylammonium": "CCCC[N+](CCCC)(CCCC)CCCC",
}

_SOLVENTS = {
    "water": "O",
    "methanol": "CO",
    "ethanol": "CCO",
    "isopropanol": "CC(C)O",
    "tert-butanol": "CC(C)(C)O",
    "acetone": "CC(C)=O",
    "acetonitrile": "CC#N",
    "dimethyl sulfoxide": "CS(C)=O",
    "dimethylformamide": "CN(C)C=O",
    "ethyl acetate": "CCOC(C)=O",
    "diethyl ether": "CCOCC",
    "tetrahydrofuran": "C1CCOC1",
    "dioxane": "C1COCCO1",
    "dichloromethane": "ClCCl",
    "chloroform": "ClC(Cl)Cl",
    "hexane": "CCCCCC",
    "cyclohexane": "C1CCCCC1",
    "benzene": "c1ccccc1",
    "toluene": "Cc1ccccc1",
    "pyridine": "c1ccncc1",
    "hydrogen peroxide": "OO",
    "hydrogen": "[H][H]",
}

_ELEMENTS = {  # ions of one atom; those of other metals make complexes, which stay whole
    "Li": "lithium", "Na": "sodium", "K": "potassium", "Rb": "rubidium", "Cs": "caesium",
    "Mg": "magnesium", "Ca": "calcium", "Sr": "strontium", "Ba": "barium", "Al": "aluminium",
    "Zn": "zinc", "Ag": "silver", "Bi": "bismuth", "F": "fluoride", "Cl": "chloride",
    "Br": "bromide", "I": "iodide", "H": "hydrogen",
}  # fmt: skip


@cache
def counter_ions() -> dict[str, str]:
    """Return the names of counter-ions by canonical SMILES, neutral where they can be."""
    return _canonical(_SALTS)


@cache
def solvents() -> dict[str, str]:
    """Return the names of solvents by canonical SMILES."""
    return _canonical(_SOLVENTS)


def ion_name(symbol: str) -> str | None:
    """Return what an ion of a single atom is called: "sodium"; None if it is no counter-ion."""
    return _ELEMENTS.get(symbol)


def _canonical(smiles_by_name: dict[str, str]) -> dict[str, str]:
    from rdkit import Chem

    return {Chem.CanonSmiles(smiles): name for name, smiles in smiles_by_name.items()}
