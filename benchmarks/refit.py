"""Do F-Fidelity and ROAR rank explanations by their truth? Rules, whose true atoms are known.

    python benchmarks/refit.py --out runs/refit [--data FOLDER] [--rules halogen indole]

For each rule a small Graphormer is trained. The truth itself is an explanation here, and so are
its reverse and random scores. Each measure ranks these and some methods, on the same molecules.
Writes `tables.md`; results that are there already are not computed again. FOLDER contains
`molecules/*.csv`. ROAR trains 66 models for a rule (`--roar`).
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.datasets.rule_molecules import RuleDataset, local_smiles, rule_dataset
from graphxai.evaluation import Refit
from graphxai.evaluation.ground_truth import evaluate_truth, model_score
from graphxai.evaluation.statistics import compare_pairs, kendall_tau
from graphxai.learning.recipes.rules import train_rule

SIZE, SCORED, SEED = 2000, 60, 0
METHODS = (
    "lrp", "gradient_input", "occlusion", "path_marginals", "gae", "rollout", "attention_last",
    "grad_cam",
)  # fmt: skip
CONTROLS = ("truth", "inverted", "random")
OPERATORS = ("mask", "delete")


def controls(model: Any, dataset: RuleDataset) -> dict[str, Callable[..., torch.Tensor]]:
    """Return the true atoms as an explanation, and the others; atoms that tie come in any order."""
    known = {}
    for smiles, truth in zip(dataset.smiles, dataset.truths, strict=True):
        known[_key(prepare_for(model, smiles).data.x)] = torch.from_numpy(truth).float()

    def truth(model: Any, batch: Any, target: Any) -> torch.Tensor:
        scores = torch.zeros(batch.mask.shape)
        for row, mask in enumerate(batch.mask):
            x = batch.x[row, mask]
            generator = torch.Generator().manual_seed(int(x.sum()))
            ties = 0.01 * torch.rand(len(x), generator=generator)
            scores[row, mask] = known[_key(x)] + ties
        return scores

    def inverted(model: Any, batch: Any, target: Any) -> torch.Tensor:
        return -truth(model, batch, target)

    return {"truth": truth, "inverted": inverted}


def _key(x: torch.Tensor) -> bytes:
    return x.to(torch.int64).contiguous().numpy().tobytes()


def measure(rule: str, out: Path, smiles: list[str], roar: bool) -> dict[str, Any]:
    """Return every measure's values by method for one rule, and the score of its model."""
    checkpoint = train_rule(
        out / "run", rule, molecules=smiles, size=SIZE, seed=SEED, resume=True, accelerator="cpu",
        progress=False,
    )  # fmt: skip
    model = gx.load(checkpoint)
    dataset = rule_dataset(smiles, rule, size=SIZE, seed=SEED)
    test, train = list(dataset.split.test), list(dataset.split.train)
    scored = dataset.scored(limit=SCORED)
    explained = [dataset.smiles[k] for k in scored]
    known = controls(model, dataset)
    methods = [*known.values(), *METHODS]
    labels = [int(dataset.labels[k]) for k in train]
    learned = [dataset.smiles[k] for k in train]
    options: dict[str, Any] = {
        "target": "yes", "seed": SEED, "metrics": ("auac", "srg"), "resume": True,
        "progress": False,
    }  # fmt: skip
    values: dict[str, dict[str, NDArray[np.float64]]] = {}

    def add(title: str, operators: tuple[str, ...], **changes: Any) -> None:
        report = gx.evaluate(
            model, explained, methods, operators=operators, out=out / title, **(options | changes)
        )
        for operator in operators:
            for metric in report.metrics(operator):
                name = f"{metric}, {operator}" + (", f-fidelity" if title == "f-fidelity" else "")
                values[name] = report.values(metric, operator)
        print(rule, title, flush=True)

    rows = evaluate_truth(
        model, explained, [dataset.truths[k] for k in scored], [*METHODS, "random"], progress=False
    )
    chosen = rows[rows.metric == "roc_auc"]
    auroc = {name: found.value.to_numpy() for name, found in chosen.groupby("method")}
    for control, value in (("truth", 1.0), ("inverted", 0.0)):
        auroc[control] = np.full(len(scored), value)
    add("as it is", OPERATORS)
    add("f-fidelity", OPERATORS, refit=Refit("f-fidelity", learned, labels))
    if roar:
        add("roar", OPERATORS, refit=Refit("roar", learned, labels))
    score = model_score(model, [dataset.smiles[k] for k in test], dataset.labels[test])
    return {
        "model": score,
        "train": len(train),
        "share": float(np.mean([dataset.truths[k].mean() for k in scored])),
        "auroc": auroc,
        "values": values,
    }


def tables(rule: str, found: Mapping[str, Any]) -> str:
    """Markdown: means of every measure by method, and what it says of truth, reverse and chance."""
    auroc, values = found["auroc"], found["values"]
    names = list(values)
    order = sorted(auroc, key=lambda name: -np.mean(auroc[name]))
    kind, score = found["model"]
    lines = [
        f"## {rule}, {len(auroc['truth'])} molecules\n",
        f"{found['train']:,} training molecules; the model's {kind} is {score:.3f};"
        f" {found['share']:.0%} of the atoms are true.\n",
        f"| method | ROC-AUC of true atoms | {' | '.join(names)} |",
        "|---" * (len(names) + 2) + "|",
    ]
    for method in order:
        means = [f"{np.nanmean(values[name][method]):.3f}" for name in names]
        lines.append(f"| {method} | {np.mean(auroc[method]):.3f} | {' | '.join(means)} |")
    lines += [
        "\n| measure | truth minus random [95 %] | p | truth minus inverted [95 %] | p"
        " | truth's place | Kendall's τ with ROC-AUC, methods alone | minus τ without training |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        of = values[name]
        tests = compare_pairs(of, [("truth", "random"), ("truth", "inverted")])
        cells = [f"{t.difference} | {t.p_adjusted:.2g}" for t in tests]
        means = {method: float(np.nanmean(of[method])) for method in order}
        place = sorted(means, key=lambda one: -means[one]).index("truth") + 1
        tau = agreement(auroc, of)
        measure, operator = name.split(", ")[:2]
        before = values["auac, " + operator if measure == "roar" else f"{measure}, {operator}"]
        gain = "" if before is of else interval(tau - agreement(auroc, before), "+.2f")
        lines.append(
            f"| {name} | {' | '.join(cells)} | {place} of {len(order)} | {interval(tau)} | {gain} |"
        )
    return "\n".join(lines) + "\n"


def agreement(
    auroc: Mapping[str, NDArray[np.float64]], of: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Kendall's tau between two rankings of `METHODS`, then in 1000 bootstraps of the molecules."""
    first = np.array([auroc[name] for name in METHODS])
    second = np.array([of[name] for name in METHODS])
    picks = np.random.default_rng(SEED).integers(0, first.shape[1], (1000, first.shape[1]))
    picks = np.concatenate([np.arange(first.shape[1])[None], picks])
    return np.array([kendall_tau(first[:, k].mean(1), np.nanmean(second[:, k], 1)) for k in picks])


def interval(found: NDArray[np.float64], form: str = ".2f") -> str:
    low, high = np.nanquantile(found[1:], [0.025, 0.975])
    return f"{found[0]:{form}} [{low:{form}}, {high:{form}}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/refit"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rules", nargs="+", default=["halogen", "indole"])
    parser.add_argument(
        "--roar", nargs="*", default=["halogen"], help="rules with 66 trainings each"
    )
    given = parser.parse_args()
    smiles = local_smiles(given.data)
    parts = []
    for rule in given.rules:
        parts.append(tables(rule, measure(rule, given.out / rule, smiles, rule in given.roar)))
        (given.out / "tables.md").write_text("\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
