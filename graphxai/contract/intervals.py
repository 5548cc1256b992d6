"""Make intervals and sets of classes that hold at a given rate.

This is split conformal prediction (Vovk 2005, chapter 4). It needs molecules that the model did not
learn from. A new interval of a value is as wide as the required share of the errors on the `ALIKE`
molecules whose nearest training compound was as near as that of the new one (Vovk 2005, Mondrian
sets whose groups move with the molecule). The margin of a class is divided by how difficult its
molecule was, which depends on the nearest training compound as well (Papadopoulos 2011). If new
molecules are of the same kind, both hold at that rate, whatever the model. The scores are in
`conformal.json` beside the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.tasks import Task, TaskSet

FloatArray = NDArray[np.float64]
LEVEL = 0.9
# Chosen on ten of the tables in benchmarks/intervals.md, on which 60 to 300 hold alike.
ALIKE = 150
VALUES = ""  # the key under which a regression keeps its scores
# Groups of predicted classes, from sure to unsure, by the least probability in each.
SURENESS = ("0.95", "0.9", "0.8", "0.7", "0.6", "0")


@dataclass(frozen=True, eq=False)
class Conformal:
    """How wrong a model is for one task, on molecules that it did not learn from.

    Args:
        scores: for each class, the scores (n,) of the molecules measured in it. A regression has
            its scores under "". The score of a regression is |measured - predicted|, in the unit;
            that of a class is the logit margin of the best other class over the measured one. Both
            are divided by the molecule's difficulty.
        slope: how fast difficulty grows away from the training set.
        similarity: of each molecule with a value to the nearest one that was learned from, if its
            intervals depend on that.
    """

    scores: Mapping[str, Sequence[float]]
    slope: float = 0.0
    similarity: Sequence[float] = ()

    @property
    def n(self) -> int:
        """The number of scores."""
        return sum(map(len, self.scores.values()))

    def difficulty(self, similarity: float | None) -> float:
        """Return the difficulty of a molecule, `1 + slope (1 - similarity)`.

        Args:
            similarity: to the nearest training compound. None counts as 0.
        """
        return 1 + self.slope * (1 - (similarity or 0.0))

    def interval(
        self, value: float, similarity: float | None, level: float = LEVEL
    ) -> tuple[float, float]:
        """Return the interval around a predicted value. Too few scores make it infinite."""
        half = self._quantile(VALUES, level, similarity) * self.difficulty(similarity)
        return value - half, value + half

    def classes(
        self, probabilities: Mapping[str, float], similarity: float | None, level: float = LEVEL
    ) -> tuple[str, ...]:
        """Return the predicted class, and all others that cannot be excluded at this level."""
        fitting = self.fitting(probabilities, similarity, level)
        best = max(probabilities.values())
        return tuple(name for name, p in probabilities.items() if p == best or name in fitting)

    def fitting(
        self, probabilities: Mapping[str, float], similarity: float | None, level: float = LEVEL
    ) -> tuple[str, ...]:
        """Return the classes that cannot be excluded at this level.

        A class is kept if its margin is no worse than that of a share `level` of the molecules
        measured in it. At a low level only clear classes remain. For an odd molecule there may be
        none.
        """
        with np.errstate(divide="ignore"):  # a probability may round to 0
            logits: list[float] = np.log([*probabilities.values()]).tolist()
        difficulty = self.difficulty(similarity)
        fitting: list[str] = []
        for k, (name, logit) in enumerate(zip(probabilities, logits, strict=True)):
            margin = max(logits[:k] + logits[k + 1 :]) - logit
            if margin / difficulty <= self._quantile(name, level):
                fitting.append(name)
        return tuple(fitting)

    def _quantile(self, name: str, level: float, near: float | None = None) -> float:
        """Return the score that a share `level` of new molecules does not exceed.

        With similarities, they are molecules about as near to the training set as `near` says.
        """
        asked = name, level, near
        if asked not in self._quantiles:  # many molecules of a table are equally near
            has_groups = len(self.similarity) > ALIKE
            scores = self._alike(name, near or 0.0) if has_groups else self._sorted.get(name, ())
            rank = math.ceil(level * (len(scores) + 1) - 1e-9)  # the new molecule counts as well
            self._quantiles[asked] = float(scores[rank - 1]) if rank <= len(scores) else math.inf
        return self._quantiles[asked]

    @cached_property
    def _quantiles(self) -> dict[tuple[str, float, float | None], float]:
        return {}

    def _alike(self, name: str, near: float) -> FloatArray:
        """Return the sorted scores of the `ALIKE` molecules whose similarity is next to `near`."""
        similarity, of_molecules = self._arrays
        apart = np.abs(similarity - near)
        edge = np.partition(apart, ALIKE - 1)[ALIKE - 1]
        alike = apart < edge  # and the first of those at the edge
        alike[np.flatnonzero(apart == edge)[: ALIKE - np.count_nonzero(alike)]] = True
        return np.sort(of_molecules[name][alike])

    @cached_property
    def _arrays(self) -> tuple[FloatArray, dict[str, FloatArray]]:
        """The similarities and the scores, in the order of the molecules."""
        scores = {name: np.asarray(values, float) for name, values in self.scores.items()}
        return np.asarray(self.similarity, float), scores

    @cached_property
    def _sorted(self) -> dict[str, Sequence[float]]:
        return {n: np.sort(np.asarray(scores, float)).tolist() for n, scores in self.scores.items()}


@dataclass(frozen=True)
class OwnSpread:
    """How sure a network itself says that it is of one prediction.

    Nothing guarantees that its ranges hold at their rate, as those of `Conformal` do.

    Args:
        sd: the standard deviation of a value, in its unit. The interval is that of a normal
            distribution. Two quantiles of a network have the `sd` with which the interval at their
            level ends at both.
        evidence: the sum of the concentrations of a Dirichlet distribution of the classes
            (Sensoy 2018), whose mean are the probabilities.
    """

    sd: float | None = None
    evidence: float | None = None

    @property
    def variance(self) -> float | None:
        """The square of `sd`."""
        return None if self.sd is None else self.sd**2

    def interval(
        self, value: float, similarity: float | None, level: float = LEVEL
    ) -> tuple[float, float] | None:
        """Return the interval around a value, or that of the probability of a class."""
        if self.evidence is not None:
            from scipy.special import betaincinv

            first, second = value * self.evidence, (1 - value) * self.evidence
            tail = (1 - level) / 2
            low, high = (float(betaincinv(first, second, q)) for q in (tail, 1 - tail))
            return low, high
        if self.sd is None:
            return None
        half = normal_end(level) * self.sd
        return value - half, value + half

    def classes(
        self, probabilities: Mapping[str, float], similarity: float | None, level: float = LEVEL
    ) -> tuple[str, ...]:
        """Return the predicted class, and each whose interval overlaps with that of this class."""
        ranges = {name: self.interval(p, similarity, level) for name, p in probabilities.items()}
        best = ranges[max(probabilities, key=probabilities.__getitem__)]
        if best is None:
            return tuple(probabilities)
        return tuple(name for name, of in ranges.items() if of is not None and of[1] >= best[0])

    fitting = classes


def normal_end(level: float) -> float:
    """Return how many standard deviations a normal distribution's interval at a level reaches."""
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def require_level(level: float) -> float:
    """Return the level, or raise a ValueError unless it lies between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"the level is a share between 0 and 1, such as {LEVEL}, not {level}.")
    return level


def to_json(tasks: Mapping[str, Conformal]) -> dict[str, Any]:
    """Turn the scores of all tasks into JSON values that `from_json` can read."""
    return {
        name: {
            "slope": conformal.slope,
            "scores": {
                key: [float(f"{v:.5g}") for v in values] for key, values in conformal.scores.items()
            },
        }
        | ({"similarity": list(conformal.similarity)} if conformal.similarity else {})
        for name, conformal in tasks.items()
    }


def from_json(content: Any, config: TaskSet) -> dict[str, Conformal]:
    """Read what `to_json` returned, or raise a ValueError that names the key at fault."""
    task_of = {task.name: task for task in config.tasks}
    return {
        name: _read(entry, task_of.get(name), f"task {name!r}")
        for name, entry in _mapping(content, "'tasks'").items()
    }


def _read(content: Any, task: Task | None, where: str) -> Conformal:
    """Read the entry of one task, which error messages call `where`."""
    if task is None:
        raise ValueError(f"{where} is not a task of the model")
    entry = _mapping(content, where)
    scores = _mapping(entry.get("scores"), f"{where}, key 'scores'")
    if unknown := sorted(set(scores) - set(task.classes or (VALUES,))):
        raise ValueError(f"{where}, key 'scores': {unknown[0]!r} is not a class of the task")
    read = {key: _numbers(values, f"{where}, scores {key!r}") for key, values in scores.items()}
    if not task.classes and any(value < 0 for values in read.values() for value in values):
        raise ValueError(f"{where}: a score is negative")
    (slope,) = _numbers([entry.get("slope")], f"{where}, key 'slope'")
    if slope < 0:
        raise ValueError(f"{where}, key 'slope': it is negative")
    similarity = _numbers(entry.get("similarity", []), f"{where}, key 'similarity'")
    if similarity and len(similarity) != len(read.get(VALUES, ())):
        raise ValueError(f"{where}, key 'similarity': it does not have a number for each score")
    return Conformal(read, slope, similarity)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object")
    return value


def _numbers(values: Any, where: str) -> list[float]:
    if not isinstance(values, list) or not all(
        type(value) in (int, float) and abs(value) < 1e300 for value in values
    ):
        raise ValueError(f"{where}: not a list of finite numbers")
    return [float(value) for value in values]
