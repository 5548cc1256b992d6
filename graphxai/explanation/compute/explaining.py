"""Compute each graph's explanation, from encoded inputs in batches.

`explanations_or_errors` collates a batch, lets the explainer attribute it, and runs the model
without nodes. `_ExplainedBatch` holds the results of the batch as plain numbers, and makes one
`Explanation` from the row of each graph, or from those of all passes whose mean it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

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
from graphxai.contract.inputs import SCHEMA, Input
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
from graphxai.explanation.ledger import CURVE, Ledger
from graphxai.explanation.prediction import NotFiniteError, Prediction

from .drawn import grid_of, plain_graph
from .models import Model, provenance
from .predicting import (
    all_passes,
    mean_of,
    nearness_when_read,
    or_not_finite,
    outputs_of_passes,
    ranges_of,
    read_passes,
    without_errors,
)

GRAPH_TENSORS = ("x", "edge_index", "edge_attr", "pos")
OF_EDGES = ("edge_attr", "edge_index")  # inputs whose rows are edges
ARRAYS = ("relevance", "features", "spread", "members")
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
        prepared: the encoded inputs, each with the caller's key.
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
    apart = [pair for pair in prepared if pair[1].isomers]
    rising = [*map(float, range(model.config.num_outputs))] if apart else []
    if apart and len({wanted.settled(model.config, each) for each in (rising, rising[::-1])}) > 1:
        # of all isomers, the class that the mean predicts is explained
        prepared = [pair for pair in prepared if not pair[1].isomers]
        about: dict[str, Any] = {"wrt": wrt, "training": training}
        for key, item, outputs, _ in outputs_of_passes(model, apart):
            about["target"] = wanted.settled(model.config, mean_of(outputs))
            yield from explanations_or_errors(model, [(key, item)], explainer, **about)
    passes = [((key, item), each) for key, item in prepared for each in item.passes]
    waiting: dict[int, list[_Pass]] = {}
    joins = partial(joins_others, model, explainer.traits.needs_gradients)
    shared = joins if explainer.traits.nodes_share_passes else lambda item: False
    groups = joined_nodes(passes, shared, MAX_GRAPHS)
    for part in batches_for(model, groups, alike=True):
        # inference tensors cannot carry gradients
        with torch.inference_mode(False), noting_empty_outputs() as noted:
            batch = collated(model, part, alike=True)
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
            arrays={
                name: None if values is None else values.float().cpu().numpy()
                for name, values in ((name, getattr(attribution, name)) for name in ARRAYS)
            },
            outputs=attribution.outputs.double().tolist(),
            labels=attribution.labels,
            shares=_shares(attribution),
            inputs=attribution.inputs or {},
            without_nodes=without_nodes,
            zeroed_nodes=zeroed_nodes,
            with_nodes="x" in wrt,
        )
        asked = [pair for group, _ in part for pair in group]
        for row, ((key, item), each) in enumerate(asked):
            of_pass = _Pass(explained, row, explained.numbers(row, each))
            if (of_item := all_passes(waiting, item, of_pass)) is not None:
                near = nearness_when_read(item, training)
                yield key, or_not_finite(_mean_explanation, item, of_item, near)


def _shares(attribution: Attribution) -> list[dict[str, Any]]:
    """Return each graph's shares under the names of the ledger, as plain numbers."""
    graphs = len(attribution.outputs)
    columns: dict[str, list[Any]] = {
        name: getattr(attribution, name).tolist()
        for name in ("graph_token", "biases", "output", "average_node")
        if getattr(attribution, name) is not None
    }
    for name in ("structure", "remainders", "others"):
        columns[name] = _by_graph(getattr(attribution, name), graphs)
    if attribution.curve is not None:
        *numbers, columns["group_error"] = attribution.curve.T.tolist()
        rows = zip(*numbers, strict=True)
        columns["curve"] = [dict(zip(CURVE, row, strict=True)) for row in rows]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


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
        origin: the provenance that all explanations share.
        ranges: for each graph by task, what the intervals of its predictions follow from.
        arrays: the relevance of the nodes (B, N), and if there are any their relevance by feature
            (B, N, F), spread (B, N), and relevance by member of an ensemble (K, B, N).
        shares: the shares of each graph under the names of the ledger.
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
    arrays: Mapping[str, FloatArray | None]
    outputs: list[list[float]]
    labels: tuple[str, ...]
    shares: list[dict[str, Any]]
    inputs: Mapping[str, Sequence[Tensor]]
    without_nodes: list[float | None]
    zeroed_nodes: list[float | None]
    with_nodes: bool

    def numbers(self, row: int, item: Input) -> dict[str, Any]:
        """Cut the numbers of one graph's explanation out of the batch, without its padding.

        Each of them is linear in the output that is explained, so those of a mean are their means,
        and its ledger closes as theirs do.
        """
        of_graph = self._cut(row, item.num_nodes)
        relevance: Any = of_graph["relevance"]
        features: Any = of_graph["features"]
        relevance_of, features_of = self._by_input(row, item, relevance, features)
        centrality, names = None, self._names
        if "centrality" in names:
            centrality = float(features[:, names.index("centrality")].sum(dtype=np.float64))
        ledger = {
            "nodes": float(relevance.sum(dtype=np.float64)),
            "without_nodes": self.without_nodes[row],
            "zeroed_nodes": self.zeroed_nodes[row] if self.without_nodes[row] is None else None,
            "centrality": centrality,
            "node_parts": self._parts(item.graph, relevance, features) if self._parts else {},
            "along_edges": float(self.inputs["edge_index"][row].double().sum())
            if "edge_index" in self.inputs
            else None,
            **self.shares[row],
        }
        return of_graph | {
            "output": self.shares[row]["output"],
            "without_nodes": self.without_nodes[row],
            "ledger": ledger if self.explainer.traits.adds_up else None,
            "relevance_of": relevance_of,
            "features_of": features_of,
        }

    def explanation(
        self,
        row: int,
        item: Input,
        numbers: dict[str, Any],
        predictions: tuple[Prediction, ...],
        as_given: Any,
    ) -> Explanation:
        """Make the explanation of an input with these numbers, of which a row is the first pass."""
        traits, ledger = self.explainer.traits, numbers["ledger"]
        words = item.graph.get("dense")  # numbers of words, and not vectors such as patches
        return Explanation(
            **numbers | {"ledger": ledger and Ledger(**ledger)},
            target=self.labels[row],
            wanted=self.target.settled(self.model.config, self.outputs[row]),
            prediction=next(p for p in predictions if p.task == self._task),
            predictions=predictions,
            method=self.explainer.name,
            title=self.explainer.title,
            caveat=traits.caveat,
            unsigned=traits.large_score_means,
            feature_names=self._names,
            smiles=item.smiles,
            mol=item.molecule,
            as_given=as_given,
            image=item.image,
            segments=item.segments,
            graph=_arrays_of(item, any(name in self.inputs for name in OF_EDGES)),
            drawn=plain_graph(item),
            is_sequence=isinstance(words, Tensor) and not words.is_floating_point(),
            grid=grid_of(words),
            provenance=self.origin,
        )

    # All explanations share these. Reading an attribute of a network takes a while.
    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The names of the features that have relevance."""
        return () if self.arrays["features"] is None else tuple(self.model.feature_names)

    @cached_property
    def _parts(self) -> Callable[..., dict[str, float]] | None:
        """The function of a model that names further parts of its nodes."""
        parts: Callable[..., dict[str, float]] | None = getattr(self.model, "node_parts", None)
        return parts

    @cached_property
    def _task(self) -> str:
        return self.target.task_in(self.model.config).name

    def _cut(self, row: int, nodes: int) -> dict[str, Any]:
        """Return copies of the arrays of one graph, without its padding."""
        cut: dict[str, Any] = dict.fromkeys(self.arrays)
        for name, values in self.arrays.items():
            if values is not None:
                of_row = values[:, row] if name == "members" else values[row]
                cut[name] = (of_row[:nodes] if name == "features" else of_row[..., :nodes]).copy()
        return cut

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
            if name in OF_EDGES:
                for kind, edges in (_by_type(item.graph, name) or {}).items():
                    relevance[kind] = by_row[edges]
            relevance[name] = by_row
            if values.ndim > 1:
                split[name] = values
        return relevance, split


class _Pass(NamedTuple):
    """One pass of an input: a row of a batch, with the numbers of its explanation."""

    batch: _ExplainedBatch
    row: int
    numbers: dict[str, Any]

    @property
    def outputs(self) -> list[float]:
        return self.batch.outputs[self.row]


def _mean_explanation(
    item: Input, passes: Sequence[_Pass], nearness: NearnessWhenRead
) -> Explanation:
    """Return the explanation of an input: the mean over its passes."""
    first, last = passes[0], passes[-1]
    numbers = mean_of([each.numbers for each in passes])
    outputs, ranges = [each.outputs for each in passes], last.batch.ranges[last.row]
    read = read_passes(first.batch.model, item, outputs, nearness, ranges)
    return first.batch.explanation(first.row, item, numbers, *read)


def _arrays_of(item: Input, with_bonds: bool) -> dict[str, NDArray[Any]]:
    """Return the features and edges of a graph, as in `ExplainedGraph.graph`."""
    if item.graph.get(SCHEMA) is not None:
        return {}
    is_molecule = item.smiles is not None or item.molecule is not None
    names = (("edge_index",) if with_bonds else ()) if is_molecule else GRAPH_TENSORS
    return {  # NumPy has no bfloat16, so its values become single ones
        name: (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True).copy()
        for name in names
        if isinstance(value := item.graph.get(name), Tensor) and value.layout == torch.strided
    }


def _by_type(graph: Any, what: str) -> "dict[str, NDArray[np.integer]] | None":
    """Return the numbers of nodes, or rows of an input of edges, by type."""
    if graph.get(SCHEMA) is None:
        return None
    from graphxai.wrapping import heterogeneous  # needs PyG

    if what == "nodes":
        return heterogeneous.nodes_by_type(graph)
    return heterogeneous.edges_by_type(graph, with_attributes=what == "edge_attr")
