"""A model's predictions for one graph, one for each task."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

from graphxai.contract.intervals import LEVEL, Conformal, OwnSpread, require_level
from graphxai.contract.tasks import Task, TaskSet
from graphxai.datasets.labels import with_unit

if TYPE_CHECKING:
    from graphxai.datasets.training_set import Nearness


NEARNESS = ("nearest_similarity", "training_set")  # the columns of a molecule's nearness


class NotFiniteError(ValueError):
    """A model or a method gave a value that is not finite. The message says which and for what."""


class _LazyField:
    """A field that may be set to a function, which is called when the field is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = f"_{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return None  # the default
        value = vars(instance)[self.key]
        if callable(value):
            value = vars(instance)[self.key] = value()
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self.key] = value


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for one task.

    Args:
        task: the name of the task.
        label: the predicted class, or None for a regression.
        probabilities: the probability of each class. It is empty for a regression.
        value: the predicted value in `unit`, or None for a classification.
        unit: the unit of the value.
        nearness: how near the molecule is to the training set, or None for other graphs. It is
            computed when it is first read.
        conformal: how wrong the model was on molecules it did not learn from, or what the network
            itself says of how sure it is, or None if neither is known. `interval` and `classes`
            follow from it.
        level: the share of cases in which `interval` or `classes` should be right, see `at`.
        note: what was done to the molecule before it was predicted, such as "salt removed:
            besylate". It is empty if nothing was.
        parent: the SMILES of the molecule that was predicted instead, or "" if it is the one given.
    """

    task: str
    label: str | None = None
    probabilities: dict[str, float] = field(default_factory=dict, hash=False)
    value: float | None = None
    unit: str = ""
    nearness: "Nearness | None" = _LazyField()  # type: ignore[assignment]
    conformal: Conformal | OwnSpread | None = field(default=None, repr=False, compare=False)
    level: float = LEVEL
    note: str = ""
    parent: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for a copy or another process, which may lack the training set."""
        return vars(self) | {"_nearness": self.nearness}

    def set_nearness(self, nearness: "Nearness | Callable[[], Nearness | None] | None") -> None:
        """Set how near the molecule is to the training set, or a function that computes it."""
        object.__setattr__(self, "nearness", nearness)

    def at(self, level: float) -> "Prediction":
        """Return a copy with its interval or classes at another level, such as 0.8.

        Raises:
            ValueError: the level does not lie between 0 and 1.
        """
        return self._with(level=require_level(level))

    def renamed(self, task: str) -> "Prediction":
        """Return a copy whose task has another name, or the prediction itself for the same name."""
        return self if task == self.task else self._with(task=task)

    def _with(self, **changes: Any) -> "Prediction":
        """Return a copy with other fields, whose nearness stays unread."""
        copy = object.__new__(Prediction)
        vars(copy).update(vars(self), **changes)
        return copy

    @property
    def interval(self) -> tuple[float, float] | None:
        """The range that holds the value in a share `level` of cases, or None without `conformal`.

        This is true of molecules like those that the model was tested on. The range is wider far
        from the training set, and infinite if too few molecules were measured for this level.

        A network that predicts its own variance, quantiles or evidence (see `OwnSpread`) has the
        range that follows from these, which nothing guarantees. For a class it is the range of
        its probability.
        """
        if isinstance(self.conformal, OwnSpread) and self.probability is not None:
            return self.conformal.interval(self.probability, None, self.level)
        if self.conformal is None or self.value is None:
            return None
        return self.conformal.interval(self.value, self._similarity, self.level)

    def change_since(self, before: "Prediction") -> tuple[float, float] | None:
        """Return the range of the change since another prediction, or None without `conformal`.

        The widths of both intervals are combined as the root of their sum of squares, as if the two
        errors were independent. Errors of similar molecules partly cancel, so the range is rather
        too wide. Unlike `interval`, it has no guarantee.
        """
        after, earlier = self.interval, before.interval
        if after is None or earlier is None or self.value is None:
            return None
        half = math.hypot(after[1] - after[0], earlier[1] - earlier[0]) / 2
        change = (self.value or 0.0) - (before.value or 0.0)
        return change - half, change + half

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes that hold the right one in a share `level` of cases, or None.

        The predicted class is always among them. Without `conformal` there are none.
        """
        if self.conformal is None or self.label is None:
            return None
        return self.conformal.classes(self.probabilities, self._similarity, self.level)

    @property
    def sure(self) -> bool | None:
        """Whether the class is clear, and the only one at this level, or None without `conformal`.

        A class is clear if it is at least as clear as for half of the molecules measured in it.
        This asks for more than a single class in `classes`, which may also remain because the
        molecule is so odd that no class is clear. It is None for a regression.
        """
        if self.conformal is None or self.label is None:
            return None
        prediction = self.probabilities, self._similarity
        usual = self.conformal.fitting(*prediction, level=0.5)
        return self.label in usual and self.conformal.fitting(*prediction, self.level) == (
            self.label,
        )

    @property
    def _similarity(self) -> float | None:
        return None if self.nearness is None else self.nearness.similarity

    @property
    def range(self) -> str:
        """The interval or the classes as text, `90 %: 5.12 to 7.90`, or "" without `conformal`.

        A class that is left alone without being likely is named by what the set excludes:
        `inactive ruled out at 90 %`.
        """
        share = f"{100 * self.level:g} %"
        if self.label is not None and (interval := self.interval) is not None:
            return f"{share}: {interval[0]:.0%} to {interval[1]:.0%}"
        if (classes := self.classes) is not None:
            others = [name for name in self.probabilities if name not in classes]
            if len(classes) == 1 and max(self.probabilities.values()) < self.level:
                return f"{' and '.join(others)} ruled out at {share}"  # though this one is not sure
            return f"{share}: {' or '.join(classes)}"
        if (interval := self.interval) is None:
            return ""
        low, high = interval
        return f"{share}: " + (f"{low:z.2f} to {high:z.2f}" if math.isfinite(high) else "any value")

    @property
    def in_full(self) -> str:
        """The prediction with its interval or classes, `6.51 (90 %: 5.12 to 7.90)`."""
        range = self.range
        return f"{self} ({range})" if range else str(self)

    @property
    def heading(self) -> str:
        """The task, with its unit if it has one, for the columns of tables."""
        return with_unit(self.task, self.unit)

    @property
    def columns(self) -> dict[str, Any]:
        """The cells of its row in a table, by column, with an infinite end where any value may be.

        These are the value or the class, the probability of each class, and the ends of `interval`
        or the set of `classes`.
        """
        classes = self.classes
        within = self.interval or () if classes is None else (" or ".join(classes),)
        names = _column_names(self.task, self.unit, tuple(self.probabilities), bool(within))
        predicted = self.value if self.label is None else self.label
        values = (predicted, *self.probabilities.values(), *within)
        return dict(zip(names, values, strict=True))

    @property
    def probability(self) -> float | None:
        """The probability of the predicted class, or None for a regression."""
        return None if self.label is None else self.probabilities[self.label]

    @property
    def warning(self) -> str:
        """A warning if the molecule is far from the training set or at its edge, or else ""."""
        near = self.nearness
        return near.sentence if near is not None and near.word in ("edge", "far") else ""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the nearness as JSON values, with None for an infinite end."""
        names = ("task", "label", "probabilities", "value", "unit")
        content = {name: getattr(self, name) for name in names}
        content |= {name: said for name in ("parent", "note") if (said := getattr(self, name))}
        if self.conformal is None:
            return content
        ends = [end if math.isfinite(end) else None for end in self.interval or ()]
        return content | {"level": self.level, "interval": ends or None, "classes": self.classes}

    def __repr__(self) -> str:
        stated = f"{self.task}: {self.in_full}"
        return f"Prediction({'; '.join(filter(None, (stated, self.note, self.warning)))})"

    def __str__(self) -> str:
        if self.label is None:
            return f"{self.value:z.2f} {self.unit}".rstrip()
        share = f"{self.probability:.0%}"
        return f"{self.label} ({'>99%' if share == '100%' else share})"

    def _repr_html_(self) -> str:
        """Return the prediction with its interval, and the probability of every class."""
        rows = "".join(
            f'<tr><td style="text-align: left">{escape(name)}</td><td>{value:.1%}</td></tr>'
            for name, value in self.probabilities.items()
        )
        text = f"<div>{escape(self.task)}: <b>{escape(str(self))}</b>"
        text += f" ({escape(self.range)})</div>" if self.range else "</div>"
        text += f"<table>{rows}</table>" if rows else ""
        text += f"<div>{escape(self.note)}</div>" if self.note else ""
        return text + (f"<div>{escape(self.warning)}</div>" if self.warning else "")


def table_cells(
    predictions: Sequence[Prediction], *, several_models: bool = False
) -> dict[str, Any]:
    """Return the cells of one graph's row in a table, by column, and none without predictions.

    They are those of each prediction, and for a molecule how near it is to the training set, its
    parent, and what was done to it before it was predicted. Where `several_models` made the
    predictions, each has its own nearness. `property_columns` has the columns of a prediction.
    """
    cells: dict[str, Any] = {}
    for prediction in predictions:
        cells |= prediction.columns
        if several_models:
            cells |= _nearness_cells(prediction, nearness_columns(prediction.task))
    if predictions and not several_models:
        cells |= _nearness_cells(predictions[0], NEARNESS)
    return cells | {name: said for name, said in parent_cells(predictions).items() if said}


def parent_cells(predictions: Sequence[Prediction]) -> dict[str, str]:
    """Return the parent that was predicted for a molecule, and what was done, or "" for each."""
    parent = next((p.parent for p in predictions if p.parent), "")
    return {"parent": parent, "note": joined_notes(predictions)}


def property_columns(
    name: str, unit: str, classes: Sequence[str], *, has_range: bool
) -> dict[str, type]:
    """Return the columns of a property's predictions with their types (see `Prediction.columns`).

    Args:
        unit: the unit of a value, or "".
        classes: the classes, or none for a value.
        has_range: whether predictions have an interval or a set of classes.
    """
    columns: dict[str, type] = {with_unit(name, unit): str if classes else float}
    columns |= {f"{name}: {label}": float for label in classes}
    if has_range and classes:
        columns[f"{name}_set"] = str
    elif has_range:
        columns |= {with_unit(f"{name}_{end}", unit): float for end in ("low", "high")}
    return columns


@lru_cache(maxsize=1 << 10)  # every row of a table asks for the same
def _column_names(
    name: str, unit: str, classes: tuple[str, ...], has_range: bool
) -> tuple[str, ...]:
    return tuple(property_columns(name, unit, classes, has_range=has_range))


def _nearness_cells(prediction: Prediction, columns: tuple[str, str]) -> dict[str, Any]:
    near = prediction.nearness
    return {} if near is None else dict(zip(columns, (near.similarity, near.word), strict=True))


def nearness_columns(task: str) -> tuple[str, str]:
    """Return the columns of a task's nearness to its training set, where several models predict."""
    return f"{task}_nearest_similarity", f"{task}_training_set"


def joined_notes(predictions: Sequence[Prediction]) -> str:
    """Return what was done to a molecule before it was predicted, each note once."""
    return "; ".join(dict.fromkeys(p.note for p in predictions if p.note))


def read_outputs(
    config: TaskSet,
    outputs: Sequence[float],
    nearness: "Nearness | Callable[[], Nearness | None] | None" = None,
    conformal: Mapping[str, Conformal | OwnSpread] | None = None,
    note: str = "",
    parent: str = "",
) -> tuple[Prediction, ...]:
    """Read the predictions of every task from one graph's outputs (num_outputs,).

    Args:
        nearness: how near the graph is to the training set, or a function that returns this.
        note: what was done to the molecule before it was predicted.
        parent: the SMILES of the molecule that was predicted instead of the one given, or "".

    Raises NotFiniteError if an output, or a value computed from it, is not a finite number.
    """
    start, predictions = 0, []
    about: dict[str, Any] = {"nearness": nearness, "note": note, "parent": parent}
    for task in config.tasks:
        values = outputs[start : start + task.num_outputs]
        about["conformal"] = (conformal or {}).get(task.name)
        predictions.append(_read_task(task, values, about))
        start += task.num_outputs
    return tuple(predictions)


def _read_task(task: Task, values: Sequence[float], about: dict[str, Any]) -> Prediction:
    value = task.offset + task.scale * values[0]
    if not (math.isfinite(value) and all(map(math.isfinite, values))):
        raise NotFiniteError(
            f"the model's output for {task.name!r} is not a finite number: its weights or this"
            " input are beyond what it can compute."
        )
    if task.kind == "regression":
        return Prediction(task.name, value=value, unit=task.unit, **about)
    if task.kind == "binary":
        values = [-values[0] / 2, values[0] / 2]  # one logit becomes two classes
    by_class = dict(zip(task.classes, _softmax(values), strict=True))
    label = max(by_class, key=by_class.__getitem__)
    return Prediction(task.name, label, by_class, **about)


def _softmax(values: Sequence[float]) -> list[float]:
    if len(values) == 2:  # the same numbers; a model may have hundreds of such tasks
        share = math.exp(-abs(values[0] - values[1]))
        larger, smaller = 1 / (1 + share), share / (1 + share)
        return [larger, smaller] if values[0] >= values[1] else [smaller, larger]
    largest = max(values)
    powers = [math.exp(value - largest) for value in values]
    total = sum(powers)
    return [power / total for power in powers]
