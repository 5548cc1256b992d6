"""Turn what a user passes to a wrapped model into an encoded input.

It may be a PyG graph, a molecule or a row of tokens, and is checked first.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from graphxai.contract.inputs import Input, InputError, check_graph
from graphxai.contract.model import evaluating

from .batches import Wrapped, is_real
from .chosen import PAIR, PAIR_IS_IGNORED
from .embedding import choose_embedding, embedded_rows
from .heterogeneous import as_one_graph
from .lookups import may_look_up_rows

if TYPE_CHECKING:
    from graphxai.datasets.molecule_reading import ReadMolecule


@dataclass(frozen=True, eq=False)
class Tokens:
    """The input x (B, S, ...) of a token model, and a mask (B, S) that is True at tokens."""

    x: Tensor
    mask: Tensor


def read_graph(value: Any, categorical: bool) -> Input:
    """Check one PyG graph, or raise InputError if it is something else or has no usable `x`."""
    if not isinstance(value, Data):
        raise InputError(f"this model takes PyG Data, not {type(value).__name__}.")
    x, nodes = value.x, value.num_nodes if len(value) else 0  # PyG looks both up at every call
    if isinstance(x, np.ndarray | list):
        raise InputError(f"x is a {type(x).__name__}: pass torch.as_tensor(x).")
    if isinstance(x, Tensor) and x.is_nested:
        raise InputError("x is a nested tensor: pass a row per node, as torch.stack makes of them.")
    if not isinstance(x, Tensor) or not x.dim() or not nodes or not len(x):
        raise InputError(
            "the graph needs node features `x` and at least one node. If the model reads them under"
            " another name, store them as `x` and call the model with wrap(..., forward=...)."
        )
    if x.layout != torch.strided:
        raise InputError("x is a sparse tensor: pass x.to_dense().")
    if len(x) != nodes:
        raise InputError(f"x has {len(x)} rows for the {nodes} nodes in num_nodes.")
    if not categorical and x.dim() != 2:
        raise InputError(f"x has the shape {tuple(x.shape)}; it needs (N, F), a row per node.")
    value = _with_entries(value)
    check_graph(value)
    value = without_batch_structure(value)
    if not categorical and not x.is_floating_point():
        raise InputError(
            f"x has {x.dtype} values, which cannot carry gradients: name the embedding layer"
            " with wrap(..., embedding=...)."
        )
    # if the sum is finite, so are all values, and it takes less time
    is_finite = x.is_floating_point() and math.isfinite(x.sum().item())
    if not is_finite and not bool(torch.isfinite(x).all()):
        raise InputError("x contains values that are not finite.")
    smiles = value.get("smiles")
    if not isinstance(smiles, str) or _num_atoms(smiles) != nodes:
        return Input(value)
    return Input(value, smiles)


WIDTHS = ("in_features", "in_channels", "num_features", "embed_dim", "input_size")  # of modules


@contextmanager
def naming_columns(model: nn.Module, inputs: Mapping[str, Any]) -> Iterator[None]:
    """If a module within the block takes rows of another width than the input has, say so.

    Args:
        inputs: the attributes of a graph, or tokens under the name `x`.

    Raises:
        InputError: an attribute has another number of columns than the module that reads it takes.
    """
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        for module, got in _modules_that_ran(error):
            shape = getattr(module, "normalized_shape", None) or (0,)
            wanted = next((getattr(module, w) for w in WIDTHS if hasattr(module, w)), shape[-1])
            names = [n for n, x in inputs.items() if is_real(x) and x.dim() > 1]
            names = [n for n in names if inputs[n].shape[-1] == got != wanted]
            if names and isinstance(wanted, int) and wanted > 0:
                path = next((p for p, part in model.named_modules() if part is module), "")
                raise InputError(
                    f"{' or '.join(names)} of the input has {got} columns, and"
                    f" {type(model).__name__} takes {wanted}{path and f' (in {path})'}: pass an"
                    " input with the columns that the model was made for."
                ) from error
        raise


def _modules_that_ran(error: Exception) -> Iterator[tuple[nn.Module, int]]:
    """Yield the modules that an error came through, the innermost first, with columns they got."""
    for frame, _ in reversed([*walk_tb(error.__traceback__)]):
        module, *values = frame.f_locals.values() or [None]
        rows = next((v for v in values if isinstance(v, Tensor) and v.dim()), None)
        if isinstance(module, nn.Module) and rows is not None:
            yield module, rows.shape[-1]


def without_batch_structure(graph: Data) -> Data:
    """Return one graph without what a PyG batch says of its graphs, which a new batch says anew."""
    stale = [key for key in ("batch", "ptr", "batch_size", "num_graphs") if key in graph]
    copied = copy(graph) if stale else graph
    for key in stale:
        del copied[key]
    return copied


def read_molecule(value: Any) -> "ReadMolecule":
    """Check a SMILES or RDKit molecule.

    Raises:
        MoleculeError: the molecule cannot be read, and the message says why.
        InputError: the value is no molecule.
    """
    from rdkit import Chem, rdBase

    from graphxai.datasets.molecule_reading import MoleculeError, read_molecules
    from graphxai.datasets.molecules import MAX_ATOMS

    if not isinstance(value, str | Chem.Mol):
        raise InputError(
            f"this model takes SMILES, RDKit molecules or Data, not {type(value).__name__}."
        )
    with rdBase.BlockLogs():
        (read,) = read_molecules([value], MAX_ATOMS)
    if isinstance(read, MoleculeError):
        raise read
    return read


def of_molecule(graph: Data, read: "ReadMolecule") -> Input:
    """Return the input of a molecule's graph, whose nodes must be the atoms in their order."""
    atoms = read.mol.GetNumAtoms()
    if graph.num_nodes != atoms:
        raise InputError(
            f"featurize made a graph of {graph.num_nodes} nodes for a molecule of {atoms} atoms."
            " For relevance of atoms, it needs a node for each atom, in the order of the SMILES."
        )
    return Input(graph, read.text, read.shown, as_given=read.as_given)


def _with_entries(graph: Data) -> Data:
    """Turn the number of a single node under an index's name, such as `root_index`, into (1,).

    PyG's batch does the same. As an entry of an index, the number changes when nodes are hidden.
    """
    numbers = {
        key: torch.as_tensor(value)
        for key, value in graph.items()
        if "index" in key
        and (type(value) is int or (isinstance(value, Tensor) and not value.dim()))
    }
    copied = copy(graph) if numbers else graph
    for key, number in numbers.items():
        if not number.is_floating_point() and 0 <= int(number) < int(graph.num_nodes or 0):
            copied[key] = number.reshape(1)
    return copied


def _num_atoms(smiles: str) -> int:
    """Count the atoms of a SMILES, or return -1 if it is no SMILES."""
    from graphxai.datasets.canonical_form import quietly_read

    molecule = quietly_read(smiles)
    return -1 if molecule is None else molecule.GetNumAtoms()


def prepared(model: Wrapped, value: Any) -> Input:
    """Prepare one input, or raise InputError if the model cannot use it."""
    settings, is_graph = model.settings, isinstance(value, Data | HeteroData)
    if settings.dense:
        featurized = value if settings.featurize is None or is_graph else settings.featurize(value)
        return _tokens(model, featurized)
    if model.config.reads_molecules and not is_graph:
        molecule = read_molecule(value)
        given = molecule.mol if molecule.is_given else molecule.text
        return of_molecule(_checked_graph(model, settings.featurize(given)).data, molecule)
    smiles = value if isinstance(value, str) else None
    if settings.featurize is not None and not is_graph:
        value = settings.featurize(value)
    graph = _checked_graph(model, value)
    return Input(graph.data, smiles or graph.smiles)


def _checked_graph(model: Wrapped, value: Any) -> Input:
    """Check a graph, and decide what is explained if its `x` holds codes."""
    if isinstance(value, HeteroData):
        value = as_one_graph(value)
    may_look_up = bool(model.settings.embedding) or may_look_up_rows(model.module, value)
    names = model.attributes_read()
    graph = read_graph(_without_unread(value, names), categorical=may_look_up)
    if not model.settings.embedding and not is_real(graph.data.x):
        choose_embedding(model, graph.data)
    reads_any = graph.data.get(PAIR) is not None and model.attributes_read() is None
    if reads_any and model.checks.ignores_pair(model, graph.data):
        raise InputError(PAIR_IS_IGNORED)
    return graph


def _without_unread(graph: Any, names: set[str] | None) -> Any:
    """Return a graph without the nested and sparse tensors that a model does not read.

    Args:
        names: the attributes that the model reads, or None for all.

    Raises:
        InputError: the model reads a nested tensor, which PyG cannot batch.
    """
    if not isinstance(graph, Data):
        return graph
    values = graph.to_dict().items()
    others = {
        key: x for key, x in values if isinstance(x, Tensor) and key not in ("x", "edge_index")
    }
    unread = {key for key in others if names is not None and key not in names}
    if nested := [key for key in others if others[key].is_nested and key not in unread]:
        raise InputError(f"{nested[0]} is a nested tensor: store it padded, with a mask.")
    dropped = [
        key for key in unread if others[key].is_nested or others[key].layout != torch.strided
    ]
    copied = copy(graph) if dropped else graph
    for key in dropped:
        del copied[key]
    return copied


def _tokens(model: Wrapped, value: Any) -> Input:
    """Check a row of tokens, and count the nodes that it has after an embedding."""
    settings = model.settings
    if isinstance(value, Data):
        value = value.get("dense", value.x)
    if not isinstance(value, Tensor | np.ndarray):
        raise InputError(f"this model takes a tensor (N, D), not {type(value).__name__}.")
    x = torch.as_tensor(value)
    if not settings.embedding and (x.dim() != 2 or not x.is_floating_point()):
        raise InputError(
            f"this model takes float tokens (N, D); found {x.dtype} of shape {tuple(x.shape)}."
            " Pass several inputs as a list; for integer codes or images name the embedding layer"
            " with wrap(..., embedding=...)."
        )
    if not x.numel():
        raise InputError("there are no tokens.")
    nodes = len(x) - int(settings.graph_token)
    if settings.embedding:
        row = Data(dense=x, num_nodes=nodes)
        with evaluating(model), torch.no_grad():
            tokens = embedded_rows(model, model.collate([row]).to(model.device))
        nodes = tokens.shape[1] - int(settings.graph_token)
    if nodes < 1:
        raise InputError("there are no tokens besides the graph token.")
    return Input(Data(x=x, dense=x, num_nodes=nodes))
