"""Measure what the output loses without a node.

Nodes are removed one at a time, in sampled orders, or in the order that the method finds. All
methods only run the model. There are two ways to remove nodes: `mask` excludes the node's key from
every attention, and `zero` sets its embedding to zero. The structure of the rest stays the same.

Shapley values also come from one backward pass for each of a few random coalitions, which gives the
marginal of every node, whether it is present or absent (see `path_marginals` and
`wrapping.presence`). Its mean over coalitions of all sizes approximates the Shapley value. These
marginals are of first order outside softmax and pooling, so the mean is biased: it levels off,
however many coalitions there are.

Sampled orders have no bias, but much noise. For the estimates g of the coalitions and s of the
orders, with a squared standard error V of s in all, James and Stein's estimator (1961) lies between
them:

    g + w (s - g),   w = max(0, 1 - V / |s - g|^2)

As orders are added, V falls and w grows to 1, so that the bias vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget, Target, ValueOfOutputs
from graphxai.models.graphormer import Graphormer
from graphxai.runtime.progress import bar_of_passes

from .base import Attribution, Explainer, scored
from .control import generator_of, generator_of_graph
from .orders import (
    Choices,
    EachLeftOut,
    gains,
    mean_and_error,
    mean_size,
    prefixes,
    ranks,
    relative,
    require_coalitions,
)
from .passes import (
    Operator,
    encode_parts,
    encode_variants,
    in_passes,
    structural_bias,
)
from .path_marginals import marginals
from .registry import get_explainer, register
from .traits import Traits
from .wrapped import once_for_all_nodes


class _Removal(Explainer):
    """A method that compares outputs with and without some nodes."""

    nodes: Sequence[int] | None = None

    def __init__(self, operator: Operator = "mask", nodes: Iterable[int] | None = None) -> None:
        if operator == "delete":
            raise ValueError(
                "operator 'delete' re-encodes subgraphs, but a batch no longer has the edges for"
                " that; use 'mask' or 'zero'."
            )
        if operator not in get_args(Operator):
            raise ValueError(f"operator must be 'mask' or 'zero', not {operator!r}.")
        self.operator = operator
        if nodes is not None:
            self.nodes = sorted({int(node) for node in nodes})
            if not self.nodes or self.nodes[0] < 0:
                raise ValueError(f"nodes must be numbers of nodes from 0, not {nodes!r}.")

    def _removed(self, batch: GraphBatch) -> Tensor:
        """Return True at the nodes (B, N) that the method removes."""
        if self.nodes is None:
            return batch.mask
        if self.nodes[-1] >= (smallest := int(batch.num_nodes.min())):
            raise ValueError(
                f"there is no node {self.nodes[-1]}: a graph has nodes 0 to {smallest - 1}."
            )
        removed = torch.zeros_like(batch.mask)
        removed[:, self.nodes] = True
        return removed

    @torch.no_grad()
    def _outputs(self, model: ExplainableModel, batch: GraphBatch, keep: Choices) -> Tensor:
        """Compute outputs (K, B, num_outputs) with only the nodes that `keep` (K, B, N) marks."""
        tokens, bias = model.embed(batch), structural_bias(model, batch)
        if bias is not None:
            return encode_parts(model, tokens, batch, keep[:], bias, self.operator)
        outputs = []
        advice = "nodes=[...] removes only these nodes." if self.nodes is None else ""
        with bar_of_passes(self.title, len(keep), advice) as advance:
            for part in in_passes(batch, len(keep)):
                kept = keep[part]
                if self.operator == "mask":
                    variants = tokens.expand(len(kept), -1, -1, -1)
                    outputs.append(encode_variants(model, variants, batch, kept, bias))
                else:
                    stays = torch.cat([kept.new_ones(*kept.shape[:2], 1), kept], dim=-1)
                    zeroed = tokens * stays[..., None]
                    outputs.append(encode_variants(model, zeroed, batch, bias=bias))
                advance(len(kept))
        return torch.cat(outputs)


@register
class Occlusion(_Removal):
    """How much the output loses without a node, `R_i = f_c(all) - f_c(all without i)`.

    On a large graph, a line on stderr says how long all passes will take.

    Args:
        operator: how nodes are removed, "mask" or "zero".
        nodes: the numbers of the nodes to remove, by default of all. The others get zero.
    """

    name = "occlusion"
    title = "Occlusion"
    source = "Zeiler 2014"
    traits = Traits(in_output_units=True, cost="1 forward per node", nodes_share_passes=True)

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        (numbers,) = self._removed(batch).any(0).nonzero(as_tuple=True)
        keep = EachLeftOut(numbers, batch.mask)
        # (1 + M, B, num_outputs)
        outputs = once_for_all_nodes(lambda: self._outputs(model, batch, keep))
        resolved = target.resolve(model.config, outputs[0])
        f = resolved(outputs)
        scores = f.new_zeros(len(batch), batch.mask.shape[1] + 1)  # the graph token stays
        scores[:, numbers + 1] = (f[0] - f[1:]).T
        return scored(scores, batch, outputs[0], resolved)


@register
class ShapleySampling(_Removal):
    """The mean gain of f_c when a node joins the nodes before it, over random orders of the nodes.

    Averaging over all orders would be exact. For any number of orders the scores sum to `f_c(all) -
    f_c(none)`. The output of the graph token alone, f_c(none), is listed under `biases` in the
    ledger. Orders depend on the seed and on the graph's node features. The spread is the standard
    error over orders, or over pairs if all orders are paired. A single order or pair has no spread.

    With `gates`, a few backward passes say before any order what every node adds at random
    coalitions. The orders then correct these estimates. On 10
    molecules of BACE with 38 atoms on average, 16 coalitions without any order, in 32 passes, have
    nearly the error of 8 orders, in 306. 16 coalitions and 8 orders have the error of 13 orders.
    Without orders there is no spread, and more coalitions do not converge to Shapley values.

    Args:
        operator: how nodes are removed, "mask" or "zero".
        permutations: the number of orders. With `gates` it may be 0, or else has to be at least 4.
        seed: draws the orders.
        antithetic: whether every order is paired with its reverse.
        gates: the number of coalitions, an even number such as 16. It needs the operator "mask".
        nodes: the numbers of the nodes that join, by default of all. The others are always present
            and get zero, and the scores sum to `f_c(all) - f_c(the others)`.
    """

    name = "shapley_sampling"
    title = "Shapley values (sampled)"
    source = "Strumbelj 2010"
    traits = Traits(
        adds_up=True, cost="8 forward per node", draws_random_numbers=True, nodes_share_passes=True
    )

    def __init__(
        self,
        operator: Operator = "mask",
        permutations: int = 8,
        seed: int = 0,
        antithetic: bool = True,
        gates: int = 0,
        nodes: Iterable[int] | None = None,
    ) -> None:
        super().__init__(operator, nodes)
        if gates and nodes is not None:
            raise ValueError("gates measure all nodes: leave out nodes=.")
        if gates < 0 or gates % 2:
            raise ValueError(f"gates must be an even number of coalitions, not {gates}.")
        if gates and operator != "mask":
            raise ValueError(f"gates need the operator 'mask', not {operator!r}.")
        if gates and 0 < permutations < 4:
            raise ValueError("gates need at least 4 permutations to correct them, or none.")
        if permutations < 1 and not gates:
            raise ValueError(f"permutations must be at least 1, not {permutations}.")
        self.permutations = permutations
        self.seed = seed
        self.antithetic = antithetic
        self.gates = gates

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        if not self.permutations:
            return self._by_coalitions(model, batch, target)
        joining = self._removed(batch)
        most = int(joining.sum(-1).max())  # M nodes that join
        places = self._places(batch, joining)  # (P, B, N)
        keep = prefixes(places, most)  # (M + 1, P, B, N)
        outputs = once_for_all_nodes(lambda: self._outputs(model, batch, keep.flatten(0, 1)))
        outputs = outputs.unflatten(0, (most + 1, -1))  # (M + 1, P, B, num_outputs)
        resolved = target.resolve(model.config, outputs[-1, 0])
        f = resolved(outputs)  # (M + 1, P, B)
        by_place = (f[1:] - f[:-1]).permute(1, 2, 0)  # (P, B, M) by position in the order
        samples = by_place.gather(-1, places.clamp(0, most - 1)).masked_fill(~joining, 0.0)
        if self.antithetic and self.permutations % 2 == 0:
            samples = samples.unflatten(0, (-1, 2)).mean(1)
        if self.gates:
            gates = self._gates(model, batch, resolved, f[-1, 0] - f[0, 0])
            scores, error = between(gates, samples, batch.mask)
        else:
            scores, error = mean_and_error(samples, joining.expand_as(samples))
            error = pooled(error, joining)
        spread = error if len(samples) > 1 else None
        scores = F.pad(scores, (1, 0))
        return scored(scores, batch, outputs[-1, 0], resolved, biases=f[0, 0], spread=spread)

    def _by_coalitions(
        self, model: ExplainableModel, batch: GraphBatch, target: Target
    ) -> Attribution:
        """Score the nodes by coalitions alone."""
        keep = torch.stack([torch.zeros_like(batch.mask), batch.mask])  # (2, B, N)
        outputs = self._outputs(model, batch, keep)  # (2, B, num_outputs)
        resolved = target.resolve(model.config, outputs[1])
        without_nodes, whole = resolved(outputs)
        scores = self._gates(model, batch, resolved, whole - without_nodes)
        scores = F.pad(scores, (1, 0))
        return scored(scores, batch, outputs[1], resolved, biases=without_nodes)

    def _gates(
        self, model: ExplainableModel, batch: GraphBatch, target: ResolvedTarget, total: Tensor
    ) -> Tensor:
        """Estimate Shapley values (B, N) by coalitions, shifted alike so that they sum to total."""
        estimates = mean_marginals(model, batch, target, self.gates, self.seed)
        missing = total - estimates.masked_fill(~batch.mask, 0.0).sum(-1)
        shift = missing / batch.mask.sum(-1).clamp(min=1)
        return (estimates + shift[:, None]).masked_fill(~batch.mask, 0.0)

    def _places(self, batch: GraphBatch, joining: Tensor) -> Tensor:
        """Return the position (P, B, N) of every node in every order.

        It is N at padding, and -1 at nodes that do not join because they are always present.
        """
        n = batch.mask.shape[1]
        places = torch.where(batch.mask, -1, n).cpu().repeat(self.permutations, 1, 1)
        for graph, joins in enumerate(joining.cpu()):
            orders = self.random_orders(batch.x[graph, joins])
            places[:, graph, joins] = orders.argsort(dim=-1)
        return places.to(batch.mask.device)

    def random_orders(self, x: Tensor) -> Tensor:
        """Draw the orders (P, n) of the nodes of one graph with features x (n, F)."""
        generator = generator_of(self.seed, x)
        count = -(-self.permutations // 2) if self.antithetic else self.permutations
        drawn = [torch.randperm(len(x), generator=generator) for _ in range(count)]
        orders = torch.stack(drawn)
        if self.antithetic:
            orders = torch.stack([orders, orders.flip(-1)], dim=1).flatten(0, 1)
        return orders[: self.permutations]


@register
class OrderMarginals(_Removal):
    """The gains of the class's log-odds when nodes join in an order that these gains decide.

    A round follows the current order from the empty to the whole graph and adds each node's gain to
    its score, which re-sorts the nodes. Scores are `z(start) + z(mean gain)`, with `z(x) = x / mean
    |x|`. From two rounds on, the spread is the standard error of the mean gain, in the same unit.

    The rounds evaluate activation curves, which is exactly what AUAC integrates. Compare this
    method with others by other measures.

    Args:
        operator: how nodes are removed, "mask" or "zero".
        rounds: the number of rounds, 1 to 4.
        start: the method that gives the first order. With "occlusion" the model only runs forward.
    """

    name = "order_marginals"
    title = "Marginals along their own order"
    source = "this project; Strumbelj 2010"
    traits = Traits(cost="2 forward per node, 2 forward, 2 backward", searches_curve=True)

    def __init__(
        self, operator: Operator = "mask", rounds: int = 2, start: str = "lrp_path"
    ) -> None:
        super().__init__(operator)
        if not 1 <= rounds <= 4:
            raise ValueError(f"rounds must be from 1 to 4, not {rounds}.")
        self.rounds = rounds
        self.start = start
        self._first = get_explainer(start)

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        first = self._first._attribute(model, batch, target)
        resolved = target.resolve(model.config, first.outputs)
        start = scores = relative(first.graph_token, first.relevance, batch.mask)
        samples: list[Tensor] = []
        for _ in range(self.rounds):
            outputs = self._outputs(model, batch, prefixes(ranks(scores, batch.mask)))
            samples.append(gains(resolved.log_odds(outputs), scores, batch.mask))
            valid = batch.mask.expand(len(samples), -1, -1)
            mean, error = mean_and_error(torch.stack(samples), valid)
            scores = start + relative(torch.zeros_like(first.output), mean, batch.mask)
        spread = error / mean_size(mean, batch.mask) if self.rounds > 1 else None
        return scored(scores, batch, first.outputs, resolved, spread=spread)


# -- Shapley values from random coalitions ---------------------------------------------------------


def mean_marginals(
    model: ExplainableModel, batch: Any, value: ValueOfOutputs, number: int, seed: int
) -> Tensor:
    """Average the marginals (B, N) of all nodes over random coalitions.

    Args:
        batch: a batch of graphs.
        value: the value of the outputs whose marginals are wanted.
        number: the number of coalitions, each second one the complement of that before.
        seed: draws the coalitions.

    Raises:
        ValueError: the model combines nodes in a way that cannot leave some out, or nodes of a
            graph are explained.
    """
    tokens = model.embed(batch).detach()
    if isinstance(model, Graphormer):
        measure = partial(marginals, model, batch, tokens, model.bias(batch).detach(), value)
    else:
        require_coalitions(model)
        from graphxai.wrapping.presence import presence_pass  # loads PyG

        run = presence_pass(model, batch, tokens)
        if bool(run.explained.any()):
            raise ValueError("coalitions measure outputs of graphs: leave out gates for a node.")
        measure = partial(run.marginals, value=value)
    halves = random_halves(batch, number // 2, seed)
    coalitions = [side for half in halves for side in (half, batch.mask & ~half)]
    return torch.stack([measure(present) for present in coalitions]).mean(0)


def random_halves(batch: Any, number: int, seed: int) -> Tensor:
    """Draw coalitions (number, B, N) of up to half of each graph's nodes, evenly over the sizes."""
    present = torch.zeros(number, *batch.mask.shape, dtype=torch.bool)
    for row, n in enumerate(batch.num_nodes.tolist()):
        generator = generator_of_graph(seed, batch, row)
        for k in range(number):
            size = math.floor((k + 0.5) / number * n / 2 + 0.5)
            size = min(max(size, 1), max(n - 1, 1))
            present[k, row, torch.randperm(n, generator=generator)[:size]] = True
    return present.to(batch.mask.device)


def between(gates: Tensor, samples: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the estimate (B, N) between coalitions and orders, and its standard error (B, N).

    Args:
        gates: the estimate from coalitions, (B, N).
        samples: the marginals of the nodes in each order, (P, B, N), with P at least 2.
        mask: True at nodes, (B, N).
    """
    sampled, error = mean_and_error(samples, mask.expand_as(samples))
    n = mask.sum(-1, keepdim=True).clamp(min=1)
    noise = error.square().masked_fill(~mask, 0.0).sum(-1, keepdim=True)  # (B, 1)
    between_them = (sampled - gates).masked_fill(~mask, 0.0)
    distance = between_them.square().sum(-1, keepdim=True).clamp(min=1e-30)
    weight = (1 - noise / distance).clamp(min=0.0)
    # The weight is itself uncertain, by about sqrt(2 / N): without this allowance, the error of an
    # estimate that equals that of the coalitions would be zero.
    doubtful = (weight + (2 / n).sqrt()).clamp(max=1.0)
    return gates.masked_fill(~mask, 0.0) + weight * between_them, doubtful.sqrt() * pooled(
        error, mask
    )


def pooled(error: Tensor, mask: Tensor) -> Tensor:
    """Average the squared standard errors (B, N) of nodes with the mean of their graph's nodes.

    The standard error of a few samples is itself noisy, and where it is by chance too small, it
    would promise too much.
    """
    squares = error.square().masked_fill(~mask, 0.0)
    mean = squares.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return ((squares + mean) / 2).sqrt().masked_fill(~mask, 0.0)
