"""Use an algorithm of `torch_geometric.explain` as an explainer of this toolkit."""

import logging
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.explain import CaptumExplainer, ExplainerAlgorithm
from torch_geometric.explain.config import ExplainerConfig, ModelConfig

from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.explainers.perturbation import KEPT
from graphxai.wrapping import WrappedModel
from graphxai.wrapping.batches import WrappedBatch

from .attention import ATTENDED
from .base import Attribution, Explainer, scored
from .traits import Traits

# What a large score means in PyG's masks without a sign. Captum's scores may have a sign.
LARGE_SCORES_MEAN = {
    "AttentionExplainer": ATTENDED,
    "DummyExplainer": "drawn at random",
    **dict.fromkeys(("GNNExplainer", "GraphMaskExplainer", "PGExplainer"), KEPT),
}
WITHOUT_GRADIENT = {"AttentionExplainer", "DummyExplainer"}


def from_pyg(
    algorithm: ExplainerAlgorithm,
    *,
    node_mask: str | None = "object",
    edge_mask: str | None = None,
    seed: int = 0,
) -> "PygExplainer":
    """Use an algorithm of `torch_geometric.explain` as an explainer, for `explain` and `evaluate`.

    A node's score is its mask, summed over features. If there is only an edge mask, each edge gives
    half of its mask to either end.

    Args:
        algorithm: PyG's algorithm.
        node_mask: the type of node mask that it computes.
        edge_mask: the type of edge mask that it computes.
        seed: the seed of the random numbers that it draws.

    Raises:
        ValueError: the algorithm cannot run this way, for example because it needs training. The
            message has PyG's reason.
    """
    return PygExplainer(algorithm, node_mask, edge_mask, seed)


class PygExplainer(Explainer):
    """An algorithm of PyG, which explains graphs one at a time with the same seed."""

    name = "pyg"
    title = "PyG"
    source = "Fey 2019"
    traits = Traits(cost="depends on the algorithm")

    def __init__(
        self, algorithm: ExplainerAlgorithm, node_mask: str | None, edge_mask: str | None, seed: int
    ) -> None:
        self.algorithm, self.seed = algorithm, seed
        self.node_mask, self.edge_mask = node_mask, edge_mask
        self.masks = ExplainerConfig("model", node_mask, edge_mask)
        kind = type(algorithm).__name__
        self.name = f"pyg_{kind.lower()}"  # type: ignore[misc]
        self.title = kind  # type: ignore[misc]
        self.traits = replace(
            self.traits,
            large_score_means=LARGE_SCORES_MEAN.get(kind, ""),
            needs_gradients=kind not in WITHOUT_GRADIENT,
        )
        _check_supports(algorithm, self.masks, _config(self._explains_values("binary")))

    def _explains_values(self, kind: str) -> bool:
        """Return whether PyG treats f_c as a number, not a logit. Captum always does."""
        return kind == "regression" or isinstance(self.algorithm, CaptumExplainer)

    def _attribute(self, model: ExplainableModel, batch: Any, target: Target) -> Attribution:
        with torch.no_grad():
            tokens = model.embed(batch)
            outputs = model.encode(tokens, batch)
        resolved = target.resolve(model.config, outputs)
        as_value = self._explains_values(target.task_in(model.config).kind)
        scores = outputs.new_zeros(tokens.shape[:2])
        for b, n in enumerate(batch.num_nodes.tolist()):
            graph = _TargetOfOneGraph(model, batch, tokens, resolved, b)
            scores[b, 1 : n + 1] = self._scores(graph, as_value)
        return scored(scores, batch, outputs, resolved)

    def _scores(self, graph: "_TargetOfOneGraph", as_value: bool) -> Tensor:
        self.algorithm.connect(self.masks, _config(as_value))
        x, edge_index = graph.inputs()
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(self.seed)
            if as_value:
                with torch.no_grad():
                    wanted = graph(x, edge_index)
            else:  # f_c is the logit of the explained class
                wanted = torch.ones(1, dtype=torch.long, device=x.device)
            explanation = self.algorithm(graph, x, edge_index, target=wanted)
        if explanation.get("node_mask") is not None:
            return explanation.node_mask.sum(-1).detach()
        half = explanation.edge_mask.detach() / 2
        scores = x.new_zeros(len(x))
        return scores.index_add(0, edge_index[0], half).index_add(0, edge_index[1], half)


def _config(as_value: bool) -> ModelConfig:
    mode = "regression" if as_value else "binary_classification"
    return ModelConfig(mode=mode, task_level="graph", return_type="raw")


def _check_supports(
    algorithm: ExplainerAlgorithm, masks: ExplainerConfig, config: ModelConfig
) -> None:
    """If the algorithm cannot run, raise ValueError with the reason, which PyG only logs."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        algorithm.connect(masks, config)
    except ValueError as error:
        node, edge = (kind and kind.value for kind in (masks.node_mask_type, masks.edge_mask_type))
        kinds = f"node_mask={node!r}, edge_mask={edge!r}"
        raise ValueError(
            f"{type(algorithm).__name__} cannot explain a model with {kinds}:"
            f" {'; '.join(logged) or error}"
        ) from error
    finally:
        root.removeHandler(handler)


class _TargetOfOneGraph(nn.Module):
    """The target f_c of graph b as a function `(x, edge_index)` of its node embeddings (n, D)."""

    def __init__(
        self, model: Any, batch: Any, tokens: Tensor, resolved: ResolvedTarget, b: int
    ) -> None:
        super().__init__()
        self.n = int(batch.num_nodes[b])
        self.row = 0 if isinstance(batch, WrappedBatch) else b  # other batches stay whole
        if isinstance(batch, WrappedBatch):  # alone, as padding would be read with its row
            batch = model.collate([batch.data_of(b)]).to(tokens.device)
            tokens = tokens[b : b + 1, : self.n + 1]
        self.batch, self.tokens = batch, tokens.detach()
        self.weights, self.offset = resolved.weights[b], resolved.offset[b]
        self.explained = model
        if isinstance(model, WrappedModel):
            self.module = model.running  # where the algorithm finds message passing
        self.eval()

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return node embeddings (n, D) and edges (2, E), or no edges if the model has none."""
        x = self.tokens[self.row, 1 : self.n + 1].clone()
        graphs = getattr(self.batch, "graphs", None)
        if graphs is None:
            return x, torch.empty(2, 0, dtype=torch.long, device=x.device)
        return x, graphs.edge_index

    def forward(self, x: Tensor, edge_index: Tensor, **_: Any) -> Tensor:
        row = self.tokens[self.row]
        tokens = self.tokens.clone()
        tokens[self.row] = torch.cat([row[:1], x, row[1 + self.n :]])
        outputs = self.explained.encode(tokens, self.batch)[self.row]
        return ((outputs * self.weights).sum() + self.offset).reshape(1)
