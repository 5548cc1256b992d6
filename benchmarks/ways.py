"""Hand over 500 compounds in every way, and compare the answers of all bundled models.

The ways are those of `tests/helpers/ways.py`: `python benchmarks/ways.py` writes `results/ways.md`.
With `--compounds 6` the page of so few is printed instead. With `--kept FILE` each way's figures
are kept there, so that an interrupted run continues.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem, rdBase

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from ways import WAYS, coming_perception, in_own_files  # noqa: E402

import graphxai as gx  # noqa: E402
from graphxai.datasets.molecules import read_once  # noqa: E402
from graphxai.explainers.registry import methods_for  # noqa: E402
from graphxai.models.graphormer import PRETRAINED  # noqa: E402
from graphxai.tables.batches import ExplainBatch, PredictBatch  # noqa: E402
from one_compound import outputs, test_part  # noqa: E402

MODELS = tuple(  # that read molecules and have test compounds
    sorted(folder.name for folder in PRETRAINED.iterdir() if (folder / "held_out.csv").exists())
)

COMPOUNDS = 500
IN_COMPANY = 60
OF_EACH_METHOD = 20
COMING = "SMILES under the coming perception"
TOLERANCE = 1e-4
TARGET = ROOT / "benchmarks" / "results" / "ways.md"
SMALLEST_ION = 8  # heavy atoms; a smaller compound is itself a counter-ion or a solvent


def compounds(count: int) -> list[Chem.Mol]:
    """Return test compounds of all models in turn, each without a counter-ion."""
    in_turn = zip_longest(*map(test_part, MODELS))
    texts = dict.fromkeys(text for row in in_turn for text in row if text and "." not in text)
    mols = map(Chem.MolFromSmiles, texts)
    return [mol for mol in mols if mol.GetNumAtoms() > SMALLEST_ION][:count]


def handed_over(way: str, mols: list[Chem.Mol]) -> dict[int, str | Chem.Mol]:
    """Return what is handed over, by the position of the compound, where there is such a way."""
    given = {}
    for k, mol in enumerate(mols):
        try:
            made = WAYS[way](Chem.Mol(mol))
        except (ValueError, RuntimeError):  # RDKit has no such form of this compound
            continue
        if made is not None:
            given[k] = made
    return given


def differing_rows(batch: PredictBatch | ExplainBatch, texts: Sequence[str]) -> int:
    """Return how many rows depend on others beside them."""
    numbers = range(len(texts))
    alone = [batch([text], [k])[0] for k, text in enumerate(texts)]
    differing = set()
    for size in (2, 7, len(texts)):
        for first in range(0, len(texts), size):
            rows = batch(texts[first : first + size], numbers[first : first + size])
            differing |= {row["row"] for row in rows if row != alone[row["row"]]}
    return len(differing)


def in_company(name: str, count: int) -> tuple[int, int]:
    """Return how many rows of predictions, and of explanations, depend on others beside them."""
    model, texts = gx.load(name), spread_out(name, count)
    return differing_rows(PredictBatch(model), texts), differing_rows(ExplainBatch(model), texts)


def spread_out(name: str, count: int) -> list[str]:
    """Return so many test compounds of a model."""
    texts = test_part(name)
    return texts[:: max(1, len(texts) // count)][:count]


class Kept:
    """Figures that are computed once, and kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        known = path is not None and path.exists()
        self.figures: dict[str, Any] = json.loads(path.read_text()) if path and known else {}

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the figures of this name, computed now if there are none."""
        if name not in self.figures:
            self.figures[name] = compute()
            print(name, self.figures[name], file=sys.stderr, flush=True)
            if self.path is not None:
                self.path.write_text(json.dumps(self.figures))
        return self.figures[name]


def changes(
    way: str, given: dict[int, str | Chem.Mol], models: list[Any], expected: list[Any]
) -> dict[str, Any]:
    """Return the largest change of any model, and which compounds change by more than allowed."""
    largest, adrift = 0.0, np.zeros(len(given), bool)
    with coming_perception() if way == COMING else nullcontext(), read_once():
        for model, of_model in zip(models, expected, strict=True):
            answers = outputs(model, list(given.values()))
            change = np.nan_to_num(np.abs(answers - of_model[list(given)]), nan=np.inf).max(1)
            largest, adrift = max(largest, float(change.max())), adrift | (change > TOLERANCE)
    places = [k for k, bad in zip(given, adrift, strict=True) if bad]
    return {"compounds": len(given), "largest": largest, "adrift": places}


def table(count: int = COMPOUNDS, rows_each: int = IN_COMPANY, kept: Path | None = None) -> str:
    """Return the page: for each way, the largest change of any model and how many compounds."""
    mols, figures = compounds(count), Kept(kept)
    texts = [Chem.MolToSmiles(mol) for mol in mols]
    models = [gx.load(name) for name in MODELS]
    with read_once():
        expected = [outputs(model, texts) for model in models]
    by_way: dict[str, Callable[[], dict[int, str | Chem.Mol]]] = {
        way: partial(handed_over, way, mols) for way in WAYS
    }
    by_way |= {COMING: lambda: dict(enumerate(texts))}
    for suffix, given in in_own_files(texts):
        by_way[f"own {suffix} file"] = partial(dict, given)
    unchanged, moved, most = [], [], 0.0
    for way, hand_over in by_way.items():

        def compared(way: str = way, hand_over: Any = hand_over) -> dict[str, Any] | None:
            given = hand_over()  # of a few compounds there may be none
            return changes(way, given, models, expected) if given else None

        if (made := figures.once(way, compared)) is None:
            continue
        handed, adrift = made["compounds"], made["adrift"]
        if adrift:
            print(way, [texts[k] for k in adrift], file=sys.stderr, flush=True)
            moved.append(f"| {way} | {handed} | {made['largest']:.6f} | {len(adrift)} |")
        else:
            most = max(most, made["largest"])
            unchanged.append(way if handed == len(mols) else f"{way} ({handed})")
    beside = {
        name: figures.once(f"rows of {name}", partial(in_company, name, rows_each))
        for name in MODELS
    }
    every = spread_out("bace", min(rows_each, OF_EACH_METHOD))
    methods = methods_for(gx.load("bace"))[: None if len(every) == OF_EACH_METHOD else 1]
    of_methods = {
        method: figures.once(
            f"rows by {method}", lambda m=method: differing_rows(ExplainBatch("bace", m), every)
        )
        for method in methods
    }
    depending = [f"{number} by {name}" for name, number in of_methods.items() if number]
    return "\n".join(
        [
            "# Ways of handing over a compound",
            "",
            f"{len(mols)} test compounds, and all bundled models that read molecules:"
            f" {', '.join(MODELS)}. Probabilities are those of the last class. An infinite change"
            " is a refusal. In mol blocks, RDKit writes a double bond without configuration beside"
            " a defined one as it happens to be drawn, and reads the diene of a macrolide in"
            " another configuration than it has. Made by `python benchmarks/ways.py`.",
            "",
            f"No answer changes by more than {most:.6f} with {', '.join(unchanged)}; in brackets"
            " the number of compounds where not all can be written so.",
            "",
            f"| way | compounds | largest change | changed by more than {TOLERANCE} |",
            "|---|---|---|---|",
            *moved,
            "",
            "## Rows in any company",
            "",
            f"Rows of {rows_each} test compounds of each model, in twos, in sevens and all"
            " together, of which a byte differs from the row of the compound alone.",
            "",
            "| model | rows of `predict` | rows of `explain` |",
            "|---|---|---|",
            *(f"| {name} | {' | '.join(map(str, rows))} |" for name, rows in beside.items()),
            "",
            f"Of {len(every)} rows of `bace` by each of {len(methods)} methods,"
            f" {', '.join(depending) or 'none differs'}.",
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compounds", type=int, help="print the page of so few")
    parser.add_argument("--kept", type=Path, help="a file that keeps figures between runs")
    options = parser.parse_args()
    few = options.compounds
    warnings.simplefilter("ignore")
    with rdBase.BlockLogs():
        if few:
            print(table(few, min(few, IN_COMPANY), options.kept))
        else:
            TARGET.write_text(table(kept=options.kept), encoding="utf-8")
