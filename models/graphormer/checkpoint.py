"""Read and write checkpoints: folders with `config.json`, `model.safetensors` and a model card.

Nothing is unpickled. Every error names the file, and the key if there is one.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from graphxai.contract.checkpoint_files import (
    CONFIG,
    FLOAT_DTYPES,
    INVALID,
    WEIGHTS,
    as_numbers,
    read_config,
    read_shapes,
    read_weights,
    require_shapes,
    save_description,
    weights_digest,
    with_origin,
    write_weights,
)
from graphxai.contract.checkpoint_files import CheckpointError as CheckpointError
from graphxai.contract.model import only_starts as only_starts
from graphxai.contract.model import require_purpose as require_purpose
from graphxai.contract.tasks import TO_START as TO_START
from graphxai.runtime.writing import folder_at, write_whole

from .config import GraphormerConfig
from .encoding import collate
from .locating import locate as locate
from .locating import pretrained_names as pretrained_names
from .model import Graphormer, graphormer

if TYPE_CHECKING:
    from torch_geometric.data import Data

FORMAT = "graphxai-graphormer"
ENSEMBLE = "graphxai-ensemble"  # the format of a folder with several models
MEAN_NODE = "mean_node.safetensors"
SMALL = 2 * 10**7  # size up to which a model is made before its shapes are checked: 80 MB


def save_checkpoint(
    model: Graphormer, folder: str | Path, *, card: str = "", metadata: dict[str, Any] | None = None
) -> Path:
    """Write model, metadata (JSON values) and model card (Markdown) to `folder`.

    If the model has a mean node, or conformal scores, each is written to a file of its own.
    """
    folder = folder_at(folder)
    digest = write_weights(model.state_dict(), folder, FORMAT)
    save_mean_node(model, folder)
    content = {"format": FORMAT, "model": model.config.to_dict()}
    return save_description(model, folder, digest, content, metadata, card or "# Graphormer\n")


def load_checkpoint(folder: str | Path) -> Graphormer:
    """Return the model in a checkpoint folder, on the CPU and in eval mode.

    `model.origin` says where the model came from.

    Raises:
        CheckpointError: a file is missing, corrupt or truncated, or does not fit the others.
    """
    folder = Path(folder)
    content = read_config(folder)
    if content.get("format") != FORMAT:
        published = " Read a published Graphormer with load_huggingface(folder)."
        hint = published if is_published(folder) else ""
        if content.get("format") == ENSEMBLE:
            hint = (
                f" It is an ensemble: name one of its members, such as {folder / 'members' / '0'}."
            )
        raise CheckpointError(f"{folder / CONFIG}: 'format' is not {FORMAT!r}.{hint}")
    shapes = read_shapes(folder)
    try:
        config = GraphormerConfig.from_dict(content["model"])
        outline = outlined(config, shapes)
    except INVALID as error:
        raise CheckpointError(f"{folder / CONFIG}: invalid model configuration: {error}") from error
    require_shapes(shapes_of(outline.state_dict()), shapes, folder / WEIGHTS)
    model = with_memory(outline)
    tensors, digest = read_weights(folder)
    fill(model, tensors, folder / WEIGHTS)
    model.mean_node = _read_mean_node(model, folder, digest)
    return with_origin(model, folder, content, digest)


def save_mean_node(model: Graphormer, folder: Path) -> Path | None:
    """Write the model's mean node, if it has one, with the SHA-256 of the weights beside it."""
    path = folder / MEAN_NODE
    if model.mean_node is None:
        path.unlink(missing_ok=True)
        return None
    digest = weights_digest(folder)
    mean = {"mean_node": model.mean_node.detach().cpu().contiguous()}
    write_whole(path, save(mean, metadata={"sha256": digest}))  # several are in random order
    return path


def _read_mean_node(model: Graphormer, folder: Path, digest: str) -> Tensor | None:
    """Read the mean node (F, D) that was measured with the weights of this SHA-256, if any."""
    path = folder / MEAN_NODE
    if not path.is_file():
        return None
    rows = 1 if model.embedding_norm is not None else len(model.feature_names)
    shape = (rows, model.config.hidden_dim)
    try:
        with safe_open(path, framework="pt") as file:
            stored = file.get_slice("mean_node").get_shape()
            if tuple(stored) != shape:
                raise ValueError(f"its shape is {tuple(stored)}, not {shape}")
            mean: Tensor = file.get_tensor("mean_node")
            measured_on = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; delete or replace it.") from error
    if mean.dtype not in FLOAT_DTYPES or not torch.isfinite(mean).all():
        raise CheckpointError(f"{path}: holds values that are not finite numbers.")
    return mean.to(model.node_embedding.in_degree) if measured_on == digest else None


def is_published(folder: Path) -> bool:
    """Return whether `config.json` belongs to a published Graphormer (Hugging Face or v1.0)."""
    content = read_config(folder)
    return content.get("model_type") == "graphormer" or "n_layers" in content


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors, such as the `state_dict` of a model."""
    return {key: tuple(value.shape) for key, value in tensors.items()}


def outlined(config: GraphormerConfig, stored: dict[str, tuple[int, ...]]) -> Graphormer:
    """Return a model to compare with its checkpoint. Unless it is small, it takes no memory.

    Args:
        stored: the shapes in its checkpoint. They limit the size of the model, since even the names
            of a billion layers would fill the memory.

    Raises:
        ValueError: the model is larger than its checkpoint.
    """
    numbers = sum(math.prod(shape) for shape in stored.values())
    sizes = {
        "num_layers": config.num_layers * 16,  # parameters of a layer
        "max_degree": config.max_degree,
        "hidden_dim": config.hidden_dim,
        "ffn_dim": config.ffn_dim,
        "num_node_features": config.num_node_features,
        "num_edge_features": config.num_edge_features,
        "position_bands": config.position_bands**2,
        "position_bias_bands": config.position_bias_bands**2,
    }
    limits = {"num_layers": len(stored)}
    for name, size in sizes.items():
        if size > limits.get(name, numbers):
            raise ValueError(f"{name} is {getattr(config, name)}, too large for {WEIGHTS}.")
    # A model without memory makes PyTorch import its compiler, which takes seconds. A small model
    # with memory is made in milliseconds.
    return _unfilled(config, "cpu" if _most_numbers(config) <= SMALL else "meta")


def with_memory(outline: Graphormer) -> Graphormer:
    """Return the outlined model with memory, on the CPU."""
    is_outline = outline.node_embedding.in_degree.is_meta
    return _unfilled(outline.config, "cpu") if is_outline else outline


def _unfilled(config: GraphormerConfig, device: str) -> Graphormer:
    """Return a new model. Its first weights draw none of the user's random numbers."""
    with torch.device(device), torch.random.fork_rng(devices=[]):
        return graphormer(config)


def _most_numbers(config: GraphormerConfig) -> int:
    """Return an upper bound on a model's parameters, as if each matrix had the sum of all sizes."""
    waves = sum((2 * n + 1) ** 2 for n in (config.position_bands, config.position_bias_bands))
    width = config.hidden_dim + config.ffn_dim + config.max_degree + config.max_distance
    width += sum(config.node_cardinalities) + sum(config.edge_cardinalities) + config.num_outputs
    width += config.num_edge_features
    width += (config.num_node_features + 1) * (waves + 3)
    return width**2 * config.num_layers + config.num_hops * config.num_heads**2


def fill(model: Graphormer, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy tensors into the model's parameters, whose names and shapes must match."""
    parameters = model.state_dict()
    require_shapes(shapes_of(parameters), shapes_of(tensors), path)
    model.load_state_dict(
        {key: as_numbers(value, key, path, parameters[key].dtype) for key, value in tensors.items()}
    )


BATCH = 64  # graphs at a time


@torch.no_grad()
def measure_mean_node(model: Graphormer, graphs: "Sequence[Data]") -> Tensor:
    """Set `model.mean_node` to the mean over all nodes of encoded graphs, and return it, (F, D).

    Row f is the mean embedding of feature f (`model.feature_names`), so the rows sum to the mean
    token. With `embedding_layernorm` there is a single row, the mean token itself.
    `save_checkpoint` stores the mean node.

    Raises:
        ValueError: there are no nodes.
    """
    total, nodes = None, 0
    for start in range(0, len(graphs), BATCH):
        batch = collate(list(graphs[start : start + BATCH]))
        summed = model.sum_by_feature(batch.to(next(model.parameters()).device)).double()
        total = summed if total is None else total + summed
        nodes += int(batch.num_nodes.sum())
    if total is None or not nodes:
        raise ValueError("the mean node needs at least one graph with nodes.")
    model.mean_node = (total / nodes).to(model.node_embedding.in_degree)
    return model.mean_node
