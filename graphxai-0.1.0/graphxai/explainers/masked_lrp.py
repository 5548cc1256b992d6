"""Transformer attribution through the important heads only (Song 2024)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target

from .attention import GRADIENT_WEIGHTED
from .base import Attribution, Explainer
from .heads import FILE, HeadStatistics, count
from .positive import transformer_attribution
from .registry import register
from .traits import Traits


@register
class MaskedLrp(Explainer):
    """Transformer attribution in which only positional and relational heads pass relevance on.

    In a layer without important heads, all relevance goes around the attention. In a model without
    any important head, all nodes score zero.

    Args:
        statistics: what the model's heads look at in a data set (see `head_statistics`), or a
            folder with a `heads.json`. If it is None, the statistics in the checkpoint are used. If
            the checkpoint has none, each graph is measured by itself, by distances and bonds.
    """

    name = "masked_lrp"
    title = "Masked LRP"
    source = "Song 2024, section 4"
    traits = Traits(
        large_score_means=GRADIENT_WEIGHTED,
        cost="2 or 3 forward, 1 backward, 1 relevance pass",
        needs_gradients=True,
    )

    def __init__(self, statistics: HeadStatistics | str | Path | None = None) -> None:
        if isinstance(statistics, str | Path):
            statistics = HeadStatistics.load(statistics)
        self.statistics = statistics

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        statistics = self.statistics or stored_statistics(model)
        if statistics is None:
            kinds = count(model, batch).important()
        else:
            _check_fit(statistics, model)
            kinds = statistics.positional[None], statistics.relational[None]
        important = torch.from_numpy(np.stack(kinds, axis=1))  # (B or 1, 2, L, H)
        return transformer_attribution(model, batch, target, important.to(batch.mask.device))


def stored_statistics(model: Any) -> HeadStatistics | None:
    """Load the statistics in the model's folder, if they were measured on its weights."""
    origin = model.origin
    if origin.folder is None or not (origin.folder / FILE).is_file():
        return None
    statistics = HeadStatistics.load(origin.folder / FILE)
    return statistics if statistics.sha256 == origin.sha256 else None


def _check_fit(statistics: HeadStatistics, model: Any) -> None:
    """Raise ValueError if the statistics belong to another model."""
    config, digest = model.config, model.origin.sha256
    layers, heads = statistics.distances.shape[:2]
    of_model = (getattr(config, "num_layers", layers), getattr(config, "num_heads", heads))
    if (layers, heads) != of_model:
        raise ValueError(
            f"the statistics are for {layers} layers with {heads} heads; the model has"
            f" {of_model[0]} with {of_model[1]}. Measure them again:"
            " head_statistics(model, inputs)."
        )
    if statistics.sha256 and digest and statistics.sha256 != digest:
        raise ValueError(
            "the statistics were measured on other weights. Measure them again:"
            " head_statistics(model, inputs)."
        )
