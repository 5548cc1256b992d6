"""The nine models of the registered tests of faithfulness, and the graphs of each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import graphxai as gx
from gps import load_gps
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation.sources import BenchmarkSource, mnist_part

DRAWN = 2026  # seed of the graphs drawn for the first model; it grows by one for each other model
TRIAL = 123  # seed with which an earlier trial of the primary method drew its test graphs


@dataclass(frozen=True)
class TestedModel:
    """A model, its data set, how many graphs of each part are measured, and how to load it."""

    data: str
    test: int
    pilot: int
    load: Callable[[Path], tuple[Any, dict[str, list[int]]]]
    made: str


def _graphormer(checkpoint: str) -> Callable[[Path], tuple[Any, dict[str, list[int]]]]:
    def load(models: Path) -> tuple[Any, dict[str, list[int]]]:
        folder = models / checkpoint / "model"
        model = gx.load(folder if folder.exists() else checkpoint)
        return model, model.origin.metadata.get("split", {})

    return load


def _gps(name: str) -> Callable[[Path], tuple[Any, dict[str, list[int]]]]:
    def load(models: Path) -> tuple[Any, dict[str, list[int]]]:
        model, card = load_gps(models / f"gps-{name}", name)
        return model, card["split"]

    return load


TESTED_MODELS = {
    "bace": TestedModel("BACE", 40, 16, _graphormer("bace"), "bundled"),
    **{
        f"bace-{k}": TestedModel("BACE", 30, 0, _graphormer(f"bace-{k}"), f"2 layers, seed {k}")
        for k in range(3)
    },
    "gps-bace": TestedModel("BACE", 16, 6, _gps("bace"), "GPS, trained here and wrapped"),
    "mnist-superpixels": TestedModel("MNIST", 24, 6, _graphormer("mnist-superpixels"), "bundled"),
    **{
        f"mnist-{k}": TestedModel("MNIST", 16, 0, _graphormer(f"mnist-{k}"), f"2 layers, seed {k}")
        for k in range(2)
    },
    "gps-mnist": TestedModel("MNIST", 6, 4, _gps("mnist"), "GPS, trained here and wrapped"),
}


def graphs_of(tested: TestedModel, split: dict[str, list[int]], part: str) -> BenchmarkSource:
    """Return the graphs drawn from a part of the model's data: "test" or "pilot"."""
    if tested.data == "BACE":
        graphs, seen = load_bace(), trial_compounds()
        keys = [k for k in split["test" if part == "test" else "valid"] if k not in seen]
        labels = {k: int(graphs[k].y[0, 0]) for k in keys}
        source = BenchmarkSource(f"BACE, {part}", {k: graphs[k].smiles for k in keys}, labels)
    elif part == "test":
        whole, seen = mnist_part(), trial_images()
        source = BenchmarkSource(
            whole.title, {k: v for k, v in whole.inputs.items() if k not in seen}, whole.labels
        )
    else:
        images, digits = load_mnist(None, "train", limit=10_000)
        keys = split.get("valid") or list(range(9_000, 10_000))
        labels = {k: int(digits[k]) for k in keys}
        source = BenchmarkSource("MNIST, pilot", {k: images[k] for k in keys}, labels)
    seed = DRAWN + list(TESTED_MODELS.values()).index(tested)
    return source.sample(tested.test if part == "test" else tested.pilot, seed=seed)


def trial_compounds() -> set[int]:
    """Return the BACE compounds on which the trial has tested the primary method."""
    split = gx.load("bace").origin.metadata["split"]["test"]
    return set(np.random.default_rng(TRIAL).permutation(split)[60:].tolist())


def trial_images() -> set[int]:
    """Return the MNIST test images on which the trial has tested the primary method."""
    return set(np.random.default_rng(TRIAL).permutation(10_000)[6_000:6_064].tolist())
