"""What passes of a model say about the nodes and their order, to a network that orders nodes.

A Graphormer is read by layer and head, and the order to correct is that of `lrp_path`. One pass is
plain, and one is under the rules of LRP. Each has a backward pass from v, the log-odds of the
explained class. The passes give for each layer and head

* what v loses if the node leaves the softmax (`path_marginals.by_query`), through all queries and
  through the graph token's row alone;
* gradient times state of the node at the entry of each layer.

The plain pass also gives the graph token's attention and the states. Values in units of v are
divided by the graph's mean |score of `lrp_path`| and compressed by asinh.

A wrapped model may be built in any way, so what every such model has is read:

* the marginals of the nodes at the whole graph and at four halves of it, as at the beginning of
  `path_marginals`: at the whole, on average where the node is present, and where it is absent;
* LRP and Gradient x Input;
* the tokens.

The order to correct is that of the marginals at the halves.

In training, the order follows the activation curve (Ali 2022, section 5), which adds the nodes in
the order of their scores and follows the probability of the explained class. Here it is made soft,
so that gradients reach the scores s.
The presence of a node at threshold theta is `pi = sigmoid((s - theta) / tau)`.

In a Graphormer, log pi is added to the logits of the node's key in every attention. As tau goes to
0, this becomes the removal operator `mask`.

In a wrapped model a node can only be there or not. So a coalition is drawn in which each node is
present with probability pi, and the curve follows the mean over coalitions, the multilinear
extension (Owen 1972). Its derivative with respect to the pi of a node is the mean of that node's
marginals, which one backward pass estimates for all nodes (see `wrapping.presence`). At every
second threshold the present nodes are removed instead, and the probability is to fall, so that the
end of the order counts as much as its beginning.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.models.graphormer import Graphormer
from graphxai.rules.conservative import Rules, conservative, record
from graphxai.rules.tape import Tape

from ..activation_path import LrpPath
from ..base import Attribution
from ..gradient import GradientInput, Lrp
from ..orders import first_order, mean_size, measure_of, prefixes, ranks, relative
from ..passes import Embedded, logistic, outputs_of_choices, run_pass
from ..path_marginals import by_query

MARGIN = 0.5  # how far the highest threshold may lie above the scores
TYPICAL_SIZE = 50.0  # in nodes; dividing by it brings the size of graphs near one
STEEPNESS = 2.0  # of the soft rank, per mean |score|


class NodeFeatures(NamedTuple):
    """The features of the nodes of a batch.

    Args:
        values: values in units of v, attention and sizes (B, N, F).
        states: the states (B, N, L D) at the entry of each layer.
    """

    values: Tensor
    states: Tensor


def node_features(
    model: Graphormer, batch: GraphBatch, target: ResolvedTarget, path: Tensor
) -> NodeFeatures:
    """Compute the features of every node of a batch, given the scores (B, N) of `lrp_path`."""
    start = Embedded.of(model, batch)
    plain, outputs, of_plain = _one_pass(start, target, Rules())
    _, _, of_lrp = _one_pass(start, target, Lrp.rules)
    size = mean_size(path, batch.mask)  # (B, 1)
    of_v = torch.cat([of_plain, of_lrp, path[..., None]], dim=-1) / size[..., None]
    shares = [weights[:, :, 0, 1:].transpose(1, 2).detach() for weights in plain.attention]
    nodes = batch.mask.sum(-1)[:, None, None]  # (B, 1, 1)
    values = [
        of_v.asinh(),
        torch.cat(shares, dim=-1) * (nodes + 1),
        soft_rank(path / size, batch.mask)[..., None],
        _of_graph(batch.mask, target.log_odds(outputs).detach(), size),
    ]
    states = [state[:, 1:].detach() for state in plain.hidden[:-1]]
    return NodeFeatures(torch.cat(values, dim=-1), torch.cat(states, dim=-1))


def _of_graph(mask: Tensor, v: Tensor, size: Tensor) -> Tensor:
    """Return the features of a graph at each of its nodes (B, N, 3), given v (B,) and size."""
    parts = (mask.sum(-1, keepdim=True).to(v) / TYPICAL_SIZE, v[:, None].asinh(), size.log())
    return torch.cat(parts, dim=1)[:, None].expand(-1, mask.shape[1], -1)


def soft_rank(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute which share of its graph's nodes each node (B, N) exceeds.

    Nodes with equal scores count half.
    """
    above = logistic(STEEPNESS * (scores[:, :, None] - scores[:, None, :]))
    return (above * mask[:, None, :]).sum(-1) / mask.sum(-1, keepdim=True)


def _one_pass(start: Embedded, target: ResolvedTarget, rules: Rules) -> tuple[Tape, Tensor, Tensor]:
    """Run a forward pass under the rules, and a backward pass.

    Returns:
        The recording, the outputs, and the values of the nodes (B, N, values). These are the
        marginals of each layer and head through all queries and through the graph token's row,
        which is the only row in the last layer, and gradient x state of each layer.
    """
    with conservative(**vars(rules)), record(attention_gradients=True) as tape:
        outputs = start.encode(start.tokens.clone().requires_grad_())
    states, layers = tape.hidden[:-1], len(tape.attention)
    gradients = torch.autograd.grad(target.log_odds(outputs).sum(), [*tape.attention, *states])
    present = start.tokens.new_zeros(())
    gates = [
        by_query(weights.detach(), gradient, present)  # (B, H, Q, T)
        for weights, gradient in zip(tape.attention, gradients[:layers], strict=True)
    ]
    by_head = [gate.sum(2) for gate in gates] + [gate[:, :, 0] for gate in gates[:-1]]
    along = [
        (state.detach() * gradient).sum(-1, keepdim=True)
        for state, gradient in zip(states, gradients[layers:], strict=True)
    ]
    values = torch.cat([*(marginals.transpose(1, 2) for marginals in by_head), *along], dim=-1)
    return tape, outputs.detach(), values[:, 1:]


@dataclass(frozen=True, eq=False)
class Description:
    """What passes say about the nodes of a batch.

    Args:
        values: the attribution whose values the order gets.
        target: the explained class of each graph.
        start: the scores (B, N) that the network corrects.
    """

    values: Attribution
    target: ResolvedTarget
    features: NodeFeatures
    start: Tensor


def start_of(model: ExplainableModel) -> str:
    """Name the order that the network corrects."""
    return "lrp_path" if isinstance(model, Graphormer) else "marginals at halves"


def describe(model: ExplainableModel, batch: Any, target: Target) -> Description:
    """Describe the nodes of a batch.

    Raises:
        ValueError: a wrapped model combines nodes in a way that cannot leave some out.
    """
    if not isinstance(model, Graphormer):
        return _of_wrapped(model, batch, target)
    path = LrpPath()._attribute(model, batch, target)
    resolved = target.resolve(model.config, path.outputs)
    features = node_features(model, batch, resolved, path.relevance)
    start = relative(path.graph_token, path.relevance, batch.mask)[:, 1:]
    return Description(path, resolved, features, start)


def _of_wrapped(model: ExplainableModel, batch: Any, target: Target) -> Description:
    lrp, slope = (method._attribute(model, batch, target) for method in (Lrp(), GradientInput()))
    resolved, mask = target.resolve(model.config, lrp.outputs), batch.mask
    first = first_order(measure_of(model, batch, resolved.log_odds), mask)
    size = mean_size(first.halves.mean(0), mask)  # (B, 1)
    by_side = (  # the mean where nodes are present, and where they are absent
        first.halves.masked_fill(~side, 0.0).sum(0) / side.sum(0).clamp(min=1)
        for side in (first.present, ~first.present)
    )
    of_v = [
        *(marginals / size for marginals in (first.whole, *by_side)),
        *(each.relevance / mean_size(each.relevance, mask) for each in (lrp, slope)),
    ]
    start = first.scores[:, 1:]
    values = [
        torch.stack(of_v, dim=-1).asinh(),
        soft_rank(start, mask)[..., None],
        _of_graph(mask, resolved.log_odds(lrp.outputs).detach(), size),
    ]
    features = NodeFeatures(torch.cat(values, dim=-1), model.embed(batch).detach()[:, 1:])
    return Description(lrp, resolved, features, start)


# -- the soft curve --------------------------------------------------------------------------------


def standardised(scores: Tensor, mask: Tensor) -> Tensor:
    """Standardise scores (B, N) over each graph's nodes, to mean zero and deviation one."""
    count = mask.sum(-1, keepdim=True)
    centred = scores - scores.masked_fill(~mask, 0.0).sum(-1, keepdim=True) / count
    variance = centred.square().masked_fill(~mask, 0.0).sum(-1, keepdim=True) / count
    return (centred / (variance + 1e-12).sqrt().clamp(min=1e-6)).masked_fill(~mask, 0.0)


def soft_presence(scores: Tensor, mask: Tensor, shares: Tensor, tau: float) -> Tensor:
    """Compute the log presence (K, B, N) of the nodes at K thresholds. It is zero at padding.

    Args:
        scores: the scores (B, N).
        mask: True at nodes (B, N).
        shares: which share of a graph's nodes lies above each threshold (K, B), below one.
        tau: the softness of the thresholds.
    """
    count = mask.sum(-1)  # (B,)
    ranked = scores.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    last = ranked.gather(-1, count[:, None] - 1)
    levels = torch.cat([ranked[:, :1] + MARGIN, ranked.maximum(last)], dim=-1)  # (B, N + 1)
    place = shares * count
    below = place.floor().long().clamp(max=levels.shape[1] - 2)
    part = place - below
    above, under = (levels.gather(-1, (below + k).T).T for k in (0, 1))  # (K, B)
    threshold = above * (1 - part) + under * part
    return F.logsigmoid((scores - threshold[..., None]) / tau).masked_fill(~mask, 0.0)


def gradients_of_probability(
    model: ExplainableModel, batch: Any, target: ResolvedTarget, presence: Tensor
) -> Tensor:
    """Compute the gradient (K, B, N) of the class's probability at K log presences (K, B, N).

    For wrapped models it is estimated at coalitions that PyTorch's generator draws. At every second
    threshold it is that of minus the probability without the present nodes.
    """
    if isinstance(model, Graphormer):
        return _by_fading(model, batch, target, presence)

    def probability(outputs: Tensor) -> Tensor:
        return torch.sigmoid(target.log_odds(outputs))

    measure, chance = measure_of(model, batch, probability), presence.exp()
    marginals = [
        measure(batch.mask & (~present if k % 2 else present))
        for k, present in enumerate(torch.bernoulli(chance).bool())
    ]
    return torch.stack(marginals) * chance  # with respect to log pi


def _by_fading(
    model: Graphormer, batch: GraphBatch, target: ResolvedTarget, presence: Tensor
) -> Tensor:
    """Compute the gradients (K, B, N) for a Graphormer, whose keys fade."""
    start, gradients = Embedded.of(model, batch), []
    for log_presence in presence:
        seen = start.adding(F.pad(log_presence, (1, 0))[:, None, None, :])
        run = run_pass(seen, Rules(), structure=True)
        outputs = run.outputs.detach().requires_grad_()
        probability = torch.sigmoid(target.log_odds(outputs)).sum()
        shares = run.back(torch.autograd.grad(probability, outputs)[0])
        assert shares.structure is not None
        gradients.append(shares.structure.sum(dim=(1, 2))[:, 1:])
    return torch.stack(gradients)


@torch.no_grad()
def areas(model: ExplainableModel, batch: Any, target: ResolvedTarget, scores: Tensor) -> Tensor:
    """Compute the AUAC (B,) of scores (B, N), where the highest score is added first."""
    keep = prefixes(ranks(F.pad(scores, (1, 0)), batch.mask))  # (N + 1, B, N)
    p = torch.sigmoid(target.log_odds(outputs_of_choices(model, batch, keep)))  # (N + 1, B)
    count = batch.mask.sum(-1)
    inside = torch.arange(1, len(p), device=p.device)[:, None] <= count
    return ((p[1:] + p[:-1]) / 2 * inside).sum(0) / count
