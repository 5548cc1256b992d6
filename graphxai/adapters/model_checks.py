"""What a few passes show about a wrapped model, for the methods that do not see it themselves.

Mixing: of two graphs in a batch, one gets other rows. If the output of the other changes, too, the
model mixes graphs: attention without the batch vector, a norm over the batch. Then every method
runs its graphs one at a time.

Padding: a model may count it, as PyG's linear attention does. Its output for a graph changes beside
a larger one, although no graph reads another: two graphs of different size together, and the
smaller one alone, show it. Such a model gets one graph at a time.

Cuts: one recorded pass shows where values of the nodes are used without their gradient.
"""

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from contextvars import Context
from copy import copy
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .batches import WrappedBatch, as_rows, is_real
from .engine.positive_pass import ALL_CONSTANT
from .engine.replay import make_plan
from .engine.roles import find_roles
from .engine.session import NODES, PassRequest, modules_with_cuts, record_pass
from .eval_replica import all_modules, copied, restoring_attributes, uncompiled

Wrapped = Any  # a WrappedModel
Run = Callable[[Tensor], Tensor]
Found = TypeVar("Found")
SAME = 10  # machine epsilons of the largest value: less is rounding
FAR = 500  # machine epsilons of the largest output
FARTHEST = 0.05  # of the largest output, in half precision
NEAREST = 1e-9  # of it, in double precision: outputs near zero are differences of larger numbers


class ModelChecks:
    """What is known about a model in one form, and its copies; other parts begin another survey.

    mixing: the module in which it mixes the graphs of a batch, "" if that is unclear, or None.
    """

    def __init__(self, module: nn.Module) -> None:
        self.mixing: str | None = None
        self._form = _form(module)
        self._looked = False
        self._cuts: set[str] | None = None
        self._told: set[str] = set()

    def __deepcopy__(self, _: Any) -> "ModelChecks":
        return self

    def is_of(self, module: nn.Module) -> bool:
        """Whether the module still consists of the same parts."""
        return self._form == _form(module)

    def look_for_mixing(self, model: Any, batch: WrappedBatch) -> None:
        """Find out, once, whether the model mixes the graphs of a batch of several."""
        if not self._looked:
            self._looked = True
            self.mixing = _apart(_mixed_in, model, batch)

    def warn_of_mixing(self, name: str, method: str) -> None:
        """Say once for each method that the model mixes graphs, and what follows."""
        if self.mixing is None or method in self._told:
            return
        self._told.add(method)
        warnings.warn(
            f"{name} mixes the graphs of a batch in {self.mixing or name}: what it returns for one"
            f" graph depends on the others. {method!r} runs its graphs one at a time, as every"
            " method does. Let that module keep the graphs apart (give it the batch vector, or a"
            " mask) to run them together.",
            stacklevel=5,
        )

    def cuts(self, model: Any, batch: WrappedBatch) -> set[str]:
        """Modules in which values of the nodes are used without their gradient."""
        if self._cuts is None:
            self._cuts = _apart(_cuts_in, model, batch) or set()
        return self._cuts


def _form(module: nn.Module) -> tuple[Any, ...]:
    """What a module is made of."""
    parts = all_modules(module)  # walked through once, where `parameters` would do so again
    own = (p for part in parts for p in part._parameters.values() if p is not None)
    return *map(type, parts), *(p.shape for p in own)


def _apart(look: Callable[..., Found], *args: Any) -> Found | None:
    """What passes show that leave no trace in rules, recordings, random numbers or warnings.

    None if they fail: with other rows a model may raise anything.
    """
    with (
        suppress(Exception),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore")
        return Context().run(look, *args)
    return None


def _cuts_in(model: Wrapped, batch: WrappedBatch) -> set[str]:
    """Modules in which values of the nodes are used without their gradient."""
    one = batch.of_rows(len(batch) - 1)
    with model.evaluating():
        rows, run = as_rows(model.embed(one), one), model.rows_to_outputs(one, one.mask)
        trace = record_pass(PassRequest(model.running, run, rows, one.layout))
    return modules_with_cuts(make_plan(trace, find_roles(trace), ALL_CONSTANT, NODES))


def _mixed_in(model: Wrapped, batch: WrappedBatch) -> str | None:
    """The first module to end with one graph's entries changed by another's; None: there is none.

    "" if no module shows it, only the outputs. A model that draws random numbers is not examined.
    """
    two = batch.of_rows(0, len(batch) - 1)
    with model.evaluating(), uncompiled(model.running), torch.no_grad():
        module, run = model.running, model.rows_to_outputs(two, two.mask)
        rows = as_rows(model.embed(two), two)
        graph = two.layout.graph if rows.dim() == 2 else torch.arange(len(two)).to(rows.device)
        whole = _seeded(run, rows)
        for moved in (graph > 0, graph == 0):
            other = rows.clone()
            for values in (rows[moved][:1], rows[~moved][:1], rows[moved].roll(1, -1) / 2):
                if torch.equal(other, rows):  # the first are values that the model knows
                    other[moved] = values
            apart = _GraphEntries(two, graph[~moved].unique())
            if apart.differ(whole, _seeded(run, other)):
                if apart.differ(whole, _seeded(run, rows)):
                    return None  # random numbers
                pairs = zip(*(_watched(module, run, x) for x in (rows, other)), strict=False)
                return next((a.path for a, b in pairs if apart.differ(a, b)), "")
    return None


class _ModuleOutput(NamedTuple):
    """What a module returned, with its path."""

    path: str
    tensor: Tensor


def _seeded(run: Run, rows: Tensor) -> _ModuleOutput:
    """The output of a pass that begins with the same random numbers as every other."""
    torch.default_generator.manual_seed(0)
    return _ModuleOutput("", run(rows))


def _watched(module: nn.Module, run: Run, rows: Tensor) -> list[_ModuleOutput]:
    """The outputs of all modules in a pass, and last that of the pass."""
    thread, seen = threading.get_ident(), list[_ModuleOutput]()

    def keep(path: str, output: Any) -> None:
        if isinstance(output, tuple | list) and output:
            output = output[0]  # as multi-head attention returns
        if threading.get_ident() == thread and is_real(output):
            seen.append(_ModuleOutput(path, output.clone()))

    with ExitStack() as hooks:
        for path, part in list(module.named_modules())[1:]:
            handle = part.register_forward_hook(lambda m, args, out, path=path: keep(path, out))
            hooks.callback(handle.remove)
        seen.append(_seeded(run, rows))
    return seen


class _GraphEntries:
    """The entries of some graphs in tensors that have an axis of nodes or of graphs."""

    def __init__(self, batch: WrappedBatch, graphs: Tensor) -> None:
        nodes = torch.isin(batch.layout.graph, graphs)
        self.by_length = {len(batch): graphs, len(nodes): nodes.nonzero()[:, 0]}

    def differ(self, first: _ModuleOutput, second: _ModuleOutput) -> bool:
        """Whether entries of these graphs differ by more than rounding."""
        a, b = first.tensor, second.tensor
        axis = next((k for k, n in enumerate(a.shape[:2]) if n in self.by_length), None)
        if axis is None or a.shape != b.shape or not a.numel():
            return False
        chosen, eps = self.by_length[a.shape[axis]], SAME * torch.finfo(a.dtype).eps
        one, two = (t.index_select(axis, chosen).float() for t in (a, b))
        size = float(one.nan_to_num(0.0, 0.0, 0.0).abs().max())
        return not torch.allclose(one, two, rtol=eps, atol=eps * max(size, 1e-6), equal_nan=True)


# -- padding ---------------------------------------------------------------------------------------


class PaddingCheck:
    """Whether a model counts padding, as small passes showed; kept by copies.

    The more padding, the more an output changes. So the question is asked anew where a batch has
    far more of it than any before.
    """

    def __init__(self) -> None:
        self._asked = 0.0  # how many times larger the second graph of the question was
        self._counts = False

    def __deepcopy__(self, _: Any) -> "PaddingCheck":
        return self

    def counts(self, model: Wrapped, batch: Any) -> bool:
        """Whether the graphs of this batch need a pass each."""
        if self._counts or batch.graphs is None or not bool(batch.num_nodes.all()):
            return self._counts
        least, most = (int(number) for number in batch.num_nodes.aminmax())
        if self._asked and most <= 2 * self._asked * least:
            return False
        before, self._asked = self._asked, math.inf  # the question itself does not ask
        graphs = sorted(batch.examples(), key=lambda graph: int(graph.num_nodes))
        asked, self._counts = _apart(_answer, model, graphs[0], graphs[-1]) or (0.0, False)
        self._asked = max(before, asked)
        return self._counts


def _answer(model: Wrapped, smallest: Any, largest: Any) -> tuple[float, bool]:
    """How many times larger the second graph was, and whether it changed what the first one gets.

    0 and no, if the model ran for none: the batch itself will show what is wrong.
    """
    for first, second in _of_two_sizes(model, smallest, largest):
        found = _apart(_changes_beside, model, first, second, True)
        if found is None:
            found = _apart(_changes_beside, model, first, second, False)
        if found is not None:
            return int(second.num_nodes) / int(first.num_nodes), found
    return 0.0, False


def _of_two_sizes(model: Wrapped, first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of graphs to try, the first far smaller; made from graphs that may be of one size."""
    size = int(second.num_nodes)
    if 2 * int(first.num_nodes) <= size:
        yield first, second
        return
    if size == 1:
        yield first, model.repeated(second, 2)
        return
    nodes = torch.arange(size, device=second.x.device)
    for kept in (-(-size // 4), size - 1):
        yield model.induced(second, nodes < kept), second


def _changes_beside(model: Wrapped, graph: Any, larger: Any, in_double: bool) -> bool:
    """Whether a graph's output changes beside a larger one; not if it is random anyway.

    Raises ValueError if it is not finite.
    in_double: in double precision, so that rounding does not hide a small change; in single
    precision other features are tried as well.
    """
    if in_double:
        model = copied(model)
        model.module.double()
    state = torch.get_rng_state()
    changed = False
    with restoring_attributes(model.module), model.evaluating(), torch.no_grad():
        for one in [graph] if in_double else _with_other_features(graph):
            beside, alone = (model(model.collate(g))[:1] for g in ([one, larger], [one]))
            if bool(alone.isfinite().all()):
                changed = changed or not _nearly_equal(beside, alone)
            elif one is graph:
                raise ValueError("no finite output")
    return changed and torch.equal(state, torch.get_rng_state())


def _with_other_features(graph: Any) -> Iterator[Any]:
    """A graph, also with other features: for single ones a change may happen to be small."""
    yield graph
    for change in (torch.neg, lambda x: x.roll(1, -1), lambda x: 2 * x.flip(0)):
        if isinstance(graph.x, Tensor) and graph.x.is_floating_point():
            other = copy(graph)
            other.x = change(graph.x)
            yield other


def _nearly_equal(beside: Tensor, alone: Tensor) -> bool:
    """Whether outputs are equal but for rounding, or not finite."""
    share = min(max(FAR * torch.finfo(alone.dtype).eps, NEAREST), FARTHEST)
    far = share * alone.abs().max()
    return not bool(((beside - alone).abs().max() > far).item())
