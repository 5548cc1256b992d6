"""Find the nodes in an embedding's output, and put other rows in their place.

An embedding returns a row per node of the batch (n, ...), or a padded tensor (B, S, ...) in which
class tokens may stand before or behind the nodes. Several features of a node may have a separate
axis, as in (n, F, D) or (B, S, F, D). All that a node gets from the look-ups of a pass is its row
(W,). The relevance of the look-ups is added up, because the model adds up what it looks up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphxai.contract.inputs import InputError
from graphxai.engine.recording import is_recording

from .batches import WrappedBatch

# why the graphs of a list take a pass each, see `one_at_a_time`
IN_PARTS = "looks the nodes of several graphs up in parts, as in a loop over the graphs"
Hook = Callable[[str, tuple[Any, ...], Any], Any]  # takes a module's name, arguments and output


@dataclass(frozen=True)
class NodePlaces:
    """The places of the nodes in an output.

    Args:
        dense: whether the output is (B, S, ...), with the nodes along axis 1. Otherwise it has one
            row per node.
        before: how many rows stand before the nodes of every graph.
        behind: if graphs are padded in front, how many rows stand behind the nodes of every graph.
            Then `before` has no meaning.
    """

    dense: bool
    before: int = 0
    behind: int | None = None

    def rows_in(self, output: Tensor, batch: WrappedBatch) -> Tensor:
        """Return the rows of an output that belong to nodes (n, W), or all tokens (B, S, W)."""
        if batch.graphs is None:
            return output.flatten(2)
        if not self.dense:
            return output.flatten(1)
        return output.flatten(0, 1)[self._indices(output, batch)].flatten(1)

    def with_rows(self, output: Tensor, rows: Tensor, batch: WrappedBatch) -> Tensor:
        """Return the output with other rows for nodes, but the same padding and class tokens."""
        if batch.graphs is None or not self.dense:
            return rows if rows.shape == output.shape else rows.view(output.shape)
        filled = output.detach().flatten(0, 1).clone()
        filled[self._indices(output, batch)] = rows.view(len(rows), *output.shape[2:])
        return filled.view(output.shape)

    def _indices(self, output: Tensor, batch: WrappedBatch) -> Tensor:
        """Return the places (n,) of the nodes among the B * S rows of an output."""
        graph, slot = batch.mask.nonzero(as_tuple=True)
        if self.behind is None:
            return graph * output.shape[1] + self.before + slot
        return (graph + 1) * output.shape[1] - self.behind - batch.num_nodes[graph] + slot


def width_of(output: Tensor, places: NodePlaces, batch: WrappedBatch) -> int:
    """Return how many numbers of an output belong to one node."""
    axes = 2 if places.dense or batch.graphs is None else 1
    return math.prod(output.shape[axes:])


def places_in(output: Any, batch: WrappedBatch, dense: bool | None = None) -> NodePlaces | None:
    """Find the nodes in an output by its shape, or return None if it does not hold them.

    If the shape could be both forms, `dense` says which of them the output is known to have.
    """
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.dim() < 2:
        return None
    if batch.graphs is None:
        return NodePlaces(dense=True) if output.dim() >= 3 else None
    size, longest = batch.mask.shape
    a_row_each = len(output) == int(batch.mask.sum())
    padded = output.dim() >= 3 and len(output) == size and output.shape[1] >= longest
    if padded and (not a_row_each or dense):
        return NodePlaces(dense=True)
    return NodePlaces(dense=False) if a_row_each else None


def is_unclear(output: Any, batch: WrappedBatch) -> bool:
    """Return whether an output could hold the nodes in both forms, as for single-node graphs."""
    several = batch.graphs is not None and isinstance(output, Tensor) and output.dim() >= 3
    return several and len(output) == len(batch) == int(batch.mask.sum())


def looks_up_nodes(codes: Any, output: Any, batch: WrappedBatch) -> bool:
    """Return whether an embedding looks up nodes, judging by a batch of one graph.

    The shape is unclear if there are as many edges as nodes, if there are tokens for edges as well
    as for nodes, or if each pair of nodes has a code. Then the `codes` that it looked up must be
    columns of `x`, except for an offset.
    """
    places = places_in(output, batch)
    if places is None or batch.graphs is None:
        return places is not None
    graph: Data = batch.singles[0]
    nodes = int(graph.num_nodes or 0)
    if not isinstance(codes, Tensor):
        return False
    members = codes.shape[1:] if places.dense else codes.shape
    of_edges = not places.dense and nodes == graph.num_edges
    of_pairs = len(members) > 1 and members[0] == members[1]
    of_tokens = places.dense and members[0] != nodes
    if not (of_edges or of_pairs or of_tokens):
        return True
    if not places.dense:
        return _are_columns(codes, graph)
    starts = range(codes.shape[1] - nodes + 1)  # class tokens may stand before or behind the nodes
    return any(_are_columns(codes[0, start : start + nodes], graph) for start in starts)


def _are_columns(codes: Tensor, graph: Data) -> bool:
    """Return whether codes (N, ...) are columns of a graph's `x`, except for an offset of each."""
    columns = codes.reshape(len(codes), -1).double()
    x = graph.x.reshape(len(codes), -1).double()
    offsets = columns[:, None] - x[:, :, None]  # (N, F of x, F of codes)
    return bool((offsets == offsets[:1]).all(0).any(0).all())


@dataclass(eq=False)
class LookupForms:
    """What passes have shown about the embeddings of a model and its copies.

    Args:
        dense: by name, whether an embedding returned (B, S, ...) and not (n, ...).
        aligned: by name, where the nodes are in (B, S, ...), or None if that cannot be told.
        columns: where the look-ups by codes stand in the rows of nodes.
        chosen: the look-up tables that were chosen because nobody named any.
        in_parts: whether a table looked up the nodes of several graphs in parts.
        calls: how often the embeddings were called in the last pass that read them, or 0.
        may_stop: whether no pass has called them oftener than the one before.
    """

    dense: dict[str, bool] = field(default_factory=dict)
    aligned: dict[str, NodePlaces | None] = field(default_factory=dict)
    columns: dict[tuple[str, int, int], range] = field(default_factory=dict)
    chosen: frozenset[str] = frozenset()
    in_parts: bool = False
    calls: int = 0
    may_stop: bool = True

    def __deepcopy__(self, _: Any) -> "LookupForms":
        return self

    def places(self, name: str, output: Any, batch: WrappedBatch) -> NodePlaces | None:
        """Find the nodes in the output of the embedding of this name."""
        places = places_in(output, batch, self.dense.get(name))
        if places is not None and not is_unclear(output, batch):
            self.dense[name] = places.dense
        aligned = self.aligned.get(name) if places is not None and places.dense else None
        return aligned or places


def may_look_up_rows(module: nn.Module, graph: Any) -> bool:
    """Return whether a module may look up rows of a graph's `x`, unless these are real numbers."""
    x = getattr(graph, "x", None)
    if not isinstance(x, Tensor) or x.dtype in CODES:
        return isinstance(x, Tensor)
    rows_of_numbers = x.dim() == 2 and x.is_floating_point()
    return not rows_of_numbers and bool(embeddings_in(module))


CODES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def codes_of(rows: Tensor, x: Tensor) -> Tensor:
    """Return the codes `x`, if they are what a pass is to read, or raise InputError.

    Methods that only remove nodes need no other rows. The model looks up nothing that could be
    replaced.
    """
    if rows.requires_grad or is_recording() or not torch.equal(rows, codes_by_node(x).to(rows)):
        raise InputError(codes_carry_no_gradient(x))
    return x.clone()


def codes_by_node(x: Tensor) -> Tensor:
    """Arrange codes (n, ...), of which a node may have a single one, as (n, F)."""
    return x.flatten(1) if x.dim() > 1 else x[:, None]


def codes_carry_no_gradient(x: Tensor) -> str:
    """Say that nothing is looked up by codes `x`, and what to do."""
    return (
        f"x has {x.dtype} values, which cannot carry gradients, and nothing is looked up by them"
        " alone: pass x.float() if they are numbers, name the embedding layer"
        " with wrap(..., embedding=...), or take a method that only removes nodes, such as"
        " occlusion."
    )


def embeddings_in(module: nn.Module) -> tuple[str, ...]:
    """Return the names of all look-up tables of a model."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return tuple(name for name, part in module.named_modules() if isinstance(part, kinds) and name)


def joined(rows: list[Tensor]) -> Tensor:
    """Put the rows (n, W) that several look-ups hold for the nodes side by side."""
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=-1)
