"""Learn a node mask by GNNExplainer's objective on the tokens of a graph transformer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget, Target

from .base import Attribution, Explainer, scored
from .control import generator_of_graph
from .passes import encode, structural_bias
from .registry import register
from .traits import Traits

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
        tokens = model.embed(batch).detach()  # (B, T, D)
        bias = structural_bias(model, batch)
        with torch.no_grad():
            outputs = encode(model, tokens, batch, bias=bias)
        resolved = target.resolve(model.config, outputs)
        mask = self.starting_mask(batch, tokens).requires_grad_()  # w, (B, N)
        optimizer = torch.optim.Adam([mask], lr=self.lr)
        used = torch.zeros_like(batch.mask)  # nodes that the output depends on: PyG's "hard mask"
        for epoch in range(self.epochs):
            m = mask.sigmoid()
            masked = torch.cat([tokens[:, :1], tokens[:, 1:] * m[..., None].to(tokens)], dim=1)
            masked_outputs = encode(model, masked, batch, bias=bias)
            loss = _loss(model, target, resolved, outputs, masked_outputs) + _regularizers(m, used)
            (mask.grad,) = torch.autograd.grad(loss.sum(), mask)
            if epoch == 0:
                used = (mask.grad != 0) & batch.mask
            optimizer.step()
        scores = torch.where(used, mask.detach().sigmoid(), 0.0)
        return scored(F.pad(scores, (1, 0)), batch, outputs, resolved)

    def starting_mask(self, batch: GraphBatch, like: Tensor) -> Tensor:
        """Draw the initial w (B, N) from the seed and each graph's node features."""
        start = torch.zeros(batch.mask.shape)
        for b, n in enumerate(batch.num_nodes.tolist()):
            generator = generator_of_graph(self.seed, batch, b)
            start[b, :n] = SPREAD * torch.randn(n, generator=generator)
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
