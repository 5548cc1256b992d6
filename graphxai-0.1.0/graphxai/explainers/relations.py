"""Find relations between the atoms of a molecule, the counterpart of syntactic relations."""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rdkit.Chem import Mol

RELATIONS = ("bonded", "same ring", "same functional group", "conjugated")

# The atoms that a match covers are related. A larger group may contain smaller ones.
RELATING_GROUPS: dict[str, str] = {
    "carboxylic acid or carboxylate": "[CX3](=O)[OX2H1,OX1-]",
    "ester": "[CX3](=O)[OX2H0][#6]",
    "amide": "[#6X3](=[OX1])[#7X3]",
    "urea": "[#7X3][#6X3](=[OX1])[#7X3]",
    "carbamate": "[NX3][CX3](=O)[OX2H0]",
    "acyl halide": "[CX3](=O)[F,Cl,Br,I]",
    "aldehyde or ketone": "[#6,#1][CX3](=O)[#6,#1]",
    "amidine": "[NX3][CX3]=[NX2]",
    "guanidine": "[NX3][CX3](=[NX2])[NX3]",
    "imine": "[CX3]=[NX2]",
    "nitrile": "[CX2]#[NX1]",
    "nitro": "[NX3](=O)=O",
    "nitro, charged": "[NX3+](=O)[O-]",
    "azide": "[N]=[N+]=[N-]",
    "sulfone or sulfonamide": "[SX4](=O)(=O)([#6])[#6,#7]",
    "sulfoxide": "[SX3](=O)([#6])[#6]",
    "phosphate or phosphonate": "[PX4](=O)([#6,#8])([#6,#8])[#6,#8]",
    "alcohol or phenol": "[#6][OX2H]",
    "ether": "[#6;!$(C=O)][OX2H0][#6;!$(C=O)]",
    "amine": "[#6;!$(C=[O,N,S])][NX3;!$(N-[!#6;!#1]);!$(N-C=[O,N,S])]",
    "thiol": "[#6][SX2H]",
    "thioether": "[#6][SX2H0][#6]",
    "trifluoromethyl": "[CX4](F)(F)F",
    "halide": "[#6][F,Cl,Br,I]",
    "alkene": "[CX3]=[CX3]",
    "alkyne": "[CX2]#[CX2]",
}


def relations_of(molecule: "Mol") -> NDArray[np.bool_]:
    """Return which pairs of atoms have each of the four `RELATIONS` (4, N, N).

    Atoms are bonded, in the same ring, covered by the same match of a pattern in
    `RELATING_GROUPS`, or in the same connected system of bonds that RDKit calls conjugated.
    Relations are symmetric, and no atom is related to itself.
    """
    n = molecule.GetNumAtoms()
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    groups = [
        match
        for pattern in _patterns()
        for match in molecule.GetSubstructMatches(pattern, maxMatches=10_000)
    ]
    members = (bonds, molecule.GetRingInfo().AtomRings(), groups, _conjugated_systems(molecule))
    related = np.zeros((len(RELATIONS), n, n), dtype=bool)
    for relation, sets in zip(related, members, strict=True):
        for atoms in sets:
            relation[np.ix_(atoms, atoms)] = True
        np.fill_diagonal(relation, False)
    return related


def _conjugated_systems(molecule: "Mol") -> list[list[int]]:
    """List the atoms of each connected set of conjugated bonds."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    bonds = [b for b in molecule.GetBonds() if b.GetIsConjugated()]
    n = molecule.GetNumAtoms()
    # `connected_components` takes only 32-bit positions, and the first versions of SciPy with this
    # class do not convert them.
    start = np.array([b.GetBeginAtomIdx() for b in bonds], dtype=np.int32)
    end = np.array([b.GetEndAtomIdx() for b in bonds], dtype=np.int32)
    adjacency = coo_array((np.ones(len(bonds)), (start, end)), shape=(n, n))
    _, system = connected_components(adjacency, directed=False)
    return [np.flatnonzero(system == s).tolist() for s in np.unique(system[start])]


@cache
def _patterns() -> tuple[Any, ...]:
    from rdkit import Chem

    return tuple(Chem.MolFromSmarts(smarts) for smarts in RELATING_GROUPS.values())
