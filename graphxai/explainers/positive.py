"""Relevance by the positive rule: the method of Chefer et al., CVPR 2021, and its variants.

The explained output starts with a relevance of one, which is passed back to the tokens, operation
by operation. `rules.positive` has the rules, and `engine.positive` applies them to a
model's operations. LayerNorm, activations and the softmax pass relevance on unchanged. Biases of
linear maps take no part. Padding gets no attention and therefore no relevance.

Eq. 2 divides by sums that may be close to zero. In single precision the result would depend on the
order of summation, so the pass runs on a copy of the model in double precision. If the copy does
not run, because the model's code fixes the data type, the model itself is explained.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from graphxai.contract.batch import GraphBatch, NodeLayout
from graphxai.contract.model import ExplainableModel, NoAttentionError
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.engine.positive.context import RelevancePass, relevance_pass
from graphxai.engine.positive.rules import pass_by_positive_rules
from graphxai.engine.request import PassRequest
from graphxai.rules.positive import CHEFER, PLAIN, PositiveRules
from graphxai.runtime.derived_values import cached, cached_passes, weight_versions
from graphxai.runtime.notices import warn
from graphxai.wrapping.eval_replica import copied

from .attention import GRADIENT_WEIGHTED, first_row, positive_means, rolled_out, zero_if_unread
from .base import Attribution, Explainer, gradients, scored
from .heads import FILE, HeadStatistics, count
from .layers import attention_gradients, layers_of, pass_with_gradients
from .registry import register
from .traits import Traits

CONTRIBUTING = "contributing"  # what a large score means
MEASURE_AGAIN = "Measure them again: head_statistics(model, inputs)."


@dataclass(frozen=True, eq=False)
class RelevancePassedBack:
    """Where a relevance of one at f_c arrives when it is passed back.

    Args:
        tokens: the relevance of the tokens that enter the first layer (B, T, D).
        attention: the relevance of each layer's probabilities (B, H, Q, T), first layer first.
        outputs: the model's outputs (B, num_outputs).
    """

    tokens: Tensor
    attention: tuple[Tensor, ...]
    outputs: Tensor
    resolved: ResolvedTarget


def in_double_precision(model: ExplainableModel) -> ExplainableModel:
    """Copy the model in 64-bit precision, or raise TypeError if it is no PyTorch module."""
    module = _module_of(model)

    def copy() -> ExplainableModel:
        double = copied(model)
        _module_of(double).double().requires_grad_(False).eval()
        return double

    return cached(("double", model, module, weight_versions(module)), copy)


def _module_of(model: Any) -> nn.Module:
    module = model if isinstance(model, nn.Module) else getattr(model, "module", None)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"the positive rule needs a torch.nn.Module, which {type(model).__name__} is not;"
            f" graphxai.wrap makes an explainable model from a module."
        )
    return module


def in_best_precision(
    model: ExplainableModel, attribute: Callable[[ExplainableModel], Attribution]
) -> Attribution:
    """Call `attribute` on the model in double precision, or on the model if the copy fails.

    The copy fails if the model's code fixes a data type, or holds a number that is only valid in
    one. An example is a mask with the most negative number of its type.
    """
    with cached_passes(most=1):  # gradients of attention and relevance come from one pass
        with suppress(RuntimeError):  # operands have different types, or a tensor cannot be copied
            attribution = attribute(in_double_precision(model))
            if bool(attribution.outputs.isfinite().all()):
                return attribution
        return attribute(model)


def pass_relevance_back(
    double: ExplainableModel,
    batch: GraphBatch,
    target: Target,
    rules: PositiveRules,
    *,
    important: Tensor | None = None,
    to_last_layer_of: ExplainableModel | None = None,
    reads_attention: bool = True,
) -> RelevancePassedBack:
    """Pass a relevance of one back from f_c, in the model's precision.

    Args:
        double: the model, or its copy in double precision.
        important: the important heads (B or 1, K, L, H), see
            `rules.positive.through_important_entries`. None takes all heads.
        to_last_layer_of: if relevance is to stop at the last layer's attention, the model that
            `double` was copied from. The tokens then get zero, and `attention` has only that layer.
        reads_attention: whether the relevance of attention is needed. If not, the model may have no
            attention.
    """
    if not getattr(double, "has_attention", True):  # nor layers that these rules know
        raise NoAttentionError.of(_name_of(double))
    tokens = double.embed(batch).detach().requires_grad_()
    with relevance_pass(rules, important, reads_attention) as state:
        outputs = _encoded(double, tokens, batch, state)
        resolved = target.resolve(double.config, outputs.detach())
        explained = state.explained(outputs, resolved.weights)
    if reads_attention and not state.attention:
        raise NoAttentionError.of(_name_of(double))
    if to_last_layer_of is not None:
        layers = layers_of(
            to_last_layer_of, state, lambda: pass_with_gradients(to_last_layer_of, batch)
        )
        *_, last = layers
        wanted = [state.attention[k] for k in last]
        attention = (layers.merged(last, gradients(explained, wanted)),)
        return RelevancePassedBack(torch.zeros_like(tokens), attention, outputs.detach(), resolved)
    wanted = [tokens, *(state.attention if reads_attention else [])]
    of_tokens, *of_attention = gradients(explained, wanted)
    return RelevancePassedBack(of_tokens, tuple(of_attention), outputs.detach(), resolved)


def _encoded(model: ExplainableModel, tokens: Tensor, batch: Any, state: RelevancePass) -> Tensor:
    """Compute the outputs of tokens under the rules.

    A wrapped model applies the rules itself. A Graphormer runs in a pass that applies them.
    """
    module: Any = model
    if not isinstance(module, nn.Module):
        return model.encode(tokens, batch)
    layout = NodeLayout.of(batch.mask, graph_token=True)
    beside = tuple(vars(batch).values())
    request = PassRequest(module, lambda x: model.encode(x, batch), tokens, layout, key=beside)
    return pass_by_positive_rules(request, state)


def _name_of(model: Any) -> str:
    return type(getattr(model, "module", model)).__name__


def transformer_attribution(
    model: ExplainableModel,
    batch: GraphBatch,
    target: Target,
    important: Tensor | None = None,
    *,
    gradient: bool = True,
    block: int | None = None,
) -> Attribution:
    """Explain by Eq. 5, 10, 13 and 14, with all heads or only important ones (B or 1, K, L, H).

    For `gradient` and `block`, see `TransformerAttribution`.
    """

    def attribute(double: ExplainableModel) -> Attribution:
        traced = attention_gradients(double, batch, target, copy_of=model)
        if important is not None and traced.layers.heads_apart:
            warn(
                f"{_name_of(double)} computes the heads of a layer one after another, each with"
                " its own softmax: relevance of an excluded head is not passed to the other heads."
                " Compute the heads of a layer in one softmax.",
                stacklevel=2,
            )
        passed_back = pass_relevance_back(double, batch, target, CHEFER, important=important)
        row = first_row(model, batch, passed_back.tokens, "token")
        factors = traced.gradients if gradient else traced.attention
        relevance = traced.layers.of(passed_back.attention)
        if block is not None:
            if block > len(relevance):
                raise ValueError(f"there is no block {block}: the model has {len(relevance)}.")
            factors, relevance = [factors[-block]], [relevance[-block]]
        rolled = rolled_out(row, positive_means(factors, relevance), normalises=False)
        scores = zero_if_unread(rolled, factors)
        return in_model_precision(scores, batch, passed_back, model)

    return in_best_precision(model, attribute)


def in_model_precision(
    scores: Tensor, batch: GraphBatch, passed_back: RelevancePassedBack, model: Any
) -> Attribution:
    """Make an Attribution in the model's precision from scores (B, T) in double precision."""
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    dtype = next(floats, torch.get_default_dtype())
    return scored(scores.to(dtype), batch, passed_back.outputs.to(dtype), passed_back.resolved)


@register
class TransformerAttribution(Explainer):
    """The relevance of attention times its gradient, rolled out over the layers.

    Args:
        gradient: if False, attention takes the place of its gradient in Eq. 13.
        block: the only layer to use, without a rollout over the others, counted from 1 for the one
            closest to the output. None uses all. Both are ablations of Chefer 2021b, table 3.

    Raises:
        ValueError: `block` is below 1, or the model has fewer layers.
    """

    name = "transformer_attribution"
    title = "Transformer attribution"
    source = "Chefer 2021b, eq. 5, 10, 13, 14"
    traits = Traits(
        large_score_means=GRADIENT_WEIGHTED,
        cost="2 forward, 1 backward, 1 relevance pass",
        needs_gradients=True,
    )

    def __init__(self, gradient: bool = True, block: int | None = None) -> None:
        if block is not None and block < 1:
            raise ValueError(f"block counts from 1, the block closest to the output, not {block}.")
        self.gradient, self.block = gradient, block

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        switches: dict[str, Any] = {"gradient": self.gradient, "block": self.block}
        return transformer_attribution(model, batch, target, **switches)


@register
class LrpZPlus(Explainer):
    """The plain positive rule, applied back to the tokens. Nodes and graph token sum to one.

    The terms of a sum share relevance by their positive parts. Attention counts as a matrix of
    weights, so all relevance goes through the values.
    """

    name = "lrp_zplus"
    title = "LRP (z+)"
    source = "Chefer 2021b, eq. 4, 5; Montavon 2017"
    traits = Traits(
        large_score_means=CONTRIBUTING,
        caveat="hardly depends on the class",
        cost="1 forward, 1 relevance pass",
        needs_gradients=True,
    )

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        def attribute(double: ExplainableModel) -> Attribution:
            passed_back = pass_relevance_back(double, batch, target, PLAIN, reads_attention=False)
            return in_model_precision(passed_back.tokens.sum(-1), batch, passed_back, model)

        return in_best_precision(model, attribute)


@register
class PartialLrp(Explainer):
    """The plain positive rule, stopped at the last layer's attention and averaged over its heads.

    Without a graph token, the relevance is summed over the rows of the nodes.
    """

    name = "partial_lrp"
    title = "Partial LRP"
    source = "Voita 2019; Chefer 2021b"
    traits = replace(LrpZPlus.traits, cost="1 forward, 1 relevance pass of one layer")

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        def attribute(double: ExplainableModel) -> Attribution:
            passed_back = pass_relevance_back(double, batch, target, PLAIN, to_last_layer_of=model)
            (last,) = passed_back.attention  # (B, H, Q, T)
            return in_model_precision(last.mean(1).sum(1), batch, passed_back, model)

        return in_best_precision(model, attribute)


@register
class MaskedLrp(Explainer):
    """Transformer attribution in which only positional and relational heads pass relevance on.

    In a layer without important heads, all relevance goes around the attention. In a model without
    any important head, all nodes score zero. On molecules no selection of heads was better than
    random masks of its size at p < .01 (`evaluation.head_control`; `docs/theory/explainers.md` has
    the figures).

    Args:
        statistics: what the model's heads look at in a data set (see `head_statistics`), or a
            folder with a `heads.json`. If it is None, the statistics in the checkpoint are used. If
            the checkpoint has none, each graph is measured by itself, by distances and bonds.
        heads: the head mask (L, H) to use in place of statistics, as `HeadStatistics.mask` returns
            it: 0 passes nothing on, 1 and 2 let a head count as one or both kinds.

    Raises:
        ValueError: both are given, or the mask is not (L, H) or does not fit the model.
    """

    name = "masked_lrp"
    title = "Masked LRP"
    source = "Song 2024, section 4"
    traits = replace(
        TransformerAttribution.traits, cost="2 or 3 forward, 1 backward, 1 relevance pass"
    )

    def __init__(
        self, statistics: HeadStatistics | str | Path | None = None, heads: ArrayLike | None = None
    ) -> None:
        if isinstance(statistics, str | Path):
            statistics = HeadStatistics.load(statistics)
        self.statistics, self.heads = statistics, None if heads is None else np.asarray(heads)
        if self.heads is not None and (statistics is not None or self.heads.ndim != 2):
            raise ValueError(
                f"heads is a mask (layers, heads), given without statistics; it has shape"
                f" {self.heads.shape}."
            )

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        statistics = self.statistics or stored_statistics(model)
        if self.heads is not None:
            _check_shape("the mask is", self.heads.shape, model)
            kinds = (self.heads > 0)[None], (self.heads > 1)[None]
        elif statistics is None:
            kinds = count(model, batch).important()
        else:
            _check_shape("the statistics are", statistics.distances.shape[:2], model)
            of_model: Any = model
            digest = of_model.origin.sha256
            if statistics.sha256 and digest and statistics.sha256 != digest:
                raise ValueError(f"the statistics were measured on other weights. {MEASURE_AGAIN}")
            kinds = statistics.positional[None], statistics.relational[None]
        important = torch.from_numpy(np.stack(kinds, axis=1))  # (B or 1, 2, L, H)
        return transformer_attribution(model, batch, target, important.to(batch.mask.device))


def stored_statistics(model: Any) -> HeadStatistics | None:
    """Load the statistics in the model's folder, if they were measured on its weights."""
    origin = model.origin
    if origin.folder is None or not (origin.folder / FILE).is_file():
        return None
    statistics = HeadStatistics.load(origin.folder / FILE)
    return statistics if statistics.sha256 == origin.sha256 else None


def _check_shape(what: str, shape: tuple[int, ...], model: Any) -> None:
    """Raise ValueError if the model has other numbers of layers and heads than these (L, H)."""
    layers, heads = shape
    of_model = (
        getattr(model.config, "num_layers", layers),
        getattr(model.config, "num_heads", heads),
    )
    if shape != of_model:
        raise ValueError(
            f"{what} for {layers} layers with {heads} heads; the model has"
            f" {of_model[0]} with {of_model[1]}. {MEASURE_AGAIN}"
        )
