"""Names for parts of molecules: functional groups, rings, small substituents."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdkit.Chem import Mol

# A pattern covers only the atoms of its group; their surroundings are inside $(...).
FUNCTIONAL_GROUPS: tuple[tuple[str, str], ...] = (
    ("phosphate", "[PX4](=O)([OX2,OX1-])([OX2,OX1-])[OX2,OX1-]"),
    ("sulfamide", "[NX3][SX4](=O)(=O)[NX3]"),
    ("anhydride", "[CX3](=O)[OX2][CX3]=O"),
    ("imide", "[CX3](=O)[NX3][CX3]=O"),
    ("trifluoromethoxy", "[OX2][CX4](F)(F)F"),
    ("phosphonate", "[PX4](=O)([OX2,OX1-])[OX2,OX1-]"),
    ("sulfonamide", "[SX4](=O)(=O)[NX3,NX2-]"),
    ("sulfonic acid", "[SX4](=O)(=O)[OX2H1,OX1-]"),
    ("sulfonate ester", "[SX4](=O)(=O)[OX2H0]"),
    ("sulfonyl halide", "[SX4](=O)(=O)[F,Cl,Br,I]"),
    ("trifluoromethyl", "[CX4](F)(F)F"),
    ("carbonate", "[OX2][CX3](=O)[OX2]"),
    ("carbamate", "[NX3][CX3](=O)[OX2]"),
    ("urea", "[NX3][CX3](=[OX1])[NX3]"),
    ("thiourea", "[NX3][CX3](=[SX1])[NX3]"),
    ("guanidine", "[NX3][CX3](=[NX2,NX3+])[NX3]"),
    ("isothiourea", "[NX3][CX3](=[NX2,NX3+])[SX2]"),
    ("isourea", "[NX3][CX3](=[NX2,NX3+])[OX2]"),
    ("hydroxamic acid", "[CX3](=O)[NX3][OX2]"),
    ("hydrazide", "[CX3](=O)[NX3][NX3]"),
    ("carboxylic acid", "[CX3](=O)[OX2H1]"),
    ("carboxylate", "[CX3](=O)[OX1-]"),
    ("ester", "[CX3](=O)[OX2H0]"),
    ("thioester", "[CX3](=O)[SX2]"),
    ("acyl halide", "[CX3](=O)[F,Cl,Br,I]"),
    ("amide", "[CX3](=[OX1])[NX3]"),
    ("thioamide", "[CX3](=[SX1])[NX3]"),
    ("amidine", "[NX3][CX3]=[NX2,NX3+]"),
    ("oxime", "[CX3]=[NX2][OX2]"),
    ("hydrazone", "[CX3]=[NX2][NX3]"),
    ("nitro", "[NX3+](=O)[OX1-]"),
    ("nitro", "[NX3](=O)=O"),
    ("azide", "[NX2]=[NX2+]=[NX1-]"),
    ("isocyanate", "[NX2]=[CX2]=[OX1]"),
    ("isothiocyanate", "[NX2]=[CX2]=[SX1]"),
    ("sulfone", "[SX4](=O)=O"),
    ("boronic acid or ester", "[BX3]([OX2])[OX2]"),
    ("epoxide", "[CX4]1[OX2][CX4]1"),
    ("difluoromethyl", "[CX4;H1](F)F"),
    ("sulfoxide", "[SX3]=[OX1]"),
    ("sulfoxide", "[SX3+][OX1-]"),
    ("nitrile", "[CX2]#[NX1]"),
    ("aldehyde", "[CX3;H1,H2]=[OX1]"),
    ("ketone", "[CX3;$(C([#6])[#6])]=[OX1]"),
    ("ring carbonyl", "[c]=[OX1]"),
    ("imine", "[CX3]=[NX2,NX3+]"),
    ("azo", "[NX2]=[NX2]"),
    ("nitroso", "[NX2]=[OX1]"),
    ("N-oxide", "[#7+][OX1-]"),
    ("disulfide", "[SX2][SX2]"),
    ("peroxide", "[OX2][OX2]"),
    ("alkyne", "[CX2]#[CX2]"),
    ("alkene", "[CX3]=[CX3]"),
    ("phenol", "[OX2H1;$(Oc)]"),
    ("alcohol", "[OX2H1;$(O[CX4])]"),
    ("ether", "[OX2H0;$(O([#6])[#6])]"),
    ("thiol", "[SX2H1;$(S[#6])]"),
    ("thioether", "[SX2H0;$(S([#6])[#6])]"),
    ("quaternary ammonium", "[NX4+;H0]"),
    ("ammonium", "[NX4+;!H0]"),
    ("aromatic amine", "[NX3;$(N-c);!$(N~[!#6;!#1])]"),
    ("primary amine", "[NX3;H2;$(N[#6]);!$(N~[!#6;!#1])]"),
    ("secondary amine", "[NX3;H1;$(N([#6])[#6]);!$(N~[!#6;!#1])]"),
    ("tertiary amine", "[NX3;H0;$(N([#6])([#6])[#6]);!$(N~[!#6;!#1])]"),
    ("fluorine", "[F;$(F[#6])]"),
    ("chlorine", "[Cl;$(Cl[#6])]"),
    ("bromine", "[Br;$(Br[#6])]"),
    ("iodine", "[I;$(I[#6])]"),
)

# Rings by the SMILES of a compound that contains them; hydrogens and charges are ignored.
RINGS: tuple[tuple[str, str], ...] = (
    ("benzene", "c1ccccc1"),
    ("pyridine", "c1ccncc1"),
    ("pyrimidine", "c1cncnc1"),
    ("pyrazine", "c1cnccn1"),
    ("pyridazine", "c1ccnnc1"),
    ("1,3,5-triazine", "c1ncncn1"),
    ("1,2,4-triazine", "c1cnncn1"),
    ("pyrrole", "c1cc[nH]c1"),
    ("pyrazole", "c1cn[nH]c1"),
    ("imidazole", "c1c[nH]cn1"),
    ("1,2,3-triazole", "c1c[nH]nn1"),
    ("1,2,4-triazole", "c1nc[nH]n1"),
    ("tetrazole", "c1nnn[nH]1"),
    ("furan", "c1ccoc1"),
    ("thiophene", "c1ccsc1"),
    ("oxazole", "c1cocn1"),
    ("isoxazole", "c1cnoc1"),
    ("thiazole", "c1cscn1"),
    ("isothiazole", "c1cnsc1"),
    ("1,3,4-oxadiazole", "c1nnco1"),
    ("1,2,4-oxadiazole", "c1ncon1"),
    ("1,3,4-thiadiazole", "c1nncs1"),
    ("1,2,4-thiadiazole", "c1ncsn1"),
    ("naphthalene", "c1ccc2ccccc2c1"),
    ("quinoline", "c1ccc2ncccc2c1"),
    ("isoquinoline", "c1ccc2cnccc2c1"),
    ("quinazoline", "c1ccc2ncncc2c1"),
    ("quinoxaline", "c1ccc2nccnc2c1"),
    ("indole", "c1ccc2[nH]ccc2c1"),
    ("indazole", "c1ccc2[nH]ncc2c1"),
    ("benzimidazole", "c1ccc2[nH]cnc2c1"),
    ("benzofuran", "c1ccc2occc2c1"),
    ("benzothiophene", "c1ccc2sccc2c1"),
    ("benzoxazole", "c1ccc2ocnc2c1"),
    ("benzothiazole", "c1ccc2scnc2c1"),
    ("7-azaindole", "c1cnc2[nH]ccc2c1"),
    ("imidazopyridine", "c1ccn2ccnc2c1"),
    ("purine", "c1ncc2nc[nH]c2n1"),
    ("carbazole", "c1ccc2c(c1)[nH]c1ccccc12"),
    ("chroman", "c1ccc2c(c1)CCCO2"),
    ("indane", "c1ccc2c(c1)CCC2"),
    ("indoline", "c1ccc2c(c1)CCN2"),
    ("tetralin", "c1ccc2c(c1)CCCC2"),
    ("tetrahydroisoquinoline", "c1ccc2c(c1)CCNC2"),
    ("1,3-benzodioxole", "c1ccc2c(c1)OCO2"),
    ("cyclopropane", "C1CC1"),
    ("cyclobutane", "C1CCC1"),
    ("cyclopentane", "C1CCCC1"),
    ("cyclohexane", "C1CCCCC1"),
    ("cycloheptane", "C1CCCCCC1"),
    ("cyclopentene", "C1=CCCC1"),
    ("cyclohexene", "C1=CCCCC1"),
    ("oxirane", "C1CO1"),
    ("oxetane", "C1COC1"),
    ("tetrahydrofuran", "C1CCOC1"),
    ("tetrahydropyran", "C1CCOCC1"),
    ("1,3-dioxolane", "C1COCO1"),
    ("1,4-dioxane", "C1COCCO1"),
    ("aziridine", "C1CN1"),
    ("azetidine", "C1CNC1"),
    ("pyrrolidine", "C1CCNC1"),
    ("piperidine", "C1CCNCC1"),
    ("piperazine", "C1CNCCN1"),
    ("morpholine", "C1COCCN1"),
    ("thiomorpholine", "C1CSCCN1"),
    ("azepane", "C1CCCNCC1"),
    ("imidazolidine", "C1CNCN1"),
    ("imidazoline", "C1CN=CN1"),
    ("thiazolidine", "C1CSCN1"),
    ("oxazolidine", "C1COCN1"),
    ("dihydro-1,3-thiazine", "C1CSC=NC1"),
    ("dihydro-1,3-oxazine", "C1COC=NC1"),
    ("dihydropyrimidine", "C1CN=CNC1"),
)

# Substituents and linkers, with * at the attachment points.
GROUPS: tuple[tuple[str, str], ...] = (
    ("methyl", "*C"),
    ("methylene", "*C*"),
    ("methine", "*C(*)*"),
    ("quaternary carbon", "*C(*)(*)*"),
    ("ethyl", "*CC"),
    ("ethylene", "*CC*"),
    ("vinyl", "*C=C"),
    ("ethynyl", "*C#C"),
    ("alkyne", "*C#C*"),
    ("propyl", "*CCC"),
    ("propylene", "*CCC*"),
    ("isopropyl", "*C(C)C"),
    ("butyl", "*CCCC"),
    ("isobutyl", "*CC(C)C"),
    ("sec-butyl", "*C(C)CC"),
    ("tert-butyl", "*C(C)(C)C"),
    ("ethylidene", "*C(*)C"),
    ("isopropylidene", "*C(*)(C)C"),
    ("carbonyl", "*C(*)=O"),
    ("formyl", "*C=O"),
    ("acetyl", "*C(C)=O"),
    ("carboxyl", "*C(=O)O"),
    ("carboxylate", "*C(=O)[O-]"),
    ("ester group", "*C(=O)O*"),
    ("methoxycarbonyl", "*C(=O)OC"),
    ("carboxamide", "*C(N)=O"),
    ("amide group", "*NC(*)=O"),
    ("amide group, N-substituted", "*C(=O)N(*)*"),
    ("urea group", "*NC(=O)N*"),
    ("oxo", "*=O"),
    ("imino", "*=N"),
    ("thioxo", "*=S"),
    ("hydroxyl", "*O"),
    ("oxide", "*[O-]"),
    ("oxygen bridge", "*O*"),
    ("methoxy", "*OC"),
    ("ethoxy", "*OCC"),
    ("trifluoromethoxy", "*OC(F)(F)F"),
    ("amino", "*N"),
    ("NH bridge", "*N*"),
    ("N branch", "*N(*)*"),
    ("ammonium", "*[NH3+]"),
    ("NH2+ bridge", "*[NH2+]*"),
    ("methylamino", "*NC"),
    ("dimethylamino", "*N(C)C"),
    ("nitro", "*[N+](=O)[O-]"),
    ("cyano", "*C#N"),
    ("azido", "*N=[N+]=[N-]"),
    ("thiol", "*S"),
    ("sulfur bridge", "*S*"),
    ("methylthio", "*SC"),
    ("sulfoxide", "*S(*)=O"),
    ("sulfonyl", "*S(*)(=O)=O"),
    ("methylsulfonyl", "*S(C)(=O)=O"),
    ("sulfonamide group", "*NS(*)(=O)=O"),
    ("sulfamoyl", "*S(N)(=O)=O"),
    ("fluoro", "*F"),
    ("chloro", "*Cl"),
    ("bromo", "*Br"),
    ("iodo", "*I"),
    ("difluoromethyl", "*C(F)F"),
    ("trifluoromethyl", "*C(F)(F)F"),
    ("trifluoroethyl", "*CC(F)(F)F"),
    ("difluoromethoxy", "*OC(F)F"),
    ("neopentyl", "*CC(C)(C)C"),
    ("hexafluoroisopropyl", "*C(C(F)(F)F)C(F)(F)F"),
    ("hydroxymethyl", "*CO"),
    ("water", "O"),
    ("methane", "C"),
    ("ammonia", "N"),
    ("sodium ion", "[Na+]"),
    ("potassium ion", "[K+]"),
    ("chloride", "[Cl-]"),
    ("bromide", "[Br-]"),
    ("hydrogen chloride", "Cl"),
    ("hydrogen bromide", "Br"),
)


def ring_name(mol: "Mol", atoms: tuple[int, ...]) -> str | None:
    """Return the name of the ring system that these atoms form; None if it is not listed."""
    return ring_names().get(skeleton(mol, atoms))


@lru_cache(maxsize=1 << 16)
def name_in_words(smiles: str) -> str | None:
    """Return the name of a fragment, whose SMILES is canonical with `*` where it was cut.

    There are names for the substituents and linkers listed here, and for single listed ring systems
    with listed substituents ("pyridine ring with fluoro"). For anything else the name is None.
    """
    from rdkit import Chem, rdBase

    listed_name = group_names().get(smiles)
    if listed_name is not None:
        return listed_name
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
    systems = [] if mol is None else ring_systems(mol)
    if mol is None or len(systems) != 1 or len(Chem.GetMolFrags(mol)) > 1:
        return None
    name = ring_name(mol, systems[0])
    if name is None:
        return None
    counts = Counter(group_names().get(part) for part in _substituents(mol, systems[0]))
    if None in counts:
        return None
    listed = sorted(f"{n} {group}" if n > 1 else str(group) for group, n in counts.items())
    return f"{name} ring" + (f" with {', '.join(listed)}" if listed else "")


@lru_cache(maxsize=1 << 16)
def described(smiles: str) -> str:
    """Put a fragment into words: its name, or its formula and rings ("C9H10NO with benzene ring").

    The SMILES is canonical with `*` where the fragment was cut. It is returned unchanged if RDKit
    cannot read it.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem.rdMolDescriptors import CalcMolFormula

    name = name_in_words(smiles)
    if name is not None:
        return name
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
    if mol is None:
        return smiles
    formula = re.sub(r"\*\d*|[+-]\d*$", "", CalcMolFormula(mol))  # without cuts and charge
    systems = ring_systems(mol)
    rings = Counter(ring_name(mol, atoms) or _by_size(mol, atoms) for atoms in systems)
    listed = [f"{n} {name} rings" if n > 1 else f"{name} ring" for name, n in sorted(rings.items())]
    return f"{formula} with {' and '.join(listed)}" if listed else f"{formula} chain"


def _by_size(mol: "Mol", atoms: Sequence[int]) -> str:
    """Describe a ring system by its size ("6-membered") or number of rings ("bicyclic")."""
    inside = [ring for ring in mol.GetRingInfo().AtomRings() if set(ring) <= {*atoms}]
    if len(inside) == 1:
        return f"{len(atoms)}-membered"
    return {2: "bicyclic", 3: "tricyclic"}.get(len(inside), "polycyclic")


def ring_systems(mol: "Mol") -> list[tuple[int, ...]]:
    """Return the atoms of each ring system.

    Rings that share atoms (fused, bridged, spiro) form one system.
    """
    systems: list[set[int]] = []
    for ring in mol.GetRingInfo().AtomRings():
        touching = [system for system in systems if system.intersection(ring)]
        merged = set(ring).union(*touching)
        systems = [system for system in systems if system not in touching] + [merged]
    return sorted(tuple(sorted(system)) for system in systems)


def cut_smiles(mol: "Mol", bonds: Sequence[int]) -> list[tuple[tuple[int, ...], str]]:
    """Return the atoms and the canonical SMILES of each piece after cutting bonds.

    The SMILES have `*` at the cuts, and no stereochemistry, so that a fragment always has the same
    SMILES.
    """
    from rdkit import Chem

    pieces = mol
    if bonds:
        pieces = Chem.FragmentOnBonds(mol, list(bonds), dummyLabels=[(0, 0)] * len(bonds))
    atoms: list[tuple[int, ...]] = []
    parts = Chem.GetMolFrags(pieces, asMols=True, sanitizeFrags=False, fragsMolAtomMapping=atoms)
    n = mol.GetNumAtoms()  # atoms after these are the attachment points
    return [
        (
            tuple(i for i in indices if i < n),
            _canonical(Chem.MolToSmiles(part, isomericSmiles=False)),
        )
        for indices, part in zip(atoms, parts, strict=True)
    ]


@lru_cache(maxsize=1 << 16)
def _canonical(smiles: str) -> str:
    """Return the SMILES after sanitising, or unchanged if a cut went through an aromatic ring."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
    return smiles if mol is None else str(Chem.MolToSmiles(mol))


def _substituents(mol: "Mol", ring: tuple[int, ...]) -> list[str]:
    """Return the SMILES of a ring's substituents, with `*` for the ring.

    Attachment points are left out.
    """
    inside = set(ring)
    cut = []
    for bond in mol.GetBonds():
        ends = {bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()}
        outside = ends - inside
        if len(outside) == 1 and mol.GetAtomWithIdx(*outside).GetAtomicNum():
            cut.append(bond.GetIdx())
    return [smiles for atoms, smiles in cut_smiles(mol, cut) if not inside.intersection(atoms)]


def skeleton(mol: "Mol", atoms: tuple[int, ...]) -> str:
    """Return elements and bonds of some atoms as canonical SMILES without hydrogens or charges."""
    from rdkit import Chem

    bare = Chem.RWMol()
    place = {}
    for index in atoms:
        original = mol.GetAtomWithIdx(index)
        atom = Chem.Atom(original.GetAtomicNum())
        atom.SetIsAromatic(original.GetIsAromatic())
        atom.SetNoImplicit(True)
        place[index] = bare.AddAtom(atom)
    for bond in mol.GetBonds():
        start, end = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        if start in place and end in place:
            bare.AddBond(place[start], place[end], bond.GetBondType())
    return Chem.MolToSmiles(bare)


@cache
def ring_names() -> dict[str, str]:
    """Return the names of ring systems by canonical SMILES."""
    from rdkit import Chem

    named = ((name, Chem.MolFromSmiles(smiles)) for name, smiles in RINGS)
    return {skeleton(mol, tuple(range(mol.GetNumAtoms()))): name for name, mol in named}


@cache
def group_names() -> dict[str, str]:
    """Return the names of groups by canonical SMILES."""
    from rdkit import Chem

    return {Chem.CanonSmiles(smiles): name for name, smiles in GROUPS}
