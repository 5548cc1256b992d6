"""Compute each graph's predictions of all tasks, from encoded inputs in batches.

How near a molecule is to the training set takes a while, so it is only computed when it is first
read.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

from graphxai.contract.batching import Key, batches_for, collated, joined_nodes
from graphxai.contract.inputs import Input, prepare_each
from graphxai.contract.intervals import Conformal, OwnSpread
from graphxai.contract.model import evaluating
from graphxai.datasets.training_set import UNKNOWN, Nearness, TrainingSet
from graphxai.explanation.explained_graph import read_again
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.prediction import NotFiniteError, Prediction, read_outputs

from .models import Model, conformal_of

if TYPE_CHECKING:
    from rdkit.Chem import Mol

    from graphxai.datasets.as_given import AsGiven

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Predictions = tuple[Prediction, ...]  # one for each task


def predictions_by_task(
    model: Model, encoded: Sequence[tuple[int, Input]], /, *, training: TrainingSet | None
) -> Iterator[tuple[int, dict[str, Prediction] | Exception]]:
    """Yield each input's number with its predictions by task, or with its error."""
    for number, predictions in predictions_or_errors(model, encoded, training=training):
        if isinstance(predictions, Exception):
            yield number, predictions
        else:
            yield number, {prediction.task: prediction for prediction in predictions}


def predict_prepared(
    model: Model, prepared: Sequence[tuple[Key, Input]], *, training: TrainingSet | None = None
) -> Iterator[tuple[Key, Predictions]]:
    """Predict encoded inputs, and raise an error if an output is not finite."""
    return without_errors(predictions_or_errors(model, prepared, training=training))


def predictions_or_errors(
    model: Model, prepared: Sequence[tuple[Key, Input]], *, training: TrainingSet | None = None
) -> Iterator[tuple[Key, Predictions | NotFiniteError]]:
    """Predict encoded inputs in batches of similar size, and yield each key with its predictions.

    If the outputs of an input are not finite, the error is yielded instead.

    Args:
        prepared: the encoded inputs, each with the caller's key.
        training: the model's training set, to tell how near each molecule is to it. Without one,
            this is unknown.
    """
    for key, item, outputs, ranges in outputs_of_passes(model, prepared):
        about = nearness_when_read(item, training), ranges
        read = or_not_finite(read_passes, model, item, outputs, *about)
        yield key, read if isinstance(read, NotFiniteError) else read[0]


def read_passes(
    model: Model, item: Input, outputs: Sequence[Sequence[float]], nearness: Any, ranges: Any
) -> "tuple[Predictions, AsGiven | None]":
    """Return the predictions of the mean over the passes of an input, and what was done to it.

    That ends with the range of what the isomers of a molecule get, if there are several.
    """
    as_given, note = item.as_given, item.note
    if as_given is not None and item.isomers:
        size = len(outputs) // (1 + len(item.isomers))  # passes of an isomer
        each = [mean_of(outputs[k : k + size]) for k in range(0, len(outputs), size)]
        said = _ranges([read_outputs(model.config, row) for row in each])
        as_given = as_given._replace(changes=(*as_given.changes, f"they get {said}"))
        note = as_given.sentence
    about = nearness, ranges, note, item.parent
    return read_outputs(model.config, mean_of(outputs), *about), as_given


def isomer_ranges(model: Model, mol: "Mol") -> list[str]:
    """Return the sentence on what the isomers at undrawn centres of a molecule get; [] for one."""
    from graphxai.datasets.isomers import isomers_in_order, undrawn_centres

    isomers, count = isomers_in_order(mol, mol, undrawn_centres(mol))
    usable = [each for each in prepare_each(model, isomers, Exception) if isinstance(each, Input)]
    computed = dict(predictions_or_errors(model, list(enumerate(usable))))
    rows = [row for row in computed.values() if not isinstance(row, NotFiniteError)]
    return [f"{count} isomers get {_ranges(rows)}"] if rows and count else []


def _ranges(rows: Sequence[Predictions]) -> str:
    """Return for each task between what the predictions of several isomers lie."""
    return ", ".join(map(_range, zip(*rows, strict=True)))


def _range(predictions: Sequence[Prediction]) -> str:
    """Return the range of a value, or of the probability of the last class, as text."""
    task, label = predictions[0].task, next(reversed(predictions[0].probabilities), "")
    if label:
        shares = [prediction.probabilities[label] for prediction in predictions]
        low, high, of = f"{min(shares):.0%}", f"{max(shares):.0%}", f" {label}"
    else:
        values = [prediction.value or 0.0 for prediction in predictions]
        low, high, of = f"{min(values):z.2f}", f"{max(values):z.2f}", ""
    return f"{low if low == high else f'{low} to {high}'}{of} ({task})"


def outputs_of_passes(
    model: Model, prepared: Sequence[tuple[Key, Input]]
) -> Iterator[tuple[Key, Input, list[list[float]], Mapping[str, Conformal | OwnSpread]]]:
    """Yield each encoded input with the outputs of its passes, and its ranges.

    One pass answers for all nodes of a graph that are asked about.
    """
    passes = [((key, item), each) for key, item in prepared for each in item.passes]
    waiting: dict[int, list[list[float]]] = {}
    for part in batches_for(model, joined_nodes(passes, lambda item: True, len(passes))):
        batch = collated(model, part)
        with evaluating(model), torch.no_grad():  # a module may keep what it computes
            rows = model(batch).double().reshape(-1, model.config.num_outputs)
        if hasattr(model, "module"):
            from graphxai.explainers.wrapped import warn_of_probabilities  # loads all methods

            warn_of_probabilities(model, batch, rows)
        asked = [pair for group, _ in part for pair in group]
        ranges = ranges_of(model, batch, len(asked))
        for ((key, item), _), of_pass, of_ranges in zip(asked, rows.tolist(), ranges, strict=True):
            if (of_item := all_passes(waiting, item, of_pass)) is not None:
                yield key, item, of_item, of_ranges


def all_passes(
    waiting: dict[int, list[Result]], item: Input, result: Result
) -> list[Result] | None:
    """Keep the result of a pass of an input, and return those of all passes with the last one.

    They come in the order of `item.passes`, since all are of one size.
    """
    of_item = waiting.setdefault(id(item), [])
    of_item.append(result)
    return waiting.pop(id(item)) if len(of_item) == len(item.passes) else None


def mean_of(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, arrays, lists, or of those in dicts; None if one is missing."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, dict):
        return {name: mean_of([each[name] for each in values]) for name in first}
    if isinstance(first, list):
        return [mean_of(column) for column in zip(*values, strict=True)]
    return None if any(each is None for each in values) else sum(values) / len(values)


def ranges_of(
    model: Model, batch: Any, graphs: int
) -> Sequence[Mapping[str, Conformal | OwnSpread]]:
    """Return for each graph of a batch by task what its intervals follow from."""
    if not getattr(model, "tasks_with_own_spread", ()):
        return [conformal_of(model)] * graphs
    network: Any = model  # which says itself how sure it is
    with evaluating(model), torch.no_grad():
        spreads: Sequence[Mapping[str, OwnSpread]] = network.own_spreads(batch)
    return spreads


def or_not_finite(
    compute: Callable[Parameters, Result], *args: Parameters.args, **keywords: Parameters.kwargs
) -> Result | NotFiniteError:
    """Compute one graph's result, or return the error if it is not finite."""
    try:
        return compute(*args, **keywords)
    except NotFiniteError as error:
        return error


def without_errors(
    results: Iterable[tuple[Key, Result | NotFiniteError]],
) -> Iterator[tuple[Key, Result]]:
    """Yield the results, and raise the first error among them."""
    for key, result in results:
        if isinstance(result, NotFiniteError):
            raise result
        yield key, result


class _Once:
    """A nearness that is computed in the first call, for all tasks.

    Every molecule of a table gets one, and `functools.cache` takes several times as long to make.
    """

    __slots__ = ("_compute", "_nearness")

    def __init__(self, compute: Callable[[], Nearness]) -> None:
        self._compute = compute
        self._nearness: Nearness | None = None

    def __call__(self) -> Nearness:
        if self._nearness is None:
            self._nearness = self._compute()
        return self._nearness


def nearness_when_read(
    item: Input, training: TrainingSet | None
) -> Nearness | Callable[[], Nearness] | None:
    """Return a function that computes the nearness once, for all tasks.

    Without a training set the nearness is `UNKNOWN`. For a graph that is no molecule, return None.
    """
    if item.molecule is None and item.smiles is None:
        return None
    if training is None:
        return UNKNOWN
    # A result may outlive its input by far, and must not keep the molecule that was read.
    read = None if item.read is None else weakref.ref(item.read)
    return _Once(partial(_nearness, training, item.molecule or item.smiles, read))


def nearness_of(item: Input, training: TrainingSet | None) -> Nearness | None:
    """Return how near a molecule is to the training set, or None for other graphs."""
    nearness = nearness_when_read(item, training)
    return nearness() if callable(nearness) else nearness


def set_nearness(explanation: Explanation, training: TrainingSet | None) -> None:
    """Add the nearness to the predictions of an explanation that was made without it."""
    molecule = explanation.mol if explanation.mol is not None else explanation.smiles
    if training is not None and molecule is not None:
        nearness = _Once(partial(_nearness, training, molecule))
        for prediction in explanation.predictions:
            prediction.set_nearness(nearness)


def read_nearness(explanation: Explanation) -> None:
    """Compute the nearness of an explanation now, instead of when it is first read."""
    for prediction in explanation.predictions:
        _ = prediction.nearness


def _nearness(
    training: TrainingSet, molecule: Any, read: "weakref.ref[Mol] | None" = None
) -> Nearness:
    """Compute the nearness of a molecule, which is an RDKit molecule or a SMILES.

    If the form in which it was read still exists, it is not read again.
    """
    from rdkit import rdBase

    at_hand = None if read is None else read()
    smiles = molecule if isinstance(molecule, str) else ""
    with rdBase.BlockLogs():
        if at_hand is None and smiles:
            at_hand = read_again(smiles)
        if at_hand is not None:
            return training.nearness(at_hand, smiles=smiles, unchanging=True)
        return training.nearness(molecule)
