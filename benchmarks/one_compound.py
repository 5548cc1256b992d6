"""Measure whether one compound gets one answer from the bundled models of molecules.

    python benchmarks/one_compound.py [--models bace ...] [--limit N]

Writes `results/one_compound.md`. The compounds come from the test parts in the `held_out.csv` of
the models. Each is written as a base, as five salts, as a hydrate and with a proton more or less,
and the outputs for these forms are compared. Then configuration and isotopes are changed, to see
what a model does not see. At last, the time of a row is measured with parents and as drawn.
"""

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rdkit import Chem, RDLogger
from rdkit.Chem.Descriptors import MolWt
from rdkit.Chem.MolStandardize import rdMolStandardize

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.samples import example_files
from graphxai.datasets.standardise import may_change
from graphxai.datasets.training_set import HELD_OUT
from graphxai.models.graphormer import LoadedModel, locate, set_standardisation

RESULTS = Path(__file__).parent / "results" / "one_compound.md"
MODELS = ("bace", "blood-brain-barrier", "lipophilicity", "solubility", "tox21", "hiv")
ACIDS = {
    "hydrochloride": "Cl",
    "mesylate": "CS(=O)(=O)O",
    "trifluoroacetate": "OC(=O)C(F)(F)F",
    "tartrate": "OC(=O)C(O)C(O)C(=O)O",
    "besylate": "OS(=O)(=O)c1ccccc1",
}
AMINE = Chem.MolFromSmarts("[NX3;H0,H1,H2;+0;!$(N~[!#6]);!$(N-[*]=,#,:[*]);!$(N-C=[O,S,N])]")
ACID = Chem.MolFromSmarts("[CX3](=O)[OX2H1]")
DRUGS = (200, 600)  # g/mol
COMPOUNDS = 200


def chosen_compounds(limit: int) -> list[str]:
    """Return drug-like test compounds in turn from all models, neutral, with one base or acid."""
    by_model = [_usable(name) for name in MODELS]
    taken: dict[str, None] = {}
    for row in range(max(map(len, by_model))):
        for compounds in by_model:
            if row < len(compounds) and len(taken) < limit:
                taken[compounds[row]] = None
    return list(taken)


def _test_part(name: str) -> list[str]:
    """Return the SMILES of the molecules that a model was tested on."""
    with (locate(name) / HELD_OUT).open(encoding="utf-8", newline="") as file:
        return [row["smiles"] for row in csv.DictReader(file) if row["part"] == "test"]


def _usable(name: str) -> list[str]:
    usable = []
    for text in _test_part(name):
        mol = Chem.MolFromSmiles(text)
        ionised = mol.HasSubstructMatch(AMINE) or mol.HasSubstructMatch(ACID)
        plain = Chem.GetFormalCharge(mol) == 0 and "." not in text
        if plain and ionised and DRUGS[0] <= MolWt(mol) <= DRUGS[1]:
            usable.append(text)
    return usable


def forms(smiles: str) -> dict[str, str]:
    """Return the SMILES of one compound as salts, as a hydrate, and with a proton more or less."""
    mol = Chem.MolFromSmiles(smiles)
    written = {f"{name}": f"{smiles}.{acid}" for name, acid in ACIDS.items()}
    written["hydrate"] = f"{smiles}.O"
    charged = Chem.RWMol(mol)
    (match, *_) = mol.GetSubstructMatches(AMINE) or mol.GetSubstructMatches(ACID)
    atom = charged.GetAtomWithIdx(match[-1])
    step = 1 if atom.GetAtomicNum() == 7 else -1
    atom.SetFormalCharge(step)
    atom.SetNumExplicitHs(atom.GetTotalNumHs() + step)
    atom.SetNoImplicit(True)
    Chem.SanitizeMol(charged)
    ion = Chem.MolToSmiles(charged)
    written["protonated" if step > 0 else "deprotonated"] = ion
    written["ion pair"] = f"{ion}.{'[Cl-]' if step > 0 else '[Na+]'}"
    return written


def outputs(model: LoadedModel, smiles: Sequence[str]) -> NDArray[np.float64]:
    """Return probabilities of the last class and values, (n, tasks), NaN where it is refused."""
    predictions = gx.predict(model, list(smiles), progress=False)
    rows = [
        [np.nan] * len(model.config.tasks)
        if each is None
        else [_number(task, each[task.name]) for task in model.config.tasks]
        for each in predictions
    ]
    return np.array(rows).reshape(-1, len(model.config.tasks))


def _number(task: Task, prediction: gx.Prediction) -> float:
    value = prediction.value
    return prediction.probabilities[task.classes[-1]] if value is None else value


def flipped(smiles: str) -> str | None:
    """Return the mirror image of a molecule, or None if it has none."""
    mol = Chem.MolFromSmiles(smiles)
    for atom in mol.GetAtoms():
        atom.InvertChirality()
    mirror = Chem.MolToSmiles(mol)
    return None if mirror == Chem.CanonSmiles(smiles) else mirror


def labelled(smiles: str) -> str:
    """Return a molecule with carbon-13 in all places."""
    mol = Chem.MolFromSmiles(smiles)
    for atom in mol.GetAtoms():
        if atom.GetAtomicNum() == 6:
            atom.SetIsotope(13)
    return str(Chem.MolToSmiles(mol))


def tautomers(smiles: str) -> list[str]:
    """Return up to five other tautomers of a molecule, those that RDKit scores highest."""
    enumerator = rdMolStandardize.TautomerEnumerator()
    enumerator.SetMaxTransforms(100)
    mols = sorted(
        enumerator.Enumerate(Chem.MolFromSmiles(smiles)),
        key=lambda mol: -enumerator.ScoreTautomer(mol),
    )
    return [text for text in map(Chem.MolToSmiles, mols) if text != smiles][:5]


def rows_of_forms(name: str, compounds: Sequence[str]) -> Iterator[list[str]]:
    """Compare the forms of each compound with the compound itself, as drawn and as parents."""
    written = [forms(smiles) for smiles in compounds]
    every = list(chain.from_iterable(each.values() for each in written))
    owner = np.repeat(np.arange(len(written)), [len(each) for each in written])
    for way in ("as drawn", "parent"):
        model = gx.load(name)
        set_standardisation(model, way)
        base, other = outputs(model, compounds), outputs(model, every)
        change = np.abs(other - base[owner])
        for k, task in enumerate(model.config.tasks):
            flips = "–"
            if task.classes:
                differ = (other[:, k] > 0.5) != (base[owner, k] > 0.5)
                flips = f"{len(set(owner[differ].tolist()))} of {len(compounds)}"
            figures = [f"{np.mean(change[:, k]):.3f}", f"{np.max(change[:, k]):.6f}", flips]
            yield [name, task.name, way, *figures]


def rows_of_tautomers(name: str, compounds: Sequence[str]) -> Iterator[list[str]]:
    """Compare the tautomers of each compound, as parents and with canonical tautomers."""
    pairs = [(smiles, other) for smiles in compounds for other in tautomers(smiles)]
    for way in ("parent", "tautomers"):
        model = gx.load(name)
        set_standardisation(model, way)
        outputs_of_first, outputs_of_second = (
            outputs(model, [a for a, _ in pairs]),
            outputs(model, [b for _, b in pairs]),
        )
        change = np.abs(outputs_of_first - outputs_of_second).max(1)
        yield [name, way, f"{len(pairs)}", f"{np.mean(change < 1e-4):.0%}", f"{change.mean():.3f}"]


def rows_unseen(name: str) -> Iterator[list[str]]:
    """Say how much outputs change with configuration and isotopes, over the test compounds."""
    model = gx.load(name)
    smiles = _test_part(name)
    smiles = smiles[:: max(1, len(smiles) // COMPOUNDS)]
    mirrored = [(text, mirror) for text in smiles if (mirror := flipped(text))]
    base, heavy = outputs(model, smiles), outputs(model, list(map(labelled, smiles)))
    drawn, mirrored_outputs = (outputs(model, [pair[k] for pair in mirrored]) for k in (0, 1))
    for k, task in enumerate(model.config.tasks):
        spread = np.nanstd(base[:, k])
        change = np.abs(drawn[:, k] - mirrored_outputs[:, k])
        of_mirror = ["–", "–"]
        if len(change):
            of_mirror = [f"{np.nanmedian(change):.3f}", f"{np.nanquantile(change, 0.95):.3f}"]
        yield [
            name,
            task.name,
            f"{spread:.3f}",
            f"{len(mirrored)}",
            *of_mirror,
            f"{np.nanmax(np.abs(heavy[:, k] - base[:, k])):.6f}",
        ]


def rows_of_cost(repeats: int = 7) -> Iterator[list[str]]:
    """Time a table in which most compounds have a charge, and one of drug-like molecules."""
    work: dict[str, Callable[[LoadedModel, list[str]], object]] = {
        "predict": lambda model, smiles: gx.predict(model, smiles, progress=False),
        "explain": lambda model, smiles: gx.explain(model, smiles, progress=False),
    }
    ways = ("as drawn", "parent")
    models = {way: gx.load("bace") for way in ways}
    for way, model in models.items():
        set_standardisation(model, way)
    tables = {
        "`assay.csv`": [str(text) for text in pd.read_csv(example_files()["assay.csv"]).smiles],
        "test part of `lipophilicity`": _test_part("lipophilicity"),
    }
    for table, smiles in tables.items():
        charged = sum(map(may_change, smiles))
        for verb, call in work.items():
            seconds = dict.fromkeys(ways, float("inf"))
            for _ in range(repeats):
                for way in ways:
                    begun = time.process_time()
                    call(models[way], smiles)
                    seconds[way] = min(seconds[way], time.process_time() - begun)
            drawn, parent = (1000 * seconds[way] / len(smiles) for way in ways)
            share = f"{parent / drawn - 1:+.0%}"
            counts = [f"{len(smiles)}", f"{charged}"]
            yield [f"{verb} {table}", *counts, f"{drawn:.2f}", f"{parent:.2f}", share]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--limit", type=int, default=COMPOUNDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    compounds = chosen_compounds(args.limit)
    of_forms = list(chain.from_iterable(rows_of_forms(name, compounds) for name in args.models))
    of_tautomers = [row for name in args.models[:3] for row in rows_of_tautomers(name, compounds)]
    unseen = list(chain.from_iterable(map(rows_unseen, args.models)))
    header = ["model", "task", "read", "mean change", "largest", "compounds whose class flips"]
    tautomer_header = ["model", "read", "pairs", "same", "mean change"]
    unseen_header = ["model", "task", "spread", "chiral compounds", "mirror image: median change"]
    unseen_header += ["95 % below", "isotopes: largest change"]
    cost_header = ["", "rows", "with a charge or a dot", "as drawn, ms", "parent, ms", "difference"]
    text = f"""# One compound, one answer

Written by `benchmarks/one_compound.py`. {len(compounds)} drug-like test compounds, each as a base or an acid, as five
salts ({", ".join(ACIDS)}), as a hydrate, with a
proton more or less, and as a pair of ions. Probabilities are those of the last class.

{markdown(header, of_forms)}

## Tautomers

Up to five tautomers of each compound, those that RDKit scores highest. "Same" means that all outputs differ by
less than 0.0001.

{markdown(tautomer_header, of_tautomers)}

## What a model does not see

Test compounds, against their mirror images (configuration), and with carbon-13 in all places (isotopes). The
spread is the standard deviation of the outputs over these compounds.

{markdown(unseen_header, unseen)}

## What a parent costs

Milliseconds of processor time for a row with `bace`, the least of seven alternating runs: of the example table
`assay.csv`, in which most compounds have a charge, and of drug-like molecules.

{markdown(cost_header, list(rows_of_cost()))}
"""  # noqa: E501
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
