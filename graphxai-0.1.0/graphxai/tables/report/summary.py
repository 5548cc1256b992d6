"""Rank the fragments of a set of molecules, with drawings and examples for the page."""

import math
from collections.abc import Sequence
from typing import Any

from rdkit import Chem, rdBase

from graphxai.chemistry.fragment_table import FragmentTable

from .drawing import drawing
from .records import rounded

SHOWN = 12  # how many fragments are shown at either end of a ranking
RANKINGS = {"per_atom": ("per_atom_low", "per_atom_high"), "mean": ("low", "high")}
ENOUGH = 3  # how many molecules a meaningful interval needs
EXAMPLES = 6  # how many molecules are shown for a fragment


def fragment_ranking(table: FragmentTable, molecules: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fragments at either end of each ranking in `RANKINGS`, with their means.

    A fragment is ranked if at least `ENOUGH` molecules contain it. If there is no such fragment,
    all are ranked, without intervals. Examples are positions in the page's records, `molecules`.
    """
    everything = table.to_frame()
    often = everything[everything.molecules >= ENOUGH]
    ranked = often if len(often) else everything
    occurrences = _occurrences(molecules)
    ends: dict[Any, None] = {}
    for column in RANKINGS:
        order = ranked.sort_values([column, "smiles"], ascending=[False, True]).index.tolist()
        ends |= dict.fromkeys([*order[:SHOWN], *order[-SHOWN:]])
    rows = [
        _row(row, occurrences[row["smiles"]]) for row in ranked.loc[list(ends)].to_dict("records")
    ]
    return {
        "rows": [_drawn(row) for row in rows],
        "shown": SHOWN,
        "enough": ENOUGH,
        "distinct": len(everything),
        "ranked": len(ranked),
    }


def _occurrences(molecules: Sequence[dict[str, Any]]) -> dict[str, list[tuple[float, int]]]:
    """Return each fragment's relevance in every molecule with it, and the molecule's position."""
    relevance_of: dict[str, dict[int, float]] = {}
    for place, molecule in enumerate(molecules):
        for _, smiles, _, relevance in molecule["fragments"]:
            inside = relevance_of.setdefault(smiles, {})
            inside[place] = inside.get(place, 0.0) + relevance
    return {smiles: [(v, p) for p, v in inside.items()] for smiles, inside in relevance_of.items()}


def _row(row: dict[Any, Any], occurrences: list[tuple[float, int]]) -> dict[str, Any]:
    """Describe a fragment for the page.

    A mean is a list [mean], or [mean, low, high] if enough molecules contain the fragment.
    """
    kept: dict[str, Any] = {key: row[key] for key in ("name", "smiles", "molecules")}
    kept["atoms"] = rounded([row["atoms"]])[0]
    for column in RANKINGS:
        kept[column] = rounded([row[column]])
        ends = [row[end] for end in RANKINGS[column]]
        if row["molecules"] >= ENOUGH and math.isfinite(ends[0]):
            kept[column] += rounded(ends)
    return kept | {"examples": _spread(occurrences)}


def _spread(occurrences: list[tuple[float, int]]) -> list[int]:
    """Choose a few molecules, evenly spaced from the highest to the lowest relevance."""
    places = [place for _, place in sorted(occurrences, key=lambda pair: (-pair[0], pair[1]))]
    if len(places) <= EXAMPLES:
        return places
    return [places[round(k * (len(places) - 1) / (EXAMPLES - 1))] for k in range(EXAMPLES)]


def _drawn(row: dict[str, Any]) -> dict[str, Any]:
    """Add a drawing of the fragment to a row, unless RDKit cannot read the fragment."""
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(row["smiles"])
    return row if mol is None else row | {"draw": drawing(mol)}
