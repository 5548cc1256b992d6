"""Notice a model whose output for a graph depends on the graphs that share its pass.

Some attend to all nodes of a batch, or normalise over them; some count padding, as PyG's linear
attention does. A small batch shows it: two of its graphs together, and one of them alone. Such a
model gets one graph at a time.
"""

import warnings
from contextvars import Context
from typing import Any

import torch
from torch import Tensor

from .copying import leaving_no_trace

Wrapped = Any  # a WrappedModel
FAR = 500  # machine epsilons of the largest output
FARTHEST = 0.05  # of the largest output, in half precision


class Sharing:
    """Whether graphs can share a pass of a model, as one small pass showed; kept by copies."""

    def __init__(self) -> None:
        self._asked = self._refused = False

    def __deepcopy__(self, _: Any) -> "Sharing":
        return self

    def is_refused(self, model: Wrapped, batch: Any) -> bool:
        """Whether the graphs of this batch need a pass each; a warning says if they are mixed."""
        if not self._asked and not model.training and bool(batch.num_nodes.all()):
            self._asked = True
            graphs = sorted(batch.examples(), key=lambda graph: int(graph.num_nodes))
            found = Context().run(_differs, model, graphs[0], graphs[-1])
            self._asked, self._refused = found is not None, bool(found)
        return self._refused


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
    """Whether the first graph's output changes beside the second; None: the model did not run."""
    state = torch.get_rng_state()
    try:
        with leaving_no_trace(model.module), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first, second = _of_two_sizes(model, first, second)
            with torch.no_grad():
                beside, alone = (model(model.collate(g))[:1] for g in ([first, second], [first]))
            drawn = not torch.equal(state, torch.get_rng_state())
            if drawn or _same(beside, alone):
                return False
            mixed = _depends_on_another(model, model.collate([first, second]))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None  # the batch itself will show what is wrong, as in a copy of another precision
    finally:
        torch.set_rng_state(state)
    if mixed:
        warnings.warn(
            f"{type(model.module).__name__} mixes the graphs of a batch: its output for a graph"
            " depends on the graphs beside it, as with attention or a norm over all nodes. Each"
            " graph gets a pass of its own.",
            stacklevel=2,
        )
    return True


def _same(beside: Tensor, alone: Tensor) -> bool:
    """Whether outputs are equal but for rounding, or not finite."""
    far = min(FAR * torch.finfo(alone.dtype).eps, FARTHEST) * alone.abs().max()
    return not bool(((beside - alone).abs().max() > far).item())


def _depends_on_another(model: Wrapped, batch: Any) -> bool:
    """Whether a gradient leads from the first graph's output to the second, and not to padding."""
    with torch.enable_grad():
        try:
            tokens = model.embed(batch).detach().requires_grad_()
            output = model.encode(tokens, batch)[:1].sum()
            (found,) = torch.autograd.grad(
                output, tokens, allow_unused=True, materialize_grads=True
            )
        except (RuntimeError, ValueError):
            return False
    return bool(found[1].any())
