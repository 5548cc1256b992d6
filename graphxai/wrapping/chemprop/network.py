"""A chemprop network as a function of the tensors of a graph, made of chemprop's own modules.

What its head computes is read as outputs that can be explained. A class is explained by its logit,
and a property by its value in the units of the table. chemprop returns probabilities for classes;
these are the logits from which it computes them.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.intervals import LEVEL, OwnSpread, normal_end
from graphxai.contract.tasks import TaskKind


@dataclass
class MoleculeGraphs:
    """A batch of molecules as chemprop's modules read it; see `chemprop.data.BatchMolGraph`.

    Args:
        V: features of the atoms (N, d_v).
        E: features of the directed bonds (E, d_e).
        edge_index: both directions of every bond (2, E).
        rev_edge_index: for each directed bond, the number of the other direction (E,).
        batch: the molecule of each atom (N,).
    """

    V: Tensor
    E: Tensor
    edge_index: Tensor
    rev_edge_index: Tensor
    batch: Tensor

    def __len__(self) -> int:
        return int(self.batch.max()) + 1 if len(self.batch) else 0


class Scaling(nn.Module):
    """A scaling of chemprop, whose constants are parameters.

    chemprop keeps them as buffers. Passes of LRP by hooks know parameters alone, and would have to
    be replaced by slower ones.

    Args:
        transform: a `ScaleTransform` or `UnscaleTransform`.
    """

    def __init__(self, transform: nn.Module) -> None:
        super().__init__()
        self.mean = nn.Parameter(cast(Tensor, transform.mean).clone())  # (1, d)
        self.scale = nn.Parameter(cast(Tensor, transform.scale).clone())  # (1, d)
        self.restores = type(transform).__name__ == "UnscaleTransform"
        self.training = transform.training

    def forward(self, x: Tensor) -> Tensor:
        """Return the columns (B, d), standardised or in the units of the table."""
        mean, scale = self.mean.to(x), self.scale.to(x)  # the network may have been moved
        return x * scale + mean if self.restores else (x - mean) / scale


def _with_parameters(transform: nn.Module) -> nn.Module:
    """Return a scaling of chemprop with its constants as parameters, or another module as it is."""
    is_scaling = type(transform).__name__ in ("ScaleTransform", "UnscaleTransform")
    return Scaling(transform) if is_scaling else transform


def _scaled_by_parameters(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose scalings have parameters, and which shares its weights."""
    if not any(type(part).__name__ == "ScaleTransform" for part in module.modules()):
        return module
    clone = copy(module)
    clone._modules = {
        name: part and _scaled_by_parameters(_with_parameters(part))
        for name, part in module._modules.items()
    }
    return clone


class ChempropNetwork(nn.Module):
    """Message passing, aggregation and head of a chemprop network, with the weights that it has.

    Its outputs are logits of classes, or values in the units of the table, see `heads`.

    Args:
        message_passing, agg, bn, ffn, output_transform, X_d_transform: the modules.
        head: the name of the head in `HEADS`.
        num_classes: of a head for several classes, how many there are; otherwise 0.
        level: of a head for two quantiles, how often values should lie between them.
    """

    def __init__(
        self,
        message_passing: nn.Module,
        agg: nn.Module,
        bn: nn.Module,
        ffn: nn.Module,
        output_transform: nn.Module,
        X_d_transform: nn.Module,
        head: str,
        num_classes: int = 0,
        level: float = LEVEL,
    ) -> None:
        super().__init__()
        self.message_passing = _scaled_by_parameters(message_passing)
        self.agg, self.bn = agg, bn
        self.ffn = ffn
        self.output_transform = _with_parameters(output_transform)
        self.X_d_transform = _with_parameters(X_d_transform)
        self.head, self.num_classes, self.level = head, num_classes, level
        self.training = message_passing.training  # not the True that PyTorch begins with

    @classmethod
    def of(cls, mpnn: Any) -> "ChempropNetwork":
        """Return the network of a `chemprop.models.MPNN`, which keeps its modules."""
        predictor = mpnn.predictor
        return cls(
            mpnn.message_passing,
            mpnn.agg,
            mpnn.bn,
            predictor.ffn,
            predictor.output_transform,
            mpnn.X_d_transform,
            head_of(predictor),
            int(getattr(predictor, "n_classes", 0)),
            1 - float(getattr(predictor.criterion, "alpha", 1 - LEVEL)),
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        batch: Tensor,
        molecule_features: Tensor | None = None,
        node_component: Tensor | None = None,
    ) -> Tensor:
        """Return the outputs (B, C).

        Args:
            x: features of the atoms (N, d_v), followed by descriptors (N, d_vd) if the network
                reads any.
            edge_index: both directions of every bond (2, E).
            edge_attr: features of the directed bonds (E, d_e).
            batch: the molecule of each atom (N,), or its input of several molecules.
            molecule_features: features of whole molecules (B, d), if the network reads any.
            node_component: for a network of several molecules, which of them each atom is in (N,).
        """
        reverse = other_directions(edge_index, len(x))
        width = self.num_atom_features
        descriptors = x[:, width:] if x.shape[1] > width else None
        pooled = []
        for number, block in enumerate(self.blocks):
            graphs = MoleculeGraphs(x[:, :width], edge_attr, edge_index, reverse, batch)
            of_atoms = block(graphs, descriptors)  # (N, d)
            if node_component is None:
                pooled.append(self.agg(of_atoms, batch))
            else:
                pooled.append(self._of_component(of_atoms, number, node_component, batch))
        hidden = self.bn(torch.cat(pooled, dim=1))  # (B, d)
        if molecule_features is not None:
            hidden = torch.cat([hidden, self.X_d_transform(molecule_features)], dim=1)
        return HEADS[self.head].read(self.ffn(hidden), self.output_transform)

    def _of_component(
        self, of_atoms: Tensor, number: int, node_component: Tensor, batch: Tensor
    ) -> Tensor:
        """Aggregate the atoms (N, d) of one molecule of every input (B, d)."""
        count, graphs = len(self.blocks), int(batch.max()) + 1 if len(batch) else 0
        rows = self.agg(of_atoms, batch * count + node_component)
        if len(rows) < count * graphs:  # the last molecule has lost all its atoms
            rows = F.pad(rows, (0, 0, 0, count * graphs - len(rows)))
        return rows[number::count]

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The message passing for each molecule of an input."""
        return cast(Sequence[nn.Module], getattr(self.message_passing, "blocks", None)) or [
            self.message_passing
        ]

    def width(self, name: str) -> int:
        """Return how wide the features of atoms (d_v), bonds (d_e) or descriptors (d_vd) are."""
        hyperparameters: Any = getattr(self.blocks[0], "hparams", {})
        return int(hyperparameters.get(name) or 0)

    @property
    def num_atom_features(self) -> int:
        """How many of the columns of `x` enter before messages are passed."""
        return self.width("d_v") or 2**31  # an own module may not say so, and takes all

    def spreads(self, raw: Tensor) -> list[list[OwnSpread]]:
        """Return how sure the network says that it is, for each molecule and task.

        Args:
            raw: what its predictor computed (B, P).
        """
        scale = getattr(self.output_transform, "scale", torch.ones(1))
        spread = HEADS[self.head].spread
        assert spread is not None
        values = spread(raw.detach().cpu(), scale.detach().cpu(), self)  # (B, T)
        name = "evidence" if "Dirichlet" in self.head else "sd"
        return [[OwnSpread(**{name: value}) for value in row] for row in values.tolist()]

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        raw = cast(int, self.ffn.output_dim) // HEADS[self.head].targets
        return raw // max(self.num_classes, 1)

    @property
    def num_molecule_features(self) -> int:
        """The number of features of whole molecules that the network reads."""
        of_blocks = sum(cast(int, block.output_dim) for block in self.blocks)
        return cast(int, self.ffn.input_dim) - of_blocks


class MeanOfNetworks(nn.Module):
    """Several networks trained on the same tasks, as the mean of their outputs."""

    def __init__(self, members: Sequence[ChempropNetwork]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.training = self.members.training = any(member.training for member in members)

    @wraps(ChempropNetwork.forward)  # graphs give what it names
    def forward(self, *inputs: Any, **named: Any) -> Any:  # type: ignore[override]
        """Return the outputs (B, C); the arguments are those of `ChempropNetwork`."""
        return torch.stack([member(*inputs, **named) for member in self.members]).mean(0)


def other_directions(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the number of the opposite edge of every edge (E,), from edges (2, E).

    Sorted by their nodes, the edges and the opposite edges are in the same order.
    """
    first, second = edge_index
    order = (first * num_nodes + second).argsort()
    opposite = torch.empty_like(order)
    opposite[(second * num_nodes + first).argsort()] = order
    return opposite


Unscale = Callable[[Tensor], Tensor]  # from standardised values to the units of the table
Read = Callable[[Tensor, Unscale], Tensor]


def _mean(parts: int) -> Read:
    """Read the mean of a distribution, the first part of (B, parts T). What else it has follows."""
    return lambda raw, unscale: unscale(raw.chunk(parts, 1)[0])


def _middle(raw: Tensor, unscale: Unscale) -> Tensor:
    """Return the middle of the two quantiles (B, 2 T)."""
    low, high = raw.chunk(2, 1)
    return (unscale(low) + unscale(high)) / 2


def _log_concentrations(raw: Tensor, _: Unscale) -> Tensor:
    """Return the logarithms of a Dirichlet distribution's concentrations.

    They are logits of its mean, alpha / sum of alpha.
    """
    return torch.log(F.softplus(raw) + 1)


def _binary_log_concentrations(raw: Tensor, _: Unscale) -> Tensor:
    """Return the logit of the second of two concentrations, for (B, 2 T) in pairs."""
    log = torch.log(F.softplus(raw) + 1).reshape(len(raw), -1, 2)
    return log[..., 1] - log[..., 0]


def _sd_of_mean_and_variance(raw: Tensor, scale: Tensor, _: ChempropNetwork) -> Tensor:
    """Return the standard deviation of an MVE head (Nix 1994)."""
    return F.softplus(raw.chunk(2, 1)[1]).sqrt() * scale


def _sd_of_evidence(raw: Tensor, scale: Tensor, _: ChempropNetwork) -> Tensor:
    """Return the square root of the total variance of an evidential head (Amini 2020).

    It is chemprop's `evidential-total`, (1 + 1 / v) beta / (alpha - 1).
    """
    v, alpha_less_one, beta = map(F.softplus, raw.chunk(4, 1)[1:])
    return ((1 + 1 / v) * beta / alpha_less_one).sqrt() * scale


def _sd_of_quantiles(raw: Tensor, scale: Tensor, network: ChempropNetwork) -> Tensor:
    """Return the standard deviation of a normal distribution with these two quantiles.

    Nothing in such a network keeps the lower one below the other.
    """
    low, high = raw.chunk(2, 1)
    return (high - low).abs() / 2 * scale / normal_end(network.level)


def _evidence(raw: Tensor, _: Tensor, network: ChempropNetwork) -> Tensor:
    """Return the sum of the concentrations of the classes (B, T)."""
    concentrations = (F.softplus(raw) + 1).reshape(len(raw), -1, network.num_classes or 2)
    return concentrations.sum(-1)


@dataclass(frozen=True)
class Head:
    """How the raw outputs of a predictor are read.

    Args:
        kind: the kind of its tasks.
        read: turns raw outputs into outputs (B, C) that can be explained.
        targets: the number of raw outputs for each output.
        spread: how sure the network is of each task (B, T), given raw outputs, the scale of the
            values and the network, or None if it does not say.
    """

    kind: TaskKind
    read: Read
    targets: int = 1
    spread: Callable[[Tensor, Tensor, ChempropNetwork], Tensor] | None = None


HEADS = {
    "RegressionFFN": Head("regression", lambda raw, unscale: unscale(raw)),
    "MveFFN": Head("regression", _mean(2), 2, _sd_of_mean_and_variance),
    "EvidentialFFN": Head("regression", _mean(4), 4, _sd_of_evidence),
    "QuantileFFN": Head("regression", _middle, 2, _sd_of_quantiles),
    "BinaryClassificationFFN": Head("binary", lambda raw, _: raw),
    "BinaryDirichletFFN": Head("binary", _binary_log_concentrations, 2, _evidence),
    "MulticlassClassificationFFN": Head("multiclass", lambda raw, _: raw),
    "MulticlassDirichletFFN": Head("multiclass", _log_concentrations, 1, _evidence),
}


def head_of(predictor: Any) -> str:
    """Return which of `HEADS` a predictor has: its class, or that from which it is derived.

    Raises:
        ValueError: it is none of them.
    """
    for base in type(predictor).__mro__:
        if base.__module__.startswith("chemprop.") and base.__name__ in HEADS:
            return base.__name__
    raise ValueError(unknown_head(type(predictor).__name__))


def unknown_head(name: str) -> str:
    """Say that a predictor is not read, and what to do."""
    return (
        f"the outputs of chemprop's {name} cannot be read as values or classes; those of"
        f" {', '.join(HEADS)} can. Wrap the network with graphxai.wrap(module, forward=...)"
        " instead, where module is your own torch.nn.Module around it."
    )
