"""Which pairs of tokens carried the relevance: attention weighted by relevance.

Where attention is held constant (AH), token i receives `y_i = sum_j A_ij v_j` in every head, and
with `g_i = d f_c / d y_i` the relevance that comes through one entry of attention is

    R[l, i, j] = sum_h A[l, h, i, j] (v_j . g_i) = sum_h A[l, h, i, j] dA[l, h, i, j],

where `dA = d f_c / d A` is the slope of the constant (Ali 2022, section 4, read one product
earlier than at the tokens). Row i is the query, the token that reads; column j the key, the token
that is read; the bias of the values counts as read with them. The entries of one layer sum to all
relevance that passed its attention; the rest passed beside it, on the residual path. Relevance
goes through every layer, so that a sum over layers counts it once a layer.

In models of others a layer is one application of attention between nodes, whole or along edges.
What nodes receive otherwise (messages without attention, as of a GIN or GCN inside a GPS layer,
positional terms, pooling) passes beside attention and is in no pair; what an edge adds to a value
counts as read with it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graphxai.adapters.placing import OneGraphAtATime
from graphxai.api import (
    Model,
    OnError,
    constraints,
    explain_prepared,
    in_batches,
    in_chunks,
    load,
)
from graphxai.capture import ExplainableModel, explaining
from graphxai.drawn import Drawn
from graphxai.explainers import get_explainer
from graphxai.explainers.base import Explainer, Method
from graphxai.explainers.gradient import GradientInput
from graphxai.explanation import Explanation
from graphxai.models.graphormer.encoding import UNREACHABLE, IntArray, shortest_paths
from graphxai.progress import progress_bar
from graphxai.propagation import Rules, conservative, record
from graphxai.target import Target

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

APART = "unreachable"
TOKEN_READS, READ_TOKEN, TOKEN_ITSELF = "graph token reads", "graph token read", "graph token, self"


@dataclass(frozen=True, eq=False)
class Pairs(Drawn):
    """Relevance of every pair of tokens of one graph, T = N + 1, the graph token first.

    by_layer (L, T, T): relevance that token i (row) read from token j (column), summed over the
    heads. Where only the graph token is read out, the last layer's rows but the first are zero:
    nobody reads them. distances (N, N): shortest paths in edges, -1 where there is none; |i - j|
    in a row of tokens. explanation: of the nodes, by the same method and for the same target.
    graph_token: whether the model has one; without, row and column 0 are zero.
    """

    explanation: Explanation
    by_layer: NDArray[np.floating]
    distances: NDArray[np.integer]
    graph_token: bool = True

    def __repr__(self) -> str:
        what = self.explanation.smiles or f"{len(self.distances)} nodes"
        return (
            f"Pairs({what}: {len(self.by_layer)} layers; {self.explanation.title} for"
            f" {self.explanation.target!r})"
        )

    @property
    def matrix(self) -> NDArray[np.floating]:
        """Summed over the layers, (T, T)."""
        return self.by_layer.sum(0)

    def profile(self, layer: int | None = None) -> dict[int | str, float]:
        """How much relevance came over which shortest-path distance; sums to all of it.

        Keys: 0 (a node that reads itself), 1, 2, ...; "unreachable", if there are such pairs; the
        pairs of a graph token, which have no distance, by three names. layer: from 0; None for
        all.
        """
        relevance = self._of(layer)
        between = relevance[1:, 1:]
        reached = self.distances != UNREACHABLE
        sums = np.bincount(self.distances[reached], weights=between[reached])
        found: dict[int | str, float] = dict(enumerate(sums.tolist()))
        if not reached.all():
            found[APART] = float(between[~reached].sum())
        if not self.graph_token:
            return found
        found[TOKEN_READS] = float(relevance[0, 1:].sum())
        found[READ_TOKEN] = float(relevance[1:, 0].sum())
        found[TOKEN_ITSELF] = float(relevance[0, 0])
        return found

    def by_bond(self, layer: int | None = None) -> dict[str, float]:
        """The profile's share of bonded pairs by the type of their bond, RDKit's name for it.

        Empty for graphs without a molecule.
        """
        found: dict[str, float] = {}
        relevance = self._of(layer)[1:, 1:]
        for (i, j), name in self._bonds().items():
            found[name] = found.get(name, 0.0) + float(relevance[i, j] + relevance[j, i])
        return found

    def strongest(self, count: int = 12, layer: int | None = None) -> list[tuple[int, int, float]]:
        """Pairs of different nodes i < j with the largest |relevance|, both directions summed."""
        between = self._of(layer)[1:, 1:]
        i, j = np.triu_indices(len(between), k=1)
        both = (between + between.T)[i, j]
        order = np.argsort(-np.abs(both), kind="stable")[:count]
        return [(int(i[k]), int(j[k]), float(both[k])) for k in order if both[k] != 0]

    def to_frame(self) -> "pd.DataFrame":
        """One row a pair of nodes and layer: query, key, distance, bond type, relevance."""
        import pandas as pd

        n, layers = len(self.distances), len(self.by_layer)
        layer, query, key = np.indices((layers, n, n)).reshape(3, -1)
        bonds = np.full((n, n), "", dtype=object)
        for (i, j), name in self._bonds().items():
            bonds[i, j] = bonds[j, i] = name
        columns = {
            "layer": layer,
            "query": query,
            "key": key,
            "distance": self.distances[query, key],
            "bond": bonds[query, key],
            "relevance": self.by_layer[layer, query + 1, key + 1],
        }
        return pd.DataFrame(columns)

    def svg(self, *, count: int = 12, layer: int | None = None, **options: Any) -> str:
        """The molecule with lines between the atoms of its `count` strongest pairs.

        A ring around an atom is what the graph token, if there is one, read from it. What atoms
        read from themselves and from the graph token is not drawn. Options as for `pairs_svg`.
        Raises ValueError for a graph without a molecule.
        """
        from graphxai.visualization.pairs import pairs_svg

        told, molecule = self.explanation, self.explanation.molecule
        if molecule is None:
            raise ValueError("pairs are drawn on molecules; use `profile`, `figure` or `matrix`.")
        relevance = self._of(layer)
        where = "all layers" if layer is None else f"layer {range(len(self.by_layer))[layer] + 1}"
        options.setdefault("title", told.headline)
        about = f"{told.title} through attention, {where}"
        about += " · rings: read by the graph token" if self.graph_token else ""
        options.setdefault("subtitle", f"{about}; lines: the strongest atom pairs")
        options.setdefault("legend", told.legend)
        return pairs_svg(molecule, relevance[0, 1:], self.strongest(count, layer), **options)

    def _repr_svg_(self) -> str | None:
        return None if self.explanation.molecule is None else super()._repr_svg_()

    def figure(self) -> "Figure":
        """Bars: relevance by shortest-path distance, and of bonded pairs by bond type."""
        from graphxai.visualization.pairs import profile_figure

        told = self.explanation
        layers = [self.profile(layer) for layer in range(len(self.by_layer))]
        return profile_figure(layers, self.by_bond(), title=f"{told.title} for {told.target}")

    def _of(self, layer: int | None) -> NDArray[np.floating]:
        return self.matrix if layer is None else self.by_layer[layer]

    def _bonds(self) -> dict[tuple[int, int], str]:
        molecule = self.explanation.molecule
        if molecule is None:
            return {}
        return {
            (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()): bond.GetBondType().name.lower()
            for bond in molecule.GetBonds()
        }


def pairs(
    model: "Model | str | Path",
    inputs: Any,
    method: Method = "lrp",
    *,
    target: Any = None,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Relevance of the pairs of tokens, for one input or each of a list.

    Arguments, errors and results as for `explain`, with `Pairs` for `Explanation`. method: one
    that holds attention constant (`lrp`, `lrp_ah`, `lrp_ah_ln`); otherwise relevance also takes
    the way through queries and keys, which is not a sum over pairs: ValueError. Any model from
    `load` or `wrap` will do that has attention between nodes; ValueError for one that has none.
    """
    from graphxai.inputs import as_list

    model = load(model) if isinstance(model, str | Path) else model
    explainer = get_explainer(method)
    rules = _rules(explainer)
    values, several = as_list(inputs)
    results: list[Pairs | None] = [None] * len(values)
    strict = on_error == "raise" or not several
    with progress_bar("explaining pairs", len(values), show=progress) as tick:
        for chunk in in_chunks(model, values, strict, tick):
            explained = dict(explain_prepared(model, chunk, explainer, target=target))
            for part in in_batches(chunk, *constraints(model)):
                graphs = [item.data for _, item in part]
                batch = _batch_of(model, graphs)
                relevance = pair_relevance(model, batch, target, rules).cpu()
                relevance = relevance.to(torch.promote_types(relevance.dtype, torch.float32))
                distances = _distances(batch, graphs)
                for row, (index, item) in enumerate(part):
                    tokens = int(item.data.num_nodes) + 1
                    own = relevance[row, :, :tokens, :tokens].numpy().copy()
                    token = getattr(batch, "has_graph_token", True)
                    results[index] = Pairs(explained[index], own, distances[row], token)
                    tick(1)
    return results if several else results[0]


def pair_relevance(
    model: ExplainableModel, batch: Any, target: Any = None, rules: Rules | None = None
) -> Tensor:
    """`sum_h A_ij dA_ij` (B, L, T, T) of every layer; rules hold attention constant (default: LRP).

    Raises ValueError for a target the model does not have, or a model without attention.
    """
    rules = rules or Rules(attention=True, layernorm=True, activation="ratio")
    size = batch.mask.shape[1] + 1
    with explaining(model):
        try:
            with conservative(**vars(rules)), record(attention_gradients=True) as tape:
                outputs = model.encode(model.embed(batch).detach(), batch)
        except OneGraphAtATime as error:
            alone = [pair_relevance(model, one, target, rules) for one in error.batches]
            return torch.cat([F.pad(one, (0, size - one.shape[-1]) * 2) for one in alone])
        f = Target.of(target).resolve(model.config, outputs)(outputs)
        slopes = torch.autograd.grad(
            f.sum(), tape.attention, allow_unused=True, materialize_grads=True
        )
    layers = []
    for attention, slope in zip(tape.attention, slopes, strict=True):
        share = (attention.detach() * slope).sum(1)  # (B, Q, T)
        layers.append(F.pad(share, (0, 0, 0, size - share.shape[1])))
    return torch.stack(layers, dim=1)


def _batch_of(model: Any, graphs: list[Any]) -> Any:
    with torch.inference_mode(False):
        outside = [graph.clone() if graph.x.is_inference() else graph for graph in graphs]
        return model.collate(outside).to(next(model.parameters()).device)


def _distances(batch: Any, graphs: list[Any]) -> list[IntArray]:
    """Distances (n, n) between the nodes of each graph."""
    if hasattr(batch, "distances"):
        own: list[IntArray] = batch.distances()
        return own
    edges = [(int(graph.num_nodes), *graph.edge_index.numpy()) for graph in graphs]
    return [shortest_paths(*each)[0] for each in edges]


def _rules(explainer: Explainer) -> Rules:
    """The method's rules; ValueError unless they hold attention constant."""
    if isinstance(explainer, GradientInput) and explainer.rules.attention:
        return explainer.rules
    raise ValueError(
        f"{explainer.name} does not tell pairs apart: use a method that holds attention constant,"
        " lrp, lrp_ah or lrp_ah_ln."
    )
