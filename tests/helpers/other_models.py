"""Graph transformers as users write them, independent of this package."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATv2Conv, GINEConv, GPSConv, TransformerConv, global_mean_pool

from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import MOLECULES
from graphxai.explainers import REGISTRY, Explainer, get_explainer

FEW_STEPS: dict[str, dict[str, int]] = {
    "gnn_explainer": {"epochs": 2},
    "shapley_sampling": {"permutations": 2},
    "shares": {"coalitions": 6},
    "path_marginals": {"rounds": 4},
    "order_marginals": {"rounds": 1},
    "integrated_gradients": {"steps": 4},
    "smoothgrad": {"samples": 3},
}


def quick_explainer(method: Any, **options: Any) -> Explainer:
    """Return `get_explainer`'s result, with few steps for a slow method."""
    few = FEW_STEPS.get(method, {}) if isinstance(method, str) else {}
    return get_explainer(method, **few | options)


# The methods that every model has, though nothing was fitted to it.
METHODS = [name for name, cls in REGISTRY.items() if cls.traits.explains_any_model]


# Three methods are `lrp` with fewer rules in force, and take its road through every model.
KINDS_OF_METHODS = [name for name in METHODS if name not in ("lrp_ah", "lrp_ln", "lrp_ah_ln")]


def explainers() -> list[Explainer]:
    """Return an explainer of each kind that any model has, the slow ones with few steps."""
    return [quick_explainer(name) for name in KINDS_OF_METHODS]


def graph_of(smiles: str) -> Data:
    """Return a molecule as a float graph, with Crippen's logP as label."""
    from rdkit.Chem import Crippen, MolFromSmiles

    data = molecule_to_data(smiles)
    graph = Data(x=data.x.float() / 5, edge_index=data.edge_index, smiles=smiles)
    graph.edge_attr = data.edge_attr.float()
    graph.y = torch.tensor([[Crippen.MolLogP(MolFromSmiles(smiles))]])
    return graph


def molecules() -> list[Data]:
    """Return sample drugs."""
    return [graph_of(smiles) for smiles in MOLECULES.values()]


class GpsModel(nn.Module):
    """GPS (Rampasek 2022) with mean pooling."""

    def __init__(self, norm: str = "batch_norm", act: str = "gelu", attn: str = "multihead"):
        super().__init__()
        self.embed = nn.Linear(9, 16)
        self.layers = nn.ModuleList()
        for _ in range(2):
            mlp = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
            local = GINEConv(mlp, edge_dim=3)
            self.layers.append(
                GPSConv(16, local, heads=2, norm=norm, act=act, attn_type=attn, dropout=0.1)
            )
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, edge_index, batch, edge_attr=edge_attr)
        return self.head(global_mean_pool(h, batch))


class SparseModel(nn.Module):
    """Two layers of attention along the edges (Shi 2021, or Brody 2022 as `kind="gat"`)."""

    def __init__(self, kind: str = "transformer"):
        super().__init__()
        conv = TransformerConv if kind == "transformer" else GATv2Conv
        self.first = conv(9, 8, heads=2, edge_dim=3)
        self.norm = nn.LayerNorm(16)
        self.second = conv(16, 8, heads=2, edge_dim=3)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        h = self.norm(F.elu(self.first(x, edge_index, edge_attr)))
        h = F.elu(self.second(h, edge_index, edge_attr))
        return self.head(global_mean_pool(h, batch))


def trained(model: nn.Module, graphs: list[Data], steps: int = 40) -> nn.Module:
    """Train a model for some steps, so that running means and biases are far from zero."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.5, 0.3)
    batch = Batch.from_data_list(graphs)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
        F.mse_loss(outputs, batch.y).backward()
        optimizer.step()
    return model.eval()


class OwnLayer(nn.Module):
    """One post-LN encoder layer with the weights of `nn.TransformerEncoderLayer`.

    The attention "functional" is scaled_dot_product_attention, "softmax" writes it out, and
    "module" is `nn.MultiheadAttention`.
    """

    def __init__(self, layer: nn.TransformerEncoderLayer, attention: str):
        super().__init__()
        self.layer, self.attention = layer, attention

    def mix(self, x: Tensor) -> Tensor:
        attn = self.layer.self_attn
        if self.attention == "module":
            return attn(x, x, x)[0]
        b, t, d = x.shape
        q, k, v = F.linear(x, attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (z.view(b, t, attn.num_heads, -1).transpose(1, 2) for z in (q, k, v))
        if self.attention == "functional":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            y = scores.softmax(dim=-1) @ v
        return attn.out_proj(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        x = layer.norm1(x + self.mix(x))
        return layer.norm2(x + layer.linear2(layer.activation(layer.linear1(x))))


def encoder(layers: int = 2) -> nn.TransformerEncoder:
    """Return a `torch.nn.TransformerEncoder` that has a fast path and uses every parameter."""
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, dropout=0.1, activation="gelu", batch_first=True, dtype=torch.float64
    )
    model = nn.TransformerEncoder(layer, layers)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.5, 0.3)
        else:
            nn.init.normal_(parameter, 0.0, 0.3)
    return model.eval()


class Bert(nn.Module):
    """A BERT encoder with a class token, laid out as in Hugging Face's library."""

    class SelfAttention(nn.Module):
        def __init__(self, dim: int, heads: int):
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

        def split(self, x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + mask
            probs = nn.functional.softmax(scores, dim=-1)
            probs = nn.functional.dropout(probs, 0.1, self.training)
            return torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous().flatten(2)

    class NewGELUActivation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
            return 0.5 * x * (1.0 + torch.tanh(inner))

    class RMSNorm(nn.Module):
        def __init__(self, dim: int):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(dim) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def __init__(self, vocabulary: int = 12, dim: int = 16, layers: int = 2):
        super().__init__()
        torch.manual_seed(5)
        self.word_embeddings = nn.Embedding(vocabulary, dim)
        self.position_embeddings = nn.Parameter(torch.randn(20, dim))
        self.embeddings = nn.Identity()
        self.attention = nn.ModuleList(self.SelfAttention(dim, 4) for _ in range(layers))
        self.dense = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.norm1 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.norm2 = nn.ModuleList(self.RMSNorm(dim) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(dim, 2 * dim) for _ in range(layers))
        self.act = self.NewGELUActivation()
        self.down = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(layers))
        self.classifier = nn.Linear(dim, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.word_embeddings(input_ids) + self.position_embeddings[: input_ids.shape[1]]
        h = self.embeddings(h)
        mask = (1.0 - attention_mask[:, None, None, :].to(h)) * torch.finfo(h.dtype).min
        for i, attention in enumerate(self.attention):
            h = self.norm1[i](h + self.dense[i](attention(h, mask)))
            h = self.norm2[i](h + self.down[i](self.act(self.up[i](h))))
        return self.classifier(h[:, 0])
