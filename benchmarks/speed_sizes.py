"""Time what users wait for, by the size of the molecule, with a bundled model.

The molecules of each size come from one table. So a row says how the time grows with the size, and
not how two data sets differ.
"""

import io
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from rdkit import Chem
from speed_models import in_compiled_code, small_graphormer
from speed_steps import published_steps
from speed_timing import taking_turns

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.datasets.molecules import RejectedRow, iter_table
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import Graphormer
from graphxai.tables.app.molecules import card
from graphxai.tables.run import explain_table, predict_table

# Lowest and highest number of atoms: fragments, leads, drugs, large drugs
SIZES = {"10 to 15": (10, 15), "18 to 26": (18, 26), "30 to 40": (30, 40), "45 to 65": (45, 65)}
SINGLE = 48  # how many molecules are explained one by one
CARDS = 16


def molecules_by_size(table: Path, count: int) -> dict[str, list[str]]:
    """Return the first molecules of each size in a table, as SMILES of one part."""
    return {
        name: list(islice(_of_size(table, lowest, highest), count))
        for name, (lowest, highest) in SIZES.items()
    }


def _of_size(table: Path, lowest: int, highest: int) -> Iterator[str]:
    for row in iter_table(table):
        if isinstance(row, RejectedRow) or "." in row.smiles:
            continue
        if lowest <= row.num_nodes <= highest:
            yield row.smiles


def measure_sizes(table: Path, count: int = 256) -> dict[str, dict[str, float]]:
    """Return milliseconds per molecule by size and by what is done, with the mean size."""
    in_compiled_code(True)
    model = gx.load("bace")
    rows = {}
    for name, smiles in molecules_by_size(table, count).items():
        if smiles:
            atoms = sum(Chem.MolFromSmiles(s).GetNumAtoms() for s in smiles) / len(smiles)
            rows[name] = {"atoms": atoms} | _measure(model, smiles)
    return rows


def _measure(model: Graphormer, smiles: list[str]) -> dict[str, float]:
    few, cards = smiles[:SINGLE], smiles[:CARDS]
    small, pipeline = small_graphormer(), published_steps(smiles).get("SMILES to explanation")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "t.csv"
        table.write_text("\n".join(["smiles", *smiles, ""]), encoding="utf-8")
        many: dict[str, Callable[[], object]] = {
            "a row of `graphxai explain`": partial(_explained, model, table),
            "a row of `graphxai predict`": partial(_predicted, model, table),
            "`gx.predict` of a list": partial(gx.predict, model, smiles),
            "`gx.explain` of a list": partial(gx.explain, model, smiles),
            "the same, 2 x 64": partial(gx.explain, small, smiles),
        }
        if pipeline is not None:
            many["published pipeline, 2 x 64"] = pipeline
        times = taking_turns(many, len(smiles))
    times |= taking_turns({"`gx.explain` alone": lambda: _alone(model, few)}, len(few))
    target = Target(None, model.config.tasks[0].name)
    runs = {"a card of the app": lambda: [card(model, s, "lrp", target) for s in cards]}
    return times | taking_turns(runs, len(cards))


def _explained(model: Graphormer, table: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        explain_table(model, table, Path(folder) / "out", get_explainer("lrp"))


def _predicted(model: Graphormer, table: Path) -> None:
    predict_table(model, table, io.StringIO())


def _alone(model: Graphormer, smiles: list[str]) -> None:
    for text in smiles:
        gx.explain(model, text)


def report_sizes(rows: dict[str, dict[str, float]]) -> str:
    """Return the section about sizes of molecules."""
    sizes = list(rows)
    atoms = " | ".join(f"{row['atoms']:.1f}" for row in rows.values())
    lines = [
        "## By the size of the molecule",
        "",
        "The bundled BACE model, one thread: processor milliseconds per molecule, the least of"
        " seven turns. The molecules of each size are the first of the table that have one part.",
        "",
        f"| atoms | {' | '.join(sizes)} |",
        f"|---|{'---|' * len(sizes)}",
        f"| mean | {atoms} |",
    ]
    for name in list(rows[sizes[0]])[1:]:
        cells = " | ".join(f"{rows[size][name]:.2f}" for size in sizes)
        lines.append(f"| {name} | {cells} |")
    ours, theirs = "the same, 2 x 64", "published pipeline, 2 x 64"
    if theirs in rows[sizes[0]]:
        ratios = " | ".join(f"{rows[size][theirs] / rows[size][ours]:.1f}" for size in sizes)
        lines.append(f"| published / ours, 2 x 64 | {ratios} |")
    return "\n".join([*lines, ""])
