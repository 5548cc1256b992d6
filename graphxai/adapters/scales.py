"""The scale of a norm: a square root or standard deviation that divides or multiplies a signal.

The rule LN holds it constant where it meets the signal, even if it was combined with constants on
the way. A root that meets no signal is not a scale: it keeps its gradient and a warning names it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from graphxai.rules import conservative as propagation

from .trace import Trace, Traces, tensors_in
from .vocabulary import MULTIPLICATIONS, PLUS_PRODUCT, QUOTIENTS, ROOTS, SAME_VALUES

STILL_A_SCALE = SAME_VALUES | MULTIPLICATIONS | QUOTIENTS | {
    "add", "add_", "clamp", "clamp_", "clamp_min", "clamp_min_", "maximum", "reciprocal",
    "reciprocal_", "pow", "mean", "stack", "cat", "unbind",
}  # fmt: skip


def described(
    traces: Traces, name: str, inputs: list[Tensor], trace: Trace, in_norm: bool
) -> Trace:
    """The trace of an operation's result, with its role as a scale."""
    if name in ROOTS and in_norm:
        traces.has_scales = True
        return replace(trace, role="scale")
    if not traces.has_scales or name not in STILL_A_SCALE:
        return trace
    made_of = [found for found in map(traces.of, inputs) if found is not None]
    is_scale = all(found.role == "scale" for found in made_of)
    return replace(trace, role="scale") if is_scale else trace


def held(traces: Traces, name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a product; under the rule LN the scale of another factor is constant."""
    if not traces.has_scales or not propagation.current_rules().layernorm:
        return values
    factors = values[1:] if name in PLUS_PRODUCT else values
    found = [(t, trace) for t in tensors_in(factors) if (trace := traces.of(t)) is not None]
    scales = [tensor for tensor, trace in found if trace.role == "scale"]
    if not scales or len(scales) == len(found):
        return values
    return tuple(_held(value, scales) for value in values)


def _held(value: Any, scales: Iterable[Tensor]) -> Any:
    return value.detach() if any(value is scale for scale in scales) else value
