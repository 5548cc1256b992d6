"""The forms in which one compound can be drawn, and what a model says of each."""

import csv
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem
from rdkit.Chem.Descriptors import MolWt
from rdkit.Chem.MolStandardize import rdMolStandardize

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.training_set import HELD_OUT
from graphxai.models.graphormer import LoadedModel, locate

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


def chosen_compounds(limit: int) -> list[str]:
    """Return drug-like test compounds in turn from all models, neutral, with one base or acid."""
    by_model = [_usable(name) for name in MODELS]
    taken: dict[str, None] = {}
    for row in range(max(map(len, by_model))):
        for compounds in by_model:
            if row < len(compounds) and len(taken) < limit:
                taken[compounds[row]] = None
    return list(taken)


def test_part(name: str) -> list[str]:
    """Return the SMILES of the molecules that a model was tested on."""
    with (locate(name) / HELD_OUT).open(encoding="utf-8", newline="") as file:
        return [row["smiles"] for row in csv.DictReader(file) if row["part"] == "test"]


def _usable(name: str) -> list[str]:
    usable = []
    for text in test_part(name):
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


def tautomers(smiles: str) -> list[str]:
    """Return up to five other tautomers of a molecule, those that RDKit scores highest."""
    enumerator = rdMolStandardize.TautomerEnumerator()
    enumerator.SetMaxTransforms(100)
    mols = sorted(
        enumerator.Enumerate(Chem.MolFromSmiles(smiles)),
        key=lambda mol: -enumerator.ScoreTautomer(mol),
    )
    return [text for text in map(Chem.MolToSmiles, mols) if text != smiles][:5]
