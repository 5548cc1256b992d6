"""Make the cards of a report, by explaining each molecule here or in other processes."""

import json
from array import array
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, TypeVar

import numpy as np
from rdkit.Chem import Mol

from graphxai.chemistry.fragment_table import FragmentTable
from graphxai.chemistry.fragments import Fragments
from graphxai.chemistry.matched_pairs import activity_cliffs
from graphxai.datasets.molecules import RejectedRow, read_once
from graphxai.evaluation.trust.trust import ORDER
from graphxai.explanation.explanation import Explanation, about_output, about_terms
from graphxai.explanation.explanations import Explanations
from graphxai.runtime.device import one_thread
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.workers import LostItem, PieceResult, map_in_processes, pieces_of
from graphxai.tables.card import (
    bound_cell,
    explained_rows,
    fragments_shown,
    measured_cell,
    molecule_card,
    rounded,
)
from graphxai.tables.drawing import drawing
from graphxai.tables.settings import SMOOTH
from graphxai.visualization.grid import aligned_series

from .molecules import ReportRow, ReportSource, Spool
from .properties import CardSettings, predictions_of_cards

CHUNK = 64  # how many molecules are read and explained at a time
LONGEST_QUOTE = 200  # how many characters are shown of a SMILES that was left out
MOST_OTHERS = 3  # how many further tasks of one model the table of a page shows
RECORDED = (  # of the content of a card
    *("name", "row", "smiles", "value", "label", "sum", "near"),
    *("measured", "bound", "part", "desirability"),
)
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


class Cards:
    """The cards of all molecules that can be explained, and the rows that were left out.

    What a page sorts, filters and sums up is in memory. The explanations and what else the cards
    show are in files without a name, from which one molecule at a time is read.

    Attributes:
        records: of each molecule, what `record_of` says.
        drawn: the first `SMOOTH` molecules as the page draws them, once they are aligned.
        relevance: that of all atoms, one molecule after another.
        ends: the explanations of the first and of the last molecule.
        targets: the explained outputs as text, each once, like what the page says about all of
            them: `outputs`, `terms` and `value_names`.
        fragments: the statistics of fragments, as long as there is one target.
        occurrences: by the SMILES of a fragment, its places and its relevance in each molecule.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.rejected: list[RejectedRow] = []
        self.drawn: Sequence[Mol] = ()
        self.relevance = array("d")
        self.ends: tuple[Explanation, Explanation] | None = None
        self.targets: dict[str, None] = {}
        self.outputs: set[str] = set()
        self.terms: dict[str, str] = {}
        self.value_names: set[str] = set()
        self.fragments = FragmentTable()
        self.occurrences: dict[str, tuple[array[int], array[float]]] = {}
        self._first: list[Mol] = []
        self._explained, self._contents = Spool(), Spool()

    def __len__(self) -> int:
        """Return how many molecules have a card."""
        return len(self.records)

    def add(self, card: MoleculeCard) -> None:
        """Add the card of a molecule."""
        explanation, content, place = card.explanation, card.content, len(self)
        if place < SMOOTH:
            self._first.append(explanation.atoms())
        self.ends = (self.ends[0] if self.ends else explanation, explanation)
        self.targets[explanation.target] = None
        self.outputs.add(about_output(explanation))
        self.terms |= about_terms(explanation)
        self.value_names.add(content["value_name"])
        self.relevance.extend(content["r"])
        if len(self.targets) == 1:  # relevance cannot be averaged over different classes
            self.fragments.add(card.fragments)
        for _, smiles, _, value, *_ in content["fragments"]:
            places, values = self.occurrences.setdefault(smiles, (array("q"), array("d")))
            if places and places[-1] == place:
                values[-1] += value
            else:
                places.append(place)
                values.append(value)
        self.records.append(record_of(content, explanation))
        self._explained.append((card.row, explanation))
        self._contents.append(json.dumps(content, ensure_ascii=False, allow_nan=False))

    def align(self, core: str) -> None:
        """Draw the first `SMOOTH` molecules around a common core, see `aligned_series`.

        `core` is the SMARTS of the core, or "" to find it.
        """
        try:
            self.drawn = aligned_series(self._first, core or None)
        except ValueError:  # no molecule has this core
            self.drawn = aligned_series(self._first)
        self._first.clear()

    def explained(self, place: int) -> tuple[ReportRow, Explanation]:
        """Return the row of a molecule and its explanation."""
        row, explanation = self._explained[place]
        if place < len(self.drawn):
            explanation = replace(explanation, mol=self.drawn[place])
        return row, explanation

    def content(self, place: int, full: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the card of a molecule shows besides its record.

        `full` is what a full card adds.
        """
        content = json.loads(self._contents[place]) | full
        if place < len(self.drawn):
            content["draw"] = drawing(self.drawn[place])
        known = {"value_name", *self.records[place]}
        return {name: value for name, value in content.items() if name not in known}

    @property
    def explanations(self) -> Explanations:
        """The explanations of the molecules, with the numbers of their rows."""
        count = len(self._explained)  # an interrupt may come between a record and its explanation
        rows = [record["row"] for record in self.records[:count]]
        return Explanations([self.explained(place)[1] for place in range(count)], labels=rows)


def record_of(content: Mapping[str, Any], explanation: Explanation) -> dict[str, Any]:
    """Return what a page needs of a molecule that is not shown: its names, values and trust.

    `also` are the values of the next tasks, by which a table is sorted. `known` says of each of
    several properties what `agreements` compares: value, class, what was measured, its bound, and
    the word for how near the molecule is to the training set.
    """
    others = [p for p in explanation.predictions if p.task != explanation.prediction.task]
    return {name: content.get(name) for name in RECORDED} | {
        "level": content["trust"]["level"],
        "strongest": max(map(abs, content["r"]), default=0.0),
        "also": [None if p.value is None else rounded([p.value])[0] for p in others[:MOST_OTHERS]],
        "known": [cells and [*cells[5:9], cells[2]] for cells in content.get("properties", ())],
    }


def make_cards(
    settings: CardSettings, source: ReportSource, workers: int | None, progress: bool | None
) -> Cards:
    """Explain all molecules of a source, and make their cards.

    Raises:
        Interrupted: Ctrl-C was pressed. Its `results` are the explanations that were finished.
    """
    cards = Cards()
    work = partial(_cards_of, settings)
    parts = results_of(work, source.rows, CHUNK, workers, source.total, "explaining", progress)
    try:
        with closing(parts) as done:
            for part in done:
                if isinstance(part.result, LostItem):
                    lost = _rejected(part.items[0], RuntimeError(part.result.reason))
                    cards.rejected.append(lost)
                    continue
                made, rejected = part.result
                for card in made:
                    cards.add(card)
                cards.rejected += rejected
    except KeyboardInterrupt:
        how_far = f"after {len(cards)} of {source.total} molecules"
        raise Interrupted(how_far, cards.explanations) from None
    return cards


def results_of(
    work: Callable[[Sequence[Any]], Any],
    items: Iterable[Any],
    size: int,
    workers: int | None,
    total: int,
    label: str,
    progress: bool | None,
) -> Generator[PieceResult, None, None]:
    """Give items to a function, in `pieces_of` this size, and yield its results beside a bar.

    The keywords are those of `map_in_processes` and `progress_bar`.
    """
    done = map_in_processes(work, pieces_of(items, size), workers, total)
    with progress_bar(label, total, show=progress) as advance, closing(done):
        for part in chain.from_iterable(done):
            yield part
            advance(len(part.items))


def _cards_of(
    settings: CardSettings, chunk: Sequence[ReportRow]
) -> tuple[list[MoleculeCard], list[RejectedRow]]:
    """Explain one chunk, here or in another process, and return the rows that were left out."""
    rows = {row.number: row for row in chunk}
    cards: list[MoleculeCard] = []
    training = settings.training
    tasks = {task.name: task for task in settings.model.config.tasks}
    with one_thread(), read_once() if settings.several else nullcontext():
        how: dict[str, Any] = {"target": settings.target, "level": settings.level}
        values = {number: row.value for number, row in rows.items()}
        results = explained_rows(
            settings.model, values, settings.explainer, training=training, **how
        )
        rejected = [_rejected(rows[k], e) for k, e in results.items() if isinstance(e, Exception)]
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
    return cards, rejected


def _rejected(row: ReportRow, error: Exception) -> RejectedRow:
    smiles = "" if isinstance(row.value, Exception) else str(row.value)[:LONGEST_QUOTE]
    reason = str(error) or type(error).__name__
    return RejectedRow(row.number, smiles, reason)


def in_full(molecules: Sequence[Mapping[str, Any]], count: int) -> dict[int, str]:
    """Choose the positions of at most `count` molecules, each with the reason why it is chosen.

    Molecules are taken in turn from four lists. The first has the strongest atoms, and the second
    the least trust. The third has activity cliffs, which are pairs of similar molecules with values
    more than a standard deviation apart. The last has outliers, which are the largest errors.
    Without measured values, cliffs are those of the prediction, and outliers are the molecules
    farthest from the median.
    """
    if count >= len(molecules):
        return dict.fromkeys(range(len(molecules)), "")
    levels = [m["level"] for m in molecules]
    doubtful = [k for k, level in enumerate(levels) if level in DOUBTS]
    lists = {
        STRONGEST: _descending(m["strongest"] for m in molecules),
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
    have = "has" if len(chosen) == 1 else "have"
    return (
        f"{len(chosen):,} of the {len(molecules):,} molecules {have} a full card, with other"
        f" methods and every sign of trust: {which}."
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
