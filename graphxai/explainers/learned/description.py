"""What a few passes of a model say about the nodes, which a fitted explainer reads.

A Graphormer is read by layer and head (see `node_features`), and the order to correct is that of
`lrp_path`. A wrapped model may be built in any way, so what every such model has is read:

* the marginals of the nodes at the whole graph and at four halves of it, as at the beginning of
  `path_marginals`: at the whole, on average where the node is present, and where it is absent;
* LRP and Gradient x Input;
* the tokens.

The order to correct is that of the marginals at the halves.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.models.graphormer import Graphormer

from ..activation_path import LrpPath
from ..base import Attribution
from ..gradient import GradientInput, Lrp
from ..node_features import TYPICAL_SIZE, NodeFeatures, node_features, soft_rank
from ..orders import mean_size, relative
from ..presence_path import first_order, measure_of


@dataclass(frozen=True, eq=False)
class Description:
    """What passes say about the nodes of a batch.

    Args:
        values: the attribution whose values the order gets.
        target: the explained class of each graph.
        features: what the network reads.
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
    if isinstance(model, Graphormer):
        return _of_graphormer(model, batch, target)
    return _of_wrapped(model, batch, target)


def _of_graphormer(model: Graphormer, batch: GraphBatch, target: Target) -> Description:
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
    by_side = (_mean_where(first.halves, side) for side in (first.present, ~first.present))
    of_v = [
        *(marginals / size for marginals in (first.whole, *by_side)),
        *(each.relevance / mean_size(each.relevance, mask) for each in (lrp, slope)),
    ]
    start = first.scores[:, 1:]
    nodes = mask.sum(-1)[:, None]  # (B, 1)
    v = resolved.log_odds(lrp.outputs).detach()[:, None]
    of_graph = torch.cat([nodes / TYPICAL_SIZE, v.asinh(), size.log()], dim=1)
    values = [
        torch.stack(of_v, dim=-1).asinh(),
        soft_rank(start, mask)[..., None],
        of_graph[:, None].expand(-1, mask.shape[1], -1),
    ]
    features = NodeFeatures(torch.cat(values, dim=-1), model.embed(batch).detach()[:, 1:])
    return Description(lrp, resolved, features, start)


def _mean_where(values: Tensor, chosen: Tensor) -> Tensor:
    """Average values (K, B, N) over the K where they are chosen, zero where they never are."""
    return values.masked_fill(~chosen, 0.0).sum(0) / chosen.sum(0).clamp(min=1)
