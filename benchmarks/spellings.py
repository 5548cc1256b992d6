"""List which spellings of attention, norms, activations and more are explained by which tier.

The spellings are those of the composed test models. Each of them becomes a model that is explained
by several methods: `python benchmarks/spellings.py` writes `results/spellings.md`.
"""

import re
import sys
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from composed import PARTS, Block, Composed, Pool, graph  # noqa: E402

import graphxai as gx  # noqa: E402

METHODS = ("lrp", "attn_lrp", "gradient_input")
TARGET = ROOT / "benchmarks" / "results" / "spellings.md"


def spellings() -> dict[str, tuple[list[list[str]], str]]:
    """Return the blocks and the readout of a model for each spelling."""
    parts = {
        f"{kind}: {spelling}": ([["plus", f"{kind}: {spelling}"]], "mean")
        for kind in PARTS
        for spelling in PARTS[kind].spellings
    }
    blocks = {
        f"block: {spelling}": ([[spelling, "norm: by hand", "activation: gelu"]], "mean")
        for spelling in Block.spellings
    }
    pools = {f"readout: {way}": ([["plus", "attention: softmax"]], way) for way in Pool.spellings}
    return parts | blocks | pools


def tier_of(blocks: list[list[str]], pool: str, method: str) -> tuple[str, str]:
    """Explain a model; return its tier, "1", "2" or "2, warned", and why it is not the first."""

    def forward(model, g):
        return model(g.x, g.edge_index, g.edge_attr, g.pe, g.batch)

    model = gx.wrap(Composed(blocks, pool), kind="multiclass", classes=2, forward=forward)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gx.explain(model, [graph(5), graph(6)], method, target=1)
    why = model.why_recorded
    no_rule = any("no rule covers" in str(warning.message) for warning in caught)
    tier = "1" if why is None else "2, warned" if no_rule else "2"
    return tier, why or ""


def table() -> str:
    """Return the page: counts by method, and the spellings that are explained alike in a row."""
    alike: dict[str, list[str]] = {}
    counts = {method: Counter[str]() for method in METHODS}
    for name, (blocks, pool) in spellings().items():
        tiers, reasons = [], []
        for method in METHODS:
            tier, why = tier_of(blocks, pool, method)
            counts[method][tier] += 1
            tiers.append(tier)
            reasons.append(why)
        reason = "; ".join(dict.fromkeys(filter(None, reasons)))
        reason = re.sub(r" \(constants in [^)]*\)| in (?:blocks|pool)[\w.]*", "", reason)
        alike.setdefault(f"{' | '.join(tiers)} | {reason}", []).append(name)
    summary = [
        f"| {method} | {count['1']} | {count['2']} | {count['2, warned']} |"
        for method, count in counts.items()
    ]
    rows = [
        f"| {answer} | {of_kinds(names)} |"
        for answer, names in sorted(alike.items(), key=lambda row: -len(row[1]))
    ]
    return "\n".join(
        [
            "# Spellings by tier",
            "",
            "The first tier explains a pass by hooks on PyTorch's autograd graph, the second by a"
            " recording. A warning names steps that no rule covers. A star: also bare. Made by"
            " `python benchmarks/spellings.py`.",
            "",
            "| method | tier 1 | tier 2 | tier 2, with a warning |",
            "|---|---|---|---|",
            *summary,
            "",
            f"| {' | '.join(METHODS)} | why it is recorded | spellings |",
            f"|{'---|' * len(METHODS)}---|---|",
            *rows,
            "",
        ]
    )


def of_kinds(names: list[str]) -> str:
    """Return names such as "norm: module" with each kind named once, "x" and "x bare" as "x*"."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, spelling = name.partition(": ")
        kinds.setdefault(kind, []).append(spelling)
    starred = {
        kind: [
            f"{spelling}*" if f"{spelling} bare" in each else spelling
            for spelling in each
            if spelling.removesuffix(" bare") == spelling or spelling[:-5] not in each
        ]
        for kind, each in kinds.items()
    }
    return "; ".join(f"{kind}: {', '.join(each)}" for kind, each in starred.items())


if __name__ == "__main__":
    TARGET.write_text(table(), encoding="utf-8")
