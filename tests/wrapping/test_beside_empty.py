"""What a pass beside a graph without nodes says, against models whose output is known."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx
from graphxai.engine.request import recorded_only


class Pooling(nn.Module):
    """A pooled layer, which counts how often it ran."""

    def __init__(self, pool=global_mean_pool):
        super().__init__()
        torch.manual_seed(0)
        self.pool, self.ran = pool, [0]
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def rows(self, x, batch):
        return self.first(x).relu()

    def forward(self, x, batch):
        self.ran[0] += 1
        return self.head(self.pool(self.rows(x, batch), batch))


class DividingBySmallest(Pooling):
    """Nodes count by the size of the smallest graph."""

    def forward(self, x, batch):
        sizes = torch.bincount(batch)
        return super().forward(x, batch) * (1 + sizes.min())


class AttendingToPadding(Pooling):
    """Attention whose softmax divides zero by zero for a graph that is only padding."""

    def rows(self, x, batch):
        dense, mask = to_dense_batch(x, batch)  # (B, N, F), (B, N)
        values = self.first(dense)  # (B, N, D)
        scores = (values @ values.mT).masked_fill(~mask[:, None], -torch.inf)
        return (scores.softmax(-1) @ values)[mask]


def graphs_of(sizes=(5, 3, 4)):
    draw = torch.Generator().manual_seed(1)
    return [Data(x=torch.randn(size, 3, generator=draw)) for size in sizes]


def outputs_of(module, graphs):
    with torch.no_grad():
        return [module(g.x, torch.zeros(len(g.x), dtype=torch.long)).item() for g in graphs]


@pytest.mark.parametrize("method", ["lrp", "gradient_input"])
@pytest.mark.parametrize("sizes", [(5, 3, 4), (4,)])
def test_one_pass_gives_the_output_without_nodes_too(method, sizes):
    module, graphs = Pooling().eval(), graphs_of(sizes)
    model = gx.wrap(module, kind="regression")
    for _ in range(2):
        gx.explain(model, graphs, method)
    before = module.ran[0]
    explanations = gx.explain(model, graphs, method)
    assert module.ran[0] == before + 1
    with torch.no_grad():
        module.head.bias += 1.0  # nothing is remembered
    later = gx.explain(model, graphs, method)
    for one, two, output in zip(explanations, later, outputs_of(module, graphs), strict=True):
        assert two.without_nodes == pytest.approx(module.head.bias.item())
        assert one.without_nodes == pytest.approx(two.without_nodes - 1)
        assert two.output == pytest.approx(output)
        assert two.ledger.unexplained == pytest.approx(0, abs=1e-5) or method != "lrp"


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "attn_lrp"])
@pytest.mark.parametrize(
    "module",
    [
        DividingBySmallest(),
        AttendingToPadding(),
        Pooling(global_max_pool),
        Pooling(global_add_pool),
    ],
    ids=lambda module: type(module).__name__ + module.pool.__name__,
)
def test_models_that_count_on_nodes_are_explained_as_by_a_recording(module, method):
    model, graphs = gx.wrap(module.eval(), kind="regression"), graphs_of((4, 4, 4))
    for _ in range(2):
        hooked = gx.explain(model, graphs, method)
    with recorded_only():
        recorded = gx.explain(gx.wrap(module, kind="regression"), graphs, method)
    for one, other, output in zip(hooked, recorded, outputs_of(module, graphs), strict=True):
        assert one.relevance == pytest.approx(other.relevance, rel=1e-4, abs=1e-6)
        assert one.ledger.to_dict() == pytest.approx(other.ledger.to_dict(), rel=1e-4, abs=1e-5)
        assert one.output == pytest.approx(output, rel=1e-4)
    assert model.tier == "hooks"


@pytest.mark.parametrize("codes", [False, True])
def test_a_code_of_each_graph_has_its_line(codes):
    class WithKind(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Embedding(9, 4) if codes else nn.Linear(3, 4)
            self.kinds, self.head = nn.Embedding(3, 4), nn.Linear(4, 1)

        def forward(self, x, kind, batch):
            pooled = global_add_pool(self.first(x).relu(), batch)
            return self.head((pooled + self.kinds(kind)).relu())

    graphs = [Data(x=torch.arange(size)) if codes else graphs_of((size,))[0] for size in (5, 3, 4)]
    for k, data in enumerate(graphs):
        data.kind = torch.tensor([k])
    together = gx.explain(gx.wrap(WithKind().eval(), kind="regression"), graphs)
    for data, explanation in zip(graphs, together, strict=True):
        model = gx.wrap(WithKind().eval(), kind="regression")
        for _ in range(2):
            alone = gx.explain(model, data)
            assert alone.ledger.to_dict() == pytest.approx(explanation.ledger.to_dict(), abs=1e-5)
        assert model.tier == "hooks"
        assert alone.ledger.others.keys() == {"kind"}
