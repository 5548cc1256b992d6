"""Make neighbours of a molecule, the most promising first.

A BRICS fragment is exchanged (Degen 2008), or a part as in measured pairs, or the SELFIES changes;
`transformations` has the rest.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import BRICS

from graphxai.chemistry import SOURCES
from graphxai.chemistry.matched_pairs import ShrunkenMean
from graphxai.chemistry.matching import matches_in_time, unstable_groups
from graphxai.chemistry.measurements import Measurements
from graphxai.chemistry.substituents import exchange_name
from graphxai.datasets.matched_pairs import (
    HYDROGEN,
    LARGEST_VARIABLE,
    environment_of,
    single_bond_cuts,
)
from graphxai.datasets.training_set import TrainingSet
from graphxai.runtime.extras import missing_extra
from graphxai.runtime.reading import packaged_rows

from .transformations import Change, NewMolecules, transformed

BATCH = 64  # molecules predicted together
EXPANDED = 4  # molecules whose neighbours are tried in the next round
QUICK, FROM = 8, 24  # neighbours of the first batch, and how many they are the best of
MUTATIONS = 400  # changes of SELFIES tried
MOST_MEASURED = 400  # exchanges of measured pairs that are tried on a molecule

Way: TypeAlias = tuple[tuple[str, str], ...]  # changes, each with the SMILES it led to


class SearchStart(NamedTuple):
    """A molecule whose neighbours are tried.

    Attributes:
        against: how much each atom speaks against the goal (N,).
        way: the earlier changes that led to it.
    """

    mol: Chem.Mol
    against: NDArray[np.float64]
    way: Way = ()


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Proposes neighbours of molecules, the most promising first.

    Attributes:
        sources: where changes come from, see `SOURCES`.
        guided: whether changes at atoms that speak against the goal come first.
        rng: decides the order among equals, or the whole order without guidance.
        seed: decides the changes of SELFIES.
        training: the training set whose fragments are exchanged, or None.
        measured: what was measured, by property.
        promise: how far measured means, by property, lead towards the goal.
    """

    sources: tuple[str, ...]
    guided: bool
    rng: random.Random
    seed: int
    training: TrainingSet | None
    measured: Mapping[str, Measurements] = field(default_factory=dict)
    promise: Callable[[Mapping[str, ShrunkenMean]], float] = lambda means: 0.0

    def __post_init__(self) -> None:
        if unknown := set(self.sources) - set(SOURCES):
            raise ValueError(f"unknown source {min(unknown)!r}; choose from {', '.join(SOURCES)}.")

    def neighbours(
        self, starts: Sequence[SearchStart], keep: Collection[int] | Chem.Mol, seen: set[str]
    ) -> list[tuple[Change, Way]]:
        """Return new neighbours of all starts with the way to each, the most promising first."""
        scored = []
        for start in starts:
            kept = keep
            if isinstance(keep, Chem.Mol):
                kept = set(chain.from_iterable(matches_in_time(start.mol, keep)[:1]))
            for change in self._changes(start.mol, kept):
                if change.smiles not in seen:
                    seen.add(change.smiles)
                    scored.append((_worth(start, change), change, start.way))
        return self._in_order(scored)

    def quick(
        self, start: SearchStart, keep: Collection[int], seen: set[str]
    ) -> list[tuple[Change, Way]]:
        """Return the best of the first few neighbours, to be predicted while others are made."""
        first = islice(self._changes(start.mol, keep), FROM)
        chosen = self._in_order([(_worth(start, c), c, ()) for c in first])[:QUICK]
        seen.update(change.smiles for change, _ in chosen)
        return chosen

    def _in_order(self, scored: Sequence[tuple[float, Change, Way]]) -> list[tuple[Change, Way]]:
        """Return changes in the order in which they are tried."""
        drawn = [(self.rng.random(), *row) for row in scored]
        drawn.sort(key=lambda row: (-row[1], row[0]) if self.guided else row[0])
        order = [(change, way) for _, _, change, way in drawn]
        order.sort(key=lambda pair: -max(0.0, self.promise(pair[0].expected)))
        return order

    def _changes(self, mol: Chem.Mol, keep: Collection[int]) -> Iterator[Change]:
        sources: dict[str, Callable[[], Iterator[Change]]] = {
            "transformations": lambda: transformed(mol, keep),
            "fragments": lambda: exchanged(mol, fragments_for(mol, self.training), keep),
            "selfies": lambda: mutated(mol, MUTATIONS, self.seed, keep),
            "measured": lambda: measured_changes(mol, self.measured, self.promise, keep),
        }
        return chain.from_iterable(sources[name]() for name in self.sources)


def _worth(start: SearchStart, change: Change) -> float:
    """Return how much of what speaks against the goal lies at the atoms of a change."""
    return float(start.against[list(change.atoms)].sum())


def kept_atoms(mol: Chem.Mol, keep: str | Collection[int]) -> frozenset[int]:
    """Return the numbers of the atoms to keep."""
    if not isinstance(keep, str):
        if wrong := [i for i in keep if not 0 <= i < mol.GetNumAtoms()]:
            raise ValueError(f"keep names atom {wrong[0]}; the molecule has {mol.GetNumAtoms()}.")
        return frozenset(keep)
    pattern = Chem.MolFromSmarts(keep)
    if pattern is None:
        raise ValueError(f"keep={keep!r} is not a SMARTS pattern.")
    matches = matches_in_time(mol, pattern)
    if not matches:
        raise ValueError(f"keep={keep!r} matches no atom of {Chem.MolToSmiles(mol)}.")
    return frozenset(chain.from_iterable(matches))


def kept_pattern(mol: Chem.Mol, keep: Collection[int]) -> Collection[int] | Chem.Mol:
    """Return the kept atoms as a pattern, which finds them again in a neighbour."""
    return Chem.MolFromSmarts(Chem.MolFragmentToSmarts(mol, list(keep))) if keep else ()


MOST = 24  # fragments of one kind that are tried at a bond, the most common first
NEAREST = 50  # training compounds whose fragments are tried
COMMON = "common_fragments.csv"  # kind of bond, SMILES, number of compounds
JOINT = 1  # isotope of the dummy atoms that are joined
ORIGIN = "graphxai_origin"

# For each kind of bond, the SMILES of fragments with [1*], the most common first.
FragmentsByBond = Mapping[str, Collection[str]]
_BY_ISOTOPE = Chem.MolzipParams()
_BY_ISOTOPE.label = Chem.MolzipLabel.Isotope


def exchanged(
    mol: Chem.Mol, fragments: FragmentsByBond, keep: Collection[int] = ()
) -> Iterator[Change]:
    """Yield the molecules in which a fragment at one BRICS bond is exchanged for one of its kind.

    Each molecule is yielded once.

    Args:
        fragments: what to put in place of its fragments.
        keep: as for `transformed`.
    """
    products = NewMolecules(mol, keep)
    with rdBase.BlockLogs():
        for cut in _cuts(mol):
            if products.keep & cut.part:
                continue
            old, core = cut.fragment(mol), _piece(mol, cut.part, cut.inner)
            for new in list(fragments.get(cut.kind, ()))[:MOST]:
                if new != old:
                    product = joined(core, new)
                    name = exchange_name(old, new)
                    yield from products.of(product, name, "BRICS exchange", ORIGIN)


def measured_changes(
    mol: Chem.Mol,
    measured: Mapping[str, Measurements],
    promise: Callable[[Mapping[str, ShrunkenMean]], float],
    keep: Collection[int] = (),
) -> Iterator[Change]:
    """Yield the molecules that an exchange of measured pairs makes, the most promising first.

    An exchange is made only where the same part leaves the same kind of atom, see
    `matched_pairs.environment_of`. Those that lead away from the goal are left out, and compounds
    that were measured.

    Args:
        measured: what was measured, by property.
        promise: how far measured means, by property, lead towards the goal.
        keep: as for `transformed`.
    """
    products = NewMolecules(mol, keep)
    sites: dict[tuple[str, str], list[Chem.Mol]] = defaultdict(list)
    for cut in single_bond_cuts(mol):
        if not products.keep.intersection(cut.part):
            around = environment_of(mol.GetAtomWithIdx(cut.kept), cut.cut)
            sites[cut.part_smiles(mol), around].append(_piece(mol, frozenset(cut.part), cut.cut))
    for atom in mol.GetAtoms():
        if atom.GetTotalNumHs():
            sites[HYDROGEN, environment_of(atom)].append(_opened(mol, atom.GetIdx()))
    offered = []
    for place, cores in sites.items():
        of = {name: table.exchanges.get(place, {}) for name, table in measured.items()}
        for exchange in dict.fromkeys(chain.from_iterable(of.values())):
            means = {name: rows[exchange] for name, rows in of.items() if exchange in rows}
            if promise(means) > 0:
                offered += [(promise(means), exchange, core, means) for core in cores]
    offered.sort(key=lambda row: (-row[0], str(row[1])))
    with rdBase.BlockLogs():
        for _, exchange, core, means in offered[:MOST_MEASURED]:
            with suppress(ValueError, RuntimeError):  # what RDKit cannot join is left out
                product = joined(core, exchange.new)
                name = exchange_name(exchange.old, exchange.new)
                if exchange.old == HYDROGEN and exchange.at[:1].islower():
                    name = f"aromatic {name}"
                for change in products.of(product, name, "measured pairs", ORIGIN):
                    if not any(change.smiles in table.values for table in measured.values()):
                        yield replace(change, expected=means)


def joined(core: Chem.Mol, part: str) -> Chem.Mol:
    """Return a core with a part, given as SMILES, at its dummy atom `JOINT`."""
    new = Chem.MolFromSmiles(part)
    for atom in new.GetAtoms():
        atom.SetIsotope(atom.GetIsotope() if atom.GetAtomicNum() else JOINT)
    product = Chem.molzip(core, new, _BY_ISOTOPE)
    if part == HYDROGEN:
        product = Chem.RemoveHs(product)
    return product


def _opened(mol: Chem.Mol, index: int) -> Chem.Mol:
    """Return the molecule with a dummy atom in place of a hydrogen of an atom."""
    piece = Chem.RWMol(mol)
    for atom in piece.GetAtoms():
        atom.SetIntProp(ORIGIN, atom.GetIdx())
    atom = piece.GetAtomWithIdx(index)
    atom.SetNumExplicitHs(max(0, atom.GetNumExplicitHs() - 1))
    dummy = Chem.Atom(0)
    dummy.SetIsotope(JOINT)
    piece.AddBond(index, piece.AddAtom(dummy), Chem.BondType.SINGLE)
    return piece.GetMol()


def fragments_for(mol: Chem.Mol, training: TrainingSet | None) -> FragmentsByBond:
    """Return fragments of the training compounds most similar to a molecule, then common ones."""
    near = () if training is None else training.most_similar(mol, NEAREST)
    counts = Counter(chain.from_iterable(map(_pieces_of, near)))  # molecules with each fragment
    similar = _by_kind(sorted(counts, key=lambda piece: (-counts[piece], piece)))
    common = _common()
    return {
        kind: tuple(dict.fromkeys((*similar.get(kind, ())[: MOST // 2], *common.get(kind, ()))))
        for kind in {*similar, *common}
    }


@lru_cache(maxsize=1 << 14)  # searches from similar molecules ask for the same compounds
def _pieces_of(smiles: str) -> frozenset[tuple[str, str]]:
    """Return the fragments of a molecule, each with the kind of its bond."""
    mol = Chem.MolFromSmiles(smiles)
    with rdBase.BlockLogs():
        return frozenset((cut.kind, cut.fragment(mol)) for cut in _cuts(mol))


def _by_kind(pieces: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return fragments by the kind of their bond, in the order given."""
    by_kind = defaultdict(list)
    for kind, smiles in pieces:
        by_kind[kind].append(smiles)
    return dict(by_kind)


def mutated(mol: Chem.Mol, count: int, seed: int, keep: Collection[int] = ()) -> Iterator[Change]:
    """Yield the molecules whose SELFIES differ in one symbol (STONED, Nigam 2021), each once.

    Args:
        keep: numbers of atoms whose substructure every molecule must still contain.

    Raises:
        ImportError: without the package selfies.
        ValueError: if SELFIES cannot write the molecule.
    """
    try:
        import selfies
    except ImportError:
        raise missing_extra("changes of SELFIES need", "selfies", "counterfactuals") from None
    try:
        symbols = list(selfies.split_selfies(selfies.encoder(Chem.MolToSmiles(mol))))
    except selfies.EncoderError as error:
        raise ValueError(f"SELFIES cannot write {Chem.MolToSmiles(mol)}: {error}") from None
    alphabet = sorted(selfies.get_semantic_robust_alphabet())
    kept = Chem.MolFromSmarts(Chem.MolFragmentToSmarts(mol, list(keep))) if keep else None
    rng, seen, unstable = random.Random(seed), {Chem.MolToSmiles(mol)}, unstable_groups(mol)
    for _ in range(count):
        place, action = rng.randrange(len(symbols)), rng.choice(("replace", "insert", "delete"))
        inserted = [] if action == "delete" else [rng.choice(alphabet)]
        parts = symbols[:place] + inserted + symbols[place + (action != "insert") :]
        with rdBase.BlockLogs():
            new = Chem.MolFromSmiles(selfies.decoder("".join(parts)))
        smiles = "" if new is None else Chem.MolToSmiles(new)
        if (
            smiles
            and not unstable_groups(new) - unstable
            and smiles not in seen
            and (kept is None or new.HasSubstructMatch(kept))
        ):
            seen.add(smiles)
            yield Change(smiles, f"{action} one symbol", "SELFIES", frozenset())


class _BricsCut(NamedTuple):
    """A BRICS bond between the atoms `inner` and `outer`.

    `part` holds the atoms on the smaller side of the bond, and `inner` is one of them.
    """

    kind: str
    inner: int
    outer: int
    part: frozenset[int]

    def fragment(self, mol: Chem.Mol) -> str:
        """Return the smaller side as SMILES, with [1*] in place of the other side."""
        rest = frozenset(range(mol.GetNumAtoms())) - self.part
        return str(Chem.MolToSmiles(_piece(mol, rest, self.outer)))


def _cuts(mol: Chem.Mol) -> Iterator[_BricsCut]:
    """Yield every BRICS bond that has a side small enough to be exchanged."""
    distance = Chem.GetDistanceMatrix(mol)
    for (begin, end), (begin_kind, end_kind) in BRICS.FindBRICSBonds(mol):
        for kind, inner, outer in ((begin_kind, begin, end), (end_kind, end, begin)):
            # no ring runs through the bond, so each atom is nearer to one of its ends
            part = frozenset(np.flatnonzero(distance[inner] < distance[outer]).tolist())
            if len(part) <= min(LARGEST_VARIABLE, mol.GetNumAtoms() // 2):
                yield _BricsCut(kind, inner, outer, part)


def _piece(mol: Chem.Mol, without: frozenset[int], joint: int) -> Chem.Mol:
    """Return the molecule without these atoms, but with a dummy atom in place of `joint`."""
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
def _common() -> dict[str, list[str]]:
    """Read common fragments by kind of bond. The file's first line says where they are from."""
    rows = packaged_rows("graphxai.chemistry", COMMON)
    return _by_kind((row["kind"], row["smiles"]) for row in rows)
