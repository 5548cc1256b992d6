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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphxai.contract.randomness import DRAWING, current_draws, draws_numbers

from .vocabulary import name_of
from .written_out import WRITTEN_OUT

VALUELESS = {  # the result does not depend on the values of the arguments
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_empty_strided", "randint_like", "zero", "fill",
}  # fmt: skip
CUTS = {"detach", "round", "sign", "sgn", "floor", "ceil", "trunc", "frac", "heaviside"}
LEAVING = {"tolist", "numpy", "array", "item", "float", "dlpack"}
HOOKS = {"register_hook", "retain_grad"}
NESTED = (tuple, list, dict)  # among arguments
WEIGHTS = 1 << 62  # the bit of what the model keeps


class Ref(NamedTuple):
    """A tensor among the arguments of an operation: where it is kept, and the value it had."""

    slot: int
    value: int


@dataclass(slots=True, eq=False)
class Running:
    """A module that runs: its path, the one that called it, and the first tensor it was given."""

    path: str
    outer: "Running | None" = None
    rows: Tensor | None = None


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
    within: Running
    in_place: bool
    graded: bool
    nested: bool
    flat: tuple[tuple[int, Ref], ...] = field(init=False)  # the tensors in `args`, by place
    deep: tuple[int, ...] = field(init=False)  # places of lists with tensors

    def __post_init__(self) -> None:
        self.note_places()

    def note_places(self) -> None:
        """Note where the tensors are among the arguments."""
        flat, deep = [], []
        for k, arg in enumerate(self.args):
            if type(arg) is Ref:
                flat.append((k, arg))
            elif isinstance(arg, NESTED):
                deep.append(k)
        self.flat, self.deep = tuple(flat), tuple(deep)

    def with_tensors(
        self, put: Callable[[Ref], Any], args: Any, kwargs: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with `put` of every `Ref`, and all else from those given, which are alike."""
        made = list(args)
        for k, ref in self.flat:
            made[k] = put(ref)
        for k in self.deep:
            made[k] = filled(self.args[k], args[k], put)
        return made, filled(self.kwargs, kwargs, put) if kwargs else kwargs

    def tensors(self, args: Any, kwargs: Any) -> list[Any]:
        """Of given arguments, which are alike, what takes the place of each of `reads`."""
        if not self.deep and not kwargs:
            return [args[k] for k, _ in self.flat]
        found: list[Any] = []
        _gather((self.args, self.kwargs), (args, kwargs), found)
        return found

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
    last_write: dict[int, int] = field(default_factory=dict)  # by storage: the operation
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


# operation, arguments, results, module, whether gradients are on, whether written out
_Call = tuple[Any, tuple[Any, ...], dict[str, Any], Any, Running, bool, bool]


class _Recorder(TorchDispatchMode):
    """Keeps every operation of its thread, with arguments, results and the running module."""

    apart: Mapping[int, int] = {}  # no result is replaced

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self._nested = 0
        self.graded = True
        self.within = Running("")
        self.left: list[tuple[int, Tensor]] = []  # values that left PyTorch: when, and what
        self.chance: set[tuple[str, str]] = set()  # where random numbers were drawn, and by what
        self.before: dict[int, Tensor] = {}  # copies of tensors that are written to
        self.made: set[int] = set()
        self.drawn: dict[int, Tensor] = {}
        self.hooked = False
        self.modules: list[nn.Module] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = kind_of(func)
        if kind.parts is not None:
            return self._in_parts(kind.parts, args, kwargs)
        if kind.writes is not None:
            target = _argument(kind.writes, args, kwargs)
            if isinstance(target, Tensor) and id(target) not in self.made:
                self.before.setdefault(id(target), target.detach().clone())
        out = func(*args, **kwargs)
        if kind.draws:
            self.drawn[len(self.calls)] = out.detach().clone() if kind.writes is not None else out
        self.hooked = self.hooked or saves_elsewhere()
        graded = torch.is_grad_enabled()
        self.calls.append((func, args, kwargs, out, self.within, graded, self._nested > 0))
        results = out if isinstance(out, tuple | list) else (out,)
        self.made.update(id(t) for t in results if isinstance(t, Tensor))
        return out

    def leaves(self, tensor: Any) -> None:
        """A value leaves PyTorch."""
        self.left.append((len(self.calls), tensor))

    def changes_gradients(self) -> None:
        """The model wants to see, or to change, a gradient on its way back."""
        self.hooked = True

    def draws(self, name: str) -> None:
        """The running module draws random numbers."""
        self.chance.add((self.within.path, name))

    def _in_parts(self, parts: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._nested += 1
        try:
            with self:
                return parts(*args, **kwargs)
        finally:
            self._nested -= 1


def saves_elsewhere() -> bool:
    """Whether hooks handle what autograd saves for the backward pass, as a checkpoint's do."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


class _Kind(NamedTuple):
    """What is fixed for an operation: its name, which argument it writes to, and so on."""

    name: str
    writes: tuple[int, str] | None
    views: bool
    draws: bool
    valueless: bool
    parts: Callable[..., Any] | None  # if it is recorded in parts


_kinds: dict[Any, _Kind] = {}


def kind_of(func: Any) -> _Kind:
    """What is fixed for an operation."""
    known = _kinds.get(func)
    if known is None:
        known = _kinds[func] = _described(func)
    return known


def _described(func: Any) -> _Kind:
    schema = func._schema
    full = schema.name.removeprefix("aten::")
    name = full if full.startswith("__") else full.rstrip("_")
    writes, views = None, False
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            views = True
            if argument.alias_info.is_write and writes is None:
                writes = (place, argument.name)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )
    parts = WRITTEN_OUT.get(func) or (func.decompose if composite else None)
    return _Kind(name, writes, views, draws, name in VALUELESS, parts)


def _argument(place: tuple[int, str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[place[0]] if len(args) > place[0] else kwargs.get(place[1])


class _Python(TorchFunctionMode):
    """Tells a mode of values that leave PyTorch, of random numbers, and of hooks on gradients.

    With it on, layers do without kernels for inference.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = name_of(func), kwargs or {}
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
def watched(mode: Any, graded: bool) -> Iterator[None]:
    """A pass runs within the block under this mode of the dispatcher; graded: with gradients."""
    if (draws := current_draws()) is not None:
        draws.begin()
    _recording.count = getattr(_recording, "count", 0) + 1
    try:
        with torch.set_grad_enabled(graded), _Python(mode), mode:
            yield
    finally:
        _recording.count -= 1


class Recording:
    """A pass being recorded in this thread, from `begin` to `end`."""

    def __init__(self, model: nn.Module) -> None:
        self._mode = _Recorder()
        self._mode.modules = list(model.modules())
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack: list[nn.Module] = []
        self._thread = threading.get_ident()
        self._open = ExitStack()
        self._inputs: list[Tensor] | None = None

    def begin(self, inputs: Iterable[Tensor] | None, graded: bool = True) -> None:
        """Start; each of the inputs has a bit of its own, in their order.

        None: whatever requires a gradient and comes from outside, other than parameters. graded:
        whether gradients are on; if not, gradients are taken to flow wherever the data does.
        """
        self._inputs = None if inputs is None else list(inputs)
        self._mode.graded = graded
        self._open.enter_context(watched(self._mode, graded))

    def end(self, output: Any) -> Trace:
        """Stop, and put the list together."""
        self._open.close()
        if self._mode.chance and (draws := current_draws()) is not None:
            draws.seen = True
        return _assembled(self._mode, self._inputs, output)

    def abandon(self) -> None:
        """Stop after an error."""
        self._open.close()

    @property
    def depth(self) -> int:
        """How many modules are running, one inside the other."""
        return len(self._stack)

    def enter(self, module: nn.Module, args: Any = ()) -> None:
        """A module begins."""
        if threading.get_ident() == self._thread and id(module) in self._paths:
            self._stack.append(module)
            rows = next((arg for arg in args if isinstance(arg, Tensor)), None)
            self._mode.within = Running(self._paths[id(module)], self._mode.within, rows)

    def leave(self, module: nn.Module, args: Any = (), output: Any = None) -> None:
        """A module ends."""
        if threading.get_ident() == self._thread and self._stack and self._stack[-1] is module:
            self._stack.pop()
            self._mode.within = self._mode.within.outer or Running("")


@contextmanager
def recording(
    model: nn.Module, inputs: Iterable[Tensor], graded: bool = True
) -> Iterator[Callable[[Any], Trace]]:
    """Record a pass within the block; the function given ends it and returns the list."""
    pass_ = Recording(model)
    with ExitStack() as hooks:
        for handle in (
            register_module_forward_pre_hook(pass_.enter),
            register_module_forward_hook(pass_.leave, always_call=True),
        ):
            hooks.callback(handle.remove)
        hooks.callback(pass_.abandon)
        pass_.begin(inputs, graded)
        yield pass_.end


# -- putting the list together ---------------------------------------------------------------------


def _assembled(mode: _Recorder, inputs: list[Tensor] | None, output: Any) -> Trace:
    trace = Trace()
    build = _Assembly(trace, mode, inputs is None)
    for k, tensor in enumerate(inputs or ()):
        build.begin(build.slot(tensor), 1 << k)
    for number, call in enumerate(mode.calls):
        build.add(number, call)
    trace.output = build.refs(output, [])
    trace.chance, trace.hooked = mode.chance, mode.hooked
    build.finish()
    return trace


class _Assembly:
    """Puts a trace together: slots for tensors, values for what they held at the time."""

    def __init__(self, trace: Trace, mode: _Recorder, any_input: bool) -> None:
        self.trace, self.mode, self.any_input = trace, mode, any_input
        self.latest, self.storage = trace.latest, trace.storage
        self.written: dict[int, int] = {}  # by storage: the value last written to it
        self._own: set[int] | None = None  # tensors that the model keeps
        self._real: dict[int, int] | None = None  # by storage of the tensor: its first slot

    def slot(self, tensor: Tensor, base: int | None = None, outside: bool = True) -> int:
        """The slot of a tensor, a new one if it was never seen; outside: no operation made it."""
        trace = self.trace
        known = trace.slots.get(id(tensor))
        if known is not None:
            return known
        slot = len(trace.tensors)
        trace.slots[id(tensor)] = slot
        trace.tensors.append(tensor)
        self.latest.append(-1)
        self.storage.append(slot if base is None else self.storage[base])
        if outside:
            self._from_outside(slot, tensor)
            trace.outside[slot] = weakref.ref(tensor) if self._is_kept(tensor) else None
        self.latest[slot] = self.value(slot, -1)
        if trace.outside.get(slot) is not None:
            trace.depends[self.latest[slot]] = WEIGHTS
        elif outside and self._has_come_back(tensor):
            trace.depends[self.latest[slot]] = 1
        if self.any_input and outside and is_input(tensor):
            self.begin(slot, 1)
        if (before := self.mode.before.get(id(tensor))) is not None:
            trace.before[slot] = before
        return slot

    def begin(self, slot: int, bit: int) -> None:
        """The tensor in a slot is an input."""
        self.trace.inputs[slot] = bit
        value = self.latest[slot]
        self.trace.depends[value] = bit
        self.trace.live[value] = bit if is_real(self.trace.tensors[slot]) else 0

    def value(self, slot: int, maker: int) -> int:
        """A new value held by a slot."""
        trace = self.trace
        trace.slot_of_value.append(slot)
        trace.maker.append(maker)
        trace.uses.append([])
        trace.depends.append(0)
        trace.live.append(0)
        return len(trace.maker) - 1

    def _from_outside(self, slot: int, tensor: Tensor) -> None:
        """A tensor that no operation returned may share memory with one (`.data`, NumPy)."""
        if isinstance(tensor, nn.Parameter) or not self.trace.ops:
            return
        if self._real is None:
            self._real = {}
        for other in range(len(self._real), slot):
            self._real.setdefault(memory_of(self.trace.tensors[other]), other)
        shared = self._real.get(memory_of(tensor))
        if shared is not None:
            self.storage[slot] = self.storage[shared]

    def _has_come_back(self, tensor: Tensor) -> bool:
        """Whether a tensor may be made of a signal that left PyTorch, or this thread, before."""
        hidden = tensor.grad_fn is not None and not self.any_input  # as from another thread
        if not (hidden or self.trace.left is not None):
            return False
        return is_real(tensor) and not self._is_kept(tensor)

    def _is_kept(self, tensor: Tensor) -> bool:
        """Whether the model keeps a tensor, as a parameter, a buffer or a plain attribute."""
        if self._own is None:
            self._own = ids_of_kept(self.mode.modules)
        return id(tensor) in self._own or isinstance(tensor, nn.Parameter)

    def _note_leaving(self, number: int) -> None:
        while self.mode.left and self.mode.left[0][0] <= number:
            at, tensor = self.mode.left.pop(0)
            slot = self.trace.slots.get(id(tensor))
            self.trace.leaving.append((at, slot))
            if slot is not None and self.trace.depends[self.latest[slot]] & 1:
                self.trace.left = number if self.trace.left is None else self.trace.left

    def read(self, tensor: Tensor) -> Ref:
        """The value that a tensor has now."""
        slot = self.slot(tensor)
        value = self.latest[slot]
        written = self.written.get(self.storage[slot])
        if written is not None and written > value:  # another view of it was written to
            new = self.value(slot, self.trace.maker[written])
            self.trace.depends[new] = self.trace.depends[value] | self.trace.depends[written]
            self.trace.joined[new] = (value, written)
            self.latest[slot] = value = new
        return Ref(slot, value)

    def refs(self, given: Any, found: list[Ref]) -> Any:
        """The same arguments with a `Ref` for every tensor; all of them are added to `found`."""
        if isinstance(given, Tensor):
            ref = self.read(given)
            found.append(ref)
            return ref
        if not isinstance(given, NESTED):
            return given
        if not isinstance(given, dict):
            parts = [self.refs(part, found) for part in given]
            if hasattr(given, "_fields"):
                return type(given)(*parts)
            return tuple(parts) if isinstance(given, tuple) else parts
        return {key: self.refs(part, found) for key, part in given.items()}

    def add(self, number: int, call: _Call) -> None:
        """Add one call to the list."""
        func, args, kwargs, out, within, graded, nested = call
        kind, trace = kind_of(func), self.trace
        self._note_leaving(number)
        reads: list[Ref] = []
        args = tuple([self.refs(arg, reads) for arg in args])
        kwargs = {key: self.refs(arg, reads) for key, arg in kwargs.items()} if kwargs else {}
        made: list[Ref] = []
        base = reads[0].slot if kind.views and reads else None
        writes = kind.writes is not None
        result = self._results(out, number, base, writes, made)
        called = func
        if writes and kwargs.pop("out", None) is not None:  # as if it made a new tensor
            func, writes = getattr(torch.ops.aten, kind.name), False
        op = Op(number, called, func, kind.name, args, kwargs, tuple(reads), tuple(made), result,
                within, writes, graded, nested)  # fmt: skip
        trace.ops.append(op)
        depends = 0
        if not kind.valueless:
            for ref in reads:
                depends |= trace.depends[ref.value]
        if trace.left is not None and any(isinstance(arg, float) for arg in op.args):
            depends |= 1  # the number may be one that left
        for ref in reads:
            trace.uses[ref.value].append(number)
        for ref in made:
            trace.depends[ref.value] = depends
        if kind.draws:
            trace.drawn[number] = self.mode.drawn[number]

    def _results(
        self, out: Any, number: int, base: int | None, in_place: bool, made: list[Ref]
    ) -> Any:
        if isinstance(out, Tensor):
            slot = self.slot(out, base, outside=False)
            value = self.latest[slot] = self.value(slot, number)
            if in_place:
                self.written[self.storage[slot]] = value
                self.trace.last_write[self.storage[slot]] = number
            ref = Ref(slot, value)
            made.append(ref)
            return ref
        if isinstance(out, tuple | list):
            return [self._results(part, number, base, in_place, made) for part in out]
        return out

    def finish(self) -> None:
        """Find where gradients flow, and which tensors were written to."""
        trace = self.trace
        trace.leaving += [(at, trace.slots.get(id(tensor))) for at, tensor in self.mode.left]
        for op in trace.ops:
            self._find_live(op)
        for value in trace.joined:
            self._live(value)
        trace.unstable = {
            slot for slot, storage in enumerate(self.storage) if storage in self.written
        }
        for op in trace.ops:  # whose results share memory with what they are parts of
            if op.name.startswith("unsafe_") and any(r.slot in trace.unstable for r in op.makes):
                trace.unstable.add(op.reads[0].slot)
        for number in trace.drawn:
            trace.unstable.difference_update(ref.slot for ref in trace.ops[number].makes)

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
            elif not self.mode.graded:
                passes = is_real(tensor)
            elif op.nested:
                passes = op.graded and is_real(tensor)
            elif passes := tensor.requires_grad and not op.graded:
                arriving = self._revived(op)
            else:
                passes = tensor.requires_grad
            if passes:
                trace.live[ref.value] = arriving & depends
            elif is_real(tensor) and op.name not in CUTS:  # inputs that need no gradient
                trace.live[ref.value] = arriving & depends & ~1

    def _live(self, value: int) -> int:
        """Where gradients come from, for a value that may be of several writes."""
        live = self.trace.live
        if value in self.trace.joined and not live[value]:
            live[value] = live[self.trace.joined[value][0]] | live[self.trace.joined[value][1]]
        return live[value]

    def _is_cut(self, ref: Ref) -> bool:
        """Whether there is data in a value from which no gradient comes."""
        return bool(self.trace.depends[ref.value] & ~self.trace.live[ref.value])

    def _rewritten_script(self, op: Op) -> int:
        """Gradients in what TorchScript ran with its own backward pass to end with this `detach`.

        There inputs are detached, and so are the outputs, which then get that backward pass.
        """
        trace = self.trace
        todo, arriving = [op], 0
        while todo:
            now = todo.pop()
            for ref in now.reads:
                maker = trace.made(ref.value)
                inside = now.name != "detach" or now is op
                if inside and maker is not None and self._is_cut(ref):
                    trace.live[ref.value] = trace.depends[ref.value]
                    todo.append(maker)
                arriving |= trace.live[ref.value]
            if now.name == "detach":
                now.func, now.name = torch.ops.aten.alias.default, "alias"
                if now is not op:
                    trace.live[now.out] = trace.live[now.reads[0].value]
        return arriving

    def _revived(self, op: Op) -> int:
        """Gradients on in what a custom function did to end with this operation.

        Custom functions and checkpoints run without gradients and yet pass them on.
        """
        trace = self.trace
        todo, arriving = [op], 0
        while todo:
            for ref in todo.pop().reads:
                if self._is_cut(ref) and is_real(trace.tensors[ref.slot]):
                    maker = trace.made(ref.value)
                    if maker is not None and not maker.graded:
                        trace.live[ref.value] = trace.depends[ref.value]
                        todo.append(maker)
                arriving |= trace.live[ref.value]
        return arriving


def filled(known: Any, given: Any, put: Callable[[Ref], Any]) -> Any:
    """Nested arguments: `put` of every `Ref` in `known`, all else from `given`, which is alike."""
    if type(known) is Ref:
        return put(known)
    if isinstance(known, list | tuple):
        parts = [filled(k, g, put) for k, g in zip(known, given, strict=True)]
        return type(known)(*parts) if hasattr(known, "_fields") else type(known)(parts)
    if type(known) is dict:
        return {key: filled(part, given[key], put) for key, part in known.items()}
    return given


def _gather(known: Any, given: Any, found: list[Any]) -> None:
    """Add what takes the place of every `Ref` in `known`, in their order."""
    if type(known) is Ref:
        found.append(given)
    elif isinstance(known, dict):
        for key, part in known.items():
            _gather(part, given[key], found)
    elif isinstance(known, NESTED):
        for part, own in zip(known, given, strict=True):
            _gather(part, own, found)


def is_input(tensor: Tensor) -> bool:
    """Whether a tensor from outside is what is explained, and no parameter."""
    return tensor.requires_grad and not isinstance(tensor, nn.Parameter)


def _is_of_script(tensor: Tensor) -> bool:
    """Whether a tensor has the backward pass that TorchScript writes for its code."""
    return tensor.grad_fn is not None and "DifferentiableGraph" in tensor.grad_fn.name()


def is_real(tensor: Tensor) -> bool:
    """Whether a tensor is of a type that gradients flow through."""
    return tensor.is_floating_point() or tensor.is_complex()


def ids_of_kept(modules: Iterable[nn.Module]) -> set[int]:
    """Of the tensors that modules keep, as parameters, buffers or plain attributes."""
    kept = (names for m in modules for names in (vars(m), m._parameters, m._buffers))
    return {id(value) for names in kept for value in names.values() if isinstance(value, Tensor)}


def memory_of(tensor: Tensor) -> int:
    """The address of a tensor's storage."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors have none
        return -id(tensor)
