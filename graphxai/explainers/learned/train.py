"""Fit an explainer to a model, so that it finds the order in which the curve rises soonest.

First the network imitates a teacher that averages over coalitions or orders. Then it learns from
the curve itself, in a soft form (see `passes`). The loss is the negative mean of the class's
probability over six random thresholds.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.batching import batches_for, collated
from graphxai.contract.inputs import Input, as_list, prepare_each
from graphxai.contract.model import ExplainableModel, explaining
from graphxai.contract.target import DecidedTarget, ResolvedTarget, Target
from graphxai.contract.tasks import Task, TaskSet
from graphxai.runtime.device import one_thread
from graphxai.runtime.notices import warn
from graphxai.runtime.progress import Progress, progress_bar
from graphxai.runtime.randomness import callers_state_kept

from ..base import Explainer
from ..path_marginals import PathMarginals
from ..shapley import ShapleySampling
from .network import FittedExplainer, OrderNetwork, hash_of, raw_inputs, with_classes
from .passes import (
    Description,
    areas,
    describe,
    gradients_of_probability,
    soft_presence,
    standardised,
    start_of,
)

GRAPHS_AT_A_TIME = 8
FEWEST = 2 * GRAPHS_AT_A_TIME
MOST_HELD_OUT = 100
COMPONENTS, WIDTH = 24, 96
IMITATION_EPOCHS, IMITATION_RATE = 25, 2e-3
CURVE_RATE = 5e-4
WEIGHT_DECAY = 0.02
WARM_UP = 20  # the number of steps in which the rate rises
THRESHOLDS = 6
TAU = (0.35, 0.12)  # softness at the beginning and at the end, in standard deviations of the scores


@dataclass(frozen=True, eq=False)
class _TaughtBatch:
    """Some graphs of similar size, with what passes say about their nodes and the teacher's scores.

    Args:
        batch: B graphs.
        classes: the number (B,) of each explained class among the classes of all tasks.
        said: what passes say about the nodes.
        teacher: the teacher's scores (B, N).
    """

    batch: Any
    classes: Tensor
    said: Description
    teacher: Tensor

    def __len__(self) -> int:
        return len(self.batch)


@callers_state_kept()
def fit_explainer(
    model: ExplainableModel,
    graphs: Any,
    *,
    task: str | None = None,
    shapley_orders: int | None = None,
    epochs: int = 6,
    held_out: float = 0.1,
    seed: int = 0,
    data: str = "",
    progress: bool | None = None,
) -> FittedExplainer:
    """Fit the explainer `learned` to a model, on graphs that no test uses.

    In half of the graphs the predicted class is explained, in the others a random class. The same
    seed gives the same result. `save(folder)` stores it, for a Graphormer beside the checkpoint.

    Args:
        model: a single Graphormer, or a wrapped model.
        graphs: about a thousand inputs as for `explain`. Inputs that cannot be used are left out
            with a warning.
        task: a task with classes. By default all tasks with classes take part, each with about the
            same number of graphs.
        shapley_orders: how many orders the teacher samples for Shapley values. If it is None, the
            teacher is `path_marginals`, which is much faster.
        epochs: how often the network learns from each graph's activation curve.
        held_out: the share of the graphs to hold out for measuring, of at most 100 graphs.
        seed: draws the classes, the order of the graphs and the network's first weights.
        data: what the graphs are, as text, for the card.
        progress: whether to show a bar, as for `explain`.

    Raises:
        TypeError: the model is an ensemble.
        ValueError: the model has no classes, there are fewer than 16 graphs to learn from, or a
            wrapped model combines nodes in a way that cannot leave some out.
    """
    if getattr(model, "members", ()):
        raise TypeError(
            "fit_explainer takes a single model: load one with gx.load (of an ensemble:"
            " FOLDER/members/0)."
        )
    tasks = _tasks_of(model, task)
    teacher: Explainer = PathMarginals()
    if shapley_orders is not None:
        teacher = ShapleySampling(permutations=shapley_orders)
    generator = torch.Generator().manual_seed(seed)
    measured, learned = divided_graphs(model, graphs, epochs, held_out, generator, MOST_HELD_OUT)
    begun = time.process_time()
    total = len(measured) + (1 + epochs) * len(learned)
    bar = progress_bar("fitting the explainer", total, show=progress)
    with explaining(model), one_thread(), bar as advance:
        torch.manual_seed(seed)

        def teach(items: list[Input], teacher: Explainer | None) -> list[_TaughtBatch]:
            return [
                _teach_batch(model, batch, tasks, teacher, generator, advance)
                for batch in _batches(model, items)
            ]

        held_out_parts, parts = teach(measured, None), teach(learned, teacher)
        network = _network(parts, sum(len(each.classes) for each in tasks))
        _imitate(network, parts, generator)
        follow_curves(model, network, parts, epochs, generator, advance)
        network.round()
        scores = _scores(model, network, held_out_parts) if measured else {}
    card = {
        "data": data,
        "graphs": len(learned),
        "seed": seed,
        "settings": {
            "teacher": teacher.name,
            "shapley_orders": shapley_orders,
            "epochs": epochs,
            "components": COMPONENTS,
            "width": WIDTH,
        },
        "processor_seconds": round(time.process_time() - begun, 1),
        "held_out": {"graphs": len(measured)} | scores,
    }
    return FittedExplainer(network, tuple(t.name for t in tasks), hash_of(model), card)


def _tasks_of(model: ExplainableModel, name: str | None) -> list[Task]:
    """Return the named task, or all tasks with classes. Raise ValueError without classes."""
    if name is None:
        return with_classes(model.config)
    task, _ = model.config.task_columns(name)
    return with_classes(TaskSet((task,)))


def divided_graphs(
    model: ExplainableModel,
    graphs: Any,
    epochs: int,
    held_out: float,
    generator: torch.Generator,
    most: int | None = None,
) -> tuple[list[Input], list[Input]]:
    """Encode graphs, and draw which are held out for measuring, `most` of them at most.

    Returns:
        The graphs that are held out, and those to learn from. A warning counts those that cannot be
        used.

    Raises:
        ValueError: there are fewer than `FEWEST` to learn from, or a number makes no sense.
    """
    if epochs < 1 or not 0 <= held_out < 1:
        raise ValueError(f"epochs ({epochs}) must be at least 1, held_out ({held_out}) in [0, 1).")
    prepared = list(prepare_each(model, as_list(graphs)[0]))
    errors = [(k, graph) for k, graph in enumerate(prepared) if isinstance(graph, Exception)]
    if errors:
        (k, first), total = errors[0], len(prepared)
        text = f"{len(errors)} of {total} graphs were left out; the first, number {k}: {first}"
        warn(text, stacklevel=4)
    usable = [graph for graph in prepared if isinstance(graph, Input)]
    order = torch.randperm(len(usable), generator=generator).tolist()
    count = min(round(held_out * len(usable)), len(usable) if most is None else most)
    if len(usable) - count < FEWEST:
        raise ValueError(
            f"{len(usable) - count} usable graphs are too few to learn from: give {FEWEST} or more,"
            " better a thousand."
        )
    return [usable[k] for k in order[:count]], [usable[k] for k in order[count:]]


def _batches(model: ExplainableModel, items: list[Input]) -> Iterator[Any]:
    """Yield small batches of graphs of similar size that may share a pass."""
    by_size = sorted(items, key=lambda item: item.num_nodes)
    for at in range(0, len(by_size), GRAPHS_AT_A_TIME):
        numbered = list(enumerate(by_size[at : at + GRAPHS_AT_A_TIME]))
        for graphs in batches_for(model, numbered):
            batch = collated(model, graphs)
            yield from model.passes(batch) if hasattr(model, "passes") else [batch]


def _teach_batch(
    model: ExplainableModel,
    batch: Any,
    tasks: list[Task],
    teacher: Explainer | None,
    generator: torch.Generator,
    progress: Progress,
) -> _TaughtBatch:
    """Draw the classes of some graphs, and run the passes that say something about their nodes."""
    with torch.no_grad():
        outputs = model.encode(model.embed(batch), batch)
    drawn = 0
    if len(tasks) > 1:
        drawn = int(torch.randint(len(tasks), (), generator=generator))
    task, first = tasks[drawn], sum(len(each.classes) for each in tasks[:drawn])
    classes = _draw_classes(model, task, outputs, generator)
    target = DecidedTarget(
        task=task.name, resolved=_join_targets(model, task, classes.tolist(), outputs)
    )
    said = describe(model, batch, target)
    taught = said.start if teacher is None else teacher._attribute(model, batch, target).relevance
    progress(len(batch))
    return _TaughtBatch(batch, first + classes.to(said.start.device), said, taught)


def _draw_classes(
    model: ExplainableModel, task: Task, outputs: Tensor, generator: torch.Generator
) -> Tensor:
    """Draw a class (B,) for each graph, which is the predicted class half of the time."""
    _, columns = model.config.task_columns(task.name)
    logits = outputs[:, columns].cpu()
    predicted = logits.argmax(-1) if task.kind == "multiclass" else (logits[:, 0] > 0).long()
    any_class = torch.randint(len(task.classes), predicted.shape, generator=generator)
    return torch.where(torch.rand(len(predicted), generator=generator) < 0.5, predicted, any_class)


def _join_targets(
    model: ExplainableModel, task: Task, classes: list[int], outputs: Tensor
) -> ResolvedTarget:
    """Resolve one class for each graph, and join the targets into one for the batch."""
    rows = [
        Target(c, task.name).resolve(model.config, outputs[row : row + 1])
        for row, c in enumerate(classes)
    ]
    rivals = [row.rivals for row in rows if row.rivals is not None]
    return ResolvedTarget(
        torch.cat([row.weights for row in rows]),
        torch.cat([row.offset for row in rows]),
        tuple(row.labels[0] for row in rows),
        torch.cat(rivals) if rivals else None,
        is_class=True,
    )


def _network(parts: list[_TaughtBatch], classes: int) -> OrderNetwork:
    """Make an untrained network that standardises its inputs over all nodes."""
    values, states = (part.shape[-1] for part in parts[0].said.features)
    kept = min(COMPONENTS, states)
    network = OrderNetwork(values + kept + classes, states, kept, WIDTH)
    every = torch.cat([part.said.features.states[part.batch.mask] for part in parts])
    network.state_mean.copy_(every.mean(0))
    covariance = (every - every.mean(0)).double().T.cov()
    network.components.copy_(torch.linalg.eigh(covariance).eigenvectors[:, -kept:])
    network.to(every)
    reduced = (network.state_mean, network.components)
    raw = [raw_inputs(part.said.features, part.classes, classes, *reduced) for part in parts]
    nodes = torch.cat([rows[part.batch.mask] for rows, part in zip(raw, parts, strict=True)])
    network.mean.copy_(nodes.mean(0))
    network.deviation.copy_(nodes.std(0) + 1e-3)
    return network


def _train(
    network: OrderNetwork,
    parts: list[_TaughtBatch],
    epochs: int,
    rate: float,
    generator: torch.Generator,
    step: Callable[[_TaughtBatch, Tensor, float], None],
) -> None:
    """Train the network with AdamW on all batches in random order.

    The learning rate rises over the first steps and then falls to zero.

    Args:
        generator: draws the order of the batches.
        step: adds the gradients of the loss, given a batch, its scores (B, N), and which share of
            the training is done.
    """
    optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=WEIGHT_DECAY)
    inputs = [network.inputs(part.said.features, part.classes) for part in parts]
    taken, total = 0, epochs * len(parts)
    network.train()
    for _ in range(epochs):
        for k in torch.randperm(len(parts), generator=generator).tolist():
            done = taken / total
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (taken + 1) / WARM_UP) * (1 - done)
            optimiser.zero_grad()
            step(parts[k], network(inputs[k], parts[k].said.start, parts[k].batch.mask), done)
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            taken += 1
    network.eval()


def _imitate(network: OrderNetwork, parts: list[_TaughtBatch], generator: torch.Generator) -> None:
    """Learn the teacher's scores, and which of two nodes has the higher score."""

    def step(part: _TaughtBatch, scores: Tensor, done: float) -> None:
        mask = part.batch.mask
        given, wanted = standardised(scores, mask), standardised(part.teacher, mask)
        by_node = F.huber_loss(given[mask], wanted[mask])
        gaps = wanted[:, :, None] - wanted[:, None, :]  # (B, N, N)
        wrong = F.softplus(-(given[:, :, None] - given[:, None, :]) * gaps.sign()) * gaps.abs()
        both = mask[:, :, None] & mask[:, None, :]
        (by_node + 0.5 * wrong[both].mean()).backward()

    _train(network, parts, IMITATION_EPOCHS, IMITATION_RATE, generator, step)


def follow_curves(
    model: ExplainableModel,
    network: OrderNetwork,
    parts: list[_TaughtBatch],
    epochs: int,
    generator: torch.Generator,
    progress: Progress,
) -> None:
    """Train the network on soft activation curves."""

    def step(part: _TaughtBatch, scores: Tensor, done: float) -> None:
        mask = part.batch.mask
        tau = TAU[0] * (TAU[1] / TAU[0]) ** done
        shares = torch.rand(THRESHOLDS, len(part), generator=generator)
        spread = (torch.arange(THRESHOLDS)[:, None] + shares) / THRESHOLDS
        presence = soft_presence(standardised(scores, mask), mask, spread.to(scores), tau)
        gradients = gradients_of_probability(model, part.batch, part.said.target, presence.detach())
        presence.backward(-gradients / (THRESHOLDS * len(part)))
        progress(len(part))

    _train(network, parts, epochs, CURVE_RATE, generator, step)


def _scores(
    model: ExplainableModel, network: OrderNetwork, parts: list[_TaughtBatch]
) -> dict[str, float]:
    """Measure the mean AUAC of the network and of its start on the held-out graphs."""
    areas_by_name: dict[str, list[float]] = {"learned": [], start_of(model): []}
    with torch.no_grad():
        for part in parts:
            inputs = network.inputs(part.said.features, part.classes)
            scores = network(inputs, part.said.start, part.batch.mask)
            areas_by_name["learned"] += areas(model, part.batch, part.said.target, scores).tolist()
            of_start = areas(model, part.batch, part.said.target, part.said.start).tolist()
            areas_by_name[start_of(model)] += of_start
    return {f"auac of {name}": round(sum(v) / len(v), 4) for name, v in areas_by_name.items()}
