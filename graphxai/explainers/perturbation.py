"""What the output loses without a node: occlusion, and Shapley values over sampled orders.

Both only run the model, with one of two ways to remove nodes: `mask` excludes the node's key from
every attention, `zero` sets its embedding to zero. The structure of the rest stays the same.
"""

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target
from graphxai.models.graphormer.encoding import GraphBatch

from .base import Attribution, Explainer, scored
from .control import generator_of
from .registry import register
from .variants import encode_variants, in_passes, structural_bias

Operator = Literal["mask", "zero"]


class _Removal(Explainer):
    """A method that compares outputs with and without nodes."""

    def __init__(self, operator: Operator = "mask") -> None:
        if operator == "delete":
            raise ValueError(
                "operator 'delete' re-encodes subgraphs, but a batch no longer has the edges for"
                " that; use 'mask' or 'zero'."
            )
        if operator not in get_args(Operator):
            raise ValueError(f"operator must be 'mask' or 'zero', not {operator!r}.")
        self.operator = operator

    @torch.no_grad()
    def _outputs(self, model: ExplainableModel, batch: GraphBatch, keep: Tensor) -> Tensor:
        """Outputs (K, B, num_outputs) with only the nodes where keep (K, B, N) is True."""
        tokens, bias = model.embed(batch), structural_bias(model, batch)
        outputs = []
        for part in in_passes(batch, len(keep)):
            kept = keep[part]
            if self.operator == "mask":
                variants = tokens.expand(len(kept), -1, -1, -1)
                outputs.append(encode_variants(model, variants, batch, kept, bias))
            else:
                stays = torch.cat([kept.new_ones(*kept.shape[:2], 1), kept], dim=-1)
                outputs.append(encode_variants(model, tokens * stays[..., None], batch, bias=bias))
        return torch.cat(outputs)


@register
class Occlusion(_Removal):
    """`R_i = f_c(all) - f_c(all without i)`; `operator`: "mask" or "zero"."""

    name = "occlusion"
    title = "Occlusion"
    source = "Zeiler 2014"
    cost = "1 forward per node"
    of_output = True

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        n = batch.mask.shape[1]
        without = ~torch.eye(n, dtype=torch.bool, device=batch.mask.device)[:, None]  # (N, 1, N)
        everything = torch.ones_like(without[:1])
        keep = torch.cat([everything, without]).expand(-1, len(batch), -1)
        outputs = self._outputs(model, batch, keep)  # (1 + N, B, num_outputs)
        resolved = target.resolve(model.config, outputs[0])
        f = resolved(outputs)
        scores = torch.cat([torch.zeros_like(f[:1]), f[0] - f[1:]])  # the graph token stays
        return scored(scores.T, batch, outputs[0], resolved)


@register
class ShapleySampling(_Removal):
    """Mean gain of f_c when a node joins those before it, over random orders of the nodes.

    Averaging over all orders would be exact. For any number of orders the scores sum to
    `f_c(all) - f_c(none)`; f_c(none), the output of the graph token alone, is listed under `biases`
    in the ledger. Orders depend on `seed` and the graph's node features. `antithetic`: every order
    is paired with its reverse.
    """

    name = "shapley_sampling"
    title = "Shapley values (sampled)"
    source = "Strumbelj 2010"
    cost = "8 forward per node"
    additive = True
    sampled = True

    def __init__(
        self,
        operator: Operator = "mask",
        permutations: int = 8,
        seed: int = 0,
        antithetic: bool = True,
    ) -> None:
        super().__init__(operator)
        if permutations < 1:
            raise ValueError(f"permutations must be at least 1, not {permutations}.")
        self.permutations = permutations
        self.seed = seed
        self.antithetic = antithetic

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        b, n = batch.mask.shape
        ranks = self._ranks(batch)  # (P, B, N)
        sizes = torch.arange(n + 1, device=ranks.device)[:, None, None, None]
        keep = ranks < sizes  # (N + 1, P, B, N): the first 0..N nodes of each order
        outputs = self._outputs(model, batch, keep.flatten(0, 1))
        outputs = outputs.unflatten(0, (n + 1, -1))  # (N + 1, P, B, num_outputs)
        resolved = target.resolve(model.config, outputs[-1, 0])
        f = resolved(outputs)  # (N + 1, P, B)
        gains = (f[1:] - f[:-1]).permute(1, 2, 0)  # (P, B, N) by position in the order
        scores = gains.gather(-1, ranks.clamp(max=n - 1)).mean(0)
        found = scored(
            torch.cat([scores.new_zeros(b, 1), scores], dim=1), batch, outputs[-1, 0], resolved
        )
        return replace(found, biases=f[0, 0])

    def _ranks(self, batch: GraphBatch) -> Tensor:
        """Position of every node in every order, (P, B, N); N at padding, which never joins."""
        b, n = batch.mask.shape
        ranks = torch.full((self.permutations, b, n), n)
        for graph, size in enumerate(batch.num_nodes.tolist()):
            ranks[:, graph, :size] = self.random_orders(batch.x[graph, :size]).argsort(dim=-1)
        return ranks.to(batch.mask.device)

    def random_orders(self, x: Tensor) -> Tensor:
        """The orders (P, n) of the nodes of one graph with features x (n, F)."""
        generator = generator_of(self.seed, x)
        count = -(-self.permutations // 2) if self.antithetic else self.permutations
        drawn = [torch.randperm(len(x), generator=generator) for _ in range(count)]
        orders = torch.stack(drawn)
        if self.antithetic:
            orders = torch.stack([orders, orders.flip(-1)], dim=1).flatten(0, 1)
        return orders[: self.permutations]
