"""Time the explanation of lists of molecules and of large ones, and the backward pass alone."""

import unittest.mock
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial

import torch
from speed_models import (
    BATCH,
    bare_gradient,
    both_models,
    in_compiled_code,
    prebuilt,
    small_graphormer,
)
from speed_timing import taking_turns
from torch_geometric.data import Data

import graphxai as gx
from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import prepare_all
from graphxai.datasets.molecules import molecule_to_data, molecules_to_data
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import Graphormer, StructureEncoding, backward, collate


def measure_explaining(smiles: list[str]) -> dict[str, dict[str, float]]:
    """Return milliseconds per molecule of `gx.explain` and of what it contains, by model."""
    runs: dict[str, Callable[[], object]] = {}
    models = both_models()
    for name, model in models.items():
        batches, explainer = prebuilt(model, smiles), get_explainer("lrp")
        runs[f"{name}/bare"] = partial(bare_gradient, model, batches)
        runs[f"{name}/LRP"] = lambda m=model, b=batches, e=explainer: [e.attribute(m, x) for x in b]
        runs[f"{name}/explain"] = partial(gx.explain, model, smiles)
    times = taking_turns(runs, len(smiles))
    return {
        name: {step: times[f"{name}/{step}"] for step in ("bare", "LRP", "explain")}
        for name in models
    }


def measure_preparing(smiles: list[str]) -> dict[str, float]:
    """Return milliseconds per molecule for the ways to prepare molecules."""
    model = small_graphormer()
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


def report_explaining(explaining: dict[str, dict[str, float]], preparing: dict[str, float]) -> str:
    """Return the section about lists of molecules."""
    lines = [
        "## A list of molecules",
        "",
        "`gx.explain` of a list of SMILES beside the bare network's forward and backward pass (from"
        " the largest output to the tokens) on batches made before. Processor time as above.",
        "",
        "| model | bare network | LRP on the same batches | `gx.explain` | bare / `gx.explain` |",
        "|---|---|---|---|---|",
    ]
    for name, times in explaining.items():
        ratio = times["bare"] / times["explain"]
        cells = " | ".join(f"{times[step]:.2f}" for step in ("bare", "LRP", "explain"))
        lines.append(f"| {name} | {cells} | {ratio:.2f} |")
    first = next(iter(preparing.values()))
    lines += ["", "| preparing | ms per molecule | ratio |", "|---|---|---|"]
    for name, value in preparing.items():
        ratio = f"{first / value:.1f}" if name.startswith("prepare") else ""
        lines.append(f"| {name} | {value:.2f} | {ratio} |")
    return "\n".join([*lines, ""])


def measure_large(
    sizes: Iterable[int] = (100, 200, 496, 1000, 2000),
) -> dict[int, dict[str, float]]:
    """Return milliseconds of encoding one chain of n atoms, and of the forward pass."""
    model, rows = small_graphormer(), {}
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


def report_large(large: dict[int, dict[str, float]]) -> str:
    """Return the section about large molecules."""
    lines = [
        "## Large molecules",
        "",
        "Encoding the structure of one polyglycine chain, and the forward pass, in milliseconds of"
        " processor time.",
        "",
        "| atoms | structure, NumPy | structure, compiled | forward |",
        "|---|---|---|---|",
    ]
    for n, times in large.items():
        cells = " | ".join(f"{times[step]:.1f}" for step in ("NumPy", "compiled", "forward"))
        lines.append(f"| {n:,} | {cells} |")
    return "\n".join([*lines, ""])


def measure_backward(smiles: list[str]) -> dict[str, dict[str, float]]:
    """Return milliseconds per molecule of LRP's backward pass and of autograd, by model."""
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
    times = {}
    for name, model in both_models().items():
        batches = prebuilt(model, smiles)
        runs = {step: partial(way, model, batches) for step, way in ways.items()}
        times[name] = taking_turns(runs, len(smiles))
    return times


def report_backward(times: dict[str, dict[str, float]], count: int) -> str:
    """Return the section about the backward pass."""
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
    for name, steps in times.items():
        bare = steps["forward and backward (autograd)"]
        lines += [f"| {name} | {step} | {t:.2f} | {bare / t:.2f} |" for step, t in steps.items()]
    return "\n".join([*lines, ""])
