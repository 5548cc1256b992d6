"""Compute each graph's explanation, from encoded inputs in batches.

`explanations_or_errors` collates a batch, lets the explainer attribute it, and runs the model
without nodes. `_ExplainedBatch` holds the results of the batch as plain numbers, and makes one
`Explanation` from each row.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.batching import (
    MAX_GRAPHS,
    Key,
    batches_for,
    collated,
    joined_nodes,
    joins_others,
)
from graphxai.contract.inputs import Input
from graphxai.contract.intervals import Conformal, OwnSpread
from graphxai.contract.model import noting_empty_outputs
from graphxai.contract.target import Target
from graphxai.datasets.training_set import Nearness, TrainingSet
from graphxai.explainers import Attribution, Explainer
from graphxai.explainers.passes import (
    explained_output,
    outputs_of_zeroed_nodes,
    outputs_without_nodes,
)
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.ledger import Ledger
from graphxai.explanation.prediction import NotFiniteError, read_outputs
from graphxai.visualization import PlainGraph

from .models import Model, provenance
from .predicting import (
    mean_explanation,
    nearness_when_read,
    or_not_finite,
    ranges_of,
    with_isomers,
    without_errors,
)

GRAPH_TENSORS = ("x", "edge_index", "edge_attr", "pos")
FloatArray: TypeAlias = NDArray[np.floating]
NearnessWhenRead: TypeAlias = Nearness | Callable[[], Nearness] | None


def explain_prepared(
    model: Model,
    prepared: Sequence[tuple[Key, Input]],
    explainer: Explainer,
    *,
    target: Any = None,
    training: TrainingSet | None = None,
) -> Iterator[tuple[Key, Explanation]]:
    """Explain encoded inputs, and raise an error if a result is not finite."""
    return without_errors(
        explanations_or_errors(model, prepared, explainer, target=target, training=training)
    )


def explanations_or_errors(
    model: Model,
    prepared: Sequence[tuple[Key, Input]],
    explainer: Explainer,
    *,
    target: Any = None,
    wrt: Sequence[str] | None = None,
    training: TrainingSet | None = None,
) -> Iterator[tuple[Key, Explanation | NotFiniteError]]:
    """Explain encoded inputs in batches of similar size, and yield each key with its explanation.

    If the results of an input are not finite, the error is yielded instead.

    Args:
        model: the model.
        prepared: the encoded inputs, each with the caller's key.
        explainer: the method.
        target: the output to explain, see `Target`.
        wrt: the inputs that get relevance, see `api.explain`.
        training: the model's training set, to tell how near each molecule is to it. Without one,
            this is unknown.
    """
    wanted = Target.of(target)
    if wrt is None:
        # The nodes' features, and whatever else a wrapped model offers if the method can explain
        # it, such as the bonds of a chemprop network.
        offered: Sequence[str] = getattr(model, "explained_inputs", ("x",))
        wrt = offered if explainer.traits.explains_other_inputs else ("x",)
    origin = provenance(model, explainer)
    empty_outputs: Tensor | None = None
    always_empty_alike = getattr(model, "empty_alike", False)
    prepared = with_isomers(model, prepared)
    passes = [((key, item), each) for key, item in prepared for each in item.passes]
    waiting: dict[int, Explanation | NotFiniteError] = {}  # of a first pass
    joins = partial(joins_others, model, explainer.traits.needs_gradients)
    shared = joins if explainer.traits.nodes_share_passes else lambda item: False
    groups = joined_nodes(passes, shared, MAX_GRAPHS)
    for part in batches_for(model, groups):
        # inference tensors cannot carry gradients
        with torch.inference_mode(False), noting_empty_outputs() as noted:
            batch = collated(model, part)
            attribution = explainer.attribute(model, batch, wanted, wrt)
        if empty_outputs is None or not always_empty_alike:
            empty_outputs = noted.of(model, batch)
            if empty_outputs is None:
                empty_outputs = outputs_without_nodes(model, batch)
        without_nodes = explained_output(model, empty_outputs, attribution.outputs, wanted)
        zeroed_nodes: list[float | None] = [None] * len(without_nodes)
        if None in without_nodes and explainer.traits.adds_up:
            zeroed = outputs_of_zeroed_nodes(model, batch)
            zeroed_nodes = explained_output(model, zeroed, attribution.outputs, wanted)
        explained = _ExplainedBatch(
            model=model,
            explainer=explainer,
            target=wanted,
            origin=origin,
            ranges=ranges_of(model, batch, len(attribution.outputs)),
            numbers=_Numbers.of(attribution),
            inputs=attribution.inputs or {},
            without_nodes=without_nodes,
            zeroed_nodes=zeroed_nodes,
            with_nodes="x" in wrt,
        )
        asked = [pair for group, _ in part for pair in group]
        for row, ((key, item), each) in enumerate(asked):
            near = nearness_when_read(item, training)
            result = or_not_finite(explained.explanation, row, each, near)
            if item.mirrored is None:
                yield key, result
            elif (first := waiting.pop(id(item), None)) is None:
                waiting[id(item)] = result
            else:
                yield key, mean_explanation(first, result)


@dataclass(frozen=True, eq=False)
class _Numbers:
    """An Attribution in plain numbers, where lists have an entry for each graph.

    Args:
        relevance: the relevance of the nodes (B, N).
        features: the relevance split by feature (B, N, F), or None.
        spread: how far each score may be off (B, N), or None.
        members: the relevance by each model of an ensemble (K, B, N), or None.
        outputs: the model's outputs.
        labels: the targets as text.
        shares: the shares under the names of the ledger.
    """

    relevance: FloatArray
    features: FloatArray | None
    spread: FloatArray | None
    members: FloatArray | None
    outputs: list[list[float]]
    labels: tuple[str, ...]
    shares: list[dict[str, Any]]

    @classmethod
    def of(cls, attribution: Attribution) -> "_Numbers":
        """Convert each tensor of an attribution once for the whole batch."""
        graphs = len(attribution.outputs)
        columns: dict[str, list[Any]] = {
            name: getattr(attribution, name).tolist()
            for name in ("graph_token", "biases", "output", "average_node")
            if getattr(attribution, name) is not None
        }
        columns["structure"] = _by_graph(attribution.structure, graphs)
        columns["remainders"] = _by_graph(attribution.remainders, graphs)
        columns["others"] = _by_graph(attribution.others, graphs)
        return cls(
            relevance=attribution.relevance.float().cpu().numpy(),
            features=_array(attribution.features),
            spread=_array(attribution.spread),
            members=_array(attribution.members),
            outputs=attribution.outputs.double().tolist(),
            labels=attribution.labels,
            shares=[
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ],
        )


def _array(values: Tensor | None) -> FloatArray | None:
    """Convert a tensor to an array, or return None for a tensor that is missing."""
    return None if values is None else values.float().cpu().numpy()


def _by_graph(values: dict[str, Tensor] | None, graphs: int) -> list[dict[str, float]]:
    """Return a dict for each graph with its entry of every named tensor (B,)."""
    if not values:
        return [{} for _ in range(graphs)]
    rows = zip(*(value.tolist() for value in values.values()), strict=True)
    return [dict(zip(values, row, strict=True)) for row in rows]


@dataclass(frozen=True, eq=False)
class _ExplainedBatch:
    """The results for a batch, ready to be cut into one explanation for each graph.

    Args:
        model: the model.
        explainer: the method.
        target: the target as the caller gave it.
        origin: the provenance that all explanations share.
        ranges: for each graph by task, what the intervals of its predictions follow from.
        numbers: the attribution in plain numbers.
        inputs: by name, the relevance of further inputs as a tensor (rows, ...) for each graph.
        without_nodes: f_c of each graph without its nodes.
        zeroed_nodes: f_c of each graph with nodes of zeros, where it is wanted.
        with_nodes: whether the nodes' features are among the inputs that get relevance.
    """

    model: Model
    explainer: Explainer
    target: Target
    origin: dict[str, Any]
    ranges: Sequence[Mapping[str, Conformal | OwnSpread]]
    numbers: _Numbers
    inputs: Mapping[str, Sequence[Tensor]]
    without_nodes: list[float | None]
    zeroed_nodes: list[float | None]
    with_nodes: bool

    def explanation(self, row: int, item: Input, nearness: NearnessWhenRead) -> Explanation:
        """Cut the explanation of one graph out of the batch, without its padding."""
        numbers, model, explainer = self.numbers, self.model, self.explainer
        nodes = slice(item.num_nodes)
        outputs = numbers.outputs[row]
        relevance = numbers.relevance[row, nodes].copy()
        features = None if numbers.features is None else numbers.features[row, nodes].copy()
        about = nearness, self.ranges[row], item.note, item.parent
        predictions = read_outputs(model.config, outputs, *about)
        task = self.target.task_in(model.config)
        relevance_of, features_of = self._by_input(row, item, relevance, features)
        centrality, names = None, list(model.feature_names)
        if features is not None and "centrality" in names:
            centrality = float(features[:, names.index("centrality")].sum(dtype=np.float64))
        words = item.graph.get("dense")  # numbers of words, and not vectors such as patches
        return Explanation(
            relevance=relevance,
            target=numbers.labels[row],
            wanted=self.target.settled(model.config, outputs),
            prediction=next(p for p in predictions if p.task == task.name),
            predictions=predictions,
            method=explainer.name,
            title=explainer.title,
            output=numbers.shares[row]["output"],
            without_nodes=self.without_nodes[row],
            caveat=explainer.traits.caveat,
            unsigned=explainer.traits.large_score_means,
            ledger=Ledger(
                nodes=float(relevance.sum(dtype=np.float64)),
                without_nodes=self.without_nodes[row],
                zeroed_nodes=self.zeroed_nodes[row] if self.without_nodes[row] is None else None,
                centrality=centrality,
                node_parts=self._node_parts(item, relevance, features),
                **numbers.shares[row],
            )
            if explainer.traits.adds_up
            else None,
            features=features,
            feature_names=model.feature_names if features is not None else (),
            spread=None if numbers.spread is None else numbers.spread[row, nodes].copy(),
            members=None if numbers.members is None else numbers.members[:, row, nodes].copy(),
            relevance_of=relevance_of,
            features_of=features_of,
            smiles=item.smiles,
            mol=item.molecule,
            as_given=item.as_given,
            image=item.image,
            segments=item.segments,
            graph=_arrays_of(item, "edge_attr" in self.inputs),
            drawn=plain_graph(item),
            is_sequence=isinstance(words, Tensor) and not words.is_floating_point(),
            grid=_grid_of(words),
            provenance=self.origin,
        )

    def _node_parts(
        self, item: Input, nodes: FloatArray, features: FloatArray | None
    ) -> dict[str, float]:
        """Return the parts of the nodes' share that the model names, if it names any."""
        parts: Callable[..., dict[str, float]] | None = getattr(self.model, "node_parts", None)
        return {} if parts is None else parts(item.graph, nodes, features)

    def _by_input(
        self, row: int, item: Input, nodes: FloatArray, features: FloatArray | None
    ) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Return relevance and its split by feature for each input or each type of node.

        Both are empty if only the features of nodes of one type are explained. `nodes` (N,) and
        `features` (N, F) are the relevance of the nodes.
        """
        relevance: dict[str, FloatArray] = {}
        split: dict[str, FloatArray] = {}
        numbers_by_type = _by_type(item.graph, "nodes")
        for kind, members in (numbers_by_type or {}).items():
            relevance[kind] = nodes[members].copy()
        if not self.inputs:
            return relevance, split
        if self.with_nodes and numbers_by_type is None:
            relevance["x"] = nodes.copy()
            if features is not None:
                split["x"] = features.copy()
        for name, graphs in self.inputs.items():
            values = graphs[row].double().cpu().numpy()
            by_row = values.sum(tuple(range(1, values.ndim)))  # there may be no rows
            if name == "edge_attr":
                for kind, edges in (_by_type(item.graph, "edges") or {}).items():
                    relevance[kind] = by_row[edges]
            relevance[name] = by_row
            if values.ndim > 1:
                split[name] = values
        return relevance, split


def _arrays_of(item: Input, with_bonds: bool) -> dict[str, NDArray[Any]]:
    """Return the features and edges of a graph, as in `ExplainedGraph.graph`."""
    if item.graph.get("schema") is not None:
        return {}
    is_molecule = item.smiles is not None or item.molecule is not None
    names = (("edge_index",) if with_bonds else ()) if is_molecule else GRAPH_TENSORS
    return {
        name: _as_numpy(value)
        for name in names
        if isinstance(value := item.graph.get(name), Tensor) and value.layout == torch.strided
    }


def _by_type(
    graph: Any, what: Literal["nodes", "edges"]
) -> "dict[str, NDArray[np.integer]] | None":
    """Return the numbers of nodes or edges by type, or None unless a graph is heterogeneous."""
    if graph.get("schema") is None:
        return None
    from graphxai.wrapping import heterogeneous  # needs PyG

    of_nodes = what == "nodes"
    return heterogeneous.nodes_by_type(graph) if of_nodes else heterogeneous.edges_by_type(graph)


def _as_numpy(value: Tensor) -> NDArray[Any]:
    """Copy a tensor into an array. NumPy has no bfloat16, so its values become single ones."""
    value = value.float() if value.dtype == torch.bfloat16 else value
    return value.numpy(force=True).copy()


# Attributes that may name the nodes. If there are none, any list of N words may.
NAMES = ("name", "names", "label", "labels", "node_name", "node_names", "symbol", "symbols")


def plain_graph(item: Input) -> PlainGraph | None:
    """Return the graph to draw, or None for molecules, images and inputs without edges."""
    if any(drawn is not None for drawn in (item.smiles, item.molecule, item.segments)):
        return None
    graph = item.data.to_dict()  # PyG takes several times as long for each attribute
    edges = graph.get("edge_index")
    if not isinstance(edges, torch.Tensor) or edges.dim() != 2:
        return None
    from graphxai.wrapping.chosen import chosen_nodes  # needs PyG

    explained = tuple(chosen_nodes(graph))
    return PlainGraph(edges.cpu().numpy().astype(np.int64), _labels(graph, item), explained)


def _labels(values: Mapping[str, Any], item: Input) -> tuple[str, ...]:
    """Return what a graph with these attributes calls its nodes, or () if it has no names."""
    schema = values.get("schema")
    if schema is not None:
        numbers = {kind: count() for kind, _ in schema.nodes}
        kinds = [schema.nodes[code][0] for code in values["node_type"].tolist()]
        return tuple(f"{kind} {next(numbers[kind])}" for kind in kinds)
    for key in [*(name for name in NAMES if name in values), *values]:
        value = values[key]
        listed = isinstance(value, list | tuple | np.ndarray) and len(value) == item.num_nodes
        if listed and all(isinstance(word, str) for word in value):
            return tuple(map(str, value))
    return ()


def _grid_of(vectors: Any) -> tuple[int, int] | None:
    """Return the square grid of the patches that were given, or None if they make none."""
    if not isinstance(vectors, Tensor) or not vectors.is_floating_point() or len(vectors) < 4:
        return None
    side = math.isqrt(len(vectors))
    return (side, side) if side * side == len(vectors) else None
