"""Marginals of the nodes along their activation path, from gradients at the attention.

Activation curves (Ali 2022, section 5) add the nodes in the order of their scores. So what counts
is the marginal of a node at the coalitions of that order, which is how much the output changes when
the node joins or leaves the coalition. For one coalition, a single backward pass gives the
marginals of all nodes, exactly in every softmax and to first order in the rest of the network. Let
`A = softmax(e)` be the attention in layer l and head h, with query i and key j, `dA = dv / dA` its
gradient, and `Z_i` the coalition's normaliser. The marginals are

    present j:  sum_lhi  A_ij / (1 - A_ij)              (dA_ij - sum_k A_ik dA_ik)
    absent j:   sum_lhi  exp(e_ij) / (Z_i + exp(e_ij))  (dA_ij - sum_k A_ik dA_ik)

where v is the log-odds of the explained class. The first round begins with the order of `lrp_path`.
In round k, the coalition is the first `u_k N` nodes of the current order, with
`u_k = frac(1/2 + 0.618 k)`. Each round adds its marginals to the scores, which re-sorts the nodes.

Such coalitions say little about the last nodes of the order. With `ends="both"` half of the rounds
measure all nodes but the first `(1 - u_k) N` instead, and v is the probability of the class.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel, NoAttentionError
from graphxai.contract.target import Target, ValueOfOutputs
from graphxai.models.graphormer import Graphormer
from graphxai.rules.conservative import record
from graphxai.runtime.notices import warn

from . import orders
from .activation_path import LrpPath
from .base import Attribution, Explainer, gradients, scored
from .gradient import Lrp
from .passes import Embedded, logistic
from .registry import register
from .traits import Traits

HIDDEN = -25.0  # log presence of absent keys, so low that `A e^25 = e^score / Z` is still exact
LEAST = 0.02  # the smallest 1 - A, as the marginal of a key with all the attention has no bound
SAME = 1e-5  # up to this part of two gradients, their difference counts as rounding


@register
class PathMarginals(Explainer):
    """The marginals of the nodes at coalitions of the order that these marginals give.

    Scores are `z(lrp_path) + z(mean marginal)` with `z(x) = x / mean |x|`. Their spread is the
    standard error of the mean marginal, in the same unit. All graphs of a batch share each pass.

    In wrapped models the marginals are those of `presence_path`. They count what nodes contribute
    through messages, pooling and attention. Each round measures both ends of the order, so there
    are half as many rounds: 16 coalitions take 21 forward and 19 backward passes.

    If a wrapped model combines nodes in a way that cannot leave some out, a warning says where.
    Then only attention counts. An absent node leaves the graph, so only present nodes get a
    marginal, and the first coalition is the whole graph. What a node contributes through messages
    and pooling is only in `lrp_path`.

    Args:
        rounds: the number of coalitions, 4 to 32.
        values: "marginals" for the scores above, or "lrp" to keep only their order and take the
            values from `lrp`. The node of rank k then gets the k-th largest value of the graph, and
            tied nodes share theirs. The sum and the ledger are exactly those of `lrp`, and there is
            no spread. This costs one more forward and one more backward pass.
        ends: "first" to measure the first nodes of the order, or "both" to measure the last ones as
            often. In a Graphormer of molecules "first" has the higher AUAC, and "both" mostly the
            higher SRG. Its scores are `2 z(lrp_path) + z(prefixes) + z(complements)`. In wrapped
            models this changes nothing.
    """

    name = "path_marginals"
    title = "Marginals along the activation path"
    source = "this project; Ali 2022, section 5; Aumann 1974"
    traits = Traits(cost="18 forward, 18 backward")

    def __init__(
        self,
        rounds: int = 16,
        values: Literal["marginals", "lrp"] = "marginals",
        ends: Literal["first", "both"] = "first",
    ) -> None:
        if not 4 <= rounds <= 32:
            raise ValueError(f"rounds must be from 4 to 32, not {rounds}.")
        if values not in ("marginals", "lrp"):
            raise ValueError(f"values must be 'marginals' or 'lrp', not {values!r}.")
        if ends not in ("first", "both"):
            raise ValueError(f"ends must be 'first' or 'both', not {ends!r}.")
        self.rounds, self.values, self.ends = rounds, values, ends
        self.traits = replace(self.traits, adds_up=values == "lrp")

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        attribution = self._by_presence(model, batch, target)
        if attribution is None:
            attribution = self._through_attention(model, batch, target)
        if self.values == "marginals":
            return attribution
        whole = Lrp()._attribute(model, batch, target)
        nodes = orders.in_order(whole.relevance, attribution.relevance, batch.mask)
        return replace(whole, relevance=nodes, features=None)

    def _by_presence(
        self, model: ExplainableModel, batch: GraphBatch, target: Target
    ) -> Attribution | None:
        """Score the nodes of a wrapped model by presence gates, or else by attention."""
        alone = batch.mask.sum(-1) <= 1
        if not hasattr(model, "rows_to_outputs") or bool(alone.all()):
            return None
        from graphxai.wrapping.presence import NotGated, presence_pass  # loads PyG

        try:
            run = presence_pass(model, batch, model.embed(batch))
            resolved = target.resolve(model.config, run.whole)
            marginals = partial(run.marginals, value=resolved.log_odds)
            measure = orders.each_once(marginals, run.mask)
            start = orders.first_order(measure, run.mask).scores
            scores, spread = orders.from_both_ends(measure, start, run.mask, self.rounds // 2 - 1)
        except NotGated as reason:
            try:
                attribution = self._through_attention(model, batch, target)
            except NoAttentionError as error:
                raise NoAttentionError(
                    f"{reason}. It has no attention between nodes that path_marginals could measure"
                    " instead: explain it by 'occlusion', 'shapley_sampling' or 'lrp'."
                ) from error
            warn(
                f"{reason}; path_marginals measures attention alone, and LRP the rest.",
                stacklevel=6,
            )
            return attribution
        if bool(alone.any()):  # a node that is alone in its graph has no marginal
            path = LrpPath()._attribute(model, batch, target)
            of_path = orders.relative(path.graph_token, path.relevance, batch.mask)
            scores = torch.where(alone[:, None], of_path, scores)
        return scored(scores, batch, run.whole, resolved, spread=spread)

    def _through_attention(
        self, model: ExplainableModel, batch: GraphBatch, target: Target
    ) -> Attribution:
        path = LrpPath()._attribute(model, batch, target)
        resolved = target.resolve(model.config, path.outputs)
        start = orders.relative(path.graph_token, path.relevance, batch.mask)
        if not bool(start[:, 1:].any()):  # the model ignores its nodes, and may have no attention
            return scored(
                start, batch, path.outputs, resolved, spread=torch.zeros_like(start[:, 1:])
            )
        both = self.ends == "both" and isinstance(model, Graphormer)
        value = resolved.probability if both else resolved.log_odds
        embedded, is_graphormer = Embedded.of(model, batch), isinstance(model, Graphormer)

        def measure(present: Tensor) -> Tensor:
            if is_graphormer:
                return value_and_marginals(embedded, value, present)[1]
            return marginals_of_present(embedded, value, present)

        once = orders.each_once(measure, batch.mask)
        if both:
            scores, spread = orders.from_both_ends(once, 2 * start, batch.mask, self.rounds // 2)
        else:
            scores, spread = self._from_first(once, start, batch, absent=is_graphormer)
        return scored(scores, batch, path.outputs, resolved, spread=spread)

    def _from_first(
        self, measure: orders.Measure, start: Tensor, batch: GraphBatch, *, absent: bool
    ) -> orders.PathScores:
        """Add the marginals at the first nodes of the order to the scores that it starts from.

        `absent` says whether absent nodes have marginals too.
        """
        token, scores = torch.zeros_like(start[:, 0]), start
        samples, measured_nodes = [], []
        for k in range(self.rounds):
            # If only present nodes get marginals, all nodes are present in the first round.
            share = (0.5 + orders.GOLDEN * k) % 1 if absent or k else 1.0
            present = orders.first_nodes(scores, batch.mask, share)
            samples.append(measure(present))
            measured_nodes.append(batch.mask if absent else present)
            mean, error = orders.mean_and_error(torch.stack(samples), torch.stack(measured_nodes))
            scores = start + orders.relative(token, mean, batch.mask)
        return scores, error / orders.mean_size(mean, batch.mask)


def value_and_marginals(
    start: Embedded, value: ValueOfOutputs, present: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a value (B,) and the marginals (B, N) of all nodes at the coalition `present`.

    The model is a Graphormer.
    """
    hidden = F.pad(start.batch.mask & ~present, (1, 0))[:, None, None, :]  # (B, 1, 1, T)
    presence = HIDDEN * hidden.to(start.tokens.dtype)
    with record(attention_gradients=True) as tape:
        outputs = start.adding(presence).encode(start.tokens)
    of_tokens = through_attention(tape.attention, outputs, value, presence)
    return value(outputs.detach()), of_tokens[:, 1:]


def through_attention(
    attention: list[Tensor], outputs: Tensor, value: ValueOfOutputs, presence: Tensor
) -> Tensor:
    """Sum the marginals (B, T) of a value of the outputs over all recorded attention of a pass."""
    arriving = gradients(value(outputs), attention)
    # under autocast attention has few digits, but 1 - A needs them
    wide = torch.promote_types(outputs.dtype, torch.float32)
    marginals_by_layer = [
        by_query(weights.detach().to(wide), gradient.to(wide), presence).sum(dim=(1, 2))
        for weights, gradient in zip(attention, arriving, strict=True)
    ]
    return torch.stack(marginals_by_layer).sum(0)


def by_query(attention: Tensor, gradient: Tensor, presence: Tensor) -> Tensor:
    """Compute how much f_c changes (B, H, Q, T) if a key joins or leaves one layer's softmax.

    There is a term for each head and query. The network after the softmax counts as linear.

    Args:
        attention: the attention A (B, H, Q, T).
        gradient: the gradient dA (B, H, Q, T).
        presence: zero for present keys, and the log presence of absent keys (B, 1, 1, T).
    """
    mean = (attention * gradient).sum(-1, keepdim=True)
    to_mean = gradient - mean
    # If all keys say the same, only rounding remains. Dividing scores by their mean size would make
    # it look like relevance.
    to_mean = to_mean.masked_fill(to_mean.abs() <= SAME * (gradient.abs() + mean.abs()), 0.0)
    leaving = attention / (1 - attention).clamp(min=LEAST)
    joining = logistic(attention.log() - presence)  # e^score / (Z + e^score)
    return torch.where(presence == 0, leaving, joining) * to_mean


def marginals_of_present(start: Embedded, value: ValueOfOutputs, present: Tensor) -> Tensor:
    """Compute the marginals (B, N) of the present nodes through recorded attention.

    Absent nodes get zero. So do all nodes of a coalition without attention, whose nodes may have
    lost all their edges.

    Raises:
        NoAttentionError: the whole graphs have no attention either.
    """
    batch, tokens = start.batch, start.tokens
    # a single node has all the attention, whatever its score, and whatever graphs are beside it
    alone = (present.sum(-1) <= 1) & (not getattr(batch, "has_graph_token", True))
    if bool(alone.all()):
        return tokens.new_zeros(present.shape)
    rows, rest, keep = _coalition(batch, tokens, present)
    try:
        with record() as tape:
            outputs = start.model.encode(rows.requires_grad_(), rest, keep)
    except NoAttentionError:
        if bool((present == batch.mask).all()):
            raise
        return tokens.new_zeros(present.shape)
    marginals_of_tokens = through_attention(tape.attention, outputs, value, rows.new_zeros(()))
    scattered = tokens.new_zeros(present.shape)
    of_nodes = marginals_of_tokens[:, 1:][rest.mask if keep is None else present]
    scattered[present] = of_nodes.to(scattered.dtype)
    return scattered.masked_fill(alone[:, None], 0.0)


def _coalition(batch: Any, tokens: Tensor, present: Tensor) -> tuple[Tensor, Any, Tensor | None]:
    """Return the tokens, the batch and `keep` of a pass with only the present nodes.

    Graphs of a wrapped model lose the other nodes, so that the attention of a smaller batch is
    recorded. Other models hide them.
    """
    if bool((present == batch.mask).all()):  # other methods use this pass too
        return tokens.detach(), batch, None
    if getattr(batch, "graphs", None) is None:
        return tokens, batch, present
    rest = batch.without(present)
    rows = tokens.new_zeros(*rest.mask.shape, tokens.shape[-1])
    rows[rest.mask] = tokens[:, 1:][present]
    return F.pad(rows, (0, 0, 1, 0)), rest, None
