"""Compute the output of a graph without nodes, which every explanation names."""

from functools import partial

import torch
from torch import Tensor

from graphxai.rules.conservative import Rules
from graphxai.runtime.derived_values import DerivedValues

from . import backward
from .model import Graphormer


@torch.no_grad()
def outputs_without_nodes(model: Graphormer, prepared: DerivedValues | None) -> Tensor | None:
    """Return the outputs (1, num_outputs) of a graph without nodes, the same for all batches.

    They are computed once for the same weights, without calling the encoder. The result is None for
    a model whose encoder was changed, which has no `prepared`, or which answers for nodes:
    `Graphormer.outputs_without_nodes` asks the model.
    """
    if prepared is None or type(model) is not Graphormer:
        return None
    token = model.graph_token[None, None]  # (1, 1, D), which attends to itself alone
    if model.embedding_norm is not None:
        token = model.embedding_norm(token)  # a module that a user may have replaced
    bias = token.new_zeros(1, model.config.num_heads, 1, 1)
    run = partial(backward.run, model, prepared, token, bias, Rules())
    of_token = "without nodes", token.cpu().numpy().tobytes()
    return prepared.once(of_token, lambda: run().outputs)
