"""Find what to change in a molecule so that models predict something else (Wachter 2017).

1. Neighbours are made by transformations of medicinal chemistry, by exchange of BRICS fragments,
and by changes of SELFIES.
2. Neighbours that change what speaks against the goal are predicted first.
3. Those on the Pareto front are chosen. For a single goal, its criteria are the distance beyond the
goal, the similarity to the molecule, and the similarity to the training set. For several goals,
they are the desirabilities of the properties.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, Unpack, overload

from rdkit import Chem
from rdkit.DataStructs import TanimotoSimilarity

from graphxai.chemistry import SearchKeywords, SearchSettings
from graphxai.chemistry.measurements import Measurements
from graphxai.chemistry.names import ring_name, ring_systems
from graphxai.chemistry.table_changes import judged_tables
from graphxai.datasets.canonical_form import smiles_with_groups
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.datasets.training_set import training_set_of
from graphxai.explanation.api import load, predict
from graphxai.explanation.compute.models import Model, ModelPanel, is_several
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.notices import warn
from graphxai.runtime.options import accepts
from graphxai.runtime.progress import progress_bar

from .changed_molecules import counts, feasibility
from .counterfactual_results import Counterfactuals, ProfileCounterfactuals
from .neighbours import BATCH, EXPANDED, Neighbourhood, Way, kept_atoms, kept_pattern
from .objectives import SearchObjective, SingleObjective
from .transformations import Change

MeasuredValues: TypeAlias = Measurements | Mapping[str, float] | str | Path
MeasuredOfSeveral: TypeAlias = Mapping[str, Measurements | Mapping[str, float]] | str | Path
OneModel: TypeAlias = "Model | str | Path"
Best: TypeAlias = Callable[[], Any]
# what a task is called that a series of compounds is made for
_POTENCY = re.compile(
    r"\bp?(IC|EC|AC|DC|ED|GI|MIC)_?\d*\b|\bp?K[id]\b|inhibit|active|activity|potency|affinity|binding",
    re.I,
)


@overload
def counterfactuals(
    model: OneModel,
    molecule: Any,
    towards: str | float,
    n: int = 12,
    *,
    measured: MeasuredValues | None = None,
    **keywords: Unpack[SearchKeywords],
) -> Counterfactuals: ...
@overload
def counterfactuals(
    model: list[Any] | tuple[Any, ...],
    molecule: Any,
    towards: str,
    n: int = 12,
    *,
    measured: MeasuredOfSeveral | None = None,
    **keywords: Unpack[SearchKeywords],
) -> ProfileCounterfactuals: ...
@accepts(SearchSettings)
def counterfactuals(
    model: "OneModel | Sequence[OneModel]",
    molecule: Any,
    towards: str | float,
    n: int = 12,
    *,
    settings: SearchSettings,
    measured: MeasuredValues | MeasuredOfSeveral | None = None,
    progress: bool | None = None,
) -> Counterfactuals | ProfileCounterfactuals:
    """Find what to change in a molecule so that the model predicts something else.

    Neighbours that reach the goal are returned in the order of their Pareto fronts (distance beyond
    the goal, similarity to the molecule, similarity to the training set). If none reaches it, those
    nearest to it are returned. The best at each site of the molecule come first. Where a change
    makes a stereocentre, each isomer is predicted, and the worst of them counts. With `measured`,
    every other one is an exchange of measured pairs, in the order of the mean change that these
    suggest. No change makes an unstable group (`unstable_groups.csv`).

    For a list of models, `towards` joins goals for their properties, as `gx.profile` reads them:
    "pIC50 > 7.5, log D 1 to 3". The results are then neighbours that are more desirable than the
    molecule, the most desirable first; those on the first Pareto fronts of the desirabilities are
    chosen. If no goal is about potency, a warning counts results that lose a ring system.

    Args:
        model: from `load` or `wrap`, or a name, or a list of these.
        molecule: a SMILES or an RDKit molecule.
        towards: the goal: a class, or ">6.5" or "<6.5" for a value; "task: ..." in models with
            several tasks. A number is the value to cross, from the side where the molecule lies.
        n: how many counterfactuals to return.
        keep: a SMARTS pattern, or numbers of atoms, that stay as they are.
        sources: any of "measured" (exchanges of the pairs in `measured`, at the same kind of atom),
            "transformations", "fragments" (BRICS) and "selfies" (needs the package selfies).
        predictions: how many neighbours are predicted at most.
        steps: how many changes may follow each other. If fewer than n neighbours reach the goal,
            the neighbours of those nearest to it are tried too.
        sure: count only those that the model is sure of, see `PropertyGoal.sure`. They are fewer,
            and right more often.
        guided: try neighbours first that change what speaks against the goal; False tries them in
            random order.
        seed: decides the order among equals, and the changes of SELFIES.
        measured: a table with a column of structures and one named after the goal's task, or after
            another task of the model; or values by SMILES. Each result then says whether it is in
            the table, and what was measured for pairs with the same exchange. For a list of models,
            all properties that have a column are compared; or give values by SMILES for the name of
            each property.
        settings: these keywords as an object, from `keep` to `seed`.
        progress: as for `explain`.

    Raises:
        KeyboardInterrupt: the search was interrupted. The `results` of the exception are the best
            until then.
        ValueError: for a goal, pattern or table that does not fit, and for `sure` if the model does
            not record how wrong it is.
    """
    with progress_bar("predicting neighbours", settings.predictions, show=progress) as advance:
        done = 0
        try:
            how: dict[str, Any] = {"settings": settings, "measured": measured}
            for predicted, best in search(model, molecule, towards, n, **how):
                advance(predicted - done)
                done, so_far = predicted, best
        except KeyboardInterrupt:
            if not done:
                raise
            raise Interrupted(f"after {done} neighbours", so_far()) from None
    results: Counterfactuals | ProfileCounterfactuals = so_far()
    if isinstance(results, ProfileCounterfactuals):
        goals, start = results.profile.goals, results.smiles
    else:
        goals, start = (results.goal,), str(results.explanation.smiles)
    if not settings.keep and not any(_POTENCY.search(f"{g.of.task.name} {g.label}") for g in goals):
        _warn_of_lost_rings([start, *(each.smiles for each in results)])
    return results


def _warn_of_lost_rings(smiles: Sequence[str]) -> None:
    """Warn if suggestions lose a ring system of the molecule, which a series may be about.

    Args:
        smiles: that of the molecule as the model read it, then those of the suggestions.
    """
    before, *others = (
        Counter(ring_name(mol, atoms) or "ring system" for atoms in ring_systems(mol))
        for mol in map(Chem.MolFromSmiles, smiles)
    )
    lost = [+(before - after) for after in others]
    if any(lost):
        warn(
            f"{sum(map(bool, lost))} of {len(lost)} suggestions lose a ring system of the molecule"
            f" ({', '.join(sum(lost, Counter()))}), and no goal is about potency: add potency to"
            " the goal, or name with keep= what must stay.",
            stacklevel=3,
        )


@accepts(SearchSettings)
def search(
    model: "OneModel | Sequence[OneModel]",
    molecule: Any,
    towards: str | float,
    n: int = 12,
    *,
    settings: SearchSettings,
    measured: MeasuredValues | MeasuredOfSeveral | None = None,
) -> Iterator[tuple[int, Best]]:
    """Yield how many neighbours were predicted, and a function that returns the best so far.

    The first pair comes before any prediction, then one pair after each batch. Arguments and errors
    are as for `counterfactuals`, whose result is the best of the last pair. The search works only
    as far as you iterate: stop iterating to cancel it.
    """
    sources = tuple(settings.sources)
    kind = SearchObjective if is_several(model) else SingleObjective
    loaded = load(model) if isinstance(model, str | Path) else model
    objective = kind.of(loaded, molecule, towards, settings.sure, measured)
    if sources == ("measured",) and not objective.tables:
        raise ValueError("the source 'measured' needs measured=: a table, or values by SMILES.")
    training = training_set_of(ModelPanel.of(objective.models).models[0])
    rng = random.Random(settings.seed)
    neighbourhood = Neighbourhood(
        sources, settings.guided, rng, settings.seed, training, objective.tables, objective.promise
    )
    mol = objective.mol
    tables = judged_tables(ModelPanel.of(objective.models), objective.tables)
    kept, seen = kept_atoms(mol, settings.keep), {Chem.MolToSmiles(mol)}
    tried: list[Any] = []

    def best() -> Any:
        """Add accessibility, new alerts and measured values to the best, and return the result."""
        start, judged = smiles_with_groups(mol), []
        _, before = feasibility(start)
        for each in objective.chosen(tried, n):
            effort, alerts = feasibility(each.smiles)
            new = tuple(alert for alert in alerts if alert not in before)
            added = replace(each, accessibility=effort, alerts=new)
            judged.append(added.compared(start, tables))
        return objective.results(tuple(judged), tried)

    yield 0, best
    starts = objective.starts()
    quick = neighbourhood.quick(starts[0], kept, seen)[: settings.predictions]
    tried += _predicted(quick, objective)
    yield len(tried), best  # within a moment, before all are made
    for step in range(settings.steps):
        keeping = kept if step == 0 else kept_pattern(mol, kept)
        queue = neighbourhood.neighbours(starts, keeping, seen)
        limit = min(settings.predictions - len(tried), len(queue))
        for first in range(0, limit, BATCH):
            tried += _predicted(queue[first : min(first + BATCH, limit)], objective)
            yield len(tried), best
        enough = sum(counts(each, settings.sure) for each in tried) >= n
        if enough or len(tried) >= settings.predictions:
            return
        starts = objective.starts(sorted(tried, key=objective.order)[:EXPANDED])


def _predicted(part: Sequence[tuple[Change, Way]], objective: SearchObjective) -> Iterator[Any]:
    """Yield neighbours with their predictions, without those that a model cannot read.

    Of the isomers that a change makes, the one that is farthest from the goal counts.
    """
    drawn = [change.isomers or (change.smiles,) for change, _ in part]
    every = list(chain.from_iterable(drawn))
    outcomes = iter(predict(objective.models, every, progress=False) if every else ())
    bits = ecfp4_bits(objective.mol)
    for (change, way), isomers in zip(part, drawn, strict=True):
        each: list[Any] = [(smiles, objective.outcome(next(outcomes))) for smiles in isomers]
        if any(outcome is None for _, outcome in each):
            continue
        smiles, outcome = min(each, key=lambda pair: objective.worth(pair[1]))
        changed = {
            "smiles": smiles,
            "change": change.name,
            "source": change.source,
            "atoms": change.atoms,
            "similarity": TanimotoSimilarity(bits, ecfp4_bits(Chem.MolFromSmiles(smiles))),
            "way": way,
            "expected": change.expected,
        }
        yield objective.candidate(changed, outcome, each if len(each) > 1 else [])
