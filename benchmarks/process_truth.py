"""Compare what methods say of a Gaussian process with the true contributions of atoms.

The process learns Crippen's log P, which is a sum over atoms, from molecules of the bundled model
`lipophilicity`. On others, each method's relevance is correlated with the true contributions.
`python benchmarks/process_truth.py --train 600 --test 60`
"""

import argparse
import time

import numpy as np
import torch
from rdkit import Chem
from rdkit.Chem import rdMolDescriptors
from scipy.stats import spearmanr

import graphxai as gx
from graphxai.contract.prediction_metrics import r2
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import structure_counts
from graphxai.learning.teachers.gaussian_process import Process, similarity
from graphxai.models.process import CarriedCounts, KernelProcess, ProcessConfig

METHODS = ("kernel", "occlusion", "shapley_sampling", "integrated_gradients", "gradient_input")


def contributions(smiles: str) -> np.ndarray:
    """Return what each atom adds to Crippen's log P."""
    pairs = rdMolDescriptors._CalcCrippenContribs(Chem.MolFromSmiles(smiles))
    return np.array([log_p for log_p, _ in pairs])


def fitted(smiles: list[str]) -> KernelProcess:
    """Return a process that has learned log P from some molecules."""
    y = np.array([[contributions(each).sum()] for each in smiles])
    counts = structure_counts(smiles)
    process = Process.fit(similarity(counts, counts), np.arange(len(y)), y, left_out=False)
    weights, means = torch.from_numpy(process.weights), torch.from_numpy(process.means)
    config = ProcessConfig((Task("log P", "regression"),), len(y))
    return KernelProcess(config, CarriedCounts.of(counts), weights, means).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", type=int, default=600)
    parser.add_argument("--test", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    training = gx.training_set_of(gx.load("lipophilicity"))
    assert training is not None
    drawn = np.random.default_rng(options.seed).permutation(len(training.smiles))
    smiles = [training.smiles[k] for k in drawn[: options.train + options.test]]
    began = time.process_time()
    model, tested = fitted(smiles[: options.train]), smiles[options.train :]
    print(f"fitted to {options.train} molecules in {time.process_time() - began:.1f} s")
    truth = [contributions(each) for each in tested]
    values = np.array([each["log P"].value for each in gx.predict(model, tested)])
    sums = np.array([each.sum() for each in truth])
    print(f"R2 on {options.test} others: {r2(values, sums):.3f}")
    for method in options.methods:
        began = time.process_time()
        explained = gx.explain(model, tested, method, progress=False)
        each = (time.process_time() - began) / len(tested)
        both = list(zip(explained, truth, strict=True))
        r = [np.corrcoef(e.relevance, t)[0, 1] for e, t in both]
        rho = [spearmanr(e.relevance, t).statistic for e, t in both]
        gaps = [abs(e.ledger.unexplained) for e in explained if e.ledger]  # not of all methods
        print(
            f"{method:22} r {np.mean(r):.3f} +- {np.std(r, ddof=1) / len(r) ** 0.5:.3f},"
            f" Spearman {np.mean(rho):.3f} +- {np.std(rho, ddof=1) / len(rho) ** 0.5:.3f},"
            f" {1000 * each:.0f} ms a molecule, unexplained up to {max(gaps, default=np.nan):.1e}"
        )


if __name__ == "__main__":
    main()
