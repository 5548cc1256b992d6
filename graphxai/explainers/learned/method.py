"""A learned explainer: an order of the nodes from a small network, with the values of LRP.

The activation curve says how good an order is. From the curves of other graphs, a network can learn
which features of a node predict its place in a good order (see `train`).
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.contract.tasks import Task

from ..base import Attribution, Explainer, scored
from ..orders import in_order
from ..registry import register
from ..traits import Traits
from .description import describe
from .network import CARD, FIT, FittedExplainer, require_same_kind, with_classes


@register
class Learned(Explainer):
    """The order of the nodes that a network learned on other graphs of the same model.

    The network reads what a few passes say about each node, and corrects an order. In a Graphormer
    four passes and their gradients are read by layer and head, and the order is that of `lrp_path`.
    In a wrapped model, with messages or attention, the order is that of the marginals with which
    `path_marginals` begins, and the network reads these, LRP, Gradient x Input and the embedding.
    That takes 9 forward and 7 backward passes.

    The network's numbers have neither a zero nor a unit, so only their order is used. The most
    relevant node gets the largest score of `lrp_path` in its graph, or of `lrp` in a wrapped model,
    the next node gets the second largest, and so on. Equivalent nodes share theirs. Scores are
    therefore in units of the output, but do not add up to it.

    The method explains the classes of the tasks that it was fitted to. Other targets raise
    ValueError, as does a model without a fitted explainer.

    Args:
        fitted: what `fit_explainer` returns, or a folder with its files. None takes the files
            beside the model's checkpoint.
    """

    name = "learned"
    title = "Learned order of the nodes"
    source = "this project; Ali 2022, section 5"
    traits = Traits(
        in_output_units=True,
        cost="4 forward, 4 backward",
        needs_fitting=True,
        trained_on_curve=True,
    )

    def __init__(self, fitted: FittedExplainer | str | Path | None = None) -> None:
        self.fitted = FittedExplainer.load(fitted) if isinstance(fitted, str | Path) else fitted

    def applies_to(self, model: Any) -> bool:
        """Return whether an explainer was given, or lies beside the checkpoint of this model."""
        return self.fitted is not None or _stored_in(model) is not None

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        fitted = self.fitted or stored_explainer(model)
        tasks = fitted.tasks_in(model)
        said = describe(model, batch, target)
        require_same_kind(fitted.network, said.features, tasks)
        classes = class_numbers(said.target, tasks)
        network = deepcopy(fitted.network).to(said.start)
        with torch.no_grad():
            inputs = network.inputs(said.features, classes)
            order = network(inputs, said.start, batch.mask)
        values = said.values
        nodes = in_order(values.relevance, order, batch.mask)
        scores = torch.cat([values.graph_token[:, None], nodes], dim=1)
        return scored(scores, batch, values.outputs, said.target)


def _stored_in(model: Any) -> Path | None:
    """Return the checkpoint's folder if it holds a fitted explainer, or None."""
    folder = getattr(getattr(model, "origin", None), "folder", None)
    return folder if folder is not None and (folder / CARD).exists() else None


def stored_explainer(model: Any) -> FittedExplainer:
    """Load the explainer beside the model's checkpoint, or raise a ValueError if there is none."""
    folder = _stored_in(model)
    if folder is not None:
        return FittedExplainer.load(folder)
    with_classes(model.config)
    if hasattr(model, "module"):
        raise ValueError(
            "no explainer was given for this wrapped model: make one by"
            " fitted = gx.fit_explainer(model, graphs), and pass fitted=fitted."
        )
    raise ValueError(f"no explainer is fitted to model {model.origin.name!r}: fit one with {FIT}.")


def class_numbers(target: ResolvedTarget, tasks: Sequence[tuple[Task, slice]]) -> Tensor:
    """Return the number (B,) of each graph's explained class among the classes of all tasks.

    Raises:
        ValueError: something other than a class is explained.
    """
    is_single = (target.weights != 0).sum(-1) == 1
    numbers = torch.full_like(is_single, -1, dtype=torch.long)
    first = 0
    for task, columns in tasks:
        weights = target.weights[:, columns]
        # a single logit is for the second class, its negative for the first
        binary = task.kind == "binary"
        number = (weights[:, 0] > 0).long() if binary else weights.argmax(-1)
        numbers = torch.where(is_single & (weights != 0).any(-1), first + number, numbers)
        first += len(task.classes)
    if (numbers < 0).any():
        names = ", ".join(repr(task.name) for task, _ in tasks)
        raise ValueError(
            f"'learned' was fitted to the classes of {names}, not to"
            f" {target.labels[int(numbers.argmin())]!r}: use 'path_marginals' or 'lrp_path'."
        )
    return numbers
