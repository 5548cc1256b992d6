"""No kind of tensor in a model ends the process, or leaves a bare error of PyTorch."""

import subprocess
import sys

FUZZ = """
import faulthandler, warnings
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
import graphxai as gx

warnings.simplefilter("ignore")

def rows(h, b, n):
    return [h[b == k] for k in range(n)]

def jagged(h, b, n):
    return torch.nested.as_nested_tensor(rows(h, b, n), layout=torch.jagged)

def strided(h, b, n):
    return torch.nested.as_nested_tensor(rows(h, b, n))

def masked(h):
    return torch.masked.as_masked_tensor(h, h > 0)

class Subclass(torch.Tensor):
    pass

linear = nn.Linear(4, 4)
KINDS = {
    "jagged": lambda h, b, n: F.gelu(jagged(h, b, n)).values(),
    "jagged layer": lambda h, b, n: linear(jagged(h, b, n)).values(),
    "nested": lambda h, b, n: torch.cat(strided(h, b, n).unbind()),
    "nested layer": lambda h, b, n: torch.cat(linear(strided(h, b, n)).unbind()),
    "coo": lambda h, b, n: torch.sparse.mm(torch.eye(len(h)).to_sparse(), h),
    "csr": lambda h, b, n: torch.eye(len(h)).to_sparse_csr() @ h,
    "bsr": lambda h, b, n: torch.eye(len(h)).to_sparse_bsr((1, 1)) @ h,
    "sparse signal": lambda h, b, n: torch.sparse.softmax(h.to_sparse(), 1).to_dense(),
    "complex": lambda h, b, n: torch.complex(h, linear(h)).abs(),
    "fft": lambda h, b, n: torch.fft.irfft(torch.fft.rfft(h), n=4),
    "masked": lambda h, b, n: masked(h).to_tensor(0.0),
    "masked sum": lambda h, b, n: h + masked(h).sum(1).to_tensor(0.0)[:, None],
    "subclass": lambda h, b, n: h.as_subclass(Subclass).tanh(),
    "float8": lambda h, b, n: h.to(torch.float8_e4m3fn).float(),
    "quantised": lambda h, b, n: torch.quantize_per_tensor(h, 0.1, 0, torch.qint8).dequantize(),
    "vmap": lambda h, b, n: torch.vmap(torch.func.grad(lambda z: linear(z).pow(2).sum()))(h),
}

class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 1)
        self.linear, self.kind = linear, kind

    def forward(self, x, edge_index, batch, batch_size):
        h = KINDS[self.kind](self.first(x), batch, batch_size)
        return self.out(global_add_pool(F.gelu(h), batch, size=batch_size))

edges = torch.tensor([[0, 1], [1, 0]])
graphs = [Data(x=torch.randn(n, 4), edge_index=edges) for n in (3, 5)]
for kind in KINDS:
    for method in ("lrp", "integrated_gradients", "lrp_path", "lrp_zplus", "occlusion"):
        model = gx.wrap(Model(kind).eval(), kind="regression")
        try:
            gx.explain(model, graphs, method, on_error="raise")
            outcome = "explained"
        except ValueError as error:
            text = str(error)
            known = "relevance cannot be followed" in text or "attention" in text
            outcome = "refused" if known and method != "occlusion" else "refused: " + text
        except Exception as error:
            outcome = f"bare: {type(error).__name__}: {error}".splitlines()[0]
        print(f"{kind}, {method}: {outcome}", flush=True)
"""


def test_all_kinds_are_explained_or_refused_by_name():
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", FUZZ], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    outcomes = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert len(outcomes) == 16 * 5
    assert set(outcomes.values()) == {"explained", "refused"}
    assert {kind for kind in outcomes if kind.endswith("occlusion")} <= {
        kind for kind, outcome in outcomes.items() if outcome == "explained"
    }
