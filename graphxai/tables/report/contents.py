"""Collect everything that the page of a report shows, as JSON values."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphxai.chemistry.fragment_table import FragmentTable
from graphxai.datasets.tables.dialect import Dialect
from graphxai.evaluation.trust.signs import Sign, score_sign
from graphxai.evaluation.trust.trust import RULE
from graphxai.explainers import Explainer, get_explainer
from graphxai.explanation.compute.models import Model, versions
from graphxai.explanation.explained_graph import about_output, about_terms
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.grid import SATURATED
from graphxai.runtime.reading import small_file
from graphxai.tables.cells import predicted_columns
from graphxai.visualization.color import PALETTES, Scale

from .cards import Cards, MoleculeCard
from .choice import sentence_about
from .drawing import UNIT
from .full_cards import FullCards
from .measured import MeasuredTable, agreement
from .projection import similarity_map
from .properties import SeveralModels, agreements
from .records import colour_limit, rounded
from .summary import fragment_ranking

BASKET = ("name", "row", "smiles", "changes", "trust", "training set")  # of its own columns


def page_data(
    model: Model,
    explainer: Explainer,
    cards: Cards,
    full: FullCards,
    chosen: Mapping[int, str],
    *,
    title: str,
    source: str,
    notes: Sequence[str],
    measured: MeasuredTable,
    dialect: Dialect,
    several: SeveralModels | None = None,
    sar: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all data for the page's script.

    Args:
        model: the model.
        explainer: the method.
        cards: the cards of all molecules.
        full: what full cards add to them.
        chosen: the molecules with a full card, see `choice.in_full`.
        title: the title of the page.
        source: the name of the file, or the number of molecules in words.
        notes: what the page says about measured values.
        measured: the measured values.
        dialect: how the page writes the basket as a table.
        several: all models of a report with several properties, or None.
        sar: what the page shows of matched pairs and R-groups, or None.
    """
    columns = [*predicted_columns(model)] if several is None else several.columns
    records = [
        card.content | full.contents.get(place, {}) for place, card in enumerate(cards.molecules)
    ]
    value_names = {molecule.pop("value_name") for molecule in records}
    explanations = [card.explanation for card in cards.molecules]
    targets = {explanation.target for explanation in explanations}
    prediction = explanations[0].prediction
    (task,) = (task for task in model.config.tasks if task.name == prediction.task)
    score = score_sign(model.origin.metadata, prediction)
    compared = dict.fromkeys(name for molecule in records for name in molecule["others"])
    # a fragment's relevance cannot be averaged over different classes
    fragments = _fragment_table(cards.molecules) if len(targets) == 1 else None
    target = next(iter(targets)) if len(targets) == 1 else None
    return {
        "title": title,
        "source": source,
        "model": _about_model(model, task.name, score),
        "versions": versions(),
        **_about_methods([explainer, *map(get_explainer, compared)]),
        "words": {
            "intro": _intro(explainer, {about_output(e) for e in explanations}),
            "full": sentence_about(records, chosen),
            "notes": list(notes),
            "terms": _terms(explanations),
        },
        "features": list(getattr(model, "feature_names", ())),
        "rule": RULE,
        "value": value_names.pop() if len(value_names) == 1 else "Probability",
        "unit": UNIT,
        **_colours(colour_limit(records, SATURATED), explainer),
        "molecules": records,
        "several": None if several is None else several.about,
        "columns": columns,
        "inputs": _headings(cards.molecules[0].row.others, columns),
        "dialect": [dialect.separator, dialect.decimal, dialect.byte_order_mark],
        "neighbours": dict(full.neighbours),
        "map": similarity_map([explanation.atoms() for explanation in explanations]),
        "fragments": None if fragments is None else fragment_ranking(fragments, records),
        "rejected": cards.rejected,
        "refused": dict(full.refused),
        "measured": agreement(task, measured.columns.get(task.name, ""), target, records),
        "measured_others": []
        if several is None
        else agreements(several.panel, measured.columns, task.name, records),
        "sar": sar,
    }


def _about_model(model: Model, task: str, score: Sign) -> dict[str, Any]:
    """Describe the model and how well it predicts the explained task."""
    return {
        "name": model.origin.name,
        "sha256": model.origin.sha256,
        "summary": _summary(model, task, score),
        "score": _objection(score),
        "tasks": [[each.name, list(each.classes), each.unit] for each in model.config.tasks],
    }


def _about_methods(explainers: Sequence[Explainer]) -> dict[str, Any]:
    """Describe the methods on the page, of which the first explains all molecules."""
    meanings = {e.name: e.traits.large_score_means for e in explainers}
    return {
        "method": explainers[0].name,
        "additive": explainers[0].traits.adds_up,
        "unsigned": {name: meaning for name, meaning in meanings.items() if meaning},
        "titles": {e.name: e.title for e in explainers},
    }


def _colours(limit: float, explainer: Explainer) -> dict[str, Any]:
    """Describe the colours of relevance and the bar that explains them."""
    return {
        "limit": rounded([limit])[0],
        "quantile": SATURATED,
        "ticks": list(Scale(limit, one_sided=bool(explainer.traits.large_score_means)).ticks()),
        "palettes": {name: Scale(1.0, name).arms() for name in PALETTES},
        "unsigned_colours": Scale(1.0, one_sided=True).arms(),
    }


def _headings(others: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Name the other columns of the table so that they differ from those of the basket."""
    taken = {*columns, *BASKET}
    return [f"input {name}" if name in taken else name for name in others]


def model_card(model: Model) -> str:
    """Return the model card beside the checkpoint, or "" if there is none."""
    folder = getattr(model.origin, "folder", None)
    with suppress(OSError, ValueError):  # the file is too large, or not in UTF-8
        if folder is not None and (Path(folder) / "README.md").is_file():
            return small_file(Path(folder) / "README.md").decode("utf-8")
    return ""


def _fragment_table(molecules: Sequence[MoleculeCard]) -> FragmentTable:
    """Collect the fragments of all molecules."""
    table = FragmentTable()
    for card in molecules:
        table.add(card.fragments)
    return table


def _terms(explanations: Sequence[Explanation]) -> dict[str, str]:
    """Return the words of the ledgers with their meaning."""
    terms: dict[str, str] = {}
    for explanation in explanations:
        terms |= about_terms(explanation)
    return terms


def _summary(model: Model, task: str, score: Sign) -> str:
    """Return the test score of the explained task, or that of the model if it has one task."""
    if len(model.config.tasks) > 1 and score.level != "unknown":
        return f"{task}: {score.figures}"
    return str(model.origin.metadata.get("summary", ""))


def _objection(score: Sign) -> str:
    """Return what is wrong with the model as a whole, or "" if nothing is."""
    if score.level == "good":
        return ""
    return f"{score.sentence[0].upper()}{score.sentence[1:]}."


def _intro(explainer: Explainer, outputs: set[str]) -> str:
    """Say what the colours and the sum on a card mean: relevance, output and target.

    `outputs` say what the explained outputs are, in words.
    """
    relevance = "how much each atom raises or lowers the model's output"
    if not explainer.traits.adds_up:
        relevance = "the score that the method gives each atom"
    if explainer.traits.large_score_means:
        relevance += f", which has no sign ({explainer.traits.large_score_means})"
    if len(outputs) == 1:
        (output,) = outputs
    else:
        output = (
            "The output for the target, the class predicted for each molecule, is a logit: +0.7"
            " doubles the odds."
        )
    rest = ""
    if explainer.traits.adds_up:
        rest = "; what is left of the output belongs to the model's constants and its graph token"
    total = f"The sum of atoms on a card is that of its colours{rest}."
    return f"Colours show relevance: {relevance}. {output} {total}"
