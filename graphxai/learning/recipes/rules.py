"""Train small Graphormers on rules, so that explanations can be checked.

The atoms that decide about a rule are known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import require_graphs
from graphxai.datasets.rule_molecules import local_smiles, rule_dataset
from graphxai.datasets.rules import RuleTask, get_rule
from graphxai.datasets.splits import Split
from graphxai.evaluation.ground_truth import model_score
from graphxai.evaluation.ground_truth_report import SCORES, mean_share, measure, rule_bonds, store
from graphxai.explainers.registry import Method
from graphxai.learning.conformal import calibrate
from graphxai.learning.fit import (
    evaluate,
    fit,
    initialise,
    molecule_config,
    require_hardware,
)
from graphxai.learning.predicting import encode_all
from graphxai.learning.settings import RunSettings, TrainingSettings, repeating
from graphxai.learning.splitting import Source, standardised
from graphxai.models.graphormer import (
    Graphormer,
    load_checkpoint,
    locate,
    measure_mean_node,
    save_checkpoint,
)
from graphxai.runtime.options import literal, with_options
from graphxai.runtime.randomness import callers_state_kept

FROM_SCRATCH = TrainingSettings(epochs=20, batch_size=32, learning_rate=1e-3, ema_decay=0.99)
FROM_WEIGHTS = replace(FROM_SCRATCH, epochs=10, learning_rate=3e-4, head_learning_rate=1e-3)

# Rules with hundreds of alerts or odd rings need more molecules, and weights pretrained on
# molecules.
MORE: dict[str, Any] = {"size": 6000, "init_weights": "molecules"}
TRAINING: dict[str, dict[str, Any]] = {"pains": MORE, "large-ring": MORE}


def rule_tasks(
    rules: Sequence[RuleTask], labels: NDArray[np.float32], split: Split
) -> tuple[Task, ...]:
    """Return the tasks of rules: binary, or regression standardised on the training molecules."""
    tasks = [
        Task(rule.name, "regression", unit=rule.unit)
        if rule.kind == "additive"
        else Task(rule.name, "binary", ("no", "yes"))
        for rule in rules
    ]
    return standardised(tasks, labels[list(split.train)].astype(np.float64))


@callers_state_kept()
def train_rule(
    out: str | os.PathLike[str],
    rule: str | RuleTask,
    *,
    molecules: Sequence[str] | None = None,
    size: int = 4000,
    init_weights: str | os.PathLike[str] | None = None,
    settings: RunSettings | None = None,
    **options: Any,
) -> Path:
    """Train a Graphormer on a rule and score it on its test molecules.

    Args:
        out: folder of the run; the checkpoint is its sub-folder `model`.
        rule: a name in `graphxai.datasets.rules.RULES`, or your own rule.
        molecules: SMILES to choose from; None means the local tables, see `local_smiles`.
        size: total number of molecules: 80 % training, 10 % validation, 10 % test.
        init_weights: weights to start from, by name (the bundled "molecules") or folder, in a
            Graphormer of their size; None trains a small one from scratch.
        settings: settings of the run, by default `RunSettings()`. Their seed also chooses and
            splits the molecules.
        options: fields of `RunSettings` to change, such as `seed=1` or `resume=True`.

    Returns:
        The checkpoint folder. `metadata` has the score on the test molecules and what
        `rule_dataset` needs to choose the same molecules again.

    Raises:
        ImportError: the extra `train` is not installed.
        FileNotFoundError: no molecules are given and there are no local tables.
        TypeError: there is no such option.
        ValueError: too few molecules of a class; or `out` already contains a run and `resume` is
            False.
    """
    settings = with_options(settings or RunSettings(), options, "train_rule")
    require_hardware(settings)
    out, chosen, seed = Path(out), get_rule(rule), settings.seed
    smiles = local_smiles() if molecules is None else molecules
    dataset = rule_dataset(smiles, chosen, size=size, seed=seed)
    labels, split = dataset.labels[:, None], dataset.split
    (task,) = rule_tasks([chosen], labels, split)
    recipe = FROM_SCRATCH if init_weights is None else FROM_WEIGHTS
    torch.manual_seed(seed)
    model = starting_network(init_weights, task)
    source = rule_source(dataset.smiles, labels, split, model)
    score = fitted_scores(model, source, recipe, settings, out).get(task.name)
    calibrate(model, source)
    given = {} if molecules is None else {"molecules": "molecules"}
    given |= {"size": literal(size), "init_weights": literal(init_weights)}
    first = [literal("runs/rule"), literal(rule) if isinstance(rule, str) else "rule"]
    command = repeating("rule", "train_rule", settings, first, **given)
    name = "ROC-AUC" if task.kind == "binary" else "R2"
    shown = "not defined" if score is None else f"{score:.3f}"
    return save_checkpoint(
        model,
        out / "model",
        card=f"""# {chosen.name}

A small Graphormer trained on a rule, to check explanations against the atoms known to determine the
answer. It predicts nothing that could not be computed. Question: {chosen.question} Answer:
{"no or yes" if task.kind == "binary" else "a number"}.

* Molecules: {len(split.train)} for training, {len(split.valid)} for validation, {len(split.test)}
  for testing, split at random with seed {split.seed}.
* Test: {name} {shown}.

    {command}
""",
        metadata={
            "rule": chosen.name,
            "size": size,
            "seed": seed,
            "score": {"metric": name, "value": score, "n": len(split.test)},
            "summary": f"{name} {shown}",
            "split": json.loads(split.to_json()),
        },
    )


def fitted_scores(
    model: Graphormer, source: Source, recipe: TrainingSettings, settings: RunSettings, out: Path
) -> dict[str, float]:
    """Fit a model, and return its scores on the test part."""
    train, valid = source.train.graphs, source.valid.graphs
    fit(model, train, valid, recipe.for_run(settings), out, resume=settings.resume)
    measure_mean_node(model, train)
    return evaluate(model, source.test.graphs)


def starting_network(init_weights: str | os.PathLike[str] | None, *tasks: Task) -> Graphormer:
    """Make a Graphormer: 3 layers of width 64, or the size and the body of given weights.

    It has no dropout, because labels from a rule have no noise to overfit.
    """
    without_dropout: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}
    if init_weights is None:
        sizes = {"num_layers": 3, "hidden_dim": 64, "ffn_dim": 128}
        return Graphormer(molecule_config(tasks, **sizes, **without_dropout))
    source = load_checkpoint(locate(Path(init_weights)))
    config = replace(source.config, tasks=tasks, **without_dropout)
    return initialise(Graphormer(config), source)


def rule_source(
    smiles: Sequence[str], labels: NDArray[np.float32], split: Split, model: Graphormer
) -> Source:
    """Return molecules with labels (n, rules), without their SMILES.

    A checkpoint of a rule keeps no training molecules, so its intervals must not depend on how near
    a molecule is to them.
    """
    graphs = require_graphs(smiles, canonical=True)
    for graph, row in zip(graphs, labels, strict=True):
        graph.y = torch.from_numpy(row)[None]
        del graph.smiles
    graphs = encode_all(graphs, model.config)
    return Source(graphs, labels.astype(np.float64), split, model.config)


def benchmark_rule(
    name: str,
    folder: Path,
    methods: Sequence[Method],
    *,
    molecules: Sequence[str] | None = None,
    data: str | Path | None = None,
    limit: int = 100,
    seed: int = 0,
    progress: bool | None = None,
) -> None:
    """Train on a rule, explain test molecules with a truth, and store rows and scores.

    Bonds are scored as well as atoms. The same number of test molecules in which nothing is true
    are explained too, and atoms that stand out in them are false positives. Results that are
    already in `folder` are not computed again.

    Args:
        folder: the folder of the results. The training run is in its sub-folder `run`.
        molecules: SMILES to choose from. None takes the tables in the data folder.
        limit: how many molecules with a truth, and how many without, are explained at most.
        seed: the seed for the choice of molecules and for the training.
        progress: whether to show progress bars. None shows them only on a terminal.

    Raises:
        ValueError: no test molecule has true atoms.
    """
    if (folder / SCORES).exists():
        return
    smiles = list(local_smiles(data) if molecules is None else molecules)
    options = {"size": 4000} | TRAINING.get(name, {})
    checkpoint = train_rule(
        folder / "run", name, molecules=smiles, seed=seed, resume=True, accelerator="cpu",
        progress=bool(progress), **options,
    )  # fmt: skip
    model = load_checkpoint(checkpoint)
    dataset = rule_dataset(smiles, name, size=options["size"], seed=seed)
    test = list(dataset.split.test)
    with_truth = dataset.scored(limit=limit)
    if not with_truth:
        raise ValueError(f"no test molecule has true atoms under rule {name!r}; give more.")
    truths = [dataset.truths[k] for k in with_truth]
    without_truth = [  # a rule with shares has none
        dataset.smiles[k]
        for k in test
        if dataset.truths[k].dtype == bool and not dataset.truths[k].any()
    ]
    explained = [dataset.smiles[k] for k in with_truth]
    of_bonds = get_rule(name).groups is not None
    bonds = [rule_bonds(name, text) for text in explained] if of_bonds else []
    rows = measure(
        model,
        explained,
        truths,
        methods,
        # no bond is true if all true atoms are halogens
        bonds if any(true.any() for _, true in bonds) else None,
        without_truth[:limit],
        progress=progress,
    )
    scores = {
        "question": get_rule(name).question,
        "model": model_score(model, [dataset.smiles[k] for k in test], dataset.labels[test]),
        "train": len(dataset.split.train),
        "test": len(test),
        "explained": len(explained),
        "share true": mean_share(truths),
        "seconds": rows.attrs["seconds"],
    }
    store(folder, rows, scores)
