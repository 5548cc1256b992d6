"""Wrapped models are explained and evaluated, or refused with clear errors."""

import copy
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import AttentionalAggregation, Set2Set, global_mean_pool
from torch_geometric.utils import scatter

import graphxai as gx
from graphxai.contract.inputs import InputError
from graphxai.evaluation.testing import check_all, check_batching, check_ledger, check_renumbering
from graphxai.explainers import get_explainer
from graphxai.wrapping import WrappedModel
from graphxai.wrapping.removal import outputs_of_parts
from other_models import (
    Bert,
    GpsModel,
    SparseModel,
    encoder,
    explainers,
    graph_of,
    molecules,
    quick_explainer,
    trained,
)
from small_graphs import edge_softmax

CASES = ["gps", "gps graph_norm", "performer", "transformer", "gat"]


@pytest.fixture(scope="module")
def graphs() -> list[Data]:
    return molecules()


@pytest.fixture(scope="module")
def models(graphs) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    untrained = {
        "gps": GpsModel(),
        "gps graph_norm": GpsModel("graph_norm", "relu"),
        "performer": GpsModel("layer_norm", "silu", "performer"),
        "transformer": SparseModel(),
        "gat": SparseModel("gat"),
    }
    return {name: trained(model, graphs, 10) for name, model in untrained.items()}


def wrapped(model: nn.Module, **options) -> WrappedModel:
    return gx.wrap(model, kind="regression", **options)


# -- numbers -----------------------------------------------------------------------------------


def ratio(f, z: Tensor) -> Tensor:
    return z * (f(z) / z).detach()


def sparse_model_by_hand(model: SparseModel, graph: Data, x: Tensor) -> Tensor:
    """Run the forward pass of one graph with every constant of `lrp` detached."""

    def conv(m, h: Tensor) -> Tensor:
        source, target = graph.edge_index
        q, k, v = (lin(h).view(-1, 2, 8) for lin in (m.lin_query, m.lin_key, m.lin_value))
        edges = m.lin_edge(graph.edge_attr).view(-1, 2, 8)
        scores = (q[target] * (k[source] + edges)).sum(-1) / 8**0.5
        messages = edge_softmax(scores, target).detach()[..., None] * (v[source] + edges)
        return h.new_zeros(len(h), 2, 8).index_add(0, target, messages).flatten(1) + m.lin_skip(h)

    h = ratio(F.elu, conv(model.first, x))
    h = h - h.mean(-1, keepdim=True)
    scale = (h.square().mean(-1, keepdim=True) + 1e-5).sqrt().detach()
    h = h / scale * model.norm.weight + model.norm.bias
    return model.head(ratio(F.elu, conv(model.second, h)).mean(0))


def gps_by_hand(model: GpsModel, graph: Data, x: Tensor) -> Tensor:
    """Run the forward pass of a GPS with BatchNorm with every constant of `lrp` detached."""

    def norm(m, h: Tensor) -> Tensor:
        bn = m.module
        scale = bn.weight / (bn.running_var + bn.eps).sqrt()
        return (h - bn.running_mean) * scale + bn.bias

    def act(z: Tensor) -> Tensor:
        return ratio(F.gelu, z)

    source, target = graph.edge_index
    h = model.embed(x)
    for layer in model.layers:
        conv, attn = layer.conv, layer.attn
        messages = (h[source] + conv.lin(graph.edge_attr)).relu()
        local = h + torch.zeros_like(h).index_add(0, target, messages)
        first, _, second = conv.nn
        local = norm(layer.norm1, second(ratio(F.silu, first(local))) + h)
        q, k, v = (h @ attn.in_proj_weight.T + attn.in_proj_bias).split(16, dim=-1)
        mixed = []
        for part in (slice(0, 8), slice(8, 16)):
            weights = (q[:, part] @ k[:, part].T / 8**0.5).softmax(-1)
            mixed.append(weights.detach() @ v[:, part])
        together = norm(layer.norm2, attn.out_proj(torch.cat(mixed, dim=-1)) + h)
        h = local + together
        mlp = layer.mlp
        h = norm(layer.norm3, h + mlp[3](act(mlp[0](h))))
    return model.head(h.mean(0))


@pytest.mark.parametrize(
    ("name", "by_hand"), [("gps", gps_by_hand), ("transformer", sparse_model_by_hand)]
)
def test_lrp_is_that_of_the_forward_pass_by_hand(models, graphs, name, by_hand):
    model = copy.deepcopy(models[name]).double()
    for graph, explanation in zip(graphs, gx.explain(wrapped(model), graphs), strict=True):
        double = graph.clone().apply(lambda t: t.double() if t.is_floating_point() else t)
        x = double.x.requires_grad_()
        out = by_hand(model, double, x)
        plain = model(x, double.edge_index, double.edge_attr, torch.zeros(len(x)).long())
        assert torch.allclose(out, plain[0])
        expected = (x * torch.autograd.grad(out.sum(), x)[0]).sum(-1)
        assert np.allclose(explanation.relevance, expected.numpy(force=True), atol=1e-6)


@pytest.mark.parametrize("name", ["gps", "transformer"])
def test_gradient_input_is_captums(models, graphs, name):
    captum = pytest.importorskip("captum.attr")
    model = models[name]
    batch = Batch.from_data_list(graphs)

    def run(x):
        return model(x, batch.edge_index, batch.edge_attr, batch.batch).sum().reshape(1)

    expected = captum.InputXGradient(run).attribute(batch.x).sum(-1).detach().numpy()
    explanations = gx.explain(wrapped(model), graphs, "gradient_input")
    assert np.allclose(np.concatenate([e.relevance for e in explanations]), expected, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_ledger_closes(models, graphs, name):
    model = wrapped(models[name])
    check_ledger(model, graphs)
    for graph, explanation in zip(graphs, gx.explain(model, graphs), strict=True):
        zeros = torch.zeros(int(graph.num_nodes), dtype=torch.long)
        with torch.no_grad():
            out = models[name](graph.x, graph.edge_index, graph.edge_attr, zeros)
        assert explanation.output == pytest.approx(out.item(), abs=1e-4)
        assert explanation.prediction.value == pytest.approx(out.item(), abs=1e-4)


@pytest.mark.parametrize("name", ["gps", "transformer"])
def test_bias_shares_are_bias_times_gradient(models, graphs, name):
    model = models[name]
    with gx.conservative(activation="ratio", model=model):
        graph = graphs[0]
        zeros = torch.zeros(int(graph.num_nodes), dtype=torch.long)
        out = model(graph.x, graph.edge_index, graph.edge_attr * 0, zeros)
    additive = {n: p for n, p in model.named_parameters() if n.endswith("bias")}
    gradients = torch.autograd.grad(out.sum(), list(additive.values()), allow_unused=True)
    expected = sum(
        (b * g).sum().item()
        for b, g in zip(additive.values(), gradients, strict=True)
        if g is not None
    )
    if name == "gps":  # running means are subtracted: additive constants as well
        hooked = {}
        for path, m in model.named_modules():
            if isinstance(m, nn.BatchNorm1d):
                slope = m.weight / (m.running_var + m.eps).sqrt()
                bias_gradient = gradients[list(additive).index(f"{path}.bias")]
                hooked[path] = -(m.running_mean * slope * bias_gradient).sum().item()
        expected += sum(hooked.values())
    plain = graph.clone()
    plain.edge_attr = graph.edge_attr * 0
    explanation = gx.explain(wrapped(model), plain).ledger.biases
    assert explanation == pytest.approx(expected, abs=1e-4)


# One method for each way through a model: hooks, other rules, a recorded pass whose attention is
# read, positive rules, a mask of attention, gates of presence, and removal.
WAYS = (
    "lrp", "attn_lrp", "gae", "transformer_attribution", "masked_lrp", "path_marginals",
    "occlusion",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_check_runs_on_a_wrapped_model(models, name, few_steps, monkeypatch):
    """Every method explains the first model. What others do otherwise shows in each way through."""
    model = wrapped(models[name])
    small = [without_smiles(graph_of(s)) for s in ("Cc1ccoc1", "CNC(C)=O")]
    if name != CASES[0]:
        monkeypatch.setattr("graphxai.evaluation.testing.methods_for", lambda model: WAYS)
    if name != "performer":
        return check_all(model, small)
    # It mixes the graphs of a batch, so these and their parts run one by one.
    check_all(model, small[:1])
    for method in ("lrp", "gae", "path_marginals"):
        check_batching(model, small, quick_explainer(method))


def without_smiles(graph: Data) -> Data:
    return Data(x=graph.x, edge_index=graph.edge_index, edge_attr=graph.edge_attr)


def test_three_threads_may_explain_one_model(models, graphs):
    model = wrapped(models["gps"])
    expected = [e.relevance for e in gx.explain(model, graphs)]
    by_thread: dict[int, list] = {}
    threads = [
        threading.Thread(target=lambda k=k: by_thread.update({k: gx.explain(model, graphs)}))
        for k in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in by_thread.values():
        for explanation, expected_relevance in zip(results, expected, strict=True):
            assert np.array_equal(explanation.relevance, expected_relevance)
    assert len(by_thread) == 3


def test_a_pyg_batch_is_a_list_of_graphs(models, graphs):
    model = wrapped(models["transformer"])
    plain = [Data(x=g.x, edge_index=g.edge_index, edge_attr=g.edge_attr) for g in graphs[:3]]
    explanations = gx.explain(model, Batch.from_data_list(plain))
    for explanation, expected in zip(explanations, gx.explain(model, graphs[:3]), strict=True):
        assert np.array_equal(explanation.relevance, expected.relevance)


def test_pooling_weights_are_not_attention_between_nodes(graphs):
    pool = AttentionalAggregation(nn.Linear(9, 1), nn.Linear(9, 1))
    model = wrapped(pool, forward=lambda m, b: m(b.x, b.batch))
    check_ledger(model, graphs[:3])
    with pytest.raises(ValueError, match="no attention between nodes"):
        gx.explain(model, graphs[0], "rollout")


@pytest.mark.filterwarnings("ignore:Set2Set has parts that no rule covers")
@pytest.mark.filterwarnings("ignore:Linear has parts", "ignore:the share of biases")
def test_biases_that_cannot_be_distinguished_are_unexplained(graphs):
    def product(m, b):
        return scatter(m(b.x).sigmoid() + 1, b.batch, reduce="mul")

    with pytest.warns(UserWarning, match="the share of constants in Linear is unknown"):
        explanation = gx.explain(wrapped(torch.nn.Linear(9, 1), forward=product), graphs[0])
    assert explanation.ledger.biases == 0.0


def test_the_ledger_closes_over_the_steps_of_a_recurrent_readout(graphs):
    torch.manual_seed(0)  # an output near zero would be all rounding
    model = wrapped(Set2Set(9, 2), forward=lambda m, b: m(b.x, b.batch)[:, :1])
    ledger = gx.explain(model, graphs[0]).ledger
    assert abs(ledger.unexplained) < 1e-5 * abs(ledger.output)
    assert ledger.biases


def test_nothing_is_left_behind(models, graphs):
    model = models["gps"]
    batch = Batch.from_data_list(graphs)

    def run() -> list[Tensor]:
        model.zero_grad()
        out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
        out.sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    before = run()
    wrapped_model = wrapped(model)
    small = [graph_of(smiles) for smiles in ("Cc1ccoc1", "CNC(C)=O")]
    for explainer in explainers():
        gx.explain(wrapped_model, small, explainer)
    assert all(torch.equal(a, b) for a, b in zip(before, run(), strict=True))
    assert not batch.x.requires_grad


def test_rollout_starts_from_the_mean_over_nodes(models, graphs):
    model, graph = models["gps"], graphs[5]
    n = int(graph.num_nodes)
    entering: list[Tensor] = []
    hooks = [
        layer.attn.register_forward_pre_hook(lambda _, args: entering.append(args[0]))
        for layer in model.layers
    ]
    model(graph.x, graph.edge_index, graph.edge_attr, torch.zeros(n, dtype=torch.long))
    for hook in hooks:
        hook.remove()
    seen = [layer.attn(h, h, h)[1] for layer, h in zip(model.layers, entering, strict=True)]
    row = np.full(n, 1 / n)
    for weights in reversed(seen):
        row = row @ (weights[0].detach().numpy() + np.eye(n)) / 2
    assert np.allclose(gx.explain(wrapped(model), graph, "rollout").relevance, row, atol=1e-6)


def test_a_node_that_attends_to_none_keeps_its_path(graphs):
    """An atom without a bond has a row of `A + I` that sums to one, and not to two."""
    edges = torch.tensor([[1, 2], [2, 1]])
    graph = Data(graphs[0].x[:3], edges, torch.zeros(2, 3))
    model = wrapped(SparseModel())
    rollout = gx.explain(model, graph, "rollout").relevance
    assert rollout == pytest.approx([1 / 3] * 3, abs=1e-6)
    flow = gx.explain(model, graph, "attention_flow").relevance
    assert flow == pytest.approx([1 / 3, 2 / 3, 2 / 3], abs=1e-6)


# -- removal of nodes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_hidden_node_is_gone_from_messages_attention_and_pooling(models, graphs, name):
    model, graph = models[name], graphs[0]
    n = int(graph.num_nodes)
    keep = torch.rand(5, n, generator=torch.Generator().manual_seed(0)) > 0.4
    keep[0], keep[1] = True, False
    with torch.no_grad():
        outputs = outputs_of_parts(wrapped(model), graph, keep)
    for choice, output in zip(keep[[0, 2, 3, 4]], outputs[[0, 2, 3, 4]], strict=True):
        part = graph.subgraph(choice)
        zeros = torch.zeros(int(choice.sum()), dtype=torch.long)
        with torch.no_grad():
            expected = model(part.x, part.edge_index, part.edge_attr, zeros)[0]
        assert torch.allclose(output, expected, atol=1e-5)
    assert torch.allclose(outputs[1], model.head.bias)  # the mean over no nodes is zero


def test_evaluate_measures_a_wrapped_model(models, graphs):
    operators = ("mask", "zero", "delete")
    report = gx.evaluate(
        wrapped(models["transformer"]), graphs[:3], ["lrp", "rollout"], operators=operators, steps=5
    )
    assert np.isfinite(report.rows.value).all()
    measures = 5  # four metrics and the share of size
    assert len(report.rows) == 3 * 5 * 3 * measures  # graphs, methods with controls, operators
    assert report.values("auac", "mask")["lrp"] == pytest.approx(
        report.values("auac", "delete")["lrp"]
    )


# -- rows of tokens ----------------------------------------------------------------------------


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = encoder(), nn.Linear(16, 2, dtype=torch.float64)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        h = self.encoder(x, src_key_padding_mask=padding_mask)
        shown = ~padding_mask[..., None]
        return self.head((h * shown).sum(1) / shown.sum(1))


@pytest.mark.usefixtures("recorded_once")
def test_rows_of_tokens_of_different_length_are_explained_together():
    model = gx.wrap(Sequence().eval(), kind="multiclass", classes=2, inputs="tokens")
    torch.manual_seed(0)
    rows = [torch.randn(n, 16, dtype=torch.float64) for n in (3, 7, 5)]
    for explainer in explainers():
        check_batching(model, rows[:2], explainer)
    check_ledger(model, rows)
    explanations = gx.explain(model, rows, target=1)
    assert [len(e.relevance) for e in explanations] == [3, 7, 5]
    keep = torch.tensor([[True, True, False]])
    hidden = outputs_of_parts(model, model.prepare(rows[0]).data, keep)
    short = model.module(rows[0][None, :2], torch.zeros(1, 2, dtype=torch.bool))
    assert torch.allclose(hidden, short)


@pytest.mark.usefixtures("recorded_once")
def test_a_bert_is_explained_at_its_embeddings():
    model = Bert().eval()
    ids = [torch.tensor([0, 5, 3, 7]), torch.tensor([0, 1, 2, 9, 11, 4])]
    wrapped_bert = gx.wrap(
        model,
        kind="multiclass",
        classes=3,
        inputs="tokens",
        embedding="embeddings",
        graph_token=True,
    )
    check_ledger(wrapped_bert, ids)
    for explainer in explainers():
        check_batching(wrapped_bert, ids, explainer)
    explanation = gx.explain(wrapped_bert, ids[0], target=2)
    # by hand, of the class token too
    h = (model.word_embeddings(ids[0]) + model.position_embeddings[:4]).detach()
    x = h.requires_grad_()
    h = x
    for i, attention in enumerate(model.attention):
        q, k, v = (getattr(attention, n)(h).view(4, 4, 4) for n in ("query", "key", "value"))
        weights = torch.einsum("qhd,khd->hqk", q, k).div(2).softmax(-1).detach()
        mixed = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        z = h + model.dense[i](mixed)
        z = z - z.mean(-1, keepdim=True)
        norm = model.norm1[i]
        h = z / (z.square().mean(-1, keepdim=True) + norm.eps).sqrt().detach()
        h = h * norm.weight + norm.bias
        z = h + model.down[i](ratio(lambda t: F.gelu(t, approximate="tanh"), model.up[i](h)))
        z = z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt().detach()
        h = z * model.norm2[i].weight
    relevance = x * torch.autograd.grad(model.classifier(h[0])[2], x)[0]
    relevance = relevance.sum(-1).detach().numpy()
    assert np.allclose(explanation.relevance, relevance[1:], atol=1e-5)
    assert explanation.ledger.graph_token == pytest.approx(relevance[0], abs=1e-5)


def test_a_vision_transformer_is_explained_patch_by_patch():
    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.patches = nn.Conv2d(1, 16, 4, stride=4, dtype=torch.float64)
            self.token = nn.Parameter(torch.randn(1, 1, 16, dtype=torch.float64))
            self.tokens = nn.Identity()
            self.encoder, self.head = encoder(), nn.Linear(16, 4, dtype=torch.float64)

        def forward(self, image):
            h = self.patches(image).flatten(2).transpose(1, 2)
            h = self.tokens(torch.cat([self.token.expand(len(h), -1, -1), h], dim=1))
            return self.head(self.encoder(h)[:, 0])

    model = gx.wrap(
        Vit().eval(),
        kind="multiclass",
        classes=4,
        inputs="tokens",
        embedding="tokens",
        graph_token=True,
    )
    images = list(torch.rand(3, 1, 8, 12, dtype=torch.float64))
    assert [len(e.relevance) for e in gx.explain(model, images)] == [6, 6, 6]
    check_ledger(model, images)
    with pytest.raises(ValueError, match="takes no padding mask"):
        outputs_of_parts(model, model.prepare(images[0]).data, torch.zeros(1, 6).bool())


# -- what users do -----------------------------------------------------------------------------


class Categorical(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom_embedding = nn.Embedding(120, 8)
        self.conv = SparseModel().second
        self.conv = type(self.conv)(8, 4, heads=2)
        self.head = nn.Linear(8, 1)

    def forward(self, data):
        h = self.atom_embedding(data.x[:, 0])
        return self.head(global_mean_pool(self.conv(h, data.edge_index), data.batch))


def categorical(smiles: str) -> Data:
    from graphxai.datasets.molecules import molecule_to_data

    data = molecule_to_data(smiles)
    return Data(x=data.x, edge_index=data.edge_index)


def test_categorical_inputs_are_explained_at_the_embedding_from_smiles():
    torch.manual_seed(0)
    model = gx.wrap(
        Categorical().eval(), kind="binary", embedding="atom_embedding", featurize=categorical
    )
    check_ledger(model, ["CCO", "c1ccccc1"])
    explanation = gx.explain(model, "CCO")
    assert len(explanation.relevance) == 3
    assert explanation.smiles == "CCO"
    assert explanation.prediction.probabilities.keys() == {"negative", "positive"}


class Tables(nn.Module):
    """Two columns of x, each with its own embedding."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(120, 8) for _ in range(2))
        self.head = nn.Linear(8, 1)

    def forward(self, data):
        first, second = (table(data.x[:, k]) for k, table in enumerate(self.embeddings))
        return self.head(global_mean_pool(torch.relu(first + second), data.batch))


def test_what_other_embeddings_make_of_x_is_a_line_of_its_own():
    torch.manual_seed(0)
    model, data = Tables().eval(), categorical("CCO")
    by_table = []
    for name in ("embeddings.0", "embeddings.1"):
        ledger = gx.explain(
            gx.wrap(model, kind="binary", embedding=name, featurize=categorical), "CCO"
        ).ledger
        assert ledger.biases == pytest.approx(model.head.bias.item(), abs=1e-6)
        by_table.append((ledger.nodes, ledger.others["x"]))
    (first, others), (second, rest) = by_table
    assert (first, second) == pytest.approx((rest, others), abs=1e-6)
    with torch.no_grad():
        rows = [table(data.x[:, k]) for k, table in enumerate(model.embeddings)]
        slope = model.head.weight[0] * (rows[0] + rows[1] > 0) / len(data.x)
    assert first == pytest.approx((rows[0] * slope).sum().item(), abs=1e-6)


class Positions(nn.Module):
    """A model that reads positions of the nodes, which may be left out, and weighted pairs."""

    def __init__(self):
        super().__init__()
        self.of_x, self.of_pe, self.head = nn.Linear(5, 8), nn.Linear(2, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, pair_index, pair_weight, batch, pe=None):
        h = self.of_x(x) if pe is None else self.of_x(x) + self.of_pe(pe)
        source, target = pair_index
        h = h + torch.zeros_like(h).index_add(0, target, pair_weight[:, None] * h[source])
        return self.head(global_mean_pool(torch.relu(h), batch))


def test_renumbering_moves_whatever_a_graph_has():
    torch.manual_seed(0)
    model, graphs = gx.wrap(Positions().eval(), kind="binary"), []
    for nodes in (5, 4):
        pairs = torch.randint(nodes, (2, 2 * nodes))
        graph = Data(x=torch.rand(nodes, 5), edge_index=pairs[:, :4], pe=torch.rand(nodes, 2))
        graph.pair_index, graph.pair_weight = pairs, torch.rand(2 * nodes)
        graphs.append(graph)
    check_renumbering(model, graphs)
    check_renumbering(model, graphs, "occlusion")
    order = torch.tensor([3, 0, 4, 2, 1])
    (moved,) = model.renumbered(graphs[:1], [order])
    assert torch.equal(order[moved.edge_index], graphs[0].edge_index)
    assert torch.equal(order[moved.pair_index], graphs[0].pair_index)
    assert torch.equal(moved.pair_weight, graphs[0].pair_weight)
    assert torch.equal(moved.pe, graphs[0].pe[order])


class Distances(nn.Module):
    """A model that adds a function of the bonds' lengths, which no rule covers, to the atoms."""

    def __init__(self):
        super().__init__()
        self.of_x, self.of_length, self.head = nn.Linear(5, 8), nn.Linear(1, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        near = self.of_length(torch.lgamma(edge_attr))
        h = self.of_x(x).index_add(0, edge_index[1], near)
        return self.head(global_mean_pool(torch.relu(h), batch))


def test_what_no_rule_covers_on_the_way_from_other_inputs_is_named():
    torch.manual_seed(0)
    pairs = torch.randint(6, (2, 12))
    graph = Data(x=torch.rand(6, 5), edge_index=pairs, edge_attr=torch.rand(12, 1))
    with pytest.warns(UserWarning, match=r"no rule covers.*lgamma"):
        ledger = gx.explain(gx.wrap(Distances().eval(), kind="regression"), graph).ledger
    assert abs(ledger.unexplained) > 1e-3


def test_codes_without_an_embedding_are_refused():
    model = gx.wrap(SparseModel(), kind="binary")
    with pytest.raises(
        InputError, match=r"name the embedding layer with wrap\(..., embedding=...\)"
    ):
        gx.explain(model, categorical("CCO"))


def test_the_look_ups_of_codes_are_found_and_added_up():
    torch.manual_seed(0)
    for module in (Categorical().eval(), Tables().eval()):
        names = [n for n, part in module.named_modules() if isinstance(part, nn.Embedding)]
        usual, *apart = (
            gx.explain(gx.wrap(module, kind="binary", embedding=name), categorical("CCO"))
            for name in (None, *names)
        )
        expected = sum(explanation.relevance for explanation in apart)
        assert usual.relevance == pytest.approx(expected, abs=1e-6)


def test_a_module_that_does_not_exist_is_named_with_its_neighbours():
    with pytest.raises(ValueError, match=r"no module 'atom_embeding'; similar: atom_embedding"):
        gx.wrap(Categorical(), kind="binary", embedding="atom_embeding")


def test_a_module_called_twice_or_never_is_refused():
    class Twice(Categorical):
        def forward(self, data):
            self.atom_embedding(data.x[:, 1])
            return super().forward(data)

    model = gx.wrap(Twice().eval(), kind="binary", embedding="atom_embedding")
    with pytest.raises(ValueError, match="called 2 times"):
        gx.explain(model, categorical("CCO"))


def test_training_mode_and_dropout_are_switched_off_and_restored(models, graphs):
    model = copy.deepcopy(models["gps"])
    expected = gx.explain(wrapped(model), graphs[0]).relevance
    model.train()
    model.layers[0].norm1.eval()  # frozen by its user
    modes = [m.training for m in model.modules()]
    buffers = [b.clone() for b in model.buffers()]
    relevance = gx.explain(wrapped(model), graphs[0]).relevance
    assert np.array_equal(relevance, expected)
    assert [m.training for m in model.modules()] == modes
    for before, after in zip(buffers, model.buffers(), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_explanations_do_not_need_gradients_to_be_on(models, graphs, mode):
    model = wrapped(models["transformer"])
    expected = gx.explain(model, graphs[0]).relevance
    with mode():
        relevance = gx.explain(model, graphs[0].clone()).relevance
    assert np.array_equal(relevance, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_inputs_take_the_type_of_the_model(models, graphs, dtype):
    model = copy.deepcopy(models["transformer"]).to(dtype)
    relevance = gx.explain(wrapped(model), graphs[0]).relevance
    expected = gx.explain(wrapped(models["transformer"]), graphs[0]).relevance
    assert np.corrcoef(relevance, expected)[0, 1] > 0.98
    converted = graphs[0].clone()
    converted.x = converted.x.to(dtype)
    converted.smiles = None
    assert np.array_equal(gx.explain(wrapped(model), converted).relevance, relevance)


def test_a_target_out_of_range_is_refused(graphs):
    model = gx.wrap(SparseModel().eval(), kind="binary")
    with pytest.raises(ValueError, match="target 2 is out of range"):
        gx.explain(model, graphs[0], target=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "needs node features"),
        ({"edge_index": torch.tensor([[0], [99]])}, "edge_index refers to node 99"),
        ({"x": torch.full((28, 9), torch.nan)}, "not finite"),
    ],
)
def test_unusable_graphs_are_refused(models, graphs, change, message):
    graph = graphs[0].clone()
    graph.smiles = None
    for name, value in change.items():
        graph[name] = value
    with pytest.raises(ValueError, match=message):
        gx.explain(wrapped(models["gps"]), graph)


def test_a_bad_graph_in_a_list_is_left_out_with_a_warning(models, graphs):
    with pytest.warns(UserWarning, match="input 1 was left out"):
        explanations = gx.explain(wrapped(models["gps"]), [graphs[0], Data(num_nodes=0), graphs[1]])
    assert [e is None for e in explanations] == [False, True, False]


@pytest.mark.parametrize(
    ("forward", "error", "message"),
    [
        (None, TypeError, "needs 'h', which the graph does not have"),
        (lambda m, b: m(b.x)[:, :1], ValueError, r"returns shape \(20, 1\) for 1 inputs"),
        (lambda m, b: (m(b.x), None), ValueError, "returns tuple, not a tensor"),
    ],
)
def test_models_called_otherwise_get_a_hint(graphs, forward, error, message):
    class Model(nn.Linear):
        def forward(self, h):
            return super().forward(h)

    graph = graphs[0].subgraph(torch.arange(20))
    graph.smiles = None
    with pytest.raises(error, match=message):
        gx.explain(wrapped(Model(9, 3), forward=forward), graph)


def test_methods_that_read_attention_refuse_a_model_without(graphs):
    model = wrapped(nn.Linear(9, 1), forward=lambda m, b: global_mean_pool(m(b.x), b.batch))
    assert gx.explain(model, graphs[0]).ledger.unexplained == pytest.approx(0, abs=1e-5)
    for method in ("rollout", "gae", "attention_last"):
        with pytest.raises(ValueError, match="no attention between nodes that graphxai can see"):
            gx.explain(model, graphs[0], method)


def test_a_number_of_classes_that_no_memory_holds_is_refused():
    for classes in (2**63, 2**21):
        with pytest.raises(ValueError, match=f"classes is {classes}, more than the limit"):
            gx.wrap(torch.nn.Identity(), kind="multiclass", classes=classes)


def test_a_wrapped_model_says_what_its_outputs_are():
    with pytest.raises(ValueError, match="say what the outputs are"):
        gx.wrap(SparseModel())
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module"):
        gx.wrap("bace", kind="binary")
    with pytest.raises(TypeError, match=r"graphxai\.wrap adds them"):
        get_explainer("lrp").attribute(SparseModel(), None)


def test_the_single_task_of_a_wrapped_model_has_the_users_name(graphs):
    model = gx.wrap(SparseModel().eval(), kind="regression", task="logP")
    explanation = gx.explain(model, graphs[0], target="logP")
    assert explanation.prediction.task == explanation.target == "logP"
    assert explanation.legend == ("lowers logP", "raises logP")
    assert gx.wrap(SparseModel(), kind="regression").config.tasks[0].name == "output"
    with pytest.raises(ValueError, match="tasks already have names"):
        gx.wrap(SparseModel(), model.config.tasks, task="pKa")


def test_relevance_splits_by_named_feature(models, graphs):
    names = [f"f{i}" for i in range(9)]
    model = wrapped(models["gps"], features=names)
    explanation = gx.explain(model, graphs[0])
    assert explanation.feature_names == tuple(names)
    assert np.allclose(explanation.features.sum(-1), explanation.relevance, atol=1e-5)


def test_a_sequential_of_pyg_gets_the_arguments_that_it_lists():
    from torch_geometric.nn import GINConv, Sequential, global_add_pool

    torch.manual_seed(0)
    layers = [(GINConv(nn.Linear(3, 4)), "x, edge_index -> x"), (global_add_pool, "x, batch -> x")]
    model = Sequential("x, edge_index, batch", [*layers, nn.Linear(4, 1)]).eval()
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graphs = [Data(x=torch.randn(3, 3), edge_index=edges) for _ in range(2)]
    wrapped = gx.wrap(model, kind="regression")
    for given, prediction in zip(graphs, gx.predict(wrapped, graphs), strict=True):
        expected = model(given.x, edges, torch.zeros(3, dtype=torch.long)).item()
        assert prediction["output"].value == pytest.approx(expected, abs=1e-6)
    assert abs(gx.explain(wrapped, graphs[0]).ledger.unexplained) < 1e-5
