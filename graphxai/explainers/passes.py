"""Run a method's forward and backward pass through a model, explicitly or by autograd."""

import warnings
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel, wanted_empty_outputs
from graphxai.engine.session import computing_by_rules
from graphxai.models.graphormer import Graphormer, backward, original_encoder
from graphxai.rules.conservative import DoesNotAddUp, Rules, Tape, conservative, record
from graphxai.rules.remainders import (
    Gradients,
    PassWithGradient,
    RelevanceShares,
    gradients_of,
    remainders,
    share_of_structure,
    tensors_passed,
    through_softmax,
)
from graphxai.runtime.derived_values import DerivedValues

from .variants import encode


def run_pass(
    model: ExplainableModel,
    batch: GraphBatch,
    tokens: Tensor,
    bias: Tensor | None,
    rules: Rules,
    structure: bool = False,
) -> PassWithGradient:
    """Compute the outputs under the rules, and prepare the backward pass to the tokens.

    An unchanged Graphormer takes the explicit pass of `models.graphormer.backward`, if that pass
    knows the rules. Otherwise autograd runs.

    Args:
        model: any explainable model.
        batch: B graphs.
        tokens: the tokens (B, T, D) that enter the first layer.
        bias: a Graphormer's structural bias (B, H, T, T), or None for other models.
        rules: the rules in force.
        structure: whether to return the gradient at the bias even where attention is constant.
    """
    prepared = original_encoder.prepared_encoder(model) if backward.follows(rules) else None
    if bias is None or prepared is None or not isinstance(model, Graphormer):
        return by_autograd(model, batch, tokens, bias, rules, structure)
    if (wanted := wanted_empty_outputs()) is not None:
        wanted.note(model, batch, graphormer_without_nodes(model, prepared))
    return backward.run(model, prepared, tokens, bias, rules, structure)


def by_autograd(
    model: ExplainableModel,
    batch: GraphBatch,
    tokens: Tensor,
    bias: Tensor | None,
    rules: Rules,
    structure: bool = False,
) -> PassWithGradient:
    """Compute the outputs under the rules, and let autograd run the backward pass.

    This works for any model, and its arguments are those of `run_pass`. The explicit pass is tested
    against it.
    """
    is_graphormer = isinstance(model, Graphormer)  # others have no structure or remainders
    tokens = tokens.detach().requires_grad_()
    bias = None if bias is None else bias.detach().requires_grad_(not rules.attention)
    held = structure and rules.attention and bias is not None
    with (
        conservative(**vars(rules)),
        record(biases=True, operations=is_graphormer, attention_gradients=held) as tape,
        computing_by_rules(model, rules.of_modules)
        if isinstance(model, Graphormer)
        else nullcontext(),
    ):
        outputs = encode(model, tokens, batch, bias=bias)

    def back(weights: Tensor) -> RelevanceShares:
        inside = [bias] if bias is not None and bias.requires_grad else []
        passing = tensors_passed(tape, rules) if is_graphormer else []
        leaves: dict[str, Tensor] = getattr(batch, "leaves", {})
        deferred = tape.deferred_shares
        arriving = [] if deferred is None else deferred.leaves
        differentiable = deferred is not None and deferred.differentiable
        wanted = [tokens, *tape.biases, *inside, *passing, *leaves.values(), *arriving]
        wanted += tape.attention if held else []
        of_outputs = weights.detach().requires_grad_() if differentiable else weights
        try:
            with torch.set_grad_enabled(differentiable or torch.is_grad_enabled()):
                explained = (outputs * of_outputs).sum(-1)
                gradients = gradients_of(explained, wanted, differentiable)
        except RuntimeError as error:  # an operation may have no second derivative
            if deferred is None or not differentiable:
                raise
            deferred.give_up(str(error))
            return by_autograd(model, batch, tokens, bias, rules, structure).back(weights)
        of_structure = gradients[inside[0]] if inside else None
        if held and bias is not None:
            of_structure = _at_logits(tape, gradients, bias)
        share = None
        if bias is not None and of_structure is not None:
            share = share_of_structure(bias.detach(), of_structure)
        biases = torch.zeros_like(weights[:, 0])
        for b in tape.biases:
            biases = biases + (b.detach() * gradients[b]).flatten(1).sum(-1)
        left = remainders(tape, rules, gradients, share) if is_graphormer else {}
        constants: dict[str, Tensor] = {}
        if deferred is not None:
            relevance = (tokens * gradients[tokens]).sum(-1).detach()
            at_leaves = [gradients[leaf] for leaf in arriving]
            try:
                shares = deferred.shares(at_leaves, outputs.detach(), of_outputs, relevance)
            except DoesNotAddUp:  # the next pass records what it needs
                return by_autograd(model, batch, tokens, bias, rules, structure).back(weights)
            constants = _finite(shares)
            biases = biases + constants.pop("biases", 0.0)
        inputs = {name: gradients[leaf].detach() for name, leaf in leaves.items()}
        return RelevanceShares(
            gradients[tokens].detach(), biases.detach(), of_structure, left, constants, inputs
        )

    return PassWithGradient(outputs, back)


def _finite(shares: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the shares (B,) of the ledger's lines, with zero for those that are not finite.

    A mask may hold the most negative number, which times a gradient may overflow. The relevance of
    the nodes does not depend on such shares, and the ledger lists what is missing as unexplained.
    """
    lost = sorted(line for line, share in shares.items() if not bool(share.isfinite().all()))
    if lost:
        warnings.warn(
            f"the share of {', '.join(lost)} is not a finite number for some graphs; the ledger"
            " lists it as unexplained.",
            stacklevel=4,
        )
    cleaned = {line: shares[line].masked_fill(~shares[line].isfinite(), 0.0) for line in lost}
    whole = {line: share for line, share in shares.items() if line not in lost}
    return whole | {line: share for line, share in cleaned.items() if bool(share.any())}


def _at_logits(tape: Tape, gradients: Gradients, bias: Tensor) -> Tensor:
    """Compute the gradient (B, H, T, T) at the logits as if attention were not constant."""
    arriving = torch.zeros_like(bias)
    for attention in tape.attention:
        to_logits, _ = through_softmax(attention.detach(), gradients[attention])
        arriving[:, :, : attention.shape[2]] += to_logits
    return arriving


@torch.no_grad()
def graphormer_without_nodes(model: Graphormer, prepared: DerivedValues | None) -> Tensor | None:
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
