"""Find what to change in a molecule so that the model predicts something else (Wachter 2017).

1. Neighbours are made by transformations of medicinal chemistry, by exchange of BRICS fragments,
and by changes of SELFIES.
2. Neighbours that change what speaks against the goal are predicted first.
3. Those on the Pareto front of three criteria are chosen: the distance beyond the goal, the
similarity to the molecule, and the similarity to the training set.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
from rdkit import Chem
from rdkit.DataStructs import TanimotoSimilarity

from graphxai.api import explain, load, predict
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.datasets.training_set import training_set_of
from graphxai.explanation.compute.models import Model, conformal_of, standardisation_of
from graphxai.explanation.compute.panel import ModelPanel, is_several
from graphxai.explanation.explanation import Explanation
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.progress import progress_bar

from .contrast import NO_MOLECULE
from .counterfactual_choice import chosen_from, counts
from .counterfactual_results import Counterfactual, Counterfactuals
from .feasibility import feasibility
from .goal import Goal
from .measured_properties import measured_properties
from .measurements import Measurements
from .neighbours import (
    EXPANDED,
    SOURCES,
    Neighbourhood,
    SearchStart,
    Way,
    in_parts,
    kept_atoms,
    kept_pattern,
)
from .profile_results import ProfileCounterfactuals
from .profile_search import SearchLimits, search_profile
from .transformations import Change

__all__ = ["Counterfactual", "Counterfactuals", "counterfactuals", "search"]

MeasuredValues = Measurements | Mapping[str, float] | str | Path
MeasuredOfSeveral = Mapping[str, Measurements | Mapping[str, float]] | str | Path


@overload
def counterfactuals(
    model: "Model | str | Path",
    molecule: Any,
    towards: str | float,
    n: int = 12,
    *,
    keep: str | Collection[int] = (),
    sources: Sequence[str] = SOURCES[:2],
    predictions: int = 1000,
    steps: int = 2,
    sure: bool = False,
    guided: bool = True,
    seed: int = 0,
    measured: MeasuredValues | None = None,
    progress: bool | None = None,
) -> Counterfactuals: ...
@overload
def counterfactuals(
    model: "list[Any] | tuple[Any, ...]",
    molecule: Any,
    towards: str,
    n: int = 12,
    *,
    keep: str | Collection[int] = (),
    sources: Sequence[str] = SOURCES[:2],
    predictions: int = 1000,
    steps: int = 2,
    sure: bool = False,
    guided: bool = True,
    seed: int = 0,
    measured: MeasuredOfSeveral | None = None,
    progress: bool | None = None,
) -> ProfileCounterfactuals: ...
def counterfactuals(
    model: "Model | str | Path | Sequence[Model | str | Path]",
    molecule: Any,
    towards: str | float,
    n: int = 12,
    *,
    keep: str | Collection[int] = (),
    sources: Sequence[str] = SOURCES[:2],
    predictions: int = 1000,
    steps: int = 2,
    sure: bool = False,
    guided: bool = True,
    seed: int = 0,
    measured: MeasuredValues | MeasuredOfSeveral | None = None,
    progress: bool | None = None,
) -> Counterfactuals | ProfileCounterfactuals:
    """Find what to change in a molecule so that the model predicts something else.

    Neighbours that reach the goal are returned in the order of their Pareto fronts (distance beyond
    the goal, similarity to the molecule, similarity to the training set). If none reaches it, those
    nearest to it are returned. The best at each site of the molecule come first. Where a change
    makes a stereocentre, each isomer is predicted, and the worst of them counts.

    For a list of models, `towards` joins goals for their properties, as `gx.profile` reads them:
    "pIC50 > 7.5, log D 1 to 3". The results are then the neighbours that are more desirable than
    the molecule, in the order of the Pareto fronts of their desirabilities.

    Args:
        model: from `load` or `wrap`, or a name, or a list of these.
        molecule: a SMILES or an RDKit molecule.
        towards: the goal: a class, or ">6.5" or "<6.5" for a value; "task: ..." in models with
            several tasks. A number is the value to cross, from the side where the molecule lies.
        n: how many counterfactuals to return.
        keep: a SMARTS pattern, or numbers of atoms, that stay as they are.
        sources: any of "transformations", "fragments" (BRICS) and "selfies" (needs the package
            selfies).
        predictions: how many neighbours are predicted at most.
        steps: how many changes may follow each other. If fewer than n neighbours reach the goal,
            the neighbours of those nearest to it are tried too.
        sure: count only those that the model is sure of, see `Goal.sure`. They are fewer, and right
            more often.
        guided: try neighbours first that change what speaks against the goal; False tries them in
            random order.
        seed: decides the order among equals, and the changes of SELFIES.
        measured: a table with a column of structures and one named after the goal's task, or after
            another task of the model; or values by SMILES. Each result then says whether it is in
            the table, and what was measured for pairs with the same exchange. For a list of models,
            all properties that have a column are compared; or give values by SMILES for the name of
            each property.
        progress: as for `explain`.

    Raises:
        KeyboardInterrupt: the search was interrupted. The `results` of the exception are the best
            until then.
        ValueError: for a goal, pattern or table that does not fit, and for `sure` if the model does
            not record how wrong it is.
    """
    options: dict[str, Any] = {"keep": keep, "sources": sources, "guided": guided, "seed": seed}
    searching: Iterator[tuple[int, Callable[[], Any]]]
    if is_several(model):
        panel = ModelPanel.of(model)
        if isinstance(measured, Measurements):
            raise ValueError("for several models, give the values of each property by its name.")
        if measured is not None:
            options["measured"] = measured_properties(panel, cast(MeasuredOfSeveral, measured))
        limits = SearchLimits(n, predictions, steps, sure)
        searching = search_profile(panel.models, molecule, str(towards), limits, **options)
    else:
        options |= {"predictions": predictions, "steps": steps, "sure": sure, "measured": measured}
        searching = _searched(cast(Model, model), molecule, towards, n, **options)
    with progress_bar("predicting neighbours", predictions, show=progress) as advance:
        done = 0
        try:
            for predicted, best in searching:
                advance(predicted - done)
                done, so_far = predicted, best
        except KeyboardInterrupt:
            if not done:
                raise
            raise Interrupted(f"after {done} neighbours", so_far()) from None
    return so_far()


def search(
    model: "Model | str | Path",
    molecule: Any,
    towards: str | float,
    n: int = 12,
    *,
    keep: str | Collection[int] = (),
    sources: Sequence[str] = SOURCES[:2],
    predictions: int = 1000,
    steps: int = 2,
    sure: bool = False,
    guided: bool = True,
    seed: int = 0,
    measured: MeasuredValues | None = None,
) -> Iterator[Counterfactuals]:
    """Yield the best counterfactuals so far: at first none, then after each batch of predictions.

    Arguments and errors are as for `counterfactuals`, whose result is the last one yielded. The
    search works only as far as you iterate: stop iterating to cancel it.
    """
    options: dict[str, Any] = {"keep": keep, "sources": sources, "predictions": predictions}
    options |= {"steps": steps, "sure": sure, "guided": guided, "seed": seed, "measured": measured}
    for _, so_far in _searched(model, molecule, towards, n, **options):
        yield so_far()


def _searched(
    model: "Model | str | Path",
    molecule: Any,
    towards: str | float,
    n: int,
    *,
    keep: str | Collection[int],
    sources: Sequence[str],
    predictions: int,
    steps: int,
    sure: bool,
    guided: bool,
    seed: int,
    measured: MeasuredValues | None,
) -> Iterator[tuple[int, Callable[[], Counterfactuals]]]:
    """Yield how many neighbours were predicted, and a function that returns the best of them.

    The first pair comes before any prediction, then one pair after each batch.
    """
    model = load(model) if isinstance(model, str | Path) else model
    if isinstance(towards, str):
        goal = Goal.of(towards, model)
    else:
        goal = Goal.at(float(towards), predict(model, molecule, progress=False))
    errors_are_known = goal.task in conformal_of(model)
    if sure and not errors_are_known:
        raise ValueError(
            f"how wrong the model is for {goal.task!r} is not known, so nothing can be sure: leave"
            " out sure, or train with a validation part."
        )
    neighbourhood = Neighbourhood(
        tuple(sources), guided, random.Random(seed), seed, training_set_of(model)
    )
    predictor = _Predictor(model, goal)
    table = _table(measured, goal, model)
    explanation: Explanation = explain(model, molecule, target=goal.target, progress=False)
    start = explanation.atoms(NO_MOLECULE)
    kept = kept_atoms(start, keep)
    seen = {Chem.MolToSmiles(start)}
    tried: list[Counterfactual] = []

    def so_far(judged: bool = True) -> Counterfactuals:
        """Return the best so far; accessibility and alerts are left out if they are not judged."""
        chosen = chosen_from(tried, n, sure)
        if judged:
            chosen = [_judged(candidate, start, table) for candidate in chosen]
        hits = [k for k, candidate in enumerate(tried, 1) if candidate.reached]
        return Counterfactuals(
            model,
            explanation,
            goal,
            tuple(chosen),
            len(tried),
            successes=len(hits),
            sure=sum(counts(candidate, sure=True) for candidate in tried)
            if errors_are_known
            else None,
            first=hits[0] if hits else None,
        )

    yield 0, so_far
    starts = [predictor.start(explanation)]
    quick = neighbourhood.quick(starts[0], kept, seen)[:predictions]
    tried += predictor.predicted(quick, explanation)
    yield len(tried), partial(so_far, judged=False)  # within a moment, before all are made
    for step in range(steps):
        keeping = kept if step == 0 else kept_pattern(start, kept)
        queue = neighbourhood.neighbours(starts, keeping, seen)
        for part in in_parts(queue, predictions - len(tried)):
            tried += predictor.predicted(part, explanation)
            yield len(tried), so_far
        if not queue:
            yield len(tried), so_far
        if sum(counts(candidate, sure) for candidate in tried) >= n or len(tried) >= predictions:
            return
        near = sorted(tried, key=lambda candidate: -candidate.distance)[:EXPANDED]
        starts = predictor.starts(near)


@dataclass(frozen=True, eq=False)
class _Predictor:
    """Predicts neighbours, and explains those that are searched from next."""

    model: Model
    goal: Goal

    def predicted(
        self, part: Sequence[tuple[Change, Way]], start: Explanation
    ) -> Iterator[Counterfactual]:
        """Yield the neighbours with their predictions, without those that the model cannot read."""
        drawn = [change.isomers or (change.smiles,) for change, _ in part]
        outcomes = iter(predict(self.model, list(chain.from_iterable(drawn)), progress=False))
        before, molecule_bits = start.prediction, ecfp4_bits(start.atoms(NO_MOLECULE))
        for (change, way), isomers in zip(part, drawn, strict=True):
            each = [(smiles, next(outcomes)) for smiles in isomers]
            predicted = [
                (s, prediction_of[self.goal.task])
                for s, prediction_of in each
                if prediction_of is not None
            ]
            if len(predicted) == len(each):
                smiles, prediction = min(predicted, key=lambda pair: self.goal.distance(pair[1]))
                neighbour_bits = ecfp4_bits(Chem.MolFromSmiles(smiles))
                yield Counterfactual(
                    smiles,
                    change.name,
                    change.source,
                    change.atoms,
                    prediction,
                    before,
                    self.goal.value(prediction) - self.goal.value(before),
                    self.goal.distance(prediction),
                    TanimotoSimilarity(molecule_bits, neighbour_bits),
                    self.goal.sure(prediction) if self.goal.distance(prediction) > 0 else None,
                    way,
                    isomers=tuple(predicted) if len(predicted) > 1 else (),
                )

    def starts(self, near: Sequence[Counterfactual]) -> list[SearchStart]:
        """Explain these molecules, so that their neighbours can be tried next."""
        smiles = [counterfactual.smiles for counterfactual in near]
        explained = explain(self.model, smiles, target=self.goal.target, progress=False)
        ways = [
            (*counterfactual.way, (counterfactual.change, counterfactual.smiles))
            for counterfactual in near
        ]
        return [self.start(e, way) for e, way in zip(explained, ways, strict=True) if e is not None]

    def start(self, explanation: Explanation, way: Way = ()) -> SearchStart:
        """Return an explained molecule, with what speaks against the goal at each atom."""
        against = -self.goal.side * np.asarray(explanation.relevance, dtype=np.float64)
        return SearchStart(explanation.atoms(NO_MOLECULE), against, way)


def _table(measured: MeasuredValues | None, goal: Goal, model: Model) -> Measurements | None:
    """Return measured values of the goal's task, or else of another task of the model."""
    if measured is None or isinstance(measured, Measurements):
        return measured
    way = standardisation_of(model)
    if isinstance(measured, Mapping):
        return Measurements.of(measured.items(), goal.task, way)
    return Measurements.read(measured, goal.columns(model), standardise=way)


def _judged(
    candidate: Counterfactual, start: Chem.Mol, table: Measurements | None
) -> Counterfactual:
    """Add accessibility, new alerts and measured values to a counterfactual."""
    first = Chem.MolToSmiles(start)
    (effort, names), (_, before) = feasibility(candidate.smiles), feasibility(first)
    return replace(
        candidate,
        accessibility=effort,
        alerts=tuple(alert for alert in names if alert not in before),
        measured=None if table is None else table.about(first, candidate.smiles),
    )
