"""Bring annular N-H, amidines and guanidines to one form: protons that move between nitrogens.

Such protons move within a second at room temperature, and no table draws them in one way (Elguero
2000, of azoles; Raczynska 2005, of amidines). So both places are one compound, unlike a pyridone
and its hydroxypyridine, whose shares depend on the solvent. The form is one that is there in water,
as far as a rule says so, and as tables draw it.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

from rdkit import Chem

MOST_FORMS = 64  # of one molecule
# Not in a five-membered ring with a carbonyl group, whose lactam is another matter
_NO_LACTAM = "!$(n~[c;r5]=[!#6;!R]);!$(n~[*;r5]~[c;r5]=[!#6;!R])"
_DONOR, _ACCEPTOR = f"[nX3;H1;+0;r5;{_NO_LACTAM}]", f"[nX2;H0;+0;r5;{_NO_LACTAM}]"
# Imine, carbon and amine
_AMIDINE = "[NX2;+0;!$(N-[!#6;!#1]):1]=[CX3;+0:2]-[NX3;+0;H1,H2;!$(N-[!#6;!#1]):3]"
# What most molecules lack, without the patterns in patterns that RDKit is slow with
_PLAIN = "[nX3;H1;r5]", "[NX2]=[CX3]-[NX3;!H0]"
# What a form should not have, the worst first: a benzo ring without its sextet, as in 2H-indazole;
# an imine with hydrogen, where the amino form is there (Raczynska 2005); an imine outside a ring;
# and an N-H between two nitrogens, as in 2H-tetrazole, or two carbons, as in 4H-1,2,4-triazole.
_DISFAVOURED = (
    "[nH]1[c,n]c2aaaac2[c,n]1", "[NX2;H1]=[#6]", "[#6;R]=[NX2;!R]", "n[nH]n", "c1nnc[nH]1"
)  # fmt: skip


@cache
def pattern(smarts: str) -> Chem.Mol:
    """Return a pattern of our own, which is parsed when it is first needed."""
    return Chem.MolFromSmarts(smarts)


def one_proton_form(mol: Chem.Mol) -> Chem.Mol:
    """Return the form that stands for all places of protons that move between nitrogens.

    The atoms are in the same order. A molecule without such protons, or with more forms than
    `MOST_FORMS`, is returned as it is.
    """
    if not has_moving_protons(mol):
        return mol
    mol = _without_moving_bonds(mol)
    forms = {Chem.MolToSmiles(mol): mol}
    as_drawn: frozenset[tuple[Any, int]] = frozenset()
    seen, waiting = {as_drawn}, [(mol, as_drawn)]
    while waiting and len(forms) <= MOST_FORMS:
        start, places = waiting.pop()
        for move in _moves(start):
            if (new := move.places_after(places)) in seen:
                continue  # most moves lead back, and a form takes long to make
            seen.add(new)
            moved = move.applied_to(start)
            if moved is not None and (smiles := Chem.MolToSmiles(moved)) not in forms:
                forms[smiles] = moved
                waiting.append((moved, new))
    if len(forms) == 1 or waiting:
        return mol

    def rank(smiles: str) -> tuple[list[int], str]:
        matches = [forms[smiles].GetSubstructMatches(pattern(each)) for each in _DISFAVOURED]
        return list(map(len, matches)), smiles

    return forms[min(forms, key=rank)]


def _without_moving_bonds(mol: Chem.Mol) -> Chem.Mol:
    """Return a molecule without the configuration of double bonds that move with a proton."""
    matches = mol.GetSubstructMatches(pattern(_AMIDINE))
    bonds = [mol.GetBondBetweenAtoms(imine, carbon) for imine, carbon, _ in matches]
    places = [b.GetIdx() for b in bonds if b.GetStereo() != Chem.BondStereo.STEREONONE]
    if not places:
        return mol
    copy = Chem.RWMol(mol)
    for place in places:
        _forget(copy.GetBondWithIdx(place))
    return _sanitised(copy) or mol


def _forget(bond: Chem.Bond) -> None:
    """Remove the configuration of a double bond."""
    bond.SetStereo(Chem.BondStereo.STEREONONE)
    for atom in (bond.GetBeginAtom(), bond.GetEndAtom()):
        for other in atom.GetBonds():
            other.SetBondDir(Chem.BondDir.NONE)


def has_moving_protons(mol: Chem.Mol) -> bool:
    """Whether a molecule has a proton that may be better drawn at another nitrogen.

    It is False where the move of each amidine's proton would be for the worse, as in most drawings.
    """
    if not any(mol.HasSubstructMatch(pattern(each)) for each in _PLAIN):
        return False
    if all(mol.HasSubstructMatch(pattern(each)) for each in (_DONOR, _ACCEPTOR)):
        return True
    carbon_of: dict[int, int] = {}
    for imine, carbon, amine in mol.GetSubstructMatches(pattern(_AMIDINE)):
        if any(carbon_of.setdefault(n, carbon) != carbon for n in (imine, amine)):
            return True  # of a biguanide, whose protons move in several steps
        drawn = mol.GetBondBetweenAtoms(imine, carbon)
        moved = mol.GetBondBetweenAtoms(amine, carbon)
        hydrogens = [mol.GetAtomWithIdx(n).GetTotalNumHs() for n in (imine, amine)]
        in_ring = mol.GetAtomWithIdx(carbon).IsInRing()
        now = hydrogens[0] > 0, in_ring and not drawn.IsInRing()
        then = hydrogens[1] > 1, in_ring and not moved.IsInRing()
        if now >= then or drawn.GetStereo() != Chem.BondStereo.STEREONONE:
            return True
    return False


class _Move(NamedTuple):
    """A proton that moves to another nitrogen.

    Args:
        donor, acceptor: the nitrogens that lose it and gain it.
        carbon: the carbon between them if they are of an amidine, or None in an aromatic system.
    """

    donor: int
    acceptor: int
    carbon: int | None = None

    def places_after(self, places: frozenset[tuple[Any, int]]) -> frozenset[tuple[Any, int]]:
        """Return how many protons and double bonds each place has more than in the drawing."""
        more = Counter(dict(places))
        more[self.acceptor] += 1
        more[self.donor] -= 1
        if self.carbon is not None:
            more[self.carbon, self.donor] += 1
            more[self.carbon, self.acceptor] -= 1
        return frozenset((place, number) for place, number in more.items() if number)

    def applied_to(self, mol: Chem.Mol) -> Chem.Mol | None:
        """Return the molecule after the move, or None if there is no such form."""
        if self.carbon is not None:
            return _with_amidine_proton(mol, self.acceptor, self.carbon, self.donor)
        copy = Chem.RWMol(mol)
        copy.GetAtomWithIdx(self.donor).SetNumExplicitHs(0)
        copy.GetAtomWithIdx(self.acceptor).SetNumExplicitHs(1)
        return _sanitised(copy)


def _moves(mol: Chem.Mol) -> list[_Move]:
    """Return the moves of one proton to another nitrogen."""
    donors = [i for (i,) in mol.GetSubstructMatches(pattern(_DONOR))]
    acceptors = [i for (i,) in mol.GetSubstructMatches(pattern(_ACCEPTOR))] if donors else []
    systems = _aromatic_systems(mol) if acceptors else {}
    moves = [_Move(i, j) for i in donors for j in acceptors if systems.get(i) == systems.get(j)]
    of_amidines = mol.GetSubstructMatches(pattern(_AMIDINE))
    return moves + [_Move(amine, imine, carbon) for imine, carbon, amine in of_amidines]


def _with_amidine_proton(mol: Chem.Mol, imine: int, carbon: int, amine: int) -> Chem.Mol | None:
    copy = Chem.RWMol(mol)
    for nitrogen, kind, gained in (
        (imine, Chem.BondType.SINGLE, 1),
        (amine, Chem.BondType.DOUBLE, -1),
    ):
        bond = copy.GetBondBetweenAtoms(carbon, nitrogen)
        _forget(bond)
        bond.SetBondType(kind)
        atom = copy.GetAtomWithIdx(nitrogen)
        if atom.GetNoImplicit() or atom.GetNumExplicitHs():
            atom.SetNumExplicitHs(max(atom.GetNumExplicitHs() + gained, 0))
    return _sanitised(copy)


def _sanitised(copy: Chem.RWMol) -> Chem.Mol | None:
    try:
        Chem.SanitizeMol(copy)
    except ValueError:
        return None  # there is no such form
    Chem.AssignStereochemistry(copy, cleanIt=True, force=True)
    return copy.GetMol()


def _aromatic_systems(mol: Chem.Mol) -> dict[int, int]:
    """Return the number of the system of fused aromatic rings of each atom in one."""
    rings = [
        set(ring)
        for ring in mol.GetRingInfo().AtomRings()
        if all(mol.GetAtomWithIdx(i).GetIsAromatic() for i in ring)
    ]
    systems: list[set[int]] = []
    for ring in rings:
        joined = [system for system in systems if system & ring]
        systems = [system for system in systems if not system & ring]
        systems.append(ring.union(*joined))
    return {i: k for k, system in enumerate(systems) for i in system}
