"""Ask a wrapped model for what explainers need beyond the contract."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphxai.adapters.engine.pass_warnings import warn_of_cuts

NODES_ONLY = ("x",)


def further_inputs(wrt: Sequence[str], method: str, supported: bool) -> tuple[str, ...]:
    """Return the names of the inputs to explain beside the nodes' features x.

    Raises:
        ValueError: there are such inputs, but the method does not explain them.
    """
    if isinstance(wrt, str):
        wrt = (wrt,)
    further = tuple(dict.fromkeys(name for name in wrt if name not in NODES_ONLY))
    if further and not supported:
        raise ValueError(
            f"{method} explains the nodes' features x only, not {', '.join(further)}; LRP and its"
            " variants, Gradient x Input, Saliency and Integrated Gradients explain other inputs."
        )
    return further


def with_leaves(batch: Any, names: tuple[str, ...], codes: bool) -> Any:
    """Return the batch with gradients at the inputs of these names.

    If `codes` is True, these inputs may be integers.
    """
    if not names:
        return batch
    if not hasattr(batch, "with_leaves"):
        raise ValueError(
            f"relevance of {', '.join(names)} is not available for a Graphormer, whose ledger has"
            " the shares of its edges and distances: leave out `wrt`."
        )
    return batch.with_leaves(names, codes)


def leaves_of(batch: Any) -> dict[str, Tensor]:
    """Return the further inputs to explain, by name."""
    return dict(getattr(batch, "leaves", {}))


def scaled_leaves(batch: Any, scales: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """Repeat a batch once for each scale (K,), with its leaves multiplied by the scale.

    Returns:
        The batch, and its scaled leaves (K, rows, ...). Without leaves the batch is not repeated.
    """
    leaves = leaves_of(batch)
    if not leaves:
        return batch, {}
    scaled = {
        name: torch.stack([x.detach() * a for a in scales.to(x)]).requires_grad_()
        for name, x in leaves.items()
    }
    values = {name: x.flatten(0, 1) for name, x in scaled.items()}
    return batch.repeated(len(scales)).with_values(values), scaled


def share_of(batch: Any, name: str, relevance: Tensor) -> Tensor:
    """Sum the relevance of a further input over each graph (B,)."""
    return torch.stack([part.sum() for part in batch.split(name, relevance)])


def by_graph(batch: Any, values: dict[str, Tensor]) -> dict[str, list[Tensor]] | None:
    """Split values of further inputs, which have the shape of a batch, by graph."""
    if not values:
        return None
    return {name: batch.split(name, value.detach()) for name, value in values.items()}


def members_of(model: Any) -> Sequence[Any]:
    """Return the models of an ensemble, or nothing for a single model."""
    return getattr(model, "members", ())


def passes_of(model: Any, batch: Any) -> list[Any]:
    """Return the batch, or its graphs one by one if they cannot share a wrapped model's pass."""
    return model.passes(batch) if hasattr(model, "passes") else [batch]


def warn_of_mixing(model: Any, method: str) -> None:
    """Warn if a wrapped model has been seen to mix the graphs of a batch."""
    if hasattr(model, "checks"):
        model.checks.warn_of_mixing(type(model.module).__name__, method)


def check_gradients(model: Any, batch: Any, reports_cuts: bool) -> None:
    """Warn where a wrapped model cuts off gradients, unless the method's own passes warn.

    Raises:
        ValueError: a layer's weights pass no gradient on.
    """
    if not hasattr(model, "checks"):
        return
    name = type(model.module).__name__
    if not model.settings.has_gradients:
        raise ValueError(
            f"{model.origin.name} has no gradient: use a method that only hides atoms, such as"
            " 'occlusion' or 'shapley_sampling'."
        )
    if (layer := model.quantised_layer) is not None:
        raise ValueError(
            f"{name} has 8-bit integer weights in {layer}, which pass no gradient on: explain the"
            " model as it was before quantisation, or use a method that only hides nodes, such as"
            " 'occlusion'."
        )
    if not reports_cuts and (places := model.cuts(batch)):
        warn_of_cuts(name, places, in_ledger=False)
