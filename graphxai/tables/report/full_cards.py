"""Make what only full cards show: other methods, every sign of trust, and counterfactuals."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from graphxai.chemistry.counterfactuals import Goal
from graphxai.chemistry.measurements import Measurements
from graphxai.contract.inputs import prepare_all
from graphxai.evaluation.trust.trust import Trust, explained_by_each, trust_prepared
from graphxai.explanation.compute.models import Model, standardisation_of
from graphxai.explanation.compute.panel import ModelPanel
from graphxai.explanation.explanation import Explanation
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.threads import one_thread
from graphxai.runtime.workers import LostItem, map_in_processes

from .cards import Cards, CardSettings, MoleculeCard, in_pieces
from .changes import changes_card, joint_changes_card
from .drawing import drawing
from .molecules import ReportRow
from .records import full_card

MOLECULES_AT_A_TIME = 16  # how many full cards a process makes at a time


@dataclass(frozen=True)
class FullCardSettings:
    """The settings of full cards.

    Attributes:
        card: how the molecules were explained.
        compared: the methods to show beside the report's method.
        counterfactuals: how many counterfactuals to find for each molecule.
        towards: what the model should predict for counterfactuals, or None for a default.
        measurements: the table's measured values, or None.
        of_properties: the measured values of each property, for changes that lead to a goal.
    """

    card: CardSettings
    compared: tuple[str, ...]
    counterfactuals: int = 0
    towards: str | None = None
    measurements: Measurements | None = None
    of_properties: Mapping[str, Measurements] = field(default_factory=dict)


@dataclass(frozen=True)
class FullCards:
    """What the full cards add to the page.

    Attributes:
        contents: by the molecule's place, what its full card adds.
        neighbours: by SMILES, drawings of the nearest training compounds and of tautomers.
        refused: the methods that do not work for the model, with the reason.
    """

    contents: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    neighbours: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: "FullCards") -> "FullCards":
        """Put the contents of both together."""
        return FullCards(
            {**self.contents, **other.contents},
            {**self.neighbours, **other.neighbours},
            {**self.refused, **other.refused},
        )


class _Chosen(NamedTuple):
    """A molecule that gets a full card, with its place on the page and why it was chosen."""

    place: int
    why: str
    row: ReportRow
    explanation: Explanation


def make_full_cards(
    settings: FullCardSettings,
    cards: Cards,
    chosen: Mapping[int, str],
    workers: int | None,
    progress: bool | None,
) -> FullCards:
    """Make the full cards of the chosen molecules.

    A molecule that makes its process end gets no full card, and a warning says so.

    Args:
        settings: the settings of full cards.
        cards: the cards of all molecules.
        chosen: by place, why the molecule gets a full card.
        workers: the number of processes.
        progress: whether to show a bar.

    Raises:
        Interrupted: Ctrl-C was pressed. Its `results` are the explanations of all molecules.
    """
    molecules = cards.molecules
    items = [
        _Chosen(place, chosen[place], molecules[place].row, molecules[place].explanation)
        for place in sorted(chosen)
    ]
    full = FullCards()
    pieces = in_pieces(items, MOLECULES_AT_A_TIME)
    done = map_in_processes(partial(_full_cards_of, settings), pieces, workers, len(items))
    try:
        with (
            progress_bar("comparing methods", len(chosen), show=progress) as advance,
            closing(done),
        ):
            for part in chain.from_iterable(done):
                if isinstance(part.result, LostItem):
                    row = part.items[0].row.number
                    message = f"row {row} has no full card: {part.result.reason}"
                    warnings.warn(message, stacklevel=4)
                else:
                    full |= part.result
                advance(len(part.items))
    except KeyboardInterrupt:
        how_far = f"after {len(full.contents)} of {len(chosen)} full cards"
        raise Interrupted(how_far, cards.explanations) from None
    return full


def _full_cards_of(settings: FullCardSettings, chosen: Sequence[_Chosen]) -> FullCards:
    """Compare methods and measure every sign of trust, here or in another process."""
    from rdkit import Chem

    model, target, explainer = settings.card.model, settings.card.target, settings.card.explainer
    explanations = {item.place: item.explanation for item in chosen}
    with one_thread():
        values = prepare_all(model, [item.row.value for item in chosen])
        prepared = list(zip(explanations, values, strict=True))
        compared, refused = explained_by_each(model, prepared, settings.compared, target)
        trusted = trust_prepared(model, prepared, explanations, explainer, target=target)
    contents: dict[int, dict[str, Any]] = {}
    neighbours: dict[str, Any] = {}
    for place, why, _, explanation in chosen:
        others = {name: made[place] for name, made in compared.items() if place in made}
        contents[place] = full_card(others, trusted[place], why)
        if settings.counterfactuals:
            contents[place]["changes"] = _changes(settings, explanation)
        for smiles in _beside(trusted[place]):
            if smiles not in neighbours:
                neighbours[smiles] = drawing(Chem.MolFromSmiles(smiles))
    return FullCards(contents, neighbours, refused)


def _beside(trust: Trust) -> list[str]:
    """Return what is drawn beside a molecule: its nearest training compound and its tautomers."""
    nearest = [] if trust.nearest is None else [trust.nearest]
    return [*nearest, *(smiles for sign in trust.of_molecule for smiles in sign.structures)]


def _changes(settings: FullCardSettings, explanation: Explanation) -> dict[str, Any]:
    """Return what a card shows of counterfactuals, for one goal or for the goal of all models."""
    card, count = settings.card, settings.counterfactuals
    if card.several is not None and card.several.goal:
        joint = card.several, count, settings.of_properties
        return joint_changes_card(card.model, card.explainer, explanation, *joint)
    about = settings.towards, count, card.level, settings.measurements
    return changes_card(card.model, card.explainer, explanation, *about)


def measurements_for(
    model: Model, molecules: Sequence[MoleculeCard], towards: str | None
) -> Measurements | None:
    """Return the table's values for the goal's task, or else for another task, or None."""
    explained_task = molecules[-1].explanation.prediction.task
    goal_task = explained_task if towards is None else Goal.of(towards, model).task
    tasks = (task.name for task in model.config.tasks if task.kind == "regression")
    in_order = sorted(tasks, key=lambda name: name != goal_task)
    measured = (measurements_of(model, molecules, task) for task in in_order)
    return next(filter(None, measured), None)


def measurements_of_properties(
    panel: ModelPanel, molecules: Sequence[MoleculeCard]
) -> dict[str, Measurements]:
    """Return the measured values of each property of several models that has any."""
    tasks = {each.name: each.task.name for each in panel.properties if not each.task.classes}
    tables = {name: measurements_of(panel.models[0], molecules, t) for name, t in tasks.items()}
    return {name: table for name, table in tables.items() if table is not None}


def measurements_of(
    model: Model, molecules: Sequence[MoleculeCard], task: str
) -> Measurements | None:
    """Return the measured values of a task for the explained molecules, or None without any."""
    cells = ((card.explanation.smiles, card.row.measured.get(task)) for card in molecules)
    pairs = [(smiles, value) for smiles, value in cells if smiles and value is not None]
    return Measurements.of(pairs, task, standardisation_of(model)) if pairs else None
