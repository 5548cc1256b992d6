"""Configure a Graphormer: tasks, inputs and sizes, as in `config.json`."""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from graphxai.contract.tasks import TaskSet
from graphxai.datasets.as_given import Isomers, Standardisation

MAX_ROWS = 1 << 15  # codes of the structural bias are 16-bit integers
MAX_ENVIRONMENTS, MAX_RADIUS = 1 << 20, 16
OGB_ATOMS, OGB_BONDS = (119, 5, 12, 12, 10, 6, 6, 2, 2), (5, 6, 2)  # sizes of OGB's vocabularies
STANDARDISING = ("node_offsets", "node_scales", "edge_offsets", "edge_scales")
CHOICES: dict[str, tuple[str, ...]] = {
    "ties": ("average", "floyd"),
    "level": ("graph", "node"),
    "head": ("linear", "transform"),
    "standardise": get_args(Standardisation),
    "isomers": get_args(Isomers)[1:],
}
DIGITS = ("intensity",)  # the node features of models that read digits as superpixels


@dataclass(frozen=True)
class GraphormerConfig(TaskSet):
    """Hyperparameters of `Graphormer` (Ying et al., NeurIPS 2021).

    Node features are either categorical (`node_cardinalities`) or continuous (`num_node_features`).
    Each categorical feature has a table, whose rows are added up. Continuous features enter by one
    linear map, and with `position_bands` > 0 the node positions enter as Fourier features, see
    `position.py`. Edges have no features, categorical ones (`edge_cardinalities`) or continuous
    ones (`num_edge_features`). The model itself standardises continuous features: it subtracts
    `node_offsets` or `edge_offsets`, and divides by `node_scales` or `edge_scales`, if there are
    any.

    Args:
        level: "graph" for a model that reads its answer from a graph token, "node" for one that
            answers for each node, see `NodeGraphormer`.
        environments: number of rows of a table of hashed environments, see
            `contract.structure`; 0 for a model that does not read environments.
        environment_radius: the largest number of bonds from a node in its environments.
        max_distance: longer shortest paths share the bias of this distance.
        num_hops: number of edges of a shortest path that the edge encoding uses.
        mask_distance: pairs that are this far apart, farther or unreachable do not attend.
        head: "linear" is one linear map of the graph token. "transform" is a linear map, GELU,
            LayerNorm and a linear map with one shared bias, as in the published models of fairseq
            and Hugging Face.
        standardise: how molecules are brought to their parents before they are read, as those
            were that the model learned from; see `datasets.molecules.molecule_to_data`.
        symmetric: whether the values, such as log D, cannot differ between mirror images. The
            outputs of a chiral molecule are then the mean over both.
        isomers: "groups" takes the mean over the isomers that groups & and o stand for, which is
            how racemates are written. "mean" takes it over undefined centres, too, which are
            otherwise read as undefined.
    """

    level: Literal["graph", "node"] = "graph"
    num_layers: int = 3
    hidden_dim: int = 96
    ffn_dim: int = 192
    num_heads: int = 8
    node_cardinalities: tuple[int, ...] = ()
    node_feature_names: tuple[str, ...] = ()
    num_node_features: int = 0
    node_offsets: tuple[float, ...] = ()
    node_scales: tuple[float, ...] = ()
    edge_cardinalities: tuple[int, ...] = ()
    num_edge_features: int = 0
    edge_offsets: tuple[float, ...] = ()
    edge_scales: tuple[float, ...] = ()
    position_bands: int = 0
    position_bias_bands: int = 0
    environments: int = 0
    environment_radius: int = 3
    max_degree: int = 15
    max_distance: int = 30
    num_hops: int = 5
    ties: Literal["average", "floyd"] = "average"
    mask_distance: int | None = None
    pre_layernorm: bool = True
    embedding_layernorm: bool = False
    final_layernorm: bool = True
    head: Literal["linear", "transform"] = "linear"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layernorm_eps: float = 1e-5
    standardise: Standardisation = "as drawn"
    symmetric: bool = False
    isomers: Isomers = "groups"
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "node_cardinalities", "node_feature_names", "edge_cardinalities", *STANDARDISING
        ):  # fmt: skip
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_types()
        self._check_sizes()
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                f"hidden_dim ({self.hidden_dim}) must be a multiple of num_heads"
                f" ({self.num_heads})."
            )
        if bool(self.node_cardinalities) == bool(self.num_node_features):
            raise ValueError("give either node_cardinalities or num_node_features.")
        if self.environments and not self.node_cardinalities:
            raise ValueError("environments are those of nodes with categorical features.")
        if self.edge_cardinalities and self.num_edge_features:
            raise ValueError("give edge_cardinalities or num_edge_features, not both.")
        if self.num_edge_features and self.ties != "average":
            raise ValueError("continuous edge features need ties='average'.")
        for name in STANDARDISING:
            values, width = getattr(self, name), getattr(self, f"num_{name[:4]}_features")
            if values and len(values) != width:
                raise ValueError(f"{name} has {len(values)} numbers for {width} features.")
            if not all(type(v) in (int, float) and math.isfinite(v) for v in values):
                raise ValueError(f"{name} must hold finite numbers.")
        for name in ("node_scales", "edge_scales"):
            if any(scale <= 0 for scale in getattr(self, name)):
                raise ValueError(f"{name} must be positive.")
        for name, ways in CHOICES.items():
            if (value := getattr(self, name)) not in ways:
                text = f"{', '.join(map(repr, ways[:-1]))} or {ways[-1]!r}"
                raise ValueError(f"{name} must be {text}, not {value!r}.")
        if self.symmetric and any(task.kind != "regression" for task in self.tasks):
            raise ValueError("symmetric is for values, not for classes.")

    @property
    def reads(self) -> Literal["molecules", "digits", "graphs"]:
        """The inputs of the model: molecules in OGB's codes, digits as superpixels, or graphs.

        A model reads molecules if its features have room for OGB's codes. It reads digits if the
        only feature of its nodes is called "intensity".
        """
        if self.node_feature_names == DIGITS:
            return "digits"
        atoms = _have_room(self.node_cardinalities, OGB_ATOMS)
        bonds = not self.edge_cardinalities or _have_room(self.edge_cardinalities, OGB_BONDS)
        return "molecules" if atoms and bonds and not self.num_edge_features else "graphs"

    @property
    def reads_molecules(self) -> bool:
        """Whether the model takes SMILES."""
        return self.reads == "molecules"

    def _check_sizes(self) -> None:
        for name in ("num_layers", "hidden_dim", "ffn_dim", "num_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in (
            "max_degree", "max_distance", "num_hops", "position_bands", "position_bias_bands",
            "num_node_features", "num_edge_features", "environments", "environment_radius",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}.")
        if self.environments > MAX_ENVIRONMENTS or self.environment_radius > MAX_RADIUS:
            raise ValueError(
                f"environments may have up to {MAX_ENVIRONMENTS:,} rows and a radius of up to"
                f" {MAX_RADIUS}, not {self.environments:,} and {self.environment_radius}."
            )
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}.")
        if not 0 < self.layernorm_eps <= 1:
            raise ValueError(
                f"layernorm_eps must be positive, not {self.layernorm_eps}, and up to 1."
            )
        if self.mask_distance is not None and not 1 <= self.mask_distance <= MAX_ROWS:
            raise ValueError(
                f"mask_distance must be at least 1, not {self.mask_distance}, and up to"
                f" {MAX_ROWS:,}."
            )
        rows = self.max_distance + 2 + self.num_hops * max(self.rows_per_hop, 1)
        if rows > MAX_ROWS:
            raise ValueError(
                f"max_distance, num_hops and edge_cardinalities make {rows:,} rows of structural"
                f" bias, more than the limit of {MAX_ROWS:,}."
            )

    @property
    def rows_per_hop(self) -> int:
        """Number of rows of structural bias for the edges at one hop.

        There is a row for each combination of codes, or for each continuous feature.
        """
        if self.edge_cardinalities:
            return math.prod(self.edge_cardinalities)
        return self.num_edge_features

    def _check_types(self) -> None:
        """Check types, since values come from a file, and name the value that is wrong."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "mask_distance":
                fits = value is None or type(value) is int
            elif entry.type is float:
                fits = type(value) in (int, float)
            elif entry.type in (int, bool):
                fits = type(value) is entry.type
            else:
                continue
            if not fits:
                raise ValueError(f"{entry.name} is {value!r}, which has the wrong type.")
        for name in ("node_cardinalities", "edge_cardinalities"):
            if not all(isinstance(size, int) and size > 0 for size in getattr(self, name)):
                raise ValueError(f"{name} must hold positive integers.")
        if not all(isinstance(name, str) for name in self.node_feature_names):
            raise ValueError("node_feature_names must hold names.")
        if not isinstance(self.extra, dict):
            raise ValueError(f"extra is {self.extra!r}, which has the wrong type.")
        width = len(self.node_cardinalities) or self.num_node_features
        if self.node_feature_names and len(self.node_feature_names) != width:
            raise ValueError(
                f"node_feature_names has {len(self.node_feature_names)} names for {width} features."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "GraphormerConfig":
        """Invert `to_dict`, or raise a ValueError that lists unknown names."""
        names = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise ValueError(f"unknown configuration names: {', '.join(unknown)}.")
        return cls(**values)


def _have_room(sizes: tuple[int, ...], needed: tuple[int, ...]) -> bool:
    """Return whether there are as many features as needed, each with at least as many values."""
    return len(sizes) == len(needed) and all(a >= b for a, b in zip(sizes, needed, strict=True))
