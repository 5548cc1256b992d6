"""The conservative rules hold the right things constant, and leave nothing behind."""

import threading

import pytest
import torch
import torch.nn.functional as F

from graphxai.rules import conservative as propagation
from graphxai.rules.conservative import Rules, conservative, current_rules, current_tape, record
from graphxai.runtime.device import one_thread


@pytest.fixture
def x():
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)


def test_layernorm_rule_holds_the_scale_and_not_the_mean(x):
    weight, bias = torch.linspace(0.5, 2, 8), torch.linspace(-1, 1, 8)
    with conservative(attention=False, layernorm=True):
        y = propagation.layer_norm(x, weight, bias, 1e-5)
    torch.testing.assert_close(y, F.layer_norm(x, (8,), weight, bias, 1e-5))
    direction = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((y * direction).sum(), x)
    scale = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt().detach()
    weighted = direction * weight / scale
    torch.testing.assert_close(gradient, weighted - weighted.mean(-1, keepdim=True))


def test_layernorm_rule_holds_the_scale_of_rms_norm(x):
    weight = torch.linspace(0.5, 2, 8)
    scale = (x.detach().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    with conservative(attention=False, layernorm=True):
        y = propagation.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(y, x * weight / scale)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, (weight / scale).expand_as(x))


def test_without_a_rule_rms_norm_is_pytorchs_with_its_gradient(x):
    weight = torch.linspace(0.5, 2, 8)
    direction = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    gradients = [
        torch.autograd.grad((y * direction).sum(), x)[0]
        for y in (propagation.rms_norm(x, weight, 1e-5), F.rms_norm(x, (8,), weight, 1e-5))
    ]
    torch.testing.assert_close(*gradients)


def test_attention_rule_stops_the_gradient_at_the_weights(x):
    q, k = x[:, None], (2 * x)[:, None]
    bias = torch.zeros(1, 1, 5, 5)
    assert propagation.softmax_attention(q, k, bias).requires_grad
    with conservative(layernorm=False):
        weights = propagation.softmax_attention(q, k, bias)
    assert not weights.requires_grad
    torch.testing.assert_close(weights, torch.softmax(q @ k.transpose(-2, -1), -1))


def test_activation_ratio_makes_gradient_times_input_the_output(x):
    x = torch.cat([x, torch.zeros_like(x)], dim=-1)  # also at zero, where the ratio is 1/2
    with conservative(activation="ratio"):
        y = propagation.gelu(x)
    torch.testing.assert_close(y, F.gelu(x))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y.detach())
    assert (gradient[..., 8:] == 0.5).all()


@pytest.mark.parametrize(
    ("f", "slope"), [(torch.tanh, 1.0), (F.silu, 0.5), (F.elu, 1.0), (F.hardswish, 0.5)]
)
def test_at_zero_the_ratio_of_an_activation_is_its_slope(f, slope):
    """The ratio f(x) / x has f'(0) as its limit."""
    x = torch.tensor([0.0, -0.0, 1.5, -1.5], requires_grad=True)
    with conservative(activation="ratio"):
        y = propagation.by_ratio(x, f)
    torch.testing.assert_close(y, f(x))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient[:2], torch.full((2,), slope), atol=1e-4, rtol=0)
    torch.testing.assert_close((gradient * x)[2:], f(x)[2:])


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="the kernels for other processors depend on the number of rows in other ways",
)
@pytest.mark.parametrize("outputs", [1, 3, 24])
def test_the_last_bits_of_a_row_do_not_depend_on_the_rows_beside_it(outputs):
    """Libraries have other kernels for few rows, and for the last rows where outputs are few."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 80, generator=generator)
    weight = torch.randn(outputs, 80, generator=generator)
    with torch.no_grad(), one_thread():  # as in every explanation
        together = propagation.linear(rows, weight, None)
        for k in range(1, len(rows)):
            assert torch.equal(propagation.linear(rows[:k], weight, None), together[:k])


def test_outside_a_block_the_functions_are_pytorchs_own(x):
    weight, bias = torch.rand(8), torch.rand(8)
    matrix = torch.rand(3, 8)
    assert torch.equal(
        propagation.layer_norm(x, weight, bias, 1e-5), F.layer_norm(x, (8,), weight, bias, 1e-5)
    )
    assert torch.equal(propagation.gelu(x), F.gelu(x))
    assert torch.equal(propagation.linear(x, matrix, bias[:3]), F.linear(x, matrix, bias[:3]))


def test_rules_end_with_their_block_also_after_an_exception():
    with conservative():
        assert current_rules() == Rules(attention=True, layernorm=True)
        with conservative(attention=False):
            assert current_rules() == Rules(layernorm=True)
        assert current_rules() == Rules(attention=True, layernorm=True)
    with pytest.raises(KeyError), conservative(), record():
        raise KeyError
    assert current_rules() == Rules()
    assert current_tape() is None


def test_another_thread_sees_neither_rules_nor_recording():
    seen = []
    with conservative(), record():
        thread = threading.Thread(target=lambda: seen.append((current_rules(), current_tape())))
        thread.start()
        thread.join()
    assert seen == [(Rules(), None)]


def test_unknown_activation_rule_is_refused():
    with pytest.raises(ValueError, match="activation must be None or 'ratio'"):
        conservative(activation="identity").__enter__()


def test_what_is_recorded_of_an_operation_is_its_own(x):
    """Next to a residual connection, the recorded gradient is that of the operation alone."""
    weight, bias = torch.linspace(0.5, 2, 8), torch.linspace(-1, 1, 8)
    with record(operations=True) as tape:
        y = x + propagation.gelu(propagation.layer_norm(x, weight, bias, 1e-5))
    norm, activation = tape.operations
    assert (norm.name, activation.name) == ("LayerNorm", "activation")
    torch.testing.assert_close(norm.output, F.layer_norm(x, (8,), weight, None, 1e-5))
    torch.testing.assert_close(activation.input, norm.output + bias)
    torch.testing.assert_close(activation.output, F.gelu(activation.input))
    ends = (norm.input, norm.output, activation.input, activation.output)
    gradients = torch.autograd.grad(y.sum(), ends)
    z = activation.input.detach()
    pdf = torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5
    slope = (1 + torch.erf(z / 2**0.5)) / 2 + z * pdf
    weighted = slope * weight / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    unit = norm.output / weight
    along = unit * (weighted * unit).mean(-1, keepdim=True)
    expected = weighted - weighted.mean(-1, keepdim=True) - along
    for gradient, formula in zip(
        gradients, (expected, slope, slope, torch.ones_like(x)), strict=True
    ):
        torch.testing.assert_close(gradient, formula.detach())


def test_recorded_biases_are_one_copy_per_graph(x):
    bias = torch.linspace(-1, 1, 3)
    matrix = torch.rand(3, 8)
    with record(biases=True) as tape:
        y = propagation.linear(x, matrix, bias)
    torch.testing.assert_close(y, F.linear(x, matrix, bias))
    weights = torch.tensor([1.0, 10.0])[:, None, None]
    (gradient,) = torch.autograd.grad((y * weights).sum(), tape.biases)
    torch.testing.assert_close((gradient * bias).sum((1, 2)), 5 * bias.sum() * weights[:, 0, 0])
