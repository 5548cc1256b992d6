"""Score methods by the atoms in which activity cliffs of MoleculeACE differ.

    python benchmarks/cliff_truth.py --data FOLDER --out cliffs.json [--limit 40]

A Gaussian process learns the training part of each table in FOLDER/moleculeace, of two noises with
the one that predicts its molecules better without themselves. Pairs of which both compounds were
learned from are left out. The means over tables, with intervals over tables, are printed as a table
in Markdown; `--report` only prints it. Models are kept in the folder `cliffs` beside the file.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.datasets.training_set import FILE
from graphxai.evaluation.statistics import bootstrap
from graphxai.learning.teachers.choosing import NOISES
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.models.process import CarriedCounts, KernelProcess, ProcessConfig, save_process
from graphxai.runtime.writing import markdown_table

METHODS = ("kernel", "occlusion", "gradient_input", "shapley_sampling")
SHOWN = ("share_at_change", "sign_at_change", "roc_auc", "roc_auc_unsigned")


def learned(table: Path, folder: Path) -> Path:
    """Fit a process to the training part of a table, and return its folder."""
    if (folder / FILE).exists():
        return folder
    rows = pd.read_csv(table)
    rows = rows[rows.split == "train"]
    y = rows.y.to_numpy()[:, None]
    counts = structure_counts(list(rows.smiles))
    kernel, every = similarity(counts, counts), np.arange(len(y))
    fits = [Process.fit(kernel, every, y, noise) for noise in NOISES]
    fit = min(fits, key=lambda each: float(np.abs(each.left_out - y).mean()))
    config = ProcessConfig((Task("y", "regression"),), len(y), "parent")
    numbers = torch.from_numpy(fit.weights), torch.from_numpy(fit.means)
    save_process(KernelProcess(config, CarriedCounts.of(counts), *numbers), folder)
    rows[["smiles", "y"]].to_csv(folder / FILE, index=False)
    return folder


def measured(model: Path, table: Path, methods: list[str], limit: int) -> dict[str, object]:
    """Return the mean scores of a table by method and metric, and how many pairs it has."""
    rows = pd.read_csv(table)
    scores = gx.evaluate_cliffs(
        gx.load(model), list(rows["smiles"]), rows["y"], methods, limit=limit, progress=False
    )
    right = scores[scores.metric == "sign_of_model"].groupby("graph").value.first() == 1
    by_kind = {"all": scores, "model right": scores[scores.graph.map(right)]}
    return {
        "pairs": int(scores.graph.nunique()),
        "model_right": float(right.mean()),
        "left_out": scores.attrs["left_out"],
        "scores": {
            kind: chosen.groupby(["method", "metric"]).value.mean().unstack().to_dict("index")
            for kind, chosen in by_kind.items()
        },
    }


def report(runs: dict[str, dict[str, object]]) -> str:
    """Return the means over tables by method, with 95 % intervals over tables."""
    lines = [f"{len(runs)} tables, {sum(run['pairs'] for run in runs.values())} pairs"]  # type: ignore
    right = bootstrap(np.array([run["model_right"] for run in runs.values()]))
    lines.append(f"the model predicts the sign of {right}")
    for kind in ("all", "model right"):
        by_table = [run["scores"][kind] for run in runs.values()]  # type: ignore
        rows = [
            [
                f"`{method}`",
                *(str(bootstrap([t[method][name] for t in by_table])) for name in SHOWN),
            ]
            for method in by_table[0]
        ]
        lines += ["", f"pairs: {kind}", "", markdown_table([["method", *SHOWN], *rows]), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    given = parser.parse_args()
    runs = json.loads(given.out.read_text()) if given.out.exists() else {}
    tables = sorted(
        (given.data / "moleculeace").glob("CHEMBL*.csv"), key=lambda t: t.stat().st_size
    )
    for table in () if given.report else tables:
        if (name := table.stem) not in runs:
            folder = learned(table, given.out.with_suffix("") / name)
            runs[name] = measured(folder, table, given.methods, given.limit)
            given.out.write_text(json.dumps(runs, indent=1) + "\n")
            print(name, runs[name]["pairs"], flush=True)
    print(report(runs))


if __name__ == "__main__":
    main()
