"""Compute each graph's predictions of all tasks, from encoded inputs in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from graphxai.contract.batching import Key, batches_for, collated
from graphxai.contract.inputs import Input
from graphxai.contract.model import evaluating
from graphxai.datasets.training_set import TrainingSet
from graphxai.explanation.prediction import NotFiniteError, Prediction, read_outputs

from .models import Model, conformal_of
from .nearness import nearness_when_read

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
    for key, predictions in predictions_or_errors(model, prepared, training=training):
        if isinstance(predictions, Exception):
            raise predictions
        yield key, predictions


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
    for part in batches_for(model, prepared):
        batch = collated(model, part)
        with evaluating(model), torch.inference_mode():
            outputs = model(batch).double().tolist()
        for row, (key, item) in enumerate(part):
            yield key, _read_or_error(model, outputs[row], item, training)


def _read_or_error(
    model: Model, outputs: Sequence[float], item: Input, training: TrainingSet | None
) -> Predictions | NotFiniteError:
    """Read one graph's outputs, or return the error if they are not finite."""
    try:
        return read_outputs(
            model.config, outputs, nearness_when_read(item, training), conformal_of(model)
        )
    except NotFiniteError as error:
        return error
