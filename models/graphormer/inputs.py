"""Encode what users pass in for a Graphormer: SMILES, RDKit molecules, images, PyG data."""

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphxai.contract.inputs import Input, InputError, check_graph, each_or_error, is_pillow
from graphxai.datasets.graph import Graph, is_data

from .config import GraphormerConfig
from .encoding import StructureEncoding

if TYPE_CHECKING:
    from torch_geometric.data import Data

CHIRALITY = 1  # column of OGB's features that depends on how the SMILES is written
TETRAHEDRAL = (1, 2)  # its codes of the two configurations of such a centre


def prepare(config: GraphormerConfig, value: Any) -> Input:
    """Encode one input for a model with this configuration.

    Args:
        config: the model's configuration.
        value: an input of `explain`, or a molecule's `Graph`, which is not checked again.

    Raises:
        InputError: the input cannot be used.
        ValueError: the reader of the data set cannot read the input.
    """
    (encoded,) = prepare_group(config, [value])
    if isinstance(encoded, Exception):
        raise encoded
    return encoded


def prepare_group(config: GraphormerConfig, values: list[Any]) -> Iterator[Input | Exception]:
    """Encode inputs, featurising all molecules together. An unusable input gives its error."""
    encode = StructureEncoding.from_config(config)
    graphs = _molecular_graphs(config, values, encode)
    return each_or_error(values, lambda k, value: _encoded(config, value, graphs.get(k), encode))


def _molecular_graphs(
    config: GraphormerConfig, values: list[Any], encode: StructureEncoding
) -> dict[int, Any]:
    """Return the graph of each SMILES or RDKit molecule, or its error, by position."""
    if not config.reads_molecules:
        return {}
    from rdkit import Chem

    from graphxai.datasets.molecules import molecule_graphs

    molecules = {k: value for k, value in enumerate(values) if isinstance(value, str | Chem.Mol)}
    reading = {**reading_of(config), "isomers": config.isomers}
    graphs = list(molecule_graphs(molecules.values(), **reading))
    readable = [graph for graph in graphs if isinstance(graph, Graph)]
    for graph in [each for each in readable if each.get("isomers") is not None]:
        graph.isomers = tuple(map(_own_copy, graph.isomers))
        readable += graph.isomers
    readable = [graph for graph in readable if graph.get("isomers") is None]
    if config.symmetric:
        for graph in readable:
            _add_mirror_image(graph)
    images = [graph.mirrored for graph in readable if graph.get("mirrored") is not None]
    encode.add_structures(readable)
    encode.add_environments([*readable, *images])
    return dict(zip(molecules, graphs, strict=True))


def _own_copy(graph: Graph) -> Graph:
    """Return a copy to which one model adds what it needs, with the molecule that was read."""
    other = copy(graph)
    other.read = graph.get("read")
    return other


def _add_mirror_image(graph: Graph) -> None:
    """Add the graph of a molecule's mirror image, `mirrored`, if its chirality differs."""
    drawn = graph.x[:, CHIRALITY].numpy()
    if not (centres := np.flatnonzero(drawn).tolist()):
        return
    codes: NDArray[np.int64] | None
    if len(centres) == 1 and drawn[centres[0]] in TETRAHEDRAL:
        # a centre alone ranks no other atom, so that the images are written alike but for its tag
        codes = np.where(drawn > 0, sum(TETRAHEDRAL) - drawn, 0)
    else:
        codes = _codes_of_mirror_image(graph.read, centres)
    if codes is None or np.array_equal(codes, drawn):
        return
    image = Graph(**vars(graph))  # which takes a fifth of the time of `copy`
    image.x = graph.x.clone()
    image.x[:, CHIRALITY] = torch.from_numpy(codes)
    graph.mirrored = image


def _codes_of_mirror_image(mol: Any, centres: list[int]) -> NDArray[np.int64] | None:
    """Return the chirality codes of a molecule's mirror image, (N,)."""
    from rdkit import Chem, rdBase

    from graphxai.datasets.canonical_form import one_perception
    from graphxai.datasets.features import canonical_chirality

    mirrored = Chem.Mol(mol)
    for centre in centres:
        mirrored.GetAtomWithIdx(centre).InvertChirality()
    with one_perception(), rdBase.BlockLogs():
        return canonical_chirality(mirrored)


def _encoded(config: GraphormerConfig, value: Any, graph: Any, encode: StructureEncoding) -> Input:
    """Encode one input.

    Args:
        graph: the graph of a molecule, or its error; None for other inputs.
        encode: the encoding of this configuration.
    """
    if isinstance(graph, Exception):
        raise graph
    if graph is not None:
        return _molecule(encode, graph)
    if isinstance(value, Graph):
        return _molecule(encode, _own_copy(value))
    if is_data(value):
        return _from_data(config, value, encode)
    if config.reads == "digits":
        from graphxai.datasets.mnist import read_digit
        from graphxai.datasets.superpixels import image_graph

        if isinstance(value, str | Path) or is_pillow(value):
            value = read_digit(value)
        elif not hasattr(value, "__array__"):
            raise InputError(
                "this model takes a picture (its path or a Pillow image), a grey array (H, W) or"
                f" Data, not {type(value).__name__}."
            )
        return _from_data_with_image(encode(image_graph(np.asarray(value))))
    inputs_text = (
        "SMILES, RDKit molecules or Data" if config.reads_molecules else "graphs, PyG's Data"
    )
    raise InputError(f"this model takes {inputs_text}, not {type(value).__name__}.")


def _molecule(encode: StructureEncoding, graph: Graph) -> Input:
    """Return the input of a molecule's featurised graph, which is encoded in place."""
    if (isomers := graph.get("isomers")) is not None:
        each = [_molecule(encode, isomer) for isomer in isomers]
        if any(item.mirrored is not None for item in each):  # a meso form is its own image
            each = [item if item.mirrored else replace(item, mirrored=item) for item in each]
        first, *others = each
        return replace(first, read=graph.get("read"), isomers=tuple(others))
    # what lies on a graph must be alike on all
    as_given, image = (vars(graph).pop(name, None) for name in ("as_given", "mirrored"))
    about = {"as_given": as_given, "read": graph.get("read")}
    graph = encode.forward(graph)
    mirrored = None
    if image is not None:
        other = copy(graph)  # which shares the structure
        other.x = image.x
        if image.get("environments") is not None:
            other.environments = image.environments
        mirrored = Input(other, graph.smiles, graph.get("mol"), **about)
    return Input(graph, graph.smiles, graph.get("mol"), **about, mirrored=mirrored)


def reading_of(config: GraphormerConfig) -> dict[str, Any]:
    """Return the options of `molecule_graphs` with which a model learned its molecules.

    Features must not depend on how a SMILES is written where the structure encoding does not depend
    on it either. Published models get OGB's features unchanged.
    """
    return {"canonical": config.ties == "average", "standardise": config.standardise}


def _from_data_with_image(data: "Data | Graph") -> Input:
    image, segments = data.get("image"), data.get("segments")
    if image is None or segments is None:
        return Input(data)
    return Input(data, image=image[0].numpy(), segments=segments[0].numpy())


def _from_data(config: GraphormerConfig, data: "Data", encode: StructureEncoding) -> Input:
    data = _in_columns(config, data)
    if not isinstance(data.x, torch.Tensor) or not isinstance(data.edge_index, torch.Tensor):
        raise InputError("the graph needs node features `x` and an `edge_index`.")
    width = len(config.node_cardinalities) or config.num_node_features
    if data.x.dim() != 2 or data.x.shape[1] != width or not len(data.x):
        raise InputError(
            f"the graph's x has shape {tuple(data.x.shape)}; the model reads {width} features"
            " per node."
        )
    check_graph(data)
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
    if config.node_cardinalities:
        _check_codes(config, data)
    else:
        for name in ("x", "pos"):
            values = data.get(name)
            if values is not None and not bool(torch.isfinite(values.float()).all()):
                raise InputError(f"{name} contains values that are not finite.")
    if config.reads == "digits":
        for name in ("x", "pos"):
            values = data.get(name)
            if values is None:
                continue
            if values.min() < 0 or values.max() > 1:
                raise InputError(
                    f"{name} must lie in [0, 1]; it ranges from {float(values.min()):g} to"
                    f" {float(values.max()):g}. For PyG's MNISTSuperpixels use"
                    " graphxai.datasets.superpixels.from_mnist_superpixels."
                )
    smiles = data.get("smiles")
    if not isinstance(smiles, str):
        return _from_data_with_image(encode(data))
    if config.reads_molecules:
        _check_smiles(data, smiles)
    return Input(encode(data), smiles, data.get("mol"))


def _in_columns(config: GraphormerConfig, data: "Data") -> "Data":
    """Return the graph with a single feature as a column, and with an `x` if nodes look alike."""
    data = copy(data)
    if data.x is None and config.node_cardinalities == (1,):
        data.x = torch.zeros(int(data.num_nodes or 0), 1, dtype=torch.long)
    widths = {
        "x": len(config.node_cardinalities) or config.num_node_features,
        "edge_attr": len(config.edge_cardinalities) or config.num_edge_features,
    }
    for name, width in widths.items():
        values = data.get(name)
        if width == 1 and isinstance(values, torch.Tensor) and values.dim() == 1:
            data[name] = values[:, None]
    return data


def _check_smiles(data: "Data", smiles: str) -> None:
    """Refuse the features of another encoding, which may have the same shape."""
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
    codes = "OGB's codes" if config.reads_molecules else "codes"
    if data.x.is_floating_point() and not bool((data.x == data.x.floor()).all()):
        raise InputError(f"x must hold whole numbers ({codes}); it has NaN or fractions.")
    bonds = data.edge_attr if config.edge_cardinalities else None
    if isinstance(bonds, torch.Tensor) and (bonds.is_floating_point() or bonds.dtype == torch.bool):
        raise InputError(f"edge_attr must hold integers ({codes}), not {bonds.dtype}.")
    lowest, highest = data.x.amin(0).tolist(), data.x.amax(0).tolist()
    for feature, size in enumerate(config.node_cardinalities):
        if not 0 <= int(lowest[feature]) <= int(highest[feature]) < size:
            vocabulary, hint = "", ""
            if config.reads_molecules:
                vocabulary = " (OGB's vocabulary)"
                hint = " PyG's from_smiles encodes features differently."
            raise InputError(
                f"x[:, {feature}] must lie in 0..{size - 1}{vocabulary}; it ranges from"
                f" {int(lowest[feature])} to {int(highest[feature])}.{hint}"
            )
