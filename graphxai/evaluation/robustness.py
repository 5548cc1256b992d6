"""What a model still knows with some of its nodes removed, on which curves depend.

Activation and pruning curves show the model graphs with nodes missing. If it no longer tells the
classes apart there, their areas say how methods fare on graphs that the model cannot read, and not
which nodes it uses. So every report starts with the model's accuracy (or R2) without 0, 25, 50 and
75 % of the nodes, drawn at random.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphxai.contract.prediction_metrics import r2
from graphxai.contract.target import Target
from graphxai.evaluation.curves import class_logits
from graphxai.evaluation.measure import Item
from graphxai.evaluation.store import Key
from graphxai.evaluation.targets import label_number
from graphxai.explanation.compute.models import Model
from graphxai.wrapping.removal import Operator, Resampling, outputs_of_many

SHARES = (0.0, 0.25, 0.5, 0.75)  # of the nodes that are removed
ENOUGH = 0.5  # of the score above chance that has to remain without half of the nodes


@dataclass(frozen=True)
class Robustness:
    """The score of a model with shares of the nodes removed, `SHARES`.

    Args:
        measure: "accuracy", "R2", or, without labels, "agreement" with its own prediction for the
            whole graph (for a regression R2 against it).
        chance: the score of the best constant answer.
        unseen: how many graphs have the same output, to the last bit, without any of their nodes.
            Their curves are undefined.
        spread: the standard deviation of a regression's values over the whole graphs. Divided by
            it, areas under curves of different data sets or units can be compared.
    """

    measure: str
    values: tuple[float, ...]
    chance: float
    graphs: int
    unseen: int = 0
    spread: float = 0.0

    @property
    def kept(self) -> float:
        """The share of the score above chance that remains without half of the nodes."""
        above = self.values[0] - self.chance
        return (self.values[2] - self.chance) / above if above > 0 else 0.0

    def sentence(self, operator: str) -> str:
        """Say whether rankings of methods under an operator can be trusted."""
        left = (
            f"Without half of the nodes (`{operator}`) the {self.measure} is"
            f" {self.values[2]:.2f} instead of {self.values[0]:.2f}; always the same answer has"
            f" {self.chance:.2f}."
        )
        if self.unseen:
            graphs = "graph" if self.unseen == 1 else "graphs"
            left += (
                f" On {self.unseen} {graphs} the output is the same without any node, so that the"
                " curves are undefined."
            )
        if self.kept < ENOUGH:
            left += (
                f" So rankings under `{operator}` cannot be trusted: curves show how methods fare"
                " on graphs that the model cannot read."
            )
        if self.spread:
            left += (
                f" The values of whole graphs have a standard deviation of {self.spread:.3g}:"
                " divide areas by it to compare data sets."
            )
        return left


def merged_robustness(by_model: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average what several models keep, by operator."""
    merged: dict[str, Any] = {}
    for operator in by_model[0] if by_model else ():
        parts = [Robustness(**of[operator]) for of in by_model if operator in of]
        if len({part.measure for part in parts}) == 1 and len(parts) == len(by_model):
            values = np.mean([part.values for part in parts], axis=0).tolist()
            chance = float(np.mean([part.chance for part in parts]))
            graphs = sum(part.graphs for part in parts)
            unseen = sum(part.unseen for part in parts)
            spread = float(np.mean([part.spread for part in parts]))
            merged[operator] = asdict(
                Robustness(parts[0].measure, tuple(values), chance, graphs, unseen, spread)
            )
    return merged


DRAWS = 4  # random choices of nodes for each share and graph
GRAPHS = 64  # removed from together


def robustness_of(
    model: Model,
    prepared: Sequence[Item],
    target: Target,
    labels: Mapping[Key, Any] | None,
    *,
    operator: Operator = "mask",
    seed: int = 0,
    resampling: Resampling | None = None,
) -> Robustness:
    """Score a model on graphs with random shares of their nodes removed by an operator.

    Args:
        target: names the task.
        labels: true classes or values by key. Graphs without a label are left out.
        seed: draws nodes together with the graphs' features.
    """
    task = target.task_in(model.config)
    of_task = Target(None, task.name)
    predicted: list[Tensor] = []
    for start in range(0, len(prepared), GRAPHS):
        graphs = [item for _, item in prepared[start : start + GRAPHS]]
        features = [sum(each.data.x for each in g.passes) for g in graphs]  # of both images
        drawn = zip(features, graphs, strict=True)
        parts = [random_parts(x, g.num_nodes, seed) for x, g in drawn]
        keeps = [torch.cat([torch.zeros_like(each[:1]), each]) for each in parts]  # first, none
        outputs = outputs_of_many(model, graphs, keeps, operator, resampling)
        predicted += [class_logits(model.config, of_task, of_graph.cpu()) for of_graph in outputs]
    answers = torch.stack(predicted)  # (graphs, 1 + SHARES * DRAWS, classes)
    unseen = int((answers[:, 0] == answers[:, 1]).all(-1).sum())  # without any node, with all
    answers = answers[:, 1:]
    is_value = task.kind == "regression"
    numbers = (answers[..., 0] if is_value else answers.argmax(-1)).double().numpy()
    spread = float(numbers[:, 0].std())
    truth = numbers[:, 0]
    if labels is not None:  # None, for a graph without a label, becomes NaN
        truth = np.array([label_number(task, labels.get(k)) for k, _ in prepared], dtype=float)
    scored = np.isfinite(truth)
    numbers, truth = numbers[scored], truth[scored]
    score = r2 if is_value else lambda answer, truth: np.mean(answer == truth)
    values = tuple(
        float(np.mean([score(column, truth) for column in numbers[:, k : k + DRAWS].T]))
        for k in range(0, len(SHARES) * DRAWS, DRAWS)
    )
    measure = "agreement" if labels is None else "accuracy"
    if is_value:
        return Robustness("R2", values, 0.0, len(truth), unseen, spread)
    most = max(np.unique(truth, return_counts=True)[1]) / len(truth)
    return Robustness(measure, values, float(most), len(truth), unseen)


def random_parts(x: Tensor, nodes: int, seed: int) -> Tensor:
    """Draw the nodes to keep, True in (SHARES * DRAWS, N), at least one of them.

    The draws depend on the seed and on the features x of the graph.
    """
    digest = hashlib.sha256(x.cpu().contiguous().numpy().tobytes()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big") + seed)
    parts = []
    for share in SHARES:
        kept = max(1, nodes - round(share * nodes))
        for _ in range(DRAWS):
            parts.append(torch.randperm(nodes, generator=generator) < kept)
    return torch.stack(parts)
