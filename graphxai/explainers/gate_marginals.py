"""Shapley values from one backward pass for each of a few random coalitions.

At a coalition, one backward pass gives the marginal of every node, whether it is present or absent
(see `path_marginals` and `adapters.presence`). Its mean over coalitions of all sizes approximates
the Shapley value. These marginals are of first order outside softmax and pooling, so the mean is
biased: it levels off, however many coalitions there are.

Sampled orders have no bias, but much noise. For the estimates g of the coalitions and s of the
orders, with a squared standard error V of s in all, James and Stein's estimator (1961) lies between
them:

    g + w (s - g),   w = max(0, 1 - V / |s - g|^2)

As orders are added, V falls and w grows to 1, so that the bias vanishes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ValueOfOutputs
from graphxai.models.graphormer import Graphormer

from .averages import mean_and_error
from .control import generator_of_graph
from .path_marginals import marginals

__all__ = ["between", "mean_marginals", "pooled"]


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
        from graphxai.adapters.presence import presence_pass  # loads PyG

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
