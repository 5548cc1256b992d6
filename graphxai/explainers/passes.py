"""Run a method's passes through a model, explicitly or by autograd, and those of variants.

Variants of a batch have other tokens or hidden nodes, and run in passes of limited size. A
Graphormer's structural bias is computed once and shared by all variants.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.batching import num_fitting
from graphxai.contract.inputs import EDGE_GATES
from graphxai.contract.model import ExplainableModel, evaluating, wanted_empty_outputs
from graphxai.contract.target import Target
from graphxai.models.graphormer import Graphormer, backward, original_encoder
from graphxai.models.graphormer.choices import choices_runner, in_passes_by_size
from graphxai.rules.conservative import Rules, conservative, record
from graphxai.rules.module_rule import computing_by_rules
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
from graphxai.rules.tape import DoesNotAddUp, Tape
from graphxai.runtime.derived_values import DerivedValues
from graphxai.runtime.notices import warn

from .orders import Choices
from .wrapped import forget_forward_pass, is_shared, share_of


@dataclass(frozen=True, eq=False)
class Embedded:
    """A batch with what all of its passes begin with, which is computed once.

    Args:
        tokens: the tokens (B, T, D) that enter the first layer.
        bias: a Graphormer's structural bias (B, H, T, T), or None for other models.
    """

    model: Any
    batch: Any
    tokens: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, model: ExplainableModel, batch: Any) -> "Embedded":
        """Embed a batch. Tokens and bias are constants."""
        return cls(model, batch, model.embed(batch).detach(), structural_bias(model, batch))

    def adding(self, term: Tensor) -> "Embedded":
        """Return the same with a further term (B, 1, 1, T) in the structural bias."""
        assert self.bias is not None
        return replace(self, bias=self.bias + term)

    def encode(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        """Compute the outputs (B, num_outputs) of other tokens (B, T, D)."""
        beside = () if self.bias is None else (self.bias,)
        outputs: Tensor = self.model.encode(tokens, self.batch, keep, *beside)
        return outputs

    def encode_variants(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        """Compute the outputs (K, B, num_outputs) of K variants of the batch.

        Args:
            tokens: the tokens of every variant (K, B, T, D).
            keep: False where a node is hidden (K, B, N).
        """
        (k, b), bias = tokens.shape[:2], self.bias
        if bias is None and not getattr(self.model, "takes_variants", False):  # all at once
            kept = [None] * k if keep is None else list(keep)
            return torch.stack([self.encode(tokens[i], kept[i]) for i in range(k)])
        if bias is not None and b > 1:
            bias = bias.expand(k, -1, -1, -1, -1).flatten(0, 1)
        hidden = None if keep is None else keep.flatten(0, 1)
        return replace(self, bias=bias).encode(tokens.flatten(0, 1), hidden).unflatten(0, (k, b))


def run_pass(start: Embedded, rules: Rules, structure: bool = False) -> PassWithGradient:
    """Compute the outputs under the rules, and prepare the backward pass to the tokens.

    An unchanged Graphormer takes the explicit pass of `models.graphormer.backward`, if that pass
    knows the rules. Otherwise autograd runs.

    Args:
        structure: whether to return the gradient at the bias even where attention is constant.
    """
    model, bias = start.model, start.bias
    prepared = original_encoder.prepared_encoder(model) if backward.follows(rules) else None
    if bias is None or prepared is None:
        return by_autograd(start, rules, structure)
    if (wanted := wanted_empty_outputs()) is not None:
        wanted.note(model, start.batch, graphormer_without_nodes(model, prepared))
    return backward.run(model, prepared, start.tokens, bias, rules, structure)


def by_autograd(start: Embedded, rules: Rules, structure: bool = False) -> PassWithGradient:
    """Compute the outputs under the rules, and let autograd run the backward pass.

    This works for any model, and its arguments are those of `run_pass`. The explicit pass is tested
    against it.
    """
    model, batch, bias = start.model, start.batch, start.bias
    is_graphormer = isinstance(model, Graphormer)  # others have no structure or remainders
    tokens = start.tokens.detach().requires_grad_()
    bias = None if bias is None else bias.detach().requires_grad_(not rules.attention)
    held = structure and rules.attention and bias is not None
    with (
        conservative(**vars(rules)),
        record(biases=True, operations=is_graphormer, attention_gradients=held) as tape,
        computing_by_rules(model, rules.of_modules) if is_graphormer else nullcontext(),
    ):
        outputs = replace(start, bias=bias).encode(tokens)

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
                gradients = gradients_of(explained, wanted, differentiable, is_shared())
        except RuntimeError as error:  # an operation may have no second derivative
            if deferred is None or not differentiable:
                raise
            deferred.give_up(str(error))
            forget_forward_pass()
            return by_autograd(start, rules, structure).back(weights)
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
                forget_forward_pass()
                return by_autograd(start, rules, structure).back(weights)
            constants = _finite(shares)
            biases = biases + constants.pop("biases", 0.0)
        inputs = {name: gradients[leaf].detach() for name, leaf in leaves.items()}
        for name, leaf in leaves.items():  # sparse values have no derivative forwards
            if name not in constants and name != EDGE_GATES:
                constants[name] = share_of(batch, name, leaf.detach() * inputs[name])
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
        warn(
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


def outputs_without_nodes(model: Any, batch: Any) -> Tensor | None:
    """Return the outputs (B, num_outputs) of graphs without nodes.

    If they are the same for all graphs, there is one row. If the model cannot run without nodes,
    return None.
    """
    with evaluating(model), torch.no_grad():
        if isinstance(model, Graphormer):
            prepared = original_encoder.prepared_encoder(model)
            outputs = graphormer_without_nodes(model, prepared)
            if outputs is not None:
                return outputs
        return model.outputs_without_nodes(batch)


def outputs_of_zeroed_nodes(model: Any, batch: Any) -> Tensor | None:
    """Return the outputs (B, num_outputs) of graphs whose nodes are zeros, or None if unknown."""
    if (outputs_of := getattr(model, "outputs_of_zeroed_nodes", None)) is None:
        return None
    with evaluating(model), torch.no_grad():
        outputs: Tensor | None = outputs_of(batch)
    return outputs


def explained_output(
    model: ExplainableModel, empty_outputs: Tensor | None, outputs: Tensor, target: Target
) -> list[float | None]:
    """Return f_c of each graph without its nodes, or None if it is unknown or not finite.

    The outputs (B, num_outputs) are those of the whole graphs, which decide the class if the target
    names none.
    """
    if empty_outputs is None:
        return [None] * len(outputs)
    values = target.resolve(model.config, outputs)(empty_outputs).tolist()
    return [value if math.isfinite(value) else None for value in values]


Operator = Literal["mask", "zero"]


def structural_bias(model: ExplainableModel, batch: GraphBatch) -> Tensor | None:
    """Compute the structural bias (B, H, T, T) of attention, or None if the model has none."""
    if not isinstance(model, Graphormer):
        return None
    with torch.no_grad():
        return model.bias(batch)


def logistic(x: Tensor) -> Tensor:
    """Compute the logistic function, with the same last bits wherever an entry stands.

    `torch.sigmoid` has another kernel for the last entries of a tensor.
    """
    return 1 / (1 + torch.exp(-x))


def nan_unless_finite(values: Tensor) -> Tensor:
    """Return zeros (B,), or NaN for each graph whose values (K, B) are not all finite.

    A gradient may be finite where the value is not. Relevance from it is to be refused.
    """
    return (0 * values.detach()).sum(0)


@torch.no_grad()
def outputs_of_choices(
    model: ExplainableModel,
    batch: GraphBatch,
    keep: Choices,
    operator: Operator = "mask",
    advance: Callable[[int], None] | None = None,
) -> Tensor:
    """Compute the outputs (K, B, num_outputs) with only the nodes that `keep` (K, B, N) marks.

    The others are removed by the operator. `advance` is told how many choices each pass has.
    """
    start = Embedded.of(model, batch)
    if start.bias is not None:
        return _encode_parts(start, keep[:], operator)
    outputs = []
    for part in in_passes(batch, len(keep)):
        kept = keep[part]
        if operator == "mask":
            variants = start.tokens.expand(len(kept), -1, -1, -1)
            outputs.append(start.encode_variants(variants, kept))
        else:
            stays = F.pad(kept, (1, 0), value=True)
            outputs.append(start.encode_variants(start.tokens * stays[..., None]))
        if advance is not None:
            advance(len(kept))
    return torch.cat(outputs)


def _encode_parts(start: Embedded, keep: Tensor, operator: Operator) -> Tensor:
    """Compute a Graphormer's outputs (K, B, num_outputs) for K parts of each graph.

    Nothing is computed twice: a part that equals another one of its graph, such as one without a
    node that is padding, takes that one's output.

    Args:
        keep: True at the nodes of each part (K, B, N).
        operator: how the other nodes are removed, by a mask or by zeros as their tokens.
    """
    batch, bias = start.batch, start.bias
    assert bias is not None
    parts, places, count = [], [], 0
    for graph, n in enumerate(batch.num_nodes.tolist()):
        of_graph, place = keep[:, graph, :n].unique(dim=0, return_inverse=True)
        parts.append(of_graph)
        places.append(count + place)
        count += len(of_graph)
    zeros = operator == "zero"
    run = choices_runner(start.model, batch, start.tokens, bias, zeros)
    outputs = in_passes_by_size(run, parts, whole=zeros)
    return torch.stack([outputs[place] for place in places], dim=1)


def in_passes(batch: GraphBatch, variants: int) -> Iterator[slice]:
    """Slice the variants into passes, each with as many as fit."""
    pairs = len(batch) * (batch.mask.shape[1] + 1) ** 2
    step = num_fitting(getattr(batch, "size", pairs))
    for start in range(0, variants, step):
        yield slice(start, min(start + step, variants))
