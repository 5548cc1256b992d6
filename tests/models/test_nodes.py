"""A Graphormer that answers for each node, and explanations of one of them."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from bias_terms import bias_terms
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.explainers.passes import Embedded, by_autograd, run_pass
from graphxai.models.graphormer import (
    GraphormerConfig,
    StructureEncoding,
    graphormer,
    load_checkpoint,
    save_checkpoint,
)
from graphxai.rules.conservative import Rules
from graphxai.wrapping.chosen import mark_explained
from graphxai.wrapping.subgraphs import remaining

CLASSES = Task("class", "multiclass", ("a", "b", "c"))
CHANGES = (
    {},
    {"embedding_layernorm": True, "pre_layernorm": False, "head": "transform"},
    {"mask_distance": 2, "final_layernorm": False},
)
NODES = (3, 1)


def small(**changes):
    torch.manual_seed(0)
    sizes = {"num_layers": 3, "hidden_dim": 16, "ffn_dim": 32, "num_heads": 2}
    inputs = {"num_node_features": 4, "num_edge_features": 2}
    config = GraphormerConfig((CLASSES,), level="node", **(sizes | inputs | changes))
    model = graphormer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def graphs():
    torch.manual_seed(1)
    made = []
    for n in (9, 5):
        edges = erdos_renyi_graph(n, 0.4)
        attr = torch.randn(edges.shape[1], 2)
        made.append(Data(x=torch.randn(n, 4), edge_index=edges, edge_attr=attr, num_nodes=n))
    return made


def batch_of(model, nodes=NODES):
    chosen = zip(graphs(), nodes, strict=True)
    return model.collate([model.prepare(mark_explained(g, node=v)).data for g, v in chosen])


@pytest.mark.parametrize("changes", CHANGES)
def test_the_reader_says_what_the_node_says_in_a_pass_over_all_nodes(changes):
    model = small(**changes)
    batch = batch_of(model)
    rows = model.labelled_outputs(batch)
    assert rows.shape == (14, 3)
    torch.testing.assert_close(model(batch), rows[[3, 9 + 1]])


@pytest.mark.parametrize("changes", CHANGES)
def test_hiding_nodes_is_the_pass_over_the_others(changes):
    model = small(**changes)
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[0, [0, 5]], keep[1, [0, 4]] = False, False
    hidden = model.encode(model.embed(batch_of(model)), batch_of(model), keep)
    encoded = [model.prepare(graph).data for graph in graphs()]
    parts = [remaining(encoded[0], keep[0]), remaining(encoded[1], keep[1, :5])]
    rows = model.labelled_outputs(model.collate(parts))
    places = [int(keep[0, :3].sum()), int(keep[0].sum() + keep[1, :1].sum())]
    torch.testing.assert_close(hidden, rows[places])


def test_a_graph_is_encoded_once_for_all_its_nodes(monkeypatch):
    """Its shortest paths take most of the time of a large graph."""
    model, (graph, _) = small(), graphs()
    add, encoded = StructureEncoding._add_structure, []

    def noted(self, data):
        encoded.append(data)
        add(self, data)

    monkeypatch.setattr(StructureEncoding, "_add_structure", noted)
    explanations = gx.explain(model, graph, "gradient_input", node=[0, 3, 8])
    assert [each.drawn.explained for each in explanations] == [(0,), (3,), (8,)]
    assert len(encoded) == 1


def test_without_any_node_only_the_reader_is_left():
    model, batch = small(), batch_of(small())
    nobody = torch.zeros(2, 9, dtype=torch.bool)
    alone = model.encode(model.embed(batch), batch, nobody)
    torch.testing.assert_close(alone, model.outputs_without_nodes(batch))
    single = [Data(x=g.x[[v]], edge_index=torch.zeros(2, 0).long(), edge_attr=torch.zeros(0, 2))
              for g, v in zip(graphs(), NODES, strict=True)]  # fmt: skip
    encoded = [model.prepare(graph).data for graph in single]
    for data, g, v in zip(encoded, graphs(), NODES, strict=True):
        data.in_degree = torch.tensor([int((g.edge_index[1] == v).sum())])
        data.out_degree = torch.tensor([int((g.edge_index[0] == v).sum())])
    torch.testing.assert_close(alone, model.labelled_outputs(model.collate(encoded)))


def test_the_ledger_adds_up_and_begins_with_the_node_alone():
    model = small()
    explanation = gx.explain(model, graphs()[0], node=3, target="b")
    ledger = explanation.ledger
    rows = model.labelled_outputs(batch_of(model)).detach()
    assert ledger.output == pytest.approx(float(rows[3, 1]), abs=1e-5)
    assert ledger.unexplained == pytest.approx(0.0, abs=1e-5)
    alone = model.outputs_without_nodes(batch_of(model)).detach()
    assert ledger.without_nodes == pytest.approx(float(alone[0, 1]), abs=1e-5)
    assert explanation.drawn.explained == (3,)


@pytest.mark.parametrize("rules", [Rules(), Rules(True, True, "ratio")])
def test_the_explicit_pass_equals_autograd(rules):
    model = small()
    batch = batch_of(model)
    start, weights = Embedded.of(model, batch), torch.eye(3)
    runs = [run(start, rules, True) for run in (run_pass, by_autograd)]
    fast, slow = (run.back(weights[[1, 2]]) for run in runs)
    torch.testing.assert_close(fast.tokens, slow.tokens)
    torch.testing.assert_close(fast.structure, slow.structure)


def test_the_shares_of_the_structure_are_those_of_its_terms():
    model = small()
    batch = batch_of(model)
    bias, terms = model.bias(batch).detach(), bias_terms(model, batch)
    seen = bias.isfinite() & (bias > -1e3)
    torch.testing.assert_close(sum(terms.values())[seen], bias[seen])
    real = F.pad(batch.mask, (1, 0), value=True)  # padding gets no gradient
    gradient = torch.randn_like(bias) * seen * real[:, None, :, None]
    shares = model.bias.shares(batch, bias, gradient)
    assert set(shares) == set(terms)
    for name, term in terms.items():
        torch.testing.assert_close(shares[name], (term * gradient).flatten(1).sum(1))


def test_many_nodes_are_predicted_in_one_pass_and_explained_one_by_one():
    model, graph = small(), graphs()[0]
    passes = []
    model.layers[0].register_forward_hook(lambda *_: passes.append(1))
    predictions = gx.predict(model, graph, node=list(range(9)))
    assert len(passes) == 1
    probabilities = model.labelled_outputs(batch_of(model))[:9].softmax(1)
    for node, of_node in enumerate(predictions):
        expected = dict(zip("abc", probabilities[node].tolist(), strict=True))
        assert of_node["class"].probabilities == pytest.approx(expected, abs=1e-6)
    assert [len(e) for e in gx.explain(model, graph, node=[0, 4])] == [9, 9]


def test_the_outputs_of_several_nodes_of_a_graph_are_one_row_in_the_order_of_the_nodes():
    model = small()
    single = model.collate([model.prepare(mark_explained(graphs()[0], node=0)).data])
    outputs = model(replace(single, explained=torch.tensor([[3, 1]])))
    rows = model.labelled_outputs(single)
    torch.testing.assert_close(outputs, torch.cat([rows[3], rows[1]])[None])


def test_renumbering_the_nodes_renumbers_their_relevance():
    model, graph = small(), graphs()[0]
    order = torch.randperm(9)  # node k becomes node order[k]
    x = torch.empty_like(graph.x)
    x[order] = graph.x
    moved = Data(x=x, edge_index=order[graph.edge_index], edge_attr=graph.edge_attr)
    before = gx.explain(model, graph, node=3).relevance
    after = gx.explain(model, moved, node=int(order[3])).relevance
    assert after[order.numpy()] == pytest.approx(before, abs=1e-5)


@pytest.mark.parametrize("operator", ["mask", "zero", "delete"])
def test_it_is_evaluated(operator):
    report = gx.evaluate(small(), graphs()[0], ["lrp", "gae"], node=[0, 3], operators=operator)
    assert not report.failures
    assert not report.rejected


def test_what_it_does_not_answer_gets_a_sentence():
    model, graph = small(), graphs()[0]
    for function in (gx.explain, gx.predict):
        with pytest.raises(ValueError, match="choose the node"):
            function(model, graph)
    with pytest.raises(ValueError, match="give node= instead of pair="):
        gx.explain(model, graph, pair=(0, 1))
    with pytest.raises(ValueError, match="level must be"):
        GraphormerConfig((CLASSES,), level="edge", num_node_features=4)


def test_a_checkpoint_remembers_the_level(tmp_path):
    model = small()
    loaded = load_checkpoint(save_checkpoint(model, tmp_path))
    torch.testing.assert_close(loaded(batch_of(loaded)), model(batch_of(model)))
