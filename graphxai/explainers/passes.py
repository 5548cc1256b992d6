"""A method's forward and backward pass through a model, explicit or through autograd."""

import warnings

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.models.graphormer import Graphormer, backward
from graphxai.models.graphormer.backward import Pass, Shares, share_of_structure
from graphxai.rules.conservative import Rules, Tape, conservative, record
from graphxai.rules.remainders import (
    Gradients,
    gradients_of,
    passed_through,
    remainders,
    through_softmax,
)

from .variants import encode


def passed(
    model: ExplainableModel,
    batch: GraphBatch,
    tokens: Tensor,
    bias: Tensor | None,
    rules: Rules,
    structure: bool = False,
) -> Pass:
    """The outputs of tokens (B, T, D) under the rules, and the backward pass to the tokens.

    bias (B, H, T, T): of a Graphormer, else None. structure: return the gradient at the bias even
    where attention is constant. An unchanged Graphormer takes the explicit pass (see
    `models.graphormer.backward`); whenever `backward.applies` says no, autograd runs.
    """
    if bias is not None and backward.applies(model):
        return backward.run(model, tokens, bias, rules, structure)
    return by_autograd(model, batch, tokens, bias, rules, structure)


def by_autograd(
    model: ExplainableModel,
    batch: GraphBatch,
    tokens: Tensor,
    bias: Tensor | None,
    rules: Rules,
    structure: bool = False,
) -> Pass:
    """The same through autograd, for any model; the reference of the explicit pass."""
    own = isinstance(model, Graphormer)  # others have no structure or remainders
    tokens = tokens.detach().requires_grad_()
    bias = None if bias is None else bias.detach().requires_grad_(not rules.attention)
    held = structure and rules.attention and bias is not None
    with (
        conservative(**vars(rules)),
        record(biases=True, operations=own, attention_gradients=held) as tape,
    ):
        outputs = encode(model, tokens, batch, bias=bias)

    def back(weights: Tensor) -> Shares:
        inside = [bias] if bias is not None and bias.requires_grad else []
        passing = passed_through(tape, rules) if own else []
        leaves: dict[str, Tensor] = getattr(batch, "leaves", {})
        arriving = [] if tape.arriving is None else tape.arriving.leaves
        wanted = [tokens, *tape.biases, *inside, *passing, *leaves.values(), *arriving]
        wanted += tape.attention if held else []
        gradients = gradients_of((outputs * weights).sum(-1), wanted)
        of_structure = gradients[inside[0]] if inside else None
        if held and bias is not None:
            of_structure = _at_logits(tape, gradients, bias)
        share = None
        if bias is not None and of_structure is not None:
            share = share_of_structure(bias.detach(), of_structure)
        biases = torch.zeros_like(weights[:, 0])
        for b in tape.biases:
            biases = biases + (b.detach() * gradients[b]).flatten(1).sum(-1)
        left = remainders(tape, rules, gradients, share) if own else {}
        constants: dict[str, Tensor] = {}
        if tape.arriving is not None:
            relevance = (tokens * gradients[tokens]).sum(-1).detach()
            found = [gradients[leaf] for leaf in arriving]
            constants = _finite(tape.arriving.shares(found, outputs.detach(), weights, relevance))
            biases = biases + constants.pop("biases", 0.0)
        inputs = {name: gradients[leaf].detach() for name, leaf in leaves.items()}
        return Shares(
            gradients[tokens].detach(), biases.detach(), of_structure, left, constants, inputs
        )

    return Pass(outputs, back)


def _finite(shares: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the shares (B,) of the ledger's lines, with zero for those that are not finite.

    A mask of the most negative number, times a gradient, may overflow. The relevance of the nodes
    does not depend on it, and the ledger lists what is missing as unexplained.
    """
    lost = sorted(line for line, share in shares.items() if not bool(share.isfinite().all()))
    if lost:
        warnings.warn(
            f"the share of {', '.join(lost)} is not a finite number for some graphs; the ledger"
            " lists it as unexplained.",
            stacklevel=4,
        )
    partly = {line: shares[line].masked_fill(~shares[line].isfinite(), 0.0) for line in lost}
    whole = {line: share for line, share in shares.items() if line not in lost}
    return whole | {line: share for line, share in partly.items() if bool(share.any())}


def _at_logits(tape: Tape, gradients: Gradients, bias: Tensor) -> Tensor:
    """What arrives at the logits of all layers, (B, H, T, T), though attention is constant."""
    found = torch.zeros_like(bias)
    for attention in tape.attention:
        to_logits, _ = through_softmax(attention.detach(), gradients[attention])
        found[:, :, : attention.shape[2]] += to_logits
    return found
