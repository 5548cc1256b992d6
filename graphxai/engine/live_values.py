"""Decide which inputs the gradient of each recorded value flows to.

A value that depends on an input is live only if a gradient flows back to the input, too: `detach`,
`no_grad`, rounding and comparisons cut the gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .trace import Op, Trace, is_real

CUTS = {"detach", "round", "sign", "sgn", "floor", "ceil", "trunc", "frac", "heaviside"}


def find_live(trace: Trace, graded: bool) -> None:
    """Fill in `trace.flow.live` after a pass.

    Args:
        graded: whether gradients were on. If they were off, they are taken to flow wherever data
            does.
    """
    for op in trace.ops:
        _decide(trace, op, graded)
    for value in trace.flow.merged:
        _live(trace, value)


def _decide(trace: Trace, op: Op, graded: bool) -> None:
    """Decide which inputs the gradient of an operation's results flows to."""
    arriving = 0
    for ref in op.reads:
        arriving |= _live(trace, ref.value)
    for ref in op.makes:
        if not (depends := trace.flow.depends[ref.value]):
            continue
        tensor = trace.memory.tensors[ref.slot]
        if op.name == "detach" and _is_of_script(tensor):
            passes, arriving = True, _rewrite_script(trace, op)
        elif op.name in CUTS:
            passes = False
        elif op.grad_enabled and _settles_a_flag(trace, op):
            passes = True
        elif not graded:
            passes = is_real(tensor)
        elif op.decomposed:
            passes = op.grad_enabled and is_real(tensor)
        elif passes := tensor.requires_grad and not op.grad_enabled:
            # custom functions and checkpoints run without gradients, but pass them on
            _, arriving = _passing_on(trace, op, lambda _, maker: not maker.grad_enabled)
        else:
            passes = tensor.requires_grad
        if passes:
            trace.flow.live[ref.value] = arriving & depends
        elif is_real(tensor) and op.name not in CUTS:  # other inputs need no gradient
            trace.flow.live[ref.value] = arriving & depends & ~1


def _settles_a_flag(trace: Trace, op: Op) -> bool:
    """Whether a copy below autograd carries out a conjugation, or a sign, that was a flag."""
    tensor = trace.memory.tensors[op.reads[0].slot] if op.name == "clone" else None
    return tensor is not None and (tensor.is_conj() or tensor.is_neg())


def _live(trace: Trace, value: int) -> int:
    """Return the inputs that the gradient of a value flows to, even if the value is merged."""
    live = trace.flow.live
    if value in trace.flow.merged and not live[value]:
        before, written = trace.flow.merged[value]
        live[value] = live[before] | live[written]
    return live[value]


def _rewrite_script(trace: Trace, op: Op) -> int:
    """Let gradients flow through a function that TorchScript ran, up to this `detach`.

    TorchScript has a backward pass of its own: it detaches the inputs and the outputs of the
    function, and then gives the outputs that backward pass. Returns the inputs of the pass that
    gradients flow to.
    """
    inside, arriving = _passing_on(
        trace, op, lambda current, _: current.name != "detach" or current is op
    )
    for current in inside:
        if current.name == "detach":
            current.func, current.name = torch.ops.aten.alias.default, "alias"
            if current is not op:
                trace.flow.live[current.out] = trace.flow.live[current.reads[0].value]
    return arriving


def _passing_on(trace: Trace, op: Op, goes_on: Callable[[Op, Op], bool]) -> tuple[list[Op], int]:
    """Let gradients pass through the operations before this one that cut them.

    Returns the operations that they pass, and the inputs that they flow to.

    Args:
        goes_on: says, for an operation and the maker of a value that it reads, whether gradients
            pass from one to the other.
    """
    passed, arriving = [op], 0
    for current in passed:
        for ref in current.reads:
            maker, tensor = trace.op_of(ref.value), trace.memory.tensors[ref.slot]
            is_cut = trace.flow.depends[ref.value] & ~trace.flow.live[ref.value]
            if is_cut and is_real(tensor) and maker is not None and goes_on(current, maker):
                trace.flow.live[ref.value] = trace.flow.depends[ref.value]
                passed.append(maker)
            arriving |= trace.flow.live[ref.value]
    return passed, arriving


def _is_of_script(tensor: Tensor) -> bool:
    """Whether a tensor has the backward pass that TorchScript writes for its code."""
    return tensor.grad_fn is not None and "DifferentiableGraph" in tensor.grad_fn.name()
