"""Hide nodes from a Graphormer: the outputs of many choices of the nodes of graphs.

Choices of similar size share a pass. What all choices share, tokens and structural bias, is
computed once for each graph.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.batching import fitting

from .model import Graphormer


def in_passes_by_size(
    run: Callable[[Tensor, Tensor], Tensor], keeps: Sequence[Tensor], whole: bool
) -> Tensor:
    """Return the outputs (P, C) of all choices (K, N) of the nodes of several graphs.

    Choices with similar numbers of tokens share a pass. `run` computes it from the numbers of their
    graphs (R,) and the tokens (R, T), True at those that stay and False at padding.

    Args:
        whole: whether a pass has all tokens of a graph, and not only those that stay.
    """
    widths = torch.tensor([keep.shape[1] + 1 for keep in keeps])
    counts = torch.tensor([len(keep) for keep in keeps])
    owner, most = torch.arange(len(keeps)).repeat_interleave(counts), int(widths.max())
    kept = torch.cat([F.pad(keep.cpu(), (1, most - 1 - keep.shape[1])) for keep in keeps])
    kept[:, 0] = True  # the graph token
    tokens = widths[owner] if whole else kept.sum(1)
    return by_size(tokens, lambda rows: run(owner[rows], kept[rows]))


def by_size(tokens: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Call `run` for rows with similar numbers of tokens (P,), and return the outputs (P, C)."""
    order = tokens.argsort(stable=True)
    outputs = torch.cat([run(order[some]) for some in fitting(tokens[order].tolist())])
    return outputs[order.argsort().to(outputs.device)]


def choices_runner(
    model: Graphormer, batch: GraphBatch, tokens: Tensor, bias: Tensor, zeros: bool
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that `in_passes_by_size` runs to remove nodes by masks, or by zeros.

    Tokens are (G, T, D), and the bias is (G, H, T, T).
    """
    device = tokens.device

    def zeroed(owner: Tensor, kept: Tensor) -> Tensor:
        owner, kept = owner.to(device), kept.to(device)
        width = int(batch.num_nodes[owner].max()) + 1
        shown = tokens[owner, :width] * kept[:, :width, None]
        return model.encode(shown, batch, bias=bias[owner, :, :width, :width])

    def masked(owner: Tensor, kept: Tensor) -> Tensor:
        return _encode_kept(model, batch, tokens, bias, owner.to(device), kept.to(device))

    return zeroed if zeros else masked


def _encode_kept(
    model: Graphormer, batch: GraphBatch, tokens: Tensor, bias: Tensor, owner: Tensor, kept: Tensor
) -> Tensor:
    """Return the outputs (K, num_outputs) of the tokens that stay, without the masked tokens.

    Tokens are (G, T, D), and the bias is (G, H, T, T). A key that no query attends to can be left
    out, so the remaining tokens are gathered. Shorter choices are padded with masked tokens to the
    length of the longest.
    """
    heads, t = bias.shape[1:3]
    width = int(kept.sum(1).max())
    places = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]  # (K, W)
    pairs = (owner[:, None, None] * t + places[:, :, None]) * t + places[:, None, :]  # (K, W, W)
    flat = bias.transpose(0, 1).reshape(heads, -1)
    gathered = flat[:, pairs.flatten()].view(heads, *pairs.shape)  # (H, K, W, W)
    hidden = ~kept.gather(1, places)  # (K, W)
    if bool(hidden.any()):
        gathered.masked_fill_(hidden[None, :, None, :], -math.inf)
    return model.encode(tokens[owner[:, None], places], batch, bias=gathered.transpose(0, 1))
