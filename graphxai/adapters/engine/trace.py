"""Record a pass of a model: the flat list of its ATen operations (a Wengert list).

Below PyTorch's dispatcher every operation has one name, however the model spells it: there are no
methods, operators, aliases, checkpoints, `vmap`, TorchScript or fused attention. The list says
which values each operation read and made, so that the origin and the use of a value can be followed
through the whole pass.

A value *depends on* an input if data flows from the input to the value, through tensors of any
type. It is *live* if a gradient flows back, too. `detach`, `no_grad`, rounding and comparisons cut
the gradient, but not the data.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphxai.runtime.randomness import DRAWING, current_draws, draws_numbers

from .decompositions import DECOMPOSITIONS
from .vocabulary import name_of

VALUELESS = {  # operations whose result does not depend on the values of their arguments
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_empty_strided", "randint_like", "zero", "fill",
}  # fmt: skip
CUTS = {"detach", "round", "sign", "sgn", "floor", "ceil", "trunc", "frac", "heaviside"}
EXITS = {"tolist", "numpy", "array", "item", "float", "dlpack"}
HOOKS = {"register_hook", "retain_grad"}
REPORTED = EXITS | HOOKS | DRAWING
NESTED = (tuple, list, dict)  # the containers that arguments may hold
WITH_TENSORS = (Tensor, *NESTED)
_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
WEIGHTS = 1 << 62  # the bit of all tensors that the model keeps


class Ref(NamedTuple):
    """Stands for a tensor among arguments: the slot of the tensor, and the value that it held."""

    slot: int
    value: int


@dataclass(slots=True, eq=False)
class RunningModule:
    """A module that runs: its path, the module that called it, and its first argument."""

    path: str
    outer: "RunningModule | None" = None
    rows: Tensor | None = None

    def outward(self) -> Iterator["RunningModule"]:
        """Yield this module, then the one that called it, and so on to the outermost."""
        running: RunningModule | None = self
        while running is not None:
            yield running
            running = running.outer


@dataclass(slots=True, eq=False)
class Op:
    """One operation. In `args` and `kwargs` a `Ref` stands for every tensor.

    Args:
        called: the function that the model called, perhaps with `out=`.
        func: the same function without `out=`.
        name: its ATen name without the mark of an in-place variant.
        reads, makes: the values that it reads and makes, in the order of the tensors.
        result: what it returned, with a `Ref` for every tensor.
        running: the module that was running.
        grad_enabled: whether gradients were on.
        decomposed: whether it is a part of an operation that was recorded in parts, below
            PyTorch's gradients.
    """

    number: int
    called: Any
    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[Ref, ...]
    makes: tuple[Ref, ...]
    result: Any
    running: RunningModule
    in_place: bool
    grad_enabled: bool
    decomposed: bool

    def with_tensors(
        self, tensor_of: Callable[[Ref], Any], args: Any, kwargs: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments with `tensor_of` every `Ref` of this operation.

        Args:
            args, kwargs: arguments of the same structure, from which everything but tensors is
                taken.
        """
        filled_args = [
            fill_refs(pattern, arg, tensor_of) if isinstance(pattern, NESTED) else arg
            for pattern, arg in zip(self.args, args, strict=True)
        ]
        return filled_args, fill_refs(self.kwargs, kwargs, tensor_of) if self.kwargs else {}

    @property
    def path(self) -> str:
        """The path of the module that was running."""
        return self.running.path

    @property
    def out(self) -> int:
        """The value of the first result."""
        return self.makes[0].value


@dataclass(eq=False)
class TensorMemory:
    """The tensors of a pass, one in each slot, and the memory that they share.

    Args:
        tensors, latest, storage: for each slot its tensor, the last value that it held, and the
            slot whose tensor was the first in the same memory.
        slots: the slot of a tensor by its `id`.
        written: for each storage the value that was written to it last.
        unstable: the slots of storages that were written to during the pass.
        initial: what was in tensors from outside before they were written to.
        external: the slots of tensors that no operation made, with the tensor if the model
            keeps it.
    """

    tensors: list[Tensor] = field(default_factory=list)
    latest: list[int] = field(default_factory=list)
    storage: list[int] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    unstable: set[int] = field(default_factory=set)
    initial: dict[int, Tensor] = field(default_factory=dict)
    external: dict[int, "weakref.ref[Tensor] | None"] = field(default_factory=dict)

    def add(self, tensor: Tensor, base: int | None = None) -> int:
        """Put a tensor into a new slot.

        Args:
            base: the slot of a tensor that shares its memory.
        """
        slot = len(self.tensors)
        self.slots[id(tensor)] = slot
        self.tensors.append(tensor)
        self.latest.append(-1)
        self.storage.append(slot if base is None else self.storage[base])
        return slot


@dataclass(eq=False)
class DataFlow:
    """How the values of a pass depend on each other. A tensor that is written to has several.

    Args:
        slot_of_value, maker, uses: for each value the slot that holds it, the number of the
            operation that made it (-1 for a value from outside), and the numbers of the
            operations that read it.
        depends, live: for each value the bits of the inputs that it depends on, and of those
            that its gradient flows to.
        merged: for a value that was read after a write to another view of it, the value before
            and the value that was written.
    """

    slot_of_value: list[int] = field(default_factory=list)
    maker: list[int] = field(default_factory=list)
    uses: list[list[int]] = field(default_factory=list)
    depends: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    merged: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, slot: int, maker: int, depends: int, live: int) -> int:
        """Add a value that is kept in a slot."""
        self.slot_of_value.append(slot)
        self.maker.append(maker)
        self.uses.append([])
        self.depends.append(depends)
        self.live.append(live)
        return len(self.maker) - 1


@dataclass(eq=False)
class Trace:
    """A recorded pass: its operations in order, the memory they used, and how data flowed.

    Args:
        inputs: for each slot of an input its bit.
        output: what the model returned.
        exits: for each value that left PyTorch the number of the next operation, and the slot.
        first_exit: the number of the first operation after a signal left PyTorch.
        random_results: what random operations returned, by number.
        random_calls: the path of a module and the name of a function by which it drew random
            numbers.
        uses_autograd: whether the model itself takes part in autograd, by checkpoints or hooks.
    """

    ops: list[Op] = field(default_factory=list)
    memory: TensorMemory = field(default_factory=TensorMemory)
    flow: DataFlow = field(default_factory=DataFlow)
    inputs: dict[int, int] = field(default_factory=dict)
    output: Any = None
    exits: list[tuple[int, int | None]] = field(default_factory=list)
    first_exit: int | None = None
    random_results: dict[int, Tensor] = field(default_factory=dict)
    random_calls: set[tuple[str, str]] = field(default_factory=set)
    uses_autograd: bool = False

    def new_value(self, slot: int, maker: int = -1, depends: int = 0, live: int = 0) -> int:
        """Let a slot hold a new value from now on."""
        self.memory.latest[slot] = self.flow.add(slot, maker, depends, live)
        return self.memory.latest[slot]

    def slot_of(self, bit: int) -> int:
        """Return the slot of the input with this bit."""
        return next(slot for slot, input_bit in self.inputs.items() if input_bit == bit)

    def tensor(self, value: int) -> Tensor:
        """Return the tensor that held a value. It may have been written to since."""
        return self.memory.tensors[self.flow.slot_of_value[value]]

    def shape(self, value: int) -> torch.Size:
        """Return the shape of the tensor that held a value."""
        return self.tensor(value).shape

    def op_of(self, value: int) -> Op | None:
        """Return the operation that made a value, or None for a value from outside."""
        number = self.flow.maker[value]
        return None if number < 0 else self.ops[number]

    def op_name(self, value: int) -> str:
        """Return the name of the operation that made a value, or "" for a value from outside."""
        op = self.op_of(value)
        return "" if op is None else op.name

    def origin(self, value: int, through: set[str]) -> int:
        """Follow the first argument of operations in `through` back to a value made by another."""
        while (op := self.op_of(value)) is not None and op.name in through:
            value = op.reads[0].value
        return value

    def ancestors(self, value: int, further: Callable[[int, Op], Iterable[int]]) -> Iterator[int]:
        """Yield a value and those it is made of.

        Args:
            further: says, for a value and the operation that made it, which values to go on
                with.
        """
        visited, todo = {value}, [value]
        while todo:
            value = todo.pop()
            yield value
            if (op := self.op_of(value)) is not None:
                new = set(further(value, op)) - visited
                visited |= new
                todo.extend(new)

    def listing(self, notes: Mapping[int, str] | None = None) -> str:
        """Write the operations as text, one in a line.

        A line has the number of the operation, the values that it makes, the operation with the
        values that it reads, the shape of the first result, and the module. A star says that the
        gradient of a result flows back to an input.

        Args:
            notes: text for the end of some lines, by the number of the operation.
        """
        rows = []
        for op in self.ops:
            live = any(self.flow.live[ref.value] & ~WEIGHTS for ref in op.makes)
            arguments = [*map(_as_text, op.args)]
            arguments += [f"{name}={_as_text(value)}" for name, value in op.kwargs.items()]
            rows.append(
                (
                    f"{op.number}",
                    "*" if live else "",
                    " ".join(f"%{ref.value}" for ref in op.makes),
                    f"= {op.name}({', '.join(arguments)})",
                    "x".join(map(str, self.shape(op.out))) if op.makes else "",
                    op.path,
                    (notes or {}).get(op.number, ""),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        return self.listing()


def _as_text(argument: Any) -> str:
    """Write an argument of an operation as text."""
    if type(argument) is Ref:
        return f"%{argument.value}"
    if isinstance(argument, list | tuple):
        return f"[{', '.join(map(_as_text, argument))}]"
    return str(argument).removeprefix("torch.")


# -- recording -------------------------------------------------------------------------------------


def saved_tensor_hooks_active() -> bool:
    """Whether hooks handle what autograd saves for the backward pass, as a checkpoint's do.

    The function that tells is not public. Without it the answer is yes, which is always correct:
    no cached program is used, so that every pass is recorded anew.
    """
    return _saving_hooks is None or _saving_hooks(True) is not None


class OperationKind(NamedTuple):
    """What an operation always does.

    Args:
        writes: the place and name of the argument that it writes to, if any.
        views: whether its results may share memory with its arguments.
        draws: whether it draws random numbers.
        valueless: whether its result does not depend on the values of its arguments.
        parts: a function that computes it by other operations, which are recorded in its place,
            if there is one.
    """

    name: str
    writes: tuple[int, str] | None
    views: bool
    draws: bool
    valueless: bool
    parts: Callable[..., Any] | None


@cache
def operation_kind(func: Any) -> OperationKind:
    """Read from its schema what an operation always does."""
    schema = func._schema
    full = schema.name.removeprefix("aten::")
    name = full if full.startswith("__") else full.rstrip("_")
    aliased = [(k, a) for k, a in enumerate(schema.arguments) if a.alias_info is not None]
    writes = ((k, argument.name) for k, argument in aliased if argument.alias_info.is_write)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )
    return OperationKind(
        name,
        next(writes, None),
        bool(aliased),
        torch.Tag.nondeterministic_seeded in func.tags,
        name in VALUELESS,
        DECOMPOSITIONS.get(func) or (func.decompose if composite else None),
    )


class _PythonCalls(TorchFunctionMode):
    """Reports values that leave PyTorch, random numbers and gradient hooks to a recording.

    As long as it is active, PyTorch's layers do not use their kernels for inference.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = name_of(func), kwargs or {}
        if name in REPORTED:
            if name in EXITS:
                self._mode.leaves(args[0])
            if name in HOOKS:
                self._mode.changes_gradients()
            if name in DRAWING and draws_numbers(name, args, kwargs):
                self._mode.draws(name)
        out = func(*args, **kwargs)
        return self._mode.returned(out) if self._mode.apart else out


_recording = threading.local()


def is_recording() -> bool:
    """Whether a pass is being recorded in this thread."""
    return getattr(_recording, "count", 0) > 0


@contextmanager
def under_mode(mode: Any, graded: bool) -> Iterator[None]:
    """Run a pass within the block under a mode of the dispatcher.

    Args:
        graded: with gradients or not.
    """
    if (draws := current_draws()) is not None:
        draws.begin()
    _recording.count = getattr(_recording, "count", 0) + 1
    try:
        with torch.set_grad_enabled(graded), _PythonCalls(mode), mode:
            yield
    finally:
        _recording.count -= 1


class Recording(TorchDispatchMode):
    """A pass being recorded in this thread, from `begin` to `end`.

    Args:
        inputs: the inputs, each of which gets a bit of its own, in order. If None, everything
            that comes from outside and requires a gradient, other than parameters, gets bit 1.
        graded: whether gradients are on. If they are off, they are taken to flow wherever data
            does.
    """

    apart: Mapping[int, int] = {}  # a recording replaces no results

    def __init__(
        self, model: nn.Module, inputs: Iterable[Tensor] | None = None, graded: bool = True
    ) -> None:
        super().__init__()
        self.trace = Trace()
        self._any_input, self._graded = inputs is None, graded
        self._inputs = list(inputs or ())
        self._nested = 0
        self._weights = tensors_kept_by(model.modules())
        self._slot_at: dict[int, int] = {}  # by address, the first slot there, up to `_located`
        self._located = 0
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack: list[nn.Module] = []
        self._within = RunningModule("")
        self._thread = threading.get_ident()
        self._open = ExitStack()

    def begin(self) -> None:
        """Start recording."""
        for k, tensor in enumerate(self._inputs):
            self._begin(self._slot(tensor), 1 << k)
        self._open.enter_context(under_mode(self, self._graded))

    def end(self, output: Any) -> Trace:
        """Stop recording, and find out where gradients flow and which tensors were written to."""
        self._open.close()
        trace = self.trace
        if trace.random_calls and (draws := current_draws()) is not None:
            draws.seen = True
        trace.output = self._refs(output, [])
        if trace.first_exit == len(trace.ops):  # no operation followed
            trace.first_exit = None
        for op in trace.ops:
            self._find_live(op)
        for value in trace.flow.merged:
            self._live(value)
        slots = enumerate(trace.memory.storage)
        trace.memory.unstable = {slot for slot, storage in slots if storage in trace.memory.written}
        for op in trace.ops:  # their results share memory with the tensor that they split
            if op.name.startswith("unsafe_") and any(
                r.slot in trace.memory.unstable for r in op.makes
            ):
                trace.memory.unstable.add(op.reads[0].slot)
        for number in trace.random_results:
            trace.memory.unstable.difference_update(ref.slot for ref in trace.ops[number].makes)
        return trace

    def abandon(self) -> None:
        """Stop recording after an error."""
        self._open.close()

    # -- what the model does -------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """The number of modules that are running, one inside the other."""
        return len(self._stack)

    def enter(self, module: nn.Module, args: Any = ()) -> None:
        """Note that a module begins to run."""
        if threading.get_ident() == self._thread and id(module) in self._paths:
            self._stack.append(module)
            rows = next((arg for arg in args if isinstance(arg, Tensor)), None)
            self._within = RunningModule(self._paths[id(module)], self._within, rows)

    def leave(self, module: nn.Module, args: Any = (), output: Any = None) -> None:
        """Note that a module has run."""
        if threading.get_ident() == self._thread and self._stack and self._stack[-1] is module:
            self._stack.pop()
            self._within = self._within.outer or RunningModule("")

    def leaves(self, tensor: Any) -> None:
        """Record that a value leaves PyTorch."""
        trace = self.trace
        slot = trace.memory.slots.get(id(tensor))
        trace.exits.append((len(trace.ops), slot))
        if (
            slot is not None
            and trace.flow.depends[trace.memory.latest[slot]] & 1
            and trace.first_exit is None
        ):
            trace.first_exit = len(trace.ops)

    def changes_gradients(self) -> None:
        """Note that the model reads or changes a gradient in the backward pass."""
        self.trace.uses_autograd = True

    def draws(self, name: str) -> None:
        """Note that the running module draws random numbers."""
        self.trace.random_calls.add((self._within.path, name))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing compiled is recorded, and the check would slow every operation."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, kind = kwargs or {}, operation_kind(func)
        if kind.parts is not None:
            return self._in_parts(kind.parts, args, kwargs)
        reads: list[Ref] = []
        patterns = self._refs(args, reads), self._refs(kwargs, reads) if kwargs else {}
        if kind.writes is not None:
            place, name = kind.writes
            self._keep_before(args[place] if len(args) > place else kwargs.get(name))
        out = func(*args, **kwargs)
        self._add(func, kind, *patterns, reads, out)
        return out

    def _in_parts(self, parts: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record an operation by its parts."""
        self._nested += 1
        try:
            with self:
                return parts(*args, **kwargs)
        finally:
            self._nested -= 1

    def _keep_before(self, target: Any) -> None:
        """Keep a copy of a tensor from outside before it is written to."""
        slot = self.trace.memory.slots.get(id(target))
        if slot in self.trace.memory.external and slot not in self.trace.memory.initial:
            self.trace.memory.initial[slot] = target.detach().clone()

    def _add(
        self, func: Any, kind: OperationKind, args: Any, kwargs: Any, reads: list[Ref], out: Any
    ) -> None:
        """Add an operation to the list."""
        trace, number, called = self.trace, len(self.trace.ops), func
        depends = 0
        if not kind.valueless:
            for ref in reads:
                depends |= trace.flow.depends[ref.value]
        if trace.first_exit is not None and any(isinstance(arg, float) for arg in args):
            depends |= 1  # the number may be a signal that left PyTorch
        writes, makes = kind.writes is not None, list[Ref]()
        base = reads[0].slot if kind.views and reads else None
        result = self._results(out, base, writes, depends, makes)
        if kind.draws:
            trace.random_results[number] = out.detach().clone() if writes else out
        if writes and kwargs.pop("out", None) is not None:  # record it as if it made a new tensor
            func, writes = getattr(torch.ops.aten, kind.name), False
        trace.uses_autograd = trace.uses_autograd or saved_tensor_hooks_active()
        trace.ops.append(
            Op(number, called, func, kind.name, args, kwargs, tuple(reads), tuple(makes), result,
               self._within, writes, torch.is_grad_enabled(), self._nested > 0)
        )  # fmt: skip
        for ref in reads:
            trace.flow.uses[ref.value].append(number)

    # -- slots and values ----------------------------------------------------------------------

    def _refs(self, arguments: Any, reads: list[Ref]) -> Any:
        """Return arguments with a `Ref` for every tensor, and append these to `reads`."""
        if isinstance(arguments, Tensor):
            reads.append(self._read(arguments))
            return reads[-1]
        if not isinstance(arguments, NESTED):
            return arguments
        if isinstance(arguments, dict):
            return {key: self._refs(part, reads) for key, part in arguments.items()}
        parts = [
            self._refs(part, reads) if isinstance(part, WITH_TENSORS) else part
            for part in arguments
        ]
        if hasattr(arguments, "_fields"):
            return type(arguments)(*parts)
        return tuple(parts) if isinstance(arguments, tuple) else parts

    def _results(
        self, out: Any, base: int | None, writes: bool, depends: int, makes: list[Ref]
    ) -> Any:
        """Return results with a `Ref` for every tensor, and append these to `makes`.

        Args:
            base: the slot whose memory the results may share.
        """
        trace = self.trace
        if isinstance(out, tuple | list):
            return [self._results(part, base, writes, depends, makes) for part in out]
        if not isinstance(out, Tensor):
            return out
        slot = trace.memory.slots.get(id(out))
        slot = trace.memory.add(out, base) if slot is None else slot
        makes.append(Ref(slot, trace.new_value(slot, len(trace.ops), depends)))
        if writes:
            trace.memory.written[trace.memory.storage[slot]] = makes[-1].value
        return makes[-1]

    def _read(self, tensor: Tensor) -> Ref:
        """Return the value that a tensor holds now."""
        trace = self.trace
        slot = self._slot(tensor)
        value = trace.memory.latest[slot]
        written = trace.memory.written.get(trace.memory.storage[slot], -1)
        if written > value:  # another view of the memory was written to
            depends = trace.flow.depends[value] | trace.flow.depends[written]
            new = trace.new_value(slot, trace.flow.maker[written], depends)
            trace.flow.merged[new] = (value, written)
            value = new
        return Ref(slot, value)

    def _slot(self, tensor: Tensor) -> int:
        """Return the slot of a tensor. A tensor that no operation made comes from outside."""
        trace = self.trace
        if (slot := trace.memory.slots.get(id(tensor))) is not None:
            return slot
        slot = trace.memory.add(tensor, self._slot_sharing_memory(tensor))
        is_weight = id(tensor) in self._weights or isinstance(tensor, nn.Parameter)
        trace.memory.external[slot] = weakref.ref(tensor) if is_weight else None
        came_back = not is_weight and is_real(tensor) and self._may_come_back(tensor)
        trace.new_value(slot, depends=WEIGHTS if is_weight else int(came_back))
        if self._any_input and tensor.requires_grad and not isinstance(tensor, nn.Parameter):
            self._begin(slot, 1)
        return slot

    def _begin(self, slot: int, bit: int) -> None:
        """Make the tensor in a slot an input with this bit."""
        trace, value = self.trace, self.trace.memory.latest[slot]
        trace.inputs[slot] = trace.flow.depends[value] = bit
        trace.flow.live[value] = bit if is_real(trace.memory.tensors[slot]) else 0

    def _slot_sharing_memory(self, tensor: Tensor) -> int | None:
        """Find a tensor of the pass in the same memory, which `.data` and NumPy may lead to."""
        trace = self.trace
        if isinstance(tensor, nn.Parameter) or not trace.ops:
            return None
        for slot in range(self._located, len(trace.memory.tensors)):
            self._slot_at.setdefault(memory_of(trace.memory.tensors[slot]), slot)
        self._located = len(trace.memory.tensors)
        return self._slot_at.get(memory_of(tensor))

    def _may_come_back(self, tensor: Tensor) -> bool:
        """Whether a tensor may be made of a signal that left PyTorch or this thread earlier."""
        from_another_thread = tensor.grad_fn is not None and not self._any_input
        return from_another_thread or self.trace.first_exit is not None

    # -- where gradients flow ------------------------------------------------------------------

    def _find_live(self, op: Op) -> None:
        """Decide which inputs the gradient of an operation's results flows to."""
        trace = self.trace
        arriving = 0
        for ref in op.reads:
            arriving |= self._live(ref.value)
        for ref in op.makes:
            if not (depends := trace.flow.depends[ref.value]):
                continue
            tensor = trace.memory.tensors[ref.slot]
            if op.name == "detach" and _is_of_script(tensor):
                passes, arriving = True, self._rewritten_script(op)
            elif op.name in CUTS:
                passes = False
            elif op.grad_enabled and self._settles_a_flag(op):
                passes = True
            elif not self._graded:
                passes = is_real(tensor)
            elif op.decomposed:
                passes = op.grad_enabled and is_real(tensor)
            elif passes := tensor.requires_grad and not op.grad_enabled:
                # custom functions and checkpoints run without gradients, but pass them on
                _, arriving = self._passing_on(op, lambda _, maker: not maker.grad_enabled)
            else:
                passes = tensor.requires_grad
            if passes:
                trace.flow.live[ref.value] = arriving & depends
            elif is_real(tensor) and op.name not in CUTS:  # other inputs need no gradient
                trace.flow.live[ref.value] = arriving & depends & ~1

    def _settles_a_flag(self, op: Op) -> bool:
        """Whether a copy below autograd carries out a conjugation, or a sign, that was a flag."""
        tensor = self.trace.memory.tensors[op.reads[0].slot] if op.name == "clone" else None
        return tensor is not None and (tensor.is_conj() or tensor.is_neg())

    def _live(self, value: int) -> int:
        """Return the inputs that the gradient of a value flows to, even if the value is merged."""
        live = self.trace.flow.live
        if value in self.trace.flow.merged and not live[value]:
            live[value] = (
                live[self.trace.flow.merged[value][0]] | live[self.trace.flow.merged[value][1]]
            )
        return live[value]

    def _rewritten_script(self, op: Op) -> int:
        """Let gradients flow through a function that TorchScript ran, up to this `detach`.

        TorchScript has a backward pass of its own: it detaches the inputs and the outputs of the
        function, and then gives the outputs that backward pass. Returns the inputs of the pass that
        gradients flow to.
        """
        trace = self.trace
        inside, arriving = self._passing_on(
            op, lambda current, _: current.name != "detach" or current is op
        )
        for current in inside:
            if current.name == "detach":
                current.func, current.name = torch.ops.aten.alias.default, "alias"
                if current is not op:
                    trace.flow.live[current.out] = trace.flow.live[current.reads[0].value]
        return arriving

    def _passing_on(self, op: Op, goes_on: Callable[[Op, Op], bool]) -> tuple[list[Op], int]:
        """Let gradients pass through the operations before this one that cut them.

        Returns the operations that they pass, and the inputs that they flow to.

        Args:
            goes_on: says, for an operation and the maker of a value that it reads, whether
                gradients pass from one to the other.
        """
        trace, passed, arriving = self.trace, [op], 0
        for current in passed:
            for ref in current.reads:
                maker, tensor = trace.op_of(ref.value), trace.memory.tensors[ref.slot]
                is_cut = trace.flow.depends[ref.value] & ~trace.flow.live[ref.value]
                if is_cut and is_real(tensor) and maker is not None and goes_on(current, maker):
                    trace.flow.live[ref.value] = trace.flow.depends[ref.value]
                    passed.append(maker)
                arriving |= trace.flow.live[ref.value]
        return passed, arriving


@contextmanager
def recording(
    model: nn.Module, inputs: Iterable[Tensor], graded: bool = True
) -> Iterator[Callable[[Any], Trace]]:
    """Record a pass within the block. The yielded function ends it and returns its trace."""
    mode = Recording(model, inputs, graded)
    with ExitStack() as hooks:
        for handle in (
            register_module_forward_pre_hook(mode.enter),
            register_module_forward_hook(mode.leave, always_call=True),
        ):
            hooks.callback(handle.remove)
        hooks.callback(mode.abandon)
        mode.begin()
        yield mode.end


def fill_refs(pattern: Any, arguments: Any, tensor_of: Callable[[Ref], Any]) -> Any:
    """Return nested arguments with `tensor_of` every `Ref` in a pattern of the same structure."""
    if type(pattern) is Ref:
        return tensor_of(pattern)
    if isinstance(pattern, list | tuple):
        parts = [fill_refs(p, a, tensor_of) for p, a in zip(pattern, arguments, strict=True)]
        return type(pattern)(*parts) if hasattr(pattern, "_fields") else type(pattern)(parts)
    if type(pattern) is dict:
        return {key: fill_refs(part, arguments[key], tensor_of) for key, part in pattern.items()}
    return arguments


def pair_refs(pattern: Any, arguments: Any) -> Iterator[tuple[Ref, Any]]:
    """Yield every `Ref` in a nested pattern with what stands in its place in the arguments."""
    if type(pattern) is Ref:
        yield pattern, arguments
    elif isinstance(pattern, dict):
        for key, part in pattern.items():
            yield from pair_refs(part, arguments[key])
    elif isinstance(pattern, NESTED):
        for part, argument in zip(pattern, arguments, strict=False):  # a split may have fewer parts
            yield from pair_refs(part, argument)


def refs_in(pattern: Any) -> list[Ref]:
    """List every `Ref` in nested arguments."""
    return [ref for ref, _ in pair_refs(pattern, pattern)]


def _is_of_script(tensor: Tensor) -> bool:
    """Whether a tensor has the backward pass that TorchScript writes for its code."""
    return tensor.grad_fn is not None and "DifferentiableGraph" in tensor.grad_fn.name()


def is_real(tensor: Tensor) -> bool:
    """Whether gradients can flow through tensors of this type."""
    return tensor.is_floating_point() or tensor.is_complex()


def tensors_kept_by(modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    """Return the tensors that modules keep as parameters, buffers or attributes, by `id`."""
    attributes = (names for m in modules for names in (vars(m), m._parameters, m._buffers))
    return {id(t): t for names in attributes for t in names.values() if isinstance(t, Tensor)}


def memory_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors have none
        return -id(tensor)
