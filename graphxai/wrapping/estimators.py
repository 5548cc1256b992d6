"""Explain estimators such as scikit-learn's, and functions of a SMILES, which see whole molecules.

Such a model has no atoms inside, and no gradient. Atoms are hidden in the molecule instead: each
becomes a dummy atom without charge, hydrogens or chirality, whose bonds stay, and the features are
computed again. This is occlusion and Shapley values of atoms (as in Similarity Maps, Riniker and
Landrum 2013, which leave out the bits of an atom) for features of any kind.
"""

from collections.abc import Callable, Sequence
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


def is_estimator(model: object) -> bool:
    """Return whether a model has scikit-learn's methods, and is no network."""
    return not isinstance(model, nn.Module) and all(
        callable(getattr(model, method, None)) for method in ("fit", "predict")
    )


class FunctionOfSmiles:
    """A function of a SMILES as an estimator, which predicts values, or probabilities of classes.

    Args:
        function: returns a number, or several, for a SMILES. For classes they are the probability
            of the second class, or that of each.
        classes: the names of the classes; empty for values.
    """

    def __init__(self, function: Callable[[str], Any], classes: tuple[str, ...]) -> None:
        self.function, self.classes_ = function, classes
        if classes:
            self.predict_proba = self._probabilities

    def predict(self, smiles: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the numbers (n, k) for molecules."""
        rows = [np.asarray(self.function(each), np.float64).reshape(-1) for each in smiles]
        return np.stack(rows)

    def _probabilities(self, smiles: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the probability of each class (n, classes)."""
        shares = self.predict(smiles)
        return np.concatenate([1 - shares, shares], 1) if shares.shape[1] == 1 else shares


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

    def outputs_of(self, molecules: Sequence[Chem.Mol]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the outputs (B, C) for molecules."""
        rows: Any = list(molecules)
        if self.featurize is not None:
            rows = [self.featurize(mol) for mol in molecules]
            if not isinstance(rows[0], str):  # a pipeline may read SMILES itself
                rows = np.stack([np.asarray(row, np.float64) for row in rows])
        if not hasattr(self.estimator, "predict_proba"):
            values = np.asarray(self.estimator.predict(rows), np.float64)
            return values.reshape(len(molecules), -1)
        probabilities = np.asarray(self.estimator.predict_proba(rows), np.float64)
        logits = np.log(np.clip(probabilities, RARE, 1 - RARE))
        return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else logits


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
    classes = tasks[0].classes if len(tasks) == 1 else ()
    estimator = FunctionOfSmiles(function, tuple(classes))
    name = name or getattr(function, "__name__", type(function).__name__)
    return wrap_estimator(estimator, tasks, None, (), featurize or Chem.MolToSmiles, name)


def _tasks_of(
    estimator: Any, outputs: int, task: str | None, classes: tuple[str, ...]
) -> tuple[Task, ...]:
    """Return the tasks of an estimator: one with classes, or a regression for each output."""
    if hasattr(estimator, "predict_proba"):
        names = classes or tuple(map(str, estimator.classes_))
        kind: Any = "binary" if len(names) == 2 else "multiclass"
        return (Task(task or "output", kind, names),)
    if outputs == 1:
        return (Task(task or "output", "regression"),)
    return tuple(Task(f"output {k + 1}", "regression") for k in range(outputs))
