"""What attention heads look at, over a data set: distances and relations (Song 2024, section 4.2).

A row is one node of one graph as the query; its key is the token with the largest attention. Keys
that tie share the row, so that the statistics do not depend on the order of the nodes.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graphxai.capture import ExplainableModel, evaluating
from graphxai.inputs import Input, prepare
from graphxai.models.graphormer.encoding import GraphBatch, collate
from graphxai.models.graphormer.model import Graphormer
from graphxai.propagation import record

from .relations import RELATIONS, relations_of

FILE = "heads.json"  # in a checkpoint folder, beside the weights
FORMAT = "graphxai-heads"
MAX_BYTES = 1 << 24
POSITIONAL = 0.8  # xi_pos of Song 2024
RELATIONAL = 0.1  # xi_synt
ROUNDING = 1e-6  # shares are sums of floats; the file has six digits
TIE = 1e-5  # relative: attention this close to the largest, in single precision, is as large
GRAPHS_AT_A_TIME = 32

Shares = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """Where L layers of H heads have their largest attention.

    distances (L, H, C): share of the rows whose key is at shortest-path distance 0, 1, ..., C - 3,
    is an unreachable node, is the graph token. relations: K names; related (L, H, K): share of
    the rows whose key stands in the relation to the query; base_rates (K,): the share that a node
    drawn at random would have. rows: their number. data: what was measured on, in words. sha256:
    of the model's weights, or "".
    """

    distances: Shares
    relations: tuple[str, ...]
    related: Shares
    base_rates: Shares
    rows: int
    data: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        for name in ("distances", "related", "base_rates"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        object.__setattr__(self, "relations", tuple(self.relations))
        _check(self)

    @property
    def positional(self) -> NDArray[np.bool_]:
        """Heads (L, H) whose key is at one distance in more than 80 % of the rows (eq. 8)."""
        return positional_heads(self.distances)

    @property
    def relational(self) -> NDArray[np.bool_]:
        """Heads (L, H) whose key stands in one relation more often than chance + 0.1 (eq. 7)."""
        return relational_heads(self.related, self.base_rates)

    def mask(self) -> NDArray[np.int64]:
        """The head mask (L, H) of Eq. 6: positional + relational, a head of both kinds counts 2."""
        return self.positional.astype(np.int64) + self.relational

    def save(self, folder: str | Path) -> Path:
        """Write `heads.json` into a (checkpoint) folder."""
        path = Path(folder) / FILE
        content: dict[str, Any] = {"format": FORMAT} | vars(self)
        for name in ("distances", "related", "base_rates"):
            content[name] = content[name].round(6).tolist()
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, folder: str | Path) -> "HeadStatistics":
        """Read `heads.json` from a folder; ValueError names the file and what is wrong with it."""
        path = Path(folder)
        path = path / FILE if path.is_dir() else path
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES} bytes")
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(**_fields(content))
        except FileNotFoundError:
            raise ValueError(
                f"{path}: no such file; make it with head_statistics(model, inputs).save(folder)."
            ) from None
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}: cannot be read as head statistics: {error}.") from error


def positional_heads(distances: Shares) -> NDArray[np.bool_]:
    """Eq. 8 of shares (..., C) as in `HeadStatistics`; the last two columns do not count."""
    return np.any(distances[..., :-2] > POSITIONAL + ROUNDING, axis=-1)


def relational_heads(related: Shares, base_rates: Shares) -> NDArray[np.bool_]:
    """Eq. 7 of shares (..., K) against base rates that broadcast to them.

    A head that fits several relations counts once: those of a graph lie inside one another.
    """
    return np.any(related > base_rates + RELATIONAL + ROUNDING, axis=-1)


def head_statistics(model: Graphormer, inputs: Sequence[Any], *, data: str = "") -> HeadStatistics:
    """Measure where every head has its largest attention, over all nodes of all inputs.

    inputs: as `graphxai.explain` takes them; data: what they are, in words. For molecules all of
    `RELATIONS` are measured; where an input has no molecule, bonds alone, which are its edges.
    Raises ValueError for no inputs, or for one that cannot be used.
    """
    if len(inputs) == 0:
        raise ValueError("head statistics need at least one input.")
    prepared = [prepare(model.config, value) for value in inputs]
    prepared.sort(key=lambda item: int(item.data.num_nodes))
    relations = [_relations(item) for item in prepared]
    names = RELATIONS if all(found is not None for found in relations) else RELATIONS[:1]
    total: Counts | None = None
    with evaluating(model):
        for start in range(0, len(prepared), GRAPHS_AT_A_TIME):
            part = slice(start, start + GRAPHS_AT_A_TIME)
            batch = collate([item.data for item in prepared[part]]).to(_device(model))
            known = relations[part] if len(names) > 1 else None
            counts = count(model, batch, known).summed()
            total = counts if total is None else total + counts
    assert total is not None
    distances, related, base_rates = (shares[0] for shares in total.shares())
    sha256 = str(getattr(getattr(model, "origin", None), "sha256", ""))
    rows = int(total.rows[0])
    return HeadStatistics(distances, names, related, base_rates, rows, data, sha256)


@dataclass(frozen=True, eq=False)
class Counts:
    """Numbers of rows, graph by graph: distances (B, L, H, C), related (B, L, H, K), rows (B,).

    chance (B, K): what `related` would be on average for keys drawn at random among the nodes.
    """

    distances: Shares
    related: Shares
    chance: Shares
    rows: Shares

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def summed(self) -> "Counts":
        """Over the graphs; the first axis stays, of length one."""
        return Counts(*(value.sum(0, keepdims=True) for value in astuple(self)))

    def shares(self) -> tuple[Shares, Shares, Shares]:
        """`distances`, `related` and base rates as shares of the rows."""
        per_head = self.rows[:, None, None, None]
        return self.distances / per_head, self.related / per_head, self.chance / self.rows[:, None]

    def important(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Positional and relational heads (B, L, H) of each graph by itself."""
        distances, related, base_rates = self.shares()
        chance = base_rates[:, None, None]
        return positional_heads(distances), relational_heads(related, chance)


@torch.no_grad()
def count(
    model: ExplainableModel, batch: GraphBatch, relations: Sequence[Any] | None = None
) -> Counts:
    """Count each graph's rows. relations: (K, n, n) for each graph; None: bonds, as the edges."""
    if not isinstance(model, Graphormer):
        raise TypeError(
            f"heads are told apart by a Graphormer's distances, not by {type(model).__name__}."
        )
    with record(all_queries=True) as tape:
        model.encode(model.embed(batch), batch)
    distance = _distances(batch)
    both = batch.mask[:, :, None] & batch.mask[:, None, :]
    categories = model.config.max_distance + 2  # 0 to max_distance, then unreachable
    at = F.one_hot(distance.clamp(0, categories - 1), categories) * both[..., None]  # (B, N, N, C)
    if relations is None:
        pairs = (both & (distance == 1))[:, None]
    else:
        pairs = both.new_zeros(len(batch), len(relations[0]), *both.shape[1:])
        for b, found in enumerate(relations):
            n = found.shape[-1]
            pairs[b, :, :n, :n] = torch.from_numpy(found)
    at, pairs = at.double(), pairs.double()  # (B, K, N, N)
    distances, related = [], []
    for attention in tape.attention:
        token, nodes = _largest(attention, batch)
        by_distance = torch.einsum("bhij,bijc->bhc", nodes, at)
        distances.append(torch.cat([by_distance, token.sum(-1, keepdim=True)], dim=-1))
        related.append(torch.einsum("bhij,bkij->bhk", nodes, pairs))
    rows = batch.num_nodes.double()
    chance = pairs.sum((2, 3)) / rows[:, None]
    found = torch.stack(distances, 1), torch.stack(related, 1), chance, rows
    return Counts(*(value.cpu().numpy() for value in found))


def _largest(attention: Tensor, batch: GraphBatch) -> tuple[Tensor, Tensor]:
    """How far the graph token (B, H, N) and the nodes (B, H, N, N) are a node's largest key.

    One for the key, or equal parts for several that tie; zero for padding.
    """
    of_nodes = attention[:, :, 1:]  # (B, H, N, T)
    top = (of_nodes >= of_nodes.amax(-1, keepdim=True) * (1 - TIE)).double()
    top = top / top.sum(-1, keepdim=True) * batch.mask[:, None, :, None]
    return top[..., 0], top[..., 1:]


def _distances(batch: GraphBatch) -> Tensor:
    """Codes of shortest-path distances (B, N, N); of any value where there is padding."""
    b, n = batch.mask.shape
    first = batch.bag_offsets.clamp(max=len(batch.bag_codes) - 1).long()
    return batch.bag_codes[first].long().reshape(b, n, n)  # a bag begins with its distance


def _relations(item: Input) -> NDArray[np.bool_] | None:
    molecule = item.molecule
    if molecule is None and item.smiles is not None:
        from rdkit import Chem, rdBase

        with rdBase.BlockLogs():
            molecule = Chem.MolFromSmiles(item.smiles)
    return None if molecule is None else relations_of(molecule)


def _device(model: Any) -> torch.device:
    parameters = getattr(model, "parameters", tuple)
    return next((p.device for p in parameters()), torch.device("cpu"))


def _fields(content: Any) -> dict[str, Any]:
    """The dataclass's fields of a JSON object, of the right types."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it holds no JSON object with 'format' {FORMAT!r}")
    arrays = ("distances", "related", "base_rates")
    missing = [key for key in (*arrays, "relations", "rows") if key not in content]
    if missing:
        raise ValueError(f"missing key {missing[0]!r}")
    found: dict[str, Any] = {key: np.asarray(content[key]) for key in arrays}
    for key, value in found.items():
        if value.dtype.kind not in "fi":
            raise ValueError(f"{key!r} is no array of numbers")
    names, rows = content["relations"], content["rows"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("'relations' is no list of names")
    if not isinstance(rows, int) or isinstance(rows, bool):
        raise ValueError("'rows' is no whole number")
    texts = {key: content.get(key, "") for key in ("data", "sha256")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise ValueError(f"{key!r} is no text")
    return found | texts | {"relations": tuple(names), "rows": rows}


def _check(statistics: HeadStatistics) -> None:
    """Raise ValueError unless shapes fit together and shares are shares."""
    distances, related = statistics.distances, statistics.related
    count = len(statistics.relations)
    if distances.ndim != 3 or distances.shape[-1] < 3 or 0 in distances.shape:
        raise ValueError(f"'distances' has shape {distances.shape}, not (layers, heads, 3 or more)")
    if related.shape != (*distances.shape[:2], count) or statistics.base_rates.shape != (count,):
        raise ValueError("'related', 'base_rates' and 'relations' do not fit 'distances'")
    if statistics.rows < 1:
        raise ValueError(f"'rows' is {statistics.rows}; there must be one")
    for name in ("distances", "related", "base_rates"):
        values = getattr(statistics, name)
        if not ((values >= 0) & (values <= 1 + ROUNDING)).all():  # NaN is not either
            raise ValueError(f"{name!r} holds values outside of 0 to 1")
    if np.abs(distances.sum(-1) - 1).max() > 1e-3:
        raise ValueError("'distances' does not sum to one over the distances")
