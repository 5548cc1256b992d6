"""The base class of all explainers, what they give back, and the registry."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.adapters.placing import OneGraphAtATime
from graphxai.contract.model import ExplainableModel, explaining
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.models.graphormer.encoding import GraphBatch

from .soundness import noticing_chance, warn_if_another


@dataclass(frozen=True, eq=False)
class Attribution:
    """Relevance of a batch of B graphs with at most N nodes.

    relevance (B, N), zero at padding; graph_token (B,), the graph token's own; biases (B,), the
    share of additive parameters; output (B,), the f_c explained; outputs (B, num_outputs), all
    the model said; features (B, N, F), exact parts of `relevance`, or None; labels: f_c in
    words; mask (B, N), True at nodes; structure, share of each term of the structural bias by
    name, (B,) each, or None where nothing flows there or it was not told apart; remainders, what
    each kind of operation makes or loses, by name, (B,) each, in sum `unexplained` (source:
    `explainers.remainders`), or None where that is not known.
    """

    relevance: Tensor
    graph_token: Tensor
    biases: Tensor
    output: Tensor
    outputs: Tensor
    labels: tuple[str, ...]
    mask: Tensor
    features: Tensor | None = None
    structure: dict[str, Tensor] | None = None
    remainders: dict[str, Tensor] | None = None

    @property
    def unexplained(self) -> Tensor:
        """What is missing for relevance, biases and structure to sum to the output, (B,)."""
        rest = self.output - self.relevance.sum(-1) - self.graph_token - self.biases
        return rest - sum((self.structure or {}).values(), torch.zeros_like(rest))


class Explainer(ABC):
    """One explanation method: signed relevance for every node of every graph in a batch.

    A subclass names itself and writes `_attribute`; `register` makes it known by name. The
    scores of a graph depend neither on the other graphs of the batch nor on padding.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    cost: ClassVar[str] = "1 forward, 1 backward"
    additive: ClassVar[bool] = False  # whether scores are shares of the output, in its units
    of_output: ClassVar[bool] = False  # whether they are changes of it, but add up to nothing
    sampled: ClassVar[bool] = False  # whether random numbers, dealt out by node number, decide

    def attribute(
        self, model: ExplainableModel, batch: GraphBatch, target: Any = None
    ) -> Attribution:
        """Explain `target` (see `Target`) of every graph in `batch`.

        The model is run in eval mode and left as it was. Raises TypeError for a model without
        the contract of `capture`, ValueError for a target it does not have.
        """
        wanted = Target.of(target)
        with explaining(model), noticing_chance(model, batch):
            try:
                found = self._attribute(model, batch, wanted)
                warn_if_another(model, batch, found.outputs, self.name)
                return found
            except OneGraphAtATime as error:
                alone = [self._attribute(model, one, wanted) for one in error.batches]
                return _side_by_side(alone, batch.mask)

    @abstractmethod
    def _attribute(
        self, model: ExplainableModel, batch: GraphBatch, target: Target
    ) -> Attribution: ...


def _side_by_side(alone: list[Attribution], mask: Tensor) -> Attribution:
    """Attributions of single graphs as one of their batch, with this mask (B, N)."""
    nodes = mask.shape[1]
    found: dict[str, Any] = {"mask": mask, "labels": tuple(a.labels[0] for a in alone)}
    for name in ("graph_token", "biases", "output", "outputs"):
        found[name] = torch.cat([getattr(a, name) for a in alone])
    wide = [F.pad(a.relevance, (0, nodes - a.relevance.shape[1])) for a in alone]
    return Attribution(relevance=torch.cat(wide), **found)


def scored(
    scores: Tensor, batch: GraphBatch, outputs: Tensor, resolved: ResolvedTarget
) -> Attribution:
    """An Attribution from token scores (B, T), graph token first, without bias terms."""
    nodes = scores[:, 1:].detach().masked_fill(~batch.mask, 0.0)
    return Attribution(
        relevance=nodes,
        graph_token=scores[:, 0].detach(),
        biases=torch.zeros_like(scores[:, 0]).detach(),
        output=resolved(outputs).detach(),
        outputs=outputs.detach(),
        labels=resolved.labels,
        mask=batch.mask,
    )
