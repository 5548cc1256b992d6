"""Run a user's module as it is written, in eval mode, and leave it as it was.

Other threads may be training it. In eval mode runs a replica: shallow copies of the modules, which
share the parameters, buffers and hooks of the originals and whatever else those hold; only the mode
is their own. Where a module refers to another one past the tree of modules (in a list, a bound
method, a closure), the reference leads to the copy.
"""

import operator
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from graphxai.runtime.scope import Blocks

Model = TypeVar("Model")
CONTAINERS = (OrderedDict, dict, list, set)
PLAIN = (bool, int, float, str, type(None))
SHARED = {"_parameters", "_buffers", "_modules"}
_evaluated: Blocks[Mapping[nn.Module, nn.Module]] = Blocks("graphxai_evaluated", {})
_lock = threading.Lock()
_users: dict[Hashable, tuple[int, Callable[[], None]]] = {}  # how many, and what they undo at last


def all_modules(module: nn.Module) -> list[nn.Module]:
    """The module and all within it, as `modules` lists them, in a third of the time."""
    found: dict[int, nn.Module] = {}

    def add(part: nn.Module) -> None:
        if id(part) not in found:
            found[id(part)] = part
            for child in part._modules.values():
                if child is not None:
                    add(child)

    add(module)
    return list(found.values())


@contextmanager
def _shared_block(what: Hashable, begin: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """A block that several threads may be in: the first calls `begin`, the last what it returns."""
    with _lock:
        count, undo = _users[what] if what in _users else (0, begin())
        _users[what] = count + 1, undo
    try:
        yield
    finally:
        with _lock:
            count, undo = _users.pop(what)
            if count > 1:
                _users[what] = count - 1, undo
            else:
                undo()


# -- in eval mode ----------------------------------------------------------------------------------


class _Unreachable(Exception):
    """A reference to a module that cannot be led to its copy."""


def eval_replica_of(module: nn.Module) -> nn.Module:
    """What runs in place of a module within `in_eval_mode`: itself, or its replica."""
    return _evaluated.get().get(module, module)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Within the block `eval_replica_of` returns the module in eval mode; its own mode stays.

    If no replica can be made, the module itself is in eval mode within the block, with a warning.
    """
    in_training = any(part.training for part in all_modules(module)) or id(module) in _users
    if module in _evaluated.get() or not in_training:
        yield
        return
    try:
        replica = replicate(module)
    except _Unreachable as error:
        warnings.warn(
            f"{type(module).__name__} is in eval mode while it is explained, in other threads too:"
            f" {error}. Call model.eval() first, or explain a copy.",
            stacklevel=6,
        )
        with _switched_to_eval(module):
            yield
        return
    with _evaluated.block({**_evaluated.get(), module: replica}):
        yield


def replicate(module: nn.Module) -> nn.Module:
    """A copy of a module in eval mode that shares everything but its mode."""
    copies: dict[int, nn.Module] = {}
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise _Unreachable("it has scripted modules, which have only one mode")
        copies[id(part)] = object.__new__(type(part))
    leading = _ReferenceRedirector(copies)
    for part in module.modules():
        made = copies[id(part)]
        vars(made).update(
            (name, value if name in SHARED or "hooks" in name else leading(value, name))
            for name, value in list(vars(part).items())
        )
        vars(made)["_modules"] = {
            name: None if child is None else copies[id(child)]
            for name, child in part._modules.items()
        }
        vars(made)["training"] = False
    return copies[id(module)]


class _ReferenceRedirector:
    """Leads references to modules to their copies."""

    def __init__(self, copies: Mapping[int, nn.Module]) -> None:
        self.copies = copies
        self._open: set[int] = set()  # what is being looked through

    def __call__(self, value: Any, name: str) -> Any:
        """The same value, or one like it that refers to the copies; name: of the attribute."""
        if isinstance(value, nn.Module):
            return self.copies.get(id(value), value)
        if isinstance(value, Tensor | torch.fx.Graph) or id(value) in self._open:
            return value
        self._open.add(id(value))
        try:
            return self._led(value, name)
        finally:
            self._open.remove(id(value))

    def _led(self, value: Any, name: str) -> Any:
        parts = _taken_apart(value)
        if parts is None:
            inside = getattr(value, "__dict__", None)
            if type(inside) is dict and any(id(part) in self.copies for part in inside.values()):
                raise _Unreachable(f"its attribute {name!r} refers to its modules")
            return value
        held, put_together = parts
        led = [self(part, name) for part in held]
        return value if all(map(operator.is_, led, held)) else put_together(led)


def _taken_apart(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """What a container or a function refers to, and what makes another one; None: it is neither."""
    if type(value) in (list, tuple, set):
        return list(value), type(value)
    if type(value) is dict:
        return list(value.values()), lambda held: dict(zip(value, held, strict=True))
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__], lambda held: MethodType(*held)
    if type(value) is partial:
        function = [value.func, value.args, value.keywords]
        return function, lambda held: partial(held[0], *held[1], **held[2])
    if isinstance(value, FunctionType):
        return list(map(_content, value.__closure__ or ())), lambda held: _closed_over(value, held)
    return None


def _content(cell: CellType) -> Any:
    """What a closure's cell holds; the cell itself if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _closed_over(function: FunctionType, held: list[Any]) -> FunctionType:
    """A function that refers to other values."""
    cells = tuple(part if isinstance(part, CellType) else CellType(part) for part in held)
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    made.__kwdefaults__ = function.__kwdefaults__
    vars(made).update(vars(function))
    return made


@contextmanager
def _switched_to_eval(module: nn.Module) -> Iterator[None]:
    """The module itself in eval mode; the last of several blocks restores each part's mode."""

    def begin() -> Callable[[], None]:
        modes = {part: part.training for part in module.modules()}

        def restore() -> None:
            for part, mode in modes.items():
                part.training = mode

        return restore

    with _shared_block(id(module), begin):
        for part in module.modules():
            part.training = False
        yield


# -- uncompiled ------------------------------------------------------------------------------------


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`'s, or inside `DataParallel`; the weights are the same."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return unwrapped(inner) if isinstance(inner, nn.Module) and inner is not model else model


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Within the block nothing is compiled, if any part of the model is.

    Compiled code runs no hooks and hides its operations. Compiled code in other threads runs
    eagerly too in the meantime, with the same results: PyTorch has one setting for all threads.
    """

    def begin() -> Callable[[], None]:
        stances = ExitStack()
        stances.enter_context(torch.compiler.set_stance("force_eager"))
        return stances.close

    compiled = any(map(_is_compiled, all_modules(model)))
    with _shared_block("eager", begin) if compiled else nullcontext():
        yield


def _is_compiled(module: nn.Module) -> bool:
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or unwrapped(module) is not module


# -- unchanged -------------------------------------------------------------------------------------


def copied(model: Model) -> Model:
    """A deep copy, in which tensors left behind by a pass are constants.

    A model may keep some, for example for an auxiliary loss; PyTorch cannot copy a tensor with a
    history.
    """
    inner: Any = getattr(model, "module", model)
    memo: dict[int, Any] = {}
    held: list[Tensor] = []  # alive, so that no other object gets their ids

    for module in inner.modules() if isinstance(inner, nn.Module) else ():
        for name, value in vars(module).items():
            if name in ("_modules", "_parameters") or type(value) in PLAIN:
                continue
            if type(value) in CONTAINERS and not value:
                # as most are; `deepcopy` would take a third of its time for them
                memo[id(value)] = type(value)()
                continue
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor) and not tensor.is_leaf:
                    held.append(tensor)
                    memo[id(tensor)] = tensor.detach().clone()
    return deepcopy(model, memo)


@contextmanager
def restoring_attributes(module: nn.Module) -> Iterator[None]:
    """Undo what passes within the block assign to the module, such as weights kept to be read."""
    before = [(part, dict(vars(part))) for part in all_modules(module)]
    try:
        yield
    finally:
        for part, own in before:
            vars(part).clear()
            vars(part).update(own)
