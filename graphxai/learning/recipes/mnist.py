"""The recipe of the bundled model `mnist-superpixels`: digits as graphs of superpixels."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import binomtest
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.prediction_metrics import calibration_error
from graphxai.contract.tasks import Task
from graphxai.datasets.mnist import deform, load_mnist, mnist_files
from graphxai.datasets.splits import Split
from graphxai.datasets.superpixels import images_to_data
from graphxai.learning import conformal
from graphxai.learning.calibration import best_temperature, scale_logits
from graphxai.learning.card import coverage_text
from graphxai.learning.fit import fit, require_hardware, require_new
from graphxai.learning.predicting import predict
from graphxai.learning.removal import removal_facts, removal_text
from graphxai.learning.settings import DIGIT_EPOCHS, DigitSettings, TrainingSettings, repeating
from graphxai.learning.splitting import Source
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    StructureEncoding,
    measure_mean_node,
    save_checkpoint,
)
from graphxai.runtime.options import call_of, changes, with_options, written
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.randomness import callers_state_kept

RECIPE = TrainingSettings(
    epochs=DIGIT_EPOCHS, weight_decay=0.02, warmup=0.05, ema_decay=0.999, label_smoothing=0.05
)
CLASSES = tuple("0123456789")
DEFORM_CHUNK = 500  # images at a time


def mnist_config(**changes: Any) -> GraphormerConfig:
    """Return the bundled model's configuration, with changes to fields of `GraphormerConfig`."""
    values: dict[str, Any] = {
        "tasks": (Task("digit", "multiclass", CLASSES),),
        "num_layers": 3,
        "hidden_dim": 96,
        "ffn_dim": 192,
        "num_heads": 8,
        "num_node_features": 1,
        "node_feature_names": ("intensity",),
        "position_bands": 4,
        "position_bias_bands": 3,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return GraphormerConfig(**{**values, **changes})


@callers_state_kept()
def train_mnist(
    out: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    config: GraphormerConfig | None = None,
    settings: DigitSettings | None = None,
    **options: Any,
) -> Path:
    """Train a Graphormer on MNIST superpixels and score it on the official test set.

    The last tenth of the training images is held out for validation. Every other image is used in
    several versions: unchanged, and randomly deformed before segmentation. The
    averaged weights of the epoch with the best validation accuracy are kept. Their outputs are
    divided by a temperature fitted on validation data, and scored once on test data.

    Args:
        out: folder of the run; the checkpoint is its sub-folder `model`.
        root: folder that contains `mnist/`; see `graphxai.datasets.mnist.load_mnist`.
        config: configuration of the model; None means the bundled model's.
        settings: settings of the run, by default `DigitSettings()`. Their seed is also that of the
            deformations.
        options: fields of `DigitSettings` to change, such as `versions=2` or `resume=True`.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        DownloadError: the data are missing and cannot be downloaded.
        TypeError: there is no such option.
        ValueError: `out` already contains a run and `resume` is False, or too few images.
    """
    settings = with_options(settings or DigitSettings(), options, "train_mnist")
    require_hardware(settings)
    out, progress = Path(out), settings.progress
    require_new(out, resume=settings.resume)
    config = config or mnist_config()
    images, labels = load_mnist(root, "train", limit=settings.num_train)
    held_out = max(1, len(images) // 10)
    cut = len(images) - held_out
    valid = list(_graphs(images[cut:], labels[cut:], config, "validation graphs", progress))
    train = _training_graphs(images[:cut], labels[:cut], config, settings)
    training = replace(
        RECIPE.for_run(settings),
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
    )
    torch.manual_seed(settings.seed)
    result = fit(Graphormer(config), train, valid, training, out)
    model = result.model.cpu()
    temperature = calibrate(model, predict(model, valid), torch.from_numpy(labels[cut:]))

    images, digits = load_mnist(root, "test", limit=settings.num_test)
    test = list(_graphs(images, digits, config, "test graphs", progress))
    figures = measure(predict(model, test), torch.from_numpy(digits))
    answers = np.concatenate([labels[cut:], digits])
    coverage = conformal.calibrate(
        model, Source([*valid, *test], *conformal_parts(answers, held_out), config)
    )
    metadata = {
        "dataset": "mnist-superpixels",
        "files": {  # with their MD5, which is published with MNIST
            path.name: hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            for path in (*mnist_files(root, "train"), *mnist_files(root, "test"))
        },
        "train_images": cut,
        "validation_images": held_out,
        "test_images": len(test),
        "versions": settings.versions_used,
        "training": asdict(training),
        "best_epoch": result.epoch,
        "validation_accuracy": next(iter(result.scores.values()), math.nan),
        "temperature": temperature,
        "test": figures,
        "coverage": coverage,
        "summary": f"accuracy {figures['accuracy']:.4f}",
    }
    metadata["removal"] = removal_facts(model, test, digits[:, None].astype(float))
    measure_mean_node(model, train)
    card = _card(model, metadata, _command(config, settings, cut + held_out))
    return save_checkpoint(model, out / "model", card=card, metadata=metadata)


def _training_graphs(
    images: np.ndarray, labels: np.ndarray, config: GraphormerConfig, settings: DigitSettings
) -> list[Data]:
    """Return the graphs of images in all their versions, of which the first is unchanged."""
    graphs: list[Data] = []
    versions = settings.versions_used
    for version in range(versions):
        chosen = images
        if version:
            generator = torch.Generator().manual_seed(1000 * settings.seed + version)
            parts = torch.from_numpy(images).float().div(255).split(DEFORM_CHUNK)
            chosen = torch.cat([deform(part, generator) for part in parts]).numpy()
        title = f"training graphs, version {version + 1} of {versions}"
        graphs += _graphs(chosen, labels, config, title, settings.progress)
    return graphs


def conformal_parts(digits: np.ndarray, held_out: int) -> tuple[np.ndarray, Split]:
    """Return the labels (n, 1) of validation images, then test images, and their positions."""
    chosen = tuple(range(len(digits)))
    return digits[:, None].astype(float), Split((), chosen[:held_out], chosen[held_out:])


def calibrate(model: Graphormer, outputs: Tensor, y: Tensor) -> float:
    """Divide the head's weights by the temperature that minimises the cross-entropy.

    The outputs (G, C) are the model's, for graphs that it was not trained on, and y (G,) are their
    classes. The predicted classes stay the same. The temperature is returned.

    Source: Guo et al., ICML 2017.
    """
    grid = torch.logspace(-1, 1, 401)
    temperature = best_temperature(lambda t: F.cross_entropy(outputs / t, y), grid)
    scale_logits(model, slice(None), temperature)
    return temperature


def measure(outputs: Tensor, y: Tensor) -> dict[str, Any]:
    """Compute accuracy with a 95 % interval (Wilson), cross-entropy, calibration, confusions.

    The outputs (G, C) are logits, and y (G,) are classes. `ece` is the expected calibration error
    over 15 equal bins of the confidence. `confused` lists the five most frequent confusions as
    (true, predicted, count).
    """
    from sklearn.metrics import confusion_matrix

    right, classes = outputs.argmax(-1) == y, outputs.shape[1]
    interval = binomtest(int(right.sum()), len(y)).proportion_ci(method="wilson")
    table = confusion_matrix(y, outputs.argmax(-1), labels=range(classes))  # (true, predicted)
    wrong = (table - np.diag(table.diagonal())).ravel()
    worst = (-wrong).argsort(kind="stable")[:5].tolist()
    return {
        "accuracy": float(right.double().mean()),
        "interval": [float(interval.low), float(interval.high)],
        "cross_entropy": float(F.cross_entropy(outputs, y)),
        "ece": calibration_error(outputs.double().softmax(-1).numpy(), y.numpy(), bins=15),
        "recall": (table.diagonal() / table.sum(1).clip(min=1)).tolist(),
        "confused": [[k // classes, k % classes, int(wrong[k])] for k in worst],
    }


def _graphs(
    images: np.ndarray, labels: np.ndarray, config: GraphormerConfig, title: str, progress: bool
) -> Iterator[Data]:
    """Yield encoded graphs without the data needed only for drawing, so that many fit in memory."""
    encode = StructureEncoding.from_config(config)
    weight = torch.ones(1)
    with progress_bar(title, len(images), show=None if progress else False) as advance:
        for graph in images_to_data(images, labels):
            graph = encode(graph)
            del graph.image, graph.segments, graph.edge_index
            n = int(graph.num_nodes or 0)  # edges have no features: every bag has one code
            graph.bag_weights = weight.expand(n * n)
            graph.bag_sizes = weight.short().expand(n, n)
            advance(1)
            yield graph


def uncertainty(coverage: dict[str, Any]) -> str:
    """Return the paragraph of the card on sets of digits."""
    return f"""**Uncertainty.** Conformal sets of digits, made from the validation images. On test
images:

{coverage_text(coverage, {})}
"""


def _command(config: GraphormerConfig, settings: DigitSettings, images: int) -> str:
    """Return the line that repeats a run on this many images, with what is not the recipe's."""
    settings = replace(settings, num_train=images)
    differing = written(changes(config, mnist_config()))
    model = {"config": call_of("mnist_config", (), differing)} if differing else {}
    return repeating("mnist-superpixels", "train_mnist", settings, **model)


def _card(model: Graphormer, metadata: dict[str, Any], command: str) -> str:
    """Return the model card, with the command that repeats the run."""
    test, config = metadata["test"], model.config
    low, high = test["interval"]
    training = metadata["training"]
    size = sum(parameter.numel() for parameter in model.parameters())
    files = "\n".join(f"* `{name}` (MD5 {md5})" for name, md5 in metadata["files"].items())
    pairs = "; ".join(f"{a} taken for {b}: {k}" for a, b, k in test["confused"] if k)
    recall = "; ".join(
        f"{name}: {100 * r:.1f} %" for name, r in zip(CLASSES, test["recall"], strict=True)
    )
    note = (
        """
`train10k-*` are the first 10,000 official training images in another order. With the official
files, the same images are used, but a different tenth of them is held out.
"""
        if any(name.startswith("train10k") for name in metadata["files"])
        else ""
    )
    versions = (
        f"""in {metadata["versions"]} versions: unchanged, and rotated,
scaled, sheared, shifted and elastically deformed before segmentation."""
        if metadata["versions"] > 1
        else "unchanged."
    )
    passes = f"{training['epochs']} pass{'' if training['epochs'] == 1 else 'es'}"
    passes += " over all versions" if metadata["versions"] > 1 else " over the images"
    return f"""# mnist-superpixels

A Graphormer that reads a handwritten digit as a graph of about 75 superpixels: {config.num_layers}
layers, width {config.hidden_dim}, {config.num_heads} heads, {size:,} parameters. Node features
are mean intensity and centroid, Fourier features of the centroid, and their products with the
intensity. Edges join superpixels that touch.

## Data
{files}
{note}
Of the first {metadata["train_images"] + metadata["validation_images"]:,} training images, the last
{metadata["validation_images"]:,} were held out for validation. The other
{metadata["train_images"]:,} were used {versions} The
{metadata["test_images"]:,} test images are the official ones. They were used only for the
figures below.

## Training
`{command}`

Seed {training["seed"]}; AdamW, learning rate {training["learning_rate"]:g}, batches of
{training["batch_size"]}, {passes}, averaged weights (decay
{training["ema_decay"]}), label smoothing {training["label_smoothing"]}. Epochs and temperature
({metadata["temperature"]:.3f}, folded into the read-out) were chosen on validation data, where
the accuracy is {100 * metadata["validation_accuracy"]:.2f} %.

## Test
| | |
|---|---|
| accuracy | {100 * test["accuracy"]:.2f} % (95 % interval {100 * low:.2f} to {100 * high:.2f} %) |
| cross-entropy | {test["cross_entropy"]:.4f} |
| expected calibration error, 15 bins | {test["ece"]:.4f} |

Recall: {recall}.

{uncertainty(metadata["coverage"])}
{removal_text(metadata["removal"], trained=training["bears_removal"])}

Most frequent confusions: {pairs}.

## Limits
The model expects bright ink on a dark background, centred, in 28 x 28 pixels.
`graphxai.datasets.mnist.read_digit` converts other pictures to this form. Segmentations other than
the SLIC of `graphxai.datasets.superpixels` (such as PyG's `MNISTSuperpixels`) were not measured.
"""
