"""Write the training compounds of the bundled model `bace` next to its checkpoint.

    python benchmarks/bace_training_compounds.py

Reads MoleculeNet's BACE (downloaded, or from $GRAPHXAI_DATA) and the positions of the training
part from the checkpoint's metadata. Writes canonical SMILES to `training.csv`, one per row, and the
other compounds with their part to `held_out.csv`, as `graphxai train bace` does.
"""

import json

import graphxai
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.splits import Split
from graphxai.learning.recipes.bace import write_training_compounds


def main() -> None:
    origin = graphxai.load("bace").origin
    parts = Split.from_json(json.dumps(origin.metadata["split"]))
    print(write_training_compounds(origin.folder, load_bace(), parts))


if __name__ == "__main__":
    main()
