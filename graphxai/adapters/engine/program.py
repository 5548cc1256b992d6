"""Explain a pass while it runs, by what is known of an earlier pass with the same operations.

Marks and plans follow from the list of operations alone, so that those of an earlier pass, the
*program*, serve for every batch. The rules then act as the model runs: each operation that
relevance passes through is computed once, by its rule and under autograd, and the model goes on
with the result. All that the decisions depend on is checked on the way: which operations, on which
tensors, with which settings, and the sizes that were compared. Once anything differs, the model
finishes as if nobody watched, and the pass counts for nothing: another one is recorded.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from graphxai.contract.randomness import current_draws
from graphxai.rules.conservative import Rules

from ..isolation import uncompiled
from .marks import curves, marked, numbers_among
from .replay import Lines, Plan, Replayed, lines_in, plan, replay
from .shares import Affine, Shares, affine
from .trace import (
    WEIGHTS,
    Op,
    Ref,
    Running,
    Trace,
    ids_of_kept,
    kind_of,
    memory_of,
    saves_elsewhere,
    watched,
)

NODES = 1  # the bit of the nodes' rows; the graph's other attributes follow
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)
MOST = 4  # programs of a model, for as many ways that its control flow goes


@dataclass(frozen=True, eq=False)
class Program:
    """What is known of a pass from its list.

    made: what relevance of the nodes passes through; wide: the same for all inputs. names: of the
    inputs by bit. places: the lines of the ledger that have constants, with the modules where they
    are added.
    """

    made: Plan
    wide: Plan
    names: Mapping[int, str]
    places: dict[str, set[str]] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The list of operations."""
        return self.made.trace

    @property
    def slot(self) -> int:
        """The slot of the nodes' rows."""
        return next(slot for slot, bit in self.trace.inputs.items() if bit == NODES)

    @cached_property
    def lines(self) -> Lines:
        """To which line of the ledger each constant belongs."""
        return Lines(self.trace, self.names)

    @cached_property
    def curved(self) -> bool:
        """Whether anything keeps its ordinary gradient although a rule asks otherwise."""
        made = self.made
        return any(
            True for _ in curves(made.trace, made.marks, made.passing, made.signal, made.rules)
        )

    @cached_property
    def whole(self) -> str | None:
        """The line that the output belongs to as a whole, if it is no signal."""
        last = self.trace.output
        value = last.value if type(last) is Ref else -1
        return None if value < 0 or self.wide.signal[value] else self.lines.of(value)

    @cached_property
    def affine(self) -> Affine | None:
        """What is known of the pass, if shares of constants can be carried along."""
        return None if self.whole else affine(self.wide, self.lines, self.places)


def programmed(trace: Trace, rules: Rules, names: Mapping[int, str], biases: bool) -> Program:
    """All that follows from a recorded pass; biases: the shares of constants are asked for."""
    marks = marked(trace)
    made = plan(trace, marks, rules, NODES)
    if not biases:
        return Program(made, made, names)
    known = 0
    for live in trace.live:
        known |= live
    wide = plan(trace, marks, rules) if known & ~(NODES | WEIGHTS) else made
    program = Program(made, wide, names)
    program.places.update(lines_in(wide, program.lines))
    read = {ref.value for op in wide.ops for ref in op.reads}
    for bit, name in names.items():
        if any(trace.live[value] & bit for value in read):
            program.places.setdefault(name, set())
    return program


def explained_again(program: Program, rows: Tensor) -> tuple[Tensor, dict[str, Tensor] | None]:
    """Outputs of a recorded pass under the rules, and the share of each line, if that is known."""
    inputs = {program.slot: rows}
    shares = _shares(program, program.trace.tensors)
    if shares is None:
        return replay(program.made, inputs).output(), None
    if program.wide is program.made:
        outputs = replay(program.made, inputs, heard=shares).output()
    else:
        outputs = replay(program.made, inputs).output()
        with torch.no_grad():
            replay(program.wide, inputs, heard=shares)
    return outputs, shares.of_output(outputs)


def _shares(program: Program, tensors: list[Any]) -> Shares | None:
    if not program.places or program.affine is None:
        return None
    shares = Shares(program.affine)
    for slot in program.trace.inputs:
        shares.begin(slot, tensors[slot])
    return shares


# -- keeping programs ------------------------------------------------------------------------------


@dataclass(eq=False)
class _Kept:
    """A program without the tensors of its pass, and what is checked in others.

    asked: what was asked for; size: how many rows the last pass had. graded: by slot, whether the
    tensor required a gradient; numbers: those of operations that are compared; needed: operations
    that run by their rule; heard: those that only have shares; done: by operation, the slots that
    nothing later needs.
    """

    asked: Hashable
    size: int
    program: Program
    graded: list[bool]
    numbers: dict[int, str]
    needed: set[int]
    heard: set[int]
    done: dict[int, list[int]]

    @property
    def calls(self) -> list[Any]:
        """The operations that were called."""
        return [op.called for op in self.program.trace.ops]


_kept: "weakref.WeakKeyDictionary[nn.Module, list[_Kept]]" = weakref.WeakKeyDictionary()


def keep(module: nn.Module, asked: Hashable, program: Program) -> None:
    """Keep a program for the next passes, if these can be checked."""
    trace = program.trace
    if (program.places and program.affine is None) or not _can_be_checked(program):
        return
    graded = [tensor.requires_grad for tensor in trace.tensors]
    alike = (trace.ops[number] for group in program.made.marks.alike for number in group)
    numbers = {op.number: numbers_among(op, op.args, op.kwargs) for op in alike}
    needed = {op.number for op in program.made.ops}
    heard = {op.number for op in program.wide.passing} if program.places else set()
    size = trace.tensors[program.slot].shape[:-1].numel()
    bare, done = _without_tensors(program), _last_uses(trace)
    made = _Kept(asked, size, bare, graded, numbers, needed, heard, done)
    known = (one for one in _kept.get(module, ()) if one.asked != asked or one.calls != made.calls)
    _kept[module] = [made, *known][:MOST]


def _can_be_checked(program: Program) -> bool:
    """Whether all that matters in such a pass is seen while it runs."""
    trace = program.trace
    if any(
        kept is None and slot not in trace.inputs and trace.tensors[slot].requires_grad
        for slot, kept in trace.outside.items()
    ):
        return False  # a tensor of the user's, such as a hook's, to which gradients are to lead
    if trace.drawn or trace.chance or trace.left is not None or type(trace.output) is not Ref:
        return False
    if trace.hooked or not any(op.graded for op in trace.ops):
        return False
    if any(torch.Tag.inplace_view in op.called.tags for op in trace.ops):
        return False
    if any(op.called is not op.func for op in (*program.made.ops, *program.wide.passing)):
        return False
    first: dict[int, int] = {}
    for value, slot in enumerate(trace.slot_of_value):
        first.setdefault(slot, trace.depends[value])
    return all(
        trace.storage[slot] == slot and (slot in trace.inputs or first[slot] in (0, WEIGHTS))
        for slot in trace.outside
    )


def _without_tensors(program: Program) -> Program:
    """The program with outlines of tensors, so that it keeps none of the pass alive."""
    trace = program.trace
    running: Running | None
    for running in {op.within for op in trace.ops}:
        while running is not None:
            running.rows, running = None, running.outer
    outlines = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in trace.tensors]
    bare = replace(trace, tensors=outlines, slots={}, before={})
    made = replace(program.made, trace=bare)
    wide = made if program.wide is program.made else replace(program.wide, trace=bare)
    return Program(made, wide, program.names, program.places)


def _last_uses(trace: Trace) -> dict[int, list[int]]:
    """By operation, the slots that it is the last to read.

    While tensors come in from outside, whose memory is compared with that of all others, none.
    """
    literal = {ref.slot for op in trace.ops if op.name == "lift_fresh" for ref in op.reads}
    apart = trace.inputs.keys() | literal
    compared = {slot for slot, kept in trace.outside.items() if kept is None} - apart
    coming = (op.number for op in trace.ops for ref in op.reads if ref.slot in compared)
    begin = max(coming, default=-1)
    stays = (
        {slot for _, slot in trace.leaving} | trace.unstable | {trace.output.slot, *trace.inputs}
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


def followed(
    module: nn.Module,
    asked: Hashable,
    call: Callable[[Tensor, Mapping[str, Tensor]], Tensor],
    rows: Tensor,
    others: Mapping[str, Tensor],
) -> tuple[Program, Tensor, dict[str, Tensor] | None] | None:
    """The program, outputs and shares of a pass; None: it is not like any of the known ones."""
    size = rows.shape[:-1].numel()
    known = [one for one in _kept.get(module, ()) if one.asked == asked]
    if not known:
        return None
    kept = min(known, key=lambda one: abs(one.size - size))
    leaf = rows.detach().requires_grad_()
    mode = _Following(kept, rows, [leaf, *others.values()], module)
    try:
        with uncompiled(module), watched(mode, graded=True):
            output = call(leaf, others)
    except RuntimeError:  # the next pass raises it again, if it is the model's
        return None
    if not mode.ends_with(output):
        return None
    kept.size = size
    outputs: Tensor = mode.again.output()
    shares = None if mode.shares is None else mode.shares.of_output(outputs)
    return kept.program, outputs, shares


class _Following(TorchDispatchMode):
    """Goes along the list of a program while the model runs, checks it and applies the rules."""

    def __init__(
        self, kept: _Kept, rows: Tensor, inputs: Iterable[Tensor], module: nn.Module
    ) -> None:
        super().__init__()
        self._kept, self._program, self._module = kept, kept.program, module
        self._ops = kept.program.trace.ops
        self._calls = [*kept.calls, None]
        self._next = 0
        self._lost = False
        self._left = 0
        self._numbers: dict[int, str] = {}
        self._tensors: list[Tensor | None] = [None] * len(kept.graded)
        self._shapes: dict[int, torch.Size] = {}  # of tensors that are no longer held
        distinct = list({id(tensor): tensor for tensor in inputs}.values())
        self._lost = len(distinct) != len(self._program.trace.inputs)
        self._tensors[: len(distinct)] = distinct
        self.shares = _shares(self._program, self._tensors)
        self.again = Replayed(self._program.made, self._tensors)
        self.again.begin(self._program.slot, rows)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: `followed` has nothing compiled, and each operation would pay for the guard."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        expected = func is self._calls[self._next]  # and so, as recorded, not in parts
        if not expected and (parts := kind_of(func).parts) is not None:
            with self:
                return parts(*args, **kwargs)
        self._lost = self._lost or not expected or not self._goes_on(args, kwargs)
        if self._lost:
            return func(*args, **kwargs)
        op = self._ops[self._next]
        self._next += 1
        shares = self.shares if op.number in self._kept.heard else None
        if shares is not None and op.in_place:
            shares.hear(op, self._value, (args, kwargs), None)
        by_rule = op.number in self._kept.needed
        out = self._by_rule(op, args, kwargs) if by_rule else func(*args, **kwargs)
        self._lost = not self._note(op.result, out)
        if shares is not None and not op.in_place:
            shares.hear(op, self._value, (args, kwargs), out)
        for slot in self._kept.done.get(op.number, ()):
            self._let_go(slot)
        return out

    def _let_go(self, slot: int) -> None:
        """Hold a tensor no longer than it is needed."""
        tensor = self._tensors[slot]
        self._lost |= tensor is None or tensor.requires_grad != self._kept.graded[slot]
        if tensor is not None:
            self._shapes[slot] = tensor.shape
        self._tensors[slot] = self.again.now[slot] = None

    def _value(self, ref: Ref) -> Tensor:
        tensor = self._tensors[ref.slot]
        assert tensor is not None
        return tensor

    def leaves(self, tensor: Any) -> None:
        """A value leaves PyTorch."""
        expected = self._program.trace.leaving[self._left :]
        number, slot = expected[0] if expected else (-1, None)
        same = slot is None or self._tensors[slot] is tensor
        self._lost |= number != self._next or not same
        self._left += 1

    def draws(self, name: str) -> None:
        """The model draws random numbers, from which the next pass starts again."""
        self._lost = True
        if (draws := current_draws()) is not None:
            draws.seen = True

    def ends_with(self, output: Any) -> bool:
        """Whether the pass was like the known one to the end."""
        trace, marks, tensors = self._program.trace, self._program.made.marks, self._tensors
        if self._lost or self._next != len(self._ops) or self._left != len(trace.leaving):
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
            if test(*(shapes[trace.slot_of_value[value]] for value in values)) != answer:
                return False
        return all(
            _pattern([self._numbers[number] for number in group])
            == _pattern([self._kept.numbers[number] for number in group])
            for group in marks.alike
        )

    # -- one operation -------------------------------------------------------------------------

    def _goes_on(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these are the arguments of the operation that comes next."""
        op = self._ops[self._next]
        if op.graded != torch.is_grad_enabled() or saves_elsewhere():
            return False
        if len(args) != len(op.args):
            return False
        for known, one in zip(op.args, args, strict=True):
            if known is one or (type(known) is Ref and self._tensors[known.slot] is one):
                continue
            if not self._alike(known, one):
                return False
        if kwargs or op.kwargs:
            if op.called is not op.func:
                kwargs = dict(kwargs)
                if not self._alike(op.makes[0], kwargs.pop("out", None)):
                    return False
            if not self._alike(op.kwargs, kwargs):
                return False
        if op.number in self._kept.numbers:
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
        if slot not in self._program.trace.outside or not isinstance(tensor, Tensor):
            return False
        kept, literal = (
            self._program.trace.outside[slot],
            self._ops[self._next].name == "lift_fresh",
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
    def _own(self) -> set[int]:
        return ids_of_kept(self._module.modules())

    def _note(self, result: Any, out: Any) -> bool:
        """Remember what an operation returned; whether it is as expected."""
        if type(result) is Ref:
            known = self._tensors[result.slot]
            self._tensors[result.slot] = out
            return known is None or known is out
        if isinstance(result, list):
            return len(result) == len(out) and all(map(self._note, result, out))
        return True

    def _by_rule(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = self.again.arguments(op, args, kwargs)
        # the model's call has arrived below autograd, which is on again within this block
        with (
            torch._C._RestorePythonTLSSnapshot(),  # type: ignore[attr-defined]
            torch._C._ExcludeDispatchKeyGuard(_PYTHON),
            nullcontext() if op.graded else torch.enable_grad(),
        ):
            out = self.again.applied(op, *given)
        parts = out if isinstance(out, tuple | list) else (out,)
        if any(part is None for part in parts):  # the rule does without
            return op.func(*args, **kwargs)
        handed = [
            part.detach() if (known := self._tensors[ref.slot]) is None else known
            for ref, part in zip(op.makes, parts, strict=True)
        ]
        return handed[0] if type(op.result) is Ref else handed


def _pattern(values: list[str]) -> list[int]:
    """Which of the values are equal."""
    return [values.index(value) for value in values]
