"""Remove nodes from a graph in one of four ways, or edges in one way.

* `mask`: attention ignores the node's key, as it ignores padding. The structure of the rest does
  not change.
* `zero`: the node's embedding becomes zero, but its token stays.
* `delete`: the induced subgraph is encoded again, with its degrees and shortest paths.
* `resample`: a model of the data draws other atoms in the node's place, given the atoms that stay
  and all bonds. The outputs of several draws are averaged.

When edges are removed, the graph is encoded again without them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.batch import GraphBatch
from graphxai.contract.batching import num_fitting
from graphxai.contract.inputs import Input
from graphxai.models.graphormer import Ensemble, Graphormer, StructureEncoding
from graphxai.models.graphormer.choices import by_size, choices_runner, in_passes_by_size
from graphxai.models.graphormer.masked_atoms import (
    ROUNDS,
    MaskedAtoms,
    has_masked_atoms,
    stored_masked_atoms,
)

from .heterogeneous import types_of_nodes
from .hiding import output_of_empty, output_of_hidden
from .subgraphs import subgraph_alone
from .wrapped import WrappedModel

if TYPE_CHECKING:
    from graphxai.models.process import KernelProcess, SummedModel

Model: TypeAlias = "Graphormer | Ensemble | KernelProcess | SummedModel | WrappedModel"
Operator = Literal["mask", "zero", "delete", "resample"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)


@dataclass(frozen=True, eq=False)
class Resampling:
    """How the operator `resample` draws atoms.

    Args:
        atoms: the model of the data, from `fit_masked_atoms`. None takes the one beside the model's
            checkpoint.
        draws: the number of draws to average the outputs over.
        seed: the seed. The same seed draws the same atoms of a graph, whatever else is measured.
        rounds: in how many groups the atoms are drawn. Each group is drawn given the groups before.
    """

    atoms: MaskedAtoms | None = None
    draws: int = 4
    seed: int = 0
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        if self.draws < 1 or self.rounds < 1 or self.seed < 0:
            raise ValueError("draws and rounds must be at least 1, and the seed not negative.")

    def of(self, model: Model) -> "Resampling":
        """Fill in the atoms that are stored with the model, if none are given.

        Raises:
            ValueError: no atoms can be drawn for this model.
        """
        if not isinstance(model, Graphormer | Ensemble):
            raise ValueError(
                "operator 'resample' draws atoms in a Graphormer's encoding, which this model does"
                " not have: use 'mask', 'zero' or 'delete'."
            )
        if not model.config.node_cardinalities:
            raise ValueError(
                "operator 'resample' draws among the atoms seen in training, and the nodes of this"
                " model (superpixels, say) have continuous features: use 'mask', 'zero' or"
                " 'delete'."
            )
        atoms = self.atoms or stored_masked_atoms(model)
        atoms.require(model.config)
        return replace(self, atoms=atoms)

    def settings(self) -> dict[str, Any]:
        """Return what is needed to draw the same atoms again, as JSON values."""
        numbers = {"draws": self.draws, "rounds": self.rounds, "seed": self.seed}
        return numbers | ({} if self.atoms is None else {"atoms": self.atoms.digest[:12]})


def operators_for(model: Model, resampling: Resampling | None = None) -> tuple[Operator, ...]:
    """Return the operators for a model. `resample` needs masked atoms that were fitted to it."""
    has_atoms = resampling is not None and resampling.atoms is not None
    can_resample = (
        (has_atoms or has_masked_atoms(model))
        and isinstance(model, Graphormer | Ensemble)
        and model.config.node_cardinalities
    )
    cannot = {"resample": not can_resample, "delete": not getattr(model, "has_subgraphs", True)}
    return tuple(name for name in OPERATORS if not cannot.get(name))


def outputs_of_parts(
    model: Model,
    data: "Data | Input",
    keep: Tensor,
    operator: Operator = "mask",
    resampling: Resampling | None = None,
) -> Tensor:
    """Return the outputs (K, num_outputs) of one encoded graph for K choices of its nodes.

    For all operators except `delete`, the structural bias is computed once for all choices.

    Args:
        model: the model.
        data: the encoded graph. An `Input` is answered by the mean over its passes, as predictions
            are, and a graph alone by one pass.
        keep: True for the nodes that stay (K, N).
        operator: how nodes are removed.
        resampling: how `resample` draws atoms.

    Raises:
        ValueError: the operator is unknown or not for this model, or `keep` has the wrong shape.
    """
    return outputs_of_many(model, [data], [keep], operator, resampling)[0]


def outputs_of_many(
    model: Model,
    graphs: "Sequence[Data | Input]",
    keeps: Sequence[Tensor],
    operator: Operator = "mask",
    resampling: Resampling | None = None,
) -> list[Tensor]:
    """Return the outputs of `outputs_of_parts` for several graphs.

    Parts of similar size share a pass, even if they belong to different graphs.
    """

    run = partial(_outputs_of_many, model, operator=operator, resampling=resampling)
    return _mean_of_passes(run, graphs, keeps)


def _mean_of_passes(
    run: Callable[[Sequence[Data], Sequence[Tensor]], list[Tensor]],
    graphs: "Sequence[Data | Input]",
    keeps: Sequence[Tensor],
) -> list[Tensor]:
    """Run all passes of all graphs together, and return each graph's mean (K, num_outputs)."""
    passes = [each.passes if isinstance(each, Input) else (each,) for each in graphs]
    flat = [each.data if isinstance(each, Input) else each for of in passes for each in of]
    kept = [keep for of, keep in zip(passes, keeps, strict=True) for _ in of]
    outputs = iter(run(flat, kept))
    return [torch.stack([next(outputs) for _ in of]).mean(0) for of in passes]


@torch.no_grad()
def _outputs_of_many(
    model: Model,
    graphs: Sequence[Data],
    keeps: Sequence[Tensor],
    operator: Operator,
    resampling: Resampling | None,
) -> list[Tensor]:
    if operator not in OPERATORS:
        raise ValueError(f"unknown operator {operator!r}; choose from {', '.join(OPERATORS)}.")
    for data, keep in zip(graphs, keeps, strict=True):
        n = int(data.num_nodes or 0)
        if keep.dim() != 2 or keep.shape[1] != n:
            raise ValueError(f"keep has shape {tuple(keep.shape)}, but the graph has {n} nodes.")
    resampling = (resampling or Resampling()).of(model) if operator == "resample" else None
    if isinstance(model, Ensemble):
        members = [
            _outputs_of_many(member, graphs, keeps, operator, resampling)
            for member in model.members
        ]
        return [torch.stack(each).mean(0) for each in zip(*members, strict=True)]
    if operator != "delete" and not isinstance(model, Graphormer):
        return [_of_wrapped(model, *pair, operator) for pair in zip(graphs, keeps, strict=True)]
    run = _runner(model, graphs, operator, resampling)
    outputs = in_passes_by_size(run, keeps, operator in ("zero", "resample"))
    return list(outputs.split([len(keep) for keep in keeps]))


@torch.no_grad()
def outputs_without_edges(
    model: Model, graphs: "Sequence[Data | Input]", keeps: Sequence[Tensor]
) -> list[Tensor]:
    """Encode each graph again for K choices of its edges, and return the outputs (K, num_outputs).

    Args:
        keeps: for each graph, True for the columns of `edge_index` that stay (K, E).

    Raises:
        ValueError: a wrapped model may read edges from a matrix.
    """
    return _mean_of_passes(partial(_outputs_without_edges, model), graphs, keeps)


def _outputs_without_edges(
    model: Model, graphs: Sequence[Data], keeps: Sequence[Tensor]
) -> list[Tensor]:
    pairs = [(graph, choice) for graph, keep in zip(graphs, keeps, strict=True) for choice in keep]

    def run(rows: Tensor) -> Tensor:
        parts = [_thinned(model, *pairs[row]) for row in rows.tolist()]
        return _outputs_of_graphs(model, parts, parts)

    outputs = by_size(torch.tensor([int(graph.num_nodes or 0) + 1 for graph, _ in pairs]), run)
    return list(outputs.split([len(keep) for keep in keeps]))


def _thinned(model: Any, data: Data, choice: Tensor) -> Data:
    """Keep the chosen edges (E,) of a graph and encode it again."""
    if hasattr(model, "thinned"):
        return model.thinned(data, choice)
    whole = subgraph_alone(data, torch.ones(int(data.num_nodes or 0), dtype=torch.bool))
    whole.edge_index = data.edge_index[:, choice]
    if data.edge_attr is not None:
        whole.edge_attr = data.edge_attr[choice]
    return StructureEncoding.from_config(model.config)(whole)


def _runner(
    model: Any, graphs: Sequence[Data], operator: Operator, resampling: Resampling | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that turns owners (K,) and kept tokens (K, T) into outputs (K, C).

    The owner of a choice is its graph. What all choices share is computed once, when the function
    is made.
    """
    if operator == "delete":

        def deleted(owner: Tensor, kept: Tensor) -> Tensor:
            wholes = [graphs[g] for g in owner.tolist()]
            parts = [
                _induced(model, whole, choice[1 : int(whole.num_nodes or 0) + 1])
                for whole, choice in zip(wholes, kept, strict=True)
            ]
            return _outputs_of_graphs(model, parts, wholes)

        return deleted
    device = next(model.parameters()).device
    batch = model.collate(list(graphs)).to(device)
    bias = model.bias(batch)  # (G, H, T, T)
    if resampling is not None:
        return _resampler(model, graphs, batch, bias, resampling)
    return choices_runner(model, batch, model.embed(batch), bias, operator == "zero")


def _resampler(
    model: Graphormer,
    graphs: Sequence[Data],
    batch: GraphBatch,
    bias: Tensor,
    resampling: Resampling,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function like that of `_runner`, which averages over draws of the removed atoms."""
    assert resampling.atoms is not None
    draw = resampling.atoms.sampler(
        batch, graphs, resampling.draws, resampling.seed, resampling.rounds
    )

    def resampled(owner: Tensor, kept: Tensor) -> Tensor:
        owner = owner.to(bias.device)
        width = int(batch.num_nodes[owner].max()) + 1
        drawn, drawn_owner, place = draw(owner, kept[:, 1:width].to(bias.device))
        rows = num_fitting(width**2)
        tokens = model.embed(drawn)
        outputs = [
            model.encode(chunk, drawn, bias=bias[graph, :, :width, :width])
            for chunk, graph in zip(tokens.split(rows), drawn_owner.split(rows), strict=True)
        ]
        return torch.cat(outputs)[place].mean(0)

    return resampled


def _outputs_of_graphs(model: Any, parts: list[Data], wholes: Sequence[Data]) -> Tensor:
    """Return the outputs (P, C) of parts of graphs, one at a time if they cannot share a pass."""
    alone = set(range(len(parts)))
    if not isinstance(model, WrappedModel):
        alone = set()
    elif not any(map(model.goes_alone, wholes)):
        alone = {k for k, part in enumerate(parts) if not part.num_nodes}
    outputs = {k: _alone(model, parts[k], wholes[k]) for k in alone}
    if shared := [k for k in range(len(parts)) if k not in alone]:
        together = [parts[k] for k in shared]
        if "node_type" in wholes[0]:  # pooling counts graphs up to the last with nodes of a type
            together.append(max(wholes, key=lambda whole: len(types_of_nodes(whole).unique())))
        batch = model.collate(together, pad_to=1)
        rows = model(batch.to(next(model.parameters()).device))[: len(shared)].split(1)
        outputs |= dict(zip(shared, rows, strict=True))
    return torch.cat([outputs[k] for k in range(len(parts))])


def _alone(model: WrappedModel, part: Data, whole: Data) -> Tensor:
    """Return the output (1, C) of a part of a graph that cannot share a batch."""
    if not whole.num_nodes:
        return output_of_empty(model, part)
    batch = model.collate([part if part.num_nodes else whole]).to(next(model.parameters()).device)
    if not part.num_nodes:
        return output_of_hidden(model, whole, part, model.embed(batch)[0, 1:])
    return model(batch)


def _of_wrapped(model: Any, data: Data, keep: Tensor, operator: Operator) -> Tensor:
    """Return the outputs (K, num_outputs) of a wrapped model, which hides nodes by itself."""
    device = next(model.parameters()).device
    batch = model.collate([data]).to(device)
    tokens = model.embed(batch)
    rows = num_fitting(tokens.shape[1] ** 2)
    outputs = []
    for choices in keep.to(device).split(rows):
        if operator == "mask":
            outputs.append(model.encode(tokens.expand(len(choices), -1, -1), batch, choices))
        else:
            shown = torch.cat([choices.new_ones(len(choices), 1), choices], dim=1)
            outputs.append(model.encode(tokens * shown[..., None], batch))
    return torch.cat(outputs)


def _induced(model: Any, data: Data, choice: Tensor) -> Data:
    """Encode the subgraph on the chosen nodes (N,). Other models than Graphormers make it."""
    if hasattr(model, "induced"):
        return model.induced(data, choice)
    return StructureEncoding.from_config(model.config)(subgraph_alone(data, choice))
