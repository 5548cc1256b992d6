"""What the positive rules ask of a pass: roles, nodes, graphs, and important heads."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.attention.matrices import (
    NodePairEntries,
    TensorFunction,
    exposed_attention,
    graphs_and_heads,
    shares_of_parallel,
)
from graphxai.engine.attention.node_ids import NONE, EntryIds, NodeIds, agree, aligned, compressed
from graphxai.engine.attention.reading import NodeAttention
from graphxai.engine.flow_queries import ancestors
from graphxai.engine.plan import ReplayPlan
from graphxai.engine.trace import Op
from graphxai.rules import positive as rules_of
from graphxai.rules.positive import PositiveRules
from graphxai.runtime.scope import Blocks

BackwardRule = Callable[[Tensor], tuple[Tensor, ...]]


@dataclass(eq=False)
class RelevancePass:
    """One pass under the positive rules.

    Args:
        important (B or 1, K, L, H): the heads that relevance passes through (see
            `rules.positive.through_important_entries`), or None for all.
        reads_attention: whether the relevance of attention is needed.
        attention: the probabilities (B, H, T, T) of every layer, whose "gradient" is their
            relevance. They are leaves if the rules do not go into queries and keys.
        chunks, reads_class_token: as on `rules.conservative.Tape`.
        head: the input (B, D) and the weights (C, D) of the linear map that makes the outputs,
            if there is one.
    """

    rules: PositiveRules
    important: Tensor | None = None
    reads_attention: bool = True
    attention: list[Tensor] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    reads_class_token: bool = False
    head: tuple[Tensor, Tensor] | None = None

    def explained(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return f_c = sum_c weights_c outputs_c, (B,), where a relevance of one begins.

        outputs, weights (B, C). If a linear map makes the outputs, it is merged with this sum into
        a map to one number, so that the two classes of a single logit differ.
        """
        f = (outputs * weights.to(outputs)).sum(-1)
        if self.head is None:
            return f
        x, weight = self.head
        row = (weights.to(weight) @ weight)[:, None]  # (B, 1, D)

        def backward(relevance: Tensor) -> tuple[Tensor, ...]:
            below = rules_of.through_linear(x.detach()[:, None], row, relevance[:, None, None])
            return (below[:, 0],)

        return with_backward_rule(f, backward, x)


_passes: Blocks[RelevancePass | None] = Blocks("graphxai_relevance", None)


@contextmanager
def relevance_pass(
    rules: PositiveRules, important: Tensor | None = None, reads_attention: bool = True
) -> Iterator[RelevancePass]:
    """Let models pass relevance back by these rules within the block."""
    state = RelevancePass(rules, important, reads_attention)
    with _passes.block(state):
        yield state


def current_relevance() -> RelevancePass | None:
    """Return the relevance pass of the innermost block in this thread, or None."""
    return _passes.get()


def with_backward_rule(value: Tensor, backward: BackwardRule, *inputs: Tensor) -> Tensor:
    """Return a value whose backward pass gives the inputs relevance, computed by a rule."""
    out: Tensor = _BackwardByRule.apply([value.detach()], backward, *inputs)
    return out


class _BackwardByRule(torch.autograd.Function):
    """Returns a value as it is, and calls a rule in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: list[Tensor], rule: BackwardRule, *inputs: Tensor) -> Tensor:
        ctx.rule = rule
        return value[0]  # inside a list, so that autograd does not turn it into a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.rule(relevance))


# -- what the positive rules ask of a pass ---------------------------------------------------------


# the graph and the head of each entry, and the important heads (B, K, H)
ImportantHeads = tuple[Tensor, Tensor, Tensor]
_NEGATES = kinds.that("negates")
_STATISTICS = kinds.SUMS | kinds.that("statistic")
_BETWEEN = _STATISTICS | kinds.ON_THE_WAY | kinds.that("exponent")


class PositiveContext:
    """Answers what the rules ask of a pass, and keeps what they note.

    Args:
        unknown: the path and the name of each operation without a rule.
        products: the values that are products of two signals, or sums of such products, which
            are products of matrices.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        nodes: NodeIds,
        state: RelevancePass,
        size: int,
        attention: Sequence[NodeAttention],
    ) -> None:
        self.plan, self.nodes, self.state, self.size = plan, nodes, state, size
        self.rules, self.trace = state.rules, plan.trace
        self.unknown: set[tuple[str, str]] = set()
        self.products: set[int] = set()
        self.last = _last_map(plan)
        self.weights = {product.op.number: product.weights for product in plan.roles.attention}
        state.chunks = [layer.chunk_of for layer in attention]
        firsts = sorted(set(state.chunks))  # the chunks of a matrix are one layer
        self._entries = {
            number: (firsts.index(layer.chunk_of), layer.entries)
            for layer in attention
            for number in layer.weights
        }

    def gives_share(self, constant: Tensor) -> bool:
        """Whether a constant in a sum gets a share, because it is as large as a whole input."""
        return self.rules.into_queries_and_keys and constant.dim() > 1

    def is_of_products(self, value: int) -> bool:
        """Whether a value consists of products, so that their sum is a product of matrices.

        The products may have been moved, scaled, joined or, like those of attention, divided by the
        sum of their weights.
        """

        def further(value: int, op: Op) -> set[int]:
            if value in self.products:
                return set()
            reads = self.trace.flow.merged.get(value) or self.plan.taken[op.number]
            return {read for read in reads if self.plan.signal[read]}

        def fits(value: int) -> bool:
            op = self.trace.op_of(value)
            if value in self.products or op is None:
                return value in self.products
            moved = value in self.trace.flow.merged or op.name in kinds.SAME
            return moved or (op.name in kinds.SCALINGS | _NEGATES and self._scales(op))

        return all(map(fits, ancestors(self.trace, value, further)))

    def _scales(self, op: Op) -> bool:
        """Whether an operation multiplies or divides by constants, or by a sum of weights."""
        if op.number in self.plan.roles.shares:
            return True
        signals = [ref for ref in op.reads if self.plan.signal[ref.value]]
        return len(signals) == 1 and (op.name not in kinds.QUOTIENTS or op.args[0] == signals[0])

    def centred(self, op: Op, signals: Collection[int]) -> int | None:
        """Return x if an operation is `x - m` with a mean, or another statistic, of x.

        So a norm passes relevance on unchanged. A mean of other nodes, as in a Laplacian, is no
        such statistic: all values between x and m belong to the node of x, or to its whole graph.
        """
        if op.name not in kinds.SUBTRACTS or len(signals) != 2:
            return None
        x, mean = (ref.value for ref in op.reads)
        if op.number in self.plan.roles.shifts:
            return x
        ids = self.nodes.by_value.get(x)
        if ids is None:
            return None

        def fits(value: int) -> bool:
            return self.trace.op_name(value) in _BETWEEN and self._is_of(value, ids)

        def further(value: int, op: Op) -> set[int]:
            reads = {ref.value for ref in op.reads if self.plan.signal[ref.value]}
            return reads - {x} if fits(value) else set()

        between = list(ancestors(self.trace, mean, further))
        summed_up = any(self.trace.op_name(value) in _STATISTICS for value in between)
        return x if summed_up and all(map(fits, between)) else None

    def _is_of(self, value: int, nodes: EntryIds) -> bool:
        """Whether a value is of whole graphs, or row by row of the same nodes or pairs."""
        ids = self.nodes.by_value.get(value)
        if ids is None:
            return False
        if ids.key is not None:
            pairs = nodes.key is not None and agree(ids.key, nodes.key)
            return pairs and agree(ids.query, nodes.query)
        if bool((ids.query <= NONE).all()) or agree(ids.query, nodes.query):
            return True
        return nodes.key is not None and agree(ids.query, nodes.key)

    def graphs_of(self, op: Op, result: Tensor) -> Tensor:
        """Return the graph (R,) of each row of a result.

        A row is an entry of its first axes, as many of them as have several graphs.
        """
        shape, ids = result.shape, self.nodes.by_value.get(op.out)
        if ids is None or not result.numel():
            return torch.zeros(1, dtype=torch.long, device=result.device)
        graph = aligned(compressed(self.nodes.graph(ids.query)), len(shape))
        several = [axis + 1 for axis, length in enumerate(graph.shape) if length > 1]
        axes = max(several, default=0)
        wide = graph.reshape(graph.shape[:axes]).expand(shape[:axes])
        return wide.flatten().unique(return_inverse=True)[1]

    # -- attention -----------------------------------------------------------------------------

    def exposing(self, entries: NodePairEntries) -> TensorFunction:
        """Return a function that puts attention (B, H, T, T) where relevance passes through it."""

        def expose(weights: Tensor) -> Tensor:
            leaf = not self.rules.into_queries_and_keys
            attention, _ = exposed_attention(
                weights.detach(), entries, self.size, self.nodes.tokens, leaf
            )
            share = shares_of_parallel(entries.inside(weights.detach()), attention, entries)
            zeros = torch.zeros_like(weights)

            def to_weights(relevance: Tensor) -> tuple[Tensor, ...]:
                of_entries = relevance.permute(0, 2, 3, 1)[entries.positions]
                of_entries = of_entries if share is None else of_entries * share
                return (entries.put_into(zeros, of_entries),)

            def to_attention(relevance: Tensor) -> tuple[Tensor, ...]:
                of_entries = relevance.flatten()[entries.index]
                of_attention = entries.summed(of_entries, len(attention), *attention.shape[2:])
                return of_attention, entries.put_into(relevance, torch.zeros_like(of_entries))

            if not leaf:
                attention = with_backward_rule(attention, to_weights, weights)
            self.state.attention.append(attention)
            return with_backward_rule(weights, to_attention, attention, weights)

        return expose

    def heads_of(
        self, op: Op, weights: Tensor, values: Tensor, f: Callable[[Tensor, Tensor], Tensor]
    ) -> ImportantHeads | None:
        """Return the graph and the head of every entry of f(weights, values).

        With them comes which heads of the layer are important. Returns None if all are.
        """
        important = self.state.important
        if important is None or op.number not in self._entries:
            return None
        layer, entries = self._entries[op.number]
        chosen = important[:, :, layer, : entries.index.shape[1]].expand(self.size, -1, -1)
        ones = torch.ones_like(values)
        parts = graphs_and_heads(weights, entries)
        graph, head, inside = (f(part.to(ones), ones) for part in parts)
        inside = inside.clamp(min=1)
        return (graph / inside).round().long(), (head / inside).round().long(), chosen


def _last_map(plan: ReplayPlan) -> int | None:
    """Return the number of the affine map with constant weights that makes the output (B, C)."""
    trace, value = plan.trace, plan.trace.output.value
    op = trace.op_of(value)
    while op is not None and op.name in kinds.WHOLE | kinds.ADDITIONS:
        signals = [ref.value for ref in op.reads if plan.signal[ref.value]]
        if len(signals) != 1 or trace.shape(op.out).numel() != trace.shape(signals[0]).numel():
            return None
        op = trace.op_of(signals[0])
    if op is None or op.name not in kinds.OF_ROWS or len(trace.shape(op.out)) != 2:
        return None
    return op.number if trace.shape(op.out) == trace.shape(value) else None
