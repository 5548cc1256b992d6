"""A mistake of the caller gets a plain answer, and leaves no trace in the model."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINEConv, TransformerConv, global_mean_pool

import graphxai as gx
from graphxai.contract.inputs import InputError

DIM = 4
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])


def graph(seed: int, columns: int = DIM, edge_columns: int = 2) -> Data:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(6, columns, generator=draw)
    edge_attr = torch.randn(EDGES.shape[1], edge_columns, generator=draw)
    return Data(x=x, edge_index=EDGES, edge_attr=edge_attr)


class OfNodes(nn.Module):
    """An answer for every node."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = GCNConv(DIM, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(x, edge_index).relu())


MISTAKES = {
    "no node": lambda model: gx.explain(model, graph(0)),
    "nodes that it has not": lambda model: gx.explain(model, graph(0), node=9),
    "a pair": lambda model: gx.explain(model, graph(0), pair=(0, 1)),
    "other columns": lambda model: gx.explain(model, graph(0, columns=3), node=1),
    "other columns of several": lambda model: gx.explain(
        model, [graph(0, columns=3), graph(1, columns=3)], node=1, on_error="raise"
    ),
    "no such class": lambda model: gx.explain(model, graph(0), node=1, target="9"),
    "no attention": lambda model: gx.explain(model, graph(0), "gae", node=1),
}


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "occlusion"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_leaves_no_trace(mistake, method):
    used, fresh = (gx.wrap(OfNodes().eval(), kind="multiclass", classes=2) for _ in range(2))
    for _ in range(4):
        with pytest.raises(ValueError, match=r"node|pair|columns|class|attention"):
            MISTAKES[mistake](used)
    assert used.why_recorded is None
    graphs, said = [graph(0), graph(1)], []
    for model in (used, fresh):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            explanations = gx.explain(model, graphs, method, node=1)
        said.append([str(w.message) for w in caught if "jit.script" not in str(w.message)])
        assert model.why_recorded is None
        assert model.tier == "hooks" or method == "occlusion"
        for e, single in zip(explanations, graphs, strict=True):
            alone = gx.explain(fresh, single, method, node=1)
            assert e.relevance == pytest.approx(alone.relevance, abs=1e-6)
    assert said[0] == said[1]


class Mixes(nn.Module):
    """Subtracts the mean over all graphs of the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(DIM, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        rows = global_mean_pool(self.inner(x).tanh(), batch)
        return self.head(rows - rows.mean(0) / 2)


def test_a_model_that_mixes_graphs_is_found_after_graphs_that_it_cannot_read():
    model = gx.wrap(Mixes().eval(), kind="regression")
    with pytest.raises(InputError):
        gx.explain(model, [graph(0, columns=3), graph(1, columns=3)], on_error="raise")
    graphs = [graph(0), graph(1)]
    with pytest.warns(UserWarning, match="mixes the graphs of a batch"):
        together = gx.explain(model, graphs)
    alone = [gx.explain(model, single) for single in graphs]
    for one, other in zip(together, alone, strict=True):
        assert one.relevance == pytest.approx(other.relevance, abs=1e-6)


class Graphs(nn.Module):
    """Reads rows of nodes, and of edges if its layer takes them."""

    def __init__(self, layer: nn.Module, reads_edges: bool = False) -> None:
        super().__init__()
        self.layer, self.reads_edges, self.head = layer, reads_edges, nn.Linear(6, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        further = (edge_attr,) if self.reads_edges else ()
        h = (
            self.layer(x, edge_index, *further)
            if self.reads_edges or edges(self)
            else self.layer(x)
        )
        return self.head(global_mean_pool(h, batch))


def edges(model: Graphs) -> bool:
    return not isinstance(model.layer, nn.Sequential | nn.Linear)


LAYERS = {
    "linear": lambda: nn.Linear(DIM, 6),
    "norm": lambda: nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 6)),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(DIM), nn.Linear(DIM, 6)),
    "GCN": lambda: GCNConv(DIM, 6),
    "GAT": lambda: GATConv(DIM, 3, heads=2),
    "transformer": lambda: TransformerConv(DIM, 6),
}
READERS = [gx.explain, gx.predict, lambda model, data: gx.explain(model, data, "occlusion")]


@pytest.mark.parametrize("read", READERS, ids=["explain", "predict", "occlusion"])
@pytest.mark.parametrize("layer", LAYERS)
def test_another_number_of_feature_columns_is_named_with_that_of_the_model(layer, read):
    model = gx.wrap(Graphs(LAYERS[layer]()).eval(), kind="regression")
    with pytest.raises(InputError, match=r"x of the input has 3 columns, .*Graphs takes 4 \(in"):
        read(model, graph(0, columns=3))
    assert gx.explain(model, graph(0)).relevance.shape == (6,)


def test_another_number_of_columns_of_edges_is_named():
    layer = GINEConv(nn.Linear(DIM, 6), edge_dim=3)
    model = gx.wrap(Graphs(layer, reads_edges=True).eval(), kind="regression")
    with pytest.raises(InputError, match=r"edge_attr of the input has 2 columns, .* takes 3"):
        gx.explain(model, graph(0))


def test_another_number_of_columns_of_tokens_is_named():
    module = nn.Sequential(nn.Linear(DIM, 8), nn.TransformerEncoderLayer(8, 2, 8, batch_first=True))

    def forward(model: nn.Module, tokens: object) -> Tensor:
        return model(tokens.x).mean((1, 2))[:, None]

    model = gx.wrap(module.eval(), kind="regression", inputs="tokens", forward=forward)
    with pytest.raises(InputError, match=r"x of the input has 5 columns, and .* takes 4 \(in 0"):
        gx.explain(model, torch.randn(3, 5))


def test_widths_that_do_not_fit_inside_a_model_keep_their_own_error():
    module = Graphs(nn.Sequential(nn.Linear(DIM, 5), nn.Linear(7, 6))).eval()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        gx.explain(gx.wrap(module, kind="regression"), graph(0))
