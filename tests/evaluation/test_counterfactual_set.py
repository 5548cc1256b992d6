"""Sets whose removal changes the class agree with brute force, for nodes and for edges."""

from itertools import combinations, product

import pytest
import torch
from shapley import graph_of
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphConv, global_add_pool

import graphxai as gx
from graphxai.datasets.samples import digit_paths
from graphxai.evaluation.best_ordering import smallest_set
from graphxai.wrapping.heterogeneous import as_one_graph
from graphxai.wrapping.removal import outputs_of_parts
from small_graphs import graph
from toy import random_graphormer

SMILES = ["CC(=O)Nc1ccc(O)cc1", "OCC(N)C(=O)O", "c1ccncc1", "CCOC(C)=O", "FC(F)(F)CN", "CC#N"]


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


class Gnn(nn.Module):
    """Two graph convolutions that also read weights of the edges."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second = GraphConv(6, 16), GraphConv(16, 3)

    def forward(self, x, edge_index, edge_weight, batch):
        hidden = self.first(x, edge_index, edge_weight).tanh()
        return global_add_pool(self.second(hidden, edge_index, edge_weight), batch)


@pytest.fixture(scope="module")
def gnn():
    return gx.wrap(Gnn().eval(), kind="multiclass", classes=("a", "b", "c"))


def graphs():
    data_sets = []
    for n in (4, 5, 6):
        data = graph(n)
        first, second = data.edge_index
        data.edge_weight = 0.2 + ((first * second) % 5) / 4  # the same in both directions
        data_sets.append(data)
    return data_sets


def test_sets_of_atoms_are_as_small_as_brute_force_finds(model):
    counterfactuals = gx.counterfactual_set(model, SMILES[1:], task="activity")
    assert any(counterfactuals)
    assert {counterfactual.before.label for counterfactual in counterfactuals} == {
        "inactive",
        "active",
    }
    for smiles, counterfactual in zip(SMILES[1:], counterfactuals, strict=True):
        data = graph_of(model, smiles)
        n = int(data.num_nodes)
        keep = torch.tensor(list(product([True, False], repeat=n)))[:-1]  # all first; one stays
        active = outputs_of_parts(model, data, keep)[:, 0] > 0
        changed = active != active[0]
        sizes = (~keep[changed]).sum(1)
        assert counterfactual.proven
        assert len(counterfactual) == (int(sizes.min()) if len(sizes) else 0)
        stays = torch.tensor([node not in counterfactual.members for node in range(n)])
        assert changed[(keep == stays).all(1)].item() == bool(counterfactual)
        assert counterfactual.before.label == gx.predict(model, smiles)["activity"].label
        assert (counterfactual.after.label != counterfactual.before.label) == bool(counterfactual)


def without(data, edges):
    """Return the graph without some edges, given as pairs of nodes."""
    stay = torch.tensor([tuple(sorted(edge)) not in edges for edge in data.edge_index.T.tolist()])
    kept = Data(data.x, data.edge_index[:, stay])
    for name in ("edge_attr", "edge_weight"):
        if name in data:
            kept[name] = data[name][stay]
    return kept


def test_sets_of_edges_are_as_small_as_brute_force_finds(gnn):
    counterfactuals = gx.counterfactual_set(gnn, graphs(), of="edges")
    assert {len(counterfactual) for counterfactual in counterfactuals} == {2, 3}
    for data, counterfactual in zip(graphs(), counterfactuals, strict=True):
        pairs = sorted({tuple(sorted(edge)) for edge in data.edge_index.T.tolist()})
        sets = [c for size in range(len(counterfactual) + 1) for c in combinations(pairs, size)]
        predictions = gx.predict(gnn, [without(data, chosen) for chosen in sets])
        sizes = [
            len(chosen)
            for chosen, prediction in zip(sets, predictions, strict=True)
            if prediction["output"].label != counterfactual.before.label
        ]
        assert counterfactual.proven
        assert min(sizes, default=0) == len(counterfactual)
        after = gx.predict(gnn, without(data, counterfactual.members))["output"]
        assert counterfactual.after.probabilities == pytest.approx(after.probabilities)
        assert (after.label != counterfactual.before.label) == bool(counterfactual)


def test_bonds_of_a_molecule_are_removed_and_the_rest_is_encoded_anew(model):
    few = SMILES[2:5]
    counterfactuals = gx.counterfactual_set(model, few, of="edges", task="activity", exhaustive=20)
    assert any(counterfactuals)
    for smiles, counterfactual in zip(few, counterfactuals, strict=True):
        after = gx.predict(model, without(graph_of(model, smiles), counterfactual.members))[
            "activity"
        ]
        assert counterfactual.after.probabilities == pytest.approx(after.probabilities, rel=1e-4)


def test_a_list_gives_what_each_graph_gives_alone(model, gnn):
    for one_model, inputs, of in ((model, SMILES[:4], "nodes"), (gnn, graphs(), "edges")):
        options = {"of": of, "exhaustive": 20, "task": one_model.config.tasks[0].name}
        together = gx.counterfactual_set(one_model, inputs, **options)
        alone = [gx.counterfactual_set(one_model, graph, **options) for graph in inputs]
        assert [graph.members for graph in together] == [graph.members for graph in alone]
        assert [graph.predictions for graph in together] == [graph.predictions for graph in alone]
        assert [graph.proven for graph in together] == [graph.proven for graph in alone]


def test_no_member_of_a_set_of_superpixels_can_be_left_out():
    model = gx.load("mnist-superpixels")
    image = digit_paths()[0]
    counterfactual = gx.counterfactual_set(model, image, exhaustive=100)
    assert counterfactual
    assert not counterfactual.proven or len(counterfactual) == 1
    item = gx.explain(model, image)
    assert counterfactual.before.label == item.prediction.label != counterfactual.after.label
    data = item_data(model, image)
    keep = torch.ones(len(counterfactual) + 1, int(data.num_nodes), dtype=torch.bool)
    keep[:, list(counterfactual.members)] = False
    keep[torch.arange(len(counterfactual)), list(counterfactual.members)] = (
        True  # each in turn comes back
    )
    labels = outputs_of_parts(model, data, keep).argmax(1)
    classes = model.config.tasks[0].classes
    assert {classes[k] for k in labels[:-1]} == {counterfactual.before.label}
    assert classes[labels[-1]] == counterfactual.after.label
    assert counterfactual.svg().count("<svg") == 1
    assert str(len(counterfactual)) in counterfactual.summary


def item_data(model, image):

    return model.prepare(image).data


class Constant(nn.Module):
    """A model with the same logits for every graph."""

    def forward(self, x, edge_index, batch):
        return global_add_pool(0 * x[:, :2], batch) + torch.tensor([1.0, 0.0])


class Crowd(nn.Module):
    """A model that sums its tokens."""

    def forward(self, x):
        return x.sum(1)


def test_where_nothing_changes_the_class_no_set_is_returned():
    constant = gx.wrap(Constant(), kind="multiclass", classes=("a", "b"))
    for of in ("nodes", "edges"):
        counterfactual = gx.counterfactual_set(constant, graphs()[0], of=of)
        assert not counterfactual
        assert counterfactual.proven
        assert counterfactual.after == counterfactual.before
        assert "no set of" in counterfactual.summary


def test_what_cannot_be_searched_is_said(model, gnn):
    with pytest.raises(ValueError, match="regression"):
        gx.counterfactual_set(model, SMILES[0], task="pIC50")
    with pytest.raises(ValueError, match="'nodes' or 'edges'"):
        gx.counterfactual_set(gnn, graphs()[0], of="atoms")
    with pytest.warns(UserWarning, match="input 1 was left out"):
        counterfactuals = gx.counterfactual_set(model, ["CCO", "nonsense"], task="activity")
    assert counterfactuals[1] is None
    crowd = gx.wrap(Crowd(), kind="multiclass", classes=2, inputs="tokens")
    with pytest.raises(ValueError, match="edge_index"):
        gx.counterfactual_set(crowd, torch.ones(3, 2), of="edges", method="random")


class AtRoot(nn.Module):
    """Logits of the root: its feature, and twice that of each neighbour."""

    def forward(self, x, edge_index, root_index):
        first, second = edge_index
        rows = x.index_add(0, second, 2 * x[first])
        return torch.stack([torch.full_like(rows[:, 0], -0.1), rows[:, 0]], 1)[root_index]


@pytest.mark.parametrize("operator", ["mask", "delete"])
def test_the_root_at_which_a_model_reads_its_answer_stays(operator):
    """Without the root all logits are zero, so that the first class would win."""
    x = torch.tensor([[0.5], [1.0], [-1.0], [2.0]])
    edges = torch.tensor([[1, 2, 3], [0, 0, 0]])
    model = gx.wrap(AtRoot(), kind="multiclass", classes=("a", "b"))
    for root in (0, torch.tensor([0])):
        data = Data(x=x, edge_index=edges, root_index=root)
        removed = gx.counterfactual_set(model, data, operator=operator)
        assert removed.before.label == "b"
        assert removed.members == (1, 3)
        assert removed.proven


class Written(nn.Module):
    """Counts authors of papers, and half of the papers that cite them."""

    def forward(self, x_dict, edge_index_dict, batch_dict):
        writes = edge_index_dict["author", "writes", "paper"]
        cites = edge_index_dict["paper", "cites", "paper"]
        papers = x_dict["paper"].new_zeros(len(x_dict["paper"]), 1)
        papers = papers.index_add(0, writes[1], x_dict["author"][writes[0]])
        papers = papers.index_add(0, cites[1], x_dict["paper"][cites[0]] / 2)
        return global_add_pool(papers, batch_dict["paper"]) - 2.4


def library():
    """Return two authors of a paper each, and three papers of which two cite the next."""
    data = HeteroData()
    data["author"].x, data["paper"].x = torch.ones(2, 1), torch.ones(3, 1)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [0, 1]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1], [1, 2]])
    return data


@pytest.mark.parametrize("operator", ["mask", "delete"])
def test_parts_of_a_heterogeneous_graph_may_lack_a_type_of_nodes(operator):
    model = gx.wrap(Written(), kind="binary")
    keep = torch.tensor(list(product([True, False], repeat=5)))  # the last have no papers
    authors, papers = keep[:, :2].float(), keep[:, 2:].float()
    written = (authors * papers[:, :2]).sum(1) + (papers[:, :2] * papers[:, 1:]).sum(1) / 2
    for order in (torch.arange(32), torch.arange(31, -1, -1)):
        outputs = outputs_of_parts(model, as_one_graph(library()), keep[order], operator)
        assert outputs[:, 0].tolist() == pytest.approx((written - 2.4)[order].tolist(), abs=1e-6)


@pytest.mark.parametrize("operator", ["mask", "delete"])
def test_a_node_of_a_heterogeneous_graph_changes_the_class(operator):
    model = gx.wrap(Written(), kind="binary")
    results = gx.counterfactual_set(
        model, [library(), library()], method="random", operator=operator
    )
    for result in results:
        assert len(result) == 1
        assert result.members[0] in {0, 1, 2, 3}  # the output is above 0 without the last paper
        assert result.proven
        assert result.after.label == "negative"


def test_edges_of_a_heterogeneous_graph_go_type_by_type():
    data = library()
    model = gx.wrap(Written(), kind="binary")  # the output is 2 + 1 - 2.4
    result = gx.counterfactual_set(model, data, of="edges", method="random")
    assert len(result) == 1
    assert result.members[0] in {(0, 2), (1, 3)}  # an author's, as papers come after two authors
    assert result.proven
    assert result.before.label == "positive"
    assert result.after.label == "negative"


@pytest.mark.parametrize("margin", [0.0, -5e-6])
def test_a_tie_of_two_classes_is_no_other_class(margin):
    """Without two of three members both classes are equal, up to what a batch may change."""
    search, margins = smallest_set(torch.tensor([3.0, 2.0, 1.0]), largest=2, most=100), None
    result = None
    while result is None:
        try:
            sets = search.send(margins)
        except StopIteration as end:
            result = end.value
        margins = torch.where(sets.sum(1) == 2, margin, 1.0)
    assert result == (None, True)  # all sets were tried
