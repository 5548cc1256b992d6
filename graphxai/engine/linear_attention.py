"""Write linear attention, `q (k^T v)`, into a trace with its matrix, as `(q k^T) v`.

Models sum over the keys first and never compute the matrix. So before attention is read, or
relevance is passed back by positive rules, the trace is changed: the second product becomes `w v`,
after a new operation `w = q k^T`. If the model adds a multiple of the values to the product, as in
`w v + c v`, the new matrix has c on its diagonal. The common divisor is found later (see `roles`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .node_ids import RESHAPES, NodeIds
from .trace import Op, Ref, Trace

aten = torch.ops.aten
PRODUCTS = {"mm", "bmm"}
MOVES = RESHAPES | {"expand", "transpose", "permute", "t"}


@dataclass(eq=False)
class _LinearAttention:
    """The two products of linear attention, and what the model adds to them.

    Args:
        inner: `k^T v`.
        outer: `q (k^T v)`.
        added: the addition of `c v`, if there is one, with the operations between (moves) and c
            (factor).
    """

    inner: Op
    outer: Op
    added: Op | None = None
    moves: list[Op] = field(default_factory=list)
    factor: float = 0.0


def insert_attention_matrices(trace: Trace, nodes: NodeIds) -> bool:
    """Write the matrices of linear attention into a trace, and return whether there are any."""
    layers = list(_find_linear_attention(trace, nodes))
    for layer in layers:
        _find_added(trace, layer)
    _make_room(trace, {layer.outer.number: 1 + (layer.added is not None) for layer in layers})
    for layer in layers:
        _write(trace, layer)
    trace.ops.sort(key=lambda op: op.number)
    return bool(layers)


def _find_linear_attention(trace: Trace, nodes: NodeIds) -> Iterator[_LinearAttention]:
    """Find products `q (k^T v)` that sum over the keys first."""
    for outer in trace.ops:
        if outer.name not in PRODUCTS or not trace.flow.live[outer.reads[0].value] & 1:
            continue
        query, moments = outer.reads
        value = trace.origin(moments.value, MOVES)
        inner = trace.op_of(value)
        if inner is None or inner.name not in PRODUCTS:
            continue
        keys = inner.reads[0]
        key_ids = nodes.by_value.get(keys.value)
        if (
            key_ids is not None
            and key_ids.key is None
            and key_ids.query.shape[-2] == 1  # channels by nodes
            and trace.shape(keys.value)[-1] == trace.shape(query.value)[-2]
            and all(_stays(trace, ref, inner) for ref in (*inner.reads, query))
            and trace.shape(value) == trace.shape(moments.value)
            and torch.equal(trace.tensor(value), trace.tensor(moments.value))
        ):
            yield _LinearAttention(inner, outer)


def _stays(trace: Trace, ref: Ref, op: Op) -> bool:
    """Whether nothing writes to a tensor after an operation."""
    written = trace.memory.written.get(trace.memory.storage[ref.slot])
    return (
        ref.slot not in trace.memory.unstable
        or written is None
        or trace.flow.maker[written] < op.number
    )


def _find_added(trace: Trace, layer: _LinearAttention) -> None:
    """Find an addition of a multiple of the values to the product, or to a view of it."""
    value, moved = layer.outer.out, trace.tensor(layer.inner.reads[1].value)
    moves: list[Op] = []
    while len(trace.flow.uses[value]) == 1:
        (op,) = (trace.ops[number] for number in trace.flow.uses[value])
        if op.name == "add" and op.reads[0].value == value and len(op.reads) == 2:
            factor, multiplied = _multiple(trace, op.reads[1].value)
            if not op.kwargs and torch.equal(moved, trace.tensor(multiplied)):
                layer.added, layer.moves, layer.factor = op, moves, factor
            return
        if op.name not in MOVES:
            return
        moves.append(op)
        moved, value = op.func(moved, *op.args[1:], **op.kwargs), op.out


def _multiple(trace: Trace, value: int) -> tuple[float, int]:
    """Split a value into a number and the value that it multiplies."""
    op = trace.op_of(value)
    if op is None or op.name != "mul":
        return 1.0, value
    other = op.args[1]
    if type(other) is Ref:
        tensor = trace.tensor(other.value)
        other = (
            tensor.item() if not tensor.dim() and not trace.flow.depends[other.value] & 1 else None
        )
    return (1.0, value) if other is None else (float(other), op.reads[0].value)


def _make_room(trace: Trace, before: dict[int, int]) -> None:
    """Renumber the operations, with gaps for new ones before some of them."""
    new, count = [], 0
    for number in range(len(trace.ops) + 1):
        count += before.get(number, 0)
        new.append(number + count)
    for op in trace.ops:
        op.number = new[op.number]
    trace.flow.maker[:] = [number if number < 0 else new[number] for number in trace.flow.maker]
    trace.flow.uses[:] = [[new[number] for number in uses] for uses in trace.flow.uses]
    trace.random_results = {new[number]: tensor for number, tensor in trace.random_results.items()}
    trace.first_exit = None if trace.first_exit is None else new[trace.first_exit]


def _write(trace: Trace, layer: _LinearAttention) -> None:
    """Write the matrix of one layer into the trace."""
    inner, outer = layer.inner, layer.outer
    (query, _), (keys, values) = outer.reads, inner.reads
    q, k, v = (trace.tensor(ref.value) for ref in (query, keys, values))
    with torch.no_grad():
        weights = outer.func(q, k)
        number = outer.number - 1 - (layer.added is not None)
        ref = _add(trace, outer, number, outer.func, outer.name, (query, keys), weights)
        if layer.added is not None:
            diagonal = layer.factor * torch.eye(weights.shape[-1]).to(weights)
            weights = weights + diagonal
            terms = (ref, _constant(trace, diagonal))
            ref = _add(trace, outer, number + 1, aten.add.Tensor, "add", terms, weights)
            _cancel_addition(trace, layer, outer.func(weights, v))
    _replace_arguments(trace, outer, (ref, values))


def _cancel_addition(trace: Trace, layer: _LinearAttention, out: Tensor) -> None:
    """Let the addition add zero to the product, which contains the sum already."""
    assert layer.added is not None
    if not layer.added.in_place:
        for op in (layer.outer, *layer.moves):
            out = out if op is layer.outer else op.func(out, *op.args[1:], **op.kwargs)
            trace.memory.tensors[op.makes[0].slot] = out
    _replace_arguments(
        trace, layer.added, (layer.added.reads[0], _constant(trace, out.new_zeros(())))
    )


def _constant(trace: Trace, tensor: Tensor) -> Ref:
    """Add a tensor that depends on nothing."""
    slot = trace.memory.add(tensor)
    return Ref(slot, trace.new_value(slot))


def _add(
    trace: Trace, like: Op, number: int, func: object, name: str, args: tuple[Ref, Ref], out: Tensor
) -> Ref:
    """Add an operation in the module in which another one, `like`, ran."""
    ref = _constant(trace, out)
    trace.flow.maker[ref.value] = number
    for read in args:
        trace.flow.depends[ref.value] |= trace.flow.depends[read.value]
        trace.flow.live[ref.value] |= trace.flow.live[read.value]
        trace.flow.uses[read.value].append(number)
    trace.ops.append(
        Op(number, func, name, args, {}, args, (ref,), ref, like.running, False,
           like.grad_enabled, like.decomposed)
    )  # fmt: skip
    return ref


def _replace_arguments(trace: Trace, op: Op, args: tuple[Ref, Ref]) -> None:
    """Replace the arguments of an operation."""
    for ref in op.reads:
        trace.flow.uses[ref.value].remove(op.number)
    op.args = op.reads = args
    for ref in args:
        trace.flow.uses[ref.value].append(op.number)
