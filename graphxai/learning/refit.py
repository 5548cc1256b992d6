"""Train the model further on graphs with nodes removed, and measure with the result.

Removal leaves graphs that the model has never seen. If its output falls, this may be because the
graph is odd, and not because it lost something that matters. There are two ways around this. Both
need the labels of training graphs:

* `f-fidelity` (Zheng 2024) removes a random share of the nodes from every training graph. The model
  that is trained further on these graphs measures all methods. The explained model does not change.
  The paper removes a tenth of the nodes at most. Here the share is uniform between 0 and 1, so that
  the graphs of every point of a curve are like those of the training.
* `roar` (Hooker 2019) removes the share of the nodes that a method calls most relevant, from all
  training graphs and all measured graphs. If a model trained on these graphs still predicts
  something, that was not removed. Like GInX-Eval (Amara 2023), it trains the model further instead
  of from scratch.
"""

import copy
import hashlib
import math
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.inputs import Input, prepare_each
from graphxai.contract.target import Target
from graphxai.evaluation.curves import class_logits, explained_class
from graphxai.evaluation.measure import Item, MeasurementPlan, explained_or_reason
from graphxai.evaluation.metrics import ROAR
from graphxai.evaluation.store import Key, Unit
from graphxai.evaluation.targets import TrackedOutput, label_number, targets_by_graph
from graphxai.explainers import Explainer
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.learning.fit import fit
from graphxai.learning.predicting import predict
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import Graphormer
from graphxai.wrapping.subgraphs import remaining

RefitKind = Literal["f-fidelity", "roar"]


@dataclass(frozen=True, eq=False)
class Refit:
    """How to train a Graphormer further before measuring, and on what.

    Args:
        kind: "f-fidelity" or "roar". The module says what they do.
        inputs: training graphs, as for `explain`.
        labels: the class (name or number) or value of each input for the measured task.
        epochs: the number of passes over the training graphs. For `f-fidelity` each pass removes
            other nodes.
        shares: the shares of the nodes that `roar` removes.
        learning_rate: the learning rate of the training.

    Raises:
        ValueError: the kind is unknown, or the labels do not match the inputs.
    """

    kind: str
    inputs: Sequence[Any]
    labels: Sequence[Any]
    epochs: int = 3
    shares: tuple[float, ...] = (0.1, 0.3, 0.5)
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        if self.kind not in get_args(RefitKind):
            raise ValueError(
                f"unknown refit {self.kind!r}; choose from {', '.join(get_args(RefitKind))}."
            )
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"{len(self.inputs)} inputs, but {len(self.labels)} labels.")
        if self.epochs < 1 or not all(0 < share < 1 for share in self.shares):
            raise ValueError("epochs must be at least 1, and shares lie between 0 and 1.")

    def on(self, model: Any, tracked: TrackedOutput, operators: Sequence[str]) -> "Refitting":
        """Encode the training graphs for a model and an output.

        Raises:
            ValueError: this model cannot be trained further for this measurement.
        """
        task = tracked.target.task_in(model.config)
        if not isinstance(model, Graphormer):
            raise ValueError(
                "refit trains a Graphormer; train a model of another kind on masked graphs"
                " yourself, and pass it as judge=."
            )
        if model.config.level == "node":
            raise ValueError("refit trains models of graphs, not of nodes.")
        others = [name for name in operators if name not in ("mask", "delete")]
        if others:
            raise ValueError(f"refit removes nodes by 'mask' or 'delete', not by {others[0]!r}.")
        if self.kind == "roar" and task.kind == "regression":
            raise ValueError(
                "refit 'roar' compares probabilities of a class, and this task has none."
            )
        column = [each.name for each in model.config.tasks].index(task.name)
        items: list[Item] = []
        for key, item in enumerate(prepare_each(model, self.inputs)):
            number = label_number(task, self.labels[key])
            if isinstance(item, Exception) or number is None:
                continue
            images = sorted(
                (copy.copy(each.data) for each in item.passes),
                key=lambda data: data.x.numpy().tobytes(),
            )
            for data in images:  # of a molecule and its mirror image, whichever was drawn
                data.y = torch.full((1, len(model.config.tasks)), math.nan)
                data.y[0, column] = number
            image, *isomers = map(Input, images)
            items.append((key, replace(image, isomers=tuple(isomers))))
        if not items:
            raise ValueError("refit needs training graphs with labels, and there are none.")
        return Refitting(model, self, tracked, items)


@dataclass(frozen=True, eq=False)
class Refitting:
    """A refit of one model, with its training graphs encoded.

    Args:
        training: the usable training graphs by position, with `y` (1, tasks). The entries of `y`
            for other tasks are NaN.
    """

    model: Graphormer
    refit: Refit
    tracked: TrackedOutput
    training: Sequence[Item]

    @property
    def is_roar(self) -> bool:
        """Whether `roar` is measured, and not the curves of a judge."""
        return self.refit.kind == "roar"

    def settings(self) -> dict[str, Any]:
        """Return what is needed to repeat the training, as JSON values."""
        refit, content = self.refit, hashlib.sha256()
        for _, item in self.training:
            content.update(item.data.x.numpy().tobytes() + item.data.y.numpy().tobytes())
        settings = {
            "kind": refit.kind,
            "epochs": refit.epochs,
            "learning_rate": refit.learning_rate,
        }
        settings |= {"shares": list(refit.shares)} if self.is_roar else {}
        return settings | {"graphs": len(self.training), "sha256": content.hexdigest()[:12]}

    def judges(
        self, plan: MeasurementPlan, folder: Path, progress: bool | None = None
    ) -> dict[str, Model]:
        """Train the model of `f-fidelity` for each operator, on graphs without some nodes.

        Args:
            folder: the folder of the training runs, which are continued or read back.
            progress: as for `explain`.
        """
        trained: dict[str, Model] = {}
        for operator in plan.operators:
            generator = torch.Generator().manual_seed(plan.seed)
            parts = []
            for _, item in [*self.training] * self.refit.epochs:
                order = torch.randperm(item.num_nodes, generator=generator)
                share = float(torch.rand((), generator=generator))
                rest = _rest(order, share)
                parts += [remaining(each.data, rest, operator) for each in item.passes]
            trained[operator] = self._trained(parts, 1, folder / operator, plan.seed, progress)
        return trained

    def roar_units(
        self,
        plan: MeasurementPlan,
        items: Sequence[Item],
        targets: Mapping[Key, Target],
        folder: Path,
        done: set[tuple[Key, str]],
        progress: bool | None = None,
    ) -> Generator[list[Unit], None, None]:
        """Yield the units of one method after another, except those already done.

        Args:
            done: the (graph, method) pairs that an earlier run measured.
            progress: as for `explain`.
        """
        labels = {key: self.refit.labels[int(key)] for key, _ in self.training}
        targets_of_training, _ = targets_by_graph(self.model, self.training, self.tracked, labels)
        for explainer in plan.explainers:
            if all((key, explainer.name) in done for key, _ in items):
                continue
            orders = _orders(self.model, explainer, items, targets)
            learned = _orders(self.model, explainer, self.training, targets_of_training)
            ordered = [item for item in items if isinstance(orders[item[0]], Tensor)]
            p = _probability(self.model, ordered, targets)
            whole = p(predict(self.model, [item.data for _, item in ordered]))
            drops: dict[str, NDArray[np.float64]] = {}
            for operator in plan.operators:
                left = []
                for share in self.refit.shares:
                    place = folder / operator / quote(explainer.name, safe="") / f"{share:g}"
                    parts = _without_top(self.training, learned, share, operator)
                    epochs = self.refit.epochs
                    trained = self._trained(parts, epochs, place, plan.seed, progress)
                    left.append(p(predict(trained, _without_top(ordered, orders, share, operator))))
                drops[operator] = whole - np.mean(left, 0)
            place_of = {key: place for place, (key, _) in enumerate(ordered)}
            blank = torch.zeros(1, self.model.config.num_outputs)
            for key, item in items:
                if (key, explainer.name) not in done:
                    label = targets[key].resolve(self.model.config, blank).labels[0]
                    row, order = place_of.get(key), orders[key]
                    values = {
                        operator: {ROAR.name: math.nan if row is None else float(drop[row])}
                        for operator, drop in drops.items()
                    }
                    note = order if isinstance(order, str) else ""
                    unit = Unit("", key, "", explainer.name, item.num_nodes, label)
                    yield [replace(unit, values=values, note=note)]

    def _trained(
        self, graphs: Sequence[Data], epochs: int, folder: Path, seed: int, progress: bool | None
    ) -> Graphormer:
        """Train a copy of the model further on encoded graphs, or read a finished run back."""
        device = next(self.model.parameters()).device
        settings = TrainingSettings(
            epochs=epochs,
            batch_size=32,
            learning_rate=self.refit.learning_rate,
            ema_decay=0.99,
            keep_best=False,
            seed=seed,
            accelerator="cpu" if device.type == "cpu" else "auto",
            progress=sys.stderr.isatty() if progress is None else progress,
        )
        learner = copy.deepcopy(self.model)
        fit(learner, graphs, [], settings, folder)
        return learner.to(device)


def _orders(
    model: Graphormer, explainer: Explainer, items: Sequence[Item], targets: Mapping[Key, Target]
) -> dict[Key, Tensor | str]:
    """Return each graph's nodes by descending relevance, or the reason why there is no order."""
    orders: dict[Key, Tensor | str] = {}
    for target in dict.fromkeys(targets.values()):
        chosen = [item for item in items if targets.get(item[0]) == target]
        for key, explained in explained_or_reason(model, chosen, explainer, target).items():
            if isinstance(explained, Explanation):
                scores = torch.from_numpy(explained.relevance)
                orders[key] = scores.argsort(descending=True, stable=True)
            else:
                orders[key] = explained
    return orders


def _without_top(
    items: Sequence[Item], orders: Mapping[Key, Tensor | str], share: float, operator: str
) -> list[Data]:
    """Remove a share of the nodes, the first in order, from each graph that has an order."""
    pairs = [(item.data, orders.get(key)) for key, item in items]
    return [
        remaining(data, _rest(order, share), operator)
        for data, order in pairs
        if isinstance(order, Tensor)
    ]


def _rest(order: Tensor, share: float) -> Tensor:
    """Return True (N,) at the nodes that stay after removing a share of them in this order."""
    keep = torch.ones(len(order), dtype=torch.bool)
    keep[order[: min(round(share * len(order)), len(order) - 1)]] = False
    return keep


def _probability(
    model: Graphormer, items: Sequence[Item], targets: Mapping[Key, Target]
) -> Callable[[Tensor], NDArray[np.float64]]:
    """Return a function from outputs (G, num_outputs) to the explained classes' p (G,)."""
    whole = predict(model, [item.data for _, item in items])
    config, of_graph = model.config, [targets[key] for key, _ in items]
    classes = [
        explained_class(config, t, row[None]) for t, row in zip(of_graph, whole, strict=True)
    ]

    def p(outputs: Tensor) -> NDArray[np.float64]:
        logits = [
            class_logits(config, t, row[None])[0] for t, row in zip(of_graph, outputs, strict=True)
        ]
        probabilities = [float(z.softmax(-1)[c]) for z, c in zip(logits, classes, strict=True)]
        return np.array(probabilities)

    return p
