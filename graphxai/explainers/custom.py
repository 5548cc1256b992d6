"""A user's own function as an explainer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target

from .base import Attribution, Explainer, scored
from .traits import Traits

Scores = Tensor | Sequence[Any]


class CustomMethod(Explainer):
    """Scores from a function `(model, batch, target) -> scores`.

    scores: (B, N), padding ignored, or one sequence of node scores per graph. `target` is a
    `Target`. Raises ValueError, which names the shape, for the wrong number of scores.
    """

    source = "the user's"
    traits = Traits(cost="the function's")

    def __init__(self, function: Callable[..., Scores]) -> None:
        self.function = function
        self.name = self.title = name_of(function)  # type: ignore[misc]

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        found = self.function(model, batch, target)
        with torch.no_grad():
            outputs = model.encode(model.embed(batch), batch)
        scores = outputs.new_zeros(len(batch), batch.mask.shape[1] + 1)
        scores[:, 1:] = self._padded(found, batch, scores[:, 1:])
        return scored(scores, batch, outputs, target.resolve(model.config, outputs))

    def _padded(self, found: Scores, batch: GraphBatch, like: Tensor) -> Tensor:
        """The function's scores as (B, N), on the model's device."""
        if len(found) != len(batch):
            raise ValueError(
                f"{self.name} returned scores for {len(found)} graphs instead of {len(batch)}."
            )
        padded = torch.zeros_like(like)
        for b, n in enumerate(batch.num_nodes.tolist()):
            row = torch.as_tensor(found[b]).detach().to(like)
            whole_row = isinstance(found, Tensor) and row.shape == like.shape[1:]
            if row.dim() != 1 or not (len(row) == n or whole_row):
                raise ValueError(
                    f"{self.name} returned scores of shape {tuple(row.shape)} for a graph of {n}"
                    f" nodes; return (B, N) = {tuple(like.shape)}, or {n} scores."
                )
            padded[b, :n] = row[:n]
        return padded


def name_of(function: Callable[..., Any]) -> str:
    """The name by which results refer to a function."""
    return str(getattr(function, "__name__", type(function).__name__))
