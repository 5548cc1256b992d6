"""Write a fragment without rings as chemists do: "CH2CH(OH)CH2".

Nothing shows where a single bond was cut. A double bond that was cut is written: "=CHCH3".
"""

from collections import Counter
from collections.abc import Collection
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdkit.Chem import Atom, Mol

LARGEST = 10  # heavy atoms; a longer formula says less than the numbers of its atoms
_HALOGENS = ("F", "Cl", "Br", "I")
_BONDS = {1.0: "", 2.0: "=", 3.0: "#"}


def condensed_formula(mol: "Mol") -> str | None:
    """Return the condensed formula of a fragment, or None if it has rings or is too large.

    The chain runs from one place where the fragment was cut to the farthest other one, or to its
    end. Branches are in parentheses.

    Args:
        mol: the fragment, with a dummy atom (`*`) wherever it was cut.
    """
    from rdkit import Chem

    heavy = [atom for atom in mol.GetAtoms() if atom.GetAtomicNum()]
    if mol.GetRingInfo().NumRings() or not 0 < len(heavy) <= LARGEST:
        return None
    if len(Chem.GetMolFrags(mol)) > 1 or any(a.GetNumRadicalElectrons() for a in heavy):
        return None
    return _written(mol, _chain(mol), set())


def _chain(mol: "Mol") -> list[int]:
    """Return the heavy atoms from one cut to the farthest other one, or else to the chain's end."""
    from rdkit import Chem

    ranks = list(Chem.CanonicalRankAtoms(mol))
    cut = [a.GetIdx() for a in mol.GetAtoms() if not a.GetAtomicNum()]
    ends = cut if len(cut) > 1 else [a.GetIdx() for a in mol.GetAtoms() if a.GetAtomicNum()]
    paths = []
    for first, last in product(cut or ends, ends):
        way = [first] if first == last else Chem.GetShortestPath(mol, first, last)
        paths.append([i for i in way if mol.GetAtomWithIdx(i).GetAtomicNum()])
    chain = max(filter(None, paths), key=lambda path: (len(path), [-ranks[i] for i in path]))
    return chain if len(cut) > 1 else _longest(mol, chain[0], set())


def _written(mol: "Mol", chain: list[int], before: Collection[int]) -> str:
    """Write a chain with its branches; atoms in `before` have been written already."""
    text = ""
    for place, index in enumerate(chain):
        if place:
            text += _bond(mol, chain[place - 1], index)
        atom, done = mol.GetAtomWithIdx(index), {*before, *chain}
        cut = [a.GetIdx() for a in atom.GetNeighbors() if not a.GetAtomicNum()]
        after = "".join(_bond(mol, index, end) for end in cut)  # of multiple bonds that were cut
        if not place and not before and len(cut) == 1:  # they are before the formula's first atom
            text, after = text + after, ""
        text += _symbol(atom)
        ends = [a.GetIdx() for a in atom.GetNeighbors() if a.GetAtomicNum()]
        longest = [_longest(mol, end, {*done}) for end in ends if end not in done]
        branches = Counter(_bond(mol, index, b[0]) + _written(mol, b, done) for b in longest)
        for branch, count in sorted(branches.items()):
            text += branch if branch in _HALOGENS else f"({branch})"
            text += f"{count}" if count > 1 else ""
        text += after if index == chain[-1] or not after else f"({after})"
    return text


def _longest(mol: "Mol", first: int, done: set[int]) -> list[int]:
    """Return the longest chain from an atom that leaves `done` alone.

    It ends before a double-bonded oxygen, and before several equal atoms, as in CH(CH3)2.
    """
    onward = [
        _longest(mol, atom.GetIdx(), {*done, first})
        for atom in mol.GetAtomWithIdx(first).GetNeighbors()
        if atom.GetIdx() not in done and atom.GetAtomicNum()
    ]
    onward = [
        branch for branch in onward if _bond(mol, first, branch[0]) + _text(mol, branch) != "=O"
    ]
    equal = {_text(mol, branch) for branch in onward if len(branch) == 1}
    if len(onward) > 1 and len(equal) == 1 and max(map(len, onward)) == 1:
        return [first]
    return [first, *max(onward, key=len, default=[])]


def _text(mol: "Mol", chain: list[int]) -> str:
    return "".join(_symbol(mol.GetAtomWithIdx(index)) for index in chain)


def _symbol(atom: "Atom") -> str:
    hydrogens, charge = atom.GetTotalNumHs(), atom.GetFormalCharge()
    counted = "" if not hydrogens else "H" if hydrogens == 1 else f"H{hydrogens}"
    return atom.GetSymbol() + counted + ("+" * charge if charge > 0 else "-" * -charge)


def _bond(mol: "Mol", first: int, second: int) -> str:
    order = mol.GetBondBetweenAtoms(first, second).GetBondTypeAsDouble()
    return _BONDS.get(order, "~")
