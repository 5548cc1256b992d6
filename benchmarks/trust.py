"""Which signs warn of a wrong prediction or a wrong explanation, and how well the verdict holds.

    python benchmarks/trust.py --out runs/trust --data FOLDER [--tasks bace-random indole ...]

Trains small models where none is bundled, measures every sign on molecules held out, and writes a
row for each to `TASK/signs.csv`, then the tables `tables.md`. Existing results are not computed
again. FOLDER contains `bace/`, `mnist/` and `molecules/`. Limits are fitted on one half of the
molecules of every task, chosen by `SEED`; the tables show the other half.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from rdkit import Chem, rdBase

import graphxai as gx
from graphxai.contract.inputs import Input, prepare_for
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.rule_molecules import local_smiles, rule_dataset
from graphxai.datasets.superpixels import stroke_segments
from graphxai.datasets.training_set import EDGE, FAR, TrainingSet, training_set_of
from graphxai.evaluation.ground_truth import rank_correlation, top_k_precision
from graphxai.evaluation.sanity_checks import NoisyModel, relative_change
from graphxai.evaluation.trust.signs import CONFIDENCE, LIKENESS
from graphxai.evaluation.trust.training_images import training_images_of
from graphxai.explainers import get_explainer
from graphxai.explanation.compute.explaining import explain_prepared
from graphxai.explanation.compute.predicting import predict_prepared
from graphxai.learning.cleaning import clean_table
from graphxai.learning.metrics import roc_auc
from graphxai.learning.recipes.rules import train_rule
from graphxai.learning.table import table_split, train_table
from graphxai.models.graphormer import load_checkpoint

SEED = 0
DRAWS = 5  # of noise on the embeddings
METHODS = ("lrp", "gae", "occlusion")
ROWS = 1500  # of a table, drawn at random
EPOCHS = 20
RULE_SIZE = 3000
TABLES: dict[str, dict[str, Any]] = {  # measured when "molecules" had seen all but BACE
    "bace-scaffold": {"columns": ["Class", "pIC50"], "start": "molecules"},
    "esol": {"columns": ["logSolubility"], "start": None},
    "bbbp": {"columns": ["p_np"], "start": None},
    "lipo": {"columns": ["lipo"], "start": None},
}
RULES = ("indole", "halogen", "rings", "logp")
DIGITS = 200
MEASURED = ["bace-random", "bace-scaffold", "esol", "indole", "rings", "logp", "digits"]
ENSEMBLE = ("esol",)  # tables with two further models, of seeds 1 and 2
WRONG_BY = 1.0  # error of a value, in log units
WRONG_SHARE = 0.5  # precision or correlation of an explanation with the truth
LEAST = 0.1  # share of the molecules on either side of a limit
SMALLER_IS_WORSE = (
    "similarity", "confidence", "agreement", "lrp-gae", "lrp-occlusion", "gae-occlusion",
)  # fmt: skip
LARGER_IS_WORSE = ("noise", "prediction noise", "ledger", "rewriting", "ensemble", "atoms")
Explained = dict[str, dict[int, gx.Explanation]]


def measured(
    model: Any, items: Sequence[tuple[int, Input]], target: Any, methods: Sequence[str] = METHODS
) -> tuple[pd.DataFrame, Explained]:
    """The signs of each input, by its key, and the explanations by method."""
    found = {
        name: dict(explain_prepared(model, items, get_explainer(name), target=target))
        for name in methods
    }
    noisy: list[dict[int, gx.Explanation]] = [
        dict(explain_prepared(NoisyModel(model, k), items, get_explainer("lrp"), target=target))  # type: ignore[arg-type]
        for k in range(DRAWS)
    ]
    rows = []
    for key, item in items:
        own = found["lrp"][key]
        ledger, prediction = own.ledger, own.prediction
        terms = (ledger.nodes, ledger.graph_token, ledger.biases)
        row = {
            "key": key,
            "atoms": len(own),
            "confidence": np.nan if prediction.label is None else prediction.probability,
            "ledger": abs(ledger.unexplained) / (sum(map(abs, terms)) or 1.0),
            "noise": max(relative_change(own.relevance, n[key].relevance) for n in noisy),
            "prediction noise": np.std([n[key].ledger.output for n in noisy]) * _scale(model, own),
        }
        for one, two in combinations(methods, 2):
            first, second = found[one][key].relevance, found[two][key].relevance
            if "gae" in (one, two):  # its scores have no sign
                first, second = np.abs(first), np.abs(second)
            row[f"{one}-{two}"] = rank_correlation(first, second) if len(first) > 2 else np.nan
        rows.append(row)
        del item
    frame = pd.DataFrame(rows)
    frame["agreement"] = frame[[f"{a}-{b}" for a, b in combinations(methods, 2)]].mean(axis=1)
    return frame, found


def _scale(model: Any, explanation: gx.Explanation) -> float:
    """What turns the output of a regression into its unit; 1 for a class."""
    if explanation.prediction.label is not None:
        return 1.0
    (task,) = (t for t in model.config.tasks if t.name == explanation.prediction.task)
    return float(task.scale)


def training_set(smiles: Sequence[str]) -> TrainingSet:
    """A training set that no checkpoint stores."""
    with rdBase.BlockLogs():
        return TrainingSet(tuple(dict.fromkeys(map(Chem.CanonSmiles, smiles))))


def similarities(training: TrainingSet | None, smiles: Sequence[str]) -> list[float]:
    """The nearest similarity of each molecule."""
    assert training is not None
    found = [training.nearness(Chem.MolFromSmiles(text)).similarity for text in smiles]
    return [np.nan if value is None else value for value in found]


def judged(
    model: Any, smiles: Sequence[str], y: NDArray[Any], others: Sequence[Any] = ()
) -> Iterator[pd.DataFrame]:
    """The signs of molecules and whether the prediction is wrong, a frame per task.

    y (n, tasks): class numbers and values, NaN where missing; others: models of other seeds.
    """
    items = [(k, prepare_for(model, text)) for k, text in enumerate(smiles)]
    each = [dict(predict_prepared(one, items)) for one in (model, *others)]
    near = similarities(training_set_of(model), smiles)
    for column, task in enumerate(model.config.tasks):
        target = task.classes[1] if task.classes else task.name
        found = [(k, item) for k, item in items if not np.isnan(y[k, column])]
        frame, _ = measured(model, found, target)
        predicted = [[_number(task, p[k][column]) for k in frame.key] for p in each]
        truth = y[frame.key, column]
        if task.kind == "regression":
            frame["wrong"] = np.abs(predicted[0] - truth) > WRONG_BY
        else:
            frame["wrong"] = (np.array(predicted[0]) > 0.5) != (truth > 0.5)
        if others:
            frame["ensemble"] = np.std(predicted, axis=0)
        frame["similarity"] = [near[k] for k in frame.key]
        yield frame.assign(task=task.name, kind=task.kind)


def _number(task: Any, prediction: gx.Prediction) -> float:
    if prediction.value is not None:
        return prediction.value
    return prediction.probabilities[task.classes[1]]


def measure_bundled(out: Path, data: Path) -> pd.DataFrame:
    """The bundled BACE model on its test compounds."""
    model = gx.load("bace")
    graphs = load_bace(data, canonical=True)
    chosen = [graphs[k] for k in model.origin.metadata["split"]["test"]]
    y = torch.cat([graph.y for graph in chosen]).numpy()
    return pd.concat(judged(model, [graph.smiles for graph in chosen], y))


def measure_table(name: str, out: Path, data: Path) -> pd.DataFrame:
    """A model of one's own table (`--fast`) on the test part of its scaffold split."""
    bace = name.startswith("bace")
    path = data / ("bace/raw/bace.csv" if bace else f"molecules/{name}.csv")
    columns, start = TABLES[name]["columns"], TABLES[name]["start"]
    if not bace:
        out.mkdir(parents=True, exist_ok=True)
        rows = pd.read_csv(path)
        path = out / f"{name}.csv"
        rows.sample(min(ROWS, len(rows)), random_state=SEED).to_csv(path, index=False)
    table = clean_table(path, "mol" if bace else "smiles", columns)
    models = [
        load_checkpoint(
            train_table(
                table, out / f"seed-{seed}", seed=seed, epochs=EPOCHS, start=start, distil=False,
                resume=True, accelerator="cpu", progress=False, say=partial(print, flush=True),
            )
        )
        for seed in ((0, 1, 2) if name in ENSEMBLE else (0,))
    ]  # fmt: skip
    chosen = list(table_split(table).test)
    smiles = [table.graphs[k].smiles for k in chosen]
    return pd.concat(judged(models[0], smiles, table.y[chosen], models[1:]))


def measure_rule(name: str, out: Path, data: Path) -> pd.DataFrame:
    """A model of a rule on the test molecules whose true atoms are known."""
    smiles = list(local_smiles(data))
    dataset = rule_dataset(smiles, name, size=RULE_SIZE, seed=SEED)
    model = load_checkpoint(
        train_rule(
            out / "run", name, molecules=smiles, size=RULE_SIZE, resume=True, accelerator="cpu",
            progress=False,
        )
    )  # fmt: skip
    chosen = dataset.scored()
    items = [(k, prepare_for(model, dataset.smiles[k])) for k in chosen]
    additive = dataset.rule.kind == "additive"
    frame, found = measured(model, items, name if additive else "yes")
    score: Callable[..., float] = rank_correlation if additive else top_k_precision
    quality = [score(found["lrp"][k].relevance, dataset.truths[k]) for k in frame.key]
    training = training_set([dataset.smiles[k] for k in dataset.split.train])
    frame["similarity"] = similarities(training, [dataset.smiles[k] for k in frame.key])
    frame["wrong"] = np.array(quality) < WRONG_SHARE
    return frame.assign(task=name, kind="explanation", quality=quality)


def measure_digits(out: Path, data: Path) -> pd.DataFrame:
    """The bundled digit model on test digits: prediction, and strokes as the known truth."""
    os.environ["GRAPHXAI_DATA"] = str(data)
    model = gx.load("mnist-superpixels")
    images, labels = load_mnist(data, "test", DIGITS)
    items = [(k, prepare_for(model, image)) for k, image in enumerate(images)]
    frame, found = measured(model, items, None)
    training = training_images_of(model)
    assert training is not None
    frame["similarity"] = [training.nearest(images[k]) for k in frame.key]
    right = [found["lrp"][k].prediction.label == str(int(labels[k])) for k in frame.key]
    predicted = frame.assign(task="digits", kind="multiclass", wrong=~np.array(right))
    quality = [
        top_k_precision(found["lrp"][k].relevance, stroke_segments(images[k], items[k][1].segments))
        for k in frame.key
    ]
    wrong = np.array(quality) < WRONG_SHARE
    explained = frame.assign(task="digit strokes", kind="explanation", quality=quality, wrong=wrong)
    return pd.concat([predicted, explained])


def halves(frame: pd.DataFrame) -> pd.Series:
    """True for the half of every set's molecules on which limits are fitted."""
    fit = pd.Series(False, frame.index)
    for name, group in frame.groupby("set"):
        keys = np.sort(group.key.unique())
        rng = np.random.default_rng([SEED, crc32(str(name).encode())])  # whatever else is measured
        fit[group.index] = group.key.isin(rng.permutation(keys)[: len(keys) // 2])
    return fit


def within(frame: pd.DataFrame, sign: str) -> tuple[float, float, float, int]:
    """ROC-AUC of a sign for "wrong" within tasks, with a 95 % bootstrap interval; n.

    Tasks are weighted by their pairs of a wrong and a right one, so that a sign gets no credit for
    telling an easy task from a hard one.
    """
    worse = 1.0 if sign in LARGER_IS_WORSE else -1.0
    known = frame[frame[sign].notna()] if sign in frame else frame[:0]
    groups = [
        (worse * g[sign].to_numpy(), g.wrong.to_numpy(bool)) for _, g in known.groupby("task_of")
    ]
    rng = np.random.default_rng(SEED)
    drawn = [[rng.integers(len(w), size=len(w)) for _, w in groups] for _ in range(500)]
    values = [_pooled(groups)] + [
        _pooled([(v[d], w[d]) for (v, w), d in zip(groups, draw, strict=True)]) for draw in drawn
    ]
    return (*np.nanquantile(values[1:], (0.025, 0.975)), values[0], len(known))  # type: ignore[return-value]


def _pooled(groups: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> float:
    weights = [int(w.sum()) * int((~w).sum()) for _, w in groups]
    if not sum(weights):
        return float("nan")
    each = [
        roc_auc(v, w.astype(float)) if n else 0.0 for (v, w), n in zip(groups, weights, strict=True)
    ]
    return float(np.average(each, weights=weights))


def fitted(values: NDArray[Any], wrong: NDArray[Any], worse: float) -> tuple[float, float] | None:
    """The two limits, good and bad, of the most likely monotone step function of three steps."""
    ordered = np.sort(values)
    n = len(values)
    grid = np.unique(ordered[[int(q * (n - 1)) for q in np.arange(LEAST, 1 - LEAST / 2, 0.05)]])
    best, found = -np.inf, None
    for low, high in combinations(grid, 2):
        parts = [values < low, (values >= low) & (values < high), values >= high]
        counts = [(int(wrong[p].sum()), int(p.sum())) for p in parts]
        if min(c for _, c in counts) < LEAST * n:
            continue
        rates = [w / c for w, c in counts][:: int(worse)]
        likelihood = sum(_likelihood(*c) for c in counts)
        if all(a <= b for a, b in pairwise(rates)) and likelihood > best:
            best, found = likelihood, ((low, high) if worse > 0 else (high, low))
    return found


def _likelihood(wrong: int, n: int) -> float:
    p = wrong / n
    return sum(k * np.log(q) for k, q in ((wrong, p), (n - wrong, 1 - p)) if k)


def collected(out: Path) -> pd.DataFrame:
    """All rows measured so far, with the half to which each belongs."""
    frame = pd.concat(map(pd.read_csv, sorted(out.glob("*/signs.csv"))), ignore_index=True)
    kinds = {"binary": "class", "multiclass": "class", "regression": "value"}
    frame["question"] = frame.kind.map(kinds).fillna("explanation")
    frame["task_of"] = frame.set + ": " + frame.task
    return frame.assign(fit=halves(frame))


def verdicts(frame: pd.DataFrame) -> pd.Series:
    """The verdict by the library's limits: the worst of the signs that it uses."""
    digits = frame.set == "digits"
    sure = np.where(digits, 3, 2)
    good = [CONFIDENCE[k].good for k in sure]
    bad = [CONFIDENCE[k].bad for k in sure]
    near, far = np.where(digits, LIKENESS.good, EDGE), np.where(digits, LIKENESS.bad, FAR)
    warning = (frame.confidence < bad) | (frame.similarity < far)
    caution = (frame.confidence < good) | (frame.similarity < near)
    return pd.Series(np.select([warning, caution], ["warning", "caution"], "good"), frame.index)


def rate(wrong: pd.Series) -> str:
    """A share in per cent with its Wilson interval (95 %)."""
    n, p, z = len(wrong), float(wrong.mean()), 1.96
    if not n:
        return "–"
    middle, width = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((middle + side * width) / (1 + z * z / n) for side in (-1, 1))
    return f"{100 * p:.0f} % ({100 * max(low, 0):.0f} to {100 * high:.0f}), n = {n}"


def tables(frame: pd.DataFrame) -> str:
    """What was measured, as Markdown."""
    lines = ["## Tasks", "", "| task | question | wrong |", "|---|---|---|"]
    for name, group in frame.groupby("task_of"):
        lines.append(f"| {name} | {group.question.iloc[0]} | {rate(group.wrong)} |")
    lines += [
        "",
        "## Signs",
        "",
        'ROC-AUC for "wrong" within tasks; 0.5 is no better than chance.',
        "",
    ]
    lines += ["| question | sign | fitting half | other half |", "|---|---|---|---|"]
    for question, group in frame.groupby("question"):
        for sign in (*SMALLER_IS_WORSE, *LARGER_IS_WORSE):
            cells = [within(half, sign) for _, half in sorted(group.groupby(~group.fit))]
            if not np.isnan([middle for _, _, middle, _ in cells]).any():
                texts = [f"{m:.2f} ({lo:.2f} to {hi:.2f}), n = {n}" for lo, hi, m, n in cells]
                lines.append(f"| {question} | {sign} | {' | '.join(texts)} |")
    known = frame[(frame.question != "explanation") & (frame.set != "digits")]
    known = known.assign(task_of=known.set.str.split("-").str[0] + known.question)
    cells = [within(half, "similarity") for _, half in sorted(known.groupby(~known.fit))]
    texts = [f"{m:.2f} ({lo:.2f} to {hi:.2f}), n = {n}" for lo, hi, m, n in cells]
    lines.append(f"| class and value, BACE's splits together | similarity | {' | '.join(texts)} |")
    lines += [
        "",
        "## Limits that fit best",
        "",
        "| question | sign | good | bad |",
        "|---|---|---|---|",
    ]
    both = ["class", "value"]
    for questions, sign in ((both[:1], "confidence"), (both, "similarity")):
        half = frame[frame.fit & frame.question.isin(questions) & (frame.set != "digits")]
        limits = fitted(half[sign].to_numpy(), half.wrong.to_numpy(bool), -1.0)
        cells = ("none", "none") if limits is None else tuple(f"{value:.2f}" for value in limits)
        lines.append(f"| {' and '.join(questions)} | {sign} | {' | '.join(cells)} |")
    lines += ["", "## Calibration", "", "| question | verdict | fitting half | other half |"]
    lines.append("|---|---|---|---|")
    frame = frame.assign(verdict=verdicts(frame))
    known = frame[(frame.question != "explanation") & (frame.set != "digits")]
    sets = [("class and value", known), *frame.groupby("question")]
    sets += list(known.groupby("task_of"))
    for question, group in sets:
        for level in ("good", "caution", "warning"):
            chosen = group[group.verdict == level]
            cells = [rate(chosen[chosen.fit].wrong), rate(chosen[~chosen.fit].wrong)]
            lines.append(f"| {question} | {level} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=MEASURED)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.tasks:
        folder = given.out / name
        done = folder / "signs.csv"
        if done.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        if name in TABLES:
            frame = measure_table(name, folder, given.data)
        elif name in RULES:
            frame = measure_rule(name, folder, given.data)
        else:
            measure = {"bace-random": measure_bundled, "digits": measure_digits}[name]
            frame = measure(folder, given.data)
        frame.assign(set=name).to_csv(done, index=False)
        print(name, frame.groupby("task").wrong.agg(["mean", "size"]), flush=True)
    text = tables(collected(given.out))
    (given.out / "tables.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
