"""A recorded pass is shown as text, with its operations in order and their roles."""

import re

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from graphxai.engine.recording import recording
from graphxai.engine.trace import Trace

N, DIM = 4, 3


class GraphAttention(nn.Module):
    """One head of a GAT layer, with its softmax over edges written out."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(DIM, DIM, bias=False)
        self.to_source, self.to_target = (
            nn.Parameter(torch.ones(DIM)),
            nn.Parameter(torch.ones(DIM)),
        )

    def forward(self, x, edges):
        h, (source, target) = self.project(x), edges
        scores = (h @ self.to_source)[source] + (h @ self.to_target)[target]
        weights = nn.functional.leaky_relu(scores, 0.2).exp()
        sums = weights.new_zeros(len(x)).index_add(0, target, weights)
        messages = (weights / sums[target])[:, None] * h[source]
        return h.new_zeros(h.shape).index_add(0, target, messages)


class Gated(nn.Module):
    """A gate, and a branch without a gradient."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, DIM)

    def forward(self, x):
        return x * self.gate(x).sigmoid() + x.detach().sin()


class Names(TorchDispatchMode):
    """A mode that collects the names of all operations that PyTorch's dispatcher runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::").rstrip("_"))
        return func(*args, **(kwargs or {}))


def gat() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return GraphAttention(), (torch.randn(N, DIM), torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 0]]))


def recorded(module, inputs) -> Trace:
    x, *others = inputs
    leaf = x.clone().requires_grad_()
    with recording(module, [leaf]) as end:
        return end(module(leaf, *others))


def marked(trace: Trace) -> list[str]:
    return str(trace).splitlines()


@pytest.mark.parametrize("make", [gat, lambda: (Gated(), (torch.randn(N, DIM),))])
def test_a_printed_pass_has_a_line_for_every_operation_of_the_dispatcher(make):
    module, inputs = make()
    with Names() as names:
        module(*inputs)
    listed = [
        re.search(r"= (\w+)\(", line)[1] for line in str(recorded(module, inputs)).splitlines()
    ]
    # under gradients PyTorch detaches what it saves, which is no operation of the model
    assert [name for name in listed if name != "detach"] == [
        name for name in names.names if name != "detach"
    ]


def test_the_product_of_a_softmax_over_edges_and_values_is_marked_as_attention():
    lines = marked(recorded(*gat()))
    (attention,) = (line for line in lines if "attention weights" in line)
    assert "mul(" in attention
    weights = re.search(r"attention weights (%\d+) constant under the rule attention", attention)[1]
    (made,) = (line for line in lines if re.search(rf"{weights} += ", line))
    assert "unsqueeze(" in made  # from one weight per edge to one per edge and channel
    (softmax,) = (line for line in lines if "part of a softmax" in line)
    assert "exp(" in softmax


def test_a_gate_is_marked_where_it_multiplies_the_signal():
    lines = marked(recorded(Gated(), (torch.randn(N, DIM),)))
    (gated,) = (line for line in lines if "constant under the rule attention" in line)
    (gate,) = (line for line in lines if "sigmoid(" in line)
    assert "mul(" in gated
    assert f"value {gate.split()[2]} constant" in gated


def test_a_star_marks_the_operations_that_gradients_flow_through():
    lines = str(recorded(Gated(), (torch.randn(N, DIM),))).splitlines()
    starred = {re.search(r"= (\w+)\(", line)[1]: " * " in line for line in lines}
    assert starred["sigmoid"]
    assert starred["mul"]
    assert not starred["sin"]
