"""Make equivalent forms of an input: another SMILES, or a graph with renumbered nodes."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from graphxai.contract.inputs import Input

if TYPE_CHECKING:
    from rdkit.Chem import Mol
    from torch_geometric.data import Data

WRITINGS = 2  # how many other forms of each input are explained


def another_form(item: Input, draw: int) -> "tuple[Mol | Data | str, list[int]] | None":
    """Return another form of the input, with the original number of each of its nodes.

    An RDKit molecule or a graph of the bundled models is renumbered. A SMILES is written from
    another atom on, which may lose explicit hydrogens. Returns None for a graph of a wrapped model,
    because its nodes may have any attributes.
    """
    from rdkit import Chem, rdBase

    if item.molecule is not None:
        size = item.molecule.GetNumAtoms()
        order = np.random.default_rng(draw).permutation(size).tolist()
        return Chem.RenumberAtoms(item.molecule, order), order
    if item.smiles is None:
        if "structure" not in item.data:  # the graph is one of a wrapped model
            return None
        order = np.random.default_rng(draw).permutation(item.data.num_nodes).tolist()
        return _renumbered(item.data, order), order
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(item.smiles) if item.read is None else item.read
        start = (draw + 1) * mol.GetNumAtoms() // (WRITINGS + 1)
        text = Chem.MolToSmiles(mol, canonical=False, rootedAtAtom=start)
    return text, list(mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])


def _renumbered(data: "Data", order: list[int]) -> "Data":
    """Renumber the graph, so that new node k is old node `order[k]`."""
    from torch_geometric.data import Data  # slow to import

    number = np.argsort(order)  # the new number of each old node
    edges = torch.as_tensor(number)[data.edge_index]
    position = None if data.pos is None else data.pos[order]
    return Data(x=data.x[order], edge_index=edges, edge_attr=data.edge_attr, pos=position)
