"""Find the axes of an attention matrix: graphs, heads, queries and keys.

The shape alone is ambiguous: heads may come before graphs, and an (N, N) matrix may be attention
between latents of which there happen to be N. Three facts decide. The keys are on the axis of the
softmax. Padded keys have no weight for real queries. And an axis of nodes is as long as the longest
graph in every batch. To see that, one small pass per model runs on a graph without one and without
two of its nodes (for a small graph, also on several copies joined into one), which changes the
lengths of all node axes. For rows of tokens a pass on one more input shows their axis.
"""

import warnings
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from graphxai.rules.conservative import record

from .copying import copied
from .layout import Layout
from .reading import Reading

if TYPE_CHECKING:
    from torch_geometric.data import Data

NUMBER_OF_HEADS = ("heads", "num_heads", "n_heads", "nhead", "n_head", "num_attention_heads")
FEW = 6  # nodes; smaller graphs are also probed as several copies


class Place(NamedTuple):
    """A softmax of a pass: its module's path, its number within the module, its number of axes."""

    path: str
    number: int
    axes: int


class OneGraphAtATime(ValueError):
    """Attention of a batch cannot be read because the model attends in one graph after another.

    batches: the graphs of the batch, each alone.
    """

    def __init__(self, model: Any, batch: Any) -> None:
        super().__init__(
            f"{type(model.module).__name__} attends in one graph after the other: let methods that"
            " read attention have one graph at a time."
        )
        self.batches = [_alone(model, batch, row) for row in range(len(batch))]


class Readings:
    """How to read the attention of one model, as far as passes have shown; kept with the model."""

    def __init__(self) -> None:
        self.form: tuple[Any, ...] = ()  # of the model when it was probed
        self._forget()

    def _forget(self) -> None:
        self.probed = False  # whether the small pass was made
        self.one_by_one = False  # whether the model attends in one graph after the other
        self.guessed = False  # whether the last reading is one of several
        self._known: dict[Place, frozenset[Reading]] = {}
        self._heads: dict[tuple[Place, Reading], int] = {}  # the same for all numbers of nodes
        self._lengths: dict[str, list[int]] = {}  # of square attention, by module
        self._held: set[tuple[Place, str]] = set()

    def __deepcopy__(self, _: Any) -> "Readings":
        return self

    def choose(self, place: Place, weights: Tensor, key: int, layout: Layout) -> Reading | None:
        """The reading of weights with keys on the axis `key`; None: not between nodes."""
        length = weights.shape[key]
        if weights.shape.count(length) > 1:
            self._lengths.setdefault(place.path, []).append(length)
        found = fitting(weights.shape, key, layout)
        if (known := self._known.get(place)) is not None:
            found = [reading for reading in found if reading in known]
        heads = {r: r.heads(weights.shape, len(layout.mask)) for r in found}
        found = [r for r in found if self._heads.setdefault((place, r), heads[r]) == heads[r]]
        if len(found) > 1:
            found = [r for r in found if leaves_padding_out(weights, r, layout)] or found
        self._known[place] = frozenset(found)
        several = len(found) > 1 and len(layout.mask) > 1
        self.guessed = several and weights.dim() == 3 and any(r.heads_first for r in found)
        return found[0] if found else None

    def always(self, place: Place, what: str, here: bool) -> bool:
        """Whether something holds of a softmax: here, or in an earlier pass."""
        if here:
            self._held.add((place, what))
        return (place, what) in self._held

    def probe(self, model: Any, batch: Any) -> None:
        """Run the model on graphs of two other sizes, without rules or recording.

        Rows of tokens may have a fixed length: there is one more of them instead.
        """
        form = _form(model.module)
        if form != self.form:  # a part was replaced
            self._forget()
            self.form = form
        if self.probed:
            return
        if batch.graphs is None:
            if len(batch) > 1:
                self.probed = True
                if (apart := _copied(model)) is not None:
                    Context().run(_attend, apart, lambda: _one_more(batch))
            return
        largest = int(batch.num_nodes.argmax())
        size = int(batch.num_nodes[largest])
        graph, apart = batch.examples()[largest], _copied(model)
        self.probed = size > 0
        if not self.probed or apart is None:
            return
        for sizes, others in _of_other_sizes(model, graph, size):
            self._probe_sizes(apart, sizes, others)

    def _probe_sizes(self, apart: Any, sizes: tuple[int, int], make: Callable[[], Any]) -> None:
        Context().run(_attend, apart, lambda: apart.collate(make()))
        if not self.one_by_one:
            self.one_by_one = any(
                lengths.count(sizes[0]) == lengths.count(sizes[1]) > 0
                for lengths in self._lengths.values()
            )
            if not self.one_by_one:
                return
            self._known.clear()
        Context().run(_attend, apart, lambda: apart.collate(make()[:1]))


def _form(module: nn.Module) -> tuple[Any, ...]:
    """What a module is made of; the same for its copies."""
    parts = list(module.modules())
    heads = (vars(part).get(name) for part in parts for name in NUMBER_OF_HEADS)
    weights = (p for part in parts for p in part._parameters.values() if p is not None)
    return *map(type, parts), *heads, *(p.shape for p in weights)


def remarks(name: str, left_out: set[str], guessed: set[str]) -> list[str]:
    """Warnings about attention that is not between nodes or has uncertain axes, by module."""
    found = []
    if left_out:
        found.append(
            f"{name} weights values in a way that is not, or may not be, attention between the"
            " nodes of the graphs (it involves latents, clusters, experts or an extra token, its"
            " axes have an unknown layout, it has no softmax, or several softmaxes are mixed before"
            " they meet the values); methods that read attention leave it out:"
            f" {'; '.join(sorted(left_out))}."
        )
    if guessed:
        found.append(
            f"{name} has graphs and heads on one axis of attention in unknown order; methods that"
            " read attention assumed that the heads of a graph are adjacent:"
            f" {'; '.join(sorted(guessed))}. To be sure, explain one input at a time."
        )
    return found


def fitting(shape: Sequence[int], key: int, layout: Layout) -> list[Reading]:
    """Readings that fit a shape, the most common first: graphs have an axis, then heads."""
    size, length = len(layout.mask), shape[key]
    near = sorted((a for a in range(len(shape)) if a != key), key=lambda a: (abs(a - key), -a))
    found: list[tuple[bool, Reading]] = []
    for query in near:
        one = layout.graph_token and shape[query] == 1  # a last layer with one token read
        if not (one or shape[query] == length):
            continue
        for graphs in sorted(set(near) - {query}):
            if layout.fits(length) and shape[graphs] and shape[graphs] % size == 0:
                exact = shape[graphs] == size
                found.append((exact, Reading(query, key, graphs)))
                if not exact:
                    found.append((exact, Reading(query, key, graphs, heads_first=True)))
        if length == len(layout.graph) and not layout.graph_token:
            found.append((False, Reading(query, key, None)))
    return [reading for _, reading in sorted(found, key=lambda pair: not pair[0])]


def leaves_padding_out(weights: Tensor, reading: Reading, layout: Layout) -> bool:
    """Whether, read this way, real queries give no weight to padded keys or to other graphs."""
    with torch.no_grad():
        parts = reading.apart(weights, len(layout.mask))
        if reading.graphs is None:
            excluded = layout.graph[:, None] != layout.graph  # (n, n)
        else:
            keys = layout.key_mask[:, : parts.shape[-1]]  # (B, K)
            queries = keys[:, :1] if parts.shape[-2] == 1 else keys
            excluded = (queries[:, :, None] & ~keys[:, None])[:, None]  # (B, 1, Q, K)
        return not bool((parts.abs() * excluded > 1e-6).any())


def _alone(model: Any, batch: Any, row: int) -> Any:
    """One graph of a batch, with its readout weights."""
    one = model.collate([batch.examples()[row]])
    if batch.readout is None:
        return one
    return replace(one, readout=batch.readout[row : row + 1, : one.mask.shape[1]])


Two = tuple[tuple[int, int], Callable[[], "list[Data]"]]


def _of_other_sizes(model: Any, graph: "Data", size: int) -> list[Two]:
    """Pairs of graphs made from one with `size` nodes: their sizes, and a function that makes them.

    The first pair lacks one and two nodes. A small graph, whose size may equal other dimensions of
    the model by chance, also comes as several disconnected copies with one node removed.
    """
    pairs: list[Two] = []
    if size < FEW:
        times = -(-FEW // size) + 1, -(-FEW // size)
        sizes = (size * times[0] - 1, size * times[1] - 1)

        def copies() -> "list[Data]":
            return [_less_one(model, model.repeated(graph, n)) for n in times]

        pairs.append((sizes, copies))
    if size > 2:
        nodes, left = torch.arange(size, device=graph.x.device), (size - 1, size - 2)
        pairs.append((left, lambda: [model.induced(graph, nodes < n) for n in left]))
    return pairs


def _less_one(model: Any, graph: "Data") -> "Data":
    """A graph without its last node, so that a ring has fewer bonds than atoms."""
    size = int(graph.num_nodes or 0)
    return model.induced(graph, torch.arange(size, device=graph.x.device) < size - 1)


def _one_more(batch: Any) -> Any:
    """A batch of tokens with its first input once more at the end."""
    wide = {k: v for k, v in vars(batch).items() if isinstance(v, Tensor)}
    return replace(batch, **{name: torch.cat([value, value[:1]]) for name, value in wide.items()})


def _copied(model: Any) -> Any:
    """A copy of a wrapped model, which may keep state from a pass; None: it cannot be copied."""
    try:
        return copied(model).eval()
    except Exception:  # the user's code may raise anything
        return None


def _attend(model: Any, make: Callable[[], Any]) -> None:
    """Run a wrapped model on a batch and keep only the readings."""
    try:
        batch = make()
        random = torch.random.fork_rng(devices=[])  # leaves later draws as they were
        with random, torch.no_grad(), warnings.catch_warnings(), record(all_queries=True):
            warnings.simplefilter("ignore")
            model.encode(model.embed(batch), batch)
    except Exception:  # the user's code may raise anything on this graph
        return
