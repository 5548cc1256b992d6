"""Make the cards of a report, by explaining each molecule here or in other processes."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any, TypeVar

import numpy as np

from graphxai.chemistry.fragments import Fragments
from graphxai.chemistry.matched_pairs import activity_cliffs
from graphxai.contract.inputs import Input, prepare_each
from graphxai.datasets.molecules import RejectedRow, read_once
from graphxai.evaluation.trust.trust import ORDER
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.explanations import Explanations
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.threads import one_thread
from graphxai.runtime.workers import LostItem, PieceResult, map_in_processes
from graphxai.tables.card import (
    bound_cell,
    explained_rows,
    fragments_shown,
    measured_cell,
    molecule_card,
)
from graphxai.tables.drawing import drawing
from graphxai.tables.settings import SMOOTH
from graphxai.visualization.grid import aligned_series

from .molecules import ReportRow, ReportSource
from .properties import CardSettings, predictions_of_cards

CHUNK = 64  # how many molecules are read and explained at a time
LONGEST_QUOTE = 200  # how many characters are shown of a SMILES that was left out
STRONGEST, UNTRUSTED = "one of the strongest atoms", "little trust"
CLIFF, OUTLIER = "an activity cliff", "an outlier"
DOUBTS = tuple(level for level in ORDER if level != "known")  # the worst first
Item = TypeVar("Item")


@dataclass(frozen=True)
class MoleculeCard:
    """A molecule of the page, with its row, explanation, fragments, and what its card shows."""

    row: ReportRow
    explanation: Explanation
    fragments: Fragments
    content: dict[str, Any]


@dataclass(frozen=True)
class Cards:
    """The cards of all molecules that can be explained, and the rows that were left out."""

    molecules: Sequence[MoleculeCard]
    rejected: Sequence[RejectedRow]

    @property
    def explanations(self) -> Explanations:
        """The explanations of the molecules, with the numbers of their rows."""
        rows = [card.row.number for card in self.molecules]
        return Explanations([card.explanation for card in self.molecules], labels=rows)


def make_cards(
    settings: CardSettings, source: ReportSource, workers: int | None, progress: bool | None
) -> Cards:
    """Explain all molecules of a source, and make their cards.

    Raises:
        Interrupted: Ctrl-C was pressed. Its `results` are the explanations that were finished.
    """
    molecules: list[MoleculeCard] = []
    rejected: list[RejectedRow] = []
    work = partial(_cards_of, settings)
    parts = results_of(work, source.rows, CHUNK, workers, source.total, "explaining", progress)
    try:
        with closing(parts) as done:
            for part in done:
                if isinstance(part.result, LostItem):
                    rejected.append(_rejected(part.items[0], RuntimeError(part.result.reason)))
                else:
                    molecules += part.result.molecules
                    rejected += part.result.rejected
    except KeyboardInterrupt:
        how_far = f"after {len(molecules)} of {source.total} molecules"
        raise Interrupted(how_far, Cards(molecules, rejected).explanations) from None
    return Cards(molecules, rejected)


def aligned_cards(cards: Cards, core: str) -> Cards:
    """Return the cards with molecules that are drawn around a common core, see `aligned_series`.

    Only the first `SMOOTH` molecules are aligned.

    `core` is the SMARTS of the core, or "" to find it.
    """
    first = cards.molecules[:SMOOTH]
    mols = [card.explanation.atoms() for card in first]
    try:
        placed = aligned_series(mols, core or None)
    except ValueError:  # no molecule has this core
        placed = aligned_series(mols)
    moved = [
        replace(
            card,
            explanation=replace(card.explanation, mol=mol),
            content=card.content | {"draw": drawing(mol)},
        )
        for card, mol in zip(first, placed, strict=True)
    ]
    return replace(cards, molecules=[*moved, *cards.molecules[SMOOTH:]])


def results_of(
    work: Callable[[Sequence[Any]], Any],
    items: Iterable[Any],
    size: int,
    workers: int | None,
    total: int,
    label: str,
    progress: bool | None,
) -> Generator[PieceResult, None, None]:
    """Give items to a function, `size` at a time, and yield its results beside a bar.

    The keywords are those of `map_in_processes` and `progress_bar`.
    """
    rest = iter(items)
    pieces = iter(lambda: list(islice(rest, size)), [])
    done = map_in_processes(work, pieces, workers, total)
    with progress_bar(label, total, show=progress) as advance, closing(done):
        for part in chain.from_iterable(done):
            yield part
            advance(len(part.items))


def _cards_of(settings: CardSettings, chunk: Sequence[ReportRow]) -> Cards:
    """Explain one chunk, here or in another process."""
    rows = {row.number: row for row in chunk}
    cards: list[MoleculeCard] = []
    training = settings.training
    tasks = {task.name: task for task in settings.model.config.tasks}
    with one_thread(), read_once() if settings.several else nullcontext():
        prepared, rejected = _prepared(settings.model, chunk)
        how: dict[str, Any] = {"target": settings.target, "level": settings.level}
        results = explained_rows(
            settings.model, prepared, settings.explainer, training=training, **how
        )
        rejected += (_rejected(rows[k], e) for k, e in results.items() if isinstance(e, Exception))
        explained = {k: r for k, r in results.items() if not isinstance(r, Exception)}
        about = predictions_of_cards(settings, chunk, {k: e for k, (e, _) in explained.items()})
        for number, (explanation, trust) in explained.items():
            row = rows[number]
            try:
                parts = fragments_shown(explanation, settings.model)
                content = molecule_card(row.name, number, explanation, parts, trust)
                predicted = explanation.prediction
                task = tasks[predicted.task]
                content |= {
                    "measured": measured_cell(task, row.measured, predicted),
                    "bound": bound_cell(task, row.bounds, predicted),
                    "cells": [],
                    "input": list(row.others.values()),
                    "part": "" if training is None else training.part(explanation.atoms()),
                }
                content |= about[number]
            except Exception as error:  # RDKit raises errors of any type
                rejected.append(_rejected(row, error))
            else:
                cards.append(MoleculeCard(row, explanation, parts, content))
    return Cards(cards, rejected)


def _prepared(
    model: Model, chunk: Sequence[ReportRow]
) -> tuple[list[tuple[int, Input]], list[RejectedRow]]:
    """Encode the rows that can be used, and return the rejected rows with their reasons."""
    prepared, rejected = [], []
    items = prepare_each(model, [row.value for row in chunk], Exception)  # RDKit may raise any
    for row, item in zip(chunk, items, strict=True):
        if isinstance(item, Exception):
            rejected.append(_rejected(row, item))
        elif item.smiles is None and item.molecule is None:
            rejected.append(_rejected(row, ValueError("this is not a molecule.")))
        else:
            prepared.append((row.number, item))
    return prepared, rejected


def _rejected(row: ReportRow, error: Exception) -> RejectedRow:
    smiles = "" if isinstance(row.value, Exception) else str(row.value)[:LONGEST_QUOTE]
    reason = str(error) or type(error).__name__
    return RejectedRow(row.number, smiles, reason)


def in_full(molecules: Sequence[Mapping[str, Any]], count: int) -> dict[int, str]:
    """Choose the positions of at most `count` records, each with the reason why it is chosen.

    Molecules are taken in turn from four lists. The first has the strongest atoms, and the second
    the least trust. The third has activity cliffs, which are pairs of similar molecules with values
    more than a standard deviation apart. The last has outliers, which are the largest errors.
    Without measured values, cliffs are those of the prediction, and outliers are the molecules
    farthest from the median.
    """
    if count >= len(molecules):
        return dict.fromkeys(range(len(molecules)), "")
    levels = [m["trust"]["level"] for m in molecules]
    doubtful = [k for k, level in enumerate(levels) if level in DOUBTS]
    lists = {
        STRONGEST: _descending(max(map(abs, m["r"]), default=0.0) for m in molecules),
        UNTRUSTED: sorted(doubtful, key=lambda k: DOUBTS.index(levels[k])),
        CLIFF: _cliffs(molecules),
        OUTLIER: _descending(_strangeness(molecules)),
    }
    turns = zip_longest(*([(place, why) for place in places] for why, places in lists.items()))
    chosen: dict[int, str] = {}
    for place, why in filter(None, chain.from_iterable(turns)):
        if len(chosen) >= count:
            break
        chosen.setdefault(place, why)
    return chosen


def sentence_about(molecules: Sequence[Mapping[str, Any]], chosen: Mapping[int, str]) -> str:
    """Say in one sentence which cards are full, or return "" if every card is full."""
    if len(chosen) == len(molecules):
        return ""
    which = (
        "those with the strongest atoms, the least trust, activity cliffs and outliers"
        if chosen
        else "none were requested"
    )
    return (
        f"{len(chosen):,} of the {len(molecules):,} molecules have a full card, with other methods"
        f" and every sign of trust: {which}."
    )


def _cliffs(molecules: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return both ends of each cliff among the first `SMOOTH` molecules, the highest cliff first.

    The search compares all pairs, so its time grows with the square of their number.
    """
    molecules = molecules[:SMOOTH]
    values = _measured(molecules)
    if np.isnan(values).all():
        values = np.array([m["value"] for m in molecules], dtype=float)
    spread = float(np.nanstd(values))
    if not spread:
        return []
    smiles = [m["smiles"] for m in molecules]
    cliffs = activity_cliffs(smiles, values, difference=spread, matched=False)
    return list(dict.fromkeys(end for cliff in cliffs for end in (cliff.a, cliff.b)))


def _strangeness(molecules: Sequence[Mapping[str, Any]]) -> Iterable[float]:
    """Return how far each prediction is from what was measured, or else from the median."""
    measured = _measured(molecules)
    predicted = np.array([m["value"] for m in molecules], dtype=float)
    if np.isnan(measured).all():
        return np.abs(predicted - np.median(predicted))
    if any(m["label"] is not None for m in molecules):  # a class that is wrong with much certainty
        wrong = [m["measured"] is not None and m["label"] != m["measured"][1] for m in molecules]
        return np.abs(predicted - 0.5) * wrong
    return np.nan_to_num(np.abs(predicted - measured))


def _measured(molecules: Sequence[Mapping[str, Any]]) -> np.ndarray:
    return np.array([m["measured"][0] if m["measured"] else np.nan for m in molecules], dtype=float)


def _descending(values: Iterable[float]) -> list[int]:
    return np.argsort(-np.fromiter(values, dtype=float), kind="stable").tolist()
