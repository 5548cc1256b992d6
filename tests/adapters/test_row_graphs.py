"""The graph that each entry of a value belongs to, as followed through an autograd graph."""

import pytest
import torch
from torch_geometric.utils import to_dense_batch

from graphxai.adapters.engine.autograd_graph import AutogradGraph
from graphxai.adapters.engine.row_graphs import find_row_graphs

BATCH = torch.tensor([0, 0, 1, 1, 1, 2])  # the graphs of six nodes
EDGES = torch.tensor([[0, 1, 2, 3, 4], [1, 0, 3, 4, 2]])  # the last node has no neighbour


WAYS = {
    "rows": lambda h: h[EDGES[0]],
    "messages": lambda h: torch.zeros(6, 4).index_add(0, EDGES[1], h.index_select(0, EDGES[0])),
    "expanded": lambda h: torch.zeros(6, 4).scatter_add(
        0, EDGES[1][:, None].expand(-1, 4), h[EDGES[0]]
    ),
    "padded": lambda h: to_dense_batch(h, BATCH)[0].transpose(0, 1).reshape(-1, 4),
    "heads": lambda h: to_dense_batch(h, BATCH)[0].view(3, 3, 2, 2).permute(2, 0, 1, 3),
    "scores": lambda h: (lambda dense: torch.bmm(dense, dense.mT))(to_dense_batch(h, BATCH)[0]),
    "pooled": lambda h: to_dense_batch(h, BATCH)[0].sum(1),
    "first": lambda h: to_dense_batch(h, BATCH)[0][:, 0],
    "joined": lambda h: torch.cat([h, h * 2], -1).view(6, 2, 4)[:, 1],
}


@pytest.mark.parametrize("name", WAYS)
def test_entries_belong_to_the_graph_whose_nodes_they_depend_on(name):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    torch.manual_seed(0)
    y = WAYS[name](x * 2)
    graphs = AutogradGraph(y, {x: 1})
    trace = graphs.trace()
    (leaf,) = (value for value, maker in enumerate(trace.flow.maker) if maker < 0 and
               trace.flow.live[value] == 1)  # fmt: skip
    places, known = trace.places, {leaf: BATCH[:, None]}
    output = trace.output.value
    rows = find_row_graphs(trace, {output}, known, lambda number: graphs.nodes[places[number]])
    of_entries = rows.of_pass(known, lambda number: graphs.nodes[places[number]], trace.shape)
    of_entries = of_entries[output].expand(y.shape).flatten()
    for entry, belongs_to in zip(y.flatten(), of_entries.tolist(), strict=True):
        (gradient,) = torch.autograd.grad(entry, x, retain_graph=True)
        reached = set(BATCH[gradient.abs().sum(1) > 0].tolist())
        assert reached <= {belongs_to}
