"""Bring a molecule to its parent: without counter-ions and solvents, neutral where it can be.

The steps are RDKit's MolStandardize, with five settings of its own: only salts of alkali and
alkaline earth metals are split, so that complexes stay whole; charges are removed wherever a proton
can do it, so that a base and its protonated form are one molecule; an acid keeps its charge where
it balances a cation that no proton can remove, so that a betaine stays neutral as a whole; S=O and
P=O are written without charges, as they are in a base that nobody has to change; and the charge of
an amidinium or an aminopyridinium is put on a nitrogen from which a proton can remove it, and in
the ring if there is one. Protons that move between nitrogens get one place. Other tautomers are a
further step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from rdkit import Chem, rdBase
from rdkit.Chem.MolStandardize import rdMolStandardize

from graphxai.runtime.reading import packaged_rows

from .as_given import MixtureError, Standardisation
from .canonical_form import StandIn
from .tautomer_form import one_proton_form, pattern

ELEMENTS = {  # names of ions of one atom; those of other metals make complexes, which stay whole
    "Li": "lithium", "Na": "sodium", "K": "potassium", "Rb": "rubidium", "Cs": "caesium",
    "Mg": "magnesium", "Ca": "calcium", "Sr": "strontium", "Ba": "barium", "Al": "aluminium",
    "Zn": "zinc", "Ag": "silver", "Bi": "bismuth", "F": "fluoride", "Cl": "chloride",
    "Br": "bromide", "I": "iodide", "H": "hydrogen",
}  # fmt: skip
MAX_TRANSFORMS = 200  # of one molecule; RDKit's own limit of 1,000 takes minutes for peptides
MAX_TAUTOMER_ATOMS = 100  # the time of a transformation grows with the size
PROTON_MOVED = "proton moved between nitrogens"
PROTON = "salt removed: hydrogen"
SHARE_OF_MIXTURE = 0.5  # a second compound of this share of the first one's atoms is no counter-ion

# A dot, a charge in brackets, or a metal that may be bonded to its counter-ion.
_MAY_CHANGE = re.compile(r"[.+]|-\d*(?::\d+)?\]|\[\d*(?:Li|Na|K|Rb|Cs|Mg|Ca|Sr|Ba)")
_SALT = "[Li,Na,K,Rb,Cs,Mg,Ca,Sr,Ba]~[#7,#8,#9,#16,#17]"
_METAL = "[!#0;!#1;!#5;!#6;!#7;!#8;!#9;!#14;!#15;!#16;!#17;!#34;!#35;!#53]"
_REDRAWN = "[$([#15,#16;+,+2]~[O-,S-]),$([N+;X3]=[#6]~[#7;+0;!H0]),$([N+;X3]=c:c:c:[n;H1])]"
_FULL_ANION = "[$([B-;X4]),$([#15,#33,#51;-;X6])]"  # no room for a proton: tetrafluoroborate
# Charges that stand alone, or that S and P need not have
_CHARGE = "[+,-;!$([+;!S;!P]~[-]);!$([-]~[+;!S;!P])]"

# What has as many bonds without a charge as these have with one, while protons are put on others
_STAND_IN = {5: 6, 15: 16, 33: 16, 51: 16}

_DATIVE = """//	Name	SMIRKS
Sulfone	[S+2:1]([O-:2])([O-:3])>>[S+0:1](=[O-0:2])(=[O-0:3])
Sulfoxide	[S+;X3:1][O-:2]>>[S+0:1]=[O-0:2]
Oxidised sulfur	[S+;X4:1][O-:2]>>[S+0:1]=[O-0:2]
Phosphine oxide	[P+;X4:1][O-,S-:2]>>[P+0:1]=[*-0:2]
Amidinium	[N+;H0;X3;!$(*~[-]):1]=[CX3:2]-[N+0;!H0;X3:3]>>[N+0:1]-[C:2]=[N+:3]
Pyridinium-2	[N+;X3;!$(*~[-]):1]=[c:2]:[n+0;H1:3]>>[N+0:1]-[c:2]:[nH+:3]
Pyridinium-4	[N+;X3;!$(*~[-]):1]=[c:2]:[c:4]:[c:5]:[nH:3]>>[N+0:1]-[c:2]:[c:4]:[c:5]:[nH+:3]
"""


@cache
def counter_ions() -> dict[str, str]:
    """Return the names of counter-ions by canonical SMILES, neutral where they can be."""
    return _canonical("salt")


@cache
def solvents() -> dict[str, str]:
    """Return the names of solvents by canonical SMILES."""
    return _canonical("solvent")


def _canonical(kind: str) -> dict[str, str]:
    rows = packaged_rows(__package__, "counter_ions.csv")
    return {Chem.CanonSmiles(row["smiles"]): row["name"] for row in rows if row["kind"] == kind}


class _Component(NamedTuple):
    """A connected part of a molecule.

    Args:
        smiles: canonical, neutral where it can be.
        name: what is removed with it, as text.
        listed: whether it is a counter-ion or a solvent.
        charge: what is left of its charge.
    """

    atoms: tuple[int, ...]
    smiles: str
    name: str
    listed: bool
    organic: bool
    charge: int


def may_change(smiles: str) -> bool:
    """Whether a SMILES has a charge, several parts or a metal; anything else is its own parent."""
    return _MAY_CHANGE.search(smiles) is not None


def parent_of(mol: Chem.Mol, standardisation: Standardisation) -> StandIn | None:
    """Return the parent of a molecule, or None if the molecule is its own parent.

    Args:
        mol: sanitised; it is not changed.
        standardisation: "parent", or "tautomers" for a canonical tautomer of the parent.

    Raises:
        MixtureError: the molecule is a mixture of several compounds.
        ValueError, RuntimeError: RDKit cannot standardise it.
    """
    atoms = tuple(range(mol.GetNumAtoms()))
    changes: list[str] = []
    parent = mol
    has_salt = any(mol.HasSubstructMatch(pattern(each)) for each in (_CHARGE, _SALT))
    if has_salt or len(Chem.GetMolFrags(mol)) > 1:
        compound = _compound_in(neutral_form(mol), mol)
        if compound is not None:
            protonated, atoms, changes = compound
            parent = _balanced(protonated)
            before, after = _charges(mol, atoms), _charges(parent, range(len(atoms)))
            if before != after:
                moved = sorted(before) == sorted(after)
                changes.append("proton moved" if moved else "charges neutralised")
    form = one_proton_form(parent)
    if form is not parent:
        parent = form
        changes.append(PROTON_MOVED)
    if standardisation == "tautomers":
        parent, change = _canonical_tautomer(parent)
        changes += [change] if change else []
    return StandIn(parent, atoms, tuple(changes)) if changes else None


def neutral_form(mol: Chem.Mol) -> Chem.RWMol:
    """Return a copy with the same atoms, in which protons have removed all charges they can."""
    with rdBase.BlockLogs():  # RDKit writes a line for each molecule
        copy = Chem.RWMol(mol)
        metals, dative, uncharger, balanced = _tools()
        if copy.HasSubstructMatch(pattern(_SALT)):
            metals.DisconnectInPlace(copy)
            Chem.SanitizeMol(copy)
        if copy.HasSubstructMatch(pattern(_REDRAWN)):
            dative.normalizeInPlace(copy)
        full = [i for (i,) in copy.GetSubstructMatches(pattern(_FULL_ANION))]
        elements = [copy.GetAtomWithIdx(i).GetAtomicNum() for i in full]
        for i, element in zip(full, elements, strict=True):
            _set(copy.GetAtomWithIdx(i), _STAND_IN[element], 0)
        (balanced if copy.HasSubstructMatch(_mesoionic()) else uncharger).unchargeInPlace(copy)
        for i, element in zip(full, elements, strict=True):
            _set(copy.GetAtomWithIdx(i), element, -1)
        Chem.SanitizeMol(copy)
        return copy


def lone_charges(mol: Chem.Mol) -> list[int]:
    """Return the charged atoms whose charge no neighbour balances, as those of a nitro group do."""
    return [atom for (atom,) in mol.GetSubstructMatches(pattern(_CHARGE))]


def _set(atom: Chem.Atom, element: int, charge: int) -> None:
    atom.SetAtomicNum(element)
    atom.SetFormalCharge(charge)


def _balanced(mol: Chem.Mol) -> Chem.Mol:
    """Return a cation as its zwitterion, if it has acids to balance the charges it cannot lose.

    So a betaine and its hydrochloride are one molecule, and neutral as a whole. The strongest acids
    are ionised, and among equal ones those that come first in RDKit's canonical order.
    """
    charge = Chem.GetFormalCharge(mol)
    if charge <= 0 or mol.HasSubstructMatch(pattern(_METAL)):
        return mol
    acids: dict[int, None] = {}
    order = Chem.CanonicalRankAtoms(mol)
    for acid in _acids():
        acids |= dict.fromkeys(
            sorted((match[0] for match in mol.GetSubstructMatches(acid)), key=order.__getitem__)
        )
    if not acids:
        return mol
    zwitterion = Chem.RWMol(mol)
    for number in list(acids)[:charge]:
        atom = zwitterion.GetAtomWithIdx(number)
        atom.SetFormalCharge(-1)
        atom.SetNumExplicitHs(0)
    Chem.SanitizeMol(zwitterion)
    return _with_stereo(zwitterion)


def _compound_in(
    neutral: Chem.RWMol, mol: Chem.Mol
) -> tuple[Chem.Mol, tuple[int, ...], list[str]] | None:
    """Return the part that is the compound, its atoms, and which counter-ions were removed.

    An inorganic salt has no such part: the result is None. Several raise a MixtureError.
    """
    parts = Chem.GetMolFrags(neutral)
    if len(parts) == 1:
        return _with_stereo(neutral), parts[0], []
    components = [_component(neutral, mol, part) for part in parts]
    kept = _compound(components)
    if kept is None:
        return None
    removed = Counter(each.name for each in components if each.smiles != kept.smiles)
    if len(removed) > 1:
        removed.pop(PROTON, None)  # drawn as a part of its own, it belongs to the anion
    copies = sum(each.smiles == kept.smiles for each in components)
    changes = [f"{name} x {n}" if n > 1 else name for name, n in removed.items()]
    if copies > 1:
        changes.append(f"one of {copies} copies kept")
    gone = set(range(neutral.GetNumAtoms())) - set(kept.atoms)
    neutral.BeginBatchEdit()
    for atom in gone:
        neutral.RemoveAtom(atom)
    neutral.CommitBatchEdit()
    Chem.SanitizeMol(neutral)
    return _with_stereo(neutral), kept.atoms, changes


def _component(neutral: Chem.Mol, mol: Chem.Mol, atoms: tuple[int, ...]) -> _Component:
    """Look up one connected part of a molecule among the counter-ions and solvents."""
    smiles = str(Chem.MolFragmentToSmiles(neutral, atoms))
    flat = str(Chem.MolFragmentToSmiles(neutral, atoms, isomericSmiles=False))
    organic = any(neutral.GetAtomWithIdx(i).GetAtomicNum() == 6 for i in atoms)
    if solvent := solvents().get(flat):
        return _Component(atoms, smiles, f"solvent removed: {solvent}", True, organic, 0)
    given = mol.GetAtomWithIdx(atoms[0])
    name = counter_ions().get(smiles) or counter_ions().get(flat)
    if len(atoms) == 1 and not organic and (given.GetFormalCharge() or name is None):
        name = ELEMENTS.get(given.GetSymbol(), name)
    charge = sum(neutral.GetAtomWithIdx(i).GetFormalCharge() for i in atoms)
    what = f"salt removed: {name}" if name else f"counter-ion that is not listed removed: {smiles}"
    return _Component(atoms, smiles, what, name is not None, organic, charge)


def _compound(components: list[_Component]) -> _Component | None:
    """Return the part that is the compound; None if no part is organic, and for a complex.

    Counter-ions and solvents are one only if nothing else is there: of sodium acetate the parent is
    acetic acid. Beside another part, one with a negative charge that no proton can remove, such as
    a borate, is a counter-ion.
    """
    if any(len(c.atoms) == 1 and not c.listed for c in components):
        return None  # of a transition metal, as ferrocene is
    chosen = [each for each in components if not each.listed]
    chosen = chosen or [c for c in components if c.organic and c.smiles not in solvents()]
    chosen = chosen or [c for c in components if c.organic]
    chosen = [c for c in chosen if c.charge >= 0 and c.organic] or chosen
    different = {each.smiles: each for each in chosen}
    ranked = sorted(different.values(), key=lambda c: (c.organic, len(c.atoms)), reverse=True)
    if not ranked or not ranked[0].organic:
        return None
    first, *others = ranked
    if others and others[0].organic and len(others[0].atoms) >= SHARE_OF_MIXTURE * len(first.atoms):
        raise MixtureError(f"a mixture of {first.smiles} and {others[0].smiles}")
    return first


def _charges(mol: Chem.Mol, atoms: Iterable[int]) -> list[int]:
    matches = mol.GetSubstructMatches(pattern("[!+0]"), maxMatches=mol.GetNumAtoms())
    charges = {i: mol.GetAtomWithIdx(i).GetFormalCharge() for (i,) in matches}
    return [charges.get(i, 0) for i in atoms]


def _with_stereo(mol: Chem.RWMol) -> Chem.Mol:
    """Return the molecule with its stereocentres assigned anew: a charge may have made one."""
    Chem.AssignStereochemistry(mol, cleanIt=True, force=True)
    return Chem.Mol(mol)


def _canonical_tautomer(mol: Chem.Mol) -> tuple[Chem.Mol, str]:
    """Return the canonical tautomer, whose atoms are in the same order, and what was done.

    What was done is "" if nothing was. Where not all tautomers could be tried in time, it says so,
    as two drawings of the molecule may then keep different tautomers.
    """
    if mol.GetNumAtoms() > MAX_TAUTOMER_ATOMS:
        return mol, f"tautomer as drawn, for more than {MAX_TAUTOMER_ATOMS} atoms"
    tried = tautomers().Enumerate(mol)
    tautomer = tautomers().PickCanonical(tried)
    for bond in tautomer.GetBonds():  # it marks what it takes the configuration of
        if bond.GetStereo() == Chem.BondStereo.STEREOANY:
            bond.SetStereo(Chem.BondStereo.STEREONONE)
    is_same = Chem.MolToSmiles(tautomer) == Chem.MolToSmiles(mol)
    if tried.status != rdMolStandardize.TautomerEnumeratorStatus.Completed:
        return mol if is_same else tautomer, "not all tautomers tried"
    return (mol, "") if is_same else (tautomer, "tautomer changed")


@cache
def tautomers() -> Any:
    """Return RDKit's enumerator of tautomers, whose time is bounded."""
    enumerator = rdMolStandardize.TautomerEnumerator()
    enumerator.SetMaxTransforms(MAX_TRANSFORMS)
    return enumerator


@cache
def _acids() -> tuple[Chem.Mol, ...]:
    """Return the acids that are ionised beside a cation, the strongest first, at their atom."""
    rows = packaged_rows(__package__, "ionisable_groups.csv")
    return tuple(Chem.MolFromSmarts(row["smarts"]) for row in rows if row["balances"])


@cache
def _mesoionic() -> Chem.Mol:
    """Match charges of one aromatic ring that no proton can remove, as in sydnones."""
    cation, rings = "[n+;X3;H0]", []
    for size in (5, 6):
        for place in range(1, size // 2 + 1):
            ring = [":*"] * (size - 1)
            ring[place - 1] = f":{cation}"
            rings.append(f"$([-]-c1{''.join(ring)}:1)")
    return Chem.MolFromSmarts(f"[{','.join(rings)}]")


@cache
def _tools() -> tuple[Any, Any, Any, Any]:
    metals = rdMolStandardize.MetalDisconnector()
    metals.SetMetalNof(Chem.MolFromSmarts(_SALT))
    metals.SetMetalNon(Chem.MolFromSmarts("[#0;#1]~[#0]"))  # matches nothing
    dative = rdMolStandardize.NormalizerFromData(_DATIVE, rdMolStandardize.CleanupParameters())
    uncharger = rdMolStandardize.Uncharger(canonicalOrder=True, force=True)
    return metals, dative, uncharger, rdMolStandardize.Uncharger(canonicalOrder=True)
