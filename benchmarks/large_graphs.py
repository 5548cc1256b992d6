"""Measure LRP of single large graphs, in multiples of a gradient, with the memory that it takes.

Every measurement has a process of its own, whose data may take at most 8 GB:

    python benchmarks/large_graphs.py
"""

import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GINConv, GPSConv, global_mean_pool
from torch_geometric.nn.models import SGFormer

import graphxai as gx

MOST = 8 << 30  # bytes
WIDTH, FEATURES, NODES = 64, 16, 10
DENSE, SPARSE = (1000, 2500, 5000), (5000, 50_000)


class Gps(nn.Module):
    """Two layers of PyG's GPS, with a mean over all nodes."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.embedding = nn.Linear(FEATURES, WIDTH)
        self.layers = nn.ModuleList(
            GPSConv(WIDTH, GINConv(_perceptron()), 4, norm="layer_norm", attn_type=attention)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Return one output per graph (B, 1)."""
        h = self.embedding(x)
        for layer in self.layers:
            h = layer(h, edge_index, batch)
        return self.head(global_mean_pool(h, batch))


class Gcn(nn.Module):
    """Two layers of GCN, with an output for every node."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(FEATURES, WIDTH), GCNConv(WIDTH, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits of every node (N, 3)."""
        return self.second(self.first(x, edge_index).relu(), edge_index)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "GPS, dense attention": (lambda: Gps("multihead"), DENSE, False),
    "GPS, Performer": (lambda: Gps("performer"), SPARSE, False),
    "SGFormer": (lambda: SGFormer(FEATURES, WIDTH, 3), SPARSE, True),
    "GCN": (Gcn, SPARSE, True),
}


def random_graph(n: int) -> Data:
    """Return a graph of n nodes with six neighbours on average."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, n, (2, 3 * n), generator=generator)
    x = torch.randn(n, FEATURES, generator=generator)
    return Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], dim=1))


def measured(name: str, n: int) -> dict[str, float]:
    """Return seconds of processor time and peaks of memory in MB, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, _, of_nodes = MODELS[name]
    module, graph = make().eval(), random_graph(n)
    before = _peak()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST, MOST))

    def gradient() -> None:
        x = graph.x.clone().requires_grad_()
        inputs = (x, graph.edge_index, torch.zeros(n, dtype=torch.long))
        outputs = module(*inputs[:2]) if isinstance(module, Gcn) else module(*inputs)
        torch.autograd.grad(outputs[0, 0], x)

    def explain(**chosen: object) -> Callable[[], object]:
        return lambda: gx.explain(model, graph, **chosen)

    tasks = {"kind": "multiclass", "classes": 3} if of_nodes else {"kind": "regression"}
    model = gx.wrap(module, **tasks)
    results: dict[str, float] = {}
    runs = {"gradient": gradient, "lrp": explain(**({"node": 0} if of_nodes else {}))}
    if of_nodes:
        runs["nodes"] = explain(node=list(range(NODES)))
    for what, run in runs.items():
        seconds = [_timed(run) for _ in range(4)]
        results |= {f"{what} first": seconds[0], what: min(seconds[1:])}
        results[f"{what} MB"] = _peak() - before
    return results | {"hooks": float(model.tier == "hooks")}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _timed(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def in_own_process(name: str, n: int) -> dict[str, float] | None:
    """Return what is measured in a new process, or None if it needs more memory."""
    command = [sys.executable, __file__, name, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-300:], file=sys.stderr)
        return None
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Print the table."""
    print("| model | nodes | gradient | LRP | first call | LRP of 10 nodes | memory |")
    print("|---|---|---|---|---|---|---|")
    for name, (_, sizes, _) in MODELS.items():
        for n in sizes:
            result = in_own_process(name, n)
            if result is None:
                print(f"| {name} | {n:,} | over 8 GB | | | | |", flush=True)
                break
            unit, several = result["gradient"], result.get("nodes")
            print(
                f"| {name}{'' if result['hooks'] else ' (recorded)'} | {n:,} | {1e3 * unit:.0f} ms"
                f" | {result['lrp'] / unit:.1f} | {result['lrp first'] / unit:.1f}"
                f" | {'' if several is None else format(several / unit, '.1f')}"
                f" | {result['gradient MB'] / 1e3:.2f}, {result['lrp MB'] / 1e3:.2f} GB |",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
