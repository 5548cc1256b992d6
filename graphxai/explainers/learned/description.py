"""What a few passes of a model say about the nodes, which a fitted explainer reads.

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
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
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
from ..orders import first_order, mean_size, measure_of, relative
from ..passes import Embedded, logistic
from ..path_marginals import by_query

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
    parts = (mask.sum(-1, keepdim=True) / TYPICAL_SIZE, v[:, None].asinh(), size.log())
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
