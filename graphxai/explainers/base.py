"""The base class of all explainers, and what they return."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.adapters.layout import OneGraphAtATime
from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel, evaluating, explaining
from graphxai.contract.target import DecidedTarget, ResolvedTarget, Target
from graphxai.models.graphormer import Ensemble

from .soundness import noticing_chance, warn_if_another
from .traits import Traits
from .wrapped import (
    NODES_ONLY,
    check_gradients,
    further_inputs,
    passes_of,
    warn_of_mixing,
    with_leaves,
)

SEARCHES = "searches the curve"  # said about a method in every table of measurements


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
    (B,) of a wrapped model's other constants by name (see `explanation.ledger.Ledger`); spread
    (B, N): how far each score may be off, or None; members (K, B, N): relevance by each model of an
    ensemble, or None; inputs: by name the relevance of further inputs to explain, one
    tensor for each graph, in the input's own shape (rows, ...) where it is split by feature,
    otherwise (rows,).
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
    members: Tensor | None = None
    inputs: dict[str, list[Tensor]] | None = None

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
    traits: Traits = Traits()

    def attribute(
        self,
        model: ExplainableModel,
        batch: GraphBatch,
        target: Any = None,
        wrt: Sequence[str] = NODES_ONLY,
    ) -> Attribution:
        """Explain `target` (see `Target`) of every graph in `batch`.

        The model is run in eval mode and left as it was. wrt: the inputs that get relevance, see
        `api.explain`. Raises TypeError for a model that does not meet the contract of
        `contract.model`, ValueError for a target or an input it does not have, for inputs that the
        method does not explain, and for weights without gradients if it needs those.
        """
        traits = self.traits
        wanted = Target.of(target)
        further = further_inputs(wrt, self.title, traits.explains_other_inputs)
        if isinstance(model, Ensemble):
            return self._of_ensemble(model, batch, wanted, wrt)
        with explaining(model), noticing_chance(model, batch):
            if traits.needs_gradients:
                check_gradients(model, batch, traits.reports_cut_gradients)
            passes = [
                with_leaves(one, further, traits.explains_integer_inputs)
                for one in passes_of(model, batch)
            ]
            try:
                found = [self._attribute(model, one, wanted) for one in passes]
            except OneGraphAtATime:  # of this batch, or of one that the method made from it
                if len(batch) == 1:
                    raise
                alone = (passed.of_rows(row) for passed in passes for row in range(len(passed)))
                passes = [
                    with_leaves(one, further, traits.explains_integer_inputs) for one in alone
                ]
                found = [self._attribute(model, one, wanted) for one in passes]
            joined = found[0] if len(found) == 1 else _side_by_side(found, batch.mask)
            warn_of_mixing(model, self.name)
            warn_if_another(model, batch, joined.outputs, self.name)
            return joined

    def _of_ensemble(
        self, model: Ensemble, batch: GraphBatch, wanted: Target, wrt: Sequence[str]
    ) -> Attribution:
        """The mean over the members, each explained for the target that the ensemble decides on."""
        outputs, decided = decided_by(model, batch, wanted)
        return _averaged(
            [self.attribute(one, batch, decided, wrt) for one in model.members], outputs
        )

    def applies_to(self, model: Any) -> bool:
        """Whether this model gives the method what it needs; most need nothing special."""
        return True

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options that the explainer was made with, by name, as in scikit-learn."""
        init = type(self).__init__
        names = [] if init is object.__init__ else list(signature(type(self)).parameters)
        return {name: getattr(self, name) for name in names}

    @abstractmethod
    def _attribute(
        self, model: ExplainableModel, batch: GraphBatch, target: Target
    ) -> Attribution: ...


def _side_by_side(alone: list[Attribution], mask: Tensor) -> Attribution:
    """Combine attributions of single graphs into one for their batch, with mask (B, N)."""
    first, nodes = alone[0], mask.shape[1]

    def joined(name: str) -> Tensor | None:
        """One field of all of them; what has a row per node is padded."""
        values = [getattr(a, name) for a in alone]
        if values[0] is None:
            return None
        if name in ("relevance", "spread", "features"):
            ends = [(0, 0) * (value.dim() - 2) + (0, nodes - value.shape[1]) for value in values]
            values = [F.pad(value, end) for value, end in zip(values, ends, strict=True)]
        return torch.cat(values)

    def by_name(field: str) -> dict[str, Tensor] | None:
        found = [getattr(a, field) or {} for a in alone]
        names = dict.fromkeys(name for part in found for name in part)
        zero = torch.zeros_like(first.output)
        return {n: torch.cat([part.get(n, zero) for part in found]) for n in names} or None

    numbers = ("relevance", "features", "graph_token", "biases", "output", "outputs", "spread")
    found: dict[str, Any] = {name: joined(name) for name in (*numbers, "average_node")}
    found |= {name: by_name(name) for name in ("structure", "remainders", "others")}
    if first.inputs is not None:
        found["inputs"] = {n: [a.inputs[n][0] for a in alone if a.inputs] for n in first.inputs}
    return Attribution(mask=mask, labels=tuple(a.labels[0] for a in alone), **found)


def decided_by(model: Ensemble, batch: GraphBatch, wanted: Target) -> tuple[Tensor, DecidedTarget]:
    """The outputs (B, num_outputs) of an ensemble, and the target that they decide on."""
    with evaluating(model), torch.no_grad():
        outputs = model(batch)
    return outputs, DecidedTarget(wanted.choice, wanted.task, wanted.resolve(model.config, outputs))


def _averaged(found: list[Attribution], outputs: Tensor) -> Attribution:
    """The mean of the members' attributions, and its standard deviation over them."""

    def mean(name: str) -> Any:
        values = [getattr(one, name) for one in found]
        if values[0] is None:
            return None
        if isinstance(values[0], dict):
            return {k: torch.stack([value[k] for value in values]).mean(0) for k in values[0]}
        return torch.stack(values).mean(0)

    names = ("relevance", "features", "graph_token", "biases", "output", "average_node")
    members = torch.stack([one.relevance for one in found])  # (K, B, N)
    return Attribution(
        **{name: mean(name) for name in (*names, "structure", "remainders", "others")},
        outputs=outputs,
        labels=found[0].labels,
        mask=found[0].mask,
        members=members,
        spread=members.std(0) if len(found) > 1 else None,
    )


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
