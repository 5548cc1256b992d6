"""From what users hand over to encoded graphs: SMILES, RDKit molecules, images, PyG data."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data

from graphxai.models.graphormer.config import GraphormerConfig
from graphxai.models.graphormer.encoding import StructureEncoding

if TYPE_CHECKING:
    from rdkit.Chem import Mol


class InputError(ValueError):
    """An input that cannot be explained; the message names it and says what to do."""


@dataclass(frozen=True)
class Input:
    """One encoded graph with what its picture needs.

    Without `molecule`, the atoms are those of `smiles` as RDKit reads it.
    """

    data: Data
    smiles: str | None = None
    molecule: "Mol | None" = None
    image: NDArray[np.floating] | None = None
    segments: NDArray[np.integer] | None = None


def reads_molecules(config: GraphormerConfig) -> bool:
    """Whether a model with this configuration takes molecules; otherwise it takes images."""
    return bool(config.node_cardinalities)


def as_list(inputs: Any) -> tuple[list[Any], bool]:
    """The inputs as a list, and whether the user gave several."""
    if isinstance(inputs, Batch):
        return inputs.to_data_list(), True
    single = (str, bytes, Path, Data, np.ndarray)
    if isinstance(inputs, single) or not isinstance(inputs, Iterable) or hasattr(inputs, "mode"):
        return [inputs], False
    return list(inputs), True


def prepare(config: GraphormerConfig, value: Any) -> Input:
    """Encode one input for a model with this configuration.

    Raises InputError, or the ValueError of the data set's own reader, for what cannot be used.
    """
    encode = StructureEncoding.from_config(config)
    if isinstance(value, Data):
        return _from_data(config, value, encode)
    if reads_molecules(config):
        return _from_molecule(value, encode)
    return _from_image(value, encode)


def _from_molecule(value: Any, encode: StructureEncoding) -> Input:
    from rdkit import Chem

    from graphxai.datasets.molecules import molecule_to_data

    if not isinstance(value, str | Chem.Mol):
        raise InputError(
            f"this model takes SMILES, RDKit molecules or Data, not {type(value).__name__}."
        )
    data = molecule_to_data(value)
    return Input(encode(data), data.smiles, data.get("mol"))


def _from_image(value: Any, encode: StructureEncoding) -> Input:
    from graphxai.datasets.mnist import read_digit
    from graphxai.datasets.superpixels import image_to_data

    if isinstance(value, str | Path):
        value = read_digit(value)
    elif not hasattr(value, "__array__"):
        raise InputError(
            f"this model takes a picture's path, a grey image (H, W) or Data,"
            f" not {type(value).__name__}."
        )
    return _from_data_with_image(encode(image_to_data(np.asarray(value))))


def _from_data_with_image(data: Data) -> Input:
    image, segments = data.get("image"), data.get("segments")
    if image is None or segments is None:
        return Input(data)
    return Input(data, image=image[0].numpy(), segments=segments[0].numpy())


def _from_data(config: GraphormerConfig, data: Data, encode: StructureEncoding) -> Input:
    if data.x is None or data.edge_index is None or not data.num_nodes:
        raise InputError("the graph needs node features `x` and an `edge_index`.")
    width = len(config.node_cardinalities) or config.num_node_features
    if data.x.dim() != 2 or data.x.shape[1] != width:
        raise InputError(
            f"the graph's x has shape {tuple(data.x.shape)}; the model reads {width} features a"
            " node."
        )
    if data.edge_index.numel():
        low, high = int(data.edge_index.min()), int(data.edge_index.max())
        if low < 0 or high >= data.num_nodes:
            raise InputError(
                f"edge_index names node {high if low >= 0 else low}; there are {data.num_nodes}"
                " nodes, from 0."
            )
    if reads_molecules(config):
        _check_codes(config, data)
    encoded = encode(data.clone())
    smiles = data.get("smiles")
    if not isinstance(smiles, str):
        return _from_data_with_image(encoded)
    molecule = data.get("mol") or _molecule_of(smiles, data)
    return Input(encoded, smiles if molecule is not None else None, molecule)


def _check_codes(config: GraphormerConfig, data: Data) -> None:
    for feature, size in enumerate(config.node_cardinalities):
        column = data.x[:, feature]
        if not 0 <= int(column.min()) <= int(column.max()) < size:
            raise InputError(
                f"x[:, {feature}] must lie in 0..{size - 1} (OGB's vocabulary); it runs from"
                f" {int(column.min())} to {int(column.max())}. Features of PyG's from_smiles are"
                " coded differently."
            )


def _molecule_of(smiles: str, data: Data) -> "Mol | None":
    """The molecule for the picture, if its atoms are the graph's nodes."""
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    fits = molecule is not None and molecule.GetNumAtoms() == data.num_nodes
    return molecule if fits else None
