"""Train a small chemprop network on the solubility of ESOL, and measure which methods explain it.

    python benchmarks/chemprop_methods.py OUT --epochs 30

The table is the training set of the bundled model `solubility`. Of its 893 compounds, 94 drawn at
random are held out, and every method is measured on the first 60 of these that have five atoms or
more. OUT gets the networks, and a report for each way of passing messages.
"""

import argparse
import logging
import warnings
from pathlib import Path

import pandas as pd
import torch
from chemprop import data, models, nn
from lightning import pytorch as pl
from rdkit import Chem

import graphxai as gx
from graphxai.models.graphormer import PRETRAINED

TABLES = PRETRAINED / "solubility"
VALUE = "solubility (log mol/L)"
METHODS = (
    "lrp", "lrp_zplus", "gradient_input", "integrated_gradients", "saliency", "occlusion",
    "shapley_sampling", "random",
)  # fmt: skip
METRICS = ("au_mse", "srg")
HELD_OUT = 94


def trained(passing: str, table: pd.DataFrame, epochs: int, out: Path) -> Path:
    """Train a network as the notebooks of chemprop do, and return its file."""
    torch.manual_seed(0)
    points = [
        data.MoleculeDatapoint.from_smi(smiles, [value])
        for smiles, value in zip(table["smiles"], table[VALUE], strict=True)
    ]
    dataset = data.MoleculeDataset(points)
    unscale = nn.UnscaleTransform.from_standard_scaler(dataset.normalize_targets())
    network = models.MPNN(
        getattr(nn, f"{passing}MessagePassing")(d_h=128),
        nn.MeanAggregation(),
        nn.RegressionFFN(input_dim=128, hidden_dim=128, output_transform=unscale),
    )
    trainer = pl.Trainer(
        max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(network, data.build_dataloader(dataset, batch_size=64, num_workers=0, seed=0))
    path = out / f"{passing.lower()}.pt"
    models.save_model(path, network, [VALUE])
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--molecules", type=int, default=60)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    options.out.mkdir(parents=True, exist_ok=True)
    table = pd.read_csv(TABLES / "training.csv").sample(frac=1, random_state=0)
    held_out, training = table[:HELD_OUT], table[HELD_OUT:]
    atoms = held_out["smiles"].map(lambda smiles: Chem.MolFromSmiles(smiles).GetNumAtoms())
    smiles = held_out.loc[atoms >= 5, "smiles"].tolist()[: options.molecules]
    for passing in ("Bond", "Atom"):
        model = gx.load(trained(passing, training, options.epochs, options.out))
        predicted = [p[VALUE].value for p in gx.predict(model, held_out["smiles"].tolist())]
        error = float(((held_out[VALUE] - predicted) ** 2).mean() ** 0.5)
        print(f"{passing}: RMSE {error:.2f} on {len(held_out)} held-out compounds", flush=True)
        report = gx.evaluate(
            model, smiles, METHODS, metrics=METRICS, operators=("mask", "zero"), steps=11
        )
        report.save(options.out / passing.lower())


if __name__ == "__main__":
    main()
