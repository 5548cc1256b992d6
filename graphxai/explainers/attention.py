"""Methods that read attention: the last layer's row, rollout, flow, and gradients times attention.

All of them need only the graph token's row of a product of (T, T) matrices. It is built as a row
vector, beginning at the last layer, which therefore computes only one query. `A[l]` are the
probabilities (B, H, T, T) of layer l. Padding keys have probability zero.

Song 2024 compares with class activation maps of tokens (section 5.2), where `dA[l]` is the gradient
of f_c with respect to A[l], and `h[l]` are the tokens that enter layer l.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target
from graphxai.engine.attention.passes import layer_inputs
from graphxai.rules.conservative import record

from .base import Attribution, Explainer, gradients, scored
from .layers import Layers, attention_gradients, by_layer, layers_of
from .registry import register
from .traits import Traits

Readout = Literal["token", "sum"]
ATTENDED = "attended to"  # what a large score means
GRADIENT_WEIGHTED = "attended to, gradient-weighted"


class _Readout(Explainer):
    """A method that reads its scores at the graph token, or sums them over all queries."""

    traits = Traits(large_score_means=ATTENDED, caveat="the same for every class", cost="1 forward")

    def __init__(self, readout: Readout = "token") -> None:
        if readout not in ("token", "sum"):
            raise ValueError(f"readout must be 'token' or 'sum', not {readout!r}.")
        self.readout = readout

    @abstractmethod
    def _scores(self, row: Tensor, means: list[Tensor]) -> Tensor:
        """Compute scores (B, T) from each layer's mean over heads (B, Q, T).

        The row vector (B, T) selects the graph token's row, or the rows of all real tokens.
        """

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        with torch.no_grad(), record(all_queries=self.readout == "sum") as tape:
            outputs = model.encode(model.embed(batch), batch)
        # in single precision the last bits of their product would depend on the padding
        wide = torch.float32 if outputs.device.type == "mps" else torch.float64
        means = [weights.to(wide).mean(1) for weights in by_layer(model, batch, tape)]
        scores = self._scores(first_row(model, batch, means[0], self.readout), means)
        return scored(scores.to(outputs), batch, outputs, target.resolve(model.config, outputs))


@register
class AttentionLast(_Readout):
    """The last layer's attention from the graph token, averaged over heads.

    With `readout="sum"`, each key's attention is summed over all queries instead, as in the
    released code for text of Ali 2022.
    """

    name = "attention_last"
    title = "Attention, last layer"
    source = "Hollenstein 2021"

    def _scores(self, row: Tensor, means: list[Tensor]) -> Tensor:
        return through(row, means[-1])


@register
class Rollout(_Readout):
    """The graph token's row of the product over layers of `row_normalise(mean_h A[l] + I)`.

    With `readout="sum"`, the rows of all tokens are summed instead.
    """

    name = "rollout"
    title = "Attention rollout"
    source = "Abnar 2020"

    def _scores(self, row: Tensor, means: list[Tensor]) -> Tensor:
        return rolled_out(row, means, normalises=True)


@register
class Gae(Explainer):
    """Gradient-weighted attention: `R <- R + mean_h(relu(dA[l] * A[l])) R`, from R = I."""

    name = "gae"
    title = "Generic attention explainability"
    source = "Chefer 2021a"
    traits = Traits(large_score_means=GRADIENT_WEIGHTED, needs_gradients=True)

    normalises: ClassVar[bool] = False  # the rows of each factor

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        traced = attention_gradients(model, batch, target)
        row = first_row(model, batch, traced.outputs, "token")
        factors = positive_means(traced.attention, traced.gradients)
        row = zero_if_unread(rolled_out(row, factors, self.normalises), factors)
        return scored(row, batch, traced.outputs, traced.target)


@register
class GaeRollout(Gae):
    """The row-normalised variant of `gae` in table 1 of Ali 2022.

    It is the graph token's row of the product over layers of
    `row_normalise(mean_h(relu(dA[l] * A[l])) + I)`.
    """

    name = "gae_rollout"
    title = "Gradient-weighted rollout"
    source = "Chefer 2021a; Ali 2022, table 1"
    normalises = True


def zero_if_unread(row: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Return zeros (B, T) for graphs of whose attention nothing reaches the output.

    Only the identity would remain, which in a model without a graph token gives all nodes alike
    something, even if the model ignores them.

    Args:
        row: the scores (B, T).
        factors: what each layer's attention adds to the identity, or its gradients (B, ..., T).
    """
    read = torch.stack([factor.abs().flatten(1).amax(-1) for factor in factors]).amax(0) > 0
    return row * read[:, None]


def rolled_out(row: Tensor, factors: Sequence[Tensor], normalises: bool) -> Tensor:
    """Multiply a row vector (B, T) with the product of A + I over layers, for A (B, Q, T).

    If `normalises` is True, the rows of each A + I are divided by their sums. For attention these
    are 2, or 1 for a node that attends to no token.
    """
    for factor in reversed(factors):
        if normalises:
            row = row / (1 + F.pad(factor.sum(-1), (0, row.shape[1] - factor.shape[1])))
        row = row + through(row, factor)
    return row


def positive_means(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    """Compute `mean_h relu(a * b)` (B, Q, T) of every layer, such as of attention and gradient."""
    return [(a * b).relu().mean(1) for a, b in zip(first, second, strict=True)]


def first_row(model: ExplainableModel, batch: GraphBatch, like: Tensor, readout: Readout) -> Tensor:
    """Return a row vector (B, T) with one at the graph token, or at all tokens for "sum".

    The attention of the pass must have been recorded. It shows whether a wrapped model adds a
    token to the nodes.
    """
    row = like.new_zeros(len(batch), batch.mask.shape[1] + 1)
    weights = getattr(batch, "readout", None)  # the nodes' weights if there is no graph token
    if getattr(model, "reads_class_token", False):
        weights = None
    if weights is not None:
        row[:, 1:] = batch.mask if readout == "sum" else weights
        return row
    row[:, 0] = 1.0
    if readout == "sum":
        row[:, 1:] = batch.mask.to(row.dtype)
    return row


def through(row: Tensor, matrix: Tensor) -> Tensor:
    """Multiply the row vector (B, T) with a matrix (B, Q, T).

    Q is 1 where only the first row was computed.
    """
    return (row[:, None, : matrix.shape[1]] @ matrix.to(row))[:, 0]


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
    traits = replace(_Readout.traits, cost="1 forward, 1 maximum flow a node")

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        with torch.no_grad(), record() as tape:
            outputs = model.encode(model.embed(batch), batch)
        attention = by_layer(model, batch, tape)
        means = [weights.mean(1).double().cpu().numpy() for weights in attention]
        row = first_row(model, batch, outputs, "token").double().cpu().numpy()
        pooled = not row[:, 0].any()
        scores = outputs.new_zeros(len(batch), batch.mask.shape[1] + 1)
        for b, n in enumerate(batch.num_nodes.tolist()):
            layers = [mean[b, : n + 1, : n + 1] for mean in means]  # (Q, T)
            residual = [weights + np.eye(*weights.shape) for weights in layers]
            # a row sums to 2, or to 1 if its node attends to no token
            capacities = [each / each.sum(axis=1, keepdims=True) for each in residual]
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


# -- gradients at attention or at the tokens of every layer ----------------------------------------


@register
class Cam(Explainer):
    """The gradient at the graph token's row of the last attention, averaged over heads.

    As a formula, it is `mean_h dA[L]`.
    """

    name = "cam"
    title = "CAM of attention"
    source = "Zhou 2016, as in Song 2024"

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        traced = attention_gradients(model, batch, target)
        gradient = _at_readout(model, traced.gradients[-1], batch)  # (B, H, T)
        return scored(gradient.mean(1), batch, traced.outputs, traced.target)


@register
class GradCam(Explainer):
    """The graph token's row of the last attention, weighted by its gradient: `mean_h dA[L] * A[L]`.

    Args:
        pooled: whether to weight each head by its mean gradient, and to keep positive scores only:
            `relu(mean_h mean_j(dA[L]_j) A[L])`, as in the code of Chefer 2021b and Song 2024.
    """

    name = "grad_cam"
    title = "Grad-CAM of attention"
    source = "Selvaraju 2017, as in Song 2024"
    traits = Traits(needs_gradients=True)

    def __init__(self, pooled: bool = False) -> None:
        self.pooled = pooled
        meaning = GRADIENT_WEIGHTED if pooled else ""
        self.traits = replace(self.traits, large_score_means=meaning)

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        traced = attention_gradients(model, batch, target)
        gradient = _at_readout(model, traced.gradients[-1], batch)  # (B, H, T)
        attention = _at_readout(model, traced.attention[-1], batch)
        if self.pooled:
            real = first_row(model, batch, attention, "sum")[:, None]  # (B, 1, T)
            weight = (gradient * real).sum(-1, keepdim=True) / real.sum(-1, keepdim=True)
            scores = (weight * attention).mean(1).relu()
        else:
            scores = (gradient * attention).mean(1)
        return scored(scores, batch, traced.outputs, traced.target)


@register
class AttCat(Explainer):
    """Gradient x Input at every layer, weighted by the attention that a token receives there.

    `R_t = sum_l mean_hq(A[l]_qt) * sum_d h[l]_td * d f_c / d h[l]_td`, where the queries q are the
    graph's tokens. In wrapped models h[l] are the rows that enter the module with the attention
    (see `engine.attention.passes`). In a pre-LN layer these rows have passed its LayerNorm.
    """

    name = "att_cat"
    title = "AttCAT"
    source = "Qiang 2022"
    traits = Traits(needs_gradients=True)

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        with record(all_queries=True) as tape, layer_inputs() as entered:
            tokens = model.embed(batch).detach().requires_grad_()
            outputs = model.encode(tokens, batch)
        resolved = target.resolve(model.config, outputs)
        entering = tape.hidden[: len(tape.attention)]  # (B, T, D) each
        others = [layer_input for layer_input in entered if layer_input is not None]
        entering = entering or [layer_input.rows for layer_input in others]
        if not entering or len(entering) < len(tape.attention):
            raise ValueError(
                "att_cat needs the token rows that enter each attention module; in this model no"
                " module with attention receives one row per node."
            )
        pairs = zip(entering, gradients(resolved(outputs), entering), strict=True)
        shares = [(h * gradient).sum(-1) for h, gradient in pairs]
        if others:
            shares = [e.per_token(share) for e, share in zip(others, shares, strict=True)]
        layers = layers_of(model, tape, lambda: (outputs, tape.attention))
        real = first_row(model, batch, outputs, "sum")  # (B, T)
        scores = torch.zeros_like(real)
        for heads in _with_one_input(layers, entering):
            mean = layers.merged(heads, [tape.attention[k] for k in heads]).mean(1).to(real)
            received = (real[:, None] @ mean)[:, 0] / real.sum(-1, keepdim=True)
            scores = scores + received * shares[heads[0]]
        return scored(scores, batch, outputs, resolved)


def _with_one_input(layers: Layers, entering: list[Tensor]) -> Iterator[list[int]]:
    """Group each layer's attentions by their input, so that grouped heads weigh the same tokens."""
    for layer in layers:
        by_rows: dict[int, list[int]] = {}
        for k in layer:
            by_rows.setdefault(id(entering[k]), []).append(k)
        yield from by_rows.values()


def _at_readout(model: ExplainableModel, matrix: Tensor, batch: GraphBatch) -> Tensor:
    """Return the graph token's row (B, H, T) of matrices (B, H, Q, T).

    Without a graph token, return the weighted mean of the nodes' rows.
    """
    row = first_row(model, batch, matrix, "token")[:, : matrix.shape[2]]
    return torch.einsum("bq,bhqt->bht", row, matrix)
