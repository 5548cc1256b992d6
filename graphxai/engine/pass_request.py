"""A pass of a module that is to be explained."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from graphxai.rules.module_rule import ModuleRule

from .eval_replica import uncompiled
from .layout import NodeLayout
from .module_rules import computing_by_rules
from .pass_memory import PassMemory
from .recording import recording
from .trace import Trace

NODES = 1  # the bit of the nodes' rows; those of the graph's other attributes follow
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
        has_module_rules: whether rules compute some of the modules.
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
    has_module_rules: bool = False
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

    def reading_leaves(self) -> "PassRequest | None":
        """Return the request of a pass that reads the leaves, or None if they are not real.

        Integers, such as types of bonds, have leaves that the model does not read.
        """
        if not self.leaves:
            return self
        if self.call_with_leaves is None or not all(
            self.others[name].is_floating_point() for name in self.leaves
        ):
            return None
        others = {**self.others, **self.leaves}
        return replace(self, call=self.call_with_leaves, others=others)

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
    """Record one pass. The nodes have the bit `NODES`, and each other input has its own bit."""

    def run(leaf: Tensor, graded: bool) -> Trace:
        inputs = [leaf, *request.others.values()]
        with uncompiled(request.module), recording(request.module, inputs, graded) as end:
            return end(request.call(leaf))

    try:
        return run(request.rows.detach().requires_grad_(), graded=True)
    except RuntimeError as error:
        if not _RUNS_WITHOUT_GRADIENTS.search(str(error)):
            raise
    return run(request.rows.detach(), graded=False)


def with_module_rules(
    request: PassRequest, rules: Sequence[ModuleRule]
) -> tuple[PassRequest, set[ModuleRule]]:
    """Return a request whose passes follow these rules, and the set of the rules that acted."""
    acted = set[ModuleRule]()
    if not rules:
        return request, acted

    def call(rows: Tensor) -> Tensor:
        with computing_by_rules(request.module, rules) as acted_now:
            outputs = request.call(rows)
        acted.update(acted_now)
        return outputs

    def part() -> PassRequest | None:
        some = request.part()
        return None if some is None else with_module_rules(some, rules)[0]

    key = request.key and (*request.key, *rules)
    changed = replace(
        request,
        call=call,
        call_with_leaves=None,
        key=key,
        part=part,
        has_module_rules=True,
        beside_empty=lambda: None,  # rules may change the output
    )
    return changed, acted
