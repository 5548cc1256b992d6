"""The values of one method on one graph, and the files in which a run stores them.

A run folder holds `run.json`, with the settings of each checkpoint, and `units.jsonl`, with one
line per graph and method, which is written as soon as it is measured. Stored values are not
computed again, and are exact, so that a run that goes on reports what an undisturbed one reports.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from graphxai.runtime.writing import Appended, folder_at, write_whole

Key = int | str
NO_REMOVAL = "none"  # the operator of values that do not depend on removal
SIZE_SHARE = "size_share"  # stored with each method's values, although it depends on none
UNITS, RUN = "units.jsonl", "run.json"
GRID = np.linspace(0, 1, 21)  # the fractions of nodes at which curves are averaged


@dataclass(frozen=True)
class Unit:
    """Values of one method on one graph for one checkpoint.

    Args:
        checkpoint: the name and hash of the model.
        graph: the key of the graph.
        values: the values by operator and metric. The operator is "none" if no nodes are removed,
            and an undefined value is NaN.
        curves: the curves by operator and "activation" or "pruning", on the common grid of
            fractions.
        ledger: the figures of the ledger, for an additive method.
        stages: by block of the model, |rank correlation| after shuffling this block and all blocks
            above it.
        note: why there are no values.
        seconds: the time that the explanation took, or NaN if it was not measured.
    """

    checkpoint: str
    graph: Key
    digest: str
    method: str
    nodes: int
    target: str = ""
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    curves: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    ledger: dict[str, float] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    note: str = ""
    seconds: float = field(default=math.nan, compare=False)

    def to_json(self) -> str:
        """Return the unit as one line of JSON, with null for NaN."""
        return json.dumps(finite_or_null(asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "Unit":
        """Read a line written by `to_json`, or raise ValueError for anything else."""
        content = json.loads(line)
        if not isinstance(content, dict) or set(content) != {f.name for f in fields(cls)}:
            raise ValueError("not a line of a benchmark run.")
        for name in ("values", "curves", "ledger", "stages", "seconds"):
            content[name] = _with_leaves(content[name], _figure)
        return cls(**content)


@dataclass(frozen=True)
class Store:
    """The folder of a run, with the files that the module describes."""

    folder: Path

    def begin(self, checkpoint: str, settings: dict[str, Any], resume: bool) -> list[Unit]:
        """Return the units of earlier runs in this folder, after checking their settings.

        Raises:
            FileExistsError: there are earlier runs, but `resume` is off.
            ValueError: earlier runs were made with other settings.
        """
        folder_at(self.folder)
        settings_of = self._settings()
        if settings_of and not resume:
            raise FileExistsError(
                f"{self.folder} already holds a run: continue it (resume=True, or --resume), or"
                " choose another folder."
            )
        for other, before in settings_of.items():
            of_model = () if other == checkpoint else ("model", "sha256")  # of another seed
            changed = [k for k in settings if k not in of_model and before.get(k) != settings[k]]
            if changed:
                names = ", ".join(sorted(changed))
                raise ValueError(
                    f"{self.folder} holds a run with other settings ({names});"
                    " choose another folder."
                )
        settings_of[checkpoint] = settings
        write_whole(self.folder / RUN, json.dumps(settings_of, indent=1) + "\n")
        return list(self.units())

    def units(self) -> Iterator[Unit]:
        """Yield every complete unit, and cut an incomplete last line off the file."""
        path = self.folder / UNITS
        if not path.exists():
            return
        whole = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    yield Unit.from_json(line.decode("utf-8"))
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None
                whole += len(line)
        if whole < path.stat().st_size:
            with path.open("r+b") as file:
                file.truncate(whole)

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """Yield a function that appends units to the file and syncs the file once a second."""
        with Appended(self.folder / UNITS) as file:
            yield lambda units: file.write("".join(unit.to_json() + "\n" for unit in units))

    def _settings(self) -> dict[str, Any]:
        path = self.folder / RUN
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            content = None
        if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
            raise ValueError(f"{path} is not from a benchmark run; choose another folder.")
        return content


def finite_or_null(value: Any) -> Any:
    """Replace NaN and infinities by null in JSON values."""
    return _with_leaves(value, lambda v: None if isinstance(v, float) and not isfinite(v) else v)


def _with_leaves(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: _with_leaves(each, leaf) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_leaves(each, leaf) for each in value]
    return leaf(value)


def _figure(value: Any) -> float:
    """Return a number of JSON, or NaN for null."""
    if value is None:
        return math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError("a value is not a number.")
