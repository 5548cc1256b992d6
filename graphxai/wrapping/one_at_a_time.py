"""Run passes of graphs, or of rows of tokens, through a model one at a time.

A model that counts padding, as PyG's linear attention does, needs this, although no graph reads
another: its output for a graph changes beside a larger graph. A pass of two graphs of different
size, and one of the smaller graph alone, show this. Such a model gets graphs of one size at a time,
or one graph if a pass of a graph and its copy shows a change, too.
"""

import math
from collections.abc import Iterator
from copy import copy
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.wrapping.eval_replica import copied, restoring_attributes

from .attribute_roles import attribute_roles
from .batches import Wrapped, WrappedBatch
from .heterogeneous import SCHEMA
from .hiding import output_of_empty, output_of_hidden
from .model_checks import nearly_equal, without_traces
from .subgraphs import restricted


def one_by_one(
    model: Wrapped,
    tokens: Tensor,
    batch: WrappedBatch,
    keep: Tensor | None,
    output_without_nodes: Tensor | None = None,
) -> Tensor:
    """Return the outputs (K * B, C) of K copies of a batch of B graphs, one graph at a time.

    Args:
        tokens (K * B, T, D): the tokens of all copies.
        keep (K * B, N): False at the nodes to hide.
        output_without_nodes (1, C): the output if no node is left. By default it is the model's
            output for an empty graph. If that is not finite, the nodes are set to zero instead,
            with a warning.
    """
    graphs, times = batch.examples(), len(tokens) // len(batch)
    shown = batch.mask.repeat(times, 1) if keep is None else batch.mask.repeat(times, 1) & keep
    roles = None if keep is None else attribute_roles(graphs, batch.read)
    outputs = []
    for row, (node_tokens, stays) in enumerate(zip(tokens[:, 1:], shown, strict=True)):
        graph = graphs[row % len(graphs)]
        kept = stays[: int(graph.num_nodes or 0)]
        subgraph = graph if keep is None else restricted(graph, kept, roles)
        if bool(kept.any()):
            rows = F.pad(node_tokens[stays], (0, 0, 1, 0))[None]
            outputs.append(model.encode(rows, model.collate([subgraph])))
        elif output_without_nodes is not None:
            outputs.append(output_without_nodes)
        elif graph.num_nodes:
            outputs.append(output_of_hidden(model, graph, subgraph, node_tokens))
        else:
            outputs.append(output_of_empty(model, graph))
    return torch.cat(outputs)


def tokens_one_by_one(
    model: Wrapped, tokens: Tensor, batch: WrappedBatch, keep: Tensor | None
) -> Tensor:
    """Return the outputs (K * B, C) of K copies of B rows of tokens, one row at a time.

    Tokens are (K * B, T, D), and `keep` (K * B, N) is False at those to hide.
    """
    outputs = []
    for row, row_tokens in enumerate(tokens):
        single = batch.of_rows(row % len(batch))
        nodes = single.mask.shape[1]
        shown = None if keep is None else keep[row : row + 1, :nodes]
        outputs.append(model.encode(row_tokens[None, : nodes + 1], single, shown))
    return torch.cat(outputs)


# -- whether a model counts padding ----------------------------------------------------------------


class PaddingCheck:
    """Whether a model and its copies count padding, as small passes show.

    The more padding there is, the more an output changes. So the check is repeated for a batch with
    far more padding than any batch before.
    """

    def __init__(self) -> None:
        self._largest_ratio = 0.0  # the largest ratio of sizes of two graphs in a check so far
        self._counts = False
        self.changes_beside_equal = False  # beside a graph of the same size, which adds no padding

    def __deepcopy__(self, _: Any) -> "PaddingCheck":
        return self

    def counts(self, model: Wrapped, batch: Any) -> bool:
        """Return whether each graph of this batch needs a pass to itself."""
        if self._counts or batch.graphs is None or not bool(batch.num_nodes.all()):
            return self._counts
        least, most = (int(number) for number in batch.num_nodes.aminmax())
        if self._largest_ratio and most <= 2 * self._largest_ratio * least:
            return False
        before, self._largest_ratio = self._largest_ratio, math.inf  # the check starts no other
        graphs = sorted(batch.examples(), key=lambda graph: int(graph.num_nodes))
        check = without_traces(_check_padding, model, graphs[0], graphs[-1])
        ratio, self._counts = check or (0.0, False)
        if self._counts:
            alike = without_traces(_changes_beside, model, graphs[0], graphs[0], True)
            self.changes_beside_equal = alike is not False
        self._largest_ratio = max(before, ratio)
        return self._counts

    def shares_by_size(self, batch: WrappedBatch, keep: Tensor | None = None) -> bool:
        """Return whether graphs of one size share a pass of a model that counts padding.

        Given which nodes to keep (K * B, N), return whether all these subgraphs share one.
        """
        if self.changes_beside_equal or batch.graphs is None or SCHEMA in batch.graphs:
            return False
        if keep is None:
            return True
        sizes = (batch.mask.repeat(len(keep) // len(batch), 1) & keep).sum(-1)
        return bool(sizes.all()) and len(sizes.unique()) == 1


def runs_of_one_size(batch: WrappedBatch) -> list[list[int]]:
    """Return the rows of a batch in groups of neighbours that have the same number of nodes."""
    sizes = batch.num_nodes.tolist()
    return [list(rows) for _, rows in groupby(range(len(batch)), sizes.__getitem__)]


def _check_padding(model: Wrapped, smallest: Any, largest: Any) -> tuple[float, bool]:
    """Return how much larger a second graph was, and whether it changed the first output.

    If the model runs for no such pair, return (0, False). The batch will then show what is wrong.
    """
    for first, second in _of_two_sizes(model, smallest, largest):
        changes = without_traces(_changes_beside, model, first, second, True)
        if changes is None:
            changes = without_traces(_changes_beside, model, first, second, False)
        if changes is not None:
            return int(second.num_nodes) / int(first.num_nodes), changes
    return 0.0, False


def _of_two_sizes(model: Wrapped, first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of a small and a large graph, even if both given graphs have the same size."""
    size = int(second.num_nodes)
    if 2 * int(first.num_nodes) <= size:
        yield first, second
        return
    if size == 1:
        yield first, model.repeated(second, 2)
        return
    nodes = torch.arange(size, device=second.x.device)
    for kept in (-(-size // 4), size - 1):
        yield model.induced(second, nodes < kept), second


def _changes_beside(model: Wrapped, graph: Any, larger: Any, in_double: bool) -> bool:
    """Return whether a graph's output changes beside a larger graph, although it is not random.

    If `in_double` is True, the check computes in double precision, so that rounding does not hide a
    small change. In single precision, other features of the graph are tried as well.

    Raises:
        ValueError: the output is not finite.
    """
    if in_double:
        model = copied(model)
        model.module.double()
    state = torch.get_rng_state()
    changed = False
    with restoring_attributes(model.module), model.evaluating(), torch.no_grad():
        for variant in [graph] if in_double else _with_other_features(graph):
            beside, alone = (model(model.collate(g))[:1] for g in ([variant, larger], [variant]))
            if bool(alone.isfinite().all()):
                changed = changed or not nearly_equal(beside, alone)
            elif variant is graph:
                raise ValueError("no finite output")
    return changed and torch.equal(state, torch.get_rng_state())


def _with_other_features(graph: Any) -> Iterator[Any]:
    """Yield a graph, then copies with other features, as some may hardly change the output."""
    yield graph
    for change in (torch.neg, lambda x: x.roll(1, -1), lambda x: 2 * x.flip(0)):
        if isinstance(graph.x, Tensor) and graph.x.is_floating_point():
            other = copy(graph)
            other.x = change(graph.x)
            yield other
