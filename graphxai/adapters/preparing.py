"""Turn what a user passes to a wrapped model into an encoded input."""

from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from graphxai.contract.inputs import Input, InputError
from graphxai.contract.model import evaluating

from .batches import is_real
from .chosen import PAIR, PAIR_IS_IGNORED
from .embedding import choose_embedding, embedded_rows
from .heterogeneous import as_one_graph
from .lookups import may_look_up_rows
from .reading import of_molecule, read_graph, read_molecule, read_tokens

Wrapped = Any  # a WrappedModel, whose file imports this one


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
    graph = read_graph(value, categorical=may_look_up)
    if not model.settings.embedding and not is_real(graph.data.x):
        choose_embedding(model, graph.data)
    reads_any = graph.data.get(PAIR) is not None and model.attributes_read() is None
    if reads_any and model.checks.ignores_pair(model, graph.data):
        raise InputError(PAIR_IS_IGNORED)
    return graph


def _tokens(model: Wrapped, value: Any) -> Input:
    """Check a row of tokens, and count the nodes that it has after an embedding."""
    settings = model.settings
    if isinstance(value, Data):
        value = value.get("dense", value.x)
    x = read_tokens(value, categorical=bool(settings.embedding))
    nodes = len(x) - int(settings.graph_token)
    if settings.embedding:
        row = Data(dense=x, num_nodes=nodes)
        with evaluating(model), torch.no_grad():
            tokens = embedded_rows(model, model.collate([row]).to(model.device))
        nodes = tokens.shape[1] - int(settings.graph_token)
    if nodes < 1:
        raise InputError("there are no tokens besides the graph token.")
    return Input(Data(x=x, dense=x, num_nodes=nodes))
