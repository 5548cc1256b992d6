"""Measure what the bundled models' training sets look like, and store it next to their weights.

    python benchmarks/training_statistics.py [--data FOLDER]

What the heads attend to gives the masks of `masked_lrp`; the mean node is the baseline of
`lrp` with `baseline="mean"`. No labels are used.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import graphxai
from graphxai.contract.inputs import prepare
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.explainers import head_statistics
from graphxai.models.graphormer import locate, measure_mean_node
from graphxai.models.graphormer.checkpoint import save_mean_node

IMAGES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="data folder (default: $GRAPHXAI_DATA)")
    root = parser.parse_args().data

    molecules = load_bace(root, canonical=True)
    split = graphxai.load("bace").origin.metadata["split"]
    training = [molecules[k].smiles for k in split["train"]]
    store("bace", training, f"the {len(training)} training molecules of MoleculeNet's BACE")

    images, _ = load_mnist(root, "train", limit=IMAGES)
    store("mnist-superpixels", list(images), f"{IMAGES} training images of MNIST")


def store(name: str, inputs: Sequence[Any], text: str) -> None:
    """Measure a bundled model on inputs of its training set, described by text."""
    model, folder = graphxai.load(name), locate(name)
    print(head_statistics(model, inputs, data=text).save(folder))
    measure_mean_node(model, [prepare(model.config, value).data for value in inputs])
    print(save_mean_node(model, folder))


if __name__ == "__main__":
    main()
