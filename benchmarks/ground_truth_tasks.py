"""Score explanations of right answers by one model for all rules, or for all shapes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphxai.contract.inputs import prepare_all
from graphxai.contract.prediction_metrics import score_task
from graphxai.datasets.rule_molecules import RuleTable
from graphxai.datasets.rules import RULES
from graphxai.datasets.shapes import SHAPES, shape_dataset
from graphxai.evaluation.ground_truth_report import SCORES, mean_share, measure, rule_bonds, store
from graphxai.explainers.registry import Method
from graphxai.learning.predicting import predict
from graphxai.learning.recipes.rules import train_rules, train_shapes
from graphxai.models.graphormer import CONFIG, Graphormer, load_checkpoint


def benchmark_rules(
    folder: Path,
    table: RuleTable,
    methods: Sequence[Method],
    names: Sequence[str],
    *,
    limit: int,
    limit_nothing: int,
    seed: int,
) -> None:
    """Train one model on all rules of a table, and explain test molecules that it gets right.

    Results that are already in `folder` are not computed again, and a model that is already in its
    sub-folder `run/model` is used as it is.

    Args:
        folder: folder of the results, with a sub-folder for each rule.
        table: molecules with the answers of all rules.
        methods: names of methods, or explainers.
        names: the rules to explain.
        limit: largest number of molecules with true atoms that are explained for a rule.
        limit_nothing: largest number of molecules without true atoms that are explained.
        seed: seed of the training.

    Raises:
        ValueError: no test molecule of a rule with true atoms is answered correctly.
    """
    checkpoint = folder / "run" / "model"
    if not (checkpoint / CONFIG).exists():
        train_rules(checkpoint.parent, table, seed=seed, resume=True, accelerator="cpu")
    model = load_checkpoint(checkpoint)
    test = list(table.split.test)
    texts = [table.smiles[k] for k in test]
    outputs = model_outputs(model, texts)
    for name in names:
        if (folder / name / SCORES).exists():
            continue
        labels = table.of(name)[test]
        right, scores = right_answers(model, outputs, labels, name)
        correct = {text for text, is_right in zip(texts, right, strict=True) if is_right}
        with_truth = [pair for pair in table.with_truth(name) if pair[0] in correct][:limit]
        if not with_truth:
            raise ValueError(f"no test molecule with true atoms is answered correctly: {name!r}.")
        explained, truths = [text for text, _ in with_truth], [truth for _, truth in with_truth]
        nothing = [text for text in table.without_truth(name) if text in correct][:limit_nothing]
        bonds = [rule_bonds(name, text) for text in explained] if RULES[name].groups else []
        has_bonds = any(true.any() for _, true in bonds)
        rows = measure(
            model,
            explained,
            truths,
            methods,
            bonds if has_bonds else None,
            nothing,
            [rule_bonds(name, text)[0] for text in nothing] if has_bonds else None,
            target=name,
        )
        scores |= {
            "question": RULES[name].question,
            "train": len(table.split.train),
            "test": len(test),
            "explained": len(explained),
            "nothing": len(nothing),
            "share true": mean_share(truths),
        }
        store(folder / name, rows, scores)


def benchmark_shapes(
    folder: Path, methods: Sequence[Method], *, limit: int, limit_nothing: int, seed: int
) -> None:
    """Train on graphs with planted shapes, and explain test graphs that the model gets right.

    Nothing is true in plain trees, in which no shape is planted. For the arguments see
    `benchmark_rules`.

    Raises:
        ValueError: no test graph with a shape is answered correctly.
    """
    dataset = shape_dataset(seed=seed)
    run = train_shapes(folder / "run", dataset, seed=seed, resume=True, accelerator="cpu")
    model = load_checkpoint(run)
    graphs = [dataset.graphs[k] for k in dataset.split.test]
    inputs = [graph.to_data() for graph in graphs]
    outputs = model_outputs(model, inputs)
    for name in SHAPES:
        if (folder / name / SCORES).exists():
            continue
        labels = np.array([name in graph.shapes for graph in graphs], dtype=np.float32)
        right, scores = right_answers(model, outputs, labels, name)
        there = [k for k, graph in enumerate(graphs) if right[k] and name in graph.shapes][:limit]
        plain = [k for k, graph in enumerate(graphs) if right[k] and not graph.shapes]
        plain = plain[:limit_nothing]
        if not there:
            raise ValueError(f"no test graph with a {name} is answered correctly.")
        truths = [graphs[k].true_nodes(name) for k in there]
        rows = measure(
            model,
            [inputs[k] for k in there],
            truths,
            methods,
            [(graphs[k].edges, graphs[k].true_edges(name)) for k in there],
            [inputs[k] for k in plain],
            [graphs[k].edges for k in plain],
            target=name,
        )
        scores |= {
            "question": f"Is there a {name}?",
            "train": len(dataset.split.train),
            "test": len(graphs),
            "explained": len(there),
            "nothing": len(plain),
            "share true": mean_share(truths),
        }
        store(folder / name, rows, scores)


def model_outputs(model: Graphormer, inputs: Sequence[Any]) -> torch.Tensor:
    """Return a model's outputs (n, num_outputs)."""
    return predict(model, [item.data for item in prepare_all(model, inputs)])


def right_answers(
    model: Graphormer, outputs: torch.Tensor, labels: np.ndarray, task: str
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return which answers to a task are right (n,), and the model's scores.

    Every prediction of a value counts as right. A yes or no has the accuracy, the balanced accuracy
    and the ROC-AUC as scores.

    Args:
        model: the model.
        outputs: its outputs (n, num_outputs).
        labels: labels of the task (n,).
        task: name of the task.
    """
    definition, columns = model.config.task_columns(task)
    value = score_task(definition, outputs[:, columns], torch.from_numpy(labels))
    if definition.kind != "binary":
        return np.ones(len(labels), dtype=bool), {"model": ("R2", value)}
    right = (outputs[:, columns].squeeze(1) > 0).numpy() == labels.astype(bool)
    sides = [right[labels.astype(bool) == side].mean() for side in (False, True)]
    return right, {
        "model": ("ROC-AUC", value),
        "accuracy": float(right.mean()),
        "balanced accuracy": float(np.mean(sides)),
        "yes": float(labels.mean()),
    }
