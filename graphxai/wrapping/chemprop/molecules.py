"""Turn a molecule into the graph that a chemprop network reads, with chemprop's own features.

A file of chemprop does not say which features its network reads, but their number tells.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
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
        f" have {sizes}. If it reads further features, give functions of an RDKit molecule that"
        " return them, as in extra_features={'atom_features': function, 'bond_features': function};"
        " for another set, give graphxai.wrap the featurizer: wrap(mpnn, featurize=...)."
    )


@dataclass(frozen=True)
class ChempropFeaturizer:
    """Make the graph of a SMILES or RDKit molecule.

    Args:
        mode: chemprop's name of the features of atoms and bonds, or a featurizer of chemprop, which
            turns an RDKit molecule into a `MolGraph`.
        molecule_features: what else is computed for whole molecules, one after another.
        ignore_stereo: whether stereochemistry is removed first.
        extra_features: functions that return further features of atoms and bonds, by kind.
        components: how many molecules an input has. They are the parts of a SMILES between dots.
    """

    mode: "str | Callable[[Chem.Mol], Any]"
    molecule_features: tuple[MoleculeFeaturizer, ...] = ()
    ignore_stereo: bool = False
    extra_features: Mapping[str, Callable[[Chem.Mol], Any]] = field(default_factory=dict)
    components: int = 1

    def __call__(self, molecule: "str | Chem.Mol") -> Data:
        """Return the graph with `x`, `edge_index`, `edge_attr` and perhaps `molecule_features`."""
        mol = Chem.MolFromSmiles(molecule) if isinstance(molecule, str) else molecule
        mol = _without_stereo(mol) if self.ignore_stereo else mol
        featurizer = _graph_featurizer(self.mode) if isinstance(self.mode, str) else self.mode
        graph = featurizer(mol)
        x, bonds = np.asarray(graph.V, np.float32), np.asarray(graph.E, np.float32)
        for kind, function in self.extra_features.items():
            rows = _rows(function(mol), mol, kind)
            if kind == "bond_features":  # chemprop lists both directions of each bond
                bonds = np.hstack([bonds, rows.repeat(2, axis=0)])
            else:
                x = np.hstack([x, rows])
        data = Data(
            x=torch.from_numpy(x),
            edge_index=torch.from_numpy(np.asarray(graph.edge_index, np.int64).reshape(2, -1)),
            edge_attr=torch.from_numpy(bonds),
        )
        if self.components > 1:
            data["node_component"] = self._components(mol)
        if self.molecule_features:
            data[MOLECULE_FEATURES] = self._of_molecule(mol)
        return data

    def _components(self, mol: Chem.Mol) -> Tensor:
        """Return for each atom (N,) in which of the molecules it is, counted from 0."""
        parts = Chem.GetMolFrags(mol)
        if len(parts) != self.components:
            raise InputError(
                f"the model reads {self.components} molecules, and this input has {len(parts)}:"
                f" write {self.components} SMILES with a dot between them, in the order of the"
                " columns that the model was trained on. None of them can be a salt."
            )
        numbers = torch.empty(mol.GetNumAtoms(), dtype=torch.long)
        for number, atoms in enumerate(parts):
            numbers[list(atoms)] = number
        return numbers

    def _of_molecule(self, mol: Chem.Mol) -> Tensor:
        """Return the features of a molecule (1, d). As in chemprop, NaN counts as 0."""
        # chemprop passes on those of the first of several molecules
        first = Chem.GetMolFrags(mol, asMols=True)[0] if self.components > 1 else mol
        parts = [
            np.atleast_1d(np.asarray(_molecule_featurizer(featurizer)(first), np.float64))
            for featurizer in self.molecule_features
        ]
        features = np.concatenate(parts)
        features[np.isnan(features)] = 0
        if not np.isfinite(features.astype(np.float32)).all():
            raise InputError("a feature of the molecule is not finite.")
        return torch.from_numpy(features.astype(np.float32))[None]


#: What functions in `extra_features` return: further features of atoms (before messages are
#: passed) and of bonds, and descriptors of atoms (after that), as in chemprop's options.
EXTRA_FEATURES = ("atom_features", "bond_features", "atom_descriptors")
ATOM_WISE = ("atom_features", "atom_descriptors")  # in the order of the columns of `x`


def require_extra_features(given: Any) -> Mapping[str, Callable[[Chem.Mol], Any]]:
    """Return the functions by kind, or raise ValueError for anything else."""
    known = isinstance(given, Mapping) and set(given) <= set(EXTRA_FEATURES)
    if not known or not all(map(callable, given.values())):
        raise ValueError(
            "extra_features gives a function of an RDKit molecule for some of"
            f" {', '.join(EXTRA_FEATURES)}, not {given!r}."
        )
    return {kind: given[kind] for kind in EXTRA_FEATURES if kind in given}


def extra_columns(functions: Mapping[str, Callable[[Chem.Mol], Any]]) -> dict[str, int]:
    """Return how many columns of each kind are computed."""
    ethane = Chem.MolFromSmiles("CC")
    return dict.fromkeys(EXTRA_FEATURES, 0) | {
        kind: _rows(function(ethane), ethane, kind).shape[1] for kind, function in functions.items()
    }


def _rows(values: Any, mol: Chem.Mol, kind: str) -> NDArray[np.float32]:
    """Return further features as a table with a row for each atom or bond."""
    rows = np.asarray(values, np.float32)
    count = mol.GetNumBonds() if kind == "bond_features" else mol.GetNumAtoms()
    if rows.ndim != 2 or len(rows) != count or not np.isfinite(rows).all():
        raise InputError(
            f"{kind} in extra_features must be finite numbers of shape ({count}, k), and have shape"
            f" {rows.shape}."
        )
    return rows


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
    bonds = (featurizers.RIGRBondFeaturizer(),) if mode == "RIGR" else ()
    return featurizers.SimpleMoleculeMolGraphFeaturizer(atoms, *bonds)


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
