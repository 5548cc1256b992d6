"""Compute each graph's predictions of all tasks, from encoded inputs in batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from graphxai.contract.batching import Key, batches_for, collated
from graphxai.contract.inputs import EXPLAINED_NODE, Input, InputError
from graphxai.contract.model import evaluating
from graphxai.datasets.training_set import TrainingSet
from graphxai.explanation.prediction import NotFiniteError, Prediction, read_outputs

from .models import Model, conformal_of
from .nearness import nearness_when_read

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Predictions = tuple[Prediction, ...]  # one for each task


@dataclass(frozen=True)
class PredictionComputation:
    """Predict the inputs of a list, and tell how near each is to the training set."""

    training: TrainingSet | None

    def __call__(
        self, model: Model, encoded: Sequence[tuple[int, Input]], /
    ) -> Iterator[tuple[int, dict[str, Prediction] | Exception]]:
        """Yield each input's number with its predictions by task, or with its error."""
        for number, predictions in predictions_or_errors(model, encoded, training=self.training):
            if isinstance(predictions, Exception):
                yield number, predictions
            else:
                yield number, {prediction.task: prediction for prediction in predictions}


def predict_prepared(
    model: Model,
    prepared: Sequence[tuple[Key, Input]],
    *,
    training: TrainingSet | None = None,
) -> Iterator[tuple[Key, Predictions]]:
    """Predict encoded inputs, and raise an error if an output is not finite."""
    return without_errors(predictions_or_errors(model, prepared, training=training))


def predictions_or_errors(
    model: Model,
    prepared: Sequence[tuple[Key, Input]],
    *,
    training: TrainingSet | None = None,
) -> Iterator[tuple[Key, Predictions | NotFiniteError]]:
    """Predict encoded inputs in batches of similar size, and yield each key with its predictions.

    If the outputs of an input are not finite, the error is yielded instead.

    Args:
        model: the model.
        prepared: the encoded inputs, each with the caller's key.
        training: the model's training set, to tell how near each molecule is to it. Without one,
            this is unknown.
    """
    answers_for_nodes = getattr(model.config, "level", None) == "node"
    compute = _outputs_of_nodes if answers_for_nodes else _outputs
    for key, item, outputs in compute(model, prepared):
        near = nearness_when_read(item, training)
        about = near, conformal_of(model), item.note, item.parent
        yield key, or_not_finite(read_outputs, model.config, outputs, *about)


def _outputs(
    model: Model, prepared: Sequence[tuple[Key, Input]]
) -> Iterator[tuple[Key, Input, list[float]]]:
    """Yield each encoded input with its outputs, the mean over its passes."""
    passes = [((key, item), each) for key, item in prepared for each in item.passes]
    waiting: dict[int, list[float]] = {}  # the outputs of a first pass
    for part in batches_for(model, passes):
        batch = collated(model, part)
        with evaluating(model), torch.inference_mode():
            outputs = model(batch).double().tolist()
        for ((key, item), _), of_item in zip(part, outputs, strict=True):
            if item.mirrored is None:
                yield key, item, of_item
            elif (first := waiting.pop(id(item), None)) is None:
                waiting[id(item)] = of_item
            else:
                yield key, item, [(a + b) / 2 for a, b in zip(first, of_item, strict=True)]


def _outputs_of_nodes(
    model: Any, prepared: Sequence[tuple[Key, Input]]
) -> Iterator[tuple[Key, Input, list[float]]]:
    """Yield each graph with the outputs of its explained node.

    One pass answers for all nodes of a graph, however many of them are asked about.
    """
    asked: dict[int, list[tuple[Key, Input]]] = {}
    for key, item in prepared:
        asked.setdefault(id(item.graph.bag_codes), []).append((key, item))
    for part in batches_for(
        model, [(number, of_graph[0][1]) for number, of_graph in asked.items()]
    ):
        batch = collated(model, part)
        if batch.explained is None:
            raise InputError("choose the nodes, such as predict(model, graph, node=[0, 1]).")
        with evaluating(model), torch.inference_mode():
            outputs = model.labelled_outputs(batch).double().cpu()
        sizes = [item.num_nodes for _, item in part]
        for (number, _), of_graph in zip(part, outputs.split(sizes), strict=True):
            for key, item in asked[number]:
                node = int(item.graph.get(EXPLAINED_NODE).argmax())
                yield key, item, of_graph[node].tolist()


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
