"""Return what the page shows of molecules as JSON: explanations, changes, contrasts."""

import math
import warnings
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from rdkit import Chem

from graphxai.chemistry.contrast import contrast
from graphxai.chemistry.matching import common_part_or_none
from graphxai.chemistry.search.neighbours import exchanged, fragments_for
from graphxai.chemistry.search.transformations import Change, transformed
from graphxai.contract.inputs import prepare_for
from graphxai.contract.target import Target
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.molecules import molecule_graph
from graphxai.datasets.training_set import TrainingSet, training_set_of
from graphxai.evaluation.trust.trust import Trust, explained_with_trust
from graphxai.explainers import get_explainer
from graphxai.explanation.api import predict
from graphxai.explanation.compute.models import Model, standardisation_of
from graphxai.explanation.explanation import Explanation, about_output, about_terms
from graphxai.runtime.device import on_cpu_by_default, one_thread
from graphxai.tables.card import (
    explained_rows,
    fragments_shown,
    molecule_card,
    rounded,
)
from graphxai.tables.drawing import UNIT
from graphxai.visualization.grid import aligned
from graphxai.visualization.layout import averaged, laid_out

from .overview import brief, label_of
from .page import read

MOST_CHANGES = 60  # how many changes are shown at a place
BOND = 1.5  # the length of a bond in 2D coordinates


def parent(model: Model, smiles: str) -> str:
    """The SMILES of the molecule that a model reads, whose atoms are in the order of its card.

    Errors are as for `read`. ValueError is also raised for a mixture.
    """
    read(smiles)
    return _parent(smiles, standardisation_of(model))


@lru_cache(maxsize=512)
def _parent(smiles: str, standardise: Standardisation) -> str:
    return str(molecule_graph(smiles, standardise=standardise).smiles)


def card(
    model: Model, smiles: str, method: str, target: Target, like: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Explain one molecule as in a report, with picture, predictions, ledger and trust.

    The `origin` in the result says which atom of the earlier molecule each atom was, or -1 for a
    new atom.

    Args:
        like: the molecule that was shown before, so that this one is drawn in the same way. It has
            `smiles`, coordinates `x` and `y`, and `origin`, as in an earlier card. Coordinates and
            origin are worked out if they are left out.
    """
    read(smiles)
    explanation, trusted = _explained(model, smiles, method, target)
    mol = explanation.atoms()
    drawn, origin = _drawn_like(model, mol, like)
    shown = averaged(explanation.relevance, explanation.equivalent)
    parts = fragments_shown(explanation, model)
    content = molecule_card("", 0, explanation, parts, trusted, drawn)
    score = trusted.model
    return content | {
        "origin": origin,
        "shown": rounded(shown),
        "limit": rounded([float(np.abs(shown).max(initial=0.0)) or 1.0])[0],
        "now": brief(explanation.prediction, label_of(explanation.wanted)),
        "method": explanation.title,
        "additive": explanation.additive,
        "unsigned": explanation.unsigned,
        "caption": explanation.caption,
        "words": [about_output(explanation), about_terms(explanation)],
        "score": score.sentence if score is not None and score.level != "good" else "",
    }


@on_cpu_by_default
def _explained(model: Model, smiles: str, method: str, target: Target) -> tuple[Explanation, Trust]:
    explainer, training = get_explainer(method, model=model), training_set_of(model)
    item = prepare_for(model, smiles)
    return explained_with_trust(model, item, explainer, target=target, training=training)


@on_cpu_by_default
def trust_of_rows(
    model: Model, smiles: Sequence[str], method: str, target: Target
) -> list[list[str] | None]:
    """Return how far to trust the explanation of each row of a table: a level and a sentence.

    As in a report, these are the signs that need no further explanation. A row is None if the
    molecule cannot be explained.
    """
    explainer, training = get_explainer(method, model=model), training_set_of(model)
    with one_thread():
        given = dict(enumerate(smiles))
        rows = explained_rows(model, given, explainer, target=target, training=training)
    trusted = {k: row[1] for k, row in rows.items() if not isinstance(row, Exception)}
    return [
        [trusted[k].level, trusted[k].sentence] if k in trusted else None
        for k in range(len(smiles))
    ]


def changes_at(
    model: Model, smiles: str, target: Target, place: Sequence[int], locked: Collection[int]
) -> dict[str, Any]:
    """Find possible changes at an atom, or at both atoms of a bond, each with its prediction.

    The changes are transformations that alter all atoms of the place. At a bond they are also
    exchanged BRICS fragments. The largest changes of the prediction come first. Where a change
    makes a stereocentre or a double bond, each isomer is predicted, and the one whose prediction
    changes least stands for the change.

    Args:
        place: the number of an atom, or of both atoms of a bond.
    """
    written = parent(model, smiles)
    mol = read(written)
    if not {*place, *locked} <= set(range(mol.GetNumAtoms())) or not 1 <= len(place) <= 2:
        raise ValueError("place must be the number of an atom, or of both atoms of a bond.")
    kept = frozenset(locked)
    changes = list(_transformed(written, kept))
    if len(place) == 2:
        seen = {change.smiles for change in changes}
        more = _exchanged(written, kept, training_set_of(model))
        changes += [change for change in more if change.smiles not in seen]
    at_place = [change for change in changes if change.atoms >= set(place)]
    drawn = [change.isomers or (change.smiles,) for change in at_place]
    (now, *after) = predicted(model, [smiles, *chain.from_iterable(drawn)], target)
    outcomes = iter(after)
    options = []
    for change, isomers in zip(at_place, drawn, strict=True):
        each = [(written, then) for written in isomers if (then := next(outcomes)) is not None]
        if now is not None and len(each) == len(isomers):
            options.append(_option(change, each, now["value"]))
    options.sort(key=lambda option: (-abs(option["delta"]), option["name"], option["smiles"]))
    return {"options": options[:MOST_CHANGES], "more": max(0, len(options) - MOST_CHANGES)}


def _option(
    change: Change, isomers: Sequence[tuple[str, dict[str, Any]]], before: float
) -> dict[str, Any]:
    smiles, then = min(isomers, key=lambda pair: abs(pair[1]["value"] - before))
    several = len(isomers) > 1
    return {
        "smiles": smiles,
        "name": change.name,
        "source": change.source,
        "atoms": sorted(change.atoms),
        "origin": [] if several else list(change.origin),
        "isomers": "; ".join(f"{s} {p['text']}" for s, p in isomers) if several else "",
        "delta": rounded([then["value"] - before])[0],
        **then,
    }


def predicted(model: Model, smiles: Sequence[str], target: Target) -> list[dict[str, Any] | None]:
    """Predict each molecule in brief, or return None for one that cannot be read."""
    if not smiles:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings only say which were left out
        predictions = predict(model, list(smiles), progress=False)
    task = target.task_in(model.config).name
    label = label_of(target) or next(
        (of_molecule[task].label for of_molecule in predictions if of_molecule is not None), None
    )
    return [
        None if of_molecule is None else brief(of_molecule[task], label)
        for of_molecule in predictions
    ]


def contrasted(model: Model, a: str, b: str, method: str, target: Target) -> dict[str, Any]:
    """Contrast molecule a with molecule b, as a picture in a data URL and an account as text."""
    read(a), read(b)
    result = contrast(model, a, b, method, target=target, timeout=1)
    code = b64encode(result.svg().encode()).decode()
    account = result.account.to_dict() if result.account else {}
    return {
        "picture": f"data:image/svg+xml;base64,{code}",
        "headline": result.headline,
        "caption": result.caption,
        "account": dict(zip(account, rounded(list(account.values())), strict=True)),
    }


@lru_cache(maxsize=32)
def _transformed(smiles: str, keep: frozenset[int]) -> tuple[Change, ...]:
    return tuple(transformed(read(smiles), keep))


@lru_cache(maxsize=32)
def _exchanged(
    smiles: str, keep: frozenset[int], training: TrainingSet | None
) -> tuple[Change, ...]:
    mol = read(smiles)
    return tuple(exchanged(mol, fragments_for(mol, training), keep))


def _drawn_like(
    model: Model, mol: Chem.Mol, like: Mapping[str, Any] | None
) -> tuple[Chem.Mol, list[int]]:
    """Lay the molecule out like the earlier molecule, if possible (see `card`)."""
    new = [-1] * mol.GetNumAtoms()
    if like is None:
        return laid_out(mol), new
    before = read(parent(model, str(like.get("smiles", ""))))
    reference = _placed(before, like.get("x"), like.get("y"))
    origin = like.get("origin")
    if not (isinstance(origin, list) and _is_origin(origin, mol, before)):
        if (part := common_part_or_none(before, mol)) is None:
            return laid_out(mol), new
        origin = new
        for was, atom in part.mapping.tolist():
            origin[atom] = was
    pairs = np.array([(was, atom) for atom, was in enumerate(origin) if was >= 0])
    return (aligned(mol, reference, pairs) if len(pairs) > 1 else laid_out(mol)), origin


def _is_origin(origin: list[Any], mol: Chem.Mol, before: Chem.Mol) -> bool:
    old = [was for was in origin if was != -1]
    atoms = range(before.GetNumAtoms())
    whole = all(type(was) is int and was in atoms for was in old)
    return whole and len(set(old)) == len(old) and len(origin) == mol.GetNumAtoms()


def _placed(mol: Chem.Mol, x: Any, y: Any) -> Chem.Mol:
    """Place the molecule at the given coordinates, or lay it out again if they do not fit."""
    copy = laid_out(mol)
    for values in (x, y):
        if not isinstance(values, list) or len(values) != mol.GetNumAtoms():
            return copy
        if not all(type(v) in (int, float) and math.isfinite(v) and abs(v) < 1e6 for v in values):
            return copy
    conformer = copy.GetConformer()
    for atom, (right, down) in enumerate(zip(x, y, strict=True)):
        conformer.SetAtomPosition(atom, (right / UNIT * BOND, -down / UNIT * BOND, 0.0))
    return copy
