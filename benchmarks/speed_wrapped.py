"""Measure time and memory for explaining a wrapped model, beside those of its plain gradient."""

import copy
import itertools
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from speed_timing import taking_turns
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, GINEConv, GPSConv, global_mean_pool

import graphxai as gx
from graphxai.engine.request import recorded_only


class WrappedCase(NamedTuple):
    """A GPS of some layers and width, and how many graphs of how many nodes it explains."""

    layers: int
    width: int
    graphs: int
    nodes: int
    goal: float  # times a plain gradient

    def __str__(self) -> str:
        model = f"{self.layers} layers of {self.width}"
        return f"{model}, {self.graphs} graphs of about {self.nodes} nodes"


CASES = (
    WrappedCase(10, 64, 64, 30, 1.6),
    WrappedCase(3, 32, 16, 14, 3.0),
    WrappedCase(2, 64, 8, 22, 4.0),
)
EDGES = 4  # features of an edge
METHODS = {"lrp": "LRP", "gradient_input": "Gradient x Input", "attn_lrp": "AttnLRP"}


class PlainGps(nn.Module):
    """A GPS with one output for each graph, and if asked an encoder of edges that has a bias."""

    def __init__(self, case: WrappedCase, with_edges: bool) -> None:
        super().__init__()
        width = case.width
        self.embed, self.head = nn.Linear(16, width), nn.Linear(width, 1)
        self.edges = nn.Linear(EDGES, width) if with_edges else None
        kind = GINEConv if with_edges else GINConv
        convolutions = (kind(nn.Linear(width, width)) for _ in range(case.layers))
        self.layers = nn.ModuleList(GPSConv(width, each, heads=4) for each in convolutions)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x = self.embed(x)  # (N, D)
        options = {} if self.edges is None else {"edge_attr": self.edges(edge_attr)}
        for layer in self.layers:
            x = layer(x, edge_index, batch, **options)
        return self.head(global_mean_pool(x, batch))  # (B, 1)


def graphs_of(case: WrappedCase) -> list[Data]:
    """Return graphs with random edges and features, a third smaller to a third larger."""
    draw = torch.Generator().manual_seed(0)
    sizes = torch.randint(
        2 * case.nodes // 3, 4 * case.nodes // 3 + 1, (case.graphs,), generator=draw
    )
    return [
        Data(
            x=torch.randn(nodes, 16, generator=draw),
            edge_index=torch.randint(nodes, (2, 2 * nodes), generator=draw),
            edge_attr=torch.randn(2 * nodes, EDGES, generator=draw),
        )
        for nodes in sizes.tolist()
    ]


def measure_wrapped(repeats: int = 7) -> dict[tuple[WrappedCase, bool], dict[str, float]]:
    """Return milliseconds and megabytes of `gx.explain` and of a plain gradient, by model."""
    return {
        (case, with_edges): _measure(case, with_edges, repeats)
        for case in CASES
        for with_edges in (False, True)
    }


def _measure(case: WrappedCase, with_edges: bool, repeats: int) -> dict[str, float]:
    torch.manual_seed(0)
    module = PlainGps(case, with_edges).eval()
    graphs = graphs_of(case)
    batch = Batch.from_data_list(graphs)

    def plain() -> None:
        x = batch.x.clone().requires_grad_()
        output = module(x, batch.edge_index, batch.edge_attr, batch.batch).sum()
        (x * torch.autograd.grad(output, x)[0]).sum(-1)

    def explaining(method: str, recording: bool = False) -> Callable[[], object]:
        model = gx.wrap(copy.deepcopy(module), kind="regression")  # its first call is to come

        def run() -> None:
            with recorded_only() if recording else nullcontext():
                gx.explain(model, graphs, method)

        return run

    makers = {name: partial(explaining, name) for name in METHODS}
    makers["second"] = partial(explaining, "lrp", recording=True)
    for make in makers.values():
        make()()  # loads what is loaded at first use
    results = {f"{name} first": first_call(make) for name, make in makers.items()}
    runs = {"plain": plain} | {name: make() for name, make in makers.items()}
    for run in runs.values():
        run()
    results |= taking_turns(runs, 1, repeats)
    return results | {f"{name} MB": peak_memory(runs[name]) for name in ("plain", *METHODS)}


def first_call(make: Callable[[], Callable[[], object]], repeats: int = 5) -> float:
    """Return the least processor milliseconds of the first calls of some new models."""
    seconds = []
    for run in [make() for _ in range(repeats)]:
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return 1e3 * min(seconds)


def peak_memory(run: Callable[[], object]) -> float:
    """Return the megabytes that tensors made in a run occupy at most."""
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    result = profile.profiler.kineto_results
    changes = [e for e in result.events() if e.name() == "[memory]"]
    held = itertools.accumulate(e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns()))
    return max(held) / 1e6


def report_wrapped(results: dict[tuple[WrappedCase, bool], dict[str, float]]) -> str:
    """Return the section about wrapped models."""
    titles = " | ".join(METHODS.values())
    lines = [
        "## Wrapped models",
        "",
        "A GPS (PyG) with and without an encoder of edges that has a bias, one thread: processor"
        " milliseconds of a plain batched Gradient x Input; then for `gx.explain` with some methods"
        " and their ledgers how many times that is, the milliseconds of the first call of a model,"
        " and the most memory that tensors take, in times of the plain gradient's (the goal is 2);"
        " and the same times and first call if LRP records every pass. Explaining runs the model"
        " once, beside a graph without nodes; the first call of a model also runs it for checks.",
        "",
        f"| model | edges | gradient | goal | {titles} | LRP, recorded |",
        f"|---|---|---|---|{'---|' * len(METHODS)}---|",
    ]
    for (case, with_edges), values in results.items():
        plain = values["plain"]
        cells = [str(case), "biased" if with_edges else "none", f"{plain:.1f}", f"{case.goal:.1f}"]
        for name in METHODS:
            memory = values[f"{name} MB"] / values["plain MB"]
            cells.append(f"{values[name] / plain:.2f}, {values[f'{name} first']:.0f}, {memory:.2f}")
        cells.append(f"{values['second'] / plain:.2f}, {values['second first']:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
