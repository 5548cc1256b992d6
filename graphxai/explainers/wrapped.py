"""Ask a wrapped model for what explainers need beyond the contract."""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphxai.contract.inputs import EDGE_GATES
from graphxai.engine import operations as kinds
from graphxai.engine.ledger import warn_of_cuts, warn_of_random_numbers
from graphxai.engine.recording import recording
from graphxai.runtime.notices import warn
from graphxai.runtime.randomness import current_draws
from graphxai.runtime.scope import Blocks

NODES_ONLY = ("x",)
EDGES = "edge_index"

DRAWS_IN_EACH_PASS = (
    "Every pass and every graph of a batch has others, so relevance that compares them is partly"
    " noise."
)


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


def with_leaves(model: Any, batch: Any, names: tuple[str, ...], codes: bool) -> Any:
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
    if EDGES in names:
        batch = model.with_edge_gates(batch)
    attributes = tuple(EDGE_GATES if n == EDGES else n for n in names)
    return batch.with_leaves(attributes, codes, model.float_dtype)


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
    if EDGE_GATES in leaves:
        raise ValueError(
            "Integrated Gradients starts from inputs of zero, and edges have no such input:"
            " explain edge_index by LRP or Gradient x Input."
        )
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
    split = {name: batch.split(name, value.detach()) for name, value in values.items()}
    return {EDGES if name == EDGE_GATES else name: parts for name, parts in split.items()}


def times_leaves(batch: Any, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Multiply the gradients at the leaves of a batch by their values, which for gates are 1.

    The same gate is in each layer of messages, whose mean counts (see `wrapping.messages`).
    """
    return {
        name: gradients[name] / batch.message_layers
        if name == EDGE_GATES
        else leaf.detach() * gradients[name]
        for name, leaf in leaves_of(batch).items()
    }


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
    if not reports_cuts and (places := model.checks.cuts(model, batch)):
        warn_of_cuts(name, places, in_ledger=False)


# -- whether a method explains the model itself, with its outputs and without randomness -----------


FAR = 7e4  # in machine epsilons of the largest output, more than bfloat16 inside a pass causes
HUGE = 1e9  # products of larger inputs may overflow
SMALL = 1e-4  # smaller outputs are assumed to be differences of larger numbers

_compared: "WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]]" = WeakKeyDictionary()


def checked_outputs(model: Any, batch: Any, outputs: Tensor, method: str) -> Tensor:
    """Return the outputs (B, C) of a method's pass, without numbers where the model has none.

    A pass that is recorded and runs again need not overflow where the model does, as in a softmax
    written as exp(x) / sum(exp(x)). Neither need PyTorch's attention for gradients with huge
    inputs. Warns as `warn_of_probabilities` and `warn_if_outputs_differ` do.
    """
    warn_of_probabilities(model, batch, outputs)
    memory = getattr(model, "memory", None)
    noted = set() if memory is None else memory.noted_passes()
    if noted != {True}:
        warn_if_outputs_differ(model, batch, outputs, method)
    may_differ = False in noted or (noted and bool((batch.x.abs() > HUGE).any()))
    if not may_differ or _draws_random_numbers():
        return outputs
    with torch.no_grad():
        of_model = model(batch).to(outputs).view_as(outputs)
    return torch.where(of_model.isfinite(), outputs, of_model)


def warn_if_outputs_differ(model: Any, batch: Any, outputs: Tensor, method: str) -> None:
    """Warn if the outputs (B, C) of a method's pass are not those of the model.

    Rules should change gradients, but never values. The check runs once for each model, method and
    rules of `wrap`. Two graphs of a wrapped model's batch are enough for it.
    """
    module = getattr(model, "module", model)
    if not isinstance(module, nn.Module) or _draws_random_numbers():
        return
    compared = _compared.setdefault(module, set())
    key = (method, *getattr(getattr(model, "settings", None), "rules", ()))
    if key in compared:
        return
    compared.add(key)
    if len(batch) > 2 and hasattr(batch, "of_rows"):  # the first and the last differ most in size
        batch, outputs = batch.of_rows(0, len(batch) - 1), outputs[[0, -1]]
    with torch.no_grad():
        expected = model(batch).to(outputs).view_as(outputs)
    size = expected.abs().max().clamp(min=SMALL)
    far = float((expected - outputs).abs().max() / size)
    floats = (value for value in model.parameters() if value.is_floating_point())
    if far > FAR * torch.finfo(next(floats, expected).dtype).eps:
        warn(
            f"the outputs of {type(module).__name__} change under the rules of {method!r}, by"
            f" {far:.1e} of the largest output: the explanation is not of this model.",
            stacklevel=4,
        )


def _draws_random_numbers() -> bool:
    draws = current_draws()
    return draws is not None and draws.seen


@contextmanager
def noticing_random_numbers(model: Any, batch: Any) -> Iterator[None]:
    """Warn if a wrapped model draws random numbers within the block, and name the place.

    There is no warning if another thread or the method itself draws them, or if a recorded pass has
    already warned.
    """
    module = getattr(model, "module", None)
    if not isinstance(module, torch.nn.Module):
        yield
        return
    before = torch.get_rng_state()
    yield
    draws = current_draws()
    if not (draws is None or draws.seen or torch.equal(before, torch.get_rng_state())):
        with recording(model.running, [], graded=False) as done:
            name, trace = type(module).__name__, done(model(batch))
            warn_of_random_numbers(name, trace, DRAWS_IN_EACH_PASS)


# -- forward passes that several nodes share -------------------------------------------------------

Value = TypeVar("Value")
_shared: Blocks[dict[Any, Any] | None] = Blocks("graphxai_shared_passes", None)


@contextmanager
def sharing_forward_passes() -> Iterator[None]:
    """Explain several nodes of one batch by one method within the block."""
    with _shared.block({}):
        yield


def is_shared() -> bool:
    """Return whether other nodes are explained by the same forward pass."""
    return _shared.get() is not None


def once_for_all_nodes(run: Callable[[], Value], key: Any = None) -> Value:
    """Return the result of a forward pass, which runs for the first of the nodes alone.

    A method whose passes differ from node to node gives those that are alike the same `key`.
    """
    if (results := _shared.get()) is None:
        return run()
    if key not in results:
        results[key] = run()
    return cast(Value, results[key])


def forget_forward_pass() -> None:
    """Let the forward pass run again for the next node."""
    if (results := _shared.get()) is not None:
        results.clear()


def _runs_without_nodes(model: Any, batch: Any) -> bool:
    """Return whether a wrapped model runs on the graphs of a batch without their first nodes."""
    keep = batch.mask.clone()
    keep[:, 0] = False
    try:
        with torch.no_grad():
            model.encode(model.embed(batch), batch, keep)
    except Exception:  # a model may raise anything that its code divides by, asserts or looks up
        return False
    return True


# What the code of a model may raise where it assumes nodes. ValueErrors here say what to do.
MODELS_OWN_ERRORS = (RuntimeError, TypeError, AssertionError, LookupError, ArithmeticError)


def refuse_untraceable(
    model: Any, batch: Any, error: Exception, method: str, needs_gradients: bool
) -> None:
    """Raise ValueError if a wrapped model runs by itself, but not under a method.

    Then it fails without some of the nodes, or computes with tensors, such as nested or
    block-sparse ones, for which PyTorch has no gradient, or which it cannot record.
    """
    if not hasattr(model, "module") or isinstance(error, torch.OutOfMemoryError):
        return
    try:
        with torch.no_grad():
            model(batch)
    except Exception:
        return  # the error is the model's own
    lines = [*str(error).strip().splitlines(), type(error).__name__]
    reason = lines[0].rstrip(".")
    if not needs_gradients and not _runs_without_nodes(model, batch):
        raise ValueError(
            f"{type(model.module).__name__} runs on whole graphs, but not on those that {method}"
            f" makes: {reason}. Let it run on any part of a graph, or take a method such as 'lrp'."
        ) from error
    raise ValueError(
        f"relevance cannot be followed through {type(model.module).__name__} by {method}: {reason}."
        " Let the model compute with dense tensors of real numbers there, or explain it by a method"
        " that only hides nodes, such as 'occlusion'."
    ) from error


# -- whether a model returns logits ----------------------------------------------------------------

_returns_probabilities: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()


def warn_of_probabilities(model: Any, batch: Any, outputs: Tensor) -> None:
    """Warn, once for each wrapped model, if its outputs (B, C) for classes are probabilities."""
    known = model.module in _returns_probabilities
    if not known and (said := said_of_probabilities(model, batch, outputs)):
        warn(said, stacklevel=4)


def said_of_probabilities(model: Any, batch: Any, outputs: Tensor) -> str:
    """Say what to do about outputs (B, C) that are probabilities of classes; "" for logits.

    They lie between 0 and 1, and the last operation of the model is a sigmoid or softmax.
    """
    if not getattr(getattr(model, "settings", None), "has_gradients", False):
        return ""
    of_tasks = zip(model.config.tasks, model.config.columns, strict=True)
    of_classes = [outputs[:, columns] for task, columns in of_tasks if task.kind != "regression"]
    if not any(bool(((values >= 0) & (values <= 1)).all()) for values in of_classes):
        return ""
    if model.module not in _returns_probabilities:
        from graphxai.wrapping.model_checks import without_traces  # needs PyG

        is_last = without_traces(_ends_in_probabilities, model, batch)
        _returns_probabilities[model.module] = bool(is_last)
    if not _returns_probabilities[model.module]:
        return ""
    return (
        f"{type(model.module).__name__} ends in a sigmoid or softmax, so it returns probabilities,"
        " which are read as logits here: a 0 counts as 50 %. Let forward return what enters that"
        " operation, or give wrap a forward= that does."
    )


def _ends_in_probabilities(model: Any, batch: Any) -> bool:
    """Return whether the outputs of the largest graph come from a sigmoid or softmax.

    It may be written by hand, as a quotient of exponentials.
    """
    single = batch.of_rows(int(batch.num_nodes.argmax()))
    with model.evaluating():
        last = model.encode(model.embed(single).detach().requires_grad_(), single).grad_fn
    if _behind(last, kinds.GATES | kinds.SOFTMAX) is not None:
        return True
    fraction = _behind(last, kinds.QUOTIENTS | kinds.INVERSES | kinds.POWERS, kinds.TIMES)
    parts = [] if fraction is None else [part for part, _ in fraction.next_functions if part]
    sums = kinds.ADDITIONS | kinds.SUMS
    of_exponentials = (_behind(part, kinds.EXPONENTIALS, sums) is not None for part in parts)
    return bool(parts) and all(of_exponentials)


def _behind(node: Any, wanted: Set[str], through: Set[str] = frozenset()) -> Any:
    """Return the first of the wanted nodes before a node of autograd's graph, or None."""
    todo = [node]
    while todo:
        node = todo.pop()
        kind = None if node is None else kinds.NODES_OF_GRAPH.get(node.name())
        if kind is not None and kind.name in wanted:
            return node
        if kind is not None and kind.name in kinds.SAME | kinds.GATHERED | through:
            todo += [before for before, _ in node.next_functions]
    return None
