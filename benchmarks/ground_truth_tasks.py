"""Score explanations of right answers by one model for all rules, or for all shapes.

Both models are trained here, and the strokes of digits are told from paper.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from graphxai.contract.inputs import prepare_all
from graphxai.contract.prediction_metrics import score_task
from graphxai.contract.tasks import Task
from graphxai.datasets.rule_molecules import RuleTable
from graphxai.datasets.rules import RULES
from graphxai.datasets.shapes import SHAPES, ShapeDataset, shape_dataset
from graphxai.datasets.superpixels import SuperpixelError, as_grey
from graphxai.evaluation.ground_truth_report import SCORES, mean_share, measure, rule_bonds, store
from graphxai.explainers.registry import Method
from graphxai.learning.conformal import calibrate
from graphxai.learning.fit import require_hardware, start_at_frequencies
from graphxai.learning.predicting import encode_all, predict
from graphxai.learning.recipes.rules import (
    FROM_SCRATCH,
    FROM_WEIGHTS,
    fitted_scores,
    rule_source,
    rule_tasks,
    starting_network,
)
from graphxai.learning.settings import RunSettings, repeating
from graphxai.learning.splitting import Source
from graphxai.models.graphormer import (
    CONFIG,
    Graphormer,
    GraphormerConfig,
    load_checkpoint,
    save_checkpoint,
)
from graphxai.runtime.options import literal, with_options

OF_SHAPES = replace(FROM_SCRATCH, epochs=25, learning_rate=2e-3)
TOGETHER = replace(FROM_WEIGHTS, epochs=20, learning_rate=5e-4, head_learning_rate=2e-3)
INK = 0.5  # half of full ink: brighter pixels belong to the stroke of a digit


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


def train_rules(
    out: str | os.PathLike[str],
    table: RuleTable,
    *,
    init_weights: str | os.PathLike[str] | None = "molecules",
    settings: RunSettings | None = None,
    **options: Any,
) -> Path:
    """Train one Graphormer on all rules of a table, a task for each.

    Args:
        out: folder of the run; the checkpoint is its sub-folder `model`.
        init_weights: weights to start from, by name or folder; None trains from scratch.
        options: fields of `RunSettings` to change, such as `seed=1` or `resume=True`.

    Returns:
        The checkpoint folder, whose `metadata` has the scores on the test molecules.

    Raises:
        ImportError: the extra `train` is not installed.
        TypeError: there is no such option.
        ValueError: `out` already contains a run and `resume` is False.
    """
    settings = with_options(settings or RunSettings(), options, "train_rules")
    require_hardware(settings)
    out = Path(out)
    torch.manual_seed(settings.seed)
    split = table.split
    model = starting_network(init_weights, *rule_tasks(table.rules, table.labels, split))
    start_at_frequencies(model, torch.from_numpy(table.labels[list(split.train)]))
    source = rule_source(table.smiles, table.labels, split, model)
    scores = fitted_scores(model, source, TOGETHER, settings, out)
    calibrate(model, source)
    summary = _listed(scores)
    train, valid, test = map(len, (split.train, split.valid, split.test))
    first, starting = [literal("runs/rules"), "table"], literal(init_weights)
    command = repeating("rules", "train_rules", settings, first, init_weights=starting)
    return save_checkpoint(
        model,
        out / "model",
        card=f"""# Rules about molecules

A Graphormer trained on several rules together, to check explanations against the atoms known to
determine the answers. It predicts nothing that could not be computed. Molecules: {train} for
training, {valid} for validation, {test} for testing. Test, ROC-AUC or R2: {summary}.

    {command}
""",
        metadata={
            "size": len(table.smiles),
            "seed": settings.seed,
            "scores": scores,
            "summary": summary,
        },
    )


def train_shapes(
    out: str | os.PathLike[str],
    dataset: ShapeDataset | None = None,
    *,
    settings: RunSettings | None = None,
    **options: Any,
) -> Path:
    """Train a Graphormer on graphs with planted shapes, all shapes together.

    Args:
        out: folder of the run; the checkpoint is its sub-folder `model`.
        dataset: the graphs; None makes those of `shape_dataset` from the same seed.
        options: fields of `RunSettings` to change, such as `seed=1` or `resume=True`.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        TypeError: there is no such option.
        ValueError: `out` already contains a run and `resume` is False.
    """
    settings = with_options(settings or RunSettings(), options, "train_shapes")
    require_hardware(settings)
    given = {} if dataset is None else {"dataset": "dataset"}
    out, dataset = Path(out), dataset or shape_dataset(seed=settings.seed)
    torch.manual_seed(settings.seed)
    config = GraphormerConfig(  # all nodes look alike
        tuple(Task(name, "binary", ("no", "yes")) for name in SHAPES),
        num_layers=3,
        hidden_dim=64,
        ffn_dim=128,
        num_heads=8,
        node_cardinalities=(1,),
        node_feature_names=("node",),
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = Graphormer(config)
    split = dataset.split
    graphs = encode_all([graph.to_data() for graph in dataset.graphs], model.config)
    y = torch.cat([graph.y for graph in graphs]).double().numpy()
    source = Source(graphs, y, split, model.config)
    summary = _listed(fitted_scores(model, source, OF_SHAPES, settings, out))
    train, valid, test = map(len, (split.train, split.valid, split.test))
    return save_checkpoint(
        model,
        out / "model",
        card=f"""# Planted shapes

A small Graphormer that says which shapes are in a graph, to check explanations against the nodes
and edges of the shapes. Graphs: {train} for training, {valid} for validation,
{test} for testing. Test ROC-AUC: {summary}.

    {repeating("shapes", "train_shapes", settings, [literal("runs/shapes")], **given)}
""",
        metadata={"size": len(graphs), "seed": settings.seed, "summary": f"ROC-AUC: {summary}"},
    )


def _listed(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {score:.3f}" for name, score in scores.items())


def stroke_pixels(image: ArrayLike) -> NDArray[np.bool_]:
    """Return the pixels (H, W) of the stroke, which are brighter than `INK`.

    Raises SuperpixelError if it is not a grey image.

    Args:
        image: (H, W), grey values in [0, 1], or uint8, bright ink on black.
    """
    return as_grey(image) > INK


def stroke_segments(
    image: ArrayLike, segments: NDArray[np.integer], *, threshold: float = INK
) -> NDArray[np.bool_]:
    """Return the superpixels (N,) of the stroke, whose mean intensity is above `threshold`.

    Raises SuperpixelError if the shapes differ or an id is not used.

    Args:
        image: as for `stroke_pixels`.
        segments: (H, W), the ids 0..N-1 of its superpixels.
    """
    grey, ids = as_grey(image), np.asarray(segments)
    if ids.shape != grey.shape:
        raise SuperpixelError(f"image {grey.shape} and segments {ids.shape} differ in shape")
    size = np.bincount(ids.ravel())
    if not size.all():
        raise SuperpixelError(f"superpixel {int(np.argmin(size))} has no pixel")
    return np.bincount(ids.ravel(), grey.ravel()) / size > threshold
