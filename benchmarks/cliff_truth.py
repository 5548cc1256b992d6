"""Score methods by the atoms in which activity cliffs of MoleculeACE differ.

    python benchmarks/cliff_truth.py --data FOLDER --models RUNS --out cliffs.json [--limit 60]

RUNS has a folder for each table of FOLDER/moleculeace that was learned by its own split, such as
`graphxai train CHEMBL234_Ki.csv --target-column y --split-column split --model process`. Pairs of
which both compounds were learned from are left out. The means over tables, with intervals over
tables, are printed as a table in Markdown; `--report` only prints it.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

import graphxai as gx
from graphxai.evaluation.output import markdown_table
from graphxai.evaluation.statistics import bootstrap

METHODS = ("kernel", "occlusion", "shapley_sampling", "integrated_gradients", "gradient_input")
SHOWN = ("share_at_change", "sign_at_change", "roc_auc", "roc_auc_unsigned")


def measured(model: str, table: Path, methods: list[str], limit: int) -> dict[str, object]:
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
        lines += ["", f"pairs: {kind}", "", *markdown_table(["method", *SHOWN], rows)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    given = parser.parse_args()
    runs = json.loads(given.out.read_text()) if given.out.exists() else {}
    for folder in () if given.report else sorted(given.models.glob("CHEMBL*/model")):
        name = folder.parent.name
        if name not in runs and (folder / "config.json").exists():
            table = given.data / "moleculeace" / f"{name}.csv"
            runs[name] = measured(str(folder), table, given.methods, given.limit)
            given.out.write_text(json.dumps(runs, indent=1) + "\n")
            print(name, runs[name]["pairs"], flush=True)
    print(report(runs))


if __name__ == "__main__":
    main()
