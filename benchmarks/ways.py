"""Hand over 500 compounds in every way, and compare the answers of all bundled models.

The ways are those of `tests/helpers/ways.py`: `python benchmarks/ways.py` writes `results/ways.md`.
With `--compounds 6` the page of so few is printed instead.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path

import numpy as np
from rdkit import Chem, rdBase

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from ways import WAYS, coming_perception, in_own_files  # noqa: E402

import graphxai as gx  # noqa: E402
from graphxai.tables.batches import ExplainBatch, PredictBatch  # noqa: E402
from one_compound import MODELS, outputs, test_part  # noqa: E402

COMPOUNDS = 500
IN_COMPANY = 60
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


def differing_rows(name: str, count: int) -> Iterator[int]:
    """Yield how many rows of predictions, and of explanations, depend on others beside them."""
    model, texts = gx.load(name), test_part(name)
    texts = texts[:: max(1, len(texts) // count)][:count]
    numbers = range(len(texts))
    for batch in (PredictBatch(model), ExplainBatch(model)):
        alone = [batch([text], [k])[0] for k, text in enumerate(texts)]
        differing = set()
        for size in (2, 7, len(texts)):
            for first in range(0, len(texts), size):
                rows = batch(texts[first : first + size], numbers[first : first + size])
                differing |= {row["row"] for row in rows if row != alone[row["row"]]}
        yield len(differing)


def table(count: int = COMPOUNDS, in_company: int = IN_COMPANY) -> str:
    """Return the page: for each way, the largest change of any model and how many compounds."""
    mols = compounds(count)
    texts = [Chem.MolToSmiles(mol) for mol in mols]
    models = [gx.load(name) for name in MODELS]
    expected = [outputs(model, texts) for model in models]
    rows, moved, coming = [], [], "SMILES under the coming perception"
    most = 0.0
    by_way: dict[str, dict[int, str | Chem.Mol]] = {w: handed_over(w, mols) for w in WAYS}
    by_way |= {f"own {suffix} file": given for suffix, given in in_own_files(texts)}
    for way, given in (by_way | {coming: dict(enumerate(texts))}).items():
        if not given:  # of a few compounds
            continue
        largest, adrift = 0.0, np.zeros(len(given), bool)
        for model, of_model in zip(models, expected, strict=True):
            with coming_perception() if way == coming else nullcontext():
                answers = outputs(model, list(given.values()))
            change = np.nan_to_num(np.abs(answers - of_model[list(given)]), nan=np.inf).max(1)
            largest, adrift = max(largest, float(change.max())), adrift | (change > TOLERANCE)
        row = f"| {way} | {len(given)} | {largest:.6f} | {int(adrift.sum())} |"
        adrift_texts = [texts[k] for k, bad in zip(given, adrift, strict=True) if bad]
        print(row, adrift_texts, file=sys.stderr, flush=True)
        if adrift.any():
            moved.append(row)
        else:
            most = max(most, largest)
            rows.append(way if len(given) == len(mols) else f"{way} ({len(given)})")
    alone = [
        f"| {name} | {' | '.join(map(str, differing_rows(name, in_company)))} |" for name in MODELS
    ]
    return "\n".join(
        [
            "# Ways of handing over a compound",
            "",
            f"{len(mols)} test compounds, and all bundled models that read molecules:"
            f" {', '.join(MODELS)}. Probabilities are those of the last class. An infinite change"
            " is a refusal. In space, three metal complexes have a geometry that their SMILES"
            " lack. From the CXSMILES with coordinates, RDKit reads one compound without the"
            " configuration of its double bond. Made by `python benchmarks/ways.py`.",
            "",
            f"No answer changes by more than {most:.6f} with {', '.join(rows)}; in brackets the"
            " number of compounds where not all can be written so.",
            "",
            f"| way | compounds | largest change | changed by more than {TOLERANCE} |",
            "|---|---|---|---|",
            *moved,
            "",
            "## Rows in any company",
            "",
            f"Rows of {in_company} test compounds of each model, in twos, in sevens and all"
            " together, of which a byte differs from the row of the compound alone.",
            "",
            "| model | rows of `predict` | rows of `explain` |",
            "|---|---|---|",
            *alone,
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compounds", type=int, help="print the page of so few")
    few = parser.parse_args().compounds
    warnings.simplefilter("ignore")
    with rdBase.BlockLogs():
        if few:
            print(table(few, few))
        else:
            TARGET.write_text(table(), encoding="utf-8")
