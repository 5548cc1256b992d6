"""The terms of a Graphormer's structural bias, each as the bias without the others."""

from copy import deepcopy

import torch
from torch import Tensor

HIDDEN = -1e3  # the bias of a key that is not attended to is below


def bias_terms(model, batch) -> dict[str, Tensor]:
    """Return the terms by name, (B, H, T, T) each, with zeros where a key is not attended to."""
    bias = model.bias
    parts = {"spatial": "spatial", "edge": "hop", "graph token distance": "graph_token"}
    parts |= {"position": "position"}
    names = {term: part for term, part in parts.items() if getattr(bias, part, None) is not None}
    hidden = bias(batch) < HIDDEN
    return {term: _alone(bias, names, term)(batch).masked_fill(hidden, 0.0) for term in names}


@torch.no_grad()
def _alone(bias, names, term):
    alone = deepcopy(bias)
    for other, part in names.items():
        if other == "position" != term:
            alone.position = None
        elif other != term:
            getattr(alone, part).zero_()
    return alone
