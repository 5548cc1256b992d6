"""Read and write processes: folders with `config.json`, `model.safetensors` and a model card.

Nothing is unpickled. Every error names the file, and the key if there is one.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphxai.contract.checkpoint_files import (
    CONFIG,
    INVALID,
    PROCESS,
    WEIGHTS,
    CheckpointError,
    as_numbers,
    read_config,
    read_shapes,
    read_weights,
    require_shapes,
    save_description,
    with_origin,
    write_weights,
)
from graphxai.datasets.as_given import AS_DRAWN
from graphxai.runtime.writing import folder_at

from .model import COLUMNS, CarriedCounts, KernelProcess, ProcessConfig

MOST_LEVELS = 10**8  # counts of all carriers together: 10,000 molecules have some 10 million
INTEGERS = ("starts", "columns", "counts")
SIZES = (torch.uint8, torch.int16, torch.int32, torch.int64)  # in which they are stored


def save_process(
    model: KernelProcess, folder: str | Path, *, card: str = "", metadata: Any = None
) -> Path:
    """Write model, metadata (JSON values), model card (Markdown) and conformal scores."""
    folder = folder_at(folder)
    tensors = dict(model.state_dict())
    for key in INTEGERS:
        counts = tensors[key]
        largest = int(counts.max()) if len(counts) else 0
        tensors[key] = counts.to(next(kind for kind in SIZES if largest <= torch.iinfo(kind).max))
    digest = write_weights(tensors, folder, PROCESS)
    content = {"format": PROCESS, "model": model.config.to_dict()}
    card = card or "# Gaussian process\n"
    return save_description(model, folder, digest, content, metadata, card)


def load_process(folder: str | Path, *, as_drawn: bool = False) -> KernelProcess:
    """Return the process in a checkpoint folder, on the CPU and in eval mode.

    Args:
        folder: the folder.
        as_drawn: whether it reads molecules as they are drawn, whatever it learned from.

    Raises:
        CheckpointError: a file is missing, corrupt or truncated, or does not fit the others.
    """
    folder = Path(folder)
    content, shapes, path = read_config(folder), read_shapes(folder), folder / WEIGHTS
    if content.get("format") != PROCESS:
        raise CheckpointError(f"{folder / CONFIG}: 'format' is not {PROCESS!r}.")
    try:
        config = ProcessConfig(**content["model"])
    except INVALID as error:
        raise CheckpointError(f"{folder / CONFIG}: invalid model configuration: {error}") from error
    carriers, entries = config.carriers, shapes.get("columns", (0,))
    expected = {
        "weights": (carriers, config.num_outputs),
        "means": (config.num_outputs,),
        "starts": (carriers + 1,),
        "columns": entries,
        "counts": entries,
    }
    require_shapes(expected, shapes, path)
    tensors, digest = read_weights(folder)
    for key in INTEGERS:
        if tensors[key].dtype not in SIZES or tensors[key].dim() != 1:
            raise CheckpointError(f"{path}: key {key!r} does not hold a row of integers.")
    starts, columns, counts = (tensors[key].long() for key in INTEGERS)
    problems = {
        "starts": starts[0] != 0 or starts[-1] != len(columns) or bool((starts.diff() < 0).any()),
        "columns": bool(((columns < 0) | (columns >= COLUMNS)).any()),
        "counts": bool((counts < 1).any()) or int(counts.sum()) > MOST_LEVELS,
    }
    if not any(problems.values()):
        rows = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
        problems["columns"] = bool((((rows * COLUMNS) + columns).diff() <= 0).any())
    for key, is_wrong in problems.items():
        if is_wrong:
            raise CheckpointError(f"{path}: key {key!r} does not hold counts of molecules.")
    carried = CarriedCounts(starts, columns.to(torch.int32), counts.to(torch.int32))
    numbers = [as_numbers(tensors[key], key, path, torch.float64) for key in ("weights", "means")]
    config = replace(config, standardise=AS_DRAWN) if as_drawn else config
    model = KernelProcess(config, carried, *numbers)
    return with_origin(model, folder, content, digest)


def digest_of(smiles: tuple[str, ...]) -> str:
    """Return the SHA-256 of training structures in their order."""
    return hashlib.sha256("\n".join(smiles).encode()).hexdigest()
