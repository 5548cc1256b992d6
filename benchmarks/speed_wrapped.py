"""Time and memory of explaining a wrapped model, beside a plain gradient of it."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from speed_timing import taking_turns
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, GPSConv, global_mean_pool

import graphxai as gx

MODELS = {  # layers of width 64, graphs, nodes of each graph
    "10 layers, 64 graphs of 30 nodes": (10, 64, 30),
    "3 layers, 16 graphs of 8 nodes": (3, 16, 8),
}


class PlainGps(nn.Module):
    """A GPS of width 64 with one output for each graph."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, 64), nn.Linear(64, 1)
        convolutions = (GINConv(nn.Linear(64, 64)) for _ in range(layers))
        self.layers = nn.ModuleList(GPSConv(64, each, heads=4) for each in convolutions)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.embed(x)  # (N, 64)
        for layer in self.layers:
            x = layer(x, edge_index, batch)
        return self.head(global_mean_pool(x, batch))  # (B, 1)


def ring(nodes: int) -> Data:
    """Return a ring whose nodes have random features."""
    index = torch.arange(nodes)
    edges = torch.cat([torch.stack([index, index.roll(k)]) for k in (1, -1)], dim=1)
    return Data(x=torch.randn(nodes, 16), edge_index=edges)


def measure_wrapped(repeats: int = 7) -> dict[str, dict[str, float]]:
    """Return milliseconds and megabytes of `gx.explain` and of a plain gradient, by model."""
    results = {}
    for name, (layers, count, nodes) in MODELS.items():
        torch.manual_seed(0)
        module, graphs = PlainGps(layers).eval(), [ring(nodes) for _ in range(count)]
        model, batch = gx.wrap(module, kind="regression"), Batch.from_data_list(graphs)

        def plain(module: PlainGps = module, batch: Batch = batch) -> None:
            x = batch.x.clone().requires_grad_()
            output = module(x, batch.edge_index, batch.batch).sum()
            (x * torch.autograd.grad(output, x)[0]).sum(-1)

        def explained(model: Any = model, graphs: list[Data] = graphs) -> None:
            gx.explain(model, graphs)

        runs: dict[str, Callable[[], object]] = {"plain": plain, "lrp": explained}
        results[name] = taking_turns(runs, 1, repeats)
        results[name] |= {f"{run} MB": peak_memory(runs[run]) for run in runs}
    return results


def peak_memory(run: Callable[[], object]) -> float:
    """Return the megabytes that tensors made in a run occupy at most."""
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    result = profile.profiler.kineto_results
    changes = [e for e in result.events() if e.name() == "[memory]"]
    held = itertools.accumulate(e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns()))
    return max(held) / 1e6


def report_wrapped(results: dict[str, dict[str, float]]) -> str:
    """Return the section about wrapped models."""
    lines = [
        "## Wrapped models",
        "",
        "A GPS of width 64 (PyG), one thread: processor milliseconds of `gx.explain` with LRP and"
        " its ledger, beside a plain batched Gradient x Input, and how much memory the tensors of"
        " each take at most. The goals are 1.6 and 3 times the time of the plain gradient, and"
        " twice its memory. The memory goal is met, the time goals are not, that for large batches"
        " by little. Every operation passes through Python once, where it is checked against the"
        " list of an earlier batch; merely letting all of them pass through a mode of PyTorch's"
        " dispatcher that does nothing makes the forward pass of small graphs take twice as long."
        " The model also runs again without nodes. The first batch of a model, which records the"
        " list, is not counted.",
        "",
        "| | Gradient x Input | `gx.explain` | times | MB | MB | times |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, values in results.items():
        cells = (
            f"{values['plain' + unit]:.1f} | {values['lrp' + unit]:.1f}"
            f" | {values['lrp' + unit] / values['plain' + unit]:.2f}"
            for unit in ("", " MB")
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
