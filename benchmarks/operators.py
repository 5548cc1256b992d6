"""How much does the ranking of methods depend on how nodes are removed? All methods, BACE, MNIST.

    python benchmarks/operators.py --out runs/operators [--only bace] [--graphs 64] [--refit]

Every method that applies explains the same test graphs (the first of a random order), and is
measured under every operator that the model can take; with `--refit` also by a model that was
trained further on masked graphs. Results are kept after every few graphs, and printed from what
there is.
"""

import argparse
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rdkit import Chem, rdBase

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.evaluation import Refit, Report, operators_for
from graphxai.evaluation.sources import Source, source, training_source
from graphxai.evaluation.statistics import bootstrap, kendall_tau
from graphxai.models.graphormer import collate
from graphxai.models.graphormer.masked_atoms import MaskedAtoms

SEED, STEPS, PIECE, DRAWS = 0, 11, 8, 1000
METRICS = ("auac", "au_mse", "srg")
LOWER = ("au_mse",)
Values = dict[str, NDArray[np.float64]]  # (n,) by method


def ordered(found: Source) -> Source:
    """The graphs in a random order, so that the first ones are a sample."""
    keys = list(found.inputs)
    random.Random(SEED).shuffle(keys)
    return Source(found.title, {k: found.inputs[k] for k in keys}, found.labels)


def measured(name: str, graphs: int, out: Path, refit: bool) -> tuple[Report, str]:
    """Return the report on the first graphs, after measuring them a few at a time."""
    model = gx.load(name)
    test = ordered(source(model, name))
    keys = list(test.inputs)[:graphs]
    options: dict[str, Any] = {"operators": "all"}
    if refit:
        training = training_source(model, name).labelled()
        labels = [training.labels[k] for k in training.inputs]
        further = Refit("f-fidelity", list(training.inputs.values()), labels)
        options = {"operators": "mask", "refit": further}
    for end in range(PIECE, len(keys) + PIECE, PIECE):
        report = gx.evaluate(
            model, {k: test.inputs[k] for k in keys[:end]}, "all", labels=test.labels,
            target="true", metrics=METRICS, steps=STEPS, seed=SEED, out=out, resume=True,
            progress=False, **options,
        )  # fmt: skip
        print(name, "f-fidelity" if refit else "operators", min(end, len(keys)), flush=True)
    return report, test.title


def means(values: Values, picks: NDArray[np.intp] | slice = slice(None)) -> NDArray[np.float64]:
    return np.nanmean(np.stack(list(values.values()))[:, picks], axis=1)


def taus(first: Values, second: Values) -> tuple[float, float, float]:
    """Kendall's tau between two rankings of methods, with a 95 % bootstrap over graphs."""
    n = len(next(iter(first.values())))
    picks = np.random.default_rng(SEED).integers(0, n, (DRAWS, n))
    drawn = [kendall_tau(means(first, k), means(second, k)) for k in picks]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return kendall_tau(means(first), means(second)), float(low), float(high)


def halves(first: Values, second: Values) -> float:
    """Mean tau between one ranking on half of the graphs and the other on the other half."""
    n = len(next(iter(first.values())))
    chance = np.random.default_rng(SEED)
    found = []
    for _ in range(DRAWS // 10):
        order = chance.permutation(n)
        found.append(kendall_tau(means(first, order[: n // 2]), means(second, order[n // 2 :])))
    return float(np.nanmean(found))


def tables(title: str, by_operator: dict[str, dict[str, Values]]) -> str:
    """Markdown: means and places by operator, and the agreement of the rankings."""
    names = list(by_operator)
    some = next(iter(by_operator.values()))["auac"]
    n = len(next(iter(some.values())))
    lines = [f"## {title}: {n} graphs, {len(some)} methods\n"]
    for metric in METRICS:
        lines += [f"### {metric}\n", f"| method | {' | '.join(names)} |"]
        lines.append("|---" * (len(names) + 1) + "|")
        columns = {name: means(by_operator[name][metric]) for name in names}
        sign = 1 if metric in LOWER else -1
        places = {name: (sign * of).argsort().argsort() + 1 for name, of in columns.items()}
        methods = list(by_operator[names[0]][metric])
        for k in np.argsort(sign * columns[names[0]]):
            cells = [f"{columns[name][k]:.3f} ({places[name][k]})" for name in names]
            lines.append(f"| {methods[k]} | {' | '.join(cells)} |")
        lines += [
            "\n| two operators | Kendall's τ [95 %] | on two halves of the graphs"
            " | each with itself on two halves |",
            "|---|---|---|---|",
        ]
        for a, b in combinations(names, 2):
            first, second = by_operator[a][metric], by_operator[b][metric]
            tau, low, high = taus(first, second)
            own = f"{halves(first, first):.2f}, {halves(second, second):.2f}"
            lines.append(
                f"| {a}, {b} | {tau:.2f} [{low:.2f}, {high:.2f}] | {halves(first, second):.2f}"
                f" | {own} |"
            )
        lines.append("")
    return "\n".join(lines)


def drawn_molecules(graphs: int) -> str:
    """Markdown: how many drawn molecules are valid, and how many are the molecule itself."""
    model = gx.load("bace")
    test = ordered(source(model, "bace"))
    atoms = MaskedAtoms.load(model.origin.folder or "")
    lines = [
        "| atoms hidden | rounds | valid (RDKit) | the molecule itself | hidden atoms drawn right"
        " | mean change of the logit |",
        "|---|---|---|---|---|---|",
    ]
    for share in (0.1, 0.5, 1.0):
        for rounds in (1, 4, 16):
            valid, same, right, change = [], [], [], []
            for smiles in list(test.inputs.values())[:graphs]:
                data = prepare_for(model, smiles).data
                n = int(data.num_nodes or 0)
                batch = collate([data])
                generator = torch.Generator().manual_seed(SEED)
                keep = torch.rand(n, generator=generator).argsort().argsort() >= share * n
                draw = atoms.sampler(batch, [data], 4, SEED, rounds)
                found, _, place = draw(torch.zeros(1, dtype=torch.long), keep[None])
                with torch.no_grad():
                    bias = model.bias(batch)
                    whole = model(batch)[0, 0]
                    logits = model.encode(
                        model.embed(found), found, bias=bias.expand(len(found), -1, -1, -1)
                    )[:, 0]
                for row in place[:, 0].tolist():
                    x = found.x[row]
                    valid.append(is_valid(smiles, x))
                    same.append(bool((x == data.x).all()))
                    right.append(float((x == data.x).all(-1)[~keep].float().mean()))
                    change.append(float((logits[row] - whole).abs()))
            cells = [f"{np.mean(one):.0%}" for one in (valid, same, right)]
            lines.append(f"| {share:.0%} | {rounds} | {' | '.join(cells)} | {bootstrap(change)} |")
    return "\n".join(lines) + "\n"


def is_valid(smiles: str, x: torch.Tensor) -> bool:
    """Whether RDKit accepts the molecule with these atoms and its own bonds."""
    mol = Chem.RWMol(Chem.MolFromSmiles(smiles))
    for atom, row in zip(mol.GetAtoms(), x.tolist(), strict=True):
        atom.SetAtomicNum(row[0] + 1)
        atom.SetFormalCharge(row[3] - 5)
        atom.SetNumExplicitHs(row[4])
        atom.SetNoImplicit(True)
        atom.SetNumRadicalElectrons(row[5])
        atom.SetIsAromatic(bool(row[7]))
    with rdBase.BlockLogs():
        return Chem.SanitizeMol(mol, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/operators"))
    parser.add_argument("--only", default="")
    parser.add_argument("--graphs", type=int, default=64)
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--drawn", action="store_true", help="only look at what is drawn")
    given = parser.parse_args()
    if given.drawn:
        print(drawn_molecules(given.graphs))
        return
    for name in [given.only] if given.only else ["bace", "mnist-superpixels"]:
        report, title = measured(name, given.graphs, given.out / name, refit=False)
        found: dict[str, dict[str, Values]] = {
            operator: {metric: report.values(metric, operator) for metric in METRICS}
            for operator in operators_for(gx.load(name))
        }
        if given.refit:
            judged, _ = measured(name, given.graphs, given.out / f"{name}-refit", refit=True)
            found["mask, f-fidelity"] = {m: judged.values(m, "mask") for m in METRICS}
        text = tables(title, found)
        (given.out / f"{name}.md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
