"""Predict the solubility of drugs that a process on AqSolDB lacks, and all that resembles them.

    python benchmarks/drug_solubility.py --data FOLDER --out runs/drugs [--model network]

A compound of AqSolDB is a drug by its name: a word that B3DB lists, too, and that ends or begins as
the WHO's International Nonproprietary Names do, or a name in `tests/data/drug_pka.csv`. All
compounds whose similarity to a drug is above 0.7 are left out with them. A process, or a network as
the bundled `solubility` is, learns from the others as `graphxai train` does, and predicts the
drugs. FOLDER contains `adme/aqsoldb.csv` and `adme/b3db.csv`.
"""

import argparse
import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest
from sklearn.metrics import r2_score

import graphxai as gx
from graphxai.learning.cleaning import clean_table
from graphxai.learning.conformal import nearest_similarities
from graphxai.learning.run import train_table

DRUGS = Path(__file__).resolve().parents[1] / "tests" / "data" / "drug_pka.csv"
SIMILAR = 0.7
# Stems of the WHO's book of International Nonproprietary Names, without those of pesticides.
STEMS = re.compile(
    "(?:cef|ceph|estr|gli|pred|sulfa).*|.*(?:astine|azepam|azine|azolam|azosin|barbital|bendazole"
    "|caine|cillin|conazole|cycline|dipine|fenac|fentanil|floxacin|icam|mustine|mycin|nidazole|olol"
    "|olone|oxacin|oxetine|pamil|peridol|pramine|prazole|pril|profen|quine|ridone|sartan|semide"
    "|setron|sone|statin|stigmine|tadine|terol|thiazide|tiazem|tidine|trexate|triptan|triptyline"
    "|vir|vudine|zolamide)"
)


def words_of(name: str) -> list[str]:
    """Return the spellings of a name that are single words, in small letters."""
    spellings = (each.strip().casefold() for each in name.split(";"))
    return [each for each in spellings if re.fullmatch("[a-z]{5,}", each)]


def drug_rows(names: list[str], listed: set[str]) -> list[int]:
    """Return the positions of the names that are those of drugs."""
    certain = set(pd.read_csv(DRUGS, skiprows=1).name.str.casefold())
    return [
        k
        for k, name in enumerate(names)
        if any(
            word in certain or (word in listed and STEMS.fullmatch(word)) for word in words_of(name)
        )
    ]


def line(rows: pd.DataFrame, words: str) -> str:
    """Return how well values are predicted, with the error of the bootstrap over compounds."""
    draws = np.random.default_rng(0).integers(0, len(rows), (2000, len(rows)))
    y, predicted, held = (rows[name].to_numpy() for name in ("measured", "predicted", "held"))
    r2 = np.quantile([r2_score(y[draw], predicted[draw]) for draw in draws], (0.025, 0.975))
    bias = predicted - y
    ends = binomtest(int(held.sum()), len(rows)).proportion_ci()
    return (
        f"{words}, {len(rows)} drugs: 90 % intervals held {held.sum()}, {held.mean():.1%}"
        f" ({ends.low:.1%} to {ends.high:.1%}); R2 {r2_score(y, predicted):.3f} ({r2[0]:.3f} to"
        f" {r2[1]:.3f}); bias {bias.mean():+.2f} +- {1.96 * bias.std() / len(rows) ** 0.5:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=("process", "network"), default="process")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    source = args.data / "adme" / "aqsoldb.csv"
    listed = {
        word
        for name in pd.read_csv(args.data / "adme" / "b3db.csv").name.fillna("")
        for word in words_of(name)
    }
    raw = pd.read_csv(source)
    rows = drug_rows(list(raw.name.fillna("")), listed)
    table = clean_table(source, "smiles", ["logS"])
    smiles = np.array([graph.smiles for graph in table.graphs])
    named = args.out / "drugs.csv"  # cleaned as the table is
    raw.iloc[rows].to_csv(named, index=False)
    drugs = {graph.smiles for graph in clean_table(named, "smiles", ["logS"]).graphs}
    is_drug = np.array([each in drugs for each in smiles])
    near = nearest_similarities(list(smiles), list(smiles[is_drug])) > SIMILAR
    values = pd.DataFrame({"smiles": smiles, "logS": table.y[:, 0]})
    values["split"] = np.where(is_drug, "test", "train")
    values = values[is_drug | ~near]
    values.to_csv(args.out / "split.csv", index=False)
    print(f"{is_drug.sum()} drugs, {int((near & ~is_drug).sum())} compounds like them", flush=True)

    begun = time.process_time()
    table = clean_table(args.out / "split.csv", "smiles", ["logS"], split_column="split")
    folder = train_table(
        table, args.out / args.model, model=args.model, split_column="split", resume=True, log=print
    )
    tested = values[values.split == "test"]
    answers = [answer["logS"] for answer in gx.predict(gx.load(folder), list(tested.smiles))]
    after = pd.DataFrame(
        {
            "measured": tested.logS.to_numpy(),
            "predicted": [each.value for each in answers],
            "held": [
                each.interval[0] <= y <= each.interval[1]
                for each, y in zip(answers, tested.logS, strict=True)
            ],
        }
    )
    print(line(after, f"{args.model} on {int((values.split == 'train').sum()):,} others"))
    print(f"{time.process_time() - begun:.0f} s")


if __name__ == "__main__":
    main()
