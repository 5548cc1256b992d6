"""Wrapped models work in half precision, on other devices, compiled, and with fused kernels."""

import copy
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch.nn.attention.flex_attention import flex_attention
from torch_geometric.nn import TransformerConv, global_mean_pool

import graphxai as gx
from graphxai.explainers import head_statistics
from graphxai.runtime.modules import uncompiled
from other_models import GpsModel, SparseModel, molecules, trained

GRAPHS = [g for g in molecules() if g.num_nodes < 20][:2]


class GatedSkip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = TransformerConv(9, 8, heads=2, beta=True), nn.Linear(16, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        return self.head(global_mean_pool(self.conv(x, edge_index), batch))


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    untrained = {
        "transformer": SparseModel(),
        "gps": GpsModel(),
        "performer": GpsModel("layer_norm", "silu", "performer"),
        "gated skip": GatedSkip(),
    }
    return {name: trained(model, GRAPHS, 10) for name, model in untrained.items()}


def wrapped(model: nn.Module):
    return gx.wrap(model, kind="regression")


# -- precision ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["transformer", "gps", "performer", "gated skip"])
def test_a_model_is_explained_in_its_own_precision(models, name, dtype):
    """The results equal those in single precision, to the rounding of the type.

    Rounding goes by what is added up inside of the model, which is alike in all graphs, and not by
    the ledger of one of them, whose terms may cancel: by the largest ledger. Processors differ:
    one with matrix units for half precision rounds otherwise.
    """
    other = wrapped(copy.deepcopy(models[name]).to(dtype))
    rounding = 8 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    expected = gx.explain(wrapped(models[name]), GRAPHS)
    size = max(
        max(
            abs(expected_explanation.output),
            abs(expected_explanation.ledger.biases),
            np.abs(expected_explanation.relevance).sum(),
        )
        for expected_explanation in expected
    )
    for expected_explanation, explanation in zip(expected, gx.explain(other, GRAPHS), strict=True):
        np.testing.assert_allclose(
            explanation.relevance, expected_explanation.relevance, atol=rounding * size
        )
        assert abs(explanation.ledger.unexplained) < rounding * size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("only_relevance", "recorded_once")
def test_what_reads_attention_takes_half_precision(models, dtype):
    for name in ("transformer", "gps", "performer"):
        model, other = models[name], wrapped(copy.deepcopy(models[name]).to(dtype))
        for method in ("rollout", "gae", "att_cat"):
            assert np.isfinite(gx.explain(other, GRAPHS[0], method).relevance).all()
        pairs, expected = gx.pairs(other, GRAPHS[0]), gx.pairs(wrapped(model), GRAPHS[0])
        size = np.abs(expected.by_layer).max()
        np.testing.assert_allclose(pairs.by_layer, expected.by_layer, atol=0.1 * size)
        assert head_statistics(other, GRAPHS).rows == sum(int(g.num_nodes) for g in GRAPHS)


# -- devices -----------------------------------------------------------------------------------


def test_every_tensor_of_a_batch_moves_to_the_models_device(models):
    """The meta device represents any other device."""
    graphs = wrapped(models["gps"])
    tokens = gx.wrap(nn.Linear(16, 1), kind="regression", inputs="tokens")
    rows = [tokens.prepare(torch.randn(n, 16)).data for n in (3, 5)]
    for batch in (graphs.collate(GRAPHS), tokens.collate(rows)):
        moved = batch.to("meta")
        tensors = [v for v in vars(moved).values() if isinstance(v, Tensor)]
        if moved.graphs is not None:
            tensors += [v for v in moved.graphs.to_dict().values() if isinstance(v, Tensor)]
        assert {tensor.device.type for tensor in tensors} == {"meta"}
        assert not batch.mask.is_meta


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        model = SparseModel()
    with pytest.raises(ValueError, match="SparseModel has weights on the device 'meta'"):
        wrapped(model)


def test_lazy_layers_have_to_see_a_graph_first():
    model = SparseModel()
    model.second = TransformerConv(-1, 8, heads=2, edge_dim=3)
    with pytest.raises(ValueError, match="SparseModel has lazy layers without weights: run it"):
        wrapped(model)
    graph = GRAPHS[0]
    model(graph.x, graph.edge_index, graph.edge_attr, torch.zeros(len(graph.x)).long())
    assert abs(gx.explain(wrapped(model), graph).ledger.unexplained) < 1e-4


# -- torch.compile -----------------------------------------------------------------------------


def compiled(model: nn.Module, how: str) -> nn.Module:
    model = copy.deepcopy(model)
    if how == "whole":
        return torch.compile(model, backend="eager")
    if how == "in place":
        model.compile(backend="eager")
    else:
        model.first = torch.compile(model.first, backend="eager")
    return model


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("how", ["whole", "in place", "a part"])
@pytest.mark.usefixtures("only_relevance")
def test_a_compiled_model_has_the_relevance_of_the_original(models, how):
    model = compiled(models["transformer"], how)
    for method in ("lrp", "rollout", "att_cat"):
        relevance = gx.explain(wrapped(model), GRAPHS[0], method).relevance
        expected = gx.explain(wrapped(models["transformer"]), GRAPHS[0], method).relevance
        np.testing.assert_array_equal(relevance, expected)
    assert eval_frame._stance.stance == "default"


@pytest.mark.parametrize("method", ["integrated_gradients", "gnn_explainer", "saliency"])
def test_methods_without_rules_run_a_compiled_part_eagerly(models, method):
    """PyTorch fails to compile it with the search for ties, in graphs of several sizes."""
    model, compiled_graphs = copy.deepcopy(models["gps"]), []

    def backend(graph, example_inputs):
        compiled_graphs.append(graph)
        return graph.forward

    expected = [e.relevance for e in gx.explain(wrapped(model), GRAPHS, method)]
    model.layers = nn.ModuleList(torch.compile(layer, backend=backend) for layer in model.layers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        relevance = [e.relevance for e in gx.explain(wrapped(model), GRAPHS, method)]
    for each, same in zip(relevance, expected, strict=True):
        np.testing.assert_array_equal(each, same)
    assert not compiled_graphs


def test_a_wrapped_compiled_model_shares_the_weights():
    model = SparseModel()
    assert wrapped(torch.compile(model, backend="eager")).module is model


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_the_rules_act_on_a_compiled_model(models):
    model, graph = models["transformer"], GRAPHS[0]
    relevance = []
    for each in (model, compiled(model, "whole")):
        x, zeros = graph.x.clone().requires_grad_(), torch.zeros(len(graph.x)).long()
        with gx.conservative(activation="ratio", model=each):
            out = each(x, graph.edge_index, graph.edge_attr, zeros)
        relevance.append(torch.autograd.grad(out.sum(), x)[0])
    assert torch.equal(*relevance)


def test_settings_for_compiled_code_are_restored_by_the_last_of_several_threads():
    model = compiled(SparseModel(), "in place")
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncompiled(model):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with torch.compiler.set_stance("eager_on_recompile"):  # the user's own
        with uncompiled(model):
            thread.start()
            entered.wait()
        assert eval_frame._stance.stance == "force_eager"  # the other thread is not done
        leave.set()
        thread.join()
        assert eval_frame._stance.stance == "eager_on_recompile"
    with uncompiled(SparseModel()):
        assert eval_frame._stance.stance == "default"  # nothing is compiled, so nothing is set


# -- fused kernels -----------------------------------------------------------------------------


class Flex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(16, 48), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (z.unflatten(-1, (4, 4)).transpose(1, 2) for z in self.project(x).chunk(3, -1))
        return self.head(flex_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "rollout"])
def test_flex_attention_is_an_error_that_says_what_to_do(method):
    model = gx.wrap(Flex().eval(), kind="regression", inputs="tokens")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"Flex calls flex_attention.*scaled_dot_product"):
            gx.explain(model, torch.randn(5, 16), method)


def test_an_error_of_the_model_itself_stays_as_it_is():
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("broken")

    model = gx.wrap(Broken(), kind="regression", inputs="tokens")
    with pytest.raises(RuntimeError, match=r"^broken$"):
        gx.explain(model, torch.randn(5, 16))
