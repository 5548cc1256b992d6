"""Attention flow: how much can flow from the graph token's output to each input token."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target
from graphxai.rules.conservative import record

from .attention import ATTENDED, by_layer, first_row
from .base import Attribution, Explainer, scored
from .registry import register
from .traits import Traits

UNIT = 2**30  # SciPy's flows are 32-bit integers, so capacities are rounded to 1e-9


@register
class AttentionFlow(Explainer):
    """The maximum flow from the graph token after the last layer to each token before the first.

    An edge of capacity `row_normalise(mean_h A[l] + I)[q, k]` joins token q after layer l and
    token k before it. Without a graph token, the flow starts from an extra node. It is joined to
    every node after the last layer, and the capacity is the node's weight in the readout. Every
    node needs one maximum flow, which is slow for large graphs.
    """

    name = "attention_flow"
    title = "Attention flow"
    source = "Abnar 2020"
    traits = Traits(
        large_score_means=ATTENDED,
        caveat="the same for every class",
        cost="1 forward, 1 maximum flow a node",
    )

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        with torch.no_grad(), record() as tape:
            outputs = model.encode(model.embed(batch), batch)
        attention = by_layer(model, batch, tape)
        means = [weights.mean(1).double().cpu().numpy() for weights in attention]
        row = first_row(model, batch, outputs, "token").double().cpu().numpy()
        pooled = not row[:, 0].any()
        scores = outputs.new_zeros(len(batch), batch.mask.shape[1] + 1)
        for b, n in enumerate(batch.num_nodes.tolist()):
            capacities = [_with_residual(mean[b, : n + 1, : n + 1]) for mean in means]
            capacities += [row[b : b + 1, : n + 1]] if pooled else []
            scores[b, : n + 1] = torch.from_numpy(maximum_flows(capacities)).to(scores)
        return scored(scores, batch, outputs, target.resolve(model.config, outputs))


def maximum_flows(capacities: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Compute the maximum flow (T,) from token 0 above the last layer to every input token.

    Args:
        capacities: one matrix (T, T) per layer, first layer first. Its rows are the tokens above
            the layer, its columns the tokens below. For the last layer the first row is enough.
            Rows sum to at most one.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    bottom, *middle = [np.rint(matrix * UNIT).astype(np.int32) for matrix in capacities]
    size = bottom.shape[1]
    if not middle:  # a single layer has one edge to each token
        return bottom[0] / UNIT
    # The nodes are the source, T tokens below each layer from the last to the second, and the sink.
    sink = 1 + len(middle) * size
    above, below, capacity = [np.zeros(size, int)], [1 + np.arange(size)], [middle[-1][0]]
    for depth, matrix in enumerate(reversed(middle[:-1])):
        rows, columns = np.indices((size, size)).reshape(2, -1)
        above.append(1 + depth * size + rows)
        below.append(1 + (depth + 1) * size + columns)
        capacity.append(matrix.ravel())
    last = sink - size + np.arange(size)  # only the edges into the sink change
    flows = np.zeros(size)
    for token in range(size):
        edges = np.concatenate([*capacity, bottom[:, token]])
        ends = np.array([np.concatenate([*above, last]), np.concatenate([*below, [sink] * size])])
        # `maximum_flow` takes only 32-bit positions, and the first versions of SciPy with this
        # class do not convert them.
        graph = csr_array((edges, tuple(ends.astype(np.int32))), shape=(sink + 1, sink + 1))
        flows[token] = maximum_flow(graph, 0, sink, method="dinic").flow_value
    return flows / UNIT


def _with_residual(attention: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the identity to attention (Q, T), and normalise the rows.

    Before this, a row sums to 2, or to 1 if its node attends to no token.
    """
    capacities = attention + np.eye(*attention.shape)
    return capacities / capacities.sum(axis=1, keepdims=True)
