"""How are a method's scores for one of two classes related to those for the other?

    python benchmarks/two_classes.py --limit 12

Prints, for each method, the mean correlation between the scores of the nodes for the two classes,
over BACE compounds from the test part of the bundled model's split. It is -1 for a method whose
scores for f and -f are opposite, and 1 for a method that does not look at the class.
"""

import argparse

import numpy as np
import torch

import graphxai as gx
from graphxai.evaluation.sources import bace_test
from graphxai.explainers import get_explainer
from graphxai.explainers.registry import methods_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=12, help="number of compounds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = gx.load("bace")
    molecules = list(bace_test(model).sample(options.limit, seed=0).inputs.values())
    print("| method | r(f, -f), mean [lowest, highest] |\n|---|---|")
    for name in methods_for(model):
        method = get_explainer(name)
        scores = [
            gx.explain(model, molecules, method=method, target=target, progress=False)
            for target in ("inactive", "active")
        ]
        pairs = zip(*scores, strict=True)
        r = [np.corrcoef(first.relevance, second.relevance)[0, 1] for first, second in pairs]
        print(f"| `{name}` | {np.mean(r):.2f} [{min(r):.2f}, {max(r):.2f}] |", flush=True)


if __name__ == "__main__":
    main()
