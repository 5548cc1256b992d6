"""A model of the data that draws hidden atoms, given the other atoms and all bonds.

An atom's type is the whole row of its features, so that they agree with each other. The network
reads the visible types, the degrees of all atoms, and distances and bonds as Graphormer's
structural bias does (Ying 2021). It gives each hidden atom a distribution over the types seen in
training (masked attributes, Hu 2020). Hidden atoms are drawn in `ROUNDS` groups, and each group is
drawn given the groups before it.

`masked_atoms.safetensors` holds the network, `masked_atoms.json` says what it was trained on.
"""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch
from graphxai.contract.checkpoint_files import NetworkFiles, require_finite
from graphxai.contract.tasks import Task
from graphxai.models.graphormer import GraphormerConfig
from graphxai.models.graphormer.layers import EncoderLayer, LayerNorm, StructuralBias

if TYPE_CHECKING:
    from torch_geometric.data import Data

NETWORK, CARD = "masked_atoms.safetensors", "masked_atoms.json"
FORMAT = "graphxai-masked-atoms"
LAYERS, WIDTH, HEADS = 3, 64, 8
ROUNDS = 4
FIT = "gx.fit_masked_atoms(model, graphs).save(folder), or graphxai fit-masked-atoms --model FOLDER"
FILES = NetworkFiles(NETWORK, CARD, FORMAT, "masked atoms", FIT)
STRUCTURE = (  # fields that a network and the model for which it draws atoms must share
    "node_cardinalities", "edge_cardinalities", "max_degree", "max_distance", "num_hops", "ties"
)  # fmt: skip


class Network(nn.Module):
    """A network that predicts logits (B, N, V) of V types for every atom from the visible atoms.

    Args:
        config: the structure that the network reads, and its sizes.
        types: the rows of features seen in training (V, F).
    """

    types: Tensor
    starts: Tensor

    def __init__(self, config: GraphormerConfig, types: Tensor) -> None:
        super().__init__()
        dim, cardinalities = config.hidden_dim, torch.tensor(config.node_cardinalities)
        self.config = config
        self.register_buffer("types", types)
        self.register_buffer("starts", cardinalities.cumsum(0) - cardinalities, persistent=False)
        self.features = nn.Parameter(torch.randn(int(cardinalities.sum()), dim) * 0.1)
        self.hidden = nn.Parameter(torch.randn(dim) * 0.1)
        self.in_degree = nn.Parameter(torch.randn(config.max_degree + 1, dim) * 0.02)
        self.out_degree = nn.Parameter(torch.randn(config.max_degree + 1, dim) * 0.02)
        self.bias = StructuralBias(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.norm = LayerNorm(dim, config.layernorm_eps)
        self.output = nn.Linear(dim, len(types))

    def between_atoms(self, batch: GraphBatch) -> Tensor:
        """Return the structural bias (B, H, N, N) between atoms, -inf at keys that are padding."""
        bias: Tensor = self.bias(batch)
        return bias[:, :, 1:, 1:]

    def forward(self, x: Tensor, degrees: Tensor, hidden: Tensor, bias: Tensor) -> Tensor:
        """Return the logits (B, N, V).

        Args:
            x: features of the atoms (B, N, F).
            degrees: their in-degrees and out-degrees (2, B, N).
            hidden: which atoms are hidden (B, N).
            bias: structural bias between atoms (B, H, N, N).
        """
        rows = (x.long() + self.starts).flatten(0, 1)
        shown = F.embedding_bag(rows, self.features, mode="sum").unflatten(0, x.shape[:2])
        tokens = torch.where(hidden[..., None], self.hidden, shown)
        d_in, d_out = degrees.clamp(max=len(self.in_degree) - 1)
        tokens = tokens + F.embedding(d_in, self.in_degree) + F.embedding(d_out, self.out_degree)
        for layer in self.layers:
            tokens = layer(tokens, bias)
        return self.output(self.norm(tokens))

    def drawn(
        self, x: Tensor, degrees: Tensor, hidden: Tensor, bias: Tensor, chance: Tensor, turn: Tensor
    ) -> Tensor:
        """Return the features (B, N, F) with hidden atoms drawn.

        Args:
            x: as in `forward`.
            degrees: as in `forward`.
            hidden: as in `forward`.
            bias: as in `forward`.
            chance: for each atom a number in [0, 1) that decides the type (B, N).
            turn: the round in which each atom is drawn (B, N).
        """
        x = x.clone()
        for now in range(int(turn.max()) + 1 if turn.numel() else 0):
            left = hidden & (turn >= now)
            rows = (left & (turn == now)).any(-1).nonzero()[:, 0]
            if not len(rows):
                continue
            chosen = (left & (turn == now))[rows]
            logits = self(x[rows], degrees[:, rows], left[rows], bias[rows])[chosen]
            below = logits.double().softmax(-1).cumsum(-1) < chance[rows][chosen][:, None]
            place = below.sum(-1).clamp(max=len(self.types) - 1)
            redrawn = x[rows]
            redrawn[chosen] = self.types[place].to(x)
            x[rows] = redrawn
        return x


@dataclass(frozen=True, eq=False)
class MaskedAtoms:
    """A network that draws atoms, for models with the same atoms, bonds and structural encoding.

    Args:
        network: the network.
        card: data, number of graphs, seed, epochs, processor time in seconds, and for held-out
            graphs how often the most probable type is the true one.
    """

    network: Network
    card: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        stated = "; ".join(f"{name}: {value}" for name, value in self.card.items())
        return f"MaskedAtoms({stated})"

    @property
    def digest(self) -> str:
        """SHA-256 of the network's file."""
        return hashlib.sha256(FILES.raw(self.network.state_dict())).hexdigest()

    def require(self, config: GraphormerConfig) -> None:
        """Raise ValueError if a model with this configuration has other atoms or bonds."""
        for name in STRUCTURE:
            if getattr(config, name) != getattr(self.network.config, name):
                raise ValueError(
                    f"the masked atoms were fitted to graphs with another {name}; fit them with"
                    f" {FIT}."
                )

    def sampler(
        self, batch: GraphBatch, graphs: "Sequence[Data]", draws: int, seed: int,
        rounds: int = ROUNDS,
    ) -> "Sampler":  # fmt: skip
        """Return the sampler of atoms for encoded graphs. Equal seeds draw equal atoms."""
        device, n = batch.x.device, batch.x.shape[1]
        self.network.to(device)
        chance = torch.zeros(draws, len(graphs), n, dtype=torch.double)
        turn = torch.zeros(draws, len(graphs), n, dtype=torch.long)
        for g, graph in enumerate(graphs):
            size = int(batch.num_nodes[g])
            # 32 bits: a generator on the CPU reads no more
            checksum = zlib.crc32(graph.x.contiguous().numpy().tobytes(), seed % 2**32)
            if graph.edge_index is not None:
                checksum = zlib.crc32(graph.edge_index.contiguous().numpy().tobytes(), checksum)
            generator = torch.Generator().manual_seed(checksum)
            both = torch.rand(2, draws, size, generator=generator, dtype=torch.double)
            chance[:, g, :size] = both[0]
            order = both[1].argsort(-1).argsort(-1)
            turn[:, g, :size] = order * rounds // max(size, 1)
        with torch.no_grad():
            bias = self.network.between_atoms(batch)
        return Sampler(self.network, batch, bias, chance.to(device), turn.to(device))

    def save(self, folder: str | Path) -> Path:
        """Write both files to a (checkpoint) folder, and return it."""
        structure = {name: getattr(self.network.config, name) for name in STRUCTURE}
        state = self.network.state_dict()
        return FILES.write(folder, state, structure=structure, card=self.card)

    @classmethod
    def load(cls, folder: str | Path) -> "MaskedAtoms":
        """Read both files of a folder, or raise a ValueError that names what is wrong with one."""
        network, content = FILES.read(folder, {"card": dict}, _network_of)
        return cls(network, content["card"])


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws the atoms of the graphs in one batch.

    Args:
        bias: structural bias between atoms (G, H, N, N).
        chance: for each draw and atom a number in [0, 1) that decides the type (draws, G, N).
        turn: the round in which each atom is drawn (draws, G, N).
    """

    network: Network
    batch: GraphBatch
    bias: Tensor
    chance: Tensor
    turn: Tensor

    @torch.no_grad()
    def __call__(self, owner: Tensor, keep: Tensor) -> tuple[GraphBatch, Tensor, Tensor]:
        """Return the graphs with their removed atoms drawn anew, each distinct graph once.

        A graph's atoms are drawn from the same random numbers whatever stays, so that choices
        differ by what stays and not by chance.

        Args:
            owner: index of the graph that each choice belongs to (K,).
            keep: True at atoms that stay, False at those removed and at padding (K, N).

        Returns:
            R graphs to embed, without structure; the index of the graph that each belongs to (R,);
            and for each draw the position of its graph among the R (draws, K).
        """
        n = keep.shape[1]
        mask = self.batch.mask[owner, :n]
        hidden = mask & ~keep
        degrees = torch.stack([self.batch.in_degree, self.batch.out_degree])[:, owner, :n]
        x, bias = self.batch.x[owner, :n], self.bias[owner, :, :n, :n]
        drawn = [
            self.network.drawn(x, degrees, hidden, bias, chance[owner, :n], turn[owner, :n])
            for chance, turn in zip(self.chance, self.turn, strict=True)
        ]
        repeated = owner.repeat(len(drawn))
        whole = torch.cat([repeated[:, None], torch.cat(drawn).flatten(1).to(repeated)], dim=1)
        rows, place = torch.unique(whole, dim=0, return_inverse=True)
        owners = rows[:, 0]
        redrawn = replace(
            self.batch,
            x=rows[:, 1:].unflatten(1, x.shape[1:]).to(x),
            mask=self.batch.mask[owners, :n],
            in_degree=self.batch.in_degree[owners, :n],
            out_degree=self.batch.out_degree[owners, :n],
            num_nodes=self.batch.num_nodes[owners],
            environments=None
            if self.batch.environments is None
            else self.batch.environments[owners, :n],
            y=None,
        )
        return redrawn, owners, place.view(len(drawn), -1)


def small_config(config: GraphormerConfig) -> GraphormerConfig:
    """Return the configuration of a new network that draws atoms for a model with this one."""
    sizes = (LAYERS, WIDTH, 2 * WIDTH, HEADS)
    return _config({name: getattr(config, name) for name in STRUCTURE}, *sizes)


def stored_masked_atoms(model: Any) -> MaskedAtoms:
    """Read the masked atoms beside a checkpoint. A ValueError says how to fit them."""
    if not has_masked_atoms(model):
        raise ValueError(
            f"no masked atoms are fitted to model {model.origin.name!r}: fit them with {FIT}."
        )
    return MaskedAtoms.load(model.origin.folder)


def has_masked_atoms(model: Any) -> bool:
    """Return whether masked atoms lie beside the model's checkpoint."""
    folder = getattr(getattr(model, "origin", None), "folder", None)
    return folder is not None and (Path(folder) / CARD).is_file()


def _config(
    structure: dict[str, Any], layers: int, width: int, ffn: int, heads: int
) -> GraphormerConfig:
    return GraphormerConfig(
        tasks=(Task("not used", "regression"),),
        num_layers=layers,
        hidden_dim=width,
        ffn_dim=ffn,
        num_heads=heads,
        dropout=0.1,
        attention_dropout=0.0,
        **structure,
    )


def _network_of(tensors: dict[str, Tensor], content: dict[str, Any]) -> Network:
    """Return the network with these tensors, after checking their names, shapes and values.

    All sizes are taken from the tensors, which were read from a small file.
    """
    structure = content.get("structure")
    if not isinstance(structure, dict) or set(structure) != set(STRUCTURE):
        raise ValueError(f"{CARD} does not say what the structure is")
    for name in ("node_cardinalities", "edge_cardinalities"):
        structure = structure | {name: tuple(structure[name])}
    layers = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
    ffn, width = tensors["layers.0.ffn.expand.weight"].shape
    rows, heads = tensors["bias.spatial"].shape
    expected = {
        "max_distance": rows - 2,
        "max_degree": len(tensors["in_degree"]) - 1,
        "num_hops": len(tensors["bias.hop"]) if structure["edge_cardinalities"] else None,
    }
    if any(value not in (None, structure[name]) for name, value in expected.items()):
        raise ValueError(f"its shapes are not those of the structure in {CARD}")
    types = tensors["types"]
    sizes = torch.tensor(structure["node_cardinalities"])
    if int(sizes.sum()) != len(tensors["features"]) or types.shape[1:] != sizes.shape:
        raise ValueError(f"its atoms have other features than {CARD} says")
    if types.dtype != torch.int16 or not bool(((types >= 0) & (types < sizes)).all()):
        raise ValueError("'types' holds values outside the features")
    require_finite({name: value for name, value in tensors.items() if name != "types"})
    network = Network(_config(structure, layers, width, ffn, heads), types)
    network.load_state_dict(tensors)
    return network.eval()
