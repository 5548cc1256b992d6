"""Score methods on rules whose parts need each other, by case, kind of model and seed.

    python benchmarks/combined_rules.py --data FOLDER --out combined.json
        [--rules xor a-not-b alike two-chlorines halogen] [--kinds gin gine graphormer]
        [--seeds 0 1 2 3] [--methods occlusion fragments] [--epochs 60] [--size 2400]

Each model learns one rule. The molecules are the same for every seed, which splits them. `gin` is a
GIN with a readout of two layers, as a linear readout of sums cannot tell whether two far parts are
there together; `gine` is the GPS of `gps.py`, and `graphormer` is trained by `train_rule`. The
weights are kept beside the scores, for methods that come later. `halogen` is the rule of which any
atom suffices. For `alike`, every molecule is also taken with another halogen in place of one mark.
Only models with a test accuracy of at least .95 are explained, on test molecules that they answer
correctly. `fragments` gives each atom its share of the Shapley value of its BRICS fragment. FOLDER
has `molecules/*.csv`. `--report` prints means over models.
"""

import argparse
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from ogb.graphproppred.mol_encoder import AtomEncoder, BondEncoder
from rdkit import Chem, rdBase
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, global_add_pool

import graphxai as gx
from gps import WIDTH, EdgeGps, _outputs
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.rule_molecules import RuleDataset, local_smiles, rule_dataset
from graphxai.datasets.rules import COMBINED_RULES, HALOGENS, Truth, get_rule
from graphxai.evaluation import evaluate_truth
from graphxai.evaluation.statistics import bootstrap
from graphxai.evaluation.truth_metrics import SIGNED_METRICS
from graphxai.learning.recipes.rules import train_rule
from graphxai.runtime.writing import markdown_table

METHODS = ("occlusion", "partnered", "path_marginals", "lrp", "saliency", "fragments")
GOOD = 0.95  # accuracy, below which a model is not explained
KNOWN, TIMES = 0.99, 3  # validation accuracy, and after how many such epochs training stops
BATCH = 64
PEAK = {"gin": 6e-3, "gine": 3e-3}  # learning rate
NARROW, SUM_OVER = 32, 5.0  # width, and what sums over nodes are divided by


def exchanged(smiles: list[str]) -> Iterator[str]:
    """Yield molecules with two halogens, each also with another one in place of the first."""
    for text in smiles:
        mol = Chem.MolFromSmiles(text)
        marks = [] if mol is None else [a for a in mol.GetAtoms() if a.GetAtomicNum() in HALOGENS]
        if len(marks) == 2:
            yield text
            marks[0].SetAtomicNum(9 if marks[0].GetAtomicNum() == 17 else 17)
            yield Chem.MolToSmiles(mol)


@cache
def molecules(data: Path, rule: str, size: int, max_atoms: int) -> tuple[str, ...]:
    """Return the molecules that a rule is learned on and tested with."""
    smiles = local_smiles(data)
    if rule in ("alike", "two-chlorines"):  # rules about several halogens
        letters = ("F", "Cl", "Br", "I")
        smiles = [text for text in smiles if sum(map(text.count, letters)) > 1]
    if rule == "alike":
        with rdBase.BlockLogs():
            smiles = list(exchanged(smiles))
    return rule_dataset(smiles, rule, size=size, max_atoms=max_atoms).smiles


class ReadoutGin(nn.Module):
    """Three GINE convolutions of width 32, and two layers on the sum over nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.edges = AtomEncoder(NARROW), BondEncoder(NARROW)
        self.convs = nn.ModuleList(GINEConv(self._layers(NARROW)) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(NARROW) for _ in range(3))
        self.gate, self.head = nn.Linear(NARROW, NARROW), self._layers(1)

    @staticmethod
    def _layers(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(NARROW, NARROW), nn.ReLU(), nn.Linear(NARROW, outputs))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        h, e = self.nodes(x), self.edges(edge_attr)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = h + norm(conv(h, edge_index, e)).relu()
        out: Tensor = self.head(global_add_pool(self.gate(h).relu(), batch) / SUM_OVER)
        return out


def trained(kind: str, dataset: RuleDataset, seed: int, epochs: int, weights: Path) -> Any:
    """Return a wrapped network that has learned the rule, from its file or trained into it."""
    torch.manual_seed(seed)
    if kind == "gin":
        module: nn.Module = ReadoutGin()
    else:
        module = EdgeGps(AtomEncoder(WIDTH), BondEncoder(WIDTH), 1, kind)
    if not weights.exists():
        weights.parent.mkdir(parents=True, exist_ok=True)
        save_file(fitted(module, dataset, epochs, PEAK[kind]), weights)
    module.load_state_dict(load_file(weights))
    return gx.wrap(
        module.eval(),
        kind="binary",
        classes=("no", "yes"),
        embedding="nodes",
        featurize=molecule_to_data,
        name=kind,
    )


def fitted(module: nn.Module, dataset: RuleDataset, epochs: int, peak: float) -> dict[str, Tensor]:
    """Return a network's weights after the epoch with the smallest loss on the validation part."""
    graphs = []
    for text, label in zip(dataset.smiles, dataset.labels.tolist(), strict=True):
        graph = molecule_to_data(text)
        graphs.append(Data(graph.x, graph.edge_index, graph.edge_attr, y=torch.tensor([label])))
    train, valid = (
        [graphs[k] for k in part] for part in (dataset.split.train, dataset.split.valid)
    )
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.01)
    steps = epochs * -(-len(train) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps)
    best, kept, times = float("inf"), module.state_dict(), 0
    for _ in range(epochs):
        module.train()
        for rows in torch.randperm(len(train)).split(BATCH):
            batch = Batch.from_data_list([train[k] for k in rows.tolist()])
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(_outputs(module, batch)[:, 0], batch.y).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            batch = Batch.from_data_list(valid)
            outputs = _outputs(module.eval(), batch)[:, 0]
            loss = float(F.binary_cross_entropy_with_logits(outputs, batch.y))
        if loss < best:
            best, kept = loss, {k: v.clone() for k, v in module.state_dict().items()}
        times = times + 1 if ((outputs > 0) == (batch.y > 0)).float().mean() >= KNOWN else 0
        if times == TIMES:
            break
    return kept


def measured(kind: str, rule: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return the accuracy of a model, and the mean scores by case, method and metric."""
    task = get_rule(rule)
    smiles = molecules(given.data, rule, given.size, given.max_atoms)
    dataset = rule_dataset(smiles, task, size=given.size, seed=seed)
    if kind == "graphormer":
        folder = given.out.with_suffix("") / f"{rule}-{seed}"
        options = {"seed": seed, "resume": True, "progress": False, "accelerator": "cpu"}
        options |= {"epochs": given.graphormer_epochs} if given.graphormer_epochs else {}
        model = gx.load(train_rule(folder, task, molecules=smiles, size=given.size, **options))
    else:
        weights = given.out.with_suffix("") / f"{rule}-{kind}-{seed}.safetensors"
        model = trained(kind, dataset, seed, given.epochs, weights)
    test = list(dataset.split.test)
    predicted = gx.predict(model, [dataset.smiles[k] for k in test], progress=False)
    answers = np.array([next(iter(each.values())).label == "yes" for each in predicted])
    right = answers == (dataset.labels[test] == 1)
    result = {"accuracy": float(right.mean()), "n": len(test), "train": len(dataset.split.train)}
    if result["accuracy"] < GOOD:
        return result
    scored = [k for k, ok in zip(test, right, strict=True) if ok and dataset.truths[k].any()]
    of_case: dict[str, list[int]] = {}
    for k in scored:
        case = task.case(Chem.MolFromSmiles(dataset.smiles[k])) if task.case else "any"
        of_case.setdefault(case, []).append(k)
    result["scores"] = {}
    for case, rows in of_case.items():
        chosen = random.Random(seed).sample(rows, min(len(rows), given.limit))
        texts = [dataset.smiles[k] for k in chosen]
        truths = [dataset.truths[k].astype(np.int8) for k in chosen]
        methods = [name for name in given.methods if name != "fragments"]
        frame = evaluate_truth(model, texts, truths, methods, target="yes", progress=False)
        if "fragments" in given.methods:
            frame = pd.concat([frame, of_fragments(model, texts, truths)])
        means = frame.groupby(["method", "metric"]).value.mean().unstack()
        result["scores"][case] = {
            method: {name: value for name, value in row.items() if np.isfinite(value)}
            for method, row in means.to_dict("index").items()
        }
    return result


def of_fragments(model: Any, smiles: list[str], truths: list[Truth]) -> pd.DataFrame:
    """Return rows as `evaluate_truth` for Shapley values of fragments, shared by their atoms."""
    rows = []
    for text, truth in zip(smiles, truths, strict=True):
        explanation = gx.explain(model, text, "saliency", target="yes", progress=False)
        parts = gx.fragments(explanation, method="shapley", model=model, graph=text)
        relevance = parts.explanation.relevance
        rows += [
            ("fragments", name, score(relevance, truth)) for name, score in SIGNED_METRICS.items()
        ]
    return pd.DataFrame(rows, columns=["method", "metric", "value"])


def report(runs: dict[str, dict[str, Any]]) -> str:
    """Return means over seeds of each rule, case and kind, with intervals over seeds."""
    rows = []
    for key, run in runs.items():
        rule, kind, seed = key.split(" ")
        for case, methods in run.get("scores", {}).items():
            for method, scores in methods.items():
                rows += [(rule, kind, seed, case, method, m, v) for m, v in scores.items()]
    columns = ["rule", "kind", "seed", "case", "method", "metric", "value"]
    frame = pd.DataFrame(rows, columns=columns)
    lines = [f"{key}: accuracy {run['accuracy']:.3f} (n = {run['n']})" for key, run in runs.items()]
    for (rule, case, metric), part in frame.groupby(["rule", "case", "metric"]):
        kinds = list(part.kind.unique())
        cells = [
            [
                f"`{method}`",
                *(
                    str(bootstrap(of.value)) if len(of := chosen[chosen.kind == kind]) else "–"
                    for kind in kinds
                ),
            ]
            for method, chosen in part.groupby("method", sort=False)
        ]
        lines += [
            "",
            f"{rule}, {case}: {metric}",
            "",
            markdown_table([["method", *kinds], *cells]),
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rules", nargs="*", default=[*COMBINED_RULES, "halogen"])
    parser.add_argument("--kinds", nargs="*", default=["gin", "gine", "graphormer"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=60, help="of gin and gine")
    parser.add_argument("--graphormer-epochs", type=int, help="by default those of train_rule")
    parser.add_argument("--size", type=int, default=2400, help="molecules")
    parser.add_argument("--max-atoms", type=int, default=30, help="of a molecule")
    parser.add_argument("--limit", type=int, default=8, help="explained molecules of each case")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    given = parser.parse_args()
    runs = json.loads(given.out.read_text()) if given.out.exists() else {}
    keys = [(r, k, s) for s in given.seeds for k in given.kinds for r in given.rules]
    for rule, kind, seed in [] if given.report else keys:
        if (key := f"{rule} {kind} {seed}") not in runs:
            runs[key] = measured(kind, rule, seed, given)
            given.out.write_text(json.dumps(runs, indent=1) + "\n")
            print(key, runs[key]["accuracy"], flush=True)
    print(report(runs))


if __name__ == "__main__":
    main()
