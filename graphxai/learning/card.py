"""Describe a run: the model card in Markdown, and tables of scores for it and the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import fisher_exact

from graphxai.contract.prediction_metrics import pairs_text
from graphxai.datasets.labels import with_unit
from graphxai.learning.cleaned_table import TargetColumn
from graphxai.learning.removal import removal_text
from graphxai.learning.teachers.forests import trees_for
from graphxai.learning.teachers.stacking import FOLDS, SOURCES, shares_text
from graphxai.learning.training import LearnedModel, RunSource
from graphxai.models.graphormer import members_of
from graphxai.models.process import KernelProcess, SummedModel
from graphxai.runtime.writing import markdown_table

CHANCE = 0.05  # p above which one number says how often intervals held near and far

# The card of a run. A paragraph is one line, and it is left out if it is empty.
TEMPLATE = """
# {title}

{model} trained with graphxai on {kind}.

**Data.** {data}

{targets}

{checks}

**Split.** {sizes} {labelled} to {uses}, {split}. {where}

{molecules}

**Training.** {training} The test {labelled} were not used for any choice.{temperatures}

{command}

{teacher}

{notes}

**Test scores.** In brackets: 95 % bootstrap intervals over {labelled}.{rivals} Dummy: predicts the
training mean, or the class frequencies. Minus: this model minus the other; if the interval includes
0, this test part shows no clear difference.{further_scores}

{tables}

{pairs}

{noise}

{removal}

{uncertainty}

{learning_curve}

**Limits.** The scores apply to {labelled} like those tested.{confidential}
"""
PREDICTORS = {
    "graphormer": "this model",
    "teacher": "its teacher",
    "process": "process",
    "forest": "forest, ECFP4",
    "descriptor_forest": "forest, + descriptors",
    "gin": "GIN, same budget",
    "feature_forest": "forest, mean features",
    "neighbour_forest": "forest, node and neighbours",
    "dummy": "dummy",
}
_PARENT = (
    "**Molecules.** Each one is brought to its parent, in training and in predictions: counter-ions"
    " and solvents are removed, and charges are neutralised where a proton can do it. A mixture of"
    " compounds is refused. `--as-drawn` turns this off."
)
MOLECULES = {
    "as drawn": "**Molecules.** They are read as they are drawn, in training and in predictions."
    " So a salt, or a protonated form, is another molecule than the free base.",
    "parent": f"{_PARENT} Protons that move between nitrogens are put in one place; other tautomers"
    " are read as they are drawn.",
    "tautomers": f"{_PARENT} Of the parent, RDKit's canonical tautomer is taken.",
}
MANY = 3  # targets; more are listed in one table


def run_card(
    source: RunSource, learned: LearnedModel, facts: dict[str, Any], command: str = ""
) -> str:
    """Return the model card.

    Args:
        source: what was learned from. Its `words` say what is true of its kind alone.
        facts: what is stored with the model, see `RunSource.facts`.
        command: how the run was started; "" if that is not known.
    """
    parts = source.parts
    used = (parts.train, parts.valid, parts.test) if parts.valid else (parts.train, parts.test)
    words = defaultdict(str, source.words(learned, facts))  # what nobody says is left out
    words |= {
        "model": _model_text(learned.model, words["parameters"]),
        "labelled": source.labelled,
        "sizes": " / ".join(f"{len(part):,}" for part in used),
        "uses": f"train, {source.valid_is_to} and test" if parts.valid else "train and test",
        "command": command and f"    {command}",
        "notes": "\n\n".join(f"**Note.** {n[0].upper()}{n[1:]}." for n in facts["notes"]),
        "tables": "\n\n".join(markdown_table(rows) for rows in score_tables(facts["scores"])),
        "removal": removal_text(facts["removal"], trained=source.settings.bears_removal),
    }
    pairs = {n: pairs_text(scores.get("pairs", {})) for n, scores in facts["scores"].items()}
    if sentences := [f"{name}: {text}" for name, text in pairs.items() if text]:
        of_training = (
            "Two training molecules make a pair if they were held out in one fold, whose model"
            " judges it."
            if learned.of_folds
            else "Pairs of two training molecules are left out: the model was trained without"
            " folds, as it has no teacher, so there is no model that saw neither."
        )
        words["pairs"] = (
            "**Measured pairs.** Matched pairs differ in one part at one bond, and at least one"
            f" molecule of each is a test molecule. {of_training} Predicted changes, and the"
            f" relevance at the part, are compared with measured changes. {'; '.join(sentences)}."
        )
    fitted = [f"{name} {t:.2f}" for name, t in facts["temperature"].items() if t is not None]
    if fitted:
        words["temperatures"] = (
            f" Class logits are divided by a temperature fitted on {words['fitted_on']}:"
            f" {', '.join(fitted)}."
        )
    if facts["coverage"]:
        units = {task.name: task.unit for task in source.tasks}
        words["uncertainty"] = (
            f"**Uncertainty.** Conformal intervals and sets of classes{words['made_from']}. On the"
            f" test {source.labelled}:\n\n{coverage_text(facts['coverage'], units)}"
        )
    paragraphs = (part.replace("\n", " ") for part in TEMPLATE.strip().split("\n\n"))
    filled = (paragraph.format_map(words) for paragraph in paragraphs)
    return "\n\n".join(paragraph for paragraph in filled if paragraph) + "\n"


def _model_text(model: Any, parameters: str) -> str:
    """Say what kind of model it is, and how large."""
    if isinstance(model, SummedModel):
        both = (_model_text(each, parameters).rstrip(",") for each, _ in model.summands)
        return f"The mean of two models ({' and '.join(both)}),"
    if isinstance(model, KernelProcess):
        return f"A Gaussian process, carried by {model.config.carriers:,} molecules,"
    networks, config = len(members_of(model)), model.config
    kind = "A Graphormer" if networks == 1 else f"The mean of {networks} Graphormers"
    return (
        f"{kind} ({config.num_layers} layers, width {config.hidden_dim}, {config.num_heads} heads"
        f"{parameters})"
    )


def counted(number: int, noun: str) -> str:
    """Return a number of things as text, such as "1 epoch" or "10 epochs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def trees_text(targets: Sequence[TargetColumn]) -> str:
    """Say how many trees the forests have, which depends on the kind of the target."""
    count = len(targets)
    kinds = dict.fromkeys(target.kind for target in targets)
    each = [
        (trees_for("regression" if kind == "regression" else "binary", count), kind)
        for kind in kinds
    ]
    return " or ".join(f"{n}" + (f" ({kind})" if len(each) > 1 else "") for n, kind in each)


def teaching_text(facts: dict[str, Any]) -> str:
    """Say what was learned from a teacher, or return "" if there was none."""
    shares = facts["teacher_share"]
    if not shares:
        return ""
    return (
        f"So {FOLDS} networks were fitted, each without one fold of the training molecules. The"
        " network then learned from the weighted mean of a teacher and these. Its labels were"
        " the measured ones, moved towards the teacher's predictions, and that mean for"
        f" {facts['recombined']:,} molecules recombined from the training molecules. The"
        " teacher's share was chosen by what was predicted for each fold without having learned"
        f" from it: {shares_text(shares)}. The teacher and the new molecules are based only on the"
        " training molecules. "
    )


def teacher_text(teacher: dict[str, Any] | None) -> str:
    """Say what the teacher is made of and what its sources scored, or return "" without one."""
    if teacher is None:
        return ""
    rows = [["target", "score", *SOURCES.values(), "stack"]]
    for name, target_scores in teacher.items():
        cells = [
            "–" if score is None else f"{score:.3f}" + (f" (weight {weight:.2f})" if weight else "")
            for score, weight in (
                (target_scores["scores"].get(source), (target_scores["weights"] or {}).get(source))
                for source in (*SOURCES, "stack")
            )
        ]
        rows.append([name, target_scores["metric"], *cells])
    return (
        "**Teacher.** A weighted mean of the sources below. Weights and scores come from"
        f" {FOLDS} folds of the training molecules: each molecule was predicted without"
        f" the molecules of its fold (forests with a quarter of their trees).\n\n"
        + markdown_table(rows)
    )


def curve_text(points: Sequence[dict[str, Any]]) -> str:
    """Return the learning curve of every target, or "" if there is none."""
    if not points:
        return ""
    shown = ("graphormer", "forest", "descriptor_forest")
    rows = [["target", "training molecules", "score", *(PREDICTORS[key] for key in shown)]]
    for name in points[0]["targets"]:
        for point in points:
            scores = point["targets"][name]
            if scores["n"]:
                metric = next(iter(scores["scores"]["graphormer"]))
                cells = [_cell(scores["scores"][key][metric]) for key in shown]
                rows.append([name, f"{point['n']:,}", metric, *cells])
    return "**Learning curve.** All points use the same test molecules.\n\n" + markdown_table(rows)


def coverage_text(coverage: Mapping[str, Mapping[str, Any]], units: Mapping[str, str]) -> str:
    """Say how often intervals and sets of classes held, a line per task.

    They held for molecules like the training set and for far ones where these two differ by more
    than chance (Fisher's exact test at 5 %), and else for all.

    Args:
        coverage: by task, what `conformal.coverage` returns.
        units: by task, unit of the values.
    """
    lines = []
    for name, task_coverage in coverage.items():
        outcome = "intervals" if "width" in task_coverage else "sets of classes"
        parts = [
            f"{name}: {_percent(task_coverage['level'])} {outcome} held"
            f" {_percent(task_coverage['held'])} of {task_coverage['n']:,}"
            f"{_near_and_far(task_coverage)}"
        ]
        if "width" in task_coverage:
            unit = f" {units[name]}" if units.get(name) else ""
            width = task_coverage["width"]
            parts.append("most have no end" if width is None else f"median width {width:.2f}{unit}")
        else:
            by_class = task_coverage["held_by_class"].items()
            parts += [f"{c} {_percent(share)} of {n:,}" for c, (share, n) in by_class]
            parts.append(f"{_percent(task_coverage['single'])} have a single class")
        lines.append("* " + "; ".join(parts))
    return "\n".join(lines)


def _near_and_far(task_coverage: Mapping[str, Any]) -> str:
    """Return how often they held near and far, as text; "" if chance explains the difference."""
    if "far" not in task_coverage:
        return ""
    share, far = task_coverage["far"]
    near = task_coverage["n"] - far
    held_far = round(share * far)
    held_near = round(task_coverage["held"] * task_coverage["n"]) - held_far
    table = [[held_near, near - held_near], [held_far, far - held_far]]
    if not near or fisher_exact(table).pvalue >= CHANCE:
        return ""
    return (
        f", that is {_percent(held_near / near)} of the {near:,} molecules like the training set"
        f" and {_percent(share)} of the {far:,} far from it"
    )


def _percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.0f} %"


def score_tables(scores: dict[str, Any]) -> list[list[list[str]]]:
    """Return a table of scores for each target, or a single table if there are more than three."""
    if len(scores) > MANY:
        return [overview_rows(scores)]
    return [score_rows(name, target_scores) for name, target_scores in scores.items()]


def score_rows(name: str, scores: dict[str, Any]) -> list[list[str]]:
    """Return a table of one target: a header, a row per predictor, differences from the forests."""
    if not scores["n"]:
        return [[name], ["no labels among the test molecules, or none to train on"]]
    metrics = list(scores["scores"]["graphormer"])
    positives = f", {scores['positives']} positive" if "positives" in scores else ""
    heading = with_unit(name, scores.get("unit", ""))
    rows = [[f"{heading}, n = {scores['n']}{positives}", *metrics]]
    rows += [
        [PREDICTORS[key], *(_cell(values[metric]) for metric in metrics)]
        for key, values in scores["scores"].items()
    ]
    if "reachable" in scores:  # R2 is the first metric
        rows.append(
            ["reachable, by replicates", f"{scores['reachable']:.3f}", *"–" * (len(metrics) - 1)]
        )
    return rows + [
        [f"minus {PREDICTORS[key]}", *(_cell(difference[metric], "+") for metric in metrics)]
        for key, difference in scores["differences"].items()
        if key != "dummy"
    ]


def summary(scores: dict[str, Any]) -> str:
    """Return the leading score as text, for a list of models.

    With several targets, it is the mean over the targets of each kind.
    """
    (name, *others) = scores
    return ", ".join(
        f"{mean_of_targets(count) if others else name}: {metric} {values['graphormer']:.3f}"
        for metric, count, values in mean_scores(scores)
    )


def mean_of_targets(count: int) -> str:
    """Name the mean over a number of targets."""
    return f"mean of {counted(count, 'target')}"


def mean_scores(scores: dict[str, Any]) -> list[tuple[str, int, dict[str, float]]]:
    """Return the mean leading score of each predictor over the targets of a kind.

    Targets for which a predictor has no score do not count.

    Returns:
        The metric, the number of targets and the means by predictor, for each kind of target.
    """
    kinds: dict[str, list[dict[str, float]]] = {}
    for target_scores in scores.values():
        first = leading(target_scores)
        if first["values"] and None not in first["values"].values():
            kinds.setdefault(first["metric"], []).append(first["values"])
    return [
        (metric, len(each), {n: sum(v[n] for v in each) / len(each) for n in common})
        for metric, each in kinds.items()
        if (common := [name for name in PREDICTORS if all(name in v for v in each)])
    ]


def leading(target_scores: dict[str, Any]) -> dict[str, Any]:
    """Return the leading `metric` of a target, "" if there is none, and `values` by predictor."""
    scores = target_scores["scores"]
    metric = next(iter(scores.get("graphormer", {})), "")
    return {"metric": metric, "values": {name: each[metric][0] for name, each in scores.items()}}


def overview_rows(scores: dict[str, Any]) -> list[list[str]]:
    """Return a table of many targets: the means first, then the leading score of each target.

    The teacher, of which the process is a part, has no column, so that a terminal shows the others.
    """
    names = [name for name in PREDICTORS if name != "teacher"]
    shown = [name for name in names if any(name in s["scores"] for s in scores.values())]
    rows = [["target", "n", "score", *(PREDICTORS[name] for name in shown)]]
    for metric, count, values in mean_scores(scores):
        cells = [f"{values[name]:.3f}" if name in values else "–" for name in shown]
        rows.append([mean_of_targets(count), "", metric, *cells])
    for name, target_scores in scores.items():
        by_predictor = target_scores["scores"]
        metric = next(iter(by_predictor.get("graphormer", {"": None})))
        cells = [_cell(by_predictor[p][metric]) if p in by_predictor else "–" for p in shown]
        heading = with_unit(name, target_scores.get("unit", ""))
        rows.append([heading, f"{target_scores['n']:,}", metric, *cells])
    return rows


def _cell(value: Sequence[float | None], sign: str = "") -> str:
    """Format a score with its interval, or a dash if it is undefined."""
    middle, low, high = value
    if middle is None:
        return "–"
    if low is None or high is None:
        return f"{middle:{sign}.3f}"
    return f"{middle:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"
