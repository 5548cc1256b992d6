"""Linear attention, `q (k^T v)`, in a recorded list with its matrix, as `(q k^T) v`.

Models sum over the keys first and never compute the matrix. Before attention is read, or relevance
passed back by positive rules, the list is changed: the second product becomes `w v`, after a new
operation `w = q k^T`. If a multiple of the own values is added to it, `w v + c v`, the new matrix
has that on its diagonal. What all is divided by is found later (see `marks`).
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
    """The products `k^T v` and `q (k^T v)`; an addition of `c v`, the moves before it, and c."""

    inner: Op
    outer: Op
    added: Op | None = None
    moves: list[Op] = field(default_factory=list)
    factor: float = 0.0


def insert_attention_matrices(trace: Trace, nodes: NodeIds) -> bool:
    """Change the list; whether it has linear attention."""
    found = list(_find_linear_attention(trace, nodes))
    for one in found:
        _find_added(trace, one)
    _make_room(trace, {one.outer.number: 1 + (one.added is not None) for one in found})
    for one in found:
        _write(trace, one)
    trace.ops.sort(key=lambda op: op.number)
    return bool(found)


def _find_linear_attention(trace: Trace, nodes: NodeIds) -> Iterator[_LinearAttention]:
    for outer in trace.ops:
        if outer.name not in PRODUCTS or not trace.live[outer.reads[0].value] & 1:
            continue
        query, moments = outer.reads
        value = trace.origin(moments.value, MOVES)
        inner = trace.made(value)
        if inner is None or inner.name not in PRODUCTS:
            continue
        keys = inner.reads[0]
        of_nodes = nodes.by_value.get(keys.value)
        if (
            of_nodes is not None
            and of_nodes.key is None
            and of_nodes.query.shape[-2] == 1  # channels by nodes
            and trace.shape(keys.value)[-1] == trace.shape(query.value)[-2]
            and all(_stays(trace, ref, inner) for ref in (*inner.reads, query))
            and trace.shape(value) == trace.shape(moments.value)
            and torch.equal(trace.tensor(value), trace.tensor(moments.value))
        ):
            yield _LinearAttention(inner, outer)


def _stays(trace: Trace, ref: Ref, op: Op) -> bool:
    """Whether a tensor is not written to after an operation."""
    written = trace.written.get(trace.storage[ref.slot])
    return ref.slot not in trace.unstable or written is None or trace.maker[written] < op.number


def _find_added(trace: Trace, found: _LinearAttention) -> None:
    """Find an addition of a multiple of the values to the product, or to a view of it."""
    value, moved = found.outer.out, trace.tensor(found.inner.reads[1].value)
    moves: list[Op] = []
    while len(trace.uses[value]) == 1:
        (op,) = (trace.ops[number] for number in trace.uses[value])
        if op.name == "add" and op.reads[0].value == value and len(op.reads) == 2:
            factor, own = _multiple(trace, op.reads[1].value)
            if not op.kwargs and torch.equal(moved, trace.tensor(own)):
                found.added, found.moves, found.factor = op, moves, factor
            return
        if op.name not in MOVES:
            return
        moves.append(op)
        moved, value = op.func(moved, *op.args[1:], **op.kwargs), op.out


def _multiple(trace: Trace, value: int) -> tuple[float, int]:
    """A number and the value that it multiplies."""
    op = trace.made(value)
    if op is None or op.name != "mul":
        return 1.0, value
    other = op.args[1]
    if type(other) is Ref:
        tensor = trace.tensor(other.value)
        other = tensor.item() if not tensor.dim() and not trace.depends[other.value] & 1 else None
    return (1.0, value) if other is None else (float(other), op.reads[0].value)


def _make_room(trace: Trace, before: dict[int, int]) -> None:
    """Number the operations anew, with room for new ones before some of them."""
    new, count = [], 0
    for number in range(len(trace.ops) + 1):
        count += before.get(number, 0)
        new.append(number + count)
    for op in trace.ops:
        op.number = new[op.number]
    trace.maker[:] = [number if number < 0 else new[number] for number in trace.maker]
    trace.uses[:] = [[new[number] for number in uses] for uses in trace.uses]
    trace.drawn = {new[number]: tensor for number, tensor in trace.drawn.items()}
    trace.left = None if trace.left is None else new[trace.left]


def _write(trace: Trace, found: _LinearAttention) -> None:
    inner, outer = found.inner, found.outer
    (query, _), (keys, values) = outer.reads, inner.reads
    q, k, v = (trace.tensor(ref.value) for ref in (query, keys, values))
    with torch.no_grad():
        weights = outer.func(q, k)
        number = outer.number - 1 - (found.added is not None)
        ref = _add(trace, outer, number, outer.func, outer.name, (query, keys), weights)
        if found.added is not None:
            here = found.factor * torch.eye(weights.shape[-1]).to(weights)
            weights = weights + here
            terms = (ref, _constant(trace, here))
            ref = _add(trace, outer, number + 1, aten.add.Tensor, "add", terms, weights)
            _leave_out(trace, found, outer.func(weights, v))
    _reread(trace, outer, (ref, values))


def _leave_out(trace: Trace, found: _LinearAttention, out: Tensor) -> None:
    """Let the addition add nothing to the product, which has the sum already."""
    assert found.added is not None
    if not found.added.in_place:
        for op in (found.outer, *found.moves):
            out = out if op is found.outer else op.func(out, *op.args[1:], **op.kwargs)
            trace.tensors[op.makes[0].slot] = out
    _reread(trace, found.added, (found.added.reads[0], _constant(trace, out.new_zeros(()))))


def _constant(trace: Trace, tensor: Tensor) -> Ref:
    """A new tensor that depends on nothing."""
    slot = trace.new_slot(tensor)
    return Ref(slot, trace.new_value(slot))


def _add(
    trace: Trace, like: Op, number: int, func: object, name: str, args: tuple[Ref, Ref], out: Tensor
) -> Ref:
    """A new operation in the module of another one."""
    ref = _constant(trace, out)
    trace.maker[ref.value] = number
    for read in args:
        trace.depends[ref.value] |= trace.depends[read.value]
        trace.live[ref.value] |= trace.live[read.value]
        trace.uses[read.value].append(number)
    trace.ops.append(
        Op(number, func, func, name, args, {}, args, (ref,), ref, like.within, False, like.graded,
           like.nested)
    )  # fmt: skip
    return ref


def _reread(trace: Trace, op: Op, args: tuple[Ref, Ref]) -> None:
    """Let an operation have other arguments."""
    for ref in op.reads:
        trace.uses[ref.value].remove(op.number)
    op.args = op.reads = args
    for ref in args:
        trace.uses[ref.value].append(op.number)
