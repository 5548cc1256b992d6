"""Hybrid models for BACE and MNIST superpixels, as wrapped models, trained here.

There are four kinds, of width 64 and with batch normalisation:

* `gine`: GPS (Rampasek 2022), two layers of a GINE convolution and global attention side by side,
  mean pooling;
* `gatedgcn`: the same with a gated convolution (Bresson 2017);
* `exphormer`: the same with GINE and, in place of global attention, attention along the edges and a
  random expander graph (after Shirzad 2023, without virtual nodes);
* `gin`: three GINE convolutions without attention, sum pooling.

AdamW trains them with a one-cycle schedule, and the epoch with the best validation loss is kept.
The weights lie beside a card with split, seed, validation loss and accuracy.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ogb.graphproppred.mol_encoder import AtomEncoder, BondEncoder
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import (
    GINEConv,
    GPSConv,
    ResGatedGraphConv,
    TransformerConv,
    global_add_pool,
    global_mean_pool,
)

import graphxai as gx
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace, molecule_to_data
from graphxai.datasets.splits import random_split
from graphxai.datasets.superpixels import image_to_data
from graphxai.wrapping import WrappedModel

WIDTH, LAYERS, HEADS = 64, 2, 4
EPOCHS = {"bace": 25, "mnist": 8}
IMAGES = 6_000  # training images of MNIST, of which the last tenth are for validation
BATCH = 32
CLASSES = {"bace": ("inactive", "active"), "mnist": tuple("0123456789")}


class EdgeGps(nn.Module):
    """A GPS with outputs (B, outputs), whose node and edge features `nodes` and `edges` embed."""

    def __init__(
        self, nodes: nn.Module, edges: nn.Module, outputs: int, kind: str = "gine"
    ) -> None:
        super().__init__()
        self.nodes, self.edges, self.kind = nodes, edges, kind
        self.layers = nn.ModuleList(_layer(kind) for _ in range(3 if kind == "gin" else LAYERS))
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        h, e = self.nodes(x), self.edges(edge_attr)
        for layer in self.layers:
            h = layer(h, edge_index, batch, edge_attr=e)
        pool = global_add_pool if self.kind == "gin" else global_mean_pool
        return self.head(pool(h, batch))


class SparseGps(EdgeGps):
    """The same with attention along edges and those of an expander graph."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        expander_edge_index: Tensor,
        batch: Tensor,
    ) -> Tensor:
        h, e = self.nodes(x), self.edges(edge_attr)
        attended = torch.cat([edge_index, expander_edge_index], dim=1)
        for layer in self.layers:
            h = layer(h, edge_index, e, attended)
        return self.head(global_mean_pool(h, batch))


class SparseLayer(nn.Module):
    """A GINE convolution and sparse attention side by side, then a two-layer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GINEConv(_mlp())
        self.attn = TransformerConv(WIDTH, WIDTH // HEADS, heads=HEADS, root_weight=False)
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(3))
        self.mlp = _mlp()

    def forward(self, x: Tensor, edge_index: Tensor, e: Tensor, attended: Tensor) -> Tensor:
        local = self.norms[0](x + F.dropout(self.conv(x, edge_index, e), 0.1, self.training))
        wide = self.norms[1](x + F.dropout(self.attn(x, attended), 0.1, self.training))
        both = local + wide
        out: Tensor = self.norms[2](both + self.mlp(both))
        return out


class MessageLayer(nn.Module):
    """A GINE convolution with batch normalisation and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = GINEConv(_mlp()), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, edge_attr: Tensor) -> Tensor:
        out: Tensor = x + F.gelu(self.norm(self.conv(x, edge_index, edge_attr)))
        return out


def _layer(kind: str) -> nn.Module:
    if kind == "exphormer":
        return SparseLayer()
    if kind == "gin":
        return MessageLayer()
    gated = ResGatedGraphConv(WIDTH, WIDTH, edge_dim=WIDTH)
    conv = gated if kind == "gatedgcn" else GINEConv(_mlp())
    return GPSConv(WIDTH, conv, heads=HEADS, dropout=0.1, act="gelu")


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


def new_model(name: str, kind: str = "gine") -> EdgeGps:
    made = SparseGps if kind == "exphormer" else EdgeGps
    if name == "bace":
        return made(AtomEncoder(WIDTH), BondEncoder(WIDTH), 1, kind)
    return made(nn.Linear(3, WIDTH), nn.Linear(2, WIDTH), 10, kind)


def with_expander(graph: Data) -> Data:
    """Add an expander graph: the edges of three random permutations, both ways.

    The permutations depend on the number of nodes alone.
    """
    n = int(graph.num_nodes or 0)
    generator = torch.Generator().manual_seed(n)
    start = torch.arange(n).repeat(3)
    end = torch.cat([torch.randperm(n, generator=generator) for _ in range(3)])
    graph.expander_edge_index = torch.stack([torch.cat([start, end]), torch.cat([end, start])])
    return graph


def featurizer(name: str, kind: str) -> Callable[[Any], Data]:
    """Return the function that makes a graph of a SMILES or of an image."""
    graph_of = molecule_to_data if name == "bace" else digit_graph
    return (lambda value: with_expander(graph_of(value))) if kind == "exphormer" else graph_of


def digit_graph(image: Any) -> Data:
    """Return a graph of superpixels.

    Nodes have intensity and position, (N, 3). Edges have the difference of two positions, (E, 2).
    """
    superpixels = image_to_data(image)
    start, end = superpixels.edge_index
    x = torch.cat([superpixels.x, superpixels.pos], dim=1).float()
    way = (superpixels.pos[end] - superpixels.pos[start]).float()
    return Data(x=x, edge_index=superpixels.edge_index, edge_attr=way, num_nodes=len(x))


def wrapped(module: EdgeGps, name: str) -> WrappedModel:
    return gx.wrap(
        module.eval(),
        kind="binary" if name == "bace" else "multiclass",
        classes=CLASSES[name],
        task="BACE-1" if name == "bace" else "digit",
        embedding="nodes",
        featurize=featurizer(name, module.kind),
        name=f"{'gps' if module.kind == 'gine' else module.kind}-{name}",
    )


def load_gps(folder: Path, name: str, kind: str = "gine") -> tuple[WrappedModel, dict[str, Any]]:
    """Return the wrapped model and its card."""
    module = new_model(name, kind)
    module.load_state_dict(load_file(folder / "model.safetensors"))
    return wrapped(module, name), json.loads((folder / "card.json").read_text())


def train_gps(
    folder: Path, name: str, seed: int = 0, kind: str = "gine", split_seed: int | None = None
) -> Path:
    """Train on the training part, unless the model is there already.

    Args:
        split_seed: the seed of the split of BACE, by default that of the weights.
    """
    if (folder / "card.json").exists():
        return folder
    torch.manual_seed(seed)
    graph_of = featurizer(name, kind)
    split_seed = seed if split_seed is None else split_seed
    train, valid, split = _bace(split_seed, graph_of) if name == "bace" else _digits(graph_of)
    module = new_model(name, kind)
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
        loss = _validated(module, valid)
        print(f"{kind}-{name} epoch {epoch + 1}: validation loss {loss:.3f}", flush=True)
        if loss < best:
            best, kept = loss, {k: v.clone() for k, v in module.state_dict().items()}
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
    outputs = _outputs(module, batch)
    predicted = outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(-1)
    return float((predicted == batch.y).float().mean())


def _loss(module: EdgeGps, graphs: Sequence[Data]) -> Tensor:
    batch = Batch.from_data_list(list(graphs))
    outputs = _outputs(module, batch)
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(outputs[:, 0], batch.y.float())
    return F.cross_entropy(outputs, batch.y)


def _outputs(module: EdgeGps, batch: Batch) -> Tensor:
    names = ("x", "edge_index", "edge_attr", "expander_edge_index", "batch")
    outputs: Tensor = module(**{name: batch[name] for name in names if name in batch})
    return outputs


def _bace(
    seed: int, graph_of: Callable[[Any], Data]
) -> tuple[list[Data], list[Data], dict[str, list[int]]]:
    graphs = load_bace()
    split = random_split(len(graphs), seed)
    made = [_labelled(graph_of(g.smiles), int(g.y[0, 0])) for g in graphs]
    parts = {name: list(getattr(split, name)) for name in ("train", "valid", "test")}
    return [made[k] for k in parts["train"]], [made[k] for k in parts["valid"]], parts


def _digits(
    graph_of: Callable[[Any], Data],
) -> tuple[list[Data], list[Data], dict[str, list[int]]]:
    images, labels = load_mnist(None, "train", limit=IMAGES)
    pairs = zip(images, labels.tolist(), strict=True)
    made = [_labelled(graph_of(image), label) for image, label in pairs]
    cut = IMAGES - IMAGES // 10
    return made[:cut], made[cut:], {"valid": list(range(cut, IMAGES))}


def _labelled(graph: Data, label: int) -> Data:
    graph.y = torch.tensor([label])
    return graph
