"""Measure the memory that a task takes at most, in a process that does nothing else."""

from pathlib import Path

import torch

import graphxai as gx
from graphxai.contract.checkpoint_files import CheckpointError
from graphxai.contract.target import Target
from graphxai.evaluation.curves import several_series
from toy import random_graphormer


def curve_memory_mb(nodes: int) -> float:
    """Return by how many MB the resident set grows at most for the curves of a chain of atoms."""
    model = random_graphormer(num_layers=2, hidden_dim=64, ffn_dim=64, num_heads=8)
    chain = model.prepare("C" * nodes).data
    before = resident_kb("VmRSS")
    several_series(model, [chain], [[torch.randn(nodes)]], Target("active"), steps=11)
    return (resident_kb("VmHWM") - before) / 1024


def loading_memory_mb(path: Path) -> tuple[float, str]:
    """Return by how many MB at most the resident set grows while a model loads, and the error."""
    before = resident_kb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    try:
        gx.load(path)
        said = ""
    except CheckpointError as error:
        said = str(error)
    return (resident_kb("VmHWM") - before) / 1024, said


def resident_kb(field: str) -> int:
    """Read VmRSS, the resident set now, or VmHWM, its peak; `getrusage` includes the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
