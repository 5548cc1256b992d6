"""Score explanations of activity cliffs: a true one lies where the two molecules differ.

The protocol is that of ACES-GNN (Chen 2025): what separates two similar molecules of very different
potency must lie in the atoms that only one of them has.
"""

import random
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from rdkit import Chem, rdBase
from rdkit.Chem.rdMolDescriptors import CalcMolFormula

from graphxai.contract.inputs import Input, prepare_each
from graphxai.contract.target import Target
from graphxai.datasets.standardise import parent_of
from graphxai.datasets.training_set import training_set_of
from graphxai.evaluation.ground_truth import COLUMNS, explainers_of
from graphxai.evaluation.truth_metrics import roc_auc
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.explaining import explain_prepared
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.runtime.progress import progress_bar

from .matched_pairs import activity_cliffs
from .matching import CommonPart, common_part_or_none

METRICS = ("share_at_change", "sign_at_change", "roc_auc", "roc_auc_unsigned", "sign_of_model")


def evaluate_cliffs(
    model: Model,
    smiles: Sequence[str],
    values: ArrayLike,
    methods: Sequence[Method],
    *,
    target: Any = None,
    similarity: float = 0.7,
    difference: float = 1.0,
    matched: bool = True,
    limit: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Score methods by whether a cliff's difference lies at the atoms in which it differs.

    Left out are pairs that both were in the model's training set, if that is known; pairs that
    differ in stereochemistry or tautomer alone; and pairs without a common part.

    * share_at_change: summed |relevance| of the changed atoms of both, divided by itself and the
      summed |difference| of corresponding atoms. Equal scores have 1, so it judges no method alone.
    * sign_at_change: whether the changed atoms of a minus those of b are above zero; 0.5 if equal.
    * roc_auc: of the changed atoms in each molecule, high in a and low in b, the mean of both.
    * roc_auc_unsigned: the same for |relevance|.
    * sign_of_model: whether the model predicts more for a than for b, whatever the method.

    A bond between a changed and a common atom counts as changed, where bonds have relevance.

    Args:
        model: the explained model. A larger output must mean a larger value.
        smiles: n molecules.
        values: their measured values (n,), in log units.
        methods: names of methods, or explainers; the controls are added.
        target: see `explain`. A model of several classes needs one.
        similarity, difference, matched: see `activity_cliffs`.
        limit: score at most this many pairs, drawn with `seed`.
        seed: of this choice.
        progress: whether to show a progress bar. None shows it only on a terminal.

    Returns:
        Rows as those of `evaluate_truth`; `graph` is "a-b", two row numbers.
        Its `attrs["left_out"]` counts the pairs left out, by reason.

    Raises:
        ValueError: no pair is left, or the target differs from molecule to molecule.
    """
    task = Target.of(target).task_in(model.config)
    if task.kind == "multiclass" and Target.of(target).choice is None:
        raise ValueError(f"name the class of {task.name!r} that has the large values: target=.")
    cliffs = activity_cliffs(
        smiles, values, similarity=similarity, difference=difference, matched=matched
    )
    seen = training_set_of(model)
    left_out = dict.fromkeys(("both in the training set", "same but for stereo or tautomer"), 0)
    left_out |= dict.fromkeys(("cannot be read", "no common part"), 0)
    pairs = list[tuple[int, int, CommonPart]]()  # row of the larger value, other row, shared part
    order = random.Random(seed).sample(range(len(cliffs)), len(cliffs))

    @cache  # each is encoded when it is first asked for
    def item(row: int) -> Any:
        (prepared,) = prepare_each(model, [smiles[row]])
        return prepared

    for cliff in (cliffs[k] for k in order):
        if limit is not None and len(pairs) >= limit:
            break
        a, b = _molecule(item(cliff.a)), _molecule(item(cliff.b))
        if a is None or b is None:
            left_out["cannot be read"] += 1
        elif seen is not None and all(seen.part(each) == "training" for each in (a, b)):
            left_out["both in the training set"] += 1
        elif CalcMolFormula(a) == CalcMolFormula(b) and (
            _flat(Chem.MolToSmiles(a)) == _flat(Chem.MolToSmiles(b))
        ):
            left_out["same but for stereo or tautomer"] += 1
        elif (part := common_part_or_none(a, b)) is None:
            left_out["no common part"] += 1
        else:
            pairs.append((cliff.a, cliff.b, part))
    if not pairs:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
        raise ValueError(f"no activity cliff to score among {len(cliffs)} ({why or 'none found'}).")
    used = sorted({row for a, b, _ in pairs for row in (a, b)})
    prepared = [(row, item(row)) for row in used]
    rows: list[tuple[str, str, str, str, float, str]] = []
    explainers = explainers_of(model, methods)
    with progress_bar("explaining", len(used) * len(explainers), show=progress) as advance:
        for explainer in explainers:
            explained = dict[int, Explanation]()
            for row, each in explain_prepared(model, prepared, explainer, target=target):
                explained[row] = each
                advance(1)
            for first, second, part in pairs:
                scores = cliff_scores(explained[first], explained[second], part)
                rows += [
                    (f"{first}-{second}", explainer.name, "none", name, value, "")
                    for name, value in zip(METRICS, scores, strict=True)
                ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame.loc[frame["value"].isna(), "note"] = "nothing distinguishes the changed atoms"
    frame.attrs["left_out"] = left_out
    return frame


def cliff_scores(a: Explanation, b: Explanation, part: CommonPart) -> tuple[float, ...]:
    """Return the scores of `METRICS` for two explained molecules, of which a has the larger value.

    A score is NaN where it is not defined: no relevance, or a molecule without changed atoms.
    """
    kept_a, kept_b = part.same.T
    (at_a, changed_a), (at_b, changed_b) = _at_change(a, kept_a), _at_change(b, kept_b)
    common = a.relevance[kept_a] - b.relevance[kept_b]  # (M,)
    moved = np.abs(at_a).sum() + np.abs(at_b).sum()
    whole = moved + np.abs(common).sum(dtype=np.float64)
    parts = [
        (sign * e.relevance.astype(np.float64), changed)
        for sign, e, changed in ((1, a, changed_a), (-1, b, changed_b))
        if changed.any() and not changed.all()
    ]
    areas = [(roc_auc(r, changed), roc_auc(np.abs(r), changed)) for r, changed in parts]
    signed, unsigned = np.mean(areas, axis=0) if areas else (np.nan, np.nan)
    share = float(moved / whole) if whole else np.nan
    sign = float(np.sign(at_a.sum() - at_b.sum()) + 1) / 2
    return share, sign, float(signed), float(unsigned), float(np.sign(a.output - b.output) + 1) / 2


def _at_change(
    explanation: Explanation, kept: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the relevance of the changed atoms and of their bonds, and which atoms changed."""
    changed = np.ones(len(explanation), dtype=np.bool_)
    changed[kept] = False
    at_change = explanation.relevance[changed].astype(np.float64)
    bonds, molecule = explanation.bonds, explanation.molecule
    if bonds is not None and molecule is not None:
        ends = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in molecule.GetBonds()]
        of_change = np.array([changed[list(pair)].any() for pair in ends], dtype=np.bool_)
        at_change = np.concatenate([at_change, bonds[of_change]])
    return at_change, changed


def _molecule(item: Input | Exception) -> Chem.Mol | None:
    """Return the molecule that a model reads, or None for one that it cannot read."""
    if isinstance(item, Exception):
        return None
    return Chem.MolFromSmiles(item.smiles or "") if item.molecule is None else item.molecule


@lru_cache(maxsize=4096)
def _flat(smiles: str) -> str:
    """Return a SMILES of the canonical tautomer without stereochemistry."""
    mol = Chem.MolFromSmiles(smiles)
    with rdBase.BlockLogs():
        try:
            parent = parent_of(mol, "tautomers")
        except (ValueError, RuntimeError):  # what cannot be standardised stays as it is
            parent = None
    return str(Chem.MolToSmiles(mol if parent is None else parent.mol, isomericSmiles=False))
