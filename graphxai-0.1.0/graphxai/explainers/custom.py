"""Make an explainer from a user's function."""

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
    """A method that gets its scores from a function `(model, batch, target) -> scores`.

    The function gets a `Target`. It returns a tensor (B, N), where padding is ignored, or a
    sequence with the node scores of each graph. If the number of scores is wrong, a ValueError
    names their shape.
    """

    source = "the user's"
    traits = Traits(cost="the function's")

    def __init__(self, function: Callable[..., Scores]) -> None:
        self.function = function
        self.name = self.title = name_of(function)  # type: ignore[misc]

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        scores_of_graphs = self.function(model, batch, target)
        with torch.no_grad():
            outputs = model.encode(model.embed(batch), batch)
        scores = outputs.new_zeros(len(batch), batch.mask.shape[1] + 1)
        scores[:, 1:] = self._padded(scores_of_graphs, batch, scores[:, 1:])
        return scored(scores, batch, outputs, target.resolve(model.config, outputs))

    def _padded(self, scores_of_graphs: Scores, batch: GraphBatch, like: Tensor) -> Tensor:
        """Pad the function's scores to (B, N), on the model's device."""
        if len(scores_of_graphs) != len(batch):
            raise ValueError(
                f"{self.name} returned scores for {len(scores_of_graphs)} graphs instead of"
                f" {len(batch)}."
            )
        padded = torch.zeros_like(like)
        for b, n in enumerate(batch.num_nodes.tolist()):
            row = torch.as_tensor(scores_of_graphs[b]).detach().to(like)
            whole_row = isinstance(scores_of_graphs, Tensor) and row.shape == like.shape[1:]
            if row.dim() != 1 or not (len(row) == n or whole_row):
                raise ValueError(
                    f"{self.name} returned scores of shape {tuple(row.shape)} for a graph of {n}"
                    f" nodes; return (B, N) = {tuple(like.shape)}, or {n} scores."
                )
            padded[b, :n] = row[:n]
        return padded


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which results refer to a function."""
    return str(getattr(function, "__name__", type(function).__name__))
