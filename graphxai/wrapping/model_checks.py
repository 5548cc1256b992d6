"""Check a wrapped model by a few passes, for properties that the methods cannot see themselves.

* Mixing: one of two graphs in a batch gets other rows. If the output of the other graph changes,
  the model mixes graphs, for example by attention without the batch vector or by a norm over the
  batch. Then every method runs the graphs one at a time. This is also done for a model without a
  batch vector, unless it reads its answer at nodes and does not mix graphs.
* Graphs without nodes: a model may return something else for a graph beside one (`describing`).
* Cuts: one recorded pass shows where values of the nodes are used without their gradient.

`one_at_a_time` looks for models that count padding.
"""

import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from contextvars import Context
from copy import copy
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from graphxai.engine.hooked_pass import AFFINE
from graphxai.engine.ledger import modules_with_cuts
from graphxai.engine.plan import make_plan
from graphxai.engine.request import PassRequest, record_pass
from graphxai.engine.role_finder import find_roles
from graphxai.engine.trace import NODES
from graphxai.rules.module_rule import CustomRule
from graphxai.rules.operation_rule import OperationRule
from graphxai.runtime.modules import form_of, uncompiled
from graphxai.runtime.notices import warn

from .attribute_roles import has_matrices
from .batches import Wrapped, WrappedBatch, as_rows, is_real
from .calling import takes_batch_vector
from .chosen import LINKS, PAIR, chosen_nodes, named_nodes
from .lookups import IN_PARTS

# Why the graphs of a list take a pass each, and what to do.
AS_ASKED = "takes one graph at a time, as wrap was told"
HAS_MATRICES = "gets graphs with dense matrices of pairs of nodes, which PyG cannot batch"
NO_BATCH_VECTOR = "has a forward without a batch vector"
FAILS_TOGETHER = "raises an error for several graphs together"
COUNTS_PADDING = "counts padding, as PyG's linear attention does"
ATTENTION_IN_PARTS = "computes attention in one graph after another"
OF_MIXING = (
    "What it returns for one graph depends on the others. To run them together, let that module"
    " keep the graphs apart (give it the batch vector, or a mask)."
)
ADVICE = {
    AS_ASKED: "",
    HAS_MATRICES: "There is no way to run them together.",
    NO_BATCH_VECTOR: "To run them together, let forward take `batch`, or give wrap a forward=.",
    IN_PARTS: "To run them together, look all codes up in one call, as in h = embedding(x).",
    FAILS_TOGETHER: "To run them together, let forward tell them apart by `batch`.",
    COUNTS_PADDING: "To run them together, mask the padding.",
    ATTENTION_IN_PARTS: "Methods that do not read attention run them together.",
}
Run = Callable[[Tensor], Tensor]
Answer = TypeVar("Answer")
# Smaller differences count as rounding. The first limit is for values in a pass, the others are for
# outputs. Limits are relative to the largest value or output, in machine epsilons where it says so.
ROUNDING = 10  # in machine epsilons
OUTPUT_ROUNDING = 500  # in machine epsilons
MOST_ROUNDING = 0.05  # the upper limit for outputs, as half precision may need
LEAST_ROUNDING = 1e-9  # the lower limit, as outputs near zero are differences of larger numbers


def advice_on(why: str) -> str:
    """Say what to do about a reason for which graphs take a pass each."""
    return ADVICE.get(why, OF_MIXING)


class ModelChecks:
    """What passes have shown about a model and its copies, as long as its parts are the same.

    Args:
        has_looked_for_mixing: whether a batch has shown if the model mixes graphs.
        mixing: the path of the module in which the model mixes the graphs of a batch, "" if the
            module is unclear, or None if the model keeps graphs apart.
        reads_class_token: whether the model reads its output at a token that it adds to the nodes.
    """

    def __init__(self, module: nn.Module) -> None:
        self.mixing: str | None = None
        self.reads_class_token = False
        self.ways_back: dict[tuple[str, ...], bool] = {}  # whether those in Python change gradients
        self._form = form_of(module)
        self.has_looked_for_mixing = False
        self._answers: dict[Any, bool] = {}  # of checks that passed, or run now
        self.fails_together = False  # whether two graphs raise an error that neither raises alone
        self._ends: _Ends | None = None
        self._stays_beside_empty: bool | None = None
        self._cuts: set[str] | None = None
        self._idle: set[str] = set()  # why rules did not act, as far as it was said
        self._warned: set[str] = set()  # why graphs take a pass each, as far as it was said

    def __deepcopy__(self, _: Any) -> "ModelChecks":
        return self

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_ends": None}  # another process has other batches

    def is_of(self, module: nn.Module) -> bool:
        """Return whether the module still consists of the same parts."""
        return self._form == form_of(module)

    def look_for_mixing(self, model: Any, batch: WrappedBatch) -> None:
        """Find out whether the model mixes graphs, at the first batch of several graphs."""
        if not self.has_looked_for_mixing:
            self.has_looked_for_mixing = True  # this holds in the passes of the check
            self._ends = without_traces(_look_at_ends, model, batch)
            self.mixing = None if self._ends is None else self._ends.mixed_in
            if self._ends is None:
                fails = without_traces(_fails_together, model, batch)
                self.fails_together = bool(fails)
                # a single graph may be too few nodes of one, and graphs that fail alone a mistake
                self.has_looked_for_mixing = fails is not None and len(batch) > 1

    def why_alone(self, model: Any, data: Any) -> str:
        """Say of a model why an input cannot share a batch with others; "" if it can."""
        if self.mixing is not None:
            where = self.mixing or type(model.module).__name__
            return f"mixes the graphs of a batch in {where}"
        if model.settings.dense:
            return ""
        if model.settings.one_at_a_time:
            return AS_ASKED
        if has_matrices(data):
            return HAS_MATRICES
        if model.settings.forward is not None or takes_batch_vector(model.module):
            return ""
        return "" if model.checks.reads_nodes_apart(model, data) else NO_BATCH_VECTOR

    def why_single_passes(self, model: Any, batch: WrappedBatch) -> str:
        """Say of a model why inputs like those of a batch take a pass each; "" if they share."""
        if why := self.why_alone(model, batch.data_of(0)):
            return why
        self.look_for_mixing(model, batch)
        if self.mixing is not None:
            return self.why_alone(model, batch.data_of(0))
        if model.lookups.in_parts:
            return IN_PARTS
        if self.fails_together:
            return FAILS_TOGETHER
        return COUNTS_PADDING if model.padding.counts(model, batch) else ""

    def warn_of_single_passes(
        self, name: str, why: str, graphs: int, together: int, passes: int
    ) -> None:
        """Warn, once for each reason, what it costs that graphs take so many passes."""
        if passes <= together or why in ("", AS_ASKED, *self._warned):
            return
        self._warned.add(why)
        cost = f"{passes} passes instead of {'one' if together == 1 else together}"
        warn(f"{name} {why}, so {graphs} graphs take {cost}. {advice_on(why)}", stacklevel=5)

    def warn_of_idle_rules(self, name: str, idle: set[CustomRule]) -> None:
        """Warn, once, of rules from outside that do not act in a pass."""
        reasons = {
            f"no {rule.operation} of one signal passes relevance"
            if isinstance(rule, OperationRule)
            else f"no {rule.module_class.__name__} is called"
            for rule in idle
        }
        new, self._idle = reasons - self._idle, self._idle | reasons
        if new:
            warn(
                f"rules of wrap(..., rules=...) did not act: {', '.join(sorted(new))} in {name}.",
                stacklevel=5,
            )

    def reads_nodes_apart(self, model: Any, graph: Any) -> bool:
        """Return whether a model without a batch vector reads its answer at separate nodes.

        If it does, graphs in a batch are like the disconnected parts of a larger graph.
        """
        if not chosen_nodes(graph) and not named_nodes(graph, model.attributes_read()):
            return False
        return self._answer(_keeps_apart, model, graph, PAIR in graph)

    def ignores_pair(self, model: Any, graph: Any) -> bool:
        """Return whether the output stays the same without the pair that the graph names."""
        return self._answer(_same_without_pair, model, graph)

    def _answer(self, check: Callable[..., bool], model: Any, graph: Any, kind: Any = None) -> bool:
        """Run a check once for each kind of graph. In its own passes the answer is no.

        If the model cannot run on the graph by itself, the answer is no until one can.
        """
        if (check, kind) not in self._answers:
            self._answers[check, kind] = False
            answer = without_traces(check, model, graph)
            if answer is None and without_traces(model, model.collate([graph])) is None:
                del self._answers[check, kind]
                return False
            self._answers[check, kind] = bool(answer)
        return self._answers[check, kind]

    @property
    def changes_beside_empty(self) -> bool:
        """Whether a pass has shown that outputs change beside a graph without nodes."""
        return self._stays_beside_empty is False

    def stays_beside_empty(self, model: Any, batch: WrappedBatch, outputs: Tensor) -> bool:
        """Return whether a batch has the same outputs beside a graph without nodes as by itself.

        The first batch shows it. Its `outputs` (1 + B, C) begin with that of the graph without
        nodes.
        """
        if self._stays_beside_empty is None:
            if self._ends is None or self._ends.batch() is not batch:
                self._ends = without_traces(_look_at_ends, model, batch)
            alone = None if self._ends is None else self._ends.outputs
            self._stays_beside_empty = (
                alone is not None
                and self._ends is not None
                and self._ends.mixed_in is None
                and bool(outputs.isfinite().all())
                and nearly_equal(outputs[1:][[0, -1]], alone)
            )
        return self._stays_beside_empty

    def cuts(self, model: Any, batch: WrappedBatch) -> set[str]:
        """Return the modules that use values of the nodes without their gradient."""
        if self._cuts is None:
            self._cuts = without_traces(_cuts_in, model, batch) or set()
        return self._cuts


def without_traces(look: Callable[..., Answer], *args: Any) -> Answer | None:
    """Call a function, and leave no trace of its passes in rules, recordings or random numbers.

    Its warnings are ignored. If it fails, return None, because a model may raise any error when its
    rows have changed.
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
    """Record a pass and return the modules that use values of the nodes without their gradient."""
    single = batch.of_rows(len(batch) - 1)
    with model.evaluating():
        rows = as_rows(model.embed(single), single)
        run = model.rows_to_outputs(single, single.mask)
        trace = record_pass(PassRequest(model.running, run, rows, single.layout))
    return modules_with_cuts(make_plan(trace, find_roles(trace), AFFINE, NODES))


class _Ends(NamedTuple):
    """What a pass of the first and the last graph of a batch has shown.

    Args:
        batch: the batch, if it still exists.
        outputs: those of the two graphs (2, C), or None if they are random.
        mixed_in: the path of the first module where one graph's entries change with another's
            rows, "" if only the outputs show it, or None if there is no such change.
    """

    batch: Callable[[], WrappedBatch | None]
    outputs: Tensor | None
    mixed_in: str | None


def _look_at_ends(model: Wrapped, batch: WrappedBatch) -> _Ends:
    """Run the first and the last graph of a batch, and look for mixing.

    A model that draws random numbers is not examined.
    """
    ends = weakref.ref(batch)
    two = batch.of_rows(0, len(batch) - 1)
    with model.evaluating(), uncompiled(model.running), torch.no_grad():
        module, run = model.running, model.rows_to_outputs(two, two.mask)
        rows = as_rows(model.embed(two), two)
        graph = two.layout.graph if rows.dim() == 2 else torch.arange(len(two)).to(rows.device)
        whole = _seeded(run, rows)
        for moved in (graph > 0, graph == 0):
            other = rows.clone()
            for values in (rows[moved][:1], rows[~moved][:1], rows[moved].roll(1, -1) / 2):
                if torch.equal(other, rows):  # rows of a graph come first, as the model knows them
                    other[moved] = values
            unmoved = _GraphEntries(two, graph[~moved].unique())
            if unmoved.differ(whole, _seeded(run, other)):
                if unmoved.differ(whole, _seeded(run, rows)):
                    return _Ends(ends, None, None)  # the model draws random numbers
                outputs = (_outputs_of_modules(module, run, x) for x in (rows, other))
                pairs = zip(*outputs, strict=False)
                path = next((a.path for a, b in pairs if unmoved.differ(a, b)), "")
                return _Ends(ends, whole.tensor, path)
    return _Ends(ends, whole.tensor, None)


def _outputs(model: Wrapped, batch: WrappedBatch) -> Tensor:
    """Run a plain pass of a batch, which nothing takes apart."""
    outputs: Tensor = model.rows_to_outputs(batch, batch.mask)(as_rows(model.embed(batch), batch))
    return outputs


def _fails_together(model: Wrapped, batch: WrappedBatch) -> bool:
    """Return whether two graphs cannot run together, although each can run alone."""
    ends = (0, len(batch) - 1)
    with model.evaluating(), torch.no_grad():
        for part in map(batch.of_rows, ends):
            _outputs(model, part)
        try:
            _outputs(model, batch.of_rows(*ends))
        except Exception:  # a model may raise anything that its code asserts or reshapes
            return True
    return False


def _keeps_apart(model: Wrapped, graph: Any) -> bool:
    """Return whether a graph's output is the same alone, beside a copy and beside another."""
    single, two = (model.collate([graph] * count).to(model.device) for count in (1, 2))
    with model.evaluating(), torch.no_grad():
        alone, beside = (_outputs(model, batch) for batch in (single, two))
    equal = nearly_equal(beside, alone.expand(2, -1))
    return equal and _look_at_ends(model, two).mixed_in is None


def _same_without_pair(model: Wrapped, graph: Any) -> bool:
    """Return whether a model returns the same for a graph in which no pair is chosen."""
    without_pair = copy(graph)
    del without_pair[PAIR], without_pair[LINKS]
    with model.evaluating(), torch.no_grad():
        outputs = [model(model.collate([g]).to(model.device)) for g in (graph, without_pair)]
    return torch.equal(*outputs)


class _ModuleOutput(NamedTuple):
    """A tensor that a module returned, with the path of the module."""

    path: str
    tensor: Tensor


def _seeded(run: Run, rows: Tensor) -> _ModuleOutput:
    """Run a pass that begins with the same random numbers as every other pass."""
    torch.default_generator.manual_seed(0)
    return _ModuleOutput("", run(rows))


def _outputs_of_modules(module: nn.Module, run: Run, rows: Tensor) -> list[_ModuleOutput]:
    """Return the outputs of all modules in a pass, and then that of the pass itself."""
    thread, outputs = threading.get_ident(), list[_ModuleOutput]()

    def keep(path: str, output: Any) -> None:
        if isinstance(output, tuple | list) and output:
            output = output[0]  # multi-head attention also returns its weights
        if threading.get_ident() == thread and is_real(output):
            outputs.append(_ModuleOutput(path, output.clone()))

    with ExitStack() as hooks:
        for path, part in list(module.named_modules())[1:]:
            handle = part.register_forward_hook(lambda m, args, out, path=path: keep(path, out))
            hooks.callback(handle.remove)
        outputs.append(_seeded(run, rows))
    return outputs


class _GraphEntries:
    """The entries of some graphs in tensors that have an axis of nodes or of graphs."""

    def __init__(self, batch: WrappedBatch, graphs: Tensor) -> None:
        nodes = torch.isin(batch.layout.graph, graphs)
        self.by_length = {len(batch): graphs, len(nodes): nodes.nonzero()[:, 0]}

    def differ(self, first: _ModuleOutput, second: _ModuleOutput) -> bool:
        """Return whether entries of these graphs differ by more than rounding."""
        a, b = first.tensor, second.tensor
        axis = next((k for k, n in enumerate(a.shape[:2]) if n in self.by_length), None)
        if axis is None or a.shape != b.shape or not a.numel():
            return False
        chosen, eps = self.by_length[a.shape[axis]], ROUNDING * torch.finfo(a.dtype).eps
        x, y = (t.index_select(axis, chosen).float() for t in (a, b))
        size = float(x.nan_to_num(0.0, 0.0, 0.0).abs().max())
        return not torch.allclose(x, y, rtol=eps, atol=eps * max(size, 1e-6), equal_nan=True)


def nearly_equal(beside: Tensor, alone: Tensor) -> bool:
    """Return whether outputs are equal except for rounding, or not finite."""
    share = min(max(OUTPUT_ROUNDING * torch.finfo(alone.dtype).eps, LEAST_ROUNDING), MOST_ROUNDING)
    far = share * alone.abs().max()
    return not bool(((beside - alone).abs().max() > far).item())
