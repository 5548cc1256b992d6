"""Make the cards of a report, by explaining each molecule here or in other processes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from graphxai.chemistry.fragments import Fragments, fragments
from graphxai.contract.inputs import Input, prepare_each
from graphxai.datasets.training_set import TrainingSet
from graphxai.evaluation.trust.trust import Trust, trust_prepared
from graphxai.explainers import Explainer
from graphxai.explanation.compute.explaining import explanations_or_errors
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.explanations import Explanations
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.threads import one_thread
from graphxai.runtime.workers import LostItem, map_in_processes
from graphxai.tables.cells import predicted_columns, prediction_cells

from .measured import bound_cell, measured_cell
from .molecules import ReportRow, ReportSource
from .properties import SeveralModels, properties_of_cards
from .records import record

CHUNK = 64  # how many molecules are read and explained at a time
LONGEST_QUOTE = 200  # how many characters are shown of a SMILES that was left out
Item = TypeVar("Item")


class RejectedMolecule(NamedTuple):
    """A row that was left out, with its number, the SMILES, and the reason."""

    row: int
    smiles: str
    reason: str


@dataclass(frozen=True)
class CardSettings:
    """How molecules are explained for their cards.

    Attributes:
        model: the model.
        training: its training set, or None if it is unknown.
        explainer: the method.
        target: the output to explain, see `Target`.
        level: how often the predictions' intervals and sets of classes should hold.
        several: all models of a report with several properties, of which `model` is the first, or
            None.
    """

    model: Model
    training: TrainingSet | None
    explainer: Explainer
    target: Any
    level: float
    several: SeveralModels | None = None


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
    rejected: Sequence[RejectedMolecule]

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
    rejected: list[RejectedMolecule] = []
    pieces = in_pieces(source.rows, CHUNK)
    done = map_in_processes(partial(_cards_of, settings), pieces, workers, source.total)
    try:
        with progress_bar("explaining", source.total, show=progress) as advance, closing(done):
            for part in chain.from_iterable(done):
                if isinstance(part.result, LostItem):
                    rejected.append(_rejected(part.items[0], RuntimeError(part.result.reason)))
                else:
                    molecules += part.result.molecules
                    rejected += part.result.rejected
                advance(len(part.items))
    except KeyboardInterrupt:
        how_far = f"after {len(molecules)} of {source.total} molecules"
        raise Interrupted(how_far, Cards(molecules, rejected).explanations) from None
    return Cards(molecules, rejected)


def in_pieces(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def _cards_of(settings: CardSettings, chunk: Sequence[ReportRow]) -> Cards:
    """Explain one chunk, here or in another process."""
    model, target = settings.model, settings.target
    rows = {row.number: row for row in chunk}
    cards: list[MoleculeCard] = []
    with one_thread():
        prepared, rejected = _prepared(model, chunk)
        explanations: dict[int, Explanation] = {}
        computed = explanations_or_errors(
            model, prepared, settings.explainer, target=target, training=settings.training
        )
        for number, explanation in computed:
            if isinstance(explanation, Exception):
                rejected.append(_rejected(rows[number], explanation))
            else:
                explanations[number] = explanation.at(settings.level)
        prepared = [item for item in prepared if item[0] in explanations]
        trusted = trust_prepared(model, prepared, explanations, None, target=target)
        properties: dict[int, dict[str, Any]] = {}
        if (several := settings.several) is not None:
            properties = properties_of_cards(several, settings.explainer, chunk, explanations)
        for number, _ in prepared:
            try:
                card = _card_of(settings, rows[number], explanations[number], trusted[number])
                card.content.update(properties.get(number, {}))
            except Exception as error:  # RDKit raises errors of any type
                rejected.append(_rejected(rows[number], error))
            else:
                cards.append(card)
    return Cards(cards, rejected)


def _card_of(
    settings: CardSettings, row: ReportRow, explanation: Explanation, trust: Trust
) -> MoleculeCard:
    parts = fragments(explanation, "brics")
    content = record(row.name, row.number, explanation, parts, trust)
    (task,) = (t for t in settings.model.config.tasks if t.name == explanation.prediction.task)
    content["measured"] = measured_cell(task, row.measured, explanation.prediction)
    content["bound"] = bound_cell(task, row.bounds, explanation.prediction)
    training = settings.training
    columns, cells = predicted_columns(settings.model), prediction_cells(explanation.predictions)
    content["cells"] = [cells.get(name, "") for name in columns]
    content["input"] = list(row.others.values())
    content["part"] = "" if training is None else training.part(explanation.atoms())
    return MoleculeCard(row, explanation, parts, content)


def _prepared(
    model: Model, chunk: Sequence[ReportRow]
) -> tuple[list[tuple[int, Input]], list[RejectedMolecule]]:
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


def _rejected(row: ReportRow, error: Exception) -> RejectedMolecule:
    """Return what the page says about a row that was left out."""
    smiles = "" if isinstance(row.value, Exception) else str(row.value)[:LONGEST_QUOTE]
    reason = str(error) or type(error).__name__
    return RejectedMolecule(row.number, smiles, reason)
