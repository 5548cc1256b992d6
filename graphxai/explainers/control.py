"""Random scores: the control that every method has to beat."""

import zlib

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target

from .base import Attribution, Explainer, scored
from .registry import register
from .traits import Traits


@register
class Random(Explainer):
    """Standard normal scores.

    With a `seed`, a graph's scores depend only on the seed and its node features, whatever else is
    in the batch. With a `generator`, they are drawn from it, graph after graph.
    """

    name = "random"
    title = "Random"
    source = "control"
    traits = Traits(cost="1 forward", draws_random_numbers=True)

    def __init__(self, seed: int = 0, generator: torch.Generator | None = None) -> None:
        self.seed = seed
        self.generator = generator

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        with torch.no_grad():
            outputs = model.encode(model.embed(batch), batch)
        scores = outputs.new_zeros(len(batch), batch.mask.shape[1] + 1)
        for b, n in enumerate(batch.num_nodes.tolist()):
            generator = self.generator or generator_of(self.seed, batch.x[b, :n])
            scores[b, 1 : n + 1] = torch.randn(n, generator=generator).to(scores)
        return scored(scores, batch, outputs, target.resolve(model.config, outputs))


def generator_of(seed: int, x: Tensor) -> torch.Generator:
    """Make a random generator that depends only on a seed and a graph's features x (n, F)."""
    content = x.detach().cpu().contiguous().numpy().tobytes()
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} ".encode() + content))
