"""The base class of all explainers, and the attribution that they return."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch, OneGraphAtATime
from graphxai.contract.model import ExplainableModel, evaluating, explaining
from graphxai.contract.target import DecidedTarget, ResolvedTarget, Target, TargetOfNode

from .traits import Traits
from .wrapped import (
    MODELS_OWN_ERRORS,
    NODES_ONLY,
    check_gradients,
    checked_outputs,
    further_inputs,
    noticing_random_numbers,
    refuse_untraceable,
    sharing_forward_passes,
    with_leaves,
)


def gradients(f: Tensor, wanted: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of the sum of f (B,) at tensors, zeros where none arrives."""
    return torch.autograd.grad(f.sum(), wanted, allow_unused=True, materialize_grads=True)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Relevance of a batch of B graphs with at most N nodes.

    Args:
        relevance: the relevance of the nodes (B, N), zero at padding.
        graph_token: the share of the graph token (B,).
        biases: the share of additive parameters (B,).
        output: the explained f_c (B,).
        outputs: all outputs of the model (B, num_outputs).
        labels: f_c of each graph as text.
        mask: True at nodes (B, N).
        features: `relevance` split exactly by feature (B, N, F), or None.
        structure: by name, the share (B,) of each term of the structural bias. It is None if no
            relevance flows there, or if the terms are not separated.
        remainders: by name, the relevance (B,) that each kind of operation creates or loses. They
            sum to `unexplained`, see `rules.remainders`. It is None if they were not computed.
        average_node: with `baseline="mean"`, the relevance (B,) that the same number of average
            nodes would get.
        others: by name, the shares (B,) of a wrapped model's other constants, see
            `explanation.ledger.Ledger`.
        spread: how far each score may be off (B, N), or None.
        members: the relevance by each model of an ensemble (K, B, N), or None.
        curve: for shares that say what groups of nodes do, the three numbers of the curve of size
            and its error (B, 4), see `shares`. None for other methods.
        inputs: by name, the relevance of further inputs, with one tensor for each graph. The tensor
            has the input's shape (rows, ...) if it is split by feature, otherwise (rows,).
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
    curve: Tensor | None = None
    members: Tensor | None = None
    inputs: dict[str, list[Tensor]] | None = None

    @property
    def unexplained(self) -> Tensor:
        """What remains of the output (B,) after subtracting all relevance and shares."""
        rest = self.output - self.relevance.sum(-1) - self.graph_token - self.biases
        if self.average_node is not None:
            rest = rest - self.average_node
        named = (*(self.structure or {}).values(), *(self.others or {}).values())
        return rest - sum(named, torch.zeros_like(rest))


class Explainer(ABC):
    """A method of explanation, which gives every node of every graph in a batch a number.

    The sign of a number says whether the node speaks for or against the target. If
    `traits.large_score_means` says something else, such as "attended to", the numbers have no sign.

    A subclass sets its names and traits, and defines `_attribute`. The decorator `register` makes
    it available by name. The scores of a graph depend neither on the other graphs of the batch nor
    on padding.
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
        """Explain every graph in a batch.

        The model runs in eval mode, and its mode is restored afterwards.

        Args:
            model: a model that meets the contract of `contract.model`.
            batch: B graphs, as the model collates them.
            target: the output to explain, see `Target`.
            wrt: the inputs that get relevance, see `api.explain`.

        Raises:
            TypeError: the model does not meet the contract.
            ValueError: the model does not have the target or an input, the method does not explain
                such inputs, or it needs gradients and the weights have none.
        """
        traits = self.traits
        wanted = Target.of(target)
        further = further_inputs(wrt, self.title, traits.explains_other_inputs)
        if members := getattr(model, "members", ()):
            outputs, decided = decided_by(model, batch, wanted)  # on which the members agree
            return _averaged([self.attribute(m, batch, decided, wrt) for m in members], outputs)
        if hasattr(model, "summands"):
            return self._of_sum(model, batch, wanted, wrt)
        with explaining(model):
            with noticing_random_numbers(model, batch):
                if traits.needs_gradients:
                    check_gradients(model, batch, traits.reports_cut_gradients)
                # a wrapped model may need passes of single graphs
                parts: list[Any] = model.passes(batch) if hasattr(model, "passes") else [batch]
                try:
                    attributions = self._each(model, parts, wanted, further)
                except OneGraphAtATime as error:  # of this batch, or of one that was made of it
                    attributions = self._each(model, error.apart(*parts), wanted, further)
                except MODELS_OWN_ERRORS as error:
                    refuse_untraceable(model, batch, error, self.title, traits.needs_gradients)
                    raise
                joined = attributions[0]
                if len(attributions) > 1:
                    rows = sum(len(attribution.labels) for attribution in attributions)
                    joined = _side_by_side(attributions, batch.mask.expand(rows, -1))
            if hasattr(model, "module"):  # a wrapped model, whose code may be anything
                outputs = checked_outputs(model, batch, joined.outputs, self.name)
                joined = replace(joined, outputs=outputs)
            return joined

    def _each(
        self, model: ExplainableModel, batches: list[Any], wanted: Target, further: tuple[str, ...]
    ) -> list[Attribution]:
        """Explain batches one after another, with gradients for further inputs."""
        integers = self.traits.explains_integer_inputs
        with_inputs = [with_leaves(model, batch, further, integers) for batch in batches]
        return [each for batch in with_inputs for each in self._of_nodes(model, batch, wanted)]

    def _of_nodes(self, model: ExplainableModel, batch: Any, wanted: Target) -> list[Attribution]:
        """Explain a batch, or each of the nodes that its only graph asks for."""
        if (nodes := getattr(batch, "nodes_asked", 1)) == 1:
            return [self._attribute(model, batch, wanted)]
        attributions = []
        with sharing_forward_passes():
            for place in range(nodes):
                target = TargetOfNode(wanted.choice, wanted.task, place)
                attribution = self._attribute(model, batch, target)
                outputs = attribution.outputs[:, target.columns(model.config)]
                attributions.append(replace(attribution, outputs=outputs))
        return attributions

    def _of_sum(self, model: Any, batch: Any, wanted: Target, wrt: Sequence[str]) -> Attribution:
        """Add what two models say, who explain the target that their sum decides on."""
        outputs, decided = decided_by(model, batch, wanted)
        (first, factor), (second, _) = model.summands
        a = self.attribute(first, batch.base, decided, wrt)
        resolved = decided.resolve(model.config, outputs)
        exact = {n: getattr(resolved, n).to(second.means) for n in ("weights", "offset")}
        of_process = replace(decided, resolved=replace(resolved, **exact))
        b = self.attribute(second, batch.process, of_process)
        shares = torch.stack([factor * a.relevance, b.relevance], dim=-1)  # (B, N, 2)
        biases = factor * a.biases + b.biases
        if self.traits.adds_up:  # both have the target's offset, which counts once
            biases = biases - factor * resolved.offset
        of_first = ("average_node", "spread", "inputs", *SHARES)
        return Attribution(
            relevance=shares.sum(-1),
            graph_token=factor * a.graph_token + b.graph_token,
            biases=biases,
            output=resolved(outputs),
            outputs=outputs,
            labels=a.labels,
            mask=a.mask,
            features=shares,
            **_joined([a], of_first, lambda values: factor * values[0]),
        )

    def applies_to(self, model: Any) -> bool:
        """Return whether this model has what the method needs. Most need nothing special."""
        return True

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options that the explainer was made with, by name, as in scikit-learn."""
        return {name: getattr(self, name) for name in self.options()}

    @classmethod
    def options(cls) -> list[str]:
        """Return the names of the options that explainers of this class take."""
        return [] if cls.__init__ is object.__init__ else list(signature(cls).parameters)

    @abstractmethod
    def _attribute(
        self, model: ExplainableModel, batch: GraphBatch, target: Target
    ) -> Attribution: ...


OF_NODES = ("relevance", "features", "spread")  # the fields with a row for each node
OF_GRAPHS = ("graph_token", "biases", "output", "average_node", "curve")
SHARES = ("structure", "remainders", "others")  # the fields with numbers (B,) by name


def _joined(
    attributions: Sequence[Attribution],
    names: Sequence[str],
    join: Callable[[list[Tensor]], Tensor],
) -> dict[str, Any]:
    """Join each of these fields of several attributions. A share that one of them lacks is zero."""

    def joined(name: str) -> Any:
        values = [getattr(attribution, name) for attribution in attributions]
        given = [value for value in values if value is not None]
        if name in SHARES and given:
            zeros = [torch.zeros_like(attribution.output) for attribution in attributions]
            pairs = [(value or {}, zero) for value, zero in zip(values, zeros, strict=True)]
            keys = dict.fromkeys(key for value in given for key in value)
            return {key: join([value.get(key, zero) for value, zero in pairs]) for key in keys}
        if len(given) < len(values):
            return None
        if name != "inputs":
            return join(values)
        return {  # a tensor for each graph
            key: [join(list(of_graph)) for of_graph in zip(*(v[key] for v in values), strict=True)]
            for key in values[0]
        }

    return {name: joined(name) for name in names}


def _side_by_side(attributions: list[Attribution], mask: Tensor) -> Attribution:
    """Combine attributions of parts of a batch into one for the batch, with mask (B, N)."""
    nodes = mask.shape[1]

    def padded(values: list[Tensor]) -> Tensor:
        ends = [(0, 0) * (value.dim() - 2) + (0, nodes - value.shape[1]) for value in values]
        return torch.cat([F.pad(value, end) for value, end in zip(values, ends, strict=True)])

    fields = _joined(attributions, OF_NODES, padded)
    fields |= _joined(attributions, (*OF_GRAPHS, "outputs", *SHARES), torch.cat)
    if (first := attributions[0].inputs) is not None:
        fields["inputs"] = {
            n: [x for each in attributions for x in (each.inputs or {}).get(n, ())] for n in first
        }
    labels = tuple(label for attribution in attributions for label in attribution.labels)
    return Attribution(mask=mask, labels=labels, **fields)


def decided_by(model: Any, batch: GraphBatch, wanted: Target) -> tuple[Tensor, DecidedTarget]:
    """Compute the outputs (B, num_outputs) of an ensemble, and the target resolved for them."""
    with evaluating(model), torch.no_grad():
        outputs = model(batch)
    return outputs, DecidedTarget(wanted.choice, wanted.task, wanted.resolve(model.config, outputs))


def _averaged(attributions: list[Attribution], outputs: Tensor) -> Attribution:
    """Average the members' attributions, with their standard deviation as the spread."""
    names = ("relevance", "features", *OF_GRAPHS, *SHARES, "inputs")
    members = torch.stack([attribution.relevance for attribution in attributions])  # (K, B, N)
    return Attribution(
        **_joined(attributions, names, lambda values: torch.stack(values).mean(0)),
        outputs=outputs,
        labels=attributions[0].labels,
        mask=attributions[0].mask,
        members=members,
        spread=members.std(0) if len(attributions) > 1 else None,
    )


def scored(
    scores: Tensor,
    batch: GraphBatch,
    outputs: Tensor,
    resolved: ResolvedTarget,
    *,
    features: Tensor | None = None,
    **shares: Any,
) -> Attribution:
    """Make an Attribution from scores (B, T) of all tokens, where the graph token is first.

    Args:
        scores: the scores.
        batch: B graphs.
        outputs: the outputs of the model (B, num_outputs).
        resolved: the target resolved for these outputs.
        features: the scores of the nodes split by feature (B, N, F), if they are.
        shares: further fields of the attribution.
    """
    if features is not None:
        features = features.detach().masked_fill(~batch.mask[..., None], 0.0)
    given = {
        "biases": torch.zeros_like(scores[:, 0]).detach(),
        "output": resolved(outputs).detach(),
        "features": features,
    }
    return Attribution(
        relevance=scores[:, 1:].detach().masked_fill(~batch.mask, 0.0),
        graph_token=scores[:, 0].detach(),
        outputs=outputs.detach(),
        labels=resolved.labels,
        mask=batch.mask,
        **given | shares,
    )
