"""Measure what the output loses without a node, or learn a mask of the nodes that it needs.

Nodes are removed one at a time, in sampled orders, or in the order that the method finds. These
methods only run the model. There are two ways to remove nodes: `mask` excludes the node's key from
every attention, and `zero` sets its embedding to zero. The structure of the rest stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.models.graphormer import Graphormer
from graphxai.runtime.progress import bar_of_passes

from . import orders
from .base import Attribution, Explainer, scored
from .control import generator_of_graph
from .passes import Embedded, Operator, nan_unless_finite, outputs_of_choices
from .registry import get_explainer, register
from .traits import Traits
from .wrapped import once_for_all_nodes


class Removal(Explainer):
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

    def _outputs(self, model: ExplainableModel, batch: GraphBatch, keep: orders.Choices) -> Tensor:
        """Compute outputs (K, B, num_outputs) with only the nodes that `keep` (K, B, N) marks."""
        if isinstance(model, Graphormer):
            return outputs_of_choices(model, batch, keep, self.operator)
        advice = "nodes=[...] removes only these nodes." if self.nodes is None else ""
        with bar_of_passes(self.title, len(keep), advice) as advance:
            return outputs_of_choices(model, batch, keep, self.operator, advance)


@register
class Occlusion(Removal):
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
        keep = orders.EachLeftOut(self._groups(numbers), batch.mask)
        # (1 + groups, B, num_outputs)
        outputs = once_for_all_nodes(lambda: self._outputs(model, batch, keep))
        resolved = target.resolve(model.config, outputs[0])
        f = resolved(outputs)
        scores = f.new_zeros(len(batch), batch.mask.shape[1] + 1)  # the graph token stays
        scores[:, numbers + 1] = self._losses(f[0], f[1:].T, len(numbers))
        return scored(scores, batch, outputs[0], resolved)

    def _groups(self, numbers: Tensor) -> Tensor:
        """Return the groups of nodes that are removed together, by the numbers (M,) of nodes."""
        return numbers[:, None]

    def _losses(self, whole: Tensor, without: Tensor, m: int) -> Tensor:
        """Return the scores (B, m) from f_c of the graphs (B,) and without each group."""
        return whole[:, None] - without


@register
class Partnered(Occlusion):
    """Occlusion, for a third of it with the node's partner already gone, `2/3 R_i + 1/3 R_i|j`.

    Here `R_i = f_c(all) - f_c(all without i)` and `R_i|j = f_c(all without j) - f_c(all without i
    and j)`. The partner j is the node for which they differ most. So a part that another one makes
    idle, or can replace, is noticed as well, and two parts that cancel each other both speak
    against. Equal weights, as in the Shapley value of two nodes, would give these zero. Without
    interactions, the scores are those of occlusion.

    Args:
        operator: how nodes are removed, "mask" or "zero".
        nodes: the numbers of the nodes to remove, by default of all. The others get zero and are no
            partners.
    """

    name = "partnered"
    title = "Occlusion with a partner"
    source = "this project; Grabisch 1999"
    traits = replace(Occlusion.traits, cost="1 forward per pair of nodes")

    def _groups(self, numbers: Tensor) -> Tensor:
        return torch.combinations(numbers, with_replacement=True)  # twice the same is one node

    def _losses(self, whole: Tensor, without: Tensor, m: int) -> Tensor:
        i, j = torch.triu_indices(m, m)
        pairs = without.new_zeros(len(without), m, m)
        pairs[:, i, j] = pairs[:, j, i] = without
        alone = pairs.diagonal(dim1=1, dim2=2)  # (B, m)
        loss = whole[:, None] - alone
        change = alone[:, None] - pairs - loss[..., None]  # in the loss of i by the absence of j
        change.diagonal(dim1=1, dim2=2).zero_()
        change = F.pad(change, (0, 1))  # without a partner nothing changes
        strongest = change.gather(-1, change.abs().argmax(-1, keepdim=True))[..., 0]
        return loss + strongest / 3


@register
class OrderMarginals(Removal):
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
        start = scores = orders.relative(first.graph_token, first.relevance, batch.mask)
        samples: list[Tensor] = []
        for _ in range(self.rounds):
            outputs = self._outputs(model, batch, orders.prefixes(orders.ranks(scores, batch.mask)))
            samples.append(orders.gains(resolved.log_odds(outputs), scores, batch.mask))
            valid = batch.mask.expand(len(samples), -1, -1)
            mean, error = orders.mean_and_error(torch.stack(samples), valid)
            scores = start + orders.relative(torch.zeros_like(first.output), mean, batch.mask)
        spread = error / orders.mean_size(mean, batch.mask) if self.rounds > 1 else None
        return scored(scores, batch, first.outputs, resolved, spread=spread)


SIZE, ENTROPY, SPREAD = 1.0, 0.1, 0.1  # weights of size and entropy, and initial std, as in PyG
KEPT = "kept by the mask"  # what a large score means


@register
class GnnExplainer(Explainer):
    """A small node mask `m = sigmoid(w)` that leaves the prediction unchanged.

    Adam minimises `loss(m * x) + mean(m) + 0.1 * mean(entropy of m)` over w. The loss is minus the
    log-probability of the explained class, or for a regression the squared change of f_c. The
    graphs of a batch are optimised together, but each has a separate objective. Settings are as in
    `torch_geometric.explain.GNNExplainer` with one mask entry per node. Scores are m, in (0, 1).
    """

    name = "gnn_explainer"
    title = "GNNExplainer"
    source = "Ying 2019"
    traits = Traits(
        large_score_means=KEPT,
        cost="100 forward, 100 backward",
        draws_random_numbers=True,
        needs_gradients=True,
    )

    def __init__(self, epochs: int = 100, lr: float = 0.01, seed: int = 0) -> None:
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}.")
        self.epochs = epochs
        self.lr = lr
        self.seed = seed

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        start = Embedded.of(model, batch)
        tokens = start.tokens  # (B, T, D)
        with torch.no_grad():
            outputs = start.encode(tokens)
        resolved = target.resolve(model.config, outputs)
        mask = self.starting_mask(batch, tokens).requires_grad_()  # w, (B, N)
        optimizer = torch.optim.Adam([mask], lr=self.lr)
        used = torch.zeros_like(batch.mask)  # nodes that the output depends on: PyG's "hard mask"
        for epoch in range(self.epochs):
            m = mask.sigmoid()
            masked = torch.cat([tokens[:, :1], tokens[:, 1:] * m[..., None].to(tokens)], dim=1)
            masked_outputs = start.encode(masked)
            loss = _loss(model, target, resolved, outputs, masked_outputs) + _regularizers(m, used)
            (mask.grad,) = torch.autograd.grad(loss.sum(), mask)
            mask.grad += nan_unless_finite(loss[None])[:, None]
            if epoch == 0:
                used = (mask.grad != 0) & batch.mask
            optimizer.step()
        scores = torch.where(used | mask.isnan(), mask.detach().sigmoid(), 0.0)
        return scored(F.pad(scores, (1, 0)), batch, outputs, resolved)

    def starting_mask(self, batch: GraphBatch, like: Tensor) -> Tensor:
        """Draw the initial w (B, N) from the seed and each graph's node features."""
        start = torch.zeros(batch.mask.shape)
        for b, n in enumerate(batch.num_nodes.tolist()):
            generator = generator_of_graph(self.seed, batch, b)
            start[b, :n] = SPREAD * torch.randn(n, generator=generator, dtype=torch.float)
        if like.dtype not in (torch.float32, torch.float64):  # Adam would divide by zero
            return start.to(like.device)
        return start.to(like)


def _loss(
    model: ExplainableModel,
    target: Target,
    resolved: ResolvedTarget,
    outputs: Tensor,
    masked_outputs: Tensor,
) -> Tensor:
    """Compute how far (B,) the masked outputs are from the outputs (B, num_outputs)."""
    task, columns = model.config.task_columns(target.task_in(model.config).name)
    if task.kind == "regression":
        return (resolved(masked_outputs) - resolved(outputs)).square()
    single = task.kind == "multiclass" and not (resolved.weights < 0).any()
    if single:
        return -(resolved.weights[:, columns] * masked_outputs[:, columns].log_softmax(-1)).sum(-1)
    return -F.logsigmoid(resolved(masked_outputs))  # f_c is the difference of two classes


def _regularizers(m: Tensor, used: Tensor) -> Tensor:
    """Compute the weighted mean size and entropy (B,) of the mask m (B, N) over used nodes."""
    entropy = torch.special.entr(m) + torch.special.entr(1 - m)
    total = torch.where(used, SIZE * m + ENTROPY * entropy, 0.0).sum(-1)
    return total / used.sum(-1).clamp(min=1)
