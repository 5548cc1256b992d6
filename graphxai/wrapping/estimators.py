"""Explain estimators such as scikit-learn's, and functions of a SMILES, which see whole molecules.

Such a model has no atoms inside, and no gradient. Atoms are hidden in the molecule instead: each
becomes a dummy atom without charge, hydrogens or chirality, whose bonds stay, and the features are
computed again. This is occlusion and Shapley values of atoms (as in Similarity Maps, Riniker and
Landrum 2013, which leave out the bits of an atom) for features of any kind.
"""

import copyreg
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from rdkit import Chem
from torch import Tensor, nn
from torch_geometric.data import Data

from graphxai.contract.tasks import Task

from .calling import CallSettings, WrappedConfig
from .wrapped import WrappedModel

RARE = 1e-6  # a forest may be certain, and a logit must be finite
Featurize = Callable[[Chem.Mol], Any]
Array = np.ndarray[Any, np.dtype[np.float64]]
# RDKit's own functions, such as `Chem.MolToSmiles`, go to other processes by their names
copyreg.pickle(type(Chem.MolToSmiles), lambda function: function.__name__)


def is_estimator(model: object) -> bool:
    """Return whether a model has scikit-learn's methods, and is no network."""
    return not isinstance(model, nn.Module) and all(
        callable(getattr(model, method, None)) for method in ("fit", "predict")
    )


class FunctionOfSmiles:
    """A function of a SMILES as an estimator, which predicts values, and logits of classes.

    Args:
        function: returns a number, or several, for a SMILES. For classes they are the probability
            of the second class, or that of each.
        tasks: what the numbers are.
    """

    def __init__(self, function: Callable[[str], Any], tasks: tuple[Task, ...]) -> None:
        self.function, self.tasks = function, tasks

    def predict(self, smiles: Sequence[str]) -> Array:
        """Return the outputs (n, k) for molecules."""
        rows = np.stack([np.asarray(self.function(s), np.float64).reshape(-1) for s in smiles])
        ends = np.cumsum([task.num_outputs for task in self.tasks])[:-1]
        parts = np.split(rows, ends, 1)
        return np.concatenate([*map(self._outputs, self.tasks, parts)], 1)

    def _outputs(self, task: Task, numbers: Array) -> Array:
        """Return the outputs of a task (n, k), given the numbers of the function for it."""
        if task.kind == "regression":
            return numbers
        if ((numbers < -RARE) | (numbers > 1 + RARE)).any():
            raise ValueError(
                f"for {task.name!r}, which has classes, the function must return probabilities from"
                f" 0 to 1, not {numbers.flat[abs(numbers - 0.5).argmax()]:g}. Divide percentages by"
                " 100, and put logits through a sigmoid."
            )
        each = np.concatenate([1 - numbers, numbers], 1) if numbers.shape[1] == 1 else numbers
        return logits_of(each)


def logits_of(probabilities: Array) -> Array:
    """Return the logit of the second of two classes (n, 1), or a logit of each class (n, C)."""
    logits = np.log(np.clip(probabilities, RARE, 1 - RARE))
    return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else logits


def classes_of(estimator: Any) -> tuple[str, ...]:
    """Return the names of an estimator's classes in the order of its columns, () for values."""
    return tuple(map(str, getattr(estimator, "classes_", ())))


def is_classifier(estimator: Any) -> bool:
    """Return whether an estimator predicts classes."""
    return hasattr(estimator, "predict_proba") or bool(classes_of(estimator))


def outputs_from(estimator: Any, rows: Any) -> Array:
    """Return the outputs (n, k) of an estimator: values, or logits from probabilities or scores.

    Raises:
        ValueError: it predicts classes, and has neither probabilities nor a score for each.
    """
    name, classes = type(estimator).__name__, len(classes_of(estimator))
    if hasattr(estimator, "predict_proba"):
        probabilities = estimator.predict_proba(rows)
        if isinstance(probabilities, list) and np.ndim(probabilities[0]) == 2:
            raise ValueError(
                f"{name} predicts classes of several properties: wrap an estimator for each of"
                " them, and give the models as a list."
            )
        return logits_of(np.asarray(probabilities, np.float64))
    settings = estimator.get_params() if hasattr(estimator, "get_params") else {}
    by_pair = any(k.endswith("decision_function_shape") and settings[k] == "ovo" for k in settings)
    if not classes or (by_pair and classes > 2) or not hasattr(estimator, "decision_function"):
        outputs = np.empty(0) if classes else np.asarray(estimator.predict(rows))
    else:
        outputs = np.asarray(estimator.decision_function(rows))
    wanted = 1 if classes == 2 else classes or outputs.size // len(rows)
    if outputs.dtype.kind not in "iuf" or outputs.size != len(rows) * wanted:
        raise ValueError(
            f"{name} predicts classes, with neither probabilities nor a score for each class: fit"
            " sklearn.calibration.CalibratedClassifierCV with it, or take a classifier with"
            " predict_proba."
        )
    return outputs.astype(np.float64).reshape(len(rows), wanted)


class MaskedMolecules(nn.Module):
    """An estimator as a function of the atoms that are left in a graph.

    Args:
        estimator: predicts from rows of features, or from a list of RDKit molecules.
        featurize: computes the features of a molecule, or writes it as SMILES. None gives the
            estimator the molecules.
    """

    def __init__(self, estimator: Any, featurize: Featurize | None) -> None:
        super().__init__()
        self.estimator, self.featurize = estimator, featurize

    def forward(self, batch: Any) -> Tensor:
        """Return the outputs (B, C): values, the logit of the second class, or logits.

        Args:
            batch: graphs with `molecule`, a molecule as text, and `atom` (N,), the numbers of the
                atoms that are left.
        """
        left = [
            frozenset(batch.atom[batch.batch == k].tolist()) for k in range(len(batch.molecule))
        ]
        masked = [masked_molecule(m, atoms) for m, atoms in zip(batch.molecule, left, strict=True)]
        return torch.as_tensor(self.outputs_of(masked), dtype=batch.x.dtype, device=batch.x.device)

    def outputs_of(self, molecules: Sequence[Chem.Mol]) -> Array:
        """Return the outputs (B, C) for molecules."""
        rows: Any = list(molecules)
        if self.featurize is not None:
            rows = [self.featurize(mol) for mol in molecules]
            if not isinstance(rows[0], str):  # a pipeline may read SMILES itself
                rows = np.stack([np.asarray(row, np.float64) for row in rows])
        return outputs_from(self.estimator, rows)


def graph_of(molecule: "str | Chem.Mol") -> Data:
    """Return a graph with the numbers of the atoms, and the molecule itself as text."""
    mol = Chem.MolFromSmiles(molecule) if isinstance(molecule, str) else molecule
    ends = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()]
    edges = torch.tensor([*ends, *((j, i) for i, j in ends)], dtype=torch.long).reshape(-1, 2)
    return Data(
        x=torch.ones(mol.GetNumAtoms(), 1),
        edge_index=edges.T.contiguous(),
        atom=torch.arange(mol.GetNumAtoms()),
        molecule=mol.ToBinary().decode("latin-1"),
    )


@lru_cache(maxsize=1 << 14)
def masked_molecule(molecule: str, left: frozenset[int]) -> Chem.Mol:
    """Return a molecule in which all atoms but those `left` are dummy atoms."""
    mol = Chem.Mol(molecule.encode("latin-1"))  # type: ignore[call-overload]  # takes bytes
    if len(left) == mol.GetNumAtoms():
        return mol
    masked = Chem.RWMol(mol)
    for atom in masked.GetAtoms():
        if atom.GetIdx() not in left:
            atom.SetAtomicNum(0)
            atom.SetFormalCharge(0)
            atom.SetIsotope(0)
            atom.SetNumExplicitHs(0)
            atom.SetNoImplicit(True)
            atom.SetNumRadicalElectrons(0)
            atom.SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
    masked.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(masked)
    return masked.GetMol()


def wrap_estimator(
    estimator: Any,
    tasks: tuple[Task, ...],
    task: str | None,
    classes: tuple[str, ...],
    featurize: Featurize | None,
    name: str | None,
) -> WrappedModel:
    """Return a model that explains a fitted estimator by hiding atoms.

    Raises:
        ValueError: the tasks do not fit the outputs of the estimator.
    """
    module = MaskedMolecules(estimator, featurize)
    outputs = module.outputs_of([Chem.MolFromSmiles("CC")]).shape[1]
    tasks = tasks or _tasks_of(estimator, outputs, task, classes)
    if not isinstance(estimator, FunctionOfSmiles):
        tasks = tuple(_of_estimator(each, estimator) for each in tasks)
    if sum(t.num_outputs for t in tasks) != outputs:
        raise ValueError(f"the estimator has {outputs} outputs; the tasks given need others.")
    settings = CallSettings(featurize=graph_of, has_gradients=False)
    config = WrappedConfig(tasks, reads="molecules")
    return WrappedModel(module, config, settings, name or type(estimator).__name__)


def wrap_function(
    function: Callable[[Any], Any],
    tasks: tuple[Task, ...],
    featurize: Featurize | None,
    name: str | None,
) -> WrappedModel:
    """Return a model that explains a function of a SMILES, or of features, by hiding atoms."""
    estimator = FunctionOfSmiles(function, tasks)
    name = name or getattr(function, "__name__", type(function).__name__)
    return wrap_estimator(estimator, tasks, None, (), featurize or Chem.MolToSmiles, name)


def _of_estimator(task: Task, estimator: Any) -> Task:
    """Return a task with the classes in the order of the estimator, unless they are new names."""
    fitted = classes_of(estimator)
    if (task.kind == "regression") == is_classifier(estimator):
        predicts = "classes" if is_classifier(estimator) else "values"
        raise ValueError(f"the estimator predicts {predicts}: task {task.name!r} needs that kind.")
    if {*fitted} == {*task.classes}:
        return replace(task, classes=fitted)
    moved = [
        new for new, old in zip(task.classes, fitted, strict=False) if new != old and new in fitted
    ]
    if moved:
        raise ValueError(
            f"the estimator has the classes {', '.join(map(repr, fitted))} in this order, so"
            f" {moved[0]!r} cannot be the name of another: give all of them, or other names."
        )
    return task


def _tasks_of(
    estimator: Any, outputs: int, task: str | None, classes: tuple[str, ...]
) -> tuple[Task, ...]:
    """Return the tasks of an estimator: one with classes, or a regression for each output."""
    if is_classifier(estimator):
        names = classes or classes_of(estimator)
        kind: Any = "binary" if len(names) == 2 else "multiclass"
        return (Task(task or "output", kind, names),)
    if outputs == 1:
        return (Task(task or "output", "regression", classes),)
    return tuple(Task(f"output {k + 1}", "regression", classes) for k in range(outputs))
