"""Models may read their answer at nodes that the caller or the graph names, and lose these."""

from itertools import combinations, permutations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

import graphxai as gx

EDGES = torch.tensor([[0, 1, 2, 3, 1], [1, 0, 3, 0, 2]])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = GATConv(8, 3)


class EveryNode(Layer):
    def forward(self, x, edge_index):
        return self.attention(x, edge_index)


class AtRoot(Layer):
    def forward(self, x, edge_index, root_index):
        return self.attention(x, edge_index)[root_index]


class AtRootInBatches(Layer):
    def forward(self, x, edge_index, root_index, batch):
        assert len(batch) == len(x)
        return self.attention(x, edge_index)[root_index]


class AtMask(Layer):
    def forward(self, x, edge_index, train_mask):
        return self.attention(x, edge_index)[train_mask]


class AtLink(Layer):
    def forward(self, x, edge_index, edge_label_index):
        first, second = self.attention(x, edge_index)[edge_label_index]
        return first * second


def graph(**attributes) -> Data:
    draw = torch.Generator().manual_seed(1)
    return Data(x=torch.randn(4, 8, generator=draw), edge_index=EDGES, **attributes)


CASES = {
    "node=": (EveryNode, graph(), {"node": 2}, [2]),
    "root_index": (AtRoot, graph(root_index=torch.tensor([2])), {}, [2]),
    "a number": (AtRoot, graph(root_index=2), {}, [2]),
    "with a batch vector": (AtRootInBatches, graph(root_index=torch.tensor([2])), {}, [2]),
    "a mask": (AtMask, graph(train_mask=torch.arange(4) == 2), {}, [2]),
    "a link": (AtLink, graph(edge_label_index=torch.tensor([[2], [0]])), {}, [2, 0]),
}


def output_by_hand(module: nn.Module, data: Data, kept: set[int], read: list[int]) -> float:
    """Compute logit 0 of a subgraph, or zero without the nodes that are read."""
    if not kept.issuperset(read):
        return 0.0
    nodes = sorted(kept)
    part = data.subgraph(torch.tensor(nodes))
    with torch.no_grad():
        rows = module.attention(part.x, part.edge_index)
    values = rows[[nodes.index(node) for node in read]]
    return float(values.prod(0)[0])


@pytest.mark.parametrize("case", CASES)
def test_a_hidden_node_that_is_read_gives_output_zero(case):
    kind, data, options, read = CASES[case]
    module = kind().eval()
    model = gx.wrap(module, kind="multiclass", classes=3)
    explanation = gx.explain(model, data, "occlusion", target="0", **options)
    everything = set(range(4))
    whole = output_by_hand(module, data, everything, read)
    drops = [whole - output_by_hand(module, data, everything - {v}, read) for v in range(4)]
    assert explanation.relevance == pytest.approx(drops, abs=1e-6)
    assert explanation.relevance[2] == pytest.approx(whole, abs=1e-6)
    assert explanation.without_nodes == 0


@pytest.mark.parametrize("case", CASES)
def test_shapley_values_of_a_node_that_is_read(case):
    kind, data, options, read = CASES[case]
    module = kind().eval()
    model = gx.wrap(module, kind="multiclass", classes=3)
    explanation = gx.explain(
        model, data, "shapley_sampling", target="0", permutations=150, **options
    )
    sets = [frozenset(nodes) for k in range(5) for nodes in combinations(range(4), k)]
    outputs = {nodes: output_by_hand(module, data, set(nodes), read) for nodes in sets}
    expected = [0.0] * 4
    orders = list(permutations(range(4)))
    for order in orders:
        for place, node in enumerate(order):
            before, after = frozenset(order[:place]), frozenset(order[: place + 1])
            expected[node] += (outputs[after] - outputs[before]) / len(orders)
    assert explanation.relevance == pytest.approx(expected, abs=0.05)
    whole = output_by_hand(module, data, set(range(4)), read)
    assert sum(explanation.relevance) == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ["lrp_path", "path_marginals", "order_marginals"])
def test_paths_that_hide_nodes_run_for_models_that_read_at_nodes(case, method):
    kind, data, options, read = CASES[case]
    module = kind().eval()
    model = gx.wrap(module, kind="multiclass", classes=3)
    explanation = gx.explain(model, data, method, target="0", **options)
    whole = output_by_hand(module, data, set(range(4)), read)
    assert explanation.output == pytest.approx(whole, abs=1e-5)
    assert len(explanation.relevance) == 4


@pytest.mark.parametrize("case", [case for case in CASES if case != "node="])
@pytest.mark.parametrize("operator", ["mask", "delete"])
def test_models_that_read_at_nodes_are_evaluated(case, operator):
    kind, data, _, _ = CASES[case]
    model = gx.wrap(kind().eval(), kind="multiclass", classes=3)
    report = gx.evaluate(model, [data, data], ["lrp"], metrics=["auac"], operators=[operator])
    assert {unit.method for unit in report.units} == {"lrp", "ones", "random", "reverse"}
    assert not report.rejected
    assert not report.failures
