"""Record a pass of a model while it runs, below PyTorch's dispatcher, as a `Trace`."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphxai.engine import operations as kinds
from graphxai.engine.plan import find_live
from graphxai.engine.role_finder import find_roles
from graphxai.engine.trace import WEIGHTS, Op, Ref, RunningModule, Trace, is_real, not_followed
from graphxai.runtime.randomness import DRAWING, current_draws, draws_numbers
from graphxai.runtime.scope import Blocks


class RecordedTrace(Trace):
    """A recorded pass, which prints as its list with the roles of its operations."""

    def __repr__(self) -> str:
        return self.listing(find_roles(self).notes())


class Recording(TorchDispatchMode, TorchFunctionMode):
    """A pass being recorded in this thread, from `begin` to `end`.

    Args:
        inputs: the inputs, each of which gets a bit of its own, in order. If None, everything
            that comes from outside and requires a gradient, other than parameters, gets bit 1.
        graded: whether gradients are on. If they are off, they are taken to flow wherever data
            does.
    """

    def __init__(
        self, model: nn.Module, inputs: Iterable[Tensor] | None = None, graded: bool = True
    ) -> None:
        super().__init__()
        self.trace: Trace = RecordedTrace()
        self._any_input, self._graded = inputs is None, graded
        self._inputs = list(inputs or ())
        self._nested = 0
        self._weights = tensors_kept_by(model.modules())
        self._slot_at: dict[int, int] = {}  # by address, the first slot there, up to `_located`
        self._located = 0
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._within = RunningModule("")
        self._thread = threading.get_ident()
        self._open = ExitStack()
        self._foreign: tuple[str, str] | None = None  # what is not recorded, and in which module

    def begin(self) -> None:
        """Start recording."""
        for k, tensor in enumerate(self._inputs):
            self._begin(self._slot(tensor), 1 << k)
        if (draws := current_draws()) is not None:
            draws.begin()
        for block in (_recording.block(True), torch.set_grad_enabled(self._graded)):
            self._open.enter_context(block)
        TorchFunctionMode.__enter__(self)
        self._open.push(partial(TorchFunctionMode.__exit__, self))
        self._open.enter_context(self)

    def end(self, output: Any) -> Trace:
        """Stop recording, and find out where gradients flow and which tensors were written to."""
        self._open.close()
        trace = self.trace
        if self._foreign is not None:
            raise not_followed(*self._foreign)
        if trace.random_calls and (draws := current_draws()) is not None:
            draws.seen = True
        trace.output = self._refs(output, [])
        if trace.first_exit == len(trace.ops):  # no operation followed
            trace.first_exit = None
        find_live(trace, self._graded)
        slots = enumerate(trace.memory.storage)
        unstable = {slot for slot, storage in slots if storage in trace.memory.written}
        for op in trace.ops:  # their results share memory with the tensor that they split
            if op.name.startswith("unsafe_") and any(ref.slot in unstable for ref in op.makes):
                unstable.add(op.reads[0].slot)
        for number in trace.random_results:
            unstable.difference_update(ref.slot for ref in trace.ops[number].makes)
        trace.memory.unstable = unstable
        return trace

    def close(self) -> None:
        """Stop recording, also after an error."""
        self._open.close()

    # -- what the model does -------------------------------------------------------------------

    @property
    def is_within_module(self) -> bool:
        """Whether a module is running."""
        return self._within.outer is not None

    def enter(self, module: nn.Module, args: Any = ()) -> None:
        """Note that a module begins to run."""
        if threading.get_ident() == self._thread and id(module) in self._paths:
            rows = next((arg for arg in args if isinstance(arg, Tensor)), None)
            self._within = RunningModule(self._paths[id(module)], self._within, rows)

    def leave(self, module: nn.Module, args: Any = (), output: Any = None) -> None:
        """Note that a module has run."""
        outer, is_of_thread = self._within.outer, threading.get_ident() == self._thread
        if is_of_thread and outer is not None and self._paths.get(id(module)) == self._within.path:
            self._within = outer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note values that leave PyTorch, and random numbers, in calls from Python.

        As long as this is active, PyTorch's layers do not use their kernels for inference.
        """
        name, kwargs, trace = name_of(func), kwargs or {}, self.trace
        if any(kind.__name__ == "NestedTensor" for kind in types):
            # an error within a nested tensor would end the process
            raise not_followed("a nested tensor", self._within.path)
        if getattr(func, "__name__", "") in EXITS and trace.first_exit is None:
            slot = trace.memory.slots.get(id(args[0]))
            if slot is not None and trace.flow.depends[trace.memory.latest[slot]] & 1:
                trace.first_exit = len(trace.ops)
        if name in DRAWING and draws_numbers(name, args, kwargs):
            trace.random_calls.add((self._within.path, name))
        return func(*args, **kwargs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing compiled is recorded, and the check would slow every operation."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # a subclass of tensors may compute by code of its own, as masked tensors do
        own_code = (t for t in types if t.__torch_dispatch__ is not Tensor.__torch_dispatch__)
        if foreign := next(own_code, None):
            # an error here, within PyTorch's code for such a tensor, would end the process
            self._foreign = self._foreign or (f"a {foreign.__name__}", self._within.path)
            return func(*args, **kwargs)
        kind = operation_kind(func)
        if kind.parts is not None:
            self._nested += 1
            try:
                with self:
                    return kind.parts(*args, **kwargs)
            finally:
                self._nested -= 1
        reads: list[Ref] = []
        patterns = self._refs(args, reads), self._refs(kwargs, reads) if kwargs else {}
        if kind.writes is not None:
            place, name = kind.writes
            target = args[place] if len(args) > place else kwargs.get(name)
            memory, slot = self.trace.memory, self.trace.memory.slots.get(id(target))
            if slot in memory.external and slot not in memory.initial:
                memory.initial[slot] = target.detach().clone()
        out = func(*args, **kwargs)
        self._add(func, kind, *patterns, reads, out)
        return out

    def _add(
        self, func: Any, kind: "OperationKind", args: Any, kwargs: Any, reads: list[Ref], out: Any
    ) -> None:
        """Add an operation to the list."""
        trace, number = self.trace, len(self.trace.ops)
        depends = 0
        if kind.name not in kinds.VALUELESS:
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
        trace.ops.append(
            Op(number, func, kind.name, args, kwargs, tuple(reads), tuple(makes), result,
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
        if not isinstance(arguments, tuple | list | dict):
            return arguments
        if isinstance(arguments, dict):
            return {key: self._refs(part, reads) for key, part in arguments.items()}
        parts = [self._refs(part, reads) for part in arguments]
        if hasattr(arguments, "_fields"):
            return type(arguments)(*parts)
        return tuple(parts) if isinstance(arguments, tuple) else parts

    def _results(
        self, out: Any, base: int | None, writes: bool, depends: int, makes: list[Ref]
    ) -> Any:
        """Return results as `Ref`s, and append these to `makes`. They may share `base`'s memory."""
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
        trace.memory.external.add(slot)
        # it may be made of a signal that left PyTorch or this thread earlier
        from_another_thread = tensor.grad_fn is not None and not self._any_input
        may_come_back = from_another_thread or trace.first_exit is not None
        came_back = not is_weight and is_real(tensor) and may_come_back
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


@contextmanager
def recording(
    model: nn.Module, inputs: Iterable[Tensor], graded: bool = True
) -> Iterator[Callable[[Any], Trace]]:
    """Record a pass within the block. The yielded function ends it and returns its trace."""
    mode = Recording(model, inputs, graded)
    with (
        register_module_forward_pre_hook(mode.enter),
        register_module_forward_hook(mode.leave, always_call=True),
        closing(mode),
    ):
        mode.begin()
        yield mode.end


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


# the underscores tell `float(x)` from `x.float()`, which stays within PyTorch
EXITS = {"tolist", "numpy", "__array__", "item", "__float__", "__dlpack__"}


@lru_cache(4096)
def name_of(func: Any) -> str:
    """Return the name of a function of PyTorch, without the underscores of `__array__`."""
    name: str = getattr(func, "__name__", "")
    return name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")


_recording: Blocks[bool] = Blocks("graphxai_recording", False)


def is_recording() -> bool:
    """Whether a pass is being recorded in this thread."""
    return _recording.get()


# -- what an operation always does, read from its schema -------------------------------------------


class OperationKind(NamedTuple):
    """What an operation always does.

    Args:
        writes: the place and name of the argument that it writes to, if any.
        views: whether its results may share memory with its arguments.
        draws: whether it draws random numbers.
        parts: a function that computes it by other operations, which are recorded in its place,
            if there is one.
    """

    name: str
    writes: tuple[int, str] | None
    views: bool
    draws: bool
    parts: Callable[..., Any] | None


@cache
def operation_kind(func: Any) -> OperationKind:
    """Read from its schema what an operation always does."""
    schema = func._schema
    full = schema.name.removeprefix("aten::")
    name = full if full.startswith("__") else full.rstrip("_")
    row = kinds.OPERATIONS[name]
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
        _parts_of(row, full, aliased) or (func.decompose if composite else None),
    )


def _parts_of(row: kinds.Operation, full: str, aliased: list[Any]) -> Callable[..., Any] | None:
    """Return what computes a fused operation by others, also if that writes to its argument."""
    parts = row.parts
    if parts is None or any(argument.name == "out" for _, argument in aliased):
        return None
    return (lambda x, *args: x.copy_(parts(x, *args))) if full.endswith("_") else parts
