"""How good the BACE recipe is on several random splits and the scaffold split, next to a forest.

    python benchmarks/bace_quality.py --out runs/bace-quality [--data FOLDER] [--seeds 0 1 2 3 4]

Writes one run folder per split, `bace_quality.json` and the table `bace_quality_table.md`. An
interrupted benchmark continues when started again. A split takes 15 to 20 minutes on one core.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from graphxai.datasets.molecules import load_bace
from graphxai.learning.fit import evaluate
from graphxai.learning.recipes.bace import ACTIVITY, bace_split, score_bace, train_bace
from graphxai.models.graphormer import load_checkpoint


def measure(out: Path, data: Path | None, kind: str, seed: int) -> dict[str, Any]:
    """Score one split: final model, the model before it learned from the ensemble, forest."""
    folder = out / (kind if kind == "scaffold" else f"{kind}-{seed}")
    done = folder / "scores.json"
    if done.exists():
        return json.loads(done.read_text())
    model = load_checkpoint(train_bace(folder, root=data, split=kind, seed=seed, resume=True))
    graphs = load_bace(data, canonical=True)
    split = bace_split(graphs, kind, seed)
    plain = load_checkpoint(folder / "fine-tuned" / "state" / "best")
    valid = [graphs[k] for k in split.valid]
    result = {
        "split": kind if kind == "scaffold" else f"{kind}, seed {seed}",
        "valid ROC-AUC": evaluate(model, valid)[ACTIVITY],
        "valid ROC-AUC of plain fine-tuning": evaluate(plain, valid)[ACTIVITY],
        "plain fine-tuning": score_bace(plain, graphs, split)["graphormer"],
        **model.origin.metadata["scores"],
    }
    done.write_text(json.dumps(result, indent=1))
    return result


def table(results: list[dict[str, Any]]) -> str:
    """Format as Markdown: one row per split, then mean and deviation over the random ones."""
    lines = [
        "| split | this model | 95 % interval | random forest | plain fine-tuning | Brier | ECE |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        model, forest, plain = r["graphormer"], r["forest"], r["plain fine-tuning"]
        lines.append(
            f"| {r['split']} | {model['roc_auc']:.3f} | {model['roc_auc_low']:.3f} to "
            f"{model['roc_auc_high']:.3f} | {forest['roc_auc']:.3f} | {plain['roc_auc']:.3f} | "
            f"{model['brier']:.3f} | {model['ece']:.3f} |"
        )
    random = [r for r in results if r["split"] != "scaffold"]
    if len(random) > 1:
        cells = []
        for name in ("graphormer", "forest", "plain fine-tuning"):
            values = [r[name]["roc_auc"] for r in random]
            cells.append(f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}")
        lines.append(
            f"| mean ± standard deviation of {len(random)} random splits | {cells[0]} | | "
            f"{cells[1]} | {cells[2]} | | |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    splits = [("scaffold", 0)] + [("random", seed) for seed in given.seeds]
    results = []
    for kind, seed in splits:
        results.append(measure(given.out, given.data, kind, seed))
        (given.out / "bace_quality.json").write_text(json.dumps(results, indent=1))
        (given.out / "bace_quality_table.md").write_text(table(results))
        print(table(results), flush=True)


if __name__ == "__main__":
    main()
