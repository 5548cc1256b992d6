"""Collect what changes did among measured compounds for a page: matched pairs, and R-groups."""

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from rdkit import Chem

from graphxai.chemistry.free_wilson import FreeWilson, fitted_series, group_number
from graphxai.chemistry.matching import rgroups
from graphxai.chemistry.measurements import (
    MOST_COMPARED,
    Measurements,
    compounds_of,
    racemates_among,
)
from graphxai.chemistry.substituents import fragment_name
from graphxai.chemistry.table_changes import (
    MeasuredExchange,
    PredictionsOf,
    changes_among,
)
from graphxai.datasets.canonical_form import quietly_read
from graphxai.datasets.cell_numbers import Bound
from graphxai.explanation.compute.models import ModelPanel, standardisation_of
from graphxai.explanation.prediction import Prediction
from graphxai.tables.card import prediction_facts, rounded
from graphxai.tables.drawing import drawing_of
from graphxai.visualization.grid import scaffold

MOST_EXCHANGES = 150  # how many exchanges of each measured value a page lists
MOST_PAIRS = 6  # how many pairs are listed for an exchange
MOST_CORES = 5  # for how many cores a page has a table of R-groups
SMALLEST_SERIES = 4  # compounds with a common core
MOST_ROWS = 300  # how many compounds a table of R-groups has


class StructureActivity:
    """What a page shows of matched pairs and R-groups among the compounds of a table."""

    def __init__(
        self,
        panel: ModelPanel,
        smiles: Sequence[str],
        values: Mapping[str, Sequence[float | Bound | None]],
    ) -> None:
        """Bring molecules to their compounds, of which each stands at its first place.

        `values` has the measured value of each molecule, or its bound, by property. A compound has
        the mean of its values, or else a bound.
        """
        self.panel = panel
        compounds = compounds_of(smiles, standardisation_of(panel.models[0]))
        self.predicted = PredictionsOf(panel, racemates_among(smiles, compounds))
        places: dict[str, int] = {}
        for place, compound in enumerate(compounds):
            if compound:
                places.setdefault(compound, place)
        # where each compound stands on the page, by its SMILES
        self.places = _first(places, MOST_COMPARED)
        self.measured: dict[str, Measurements] = {}
        for name, column in values.items():
            of_compound: dict[str, list[float]] = {}
            bounds: dict[str, str] = {}
            for compound, value in zip(compounds, column, strict=True):
                if value is None or compound not in self.places:
                    continue
                if isinstance(value, Bound):
                    bounds[compound] = str(value)
                else:
                    of_compound.setdefault(compound, []).append(value)
            if of_compound or bounds:
                means = {smiles: float(np.mean(each)) for smiles, each in of_compound.items()}
                bounds = {smiles: text for smiles, text in bounds.items() if smiles not in means}
                self.measured[name] = Measurements(name, means, bounds=bounds)
        self.parts: dict[str, list[Any]] = {}

    def page(self, named: str = "") -> dict[str, Any] | None:
        """Return what the page shows, or None if there is neither a pair nor a series.

        `named` is a core to begin with, as SMARTS, or "" for the common ones alone.
        """
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            changes = {n: changes_among(m, self.predicted) for n, m in self.measured.items()}
        exchanges = {
            name: {
                "compounds": made.compounds,
                "bounded": made.bounded,
                "count": len(made),
                "rows": [self._exchange(each) for each in made[:MOST_EXCHANGES]],
            }
            for name, made in changes.items()
        }
        compounds = list(self.places)
        molecules: list[Any] = [quietly_read(smiles) for smiles in compounds]
        cores = [
            self.core(core, [compounds[k] for k in members])
            for core, members in common_cores(molecules, MOST_CORES).items()
        ]
        if named:
            cores.insert(0, self.core(named, compounds))
        said = list(dict.fromkeys(str(note.message) for note in notes))
        if named and cores[0] is None:
            said.append(f"No compound of the table has the core {named[:80]}.")
        if not any(each["rows"] for each in exchanges.values()) and not any(cores) and not said:
            return None
        tables = {"exchanges": exchanges, "cores": [*filter(None, cores)], "notes": said}
        return self._about() | tables

    def series(self, core: str) -> dict[str, Any]:
        """Return the table of R-groups for all compounds that have a core, given as SMARTS.

        Raises ValueError if the core is not understood, or no compound has it.
        """
        table = self.core(core, list(self.places))
        if table is None:
            raise ValueError(f"no compound of the table has the core {core[:80]}.")
        return self._about() | {"exchanges": {}, "cores": [table], "notes": []}

    def core(self, core: str, compounds: Sequence[str]) -> dict[str, Any] | None:
        """Return the table of R-groups for compounds, or None if none has the core."""
        divided = _first(rgroups(core, compounds), MOST_ROWS)
        if not divided:
            return None
        groups = sorted(
            {name for parts in divided.values() for name in parts} - {"Core"}, key=group_number
        )
        predicted = self.predicted(divided)
        rows: list[list[Any]] = [
            [
                self.places[smiles],
                [self._part(parts.get(name, "")) for name in groups],
                [
                    rounded([m.values[smiles]])[0] if smiles in m.values else m.bounds.get(smiles)
                    for m in self.measured.values()
                ],
                self._predictions(predictions),
            ]
            for (smiles, parts), predictions in zip(divided.items(), predicted, strict=True)
        ]
        rows.sort(key=lambda row: row[1])
        fits = [fitted_series(divided, measured) for measured in self.measured.values()]
        common = next(iter(divided.values()))["Core"]
        return {
            "smiles": core,
            "draw": _drawn(common),
            "groups": groups,
            "rows": rows,
            "compounds": len(compounds),
            "fits": [self._fit(fit) for fit in fits if fit is not None],
        }

    def _fit(self, fit: FreeWilson) -> dict[str, Any]:
        """Return the contributions of R-groups, and a matrix of two with its empty cells filled."""
        contributions = [
            [group, self._part(part), fit.columns[group, part], *rounded(each)]
            for (group, part), each in fit.contributions.items()
        ]
        groups, rows = fit.matrix() or (None, [])
        cells: list[list[Any]] = []
        for part, *of_part in rows:
            shown = [
                [self._part(other), *rounded([each[0] if mean is None else mean, *each[1:]])]
                for other, mean, each in of_part
            ]
            empty = [mean is None for _, mean, _ in of_part]
            cells.append([self._part(part), shown, empty])
        series = {"name": fit.name, "q2": rounded([fit.q2])[0], "compounds": len(fit.parts)}
        return series | {"parts": contributions, "groups": groups, "matrix": cells}

    def _about(self) -> dict[str, Any]:
        """Return the names of the properties, and the parts that tables name by their SMILES."""
        properties = [[p.name, p.task.unit, bool(p.task.classes)] for p in self.panel.properties]
        return {"properties": properties, "measured": list(self.measured), "parts": self.parts}

    def _exchange(self, each: MeasuredExchange) -> list[Any]:
        """Return the parts, the atom that carries them, means with deviations, and some pairs."""
        cells, means = each.columns, []
        for name in ("measured", *(f"predicted {p.name}" for p in self.panel.properties)):
            mean, sd = cells.get(f"{name}_mean_change"), cells.get(f"{name}_sd")
            spread = None if sd is None else rounded([sd])[0]
            means.append(None if mean is None else [rounded([mean])[0], spread])
        return [
            self._part(each.exchange.old),
            self._part(each.exchange.new),
            each.exchange.at,
            len(each.pairs),
            means[0],
            means[1:],
            [
                [self.places[p.before], self.places[p.after], rounded([p.measured])[0]]
                for p in each.pairs[:MOST_PAIRS]
            ],
        ]

    def _part(self, smiles: str) -> str:
        """Keep the name and drawing of a part, and return the SMILES by which tables name it."""
        if not smiles:
            return ""
        mol = quietly_read(re.sub(r"\[\*:\d+\]", "*", smiles))
        plain = smiles if mol is None else str(Chem.MolToSmiles(mol))
        if plain not in self.parts:
            self.parts[plain] = [fragment_name(plain), _drawn(plain)]
        return plain

    def _predictions(self, predictions: Mapping[str, Prediction] | None) -> list[Any]:
        """Return the value to sort by and the text of each property, or None."""
        cells: list[Any] = []
        for each in self.panel.properties:
            prediction = (predictions or {}).get(each.name)
            facts = None if prediction is None else prediction_facts(prediction)
            cells.append(None if facts is None else [facts["value"], facts["text"]])
        return cells


def _first(values: Mapping[str, Any], most: int) -> dict[str, Any]:
    return dict(islice(values.items(), most))


def _drawn(smiles: str) -> dict[str, Any] | None:
    draw = drawing_of(smiles)
    return None if draw is None else draw | {"part": True}


def common_cores(molecules: Sequence[Chem.Mol], most: int) -> dict[str, list[int]]:
    """Return the cores that most molecules have, each with the positions of its molecules.

    A core is the ring systems of a molecule and what links them (Bemis 1996). At least
    `SMALLEST_SERIES` molecules must have it.
    """
    scaffolds = [scaffold(mol) for mol in molecules]
    counts = Counter(filter(None, scaffolds))
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        core: [k for k, of_molecule in enumerate(scaffolds) if of_molecule == core]
        for core, count in ranked[:most]
        if count >= SMALLEST_SERIES
    }
