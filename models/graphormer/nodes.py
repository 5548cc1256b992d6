"""A Graphormer that answers for each node instead of for the graph.

There is no graph token. The head reads every node, so one pass answers for all nodes of a graph
(`labelled_outputs`), which is how the model learns.

An explanation is about one node, and explainers read the first token. It is a copy of that node
here, the *reader*: it has the node's embedding and its row of the structural bias, and no other
token attends to it. It attends to itself in the place of the node, so in every layer it is equal to
the node, and its output is the node's. Hiding nodes hides them from each other and from the reader,
which stays. So a ledger says what the node itself contributes, and what the other nodes add.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import InputError

from .config import GraphormerConfig
from .layers import StructuralBias, without_padding
from .model import Graphormer

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

    def terms(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Return the terms of the bias by name, (B, H, T, T) each; zero where there are none."""
        graphs, node = _explained(batch)
        terms = {}
        for name, nodes in self.terms_between_nodes(batch).items():
            term = F.pad(nodes, (1, 0, 1, 0))
            term[:, :, 0, 1:] = nodes[graphs, :, node]
            term[:, :, 0, 0] = nodes[graphs, :, node, node]
            term[graphs, :, 0, node + 1] = 0.0
            terms[name] = term.masked_fill(self(batch).isinf(), 0.0)
        return terms

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
    """Graphormer whose outputs (B, num_outputs) are those of the nodes that `explained` names."""

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
