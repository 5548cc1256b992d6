"""Shapley values of the nodes, from random orders or from all coalitions.

They also come from one backward pass for each of a few random coalitions, which gives the
marginal of every node, whether it is present or absent (see `path_marginals` and
`shares`). Its mean over coalitions of all sizes approximates the Shapley value. These
marginals are of first order outside softmax and pooling, so the mean is biased: it levels off,
however many coalitions there are.

Sampled orders have no bias, but much noise. For the estimates g of the coalitions and s of the
orders, with a squared standard error V of s in all, James and Stein's estimator (1961) lies between
them:

    g + w (s - g),   w = max(0, 1 - V / |s - g|^2)

As orders are added, V falls and w grows to 1, so that the bias vanishes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target

from .base import Attribution, scored
from .control import generator_of
from .orders import all_coalitions, mean_and_error, prefixes, random_orders
from .passes import Operator
from .perturbation import Removal
from .registry import register
from .shares import at_coalitions, by_coalitions, closed
from .traits import Traits
from .wrapped import once_for_all_nodes

ORDERS, MOST = 8, 64  # random orders by default, and the most that errors raise them to
MOST_PASSES = 10_000  # on large graphs errors do not raise the orders beyond these passes
ENOUGH = 0.1  # a standard error of this part of the largest value is small enough
ROUNDING = 1e-5  # up to this part of the output, an error counts as rounding


class Drawn(NamedTuple):
    """What P random orders say of the nodes of B graphs, or all coalitions of small graphs.

    Args:
        outputs: the outputs of the whole graphs (B, num_outputs).
        whole, none: f_c of the whole graphs, and without the nodes that join (B,).
        samples: what each node adds in each order (P, B, N).
        valid: whether an order belongs to a graph (P, B).
        is_exact: whether a graph has all coalitions (B,).
        exact: the Shapley values of these graphs (B, N).
    """

    outputs: Tensor
    whole: Tensor
    none: Tensor
    samples: Tensor
    valid: Tensor
    is_exact: Tensor
    exact: Tensor

    def with_more(self, more: Drawn) -> Drawn:
        """Add further orders, or the exact values."""
        return self._replace(
            samples=torch.cat([self.samples, more.samples]),
            valid=torch.cat([self.valid, more.valid]),
            is_exact=self.is_exact | more.is_exact,
            exact=torch.where(self.is_exact[:, None], self.exact, more.exact),
        )


@register
class ShapleySampling(Removal):
    """The mean gain of f_c when a node joins the nodes before it, over random orders of the nodes.

    Averaging over all orders would be exact. For any number of orders the scores sum to `f_c(all) -
    f_c(none)`. The output of the graph token alone, f_c(none), is listed under `biases` in the
    ledger. Orders depend on the seed and on the graph's node features. The spread is the standard
    error over orders, or over pairs if all orders are paired. A single order or pair has no spread.

    By default there are 8 orders. Where a standard error exceeds a tenth of the largest value, they
    are raised to the 16, 32 or 64 that the error asks for, as it falls with their root (two-stage
    sampling, Stein 1945). A graph whose 2^N coalitions take no more passes has exact values from
    all of them, and a spread of zero.

    With `gates`, a few backward passes say before any order what every node adds at random
    coalitions. The orders then correct these estimates. On 10
    molecules of BACE with 38 atoms on average, 16 coalitions without any order, in 32 passes, have
    nearly the error of 8 orders, in 306. 16 coalitions and 8 orders have the error of 13 orders.
    Without orders there is no spread, and more coalitions do not converge to Shapley values.

    Args:
        operator: how nodes are removed, "mask" or "zero".
        permutations: the number of orders, which is then neither raised nor replaced by all
            coalitions. With `gates` it may be 0, or else has to be at least 4.
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
        adds_up=True,
        cost="8 to 64 forward per node",
        draws_random_numbers=True,
        nodes_share_passes=True,
    )

    def __init__(
        self,
        operator: Operator = "mask",
        permutations: int | None = None,
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
        if gates and permutations in (1, 2, 3):
            raise ValueError("gates need at least 4 permutations to correct them, or none.")
        if permutations is not None and permutations < (not gates):
            raise ValueError(f"permutations must be at least 1, not {permutations}.")
        self.permutations = permutations
        self.seed = seed
        self.antithetic = antithetic
        self.gates = gates

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        if self.permutations == 0:
            return by_coalitions(model, batch, target, self.gates, self.seed)
        joining = self._removed(batch)
        orders = torch.full_like(joining.sum(-1), self.permutations or ORDERS)
        drawn = self._drawn(model, batch, target, joining, 0, orders)
        scores, error = self._estimate(drawn, joining)
        if self.permutations is None:
            raised = orders_for(scores, error, drawn.whole, joining)
            if bool((raised > orders).any()):
                more = self._drawn(model, batch, target, joining, ORDERS, raised)
                drawn = drawn.with_more(more)
                scores, error = self._estimate(drawn, joining)
        resolved = target.resolve(model.config, drawn.outputs)
        if self.gates:
            _, _, marginals = at_coalitions(model, batch, resolved, self.gates, self.seed)
            gates = closed(marginals.mean(0), drawn.whole - drawn.none, batch.mask)
            few = ~drawn.is_exact[:, None]
            corrected, with_gates = between(gates, scores, error, batch.mask)
            scores, error = torch.where(few, corrected, scores), torch.where(few, with_gates, error)
        spread = None if len(drawn.samples) <= 1 + self._pairs else error
        scores = F.pad(scores, (1, 0))
        outputs = drawn.outputs
        return scored(scores, batch, outputs, resolved, biases=drawn.none, spread=spread)

    @property
    def _pairs(self) -> bool:
        """Whether all orders are paired with their reverse."""
        return self.antithetic and (self.permutations or ORDERS) % 2 == 0

    def _estimate(self, drawn: Drawn, joining: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of the samples and its standard error (B, N), or the exact values."""
        samples, valid = drawn.samples, drawn.valid[..., None] & joining
        if self._pairs:
            samples, valid = samples.unflatten(0, (-1, 2)).mean(1), valid[::2]
        scores, error = mean_and_error(samples, valid)
        is_exact = drawn.is_exact[:, None]
        scores = torch.where(is_exact, drawn.exact.to(scores), scores)
        return scores, pooled(error, joining).masked_fill(is_exact, 0.0)

    def _drawn(
        self,
        model: ExplainableModel,
        batch: GraphBatch,
        target: Target,
        joining: Tensor,
        first: int,
        orders: Tensor,
    ) -> Drawn:
        """Evaluate each graph's orders from number `first` on, up to its number of orders (B,).

        A graph whose coalitions take no more passes than these orders has all of them instead.
        """
        sizes = joining.sum(-1)  # M of each graph
        most = int(sizes.max())
        may_be_exact = self.permutations is None
        is_exact = may_be_exact & (2.0**sizes <= orders * (sizes - 1) + 2)
        places = self._places(batch, joining, int(orders.max()))[first:]  # (P, B, N)
        number = torch.arange(first, first + len(places), device=orders.device)
        valid = (number[:, None] < orders) & ~is_exact  # (P, B)
        keep = torch.where(valid[..., None], prefixes(places, most), batch.mask).flatten(0, 1)
        rows = is_exact.nonzero()[:, 0].tolist()
        all_of = {row: all_coalitions(int(sizes[row])) for row in rows}
        slots = max([len(keep), *(len(subsets) for subsets, _ in all_of.values())])
        keep = torch.cat([keep, batch.mask.expand(slots - len(keep), -1, -1)])  # (K, B, N)
        last = torch.full_like(sizes, most * len(places))  # where all nodes are present
        for row, (subsets, _) in all_of.items():
            keep[: len(subsets), row, joining[row]] = torch.from_numpy(subsets).to(keep.device)
            last[row] = len(subsets) - 1
        asked = (first, *orders.tolist())
        outputs = once_for_all_nodes(lambda: self._outputs(model, batch, keep), asked)
        whole = outputs[last, torch.arange(len(batch), device=last.device)]  # (B, num_outputs)
        f = target.resolve(model.config, whole)(outputs)  # (K, B)
        exact = torch.zeros(joining.shape, dtype=torch.float64, device=f.device)
        for row, (_, weights) in all_of.items():
            of_subsets = f[: len(weights), row].double()
            exact[row, joining[row]] = of_subsets @ torch.from_numpy(weights).to(of_subsets)
        by_size = f[: (most + 1) * len(places)].unflatten(0, (most + 1, -1))  # (M + 1, P, B)
        by_place = (by_size[1:] - by_size[:-1]).permute(1, 2, 0)  # (P, B, M), by place in the order
        samples = by_place.gather(-1, places.clamp(0, most - 1)).masked_fill(~joining, 0.0)
        return Drawn(
            whole, f[last, torch.arange(len(batch))], f[0], samples, valid, is_exact, exact
        )

    def _places(self, batch: GraphBatch, joining: Tensor, count: int) -> Tensor:
        """Return the position (P, B, N) of every node in each of so many orders.

        It is N at padding, and -1 at nodes that do not join because they are always present.
        """
        n = batch.mask.shape[1]
        places = torch.where(batch.mask, -1, n).cpu().repeat(count, 1, 1)
        for graph, joins in enumerate(joining.cpu()):
            orders = self.random_orders(batch.x[graph, joins], count)
            places[:, graph, joins] = orders.argsort(dim=-1)
        return places.to(batch.mask.device)

    def random_orders(self, x: Tensor, number: int | None = None) -> Tensor:
        """Draw a number of orders (P, n) of the nodes of one graph with features x (n, F)."""
        number = number or self.permutations or ORDERS
        return random_orders(len(x), number, generator_of(self.seed, x), self.antithetic)


def orders_for(scores: Tensor, error: Tensor, whole: Tensor, joining: Tensor) -> Tensor:
    """Return how many orders (B,) bring the standard errors down to `ENOUGH` of the largest score.

    The error of `ORDERS` orders falls with the root of their number. There are at most `MOST`
    orders, and no more than `MOST_PASSES` passes.

    Args:
        scores, error: the scores after `ORDERS` orders, and their standard errors (B, N).
        whole: the output of the whole graphs (B,), whose rounding is no error.
        joining: True at the nodes that join (B, N).
    """
    largest = error.amax(-1)
    wanted = ENOUGH * scores.abs().amax(-1)
    wanted = torch.maximum(wanted, ROUNDING * whole.abs()).clamp(min=1e-30)
    needed = ORDERS * (largest / wanted).square()
    passes = ORDERS * joining.sum(-1).clamp(min=1)
    limit = (MOST_PASSES / passes).clamp(1, MOST / ORDERS).log2().floor()
    doublings = (needed / ORDERS).clamp(min=1).log2().ceil()
    return ORDERS << torch.minimum(doublings, limit).long()


def between(gates: Tensor, sampled: Tensor, error: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the estimate (B, N) between coalitions and orders, and its standard error (B, N).

    Args:
        gates: the estimate from coalitions, (B, N).
        sampled, error: the estimate from orders and its standard error, (B, N).
        mask: True at nodes, (B, N).
    """
    n = mask.sum(-1, keepdim=True).clamp(min=1)
    noise = error.square().masked_fill(~mask, 0.0).sum(-1, keepdim=True)  # (B, 1)
    between_them = (sampled - gates).masked_fill(~mask, 0.0)
    distance = between_them.square().sum(-1, keepdim=True).clamp(min=1e-30)
    weight = (1 - noise / distance).clamp(min=0.0)
    # The weight is itself uncertain, by about sqrt(2 / N): without this allowance, the error of an
    # estimate that equals that of the coalitions would be zero.
    doubtful = (weight + (2 / n).sqrt()).clamp(max=1.0)
    return gates.masked_fill(~mask, 0.0) + weight * between_them, doubtful.sqrt() * error


def pooled(error: Tensor, mask: Tensor) -> Tensor:
    """Average the squared standard errors (B, N) of nodes with the mean of their graph's nodes.

    The standard error of a few samples is itself noisy, and where it is by chance too small, it
    would promise too much.
    """
    squares = error.square().masked_fill(~mask, 0.0)
    mean = squares.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return ((squares + mean) / 2).sqrt().masked_fill(~mask, 0.0)
