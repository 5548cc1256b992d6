"""Measure what the bundled models' training sets look like, and store it next to their weights.

    python benchmarks/training_statistics.py [--data FOLDER]

What the heads attend to gives the masks of `masked_lrp`; the mean node is the baseline of
`lrp` with `baseline="mean"`. These use no labels. The intervals around BACE's predictions come from
the errors on its validation compounds, and their coverage on the test compounds enters its card.
"""

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

import torch

import graphxai
from graphxai.contract.inputs import prepare
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.splits import Split
from graphxai.datasets.writing import write_whole
from graphxai.explainers import head_statistics
from graphxai.models.graphormer import locate, measure_mean_node
from graphxai.models.graphormer.checkpoint import (
    CARD,
    CONFIG,
    read_config,
    save_conformal,
    save_mean_node,
)
from graphxai.models.graphormer.recipes.bace import uncertainty
from graphxai.models.graphormer.training.conformal import calibrate
from graphxai.models.graphormer.training.loading import encode_all

IMAGES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="data folder (default: $GRAPHXAI_DATA)")
    root = parser.parse_args().data

    molecules = load_bace(root, canonical=True)
    split = graphxai.load("bace").origin.metadata["split"]
    training = [molecules[k].smiles for k in split["train"]]
    store("bace", training, f"the {len(training)} training molecules of MoleculeNet's BACE")

    store_intervals(root)

    images, _ = load_mnist(root, "train", limit=IMAGES)
    store("mnist-superpixels", list(images), f"{IMAGES} training images of MNIST")


def store_intervals(root: str | None) -> None:
    """Store BACE's conformal scores beside its weights, and their coverage in config and card."""
    model, folder = graphxai.load("bace"), locate("bace")
    graphs = load_bace(root, canonical=True)
    labels = torch.cat([graph.y for graph in graphs]).double().numpy()
    split = Split.from_json(json.dumps(model.origin.metadata["split"]))
    coverage = calibrate(model, encode_all(graphs, model.config), labels, split)
    print(save_conformal(model, folder))
    content = read_config(folder)
    content["metadata"]["coverage"] = coverage
    write_whole(folder / CONFIG, json.dumps(content, indent=1) + "\n")
    card = (folder / CARD).read_text(encoding="utf-8")
    before, rest = re.split(r"\*\*Uncertainty\.\*\*|(?=\*\*Limits\.\*\*)", card, maxsplit=1)
    after = rest[rest.index("**Limits.**") :]
    print(write_whole(folder / CARD, f"{before}{uncertainty(coverage)}\n{after}"))


def store(name: str, inputs: Sequence[Any], text: str) -> None:
    """Measure a bundled model on inputs of its training set, described by text."""
    model, folder = graphxai.load(name), locate(name)
    print(head_statistics(model, inputs, data=text).save(folder))
    measure_mean_node(model, [prepare(model.config, value).data for value in inputs])
    print(save_mean_node(model, folder))


if __name__ == "__main__":
    main()
