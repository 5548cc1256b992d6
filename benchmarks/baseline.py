"""Should relevance be measured from the zero embedding or from the mean node?

    python benchmarks/baseline.py --tables runs/esol runs/bbbp --out runs/baseline

Explains test graphs of the bundled models, and of models that `graphxai train` made from tables,
with `lrp` and both baselines. Prints how often the sum over the nodes has another sign than the
output, how far it is from what the nodes changed in the output, and faithfulness (nodes masked,
all steps; true class, or the value of a regression), with paired 95 % intervals. Continues where
it was interrupted.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

import graphxai as gx
from graphxai.evaluation.sources import Source, bace_test, mnist_test
from graphxai.explainers import Explainer, get_explainer

GRAPHS = 60
BASELINES = ("zero", "mean")
METRICS = ("auac", "au_mse", "srg")


def lrp(baseline: str) -> Explainer:
    """Return `lrp` under a name that tells its baseline."""
    explainer = get_explainer("lrp", baseline=baseline)
    explainer.name = f"lrp, {baseline}"  # type: ignore[misc]
    return explainer


def table_test(run: Path) -> Source:
    """Return the test molecules of a run that can be used, with measured classes if it has any."""
    import pandas as pd

    frame = pd.read_csv(run / "test.csv")
    return Source(run.name, dict(enumerate(frame["smiles"])))


def described(model: Any, source: Source, baseline: str) -> dict[str, float]:
    """Return how the sum over the nodes relates to the output, and to what the nodes changed."""
    found = gx.explain(model, list(source.inputs.values()), lrp(baseline), progress=False)
    ledgers = [e.ledger for e in found if e is not None]
    nodes = np.array([one.nodes for one in ledgers])
    output, change = (
        np.array([getattr(one, name) for one in ledgers]) for name in ("output", "change")
    )
    token, biases = (
        np.array([getattr(one, name) for one in ledgers]) for name in ("graph_token", "biases")
    )
    return {
        "other sign than the output": float((nodes * output < 0).mean()),
        "other sign than the change": float((nodes * change < 0).mean()),
        "mean |nodes - change|": float(np.abs(nodes - change).mean()),
        "mean share of the token": float(token.mean()),
        "correlation of biases and output": float(np.corrcoef(biases, output)[0, 1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bace = gx.load("bace")
    cases = [(bace, bace_test(bace)), (gx.load("mnist-superpixels"), mnist_test())]
    cases += [(gx.load(run), table_test(run)) for run in options.tables]
    for model, whole in cases:
        source = whole.sample(GRAPHS)
        print(f"\n{whole.title}: {len(source.inputs)} graphs")
        for baseline in BASELINES:
            figures = described(model, source, baseline)
            print(f"  {baseline}: " + ", ".join(f"{k} {v:.3f}" for k, v in figures.items()))
        report = gx.evaluate(
            model,
            source.inputs,
            [lrp(baseline) for baseline in BASELINES],
            labels=source.labels or None,
            target="true" if source.labels else None,
            out=options.out / model.origin.sha256[:8],
            resume=True,
            progress=False,
        )
        for metric in METRICS:
            means = report.intervals(metric)
            print(f"  {metric}: " + ", ".join(f"{name} {means[name]}" for name in means))
            for one in report.compare("lrp, mean", metric=metric):
                print(f"    mean minus {one.second}: {one.difference}, p {one.p_adjusted:.2g}")


if __name__ == "__main__":
    main()
