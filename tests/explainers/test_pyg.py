"""Bridges to `torch_geometric.explain` work in both directions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.explain import (
    AttentionExplainer,
    CaptumExplainer,
    Explainer,
    ExplainerAlgorithm,
    Explanation,
    GNNExplainer,
    ModelConfig,
    PGExplainer,
    unfaithfulness,
)
from torch_geometric.nn import GATv2Conv, GPSConv, TransformerConv, global_mean_pool
from torch_geometric.utils import subgraph

import graphxai as gx
import graphxai.explainers.pyg
from graphxai.explainers import REGISTRY
from other_models import FEW_STEPS, Bert, SparseModel, explainers, molecules, trained

GRAPH_BINARY = ModelConfig("binary_classification", "graph", return_type="raw")
GRAPH_VALUE = ModelConfig("regression", "graph", return_type="raw")
NODE_CLASSES = ModelConfig("multiclass_classification", "node", return_type="raw")


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch.from_data_list(molecules()[:4])


@pytest.fixture(scope="module")
def model(batch) -> nn.Module:
    torch.manual_seed(0)
    return trained(SparseModel(), batch.to_data_list(), 10)


class NodeModel(nn.Module):
    """A model of two hops, so that what lies three bonds away has no influence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = TransformerConv(9, 8, heads=2), GATv2Conv(16, 8, heads=2)
        self.head = nn.Linear(16, 3)

    def forward(self, x, edge_index):
        return self.head(F.elu(self.second(F.elu(self.first(x, edge_index)), edge_index)))


def explained(model, graph, algorithm, config, kind="object", **kwargs):
    explainer = Explainer(
        model,
        algorithm=algorithm,
        explanation_type="model",
        node_mask_type=kind,
        model_config=config,
    )
    return explainer(graph.x, graph.edge_index, **kwargs)


@pytest.mark.parametrize("method", [e.name for e in explainers()])
def test_every_explainer_is_an_algorithm_for_graphs_in_a_batch(model, batch, method):
    few = FEW_STEPS.get(method, {})
    algorithm = getattr(graphxai.explainers.pyg, REGISTRY[method].__name__)(**few)
    inputs = {"edge_attr": batch.edge_attr, "batch": batch.batch}
    explanation = explained(model, batch, algorithm, GRAPH_VALUE, **inputs)
    assert explanation.validate()
    assert explanation.node_mask.shape == (batch.num_nodes, 1)
    wrapped = gx.wrap(model, kind="regression")
    explanations = gx.explain(wrapped, batch.to_data_list(), method, **few)
    expected = np.concatenate([e.relevance for e in explanations])
    assert np.allclose(explanation.node_mask[:, 0], expected, atol=1e-5)
    assert explanation.prediction.shape == (4, 1)


def test_attributes_are_the_parts_of_the_relevance(model, batch):
    inputs = {"edge_attr": batch.edge_attr, "batch": batch.batch}
    whole = explained(model, batch, graphxai.explainers.pyg.LRP(), GRAPH_BINARY, **inputs)
    parts = explained(
        model, batch, graphxai.explainers.pyg.LRP(), GRAPH_BINARY, "attributes", **inputs
    )
    common = explained(
        model, batch, graphxai.explainers.pyg.LRP(), GRAPH_BINARY, "common_attributes", **inputs
    )
    assert parts.node_mask.shape == batch.x.shape
    assert torch.allclose(parts.node_mask.sum(-1, keepdim=True), whole.node_mask, atol=1e-5)
    assert torch.allclose(parts.node_mask.sum(0, keepdim=True), common.node_mask, atol=1e-5)


def test_the_other_class_of_one_logit_has_the_opposite_relevance(model, batch):
    graph = batch[0]
    inputs = {"edge_attr": graph.edge_attr}
    flipped = SparseModel()
    flipped.load_state_dict(model.state_dict())
    with torch.no_grad():
        flipped.head.weight.neg_()
        flipped.head.bias.neg_()
    zeros = torch.zeros(graph.num_nodes, dtype=torch.long)
    first = explained(
        model, graph, graphxai.explainers.pyg.Lrp(), GRAPH_BINARY, batch=zeros, **inputs
    )
    second = explained(
        flipped.eval(), graph, graphxai.explainers.pyg.Lrp(), GRAPH_BINARY, batch=zeros, **inputs
    )
    assert first.target != second.target
    assert torch.allclose(
        first.node_mask, second.node_mask, atol=1e-6
    )  # both of the class predicted


def test_node_level_relevance_is_gradient_times_input_of_the_rows_asked_for(batch):
    model = NodeModel().eval()
    index = torch.tensor([3, 40])
    algorithm = graphxai.explainers.pyg.GradientInput()
    explanation = explained(model, batch, algorithm, NODE_CLASSES, index=index)
    x = batch.x.clone().requires_grad_()
    out = model(x, batch.edge_index)
    f = out[index].max(-1).values.sum()  # the class predicted
    expected = (x * torch.autograd.grad(f, x)[0]).sum(-1, keepdim=True)
    assert torch.allclose(explanation.node_mask, expected, atol=1e-6)


@pytest.mark.parametrize("method", ["lrp", "rollout", "gae", "attention_last"])
def test_node_level_relevance_stays_within_reach(batch, method):
    from torch_geometric.utils import k_hop_subgraph

    algorithm = graphxai.explainers.pyg.Algorithm(method)
    explanation = explained(NodeModel().eval(), batch, algorithm, NODE_CLASSES, index=5)
    near = torch.zeros(batch.num_nodes, dtype=torch.bool)
    near[k_hop_subgraph(5, 2, batch.edge_index)[0]] = True
    assert explanation.node_mask[near].any()
    assert not explanation.node_mask[~near].any()


class MixedModel(nn.Module):
    """Messages and attention among all nodes, so that two graphs without a batch vector mix."""

    def __init__(self, level: str, takes_batch: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.level, self.takes_batch = level, takes_batch
        self.embed, self.head = nn.Linear(9, 8), nn.Linear(8, 1)
        self.conv = GPSConv(8, GATv2Conv(8, 8), heads=2, act="gelu", norm="layer_norm")

    def forward(self, x, edge_index, batch=None):
        batch = batch if self.takes_batch else None
        h = self.conv(self.embed(x), edge_index, batch)
        return self.head(h if self.level == "node" else global_mean_pool(h, batch))


@pytest.mark.parametrize("takes_batch", [True, False])
@pytest.mark.parametrize("level", ["node", "graph"])
def test_without_a_batch_vector_copies_of_the_graph_do_not_mix(batch, level, takes_batch):
    # Without a batch vector the copies attend to each other, so they are small.
    graph = batch[0].subgraph(torch.arange(5))
    model = MixedModel(level, takes_batch).eval()
    config = ModelConfig("regression", level, return_type="raw")
    asked = {"index": 2} if level == "node" else {}

    def f(x, keep):
        edges = subgraph(keep, graph.edge_index, relabel_nodes=True)[0]
        row = 2 - int((~keep[:2]).sum()) if level == "node" else 0
        with torch.no_grad():
            return model(x[keep], edges)[row].item()

    n = graph.num_nodes
    everything = torch.ones(n, dtype=torch.bool)
    explanation = explained(
        model, graph, graphxai.explainers.pyg.Occlusion(), config, **asked
    ).node_mask[:, 0]
    for node in {0, 1, n - 1}:
        expected = f(graph.x, everything) - f(graph.x, torch.arange(n) != node)
        assert explanation[node].item() == pytest.approx(expected, abs=1e-5)
    algorithm = graphxai.explainers.pyg.IntegratedGradients(steps=500 if level == "node" else 100)
    explanation = explained(model, graph, algorithm, config, **asked)
    change = f(graph.x, everything) - f(graph.x * 0, everything)
    assert explanation.node_mask.sum().item() == pytest.approx(change, abs=1e-4)


def test_shapley_values_need_the_empty_graph_and_a_missing_one_is_reported(batch):
    graph, algorithm = batch[0], graphxai.explainers.pyg.ShapleySampling(permutations=2)
    config = ModelConfig("regression", "graph", return_type="raw")
    zeros = torch.zeros(graph.num_nodes, dtype=torch.long)
    given = explained(MixedModel("graph").eval(), graph, algorithm, config, batch=zeros)
    not_given = explained(MixedModel("graph").eval(), graph, algorithm, config)
    assert torch.allclose(given.node_mask, not_given.node_mask, atol=1e-6)
    with pytest.warns(UserWarning, match="no finite output for a graph without nodes"):
        explained(MixedModel("graph", takes_batch=False).eval(), graph, algorithm, config)


class WithTable(nn.Module):
    """A model that takes a table which belongs to no graph."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(9, 1)

    def forward(self, x, edge_index, batch, table):
        return self.head(global_mean_pool((x @ table).tanh(), batch))


def test_what_belongs_to_no_graph_is_kept_whole_for_each_of_them(batch):
    torch.manual_seed(0)
    model, table, graph = WithTable().eval(), torch.randn(9, 9), batch[0]
    config = ModelConfig("regression", "graph", return_type="raw")
    zeros = torch.zeros(graph.num_nodes, dtype=torch.long)
    algorithm = graphxai.explainers.pyg.Occlusion()
    explanation = explained(model, graph, algorithm, config, batch=zeros, table=table)
    with torch.no_grad():
        outputs = [
            model(graph.x[torch.arange(graph.num_nodes) != i], None, zeros[1:], table).item()
            for i in range(graph.num_nodes)
        ]
    expected = explanation.prediction.item() - torch.tensor(outputs)
    assert torch.allclose(explanation.node_mask[:, 0], expected, atol=1e-5)
    # graphs with the whole table each cannot share a pass, and alone have the outputs of the call
    together = explained(model, batch, algorithm, config, batch=batch.batch, table=table)
    alone = [
        explained(
            model, g, algorithm, config, batch=torch.zeros(len(g.x)).long(), table=table
        ).node_mask
        for g in batch.to_data_list()
    ]
    assert torch.allclose(together.node_mask, torch.cat(alone), atol=1e-5)


def test_a_batch_is_refused_if_its_graphs_alone_have_other_outputs(batch):
    class ByPlace(WithTable):
        def forward(self, x, edge_index, batch, table):
            places = torch.arange(len(x))[:, None] / 100
            return super().forward(x * places, edge_index, batch, table)

    model, table = ByPlace().eval(), torch.randn(9, 9)
    config = ModelConfig("regression", "graph", return_type="raw")
    with pytest.raises(ValueError, match="cannot tell how table splits into the graphs"):
        explained(
            model,
            batch,
            graphxai.explainers.pyg.Occlusion(),
            config,
            batch=batch.batch,
            table=table,
        )


def test_pygs_own_metric_takes_the_result(batch):
    explainer = Explainer(
        NodeModel().eval(),
        algorithm=graphxai.explainers.pyg.LRP(),
        explanation_type="model",
        node_mask_type="object",
        model_config=NODE_CLASSES,
    )
    graph = batch[0]
    explanation = explainer(graph.x, graph.edge_index, index=3)
    assert 0 <= unfaithfulness(explainer, explanation) <= 1


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (graphxai.explainers.pyg.Rollout, {"node_mask_type": "attributes"}),
        (graphxai.explainers.pyg.Occlusion, {"edge_mask_type": "object"}),
        (graphxai.explainers.pyg.Gae, {"node_mask_type": "object", "edge_mask_type": "object"}),
    ],
)
def test_settings_that_are_not_supported_are_refused(model, algorithm, settings):
    with pytest.raises(ValueError, match="does not support the given explanation settings"):
        Explainer(
            model,
            algorithm=algorithm(),
            explanation_type="model",
            model_config=GRAPH_VALUE,
            **settings,
        )


def test_a_wrong_task_level_is_reported(model, batch):
    inputs = {"edge_attr": batch.edge_attr, "batch": batch.batch}
    config = ModelConfig("regression", "node", return_type="raw")
    with pytest.raises(ValueError, match="4 rows for 115 nodes: check task_level"):
        explained(model, batch, graphxai.explainers.pyg.LRP(), config, **inputs)


def test_there_is_no_algorithm_of_another_name():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = graphxai.explainers.pyg.Nonsense


# -- PyG's algorithms as explainers ------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require")
def test_captums_input_x_gradient_through_pyg_is_gradient_input(model, batch):
    pytest.importorskip("captum")
    wrapped = gx.wrap(model, kind="regression")
    algorithm = graphxai.explainers.pyg.from_pyg(
        CaptumExplainer("InputXGradient"), node_mask="attributes"
    )
    graphs = batch.to_data_list()
    for ours, theirs in zip(
        gx.explain(wrapped, graphs, "gradient_input"),
        gx.explain(wrapped, graphs, algorithm),
        strict=True,
    ):
        assert np.allclose(ours.relevance, theirs.relevance, atol=1e-5)
        assert theirs.method == "pyg_captumexplainer"


class Slope(ExplainerAlgorithm):
    """Gradient times input, as an algorithm of PyG."""

    def forward(self, model, x, edge_index, **_):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(x, edge_index).sum(), x)
        return Explanation(node_mask=(slope * x).sum(-1, keepdim=True).detach())

    def supports(self):
        return True


def test_a_row_of_tokens_is_explained_without_the_padding_beside_longer_ones():
    explainer = graphxai.explainers.pyg.from_pyg(Slope())
    model = gx.wrap(
        Bert().eval(),
        kind="multiclass",
        classes=3,
        inputs="tokens",
        embedding="embeddings",
        graph_token=True,
    )
    rows = [torch.tensor([0, 5, 3, 7]), torch.arange(6), torch.arange(5)]
    for row, e in zip(rows, gx.explain(model, rows, explainer, target=2), strict=True):
        alone = gx.explain(model, row, "gradient_input", target=2).relevance
        np.testing.assert_allclose(e.relevance, alone, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require")
def test_captums_algorithms_explain_the_logit_of_a_classifier(model, batch):
    pytest.importorskip("captum")
    wrapped, graph = gx.wrap(model, kind="binary"), batch.to_data_list()[0]
    algorithm = graphxai.explainers.pyg.from_pyg(
        CaptumExplainer("InputXGradient"), node_mask="attributes"
    )
    expected = gx.explain(wrapped, graph, "gradient_input").relevance
    assert np.allclose(gx.explain(wrapped, graph, algorithm).relevance, expected, atol=1e-5)
    report = gx.evaluate(wrapped, [graph], [algorithm], steps=5)
    assert not report.failures


def test_an_algorithm_that_cannot_run_says_why_at_once():
    with pytest.raises(ValueError, match=r"PGExplainer.*only supports phenomenon explanations"):
        graphxai.explainers.pyg.from_pyg(PGExplainer(epochs=1), node_mask=None, edge_mask="object")
    pytest.importorskip("captum")
    with pytest.raises(ValueError, match=r"CaptumExplainer.*'None' or 'attributes'"):
        graphxai.explainers.pyg.from_pyg(CaptumExplainer("Saliency"))


def test_evaluation_warns_of_a_method_that_fails(model, batch):
    def broken(model, batch, target):
        raise RuntimeError("no scores today")

    with pytest.warns(
        UserWarning, match="broken gave no scores for 2 of 2 graphs.*no scores today"
    ):
        gx.evaluate(gx.wrap(model, kind="regression"), batch.to_data_list()[:2], [broken], steps=5)


@pytest.mark.parametrize("masks", [("object", None), ("attributes", "object"), (None, "object")])
@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_gnn_explainer_explains_a_wrapped_model_reproducibly(model, batch, masks, kind):
    wrapped = gx.wrap(model, kind=kind)
    explainer = graphxai.explainers.pyg.from_pyg(
        GNNExplainer(epochs=5), node_mask=masks[0], edge_mask=masks[1]
    )
    graphs = batch.to_data_list()[:2]
    state = torch.get_rng_state()
    together = gx.explain(wrapped, graphs, explainer)
    assert torch.equal(state, torch.get_rng_state())
    for graph, explanation in zip(graphs, together, strict=True):
        alone = gx.explain(wrapped, graph, explainer).relevance
        assert np.allclose(explanation.relevance, alone, atol=1e-5)
        assert (explanation.relevance >= 0).all()
        assert explanation.relevance.std() > 0
    assert all(m._explain in (None, False) for m in model.modules() if hasattr(m, "_explain"))


def test_attention_explainer_gives_edges_whose_halves_go_to_their_ends(model, batch):
    graph = batch.to_data_list()[0]
    explainer = graphxai.explainers.pyg.from_pyg(
        AttentionExplainer(), node_mask=None, edge_mask="object"
    )
    relevance = gx.explain(gx.wrap(model, kind="regression"), graph, explainer).relevance
    theirs = Explainer(
        model,
        algorithm=AttentionExplainer(),
        explanation_type="model",
        edge_mask_type="object",
        model_config=GRAPH_VALUE,
    )(
        graph.x,
        graph.edge_index,
        edge_attr=graph.edge_attr,
        batch=torch.zeros(graph.num_nodes, dtype=torch.long),
    )
    assert relevance.sum() == pytest.approx(theirs.edge_mask.sum().item(), rel=1e-4)


def test_gnn_explainer_explains_the_graphormer_too():
    explainer = graphxai.explainers.pyg.from_pyg(GNNExplainer(epochs=3))
    explanations = gx.explain("bace", ["CCO", "c1ccccc1O"], explainer)
    assert [len(e.relevance) for e in explanations] == [3, 7]


def test_pygs_algorithms_are_evaluated_with_ours(model, batch):
    explainer = graphxai.explainers.pyg.from_pyg(GNNExplainer(epochs=3))
    wrapped = gx.wrap(model, kind="regression")
    report = gx.evaluate(wrapped, batch.to_data_list()[:2], [explainer, "lrp"], steps=5)
    assert set(report.rows.method) == {"pyg_gnnexplainer", "lrp", "ones", "random", "reverse"}
