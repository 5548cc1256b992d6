"""Measure what attention heads look at in a data set: distances and relations.

This follows Song 2024, section 4.2. Rows, keys and distances are defined in `layers`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.batch import GraphBatch, OneGraphAtATime
from graphxai.contract.batching import batches_for, collated
from graphxai.contract.checkpoint_files import read_fields
from graphxai.contract.inputs import Input, prepare_all
from graphxai.contract.model import ExplainableModel, evaluating
from graphxai.runtime.writing import write_whole

from .layers import ROUNDING, HeadCounts, Shares, count, positional_heads, relational_heads

if TYPE_CHECKING:
    import pandas as pd
    from rdkit.Chem import Mol

FILE = "heads.json"  # in a checkpoint folder, beside the weights
FORMAT = "graphxai-heads"
SHARES = ("distances", "related", "base_rates")  # the fields that are arrays
KINDS = dict.fromkeys((*SHARES, "relations"), list) | {"rows": int}  # in the file

# The pairs (query, key) of every input, by the name of the relation.
GivenRelations = Mapping[str, Sequence[Iterable[tuple[int, int]]]]


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """Where L layers of H heads have their largest attention.

    A layer with fewer than H heads is padded with heads that have no keys.

    Args:
        distances: the share of the rows (L, H, C) that have their key at shortest-path distance 0,
            1, ..., C - 3, then at an unreachable node, then at the graph token. Where attention
            follows edges, a node without edges has no key, and its row counts as unreachable.
        relations: the names of K relations.
        related: the share of the rows (L, H, K) that have a key in each relation to the query.
        base_rates: the largest such share (K,) of a head that always looks at one distance. It is
            max(lambda_k) in Song 2024.
        rows: the number of rows.
        data: which data was measured, as text.
        sha256: the hash of the model's weights, or "".
    """

    distances: Shares
    relations: tuple[str, ...]
    related: Shares
    base_rates: Shares
    rows: int
    data: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        for name in SHARES:
            values = np.asarray(getattr(self, name))
            if values.dtype.kind not in "fi":
                raise ValueError(f"{name!r} is not an array of numbers")
            if not ((values >= 0) & (values <= 1 + ROUNDING)).all():  # catches NaN too
                raise ValueError(f"{name!r} has values outside 0 to 1")
            object.__setattr__(self, name, values.astype(np.float64))
        object.__setattr__(self, "relations", tuple(self.relations))
        if not all(isinstance(text, str) for text in (*self.relations, self.data, self.sha256)):
            raise ValueError("'relations', 'data' and 'sha256' are not all text")
        shape, count = self.distances.shape, len(self.relations)
        if len(shape) != 3 or shape[-1] < 3 or 0 in shape:
            raise ValueError(f"'distances' has shape {shape}, not (layers, heads, 3 or more)")
        if self.related.shape != (*shape[:2], count) or self.base_rates.shape != (count,):
            raise ValueError("'related', 'base_rates' and 'relations' do not match 'distances'")
        if self.rows < 1:
            raise ValueError(f"'rows' is {self.rows}; it must be at least 1")
        if np.abs(self.distances.sum(-1) - 1).max() > 1e-3:
            raise ValueError("'distances' does not sum to one over the distances")

    @property
    def positional(self) -> NDArray[np.bool_]:
        """The heads (L, H) that have their key at one distance in over 80 % of the rows (eq. 8)."""
        return positional_heads(self.distances)

    @property
    def relational(self) -> NDArray[np.bool_]:
        """The heads (L, H) that find a relation more often than base rate + 0.1 (eq. 7)."""
        return relational_heads(self.related, self.base_rates)

    def mask(self) -> NDArray[np.int64]:
        """Return the head mask (L, H) of Eq. 6. Heads that are both kinds have 2."""
        return self.positional.astype(np.int64) + self.relational

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row for each head, which says what its largest attention is at.

        Its columns are layer and head (from 0), `key` (the distance with the largest share of the
        rows, "unreachable" or "graph token"), `share` of that key, `relation` (the one furthest
        above its base rate), `excess` over that base rate, `positional` and `relational`.
        """
        import pandas as pd

        layers, heads, keys = self.distances.shape
        names = [*map(str, range(keys - 2)), "unreachable", "graph token"]
        layer, head = np.indices((layers, heads)).reshape(2, -1)
        above = (self.related - self.base_rates).reshape(layers * heads, -1)
        columns = {
            "layer": layer,
            "head": head,
            "key": [names[k] for k in self.distances.argmax(-1).flat],
            "share": self.distances.max(-1).ravel(),
            "relation": [self.relations[k] for k in above.argmax(-1)],
            "excess": above.max(-1),
            "positional": self.positional.ravel(),
            "relational": self.relational.ravel(),
        }
        return pd.DataFrame(columns)

    def save(self, folder: str | Path) -> Path:
        """Write `heads.json` into a folder, such as that of a checkpoint."""
        path = Path(folder) / FILE
        content: dict[str, Any] = {"format": FORMAT} | vars(self)
        for name in SHARES:
            content[name] = content[name].round(6).tolist()
        return write_whole(path, json.dumps(content) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> "HeadStatistics":
        """Read `heads.json` from a folder.

        Raises:
            ValueError: the file is missing or wrong. The message says what is wrong with it.
        """
        path = Path(folder)
        path = path / FILE if path.is_dir() else path
        try:
            content = {"data": "", "sha256": ""} | read_fields(path, FORMAT, KINDS)
            return cls(**{key: content[key] for key in (*KINDS, "data", "sha256")})
        except FileNotFoundError:
            raise ValueError(
                f"{path}: no such file; create it with head_statistics(model, inputs).save(folder)."
            ) from None
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}: cannot be read as head statistics: {error}.") from error


def head_statistics(
    model: ExplainableModel,
    inputs: Sequence[Any],
    *,
    data: str = "",
    relations: GivenRelations | None = None,
) -> HeadStatistics:
    """Measure where every head has its largest attention, over all nodes of all inputs.

    For molecules all of `RELATIONS` are measured. If any input has no molecule, the only relation
    is an edge, or being neighbours in a sequence of tokens.

    Args:
        model: a Graphormer, or any model after `wrap`.
        inputs: as for `graphxai.explain`.
        data: what the inputs are, as text.
        relations: relations to measure instead, by name, such as the syntactic dependencies of
            sentences in Song 2024. Each has the pairs `(query, key)` of every input, in the order
            of the inputs. Nodes, or tokens, are counted from 0 and without a class token. A
            relation that holds both ways has both pairs.

    Raises:
        ValueError: there are no inputs, an input cannot be used, the model has no attention, or a
            relation does not fit the inputs.
    """
    if len(inputs) == 0:
        raise ValueError("head statistics need at least one input.")
    prepared = prepare_all(model, inputs)
    names: tuple[str, ...] = RELATIONS
    if relations is None:
        pairs_by_input = [_relations(item) for item in prepared]
        if any(pairs is None for pairs in pairs_by_input):
            pairs_by_input, names = [None] * len(prepared), RELATIONS[:1]
    else:
        pairs_by_input, names = _given_relations(relations, prepared), tuple(relations)
    counts = []
    with evaluating(model):
        for part in batches_for(model, list(enumerate(prepared))):
            batch = collated(model, part)
            pairs = [pairs_by_input[k] for k, _ in part]
            counts.append(_counted(model, batch, None if pairs[0] is None else pairs))
    total = reduce(add, counts)
    distances, related, base_rates = (shares[0] for shares in total.shares())
    if not isinstance(batch, GraphBatch):
        # without the distances beyond those where any head has a key
        used = np.flatnonzero(np.any(distances[..., :-2], axis=(0, 1)))
        last = int(used[-1]) if len(used) else 0
        distances = np.concatenate([distances[..., : last + 1], distances[..., -2:]], axis=-1)
    sha256 = str(getattr(getattr(model, "origin", None), "sha256", ""))
    rows = int(total.rows[0])
    return HeadStatistics(distances, names, related, base_rates, rows, data, sha256)


def _counted(model: Any, batch: Any, relations: Sequence[Any] | None) -> HeadCounts:
    """Count where the rows of a batch have their keys, summed over its inputs."""
    try:
        return count(model, batch, relations).summed()
    except OneGraphAtATime as error:
        of_one = [None] * len(batch) if relations is None else [[each] for each in relations]
        pairs = zip(error.apart(batch), of_one, strict=True)
        alone = [count(model, *pair).summed() for pair in pairs]
        return reduce(add, alone)


def _relations(item: Input) -> NDArray[np.bool_] | None:
    molecule = item.molecule
    if molecule is None and item.smiles is not None:
        from graphxai.datasets.canonical_form import quietly_read

        molecule = quietly_read(item.smiles)
    return None if molecule is None else relations_of(molecule)


def _given_relations(
    relations: GivenRelations, prepared: Sequence[Input]
) -> list[NDArray[np.bool_] | None]:
    """Return which pairs of nodes have each relation (K, N, N), for every input."""
    if not relations:
        raise ValueError("relations= names no relation.")
    by_input: list[NDArray[np.bool_] | None] = []
    for name, pairs in relations.items():
        if len(pairs) != len(prepared):
            raise ValueError(
                f"relation {name!r} has pairs for {len(pairs)} inputs, but there are"
                f" {len(prepared)}; give an empty list for an input without any."
            )
    for k, item in enumerate(prepared):
        related = np.zeros((len(relations), item.num_nodes, item.num_nodes), dtype=bool)
        for matrix, (name, pairs) in zip(related, relations.items(), strict=True):
            for query, key in pairs[k]:
                if not (0 <= query < item.num_nodes and 0 <= key < item.num_nodes):
                    raise ValueError(
                        f"relation {name!r} of input {k} names the pair ({query}, {key}), but this"
                        f" input has nodes 0 to {item.num_nodes - 1}."
                    )
                matrix[query, key] = True
        by_input.append(related)
    return by_input


# -- relations between atoms, the counterpart of syntactic relations -------------------------------


RELATIONS = (
    *("bonded", "same ring", "same functional group", "conjugated"),
    # Distance 1 alone makes a pair bonded. No single distance makes it one of these.
    *("bonded, one a hetero atom", "same ring, not bonded", "conjugated, not bonded"),
    *("same fragment", "same fragment, not bonded"),
)

CARBON_OR_H = (1, 6)

# The atoms that a match covers are related. A larger group may contain smaller ones.
RELATING_GROUPS: dict[str, str] = {
    "carboxylic acid or carboxylate": "[CX3](=O)[OX2H1,OX1-]",
    "ester": "[CX3](=O)[OX2H0][#6]",
    "amide": "[#6X3](=[OX1])[#7X3]",
    "urea": "[#7X3][#6X3](=[OX1])[#7X3]",
    "carbamate": "[NX3][CX3](=O)[OX2H0]",
    "acyl halide": "[CX3](=O)[F,Cl,Br,I]",
    "aldehyde or ketone": "[#6,#1][CX3](=O)[#6,#1]",
    "amidine": "[NX3][CX3]=[NX2]",
    "guanidine": "[NX3][CX3](=[NX2])[NX3]",
    "imine": "[CX3]=[NX2]",
    "nitrile": "[CX2]#[NX1]",
    "nitro": "[NX3](=O)=O",
    "nitro, charged": "[NX3+](=O)[O-]",
    "azide": "[N]=[N+]=[N-]",
    "sulfone or sulfonamide": "[SX4](=O)(=O)([#6])[#6,#7]",
    "sulfoxide": "[SX3](=O)([#6])[#6]",
    "phosphate or phosphonate": "[PX4](=O)([#6,#8])([#6,#8])[#6,#8]",
    "alcohol or phenol": "[#6][OX2H]",
    "ether": "[#6;!$(C=O)][OX2H0][#6;!$(C=O)]",
    "amine": "[#6;!$(C=[O,N,S])][NX3;!$(N-[!#6;!#1]);!$(N-C=[O,N,S])]",
    "thiol": "[#6][SX2H]",
    "thioether": "[#6][SX2H0][#6]",
    "trifluoromethyl": "[CX4](F)(F)F",
    "halide": "[#6][F,Cl,Br,I]",
    "alkene": "[CX3]=[CX3]",
    "alkyne": "[CX2]#[CX2]",
}


def relations_of(molecule: "Mol") -> NDArray[np.bool_]:
    """Return which pairs of atoms have each of the nine `RELATIONS` (9, N, N).

    Atoms are bonded, in the same ring, covered by the same match of a pattern in
    `RELATING_GROUPS`, or in the same connected system of bonds that RDKit calls conjugated. Bonded
    atoms may include one that is neither carbon nor hydrogen. A fragment is what remains connected
    without the bonds that BRICS cuts (Degen 2008). Relations are symmetric, and no atom is related
    to itself.
    """
    from rdkit.Chem import BRICS

    n = molecule.GetNumAtoms()
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    groups = [
        match
        for pattern in _patterns()
        for match in molecule.GetSubstructMatches(pattern, maxMatches=10_000)
    ]
    rings = molecule.GetRingInfo().AtomRings()
    conjugated = [
        ends for ends, b in zip(bonds, molecule.GetBonds(), strict=True) if b.GetIsConjugated()
    ]
    cut = {frozenset(ends) for ends, _ in BRICS.FindBRICSBonds(molecule)}
    whole = [ends for ends in bonds if frozenset(ends) not in cut]
    hetero = [
        atom.GetIdx() for atom in molecule.GetAtoms() if atom.GetAtomicNum() not in CARBON_OR_H
    ]
    members = (bonds, rings, groups, _connected(conjugated, n), _connected(whole, n))
    related = np.zeros((len(members), n, n), dtype=bool)
    for relation, sets in zip(related, members, strict=True):
        for atoms in sets:
            relation[np.ix_(atoms, atoms)] = True
        np.fill_diagonal(relation, False)
    bonded, ring, group, system, fragment = related
    with_hetero = np.zeros((n, n), dtype=bool)
    with_hetero[hetero] = with_hetero[:, hetero] = True
    between = (bonded & with_hetero, ring & ~bonded, system & ~bonded, fragment)
    return np.stack([bonded, ring, group, system, *between, fragment & ~bonded])


def _connected(bonds: Sequence[tuple[int, int]], n: int) -> list[list[int]]:
    """List the atoms of each part that these bonds connect. Atoms without a bond are in none."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # `connected_components` takes only 32-bit positions, and the first versions of SciPy with this
    # class do not convert them.
    start, end = np.array(bonds, dtype=np.int32).reshape(-1, 2).T
    adjacency = coo_array((np.ones(len(bonds)), (start, end)), shape=(n, n))
    _, part = connected_components(adjacency, directed=False)
    return [np.flatnonzero(part == p).tolist() for p in np.unique(part[start])]


@cache
def _patterns() -> tuple[Any, ...]:
    from rdkit import Chem

    return tuple(Chem.MolFromSmarts(smarts) for smarts in RELATING_GROUPS.values())
