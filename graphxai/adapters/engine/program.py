"""Explain a pass while it runs, by a program made from an earlier pass with the same operations.

Roles and plans follow from the list of operations alone. So those of an earlier pass, its
*program*, serve for every batch. The model runs with its own backward pass wherever the rules ask
for the ordinary gradient, and only other operations run by their rule. Meanwhile everything is
checked that the program depends on: the operations, their tensors and settings, and the sizes that
were compared. Once something differs, the model runs on without rules, the pass is thrown away, and
another one is recorded.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.utils._python_dispatch import TorchDispatchMode

from graphxai.rules.conservative import Rules
from graphxai.runtime.randomness import current_draws

from ..eval_replica import all_modules, uncompiled
from ..layout import NodeLayout
from .constants import (
    ConstantAdditions,
    ConstantShares,
    GraphAxis,
    LedgerLines,
    find_additions,
    graph_axes,
    modules_by_line,
)
from .node_ids import NodeIds
from .replay import Replay, ReplayPlan, make_plan, nonlinearities, rule_for
from .roles import find_roles, numbers_among
from .trace import (
    WEIGHTS,
    Op,
    Ref,
    Trace,
    memory_of,
    operation_kind,
    refs_in,
    saved_tensor_hooks_active,
    tensors_kept_by,
    under_mode,
)

NODES = 1  # the bit of the nodes' rows; those of the graph's other attributes follow
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)
MOST_PER_REQUEST = 4  # programs under the same rules, for as many branches of a model's code
MOST_PER_MODEL = 32  # programs under all rules


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
        key: everything that `call` reads besides the rows, so that a pass with the same key and
            rows need not run again; empty if that is unknown.
    """

    module: nn.Module
    call: Callable[[Tensor], Tensor]
    rows: Tensor
    layout: NodeLayout
    others: Mapping[str, Tensor] = field(default_factory=dict)
    graphs_of: Callable[[str], Tensor | None] = lambda name: None
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    key: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__

    @property
    def names(self) -> dict[int, str]:
        """The names of the inputs besides the nodes, by the bit that each has in a trace."""
        return {1 << k: name for k, name in enumerate(self.others, start=1)}


@dataclass(frozen=True, eq=False)
class Program:
    """The plans of a recorded pass, and where it adds constants.

    Args:
        node_plan: what relevance of the nodes passes through.
        full_plan: what relevance of all inputs passes through.
        names: those of the inputs by bit.
        modules: the lines of the ledger that have constants, each with the modules that add
            them.
    """

    node_plan: ReplayPlan
    full_plan: ReplayPlan
    names: Mapping[int, str]
    modules: dict[str, set[str]] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The list of operations."""
        return self.node_plan.trace

    @property
    def slot(self) -> int:
        """The slot of the nodes' rows."""
        return self.trace.slot_of(NODES)

    @cached_property
    def lines(self) -> LedgerLines:
        """The lines of the ledger to which constants belong."""
        return LedgerLines(self.trace, self.names)

    @cached_property
    def has_nonlinearities(self) -> bool:
        """Whether a step keeps its ordinary gradient although a rule asks otherwise."""
        return any(True for _ in nonlinearities(self.full_plan))

    @cached_property
    def line_of_output(self) -> str | None:
        """The line that the whole output belongs to, if the output is no signal."""
        last = self.trace.output
        value = last.value if type(last) is Ref else -1
        return None if value < 0 or self.full_plan.signal[value] else self.lines.of(value)

    @cached_property
    def additions(self) -> ConstantAdditions | None:
        """Where constants are added, if their shares can be collected from the gradient."""
        if self.line_of_output or not self.plans_agree:
            return None
        return find_additions(self.full_plan, self.lines)

    @cached_property
    def plans_agree(self) -> bool:
        """Whether relevance of the nodes passes in the same way under both plans."""
        of_nodes, full = self.node_plan, self.full_plan
        return of_nodes is full or all(
            of_nodes.taken[op.number] == {v for v in full.taken[op.number] if of_nodes.signal[v]}
            for op in of_nodes.passing
        )

    @cached_property
    def shared_storages(self) -> set[int]:
        """The storages that several tensors of the pass share."""
        storages = enumerate(self.trace.memory.storage)
        return {storage for slot, storage in storages if storage != slot}


def make_program(trace: Trace, rules: Rules, names: Mapping[int, str], biases: bool) -> Program:
    """Make the program of a recorded pass.

    Args:
        biases: whether the shares of constants are wanted.
    """
    roles = find_roles(trace)
    node_plan = make_plan(trace, roles, rules, NODES)
    if not biases:
        return Program(node_plan, node_plan, names)
    all_live = 0
    for live in trace.flow.live:
        all_live |= live
    other_inputs = all_live & ~(NODES | WEIGHTS)
    full_plan = make_plan(trace, roles, rules) if other_inputs else node_plan
    program = Program(node_plan, full_plan, names)
    program.modules.update(modules_by_line(full_plan, program.lines))
    read = {ref.value for op in full_plan.ops for ref in op.reads}
    for bit, name in names.items():
        if any(trace.flow.live[value] & bit for value in read):
            program.modules.setdefault(name, set())
    return program


# -- storing programs -----------------------------------------------------------------------------


class _ProgramStep(NamedTuple):
    """One operation of a program, and what is checked and done when the model calls it.

    Args:
        tensors: the place and slot of each tensor among the arguments.
        others: the place and value of each other argument.
        passes: whether relevance passes through it.
        by_rule: whether its ordinary gradient alone does not do.
        reads: the slots that it reads.
        plain: whether no tensor is passed by name.
        adds_constants: whether it adds constants.
        compares_numbers: whether the numbers among its arguments are compared.
        last_used: the slots that no later operation needs.
    """

    func: Any
    op: Op
    tensors: tuple[tuple[int, int], ...]
    others: tuple[tuple[int, Any], ...]
    passes: bool
    by_rule: bool
    reads: tuple[int, ...]
    plain: bool
    adds_constants: bool
    compares_numbers: bool
    last_used: tuple[int, ...]


_END = _ProgramStep(None, None, (), (), False, False, (), False, False, False, ())  # type: ignore[arg-type]
_NO_SETTINGS: dict[str, Any] = {}


@dataclass(eq=False)
class _StoredProgram:
    """A program without the tensors of its pass, and what is checked when it is followed.

    Args:
        key: the rules and recordings that it was made for.
        size: the number of rows in the last pass.
        single: whether it serves only batches of one graph.
        required_grad: for each slot whether the tensor required a gradient.
        numbers: the numbers among the arguments of operations, where they are compared.
        axes: for each operation that adds constants, where the graph of its rows can be read.
    """

    key: Hashable
    size: int
    single: bool
    program: Program
    required_grad: list[bool]
    numbers: dict[int, str]
    steps: tuple[_ProgramStep, ...]
    axes: dict[int, GraphAxis | None]

    @property
    def calls(self) -> list[Any]:
        """The functions that the model called."""
        return [op.called for op in self.program.trace.ops]


_programs: "weakref.WeakKeyDictionary[nn.Module, list[_StoredProgram]]" = (
    weakref.WeakKeyDictionary()
)
_given_up: "weakref.WeakKeyDictionary[nn.Module, set[Hashable]]" = weakref.WeakKeyDictionary()


def store_program(
    request: PassRequest, key: Hashable, program: Program, node_ids: Callable[[], NodeIds]
) -> None:
    """Store a program for later passes, if it can be checked in them.

    Args:
        key: the rules and recordings that the program was made for.
        node_ids: returns the ids of the nodes in its pass.
    """
    trace, module, additions = program.trace, request.module, program.additions
    if not program.plans_agree or (program.modules and additions is None):
        return
    if not _can_be_checked(program):
        return
    # if parts need not add up, nothing would show that rows belong to other graphs than before
    single = additions is not None and not additions.affine
    if (single and len(request.layout.mask) > 1) or key in _given_up.get(module, ()):
        return
    axes: dict[int, GraphAxis | None] | None = {}
    if program.modules and additions is not None:
        axes = graph_axes(additions, None if single else node_ids(), request.layout)
    if axes is None:
        return
    required_grad = [tensor.requires_grad for tensor in trace.memory.tensors]
    alike = (trace.ops[number] for group in program.node_plan.roles.alike for number in group)
    numbers = {op.number: numbers_among(op, op.args, op.kwargs) for op in alike}
    indices = {axis.by for axis in axes.values() if axis is not None and isinstance(axis.by, int)}
    last_uses = _last_uses(trace, indices)
    passing = {op.number for op in program.full_plan.passing}
    steps = [_step(program, op, axes, numbers, last_uses, passing) for op in trace.ops]
    size = trace.memory.tensors[program.slot].shape[:-1].numel()
    stored = _StoredProgram(
        key, size, single, _without_tensors(program), required_grad, numbers, (*steps, _END), axes
    )
    programs = _programs.get(module, [])
    same_rules = [p for p in programs if p.key == key and p.calls != stored.calls]
    others = [p for p in programs if p.key != key]
    _programs[module] = [stored, *same_rules[: MOST_PER_REQUEST - 1], *others][:MOST_PER_MODEL]


def give_up_programs(module: nn.Module, key: Hashable) -> None:
    """Store no more programs for these rules, because shares cannot be collected from gradients."""
    _programs[module] = [stored for stored in _programs.get(module, ()) if stored.key != key]
    _given_up.setdefault(module, set()).add(key)


def _step(
    program: Program,
    op: Op,
    axes: Mapping[int, GraphAxis | None],
    numbers: Mapping[int, str],
    last_uses: Mapping[int, list[int]],
    passing: set[int],
) -> _ProgramStep:
    tensors = tuple((k, arg.slot) for k, arg in enumerate(op.args) if type(arg) is Ref)
    others = tuple((k, arg) for k, arg in enumerate(op.args) if type(arg) is not Ref)
    passes = op.number in passing
    return _ProgramStep(
        op.called, op, tensors, others, passes, passes and _needs_rule(program.full_plan, op),
        tuple(ref.slot for ref in op.reads), not refs_in(op.kwargs) and op.called is op.func,
        op.number in axes, op.number in numbers,
        tuple(last_uses.get(op.number, ())),
    )  # fmt: skip


def _needs_rule(plan: ReplayPlan, op: Op) -> bool:
    """Whether relevance passes through an operation in another way than its gradient."""
    trace, taken = plan.trace, plan.taken[op.number]
    if not op.grad_enabled or op.decomposed or op.number in plan.shares or rule_for(plan, op):
        return True
    if not any(trace.memory.tensors[ref.slot].requires_grad for ref in op.makes):
        return True  # it is made of other inputs alone, which require no gradient
    return any(
        ref.value not in taken and trace.flow.depends[ref.value] & ~WEIGHTS
        and trace.memory.tensors[ref.slot].requires_grad
        for ref in op.reads
    )  # fmt: skip


def _can_be_checked(program: Program) -> bool:
    """Whether all that a program depends on can be checked while a pass runs."""
    trace = program.trace
    if any(
        weight is None and slot not in trace.inputs and trace.memory.tensors[slot].requires_grad
        for slot, weight in trace.memory.external.items()
    ):
        return False  # gradients are to lead to a tensor of the user's, such as one of a hook
    if (
        trace.random_results
        or trace.random_calls
        or trace.first_exit is not None
        or type(trace.output) is not Ref
    ):
        return False
    if trace.uses_autograd or not any(op.grad_enabled for op in trace.ops):
        return False
    if any(torch.Tag.inplace_view in op.called.tags for op in trace.ops):
        return False
    if any(op.called is not op.func for op in (*program.node_plan.ops, *program.full_plan.passing)):
        return False
    first = dict(reversed(list(zip(trace.flow.slot_of_value, trace.flow.depends, strict=True))))
    return all(
        trace.memory.storage[slot] == slot and (slot in trace.inputs or first[slot] in (0, WEIGHTS))
        for slot in trace.memory.external
    )


def _without_tensors(program: Program) -> Program:
    """Replace tensors by their outlines, so that a program keeps nothing of its pass alive."""
    trace = program.trace
    for running in {running for op in trace.ops for running in op.running.outward()}:
        running.rows = None
    outlines = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in trace.memory.tensors]
    bare = replace(trace, memory=replace(trace.memory, tensors=outlines, slots={}, initial={}))
    node_plan = full_plan = replace(program.node_plan, trace=bare)
    if program.full_plan is not program.node_plan:
        full_plan = replace(program.full_plan, trace=bare)
    return Program(node_plan, full_plan, program.names, program.modules)


def _last_uses(trace: Trace, needed: set[int]) -> dict[int, list[int]]:
    """Return the slots that each operation is the last to use, without those needed at the end.

    The memory of a tensor that comes in from outside is compared with that of all other tensors.
    So no slot counts as used for the last time as long as such tensors come in.
    """
    literal = {ref.slot for op in trace.ops if op.name == "lift_fresh" for ref in op.reads}
    not_compared = trace.inputs.keys() | literal
    foreign = {slot for slot, weight in trace.memory.external.items() if weight is None}
    compared = foreign - not_compared
    coming = (op.number for op in trace.ops for ref in op.reads if ref.slot in compared)
    begin = max(coming, default=-1)
    stays = (
        {slot for _, slot in trace.exits}
        | trace.memory.unstable
        | {trace.output.slot, *trace.inputs, *needed}
    )
    latest = {ref.slot: op for op in trace.ops for ref in (*op.reads, *op.makes)}
    last_uses: dict[int, list[int]] = {}
    for slot, op in latest.items():
        # whether a result requires a gradient is only known after its operation has returned
        is_result = any(ref.slot == slot for ref in op.makes)
        if op.number > begin and slot not in stays and not is_result:
            last_uses.setdefault(op.number, []).append(slot)
    return last_uses


# -- following a program ---------------------------------------------------------------------------


class FollowedPass(NamedTuple):
    """A pass that followed a program.

    Args:
        outputs: under the rules.
        shares: those of constants, which come with the gradient.
        inputs: the inputs besides the nodes to which gradients lead, by line.
    """

    program: Program
    outputs: Tensor
    shares: ConstantShares | None
    inputs: dict[str, Tensor]


def follow_program(request: PassRequest, key: Hashable) -> FollowedPass | None:
    """Run a pass by a stored program, or return None if no program fits.

    Args:
        key: the rules and recordings in force.
    """
    module, rows = request.module, request.rows
    size = rows.shape[:-1].numel()
    several = len(request.layout.mask) > 1
    programs = [p for p in _programs.get(module, ()) if p.key == key and not (p.single and several)]
    if not programs:
        return None
    stored = min(programs, key=lambda p: abs(p.size - size))
    with torch.enable_grad():
        leaf = rows.view_as(rows) if rows.requires_grad else rows.detach().requires_grad_()
    follower = _ProgramFollower(stored, [leaf, *request.others.values()], request)
    try:
        with uncompiled(module), under_mode(follower, graded=True):
            output = request.call(leaf)
    except RuntimeError:  # if the model raised it, the next pass raises it again
        return None
    if follower.unclear_graphs:
        give_up_programs(module, key)
    if not follower.ends_with(output):
        return None
    stored.size = size
    return FollowedPass(stored.program, follower.replay.output(), follower.shares, follower.inputs)


class _ProgramFollower(TorchDispatchMode):
    """Follows the steps of a program while the model runs, checks them and applies the rules.

    An operation runs as it is if the rules ask for nothing but its gradient. Otherwise its slot
    gets another tensor, with the right backward pass (`replay.now`). When a function returns the
    result to the model, that tensor takes its place. Until then whatever is made of it runs by the
    rules, too.
    """

    def __init__(
        self, stored: _StoredProgram, inputs: Iterable[Tensor], request: PassRequest
    ) -> None:
        super().__init__()
        self._stored, self._program, self._module = stored, stored.program, request.module
        self._steps = stored.steps
        self._next = 0
        self._exits = 0  # values that have left PyTorch
        self._numbers: dict[int, str] = {}
        self._tensors: list[Tensor | None] = [None] * len(stored.required_grad)
        self._shapes: dict[int, torch.Size] = {}  # of tensors that are no longer held
        self._waiting: tuple[Op, Tensor, Any] | None = None  # a result without backward pass yet
        self.inputs: dict[str, Tensor] = {}  # besides the nodes, by line
        self.unclear_graphs = False  # whether constants are added to rows of unknown graphs
        self.apart: dict[int, int] = {}  # by `id`, the slots of results that are to be replaced
        trace, plan = self._program.trace, self._program.full_plan
        distinct = list({id(tensor): tensor for tensor in inputs}.values())
        self._differs = len(distinct) != len(trace.inputs)
        self._tensors[: len(distinct)] = distinct
        self.replay = Replay(plan, self._tensors)
        additions = self._program.additions if self._program.modules else None
        self.shares: ConstantShares | None = None
        if additions is not None:
            self.shares = ConstantShares(additions, stored.axes, request.layout)
        if plan is not self._program.node_plan and not self._differs:
            for slot, bit in trace.inputs.items():
                if bit != NODES and plan.signal[trace.flow.slot_of_value.index(slot)]:
                    leaf = distinct[slot].detach().requires_grad_()
                    self.inputs[self._program.names[bit]] = self.replay.now[slot] = leaf

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing compiled runs, and the check would slow every operation."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._waiting is not None:
            self._collect_shares()
        step, kwargs = self._steps[self._next], kwargs or _NO_SETTINGS
        if func is not step.func and (parts := operation_kind(func).parts) is not None:
            with self:  # the steps of the program are its parts
                return parts(*args, **kwargs)
        if self._differs or func is not step.func or not self._fits(step, args, kwargs):
            self._differs = True
            return func(*args, **kwargs)
        self._next += 1
        op, terms, by_rule = step.op, None, step.by_rule
        if step.adds_constants and self.shares is not None:
            terms = self.shares.terms(op, self._value, (args, kwargs))
        if step.passes and not by_rule:
            for slot in step.reads:  # an argument may have another backward pass than the model's
                if self.replay.now[slot] is not None:
                    by_rule = True
                    break
        out = self._by_rule(op, args, kwargs) if by_rule else func(*args, **kwargs)
        self._note(op.result, out)
        if terms is not None:
            self._waiting = op, out[0] if isinstance(out, tuple | list) else out, terms
        for slot in step.last_used:
            self._release(slot)
        return out

    def _collect_shares(self) -> None:
        """Collect shares from the gradient of the last result."""
        assert self._waiting is not None
        assert self.shares is not None
        op, out, terms = self._waiting
        self._waiting = None
        replaced = self.replay.now[op.makes[0].slot]
        self.unclear_graphs |= bool(terms) and self._stored.axes[op.number] is None
        tensor_in = self._tensors.__getitem__
        result = out if replaced is None else replaced
        if not self.shares.collect_from(op, result, terms, tensor_in):
            self._differs = True

    def returned(self, out: Any) -> Any:
        """Return to the model, in place of a function's results, tensors that obey the rules."""
        if isinstance(out, Tensor):
            slot = self.apart.get(id(out))
            by_rules = None if slot is None else self.replay.now[slot]
            if slot is None or by_rules is None or self._tensors[slot] is not out:
                return out
            if self._waiting is not None:
                self._collect_shares()
            if not by_rules.requires_grad or not out.requires_grad:
                return out
            self._tensors[slot], self.replay.now[slot] = by_rules, None
            return by_rules
        if type(out) in (tuple, list):
            return type(out)(map(self.returned, out))
        return out

    def _release(self, slot: int) -> None:
        """Release a tensor that is not needed any more, and keep its shape."""
        tensor = self._tensors[slot]
        if tensor is None or tensor.requires_grad != self._stored.required_grad[slot]:
            self._differs = True
        else:
            self._shapes[slot] = tensor.shape
        self._tensors[slot] = self.replay.now[slot] = None

    def _value(self, ref: Ref) -> Tensor:
        tensor = self._tensors[ref.slot]
        assert tensor is not None
        return tensor

    def leaves(self, tensor: Any) -> None:
        """Check that a value may leave PyTorch."""
        expected = self._program.trace.exits[self._exits :]
        number, slot = expected[0] if expected else (-1, None)
        same = slot is None or self._tensors[slot] is tensor
        self._differs |= number != self._next or not same
        self._exits += 1

    def changes_gradients(self) -> None:
        """Stop following, because the model reads or changes a gradient."""
        self._differs = True

    def draws(self, name: str) -> None:
        """Stop following, because the model draws random numbers."""
        self._differs = True
        if (draws := current_draws()) is not None:
            draws.seen = True

    def ends_with(self, output: Any) -> bool:
        """Whether the pass fits the program to the end."""
        trace, roles, tensors = self._program.trace, self._program.node_plan.roles, self._tensors
        if self._waiting is not None:
            self._collect_shares()
        if (
            self._differs
            or self._steps[self._next].func is not None
            or self._exits != len(trace.exits)
        ):
            return False
        if output is not tensors[trace.output.slot]:
            return False
        shapes = self._shapes
        for slot, (tensor, required_grad) in enumerate(
            zip(tensors, self._stored.required_grad, strict=True)
        ):
            if slot in shapes:
                continue
            if tensor is None or tensor.requires_grad != required_grad:
                return False
            shapes[slot] = tensor.shape
        for test, *values, answer in roles.size_comparisons:
            if test(*(shapes[trace.flow.slot_of_value[value]] for value in values)) != answer:
                return False
        return all(
            _pattern([self._numbers[number] for number in group])
            == _pattern([self._stored.numbers[number] for number in group])
            for group in roles.alike
        )

    # -- one operation -------------------------------------------------------------------------

    def _fits(self, step: _ProgramStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these are the arguments that the next operation must have."""
        op, tensors = step.op, self._tensors
        if (
            op.grad_enabled is not is_grad_enabled()
            or saved_tensor_hooks_active()
            or len(args) != len(op.args)
        ):
            return False
        for place, slot in step.tensors:
            if tensors[slot] is not args[place] and not self._alike(op.args[place], args[place]):
                return False
        for place, expected in step.others:
            if expected is not args[place] and not self._alike(expected, args[place]):
                return False
        if (kwargs or op.kwargs) and not (step.plain and kwargs == op.kwargs):
            if op.called is not op.func:
                kwargs = dict(kwargs)
                if not self._alike(op.makes[0], kwargs.pop("out", None)):
                    return False
            if not self._alike(op.kwargs, kwargs):
                return False
        if step.compares_numbers:
            self._numbers[op.number] = numbers_among(op, args, kwargs)
        return True

    def _alike(self, expected: Any, argument: Any) -> bool:
        """Whether an argument holds the expected tensors and settings. Sizes may differ."""
        kind = type(expected)
        if kind is Ref:
            tensor = self._tensors[expected.slot]
            return tensor is argument or (
                tensor is None and self._comes_in(expected.slot, argument)
            )
        if kind is not type(argument):
            return False
        if kind is int:  # it may be a size or a place
            return bool(expected) == bool(argument)
        if kind is list or kind is tuple:
            return len(expected) == len(argument) and all(map(self._alike, expected, argument))
        if kind is dict:
            same = expected.keys() == argument.keys()
            return same and all(self._alike(part, argument[key]) for key, part in expected.items())
        # the second half is for numbers that are NaN
        return bool(expected == argument or (expected != expected and argument != argument))

    def _comes_in(self, slot: int, tensor: Any) -> bool:
        """Whether a tensor from outside, which is read for the first time, may be in this slot."""
        if slot not in self._program.trace.memory.external or not isinstance(tensor, Tensor):
            return False
        weight = self._program.trace.memory.external[slot]
        is_literal = self._steps[self._next].op.name == "lift_fresh"
        if weight is not None and weight() is not tensor:
            return False
        if weight is None and not is_literal:
            present = (t for t in self._tensors if t is not None)
            if (
                tensor.grad_fn is not None
                or isinstance(tensor, nn.Parameter)
                or id(tensor) in self._weights
                or memory_of(tensor) in map(memory_of, present)
            ):
                return False
        self._tensors[slot] = tensor
        return True

    @cached_property
    def _weights(self) -> dict[int, Tensor]:
        """The tensors that the model keeps, by `id`."""
        return tensors_kept_by(all_modules(self._module))

    def _note(self, result: Any, out: Any) -> None:
        """Put what an operation returned into its slots, and check that it is as expected."""
        if type(result) is Ref:
            present = self._tensors[result.slot]
            self._differs |= present is not None and present is not out
            self._tensors[result.slot] = out
        elif isinstance(result, list):
            self._differs |= len(result) != len(out)
            for ref, part in zip(result, out, strict=False):
                self._note(ref, part)

    def _by_rule(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation by the rules. Its result gets its backward pass later."""
        if (
            op.in_place
            and self._program.trace.memory.storage[op.makes[0].slot]
            in self._program.shared_storages
        ):
            self._differs = True  # other tensors share the memory
            return op.func(*args, **kwargs)
        arguments = self.replay.arguments(op, args, kwargs)
        # the model's call has arrived below autograd, which this block turns on again
        with (
            torch._C._RestorePythonTLSSnapshot(),  # type: ignore[attr-defined]
            torch._C._ExcludeDispatchKeyGuard(_PYTHON),
            nullcontext() if op.grad_enabled else torch.enable_grad(),
        ):
            out = self.replay.applied(op, *arguments)
        if op.in_place:
            return op.func(*args, **kwargs)
        parts = out if isinstance(out, tuple | list) else (out,)
        if any(part is None for part in parts):  # the rule leaves out some results
            return op.func(*args, **kwargs)
        results = [part.detach() for part in parts]
        for ref, part in zip(op.makes, results, strict=False):  # `_note` compares their number
            self.apart[id(part)] = ref.slot
        return results[0] if type(op.result) is Ref else results


def _pattern(values: list[str]) -> list[int]:
    """Return, for each value, the place of the first one that is equal."""
    return [values.index(value) for value in values]
