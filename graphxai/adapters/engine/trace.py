"""Record a pass of a model: the flat list of its ATen operations (a Wengert list).

Below PyTorch's dispatcher every operation has one name, however the model spells it: there are no
methods, operators, aliases, checkpoints, `vmap`, TorchScript or fused attention. The list says
which values each operation read and made, so that what a value is can be asked of the whole pass.

A value *depends on* an input if the data flows there, through tensors of any type. It is *live* if
a gradient flows, too: `detach`, `no_grad`, rounding or a comparison cut the gradient, not the data.
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

VALUELESS = {  # the result does not depend on the values of the arguments
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_empty_strided", "randint_like", "zero", "fill",
}  # fmt: skip
CUTS = {"detach", "round", "sign", "sgn", "floor", "ceil", "trunc", "frac", "heaviside"}
LEAVING = {"tolist", "numpy", "array", "item", "float", "dlpack"}
HOOKS = {"register_hook", "retain_grad"}
NOTED = LEAVING | HOOKS | DRAWING
NESTED = (tuple, list, dict)  # among arguments
WITH_TENSORS = (Tensor, *NESTED)
_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
WEIGHTS = 1 << 62  # the bit of what the model keeps


class Ref(NamedTuple):
    """A tensor among the arguments of an operation: where it is kept, and the value it had."""

    slot: int
    value: int


@dataclass(slots=True, eq=False)
class RunningModule:
    """A module that runs: its path, the one that called it, and the first tensor it was given."""

    path: str
    outer: "RunningModule | None" = None
    rows: Tensor | None = None

    def outward(self) -> Iterator["RunningModule"]:
        """This module, and those that it runs in, the innermost first."""
        running: RunningModule | None = self
        while running is not None:
            yield running
            running = running.outer


@dataclass(slots=True, eq=False)
class Op:
    """One operation. In `args` and `kwargs` a `Ref` stands for every tensor.

    called: as the model called it, perhaps with `out=`; func: without. name: the ATen name without
    the mark of an in-place variant. reads, makes: values, in the order of the tensors. within: the
    running module. graded: whether gradients were on. nested: whether it is part of an operation
    that was written out, below PyTorch's gradients.
    """

    number: int
    called: Any
    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[Ref, ...]
    makes: tuple[Ref, ...]
    result: Any  # the results with a `Ref` for every tensor
    within: RunningModule
    in_place: bool
    graded: bool
    nested: bool

    def with_tensors(
        self, put: Callable[[Ref], Any], args: Any, kwargs: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with `put` of every `Ref`, and all else from those given, which are alike."""
        found = [
            fill_refs(k, g, put) if isinstance(k, NESTED) else g
            for k, g in zip(self.args, args, strict=True)
        ]
        return found, fill_refs(self.kwargs, kwargs, put) if self.kwargs else {}

    @property
    def place(self) -> str:
        """The path of the running module."""
        return self.within.path

    @property
    def out(self) -> int:
        """The value of the only, or first, result."""
        return self.makes[0].value


@dataclass(eq=False)
class Trace:
    """A recorded pass.

    By slot: `tensors`. By value: `maker`, the number of the operation that made it (-1: it came
    from outside); `uses`, the operations that read it; `depends`, a bit for each input; `live`, as
    before, for gradients. `output`: what the model returned.
    """

    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    slot_of_value: list[int] = field(default_factory=list)
    maker: list[int] = field(default_factory=list)
    uses: list[list[int]] = field(default_factory=list)
    depends: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)  # by id of the tensor
    latest: list[int] = field(default_factory=list)  # by slot: its last value
    joined: dict[int, tuple[int, int]] = field(default_factory=dict)  # after a write to a view
    storage: list[int] = field(default_factory=list)  # by slot: where its storage began
    before: dict[int, Tensor] = field(default_factory=dict)  # slots written to, as they came
    written: dict[int, int] = field(default_factory=dict)  # by storage: the value written last
    # slots that no operation made, with the tensor if it is the model's
    outside: dict[int, "weakref.ref[Tensor] | None"] = field(default_factory=dict)
    leaving: list[tuple[int, int | None]] = field(default_factory=list)  # operation, slot
    unstable: set[int] = field(default_factory=set)  # slots of storages that were written to
    drawn: dict[int, Tensor] = field(default_factory=dict)  # results of random operations
    inputs: dict[int, int] = field(default_factory=dict)  # slot: bit
    chance: set[tuple[str, str]] = field(default_factory=set)  # modules that drew random numbers
    hooked: bool = False  # whether the model takes part in autograd, by checkpoints or hooks
    left: int | None = None  # the operation after which a signal left PyTorch
    output: Any = None

    def new_slot(self, tensor: Tensor, base: int | None = None) -> int:
        """A slot for a tensor; base: one whose memory it shares."""
        slot = len(self.tensors)
        self.slots[id(tensor)] = slot
        self.tensors.append(tensor)
        self.latest.append(-1)
        self.storage.append(slot if base is None else self.storage[base])
        return slot

    def new_value(self, slot: int, maker: int = -1, depends: int = 0, live: int = 0) -> int:
        """A value that a slot holds from now on."""
        self.latest[slot] = len(self.maker)
        self.slot_of_value.append(slot)
        self.maker.append(maker)
        self.uses.append([])
        self.depends.append(depends)
        self.live.append(live)
        return self.latest[slot]

    def slot_of(self, bit: int) -> int:
        """The slot of the input with this bit."""
        return next(slot for slot, own in self.inputs.items() if own == bit)

    def tensor(self, value: int) -> Tensor:
        """The tensor that held a value; it may have been written to since."""
        return self.tensors[self.slot_of_value[value]]

    def made(self, value: int) -> Op | None:
        """The operation that made a value."""
        number = self.maker[value]
        return None if number < 0 else self.ops[number]

    def name(self, value: int) -> str:
        """The name of that operation; empty for a value from outside."""
        op = self.made(value)
        return "" if op is None else op.name

    def origin(self, value: int, through: set[str]) -> int:
        """What a value is made of by these operations on a first argument alone."""
        while (op := self.made(value)) is not None and op.name in through:
            value = op.reads[0].value
        return value

    def back(self, value: int, further: Callable[[int, Op], Iterable[int]]) -> Iterator[int]:
        """A value and those it is made of, as far as `further` leads from a value and its maker."""
        seen, todo = {value}, [value]
        while todo:
            value = todo.pop()
            yield value
            if (op := self.made(value)) is not None:
                new = set(further(value, op)) - seen
                seen |= new
                todo.extend(new)

    def shape(self, value: int) -> torch.Size:
        """The shape of the tensor that held a value."""
        return self.tensor(value).shape


# -- recording -------------------------------------------------------------------------------------


def saved_tensor_hooks_active() -> bool:
    """Whether hooks handle what autograd saves for the backward pass, as a checkpoint's do."""
    return _saving_hooks(True) is not None


class OperationKind(NamedTuple):
    """What is fixed for an operation: its name, which argument it writes to, and so on."""

    name: str
    writes: tuple[int, str] | None
    views: bool
    draws: bool
    valueless: bool
    parts: Callable[..., Any] | None  # if it is recorded in parts


@cache
def operation_kind(func: Any) -> OperationKind:
    """What is fixed for an operation."""
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
    """Tells a mode of values that leave PyTorch, of random numbers, and of hooks on gradients.

    With it on, layers do without kernels for inference.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = name_of(func), kwargs or {}
        if name in NOTED:
            if name in LEAVING:
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
    """A pass runs within the block under this mode of the dispatcher; graded: with gradients."""
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

    inputs: each has a bit of its own, in their order; None: whatever requires a gradient and comes
    from outside, other than parameters, has bit 1. graded: whether gradients are on; if not, they
    are taken to flow wherever the data does.
    """

    apart: Mapping[int, int] = {}  # no result is replaced

    def __init__(
        self, model: nn.Module, inputs: Iterable[Tensor] | None = None, graded: bool = True
    ) -> None:
        super().__init__()
        self.trace = Trace()
        self._any_input, self._graded = inputs is None, graded
        self._inputs = list(inputs or ())
        self._nested = 0
        self._kept = tensors_kept_by(model.modules())
        self._memory: dict[int, int] = {}  # by address, the first slot before `_located`
        self._located = 0
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack: list[nn.Module] = []
        self._within = RunningModule("")
        self._thread = threading.get_ident()
        self._open = ExitStack()

    def begin(self) -> None:
        """Start."""
        for k, tensor in enumerate(self._inputs):
            self._begin(self._slot(tensor), 1 << k)
        self._open.enter_context(under_mode(self, self._graded))

    def end(self, output: Any) -> Trace:
        """Stop, and find out where gradients flow and which tensors were written to."""
        self._open.close()
        trace = self.trace
        if trace.chance and (draws := current_draws()) is not None:
            draws.seen = True
        trace.output = self._refs(output, [])
        if trace.left == len(trace.ops):  # nothing came of it
            trace.left = None
        for op in trace.ops:
            self._find_live(op)
        for value in trace.joined:
            self._live(value)
        slots = enumerate(trace.storage)
        trace.unstable = {slot for slot, storage in slots if storage in trace.written}
        for op in trace.ops:  # whose results share memory with what they are parts of
            if op.name.startswith("unsafe_") and any(r.slot in trace.unstable for r in op.makes):
                trace.unstable.add(op.reads[0].slot)
        for number in trace.drawn:
            trace.unstable.difference_update(ref.slot for ref in trace.ops[number].makes)
        return trace

    def abandon(self) -> None:
        """Stop after an error."""
        self._open.close()

    # -- what the model does -------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """How many modules are running, one inside the other."""
        return len(self._stack)

    def enter(self, module: nn.Module, args: Any = ()) -> None:
        """A module begins."""
        if threading.get_ident() == self._thread and id(module) in self._paths:
            self._stack.append(module)
            rows = next((arg for arg in args if isinstance(arg, Tensor)), None)
            self._within = RunningModule(self._paths[id(module)], self._within, rows)

    def leave(self, module: nn.Module, args: Any = (), output: Any = None) -> None:
        """A module ends."""
        if threading.get_ident() == self._thread and self._stack and self._stack[-1] is module:
            self._stack.pop()
            self._within = self._within.outer or RunningModule("")

    def leaves(self, tensor: Any) -> None:
        """A value leaves PyTorch."""
        trace = self.trace
        slot = trace.slots.get(id(tensor))
        trace.leaving.append((len(trace.ops), slot))
        if slot is not None and trace.depends[trace.latest[slot]] & 1 and trace.left is None:
            trace.left = len(trace.ops)

    def changes_gradients(self) -> None:
        """The model wants to see, or to change, a gradient on its way back."""
        self.trace.hooked = True

    def draws(self, name: str) -> None:
        """The running module draws random numbers."""
        self.trace.chance.add((self._within.path, name))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing compiled is recorded, and each operation would pay for the guard."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, kind = kwargs or {}, operation_kind(func)
        if kind.parts is not None:
            return self._in_parts(kind.parts, args, kwargs)
        reads: list[Ref] = []
        known = self._refs(args, reads), self._refs(kwargs, reads) if kwargs else {}
        if kind.writes is not None:
            place, name = kind.writes
            self._keep_before(args[place] if len(args) > place else kwargs.get(name))
        out = func(*args, **kwargs)
        self._add(func, kind, *known, reads, out)
        return out

    def _in_parts(self, parts: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._nested += 1
        try:
            with self:
                return parts(*args, **kwargs)
        finally:
            self._nested -= 1

    def _keep_before(self, target: Any) -> None:
        """Keep what is in a tensor from outside that is written to."""
        slot = self.trace.slots.get(id(target))
        if slot in self.trace.outside and slot not in self.trace.before:
            self.trace.before[slot] = target.detach().clone()

    def _add(
        self, func: Any, kind: OperationKind, args: Any, kwargs: Any, reads: list[Ref], out: Any
    ) -> None:
        """Add an operation to the list."""
        trace, number, called = self.trace, len(self.trace.ops), func
        depends = 0
        if not kind.valueless:
            for ref in reads:
                depends |= trace.depends[ref.value]
        if trace.left is not None and any(isinstance(arg, float) for arg in args):
            depends |= 1  # the number may be one that left
        writes, made = kind.writes is not None, list[Ref]()
        base = reads[0].slot if kind.views and reads else None
        result = self._results(out, base, writes, depends, made)
        if kind.draws:
            trace.drawn[number] = out.detach().clone() if writes else out
        if writes and kwargs.pop("out", None) is not None:  # as if it made a new tensor
            func, writes = getattr(torch.ops.aten, kind.name), False
        trace.hooked = trace.hooked or saved_tensor_hooks_active()
        trace.ops.append(
            Op(number, called, func, kind.name, args, kwargs, tuple(reads), tuple(made), result,
               self._within, writes, torch.is_grad_enabled(), self._nested > 0)
        )  # fmt: skip
        for ref in reads:
            trace.uses[ref.value].append(number)

    # -- slots and values ----------------------------------------------------------------------

    def _refs(self, given: Any, found: list[Ref]) -> Any:
        """The same arguments with a `Ref` for every tensor; all of them are added to `found`."""
        if isinstance(given, Tensor):
            found.append(self._read(given))
            return found[-1]
        if not isinstance(given, NESTED):
            return given
        if isinstance(given, dict):
            return {key: self._refs(part, found) for key, part in given.items()}
        parts = [
            self._refs(part, found) if isinstance(part, WITH_TENSORS) else part for part in given
        ]
        if hasattr(given, "_fields"):
            return type(given)(*parts)
        return tuple(parts) if isinstance(given, tuple) else parts

    def _results(
        self, out: Any, base: int | None, writes: bool, depends: int, made: list[Ref]
    ) -> Any:
        """The results with a `Ref` for every tensor; base: the slot whose memory they may share."""
        trace = self.trace
        if isinstance(out, tuple | list):
            return [self._results(part, base, writes, depends, made) for part in out]
        if not isinstance(out, Tensor):
            return out
        slot = trace.slots.get(id(out))
        slot = trace.new_slot(out, base) if slot is None else slot
        made.append(Ref(slot, trace.new_value(slot, len(trace.ops), depends)))
        if writes:
            trace.written[trace.storage[slot]] = made[-1].value
        return made[-1]

    def _read(self, tensor: Tensor) -> Ref:
        """The value that a tensor has now."""
        trace = self.trace
        slot = self._slot(tensor)
        value = trace.latest[slot]
        written = trace.written.get(trace.storage[slot], -1)
        if written > value:  # another view of it was written to
            depends = trace.depends[value] | trace.depends[written]
            new = trace.new_value(slot, trace.maker[written], depends)
            trace.joined[new] = (value, written)
            value = new
        return Ref(slot, value)

    def _slot(self, tensor: Tensor) -> int:
        """The slot of a tensor; if it was never seen, it comes from outside."""
        trace = self.trace
        if (known := trace.slots.get(id(tensor))) is not None:
            return known
        shared = self._slot_sharing_memory(tensor)
        slot = trace.new_slot(tensor, shared)
        kept = id(tensor) in self._kept or isinstance(tensor, nn.Parameter)
        trace.outside[slot] = weakref.ref(tensor) if kept else None
        came_back = not kept and is_real(tensor) and self._may_come_back(tensor)
        trace.new_value(slot, depends=WEIGHTS if kept else int(came_back))
        if self._any_input and tensor.requires_grad and not isinstance(tensor, nn.Parameter):
            self._begin(slot, 1)
        return slot

    def _begin(self, slot: int, bit: int) -> None:
        """The tensor in a slot is an input."""
        trace, value = self.trace, self.trace.latest[slot]
        trace.inputs[slot] = trace.depends[value] = bit
        trace.live[value] = bit if is_real(trace.tensors[slot]) else 0

    def _slot_sharing_memory(self, tensor: Tensor) -> int | None:
        """A tensor that no operation returned may share memory with one (`.data`, NumPy)."""
        trace = self.trace
        if isinstance(tensor, nn.Parameter) or not trace.ops:
            return None
        for slot in range(self._located, len(trace.tensors)):
            self._memory.setdefault(memory_of(trace.tensors[slot]), slot)
        self._located = len(trace.tensors)
        return self._memory.get(memory_of(tensor))

    def _may_come_back(self, tensor: Tensor) -> bool:
        """Whether a tensor may be made of a signal that left PyTorch, or this thread, before."""
        hidden = tensor.grad_fn is not None and not self._any_input  # as from another thread
        return hidden or self.trace.left is not None

    # -- where gradients flow ------------------------------------------------------------------

    def _find_live(self, op: Op) -> None:
        trace = self.trace
        arriving = 0
        for ref in op.reads:
            arriving |= self._live(ref.value)
        for ref in op.makes:
            if not (depends := trace.depends[ref.value]):
                continue
            tensor = trace.tensors[ref.slot]
            if op.name == "detach" and _is_of_script(tensor):
                passes, arriving = True, self._rewritten_script(op)
            elif op.name in CUTS:
                passes = False
            elif op.graded and self._settles_a_flag(op):
                passes = True
            elif not self._graded:
                passes = is_real(tensor)
            elif op.nested:
                passes = op.graded and is_real(tensor)
            elif passes := tensor.requires_grad and not op.graded:
                # as in custom functions and checkpoints, which pass gradients on all the same
                _, arriving = self._passing_on(op, lambda _, maker: not maker.graded)
            else:
                passes = tensor.requires_grad
            if passes:
                trace.live[ref.value] = arriving & depends
            elif is_real(tensor) and op.name not in CUTS:  # inputs that need no gradient
                trace.live[ref.value] = arriving & depends & ~1

    def _settles_a_flag(self, op: Op) -> bool:
        """Whether a copy below autograd carries out a conjugation or sign that was only a flag."""
        tensor = self.trace.tensors[op.reads[0].slot] if op.name == "clone" else None
        return tensor is not None and (tensor.is_conj() or tensor.is_neg())

    def _live(self, value: int) -> int:
        """Where gradients come from, for a value that may be of several writes."""
        live = self.trace.live
        if value in self.trace.joined and not live[value]:
            live[value] = live[self.trace.joined[value][0]] | live[self.trace.joined[value][1]]
        return live[value]

    def _rewritten_script(self, op: Op) -> int:
        """Gradients in what TorchScript ran with its own backward pass to end with this `detach`.

        There inputs are detached, and so are the outputs, which then get that backward pass.
        """
        trace = self.trace
        inside, arriving = self._passing_on(op, lambda now, _: now.name != "detach" or now is op)
        for now in inside:
            if now.name == "detach":
                now.func, now.name = torch.ops.aten.alias.default, "alias"
                if now is not op:
                    trace.live[now.out] = trace.live[now.reads[0].value]
        return arriving

    def _passing_on(self, op: Op, goes_on: Callable[[Op, Op], bool]) -> tuple[list[Op], int]:
        """Let gradients pass through what is cut before an operation, from one to its maker.

        Returns the operations and the gradients that arrive there.
        """
        trace, found, arriving = self.trace, [op], 0
        for now in found:
            for ref in now.reads:
                maker, tensor = trace.made(ref.value), trace.tensors[ref.slot]
                is_cut = trace.depends[ref.value] & ~trace.live[ref.value]
                if is_cut and is_real(tensor) and maker is not None and goes_on(now, maker):
                    trace.live[ref.value] = trace.depends[ref.value]
                    found.append(maker)
                arriving |= trace.live[ref.value]
        return found, arriving


@contextmanager
def recording(
    model: nn.Module, inputs: Iterable[Tensor], graded: bool = True
) -> Iterator[Callable[[Any], Trace]]:
    """Record a pass within the block; the function given ends it and returns the list."""
    pass_ = Recording(model, inputs, graded)
    with ExitStack() as hooks:
        for handle in (
            register_module_forward_pre_hook(pass_.enter),
            register_module_forward_hook(pass_.leave, always_call=True),
        ):
            hooks.callback(handle.remove)
        hooks.callback(pass_.abandon)
        pass_.begin()
        yield pass_.end


def fill_refs(known: Any, given: Any, put: Callable[[Ref], Any]) -> Any:
    """Nested arguments: `put` of every `Ref` in `known`, all else from `given`, which is alike."""
    if type(known) is Ref:
        return put(known)
    if isinstance(known, list | tuple):
        parts = [fill_refs(k, g, put) for k, g in zip(known, given, strict=True)]
        return type(known)(*parts) if hasattr(known, "_fields") else type(known)(parts)
    if type(known) is dict:
        return {key: fill_refs(part, given[key], put) for key, part in known.items()}
    return given


def pair_refs(known: Any, given: Any) -> Iterator[tuple[Ref, Any]]:
    """Every `Ref` in nested arguments or results, and what takes its place in `given`."""
    if type(known) is Ref:
        yield known, given
    elif isinstance(known, dict):
        for key, part in known.items():
            yield from pair_refs(part, given[key])
    elif isinstance(known, NESTED):
        for part, own in zip(known, given, strict=False):  # a split may be into fewer parts
            yield from pair_refs(part, own)


def refs_in(known: Any) -> list[Ref]:
    """All references in nested arguments."""
    return [ref for ref, _ in pair_refs(known, known)]


def _is_of_script(tensor: Tensor) -> bool:
    """Whether a tensor has the backward pass that TorchScript writes for its code."""
    return tensor.grad_fn is not None and "DifferentiableGraph" in tensor.grad_fn.name()


def is_real(tensor: Tensor) -> bool:
    """Whether a tensor is of a type that gradients flow through."""
    return tensor.is_floating_point() or tensor.is_complex()


def tensors_kept_by(modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    """The tensors that modules keep, as parameters, buffers or plain attributes, by id."""
    kept = (names for m in modules for names in (vars(m), m._parameters, m._buffers))
    return {id(t): t for names in kept for t in names.values() if isinstance(t, Tensor)}


def memory_of(tensor: Tensor) -> int:
    """The address of a tensor's storage."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors have none
        return -id(tensor)
