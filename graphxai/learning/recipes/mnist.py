"""The recipe of the bundled model `mnist-superpixels`: digits as graphs of superpixels."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.deformations import deform
from graphxai.datasets.mnist import load_mnist, mnist_files
from graphxai.datasets.splits import Split
from graphxai.datasets.superpixels import images_to_data
from graphxai.learning import conformal
from graphxai.learning.card import coverage_text
from graphxai.learning.fit import fit, require_hardware
from graphxai.learning.predicting import predict
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    StructureEncoding,
    measure_mean_node,
    save_checkpoint,
)

NUM_TRAIN = 10_000
CLASSES = tuple("0123456789")
DEFORMED = 500  # images at a time


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


def train_mnist(
    out: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    resume: bool = False,
    epochs: int = 4,
    versions: int = 10,
    batch_size: int = 32,
    learning_rate: float = 2e-3,
    num_train: int = NUM_TRAIN,
    num_test: int | None = None,
    config: GraphormerConfig | None = None,
    accelerator: str = "auto",
    devices: int | str = 1,
    precision: str | None = None,
    progress: bool = True,
) -> Path:
    """Train a Graphormer on MNIST superpixels and score it on the official test set.

    The last tenth of the first `num_train` training images is held out for validation. Every other
    image is used in `versions` versions: unchanged, and randomly deformed before segmentation. The
    averaged weights of the epoch with the best validation accuracy are kept, their outputs are
    scaled by one number (temperature) fitted on validation data, and scored once on test data.

    Args:
        out: folder of the run; the checkpoint is its sub-folder `model`.
        root: folder that contains `mnist/`; see `graphxai.datasets.mnist.load_mnist`.
        seed: seed for the weights, the order of the graphs and the deformations.
        resume: continue an interrupted run in `out`.
        epochs: passes over all versions of all images.
        versions: versions of each training image.
        batch_size: graphs per step.
        learning_rate: AdamW's learning rate after the warm-up.
        num_train: number of training images, validation included.
        num_test: number of test images; None means all.
        config: configuration of the model; None means the bundled model's.
        accelerator: Lightning's.
        devices: Lightning's.
        precision: Lightning's, such as "32-true" or "bf16-mixed"; None means the recipe's.
        progress: whether to show progress bars.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        DownloadError: the data are missing and cannot be downloaded.
        ValueError: `out` already contains a run and `resume` is False, or too few images.
    """
    require_hardware(accelerator, devices, precision)
    out = Path(out)
    if (out / "state").exists() and not resume:
        raise ValueError(
            f"{out} already contains a run: resume it (resume=True, --resume) or choose another"
            " folder."
        )
    if versions < 1 or num_train < 20:
        raise ValueError("versions must be at least 1 and num_train at least 20.")
    config = config or mnist_config()
    images, labels = load_mnist(root, "train", limit=num_train)
    held_out = max(1, len(images) // 10)
    cut = len(images) - held_out
    valid = list(_graphs(images[cut:], labels[cut:], config, "validation graphs", progress))
    train: list[Data] = []
    for version in range(versions):
        chosen = images[:cut] if version == 0 else _deformed(images[:cut], 1000 * seed + version)
        title = f"training graphs, version {version + 1} of {versions}"
        train += _graphs(chosen, labels[:cut], config, title, progress)

    settings = TrainingSettings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=0.02,
        warmup=0.05,
        ema_decay=0.999,
        label_smoothing=0.05,
        seed=seed,
        accelerator=accelerator,
        devices=devices,
        precision=precision or TrainingSettings.precision,
        progress=progress,
    )
    torch.manual_seed(seed)
    result = fit(Graphormer(config), train, valid, settings, out)
    model = result.model.cpu()
    temperature = calibrate(model, predict(model, valid), torch.from_numpy(labels[cut:]))

    images, digits = load_mnist(root, "test", limit=num_test)
    test = list(_graphs(images, digits, config, "test graphs", progress))
    figures = measure(predict(model, test), torch.from_numpy(digits))
    answers = np.concatenate([labels[cut:], digits])
    coverage = conformal.calibrate(model, [*valid, *test], *conformal_parts(answers, held_out))
    metadata = {
        "dataset": "mnist-superpixels",
        "files": _checksums(root),
        "train_images": cut,
        "validation_images": held_out,
        "test_images": len(test),
        "versions": versions,
        "training": asdict(settings),
        "best_epoch": result.epoch,
        "validation_accuracy": next(iter(result.scores.values()), math.nan),
        "temperature": temperature,
        "test": figures,
        "coverage": coverage,
        "summary": f"accuracy {figures['accuracy']:.4f}",
    }
    measure_mean_node(model, train)
    return save_checkpoint(model, out / "model", card=_card(model, metadata), metadata=metadata)


def conformal_parts(digits: np.ndarray, held_out: int) -> tuple[np.ndarray, Split]:
    """Return labels (n, 1) of validation images, then test images, and where they are."""
    chosen = tuple(range(len(digits)))
    return digits[:, None].astype(float), Split((), chosen[:held_out], chosen[held_out:])


def calibrate(model: Graphormer, outputs: Tensor, y: Tensor) -> float:
    """Divide the head's weights by the temperature that minimises the cross-entropy.

    The outputs (G, C) are the model's, for graphs that it was not trained on, and y (G,) are their
    classes. The predicted classes stay the same. The temperature is returned.

    Source: Guo et al., ICML 2017.
    """
    grid = torch.logspace(-1, 1, 401)
    losses = torch.stack([F.cross_entropy(outputs / t, y) for t in grid])
    temperature = float(grid[losses.argmin()])
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.div_(temperature)
    return temperature


def measure(outputs: Tensor, y: Tensor, bins: int = 15) -> dict[str, Any]:
    """Compute accuracy with a 95 % interval (Wilson), cross-entropy, calibration, confusions.

    The outputs (G, C) are logits, and y (G,) are classes. `ece` is the expected calibration error
    over `bins` equal bins of the confidence. `confused` lists the five most frequent confusions as
    (true, predicted, count).
    """
    confidence, predicted = outputs.softmax(-1).max(-1)
    right = (predicted == y).double()
    n, p, z = len(y), float(right.mean()), 1.959964
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    interval = [(middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)]
    index = (confidence * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.double).index_add_(0, index, right - confidence.double())
    classes = outputs.shape[1]
    table = torch.bincount(y * classes + predicted, minlength=classes * classes)
    table = table.reshape(classes, classes)
    wrong = table - torch.diag(table.diag())
    worst = wrong.flatten().argsort(descending=True, stable=True)[:5].tolist()
    return {
        "accuracy": p,
        "interval": interval,
        "cross_entropy": float(F.cross_entropy(outputs, y)),
        "ece": float(gap.abs().sum() / n),
        "recall": (table.diag() / table.sum(1).clamp(min=1)).tolist(),
        "confused": [[k // classes, k % classes, int(wrong.flatten()[k])] for k in worst],
    }


def _deformed(images: np.ndarray, seed: int) -> np.ndarray:
    """Return randomly deformed images."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.from_numpy(images).float().div(255).split(DEFORMED)
    return torch.cat([deform(part, generator) for part in parts]).numpy()


def _graphs(
    images: np.ndarray, labels: np.ndarray, config: GraphormerConfig, title: str, progress: bool
) -> Iterator[Data]:
    """Yield encoded graphs without the data needed only for drawing, so that many fit in memory."""
    encode = StructureEncoding.from_config(config)
    weight = torch.ones(1)
    for graph in _tracked(images_to_data(images, labels), len(images), title, progress):
        graph = encode(graph)
        del graph.image, graph.segments, graph.edge_index
        n = int(graph.num_nodes or 0)  # edges have no features: every bag has one code
        graph.bag_weights = weight.expand(n * n)
        graph.bag_sizes = weight.short().expand(n, n)
        yield graph


def _tracked(items: Iterable[Data], total: int, title: str, progress: bool) -> Iterable[Data]:
    """Show a bar while items are taken, if progress is wanted."""
    if not progress:
        return items
    from rich.progress import track

    return track(items, title, total)


def _checksums(root: str | os.PathLike[str] | None) -> dict[str, str]:
    """Return the MD5 of the files read, which are published with MNIST."""
    paths = [*mnist_files(root, "train"), *mnist_files(root, "test")]
    return {
        path.name: hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        for path in paths
    }


def uncertainty(coverage: dict[str, Any]) -> str:
    """Return the paragraph of the card on sets of digits."""
    return f"""**Uncertainty.** Conformal sets of digits, made from the validation images. On test
images:

{coverage_text(coverage, {})}
"""


def _command(metadata: dict[str, Any]) -> str:
    """Return the command with the settings of this run that are not the recipe's."""
    training = metadata["training"]
    recipe = inspect.signature(train_mnist).parameters
    used = {
        "num_train": metadata["train_images"] + metadata["validation_images"],
        "versions": metadata["versions"],
        "epochs": training["epochs"],
        "seed": training["seed"],
    }
    options = [
        f" --{name.replace('_', '-')} {value}"
        for name, value in used.items()
        if value != recipe[name].default
    ]
    return f"graphxai train mnist-superpixels --out runs/mnist{''.join(options)}"


def _card(model: Graphormer, metadata: dict[str, Any]) -> str:
    """Return the model card."""
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
{metadata["train_images"]:,} were used in {metadata["versions"]} versions: unchanged, and rotated,
scaled, sheared, shifted and elastically deformed before segmentation. The
{metadata["test_images"]:,} test images are the official ones. They were used only for the
figures below.

## Training
`{_command(metadata)}`

Seed {training["seed"]}; AdamW, learning rate {training["learning_rate"]:g}, batches of
{training["batch_size"]}, {training["epochs"]} passes over all versions, averaged weights (decay
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
Most frequent confusions: {pairs}.

## Limits
The model expects bright ink on a dark background, centred, in 28 x 28 pixels.
`graphxai.datasets.mnist.read_digit` converts other pictures to this form. Segmentations other than
the SLIC of `graphxai.datasets.superpixels` (such as PyG's `MNISTSuperpixels`) were not measured.
"""
