"""Note in the inputs which node or pair of nodes is explained."""

from typing import Any

from graphxai.datasets.graph import is_data

from .models import Model

__all__ = ["mark_explained_for"]


def mark_explained_for(model: Model, inputs: Any, node: Any, pair: Any) -> Any:
    """Note in each input which node or pair is explained, if the model answers for these.

    A single graph of a Graphormer is encoded here, once for all its nodes.

    Raises:
        ValueError: the model does not answer for nodes or pairs.
    """
    if node is None and pair is None:
        return inputs
    level = getattr(model.config, "level", None)  # wrapped models have none
    if level == "graph":
        raise ValueError("a Graphormer has one output per graph: leave out node= and pair=.")
    if level == "node" and pair is not None:
        raise ValueError("this model answers for nodes: give node= instead of pair=.")
    if level == "node" and is_data(inputs):
        inputs = model.prepare(inputs).data
    from graphxai.adapters.chosen import mark_explained  # needs PyG

    return mark_explained(inputs, node, pair)
