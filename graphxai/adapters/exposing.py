"""Lay attention out as (B, H, T, T), so that it can be recorded.

The model continues with weights computed from the recorded tensor, so that gradients reach it.
Attention along edges has one value per edge; its nodes are found from the indices by which the rows
of their ends were gathered. The axes of a matrix are read by `placing`.
"""

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphxai.rules import conservative as propagation

from .layout import Layout, expose_dense, expose_sparse
from .origins import Origins
from .placing import Place, Readings
from .reading import Reading
from .trace import Softmax, Traces

REMEMBERED = 16  # gathers of node rows among which the sources of edges are found


class LaidOut(NamedTuple):
    """The nodes' positions in these weights, and the meaning of each axis; None: edges."""

    layout: Layout | None
    reading: Reading | None
    weights: Tensor


class Gather(NamedTuple):
    """Rows were gathered by an index; score: how likely it holds ends of edges.

    of_nodes: whether the rows may be those of the nodes, judging by their number.
    """

    score: int
    by: Tensor
    of_nodes: bool


class Exposure:
    """The softmaxes of the passes in one block that can be recorded, and how.

    layout: the nodes' positions in the batch. `unplaced`: softmaxes not known to be between nodes;
    `guessed`: those with graphs and heads on one axis, in unknown order.
    """

    def __init__(self, traces: Traces, layout: Layout | None) -> None:
        self._traces, self._layout = traces, layout
        # gathers of rows, the latest last, with how likely they hold ends of edges
        self._indices: list[Gather] = []
        self._readings = (layout and layout.readings) or Readings()
        self._counts: Counter[str] = Counter()  # of dense softmaxes, by module
        self.laid_out: dict[Softmax, LaidOut] = {}
        self.unplaced: set[Softmax] = set()
        self.guessed: set[Softmax] = set()
        self.undecided: set[str] = set()  # may weight nodes of graphs, or edges of nodes
        self.origins = Origins(None if layout is None else len(layout.graph))
        self.operands: tuple[Any, ...] = ()  # of the current operation
        self.within_map = False  # of torch.vmap, where graphs of a batch run one by one

    def expose(self, weights: Tensor, softmax: Softmax) -> Tensor:
        """The weights, computed from attention that can be recorded and kept with the softmax."""
        tape = propagation.current_tape()
        if self.within_map or (tape is not None and tape.with_biases and self._layout is not None):
            return weights
        if softmax.index is None:
            softmax.attention, weights = self._expose_dense(weights, softmax)
        elif self._pools(softmax.index):
            softmax.pools = True
        elif (source := self._source_of(softmax)) is not None:
            layout = self._layout_here()
            self.laid_out[softmax] = LaidOut(layout, None, weights)
            softmax.attention, weights = expose_sparse(weights, softmax.index, source, layout)
        if softmax.attention is None and not softmax.pools and self._layout is not None:
            self.unplaced.add(softmax)
        return weights

    def _expose_dense(self, weights: Tensor, softmax: Softmax) -> tuple[Tensor | None, Tensor]:
        layout = self._layout_here()
        if layout is None or weights.dim() < 2:
            softmax.pools = True
            return expose_dense(weights, layout)
        key = axis_of_keys(weights, softmax)
        place = self._place_of(softmax, weights.dim())
        wide, key_of_wide = (weights[None], key + 1) if weights.dim() == 2 else (weights, key)
        reading = self._readings.choose(place, wide, key_of_wide, layout)
        if reading is not None and self._readings.guessed:
            self.guessed.add(softmax)
        pools = reading is None and _reads_out(weights, key, len(layout.mask))
        softmax.pools = self._readings.always(place, "pools", pools) and reading is None
        self.laid_out[softmax] = LaidOut(layout, reading, wide)
        attention, exposed = expose_dense(wide, layout, reading)
        return attention, exposed.reshape(weights.shape)

    def _place_of(self, softmax: Softmax, axes: int) -> Place:
        self._counts[softmax.place] += 1
        return Place(softmax.place, self._counts[softmax.place], axes)

    def _layout_here(self) -> Layout | None:
        """The nodes' positions in the current operation."""
        order = self.origins.order_among(self.operands)
        return None if self._layout is None else self._layout.resorted(order)

    def _pools(self, target: Tensor) -> bool:
        """Whether groups are graphs and entries their nodes: a readout, not node to node."""
        graph = None if self._layout is None else self._layout.graph
        if graph is None:
            return False
        origin = self.origins.of(target)
        if origin is not None:
            return origin == "graphs"
        if not torch.equal(target, graph):
            return False
        if len(graph) > len(graph.unique()):
            return True
        self.undecided.add(self._traces.place() or "the model")
        return False

    def _source_of(self, softmax: Softmax) -> Tensor | None:
        """The other end of the edges: the latest other index by which rows of nodes were gathered.

        None also if the rows in another pass were not nodes: as many bonds may attend.
        """
        target = softmax.index
        assert target is not None
        fitting = self.gathered_by(len(target), rows_of_nodes=True)
        others = [index for index in fitting if not torch.equal(index, target)]
        found = others or fitting
        strange = len(target) > 0 and not found
        if self._readings.always(self._place_of(softmax, 1), "no nodes", strange) or not found:
            return None
        return found[-1]

    def gathered_by(self, length: int, rows_of_nodes: bool = False) -> list[Tensor]:
        """Indices of this length by which rows were gathered, the latest last.

        Others are less likely: an index of edge types gathers rows of a parameter. rows_of_nodes:
        only if these may be rows of nodes, and not, say, of bonds that attend.
        """
        known = [
            gather
            for gather in self._indices
            if len(gather.by) == length and self.origins.of(gather.by) != "graphs"
        ]
        best = max((gather.score for gather in known), default=0)
        return [
            gather.by
            for gather in known
            if gather.score == best and (gather.of_nodes or not rows_of_nodes)
        ]

    def group_index(self, inputs: list[Tensor]) -> Tensor | None:
        """The index (E,) by which entries were summed into groups."""
        for tensor in inputs:
            if tensor.dtype == torch.long:
                index = tensor if tensor.dim() == 1 else tensor.flatten(1)[:, 0]
                return self.origins.copy(tensor, index)
        return None

    def layout_of(self, softmax: Softmax) -> Layout | None:
        """The nodes' positions in attention."""
        known = self.laid_out.get(softmax)
        return self._layout if known is None else known.layout

    def note_index(self, inputs: list[Tensor]) -> None:
        """Remember the index by which rows were gathered: one of them has the sources of edges."""
        rows = None if self._layout is None else len(self._layout.graph)
        for index in inputs[1:]:
            if index.dtype == torch.long and index.dim() == 1:
                of_nodes = [
                    self.origins.of(index) == "edges",
                    self._traces.of(inputs[0]) is not None,
                    inputs[0].dim() > 0 and len(inputs[0]) == rows,
                ]
                may_be = rows is None or rows in inputs[0].shape
                gather = Gather(sum(of_nodes), index, may_be)
                self._indices = [*self._indices[1 - REMEMBERED :], gather]

    def are_edges(self, length: int) -> bool:
        """Whether an axis of this length may be one of edges."""
        return bool(self.gathered_by(length))


def axis_of_keys(weights: Tensor, softmax: Softmax) -> int:
    """The axis along which the weights of a query sum to one, from 0."""
    axes = list(range(weights.dim()))
    likely = axes[-1 if softmax.axis is None else softmax.axis]
    with torch.no_grad():
        for axis in (likely, *reversed(axes)) if softmax.axis is None else ():
            if torch.allclose(weights.sum(axis), weights.new_ones(()), atol=1e-3):
                return axis
    return likely


def _reads_out(weights: Tensor, key: int, graphs: int) -> bool:
    """Whether weights that fit no nodes belong to pooling: one row per graph or gate per row."""
    shape = weights.shape
    if weights.dim() == 2 and key == 1 and shape[0] == graphs:
        return True  # even with as many graphs as nodes
    square = shape.count(shape[key]) > 1
    if weights.dim() == 2 or (weights.dim() == 3 and key == 1):
        return not square
    return shape[key] == 1 or shape[key - 1] == 1
