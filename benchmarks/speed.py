"""Speed of the toolkit relative to the published pipelines, as ratios from one run.

    python benchmarks/speed.py [--data FOLDER] [--molecules 512] [--many TABLE]
                               [--out benchmarks/speed.md]
    python benchmarks/speed.py --many TABLE --only-many
    python benchmarks/speed.py --only-backward
    python benchmarks/speed.py --only-start

If BACE is not available, the molecules are the package's samples, repeated. The comparison with
the published Graphormer pipeline needs `transformers==4.57.6` (the last release that has it) and
`cython<3.1`; without them those rows are left out. Everything runs in one thread.

TABLE is a CSV file with a column `smiles` and some 20,000 molecules, such as MoleculeNet's HIV.
These are also featurised by worker processes.

The start-up of a program (`--only-start`) is the processor time of new processes, from a warm disk
cache.
"""

import argparse
import contextlib
import itertools
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import unittest.mock
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rdkit import Chem, RDLogger
from torch import Tensor
from torch_geometric.data import Data

import graphxai as gx
from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import prepare_all
from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, BOND_CARDINALITIES
from graphxai.datasets.molecules import (
    RejectedRow,
    iter_table,
    load_bace,
    molecule_to_data,
    molecules_to_data,
)
from graphxai.datasets.samples import MOLECULES
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    StructureEncoding,
    backward,
    collate,
    encoding,
)

BATCH = 64
LAYERS, DIM, HEADS = 2, 64, 8


def molecules(count: int, data: str | None) -> list[str]:
    try:
        smiles = [graph.smiles for graph in load_bace(data, download=False)]
    except FileNotFoundError:
        smiles = list(MOLECULES.values())
    return (smiles * (count // len(smiles) + 1))[:count]


def taking_turns(
    runs: dict[str, Callable[[], object]], count: int, repeats: int = 7
) -> dict[str, float]:
    """Return processor milliseconds per molecule for functions that take turns.

    Taking turns exposes all of them to the same conditions, and processor time ignores other work
    on the machine. After a warm-up, the least of their repetitions counts.
    """
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return {name: seconds / count * 1e3 for name, seconds in best.items()}


def in_turns_of_32(
    runs: dict[str, Callable[[list[str]], object]], smiles: list[str]
) -> dict[str, float]:
    """Return processor milliseconds per molecule for functions that take turns of 32 molecules."""
    totals = dict.fromkeys(runs, 0.0)
    for first in range(0, len(smiles), 32):
        part = smiles[first : first + 32]
        found = taking_turns({name: partial(run, part) for name, run in runs.items()}, 1)
        totals = {name: total + found[name] for name, total in totals.items()}
    return {name: total / len(smiles) for name, total in totals.items()}


def ours() -> Graphormer:
    torch.manual_seed(0)
    tasks = (Task("a", "multiclass", ("0", "1")),)
    config = GraphormerConfig(
        tasks,
        num_layers=LAYERS,
        hidden_dim=DIM,
        ffn_dim=DIM,
        num_heads=HEADS,
        node_cardinalities=ATOM_CARDINALITIES,
        edge_cardinalities=BOND_CARDINALITIES,
    )
    return Graphormer(config).eval()


def both_models() -> dict[str, Graphormer]:
    return {f"{LAYERS} x {DIM}": ours(), "BACE (4 x 128)": gx.load("bace")}


def featurising(smiles: list[str]) -> dict[str, float]:
    """Return milliseconds per molecule for parsing and features, ours and OGB's."""
    from ogb.utils import smiles2graph  # imported by the features, without its version check

    runs: dict[str, Callable[[list[str]], object]] = {
        "parse SMILES (RDKit)": lambda part: [Chem.MolFromSmiles(s) for s in part],
        "SMILES to features": lambda part: list(molecules_to_data(part)),
        "SMILES to features, one by one": lambda part: [molecule_to_data(s) for s in part],
        "SMILES to features, OGB": lambda part: [smiles2graph(s) for s in part],
    }
    return in_turns_of_32(runs, smiles)


def in_compiled_code(wanted: bool) -> None:
    """Encode in compiled code from the first graph on, or never."""
    encoding.COMPILED_FROM = 0 if wanted else math.inf


def prebuilt(model: Graphormer, smiles: list[str]) -> list[GraphBatch]:
    graphs = [item.graph for item in prepare_all(model, smiles)]
    graphs.sort(key=lambda graph: int(graph.num_nodes or 0))
    return [collate(graphs[i : i + BATCH]) for i in range(0, len(graphs), BATCH)]


def bare_gradient(model: Graphormer, batches: list[GraphBatch]) -> None:
    """Forward and backward of the network alone: from the largest output to the tokens."""
    for batch in batches:
        tokens = model.embed(batch).detach().requires_grad_()
        torch.autograd.grad(model.encode(tokens, batch).max(-1).values.sum(), tokens)


def own_runs(smiles: list[str]) -> dict[str, Callable[[], object]]:
    """Return our steps after the features."""
    model = ours()
    encode = StructureEncoding.from_config(model.config)
    graphs = list(molecules_to_data(smiles))
    batches = prebuilt(model, smiles)

    def run_all(method: str) -> None:
        explainer = get_explainer(method)
        for batch in batches:
            explainer.attribute(model, batch)

    @torch.inference_mode()
    def forward() -> None:
        for batch in batches:
            model(batch)

    return {
        "structure": lambda: [encode(copy(g)) for g in graphs],
        "forward": forward,
        "Gradient x Input": lambda: run_all("gradient_input"),
        "LRP": lambda: run_all("lrp"),
        "GAE": lambda: run_all("gae"),
        "SMILES to explanation": lambda: gx.explain(model, smiles),
    }


def measure_preparing(smiles: list[str]) -> dict[str, float]:
    """Return milliseconds per molecule for the ways to prepare molecules."""
    model = ours()
    encode = StructureEncoding.from_config(model.config)
    graphs = list(molecules_to_data(smiles))

    def prepared(compiled: bool, one_by_one: bool = False) -> Callable[[], object]:
        def run() -> None:
            in_compiled_code(compiled)
            for part in [[s] for s in smiles] if one_by_one else [smiles]:
                prepare_all(model, part)

        return run

    def encoded(compiled: bool) -> Callable[[], object]:
        def run() -> None:
            in_compiled_code(compiled)
            for graph in graphs:
                encode(copy(graph))

        return run

    runs = {
        "prepare, one by one, NumPy": prepared(False, one_by_one=True),
        "prepare, NumPy": prepared(False),
        "prepare, compiled": prepared(True),
        "of which structure, NumPy": encoded(False),
        "of which structure, compiled": encoded(True),
    }
    return taking_turns(runs, len(smiles))


def measure_explaining(smiles: list[str]) -> dict[str, dict[str, float]]:
    """Return milliseconds per molecule of `gx.explain` and of what it contains, by model."""
    runs: dict[str, Callable[[], object]] = {}
    models = both_models()
    for name, model in models.items():
        batches, explainer = prebuilt(model, smiles), get_explainer("lrp")
        runs[f"{name}/bare"] = partial(bare_gradient, model, batches)
        runs[f"{name}/LRP"] = lambda m=model, b=batches, e=explainer: [e.attribute(m, x) for x in b]
        runs[f"{name}/explain"] = partial(gx.explain, model, smiles)
    found = taking_turns(runs, len(smiles))
    return {
        name: {step: found[f"{name}/{step}"] for step in ("bare", "LRP", "explain")}
        for name in models
    }


def measure_large(
    sizes: Iterable[int] = (100, 200, 496, 1000, 2000),
) -> dict[int, dict[str, float]]:
    """Return milliseconds of encoding one chain of n atoms, and of the forward pass."""
    model, rows = ours(), {}
    encode = StructureEncoding.from_config(model.config)
    for n in sizes:
        graph = molecule_to_data("NCC(=O)" * (n // 4), max_atoms=n)
        batch = collate([encode(copy(graph))])

        def encoded(compiled: bool, graph: Data = graph) -> None:
            in_compiled_code(compiled)
            encode(copy(graph))

        def forward(batch: GraphBatch = batch) -> None:
            with torch.inference_mode():
                model(batch)

        runs = {
            "NumPy": partial(encoded, False),
            "compiled": partial(encoded, True),
            "forward": forward,
        }
        rows[n] = taking_turns(runs, 1)
    return rows


def published_runs(smiles: list[str]) -> dict[str, Callable[[], object]]:
    """Return the published pipeline's steps, batched by its own collator; {} if not installed."""
    try:
        warnings.simplefilter("ignore")
        from transformers.models.deprecated.graphormer import (  # type: ignore[import-not-found]
            collating_graphormer,
            configuration_graphormer,
            modeling_graphormer,
        )
    except ImportError:
        return {}
    from ogb.utils import smiles2graph

    count = len(smiles)
    config = configuration_graphormer.GraphormerConfig(
        num_classes=2,
        num_hidden_layers=LAYERS,
        embedding_dim=DIM,
        ffn_embedding_dim=DIM,
        num_attention_heads=HEADS,
        edge_type="multi_hop",
    )
    model = modeling_graphormer.GraphormerForGraphClassification(config).eval()
    collator = collating_graphormer.GraphormerDataCollator(on_the_fly_processing=False)

    def features() -> list[dict]:
        items = []
        for text in smiles:
            graph = smiles2graph(text)
            graph["edge_attr"] = graph.pop("edge_feat")
            items.append(graph | {"labels": [0]})
        return items

    raw = features()
    sizes = sorted(range(count), key=lambda i: raw[i]["num_nodes"])

    def structure() -> list[dict]:
        return [collating_graphormer.preprocess_item(dict(raw[i])) for i in sizes]

    encoded = structure()

    def batches(items: list[dict]) -> list[dict]:
        parts = [items[i : i + BATCH] for i in range(0, len(items), BATCH)]
        return [collator([dict(item) for item in part]) for part in parts]

    ready = batches(encoded)
    for batch in ready:
        batch.pop("labels")

    @torch.inference_mode()
    def forward() -> None:
        for batch in ready:
            model(**batch)

    def gradient_input(parts: list[dict]) -> None:
        embedded: list[torch.Tensor] = []

        def keep(_: object, __: object, output: torch.Tensor) -> None:
            output.retain_grad()
            embedded.append(output)

        hook = model.encoder.graph_encoder.graph_node_feature.register_forward_hook(keep)
        for batch in parts:
            logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
            logits.max(-1).values.sum().backward()
            (embedded[-1] * embedded[-1].grad).sum(-1)
            embedded.clear()
            model.zero_grad()
        hook.remove()

    def pipeline() -> None:
        items = sorted(features(), key=lambda item: item["num_nodes"])
        gradient_input(batches([collating_graphormer.preprocess_item(i) for i in items]))

    return {
        "structure": structure,
        "forward": forward,
        "Gradient x Input": lambda: gradient_input(ready),
        "SMILES to explanation": pipeline,
    }


class ManyMolecules(NamedTuple):
    """Times of featurising many molecules in several ways, each the best of several runs."""

    count: int
    wall: dict[str, float]  # milliseconds per molecule
    busy: dict[str, float]  # processor time per molecule, in all processes together
    parent: float  # processor time per molecule in the parent of the workers
    first_graph: float  # seconds from the call to the first graph from workers
    first_of_all: float  # the same for a program's first call


def worker_seconds() -> float:
    """Return the processor time of the worker processes so far; 0 if there is no /proc."""
    ticks = 0
    for process in multiprocessing.active_children():
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def measure_many(table: Path, count: int, workers: int = 2, repeats: int = 5) -> ManyMolecules:
    """Time several ways to featurise, which take turns; a turn is all molecules."""
    from ogb.utils import smiles2graph

    rows = (row for row in iter_table(table) if not isinstance(row, RejectedRow))
    smiles = [row.smiles for row in islice(rows, count)]
    count = len(smiles)
    ways: dict[str, Callable[[], Iterable[object]]] = {
        "OGB's `smiles2graph`": lambda: map(smiles2graph, smiles),
        "`molecules_to_data`": lambda: molecules_to_data(smiles),
        f"`molecules_to_data`, {workers} workers": lambda: molecules_to_data(
            smiles, workers=workers
        ),
    }
    wall: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    parent: list[float] = []  # of the last way, as the next one
    first: list[float] = []
    for _ in range(repeats):
        for name, way in ways.items():
            start, own = time.perf_counter(), time.process_time()
            graphs = iter(way())
            next(graphs)
            until_first = time.perf_counter() - start
            deque(islice(graphs, count - 2), maxlen=0)
            others = worker_seconds()  # before they end
            deque(graphs, maxlen=0)
            own = time.process_time() - own
            wall[name].append((time.perf_counter() - start) / count * 1e3)
            busy[name].append((own + others) / count * 1e3)
        parent.append(own / count * 1e3)
        first.append(until_first)
    return ManyMolecules(
        count,
        {name: min(times) for name, times in wall.items()},
        {name: min(times) for name, times in busy.items()},
        min(parent),
        min(first[1:]),
        first[0],
    )


def report_many(many: ManyMolecules) -> str:
    lines = [
        "## Many molecules",
        "",
        f"SMILES to features of {many.count:,} molecules on two cores, including the start of the"
        " workers. The figures are milliseconds per molecule, each the best of several runs in"
        " which the three ways take turns. Wall-clock time depends on what else the machine does;"
        " processor time, summed over all processes, does not.",
        "",
        "| | wall clock | ratio | processor |",
        "|---|---|---|---|",
    ]
    published, *_ = many.wall.values()
    for name, value in many.wall.items():
        ratio = f"{published / value:.1f}"
        lines.append(f"| {name} | {value:.2f} | {ratio} | {many.busy[name]:.2f} |")
    lines += [
        "",
        f"Two workers deliver their first graph after {many.first_graph:.1f} s, the first time in a"
        f" program after {many.first_of_all:.1f} s. The main process itself is busy for"
        f" {many.parent:.3f} ms per molecule, which limits what more workers can gain.",
        "",
    ]
    return "\n".join(lines)


def measure_backward(smiles: list[str]) -> dict[str, dict[str, float]]:
    """Time LRP's explicit backward pass beside autograd, on prebuilt batches, by model."""
    lrp = get_explainer("lrp")

    @torch.no_grad()
    def forward(model: Graphormer, batches: list[GraphBatch]) -> None:
        for batch in batches:
            model(batch)

    def explicit(model: Graphormer, batches: list[GraphBatch]) -> None:
        for batch in batches:
            lrp.attribute(model, batch)

    def through_autograd(model: Graphormer, batches: list[GraphBatch]) -> None:
        with unittest.mock.patch.object(backward, "applies", return_value=False):
            explicit(model, batches)

    ways = {
        "forward": forward,
        "forward and backward (autograd)": bare_gradient,
        "LRP through autograd": through_autograd,
        "LRP, explicit": explicit,
    }
    found = {}
    for name, model in both_models().items():
        batches = prebuilt(model, smiles)
        runs = {step: partial(way, model, batches) for step, way in ways.items()}
        found[name] = taking_turns(runs, len(smiles))
    return found


def report_backward(found: dict[str, dict[str, float]], count: int) -> str:
    lines = [
        "## The backward pass",
        "",
        f"{count} molecules in prebuilt batches of {BATCH}, one thread: processor milliseconds per"
        " molecule, each the best of 7 turns. LRP includes the ledger and the split by feature. A"
        " ratio says how many times faster than the bare network's forward and backward pass.",
        "",
        "| model | pass | ms | ratio |",
        "|---|---|---|---|",
    ]
    for name, times in found.items():
        bare = times["forward and backward (autograd)"]
        lines += [f"| {name} | {step} | {t:.2f} | {bare / t:.2f} |" for step, t in times.items()]
    return "\n".join([*lines, ""])


STARTS = {
    "`import torch`": ("-c", "import torch"),
    "`import torch_geometric`": ("-c", "import torch_geometric"),
    "`import graphxai`": ("-c", "import graphxai"),
    "`graphxai --help`": ("-m", "graphxai", "--help"),
    "`graphxai predict CCO`": ("-m", "graphxai", "predict", "CCO"),
    "`graphxai explain CCO --out x.svg`": ("-m", "graphxai", "explain", "CCO", "--out", "x.svg"),
}


def measure_start(repeats: int = 7) -> dict[str, float]:
    """Return the processor seconds of new processes, the best of several runs that take turns."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        # byte code is kept, as for an installed package; the first turn writes it
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env |= {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(Path(folder) / "compiled")}
        for turn in range(repeats + 1):
            for name, arguments in STARTS.items():
                command = [sys.executable, *arguments]
                with subprocess.Popen(
                    command, cwd=folder, env=env, stdout=subprocess.DEVNULL
                ) as new:
                    _, status, used = os.wait4(new.pid, 0)
                    new.returncode = os.waitstatus_to_exitcode(status)
                if new.returncode:
                    raise RuntimeError(f"{name} failed.")
                if turn:
                    seconds = used.ru_utime + used.ru_stime
                    best[name] = min(seconds, best.get(name, seconds))
    return best


def report_start(best: dict[str, float]) -> str:
    torch_alone, *_ = best.values()
    lines = [
        "## Start-up",
        "",
        "A new process from a warm disk cache, one thread: processor time in seconds, each the best"
        " of seven runs that take turns. Trust the ratios more than the times.",
        "",
        "| | seconds | of `import torch` |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {s:.2f} | {s / torch_alone:.2f} |" for name, s in best.items()]
    return "\n".join([*lines, ""])


def measure(smiles: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return milliseconds per molecule of our steps, and of the published pipeline's."""
    published = {f"published/{name}": run for name, run in published_runs(smiles).items()}
    found = taking_turns(own_runs(smiles) | published, len(smiles))
    theirs = {name.removeprefix("published/"): found.pop(name) for name in published}
    return featurising(smiles) | found, theirs


def report(own: dict[str, float], published: dict[str, float], count: int) -> str:
    lines = [
        "# Speed",
        "",
        f"{count} molecules, one thread, batches of {BATCH}, a Graphormer with {LAYERS} layers of"
        f" width {DIM}. The figures are milliseconds of processor time per molecule, each the least"
        " of seven repetitions in which all steps take turns, from one run on one machine. Look at"
        " the ratios.",
        "",
        "| step | graphxai | published | ratio |",
        "|---|---|---|---|",
    ]
    ogb = own["SMILES to features, OGB"]
    other = published | {"SMILES to features": ogb, "SMILES to features, one by one": ogb}
    for name, value in own.items():
        if name.endswith("OGB"):
            continue
        theirs = other.get(name)
        cells = f"{theirs:.2f} | {theirs / value:.1f}" if theirs else " | "
        lines.append(f"| {name} | {value:.2f} | {cells} |")
    parse = own["parse SMILES (RDKit)"]
    ours, theirs = own["SMILES to features"] - parse, ogb - parse
    lines.append(f"| features without parsing | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} |")
    lines += [
        "",
        f"LRP takes {own['LRP'] / own['Gradient x Input']:.2f} of the time of Gradient x Input,"
        " whose ledger also computes the shares of the structure and what each operation creates or"
        " loses.",
        "",
        'The rows for parsing and features take turns of 32 molecules. "SMILES to features" is'
        ' `molecules_to_data`; "one by one" is `molecule_to_data`. The structure is encoded in'
        " compiled code (extra `fast`), as it is once enough graphs were encoded.",
        "",
        "\"Published\" is OGB's `smiles2graph` for the features. For the rest it is Hugging Face's"
        " port of Graphormer (`transformers` 4.57.6), batched and sorted by size in the same way,"
        " and explained by Gradient x Input. Salts are left out, because one of them makes the"
        " published collator pad its whole batch to 510 hops.",
        "",
    ]
    return "\n".join(lines)


def report_explaining(explaining: dict[str, dict[str, float]], preparing: dict[str, float]) -> str:
    lines = [
        "## A list of molecules",
        "",
        "`gx.explain` of a list of SMILES beside the bare network's forward and backward pass (from"
        " the largest output to the tokens) on batches made before. Processor time as above.",
        "",
        "| model | bare network | LRP on the same batches | `gx.explain` | bare / `gx.explain` |",
        "|---|---|---|---|---|",
    ]
    for name, of in explaining.items():
        ratio = of["bare"] / of["explain"]
        cells = " | ".join(f"{of[step]:.2f}" for step in ("bare", "LRP", "explain"))
        lines.append(f"| {name} | {cells} | {ratio:.2f} |")
    first = next(iter(preparing.values()))
    lines += ["", "| preparing | ms per molecule | ratio |", "|---|---|---|"]
    for name, value in preparing.items():
        ratio = f"{first / value:.1f}" if name.startswith("prepare") else ""
        lines.append(f"| {name} | {value:.2f} | {ratio} |")
    return "\n".join([*lines, ""])


def report_large(large: dict[int, dict[str, float]]) -> str:
    lines = [
        "## Large molecules",
        "",
        "Encoding the structure of one polyglycine chain, and the forward pass, in milliseconds of"
        " processor time.",
        "",
        "| atoms | structure, NumPy | structure, compiled | forward |",
        "|---|---|---|---|",
    ]
    for n, of in large.items():
        cells = " | ".join(f"{of[step]:.1f}" for step in ("NumPy", "compiled", "forward"))
        lines.append(f"| {n:,} | {cells} |")
    return "\n".join([*lines, ""])


WRAPPED = {  # layers of GPS x 64, graphs, nodes of each
    "10 layers, 64 graphs of 30 nodes": (10, 64, 30),
    "3 layers, 16 graphs of 8 nodes": (3, 16, 8),
}


def measure_wrapped(repeats: int = 7) -> dict[str, dict[str, float]]:
    """Return milliseconds for `gx.explain` of a wrapped GPS, and for a plain gradient."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GINConv, GPSConv, global_mean_pool

    class Gps(torch.nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Linear(16, 64), torch.nn.Linear(64, 1)
            conv = (GINConv(torch.nn.Linear(64, 64)) for _ in range(layers))
            self.layers = torch.nn.ModuleList(GPSConv(64, one, heads=4) for one in conv)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x, edge_index, batch)
            return self.head(global_mean_pool(x, batch))

    def ring(nodes: int) -> Data:
        one = torch.arange(nodes)
        edges = torch.cat([torch.stack([one, one.roll(k)]) for k in (1, -1)], dim=1)
        return Data(x=torch.randn(nodes, 16), edge_index=edges)

    found = {}
    for name, (layers, count, nodes) in WRAPPED.items():
        torch.manual_seed(0)
        module, graphs = Gps(layers).eval(), [ring(nodes) for _ in range(count)]
        model, batch = gx.wrap(module, kind="regression"), Batch.from_data_list(graphs)

        def plain(module: Gps = module, batch: Batch = batch) -> None:
            x = batch.x.clone().requires_grad_()
            output = module(x, batch.edge_index, batch.batch).sum()
            (x * torch.autograd.grad(output, x)[0]).sum(-1)

        def explained(model: Any = model, graphs: list[Data] = graphs) -> None:
            gx.explain(model, graphs)

        runs: dict[str, Callable[[], object]] = {"plain": plain, "lrp": explained}
        found[name] = taking_turns(runs, 1, repeats)
        found[name] |= {f"{run} MB": peak_memory(runs[run]) for run in runs}
    return found


def peak_memory(run: Callable[[], object]) -> float:
    """Return the megabytes that tensors made in a run occupy at most."""
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    result = profile.profiler.kineto_results
    changes = [e for e in result.events() if e.name() == "[memory]"]
    held = itertools.accumulate(e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns()))
    return max(held) / 1e6


def report_wrapped(found: dict[str, dict[str, float]]) -> str:
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
    for name, of in found.items():
        cells = (
            f"{of['plain' + unit]:.1f} | {of['lrp' + unit]:.1f}"
            f" | {of['lrp' + unit] / of['plain' + unit]:.2f}"
            for unit in ("", " MB")
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with bace/raw/bace.csv")
    parser.add_argument("--molecules", type=int, default=512)
    parser.add_argument("--many", type=Path, metavar="TABLE", help="CSV file with many SMILES")
    parser.add_argument("--only-many", action="store_true", help="leave out all other rows")
    parser.add_argument("--only-backward", action="store_true", help="only the backward pass")
    parser.add_argument("--only-start", action="store_true", help="measure only the start-up")
    parser.add_argument("--only-wrapped", action="store_true", help="only wrapped models")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    RDLogger.DisableLog("rdApp.*")
    parts = []
    if not (options.only_many or options.only_start or options.only_wrapped):
        smiles = molecules(options.molecules, options.data)
        smiles = [s for s in smiles if "." not in s]
        if not options.only_backward:
            in_compiled_code(True)
            parts.append(report(*measure(smiles), len(smiles)))
            explaining = measure_explaining(smiles)
            parts.append(report_explaining(explaining, measure_preparing(smiles)))
            parts.append(report_large(measure_large()))
        parts.append(report_backward(measure_backward(smiles), len(smiles)))
    if options.many:
        parts.append(report_many(measure_many(options.many, 20_000)))
    if not (options.only_many or options.only_backward or options.only_start):
        parts.append(report_wrapped(measure_wrapped()))
    if not (options.only_many or options.only_backward or options.only_wrapped):
        parts.append(report_start(measure_start()))
    text = "\n".join(parts)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
