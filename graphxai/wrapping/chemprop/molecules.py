"""Turn a molecule into the graph that a chemprop network reads, with chemprop's own features.

A file of chemprop does not say which features its network reads, but their number tells.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from rdkit import Chem
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.inputs import InputError
from graphxai.runtime.extras import missing_extra

MOLECULE_FEATURES = "molecule_features"  # the attribute of a graph, and the line of the ledger
#: The name of one of chemprop's featurizers of molecules, or a function of an RDKit molecule.
MoleculeFeaturizer: TypeAlias = "str | Callable[[Chem.Mol], Any]"


@dataclass(frozen=True)
class FeatureSet:
    """One of chemprop's sets of features of atoms and bonds.

    Args:
        mode: its name in chemprop.
        blocks: the names of the features of an atom, and how many columns each has.
        bonds: the number of features of a bond.
    """

    mode: str
    blocks: tuple[tuple[str, int], ...]
    bonds: int = 14

    @property
    def atoms(self) -> int:
        """The number of columns of an atom."""
        return sum(width for _, width in self.blocks)


def _multi_hot(elements: int, hybridisations: int) -> tuple[tuple[str, int], ...]:
    """Return the blocks of the sets that differ in these two; each has a column for others."""
    return (
        ("element", elements + 1), ("degree", 7), ("formal charge", 6), ("chirality", 5),
        ("hydrogens", 6), ("hybridisation", hybridisations + 1), ("aromatic", 1), ("mass", 1),
    )  # fmt: skip


FEATURE_SETS = (
    FeatureSet("V2", _multi_hot(37, 7)),
    FeatureSet("V1", _multi_hot(100, 5)),
    FeatureSet("ORGANIC", _multi_hot(12, 4)),
    FeatureSet("RIGR", (("element", 38), ("degree", 7), ("hydrogens", 6), ("mass", 1)), 2),
)


def feature_set_of(atoms: int, bonds: int) -> FeatureSet:
    """Return the set with these numbers of features of an atom and of a bond.

    Raises:
        ValueError: chemprop has no such set, so the network reads further features.
    """
    for feature_set in FEATURE_SETS:
        if (feature_set.atoms, feature_set.bonds) == (atoms, bonds):
            return feature_set
    sizes = ", ".join(f"{s.atoms} and {s.bonds} ({s.mode})" for s in FEATURE_SETS)
    raise ValueError(
        f"the network reads {atoms} features of an atom and {bonds} of a bond, and chemprop's sets"
        f" have {sizes}. If it reads features of your own, give graphxai.wrap the chemprop"
        " featurizer that computes them: wrap(mpnn, featurize=...)."
    )


@dataclass(frozen=True)
class ChempropFeaturizer:
    """Make the graph of a SMILES or RDKit molecule.

    Args:
        mode: chemprop's name of the features of atoms and bonds, or a featurizer of chemprop, which
            turns an RDKit molecule into a `MolGraph`.
        molecule_features: what else is computed for whole molecules, one after another.
        ignore_stereo: whether stereochemistry is removed first.
    """

    mode: "str | Callable[[Chem.Mol], Any]"
    molecule_features: tuple[MoleculeFeaturizer, ...] = ()
    ignore_stereo: bool = False

    def __call__(self, molecule: "str | Chem.Mol") -> Data:
        """Return the graph with `x`, `edge_index`, `edge_attr` and perhaps `molecule_features`."""
        mol = Chem.MolFromSmiles(molecule) if isinstance(molecule, str) else molecule
        mol = _without_stereo(mol) if self.ignore_stereo else mol
        featurizer = _graph_featurizer(self.mode) if isinstance(self.mode, str) else self.mode
        graph = featurizer(mol)
        data = Data(
            x=torch.from_numpy(np.asarray(graph.V, np.float32)),
            edge_index=torch.from_numpy(np.asarray(graph.edge_index, np.int64).reshape(2, -1)),
            edge_attr=torch.from_numpy(np.asarray(graph.E, np.float32)),
        )
        if self.molecule_features:
            data[MOLECULE_FEATURES] = self._of_molecule(mol)
        return data

    def _of_molecule(self, mol: Chem.Mol) -> Tensor:
        """Return the features of a molecule (1, d). As in chemprop, NaN counts as 0."""
        parts = [
            np.atleast_1d(np.asarray(_molecule_featurizer(featurizer)(mol), np.float64))
            for featurizer in self.molecule_features
        ]
        features = np.concatenate(parts)
        features[np.isnan(features)] = 0
        if not np.isfinite(features.astype(np.float32)).all():
            raise InputError("a feature of the molecule is not finite.")
        return torch.from_numpy(features.astype(np.float32))[None]


def _without_stereo(mol: Chem.Mol) -> Chem.Mol:
    """Return a copy without stereochemistry of atoms and bonds."""
    flat = Chem.Mol(mol)
    for atom in flat.GetAtoms():
        atom.SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
    for bond in flat.GetBonds():
        bond.SetStereo(Chem.BondStereo.STEREONONE)
    return flat


@cache
def _graph_featurizer(mode: str) -> Any:
    """Return chemprop's featurizer of a mode."""
    featurizers = chemprop_featurizers()
    atoms = featurizers.get_multi_hot_atom_featurizer(mode)
    if mode == "RIGR":
        bonds = featurizers.RIGRBondFeaturizer()
        return featurizers.SimpleMoleculeMolGraphFeaturizer(atoms, bonds)
    return featurizers.SimpleMoleculeMolGraphFeaturizer(atoms)


def _molecule_featurizer(featurizer: MoleculeFeaturizer) -> Callable[[Chem.Mol], Any]:
    return _named_featurizer(featurizer) if isinstance(featurizer, str) else featurizer


@cache
def _named_featurizer(name: str) -> Any:
    """Return one of chemprop's featurizers of molecules, or raise ValueError."""
    registry = chemprop_featurizers().MoleculeFeaturizerRegistry
    if name not in registry:
        raise ValueError(
            f"chemprop has no molecule_features {name!r}; it has {', '.join(registry)}."
        )
    return registry[name]()


def as_featurizers(
    given: "MoleculeFeaturizer | Sequence[MoleculeFeaturizer]",
) -> tuple[MoleculeFeaturizer, ...]:
    """Return what a user gave as `molecule_features` as a tuple, after checking the names."""
    chosen = (given,) if isinstance(given, str) or callable(given) else tuple(given)
    for featurizer in chosen:
        _molecule_featurizer(featurizer)
    return chosen


# -- chemprop, an optional package, which is imported when it is first needed ----------------------


@cache
def chemprop_nn() -> Any:
    """Return the module `chemprop.nn`.

    Raises:
        ImportError: chemprop 2 is not installed.
    """
    try:
        from chemprop import nn
    except ModuleNotFoundError as error:
        if error.name != "chemprop":
            raise  # chemprop is installed, and lacks something itself
        raise missing_extra("models of chemprop need", "chemprop 2", "chemprop") from error
    if not hasattr(nn, "BondMessagePassing"):
        raise missing_extra("models of chemprop need", "chemprop 2, not 1", "chemprop")
    return nn


@cache
def chemprop_featurizers() -> Any:
    """Return the module `chemprop.featurizers`, or raise ImportError as `chemprop_nn` does."""
    chemprop_nn()
    from chemprop import featurizers

    return featurizers
