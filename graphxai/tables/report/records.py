"""Describe one molecule of a report as compact JSON values, rounded to what a page shows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from graphxai.chemistry.fragments import Fragments
from graphxai.datasets.labels import with_unit
from graphxai.evaluation.trust.signs import Sign
from graphxai.evaluation.trust.trust import Trust
from graphxai.explanation.explanation import Explanation
from graphxai.visualization.text import minus_signs

from .drawing import drawing

if TYPE_CHECKING:
    from rdkit.Chem import Mol

DIGITS = 4  # the significant digits of a relevance


def record(
    name: str,
    row: int,
    explanation: Explanation,
    parts: Fragments,
    trust: Trust,
    drawn: "Mol | None" = None,
) -> dict[str, Any]:
    """Return the page's data for one molecule, to which `full_card` may add.

    Args:
        name, row: the name and row number in the table.
        explanation: the explanation.
        parts: the explanation's fragments.
        trust: how far the explanation can be trusted.
        drawn: the molecule with the coordinates at which it is drawn. Without it, it is laid out.

    Raises:
        ValueError: the explanation has no molecule.
    """
    mol = explanation.molecule
    if mol is None:
        raise ValueError("a report shows molecules, but this explanation has none.")
    value, value_name = _value(explanation)
    # The explained task comes first, so that its value is beside the measured value.
    predictions = sorted(
        explanation.predictions, key=lambda p: p.task != explanation.prediction.task
    )
    content: dict[str, Any] = {
        "name": name,
        "row": row,
        "smiles": explanation.smiles or "",
        "predictions": [[p.task, minus_signs(str(p))] for p in predictions],
        "ranges": [minus_signs(p.range) for p in predictions],
        "value": value,
        "value_name": value_name,
        "label": explanation.prediction.label,
        "target": with_unit(explanation.subject, explanation.unit),
        "legend": list(explanation.legend),
        "ledger": {k: rounded([v], 6)[0] for k, v in explanation.ledger.to_dict().items()},
        "r": rounded(explanation.relevance),
        "equivalent": explanation.equivalent,
        "others": {},
        "fragments": [
            [part.name, part.smiles, list(part.atoms), rounded([part.relevance])[0]]
            for part in parts
        ],
        "trust": _trust(trust),
        "draw": drawing(mol if drawn is None else drawn, keep=drawn is not None),
    }
    content |= bonds_record(explanation)
    if explanation.note:
        content["note"] = explanation.note
    if explanation.as_given is not None:
        content["numbers"] = list(explanation.as_given.atoms)
    if explanation.nearness is not None:
        content["near"] = explanation.nearness.sentence
    if explanation.features is not None:
        flat = rounded(explanation.features.ravel(), 3)
        width = explanation.features.shape[1]
        content["features"] = [flat[k : k + width] for k in range(0, len(flat), width)]
    return content


def full_card(others: Mapping[str, Explanation], trust: Trust, why: str) -> dict[str, Any]:
    """Return what a full card adds: other methods, all signs of trust, and why it is full."""
    return {
        "others": {
            method: {"r": rounded(other.relevance), "output": rounded([other.ledger.output])[0]}
            for method, other in others.items()
        },
        "trust": _trust(trust),
        "nearest": trust.nearest,
        "full": why,
    }


def bonds_record(explanation: Explanation) -> dict[str, list[float]]:
    """Return the relevance of the bonds under the key `bonds`, or nothing if they have none."""
    bonds = explanation.bonds
    return {} if bonds is None else {"bonds": rounded(bonds)}


def _trust(trust: Trust) -> dict[str, Any]:
    return {
        "level": trust.level,
        "sentence": trust.sentence,
        "signs": [_sign(sign) for sign in trust.of_molecule],
    }


def _sign(sign: Sign) -> list[Any]:
    """Return a sign's name, level and finding, and the structures to be drawn beside it, if any."""
    if sign.structures:
        return [sign.name, sign.level, sign.text, list(sign.structures)]
    return [sign.name, sign.level, sign.sentence]


def rounded(values: ArrayLike, digits: int = DIGITS) -> list[float]:
    """Round floats to `digits` significant digits, and return whole numbers as int."""
    kept = [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=float).tolist()]
    return [int(value) if value == int(value) else value for value in kept]


def _value(explanation: Explanation) -> tuple[float, str]:
    """Return the value by which molecules are sorted and filtered, and its name."""
    prediction = explanation.prediction
    if prediction.value is not None:
        return rounded([prediction.value])[0], prediction.heading
    choice, subject = explanation.wanted.choice, explanation.subject
    if not isinstance(choice, str):  # the difference of two classes
        choice, subject = str(prediction.label), f"{prediction.task}: {prediction.label}"
    return rounded([prediction.probabilities[choice]])[0], f"Probability of {subject}"


def colour_limit(records: Sequence[Mapping[str, Any]], quantile: float) -> float:
    """Return the relevance of the full colour, a quantile of |relevance| over all atoms.

    If the quantile is 0, it is the largest |relevance|. If this is 0 too, it is 1.
    """
    values = np.abs(np.concatenate([np.asarray(item["r"], dtype=float) for item in records]))
    limit = float(np.quantile(values, quantile)) or float(values.max(initial=0.0))
    return limit or 1.0
