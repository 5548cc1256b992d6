"""The parts of a Graphormer: structural bias, attention, feed-forward, encoder layer.

Wherever a conservative rule may hold something constant, the layer calls `rules.conservative`.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from graphxai.contract.batch import GraphBatch
from graphxai.rules import conservative as rules

from .config import GraphormerConfig
from .position import RelativePositionBias

_PAIRS = 2**20  # pairs of nodes whose bias is looked up at once


class LayerNorm(nn.Module):
    """A LayerNorm whose scale the rule LN can treat as constant."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B, T, D) over D."""
        return rules.layer_norm(x, self.weight, self.bias, self.eps)


class Linear(nn.Linear):
    """An affine map whose bias gets its own share in the ledger."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., D_in) to (..., D_out)."""
        return rules.linear(x, self.weight, self.bias, alike=not self.training)


class StructuralBias(nn.Module):
    """The bias that Graphormer adds to `q k^T`: spatial, edge, graph token (Ying 2021, eq. 6, 7).

    All rows that a pair of nodes can use are in one table, which every pass builds from the
    parameters. First come the distances, then for every hop all bonds, or all continuous features
    of a bond. One fused look-up sums the rows of a pair.
    """

    bond_rows: Tensor

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        heads = config.num_heads
        self.cardinalities = config.edge_cardinalities
        self.has_edges = config.rows_per_hop > 0
        self.mask_distance = config.mask_distance
        # distances 0..max_distance, then the row of unreachable pairs
        self.spatial = nn.Parameter(torch.randn(config.max_distance + 2, heads) * 0.02)
        self.graph_token = nn.Parameter(torch.randn(heads) * 0.02)
        if self.has_edges:
            rows = sum(config.edge_cardinalities) or config.num_edge_features
            self.bond = nn.Parameter(torch.randn(rows, heads) * 0.1)
            self.hop = nn.Parameter(torch.randn(config.num_hops, heads, heads) / math.sqrt(heads))
        if self.cardinalities:
            starts = [sum(self.cardinalities[:f]) for f in range(len(self.cardinalities))]
            ranges = [
                torch.arange(first, first + size)
                for first, size in zip(starts, self.cardinalities, strict=True)
            ]
            rows_of_bonds = torch.cartesian_prod(*ranges).reshape(-1, len(ranges))
            self.register_buffer("bond_rows", rows_of_bonds, persistent=False)
        bands = config.position_bias_bands
        self.position = RelativePositionBias(bands, heads) if bands else None

    def table(self) -> Tensor:
        """Return the table of all rows, (max_distance + 2 + num_hops * rows per hop, H)."""
        if not self.has_edges:
            return self.spatial
        bonds: Tensor = self.bond  # (F, H): a bag has a feature's value as the weight of its row
        if self.cardinalities:
            bonds = bonds[self.bond_rows].mean(dim=1)  # (C, H), a row for each combination
        hops = bonds @ self.hop  # (K, C, H)
        return torch.cat([self.spatial, hops.flatten(0, 1)])

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return the bias (B, H, T, T), graph token first. It is -inf at keys that are padding."""
        b, n = batch.mask.shape
        token = self.graph_token[:, None]
        bias = token.new_empty(b, len(token), n + 1, n + 1)
        bias[:, :, 0], bias[:, :, 1:, 0] = token, token
        self.fill_between_nodes(bias[:, :, 1:, 1:], batch)
        return without_padding(bias, F.pad(~batch.mask, (1, 0)))

    def fill_between_nodes(self, bias: Tensor, batch: GraphBatch) -> None:
        """Write the bias between nodes, with padding, to a part of a tensor, (B, H, N, N)."""
        table, position = self.table(), None
        if self.position is not None:
            if batch.pos is None:
                raise ValueError("the model reads node positions; the graph has no `pos`.")
            position = self.position(batch.pos)  # (B, H, N, N)
        for graphs, rows in _blocks(*batch.mask.shape):
            nodes = _sum_bags(batch, table, graphs, rows, learning=self.training)
            if position is not None:
                nodes = nodes + position[graphs, :, rows]
            bias[graphs, :, rows] = nodes
        if self.mask_distance is not None:
            pairs = batch.mask[:, :, None] & batch.mask[:, None, :]
            too_far = pairs & (batch.distance_codes >= self.mask_distance)  # (B, N, N)
            bias.masked_fill_(too_far[:, None], -math.inf)

    def shares(self, batch: GraphBatch, bias: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        """Return `sum_ij t_ij g_ij` for every term t of the bias by name, (B,) each.

        The share of the edges would be the dearest to compute, so it is what the other shares leave
        of the total.

        Args:
            batch: the graphs.
            bias: the result of `forward`, (B, H, T, T).
            gradient: g (B, H, T, T), which is zero where the bias is -inf.
        """
        weighted = (bias * gradient).masked_fill(bias.isinf(), 0.0)
        node_share = weighted[:, :, 1:, 1:].flatten(1).sum(-1)
        codes = batch.distance_codes.clamp(max=len(self.spatial) - 1)
        spatial = F.embedding(codes, self.spatial).permute(0, 3, 1, 2)  # arbitrary at padding
        shares = {"spatial": _per_graph(spatial, gradient)}
        if self.position is not None and batch.pos is not None:
            shares["position"] = _per_graph(self.position(batch.pos), gradient)
        if self.has_edges:
            shares["edge"] = node_share - sum(shares.values(), torch.zeros_like(node_share))
        shares["graph token distance"] = weighted.flatten(1).sum(-1) - node_share
        return shares


def without_padding(bias: Tensor, hidden: Tensor) -> Tensor:
    """Add -inf to a bias (B, H, Q, T) in place, at the keys (B, T) that are hidden."""
    if hidden.device.type == "cpu" and not hidden.any():  # graphs of one size
        return bias
    excluded = bias.new_zeros(hidden.shape).masked_fill_(hidden, -math.inf)
    return bias.add_(excluded[:, None, None, :])


def _per_graph(term: Tensor, gradient: Tensor) -> Tensor:
    """Return `sum t g` (B,) for a term between nodes (B, H, N, N), gradient (B, H, T, T)."""
    return (term * gradient[:, :, 1:, 1:]).flatten(1).sum(-1)


def _blocks(b: int, n: int) -> list[tuple[slice, slice]]:
    """Cut B graphs of N nodes into blocks that are looked up at once: graphs, and rows of pairs.

    There is one block unless that needs much memory. With autograd there is always one block,
    because the backward pass would copy the whole gradient for each.
    """
    if b * n * n <= _PAIRS or torch.is_grad_enabled():
        return [(slice(0, b), slice(0, n))]
    step = max(1, _PAIRS // n)
    return [
        (slice(graph, graph + 1), slice(row, min(row + step, n)))
        for graph in range(b)
        for row in range(0, n, step)
    ]


class _LearnedBags(torch.autograd.Function):
    """`F.embedding_bag`, the gradient of whose table is a product with a sparse matrix.

    PyTorch sorts all codes instead, which took a fifth of a step with molecules of 32 atoms.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, *bags: Tensor) -> Tensor:
        """Return the weighted sums of rows (bags, H), given codes, offsets and weights."""
        ctx.rows, (codes, offsets, weights) = len(table), bags
        ctx.save_for_backward(*bags)
        return F.embedding_bag(codes, table, offsets, mode="sum", per_sample_weights=weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the table (rows, H)."""
        from scipy.sparse import csc_matrix

        codes, offsets, weights = (each.numpy() for each in ctx.saved_tensors)
        ends = np.append(offsets, len(codes)).astype(offsets.dtype)
        of_bags = csc_matrix((weights, codes, ends), shape=(ctx.rows, len(offsets)))
        return torch.from_numpy(of_bags @ gradient.numpy()), None, None, None


def _sum_bags(
    batch: GraphBatch, table: Tensor, graphs: slice, rows: slice, learning: bool = False
) -> Tensor:
    """Return the weighted sum of each pair's rows of the table (rows, H), (B, H, N, N).

    Args:
        rows: the first nodes of their pairs. Several graphs need all rows.
        learning: whether only the first derivative of the table may be asked for.
    """
    n = batch.mask.shape[1]
    start = (graphs.start * n + rows.start) * n
    stop = ((graphs.stop - 1) * n + rows.stop) * n
    offsets, bags = batch.bag_offsets[start:stop], slice(None)
    if len(offsets) < len(batch.bag_offsets):
        ends = [*batch.bag_offsets[stop : stop + 1].tolist(), len(batch.bag_codes)]
        bags = slice(int(offsets[0]), ends[0])
        offsets = offsets - offsets[0]
    codes, weights = batch.bag_codes[bags], batch.bag_weights[bags].to(table.dtype)
    if learning and table.device.type == "cpu" and table.dtype in (torch.float32, torch.float64):
        pairs = _LearnedBags.apply(table, codes, offsets, weights)
    else:
        pairs = F.embedding_bag(codes, table, offsets, mode="sum", per_sample_weights=weights)
    return pairs.reshape(graphs.stop - graphs.start, -1, n, len(table[0])).permute(0, 3, 1, 2)


class Attention(nn.Module):
    """Multi-head self-attention with an additive bias."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        dim = config.hidden_dim
        self.heads = config.num_heads
        self.scale = (dim // config.num_heads) ** -0.5
        self.query, self.key = Linear(dim, dim), Linear(dim, dim)
        self.value, self.output = Linear(dim, dim), Linear(dim, dim)
        self.dropout = config.attention_dropout

    def forward(self, x: Tensor, bias: Tensor, queries: int | None) -> Tensor:
        """Attend from the first `queries` tokens (all if None) of x (B, T, D) to all of them."""
        if x.shape[1] == 1 and not self.training and rules.are_neutral():
            return self.output(self.value(x))  # a single key gets all attention
        q = self._split(self.query(x[:, :queries])) * self.scale  # (B, H, Q, d)
        k, v = self._split(self.key(x)), self._split(self.value(x))  # (B, H, T, d)
        weights = rules.softmax_attention(q, k, bias[:, :, :queries])
        weights = F.dropout(weights, self.dropout, self.training)
        mixed = rules.mix_values(weights, v).transpose(1, 2).flatten(2)  # (B, Q, D)
        return self.output(mixed)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """A linear map, GELU and a linear map."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.expand = Linear(config.hidden_dim, config.ffn_dim)
        self.contract = Linear(config.ffn_dim, config.hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, D) token by token."""
        return self.contract(rules.gelu(self.expand(x)))


class EncoderLayer(nn.Module):
    """Attention and feed-forward with residuals, and LayerNorm before (pre-LN) or after them."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.pre_layernorm = config.pre_layernorm
        self.attention_norm = LayerNorm(config.hidden_dim, config.layernorm_eps)
        self.attention = Attention(config)
        self.ffn_norm = LayerNorm(config.hidden_dim, config.layernorm_eps)
        self.ffn = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, bias: Tensor, queries: int | None = None) -> Tensor:
        """Return the first `queries` tokens (all if None) of x (B, T, D) after this layer."""
        kept = x[:, :queries]
        if self.pre_layernorm:
            kept = kept + self.dropout(self.attention(self.attention_norm(x), bias, queries))
            return kept + self.dropout(self.ffn(self.ffn_norm(kept)))
        kept = self.attention_norm(kept + self.dropout(self.attention(x, bias, queries)))
        return self.ffn_norm(kept + self.dropout(self.ffn(kept)))
