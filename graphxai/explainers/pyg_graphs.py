"""Split a call through `torch_geometric.explain` into graphs, for a model that takes them.

The call holds the model's inputs as one batch, which is split into graphs as in
`wrapping.subgraphs`. The split may be uncertain, and without a batch vector the model could take
several copies of a graph for one graph. The model decides in both cases: its outputs for graphs
that share a pass must equal its outputs for each graph alone. Otherwise graphs are passed one by
one, or the call is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphxai.rules.conservative import unrecorded
from graphxai.wrapping import WrappedModel
from graphxai.wrapping.attribute_roles import roles_and_doubts
from graphxai.wrapping.batches import WrappedBatch
from graphxai.wrapping.one_at_a_time import one_by_one
from graphxai.wrapping.subgraphs import restricted

# Arguments of a call, and the attributes of a batch that hold their values.
COUNTED = {"batch": "batch", "ptr": "ptr", "batch_size": "num_graphs", "num_graphs": "num_graphs"}
COUNTED |= {"num_nodes": "num_nodes", "num_edges": "num_edges"}


@dataclass(eq=False)
class PygCall:
    """The user's call `model(x, edge_index, **kwargs)`, applied to another batch.

    Args:
        kwargs: the further arguments of the call.
        read: computes the explained number of each graph (B, 1) from the model's rows and the
            batch.
        gives_batch: whether to pass the batch vector to the model even if the user's call has none.
    """

    kwargs: dict[str, Any]
    read: Callable[[Tensor, Any], Tensor]
    gives_batch: bool = False

    def __call__(self, module: nn.Module, batch: Any) -> Tensor:
        """Compute the explained number of each graph of a batch (B, 1)."""
        given = {k: batch.get(k) if isinstance(v, Tensor) else v for k, v in self.kwargs.items()}
        for name, attribute in COUNTED.items():
            if given.get(name) is not None or isinstance(self.kwargs.get(name), Tensor):
                given[name] = getattr(batch, attribute)
        if self.gives_batch:
            given["batch"] = batch.batch
        return self.read(module(batch.x, batch.edge_index, **given), batch)


def split(whole: Data, group: Tensor | None) -> tuple[list[Data], list[str]]:
    """Split the inputs of a call into one Data per graph.

    Args:
        group: the graph of each node (n,). If it is None, there is one graph.

    Returns:
        The graphs, and the names of attributes that may not have been split correctly.
    """
    size = 1 if group is None else int(group.max()) + 1
    roles, doubts = roles_and_doubts([whole])
    loose = [key for key, role in roles.items() if role.along is None and role.names is None]
    uncertain = sorted({*doubts, *(key for key in loose if _rows(whole[key]) not in (0, size))})
    if group is None or size == 1:
        return [whole], uncertain
    graphs = [restricted(whole, group == b, roles) for b in range(size)]
    for key in loose:
        rows, rest = divmod(_rows(whole[key]), size)
        for b, graph in enumerate(graphs if rows and not rest else ()):
            graph[key] = whole[key][b * rows : (b + 1) * rows]
    return graphs, uncertain


def _rows(value: Any) -> int:
    return len(value) if isinstance(value, Tensor) and value.dim() else 0


def check_split(
    model: WrappedModel, batch: WrappedBatch, whole: Data, group: Tensor, uncertain: list[str]
) -> None:
    """Raise ValueError unless the split graphs reproduce the outputs of the call."""
    call: Any = model.settings.forward
    asked = whole.clone()
    asked.batch, asked.ptr = group, batch.graphs.ptr if batch.graphs is not None else None
    asked.num_graphs = len(batch)
    with torch.no_grad():
        expected = call(model.module, asked)
        try:
            outputs: Tensor | None = model.encode(model.embed(batch), batch)
        except (RuntimeError, ValueError, IndexError):
            outputs = None
    if outputs is None or not _same(outputs, expected):
        raise ValueError(
            f"cannot tell how {', '.join(uncertain)} splits into the graphs of the batch:"
            " explain the graphs one at a time."
        )


def _same(outputs: Tensor, expected: Tensor) -> bool:
    size = float(expected.abs().max()) if expected.numel() else 0.0
    return outputs.shape == expected.shape and torch.allclose(
        outputs, expected, rtol=1e-4, atol=1e-5 * size
    )


class SingleGraphModel(WrappedModel):
    """A wrapped model that is called with one graph.

    Copies of the graph share a pass if they do not affect each other. This works more often with a
    batch vector. So a model that accepts one gets it even if the user's call has none, provided
    that its outputs stay the same.
    """

    explains_nodes = False  # whether rows are of nodes, which an empty graph does not have
    _copies_are_independent: bool | None = None

    @classmethod
    def of(cls, model: WrappedModel, explains_nodes: bool) -> "SingleGraphModel":
        """Return the same model as a SingleGraphModel."""
        made = cls.__new__(cls)
        vars(made).update(vars(model), explains_nodes=explains_nodes)
        return made

    def encode(self, tokens: Tensor, batch: WrappedBatch, keep: Tensor | None = None) -> Tensor:
        """Encode as a wrapped model does. Copies of the graph share a pass if they can."""
        if len(tokens) == 1 and keep is None:
            return super().encode(tokens, batch, keep)
        if self._copies_are_independent is None:
            self._copies_are_independent = self._passes_are_independent(batch)
        if self._copies_are_independent:
            return super().encode(tokens, batch, keep)
        nothing = tokens.new_zeros(1, 1) if self.explains_nodes else None
        return one_by_one(self, tokens, batch, keep, nothing)

    def why_single_passes(self, batch: WrappedBatch) -> str:
        """Say why copies did not share passes when they were encoded; "" if they did."""
        return self.why_alone(batch.singles[0])

    @torch.no_grad()
    def _passes_are_independent(self, batch: WrappedBatch) -> bool:
        """Return whether two graphs get the same outputs in one pass as each gets alone."""
        call: Any = self.settings.forward
        graph, *_ = batch.examples()
        other = graph.clone()
        other.x = other.x.flip(0) / 2 if other.x.is_floating_point() else other.x.flip(0)
        takes_batch = "batch" in signature(self.module.forward).parameters
        with unrecorded():
            alone = torch.cat([self._output_of([each]) for each in (graph, other)])
            may_give = takes_batch and call.kwargs.get("batch") is None  # as the user did not
            for gives_batch in (True, False) if may_give else (False,):
                call.gives_batch = gives_batch
                try:
                    if _same(self._output_of([graph, other]), alone):
                        return True
                except Exception:  # a model may raise any error for unexpected inputs
                    continue
        return False

    def _output_of(self, graphs: list[Data]) -> Tensor:
        batch = self.collate(graphs)
        return super().encode(self.embed(batch), batch)
