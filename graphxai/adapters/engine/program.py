"""Explain a pass while it runs, by what is known of an earlier pass with the same operations.

Marks and plans follow from the list of operations alone, so that those of an earlier pass, the
*program*, serve for every batch. Where the rules ask for the ordinary gradient, the model runs as
it is, with its own way back; only the other operations are run by their rule. All that the
decisions depend on is checked on the way: which operations, on which tensors, with which settings,
and the sizes that were compared. Once anything differs, the model finishes as if nobody watched,
and the pass counts for nothing: another one is recorded.
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
from .replay import Replay, ReplayPlan, has_rule, make_plan, nonlinearities
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

NODES = 1  # the bit of the nodes' rows; the graph's other attributes follow
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)
MOST = 4  # programs under the same rules, for as many ways that a model's control flow goes
ALL = 32  # programs of a model


@dataclass(frozen=True, eq=False)
class PassRequest:
    """A pass of a module that is to be explained.

    call: runs the module on node rows (n, D) or (B, S, D); rows: those of the nodes; others: the
    graph's other attributes by name; graphs_of: the graph of each row of one of these, if it has
    such; leaves: those of them that gradients lead to, too. beside: all that `call` reads beside
    the rows, so that passes in which both are the same can stand for one another; empty: unknown.
    """

    module: nn.Module
    call: Callable[[Tensor], Tensor]
    rows: Tensor
    layout: NodeLayout
    others: Mapping[str, Tensor] = field(default_factory=dict)
    graphs_of: Callable[[str], Tensor | None] = lambda name: None
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    beside: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__

    @property
    def names(self) -> dict[int, str]:
        """The names of the inputs beside the nodes, by the bit that each has in a trace."""
        return {1 << k: name for k, name in enumerate(self.others, start=1)}


@dataclass(frozen=True, eq=False)
class Program:
    """What is known of a pass from its list.

    made: what relevance of the nodes passes through; wide: the same for all inputs. names: of the
    inputs by bit. places: the lines of the ledger that have constants, with the modules where they
    are added.
    """

    made: ReplayPlan
    wide: ReplayPlan
    names: Mapping[int, str]
    places: dict[str, set[str]] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The list of operations."""
        return self.made.trace

    @property
    def slot(self) -> int:
        """The slot of the nodes' rows."""
        return self.trace.slot_of(NODES)

    @cached_property
    def lines(self) -> LedgerLines:
        """To which line of the ledger each constant belongs."""
        return LedgerLines(self.trace, self.names)

    @cached_property
    def curved(self) -> bool:
        """Whether anything keeps its ordinary gradient although a rule asks otherwise."""
        return any(True for _ in nonlinearities(self.wide))

    @cached_property
    def whole(self) -> str | None:
        """The line that the output belongs to as a whole, if it is no signal."""
        last = self.trace.output
        value = last.value if type(last) is Ref else -1
        return None if value < 0 or self.wide.signal[value] else self.lines.of(value)

    @cached_property
    def additions(self) -> ConstantAdditions | None:
        """What is known of the pass, if shares of constants can come in on the way back."""
        return None if self.whole or not self.agrees else find_additions(self.wide, self.lines)

    @cached_property
    def agrees(self) -> bool:
        """Whether relevance of the nodes passes in the same way if that of all inputs does."""
        made, wide = self.made, self.wide
        return made is wide or all(
            made.taken[op.number] == {v for v in wide.taken[op.number] if made.signal[v]}
            for op in made.passing
        )

    @cached_property
    def viewed(self) -> set[int]:
        """The storages that several tensors of the pass share."""
        storages = enumerate(self.trace.memory.storage)
        return {storage for slot, storage in storages if storage != slot}


def make_program(trace: Trace, rules: Rules, names: Mapping[int, str], biases: bool) -> Program:
    """All that follows from a recorded pass; biases: the shares of constants are asked for."""
    marks = find_roles(trace)
    made = make_plan(trace, marks, rules, NODES)
    if not biases:
        return Program(made, made, names)
    known = 0
    for live in trace.flow.live:
        known |= live
    wide = make_plan(trace, marks, rules) if known & ~(NODES | WEIGHTS) else made
    program = Program(made, wide, names)
    program.places.update(modules_by_line(wide, program.lines))
    read = {ref.value for op in wide.ops for ref in op.reads}
    for bit, name in names.items():
        if any(trace.flow.live[value] & bit for value in read):
            program.places.setdefault(name, set())
    return program


# -- keeping programs ------------------------------------------------------------------------------


class _ProgramStep(NamedTuple):
    """One operation of a program, and what is checked and done where it is called.

    tensors: place and slot of those among the arguments; others: place and value of all else.
    passes: whether relevance passes through it; by_rule: not by its ordinary gradient alone.
    reads: slots. plain: whether no tensor is given by name. owns: whether it adds constants.
    numbers: its own are compared. done: slots that nothing later needs.
    """

    func: Any
    op: Op
    tensors: tuple[tuple[int, int], ...]
    others: tuple[tuple[int, Any], ...]
    passes: bool
    by_rule: bool
    reads: tuple[int, ...]
    plain: bool
    owns: bool
    numbers: bool
    done: tuple[int, ...]


_END = _ProgramStep(None, None, (), (), False, False, (), False, False, False, ())  # type: ignore[arg-type]
_NO_SETTINGS: dict[str, Any] = {}


@dataclass(eq=False)
class _StoredProgram:
    """A program without the tensors of its pass, and what is checked in others.

    asked: what was asked for; size: how many rows the last pass had. single: whether it serves
    batches of one graph only. graded: by slot, whether the tensor required a gradient; numbers:
    those of operations that are compared. rows: by operation that adds constants, whose its rows
    are.
    """

    asked: Hashable
    size: int
    single: bool
    program: Program
    graded: list[bool]
    numbers: dict[int, str]
    steps: tuple[_ProgramStep, ...]
    rows: dict[int, GraphAxis | None]

    @property
    def calls(self) -> list[Any]:
        """The operations that were called."""
        return [op.called for op in self.program.trace.ops]


_kept: "weakref.WeakKeyDictionary[nn.Module, list[_StoredProgram]]" = weakref.WeakKeyDictionary()
_given_up: "weakref.WeakKeyDictionary[nn.Module, set[Hashable]]" = weakref.WeakKeyDictionary()


def store_program(
    given: PassRequest, asked: Hashable, program: Program, nodes: Callable[[], NodeIds]
) -> None:
    """Keep a program for the next passes, if these can be checked.

    nodes: the numbers of the nodes in its pass.
    """
    trace, module, adds = program.trace, given.module, program.additions
    if not program.agrees or (program.places and adds is None) or not _can_be_checked(program):
        return
    # where parts need not add up, nothing would show that rows of several graphs have moved
    single = adds is not None and not adds.affine
    if (single and len(given.layout.mask) > 1) or asked in _given_up.get(module, ()):
        return
    rows: dict[int, GraphAxis | None] | None = {}
    if program.places and adds is not None:
        rows = graph_axes(adds, None if single else nodes(), given.layout)
    if rows is None:
        return
    graded = [tensor.requires_grad for tensor in trace.memory.tensors]
    alike = (trace.ops[number] for group in program.made.marks.alike for number in group)
    numbers = {op.number: numbers_among(op, op.args, op.kwargs) for op in alike}
    done = _last_uses(
        trace, {r.by for r in rows.values() if r is not None and isinstance(r.by, int)}
    )
    passing = {op.number for op in program.wide.passing}
    steps = (*(_step(program, op, rows, numbers, done, passing) for op in trace.ops), _END)
    size = trace.memory.tensors[program.slot].shape[:-1].numel()
    made = _StoredProgram(
        asked, size, single, _without_tensors(program), graded, numbers, steps, rows
    )
    known = _kept.get(module, [])
    same_rules = [k for k in known if k.asked == asked and k.calls != made.calls]
    others = [k for k in known if k.asked != asked]
    _kept[module] = [made, *same_rules[: MOST - 1], *others][:ALL]


def give_up_programs(module: nn.Module, asked: Hashable) -> None:
    """Keep no program any more, because shares of constants do not come in as they should."""
    _kept[module] = [one for one in _kept.get(module, ()) if one.asked != asked]
    _given_up.setdefault(module, set()).add(asked)


def _step(
    program: Program,
    op: Op,
    rows: Mapping[int, GraphAxis | None],
    numbers: Mapping[int, str],
    done: Mapping[int, list[int]],
    passing: set[int],
) -> _ProgramStep:
    tensors = tuple((k, arg.slot) for k, arg in enumerate(op.args) if type(arg) is Ref)
    others = tuple((k, arg) for k, arg in enumerate(op.args) if type(arg) is not Ref)
    passes = op.number in passing
    return _ProgramStep(
        op.called, op, tensors, others, passes, passes and _has_own_way_back(program.wide, op),
        tuple(ref.slot for ref in op.reads), not refs_in(op.kwargs) and op.called is op.func,
        op.number in rows, op.number in numbers,
        tuple(done.get(op.number, ())),
    )  # fmt: skip


def _has_own_way_back(plan: ReplayPlan, op: Op) -> bool:
    """Whether relevance passes through an operation otherwise than its gradient does."""
    trace, taken = plan.trace, plan.taken[op.number]
    if not op.grad_enabled or op.decomposed or op.number in plan.shares or has_rule(plan, op):
        return True
    if not any(trace.memory.tensors[ref.slot].requires_grad for ref in op.makes):
        return True  # as what is made of other inputs alone
    return any(
        ref.value not in taken and trace.flow.depends[ref.value] & ~WEIGHTS
        and trace.memory.tensors[ref.slot].requires_grad
        for ref in op.reads
    )  # fmt: skip


def _can_be_checked(program: Program) -> bool:
    """Whether all that matters in such a pass is seen while it runs."""
    trace = program.trace
    if any(
        kept is None and slot not in trace.inputs and trace.memory.tensors[slot].requires_grad
        for slot, kept in trace.memory.external.items()
    ):
        return False  # a tensor of the user's, such as a hook's, to which gradients are to lead
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
    if any(op.called is not op.func for op in (*program.made.ops, *program.wide.passing)):
        return False
    first = dict(reversed(list(zip(trace.flow.slot_of_value, trace.flow.depends, strict=True))))
    return all(
        trace.memory.storage[slot] == slot and (slot in trace.inputs or first[slot] in (0, WEIGHTS))
        for slot in trace.memory.external
    )


def _without_tensors(program: Program) -> Program:
    """The program with outlines of tensors, so that it keeps none of the pass alive."""
    trace = program.trace
    for running in {running for op in trace.ops for running in op.running.outward()}:
        running.rows = None
    outlines = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in trace.memory.tensors]
    bare = replace(trace, memory=replace(trace.memory, tensors=outlines, slots={}, initial={}))
    made = replace(program.made, trace=bare)
    wide = made if program.wide is program.made else replace(program.wide, trace=bare)
    return Program(made, wide, program.names, program.places)


def _last_uses(trace: Trace, needed: set[int]) -> dict[int, list[int]]:
    """By operation, the slots that it is the last to read, but for those `needed` at the end.

    While tensors come in from outside, whose memory is compared with that of all others, none.
    """
    literal = {ref.slot for op in trace.ops if op.name == "lift_fresh" for ref in op.reads}
    apart = trace.inputs.keys() | literal
    compared = {slot for slot, kept in trace.memory.external.items() if kept is None} - apart
    coming = (op.number for op in trace.ops for ref in op.reads if ref.slot in compared)
    begin = max(coming, default=-1)
    stays = (
        {slot for _, slot in trace.exits}
        | trace.memory.unstable
        | {trace.output.slot, *trace.inputs, *needed}
    )
    latest = {ref.slot: op for op in trace.ops for ref in (*op.reads, *op.makes)}
    done: dict[int, list[int]] = {}
    for slot, op in latest.items():
        # what an operation makes is not known to require a gradient before it has returned
        made = any(ref.slot == slot for ref in op.makes)
        if op.number > begin and slot not in stays and not made:
            done.setdefault(op.number, []).append(slot)
    return done


# -- following a program ---------------------------------------------------------------------------


class FollowedPass(NamedTuple):
    """A pass that followed a program: its outputs under the rules, and shares that come with them.

    inputs: those beside the nodes that gradients lead to, by line.
    """

    program: Program
    outputs: Tensor
    shares: ConstantShares | None
    inputs: dict[str, Tensor]


def follow_program(given: PassRequest, asked: Hashable) -> FollowedPass | None:
    """What comes of a pass; None: it is not like any of the known ones."""
    module, rows = given.module, given.rows
    size = rows.shape[:-1].numel()
    several = len(given.layout.mask) > 1
    known = [k for k in _kept.get(module, ()) if k.asked == asked and not (k.single and several)]
    if not known:
        return None
    kept = min(known, key=lambda one: abs(one.size - size))
    with torch.enable_grad():
        leaf = rows.view_as(rows) if rows.requires_grad else rows.detach().requires_grad_()
    mode = _ProgramFollower(kept, [leaf, *given.others.values()], given)
    try:
        with uncompiled(module), under_mode(mode, graded=True):
            output = given.call(leaf)
    except RuntimeError:  # the next pass raises it again, if it is the model's
        return None
    if mode.unclear:
        give_up_programs(module, asked)
    if not mode.ends_with(output):
        return None
    kept.size = size
    return FollowedPass(kept.program, mode.again.output(), mode.shares, mode.inputs)


class _ProgramFollower(TorchDispatchMode):
    """Goes along the list of a program while the model runs, checks it and applies the rules.

    Where the rules ask for nothing but the gradient, operations run as they are. Otherwise
    another tensor with the right way back belongs to the slot of the result (`again.now`). It takes
    the place of the result when a function returns it to the model; until then whatever is made
    of it runs by the rules, too.
    """

    def __init__(self, kept: _StoredProgram, inputs: Iterable[Tensor], given: PassRequest) -> None:
        super().__init__()
        self._kept, self._program, self._module = kept, kept.program, given.module
        self._steps = kept.steps
        self._next = 0
        self._left = 0
        self._numbers: dict[int, str] = {}
        self._tensors: list[Tensor | None] = [None] * len(kept.graded)
        self._shapes: dict[int, torch.Size] = {}  # of tensors that are no longer held
        self._waiting: tuple[Op, Tensor, Any] | None = None  # a result that has no way back yet
        self.inputs: dict[str, Tensor] = {}  # beside the nodes: their own share, by line
        self.unclear = False  # whether constants are added to rows of graphs that are not known
        self.apart: dict[int, int] = {}  # slots of results to be replaced, by the ids of these
        trace, plan = self._program.trace, self._program.wide
        distinct = list({id(tensor): tensor for tensor in inputs}.values())
        self._lost = len(distinct) != len(trace.inputs)
        self._tensors[: len(distinct)] = distinct
        self.again = Replay(plan, self._tensors)
        known = self._program.additions if self._program.places else None
        self.shares = None if known is None else ConstantShares(known, kept.rows, given.layout)
        if plan is not self._program.made and not self._lost:
            for slot, bit in trace.inputs.items():
                if bit != NODES and plan.signal[trace.flow.slot_of_value.index(slot)]:
                    leaf = distinct[slot].detach().requires_grad_()
                    self.inputs[self._program.names[bit]] = self.again.now[slot] = leaf

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: `follow_program` has nothing compiled, and each operation would pay for the guard."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._waiting is not None:
            self._watch()
        step, kwargs = self._steps[self._next], kwargs or _NO_SETTINGS
        if func is not step.func and (parts := operation_kind(func).parts) is not None:
            with self:  # the steps of the program are its parts
                return parts(*args, **kwargs)
        if self._lost or func is not step.func or not self._goes_on(step, args, kwargs):
            self._lost = True
            return func(*args, **kwargs)
        self._next += 1
        op, terms, by_rule = step.op, None, step.by_rule
        if step.owns and self.shares is not None:
            terms = self.shares.terms(op, self._value, (args, kwargs))
        if step.passes and not by_rule:
            for slot in step.reads:  # something may have another way back than the model's tensors
                if self.again.now[slot] is not None:
                    by_rule = True
                    break
        out = self._by_rule(op, args, kwargs) if by_rule else func(*args, **kwargs)
        self._note(op.result, out)
        if terms is not None:
            self._waiting = op, out[0] if isinstance(out, tuple | list) else out, terms
        for slot in step.done:
            self._let_go(slot)
        return out

    def _watch(self) -> None:
        """Let shares come in from the gradient at the last result, which has its way back now."""
        assert self._waiting is not None
        assert self.shares is not None
        op, out, terms = self._waiting
        self._waiting = None
        rows = self._kept.rows[op.number]
        ruled = self.again.now[op.makes[0].slot]
        self.unclear |= bool(terms) and rows is None
        now = self._tensors.__getitem__
        if not self.shares.watch(op, out if ruled is None else ruled, terms, now):
            self._lost = True

    def returned(self, out: Any) -> Any:
        """What a function returns to the model, by the rules."""
        if isinstance(out, Tensor):
            slot = self.apart.get(id(out))
            ruled = None if slot is None else self.again.now[slot]
            if slot is None or ruled is None or self._tensors[slot] is not out:
                return out
            if self._waiting is not None:
                self._watch()
            if not ruled.requires_grad or not out.requires_grad:
                return out
            self._tensors[slot], self.again.now[slot] = ruled, None
            return ruled
        if type(out) in (tuple, list):
            return type(out)(map(self.returned, out))
        return out

    def _let_go(self, slot: int) -> None:
        """Hold a tensor no longer than it is needed."""
        tensor = self._tensors[slot]
        if tensor is None or tensor.requires_grad != self._kept.graded[slot]:
            self._lost = True
        else:
            self._shapes[slot] = tensor.shape
        self._tensors[slot] = self.again.now[slot] = None

    def _value(self, ref: Ref) -> Tensor:
        tensor = self._tensors[ref.slot]
        assert tensor is not None
        return tensor

    def leaves(self, tensor: Any) -> None:
        """A value leaves PyTorch."""
        expected = self._program.trace.exits[self._left :]
        number, slot = expected[0] if expected else (-1, None)
        same = slot is None or self._tensors[slot] is tensor
        self._lost |= number != self._next or not same
        self._left += 1

    def changes_gradients(self) -> None:
        """The model wants to see, or to change, a gradient on its way back."""
        self._lost = True

    def draws(self, name: str) -> None:
        """The model draws random numbers, from which the next pass starts again."""
        self._lost = True
        if (draws := current_draws()) is not None:
            draws.seen = True

    def ends_with(self, output: Any) -> bool:
        """Whether the pass was like the known one to the end."""
        trace, marks, tensors = self._program.trace, self._program.made.marks, self._tensors
        if self._waiting is not None:
            self._watch()
        if self._lost or self._steps[self._next].func is not None or self._left != len(trace.exits):
            return False
        if output is not tensors[trace.output.slot]:
            return False
        shapes = self._shapes
        for slot, (tensor, graded) in enumerate(zip(tensors, self._kept.graded, strict=True)):
            if slot in shapes:
                continue
            if tensor is None or tensor.requires_grad != graded:
                return False
            shapes[slot] = tensor.shape
        for test, *values, answer in marks.sizes:
            if test(*(shapes[trace.flow.slot_of_value[value]] for value in values)) != answer:
                return False
        return all(
            _pattern([self._numbers[number] for number in group])
            == _pattern([self._kept.numbers[number] for number in group])
            for group in marks.alike
        )

    # -- one operation -------------------------------------------------------------------------

    def _goes_on(self, step: _ProgramStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these are the arguments of the operation that comes next."""
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
        for place, known in step.others:
            if known is not args[place] and not self._alike(known, args[place]):
                return False
        if (kwargs or op.kwargs) and not (step.plain and kwargs == op.kwargs):
            if op.called is not op.func:
                kwargs = dict(kwargs)
                if not self._alike(op.makes[0], kwargs.pop("out", None)):
                    return False
            if not self._alike(op.kwargs, kwargs):
                return False
        if step.numbers:
            self._numbers[op.number] = numbers_among(op, args, kwargs)
        return True

    def _alike(self, known: Any, given: Any) -> bool:
        """Whether arguments are the same tensors, and the same settings but for sizes."""
        kind = type(known)
        if kind is Ref:
            tensor = self._tensors[known.slot]
            return tensor is given or (tensor is None and self._comes_in(known.slot, given))
        if kind is not type(given):
            return False
        if kind is int:  # a size, or a place
            return bool(known) == bool(given)
        if kind is list or kind is tuple:
            return len(known) == len(given) and all(map(self._alike, known, given))
        if kind is dict:
            same = known.keys() == given.keys()
            return same and all(self._alike(one, given[key]) for key, one in known.items())
        return bool(known == given or (known != known and given != given))

    def _comes_in(self, slot: int, tensor: Any) -> bool:
        """Whether a tensor that no operation made, first seen here, is as the known one was."""
        if slot not in self._program.trace.memory.external or not isinstance(tensor, Tensor):
            return False
        kept, literal = (
            self._program.trace.memory.external[slot],
            self._steps[self._next].op.name == "lift_fresh",
        )
        if kept is not None and kept() is not tensor:
            return False
        if kept is None and not literal:
            known = (t for t in self._tensors if t is not None)
            if (
                tensor.grad_fn is not None
                or isinstance(tensor, nn.Parameter)
                or id(tensor) in self._own
                or memory_of(tensor) in map(memory_of, known)
            ):
                return False
        self._tensors[slot] = tensor
        return True

    @cached_property
    def _own(self) -> dict[int, Tensor]:
        return tensors_kept_by(all_modules(self._module))

    def _note(self, result: Any, out: Any) -> None:
        """Remember what an operation returned, if it is as expected."""
        if type(result) is Ref:
            known = self._tensors[result.slot]
            self._lost |= known is not None and known is not out
            self._tensors[result.slot] = out
        elif isinstance(result, list):
            self._lost |= len(result) != len(out)
            for ref, part in zip(result, out, strict=False):
                self._note(ref, part)

    def _by_rule(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation by the rules; the model gets the result without its way back."""
        if (
            op.in_place
            and self._program.trace.memory.storage[op.makes[0].slot] in self._program.viewed
        ):
            self._lost = True  # other tensors share the memory
            return op.func(*args, **kwargs)
        given = self.again.arguments(op, args, kwargs)
        # the model's call has arrived below autograd, which is on again within this block
        with (
            torch._C._RestorePythonTLSSnapshot(),  # type: ignore[attr-defined]
            torch._C._ExcludeDispatchKeyGuard(_PYTHON),
            nullcontext() if op.grad_enabled else torch.enable_grad(),
        ):
            out = self.again.applied(op, *given)
        if op.in_place:
            return op.func(*args, **kwargs)
        parts = out if isinstance(out, tuple | list) else (out,)
        if any(part is None for part in parts):  # the rule does without
            return op.func(*args, **kwargs)
        handed = [part.detach() for part in parts]
        for ref, part in zip(op.makes, handed, strict=False):  # `_note` compares their number
            self.apart[id(part)] = ref.slot
        return handed[0] if type(op.result) is Ref else handed


def _pattern(values: list[str]) -> list[int]:
    """Which of the values are equal."""
    return [values.index(value) for value in values]
