"""Models composed of parts, each beside a reference of its rules written out by hand.

A part computes the same in two ways: as a user might write it, in one of several spellings, and as
the rules have it, with the factors that they hold constant detached and every additive constant as
a leaf. So Gradient x Input of the second is LRP of the first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import (
    GINConv,
    GINEConv,
    GraphNorm,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.utils import scatter, softmax, to_dense_batch

IN, DIM, HALF = 5, 8, 4
POOLS = {"mean": global_mean_pool, "sum": global_add_pool, "max": global_max_pool}


def derivative(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the derivative of a function of single entries."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


@dataclass
class Graphs:
    """What the parts of a model read, and how they compute what the rules change.

    `rules` says whether these are written out, for one graph, and `products` whether they are those
    of AttnLRP, which holds no weights constant but halves what they multiply. `leaves` has, by line
    of the ledger, the constants that were added. `attention` has that of each part, (H, n, n).
    """

    edge_index: Tensor
    batch: Tensor
    pe: Tensor  # (n, DIM)
    edge_attr: Tensor  # (E, HALF)
    rules: bool = False
    products: bool = False
    leaves: dict[str, list[Tensor]] = field(default_factory=dict)
    attention: list[Tensor] = field(default_factory=list)

    @property
    def size(self) -> int:
        return int(self.batch.max()) + 1

    def added(self, line: str, value: Tensor) -> Tensor:
        """Return a constant that is added, and under rules note it as a leaf of this line."""
        if not self.rules:
            return value
        self.leaves.setdefault(line, []).append(value.detach().clone().requires_grad_())
        return self.leaves[line][-1]

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        if not self.rules:
            return layer(x)
        x = x @ layer.weight.T
        return x if layer.bias is None else x + self.added("biases", layer.bias)

    def by_ratio(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply an activation as a constant factor, which is its derivative where x is zero."""
        if not self.rules:
            return f(x)
        safe = torch.where(x == 0, 1.0, x)
        return x * torch.where(x == 0, derivative(f, x), f(safe) / safe).detach()

    def halved(
        self, a: Tensor, b: Tensor, f: Callable[[Tensor, Tensor], Tensor] = torch.mul
    ) -> Tensor:
        """Multiply two factors so that each gets half of the relevance."""
        return 0.5 * (f(a, b.detach()) + f(a.detach(), b)) if self.rules else f(a, b)

    def weighted(
        self, a: Tensor, v: Tensor, f: Callable[[Tensor, Tensor], Tensor] = torch.mul
    ) -> Tensor:
        """Weigh values by attention or a gate."""
        return self.halved(a, v, f) if self.products or not self.rules else f(a.detach(), v)

    def sigmoid(self, x: Tensor, f: Callable[[Tensor], Tensor] = torch.sigmoid) -> Tensor:
        """Compute a gate, which under AttnLRP is a constant half and a multiple of x."""
        if not self.products:
            return f(x)
        half = self.added("constants", torch.full_like(x, 0.5))
        return half + self.by_ratio(lambda z: f(z) - 0.5, x)

    def length(self, x: Tensor) -> Tensor:
        """Return what rows are divided by."""
        length = x.norm(dim=-1, keepdim=True)
        return length.detach() if self.rules else length

    def ones(self, like: Tensor) -> Tensor | float:
        """Return ones that a gate is added to, as a share of the constants."""
        return self.added("constants", torch.ones_like(like)) if self.products else 1.0


class Part(nn.Module):
    """A map of rows (n, DIM) to rows (n, DIM), in one of its spellings."""

    spellings: tuple[str, ...]

    def __init__(self, spelling: str) -> None:
        super().__init__()
        assert spelling in self.spellings
        self.spelling = spelling


class Norm(Part):
    spellings = (
        "module", "function", "by hand", "rsqrt", "std", "var_mean", "rms", "rms module", "power",
        "length", "batch", "graph", "group",
    )  # fmt: skip

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        kinds: dict[str, Callable[[], nn.Module]] = {
            "module": lambda: nn.LayerNorm(DIM),
            "rms module": lambda: nn.RMSNorm(DIM, eps=1e-6),
            "batch": lambda: nn.BatchNorm1d(DIM),
            "graph": lambda: GraphNorm(DIM),
            "group": lambda: nn.GroupNorm(2, DIM),
        }
        self.norm = kinds[spelling]() if spelling in kinds else None
        norm = self.norm
        self.weight = nn.Parameter(torch.empty(DIM)) if norm is None else norm.weight
        shifts = spelling not in ("rms", "rms module", "power", "length")
        if shifts:
            self.bias = nn.Parameter(torch.empty(DIM)) if norm is None else norm.bias
        if spelling == "batch":
            norm.running_mean.copy_(torch.linspace(-1, 1, DIM))
            norm.running_var.copy_(torch.linspace(0.5, 2, DIM))

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        return self.ruled(h, g) if g.rules else self.written(h, g)

    def written(self, h: Tensor, g: Graphs) -> Tensor:
        w, b = self.weight, getattr(self, "bias", None)
        centred = h - h.mean(-1, keepdim=True)
        match self.spelling:
            case "graph":
                return self.norm(h, g.batch)
            case "function":
                return F.layer_norm(h, (DIM,), w, b)
            case "by hand":
                return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * w + b
            case "rsqrt":
                var = h.var(-1, unbiased=False, keepdim=True)
                return w * (centred * torch.rsqrt(var + 1e-5)) + b
            case "std":
                return w * centred / (h.std(-1, keepdim=True) + 1e-5) + b
            case "var_mean":
                var, mean = torch.var_mean(h, -1, keepdim=True)
                return torch.addcmul(b, (h - mean) / (var + 1e-5).sqrt(), w)
            case "rms":
                return h / (h.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w
            case "power":
                return h * (h.square().mean(-1, keepdim=True) + 1e-6) ** -0.5 * w
            case "length":
                return F.normalize(h, dim=-1) * w
        return self.norm(h)

    def ruled(self, h: Tensor, g: Graphs) -> Tensor:
        way, w = self.spelling, self.weight
        if way == "length":
            return h / g.length(h) * w
        if not hasattr(self, "bias"):
            return h * (h.square().mean(-1, keepdim=True) + 1e-6).rsqrt().detach() * w
        if way == "batch":
            h = h - g.added("biases", self.norm.running_mean)
            h = h * (self.norm.running_var + 1e-5).rsqrt()
            return h * w + g.added("biases", self.bias)
        if way == "graph":  # there is only one
            centred = h - h.mean(0, keepdim=True) * self.norm.mean_scale
            scale = (centred.square().mean(0, keepdim=True) + 1e-5).sqrt()
        else:
            parts = h.view(len(h), 2 if way == "group" else 1, -1)
            centred = parts - parts.mean(-1, keepdim=True)
            scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            if way in ("std", "var_mean"):
                unbiased = centred.square().sum(-1, keepdim=True) / (DIM - 1)
                scale = unbiased.sqrt() + 1e-5 if way == "std" else (unbiased + 1e-5).sqrt()
        return (centred / scale.detach()).view_as(h) * w + g.added("biases", self.bias)


class Activation(Part):
    functions: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {
        "gelu": F.gelu,
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
        "gelu by hand": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        "silu": F.silu,
        "silu by hand": lambda x: x * torch.sigmoid(x),
        "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "elu": F.elu,
        "selu in place": lambda x: F.selu(x.clone(), inplace=True),
        "tanh": torch.tanh,
        "mish": F.mish,
        "hardswish": F.hardswish,
        "hardswish by hand": lambda x: x * F.relu6(x + 3) / 6,
        "softsign by hand": lambda x: x / (1 + x.abs()),
        "relu": F.relu,
        "relu in place": lambda x: x.clone().relu_(),
        "leaky": lambda x: F.leaky_relu(x, 0.1),
        "random leaky": lambda x: F.rrelu(x, 0.1, 0.3),
        "prelu by hand": lambda x: torch.where(x > 0, x, 0.3 * x),
    }
    spellings = tuple(functions)

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        return g.by_ratio(self.functions[self.spelling], h)


KINKED = (
    "selu in place", "relu", "relu in place", "leaky", "random leaky", "prelu by hand",
)  # activations whose slope jumps at zero  # fmt: skip


class Linear(Part):
    spellings = ("module", "no bias", "function", "matmul", "einsum", "addmm", "convolution")

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        self.layer = nn.Linear(DIM, DIM, bias=spelling != "no bias")

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        w, b = self.layer.weight, self.layer.bias
        match "module" if g.rules else self.spelling:
            case "function":
                return F.linear(h, w) + b
            case "matmul":
                return (w @ h.T).T + b
            case "einsum":
                return torch.einsum("nd,ed->ne", h, w) + b
            case "addmm":
                return torch.addmm(b, h, w.T)
            case "convolution":
                return F.conv1d(h[:, :, None], w[:, :, None], b)[:, :, 0]
        return g.linear(self.layer, h)


class Attention(Part):
    """Attention between the nodes of each graph; "bare" has no output projection."""

    ways = (
        "softmax", "sdpa", "heads", "module", "exp", "logsumexp", "log_softmax", "biased", "cosine",
        "in chunks", "two kinds", "differential", "gated pairs", "scored pairs", "gated values",
        "linear", "sigmoid", "relu", "moments", "edges", "scattered",
    )  # fmt: skip
    plain = frozenset({*ways[:11], "gated values", "linear", "edges", "scattered"})
    spellings = tuple(way + bare for way in ways for bare in ("", " bare"))

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        self.way = spelling.removesuffix(" bare")
        self.out = None if spelling.endswith(" bare") else nn.Linear(DIM, DIM)
        self.mha = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.second = nn.Linear(DIM, DIM, bias=False)  # of a second kind of scores

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        if self.way in ("edges", "scattered"):
            return self.projected(self.on_edges(h, g), g)
        x, mask = to_dense_batch(h, g.batch)  # (B, N, DIM), (B, N)
        if self.way == "module" and not g.rules:
            attended, _ = self.mha(x, x, x, key_padding_mask=~mask, need_weights=False)
            return self.projected(attended[mask], g)
        q, k, v = self.queries_keys_values(x, g)
        if self.way == "gated values":
            v = g.weighted(g.sigmoid(v), x)
        mixed = self.unusual(q, k, v, mask, g)
        if mixed is None:
            mixed = (self.ruled if g.rules else self.written)(x, q, k, v, mask, g)
        if self.way == "module":
            mixed = g.linear(self.mha.out_proj, mixed)
        return self.projected(mixed[mask], g)

    def projected(self, rows: Tensor, g: Graphs) -> Tensor:
        return rows if self.out is None else g.linear(self.out, rows)

    def queries_keys_values(self, x: Tensor, g: Graphs) -> tuple[Tensor, ...]:
        weights, biases = self.mha.in_proj_weight.split(DIM), self.mha.in_proj_bias.split(DIM)
        pairs = zip(weights, biases, strict=True)
        return tuple(x @ w.T + g.added("biases", b) for w, b in pairs)

    def scores(self, x: Tensor, q: Tensor, k: Tensor, mask: Tensor, g: Graphs) -> Tensor:
        """Return scores (B, N, N)."""
        if self.way == "cosine":
            q, k = (3 * t / g.length(t) for t in (q, k))
        s = g.halved(q, k.mT, torch.matmul) / math.sqrt(q.shape[-1])
        if self.way == "biased":
            pe, _ = to_dense_batch(g.pe, g.batch)
            s = s + g.added("pe", pe @ pe.mT)
        return s.masked_fill(~mask[:, None, :], -math.inf)

    def unusual(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, g: Graphs) -> Tensor | None:
        """Attend without a softmax, or without a matrix; return None if the way is another one."""
        match self.way:
            case "sigmoid":
                s = g.halved(q, k.mT, torch.matmul) / 3
                return g.weighted(g.sigmoid(s) * mask[:, None, :], v, torch.matmul)
            case "relu":
                a = g.halved(q, k.mT, torch.matmul).relu() * mask[:, None, :]
                return g.weighted(a, v, torch.matmul) / 7
            case "moments":
                k = (k * mask[..., None]).mT
                return g.halved(q, g.halved(k, v, torch.matmul), torch.matmul) / 7
            case "linear":
                q, k = (g.by_ratio(F.elu, t) + g.ones(t) for t in (q, k))
                k = k * mask[..., None]
                if g.rules:
                    a = g.halved(q, k.mT, torch.matmul)
                    a = a / a.sum(-1, keepdim=True)
                    g.attention.append(a.detach())
                    return g.weighted(a, v, torch.matmul)
                return q @ (k.mT @ v) / (q @ k.sum(1)[..., None])
        return None

    def ruled(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, g: Graphs) -> Tensor:
        parts = 2 if self.way in ("heads", "module") else 1
        heads = zip(q.chunk(parts, -1), k.chunk(parts, -1), strict=True)
        weights = [self.weights(x, *head, mask, g) for head in heads]
        g.attention.append(torch.cat(weights).detach())
        pairs = zip(weights, v.chunk(parts, -1), strict=True)
        return torch.cat([g.weighted(a, values, torch.matmul) for a, values in pairs], -1)

    def weights(self, x: Tensor, q: Tensor, k: Tensor, mask: Tensor, g: Graphs) -> Tensor:
        a = self.scores(x, q, k, mask, g).softmax(-1)
        if self.way == "two kinds":
            return 0.4 * a + 0.6 * self.second_scores(x, mask, g).softmax(-1)
        more = g.halved(x @ self.second.weight, x.mT, torch.matmul)
        if self.way == "gated pairs":
            return g.halved(a, g.sigmoid(more))
        if self.way == "scored pairs":
            return g.halved(a, more)
        if self.way == "differential":
            return a - 0.5 * more.masked_fill(~mask[:, None, :], -math.inf).softmax(-1)
        return a

    def second_scores(self, x: Tensor, mask: Tensor, g: Graphs) -> Tensor:
        scores = g.halved(x @ self.second.weight, x.mT, torch.matmul)
        return scores.masked_fill(~mask[:, None, :], -math.inf)

    def written(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, g: Graphs
    ) -> Tensor:
        s, keep = self.scores(x, q, k, mask, g), mask[:, None, None, :]
        match self.way:
            case "softmax":
                return torch.einsum("bij,bjd->bid", s.softmax(-1), v)
            case "sdpa":
                return F.scaled_dot_product_attention(q, k, v, keep[:, 0].expand(s.shape))
            case "heads":
                heads = (t.unflatten(-1, (2, HALF)).transpose(1, 2) for t in (q, k, v))
                mixed = F.scaled_dot_product_attention(*heads, keep)
                return mixed.transpose(1, 2).flatten(-2)
            case "exp":
                e = (s - s.amax(-1, keepdim=True)).exp()
                return (e @ v) / e.sum(-1, keepdim=True)
            case "logsumexp":
                return (s - s.logsumexp(-1, keepdim=True)).exp() @ v
            case "log_softmax":
                return F.log_softmax(s, -1).exp() @ v
            case "two kinds":
                kinds = s, self.second_scores(x, mask, g)
                first, second = ((t - t.amax(-1, keepdim=True)).exp() for t in kinds)
                first = 0.4 * first / first.sum(-1, keepdim=True)
                return (first + second / second.sum(-1, keepdim=True) * 0.6) @ v
            case "in chunks":
                return torch.cat([part.softmax(-1) @ v for part in s.split(3, 1)], 1)
        return self.weights(x, q, k, mask, g) @ v

    def on_edges(self, h: Tensor, g: Graphs) -> Tensor:
        source, target = g.edge_index
        q, k, v = self.queries_keys_values(h, g)
        s = g.halved(q[target], k[source]).sum(-1) / math.sqrt(DIM)
        if g.rules or self.way == "edges":
            a = softmax(s, target, num_nodes=len(h))
        else:
            e = (s - scatter(s, target, 0, len(h), "max")[target]).exp()
            a = e / torch.zeros_like(h[:, 0]).index_add(0, target, e)[target]
        if g.rules:
            matrix = h.new_zeros(1, len(h), len(h))
            matrix[0, target, source] = a.detach()
            g.attention.append(matrix)
        return scatter(g.weighted(a[:, None], v[source]), target, 0, len(h), "sum")


class Messages(Part):
    spellings = ("gin", "index_add", "mean", "max", "gcn", "adjacency", "sparse", "gated", "gine",
                 "bonds", "gated bonds", "filtered")  # fmt: skip

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        self.layer, self.gate = nn.Linear(DIM, DIM), nn.Linear(2 * DIM, DIM)
        self.gin = GINConv(self.layer)
        self.bonds = nn.Linear(HALF, DIM)
        self.gine = GINEConv(self.layer)
        self.gine.lin = self.bonds

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        if self.spelling == "gin" and not g.rules:
            return self.gin(h, g.edge_index)
        if self.spelling == "gine" and not g.rules:
            return self.gine(h, g.edge_index, g.edge_attr)
        return g.linear(self.layer, self.summed(h, g))

    def summed(self, h: Tensor, g: Graphs) -> Tensor:
        (source, target), n = g.edge_index, len(h)
        match self.spelling:
            case "gin":
                return h + torch.zeros_like(h).index_add(0, target, h[source])
            case "index_add":
                return torch.zeros_like(h).index_add_(0, target, h[source])
            case "mean" | "max" as way:
                return scatter(h[source], target, 0, n, way)
            case "adjacency":
                ones = h.new_ones(len(source))
                return h.new_zeros(n, n).index_put((target, source), ones, accumulate=True) @ h
            case "sparse":
                ones = h.new_ones(len(source))
                return torch.sparse.mm(
                    torch.sparse_coo_tensor(g.edge_index.flip(0), ones, (n, n)), h
                )
            case "gated bonds":
                bonds = g.linear(self.bonds, g.added("edge_attr", g.edge_attr))
                gate = g.sigmoid(bonds @ self.gate.weight[:, :DIM].T)
                return h + torch.zeros_like(h).index_add(0, target, g.weighted(gate, bonds))
            case "gine":
                bonds = g.linear(self.bonds, g.added("edge_attr", g.edge_attr))
                messages = g.by_ratio(F.relu, h[source] + bonds)
                return h + torch.zeros_like(h).index_add(0, target, messages)
            case "bonds":
                bonds = g.added("edge_attr", g.edge_attr) @ self.bonds.weight.T
                return scatter(torch.stack([h[source], bonds]).sum(0), target, 0, n, "sum")
            case "filtered":
                return scatter(h[source] * self.bonds(g.edge_attr), target, 0, n, "sum")
            case "gated":
                z = g.linear(self.gate, torch.cat([h[source], h[target]], -1))
                return scatter(g.weighted(g.sigmoid(z), h[source]), target, 0, n, "sum")
        degree = 1 + h.new_zeros(n).index_add(0, target, h.new_ones(len(target)))
        weight = degree[source].rsqrt() * degree[target].rsqrt()
        return torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None])


class Gate(Part):
    spellings = (
        "sigmoid", "hard", "bare", "one", "plus one", "glu", "blend", "lerp", "gru", "excite",
        "channels",
    )  # fmt: skip

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        self.gate, self.value = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.wide = nn.Linear(DIM, 2 * DIM)

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        if self.spelling == "glu":
            if not g.rules:
                return F.glu(self.wide(h), -1)
            x, z = g.linear(self.wide, h).chunk(2, -1)
            return g.weighted(g.sigmoid(z), x)
        if self.spelling == "excite":
            pooled = g.linear(self.gate, global_mean_pool(h, g.batch, g.size))
            return g.weighted(g.sigmoid(pooled)[g.batch], h)
        z = g.linear(self.gate, h)
        z = g.sigmoid(z, F.hardsigmoid if self.spelling == "hard" else torch.sigmoid)
        match self.spelling:
            case "bare":
                return g.weighted(z, h)
            case "one":
                return g.weighted(z[:, :1], h)
            case "plus one":
                return g.weighted(g.ones(z) + z, h)
            case "channels":
                return g.weighted(g.linear(self.value, h).softmax(-1), h)
        x = g.linear(self.value, h)
        match self.spelling:
            case "blend":
                return g.weighted(z, x) + g.weighted(g.ones(z) - z, h)
            case "lerp":
                if g.rules:
                    return g.weighted(g.ones(z) - z, h) + g.weighted(z, x)
                return torch.lerp(h, x, z)
            case "gru":
                return g.weighted(g.ones(z) - z, g.by_ratio(torch.tanh, x)) + g.weighted(z, h)
        return g.weighted(z, x)


class Product(Part):
    spellings = ("bilinear", "module", "bare", "gated", "swiglu", "swiglu by hand", "geglu")

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        self.first, self.second = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.both = nn.Bilinear(DIM, DIM, DIM)

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        if self.spelling == "module":
            if not g.rules:
                return self.both(h, h)
            half = torch.einsum("nd,kde->nke", h, self.both.weight)
            product = g.halved(half, h, lambda a, b: torch.einsum("nke,ne->nk", a, b))
            return product + g.added("biases", self.both.bias)
        a, b = g.linear(self.first, h), g.linear(self.second, h)
        match self.spelling:
            case "bare":
                return g.halved(h, b)
            case "gated":
                a = g.weighted(g.sigmoid(a), h)
            case "swiglu":
                a = g.by_ratio(F.silu, a)
            case "swiglu by hand":
                a = g.by_ratio(lambda x: x * x.sigmoid(), a)
            case "geglu":
                a = g.by_ratio(F.gelu, a)
        return g.halved(a, b)


class Moves(Part):
    """A part that changes only the order, the shape or the place of entries."""

    ways: ClassVar[dict[str, Callable[[Tensor, Graphs], Tensor]]] = {
        "rows": lambda h, g: h.flip(0)[torch.arange(len(h) - 1, -1, -1)],
        "sorted": lambda h, g: _sorted(h, g.pe[:, 0].argsort()),
        "chunks": lambda h, g: torch.cat(h.chunk(3, 0), 0),
        "transposed": lambda h, g: h.T.contiguous().view(DIM, -1).permute(1, 0),
        "stacked": lambda h, g: torch.stack([h, h]).mean(0),
        "padded": lambda h, g: F.pad(h, (1, 2))[:, 1:-2],
        "written": lambda h, g: _written(h),
        "columns": lambda h, g: torch.stack([h[:, k] for k in range(DIM)], 1),
        "rolled": lambda h, g: h.roll(2, 0).roll(-2, 0),
        "dense": lambda h, g: (lambda x, mask: x[mask])(*to_dense_batch(h, g.batch)),
        "conjugates": lambda h, g: _conjugated(_conjugated(h)),
        "copied": lambda h, g: torch.empty_like(h).copy_(h),
        "repeated": lambda h, g: h.repeat_interleave(2, 0)[::2],
        "masked": lambda h, g: _masked(h, g.pe[:, 0] > 0),
    }
    spellings = tuple(ways)

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        return h if g.rules else self.ways[self.spelling](h, g)


def _sorted(h: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(h).index_copy(0, order, h.index_select(0, order))


def _written(h: Tensor) -> Tensor:
    y = torch.zeros_like(h)
    y[:] = h
    y[: len(h) // 2] = h[: len(h) // 2]
    return y


def _conjugated(h: Tensor) -> Tensor:
    """Return the channels in reverse order, but for the first."""
    return torch.fft.ifft(torch.fft.fft(h).conj()).real


def _masked(h: Tensor, keep: Tensor) -> Tensor:
    y = h.clone()
    y[keep] = h[keep]
    return y


class Constants(Part):
    spellings = (
        "pe",
        "pe beside",
        "pe squared",
        "pe gated",
        "pe attended",
        "number",
        "parameter",
        "cut off",
        "scale",
        "dropout",
    )

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        self.of_pe = nn.Linear(DIM, DIM, bias=False)
        self.both = nn.Linear(2 * DIM, DIM, bias=False)
        self.shift, self.scale = nn.Parameter(torch.empty(DIM)), nn.Parameter(torch.empty(DIM))

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        match self.spelling:
            case "pe":
                return h + self.of_pe(g.added("pe", g.pe))
            case "pe beside":
                return self.both(torch.cat([h, g.added("pe", g.pe)], -1))
            case "pe squared":
                pe = self.of_pe(g.added("pe", g.pe))
                return h + g.halved(pe, pe)
            case "pe gated" | "pe attended" as way:
                pe = self.of_pe(g.added("pe", g.pe))
                scores = pe @ self.both.weight[:, :DIM].T
                weights = g.sigmoid(scores) if way == "pe gated" else scores.softmax(-1)
                return h + g.weighted(weights, pe)
            case "number":
                return h + (g.added("constants", torch.full_like(h, 0.3)) if g.rules else 0.3)
            case "parameter":
                return h + g.added("biases", self.shift)
            case "cut off":
                return h + g.added("cut off", self.of_pe(h.detach()))
            case "scale":
                return h * self.scale / 1.7
        return F.dropout(h, 0.3, self.training)


class Global(Part):
    """A part that adds to each node what all nodes of a graph have in common."""

    spellings = tuple(POOLS)

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        pooled = POOLS[self.spelling](h, g.batch, g.size)
        return h + g.linear(self.layer, pooled)[g.batch]


class Block(Part):
    """Parts one after another, with a residual connection, or without one as a "chain"."""

    spellings = ("chain", "plus", "in place", "add_", "alpha", "cat", "checkpoint")

    def __init__(self, spelling: str, parts: list[str]) -> None:
        super().__init__(spelling)
        self.parts = nn.ModuleList(map(part_of, parts))

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        if self.spelling == "checkpoint" and not g.rules:
            return h + checkpoint(self.inner, h, g, use_reentrant=False)
        y = self.inner(h, g)
        match "plus" if g.rules and self.spelling not in ("chain", "alpha") else self.spelling:
            case "chain":
                return y
            case "in place":
                x = h.clone()
                x += y
                return x
            case "add_":
                return h.clone().add_(y)
            case "alpha":
                return torch.add(h, y, alpha=0.5)
            case "cat":
                return torch.cat([h[None], y[None]]).sum(0)
        return h + y

    def inner(self, h: Tensor, g: Graphs) -> Tensor:
        for part in self.parts:
            h = part(h, g)
        return h


READOUTS = (*POOLS, "by hand")  # without weights


class Pool(Part):
    spellings = (*READOUTS, "attention", "gated")

    def __init__(self, spelling: str) -> None:
        super().__init__(spelling)
        self.score = nn.Linear(DIM, 1)

    def forward(self, h: Tensor, g: Graphs) -> Tensor:
        if self.spelling in POOLS:
            return POOLS[self.spelling](h, g.batch, g.size)
        if self.spelling == "by hand":
            total = h.new_zeros(g.size, DIM).index_add_(0, g.batch, h)
            return total / g.batch.bincount(minlength=g.size)[:, None]
        s = g.linear(self.score, h)
        of_graph = self.spelling == "attention"
        a = softmax(s, g.batch, num_nodes=g.size) if of_graph else g.sigmoid(s)
        return global_add_pool(g.weighted(a, h), g.batch, g.size)


PARTS: dict[str, type[Part]] = {
    kind.__name__.lower(): kind
    for kind in (
        Norm, Activation, Linear, Attention, Messages, Gate, Product, Moves, Constants, Global
    )
}  # fmt: skip


def part_of(name: str) -> Part:
    """Return the part with a name such as "norm: rsqrt"."""
    kind, _, spelling = name.partition(": ")
    return PARTS[kind](spelling)


BARE = ("", " bare")
# Parts in one row compute the same with the same weights. None stands for no part.
ALIKE = [
    [f"norm: {way}" for way in ("module", "function", "by hand", "rsqrt")],
    [f"norm: {way}" for way in ("rms", "power")],
    *[[f"activation: {way}", f"activation: {way} by hand"] for way in ("gelu", "silu")],
    ["activation: relu", "activation: relu in place"],
    [f"linear: {way}" for way in Linear.spellings if way != "no bias"],
    *[[f"attention: {way}{bare}" for way in ("softmax", "sdpa", "exp", "logsumexp", "log_softmax",
                                             "in chunks")] for bare in BARE],
    *[[f"attention: {way}{bare}" for way in ("edges", "scattered")] for bare in BARE],
    ["messages: index_add", "messages: adjacency", "messages: sparse"],
    ["product: swiglu", "product: swiglu by hand"],
    ["plus", "in place", "add_", "checkpoint"],
    ["mean", "by hand"],
    [None, *(f"moves: {way}" for way in Moves.spellings if way != "stacked")],  # "stacked" is a sum
]  # fmt: skip
PLAIN = {name: alike[0] for alike in ALIKE for name in alike if name is not None}


def plainly(blocks: list[list[str]], pool: str) -> tuple[list[list[str]], str]:
    """Return the recipe of the same model in its first spellings."""
    plain = [[PLAIN.get(name, name) for name in block] for block in blocks]
    return [[name for name in block if name] for block in plain], PLAIN.get(pool, pool)


class Composed(nn.Module):
    """A model of graphs: blocks (a spelling, then parts), a readout, and two outputs."""

    def __init__(self, blocks: list[list[str]], pool: str) -> None:
        super().__init__()
        self.embed, self.pool, self.head = nn.Linear(IN, DIM), Pool(pool), nn.Linear(DIM, 2)
        self.blocks = nn.ModuleList(Block(spelling, parts) for spelling, *parts in blocks)
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.3 * (p.dim() == 1) + 0.5 * torch.randn(p.shape, generator=draw))
        self.double().eval()

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, pe: Tensor, batch: Tensor
    ) -> Tensor:
        return self.run(x, Graphs(edge_index, batch, pe, edge_attr))

    def run(self, x: Tensor, g: Graphs) -> Tensor:
        h = g.linear(self.embed, x)
        for block in self.blocks:
            h = block(h, g)
        return g.linear(self.head, self.pool(h, g))


def graph(nodes: int) -> Data:
    """Draw a connected graph with loops, in double precision."""
    draw = torch.Generator().manual_seed(nodes)
    nodes_in_order = torch.arange(nodes)
    more = torch.randint(nodes, (2, nodes // 2), generator=draw)
    pairs = torch.cat(
        [torch.stack([nodes_in_order[:-1], nodes_in_order[1:]]), more[:, more[0] != more[1]]], 1
    )
    edges = torch.cat([pairs, pairs.flip(0), nodes_in_order.expand(2, -1)], 1).unique(dim=1)
    sizes = ((nodes, IN), (nodes, DIM), (edges.shape[1], HALF))
    x, pe, bonds = (torch.randn(size, generator=draw, dtype=torch.double) for size in sizes)
    return Data(x=x, edge_index=edges, edge_attr=bonds, pe=pe)


@dataclass(frozen=True)
class Expected:
    """The second output of one graph, and its shares by the rules, of nodes (n,) and of lines.

    `attention` has that of each part with attention, (H, n, n).
    """

    output: float
    nodes: Tensor
    lines: dict[str, float]
    attention: list[Tensor]

    @property
    def unexplained(self) -> float:
        """Return what the shares do not sum to."""
        return self.output - float(self.nodes.sum()) - sum(self.lines.values())

    @property
    def largest(self) -> float:
        """Return the size of the largest term."""
        return max(abs(self.output), float(self.nodes.abs().max()), *map(abs, self.lines.values()))


def expected(model: Composed, data: Data, factor: float = 1.0, products: bool = False) -> Expected:
    """By the reference; factor: of the nodes' features; products: see `Graphs`."""
    x = (factor * data.x).requires_grad_()
    batch = torch.zeros(len(x), dtype=torch.long)
    g = Graphs(data.edge_index, batch, data.pe, data.edge_attr, rules=True, products=products)
    output = model.run(x, g)[0, 1]
    leaves = [leaf for of in g.leaves.values() for leaf in of]
    gradients = torch.autograd.grad(output, [x, *leaves], allow_unused=True, materialize_grads=True)
    terms = [(t * gradient).detach() for t, gradient in zip([x, *leaves], gradients, strict=True)]
    rest = iter(terms[1:])
    lines = {line: sum(float(next(rest).sum()) for _ in of) for line, of in g.leaves.items()}
    return Expected(float(output.detach()), terms[0].sum(-1), lines, g.attention)


def differences(explanation: Any, wanted: Expected) -> dict[str, float]:
    """Return how far an explanation is from the reference, relative to the largest term."""
    ledger = explanation.ledger
    lines = {"biases": ledger.biases, **ledger.others}
    gaps = {
        "output": abs(ledger.output - wanted.output),
        "nodes": float((torch.from_numpy(explanation.relevance) - wanted.nodes).abs().max()),
        "unexplained": abs(ledger.unexplained - wanted.unexplained),
    }
    for line in lines.keys() | wanted.lines.keys():
        gaps[line] = abs(lines.get(line, 0.0) - wanted.lines.get(line, 0.0))
    return {name: gap / wanted.largest for name, gap in gaps.items()}


def well_conditioned(model: Composed, data: Data, products: bool = False) -> Expected | None:
    """Return `expected`, or None where features change the results a lot, or rounding decides.

    They change a lot where attention and activations are saturated. Rounding decides which of equal
    nodes is the largest, and which slope a kinked activation has at zero.
    """
    usual, disturbed = (expected(model, data, factor, products) for factor in (1, 1 + 1e-7))
    terms = [
        (usual.output, disturbed.output),
        *zip(usual.nodes.tolist(), disturbed.nodes.tolist(), strict=True),
    ]
    terms += [(share, disturbed.lines[line]) for line, share in usual.lines.items()]
    steady = all(abs(a - b) < 1e-4 * usual.largest for a, b in terms)
    return usual if usual.largest < 1e4 and steady and not rounding_decides(model, data) else None


def rounding_decides(model: Composed, data: Data) -> bool:
    """Return whether nodes share a maximum, or a kinked activation is applied to zero.

    Two nodes share a maximum if they are equal but for rounding. A gate that is shut gives exact
    zeros.
    """
    close = []

    def look(part: nn.Module, args: tuple[Any, ...]) -> None:
        h = args[0]  # (n, DIM)
        if isinstance(part, Activation):
            close.append(bool((h == 0).any()))
            return
        near = (h[:, None] - h).abs() <= 1e-9 * h.abs()  # (n, n, DIM)
        near &= ~torch.eye(len(h), dtype=torch.bool)[..., None] & (h != 0)
        close.append(bool(near.any()))

    parts = [part for part in model.modules() if getattr(part, "spelling", "") in ("max", *KINKED)]
    hooks = [part.register_forward_pre_hook(look) for part in parts]
    with torch.no_grad():
        model(
            data.x, data.edge_index, data.edge_attr, data.pe, data.edge_index.new_zeros(len(data.x))
        )
    for hook in hooks:
        hook.remove()
    return any(close)


def attends_plainly(model: Composed) -> bool:
    """Return whether the only weights are softmaxes of attention between nodes."""
    parts = list(model.modules())
    ways = {part.way for part in parts if isinstance(part, Attention)}
    others = any(isinstance(part, Gate) for part in parts)
    return bool(ways) and ways <= Attention.plain and not others and model.pool.spelling in READOUTS
