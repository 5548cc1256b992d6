"""Attention as it goes by: recognised, recorded, held constant.

A softmax is not known to be attention before its result enters a product. Until then its result
carries the role "probability"; then it is recorded and, under AH, held constant: detached, or where
its own gradient is asked for, cut off from what it was computed of.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai import propagation

from .attention import probabilities
from .entrances import current_entrances
from .layout import Layout, expose_dense, expose_sparse
from .origins import Origins
from .trace import Curve, Softmax, Trace, Traces, custom_function, tensors_in
from .vocabulary import GATHERED_SUMS, MULTIPLICATIONS, QUOTIENTS, SAME_VALUES, STILL_A_SUM

REMEMBERED = 16  # gathers of node rows among which the sources of edges are found


class AttentionWatch:
    """Attention of the passes in one block; `layout` says where nodes stand, for recording."""

    def __init__(self, traces: Traces, layout: Layout | None) -> None:
        self._traces, self._layout = traces, layout
        self._indices: list[Tensor] = []  # by which node rows were gathered, the latest last
        self.origins = Origins()
        self.within_map = False  # of torch.vmap, where the graphs of a batch come one by one
        self.unseen: set[str] = set()  # attention that mixed values and could not be recorded
        self.undecided: set[str] = set()  # what may weigh nodes of graphs, or edges of nodes

    # -- softmax -------------------------------------------------------------------------------

    def softmax(self, out: Tensor, softmax: Softmax, curves: frozenset[Curve]) -> Tensor:
        """A softmax's result, of which nobody knows yet whether it is attention."""
        if propagation.current_tape() is not None:
            recorded = _cut_when_used(out, softmax) if _slopes_of_constants() else out
            softmax.attention, out = self._expose(recorded, softmax.index)
        curves -= {Curve("activation", "exp", softmax.place)}  # its own, if it is written out
        curve = Curve("attention", "a softmax whose result enters no product", softmax.place)
        return self._traces.mark(out, Trace(curves | {curve}, "probability", softmax))

    def explicit_softmax(self, inputs: list[Tensor]) -> Softmax | None:
        """The softmax that `exp(s) / sum(exp(s))` is, if the two tensors are these."""
        if len(inputs) != 2:
            return None
        above, below = map(self._traces.of, inputs)
        if above is None or below is None or above.softmax is not below.softmax:
            return None
        return above.softmax if (above.role, below.role) == ("exponential", "sum") else None

    def role(self, name: str, inputs: list[Tensor], place: str) -> tuple[Any, Softmax | None]:
        """Role and softmax of the result of an operation."""
        if name in ("exp", "exp_"):
            return "exponential", Softmax(place)
        traced = [trace for trace in map(self._traces.of, inputs) if trace is not None]
        if len(traced) != 1 or traced[0].role is None:
            return None, None
        trace = traced[0]
        if trace.role == "exponential" and (name == "sum" or name in GATHERED_SUMS):
            if trace.softmax and name in GATHERED_SUMS:
                trace.softmax.index = self._group_index(inputs)
            return "sum", trace.softmax
        kept = STILL_A_SUM if trace.role == "sum" else SAME_VALUES | MULTIPLICATIONS
        return (trace.role, trace.softmax) if name in kept else (None, None)

    # -- products ------------------------------------------------------------------------------

    def factors(
        self, name: str, values: Iterable[Any], halve: bool, equal: bool = False
    ) -> tuple[Any, ...]:
        """The arguments of a product, with attention among them recorded and held.

        halve: whether the products rule acts here; equal: whether half of the relevance goes to
        each factor under any rule.
        """
        values = tuple(values)
        if name in MULTIPLICATIONS and self._count(values) < 2:
            return values  # a mask or a weight on the way
        held = tuple(self._held(value) for value in values)
        halve = equal or (halve and propagation.current_rules().products)
        if not halve or name in QUOTIENTS or self._count(held) < 2:
            return held
        return tuple(self._halved(value) for value in held)

    def _count(self, values: Iterable[Any]) -> int:
        return sum(self._traces.of(t) is not None for t in tensors_in(values))

    def _held(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._held(v) for v in value)
        trace = self._traces.of(value)
        if self._traces.is_hidden_softmax(value):
            place = self._traces.place() or "the model"
            self.unseen.add(f"{place}, made by {custom_function(value)}")
        if trace is None or trace.role != "probability" or trace.softmax is None:
            return value
        self._record(trace.softmax)
        if propagation.current_rules().attention:
            has_slope = _slopes_of_constants() and trace.softmax.attention is not None
            return self._traces.constant(value) if has_slope else value.detach()
        return self._traces.mark(value.view_as(value), replace(trace, role=None))

    def _halved(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._halved(v) for v in value)
        trace = self._traces.of(value)
        return value if trace is None else self._traces.mark(propagation.halved(value), trace)

    # -- whole attentions ----------------------------------------------------------------------

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """`softmax(q k^T + bias) v` and the probabilities, recorded and held as asked."""
        with propagation.unrecorded():
            weights = probabilities(query, key, bias)
        weights = self._mixing(weights)
        return propagation.mix_values(F.dropout(weights, dropout), value), weights

    def performer(self, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Linear attention with its matrix written out; q, k, v (B, H, N, d)."""
        weights = self._mixing(self.performer_weights(module, query, key))
        return propagation.mix_values(weights, value)

    def performer_weights(self, module: Any, query: Tensor, key: Tensor) -> Tensor:
        """`A = phi(q) phi(k)^T` over its row sums (B, H, N, N), of q, k (B, H, N, d).

        Choromanski 2021, eq. 4. Padded keys have no weight, as if each graph were alone; PyG's
        own sum over a padded batch counts them.
        """
        from torch_geometric.nn.attention.performer import generalized_kernel

        q, k = (
            generalized_kernel(t, module.projection_matrix, module.kernel) for t in (query, key)
        )
        weights = q @ k.transpose(-2, -1)  # (B, H, N, N)
        length = weights.shape[-1]
        if self._layout is not None and self._layout.fits(length):
            weights = weights * self._layout.key_mask[:, None, None, :length]
        total = weights.sum(-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0)

    def _mixing(self, weights: Tensor) -> Tensor:
        """Probabilities (B, H, Q, T) that mix values."""
        held = propagation.current_rules().attention
        weights = weights.detach() if held else weights
        tape = propagation.current_tape()
        if tape is None:
            return weights
        if _slopes_of_constants():
            weights.requires_grad_()
        attention, weights = self._expose(weights, None)
        self._put_on_tape(attention)
        return weights

    def keys(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, N): True at the rows of x (B, N, D) that are tokens; mask: what the model says."""
        layout = self._layout
        if layout is not None and len(x) == len(layout.mask) and layout.fits(x.shape[1]):
            return layout.key_mask[:, : x.shape[1]]
        return x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask

    # -- recording -----------------------------------------------------------------------------

    def note_index(self, inputs: list[Tensor]) -> None:
        """Remember by which index rows were gathered: one of them names the sources of edges."""
        for index in inputs[1:]:
            if index.dtype == torch.long and index.dim() == 1:
                self._indices = [*self._indices[1 - REMEMBERED :], index]

    def _record(self, softmax: Softmax) -> None:
        if not softmax.used:
            self._put_on_tape(softmax.attention)
        softmax.used = True

    def _put_on_tape(self, attention: Tensor | None) -> None:
        self._note_mapped()
        tape = propagation.current_tape()
        if tape is None or attention is None:
            return
        tape.attention.append(attention)
        if (entrances := current_entrances()) is not None:
            entrances.note(self._layout)

    def _note_mapped(self) -> None:
        if self.within_map:
            self.unseen.add(f"{self._traces.place() or 'the model'}, mapped over by torch.vmap")

    def _expose(self, weights: Tensor, target: Tensor | None) -> tuple[Tensor | None, Tensor]:
        if self.within_map:
            return None, weights
        if target is None:
            return expose_dense(weights, self._layout)
        source = self._source_of(target)
        if source is None or self._pools(target):
            return None, weights
        return expose_sparse(weights, target, source, self._layout)

    def _pools(self, target: Tensor) -> bool:
        """Whether groups are graphs and entries their nodes: a read-out, not node to node."""
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

    def _source_of(self, target: Tensor) -> Tensor | None:
        """The other end of the edges: the latest other index by which rows were gathered."""
        candidates = (index for index in self._indices if self.origins.of(index) != "graphs")
        fitting = [index for index in candidates if len(index) == len(target)]
        others = [index for index in fitting if not torch.equal(index, target)]
        found = others or fitting
        return found[-1] if found else None

    def _group_index(self, inputs: list[Tensor]) -> Tensor | None:
        """The index (E,) by which entries were summed into groups."""
        for tensor in inputs:
            if tensor.dtype == torch.long:
                index = tensor if tensor.dim() == 1 else tensor.flatten(1)[:, 0]
                return self.origins.copy(tensor, index)
        return None


def _slopes_of_constants() -> bool:
    """Whether attention that is held constant must still have a gradient of its own."""
    tape = propagation.current_tape()
    asked = tape is not None and tape.attention_gradients
    return asked and propagation.current_rules().attention


def _cut_when_used(out: Tensor, softmax: Softmax) -> Tensor:
    """The result of a softmax, from which no gradient flows on once it is known as attention."""
    out = out.view_as(out) if out.requires_grad else out.detach().requires_grad_()
    out.register_hook(lambda slope: torch.zeros_like(slope) if softmax.used else slope)
    return out
