"""GPS (Rampasek 2022) for BACE and MNIST superpixels, as wrapped models, trained here.

Two layers of width 64: a GINE convolution and global attention side by side, batch normalisation,
mean pooling. Trained by AdamW with a one-cycle schedule; the epoch with the best validation loss is
kept. The weights lie beside a card with split, seed, validation loss and accuracy.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ogb.graphproppred.mol_encoder import AtomEncoder, BondEncoder
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv, global_mean_pool

import graphxai as gx
from graphxai.adapters import WrappedModel
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace, molecule_to_data
from graphxai.datasets.splits import random_split
from graphxai.datasets.superpixels import image_to_data

WIDTH, LAYERS, HEADS = 64, 2, 4
EPOCHS = {"bace": 25, "mnist": 8}
IMAGES = 6_000  # training images of MNIST, of which the last tenth are for validation
BATCH = 32
CLASSES = {"bace": ("inactive", "active"), "mnist": tuple("0123456789")}


class EdgeGps(nn.Module):
    """Outputs (B, outputs) from node and edge features, which `nodes` and `edges` embed."""

    def __init__(self, nodes: nn.Module, edges: nn.Module, outputs: int) -> None:
        super().__init__()
        self.nodes, self.edges = nodes, edges
        self.layers = nn.ModuleList(
            GPSConv(WIDTH, GINEConv(_mlp()), heads=HEADS, dropout=0.1, act="gelu")
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        h, e = self.nodes(x), self.edges(edge_attr)
        for layer in self.layers:
            h = layer(h, edge_index, batch, edge_attr=e)
        return self.head(global_mean_pool(h, batch))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


def new_model(name: str) -> EdgeGps:
    if name == "bace":
        return EdgeGps(AtomEncoder(WIDTH), BondEncoder(WIDTH), 1)
    return EdgeGps(nn.Linear(3, WIDTH), nn.Linear(2, WIDTH), 10)


def digit_graph(image: Any) -> Data:
    """Return a graph of superpixels.

    x (N, 3): intensity and place. edge_attr (E, 2): the difference of two places.
    """
    found = image_to_data(image)
    start, end = found.edge_index
    x = torch.cat([found.x, found.pos], dim=1).float()
    way = (found.pos[end] - found.pos[start]).float()
    return Data(x=x, edge_index=found.edge_index, edge_attr=way, num_nodes=len(x))


def wrapped(module: EdgeGps, name: str) -> WrappedModel:
    return gx.wrap(
        module.eval(),
        kind="binary" if name == "bace" else "multiclass",
        classes=CLASSES[name],
        task="BACE-1" if name == "bace" else "digit",
        embedding="nodes",
        featurize=molecule_to_data if name == "bace" else digit_graph,
        name=f"gps-{name}",
    )


def load_gps(folder: Path, name: str) -> tuple[WrappedModel, dict[str, Any]]:
    """Return the wrapped model and its card."""
    module = new_model(name)
    module.load_state_dict(load_file(folder / "model.safetensors"))
    return wrapped(module, name), json.loads((folder / "card.json").read_text())


def train_gps(folder: Path, name: str, seed: int = 0) -> Path:
    """Train on the training part, unless the model is there already."""
    if (folder / "card.json").exists():
        return folder
    torch.manual_seed(seed)
    train, valid, split = _bace(seed) if name == "bace" else _digits()
    module = new_model(name)
    steps = EPOCHS[name] * -(-len(train) // BATCH)
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    best, kept = float("inf"), module.state_dict()
    for epoch in range(EPOCHS[name]):
        module.train()
        for rows in torch.randperm(len(train)).split(BATCH):
            optimizer.zero_grad()
            _loss(module, [train[k] for k in rows.tolist()]).backward()
            optimizer.step()
            schedule.step()
        found = _validated(module, valid)
        print(f"gps-{name} epoch {epoch + 1}: validation loss {found:.3f}", flush=True)
        if found < best:
            best, kept = found, {k: v.clone() for k, v in module.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(kept, folder / "model.safetensors")
    module.load_state_dict(kept)
    right = _accuracy(module.eval(), valid)
    card = {"seed": seed, "split": split, "validation loss": best, "validation accuracy": right}
    (folder / "card.json").write_text(json.dumps(card))
    return folder


@torch.no_grad()
def _validated(module: EdgeGps, graphs: Sequence[Data]) -> float:
    module.eval()
    parts = [graphs[k : k + 200] for k in range(0, len(graphs), 200)]
    return sum(float(_loss(module, part)) * len(part) for part in parts) / len(graphs)


@torch.no_grad()
def _accuracy(module: EdgeGps, graphs: Sequence[Data]) -> float:
    batch = Batch.from_data_list(list(graphs))
    outputs = module(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
    found = outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(-1)
    return float((found == batch.y).float().mean())


def _loss(module: EdgeGps, graphs: Sequence[Data]) -> Tensor:
    batch = Batch.from_data_list(list(graphs))
    outputs = module(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(outputs[:, 0], batch.y.float())
    return F.cross_entropy(outputs, batch.y)


def _bace(seed: int) -> tuple[list[Data], list[Data], dict[str, list[int]]]:
    graphs = load_bace()
    split = random_split(len(graphs), seed)
    made = [_labelled(molecule_to_data(g.smiles), int(g.y[0, 0])) for g in graphs]
    parts = {name: list(getattr(split, name)) for name in ("train", "valid", "test")}
    return [made[k] for k in parts["train"]], [made[k] for k in parts["valid"]], parts


def _digits() -> tuple[list[Data], list[Data], dict[str, list[int]]]:
    images, labels = load_mnist(None, "train", limit=IMAGES)
    pairs = zip(images, labels.tolist(), strict=True)
    made = [_labelled(digit_graph(image), label) for image, label in pairs]
    cut = IMAGES - IMAGES // 10
    return made[:cut], made[cut:], {"valid": list(range(cut, IMAGES))}


def _labelled(graph: Data, label: int) -> Data:
    graph.y = torch.tensor([label])
    return graph
