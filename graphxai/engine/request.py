"""A pass of a module that is to be explained, and what earlier passes of the model have shown."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from graphxai.contract.batch import NodeLayout
from graphxai.engine.operations import EMBEDS
from graphxai.engine.recording import recording
from graphxai.engine.replay import own_gradient, refuse_lost_gradients
from graphxai.engine.trace import Opaque, Trace
from graphxai.rules.conservative import Rules
from graphxai.runtime.modules import uncompiled
from graphxai.runtime.notices import warn
from graphxai.runtime.scope import Blocks

Tier: TypeAlias = Literal["hooks", "recording"]
TRIES = 3  # passes that may fail under the same rules before all are recorded
NAMED = 3  # modules that a reason names at most
REMEDIES = {  # by a part of a reason, what to write instead
    "a look-up of codes": "let the model read the codes from an attribute of the graph",
    "a constant that is computed": "compute the constant once and keep it as a parameter, or"
    " give the graph what it is computed from as floating-point numbers",
    "do not sum to the output": "keep numbers that are added as parameters with requires_grad=True"
    " or attributes of the graph, detach nothing, and let no function act in place on a view",
    "the number with which a signal is padded": "join the signal with a parameter instead",
    "product with a constant": "multiply by numbers or parameters",
    "constant": "keep it as a parameter or an attribute of the graph",
    "random numbers": "call model.eval(), and pass training=self.training to F.dropout",
    "a maximum along an axis": "use amax, or global_max_pool of PyG",
    "a threshold": "use a softmax, for which there is a rule",
    "an attribute of the graph that requires": "give the graph tensors without a gradient",
    "under two names": "give each attribute a tensor of its own",
    "whose rows are of no graph": "explain one graph at a time",
    "an output": "return what is computed from the nodes, with its gradient",
    "other inputs that change": "detach the other inputs where they meet the nodes",
    "for which there is no rule": "give it an OperationRule, or take a method without such rules",
    "that computes something else": "let the rule return what the operation returns",
    "that differs from that of a recorded": "let all parameters have requires_grad=True, or the"
    " model compute in double precision",
    "twice, of the same signal": "compute it once",
    "log-probabilities": "return them last, or the logits",
    "chosen by floats": "give the graph what chooses as an attribute of integers",
    "TorchScript": "call the function as it was written, without torch.jit",
    "": "write it with other operations of PyTorch, such as sums and products",
}

_hooks_allowed: Blocks[bool] = Blocks("graphxai_hooks", True)


def recorded_only() -> AbstractContextManager[bool]:
    """Record all passes within the block, as for methods that the first tier does not serve."""
    return _hooks_allowed.block(False)


class PassMemory:
    """What passes of one wrapped model, and of its copies in this process, have shown.

    Args:
        tier: the tier of the last pass under conservative rules, or None before it.
        plans: the hooked plans of earlier passes, by the structure of the pass and the rules.
        beside_empty: whether passes may run beside a graph without nodes, as none has failed so.
    """

    def __init__(self) -> None:
        self.tier: Tier | None = None
        self._unchanged: set[bool] = set()
        self.plans: dict[object, Any] = {}
        self._failures: dict[Rules, list[Opaque]] = {}
        self._warned = False
        self.beside_empty = True
        self.keeps = False  # whether passes need a `ValueKeeper`
        self.views_attention = False  # whether the layout of attention matters to views of it
        self.proved: set[object] = set()  # operations in modules, with autograd's own gradients

    def __deepcopy__(self, _: Any) -> "PassMemory":
        return self

    def __reduce__(self) -> tuple[type["PassMemory"], tuple[()]]:
        return PassMemory, ()

    @property
    def why_recorded(self) -> str | None:
        """The reason why a pass had to be recorded, under the rules for which one last had to."""
        return str(list(self._failures.values())[-1][-1]) if self._failures else None

    def note_pass(self, tier: Tier, unchanged: bool = False) -> None:
        """Remember the tier of a pass, and whether it was one of the model as it is."""
        self.tier = tier
        self._unchanged.add(unchanged)

    def noted_passes(self) -> set[bool]:
        """Return for the passes since this was last asked if they were of the model as it is."""
        unchanged, self._unchanged = self._unchanged, set()
        return unchanged

    def allows_hooks(self, rules: Rules) -> bool:
        """Whether a pass by hooks under these rules is worth a try."""
        return _hooks_allowed.get() and len(self._failures.get(rules, ())) < TRIES

    def note_failure(self, rules: Rules, why: Opaque, for_good: bool = False) -> None:
        """Remember why a pass under these rules was recorded. After `TRIES` failures, all are."""
        failures = [why] * (TRIES if for_good else 1)
        self._failures[rules] = [*self._failures.pop(rules, ()), *failures]

    def explain_failure(self, name: str, rules: Rules, trace: Trace, unseen: Iterable[str]) -> None:
        """Name the modules and the remedy of the last failure, and warn of the first one.

        Args:
            name: that of the model.
            trace: the recorded list of the pass.
            unseen: the constants that autograd does not know, as text.
        """
        failures = self._failures.get(rules)
        if not failures:
            return
        why = failures[-1]
        if not why.complete:
            places = sorted(set(unseen)) if why.lacks_constants else []
            form = "{} ({}); {}"
            if not places:
                ops = [op for op in trace.ops if _plain(op.name) == _plain(why.operation or "")]
                if "a constant that is computed" in str(why):
                    ops = [op for op in ops if not trace.flow.live[op.out]]
                places, form = sorted({op.path or name for op in ops}) or [name], "{} in {}; {}"
            shown = [*places[:NAMED], "..."] if len(places) > NAMED else places
            remedy = next(text for part, text in REMEDIES.items() if part in str(why))
            reason = form.format(why, ", ".join(shown), remedy)
            self._failures[rules] = [*failures[:-1], Opaque(reason, complete=True)]
        if not self._warned and _hooks_allowed.get():
            self._warned = True
            self.warn_of_recording(name, str(self._failures[rules][-1]))

    def warn_of_recording(self, name: str, reason: str) -> None:
        """Warn that passes of a model are recorded, which costs time but changes no result."""
        warn(
            f"{name} is explained by recorded passes, which give the same results but take several"
            f" times as long as hooks on PyTorch's autograd graph: {reason}.",
            stacklevel=10,
        )


def _plain(operation: str) -> str:
    """Return the name of an operation, or of its node in autograd's graph, in the same spelling."""
    return re.sub(r"Backward\d*$", "", operation).replace("_", "").lower()


STRUCTURE = {"edge_index", "batch", "ptr"}  # indices, which choose among parameters
# errors of models that were written for inference
_RUNS_WITHOUT_GRADIENTS = re.compile("automatic differentiation|leaf Variable|requires grad")


@dataclass(frozen=True, eq=False)
class PassRequest:
    """A pass of a module that is to be explained.

    Args:
        call: runs the module on node rows (n, D) or (B, S, D).
        rows: the rows of the nodes.
        others: the graph's other attributes by name.
        graphs_of: returns the graph of each row of one of these, or None if its rows do not
            belong to graphs.
        leaves: the attributes to which gradients lead, too.
        call_with_leaves: runs the module on node rows and these leaves.
        key: everything that `call` reads besides the rows, so that a pass with the same key and
            rows need not run again; empty if that is unknown.
        memory: what earlier passes of the wrapped model have shown.
        under_rules: the paths of the modules that compute by rules.
        part: returns the same pass for a few of many graphs, or None if there are only a few.
        beside_empty: returns the same pass beside a graph without nodes, or None if nobody asks for
            its output, or the model does not stand it.
    """

    module: nn.Module
    call: Callable[[Tensor], Tensor]
    rows: Tensor
    layout: NodeLayout
    others: Mapping[str, Tensor] = field(default_factory=dict)
    graphs_of: Callable[[str], Tensor | None] = lambda name: None
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    call_with_leaves: Callable[[Tensor], Tensor] | None = None
    key: tuple[Any, ...] = ()
    memory: PassMemory = field(default_factory=PassMemory)
    under_rules: frozenset[str] = frozenset()
    part: Callable[[], "PassRequest | None"] = lambda: None
    beside_empty: Callable[[], "PassBesideEmpty | None"] = lambda: None

    @property
    def name(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__

    @property
    def names(self) -> dict[int, str]:
        """The names of the inputs besides the nodes, by the bit that each has in a trace."""
        return {1 << k: name for k, name in enumerate(self.others, start=1)}

    @property
    def codes(self) -> dict[str, Tensor]:
        """The graph's other attributes of integers, which may choose among parameters."""
        others = self.others.items()
        return {n: t for n, t in others if n not in STRUCTURE and not t.is_floating_point()}

    def for_hooks(self, rules: Rules) -> "PassRequest | None":
        """Return the request of a pass by hooks, which reads the leaves.

        Returns None if hooks are not worth a try, or leaves are not real: integers, such as types
        of bonds, have leaves that the model does not read.
        """
        if not self.memory.allows_hooks(rules):
            return None
        if not self.leaves:
            return self
        real = all(self.others[name].is_floating_point() for name in self.leaves)
        if self.call_with_leaves is None or not real:
            return None
        others = {**self.others, **self.leaves}
        return replace(self, call=self.call_with_leaves, others=others)

    def attribute_of(self, codes: Tensor) -> str | None:
        """Return the attribute that has these codes, or None if they are of the structure.

        Raises Opaque if no attribute has them as its entries or a column, or several have.
        """
        names = []
        for name, tensor in self.others.items():
            columns = tensor.flatten(1).unbind(1) if tensor.dim() > 1 else ()
            if len(tensor) == len(codes) and not tensor.is_floating_point():
                alike = (torch.equal(x.flatten(), codes.flatten()) for x in (tensor, *columns))
                names += [name] if any(alike) else []
        if len(names) != 1:
            raise Opaque("a look-up of codes that the model computes", next(iter(EMBEDS)))
        return None if names[0] in STRUCTURE else names[0]

    def relevance_of_tokens(self, gradient: Tensor) -> Tensor:
        """Return the relevance (B, T) of the rows, given the gradient of the outputs by them."""
        by_row = (self.rows.detach() * gradient).sum(-1)  # (n,) or (B, S)
        if by_row.dim() == 2:
            return by_row
        relevance = by_row.new_zeros(len(self.layout.mask))
        return relevance.index_add(0, self.layout.graph, by_row)[:, None]


class PassBesideEmpty(NamedTuple):
    """A pass beside a graph without nodes.

    Args:
        request: describes the pass.
        is_right: returns, after the pass, whether it gave the other graphs the outputs that they
            have by themselves. If so, the output of the graph without nodes has been noted.
    """

    request: PassRequest
    is_right: Callable[[], bool]


def record_pass(request: PassRequest) -> Trace:
    """Record one pass. The nodes have the bit `NODES`, and each other input has its own bit.

    Raises ValueError if its gradients are not the model's own.
    """

    def run(leaf: Tensor, graded: bool) -> Trace:
        inputs = [leaf, *request.others.values()]
        with recording(request.module, inputs, graded) as end:
            return end(request.call(leaf))

    proved, own = request.memory.proved, partial(own_gradient, request.call)
    with uncompiled(request.module):
        # what hooks of a user see last is the recorded pass
        first = None if proved else own(request.rows)
        try:
            trace = run(request.rows.detach().requires_grad_(), graded=True)
        except RuntimeError as error:
            if not _RUNS_WITHOUT_GRADIENTS.search(str(error)):
                raise
            return run(request.rows.detach(), graded=False)
        refuse_lost_gradients(trace, own, proved, first)
        return trace
