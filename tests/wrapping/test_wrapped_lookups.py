"""The nodes are found in the output of the embeddings of dense models."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import to_dense_batch

import graphxai as gx

pytestmark = pytest.mark.usefixtures("only_relevance")

DIM, CODES = 8, 10


class Dense(nn.Module):
    """A padded transformer whose embedding returns (B, N, D) or, with features, (B, N, F, D)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(CODES + 1, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(DIM, 1)

    def looked_up(self, padded):
        return self.embed(padded[..., 0])

    def forward(self, x, batch):
        padded, mask = to_dense_batch(x, batch)
        h = self.encoder(self.looked_up(padded), src_key_padding_mask=~mask)
        return self.out((h * mask[..., None]).sum(1))


class Features(Dense):
    def looked_up(self, padded):
        return self.embed(padded).sum(2)


class ClassToken(Dense):
    def forward(self, x, batch):
        padded, mask = to_dense_batch(x[:, 0], batch)
        codes, mask = F.pad(padded, (1, 0), value=CODES), F.pad(mask, (1, 0), value=True)
        return self.out(self.encoder(self.embed(codes), src_key_padding_mask=~mask)[:, 0])


def graph(nodes: int) -> Data:
    draw = torch.Generator().manual_seed(nodes)
    edges = torch.tensor([[0], [0]])
    return Data(x=torch.randint(CODES, (nodes, 3), generator=draw), edge_index=edges)


GRAPHS = [graph(n) for n in (4, 1, 6, 2)]


def by_hand(module: nn.Module, data: Data) -> torch.Tensor:
    """Compute gradient times input at the output of the embedding, for one graph."""
    kept = []
    handle = module.embed.register_forward_hook(
        lambda part, args, output: kept.append(output.detach().requires_grad_()) or kept[0]
    )
    output = module(data.x, torch.zeros(len(data.x), dtype=torch.long))
    handle.remove()
    (gradient,) = torch.autograd.grad(output.sum(), kept[0])
    return (kept[0] * gradient)[0].detach().flatten(1).sum(1)[-len(data.x) :]


@pytest.mark.parametrize("named", [None, "embed"])
@pytest.mark.parametrize("kind", [Dense, Features, ClassToken])
def test_relevance_at_a_padded_embedding(kind, named):
    module = kind().eval()
    model = gx.wrap(module, kind="regression", embedding=named)
    for explanations in (
        gx.explain(model, GRAPHS, "gradient_input", on_error="raise"),
        [gx.explain(model, data, "gradient_input") for data in GRAPHS],
    ):
        for data, explanation in zip(GRAPHS, explanations, strict=True):
            expected = by_hand(module, data)
            assert explanation.relevance == pytest.approx(expected.numpy(), abs=1e-5)


@pytest.mark.parametrize("kind", [Dense, Features, ClassToken])
@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "lrp_path", "integrated_gradients"])
def test_a_padded_embedding_gives_each_graph_what_it_gets_alone(kind, method):
    model = gx.wrap(kind().eval(), kind="regression", embedding="embed")
    together = gx.explain(model, GRAPHS, method, on_error="raise")
    for k in (0, len(GRAPHS) - 1):
        alone = gx.explain(model, GRAPHS[k], method)
        assert together[k].relevance == pytest.approx(alone.relevance, abs=1e-5)


def test_a_first_graph_of_a_single_node_is_no_feature_axis():
    module = Features().eval()
    model = gx.wrap(module, kind="regression", embedding="embed")
    for data in (graph(1), graph(5)):
        explanation = gx.explain(model, data, "gradient_input")
        assert explanation.relevance == pytest.approx(by_hand(module, data).numpy(), abs=1e-5)


def test_a_module_that_returns_a_tuple_is_refused_for_that_reason():
    class Pair(Dense):
        def __init__(self):
            super().__init__()
            self.both = nn.GRU(DIM, DIM, batch_first=True)

        def looked_up(self, padded):
            return self.both(super().looked_up(padded))[0]

    model = gx.wrap(Pair().eval(), kind="regression", embedding="both")
    with pytest.raises(ValueError, match="'both' returns tuple, not a tensor"):
        gx.explain(model, graph(3))


class TrailingToken(Dense):
    """Reads the output at a class token behind the nodes, before the padding or behind it."""

    further = 1

    def forward(self, x, batch):
        padded, mask = to_dense_batch(x[:, 0], batch, fill_value=CODES)
        tokens = (0, self.further)
        codes, mask = F.pad(padded, tokens, value=CODES), F.pad(mask, tokens, value=True)
        return self.out(self.encoder(self.embed(codes), src_key_padding_mask=~mask)[:, -1])


class TwoTrailingTokens(TrailingToken):
    """Has a second token behind the class token."""

    further = 2


class PaddedInFront(Dense):
    """Pads in front of the nodes, as decoders of language do, with a class token at the end."""

    def forward(self, x, batch):
        rows = [x[batch == graph, 0].flip(0) for graph in range(int(batch.max()) + 1)]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).flip(1)
        codes, mask = F.pad(padded, (0, 1), value=CODES), F.pad(padded >= 0, (0, 1), value=True)
        h = self.embed(codes.where(mask, CODES))
        return self.out(self.encoder(h, src_key_padding_mask=~mask)[:, -1])


def first_rows_by_hand(module, data):
    """Compute gradient times input for the rows before the class token, for one graph."""
    kept = []
    handle = module.embed.register_forward_hook(
        lambda part, args, output: kept.append(output.detach().requires_grad_()) or kept[0]
    )
    output = module(data.x, torch.zeros(len(data.x), dtype=torch.long))
    handle.remove()
    (gradient,) = torch.autograd.grad(output.sum(), kept[0])
    return (kept[0] * gradient)[0].detach().flatten(1).sum(1)[: len(data.x)]


@pytest.mark.parametrize("named", [None, "embed"])
@pytest.mark.parametrize("kind", [TrailingToken, TwoTrailingTokens, PaddedInFront])
def test_a_class_token_behind_the_nodes_is_not_one_of_them(kind, named):
    module = kind().eval()
    model = gx.wrap(module, kind="regression", embedding=named)
    for explanations in (
        [gx.explain(model, data, "gradient_input") for data in GRAPHS],
        gx.explain(model, GRAPHS, "gradient_input", on_error="raise"),
    ):
        for data, explanation in zip(GRAPHS, explanations, strict=True):
            expected = first_rows_by_hand(module, data)
            assert explanation.relevance == pytest.approx(expected.numpy(), abs=1e-5)


def test_rows_that_cannot_be_told_apart_are_refused():
    class Mixed(ClassToken):
        def __init__(self):
            super().__init__()
            self.mixed = nn.Linear(DIM, DIM)

        def forward(self, x, batch):
            padded, _ = to_dense_batch(x[:, 0], batch)
            h = self.embed(F.pad(padded, (1, 0), value=CODES))
            of_order = torch.arange(1.0, 1 + h.shape[1])[:, None] * h
            return self.out(self.mixed(h + of_order.sum(1, keepdim=True))[:, 0])

    model = gx.wrap(Mixed().eval(), kind="regression", embedding="mixed")
    with pytest.raises(ValueError, match="1 rows more than the graphs have nodes, and which"):
        gx.explain(model, graph(4))


class LooksUpAgain(nn.Module):
    """Looks codes up, and ones above three in the same table again."""

    def __init__(self, again):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.deep, self.again, self.ran = nn.Embedding(9, 4), nn.Linear(4, 1), again, 0

    def forward(self, x, batch):
        h = self.table(x)
        if self.again and int(x.max()) > 3:
            h = h + self.table(x).relu()
        self.ran += 1
        return self.deep(global_add_pool(h.relu(), batch))


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "occlusion"])
def test_a_table_that_is_looked_up_oftener_by_another_graph_is_read_anew(method):
    few, many = (Data(x=torch.tensor(codes)) for codes in ([0, 2, 3], [1, 5, 4]))
    model = gx.wrap(LooksUpAgain(again=True).eval(), kind="regression")
    for data in (few, many, few):
        expected = gx.explain(gx.wrap(model.module, kind="regression"), data, method)
        assert gx.explain(model, data, method).relevance == pytest.approx(expected.relevance)


def test_the_rows_of_an_embedding_are_read_without_the_rest_of_the_pass():
    model = gx.wrap(LooksUpAgain(again=False).eval(), kind="regression")
    data = Data(x=torch.tensor([0, 2, 3]))
    for _ in range(2):
        gx.explain(model, data)
    model.module.ran = 0
    gx.explain(model, data)
    assert model.module.ran == 1
