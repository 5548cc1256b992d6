"""Small models built as CoMFormer, GRIT, PNA and SchNet were published are explained as they are.

SchNet and the layers of PNA are PyG's. The reference computes the same outputs with the weights of
the model, and holds constant by hand what LRP holds constant: the ratio of functions, gates,
softmax, and one factor in each half of a product of two signals.
"""

import math
import warnings
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import PNAConv, SchNet, global_add_pool, global_mean_pool
from torch_geometric.utils import degree, softmax

import graphxai as gx

DIM, BONDS = 8, 4


class Functions:
    """Functions as the models call them."""

    softplus = staticmethod(F.softplus)
    silu = staticmethod(F.silu)
    sigmoid = staticmethod(torch.sigmoid)
    softmax = staticmethod(softmax)

    @staticmethod
    def signed_sqrt(x):
        return torch.sqrt(torch.relu(x)) - torch.sqrt(torch.relu(-x))

    @staticmethod
    def product(a, b):
        return a * b


def slope_from_zero(f):
    """Hold the slope `(f(x) - f(0)) / x` constant."""

    def by_slope(x):
        at_zero = f(torch.zeros_like(x))
        return at_zero.detach() + x * ((f(x) - at_zero) / x.where(x != 0, 1e-4)).detach()

    return by_slope


class ByHand(Functions):
    """The same functions with what LRP holds constant."""

    softplus = staticmethod(slope_from_zero(F.softplus))
    silu = staticmethod(slope_from_zero(F.silu))
    sigmoid = staticmethod(lambda x: torch.sigmoid(x).detach())
    softmax = staticmethod(lambda *args, **options: softmax(*args, **options).detach())
    signed_sqrt = staticmethod(slope_from_zero(Functions.signed_sqrt))

    @staticmethod
    def product(a, b):
        if not (a.requires_grad and b.requires_grad):
            return a * b
        return (a * b.detach() + a.detach() * b) / 2


class Mlp(nn.Module):
    def __init__(self, inside, outside=DIM):
        super().__init__()
        self.first, self.second = nn.Linear(inside, DIM), nn.Linear(DIM, outside)

    def forward(self, x, functions):
        return self.second(functions.silu(self.first(x)))


class CoMFormerLayer(nn.Module):
    """Node-wise attention of Yan 2024 (also Matformer, Yan 2022): gates by normalised scores."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.key_update, self.message_update = Mlp(3 * DIM), Mlp(3 * DIM)
        self.of_scores, self.of_nodes = nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM)

    def forward(self, x, edge_index, e, functions):
        source, target = edge_index
        q, k, v = self.query(x), self.key(x), self.value(x)
        keys = self.key_update(torch.cat([k[target], k[source], e], -1), functions)
        scores = q[target] * keys / math.sqrt(DIM)
        messages = self.message_update(torch.cat([v[target], v[source], e], -1), functions)
        messages = messages * functions.sigmoid(self.of_scores(scores))
        mixed = torch.zeros_like(x).index_add(0, target, messages)
        return functions.softplus(x + self.of_nodes(mixed))


class CoMFormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.atoms, self.bonds = nn.Linear(3, DIM), nn.Embedding(BONDS, DIM)
        self.layers = nn.ModuleList(CoMFormerLayer() for _ in range(2))
        self.fc, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, x, edge_index, edge_attr, batch, functions=Functions):
        h, e = self.atoms(x), functions.softplus(self.bonds(edge_attr))
        for layer in self.layers:
            h = layer(h, edge_index, e, functions)
        return self.out(functions.silu(self.fc(global_mean_pool(h, batch))))


class GritLayer(nn.Module):
    """Attention of Ma 2023, eq. 2, whose pairs are updated, with a scaler of degrees (eq. 3)."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.e_w, self.e_b, self.e_v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.a, self.out_nodes, self.out_pairs = nn.Linear(DIM, 1), *(nn.Linear(DIM, DIM),) * 2
        self.of_degree = nn.Parameter(torch.randn(2, DIM))
        self.norm_nodes, self.norm_pairs = nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM)
        self.first, self.second = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x, edge_index, e, functions):
        source, target = edge_index
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = functions.product(q[target] + k[source], self.e_w(e))
        pairs = torch.relu(functions.signed_sqrt(scores) + self.e_b(e))
        weights = functions.softmax(self.a(pairs), target, num_nodes=len(x))
        messages = weights * (v[source] + self.e_v(pairs))
        h = torch.zeros_like(x).index_add(0, target, messages)
        log_degree = torch.log1p(degree(target, len(x)))[:, None]
        h = h * self.of_degree[0] + h * log_degree * self.of_degree[1]
        h = self.norm_nodes(x + self.out_nodes(h))
        h = h + self.second(torch.relu(self.first(h)))
        return h, self.norm_pairs(e + self.out_pairs(pairs))


class Grit(nn.Module):
    def __init__(self):
        super().__init__()
        self.atoms, self.pairs = nn.Linear(3, DIM), nn.Embedding(BONDS, DIM)
        self.layers = nn.ModuleList(GritLayer() for _ in range(2))
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, edge_index, edge_attr, batch, functions=Functions):
        h, e = self.atoms(x), self.pairs(edge_attr)
        for layer in self.layers:
            h, e = layer(h, edge_index, e, functions)
        return self.out(global_add_pool(h, batch))


class Pna(nn.Module):
    """Two layers of PyG's PNAConv (Corso 2020), with BatchNorm, as in its experiments."""

    aggregators, scalers = (
        ("mean", "min", "max", "std"),
        ("identity", "amplification", "attenuation"),
    )

    def __init__(self):
        super().__init__()
        self.atoms, self.bonds = nn.Linear(3, DIM), nn.Embedding(BONDS, DIM)
        self.layers = nn.ModuleList(
            PNAConv(DIM, DIM, [*self.aggregators], [*self.scalers], torch.tensor([0, 2, 5, 1]),
                    edge_dim=DIM, towers=2, divide_input=False)
            for _ in range(2)
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.BatchNorm1d(DIM) for _ in range(2))
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h, e = self.atoms(x), self.bonds(edge_attr)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = h + torch.relu(norm(layer(h, edge_index, e)))
        return self.out(global_add_pool(h, batch))


def pna_by_hand(module, graph, x):
    h, e = module.atoms(x), module.bonds(graph.edge_attr)
    for layer, norm in zip(module.layers, module.norms, strict=True):
        h = h + torch.relu(norm(pna_layer_by_hand(layer, h, graph.edge_index, e)))
    return module.out(h.sum(0))


def pna_layer_by_hand(layer, h, edge_index, e):
    """Compute PNAConv, where a variance is a mean of products of deviations, one constant."""
    source, target = edge_index
    n, towers = len(h), []
    counts = degree(target, n)
    average = layer.aggr_module.avg_deg_log
    for pre, post in zip(layer.pre_nns, layer.post_nns, strict=True):
        messages = pre(torch.cat([h[target], h[source], layer.edge_encoder(e)], -1))
        rows = []
        for node in range(n):
            m = messages[target == node]
            if not len(m):
                rows.append(torch.zeros(4 * messages.shape[1]))
                continue
            deviation = m - m.mean(0)
            variance = (deviation * deviation.detach()).mean(0)
            spread = variance / variance.detach().clamp(min=1e-5).sqrt()
            spread = spread.where(variance.detach() > 1e-5, torch.zeros_like(spread))
            rows.append(torch.cat([m.mean(0), m.amin(0), m.amax(0), spread]))
        mixed = torch.stack(rows)
        scale = torch.log(counts.clamp(min=1) + 1)[:, None]
        scaled = torch.cat([mixed, mixed * (scale / average), mixed * (average / scale)], -1)
        towers.append(post(torch.cat([h, scaled], -1)))
    return layer.lin(torch.cat(towers, -1))


def molecule(nodes):
    """Return a ring whose first node has a second neighbour across."""
    draw = torch.Generator().manual_seed(nodes)
    ring = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(-1)])
    across = torch.tensor([[0], [nodes // 2]])
    edges = torch.cat([ring, across], 1)
    edge_index = torch.cat([edges, edges.flip(0)], 1)
    return Data(
        x=torch.randn(nodes, 3, generator=draw),
        edge_index=edge_index,
        edge_attr=torch.randint(BONDS, (edge_index.shape[1],), generator=draw),
        z=torch.randint(1, 9, (nodes,), generator=draw),
        pos=2 * torch.randn(nodes, 3, generator=draw),
    )


GRAPHS = [molecule(5), molecule(7)]


def with_other_statistics(module):
    """Give a model weights, and running statistics that differ from those at the start."""
    torch.manual_seed(2)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            nn.init.normal_(part.bias)
    return module.eval()


@pytest.fixture(scope="module")
def modules():
    built = {}
    for name, kind in {"comformer": CoMFormer, "grit": Grit, "pna": Pna}.items():
        torch.manual_seed(1)
        built[name] = with_other_statistics(kind())
    return built


def check(explanations, expected_of):
    for graph, explanation in zip(GRAPHS, explanations, strict=True):
        expected, output = expected_of(graph)
        assert explanation.output == pytest.approx(output, abs=1e-4)
        assert explanation.relevance == pytest.approx(expected, abs=1e-5)
        assert abs(explanation.ledger.unexplained) < 1e-4
        assert abs(expected).max() > 1e-3


@pytest.mark.parametrize("name", ["comformer", "grit", "pna"])
def test_published_layers_get_the_relevance_written_out_by_hand(modules, name):
    module = modules[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has parts that no rule covers")
        model = gx.wrap(module, kind="regression")
        explanations = gx.explain(model, GRAPHS, on_error="raise")
    assert model.tier == "hooks"

    def by_hand(graph):
        x = graph.x.clone().requires_grad_()
        if name == "pna":
            output = pna_by_hand(module, graph, x)
        else:
            batch = torch.zeros(len(x), dtype=torch.long)
            frozen = deepcopy(module).requires_grad_(False)  # so that a product sees its signals
            output = frozen(x, graph.edge_index, graph.edge_attr, batch, functions=ByHand)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        return (x * gradient).sum(-1).detach().numpy(), output.item()

    check(explanations, by_hand)


@pytest.mark.parametrize("name", ["comformer", "grit", "pna"])
def test_gradient_input_of_published_layers_is_that_of_autograd(modules, name):
    module = modules[name]
    model = gx.wrap(module, kind="regression")
    for graph, explanation in zip(
        GRAPHS, gx.explain(model, GRAPHS, "gradient_input", on_error="raise"), strict=True
    ):
        x, batch = graph.x.clone().requires_grad_(), torch.zeros(len(graph.x), dtype=torch.long)
        output = module(x, graph.edge_index, graph.edge_attr, batch)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        expected = (x * gradient).sum(-1).detach().numpy()
        assert explanation.relevance == pytest.approx(expected, abs=1e-5)


class AllPairs(nn.Module):
    """All pairs of a graph's atoms, in place of a search within a radius."""

    def forward(self, pos, batch):
        beside = (batch[:, None] == batch) & ~torch.eye(len(batch), dtype=torch.bool)
        source, target = beside.nonzero().T
        return torch.stack([source, target]), (pos[source] - pos[target]).norm(dim=-1)


def schnet_by_hand(module, graph):
    """Compute PyG's SchNet for one graph, with the slope of shifted softplus constant."""
    z, pos = graph.z, graph.pos
    h = start = module.embedding(z).detach().requires_grad_()
    (source, target), away = AllPairs()(pos, torch.zeros(len(z), dtype=torch.long))
    filters = module.distance_expansion(away)
    shifted = ByHand.softplus
    for block in module.interactions:
        cutoff = 0.5 * (torch.cos(away * math.pi / block.conv.cutoff) + 1)
        w = block.mlp(filters) * cutoff[:, None]
        messages = torch.zeros(len(z), w.shape[1])
        messages = messages.index_add(0, target, block.conv.lin1(h)[source] * w)
        h = h + block.lin(shifted(block.conv.lin2(messages)) - math.log(2))
    output = module.lin2(shifted(module.lin1(h)) - math.log(2)).sum(0)
    (gradient,) = torch.autograd.grad(output.sum(), start)
    return (start * gradient).sum(-1).detach().numpy(), output.item()


def test_schnet_gets_the_relevance_written_out_by_hand():
    torch.manual_seed(0)
    module = SchNet(DIM, DIM, 2, 6, cutoff=4.0, interaction_graph=AllPairs()).eval()
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    model = gx.wrap(
        module,
        kind="regression",
        embedding="embedding",
        forward=lambda model, batch: model(batch.z, batch.pos, batch.batch),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has parts that no rule covers")
        explanations = gx.explain(model, GRAPHS, on_error="raise")
    check(explanations, lambda graph: schnet_by_hand(module, graph))


def test_models_run_on_batches():
    batch = Batch.from_data_list(GRAPHS)
    for kind in (CoMFormer, Grit, Pna):
        output = kind().eval()(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
        assert output.shape == (2, 1)
