"""Which pairs of tokens carried the relevance, by attention weighted with relevance.

Where attention is held constant (AH), token i receives `y_i = sum_j A_ij v_j` in every head. With
`g_i = d f_c / d y_i`, the relevance that comes through one entry of attention is

    R[l, i, j] = sum_h A[l, h, i, j] (v_j . g_i) = sum_h A[l, h, i, j] dA[l, h, i, j],

where `dA = d f_c / d A` is the gradient at the constant. This is section 4 of Ali 2022, read at
the attention instead of at the tokens. Row i is the query, the token that reads. Column j is the
key, the token that is read. The bias of the values counts as part of them. The entries of one layer
sum to all relevance that passed through its attention, and those of one head to what passed through
that head. The rest took the residual path. Relevance passes every layer, so a sum over layers
counts it once per layer.

In wrapped models a layer is one application of attention between nodes, dense or along edges.
Whatever else nodes receive bypasses attention and is in no pair. Examples are positional terms,
pooling, and messages without attention, as from the GIN or GCN in a GPS layer. What an edge adds to
a value counts as part of the value.

Walks follow both paths, as in GNN-LRP (Schnake 2021), but only one token on the way is named. If
`h_i` is the state of token i after some layers and `g_i = d f_c / d h_i`, then

    W[i, j] = sum_d x_jd  d (h_i . g_i) / d x_jd,  g constant,

is the relevance that began at token j and was in token i after these layers. Its sum over i is the
relevance of token j.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import OneGraphAtATime
from graphxai.contract.model import ExplainableModel, explaining
from graphxai.contract.structure import IntArray, shortest_paths
from graphxai.contract.target import Target
from graphxai.models.graphormer import Ensemble, Graphormer
from graphxai.rules.conservative import Rules, conservative, record

from .base import Explainer, decided_by, gradients
from .gradient import GradientInput, Lrp


def pair_relevance(
    model: ExplainableModel, batch: Any, target: Any = None, rules: Rules | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the relevance that comes through attention, `A_ij dA_ij`, in every layer.

    The rules hold attention constant. By default they are those of LRP.

    Returns:
        The relevance of pairs (B, L, T, T), summed over heads, and that of heads (B, L, H), summed
        over pairs. Layers with fewer than H heads have zeros at the end.

    Raises:
        ValueError: the model does not have the target, or has no attention.
    """
    if isinstance(model, Ensemble):
        _, decided = decided_by(model, batch, Target.of(target))  # of all members
        of_members = [pair_relevance(member, batch, decided, rules) for member in model.members]
        pairs, heads = zip(*of_members, strict=True)
        return torch.stack(pairs).mean(0), torch.stack(heads).mean(0)
    rules = rules or Lrp.rules
    size = batch.mask.shape[1] + 1
    with explaining(model):
        try:
            with conservative(**vars(rules)), record(attention_gradients=True) as tape:
                outputs = model.encode(model.embed(batch).detach(), batch)
        except OneGraphAtATime as error:
            alone = [pair_relevance(model, graph, target, rules) for graph in error.apart(batch)]
            most = max(heads.shape[-1] for _, heads in alone)  # a graph without edges may have one
            return (
                torch.cat([F.pad(pairs, (0, size - pairs.shape[-1]) * 2) for pairs, _ in alone]),
                torch.cat([F.pad(heads, (0, most - heads.shape[-1])) for _, heads in alone]),
            )
        f = Target.of(target).resolve(model.config, outputs)(outputs)
        arriving = gradients(f, tape.attention)
    most = max((attention.shape[1] for attention in tape.attention), default=0)
    layers, of_heads = [], []
    for attention, gradient in zip(tape.attention, arriving, strict=True):
        share = attention.detach() * gradient  # (B, H, Q, T)
        layers.append(F.pad(share.sum(1), (0, 0, 0, size - share.shape[2])))
        of_heads.append(F.pad(share.sum((2, 3)), (0, most - share.shape[1])))
    return torch.stack(layers, dim=1), torch.stack(of_heads, dim=1)


def walk_relevance(
    model: ExplainableModel,
    batch: Any,
    num_layers: int,
    target: Any = None,
    rules: Rules | None = None,
) -> Tensor:
    """Compute `W` (B, T, T), the relevance that began at one token and was in another later.

    It began at token j (column) and was in token i (row) after some layers. This takes one backward
    pass per token through these layers.

    Args:
        num_layers: the number of layers after which token i has the relevance.
        rules: the rules in force, by default those of LRP.

    Raises:
        ValueError: the model is wrapped, or has no layer after these.
    """
    if isinstance(model, Ensemble):
        _, decided = decided_by(model, batch, Target.of(target))  # of all members
        walks = [walk_relevance(m, batch, num_layers, decided, rules) for m in model.members]
        return torch.stack(walks).mean(0)
    if not isinstance(model, Graphormer):
        raise ValueError("walks follow the states of a Graphormer; leave out num_layers=.")
    layers = model.config.num_layers
    if not 0 < num_layers < layers:
        if layers == 1:
            raise ValueError("walks need a model of at least two layers; this one has one.")
        raise ValueError(
            f"num_layers must be from 1 to {layers - 1} in this model, not {num_layers}."
        )
    rules = rules or Lrp.rules
    tokens = model.embed(batch).detach().requires_grad_()
    with explaining(model), conservative(**vars(rules)), record() as tape:
        outputs = model.encode(tokens, batch)
        states = tape.hidden[num_layers]  # (B, T, D)
        f = Target.of(target).resolve(model.config, outputs)(outputs)
        (gradient,) = torch.autograd.grad(f.sum(), states, retain_graph=True)
        parts = (states * gradient).sum(-1)  # (B, T)
        rows = [
            torch.autograd.grad(part.sum(), tokens, retain_graph=True)[0]
            for part in parts.unbind(1)
        ]
    return torch.stack([(tokens.detach() * row).sum(-1) for row in rows], dim=1)


def distances_of(batch: Any, graphs: list[Any]) -> list[IntArray]:
    """Return the distances (n, n) between the nodes of each graph."""
    if hasattr(batch, "distances"):
        return batch.distances()
    edges = [(int(graph.num_nodes), *graph.edge_index.numpy()) for graph in graphs]
    return [shortest_paths(*each)[0] for each in edges]


def rules_of(explainer: Explainer) -> Rules:
    """Return the method's rules, or raise ValueError unless they hold attention constant."""
    if isinstance(explainer, GradientInput) and explainer.rules.attention:
        return explainer.rules
    raise ValueError(
        f"{explainer.name} has no relevance of pairs: use a method that holds attention constant,"
        " lrp, lrp_ah or lrp_ah_ln."
    )
