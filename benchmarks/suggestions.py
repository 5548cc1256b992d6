"""Whether suggestions contain compounds that chemists made, after the better half is hidden.

A Gaussian process and the exchanges of matched pairs see the worse half of each table alone. From
its best compounds, the search proposes one change. Counted are proposals that are hidden compounds.

    python benchmarks/suggestions.py tables/CHEMBL*.csv --leads 10
"""

import argparse
import json
import random
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.free_wilson import fitted_series
from graphxai.chemistry.measurements import Measurements
from graphxai.chemistry.search.counterfactuals import _predicted
from graphxai.chemistry.search.neighbours import Neighbourhood
from graphxai.chemistry.search.objectives import SingleObjective
from graphxai.chemistry.table_changes import rgroups
from graphxai.datasets.training_set import training_set_of
from graphxai.learning.cleaning import clean_table
from graphxai.learning.run import train_table
from graphxai.learning.settings import TableSettings
from graphxai.tables.report.structure_activity import common_cores

FIRST = 20
SERIES = 5  # common cores whose empty cells are filled


def flat(smiles: str) -> str:
    """Return a canonical SMILES without stereochemistry, by which compounds are compared."""
    return str(Chem.MolToSmiles(Chem.MolFromSmiles(smiles), isomericSmiles=False))


def halves(path: Path) -> tuple[pd.Series, set[str]]:
    """Return the values of the worse half by SMILES, and the compounds of the better half."""
    table = pd.read_csv(path)
    values = table.groupby(table.smiles.map(flat))["y [pEC50/pKi]"].mean()
    known = values[values <= values.median()]
    return known, set(values.index) - set(known.index)


def model_of(known: pd.Series, folder: Path) -> Any:
    """Return a Gaussian process trained on these values."""
    path = folder / "known.csv"
    known.rename("pKi").rename_axis("smiles").reset_index().to_csv(path, index=False)
    clean = clean_table(path, "smiles", ["pKi"])
    settings = TableSettings(model="process", split="random", progress=False)
    return gx.load(train_table(clean, folder / "run", settings))


def lists_of(model: Any, lead: str, measured: Measurements) -> dict[str, list[Any]]:
    """Return every list of suggestions for a molecule, each in its order."""
    value = gx.predict(model, lead)["pKi"].value
    objective = SingleObjective.of(model, lead, f"> {value:.4f}", False, measured)
    training = training_set_of(model)

    def tried(*sources: str) -> list[Any]:
        hood = Neighbourhood(
            sources, True, random.Random(0), 0, training, objective.tables, objective.promise
        )
        queue = hood.neighbours(objective.starts(), (), {Chem.MolToSmiles(objective.mol)})
        return list(_predicted(queue[:1000], objective))

    today, exchanged = tried("transformations", "fragments"), tried("measured")
    made = {each.smiles for each in exchanged}
    every = [*exchanged, *(each for each in today if each.smiles not in made)]
    return {
        "measured exchanges": sorted(exchanged, key=lambda e: -objective.promise(e.expected)),
        "today": objective.chosen(today, FIRST),
        "model alone": sorted(today, key=lambda e: -e.prediction.value),
        "search with measured": objective.chosen(every, FIRST),
        "at random": random.Random(1).sample(today, len(today)),
    }


def empty_cells(known: pd.Series, hidden: set[str]) -> list[dict[str, Any]]:
    """Return how many of the best empty cells of each common series are hidden compounds."""
    measured = Measurements("pKi", {str(smiles): float(y) for smiles, y in known.items()})
    molecules = [Chem.MolFromSmiles(smiles) for smiles in measured.values]
    rows = []
    compounds = list(measured.values)
    for core, members in common_cores(molecules, SERIES).items():
        try:
            fit = fitted_series(rgroups(core, [compounds[k] for k in members]), measured)
        except ValueError:  # the core is too symmetric to be divided in time
            continue
        if fit is not None:
            made = sorted(fit.empty_cells(), key=lambda each: -each[2][0])
            hits = [flat(smiles) in hidden for smiles, _, _ in made]
            rows.append(
                {"lead": core, "list": "empty cells", "tried": len(hits), "reachable": sum(hits)}
                | {"shown": len(hits[:FIRST]), "hits": sum(hits[:FIRST])}
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--leads", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("suggestions.json"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for path in arguments.tables:
        known, hidden = halves(path)
        rows += [{"table": path.stem} | row for row in empty_cells(known, hidden)]
        with TemporaryDirectory() as folder:
            model = model_of(known, Path(folder))
            measured = Measurements.of(known.items(), "pKi")
            leads = list(known.sort_values().index[::-1][: arguments.leads])
            for lead in leads:
                for name, each in lists_of(model, lead, measured).items():
                    hits = [flat(e.smiles) in hidden for e in each]
                    row = {"table": path.stem, "lead": lead, "list": name, "tried": len(each)}
                    row |= {"shown": len(hits[:FIRST]), "hits": sum(hits[:FIRST])}
                    rows.append(row | {"reachable": sum(hits)})
                arguments.out.write_text(json.dumps(rows, indent=1))
        frame = pd.DataFrame(rows)
        print(path.stem, len(known), len(hidden))
        mine = frame[frame.table == path.stem].groupby("list")
        print(mine[["shown", "hits", "tried", "reachable"]].sum(), flush=True)
    shares = (
        frame.assign(any=frame.hits > 0)
        .groupby("list")[["hits", "shown", "any", "reachable"]]
        .sum()
    )
    print(shares.assign(rate=shares.hits / shares.shown))


if __name__ == "__main__":
    main()
