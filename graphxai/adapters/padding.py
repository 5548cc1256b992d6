"""Notice a model that counts padding, as PyG's linear attention does.

Its output for a graph changes beside a larger one, although no graph reads another. A small batch
shows it: two graphs of different size together, and the smaller one alone. Such a model gets one
graph at a time.
"""

import warnings
from contextvars import Context
from typing import Any

import torch
from torch import Tensor

from .copying import copied, leaving_no_trace

Wrapped = Any  # a WrappedModel
FAR = 500  # machine epsilons of the largest output
FARTHEST = 0.05  # of the largest output, in half precision


class Padding:
    """Whether a model counts padding, as one small pass showed; kept by copies."""

    def __init__(self) -> None:
        self._asked = self._counts = False

    def __deepcopy__(self, _: Any) -> "Padding":
        return self

    def counts(self, model: Wrapped, batch: Any) -> bool:
        """Whether the graphs of this batch need a pass each."""
        if not self._asked and batch.graphs is not None and bool(batch.num_nodes.all()):
            self._asked = True
            graphs = sorted(batch.examples(), key=lambda graph: int(graph.num_nodes))
            found = Context().run(_differs, model, graphs[0], graphs[-1])
            self._asked, self._counts = found is not None, bool(found)
        return self._counts


def _of_two_sizes(model: Wrapped, first: Any, second: Any) -> tuple[Any, Any]:
    """Two graphs, the first the smaller one, made from graphs that may be of one size."""
    size = int(second.num_nodes)
    if int(first.num_nodes) < size:
        return first, second
    if size == 1:
        return first, model.repeated(second, 2)
    nodes = torch.arange(size, device=second.x.device)
    return model.induced(second, nodes < size - 1), second


def _differs(model: Wrapped, first: Any, second: Any) -> bool | None:
    """Whether the first graph's output changes beside the second; None: the model did not run.

    In double precision, if the model runs in it, so that rounding does not hide a small change.
    """
    state = torch.get_rng_state()
    for copy in (_in_double_precision, lambda model: model):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _compared(copy(model), first, second)
        except Exception:  # a model may raise anything; the batch itself will show what is wrong
            continue
        finally:
            torch.set_rng_state(state)
    return None


def _in_double_precision(model: Wrapped) -> Wrapped:
    double = copied(model)
    double.module.double()
    return double


def _compared(model: Wrapped, first: Any, second: Any) -> bool:
    """Whether the first graph's output changes beside the second; not if it is random anyway."""
    state = torch.get_rng_state()
    with leaving_no_trace(model.module), model.evaluating():
        first, second = _of_two_sizes(model, first, second)
        with torch.no_grad():
            beside, alone = (model(model.collate(g))[:1] for g in ([first, second], [first]))
    return torch.equal(state, torch.get_rng_state()) and not _same(beside, alone)


def _same(beside: Tensor, alone: Tensor) -> bool:
    """Whether outputs are equal but for rounding, or not finite."""
    far = min(FAR * torch.finfo(alone.dtype).eps, FARTHEST) * alone.abs().max()
    return not bool(((beside - alone).abs().max() > far).item())
