"""Collect everything that the page of a report shows, as JSON values."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

from graphxai.chemistry.fragment_table import FragmentTable
from graphxai.chemistry.schemes import divided_line
from graphxai.contract.prediction_metrics import held_out_score
from graphxai.datasets.fingerprints import BitTable, ecfp4_bits, packed_bits
from graphxai.evaluation.trust.signs import score_sign
from graphxai.evaluation.trust.trust import RULE
from graphxai.explainers import Explainer, get_explainer
from graphxai.explanation.compute.models import Model, versions
from graphxai.explanation.explanations import SATURATED, saturated_limit
from graphxai.runtime.reading import small_file
from graphxai.tables.card import rounded
from graphxai.tables.drawing import UNIT, drawing_of
from graphxai.tables.settings import SMOOTH
from graphxai.visualization.color import PALETTES, Scale

from .cards import Cards, sentence_about
from .full_cards import FullCards
from .molecules import ReportSource, agreement
from .properties import CardSettings, agreements

SHOWN = 12  # how many fragments are shown at either end of a ranking
RANKINGS = {"per_atom": ("per_atom_low", "per_atom_high"), "mean": ("low", "high")}
ENOUGH = 3  # how many molecules a meaningful interval needs
EXAMPLES = 6  # how many molecules are shown for a fragment
FEWEST = 5  # how many molecules a map of similarity needs
WIDTH = 1000  # the width of the map in its units
SIMILAR = 20  # molecules that a search by similarity shows
NEIGHBOURS = 10  # the map should keep as many as it can of these most similar molecules
PERPLEXITY = 15  # about this many neighbours pull at a molecule
STEPS = 300  # the steps of the descent, 250 of them with exaggerated pulls. More gain little
ANGLE = 0.8  # how coarsely distant molecules are lumped together
BASKET = ("name", "row", "smiles", "changes", "trust", "training set")  # of its own columns


def page_data(
    settings: CardSettings,
    cards: Cards,
    full: FullCards,
    chosen: Mapping[int, str],
    source: ReportSource,
    *,
    title: str,
    notes: Sequence[str],
    sar: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all data for the page's script.

    Args:
        chosen: the molecules with a full card, see `cards.in_full`.
        sar: what the page shows of matched pairs and R-groups, or None.
    """
    model, explainer, dialect = settings.model, settings.explainer, source.dialect
    columns = settings.columns
    taken = {*columns, *BASKET}
    records, measured = cards.records, source.measured.columns
    assert cards.ends is not None  # there is a molecule
    prediction = cards.ends[0].prediction
    (task,) = (task for task in model.config.tasks if task.name == prediction.task)
    score = score_sign(model.origin.metadata, prediction)
    finding, summary = score.sentence, str(model.origin.metadata.get("summary", ""))
    if score.level == "unknown":  # whose sentence has the summary
        summary = ""
    elif len(model.config.tasks) > 1:
        summary = f"{task.name}: {score.figures}"
    # what is said of measured pairs is too long for the heading, and stands in the facts below
    pairs = held_out_score(model.origin.metadata, task.name, is_class=bool(task.classes)).pairs
    others = (full.contents[k]["others"] for k in sorted(chosen) if k in full.contents)
    compared = dict.fromkeys(chain.from_iterable(others))
    methods = [explainer, *map(get_explainer, compared)]
    meanings = {e.name: e.traits.large_score_means for e in methods}
    limit = saturated_limit(np.frombuffer(cards.relevance))
    target = next(iter(cards.targets)) if len(cards.targets) == 1 else None
    fragments = None if target is None else fragment_ranking(cards.fragments, cards.occurrences)
    return {
        "title": title,
        "source": source.name,
        "model": {
            "name": model.origin.name,
            "sha256": model.origin.sha256,
            "summary": summary,
            "heading": summary.removesuffix(f"; {pairs}"),
            "score": "" if score.level == "good" else f"{finding[0].upper()}{finding[1:]}.",
            "tasks": [[each.name, list(each.classes), each.unit] for each in model.config.tasks],
        },
        "versions": versions(),
        "method": explainer.name,
        "additive": explainer.traits.adds_up,
        "unsigned": {name: meaning for name, meaning in meanings.items() if meaning},
        "titles": {e.name: e.title for e in methods},
        "words": {
            "intro": _intro(explainer, cards.outputs),
            "full": sentence_about(records, chosen),
            "notes": list(notes),
            "terms": cards.terms,
        },
        "features": list(getattr(model, "feature_names", ())),
        "rule": RULE,
        "value": min(cards.value_names) if len(cards.value_names) == 1 else "Probability",
        "unit": UNIT,
        "limit": rounded([limit])[0],
        "quantile": SATURATED,
        "ticks": list(Scale(limit, one_sided=bool(meanings[explainer.name])).ticks()),
        "palettes": {name: Scale(1.0, name).arms() for name in PALETTES},
        "unsigned_colours": Scale(1.0, one_sided=True).arms(),
        "records": {name: [record[name] for record in records] for name in records[0]},
        "targets": [*cards.targets],
        "several": settings.about,
        "columns": columns,
        # named so that they differ from those of the basket
        "inputs": [f"input {n}" if n in taken else n for n in cards.explained(0)[0].others],
        "dialect": [dialect.separator, dialect.decimal, dialect.byte_order_mark],
        "neighbours": dict(full.neighbours),
        "map": similarity_map(cards.drawn) if len(cards) <= SMOOTH else None,
        "fragments": fragments,
        "rejected": [[row.row, row.smiles, row.reason] for row in cards.rejected],
        "refused": dict(full.refused),
        "measured": agreement(task, measured.get(task.name, ""), target, records),
        "measured_others": agreements(settings.panel, measured, task.name, records)
        if settings.several
        else [],
        "sar": sar,
    }


def model_card(model: Model) -> str:
    """Return the model card beside the checkpoint, or "" if there is none."""
    folder = getattr(model.origin, "folder", None)
    with suppress(OSError, ValueError):  # the file is too large, or not in UTF-8
        if folder is not None and (Path(folder) / "README.md").is_file():
            return small_file(Path(folder) / "README.md").decode("utf-8")
    return ""


def _intro(explainer: Explainer, outputs: set[str]) -> str:
    """Say what the colours and the sum on a card mean: relevance, output and target.

    `outputs` say what the explained outputs are, as text.
    """
    relevance = "how much each atom raises or lowers the model's output"
    if not explainer.traits.adds_up:
        relevance = "the score that the method gives each atom"
    if explainer.traits.large_score_means:
        relevance += f", which has no sign ({explainer.traits.large_score_means})"
    if len(outputs) == 1:
        (output,) = outputs
    else:
        output = (
            "The output for the target, the class predicted for each molecule, is a logit: +0.7"
            " doubles the odds."
        )
    rest = ""
    if explainer.traits.adds_up:
        rest = "; what is left of the output belongs to the model's constants and its graph token"
    total = f"The sum of atoms on a card is that of its colours{rest}."
    return f"Colours show relevance: {relevance}. {output} {total}"


def fragment_ranking(
    table: FragmentTable, occurrences: Mapping[str, tuple[Sequence[int], Sequence[float]]]
) -> dict[str, Any]:
    """Return the fragments at either end of each ranking in `RANKINGS`, with their means.

    A fragment is ranked if at least `ENOUGH` molecules contain it. If there is no such fragment,
    all are ranked, without intervals. Examples are positions of molecules on the page.

    Args:
        occurrences: by SMILES, the positions of molecules with the fragment, and its relevance.
    """
    everything = table.to_frame()
    often = everything[everything.molecules >= ENOUGH]
    ranked = often if len(often) else everything
    ends: dict[Any, None] = {}
    for column in RANKINGS:
        order = ranked.sort_values([column, "smiles"], ascending=[False, True]).index.tolist()
        ends |= dict.fromkeys([*order[:SHOWN], *order[-SHOWN:]])
    rows = [
        _row(row, *occurrences.get(row["smiles"], ((), ())))
        for row in ranked.loc[list(ends)].to_dict("records")
    ]
    drawn = [(row, drawing_of(row["smiles"])) for row in rows]
    return {
        "rows": [row if draw is None else row | {"draw": draw} for row, draw in drawn],
        "shown": SHOWN,
        "enough": ENOUGH,
        "distinct": len(everything),
        "divided": divided_line(table.schemes),
        "ranked": len(ranked),
    }


def _row(row: dict[Any, Any], places: Sequence[int], relevance: Sequence[float]) -> dict[str, Any]:
    """Describe a fragment for the page, with a few molecules from the highest to the lowest.

    A mean is a list [mean], or [mean, low, high] if enough molecules contain the fragment.
    """
    kept: dict[str, Any] = {key: row[key] for key in ("name", "smiles", "molecules")}
    kept["atoms"] = rounded([row["atoms"]])[0]
    for column in RANKINGS:
        kept[column] = rounded([row[column]])
        ends = [row[end] for end in RANKINGS[column]]
        if row["molecules"] >= ENOUGH and math.isfinite(ends[0]):
            kept[column] += rounded(ends)
    value_at = dict(zip(places, relevance, strict=True))
    ranked = sorted(places, key=lambda place: (-value_at[place], place))
    if len(ranked) > EXAMPLES:
        ranked = [ranked[round(k * (len(ranked) - 1) / (EXAMPLES - 1))] for k in range(EXAMPLES)]
    return kept | {"examples": ranked, "places": list(places)}


def similarity_map(molecules: Sequence[Chem.Mol]) -> dict[str, Any] | None:
    """Place molecules on a map by similarity, or return None for too few or too many of them.

    The map is made by t-SNE (van der Maaten 2008) from the Tanimoto distances of ECFP4. It starts
    at the principal coordinates (Gower 1966) with a fixed seed and runs in one thread, so that the
    same molecules give the same map.

    Returns:
        The places `x` and `y`, as integers from 0 to at most `WIDTH`; `kept`, which says which
        share of each molecule's ten most similar molecules are among its ten nearest on the map;
        and `similar`, the places of its most similar molecules, each with the Tanimoto similarity
        in percent.
    """
    if not FEWEST <= len(molecules) <= SMOOTH:
        return None  # its time and memory grow with the square of their number
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    bits = [ecfp4_bits(mol) for mol in molecules]
    distances, similar = np.empty((len(bits), len(bits)), dtype=np.float32), []  # (n, n)
    for place, similarities in enumerate(map(BitTable(packed_bits(bits)).similarities, bits)):
        similar.append(_most_similar(place, 1 - similarities))
        distances[place] = 1 - similarities
    with threadpool_limits(1):  # the sums of several threads would differ in their last digits
        embedding = TSNE(
            metric="precomputed",
            init=_principal_coordinates(distances),
            perplexity=min(PERPLEXITY, (len(molecules) - 1) / 3),
            max_iter=STEPS,
            angle=ANGLE,
            random_state=0,
            n_jobs=1,
        )
        places = embedding.fit_transform(distances)  # (n, 2)
    places -= places.min(axis=0)
    drawn = np.rint(places * WIDTH / (places.max() or 1.0)).astype(int)
    return {
        "x": drawn[:, 0].tolist(),
        "y": drawn[:, 1].tolist(),
        "kept": round(_kept(distances, places), 2),
        "similar": similar,
    }


def _most_similar(place: int, distances: NDArray[np.float64]) -> list[list[int]]:
    """Return the place and similarity in percent of those nearest to a molecule, itself first."""
    order = np.argsort(np.where(np.arange(len(distances)) == place, -1, distances), kind="stable")
    return [[k, round(100 * (1 - distances[k]))] for k in order[:SIMILAR].tolist()]


def _principal_coordinates(distances: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first two principal coordinates (n, 2), scaled down to start t-SNE."""
    from scipy.sparse.linalg import eigsh

    centred = distances**2
    centred -= centred.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    if not centred.any():  # all molecules are the same
        return np.zeros((len(centred), 2), dtype=np.float32)
    start = np.linspace(1, 2, len(centred), dtype=np.float32)  # a random start is the default
    values, vectors = eigsh(-centred / 2, 2, v0=start, tol=1e-4)
    coordinates = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0))
    return (1e-4 * coordinates / coordinates[:, 0].std()).astype(np.float32)


def _kept(distances: NDArray[np.float32], places: NDArray[np.float32]) -> float:
    """Return the share of the nearest neighbours that stay nearest neighbours."""
    from scipy.spatial import KDTree

    count = min(NEIGHBOURS, len(places) - 1)
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    similar = np.argpartition(others, count - 1)[:, :count]
    _, near = KDTree(places).query(places, count + 1)
    pairs = zip(similar.tolist(), near.tolist(), range(len(places)), strict=True)
    return float(np.mean([len({*a} & ({*b} - {molecule})) for a, b, molecule in pairs])) / count
