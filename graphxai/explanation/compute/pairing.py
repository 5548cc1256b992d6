"""Compute the relevance of each graph's token pairs, from encoded inputs in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.batching import batches_for, collated
from graphxai.contract.inputs import Input
from graphxai.datasets.training_set import TrainingSet
from graphxai.explainers import Explainer
from graphxai.explainers.pairs import distances_of, pair_relevance, rules_of, walk_relevance
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.pairs import Pairs

from .explaining import explanations_or_errors
from .models import Model
from .predicting import or_not_finite


@dataclass(frozen=True)
class PairsComputation:
    """Compute the pairs of every input in a list.

    Args:
        explainer: the method.
        target: the output to explain.
        num_layers: the number of layers that walks pass, or None for what each layer read.
        training: the model's training set, to tell how near each molecule is to it.
    """

    explainer: Explainer
    target: Any
    num_layers: int | None
    training: TrainingSet | None

    def __call__(
        self, model: Model, encoded: Sequence[tuple[int, Input]], /
    ) -> Iterator[tuple[int, Pairs | Exception]]:
        """Yield each input's number with its pairs, or with its error."""
        explanations: dict[int, Explanation] = {}
        computed = explanations_or_errors(
            model, encoded, self.explainer, target=self.target, training=self.training
        )
        for number, explanation in computed:
            if isinstance(explanation, Exception):
                yield number, explanation
            else:
                explanations[number] = explanation
        usable = [entry for entry in encoded if entry[0] in explanations]
        passes = [(entry, each) for entry in usable for each in entry[1].passes]
        waiting: dict[int, NDArray[np.floating]] = {}  # of a first pass
        for part in batches_for(model, passes):
            batch = collated(model, part)
            relevance = self._relevance(model, batch)  # (B, L, T, T)
            distances = distances_of(batch, [item.graph for _, item in part])
            of_token = (
                relevance[..., 0, :].any() or relevance[..., 0].any()
            )  # or one that was added
            has_graph_token = getattr(batch, "has_graph_token", True) or bool(of_token)
            for row, ((number, item), _) in enumerate(part):
                tokens = item.num_nodes + 1
                of_graph = relevance[row, :, :tokens, :tokens].numpy().copy()
                if item.mirrored is not None and number not in waiting:
                    waiting[number] = of_graph
                    continue
                of_graph = (of_graph + waiting.pop(number, of_graph)) / 2
                about = distances[row], has_graph_token, self.num_layers
                yield number, or_not_finite(Pairs, explanations[number], of_graph, *about)

    def _relevance(self, model: Model, batch: Any) -> Tensor:
        """Return the relevance of pairs in each layer (B, L, T, T), or of walks (B, 1, T, T)."""
        rules = rules_of(self.explainer)
        if self.num_layers is None:
            relevance = pair_relevance(model, batch, self.target, rules)
        else:
            walks = walk_relevance(model, batch, self.num_layers, self.target, rules)
            relevance = walks[:, None]
        return relevance.cpu().to(torch.promote_types(relevance.dtype, torch.float32))
