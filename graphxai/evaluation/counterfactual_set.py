"""Find the smallest set of nodes or edges that has to go for the predicted class to change."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.batching import MAX_GRAPHS
from graphxai.contract.inputs import SCHEMA, Input, as_list, row_index
from graphxai.contract.model import evaluating
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.explainers import get_explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.explaining import explain_prepared
from graphxai.explanation.compute.lists import OnError, is_strict, map_inputs
from graphxai.explanation.compute.models import Model, conformal_of, loaded, mark_explained_for
from graphxai.explanation.compute.predicting import predict_prepared
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.labelled import Drawings
from graphxai.explanation.prediction import Prediction, read_outputs
from graphxai.explanation.result import Drawing
from graphxai.runtime.device import on_cpu_by_default
from graphxai.visualization import Scale, graph_svg, molecule_svg, superpixel_svg
from graphxai.wrapping.chosen import chosen_nodes
from graphxai.wrapping.hiding import nodes_of_answer
from graphxai.wrapping.removal import Operator, outputs_of_many, outputs_without_edges
from graphxai.wrapping.subgraphs import undirected_edges
from graphxai.wrapping.wrapped import WrappedModel

from .best_ordering import smallest_set
from .curves import class_logits

MemberKind: TypeAlias = Literal["nodes", "edges"]
Member: TypeAlias = int | tuple[int, int]
OutputsWithout: TypeAlias = Callable[[Sequence[Data], Sequence[Tensor]], list[Tensor]]
GraphSearch: TypeAlias = Generator[Tensor, Tensor, "CounterfactualSet"]


@dataclass(frozen=True, eq=False)
class CounterfactualSet(Drawing):
    """Nodes or edges without which a model predicts another class.

    Args:
        of: "nodes" or "edges".
        members: the numbers of the nodes, or the two nodes of each edge, ascending. In a
            heterogeneous graph the numbers go on from type to type, and edges come type by type.
            It is empty if the search ended without such a set.
        explanation: the explanation of the class predicted for the whole graph.
        after: the prediction without the members.
        proven: True if all smaller sets were tried, so that no smaller set exists, or none at all
            if there are no members. Otherwise it is only certain that no single member can be left
            out.
        predictions: how many predictions the search took.
    """

    of: MemberKind
    members: tuple[Member, ...]
    explanation: Explanation
    after: Prediction
    proven: bool
    predictions: int

    @property
    def before(self) -> Prediction:
        """The prediction for the whole graph."""
        return self.explanation.prediction

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes of the set, or the nodes at its edges, ascending."""
        return tuple(
            sorted({int(node) for member in self.members for node in np.atleast_1d(member)})
        )

    @property
    def summary(self) -> str:
        """The result in a sentence."""
        if not self.members:
            sure = "" if self.proven else " that was tried"
            return f"no set of {self.of}{sure} changes {self.before}"
        what = self.of if len(self) > 1 else self.of[:-1]
        sure = "no smaller set does" if self.proven else "none of them can be left out"
        return f"{self.before} without {len(self)} {what}: {self.after}; {sure}"

    def svg(self, **options: Any) -> str:
        """Draw the graph and colour the nodes of the set.

        Options are those of `molecule_svg`, `superpixel_svg` and `graph_svg`.

        Raises:
            ValueError: the graph cannot be drawn.
        """
        shown = np.zeros(len(self.explanation.relevance))
        shown[list(self.nodes)] = 1.0
        options.setdefault("title", self.summary)
        options.setdefault("scale", Scale(1.0, one_sided=True))
        options.setdefault("color_bar", False)
        explanation = self.explanation
        if explanation.molecule is not None:
            return molecule_svg(explanation.molecule, shown, **options)
        if explanation.image is not None and explanation.segments is not None:
            return superpixel_svg(explanation.image, explanation.segments, shown, **options)
        if explanation.drawn is not None and self.of == "edges":
            ends = np.sort(explanation.drawn.edges, axis=0).T.tolist()
            chosen = {tuple(map(int, np.atleast_1d(member))) for member in self.members}
            drawn_at = {pair: k for k, pair in enumerate(map(tuple, ends))}  # one of two directions
            lines = np.array(
                [tuple(pair) in chosen and drawn_at[*pair] == k for k, pair in enumerate(ends)]
            )
            nothing = np.zeros_like(shown)
            return graph_svg(explanation.drawn, nothing, edge_relevance=lines, **options)
        if explanation.drawn is not None:
            return graph_svg(explanation.drawn, shown, **options)
        raise ValueError("this input cannot be drawn: it has no SMILES, no image and no edges.")

    def _repr_svg_(self) -> str | None:
        return super()._repr_svg_() if self.explanation.has_picture else None

    def __len__(self) -> int:
        return len(self.members)

    def __bool__(self) -> bool:
        return bool(self.members)

    def __repr__(self) -> str:
        return f"CounterfactualSet({self.summary})"


@on_cpu_by_default
def counterfactual_set(
    model: "Model | str | Path",
    inputs: Any,
    *,
    of: MemberKind = "nodes",
    task: str | None = None,
    method: Method = "lrp_path",
    operator: Operator = "mask",
    node: Any = None,
    pair: Any = None,
    exhaustive: int = 3000,
    on_error: OnError = "warn",
    progress: bool | None = None,
) -> Any:
    """Find the smallest set of nodes or edges that must go to change the predicted class.

    A single input gives a CounterfactualSet. A list gives a list of them, with None for an input
    that could not be used. Graphs of a list share forward passes. A last prediction checks every
    set.

    Args:
        model: as for `explain`.
        inputs: as for `explain`.
        of: "nodes", such as superpixels, are removed by `operator` as `evaluate` removes them. At
            least one stays, and so do nodes at which the model reads its answer (`root_index`).
            "edges" are taken out of `edge_index` in both directions together, and the graph is
            encoded again (self loops stay). Edges of different types go one by one.
        task: name of the task, in a model with several.
        method: its relevance gives the search an order to start from.
        operator: how nodes are removed.
        node: as for `explain`. This node stays.
        pair: as for `explain`. Both nodes stay.
        exhaustive: all sets of one size are tried if there are at most this many. Otherwise sets
            grow from the best sets that have one member less.
        on_error: as for `explain`.
        progress: as for `explain`.

    Raises:
        KeyboardInterrupt: a list was interrupted. The `results` of the exception are those that
            were finished, with None for the others.
        ValueError: the task is a regression, or edges are to go from a model that reads them from a
            matrix.
    """
    model = loaded(model)
    if of not in ("nodes", "edges"):
        raise ValueError(f"of is 'nodes' or 'edges', not {of!r}.")
    explained_task = Target(None, task).task_in(model.config)
    if explained_task.kind == "regression":
        raise ValueError(
            f"task {explained_task.name!r} is a regression and has no class to change:"
            " name another task with task=."
        )
    values, several = as_list(mark_explained_for(model, inputs, node, pair))
    search = partial(
        _sets, task=explained_task, method=method, of=of, operator=operator, exhaustive=exhaustive
    )
    collect = partial(Drawings, labels=row_index(inputs))
    strict = is_strict(on_error, several)
    results = map_inputs(
        model, values, search, "searching", collect, strict=strict, progress=progress
    )
    return collect(results) if several else results[0]


def _sets(
    model: Model,
    encoded: Sequence[tuple[int, Input]],
    /,
    *,
    task: Task,
    method: Method,
    of: MemberKind,
    operator: Operator,
    exhaustive: int,
) -> Iterator[tuple[int, CounterfactualSet]]:
    """Yield the set of each graph, searched together with those that share its forward passes."""
    outputs_without: OutputsWithout = partial(outputs_of_many, model, operator=operator)
    if of == "edges":
        outputs_without = partial(outputs_without_edges, model)
    with evaluating(model):
        for start in range(0, len(encoded), MAX_GRAPHS):
            part = encoded[start : start + MAX_GRAPHS]
            explained = _explained(model, task, part, method)
            searches = {
                k: _search(model, task, explained[k], item, of, exhaustive) for k, item in part
            }
            yield from _together(searches, dict(part), outputs_without)


def _explained(
    model: Model, task: Task, prepared: Sequence[tuple[int, Input]], method: Method
) -> dict[int, Explanation]:
    explainer, by_class = get_explainer(method, model=model), defaultdict(list)
    items = dict(prepared)
    for k, predictions in predict_prepared(model, prepared):
        (label,) = (prediction.label for prediction in predictions if prediction.task == task.name)
        by_class[label].append((k, items[k]))
    return {
        k: explanation
        for label, part in by_class.items()
        for k, explanation in explain_prepared(
            model, part, explainer, target=Target(label, task.name)
        )
    }


def _together(
    searches: Mapping[int, GraphSearch],
    graphs: Mapping[int, Input],
    outputs_without: OutputsWithout,
) -> Iterator[tuple[int, CounterfactualSet]]:
    """Run all searches side by side, and yield the result of each with its key."""
    answers: dict[int, Tensor | None] = dict.fromkeys(searches)
    while answers:
        keeps = {}
        for k, answer in answers.items():
            try:
                keeps[k] = searches[k].send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                yield k, end.value
        outputs = outputs_without([graphs[k] for k in keeps], list(keeps.values())) if keeps else []
        answers = {
            k: outputs_of_graph.cpu() for k, outputs_of_graph in zip(keeps, outputs, strict=True)
        }


def _search(
    model: Model, task: Task, explanation: Explanation, item: Input, of: MemberKind, exhaustive: int
) -> GraphSearch:
    """Search one graph: yield which nodes or edges stay, and receive the outputs.

    Both are as in `outputs_of_many`.
    """
    nodes_read = chosen_nodes(item.data)
    if isinstance(model, WrappedModel) and not nodes_read:
        batch = model.collate([item.data]).to(model.device)
        with evaluating(model):
            (of_answer,) = nodes_of_answer(model, batch, model.embed(batch))
        nodes_read = of_answer.nonzero()[:, 0].tolist()
    members, belongs = _members(item.data, of, nodes_read)
    before = explanation.prediction
    column = task.classes.index(str(before.label))
    relevance = torch.from_numpy(explanation.relevance)
    order = torch.tensor(
        [float(relevance[[*np.atleast_1d(prediction)]].sum()) for prediction in members]
    )
    all_may_go = of == "edges" or bool(nodes_read)
    sets = smallest_set(order, len(members) - (not all_may_go), exhaustive)
    margins, predictions = None, 1  # the first prediction is that of the whole graph
    while True:
        try:
            hidden = sets.send(margins)  # type: ignore[arg-type]
        except StopIteration as end:
            chosen, proven = end.value
            break
        predictions += len(hidden)
        outputs = yield ~hidden[:, belongs] | (belongs < 0)
        logits = class_logits(model.config, Target(None, task.name), outputs).double()
        others = logits.index_fill(1, torch.tensor(column), -torch.inf).amax(1)
        margins = (logits[:, column] - others).nan_to_num(nan=torch.inf)
    after, removed_members = before, ()
    if chosen is not None:
        predictions += 1
        (outputs,) = yield ~chosen[None, belongs] | (belongs < 0)
        conformal = conformal_of(model)
        read = read_outputs(model.config, outputs.double().tolist(), None, conformal)
        (after,) = (prediction for prediction in read if prediction.task == task.name)
        if after.label == before.label:
            raise RuntimeError(
                "the same removal gives another class in another batch: the model draws random"
                " numbers, or mixes the graphs of a batch."
            )
        removed_members = tuple(members[k] for k in chosen.nonzero()[:, 0].tolist())
    return CounterfactualSet(of, removed_members, explanation, after, proven, predictions)


def _members(data: Data, of: MemberKind, read: list[int]) -> tuple[list[Any], Tensor]:
    """Return the members that can be removed, and which member each node or edge belongs to.

    Members are nodes, or pairs of nodes that an edge joins. Each node (N,), or each column of
    `edge_index`, has the number of its member. Self loops and nodes that stay have -1. The model
    reads its answer at the nodes `read`, so these stay.
    """
    if of == "nodes":
        n = int(data.num_nodes or 0)
        stays = torch.zeros(n, dtype=torch.bool)
        stays[read] = True
        numbers = torch.where(stays, -1, (~stays).cumsum(0) - 1)
        return (~stays).nonzero()[:, 0].tolist(), numbers
    if data.get("edge_index") is None:
        raise ValueError(
            "rows of tokens have no edge_index, so no edges: remove nodes (of='nodes')."
        )
    types = data.get("edge_type") if data.get(SCHEMA) is not None else None
    pairs, belongs = undirected_edges(data.edge_index, types)
    return [(i, j) for i, j in pairs.tolist()], belongs
