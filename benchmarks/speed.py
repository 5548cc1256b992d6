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
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import unittest.mock
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from rdkit import Chem, RDLogger

import graphxai as gx
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
    Task,
    backward,
    collate,
)

BATCH = 64
LAYERS, DIM, HEADS = 2, 64, 8


def molecules(count: int, data: str | None) -> list[str]:
    try:
        smiles = [graph.smiles for graph in load_bace(data, download=False)]
    except FileNotFoundError:
        smiles = list(MOLECULES.values())
    return (smiles * (count // len(smiles) + 1))[:count]


def per_item(run: Callable[[], object], count: int, repeats: int = 5) -> float:
    """Return median milliseconds per molecule, after a warm-up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) / count * 1e3)
    return statistics.median(times)


def in_turn(
    runs: dict[str, Callable[[list[str]], object]], smiles: list[str], repeats: int = 9
) -> dict[str, float]:
    """Return processor milliseconds per molecule for functions that take turns.

    Taking turns exposes all of them to the same conditions, and processor time ignores other work
    on the machine. A turn is 32 molecules; the median over its repetitions counts.
    """
    totals = dict.fromkeys(runs, 0.0)
    for first in range(0, len(smiles), 32):
        part = smiles[first : first + 32]
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeats):
            for name, run in runs.items():
                start = time.thread_time()
                run(part)
                times[name].append(time.thread_time() - start)
        for name, values in times.items():
            totals[name] += statistics.median(values)
    return {name: total / len(smiles) * 1e3 for name, total in totals.items()}


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


def measure(smiles: list[str]) -> dict[str, float]:
    """Return milliseconds per molecule for each of our steps, and for OGB's featuriser."""
    from ogb.utils import smiles2graph  # imported by the features, without its version check

    model, count = ours(), len(smiles)
    encode = StructureEncoding.from_config(model.config)
    graphs = [molecule_to_data(s) for s in smiles]
    encoded = sorted((encode(g.clone()) for g in graphs), key=lambda g: int(g.num_nodes))
    batches = [collate(encoded[i : i + BATCH]) for i in range(0, count, BATCH)]

    def run_all(method: str) -> None:
        explainer = get_explainer(method)
        for batch in batches:
            explainer.attribute(model, batch)

    @torch.inference_mode()
    def forward() -> None:
        for batch in batches:
            model(batch)

    featurising: dict[str, Callable[[list[str]], object]] = {
        "parse SMILES (RDKit)": lambda part: [Chem.MolFromSmiles(s) for s in part],
        "SMILES to features": lambda part: list(molecules_to_data(part)),
        "SMILES to features, one by one": lambda part: [molecule_to_data(s) for s in part],
        "SMILES to features, OGB": lambda part: [smiles2graph(s) for s in part],
    }
    return in_turn(featurising, smiles) | {
        "structure": per_item(lambda: [encode(g.clone()) for g in graphs], count),
        "forward": per_item(forward, count),
        "Gradient x Input": per_item(lambda: run_all("gradient_input"), count),
        "LRP": per_item(lambda: run_all("lrp"), count),
        "GAE": per_item(lambda: run_all("gae"), count),
        "SMILES to explanation": per_item(lambda: gx.explain(model, smiles), count),
    }


def measure_published(smiles: list[str]) -> dict[str, float]:
    """Measure the published pipeline, batched by its own collator; {} if not installed."""
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
        "structure": per_item(structure, count, 3),
        "forward": per_item(forward, count, 3),
        "Gradient x Input": per_item(lambda: gradient_input(ready), count, 3),
        "SMILES to explanation": per_item(pipeline, count, 3),
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


def fastest(
    runs: dict[str, Callable[[], object]], count: int, repeats: int = 7
) -> dict[str, float]:
    """Return processor milliseconds per molecule, the best of several turns, after a warm-up."""
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(repeats + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if turn:
                best[name] = min(best[name], (time.process_time() - start) / count * 1e3)
    return best


def measure_backward(model: Graphormer, smiles: list[str]) -> dict[str, float]:
    """Time LRP's explicit backward pass beside autograd, on prebuilt batches."""
    encode = StructureEncoding.from_config(model.config)
    graphs = sorted(
        (encode(graph) for graph in molecules_to_data(smiles)), key=lambda g: int(g.num_nodes)
    )
    batches = [collate(graphs[i : i + BATCH]) for i in range(0, len(graphs), BATCH)]
    lrp = get_explainer("lrp")

    @torch.no_grad()
    def forward() -> None:
        for batch in batches:
            model(batch)

    def bare() -> None:
        for batch in batches:
            tokens = model.embed(batch).detach().requires_grad_()
            torch.autograd.grad(model.encode(tokens, batch)[:, 0].sum(), tokens)

    def explicit() -> None:
        for batch in batches:
            lrp.attribute(model, batch)

    def through_autograd() -> None:
        with unittest.mock.patch.object(backward, "applies", return_value=False):
            explicit()

    runs: dict[str, Callable[[], object]] = {
        "forward": forward,
        "forward and backward (autograd)": bare,
        "LRP through autograd": through_autograd,
        "LRP, explicit": explicit,
    }
    return fastest(runs, len(graphs))


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
        " of seven runs that take turns. Look at the ratios.",
        "",
        "| | seconds | of `import torch` |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {s:.2f} | {s / torch_alone:.2f} |" for name, s in best.items()]
    return "\n".join([*lines, ""])


def report(own: dict[str, float], published: dict[str, float], count: int) -> str:
    lines = [
        "# Speed",
        "",
        f"{count} molecules, one thread, batches of {BATCH}, a Graphormer with {LAYERS} layers of"
        f" width {DIM}. The figures are median milliseconds per molecule, from one run on one"
        " machine. Look at the ratios.",
        "",
        "| step | graphxai | published | ratio |",
        "|---|---|---|---|",
    ]
    ogb = own["SMILES to features, OGB"]
    featurising = {"SMILES to features": ogb, "SMILES to features, one by one": ogb}
    other = published | featurising
    for name, value in own.items():
        if name.endswith("OGB"):
            continue
        theirs = other.get(name)
        cells = f"{theirs:.2f} | {theirs / value:.1f}" if theirs else " | "
        lines.append(f"| {name} | {value:.2f} | {cells} |")
    parse = own["parse SMILES (RDKit)"]
    ours, theirs = own["SMILES to features"] - parse, ogb - parse
    lines.append(f"| features without parsing | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} |")
    ratio = own["LRP"] / own["Gradient x Input"]
    lines += [
        "",
        f"LRP takes {ratio:.2f} of the time of Gradient x Input, whose ledger also computes"
        " the shares of the structure and what each operation creates or loses.",
        "",
    ]
    lines += [
        "The rows for parsing and features are processor time, measured while the functions take"
        ' turns of 32 molecules. "SMILES to features" is `molecules_to_data`; "one by one" is'
        ' `molecule_to_data`, which "SMILES to explanation" uses.',
        "",
        "\"Published\" is OGB's `smiles2graph` for the features. For the rest it is Hugging Face's"
        " port of Graphormer (`transformers` 4.57.6), batched and sorted by size in the same way,"
        " and explained by Gradient x Input. Salts are left out, because one of them makes the"
        " published collator pad its whole batch to 510 hops.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with bace/raw/bace.csv")
    parser.add_argument("--molecules", type=int, default=512)
    parser.add_argument("--many", type=Path, metavar="TABLE", help="CSV file with many SMILES")
    parser.add_argument("--only-many", action="store_true", help="leave out all other rows")
    parser.add_argument("--only-backward", action="store_true", help="only the backward pass")
    parser.add_argument("--only-start", action="store_true", help="measure only the start-up")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    RDLogger.DisableLog("rdApp.*")
    parts = []
    if not (options.only_many or options.only_start):
        smiles = molecules(options.molecules, options.data)
        smiles = [s for s in smiles if "." not in s]
        if not options.only_backward:
            parts.append(report(measure(smiles), measure_published(smiles), len(smiles)))
        models = {f"{LAYERS} x {DIM}": ours(), "BACE, 4 x 128": gx.load("bace")}
        found = {name: measure_backward(model, smiles) for name, model in models.items()}
        parts.append(report_backward(found, len(smiles)))
    if options.many:
        parts.append(report_many(measure_many(options.many, 20_000)))
    if not options.only_many:
        parts.append(report_start(measure_start()))
    text = "\n".join(parts)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
