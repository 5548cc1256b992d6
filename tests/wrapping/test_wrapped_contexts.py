"""Models are explained in what happens out of sight, in nested blocks, and at random."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphxai as gx
from graphxai.contract.inputs import InputError
from graphxai.rules.conservative import Rules, current_rules
from pooled_models import DIM, Pooled, answer, explained, graph, seeded

# -- out of sight ------------------------------------------------------------------------------


def mixed(h: Tensor) -> Tensor:
    weights = torch.softmax(h @ h.transpose(-2, -1), -1)
    return weights @ h


def test_a_scripted_function_is_explained_as_it_was_written():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(mixed)
    with_script = explained(seeded(Pooled(lambda _, h: scripted(h))))
    other = explained(seeded(Pooled(lambda _, h: mixed(h))))
    assert abs(with_script.ledger.unexplained) < 1e-5
    torch.testing.assert_close(torch.tensor(with_script.relevance), torch.tensor(other.relevance))
    assert scripted(torch.ones(2, 2)).shape == (2, 2)  # by itself again
    assert type(torch._C.ScriptFunction.__call__).__name__ == "instancemethod"


def test_a_traced_model_is_explained_with_forward_and_asks_for_it():
    data = graph(5)
    layers = nn.Sequential(nn.Linear(data.x.shape[1], DIM), nn.Tanh(), nn.Linear(DIM, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layers.eval(), data.x)
    with pytest.raises(ValueError, match="does not say what it takes: give wrap a forward="):
        gx.explain(gx.wrap(traced, kind="regression"), data)

    def forward(model, batch):
        return model(batch.x).sum(0, keepdim=True)

    e = gx.explain(gx.wrap(traced, kind="regression", forward=forward), data)
    assert e.relevance.shape == (5,)
    assert abs(e.ledger.unexplained) < 1e-5


class Threaded(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU())

    def forward(self, h):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.lin, h).result()


class Scripted(nn.Module):
    def __init__(self, how: str):
        super().__init__()
        inner = nn.Sequential(nn.Linear(DIM, DIM), nn.LayerNorm(DIM), nn.GELU()).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if how == "trace":
                self.part = torch.jit.trace(inner, torch.randn(5, DIM))
            elif how == "function":
                self.inner = inner
                self.part = torch.jit.trace(lambda h: F.gelu(h).softmax(-1), torch.randn(5, DIM))
            else:
                self.part = torch.jit.script(inner)

    def forward(self, h):
        return h + self.part(h)


def with_part(part: nn.Module) -> Pooled:
    model = Pooled(lambda m, h: m.part(h))
    model.part = part
    return seeded(model)


@pytest.mark.parametrize("how", ["trace", "script"])
def test_torchscript_is_explained_as_it_was_written(how):
    written = Scripted("function")
    written.part = written.inner
    expected = explained(with_part(written))
    part = Scripted(how)
    explanation = explained(with_part(part))
    assert abs(explanation.ledger.unexplained) < 1e-5
    np.testing.assert_allclose(explanation.relevance, expected.relevance, rtol=1e-4, atol=1e-6)


def test_a_traced_function_is_looked_into():
    model = gx.wrap(with_part(Scripted("function")), kind="regression")
    with pytest.warns(UserWarning, match="part: a softmax whose result enters no product"):
        explanation = gx.explain(model, graph())
    assert explanation.prediction.value == pytest.approx(answer(model.module, graph()), rel=1e-5)


def test_lrp_follows_what_runs_in_another_thread():
    threaded = seeded(with_part(Threaded()))
    same = seeded(with_part(threaded.part.lin))
    np.testing.assert_allclose(explained(threaded).relevance, explained(same).relevance, rtol=1e-5)


def test_a_recorded_pass_names_what_runs_in_another_thread():
    model = gx.wrap(with_part(Threaded()), kind="regression")
    with pytest.warns(UserWarning, match="without their gradient .*another thread.* in Pooled"):
        explanation = gx.explain(model, graph(), "gradient_input")
    assert explanation.prediction.value == pytest.approx(answer(model.module, graph()), rel=1e-5)
    assert explanation.ledger.others["cut off"]


@pytest.mark.parametrize("how", ["trace", "script"])
def test_the_positive_rules_see_torchscript_too(how):
    written, data = Scripted("function"), graph()
    written.part, data.x = written.inner, data.x.double()
    as_written, other = (
        gx.explain(gx.wrap(with_part(part).double(), kind="regression"), data, "lrp_zplus")
        for part in (written, Scripted(how))
    )
    np.testing.assert_allclose(other.relevance, as_written.relevance, rtol=1e-6)


def test_the_positive_rules_name_what_runs_in_another_thread():
    with pytest.warns(UserWarning, match="without their gradient .*another thread.* in Pooled"):
        gx.explain(gx.wrap(with_part(Threaded()), kind="regression"), graph(), "lrp_zplus")


def test_another_threads_passes_are_not_part_of_this_one():
    model = seeded(Pooled())
    data, zeros = graph(), torch.zeros(5).long()
    x = data.x.clone().requires_grad_()
    with (
        warnings.catch_warnings(),
        gx.conservative(activation="ratio", model=model),
        ThreadPoolExecutor(1) as pool,
    ):
        warnings.simplefilter("error")
        arguments = data.x.clone().requires_grad_(), data.edge_index, zeros
        other = pool.submit(model, *arguments).result()
        torch.testing.assert_close(model(x, data.edge_index, zeros), other)


# -- blocks in blocks --------------------------------------------------------------------------


def test_an_explanation_inside_a_block_equals_the_one_outside():
    layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True, activation="gelu")
    model = Pooled(lambda m, h: m.layer(h[None])[0])
    model.layer = layer
    wrapped = gx.wrap(seeded(model), kind="regression")
    for method in ("attn_lrp", "lrp", "gradient_input", "saliency", "rollout"):
        expected = gx.explain(wrapped, graph(), method).relevance
        with gx.conservative(products=True, activation="ratio", model=model):
            relevance = gx.explain(wrapped, graph(), method).relevance
            assert current_rules() == Rules(True, True, "ratio", True)
        np.testing.assert_allclose(relevance, expected, rtol=1e-4, atol=1e-6, err_msg=method)


def test_the_inner_of_two_blocks_decides():
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6)).double()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)

    def relevance() -> Tensor:
        return torch.autograd.grad(model(x).square().sum(), x)[0]

    with gx.conservative(layernorm=False, activation="ratio", model=model):
        alone = relevance()
    with gx.conservative(activation="ratio", model=model):
        before = relevance()
        with gx.conservative(layernorm=False, activation="ratio", model=model):
            assert torch.equal(relevance(), alone)
        assert torch.equal(relevance(), before)
    assert not torch.allclose(alone, before)


def test_blocks_of_two_models_act_on_both():
    first, second = nn.Sequential(nn.GELU()), nn.Sequential(nn.Tanh())
    x = torch.randn(4, requires_grad=True)
    with (
        gx.conservative(activation="ratio", model=first),
        gx.conservative(activation="ratio", model=second),
    ):
        out = second(first(x))
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(x * slope, out)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this thread", "in another"])
def test_generators_closed_in_any_order_leave_nothing_in_force(elsewhere):
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6))
    x = torch.randn(3, 6, requires_grad=True)

    def slope() -> Tensor:
        return torch.autograd.grad(model(x).square().sum(), x)[0]

    def block():
        with gx.conservative(activation="ratio", model=model), gx.record():
            yield

    expected = slope()
    first, second = block(), block()
    next(first), next(second)
    if elsewhere:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(first.close).result()
            pool.submit(second.close).result()
    else:
        first.close()
        assert current_rules() == Rules(True, True, "ratio")
        second.close()
        assert torch._C._len_torch_function_stack() == 0
    assert current_rules() == Rules()
    assert torch.equal(slope(), expected)
    while torch._C._len_torch_function_stack():
        torch.overrides._pop_mode()


# -- chance and bad input ----------------------------------------------------------------------


def test_dropout_in_training_mode_is_named():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.GELU())
    x = torch.randn(3, 6, requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Sequential draws random numbers: 1: dropout"),
        gx.conservative(activation="ratio", model=model),
    ):
        model.train()(x)
    with warnings.catch_warnings(), gx.conservative(activation="ratio", model=model):
        warnings.simplefilter("error")
        model.eval()(x)


DROPPED = {
    "dropout": lambda h: F.dropout(h, 0.5),
    "scaled_dot_product_attention": lambda h: F.scaled_dot_product_attention(h, h, h, None, 0.5),
    "randn_like": lambda h: h + torch.randn_like(h),
}


@pytest.mark.parametrize("name", DROPPED)
@pytest.mark.parametrize("method", ["lrp", "saliency", "occlusion"])
def test_numbers_drawn_in_eval_mode_are_named_with_what_they_mean(name, method):
    model = gx.wrap(seeded(Pooled(lambda _, h: DROPPED[name](h))), kind="regression")
    with pytest.warns(UserWarning, match=f"Pooled draws random numbers: Pooled: {name}") as warned:
        explanation = gx.explain(model, graph(), method)
    said = " ".join(str(each.message) for each in warned)
    assert ("one random draw" if method == "lrp" else "is partly noise") in said
    assert "change under the rules" not in said
    if method == "lrp":
        assert abs(explanation.ledger.unexplained) < 1e-5


def test_what_cannot_be_explained_says_why():
    with pytest.raises(TypeError, match=r"Pooled cannot be explained.*graphxai\.wrap"):
        gx.explain(Pooled(), graph())
    with torch.inference_mode():
        model = seeded(Pooled())
    with pytest.raises(ValueError, match="Pooled has weights that were created in"):
        gx.explain(gx.wrap(model, kind="regression"), graph())
    data = graph()
    data.x = data.x.to("meta")
    with pytest.raises(InputError, match="meta"), suppress(RuntimeError):
        gx.explain(gx.wrap(seeded(Pooled()), kind="regression"), data)


def squared_gate(h: Tensor) -> Tensor:
    return torch.tanh(h) * torch.relu(h)


def test_a_scripted_function_whose_results_torchscript_attached_is_explained_as_it_was_written():
    """After some calls TorchScript gives what the function returns a backward pass of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(squared_gate)
        model = seeded(Pooled(lambda _, h: scripted(h)))
        for _ in range(4):
            with_script = explained(model)
    other = explained(seeded(Pooled(lambda _, h: squared_gate(h))))
    torch.testing.assert_close(torch.tensor(with_script.relevance), torch.tensor(other.relevance))


def test_a_reason_names_the_operation_as_pytorch_spells_it():
    class Sized(nn.Module):
        def forward(self, h):
            return h * torch.linalg.svdvals(h).sum()

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.sized, self.head = Sized(), nn.Linear(6, 1)

        def forward(self, x, edge_index, batch):
            return self.head(self.sized(x)).mean(0, keepdim=True)

    model = gx.wrap(Network(), kind="regression")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gx.explain(model, graph(), "lrp")
    assert model.why_recorded.startswith("linalg_svd in sized; ")
