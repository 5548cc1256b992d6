"""No function of PyTorch loses a gradient in silence: a pass that would is refused by name."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import graphxai as gx
from graphxai.contract.batch import NodeLayout
from graphxai.engine.plan import Roles, make_plan
from graphxai.engine.replay import Replay
from graphxai.engine.request import PassMemory, PassRequest, record_pass
from graphxai.engine.trace import Trace
from graphxai.rules.conservative import Rules

N = 4
PLACES = (torch, torch.linalg, torch.sparse, torch.special, nn.functional, torch.Tensor)
# they end the process, need several processes, or change what other tests do
LEFT_OUT = {
    "compile", "save", "load", "set_default_tensor_type", "set_printoptions", "seed", "manual_seed",
    "fork", "wait", "segment_reduce", "set_", "share_memory_", "backward", "register_hook",
    "requires_grad_", "retain_grad", "detach_", "share_memory", "set_data", "apply_", "map_",
    "map2_", "module_load",
}  # fmt: skip
FORMS = {
    "dense": lambda matrix: matrix,
    "sparse": torch.Tensor.to_sparse,
    "CSR": torch.Tensor.to_sparse_csr,
}


class OfTwo(nn.Module):
    """A function of a constant matrix and the rows of nodes, in either order."""

    def __init__(self, function, matrix, swapped):
        super().__init__()
        self.function, self.matrix, self.swapped = function, matrix, swapped

    def forward(self, h):
        matrix, h = self.matrix.clone(), h.clone()  # some functions write to them
        out = self.function(*((h, matrix) if self.swapped else (matrix, h)))
        out = out[0] if isinstance(out, tuple | list) else out
        return out.to_dense() if out.layout != torch.strided else out


def functions():
    """List the functions and methods of PyTorch that may take two tensors, by name."""
    named = {
        f"{getattr(place, '__name__', 'torch')}.{name}": getattr(place, name, None)
        for place in PLACES
        for name in dir(place)
        if name not in LEFT_OUT and not (name.startswith("_") or name.startswith("set_"))
    }
    return {name: f for name, f in named.items() if callable(f) and not isinstance(f, type)}


def own_gradient(module, rows):
    """Return autograd's gradient of a weighted sum of what a module returns, or None."""
    leaf = rows.clone().requires_grad_()
    out = module(leaf)
    if not isinstance(out, torch.Tensor) or not out.requires_grad or not out.numel():
        return None
    (gradient,) = torch.autograd.grad((out * weights(out)).sum(), leaf)
    return gradient if bool(gradient.isfinite().all()) else None


def weights(out):
    return 1 + torch.arange(out.numel()).view_as(out) / out.numel()


def gradient_of_the_list(module, rows):
    """Return the gradient of the recorded list that runs again, without rules."""
    request = PassRequest(module, module, rows, NodeLayout.of(torch.ones(1, N, dtype=torch.bool)))
    trace: Trace = record_pass(request)
    leaf = rows.clone().requires_grad_()
    out = Replay(make_plan(trace, Roles(), Rules()), {trace.slot_of(1): leaf}).output()
    if not out.requires_grad:
        return torch.zeros_like(rows)
    return torch.autograd.grad((out * weights(out)).sum(), leaf)[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_function_of_two_tensors_has_the_gradient_of_autograd_or_is_refused(form):
    draw = torch.Generator().manual_seed(0)
    matrix, rows = (torch.rand(N, N, generator=draw) + 0.1 for _ in range(2))
    tried, lost = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in functions().items():
            for swapped in (False, True):
                module = OfTwo(function, FORMS[form](matrix.clone()), swapped)
                torch.manual_seed(0)
                try:
                    gradient = own_gradient(module, rows)
                except Exception:
                    continue  # it is no function of two such tensors
                if gradient is None:
                    continue
                tried += 1
                torch.manual_seed(0)
                try:
                    again = gradient_of_the_list(module, rows)
                except (ValueError, RuntimeError):
                    continue  # it is refused
                if bool((again - gradient).abs().max() > 1e-3 * gradient.abs().max()):
                    lost.append(name)
    assert not lost
    assert tried > {"dense": 250, "sparse": 40, "CSR": 20}[form]


class ReversedGradient(torch.autograd.Function):
    """Passes back the gradient with its sign reversed (Ganin 2015)."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Cubed(torch.autograd.Function):
    """Passes back the gradient of what it computes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


def with_hook(h):
    h = h * 2
    if h.requires_grad:
        h.register_hook(lambda gradient: 5 * gradient)
    return h


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (ReversedGradient.apply, "ReversedGradientBackward"),
        (with_hook, "a hook"),
        (Cubed.apply, ""),
    ],
)
def test_what_passes_back_another_gradient_than_that_of_the_model_is_named_once(function, said):
    class Follows(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)

        def forward(self, x):
            return self.last(function(self.first(x))).sum(0, keepdim=True)

    torch.manual_seed(0)
    model, plain = gx.wrap(Follows().eval(), kind="regression"), Data(x=torch.rand(N, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explanations = [gx.explain(model, plain, "gradient_input") for _ in range(2)]
    named = [str(w.message) for w in caught if "passes back something else" in str(w.message)]
    assert [text.split(" passes")[0] for text in named] == ([said] if said else [])
    slope = {"ReversedGradientBackward": 1, "a hook": 2}.get(said)
    if slope:  # the function is linear, and relevance follows what it computes
        weights = slope * model.module.last.weight @ model.module.first.weight
        expected = (plain.x * weights.detach()).sum(-1)
        assert explanations[0].relevance == pytest.approx(expected.numpy(), rel=1e-5)


def tripled(module, to_inputs, to_outputs):
    return tuple(None if gradient is None else 3 * gradient for gradient in to_inputs)


@pytest.mark.parametrize("changing", ["a module's hook", "a function", "a hook that only looks"])
@pytest.mark.parametrize(
    "method", ["saliency", "smoothgrad", "integrated_gradients", "gnn_explainer"]
)
def test_methods_of_plain_gradients_follow_what_the_model_computes_too(method, changing):
    class Follows(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.function = nn.Linear(2, 3), nn.Linear(3, 1), None

        def forward(self, x):
            h = self.first(x).tanh()
            return self.last(self.function(h) if self.function else h).sum(0, keepdim=True)

    torch.manual_seed(0)
    module, plain = Follows().eval(), Data(x=torch.rand(N, 2))
    expected = gx.explain(gx.wrap(module, kind="regression"), plain, method)
    if changing == "a function":
        module.function = ReversedGradient.apply
    else:
        looks = changing == "a hook that only looks"
        module.last.register_full_backward_hook((lambda *_: None) if looks else tripled)
    model = gx.wrap(module, kind="regression")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        e = gx.explain(model, plain, method)
    said = any("passes back something else" in str(w.message) for w in caught)
    assert said == (changing != "a hook that only looks")
    np.testing.assert_allclose(e.relevance, expected.relevance, rtol=1e-5, atol=1e-6)


class Grows(nn.Module):
    """Uses another function for larger graphs."""

    def forward(self, h):
        return h.sum() if len(h) < 5 else h.exp().sum()


def test_the_proof_is_made_again_for_an_operation_that_no_earlier_pass_had():
    module, memory = Grows(), PassMemory()
    for count, new in ((4, {"sum"}), (3, set()), (6, {"exp"}), (5, set())):
        before = set(memory.proved)
        layout = NodeLayout.of(torch.ones(1, count, dtype=torch.bool))
        record_pass(PassRequest(module, module, torch.rand(count, 2), layout, memory=memory))
        names = {func._schema.name.removeprefix("aten::") for func, _ in memory.proved - before}
        assert names - {"detach"} == new
