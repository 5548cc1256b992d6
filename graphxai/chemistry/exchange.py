"""Molecules made by exchanging a BRICS fragment (Degen 2008), or by a change of their SELFIES."""

import csv
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import NamedTuple

from rdkit import Chem, rdBase
from rdkit.Chem import BRICS

from graphxai.datasets.training_set import TrainingSet

from .substituents import exchange_name
from .transformations import Change, Changes

LARGEST = 13  # heavy atoms of an exchanged fragment (Hu 2012)
MOST = 24  # fragments of one kind that are tried at a bond, the most common first
NEAREST = 50  # training compounds whose fragments are tried
COMMON = "common_fragments.csv"  # kind of bond, SMILES, number of compounds
JOINT = 1  # isotope of the dummy atoms that are joined
ORIGIN = "graphxai_origin"

Fragments = Mapping[str, Collection[str]]  # by kind of bond: SMILES with [1*], most common first
_Pieces = frozenset[tuple[str, str]]  # kinds of bond and fragments


def exchanged(mol: Chem.Mol, fragments: Fragments, keep: Collection[int] = ()) -> Iterator[Change]:
    """Molecules with a fragment at one BRICS bond exchanged for one of its kind, each once.

    keep: as for `transformed`.
    """
    changes = Changes(mol, keep)
    with rdBase.BlockLogs():
        for cut in _cuts(mol):
            if changes.keep & cut.part:
                continue
            old, core = cut.fragment(mol), _piece(mol, cut.part, cut.inner)
            for new in list(fragments.get(cut.kind, ()))[:MOST]:
                if new != old:
                    product = Chem.molzip(core, Chem.MolFromSmiles(new), _by_isotope())
                    name = exchange_name(old, new)
                    yield from changes.of(product, name, "BRICS exchange", ORIGIN)


def fragments_of(molecules: Iterable[Chem.Mol]) -> dict[str, dict[str, int]]:
    """The fragments at BRICS bonds by kind of bond, with the number of molecules that have them."""
    return _counted(map(_pieces, molecules))


def fragments_for(mol: Chem.Mol, training: TrainingSet | None) -> Fragments:
    """Fragments of the training compounds most similar to a molecule, then common ones."""
    near = () if training is None else training.most_similar(mol, NEAREST)
    own = _counted(map(_pieces_of, near))
    common = _common()
    return {
        kind: tuple(dict.fromkeys((*list(own.get(kind, ()))[: MOST // 2], *common.get(kind, ()))))
        for kind in {*own, *common}
    }


def _pieces(mol: Chem.Mol) -> _Pieces:
    with rdBase.BlockLogs():
        return frozenset((cut.kind, cut.fragment(mol)) for cut in _cuts(mol))


@lru_cache(maxsize=1 << 14)  # searches from similar molecules ask for the same compounds
def _pieces_of(smiles: str) -> _Pieces:
    return _pieces(Chem.MolFromSmiles(smiles))


def _counted(found: Iterable[_Pieces]) -> dict[str, dict[str, int]]:
    """How many have each fragment, by kind of bond, the most common first."""
    counts: dict[str, dict[str, int]] = {}
    for pieces in found:
        for kind, smiles in pieces:
            of_kind = counts.setdefault(kind, {})
            of_kind[smiles] = of_kind.get(smiles, 0) + 1
    return {
        kind: dict(sorted(of_kind.items(), key=lambda pair: (-pair[1], pair[0])))
        for kind, of_kind in sorted(counts.items())
    }


def mutated(mol: Chem.Mol, count: int, seed: int, keep: Collection[int] = ()) -> Iterator[Change]:
    """Molecules whose SELFIES differ in one symbol (STONED, Nigam 2021), each once.

    count: how many changes are tried. keep: the substructure of these atoms is found in every
    molecule. Needs the package selfies. Raises ValueError if it cannot write the molecule.
    """
    try:
        import selfies
    except ImportError:
        raise ImportError(
            "changes of SELFIES need the package selfies: pip install 'graphxai[counterfactuals]'."
        ) from None
    try:
        symbols = list(selfies.split_selfies(selfies.encoder(Chem.MolToSmiles(mol))))
    except selfies.EncoderError as error:
        raise ValueError(f"SELFIES cannot write {Chem.MolToSmiles(mol)}: {error}") from None
    alphabet = sorted(selfies.get_semantic_robust_alphabet())
    kept = Chem.MolFromSmarts(Chem.MolFragmentToSmarts(mol, list(keep))) if keep else None
    rng, seen = random.Random(seed), {Chem.MolToSmiles(mol)}
    for _ in range(count):
        place, action = rng.randrange(len(symbols)), rng.choice(("replace", "insert", "delete"))
        put = [] if action == "delete" else [rng.choice(alphabet)]
        parts = symbols[:place] + put + symbols[place + (action != "insert") :]
        with rdBase.BlockLogs():
            new = Chem.MolFromSmiles(selfies.decoder("".join(parts)))
        smiles = "" if new is None else Chem.MolToSmiles(new)
        if smiles and smiles not in seen and (kept is None or new.HasSubstructMatch(kept)):
            seen.add(smiles)
            yield Change(smiles, f"{action} one symbol", "SELFIES", frozenset())


class _Cut(NamedTuple):
    """A BRICS bond inner-outer; `part`, the atoms on the smaller side, of which `inner` is one."""

    kind: str
    inner: int
    outer: int
    part: frozenset[int]

    def fragment(self, mol: Chem.Mol) -> str:
        """The smaller side as SMILES, with [1*] in place of the other."""
        rest = frozenset(range(mol.GetNumAtoms())) - self.part
        return str(Chem.MolToSmiles(_piece(mol, rest, self.outer)))


def _cuts(mol: Chem.Mol) -> Iterator[_Cut]:
    """Every BRICS bond with a side that is small enough to be exchanged."""
    for (begin, end), (one, other) in BRICS.FindBRICSBonds(mol):
        for kind, inner, outer in ((one, begin, end), (other, end, begin)):
            part = _side(mol, inner, outer)
            if len(part) <= min(LARGEST, mol.GetNumAtoms() // 2):
                yield _Cut(kind, inner, outer, part)


def _side(mol: Chem.Mol, first: int, behind: int) -> frozenset[int]:
    """The atoms still connected to `first` once the bond to `behind` is cut."""
    found, todo = {first, behind}, [first]  # no ring runs through the bond
    while todo:
        near = {atom.GetIdx() for atom in mol.GetAtomWithIdx(todo.pop()).GetNeighbors()} - found
        found |= near
        todo += near
    return frozenset(found - {behind})


def _piece(mol: Chem.Mol, without: frozenset[int], joint: int) -> Chem.Mol:
    """The molecule without these atoms, except that `joint` becomes a dummy atom."""
    piece = Chem.RWMol(mol)
    for atom in piece.GetAtoms():
        if atom.GetIdx() not in without:
            atom.SetIntProp(ORIGIN, atom.GetIdx())
    dummy = Chem.Atom(0)
    dummy.SetIsotope(JOINT)
    piece.ReplaceAtom(joint, dummy)
    piece.BeginBatchEdit()
    for index in without - {joint}:
        piece.RemoveAtom(index)
    piece.CommitBatchEdit()
    return piece.GetMol()


@cache
def _by_isotope() -> Chem.MolzipParams:
    params = Chem.MolzipParams()
    params.label = Chem.MolzipLabel.Isotope
    return params


@cache
def _common() -> dict[str, tuple[str, ...]]:
    """Common fragments, counted in the structures of public tables; see the file's first line."""
    with resources.files(__package__).joinpath(COMMON).open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        found: dict[str, list[str]] = {}
        for row in rows:
            found.setdefault(row["kind"], []).append(row["smiles"])
    return {kind: tuple(smiles) for kind, smiles in found.items()}
