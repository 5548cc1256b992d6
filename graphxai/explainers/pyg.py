"""The two bridges to `torch_geometric.explain`.

Every registered explainer is an `ExplainerAlgorithm` under the name of its class:

    from torch_geometric.explain import Explainer
    Explainer(model, algorithm=graphxai.explainers.pyg.Lrp(), explanation_type="model",
              node_mask_type="object", model_config=...)(x, edge_index, batch=batch)

and `from_pyg(GNNExplainer())` is an explainer of this toolkit.
"""

from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import ExplainerAlgorithm, Explanation
from torch_geometric.explain.config import MaskType, ModelMode, ModelTaskLevel

from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.contract.model import evaluating
from graphxai.wrapping import WrappedModel, wrap
from graphxai.wrapping.chosen import NODE_COLUMN
from graphxai.wrapping.one_at_a_time import PaddingCheck

from . import REGISTRY, Attribution, Explainer, get_explainer
from .pyg_explainer import PygExplainer, from_pyg
from .pyg_graphs import COUNTED, PygCall, SingleGraphModel, check_split, split

GRAPH_COLUMN = "graphxai_graph_column"  # the output to explain of a graph, or -1


__all__ = ["Algorithm", "PygExplainer", "from_pyg"]


class Algorithm(ExplainerAlgorithm):
    """An explainer of this toolkit as an algorithm of `torch_geometric.explain`.

    The node mask is the signed relevance: (n, 1) for "object", (n, F) for "attributes", and its sum
    over nodes (1, F) for "common_attributes". The last two need a method that splits scores by
    feature. The edge mask (E,) is the relevance of those inputs of the call that belong to edges,
    such as `edge_attr` or `edge_weight`. The explained number is the sum of the model's outputs for
    the target classes, over the rows `index` (all by default). Graphs and nodes of a batch do not
    share relevance.

    Args:
        method: the explainer, or its name.
        embedding: as in `wrapping.wrap`.
        options: the options of the explainer.
    """

    method: ClassVar[str] = DEFAULT_METHOD

    def __init__(
        self, method: str | Explainer | None = None, *, embedding: str | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.explainer = get_explainer(method or self.method, **options)
        self.embedding = embedding
        self._padding: WeakKeyDictionary[nn.Module, dict[Any, PaddingCheck]] = WeakKeyDictionary()

    def supports(self) -> bool:
        """Return whether the settings ask for masks of nodes or edges, at graph or node level."""
        config = self.explainer_config
        by_feature = config.node_mask_type in (MaskType.attributes, MaskType.common_attributes)
        return (
            (config.node_mask_type is not None or config.edge_mask_type is not None)
            and (config.edge_mask_type is None or self.explainer.traits.explains_other_inputs)
            and self.model_config.task_level in (ModelTaskLevel.graph, ModelTaskLevel.node)
            and not (by_feature and not (self.embedding is None and self.explainer.traits.adds_up))
        )

    def forward(
        self,
        model: nn.Module,
        x: Tensor,
        edge_index: Tensor,
        *,
        target: Tensor,
        index: int | Tensor | None = None,
        **kwargs: Any,
    ) -> Explanation:
        """Compute the relevance of the nodes of one graph, or of every graph of a batch."""
        if not isinstance(x, Tensor) or not isinstance(edge_index, Tensor):
            raise ValueError("heterogeneous graphs are not supported.")
        whole = self._whole(x, edge_index, target, index, kwargs)
        graphs, uncertain = split(whole, kwargs.get("batch"))
        wrapped = self._wrapped(model, x, kwargs)
        if len(graphs) == 1 and (uncertain or kwargs.get("batch") is None):
            wrapped = SingleGraphModel.of(wrapped, explains_nodes=NODE_COLUMN in whole)
        batch: Any = wrapped.collate([wrapped.prepare(graph).data for graph in graphs]).to(x.device)
        if len(graphs) > 1 and uncertain:
            with evaluating(wrapped):
                check_split(wrapped, batch, whole, kwargs["batch"], uncertain)
        edges = self._inputs_of_edges(whole)
        attribution = self.explainer.attribute(wrapped, batch, wrt=("x", *edges))
        edge_mask = self._edge_mask(attribution, edges, whole, kwargs.get("batch"))
        nodes = attribution.relevance[attribution.mask][:, None]  # (n, 1)
        kind = self.explainer_config.node_mask_type
        if kind not in (None, MaskType.object):
            if attribution.features is None:
                raise ValueError(f"{self.explainer.name} does not split relevance by feature.")
            nodes = attribution.features[attribution.mask]
        if kind == MaskType.common_attributes:
            nodes = nodes.sum(0, keepdim=True)
        return Explanation(node_mask=None if kind is None else nodes, edge_mask=edge_mask)

    def _inputs_of_edges(self, whole: Data) -> list[str]:
        """Return the names of inputs with one row per edge, which an edge mask needs."""
        if self.explainer_config.edge_mask_type is None:
            return []
        names = [
            key
            for key, value in whole.items()
            if whole.is_edge_attr(key) and key != "edge_index"
            and (value.is_floating_point() or self.explainer.traits.explains_integer_inputs)
        ]  # fmt: skip
        if not names:
            raise ValueError(
                "an edge mask needs an input with a row for every edge, such as edge_attr: without"
                " one, the relevance of messages belongs to the nodes they come from."
            )
        return names

    def _edge_mask(
        self, attribution: Attribution, edges: list[str], whole: Data, group: Tensor | None
    ) -> Tensor | None:
        """Return the relevance of the edges (E,), in the order of the call."""
        if not edges or attribution.inputs is None:
            return None
        mask = whole.x.new_zeros(whole.num_edges)
        order = torch.arange(whole.num_edges, device=mask.device)
        # edges follow their graphs in a batch
        if group is not None and len(attribution.output) > 1:
            order = group[whole.edge_index[0]].argsort(stable=True)
        for name in edges:
            values = torch.cat(attribution.inputs[name])
            mask[order] += values.flatten(1).sum(-1) if values.dim() > 1 else values
        return mask

    def _whole(
        self,
        x: Tensor,
        edge_index: Tensor,
        target: Tensor,
        index: int | Tensor | None,
        kwargs: dict[str, Any],
    ) -> Data:
        """Put all graphs of the call into one Data, with the output columns to explain."""
        columns = self._columns(target)
        if index is not None:
            asked = torch.full_like(columns, -1)
            asked[index] = columns[index]
            columns = asked
        attributes = {k: v for k, v in kwargs.items() if isinstance(v, Tensor) and k not in COUNTED}
        whole = Data(x=x, edge_index=edge_index, **attributes)
        group = kwargs.get("batch")
        node_level = self.model_config.task_level == ModelTaskLevel.node
        rows = len(x) if node_level else 1 if group is None else int(group.max()) + 1
        if len(columns) != rows:
            raise ValueError(
                f"the model returns {len(columns)} rows for {rows}"
                f" {'nodes' if node_level else 'graphs'}:"
                " check task_level in model_config."
            )
        whole[NODE_COLUMN if node_level else GRAPH_COLUMN] = columns
        return whole

    def _columns(self, target: Tensor) -> Tensor:
        """Return the column to explain in each row, which is its class or, for a value, 0."""
        if self.model_config.mode != ModelMode.regression:
            return target.reshape(-1).long()
        if target.dim() > 1 and target.shape[-1] != 1:
            raise ValueError(
                "the regression has several outputs: select one in the model's forward."
            )
        return torch.zeros(target.numel(), dtype=torch.long, device=target.device)

    def _wrapped(self, model: nn.Module, x: Tensor, kwargs: dict[str, Any]) -> WrappedModel:
        binary = self.model_config.mode == ModelMode.binary_classification
        names = [str(f) for f in range(x.shape[-1])] if x.dim() == 2 else []
        wrapped = wrap(
            model,
            kind="regression",
            embedding=self.embedding,
            forward=PygCall(kwargs, partial(_sum_of_columns, binary=binary)),
            features=names,
        )
        # calls of the same form share what earlier passes have shown about the model
        by_form = self._padding.setdefault(model, {})
        wrapped.padding = by_form.setdefault((x.dim(), *_form(kwargs)), wrapped.padding)
        return wrapped

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_padding"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _padding=WeakKeyDictionary())

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _form(kwargs: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the arguments of a call by their names and values.

    Tensors are described only by their number of axes, and objects by their type.
    """

    def form(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{value.dim()} axes"
        is_plain = isinstance(value, str | int | float | None)
        return repr(value) if is_plain else type(value).__name__

    return sorted((name, form(value)) for name, value in kwargs.items())


def _sum_of_columns(rows: Tensor, batch: Any, binary: bool) -> Tensor:
    """Sum the output columns to explain over each graph (B, 1), given rows (n, C) or (B, C).

    A binary model's single logit counts for class 1, its negative for class 0.
    """
    rows = rows[:, None] if rows.dim() == 1 else rows
    columns = batch[NODE_COLUMN] if NODE_COLUMN in batch else batch[GRAPH_COLUMN]
    asked = columns >= 0
    picked = rows.gather(
        1, (torch.zeros_like(columns) if binary else columns.clamp(min=0))[:, None]
    )
    sign = torch.where(columns == 0, -1.0, 1.0) if binary else torch.ones_like(picked[:, 0])
    values = picked[:, 0] * (sign * asked).to(rows)
    if len(columns) != batch.num_graphs:
        values = values.new_zeros(batch.num_graphs).index_add(0, batch.batch, values)
    return values[:, None]


def __getattr__(name: str) -> Any:
    """Make an algorithm from a registered explainer, by its class name. `LRP` is `Lrp`."""
    for method, cls in REGISTRY.items():
        if name == cls.__name__ or (name == "LRP" and method == "lrp"):
            algorithm = type(name, (Algorithm,), {"method": method, "__module__": __name__})
            algorithm.__doc__ = f"{cls.title} as an algorithm of `torch_geometric.explain`."
            globals()[name] = algorithm
            return algorithm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
