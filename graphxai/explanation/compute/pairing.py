"""Compute the relevance of each graph's token pairs, from encoded inputs in batches."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphxai.contract.batching import batches_for, collated
from graphxai.contract.inputs import Input
from graphxai.datasets.training_set import TrainingSet
from graphxai.explainers import Explainer
from graphxai.explainers.pairs import distances_of, pair_relevance, rules_of, walk_relevance
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.pairs import Pairs

from .explaining import explanations_or_errors
from .models import Model
from .predicting import all_passes, mean_of, or_not_finite


def pairs_or_errors(
    model: Model,
    encoded: Sequence[tuple[int, Input]],
    /,
    *,
    explainer: Explainer,
    target: Any,
    num_layers: int | None,
    training: TrainingSet | None,
) -> Iterator[tuple[int, Pairs | Exception]]:
    """Yield each input's number with its pairs, or with its error.

    Args:
        num_layers: the number of layers that walks pass, or None for what each layer read.
        training: the model's training set, to tell how near each molecule is to it.
    """
    explanations: dict[int, Explanation] = {}
    computed = explanations_or_errors(model, encoded, explainer, target=target, training=training)
    for number, explanation in computed:
        if isinstance(explanation, Exception):
            yield number, explanation
        else:
            explanations[number] = explanation
    rules = rules_of(explainer)
    usable = [entry for entry in encoded if entry[0] in explanations]
    passes = [(entry, each) for entry in usable for each in entry[1].passes]
    waiting: dict[int, list[tuple[NDArray[np.floating], Any]]] = {}
    for part in batches_for(model, passes):
        batch = collated(model, part)
        heads: Any = [None] * len(part)
        if num_layers is None:
            relevance, of_heads = pair_relevance(model, batch, target, rules)  # (B, L, T, T)
            heads = list(of_heads.cpu().to(torch.promote_types(of_heads.dtype, torch.float32)))
        else:
            relevance = walk_relevance(model, batch, num_layers, target, rules)[:, None]
        relevance = relevance.cpu().to(torch.promote_types(relevance.dtype, torch.float32))
        distances = distances_of(batch, [item.graph for _, item in part])
        # The model has a graph token, or one was added.
        of_token = relevance[..., 0, :].any() or relevance[..., 0].any()
        has_graph_token = getattr(batch, "has_graph_token", True) or bool(of_token)
        for row, ((number, item), _) in enumerate(part):
            tokens = item.num_nodes + 1
            of_graph = relevance[row, :, :tokens, :tokens].numpy().copy()
            of_head = None if heads[row] is None else heads[row].numpy().copy()
            of_passes = all_passes(waiting, item, (of_graph, of_head))
            if of_passes is None:
                continue
            of_graph, of_head = map(mean_of, zip(*of_passes, strict=True))
            about = distances[row], has_graph_token, num_layers, of_head
            yield number, or_not_finite(Pairs, explanations[number], of_graph, *about)
