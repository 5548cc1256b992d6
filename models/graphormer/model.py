"""Graphormer (Ying et al., NeurIPS 2021): embed the nodes, encode them, read the answer."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import Input, InputError
from graphxai.contract.intervals import Conformal
from graphxai.contract.model import Origin, ShownModel
from graphxai.rules import conservative as rules
from graphxai.rules.conservative import alone_as_together

from . import inputs
from .config import GraphormerConfig
from .encoding import collate
from .layers import EncoderLayer, LayerNorm, Linear, StructuralBias, without_padding
from .position import ContinuousEmbedding


class NodeEmbedding(nn.Module):
    """A node's token: the sum of its feature embeddings and its centrality (Ying 2021, eq. 5).

    A model with `environments` adds the embeddings of the node's environments. They are those of
    the graph as it is given: they stay as they are when other nodes are hidden, as degrees do.

    Tables are read with `F.embedding`, because with several threads the gradient of plain indexing
    is summed in an order that changes from run to run.
    """

    starts: Tensor

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        dim = config.hidden_dim
        self.cardinalities = config.node_cardinalities
        self.max_degree = config.max_degree
        self.in_degree = nn.Parameter(torch.randn(config.max_degree + 1, dim) * 0.02)
        self.out_degree = nn.Parameter(torch.randn(config.max_degree + 1, dim) * 0.02)
        names = config.node_feature_names
        if self.cardinalities:
            starts = torch.tensor(self.cardinalities).cumsum(0) - torch.tensor(self.cardinalities)
            self.register_buffer("starts", starts, persistent=False)
            self.table = nn.Parameter(torch.randn(sum(self.cardinalities), dim) * 0.1)
            names = names or tuple(f"feature {f}" for f in range(len(self.cardinalities)))
        else:
            names = names or tuple(f"feature {f}" for f in range(config.num_node_features))
            bands, offsets, scales = config.position_bands, config.node_offsets, config.node_scales
            self.continuous = ContinuousEmbedding(names, bands, bands > 0, dim, offsets, scales)
            names = tuple(dict.fromkeys(self.continuous.groups))
        if config.environments:
            self.environments = nn.Parameter(torch.zeros(config.environments, dim))
            names = (*names, "environment")
        self.has_environments = config.environments > 0
        self.feature_names = (*names, "centrality")

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return embeddings (B, N, D)."""
        if self.cardinalities:
            rows = self._rows(batch)  # (B, N, F)
            summed = F.embedding_bag(rows.flatten(0, 1), self.table, mode="sum")
            features = summed.unflatten(0, rows.shape[:2])
        else:
            features = self.continuous(batch.x, batch.pos)
        if self.has_environments:
            features = features + self._environment(batch)
        return features + self._centrality(batch)

    def split(self, batch: GraphBatch, direction: Tensor) -> Tensor:
        """Return each feature's part of `embedding . direction`, (B, N, len(feature_names)).

        The direction is (B, N, D). A node's parts sum to the full product.
        """
        if self.cardinalities:
            # multiplying the direction with the whole table is less work than gathering the rows
            parts = (direction @ self.table.T).gather(2, self._rows(batch))
        else:
            columns = self.continuous.features(batch.x, batch.pos) * (
                direction @ self.continuous.weight
            )
            parts = columns.new_zeros(*columns.shape[:2], len(self.feature_names) - 1)
            parts.index_add_(2, self._groups(), columns)
        if self.has_environments:
            environment = (self._environment(batch) * direction).sum(-1, keepdim=True)
            parts = torch.cat([parts, environment], dim=-1)
        centrality = (self._centrality(batch) * direction).sum(-1, keepdim=True)
        return torch.cat([parts, centrality], dim=-1)

    def total(self, batch: GraphBatch) -> Tensor:
        """Return the sum over all nodes of each feature's embedding, (len(feature_names), D)."""
        if self.cardinalities:
            parts = F.embedding(self._rows(batch), self.table)[batch.mask].sum(dim=0)  # (F, D)
        else:
            columns = self.continuous.features(batch.x, batch.pos)[batch.mask].sum(dim=0)  # (K,)
            parts = columns.new_zeros(len(self.feature_names) - 1, len(self.in_degree[0]))
            parts.index_add_(0, self._groups(), (self.continuous.weight * columns).T)
        if self.has_environments:
            environment = self._environment(batch)[batch.mask].sum(dim=0, keepdim=True)
            parts = torch.cat([parts, environment])
        return torch.cat([parts, self._centrality(batch)[batch.mask].sum(dim=0, keepdim=True)])

    def _groups(self) -> Tensor:
        """Return the feature that each continuous column belongs to, (K,)."""
        names = list(self.feature_names[:-1])
        groups = torch.tensor([names.index(group) for group in self.continuous.groups])
        return groups.to(self.in_degree.device)

    def _rows(self, batch: GraphBatch) -> Tensor:
        return batch.x.long() + self.starts

    def _environment(self, batch: GraphBatch) -> Tensor:
        """Return the sum of the embeddings of each node's environments, (B, N, D)."""
        if batch.environments is None:
            raise ValueError("the model reads environments; the graphs were encoded without them.")
        summed = F.embedding_bag(batch.environments.flatten(0, 1), self.environments, mode="sum")
        return summed.unflatten(0, batch.environments.shape[:2])

    def _centrality(self, batch: GraphBatch) -> Tensor:
        degree_in = batch.in_degree.clamp(max=self.max_degree)
        degree_out = batch.out_degree.clamp(max=self.max_degree)
        return F.embedding(degree_in, self.in_degree) + F.embedding(degree_out, self.out_degree)


class TransformHead(nn.Module):
    """A linear map, GELU, LayerNorm, and a linear map with one bias (fairseq, Hugging Face)."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_dim, config.hidden_dim)
        self.norm = LayerNorm(config.hidden_dim, config.layernorm_eps)
        self.output = nn.Linear(config.hidden_dim, config.num_outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, num_outputs) for the graph token x (B, D)."""
        x = self.norm(rules.gelu(self.transform(x)))
        outputs = alone_as_together(x, self.output.weight, alike=not self.training)
        return rules.add_bias(outputs, self.bias.expand(self.output.out_features))


class Graphormer(ShownModel, nn.Module):
    """A graph transformer with a graph token. Its outputs (B, num_outputs) are in order of tasks.

    `embed` and `encode` are the two halves of `forward`. Explainers read the relevance between the
    two. With `embedding_layernorm` that is after the LayerNorm, because before it, Gradient x Input
    vanishes: LayerNorm does not depend on the scale of its input.
    """

    collate = staticmethod(collate)
    collates_plain_graphs = True  # graphs need not be PyG's `Data`
    fewest_nodes = rules.ROWS - 1  # of a batch, with padding: see `rules.alone_as_together`
    empty_alike = True  # the outputs without nodes are the same for all graphs
    mean_node: Tensor | None  # (F, D), see `mean_node.measure_mean_node`

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.config = config
        self.origin = Origin()
        self.conformal: dict[str, Conformal] = {}  # by task, for intervals around predictions
        dim = config.hidden_dim
        self.node_embedding = NodeEmbedding(config)
        self.register_buffer("mean_node", None, persistent=False)
        self.graph_token = nn.Parameter(torch.randn(dim) * 0.02)
        self.bias = StructuralBias(config)
        self.embedding_norm = (
            LayerNorm(dim, config.layernorm_eps) if config.embedding_layernorm else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.final_norm = LayerNorm(dim, config.layernorm_eps) if config.final_layernorm else None
        self.head: nn.Module
        if config.head == "linear":
            self.head = Linear(dim, config.num_outputs)
        else:
            self.head = TransformHead(config)

    def prepare(self, value: Any) -> Input:
        """Encode one input: a SMILES, a molecule, an image or a graph; see `inputs.prepare`."""
        return inputs.prepare(self.config, value)

    def prepare_group(self, values: list[Any]) -> Iterator[Input | Exception]:
        """Encode inputs, featurising all molecules together; see `inputs.prepare_group`."""
        return inputs.prepare_group(self.config, values)

    def embed(self, batch: GraphBatch) -> Tensor:
        """Return the tokens (B, T, D) that enter the first layer, the graph token first."""
        nodes = self.node_embedding(batch)
        token = self.graph_token.expand(len(batch), 1, -1)
        tokens = torch.cat([token, nodes], dim=1)
        return tokens if self.embedding_norm is None else self.embedding_norm(tokens)

    def encode(
        self,
        tokens: Tensor,
        batch: GraphBatch,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Return outputs (B, num_outputs) for tokens (B, T, D).

        Args:
            tokens: the tokens that enter the first layer.
            batch: the graphs.
            keep: False hides a node from all attention, as padding is hidden (B, N).
            bias: the structural bias (B, H, T, T), if `self.bias(batch)` was already computed.
        """
        bias = self.bias(batch) if bias is None else bias
        if keep is not None:
            hidden = F.pad(~keep, (1, 0))  # the graph token always stays
            bias = bias.masked_fill(hidden[:, None, None, :], -math.inf)
        tape = rules.current_tape()
        x = self.dropout(tokens)
        _note_hidden(tape, x)
        for layer in self.layers[:-1]:
            x = layer(x, bias)
            _note_hidden(tape, x)
        # The read-out uses only the graph token, so the last layer needs no other row. A product
        # with fewer than four has another kernel, whose last bits depend on the padding.
        few = 1 if torch.is_grad_enabled() else 4
        x = self.layers[-1](x, bias, queries=None if tape and tape.all_queries else few)
        _note_hidden(tape, x)
        x = x[:, :1] if self.final_norm is None else self.final_norm(x[:, :1])
        return self.head(x[:, 0])

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return outputs (B, num_outputs)."""
        return self.encode(self.embed(batch), batch)

    def labelled_outputs(self, batch: GraphBatch) -> Tensor:
        """Return the outputs to which labels belong, those of the graphs (B, num_outputs)."""
        return self(batch)

    def outputs_without_nodes(self, batch: GraphBatch) -> Tensor:
        """Return the outputs (1, num_outputs) of a graph with no nodes, the same for all batches.

        `encode` gives the same outputs if every node is hidden. Here only the graph token passes.
        """
        token = self.graph_token.expand(1, 1, -1)
        token = token if self.embedding_norm is None else self.embedding_norm(token)
        no_bias = token.new_zeros(1, self.config.num_heads, 1, 1)  # a single key gets all attention
        return self.encode(token, batch, bias=no_bias)

    def split_by_feature(self, batch: GraphBatch, gradient: Tensor) -> Tensor | None:
        """Split each node's `embedding . gradient` exactly by feature, (B, N, features).

        The gradient is (B, N, D). The result is None with `embedding_layernorm`, after which a
        token is no longer the sum of its features.
        """
        if self.embedding_norm is not None:
            return None
        return self.node_embedding.split(batch, gradient)

    def sum_by_feature(self, batch: GraphBatch) -> Tensor:
        """Return the sum over all nodes of each feature's embedding, (F, D).

        With `embedding_layernorm`, which mixes features, there is one row, the sum of the tokens.
        """
        if self.embedding_norm is not None:
            return self.embed(batch)[:, 1:][batch.mask].sum(dim=0, keepdim=True)
        return self.node_embedding.total(batch)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the parts that `split_by_feature` returns."""
        return self.node_embedding.feature_names


def _note_hidden(tape: rules.Tape | None, x: Tensor) -> None:
    if tape is not None:
        tape.hidden.append(x)


# The bias of the key that is not attended to. It is finite, so that the row of a node that sees no
# other key is defined. Its softmax is exactly zero beside any other key.
UNREAD = -1e4


class ReaderBias(StructuralBias):
    """The structural bias between nodes, with the explained node's row for the reader."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__(config)
        del self.graph_token

    def between_nodes(self, batch: GraphBatch) -> Tensor:
        """Return the bias (B, H, N, N) between nodes, with padding."""
        b, n = batch.mask.shape
        bias = self.spatial.new_empty(b, self.spatial.shape[1], n, n)
        self.fill_between_nodes(bias, batch)
        return bias

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return the bias (B, H, T, T), the reader first; -inf at keys that are padding."""
        nodes, (graphs, node) = self.between_nodes(batch), _explained(batch)
        bias = F.pad(nodes, (1, 0, 1, 0), value=UNREAD)
        bias[:, :, 0, 1:] = nodes[graphs, :, node]
        bias[:, :, 0, 0] = nodes[graphs, :, node, node]
        bias[graphs, :, 0, node + 1] = -torch.inf
        return without_padding(bias, F.pad(~batch.mask, (1, 0)))

    def shares(self, batch: GraphBatch, bias: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        """Return `sum_ij t_ij g_ij` for every term of the bias by name, (B,) each, see the base.

        What arrives at the reader's row belongs to the same parameters as the node's row.
        """
        graphs, node = _explained(batch)
        of_nodes = F.pad(gradient[:, :, 1:, 1:], (1, 0, 1, 0))
        of_nodes[graphs, :, node + 1, 1:] += gradient[:, :, 0, 1:]
        of_nodes[graphs, :, node + 1, node + 1] += gradient[:, :, 0, 0]
        shares = super().shares(batch, bias, of_nodes)
        del shares["graph token distance"]
        return shares


class NodeGraphormer(Graphormer):
    """Graphormer whose outputs (B, num_outputs) are those of the nodes that `explained` names.

    There is no graph token. The head reads every node, so one pass answers for all nodes of a graph
    (`labelled_outputs`), which is how the model learns.

    An explanation is about one node, and explainers read the first token. It is a copy of that node
    here, the *reader*: it has the node's embedding and its row of the structural bias, and no other
    token attends to it. It attends to itself in the place of the node, so in every layer it is
    equal to the node, and its output is the node's. Hiding nodes hides them from each other and
    from the reader, which stays. So a ledger says what the node itself contributes, and what the
    other nodes add.
    """

    bias: ReaderBias
    empty_alike = False

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__(config)
        del self.graph_token
        self.bias = ReaderBias(config)

    def embed(self, batch: GraphBatch) -> Tensor:
        """Return the tokens (B, T, D) that enter the first layer, the reader first."""
        nodes = self._node_tokens(batch)
        graphs, node = _explained(batch)
        return torch.cat([nodes[graphs, node][:, None], nodes], dim=1)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return outputs (B, num_outputs), or (1, k * num_outputs) for k nodes of one graph."""
        if batch.explained is None or batch.explained.dim() == 1:
            return super().forward(batch)
        return self.labelled_outputs(batch)[batch.explained].flatten(1)

    def labelled_outputs(self, batch: GraphBatch) -> Tensor:
        """Return the outputs (nodes of all graphs, num_outputs)."""
        x = self.dropout(self._node_tokens(batch))
        bias = without_padding(self.bias.between_nodes(batch), ~batch.mask)
        for layer in self.layers:
            x = layer(x, bias)
        x = x[batch.mask]
        return self.head(x if self.final_norm is None else self.final_norm(x))

    def outputs_without_nodes(self, batch: GraphBatch) -> Tensor:
        """Return the outputs (B, num_outputs) of the explained nodes where no node is seen."""
        reader = self.embed(batch)[:, :1]
        no_bias = reader.new_zeros(len(batch), self.config.num_heads, 1, 1)
        return self.encode(reader, batch, bias=no_bias)

    def _node_tokens(self, batch: GraphBatch) -> Tensor:
        nodes = self.node_embedding(batch)
        return nodes if self.embedding_norm is None else self.embedding_norm(nodes)


def graphormer(config: GraphormerConfig) -> Graphormer:
    """Return a new Graphormer for graphs or for nodes, as its configuration says."""
    return NodeGraphormer(config) if config.level == "node" else Graphormer(config)


def _explained(batch: GraphBatch) -> tuple[Tensor, Tensor]:
    """Return the numbers of the graphs (B,), and of the node that each is asked about (B,)."""
    if batch.explained is None:
        raise InputError(
            "this model answers for nodes: choose the node, such as explain(model, graph, node=0)."
        )
    return torch.arange(len(batch), device=batch.mask.device), batch.explained
