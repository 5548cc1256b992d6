"""Shares of the nodes with a curve of size, which say what any group of nodes does.

The output with only a group S of the N nodes present is read as

    v(S) = f(none) + sum of r_i over S + c(k),   k = |S| / N

The shares r_i are the mean marginals of the nodes at random coalitions of all sizes, shifted alike
so that they sum exactly to f(all) - f(none). The first pass of each coalition also gives its
output. To these outputs the curve of size is fitted by least squares:

    c(k) = a k (1 - k) + b k (1 - k) (k - 1/2) + d (k (1 - k))^2

It is zero at both ends. All nodes are alike to it, so its Shapley values are zero, and the shares
need no change. Its error is the root mean square of how far v(S) is off at a coalition that the
curve was fitted without.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target, ValueOfOutputs
from graphxai.models.graphormer import Graphormer
from graphxai.runtime.notices import warn

from .base import Attribution, Explainer, scored
from .control import generator_of_graph
from .orders import require_coalitions
from .passes import Embedded, outputs_of_choices
from .path_marginals import value_and_marginals
from .registry import get_explainer, register
from .traits import Traits

RIDGE = 1e-4  # keeps the three numbers of the curve small where few sizes were measured
COMBINED = ("occlusion", "path_marginals", "lrp_path")  # what weights combine with the marginals
ORDERS = 8  # of a model whose nodes have no marginals


@register
class Shares(Explainer):
    """Shares of the nodes and a curve of size, which say what any group of nodes does.

    The shares are `ShapleySampling(permutations=0, gates=coalitions)`. In the ledger they follow
    f(none), which is listed under `biases`. The curve and its error are there too (`curve` and
    `group_error`), and `Explanation.value_of(nodes)` adds them up for a group of nodes.

    If the model combines nodes in a way that cannot leave some out, or if nodes of a graph are
    explained, a warning says so. The shares are then Shapley values from 8 random orders, and the
    curve takes a forward pass for each coalition.

    Args:
        coalitions: the number of coalitions, an even number of at least 6.
        seed: draws them.
        weights: the factors of the mean marginals and of the scores of `COMBINED`, whose weighted
            sum, shifted alike, is then the shares. `graphxai.fit_shares` fits them to a model. This
            takes 58 more passes, and one for each node. Without weights the mean marginals are the
            shares.
    """

    name = "shares"
    title = "Shares with a curve of size"
    source = "this project; Shapley 1953"
    traits = Traits(adds_up=True, cost="20 forward, 18 backward", draws_random_numbers=True)

    def __init__(self, coalitions: int = 18, seed: int = 0, weights: Sequence[float] = ()) -> None:
        if coalitions < 6 or coalitions % 2:
            raise ValueError(f"coalitions must be an even number of at least 6, not {coalitions}.")
        if weights and len(weights) != 1 + len(COMBINED):
            raise ValueError(f"there are {1 + len(COMBINED)} weights, not {len(weights)}.")
        self.coalitions, self.seed, self.weights = coalitions, seed, tuple(weights)

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        try:
            attribution = by_coalitions(model, batch, target, self.coalitions, self.seed)
        except NoMarginals as reason:
            why = str(reason).removesuffix(".")
            warn(f"{why}; shares are Shapley values from {ORDERS} orders.", stacklevel=5)
            attribution = self._by_orders(model, batch, target)
        if not self.weights:
            return attribution
        others = [get_explainer(name)._attribute(model, batch, target) for name in COMBINED]
        scores = torch.stack([each.relevance for each in (attribution, *others)], dim=-1)
        total, estimates = attribution.relevance.sum(-1), scores @ scores.new_tensor(self.weights)
        combined = replace(attribution, relevance=closed(estimates, total, batch.mask), spread=None)
        return self._with_curve(model, batch, target, combined)

    def _by_orders(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        """Share out what the nodes add by orders, and measure coalitions for the curve alone."""
        orders = get_explainer("shapley_sampling", permutations=ORDERS, seed=self.seed)
        return self._with_curve(model, batch, target, orders._attribute(model, batch, target))

    def _with_curve(
        self, model: ExplainableModel, batch: Any, target: Target, attribution: Attribution
    ) -> Attribution:
        """Fit the curve of size to the outputs at coalitions."""
        present = random_coalitions(batch, self.coalitions, self.seed)
        resolved = target.resolve(model.config, attribution.outputs)
        values = resolved(outputs_of_choices(model, batch, present))
        return replace(attribution, curve=_curve(attribution, present, values))


class NoMarginals(ValueError):
    """The nodes of a model have no marginals at coalitions. The message says why."""


def by_coalitions(
    model: ExplainableModel, batch: Any, target: Target, number: int, seed: int
) -> Attribution:
    """Share out what the nodes add by their mean marginals, and fit the curve of size.

    Raises:
        NoMarginals: see `at_coalitions`.
    """
    outputs = outputs_of_choices(
        model, batch, torch.stack([torch.zeros_like(batch.mask), batch.mask])
    )
    resolved = target.resolve(model.config, outputs[1])
    without_nodes, whole = resolved(outputs)  # (B,)
    present, values, marginals = at_coalitions(model, batch, resolved, number, seed)
    shares = closed(marginals.mean(0), whole - without_nodes, batch.mask)
    attribution = scored(F.pad(shares, (1, 0)), batch, outputs[1], resolved, biases=without_nodes)
    return replace(attribution, curve=_curve(attribution, present, values))


def closed(estimates: Tensor, total: Tensor, mask: Tensor) -> Tensor:
    """Shift the estimates (B, N) of each graph's nodes alike, so that they sum to total (B,)."""
    missing = total - estimates.masked_fill(~mask, 0.0).sum(-1)
    shift = missing / mask.sum(-1).clamp(min=1)
    return (estimates + shift[:, None]).masked_fill(~mask, 0.0)


def at_coalitions(
    model: ExplainableModel, batch: Any, value: ValueOfOutputs, number: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Measure the nodes at random coalitions, each second one the complement of that before.

    Args:
        value: the value of the outputs whose marginals are wanted.

    Returns:
        True at the nodes of each coalition (K, B, N), the value there (K, B), and what each node,
        present or absent, adds to it there (K, B, N).

    Raises:
        NoMarginals: the model combines nodes in a way that cannot leave some out, or nodes of a
            graph are explained.
    """
    present = random_coalitions(batch, number, seed)
    try:
        if isinstance(model, Graphormer):
            measure = partial(value_and_marginals, Embedded.of(model, batch), value)
        else:
            require_coalitions(model)
            from graphxai.wrapping.presence import presence_pass  # loads PyG

            run = presence_pass(model, batch, model.embed(batch).detach())
            if bool(run.explained.any()):
                raise NoMarginals("coalitions measure outputs of graphs, not of nodes or pairs")
            measure = partial(run.value_and_marginals, value=value)
        values, marginals = zip(*map(measure, present), strict=True)
    except ValueError as reason:  # NotGated among others, whose module loads PyG
        raise NoMarginals(str(reason)) from reason
    return present, torch.stack(values), torch.stack(marginals)


def random_coalitions(batch: Any, number: int, seed: int) -> Tensor:
    """Draw coalitions (number, B, N) evenly over the sizes, each followed by its complement."""
    halves = torch.zeros(number // 2, *batch.mask.shape, dtype=torch.bool)
    for row, n in enumerate(batch.num_nodes.tolist()):
        generator = generator_of_graph(seed, batch, row)
        for k in range(len(halves)):
            size = math.floor((k + 0.5) / len(halves) * n / 2 + 0.5)
            size = min(max(size, 1), max(n - 1, 1))
            halves[k, row, torch.randperm(n, generator=generator)[:size]] = True
    halves = halves.to(batch.mask.device)
    return torch.stack([halves, batch.mask & ~halves], dim=1).flatten(0, 1)


def _curve(attribution: Attribution, present: Tensor, values: Tensor) -> Tensor:
    """Fit the curve of size to values (K, B) at coalitions (K, B, N).

    Returns:
        Its three numbers, and its error at coalitions that it was fitted without, (B, 4).
    """
    shares, mask = attribution.relevance.double(), attribution.mask
    k = present.sum(-1) / mask.sum(-1).clamp(min=1).double()  # (K, B)
    inner = k * (1 - k)
    terms = torch.stack([inner, inner * (k - 0.5), inner**2], dim=-1).transpose(0, 1)  # (B, K, 3)
    rest = values.double() - attribution.biases.double() - (present * shares).sum(-1)  # (K, B)
    squares = terms.mT @ terms + RIDGE * torch.eye(3, dtype=terms.dtype, device=terms.device)
    solved = torch.linalg.solve(squares, terms.mT)  # (B, 3, K)
    numbers = (solved @ rest.T[..., None])[..., 0]  # (B, 3)
    leverage = (terms * solved.mT).sum(-1)  # (B, K)
    left_out = (rest.T - (terms @ numbers[..., None])[..., 0]) / (1 - leverage)
    error = left_out.square().mean(-1, keepdim=True).sqrt()
    return torch.cat([numbers, error], dim=-1)
