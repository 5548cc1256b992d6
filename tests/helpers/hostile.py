"""Check what must hold for any input, however strange, with one check for each kind of input.

A check returns if the library does its work or refuses the input by an error of its own. Anything
else is a fault. `tests/data/hostile.jsonl` holds inputs that once were faults.
"""

import contextlib
import csv
import functools
import io
import json
import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from composed import (
    Composed,
    Expected,
    attends_plainly,
    differences,
    graph,
    plainly,
    well_conditioned,
)
from rdkit import rdBase

import graphxai as gx
from graphxai.contract.inputs import prepare_all
from graphxai.contract.model import NoAttentionError
from graphxai.datasets.molecule_reading import CONTROL
from graphxai.datasets.molecules import molecule_to_data, read_table
from graphxai.engine.request import recorded_only
from graphxai.explainers import get_explainer
from graphxai.explainers.layers import joined
from graphxai.models.graphormer import CheckpointError, load_checkpoint, save_checkpoint
from graphxai.rules.conservative import record
from graphxai.runtime.derived_values import cached_passes
from graphxai.tables.run import explain_table
from graphxai.tables.settings import Pictures
from toy import random_graphormer

FAR = 1e-4  # relative: a fault is far more, rounding in a saturated softmax nearly as much
CORPUS = Path(__file__).parents[1] / "data" / "hostile.jsonl"


def corpus() -> list[dict[str, Any]]:
    """Return every input that was once a fault: kind, value, and why it was one."""
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]


@functools.cache
def _model() -> Any:
    return random_graphormer(num_layers=1)


@functools.cache
def _saved() -> tuple[dict[str, Any], bytes]:
    """Return the configuration and the weights of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = save_checkpoint(_model(), folder)
        content = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return content, (path / "model.safetensors").read_bytes()


def check_cells(cells: list[str]) -> None:
    """Check that every SMILES of a column is explained or rejected, and no file is broken."""
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "table.csv", Path(folder) / "out"
        with table.open("w", encoding="utf-8", newline="") as file:
            rows = [("id", "smiles"), *((f"name {cell}", cell) for cell in cells)]
            csv.writer(file).writerows(rows)
        counts = explain_table(
            _model(),
            table,
            out,
            get_explainer("lrp"),
            name_column="id",
            pictures=Pictures(),
            formats=["sdf"],
        )
        assert counts.done + counts.rejected == len(cells)
        row_numbers = []
        for name in ("explanations.csv", "rejected.csv"):
            text = (out / name).read_text(encoding="utf-8-sig")
            assert not CONTROL.search(text), "a control character"
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
            assert all(math.isfinite(float(row.get("output", 0))) for row in rows)
            row_numbers += [int(row["row"]) for row in rows]
        assert sorted(row_numbers) == list(range(1, len(cells) + 1))
        assert (out / "explanations.sdf").read_text().count("$$$$\n") == counts.done
        assert len(list((out / "pictures").iterdir())) == counts.done


def check_bytes(raw: str) -> None:
    """Check that a file of any bytes (one for each character) is read as a table, or refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_bytes(raw.encode("latin-1"))
        with contextlib.suppress(ValueError):
            read_table(path)


def check_config(changes: dict[str, Any]) -> None:
    """Check that a configuration gives a model that predicts numbers, or a CheckpointError."""
    content, weights = _saved()
    _check_checkpoint(json.dumps(content | {"model": content["model"] | changes}), weights)


def check_weights(change: list[Any]) -> None:
    """Check that weights with bytes replaced from a place on, or cut there, are used or refused."""
    content, weights = _saved()
    place, raw = change
    place %= len(weights)
    raw = raw.encode("latin-1")
    _check_checkpoint(json.dumps(content), weights[:place] + raw + weights[place + len(raw) :])


def _check_checkpoint(config: str, weights: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(config, encoding="utf-8")
        (folder / "model.safetensors").write_bytes(weights)
        try:
            model = load_checkpoint(folder)
        except CheckpointError:
            return
        try:
            gx.explain(model, "CCO").save(folder / "a.json")
        except ValueError:
            return
        text = (folder / "a.json").read_text(encoding="utf-8")
        json.loads(text, parse_constant=lambda name: 1 / 0)


def check_data(changes: dict[str, list[Any]]) -> None:
    """Check that a graph with any tensors (dtype, shape, value) is explained or refused."""
    data = molecule_to_data("CCO")
    del data.smiles
    for name, (dtype, shape, value) in changes.items():
        data[name] = torch.full(shape, value).to(getattr(torch, dtype))
    with contextlib.suppress(ValueError):
        gx.explain(_model(), data)


def check_folder(changes: list[list[Any]]) -> None:
    """Check that a run folder with damaged files is continued, or refused unchanged."""
    with tempfile.TemporaryDirectory() as name:
        table, out = Path(name) / "table.csv", Path(name) / "out"
        table.write_text("smiles\nCCO\nC1\nCCN\n", encoding="utf-8")
        run = functools.partial(
            explain_table, _model(), table, out, get_explainer("lrp"), formats=["sdf"]
        )
        run()
        whole = {path.name: path.read_bytes() for path in out.iterdir()}
        for file, place, raw in changes:
            content = (out / file).read_bytes()
            place %= len(content) + 1
            (out / file).write_bytes(content[:place] + raw.encode("latin-1"))
        try:
            run(resume=True)
        except (ValueError, OSError):
            return
        if not any(raw for *_, raw in changes) and "run.json" not in {c[0] for c in changes}:
            assert {path.name: path.read_bytes() for path in out.iterdir()} == whole


def check_model(recipe: list[Any]) -> None:
    """Check LRP and AttnLRP of a composed model against its reference.

    LRP is checked in both tiers: by hooks on the autograd graph, where that says enough, and
    recorded. Other methods give the same relevance to the same model in other spellings. All this
    holds in a batch, when the pass is recorded and when it is followed, and for a graph alone.
    There is no warning.
    """
    model, graphs = Composed(*recipe), [graph(nodes) for nodes in (6, 9, 4)]
    wrapped = gx.wrap(model, kind="multiclass", classes=2)
    references = {  # by whether products are those of AttnLRP
        products: [well_conditioned(model, data, products) for data in graphs]
        for products in (False, True)
    }
    for method, batches, tier in (
        # what the first pass has shown serves the second
        ("lrp", ([0, 1, 2], [0, 1, 2], [1]), contextlib.nullcontext),
        ("lrp", ([0, 1, 2], [2]), recorded_only),
        ("attn_lrp", ([0, 1, 2], [1]), contextlib.nullcontext),
    ):
        products = method == "attn_lrp"
        wanted = [reference for reference in references[products] if reference is not None]
        if len(wanted) < len(graphs):
            continue
        for chosen in batches:
            with warnings.catch_warnings(record=True) as caught, tier():
                warnings.simplefilter("always")
                explanations = gx.explain(wrapped, [graphs[k] for k in chosen], method, target=1)
            said = {str(data.message) for data in caught if data.category is UserWarning}
            # that a pass is recorded costs time, but changes no result
            said = {message for message in said if "explained by recorded passes" not in message}
            odd = {text for text in said if "without their gradient" not in text}
            assert not odd, odd
            for k, explanation in zip(chosen, explanations, strict=True):
                gaps = differences(explanation, wanted[k])
                off = {name: gap for name, gap in gaps.items() if not gap < FAR}
                assert not off, f"{method}: {off}, relative to {wanted[k].largest:.3g}"
        if tier is not contextlib.nullcontext or method != "lrp":
            continue
        if attends_plainly(model):
            check_attention(wrapped, graphs, wanted)
        if plainly(*recipe) != tuple(recipe):
            with cached_passes(most=6):
                check_spelling(wrapped, Composed(*plainly(*recipe)), graphs[:2])


def check_spelling(model: Any, plain: Composed, graphs: list[Any]) -> None:
    """Check that attention methods and positive rules do not depend on a model's spelling."""
    other = gx.wrap(plain, kind="multiclass", classes=2)
    for method in ("lrp_zplus", "partial_lrp", "transformer_attribution", "gae", "rollout"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                plain_ones = gx.explain(other, graphs, method, target=1)
            except NoAttentionError:
                continue
            explanations = gx.explain(model, graphs, method, target=1)
        for explanation, plain_one in zip(explanations, plain_ones, strict=True):
            gap = abs(explanation.relevance - plain_one.relevance).max()
            largest = abs(plain_one.relevance).max()
            assert gap <= FAR * largest, f"{method}: {gap:.2g} of {largest:.2g} differ in spelling"


def check_attention(model: Any, graphs: list[Any], wanted: list[Expected]) -> None:
    """Check that the attention that methods read is that between nodes, layer by layer."""
    for some in ([0, 1, 2], [2]):
        items = prepare_all(model, [graphs[k] for k in some])
        batch = model.collate([item.data for item in items])
        with record() as tape:
            model.encode(model.embed(batch), batch)
        layers = joined(tape.chunks, tape.attention)
        for row, k in enumerate(some):
            assert len(layers) == len(wanted[k].attention), "a layer is missing"
            for layer_attention, matrix in zip(layers, wanted[k].attention, strict=True):
                graph_attention = layer_attention[
                    row, :, 1 : 1 + matrix.shape[1], 1 : 1 + matrix.shape[1]
                ]
                torch.testing.assert_close(graph_attention.detach(), matrix, rtol=FAR, atol=FAR)


CHECKS: dict[str, Callable[[Any], None]] = {
    "cells": check_cells,
    "bytes": check_bytes,
    "config": check_config,
    "weights": check_weights,
    "data": check_data,
    "folder": check_folder,
    "model": check_model,
}


def check(kind: str, value: Any) -> None:
    """Run the check of a kind of input, which raises an error if it finds a fault."""
    with warnings.catch_warnings(), rdBase.BlockLogs():
        warnings.simplefilter("ignore")
        CHECKS[kind](value)
