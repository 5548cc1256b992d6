"""Measure what the heads of the bundled models attend to, and store it next to their weights.

    python benchmarks/head_statistics.py [--data FOLDER]

The masks of `masked_lrp` come from these files. No labels are used.
"""

import argparse

import graphxai
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.explainers import head_statistics
from graphxai.models.graphormer import locate

IMAGES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="data folder (default: $GRAPHXAI_DATA)")
    root = parser.parse_args().data

    model = graphxai.load("bace")
    molecules = load_bace(root, canonical=True)
    training = [molecules[k].smiles for k in model.origin.metadata["split"]["train"]]
    text = f"the {len(training)} training molecules of MoleculeNet's BACE"
    print(head_statistics(model, training, data=text).save(locate("bace")))

    model = graphxai.load("mnist-superpixels")
    images, _ = load_mnist(root, "train", limit=IMAGES)
    text = f"{IMAGES} training images of MNIST"
    print(head_statistics(model, list(images), data=text).save(locate("mnist-superpixels")))


if __name__ == "__main__":
    main()
