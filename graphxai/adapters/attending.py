"""Recognise attention during a pass, record it and hold it constant.

A softmax counts as attention only once its result enters a product. Until then its result has the
role "probability". Then it is recorded and, under AH, held constant: detached, or, if its gradient
is needed, disconnected from its inputs. Factors on the way to that product, such as a mask or a
gate for every pair, are part of the recorded attention.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.rules import conservative as propagation

from .attention import probabilities
from .exposing import Exposure, axis_of_keys
from .layer_inputs import current_layer_inputs
from .layout import Layout
from .softless import MIXING, Softless
from .trace import Nonlinearity, Softmax, Trace, Traces, custom_function, tensors_in
from .vocabulary import GATHERED_SUMS, MULTIPLICATIONS, QUOTIENTS, SAME_VALUES, STILL_A_SUM

REMEMBERED = 16  # gathers of node rows among which the sources of edges are found
UNMET = "a softmax whose result enters no product"
FACTORS = MULTIPLICATIONS | {
    "masked_fill", "masked_fill_", "where", "div", "div_", "nan_to_num", "nan_to_num_",
}  # fmt: skip
TERMS = {"add", "add_", "sub", "sub_", "rsub"}  # a constant for each pair, as of their distance
ON_THE_WAY = FACTORS | TERMS


class AttentionWatch:
    """Attention of the passes in one block; `layout` has the nodes' positions, for recording."""

    def __init__(self, traces: Traces, layout: Layout | None) -> None:
        self._traces, self._layout = traces, layout
        self.exposure = Exposure(traces, layout)
        read = layout if _records_attention() else None
        self.softless = Softless(traces, read, self.exposure.are_edges)
        self.unseen: set[str] = set()  # attention that mixed values and could not be recorded
        self.left_out: set[str] = set()  # attention that mixed values, not between the nodes
        self.guessed: set[str] = set()  # with graphs and heads on one axis, in either order

    # -- softmax -------------------------------------------------------------------------------

    def softmax(self, out: Tensor, softmax: Softmax, curves: frozenset[Nonlinearity]) -> Tensor:
        """A softmax's result, which may or may not turn out to be attention."""
        out = self._recordable(out, softmax)
        curves -= {
            Nonlinearity("activation", "exp", softmax.place)
        }  # its own, if it is written out
        return self._traces.mark(out, Trace(curves | {_unmet(softmax)}, "probability", softmax))

    def rescaled(
        self, name: str, inputs: list[Tensor], trace: Trace, out: Any
    ) -> tuple[Trace, Any]:
        """Attention with entries scaled or removed: this result is read, not the softmax's."""
        old = trace.softmax
        if trace.role != "probability" or name not in ON_THE_WAY or old is None or old.used:
            return trace, out
        before = next(t for t in inputs if _has_role(self._traces, t, "probability"))
        if name in TERMS and (name == "rsub" or out.shape != before.shape):
            return replace(trace, role=None, softmax=None), out
        axis = None if old.index is not None else axis_of_keys(before, old)
        new = Softmax(old.place, old.index, axis=axis)
        if name.endswith("_"):
            out.copy_(self._recordable(out.clone(), new))
        else:
            out = self._recordable(out, new)
        return replace(trace, softmax=new), out

    def _recordable(self, out: Tensor, softmax: Softmax) -> Tensor:
        if propagation.current_tape() is None:
            return out
        return self.exposure.expose(
            _cut_when_used(out, softmax) if _gradients_of_constants() else out, softmax
        )

    def explicit_softmax(self, inputs: list[Tensor]) -> Softmax | None:
        """The softmax that `exp(s) / sum(exp(s))` is, if the two tensors are these."""
        if len(inputs) != 2:
            return None
        above, below = map(self._traces.of, inputs)
        if above is None or below is None or below.role != "sum":
            return None
        if above.role == "exponential" and above.softmax is below.softmax:
            return above.softmax
        if below.softmax is not None and below.softmax.index is not None:
            self.left_out.add(below.softmax.place or "the model")  # sum(e v) / sum(e)
        return None

    def role(self, name: str, inputs: list[Tensor], place: str) -> tuple[Any, Softmax | None]:
        """Role and softmax of the result of an operation."""
        if name in ("exp", "exp_"):
            return "exponential", Softmax(place)
        traced = [trace for trace in map(self._traces.of, inputs) if trace is not None]
        if name in MIXING and len(traced) > 1 and not any(t.role == "probability" for t in traced):
            return "pairs", None
        if self.is_renormalised(name, inputs):
            traced = traced[:1]
        if name in MULTIPLICATIONS and self._is_factor(inputs):
            traced = [trace for trace in traced if trace.role == "probability"]
        if len(traced) != 1 or traced[0].role is None:
            return None, None
        trace = traced[0]
        if trace.role == "exponential" and (name == "sum" or name in GATHERED_SUMS):
            if trace.softmax and name in GATHERED_SUMS:
                trace.softmax.index = self.exposure.group_index(inputs)
            return "sum", trace.softmax
        if trace.role == "probability" and name in ("sum", "nansum"):
            return "total", trace.softmax
        kept = SAME_VALUES | MULTIPLICATIONS
        if trace.role in ("sum", "total"):
            kept = STILL_A_SUM
        if trace.role == "probability":
            kept = kept | ON_THE_WAY
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
        if name in FACTORS and self._count(values) < 2:
            return values  # a mask or a weight on the way
        if self.is_renormalised(name, list(tensors_in(values))):
            return values
        if name in MULTIPLICATIONS and self._is_factor(list(tensors_in(values))):
            return values
        self._note_other_attention(name, values)
        held = tuple(self._held(value) for value in values)
        halve = equal or (halve and propagation.current_rules().products)
        if not halve or name in QUOTIENTS or self._count(held) < 2:
            return held
        return tuple(self._halved(value) for value in held)

    def _note_other_attention(self, name: str, values: tuple[Any, ...]) -> None:
        """Note operations that mix values without a softmax, such as gates of pairs."""
        if self.softless.meets_values(name, values):
            self.left_out.add(self._traces.place() or "the model")
        several = name in MIXING and self._count(values) > 1
        for tensor in tensors_in(values) if several else ():
            trace = self._traces.of(tensor)
            square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] > 1
            if square and trace is not None and trace.role in ("gate", "exponential"):
                self.left_out.add(self._traces.place() or "the model")

    def is_renormalised(self, name: str, tensors: list[Tensor]) -> bool:
        """Whether attention with removed entries is divided by its own sums."""
        if name not in ("div", "div_") or len(tensors) != 2:
            return False
        above, below = map(self._traces.of, tensors)
        if above is None or below is None or above.softmax is None:
            return False
        same = above.softmax is below.softmax
        return same and (above.role, below.role) == ("probability", "total")

    def _is_factor(self, tensors: list[Tensor]) -> bool:
        """Whether dense attention meets a gate or a product of every pair, and not values."""
        found = [t for t in tensors if _has_role(self._traces, t, "probability")]
        others = [t for t in tensors if not any(t is one for one in found)]
        if len(found) != 1 or len(others) != 1:
            return False
        weights, other = found[0], others[0]
        if not any(_has_role(self._traces, other, role) for role in ("gate", "pairs")):
            return False
        softmax = self._traces.of(weights).softmax  # type: ignore[union-attr]
        if softmax is None or softmax.index is not None or other.dim() > weights.dim():
            return False
        if torch.broadcast_shapes(weights.shape, other.shape) != weights.shape:
            return False
        length = weights.shape[axis_of_keys(weights, softmax)]
        places = [a - weights.dim() for a, n in enumerate(weights.shape) if n == length]
        if length == 1 or len(places) < 2 or other.dim() < -min(places):
            return False
        return all(other.shape[place] == length for place in places[-2:])

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
            has_slope = _gradients_of_constants() and trace.softmax.attention is not None
            return self._traces.constant(value) if has_slope else value.detach()
        curves = trace.curves - {_unmet(trace.softmax)}
        known = replace(trace, role=None, curves=curves, product="probability")
        return self._traces.mark(value.view_as(value), known)

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
        if _gradients_of_constants():
            weights.requires_grad_()
        softmax = Softmax(self._traces.place(), axis=-1)
        weights = self.exposure.expose(weights, softmax)
        self._record(softmax)
        return weights

    def keys(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, N): True at the rows of x (B, N, D) that are tokens; mask: the model's own mask."""
        layout = self._layout
        if layout is not None and len(x) == len(layout.mask) and layout.fits(x.shape[1]):
            return layout.key_mask[:, : x.shape[1]]
        return x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask

    # -- recording -----------------------------------------------------------------------------

    def note_results(self, traces: Iterable[Trace]) -> None:
        """Note softmaxes behind the results that mixed values in some other way."""
        for trace in traces:
            if trace.role != "probability":  # a result may be a softmax itself
                found = (c for c in trace.curves if c == Nonlinearity("attention", UNMET, c.place))
                self.left_out |= {curve.place or "the model" for curve in found}

    def _record(self, softmax: Softmax) -> None:
        if not softmax.used:
            self._put_on_tape(softmax)
            self._note_left_out(softmax)
        softmax.used = True

    def _note_left_out(self, softmax: Softmax) -> None:
        exposure = self.exposure
        for found, named in ((exposure.unplaced, self.left_out), (exposure.guessed, self.guessed)):
            if softmax in found:
                named.add(softmax.place or "the model")

    def _put_on_tape(self, softmax: Softmax) -> None:
        self._note_mapped()
        tape = propagation.current_tape()
        if tape is None or softmax.attention is None:
            return
        tape.attention.append(softmax.attention)
        if (layer_inputs := current_layer_inputs()) is not None:
            layer_inputs.note(self.exposure.layout_of(softmax))

    def _note_mapped(self) -> None:
        if self.exposure.within_map:
            self.unseen.add(f"{self._traces.place() or 'the model'}, mapped over by torch.vmap")


def _unmet(softmax: Softmax) -> Nonlinearity:
    """The nonlinearity that a softmax is until it meets values."""
    return Nonlinearity("attention", UNMET, softmax.place)


def _records_attention() -> bool:
    tape = propagation.current_tape()
    return tape is not None and not tape.with_biases


def _gradients_of_constants() -> bool:
    """Whether attention that is held constant still needs a gradient."""
    tape = propagation.current_tape()
    asked = tape is not None and tape.attention_gradients
    return asked and propagation.current_rules().attention


def _cut_when_used(out: Tensor, softmax: Softmax) -> Tensor:
    """The result of a softmax whose gradient is cut once it is known to be attention."""
    out = out.view_as(out) if out.requires_grad else out.detach().requires_grad_()
    out.register_hook(lambda gradient: torch.zeros_like(gradient) if softmax.used else gradient)
    return out


def _has_role(traces: Traces, tensor: Tensor, role: str) -> bool:
    trace = traces.of(tensor)
    return trace is not None and trace.role == role
