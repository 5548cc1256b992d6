"""Convert published Graphormer checkpoints: Hugging Face's port, fairseq's keys, v1.0.

The published models look up all features in one table, at `value + 512 * feature + k`. Ours have
one table per feature, so conversion means selecting rows. Docstrings explain what the published
code does.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphxai.contract.checkpoint_files import (
    CONFIG,
    INVALID,
    WEIGHTS,
    as_numbers,
    name_of,
    read_config,
    read_weights,
)
from graphxai.contract.model import Origin
from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, ATOM_FEATURE_NAMES, BOND_CARDINALITIES
from graphxai.runtime.notices import warn

from .checkpoint import CheckpointError, fill, outlined, shapes_of, with_memory
from .config import GraphormerConfig
from .model import Graphormer

ROWS_PER_FEATURE = 512
TRANSFORMERS_OFFSET = 3  # what `transformers` adds to an atom feature's value
EDGE_OFFSET = 3  # published bond features enter as value + 512 * feature + 3; row 0 is "no hop"
# Published models store tensors that they never use: the pooler of their masked pre-training and,
# with pre-LN, a last LayerNorm.
_LAST_NORM = "encoder.graph_encoder.final_layer_norm."
_UNUSED = ("encoder.masked_lm_pooler.", _LAST_NORM)
COLLATOR_MAX = 20  # `spatial_pos_max` of transformers' collator, which reads no configuration
NO_MASK = 510  # a larger spatial_pos_max masks nothing: 510 is the code of unreachable pairs


def load_huggingface(
    folder: str | Path,
    *,
    atom_offset: int = TRANSFORMERS_OFFSET,
    spatial_pos_max: int | None = None,
) -> Graphormer:
    """Convert a published Graphormer: a folder with `config.json` and `model.safetensors`.

    The keys may be those of Hugging Face `transformers`, of Microsoft's fairseq code or of its
    v1.0. A warning names unused tensors.

    Args:
        folder: the folder.
        atom_offset: number that the training code added to the values of atom features: 3 in
            `transformers`, 2 in Microsoft's own code.
        spatial_pos_max: pairs with distance + 1 of at least this value do not attend, nor do
            unreachable pairs; 1024 means no mask. By default it is 20 for models of
            `transformers`, as in its collator, which does not read the configuration. With
            `atom_offset=2`, it is that of the configuration, as in Microsoft's own code.

    Raises:
        CheckpointError: something does not match; the message names the file and the key.
    """
    folder = Path(folder)
    content = read_config(folder)
    tensors, digest = read_weights(folder)
    read = _Reader(tensors, folder / WEIGHTS)
    layout = _V1 if "n_layers" in content else _FAIRSEQ
    try:
        if spatial_pos_max is None and layout is _FAIRSEQ and atom_offset == TRANSFORMERS_OFFSET:
            _count({"spatial_pos_max": 1024} | content, "spatial_pos_max")
            spatial_pos_max = COLLATOR_MAX
        if content.get("edge_type", "multi_hop") != "multi_hop":
            raise ValueError(
                f"edge_type {content['edge_type']!r} is not supported, only 'multi_hop'."
            )
        config = layout.config(content, read, spatial_pos_max)
        outline = outlined(config, shapes_of(tensors))
    except INVALID as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder}: not a supported Graphormer: {error}") from error
    shapes = shapes_of(outline.state_dict())
    state = _tables(read, layout, config, atom_offset)
    state |= {ours: read.like(key, shapes[ours]) for ours, key in layout.keys(read, config).items()}
    model = with_memory(outline)
    fill(model, state, folder / WEIGHTS)
    _check_rest(read, config)
    metadata = {"source": "published Graphormer", "atom_offset": atom_offset}
    model.origin = Origin(name_of(folder), digest, metadata, folder)
    return model.eval()


def _check_rest(read: "_Reader", config: GraphormerConfig) -> None:
    """Check tensors that were not read. Too many layers are an error, others give a warning."""
    rest = sorted(set(read.tensors) - read.seen)
    for key in rest:
        layer = re.search(r"(?:^|\.)layers\.(\d+)\.", key)
        if layer and int(layer[1]) >= config.num_layers:
            raise CheckpointError(
                f"{read.path}: unexpected key {key!r}: {CONFIG} has {config.num_layers} layers."
            )
    has_last_norm = any(key.startswith(_LAST_NORM) for key in rest)
    if not config.final_layernorm and has_last_norm != config.pre_layernorm:
        raise CheckpointError(
            f"{read.path}: {'has' if has_last_norm else 'lacks'} keys '{_LAST_NORM}*', which"
            f" published models have only with pre-LN, but {CONFIG} has pre_layernorm ="
            f" {str(config.pre_layernorm).lower()}."
        )
    strange = [key for key in rest if not key.startswith(_UNUSED)]
    if strange:
        warn(
            f"{read.path}: unused keys {', '.join(map(repr, strange[:3]))}"
            + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
            + "; check that the model matches its configuration.",
            stacklevel=3,
        )


class _Reader:
    """Read tensors by name, with errors that name the key. `seen` holds the keys read so far."""

    def __init__(self, tensors: dict[str, Tensor], path: Path) -> None:
        # fairseq saves only the encoder; Hugging Face uses the same names
        self.tensors, self.path = tensors, path
        self.seen: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.tensors

    def __call__(self, key: str) -> Tensor:
        if key not in self.tensors:
            raise CheckpointError(f"{self.path}: missing key {key!r}.")
        self.seen.add(key)
        return as_numbers(self.tensors[key], key, self.path)

    def like(self, key: str, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor that fills our parameter of this shape."""
        value = self(key)
        if tuple(value.shape) != shape:
            raise CheckpointError(
                f"{self.path}: key {key!r} has shape {tuple(value.shape)}, but {CONFIG} asks for"
                f" {shape}."
            )
        return value

    def rows(self, key: str, rows: Tensor, width: int) -> Tensor:
        """Return these rows of a table (any number, width)."""
        table = self(key)
        if table.dim() != 2 or table.shape[1] != width or len(table) <= int(rows.max()):
            raise CheckpointError(
                f"{self.path}: key {key!r} has shape {tuple(table.shape)}; at least"
                f" {int(rows.max()) + 1} rows of width {width} are needed."
            )
        return table[rows]


@dataclass(frozen=True)
class _Layout:
    """Names of published code: key prefixes of node features and bias, and the keys of degrees."""

    node: str
    bias: str
    degree_in: str
    degree_out: str
    config: Callable[[dict[str, Any], _Reader, int | None], GraphormerConfig]
    keys: Callable[[_Reader, GraphormerConfig], dict[str, str]]  # our names: theirs


def _feature_rows(cardinalities: tuple[int, ...], offset: int) -> Tensor:
    """Return the rows of every feature's values in a published table."""
    return torch.cat(
        [
            torch.arange(size) + ROWS_PER_FEATURE * feature + offset
            for feature, size in enumerate(cardinalities)
        ]
    )


def _tables(
    read: _Reader, layout: _Layout, config: GraphormerConfig, atom_offset: int
) -> dict[str, Tensor]:
    """Return the embedding and bias tables under our layout."""
    dim, heads = config.hidden_dim, config.num_heads
    degrees = torch.arange(config.max_degree + 1) + 1  # row 0 is padding
    distances = torch.arange(config.max_distance + 2) + 1  # distance + 1; unreachable comes last
    atoms = _feature_rows(ATOM_CARDINALITIES, atom_offset)
    bonds = _feature_rows(BOND_CARDINALITIES, EDGE_OFFSET)
    first = torch.tensor([0])
    hops = _hops(read, layout.bias + "edge_dis_encoder.weight", config)
    no_hop = read.rows(layout.bias + "edge_encoder.weight", first, heads)[0]
    spatial = read.rows(layout.bias + "spatial_pos_encoder.weight", distances, heads)
    virtual = layout.bias + "graph_token_virtual_distance.weight"
    return {
        "node_embedding.table": read.rows(layout.node + "atom_encoder.weight", atoms, dim),
        "node_embedding.in_degree": read.rows(layout.degree_in, degrees, dim),
        "node_embedding.out_degree": read.rows(layout.degree_out, degrees, dim),
        "graph_token": read.rows(layout.node + "graph_token.weight", first, dim)[0],
        "bias.graph_token": read.rows(virtual, first, heads)[0],
        "bias.bond": read.rows(layout.bias + "edge_encoder.weight", bonds, heads),
        "bias.hop": hops,
        "bias.spatial": spatial + _padded_hops(no_hop, hops, len(spatial)),
    }


def _hops(read: _Reader, key: str, config: GraphormerConfig) -> Tensor:
    """Return the maps of a bond's bias by its position on the path, (num_hops, H, H)."""
    heads = config.num_heads
    table = read(key)
    if table.numel() % heads**2 or table.numel() < config.num_hops * heads**2:
        raise CheckpointError(
            f"{read.path}: key {key!r} has shape {tuple(table.shape)}; {heads} x {heads} numbers"
            f" are needed for each of multi_hop_max_dist = {config.num_hops} hops."
        )
    return table.reshape(-1, heads, heads)[: config.num_hops]


def _padded_hops(no_hop: Tensor, hops: Tensor, num_distances: int) -> Tensor:
    """Return the bias that hops beyond the end of a path add, by distance, (num_distances, H).

    The published sum runs over all hops and uses row 0 once the path has ended. Row 0 is zero in
    most checkpoints, but v1.0 leaves it at its initial values. This bias depends only on the
    distance, so it is added to the spatial bias.
    """
    constant = no_hop @ hops  # (K, H)
    num_hops = len(hops)
    length = torch.arange(num_distances)
    length[-1] = num_hops  # unreachable pairs: all hops are padding, the divisor is the limit
    walked = length.clone()
    walked[-1] = 0
    beyond = torch.arange(num_hops)[None, :] >= walked[:, None]
    return (beyond.float() @ constant) / length.clamp(1, num_hops)[:, None]


def _common(read: _Reader, layout: _Layout) -> dict[str, Any]:
    spatial = read(layout.bias + "spatial_pos_encoder.weight")
    return {
        "node_cardinalities": ATOM_CARDINALITIES,
        "node_feature_names": ATOM_FEATURE_NAMES,
        "edge_cardinalities": BOND_CARDINALITIES,
        "max_degree": len(read(layout.degree_in)) - 2,
        "max_distance": len(spatial) - 3,
        "ties": "floyd",
    }


def _count(content: dict[str, Any], name: str) -> int:
    """Return a setting that must be a positive integer."""
    value = content[name]
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r}, not a positive integer.")
    return value


def _tasks(num_outputs: int, labels: dict[str, str] | None) -> tuple[Task, ...]:
    if num_outputs == 1:
        return (Task("output", "regression"),)
    classes = tuple((labels or {}).get(str(c), f"class {c}") for c in range(num_outputs))
    return (Task("output", "multiclass", classes),)


def _layer_keys(config: GraphormerConfig, prefix: str, parts: str) -> dict[str, str]:
    """Map our names for the parameters of the layers to the published ones, given as _PARTS."""
    return _both(
        {
            f"layers.{index}.{ours}": f"{prefix}layers.{index}.{theirs}"
            for index in range(config.num_layers)
            for ours, theirs in zip(_PARTS.split(), parts.split(), strict=True)
        }
    )


def _both(modules: dict[str, str]) -> dict[str, str]:
    """Map our names for the weights and biases of modules to the published ones."""
    return {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for ours, theirs in modules.items()
        for kind in ("weight", "bias")
    }


_PARTS = (
    "attention.query attention.key attention.value attention.output attention_norm"
    " ffn.expand ffn.contract ffn_norm"
)
_FAIRSEQ_PARTS = (
    "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj self_attn_layer_norm"
    " fc1 fc2 final_layer_norm"
)
_V1_PARTS = (
    "self_attention.linear_q self_attention.linear_k self_attention.linear_v"
    " self_attention.output_layer self_attention_norm ffn.layer1 ffn.layer2 ffn_norm"
)
_GRAPH = "encoder.graph_encoder."


def _fairseq_head(read: _Reader) -> tuple[str, str]:
    """Return the keys of the last linear map and its scalar bias, fairseq's or Hugging Face's."""
    if "encoder.embed_out.weight" in read or "encoder.lm_output_learned_bias" in read:
        return "encoder.embed_out.weight", "encoder.lm_output_learned_bias"
    return "classifier.classifier.weight", "classifier.lm_output_learned_bias"


def _fairseq_config(
    content: dict[str, Any], read: _Reader, spatial_pos_max: int | None
) -> GraphormerConfig:
    if content.get("activation_fn", "gelu") != "gelu":
        raise ValueError(f"activation_fn {content['activation_fn']!r} is not supported.")
    pre_layernorm = content.get("pre_layernorm", False)
    if not isinstance(pre_layernorm, bool):
        raise ValueError(f"pre_layernorm is {pre_layernorm!r}, not true or false.")
    limit = spatial_pos_max or _count({"spatial_pos_max": 1024} | content, "spatial_pos_max")
    return GraphormerConfig(
        tasks=_tasks(len(read(_fairseq_head(read)[0])), content.get("id2label")),
        num_layers=_count(content, "num_hidden_layers"),
        hidden_dim=_count(
            content, "embedding_dim" if content.get("embedding_dim") else "hidden_size"
        ),
        ffn_dim=_count(content, "ffn_embedding_dim"),
        num_heads=_count(content, "num_attention_heads"),
        num_hops=_count(content, "multi_hop_max_dist"),
        mask_distance=None if limit > NO_MASK + 1 else limit - 1,
        pre_layernorm=pre_layernorm,
        embedding_layernorm=_GRAPH + "emb_layer_norm.weight" in read,
        final_layernorm=False,  # graph_encoder.final_layer_norm exists with pre-LN but is unused
        head="transform",
        dropout=float(content.get("dropout", 0.1)),
        attention_dropout=float(content.get("attention_dropout", 0.1)),
        **_common(read, _FAIRSEQ),
    )


def _fairseq_keys(read: _Reader, config: GraphormerConfig) -> dict[str, str]:
    output, bias = _fairseq_head(read)
    keys = _layer_keys(config, _GRAPH, _FAIRSEQ_PARTS) | {
        "head.output.weight": output,
        "head.bias": bias,
    }
    moved = {
        "head.transform": "encoder.lm_head_transform_weight",
        "head.norm": "encoder.layer_norm",
    }
    if config.embedding_layernorm:
        moved["embedding_norm"] = _GRAPH + "emb_layer_norm"
    return keys | _both(moved)


def _v1_config(
    content: dict[str, Any], read: _Reader, spatial_pos_max: int | None
) -> GraphormerConfig:
    return GraphormerConfig(
        tasks=_tasks(len(read("downstream_out_proj.weight")), None),
        num_layers=_count(content, "n_layers"),
        hidden_dim=_count(content, "hidden_dim"),
        ffn_dim=_count(content, "ffn_dim"),
        num_heads=_count(content, "num_heads"),
        num_hops=_count(content, "multi_hop_max_dist"),
        mask_distance=None if spatial_pos_max is None else spatial_pos_max - 1,
        dropout=float(content.get("dropout_rate", 0.1)),
        attention_dropout=float(content.get("attention_dropout_rate", 0.1)),
        **_common(read, _V1),
    )


def _v1_keys(read: _Reader, config: GraphormerConfig) -> dict[str, str]:
    moved = {"final_norm": "final_ln", "head": "downstream_out_proj"}
    return _layer_keys(config, "", _V1_PARTS) | _both(moved)


_FAIRSEQ = _Layout(
    _GRAPH + "graph_node_feature.",
    _GRAPH + "graph_attn_bias.",
    _GRAPH + "graph_node_feature.in_degree_encoder.weight",
    _GRAPH + "graph_node_feature.out_degree_encoder.weight",
    _fairseq_config,
    _fairseq_keys,
)
_V1 = _Layout("", "", "in_degree_encoder.weight", "out_degree_encoder.weight", _v1_config, _v1_keys)
