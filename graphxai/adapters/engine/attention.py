"""What methods that read attention see of a recorded pass.

Attention between nodes stands as (B, H, T, T) in the way of the gradient. Attention without a
softmax is left out: `relu(q k^T) v`, sparsemax and `phi(q) (phi(k)^T v)` have no probabilities to
read. It is found by its products: weights of pairs of nodes, or sums over nodes, made of a product
of two signals, meet values in another product. A gate on an edge is not meant, nor are weights that
a network computes from both ends of an edge.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from graphxai.rules.conservative import Rules, current_tape
from graphxai.runtime.scope import Blocks

from ..layout import NodeLayout
from .node_ids import NONE, EntryIds, NodeIds, agree, compressed
from .replay import Replay, ReplayPlan, ValueReplacement
from .roles import AttentionProduct, both_ways, factors_of
from .trace import Op, Trace
from .vocabulary import MATRIX_PRODUCTS, PRODUCTS, SOFTMAX

Read = Callable[[Tensor], Tensor]
SMALL = 1e-6  # of attention to what is padding
MIXING = PRODUCTS - {"div"}
JOINING = {"cat", "stack", "copy", "index_put", "index_copy", "slice_scatter"}  # rows with others


@dataclass(frozen=True, eq=False)
class NodePairEntries:
    """Where those entries of weights stand that are between two nodes.

    index (E, H): their places in the flattened weights, with the heads beside each other.
    positions: graph, query and key (E,). divisor (E, H): what each of them is divided by later.
    """

    index: Tensor
    positions: tuple[Tensor, Tensor, Tensor]
    divisor: Tensor | None = None

    def inside(self, weights: Tensor) -> Tensor:
        """Weights between two nodes, (E, H), as they are once they are divided."""
        found = weights.take(self.index)
        return found if self.divisor is None else found / self.divisor

    def summed(self, inside: Tensor, *shape: int) -> Tensor:
        """Entries (E, H) in (B, H, Q, T), whose shape is (B, Q, T); parallel edges are added."""
        empty = inside.new_zeros(*shape, inside.shape[1])
        return empty.index_put(self.positions, inside, accumulate=True).permute(0, 3, 1, 2)


def node_pair_entries(
    trace: Trace, met: AttentionProduct, nodes: NodeIds, size: int
) -> NodePairEntries | None:
    """The places of weights in a batch of `size` graphs; None: they are not between nodes.

    The key is the node whose values the weights meet.
    """
    numbers = nodes.by_value.get(met.weights)
    if numbers is None or numbers.key is None:
        return None
    others = (ref.value for ref in met.product.reads if ref.value != met.weights)
    values = [nodes.by_value[value] for value in others if value in nodes.by_value]
    if values and values[0].query.dim() > 1:
        mixed = values[0].query if met.product.name == "mul" else values[0].query.mT
        if not agree(numbers.key, mixed) and agree(numbers.query, mixed):
            numbers = EntryIds(numbers.key, numbers.query)
    place = _place(trace.tensor(met.weights), numbers, nodes, size)
    if place is None or met.divisor is None:
        return place
    divisor = _by_query(trace, met, nodes, size)
    graph, query, _ = place.positions
    return None if divisor is None else replace(place, divisor=divisor[graph, query])


def _by_query(trace: Trace, met: AttentionProduct, nodes: NodeIds, size: int) -> Tensor | None:
    """What the weights of every query are divided by, (B, T, H)."""
    assert met.divisor is not None
    divisor, numbers = trace.tensor(met.divisor).detach(), nodes.by_value.get(met.divisor)
    divisor = divisor if met.origin.name == "div" else 1 / divisor
    if numbers is None or numbers.key is not None:
        return None
    place = _place(divisor, EntryIds(numbers.query, numbers.query), nodes, size)
    if place is None:
        return None
    empty = divisor.new_ones(size, nodes.tokens, place.index.shape[1])
    return empty.index_put(place.positions[:2], place.inside(divisor))


def _place(weights: Tensor, numbers: EntryIds, nodes: NodeIds, size: int) -> NodePairEntries | None:
    """The places of entries with numbers of two nodes each."""
    assert numbers.key is not None
    query, key = (_padded(t, weights.dim()) for t in (numbers.query, numbers.key))
    index = torch.arange(weights.numel(), device=weights.device).view(weights.shape)
    if (split := _heads_beside_graphs(weights, query, key, size)) is not None:
        index, query, key = index.unflatten(*split), *(_split(t, *split) for t in (query, key))
    real = [a for a in range(index.dim()) if query.shape[a] != 1 or key.shape[a] != 1]
    rest = [a for a in range(index.dim()) if a not in real]
    wide = [index.shape[a] for a in real] + [1] * len(rest)
    q, k = (t.permute(*real, *rest).expand(wide).reshape(-1) for t in (query, key))
    index = index.permute(*real, *rest).reshape(-1, math.prod(index.shape[a] for a in rest))
    # keys that are no nodes, such as a token of the model's own
    others = (q > NONE) & (k == NONE) & (weights.detach().take(index).abs().amax(1) > SMALL)
    if bool(others.any()):
        return None
    valid = (q > NONE) & (k > NONE) & (nodes.graph(q) == nodes.graph(k))
    positions = (nodes.graph(q)[valid], q[valid] % nodes.tokens, k[valid] % nodes.tokens)
    return NodePairEntries(index[valid], positions)


def exposed_attention(
    weights: Tensor, place: NodePairEntries, size: int, tokens: int, leaf: bool
) -> tuple[Tensor, Tensor]:
    """Attention (B, H, T, T), and the weights computed from it.

    It is (B, H, 1, T) if only the graph token attends. leaf: attention is a leaf that requires a
    gradient, with nothing behind it.
    """
    inside, where = place.inside(weights), place.positions
    rows = 1 if len(inside) and not where[1].any() else tokens
    attention = place.summed(inside, size, rows, tokens)
    if leaf:
        attention = attention.detach().requires_grad_()
    used = attention.permute(0, 2, 3, 1)[where]
    if (share := shares_of_parallel(inside, attention, place)) is not None:
        used = used * share
    if place.divisor is not None:
        used = used * place.divisor
    return attention, weights.put(place.index, used)


def shares_of_parallel(inside: Tensor, attention: Tensor, place: NodePairEntries) -> Tensor | None:
    """The share that each of the weights (R, H) has of its entry; None: no edges are parallel."""
    where = place.positions
    count = inside.new_zeros(attention.permute(0, 2, 3, 1).shape[:3])
    count.index_put_(where, inside.new_ones(len(inside)), accumulate=True)
    if not len(inside) or float(count.max()) <= 1:
        return None
    total = attention.detach().permute(0, 2, 3, 1)[where]
    return torch.where(total == 0, 1 / count[where][:, None], inside.detach() / total)


def entries(weights: Tensor, place: NodePairEntries) -> tuple[Tensor, Tensor, Tensor]:
    """For every entry of weights its graph, its head, and one if it is between nodes, else zero."""
    outside, (count, heads) = torch.zeros_like(weights, dtype=torch.long), place.index.shape
    graph = place.positions[0][:, None].expand(-1, heads)
    head = torch.arange(heads, device=weights.device).expand(count, -1)
    graph, head, inside = (
        outside.put(place.index, own) for own in (graph, head, torch.ones_like(head))
    )
    return graph, head, inside


def _padded(numbers: Tensor, dims: int) -> Tensor:
    return numbers.reshape((*(1,) * (dims - numbers.dim()), *numbers.shape))


def _heads_beside_graphs(
    weights: Tensor, query: Tensor, key: Tensor, size: int
) -> tuple[int, tuple[int, int]] | None:
    """An axis that holds graphs and heads, and how it splits into both."""
    for axis, length in enumerate(weights.shape):
        if length <= size or length % size or (query.shape[axis] == 1 and key.shape[axis] == 1):
            continue
        count = length // size
        for parts, heads in (((size, count), axis + 1), ((count, size), axis)):
            if all(_split(t, axis, parts).shape[heads] == 1 for t in (query, key)):
                return axis, parts
    return None


def _split(numbers: Tensor, axis: int, parts: tuple[int, int]) -> Tensor:
    if numbers.shape[axis] == 1:
        return numbers.unsqueeze(axis)
    return compressed(numbers.unflatten(axis, parts))


def exposing(place: NodePairEntries, layout: NodeLayout, rules: Rules) -> Read:
    """Put attention on the tape, and return the weights computed from it."""

    def read(weights: Tensor) -> Tensor:
        tape = current_tape()
        assert tape is not None
        leaf = tape.attention_gradients and rules.attention
        attention, found = exposed_attention(weights, place, len(layout.mask), layout.tokens, leaf)
        tape.attention.append(attention)
        return found

    return read


# -- which attention -------------------------------------------------------------------------------


class NodeAttention(NamedTuple):
    """Attention between nodes: where it meets values, and where its entries stand.

    products: by number, all products in which the same weights meet values, and the weights there.
    chunk_of: the place, among all attention, of the first that holds rows of the same matrix.
    """

    met: AttentionProduct
    place: NodePairEntries
    products: dict[int, int]
    chunk_of: int


def attention_replacements(
    seen: Sequence[NodeAttention], exposing: Callable[[NodePairEntries], Read]
) -> dict[int, ValueReplacement]:
    """What is read in each product; weights that meet values in several are read once."""
    reads = ((one, _once(exposing(one.place))) for one in seen)
    return {
        number: ValueReplacement(weights, read)
        for one, read in reads
        for number, weights in one.products.items()
    }


def _once(read: Read) -> Read:
    found: list[Tensor] = []

    def again(weights: Tensor) -> Tensor:
        if not found:
            found.append(read(weights))
        return found[0]

    return again


def attention_between_nodes(
    made: ReplayPlan, nodes: NodeIds, size: int, name: str, together: bool = False
) -> list[NodeAttention]:
    """Attention that the output depends on, in order; a warning names what is not between nodes.

    Raises NotTogether if the graphs of the batch have to be alone for it.
    """
    found: list[NodeAttention] = []
    left_out: set[str] = set()
    unread: set[str] = set()
    known: set[int] = set()
    first, passing = made.marks.first, {op.number for op in made.passing}
    for met in sorted(made.marks.attention, key=lambda m: m.product.number):
        if met.product.number not in passing:
            continue
        if met.origin.number in known:
            read = next((one for one in found if one.met.origin is met.origin), None)
            if read and first[read.met.weights] == first[met.weights]:
                read.products[met.product.number] = met.weights
            elif read and nodes.are_pairs(met.weights):
                unread.add(met.product.path or "the model")
            continue
        known.add(met.origin.number)
        if any(met.product.number in one.products for one in found):
            continue  # a difference or sum of softmaxes, which is read as a whole
        place = node_pair_entries(made.trace, met, nodes, size)
        if place is not None:
            chunk_of = _chunk_of(made.trace, nodes, found, met, place)
            found.append(NodeAttention(met, place, {met.product.number: met.weights}, chunk_of))
        elif met.divisor is not None and size > 1 and not together:
            raise GraphsNeedOwnPass  # padding may be among what it is divided by
        elif not _pools(made.trace, nodes, met):
            left_out.add(met.product.path or "the model")
    left_out |= {op.path or "the model" for op in products_without_softmax(made, nodes)}
    if left_out:
        warnings.warn(
            f"{name} weights values in a way that is not, or may not be, attention between the"
            " nodes of the graphs (it involves latents, clusters, experts or an extra token, or it"
            " has no softmax); methods that read attention leave it out:"
            f" {'; '.join(sorted(left_out))}.",
            stacklevel=8,
        )
    if unread:
        warnings.warn(
            f"{name} multiplies parts or multiples of the same softmax with values in several"
            " products; methods that read attention read the first product and leave out those in"
            f" {'; '.join(sorted(unread))}.",
            stacklevel=8,
        )
    graphs: dict[int, set[int]] = {}
    for seen in found:
        graphs.setdefault(seen.chunk_of, set()).update(seen.place.positions[0].unique().tolist())
    if size > 1 and not together and any(len(those) < size for those in graphs.values()):
        raise GraphsNeedOwnPass
    return found


def _chunk_of(
    trace: Trace,
    nodes: NodeIds,
    before: Sequence[NodeAttention],
    met: AttentionProduct,
    place: NodePairEntries,
) -> int:
    """The first attention whose rows are put beside those of a new one, which has none of them.

    So a model computes the rows of one matrix in chunks. The heads of a layer have the same rows.
    """
    heads, rows = place.index.shape[1], _rows(place, nodes)
    for k, seen in enumerate(before):
        if seen.chunk_of != k or seen.place.index.shape[1] != heads:
            continue
        chunks = (_rows(one.place, nodes) for one in before if one.chunk_of == k)
        if any(bool(torch.isin(chunk, rows).any()) for chunk in chunks):
            continue
        products = (met.product.out, seen.met.product.out)
        if set.intersection(*(_put_beside(trace, nodes, value) for value in products)):
            return k
    return len(before)


def _rows(place: NodePairEntries, nodes: NodeIds) -> Tensor:
    """The numbers of the nodes that attend."""
    graph, query, _ = place.positions
    return graph * nodes.tokens + query


def _put_beside(trace: Trace, nodes: NodeIds, value: int) -> set[tuple[str, int]]:
    """Where rows of nodes, or what is made of them row by row, are put beside others."""
    found, seen, todo = set[tuple[str, int]](), {value}, [value]
    own = nodes.by_value.get(value)
    while todo and own is not None:
        for number in trace.flow.uses[todo.pop()]:
            op = trace.ops[number]
            if op.name in JOINING:
                memory = trace.memory.storage[op.makes[0].slot]
                found.add(("memory", memory) if op.in_place else ("operation", number))
                continue
            for ref in op.makes:
                numbers = nodes.by_value.get(ref.value)
                if ref.value not in seen and numbers is not None and numbers.key is None:
                    seen.add(ref.value)
                    if torch.equal(numbers.query.unique(), own.query.unique()):
                        todo.append(ref.value)
    return found


class GraphsNeedOwnPass(Exception):
    """Attention of a batch cannot be read, but may be in each graph alone.

    The model attends in one graph after the other, or counts padding.
    """


def _pools(trace: Trace, nodes: NodeIds, met: AttentionProduct) -> bool:
    """Whether weights are of single nodes and make one row of them, as in a readout."""
    if nodes.are_pairs(met.weights) is not False:
        return False
    if met.product.name not in MATRIX_PRODUCTS:
        return True
    first = met.product.reads[0].value == met.weights
    return trace.shape(met.weights)[-2 if first else -1] == 1


def products_without_softmax(made: ReplayPlan, nodes: NodeIds) -> Iterator[Op]:
    """Products in which weights that are no softmax mix the values of nodes."""
    known = {met.product.number for met in made.marks.attention}
    for op in made.passing:
        if op.name not in MIXING or op.number in known:
            continue
        factors = _signals(made, op)
        for weights, values in both_ways(factors) if len(set(factors)) == 2 else ():
            of_weights, of_values = (nodes.by_value.get(value) for value in (weights, values))
            if of_weights is None or of_values is None or of_values.key is not None:
                continue
            if of_weights.key is not None:
                kind, narrow = _is_of_pairs, weights
            elif _is_of_graphs(of_weights) and _is_of_nodes(of_values):
                kind, narrow = _is_moments, values
            else:
                continue
            if _widens(made, op, narrow) and _reaches(made, nodes, weights, kind):
                yield op


def _signals(made: ReplayPlan, op: Op) -> list[int]:
    """The factors of a product that depend on the nodes."""
    return [value for value in factors_of(op) if made.trace.flow.live[value] & 1]


def _widens(made: ReplayPlan, op: Op, factor: int) -> bool:
    """Whether a product is of matrices, or has more entries than this factor."""
    size = made.trace.shape(op.out).numel()
    return op.name in MATRIX_PRODUCTS or size > made.trace.shape(factor).numel()


def _reaches(
    made: ReplayPlan, nodes: NodeIds, value: int, kind: Callable[[ReplayPlan, NodeIds, Op], bool]
) -> bool:
    """Whether a value is made of a product of this kind, other than by way of a softmax."""

    def further(value: int, op: Op) -> Iterator[int]:
        own = None if op.name in SOFTMAX else nodes.are_pairs(value)
        for ref in op.reads if own is not None else ():
            if made.trace.flow.live[ref.value] & 1 and nodes.are_pairs(ref.value) is own:
                yield ref.value

    ops = map(made.trace.op_of, made.trace.ancestors(value, further))
    return any(op and op.name not in SOFTMAX and kind(made, nodes, op) for op in ops)


def _is_of_pairs(made: ReplayPlan, nodes: NodeIds, op: Op) -> bool:
    """Whether an operation makes numbers of pairs from a product, or distances, of two signals."""
    if not nodes.are_pairs(op.out):
        return False
    if op.name == "_cdist_forward":
        return True
    found = [nodes.are_pairs(value) for value in set(_signals(made, op))]
    return op.name in MIXING and found == [False, False]


def _is_moments(made: ReplayPlan, nodes: NodeIds, op: Op) -> bool:
    """Whether an operation sums products of two channels of the nodes, as in `k^T v`."""
    factors = set(_signals(made, op))
    if op.name not in MIXING or len(factors) != 2:
        return False
    shape, sizes = made.trace.shape(op.out), [made.trace.shape(value) for value in factors]
    if op.name == "mul":
        return shape.numel() > max(size.numel() for size in sizes)
    found = [nodes.by_value.get(value) for value in factors]
    return all(n is not None and _is_of_nodes(n) for n in found) and min(shape[-2:]) > 1


def _is_of_graphs(numbers: EntryIds) -> bool:
    """Whether all entries are of several nodes."""
    return bool((numbers.query <= NONE).all())


def _is_of_nodes(numbers: EntryIds) -> bool:
    """Whether entries are of single nodes."""
    return numbers.key is None and bool((numbers.query >= 0).any())


# -- the layer around it ---------------------------------------------------------------------------


class LayerInput:
    """Rows that enter a module with attention: the same tensor, with its graph."""

    def __init__(self, rows: Tensor, numbers: Tensor, layout: NodeLayout) -> None:
        self.rows = rows
        self._numbers, self._layout = numbers.squeeze(-1), layout

    def per_token(self, values: Tensor) -> Tensor:
        """One value per row as (B, T); zero where there is no token."""
        numbers = self._numbers.expand(values.shape)
        real = numbers > NONE
        by_token = values.new_zeros(len(self._layout.mask) * self._layout.tokens)
        by_token[numbers[real]] = values[real]
        return by_token.view(len(self._layout.mask), self._layout.tokens)


_layer_inputs: Blocks[list[LayerInput | None] | None] = Blocks("graphxai_layer_inputs", None)


def current_layer_inputs() -> list[LayerInput | None] | None:
    """The layer inputs of the innermost `layer_inputs` block in this thread."""
    return _layer_inputs.get()


@contextmanager
def layer_inputs() -> Iterator[list[LayerInput | None]]:
    """Note what enters the modules with attention in recorded passes within the block.

    Attention must be recorded as well (`rules.conservative.record`); the two lists correspond. The
    rows are the first tensor passed to the innermost running module that receives one row per node:
    the query of `nn.MultiheadAttention`, x of a convolution. None if there is no such module.
    """
    with _layer_inputs.block([]) as noted:
        assert noted is not None
        yield noted


def layer_input_of(
    trace: Trace, nodes: NodeIds, met: AttentionProduct, again: Replay, layout: NodeLayout
) -> LayerInput | None:
    """The first tensor given to the innermost running module that gets one row per node."""
    count = int(layout.mask.sum())
    for running in met.product.running.outward():
        slot = None if running.rows is None else trace.memory.slots.get(id(running.rows))
        rows = None if slot is None else again.now[slot]
        if slot is None or rows is None or not rows.requires_grad or rows.dim() not in (2, 3):
            continue
        numbers = nodes.by_value.get(trace.memory.latest[slot])
        if numbers is None or numbers.key is not None or numbers.query.shape[-1] != 1:
            continue
        single = numbers.query.expand((*rows.shape[:-1], 1))
        of_nodes = single[single >= 0]
        of_nodes = of_nodes[of_nodes % layout.tokens > 0]
        if len(of_nodes) == count == len(of_nodes.unique()):
            return LayerInput(rows, single, layout)
    return None
