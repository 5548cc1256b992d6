"""Controls that every method has to beat: random scores, equal ones, and a reversed method."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target

from .base import Attribution, Explainer, scored
from .registry import Method, get_explainer, register
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
            scores[b, 1 : n + 1] = torch.randn(n, generator=generator, dtype=torch.float).to(scores)
        return scored(scores, batch, outputs, target.resolve(model.config, outputs))


@register
class Ones(Explainer):
    """A score of one for every node. A measure that it wins does not judge values."""

    name = "ones"
    title = "Ones"
    source = "control"
    traits = Traits(cost="1 forward", large_score_means="the same for every node")

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        with torch.no_grad():
            outputs = model.encode(model.embed(batch), batch)
        scores = outputs.new_ones(len(batch), batch.mask.shape[1] + 1)
        scores[:, 0] = 0
        return scored(scores, batch, outputs, target.resolve(model.config, outputs))


@register
class Reverse(Explainer):
    """The scores of a method with their sign turned. In a report it is that of the first method.

    Args:
        of: the method that is reversed.
    """

    name = "reverse"
    title = "Reverse"
    source = "control"

    def __init__(self, of: Method = DEFAULT_METHOD) -> None:
        self.of = of
        self.reversed = get_explainer(of)
        self.traits = replace(  # the ledger belongs to the scores as they were
            self.reversed.traits,
            adds_up=False,
            in_output_units=False,
            large_score_means="",
            searches_curve=False,
            trained_on_curve=False,
            explains_other_inputs=False,
        )

    def applies_to(self, model: Any) -> bool:
        """Return whether the reversed method applies."""
        return self.reversed.applies_to(model)

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        explained = self.reversed._attribute(model, batch, target)
        scores = torch.cat([explained.graph_token[:, None], explained.relevance], dim=1)
        resolved = target.resolve(model.config, explained.outputs)
        return scored(-scores, batch, explained.outputs, resolved, spread=explained.spread)


def with_controls(explainers: Sequence[Explainer], seed: int = 0) -> list[Explainer]:
    """Add the controls that are not among the explainers, of which `reverse` turns the first."""
    names = {explainer.name.partition(" (")[0] for explainer in explainers}
    controls = (Random(seed), Ones(), Reverse(explainers[0] if explainers else DEFAULT_METHOD))
    return [*explainers, *(control for control in controls if control.name not in names)]


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
