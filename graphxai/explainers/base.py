"""The base class of all explainers, and what they return."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.adapters.one_at_a_time import OneGraphAtATime
from graphxai.contract.model import ExplainableModel, explaining
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.models.graphormer.encoding import GraphBatch

from .soundness import noticing_chance, warn_if_another

SEARCHES = "searches the curve"  # said of a method in every table of measurements


@dataclass(frozen=True, eq=False)
class Attribution:
    """Relevance of a batch of B graphs with at most N nodes.

    relevance (B, N), zero at padding; graph_token (B,), the graph token's share; biases (B,), the
    share of additive parameters; output (B,), the explained f_c; outputs (B, num_outputs), all
    outputs of the model; features (B, N, F), `relevance` split exactly by feature, or None;
    labels: f_c in words; mask (B, N), True at nodes; structure: the share (B,) of each term of the
    structural bias by name, or None if nothing flows there or the terms are not separated;
    remainders: the relevance (B,) that each kind of operation creates or loses, by name, which sum
    to `unexplained` (source: `rules.remainders`), or None if not known; average_node: with
    `baseline="mean"`, what as many average nodes would get, (B,), otherwise None; others: shares
    (B,) of a wrapped model's other constants by name (see `explanation.ledger.Ledger`).
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
    average_node: Tensor | None = None
    others: dict[str, Tensor] | None = None
    spread: Tensor | None = None

    @property
    def unexplained(self) -> Tensor:
        """Output minus relevance, average nodes, graph token, biases and structure, (B,)."""
        rest = self.output - self.relevance.sum(-1) - self.graph_token - self.biases
        if self.average_node is not None:
            rest = rest - self.average_node
        known = (*(self.structure or {}).values(), *(self.others or {}).values())
        return rest - sum(known, torch.zeros_like(rest))


class Explainer(ABC):
    """One explanation method: one number for every node of every graph in a batch.

    The numbers have a sign, for or against the target, unless `unsigned` says what they measure
    instead, such as "attended to".

    A subclass sets its names and defines `_attribute`; `register` makes it available by name. The
    scores of a graph depend neither on the other graphs of the batch nor on padding.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    cost: ClassVar[str] = "1 forward, 1 backward"
    additive: ClassVar[bool] = False  # whether scores are shares of the output, in its units
    of_output: ClassVar[bool] = False  # whether they are in its units, but do not add up to it
    caveat: ClassVar[str] = ""  # what a reader of its scores has to know, shown beside them
    unsigned: ClassVar[str] = ""  # if no score is negative: what a large one says of a node
    sampled: ClassVar[bool] = False  # whether they depend on random numbers drawn in node order
    searches_curve: ClassVar[bool] = False  # whether it evaluates the curve that AUAC integrates

    def attribute(
        self, model: ExplainableModel, batch: GraphBatch, target: Any = None
    ) -> Attribution:
        """Explain `target` (see `Target`) of every graph in `batch`.

        The model is run in eval mode and left as it was. Raises TypeError for a model that does
        not meet the contract of `contract.model`, ValueError for a target it does not have.
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
    """Combine attributions of single graphs into one for their batch, with mask (B, N)."""
    nodes, first = mask.shape[1], alone[0]
    found: dict[str, Any] = {"mask": mask, "labels": tuple(a.labels[0] for a in alone)}
    for name in ("graph_token", "biases", "output", "outputs", "average_node"):
        parts = [getattr(a, name) for a in alone]
        found[name] = None if parts[0] is None else torch.cat(parts)
    if first.others is not None:
        names = sorted({name for a in alone for name in a.others or {}})
        none = torch.zeros_like(first.biases)
        found["others"] = {
            name: torch.cat([(a.others or {}).get(name, none) for a in alone]) for name in names
        }
    if first.features is not None:
        split = (a.features for a in alone if a.features is not None)
        found["features"] = torch.cat([F.pad(f, (0, 0, 0, nodes - f.shape[1])) for f in split])
    for name in ("relevance", "spread"):
        if getattr(first, name) is not None:
            rows = [getattr(a, name) for a in alone]
            found[name] = torch.cat([F.pad(row, (0, nodes - row.shape[1])) for row in rows])
    return Attribution(**found)


def scored(
    scores: Tensor, batch: GraphBatch, outputs: Tensor, resolved: ResolvedTarget
) -> Attribution:
    """Make an Attribution from token scores (B, T), graph token first, without bias terms."""
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
