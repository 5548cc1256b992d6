"""Under the rules an operation returns what PyTorch returns, with its layout in memory."""

import pytest
import torch
from torch import nn

import graphxai as gx

F = nn.functional
WEIGHT = torch.linspace(0.5, 1.5, 4)
OPERATIONS = {
    "layer norm": lambda x: F.layer_norm(x, (4,), WEIGHT, WEIGHT),
    "RMS norm": lambda x: F.rms_norm(x, (4,), WEIGHT),
    "group norm": lambda x: F.group_norm(x, 1, torch.ones(x.shape[1]), torch.ones(x.shape[1])),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance norm": F.instance_norm,
    "normalize": lambda x: F.normalize(x, dim=-1),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "GLU": lambda x: F.glu(x, -1),
    "lerp": lambda x: torch.lerp(x, 2 * x, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "product": lambda x: x * x.sigmoid(),
    "matrix product": lambda x: x @ torch.ones(4, 4),
    **{name: getattr(F, name) for name in ("gelu", "silu", "relu", "elu", "softplus", "mish")},
    **{name: getattr(torch, name) for name in ("sigmoid", "tanh", "exp", "square", "sqrt")},
    **{f"{name} in place": getattr(torch.Tensor, f"{name}_") for name in ("relu", "tanh", "exp")},
}
LAYOUTS = {
    "time first": lambda x: x.transpose(0, 1),
    "features first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "as it is": lambda x: x,
}


class Model(nn.Module):
    """An operation on a tensor that lies in memory in its own way."""

    def __init__(self, operation, layout):
        super().__init__()
        self.operation, self.layout = operation, layout

    def forward(self, x):
        return self.operation(self.layout(x) * 1.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_strides_are_those_of_pytorch(name, layout):
    model = Model(OPERATIONS[name], LAYOUTS[layout])
    x = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    expected = model(x)
    settings = {"activation": "ratio", "products": name == "attention"}
    with gx.conservative(model=model, attention=name != "attention", **settings):
        out = model(x.clone().requires_grad_())
    torch.testing.assert_close(out.detach(), expected)
    assert out.stride() == expected.stride()


class Attention(nn.Module):
    """Attention whose heads are joined by a view, which only the layout of the query allows."""

    def __init__(self, masked):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.last, self.masked = nn.Linear(6, 18), nn.Linear(6, 1), masked

    def forward(self, x):
        size, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(size, tokens, 3, 2, 3).permute(2, 0, 3, 1, 4)
        mask = torch.zeros(tokens, tokens) if self.masked else None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.last(self.joined(out).mean(1))

    def joined(self, out):
        return out.transpose(1, 2).view(len(out), -1, 6)


class Reshaped(Attention):
    def joined(self, out):
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "gradient_input", "lrp_zplus", "rollout"])
def test_heads_may_be_joined_by_a_view_as_in_pytorch(method, masked):
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    models = [
        gx.wrap(module(masked).eval(), kind="regression", inputs="tokens")
        for module in (Attention, Reshaped)
    ]
    viewed, reshaped = (gx.explain(model, x, method).relevance for model in models)
    assert viewed == pytest.approx(reshaped, abs=1e-6)
    assert models[0].tier == models[1].tier
