"""Measure what the bundled models' training sets look like, and store it next to their weights.

    python benchmarks/training_statistics.py [--data FOLDER]

The masks of `masked_lrp` come from what the heads attend to. The mean node is the baseline of `lrp`
with `baseline="mean"`. Both use no labels. Intervals and sets of classes come from errors on the
validation part. The card says how often they hold on the test part.
"""

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import graphxai
from graphxai.contract.checkpoint_files import CARD, read_config, save_conformal, weights_digest
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.splits import Split
from graphxai.explainers import head_statistics
from graphxai.learning.conformal import calibrate
from graphxai.learning.predicting import encode_all
from graphxai.learning.recipes import bace, mnist
from graphxai.learning.settings import DigitSettings
from graphxai.learning.splitting import Source
from graphxai.models.graphormer import CONFIG, locate, measure_mean_node
from graphxai.models.graphormer.checkpoint import save_mean_node
from graphxai.runtime.writing import write_whole

IMAGES = 500
DIGITS = "mnist-superpixels"
VALIDATION, TESTED = 1000, 2000  # images held out of the training images, and of the test images


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="data folder (default: $GRAPHXAI_DATA)")
    root = parser.parse_args().data
    store_bace(root)
    store_digits(root)


def store_bace(root: str | None) -> None:
    molecules = load_bace(root, canonical=True, standardise=bace.STANDARDISED)
    split = graphxai.load("bace").origin.metadata["split"]
    training = [molecules[k].smiles for k in split["train"]]
    store("bace", training, f"the {len(training)} training molecules of MoleculeNet's BACE")

    labels = torch.cat([molecule.y for molecule in molecules]).double().numpy()
    parts = Split.from_json(json.dumps(split))
    encoded = encode_all(molecules, graphxai.load("bace").config)
    store_coverage("bace", encoded, labels, parts, bace.uncertainty)


def store_digits(root: str | None) -> None:
    images_read = DigitSettings().num_train
    held_out, digits = (part[-VALIDATION:] for part in load_mnist(root, "train", limit=images_read))
    tested, more = load_mnist(root, "test", limit=TESTED)
    encoded = [graphxai.load(DIGITS).prepare(image).data for image in (*held_out, *tested)]
    y, parts = mnist.conformal_parts(np.concatenate([digits, more]), VALIDATION)
    store_coverage(DIGITS, encoded, y, parts, mnist.uncertainty)

    images, _ = load_mnist(root, "train", limit=IMAGES)
    store(DIGITS, list(images), f"{IMAGES} training images of MNIST")


def store_coverage(name: str, encoded: list[Any], y: Any, parts: Split, paragraph: Any) -> None:
    """Store a model's conformal scores beside its weights, their coverage in its config and card.

    Args:
        name: name of the model.
        encoded: the encoded graphs.
        y: their labels (n, tasks).
        parts: positions of the validation and test graphs.
        paragraph: a function that makes the card's paragraph on the coverage.
    """
    model, folder = graphxai.load(name), locate(name)
    coverage = calibrate(model, Source(encoded, y, parts, model.config))
    print(save_conformal(model.conformal, folder, weights_digest(folder)))
    content = read_config(folder)
    content["metadata"]["coverage"] = coverage
    write_whole(folder / CONFIG, json.dumps(content, indent=1) + "\n")
    card = (folder / CARD).read_text(encoding="utf-8")
    place = r"(\*\*Uncertainty\.\*\*.*)?(?=\*\*Limits\.\*\*|## Limits)"
    card = re.sub(place, lambda _: f"{paragraph(coverage)}\n", card, count=1, flags=re.S)
    print(write_whole(folder / CARD, card))


def store(name: str, inputs: Sequence[Any], text: str) -> None:
    """Measure a bundled model on inputs of its training set, described by text."""
    model, folder = graphxai.load(name), locate(name)
    print(head_statistics(model, inputs, data=text).save(folder))
    measure_mean_node(model, [model.prepare(value).data for value in inputs])
    print(save_mean_node(model, folder))


if __name__ == "__main__":
    main()
