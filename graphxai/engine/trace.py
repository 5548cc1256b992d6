"""The flat list of the ATen operations of a pass (a Wengert list).

Below PyTorch's dispatcher every operation has one name, however the model spells it: there are no
methods, operators, aliases, checkpoints, `vmap`, TorchScript or fused attention. The list says
which values each operation read and made, so that the origin and the use of a value can be followed
through the whole pass.

A value *depends on* an input if data flows from the input to the value, through tensors of any
type. It is *live* if a gradient flows back, too. `detach`, `no_grad`, rounding and comparisons cut
the gradient, but not the data.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

NESTED = (tuple, list, dict)  # the containers that arguments may hold
NODES = 1  # the bit of the nodes' rows; those of the graph's other attributes follow
WEIGHTS = 1 << 62  # the bit of all tensors that the model keeps
TOLERANCE = 1e-3  # of sums that are one


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


@dataclass(slots=True, eq=False)
class Op:
    """One operation. In `args` and `kwargs` a `Ref` stands for every tensor.

    Args:
        func: the function that it calls, never with `out=`; in a list from the autograd graph the
            name of the node.
        name: its ATen name without the mark of an in-place variant.
        reads, makes: the values that it reads and makes, in the order of the tensors.
        result: what it returned, with a `Ref` for every tensor.
        running: the module that was running.
        grad_enabled: whether gradients were on.
        decomposed: whether it is a part of an operation that was recorded in parts, below
            PyTorch's gradients.
    """

    number: int
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

    def with_tensors(self, tensor_of: Callable[[Ref], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with `tensor_of` every `Ref`."""
        args = [fill_refs(a, tensor_of) if isinstance(a, NESTED) else a for a in self.args]
        return args, fill_refs(self.kwargs, tensor_of) if self.kwargs else {}

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
        external: the slots of tensors that no operation made.
    """

    tensors: list[Tensor] = field(default_factory=list)
    latest: list[int] = field(default_factory=list)
    storage: list[int] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    unstable: set[int] = field(default_factory=set)
    initial: dict[int, Tensor] = field(default_factory=dict)
    external: set[int] = field(default_factory=set)

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
        first_exit: the number of the first operation after a signal left PyTorch.
        random_results: what random operations returned, by number.
        random_calls: the path of a module and the name of a function by which it drew random
            numbers.
        gradient_changes: whether hooks, or backward passes in Python, change the gradient.
    """

    ops: list[Op] = field(default_factory=list)
    memory: TensorMemory = field(default_factory=TensorMemory)
    flow: DataFlow = field(default_factory=DataFlow)
    inputs: dict[int, int] = field(default_factory=dict)
    output: Any = None
    first_exit: int | None = None
    random_results: dict[int, Tensor] = field(default_factory=dict)
    random_calls: set[tuple[str, str]] = field(default_factory=set)
    gradient_changes: bool = False
    # the number of operations that were looked at, and by storage those that touch it
    _touching: tuple[int, dict[int, list[int]]] = field(default_factory=lambda: (0, {}))

    def new_value(self, slot: int, maker: int = -1, depends: int = 0, live: int = 0) -> int:
        """Let a slot hold a new value from now on."""
        self.memory.latest[slot] = self.flow.add(slot, maker, depends, live)
        return self.memory.latest[slot]

    def touching(self, slot: int) -> list[int]:
        """Return the operations that make or write to any view of a slot's storage."""
        count, by_storage = self._touching
        if count != len(self.ops):
            by_storage = {}
            for op in self.ops:
                for storage in {self.memory.storage[ref.slot] for ref in op.makes}:
                    by_storage.setdefault(storage, []).append(op.number)
            self._touching = len(self.ops), by_storage
        return by_storage.get(self.memory.storage[slot], [])

    def slot_of(self, bit: int) -> int:
        """Return the slot of the input with this bit."""
        return next(slot for slot, input_bit in self.inputs.items() if input_bit == bit)

    def tensor(self, value: int) -> Tensor:
        """Return the tensor that held a value. It may have been written to since."""
        return self.memory.tensors[self.flow.slot_of_value[value]]

    def shape(self, value: int) -> torch.Size:
        """Return the shape of the tensor that held a value."""
        return self.tensor(value).shape

    def is_uniform(self, value: int) -> bool:
        """Whether all entries of a constant are the same number, and not zero.

        A weight of the model does not count, as it may be trained.
        """
        made_of_weights = self.flow.maker[value] < 0 and self.flow.depends[value] & WEIGHTS
        entries = self.tensor(value)
        if made_of_weights or not entries.numel():
            return False
        first = entries.flatten()[0]
        return bool(first != 0) and bool((entries == first).all())

    def sums_to_one(self, value: int) -> bool:
        """Whether a value sums to one along an axis, where its entries are not all zero."""
        weights = self.tensor(value).detach()
        if not weights.numel() or bool((weights < 0).any()):
            return False
        for axis in range(weights.dim()):
            sums = weights.double().sum(axis)
            fits = ((sums - 1).abs() < TOLERANCE) | (sums == 0)
            if weights.shape[axis] > 1 and bool(fits.all()):
                return bool(sums.any())
        return False

    def pads_with(self, op: Op) -> float:
        """Return the number with which an operation pads."""
        return float(op.args[2]) if len(op.args) > 2 else 0.0

    def op_of(self, value: int) -> Op | None:
        """Return the operation that made a value, or None for a value from outside."""
        number = self.flow.maker[value]
        return None if number < 0 else self.ops[number]

    def op_name(self, value: int) -> str:
        """Return the name of the operation that made a value, or "" for a value from outside."""
        op = self.op_of(value)
        return "" if op is None else op.name

    def origin(self, value: int, through: Set[str]) -> int:
        """Follow the first argument of operations in `through` back to a value made by another."""
        while (op := self.op_of(value)) is not None and op.name in through:
            value = op.reads[0].value
        return value

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


def fill_refs(pattern: Any, tensor_of: Callable[[Ref], Any]) -> Any:
    """Return nested arguments with `tensor_of` every `Ref` in them."""
    if type(pattern) is Ref:
        return tensor_of(pattern)
    if isinstance(pattern, list | tuple):
        parts = [fill_refs(part, tensor_of) for part in pattern]
        return type(pattern)(*parts) if hasattr(pattern, "_fields") else type(pattern)(parts)
    if type(pattern) is dict:
        return {key: fill_refs(part, tensor_of) for key, part in pattern.items()}
    return pattern


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


def is_real(tensor: Tensor) -> bool:
    """Whether gradients can flow through tensors of this type."""
    return tensor.is_floating_point() or tensor.is_complex()


def not_followed(what: str, path: str) -> ValueError:
    """Return the error for something in a model that relevance cannot be followed through."""
    return ValueError(
        f"relevance cannot be followed through {what} in {path or 'the model'}: let the model"
        " compute with dense tensors of real numbers there, or explain it by a method that only"
        " hides nodes, such as 'occlusion'."
    )


class Opaque(Exception):
    """A pass whose graph does not say enough; the message says where.

    Args:
        operation: the name of the operation, or of its node, that the reason is about.
        lacks_constants: whether the pass adds constants that its graph does not show.
        complete: whether the reason names the modules and what to do.
    """

    def __init__(
        self, reason: str, operation: str | None = None, lacks_constants: bool = False,
        complete: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(reason)
        self.operation, self.lacks_constants = operation, lacks_constants
        self.complete = complete


class LacksValue(Opaque):
    """A node has not saved what is asked of it; `ValueKeeper` can keep it."""
