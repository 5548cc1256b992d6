"""Random scores: the control that every method has to beat."""

import zlib
from typing import Any

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
    """Scores drawn from the standard normal distribution.

    Args:
        seed: determines the scores of each graph together with its node features, or with its
            degrees if all nodes look alike. What else is in the batch does not matter.
        generator: if it is given, all scores are drawn from it, graph after graph.
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
            generator = self.generator or generator_of_graph(self.seed, batch, b)
            scores[b, 1 : n + 1] = torch.randn(n, generator=generator).to(scores)
        return scored(scores, batch, outputs, target.resolve(model.config, outputs))


def generator_of_graph(seed: int, batch: Any, row: int) -> torch.Generator:
    """Make a random generator that depends only on a seed and one graph of a batch.

    It depends on the features of the nodes. If all nodes look alike, it also depends on their
    degrees, if the batch has them. Otherwise all graphs of one size would get the same numbers.
    """
    n = int(batch.num_nodes[row])
    x = batch.x[row, :n]
    degrees = getattr(batch, "in_degree", None)
    if degrees is not None and bool((x == x[:1]).all()):
        return generator_of(seed, torch.cat([x.double().flatten(), degrees[row, :n].double()]))
    return generator_of(seed, x)


def generator_of(seed: int, x: Tensor) -> torch.Generator:
    """Make a random generator that depends only on a seed and a graph's features x (n, F)."""
    content = x.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} ".encode() + content))
