"""Write the compounds that the bundled model `bace` was trained on beside its checkpoint.

    python benchmarks/bace_training_compounds.py

Reads MoleculeNet's BACE (downloaded, or from $GRAPHXAI_DATA) and the positions of the training
part in the checkpoint's metadata; writes canonical SMILES to `training.csv`, one a row, as
`graphxai train bace` does.
"""

import graphxai
from graphxai.datasets.molecules import load_bace
from graphxai.models.graphormer.recipes.bace import write_training_compounds


def main() -> None:
    origin = graphxai.load("bace").origin
    chosen = origin.metadata["split"]["train"]
    print(write_training_compounds(origin.folder, load_bace(), chosen))


if __name__ == "__main__":
    main()
