"""Which part of a model makes Gradient x Input fail on MNIST superpixels?

python benchmarks/mnist_ablation.py --out runs/mnist-ablation

Trains 2-layer Graphormers that differ from the one of `reproduce.py` in one part, or in several,
and measures the methods of Ali 2022, Table 2, on each. `reproduce.md` shows the table and says what
follows. Every stage continues where it was interrupted. A model takes about three minutes.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

import graphxai as gx
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.superpixels import images_to_data
from graphxai.learning.fit import fit
from graphxai.learning.predicting import predict
from graphxai.learning.recipes.mnist import mnist_config
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import Graphormer, StructureEncoding, save_checkpoint

METHODS = (
    "random", "attention_last", "rollout", "gae_rollout", "gradient_input", "lrp_ah", "lrp_ln",
    "lrp_ah_ln",
)  # fmt: skip
LEARNED, TESTED = 4_500, 1_000  # images; the last 500 of 5,000 decide about the epoch
MEASURED = 100
NO_BIAS = {"position_bias_bands": 0}


def as_given(graph: Data) -> Data:
    """Return the graph as it is: intensity and position."""
    return graph


def in_one_vector(graph: Data) -> Data:
    """Return a graph whose features are intensity and position, for one linear map."""
    graph.x = torch.cat([graph.x, 2 * graph.pos - 1], dim=1)
    return graph


def intensity_alone(graph: Data) -> Data:
    """Return a graph that says nothing of positions, except by its edges."""
    del graph.pos
    return graph


def times_position(graph: Data) -> Data:
    """Return a graph whose features vanish where there is no ink: intensity x position."""
    from graphxai.models.graphormer.position import frequencies

    centred = 2 * graph.pos - 1
    angle = centred @ frequencies(4).T
    where = torch.cat([torch.ones_like(graph.x), centred, angle.cos(), angle.sin()], dim=1)
    graph.x = graph.x * where
    return graph


@dataclass(frozen=True)
class Variant:
    """A model that differs from the one of `reproduce.py`.

    Attributes:
        title: what differs.
        changes: fields of the configuration.
        features: makes a graph's features.
        degrees: whether nodes carry the embedding of their degree.
        segments: number of superpixels.
        seed: of weights and order.
    """

    title: str
    changes: dict[str, Any] = field(default_factory=dict)
    features: Callable[[Data], Data] = as_given
    degrees: bool = True
    segments: int = 75
    seed: int = 0


LINEAR = {"num_node_features": 3, "node_feature_names": (), "position_bands": 0}
PRODUCTS = {"num_node_features": 83, "node_feature_names": (), "position_bands": 0}
VARIANTS = {
    "base": Variant("as in `reproduce.py`"),
    "no-displacements": Variant("no displacements in the attention bias", NO_BIAS),
    "no-distances": Variant("no distances in the attention bias", {"max_distance": 0}),
    "linear": Variant(
        "intensity and position by one linear map, no displacements",
        LINEAR | NO_BIAS,
        in_one_vector,
    ),
    "products": Variant("features vanish without ink", PRODUCTS, times_position),
    "black-is-zero": Variant(
        "features vanish without ink, no degrees: black superpixels are zero", PRODUCTS,
        times_position, degrees=False,
    ),
    "black-is-zero-no-displacements": Variant(
        "the same, no displacements", PRODUCTS | NO_BIAS, times_position, degrees=False
    ),
    "post-ln": Variant(
        "LayerNorm after each block", {"pre_layernorm": False, "final_layernorm": False}
    ),
    "embedding-ln": Variant("LayerNorm after the embedding", {"embedding_layernorm": True}),
    "no-final-ln": Variant("no LayerNorm before the read-out", {"final_layernorm": False}),
    "no-degrees": Variant("no embedding of degrees", degrees=False),
    "40-superpixels": Variant("40 superpixels", segments=40),
    "150-superpixels": Variant("150 superpixels", segments=150),
    "base-seed-1": Variant("as in `reproduce.py`, seed 1", seed=1),
    "black-is-zero-seed-1": Variant(
        "black superpixels are zero, seed 1", PRODUCTS, times_position, degrees=False, seed=1
    ),
}  # fmt: skip


def graphs_of(part: str, limit: int, segments: int, folder: Path) -> list[Data]:
    """Return graphs of the first images, which are kept in the folder."""
    from graphxai.datasets.graph_folders import load_graphs, save_graphs

    kept = folder / f"{part}-{limit}-{segments}"
    if not kept.exists():
        images, labels = load_mnist(None, part, limit=limit)
        graphs = list(images_to_data(images, labels, segments=segments))
        for graph in graphs:
            del graph.image, graph.segments
        save_graphs(graphs, kept)
    return load_graphs(kept).graphs


def prepared(graphs: Iterable[Data], variant: Variant, config: Any) -> list[Data]:
    """Return the encoded graphs of a variant."""
    encode = StructureEncoding.from_config(config)
    encoded = []
    for graph in graphs:
        graph = encode(variant.features(graph))
        graph.y = graph.y.reshape(1, -1)
        encoded.append(graph)
    return encoded


def train(variant: Variant, folder: Path, graphs: Path) -> Path:
    """Train a variant, and return its checkpoint."""
    if (folder / "model").exists():
        return folder / "model"
    config = mnist_config(num_layers=2, hidden_dim=64, ffn_dim=128, **variant.changes)
    learned = prepared(graphs_of("train", LEARNED + 500, variant.segments, graphs), variant, config)
    tested = prepared(graphs_of("test", TESTED, variant.segments, graphs), variant, config)
    torch.manual_seed(variant.seed)
    model = Graphormer(config)
    if not variant.degrees:
        for table in (model.node_embedding.in_degree, model.node_embedding.out_degree):
            table.requires_grad_(False).zero_()
    settings = TrainingSettings(
        epochs=6, batch_size=32, learning_rate=2e-3, weight_decay=0.02, ema_decay=0.995,
        label_smoothing=0.05, seed=variant.seed, progress=False,
    )  # fmt: skip
    model = fit(model, learned[:LEARNED], learned[LEARNED:], settings, folder).model.cpu()
    outputs = predict(model, tested)
    right = outputs.argmax(1) == torch.cat([graph.y[0] for graph in tested])
    accuracy = float(right.double().mean())
    return save_checkpoint(model, folder / "model", metadata={"accuracy": accuracy})


def measured(variant: Variant, checkpoint: Path, operator: str, graphs: Path) -> dict[str, Any]:
    """Return a variant's accuracy, and AUAC and AU-MSE of each method."""
    model = gx.load(checkpoint)
    tested = graphs_of("test", TESTED, variant.segments, graphs)[:MEASURED]
    report = gx.evaluate(
        model,
        prepared(tested, variant, model.config),
        METHODS,
        labels=[int(graph.y[0]) for graph in tested],
        target="true",
        operators=operator,
        steps=11,
        out=checkpoint.parent / operator,
        resume=True,
    )
    return {
        "accuracy": model.origin.metadata["accuracy"],
        **{
            metric: {name: each.mean for name, each in report.intervals(metric, operator).items()}
            for metric in ("auac", "au_mse")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--operators", default="mask")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.variants.split(",")
    for name in names:
        variant, folder = VARIANTS[name], options.out / name
        checkpoint = train(variant, folder, options.out / "graphs")
        for operator in options.operators.split(","):
            figures = measured(variant, checkpoint, operator, options.out / "graphs")
            (folder / f"{operator}.json").write_text(json.dumps(figures, indent=1))
            print(name, operator, f"accuracy {figures['accuracy']:.3f}", flush=True)
            for metric in ("auac", "au_mse"):
                print(metric, {m: round(v, 3) for m, v in figures[metric].items()}, flush=True)


if __name__ == "__main__":
    main()
