"""Make new molecules from parts of given ones, for a teacher to label.

`recombine` cuts each molecule at one of its BRICS bonds (Degen 2008), and joins a half to a half of
another molecule if the two ends make the same kind of bond. The products stay close to the
chemistry of the input. `substitute` exchanges a single substituent, so that each product forms a
matched pair with a given molecule (Hussain and Rea 2010), and is closer still.

A teacher is a model that labels molecules for a network to learn from. If it was fitted to the
input, it can label such products.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rdkit import Chem, rdBase
from rdkit.Chem import BRICS

from graphxai.runtime.progress import Progress, no_progress

_ATTEMPTS = 20  # per molecule wanted, before the chemistry counts as exhausted


def recombine(
    smiles: Sequence[str],
    count: int,
    *,
    seed: int = 0,
    exclude: Sequence[str] = (),
    min_fragment: int = 3,
    max_atoms: int = 70,
    progress: Progress = no_progress,
) -> list[str]:
    """Return up to `count` new molecules, canonical SMILES, none of them in `smiles` or `exclude`.

    There are fewer if the input offers no more combinations.

    Args:
        exclude: molecules that must not be made.
        min_fragment: smallest number of atoms in a half.
        max_atoms: largest number of atoms in a product.
        progress: called with 1 for every new molecule.
    """
    chance = random.Random(seed)
    with rdBase.BlockLogs():
        halves = _halves(smiles, min_fragment)
        kinds = [kind for kind in sorted(halves) if kind[::-1] in halves]
        weights = [len(halves[kind]) for kind in kinds]

        def drawn() -> tuple[Chem.Mol, Chem.Mol]:
            kind = chance.choices(kinds, weights)[0]
            return chance.choice(halves[kind]), chance.choice(halves[kind[::-1]])

        return _products(drawn, count if kinds else 0, [*smiles, *exclude], max_atoms, progress)


def substitute(
    smiles: Sequence[str],
    count: int,
    *,
    seed: int = 0,
    exclude: Sequence[str] = (),
    max_substituent: int = 12,
    max_atoms: int = 70,
    progress: Progress = no_progress,
) -> list[str]:
    """Return up to `count` new molecules, each of them a given one with another substituent.

    The substituent is one that a given molecule has on the same kind of atom: of the same element,
    and aromatic, in a ring, or neither. The result is canonical SMILES, none of them in `smiles` or
    `exclude`. There are fewer if the input offers no more exchanges.

    Args:
        exclude: molecules that must not be made.
        max_substituent: largest number of heavy atoms in a substituent.
        max_atoms: largest number of atoms in a product.
        progress: called with 1 for every new molecule.
    """
    chance = random.Random(seed)
    with rdBase.BlockLogs():
        by_molecule = [cuts for text in smiles if (cuts := _cuts(text, max_substituent))]
        substituents: dict[tuple[str, bool, bool], list[Chem.Mol]] = {}
        for core, substituent in (cut for cuts in by_molecule for cut in cuts):
            substituents.setdefault(_end(core), []).append(substituent)

        def drawn() -> tuple[Chem.Mol, Chem.Mol]:
            core, _ = chance.choice(chance.choice(by_molecule))
            return core, chance.choice(substituents[_end(core)])

        wanted = count if by_molecule else 0
        return _products(drawn, wanted, [*smiles, *exclude], max_atoms, progress)


def _products(
    drawn: Callable[[], tuple[Chem.Mol, Chem.Mol]],
    count: int,
    excluded: Sequence[str],
    max_atoms: int,
    progress: Progress,
) -> list[str]:
    """Join pairs of parts that are drawn until there are `count` new molecules, or too few come."""
    known = {_canonical(text) for text in excluded}
    products: dict[str, None] = {}
    for _ in range(count * _ATTEMPTS):
        first, second = drawn()
        if first.GetNumAtoms() + second.GetNumAtoms() - 2 > max_atoms:
            continue
        product = _join(first, second)
        if product and product not in known and product not in products:
            products[product] = None
            progress(1)
        if len(products) == count:
            break
    return list(products)


def _cut_at(mol: Chem.Mol, bond: Chem.Bond) -> dict[int | None, Chem.Mol]:
    """Cut a molecule at a bond, and return the parts by the label, 1 or 2, of their end at the cut.

    That end is the last atom of its part, a dummy with the map number for joining. The other
    molecules of a mixture have none.
    """
    cut = Chem.FragmentOnBonds(mol, [bond.GetIdx()], dummyLabels=[(1, 2)])
    labels: dict[int, int] = {}
    for number in range(mol.GetNumAtoms(), cut.GetNumAtoms()):
        dummy = cut.GetAtomWithIdx(number)
        labels[number] = dummy.GetIsotope()
        dummy.SetIsotope(0)
        dummy.SetAtomMapNum(1)
    atoms: list[tuple[int, ...]] = []
    parts = Chem.GetMolFrags(cut, asMols=True, sanitizeFrags=False, fragsMolAtomMapping=atoms)
    return {labels.get(of_part[-1]): part for of_part, part in zip(atoms, parts, strict=True)}


def _cuts(text: str, max_substituent: int) -> list[tuple[Chem.Mol, Chem.Mol]]:
    """Cut a molecule at each single bond outside rings, into a core and a smaller substituent."""
    mol = Chem.MolFromSmiles(text)
    cuts = []
    for bond in mol.GetBonds():
        if bond.IsInRing() or bond.GetBondType() != Chem.BondType.SINGLE:
            continue
        ends = _cut_at(mol, bond)
        if set(ends) != {1, 2}:
            continue  # a mixture, whose other molecules have no end
        core, substituent = sorted(ends.values(), key=Chem.Mol.GetNumAtoms, reverse=True)
        if substituent.GetNumAtoms() - 1 <= max_substituent:
            cuts.append((core, substituent))
    return cuts


def _end(part: Chem.Mol) -> tuple[str, bool, bool]:
    """Return the element of the atom at the cut, whether it is aromatic, and in a ring."""
    (atom,) = part.GetAtomWithIdx(part.GetNumAtoms() - 1).GetNeighbors()
    return atom.GetSymbol(), atom.GetIsAromatic(), atom.IsInRing()


def _halves(smiles: Sequence[str], min_fragment: int) -> dict[tuple[str, str], list[Chem.Mol]]:
    """Group halves by the BRICS environments of their own end and of the end they were cut from."""
    halves: dict[tuple[str, str], list[Chem.Mol]] = {}
    for text in smiles:
        mol = Chem.MolFromSmiles(text)
        for (i, j), (environment_i, environment_j) in BRICS.FindBRICSBonds(mol):
            bond = mol.GetBondBetweenAtoms(i, j)
            if bond.GetBondType() != Chem.BondType.SINGLE:
                continue
            # The dummy on the half of atom i takes the second label of its pair.
            ends = _cut_at(mol, bond)
            if set(ends) - {None} != {1, 2}:
                continue
            begin_is_i = bond.GetBeginAtomIdx() == i
            half_of_i, half_of_j = (ends[2], ends[1]) if begin_is_i else (ends[1], ends[2])
            if min(half_of_i.GetNumAtoms(), half_of_j.GetNumAtoms()) - 1 < min_fragment:
                continue
            halves.setdefault((environment_i, environment_j), []).append(half_of_i)
            halves.setdefault((environment_j, environment_i), []).append(half_of_j)
    return halves


def _join(first: Chem.Mol, second: Chem.Mol) -> str | None:
    """Return the canonical SMILES of two joined halves, or None if they make no molecule."""
    try:
        product = Chem.molzip(first, second)
        Chem.SanitizeMol(product)
        return _canonical(Chem.MolToSmiles(product))
    except (ValueError, RuntimeError):
        return None


def _canonical(smiles: str) -> str | None:
    mol = Chem.MolFromSmiles(smiles)
    return None if mol is None else Chem.MolToSmiles(mol)
