"""Encode what users pass in as graphs: SMILES, RDKit molecules, images, PyG data."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from graphxai.datasets.graph import Graph, is_batch, is_data, is_heterogeneous
from graphxai.models.graphormer.config import GraphormerConfig
from graphxai.models.graphormer.encoding import StructureEncoding

from .model import require_contract

if TYPE_CHECKING:
    from rdkit.Chem import Mol
    from torch_geometric.data import Data


GROUP = 64  # inputs whose molecules are featurised together
CHIRALITY = 1  # column of OGB's features that depends on how the SMILES is written


class InputError(ValueError):
    """An input that cannot be explained; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class Input:
    """One encoded graph, with what is needed to draw it.

    Without `molecule`, the atoms are in RDKit's order for `smiles`. graph: as given, or made
    without PyG; `data` is the same as PyG's `Data`.
    """

    graph: "Data | Graph"
    smiles: str | None = None
    molecule: "Mol | None" = None
    image: NDArray[np.floating] | None = None
    segments: NDArray[np.integer] | None = None

    @cached_property
    def data(self) -> "Data":
        """The encoded graph as PyG's `Data`."""
        return self.graph.to_data() if isinstance(self.graph, Graph) else self.graph

    @cached_property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.graph.num_nodes or 0)


def reads_molecules(config: GraphormerConfig) -> bool:
    """Whether a model with this configuration takes molecules rather than images."""
    return bool(config.node_cardinalities)


def as_list(inputs: Any) -> tuple[list[Any], bool]:
    """The inputs as a list, and whether the user passed several.

    Batches in a list, or from a `DataLoader`, count as their parts.
    """
    if is_batch(inputs):
        return inputs.to_data_list(), True
    if isinstance(inputs, Mapping):
        raise TypeError("inputs is a mapping: pass its values as a list.")
    single = isinstance(inputs, str | bytes | Path | np.ndarray | torch.Tensor)
    single = single or is_data(inputs) or is_heterogeneous(inputs)
    if single or not isinstance(inputs, Iterable) or _is_pillow(inputs):
        return [inputs], False
    rows = isinstance(inputs, DataLoader)
    return [value for part in inputs for value in _parts(part, rows)], True


def _parts(value: Any, rows: bool) -> list[Any]:
    """The graphs of a batch; with rows also the entries of a loader's batch of tensors."""
    if is_batch(value):
        return list(value.to_data_list())
    if rows and isinstance(value, tuple | list) and value:
        value = value[0]  # what follows are labels
    return list(value) if rows and isinstance(value, torch.Tensor) else [value]


def prepare_for(model: Any, value: Any) -> Input:
    """Encode one input for a model, with the model's `prepare` if it has one (wrapped models do).

    Raises TypeError for a model that cannot be explained, InputError for tensors without values.
    """
    (found,) = prepare_all(model, [value])
    return found


def prepare_all(model: Any, values: Iterable[Any]) -> list[Input]:
    """Encode inputs as `prepare_for` does, many molecules at a time; raises the first error."""
    return [item for item in prepare_each(model, values, ()) if isinstance(item, Input)]


def prepare_each(
    model: Any,
    values: Iterable[Any],
    refused: type[Exception] | tuple[type[Exception], ...] = (ValueError, OSError),
) -> Iterator[Input | Exception]:
    """Encode inputs as `prepare_for` does, many molecules at a time.

    An input that cannot be used gives its error instead, if that is one of `refused`; other errors
    are raised. Up to `GROUP` values are taken before the first input comes out.
    """
    if not hasattr(model, "config"):
        require_contract(model)
    own = getattr(model, "prepare", None)
    remaining = iter(values)
    while group := list(islice(remaining, GROUP)):
        graphs = {} if own else _molecular_graphs(model.config, group)
        for k, value in enumerate(group):
            found: Input | Exception
            try:
                _require_values(value)
                found = own(value) if own else _encoded(model.config, value, graphs.get(k))
            except refused as error:
                found = error
            yield found


def prepare(config: GraphormerConfig, value: Any) -> Input:
    """Encode one input for a model with this configuration.

    value: what `explain` takes, or a molecule's `Graph`, which is not checked again. Raises
    InputError, or the ValueError of the data set's reader, if the input cannot be used.
    """
    return _encoded(config, value, _molecular_graphs(config, [value]).get(0))


def _require_values(value: Any) -> None:
    given = value.to_dict().values() if is_data(value) else (value,)
    if any(isinstance(item, torch.Tensor) and item.is_meta for item in given):
        raise InputError("it is on the device 'meta', where tensors hold no values.")


def _molecular_graphs(config: GraphormerConfig, values: list[Any]) -> dict[int, Any]:
    """By position, the graph of each SMILES or RDKit molecule, or the error that it gives."""
    if not reads_molecules(config):
        return {}
    from rdkit import Chem

    from graphxai.datasets.molecules import molecule_graphs

    found = {k: value for k, value in enumerate(values) if isinstance(value, str | Chem.Mol)}
    graphs = molecule_graphs(found.values(), **reading_of(config))
    return dict(zip(found, graphs, strict=True))


def _encoded(config: GraphormerConfig, value: Any, graph: Any) -> Input:
    """One input; graph: that of a molecule, or its error."""
    encode = StructureEncoding.from_config(config)
    if isinstance(graph, Exception):
        raise graph
    if graph is not None:
        return Input(encode.forward(graph), graph.smiles, graph.get("mol"))
    if isinstance(value, Graph):
        return Input(encode(value), value.smiles, value.get("mol"))
    if is_data(value):
        return _from_data(config, value, encode)
    if not reads_molecules(config):
        return _from_image(value, encode)
    raise InputError(
        f"this model takes SMILES, RDKit molecules or Data, not {type(value).__name__}."
    )


def writes_canonically(config: GraphormerConfig) -> bool:
    """Whether features must not depend on how a SMILES is written.

    True for models whose structure encoding does not depend on it either; published models get
    OGB's features unchanged.
    """
    return config.ties == "average"


def reading_of(config: GraphormerConfig) -> dict[str, bool]:
    """The options of `molecule_graphs` for a model: it predicts molecules as it learned them."""
    standardise = bool(config.extra.get("standardise"))
    return {"canonical": writes_canonically(config), "standardise": standardise}


def _is_pillow(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "PIL"


def _from_image(value: Any, encode: StructureEncoding) -> Input:
    from graphxai.datasets.mnist import read_digit
    from graphxai.datasets.superpixels import image_graph

    if isinstance(value, str | Path) or _is_pillow(value):
        value = read_digit(value)
    elif not hasattr(value, "__array__"):
        raise InputError(
            f"this model takes a picture (its path or a Pillow image), a grey array (H, W) or Data,"
            f" not {type(value).__name__}."
        )
    return _from_data_with_image(encode(image_graph(np.asarray(value))))


def _from_data_with_image(data: "Data | Graph") -> Input:
    image, segments = data.get("image"), data.get("segments")
    if image is None or segments is None:
        return Input(data)
    return Input(data, image=image[0].numpy(), segments=segments[0].numpy())


def _from_data(config: GraphormerConfig, data: "Data", encode: StructureEncoding) -> Input:
    if not isinstance(data.x, torch.Tensor) or not isinstance(data.edge_index, torch.Tensor):
        raise InputError("the graph needs node features `x` and an `edge_index`.")
    width = len(config.node_cardinalities) or config.num_node_features
    if data.x.dim() != 2 or data.x.shape[1] != width or not len(data.x):
        raise InputError(
            f"the graph's x has shape {tuple(data.x.shape)}; the model reads {width} features"
            " per node."
        )
    check_edges(data)
    for name in ("x", "edge_attr", "pos", "y"):
        values = data.get(name)
        if isinstance(values, torch.Tensor) and values.is_complex():
            raise InputError(f"{name} holds complex numbers.")
    pos = data.get("pos")
    if pos is not None and tuple(pos.shape) != (len(data.x), 2):
        raise InputError(
            f"pos has shape {tuple(pos.shape)}; it needs a row of two numbers for each of the"
            f" {len(data.x)} nodes."
        )
    if reads_molecules(config):
        _check_codes(config, data)
    else:
        _check_superpixels(data)
    smiles = data.get("smiles")
    if not isinstance(smiles, str):
        return _from_data_with_image(encode(copy(data)))
    if reads_molecules(config):
        _check_smiles(data, smiles)
    return Input(encode(copy(data)), smiles, data.get("mol"))


def check_edges(data: "Data") -> None:
    """Refuse an edge list, or features of edges, that do not fit the graph."""
    edges, features = data.edge_index, data.edge_attr
    if not isinstance(edges, torch.Tensor):
        return
    whole = not (edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool)
    if edges.dim() != 2 or len(edges) != 2 or not whole:
        raise InputError(
            f"edge_index must hold whole numbers in the shape (2, E); it has"
            f" {edges.dtype} in the shape {tuple(edges.shape)}."
        )
    if edges.numel() and data.num_nodes:
        low, high = int(edges.min()), int(edges.max())
        if low < 0 or high >= data.num_nodes:
            raise InputError(
                f"edge_index refers to node {high if low >= 0 else low}; the graph has"
                f" {data.num_nodes} nodes, counted from 0."
            )
    if isinstance(features, torch.Tensor):
        rows = len(features) if features.dim() else 0
        if rows != edges.shape[1]:
            raise InputError(
                f"edge_attr has {rows} rows for the {edges.shape[1]} edges in edge_index."
            )


def _check_superpixels(data: "Data") -> None:
    for name in ("x", "pos"):
        values = data.get(name)
        if values is None:
            continue
        if not bool(torch.isfinite(values.float()).all()):
            raise InputError(f"{name} contains values that are not finite.")
        if values.min() < 0 or values.max() > 1:
            raise InputError(
                f"{name} must lie in [0, 1]; it ranges from {float(values.min()):g} to"
                f" {float(values.max()):g}. For PyG's MNISTSuperpixels use"
                " graphxai.datasets.superpixels.from_mnist_superpixels."
            )


def _check_smiles(data: "Data", smiles: str) -> None:
    """Refuse features that are not the molecule's: other encodings have the same shape."""
    from graphxai.datasets.molecules import MoleculeError, molecule_graph

    if data.get("vocabulary") == "ogb":
        return
    expected: Any = None
    with suppress(MoleculeError):
        expected = molecule_graph(smiles)
    free = [column for column in range(data.x.shape[1]) if column != CHIRALITY]
    same = expected is not None and (
        expected.x.shape == data.x.shape
        and bool((expected.x[:, free] == data.x[:, free]).all())
        and expected.edge_attr.shape == data.edge_attr.shape
    )
    if not same:
        raise InputError(
            f"x and edge_attr are not OGB's features of {smiles!r}. PyG's from_smiles encodes them"
            " differently: pass the SMILES, or the graph from"
            " graphxai.datasets.molecules.molecule_to_data. If the graph is not that molecule,"
            " remove `smiles`."
        )


def _check_codes(config: GraphormerConfig, data: "Data") -> None:
    if data.x.is_floating_point() and not bool((data.x == data.x.floor()).all()):
        raise InputError("x must hold whole numbers (OGB's codes); it has NaN or fractions.")
    bonds = data.edge_attr
    if isinstance(bonds, torch.Tensor) and (bonds.is_floating_point() or bonds.dtype == torch.bool):
        raise InputError(f"edge_attr must hold integers (OGB's codes), not {bonds.dtype}.")
    lowest, highest = data.x.amin(0).tolist(), data.x.amax(0).tolist()
    for feature, size in enumerate(config.node_cardinalities):
        if not 0 <= int(lowest[feature]) <= int(highest[feature]) < size:
            raise InputError(
                f"x[:, {feature}] must lie in 0..{size - 1} (OGB's vocabulary); it ranges from"
                f" {int(lowest[feature])} to {int(highest[feature])}. PyG's from_smiles encodes"
                " features differently."
            )
