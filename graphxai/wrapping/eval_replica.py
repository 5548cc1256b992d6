"""Run a user's module as it is written, in eval mode, and leave the module unchanged.

Other threads may be training the module. So a pass in eval mode runs a replica. It consists of
shallow copies of all modules, which share the parameters, the buffers, the hooks and everything
else with the originals, except for their mode. A module may also refer to another module outside
the tree of modules, in a list, a bound method or a closure. In the replica such a reference leads
to the copy.

`ModuleView` is what a wrapped model shares with `torch.nn.Module`: its mode, weights and device.
"""

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import copy, deepcopy
from functools import partial
from itertools import chain
from types import CellType, FunctionType, MethodType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from graphxai.engine.request import PassMemory
from graphxai.runtime.modules import all_modules
from graphxai.runtime.notices import warn
from graphxai.runtime.scope import Blocks, in_shared_block, shared_block

Model = TypeVar("Model")
CONTAINERS = (OrderedDict, dict, list, set)
PLAIN = (bool, int, float, str, type(None))
SHARED = {"_buffers", "_modules"}
_evaluated: Blocks[Mapping[nn.Module, nn.Module]] = Blocks("graphxai_evaluated", {})


# -- in eval mode ----------------------------------------------------------------------------------


class _Unreachable(Exception):
    """A reference to a module cannot be redirected to its copy."""


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Let `ModuleView.running` be the module in eval mode within the block.

    The mode of the module itself does not change. If no replica can be made, the module is put into
    eval mode within the block, with a warning.
    """
    in_training = any(part.training for part in all_modules(module)) or in_shared_block(id(module))
    changes = in_training or any(map(is_frozen, module.parameters()))
    if module in _evaluated.get() or not changes:
        yield
        return
    try:
        replica = replicate(module)
    except _Unreachable as error:
        if not in_training:
            yield
            return
        warn(
            f"{type(module).__name__} is in eval mode while it is explained, in other threads too:"
            f" {error}. Call model.eval() first, or explain a copy.",
            stacklevel=8,
        )
        with _switched_to_eval(module):
            yield
        return
    with _evaluated.block({**_evaluated.get(), module: replica}):
        yield


def is_frozen(parameter: Any) -> bool:
    """Whether autograd takes a parameter of a common kind for a constant."""
    of_floats = type(parameter) is nn.Parameter and parameter.is_floating_point()
    return of_floats and not parameter.requires_grad


def replicate(module: nn.Module) -> nn.Module:
    """Copy a module in eval mode. The copy shares everything except the mode.

    Its parameters share their numbers and all require gradients, since hooks on autograd's graph
    find what is added by the gradients that it gets. None of them is ever given to `.grad`.
    """
    frozen = filter(is_frozen, module.parameters())
    copies: dict[int, Any] = {id(p): nn.Parameter(p.detach()) for p in frozen}
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise _Unreachable("it has scripted modules, which have only one mode")
        copies[id(part)] = object.__new__(type(part))
    redirected = _ReferenceRedirector(copies)
    for part in module.modules():
        attributes = vars(copies[id(part)])
        attributes.update(
            (name, value if name in SHARED or "hooks" in name else redirected(value, name))
            for name, value in list(vars(part).items())
        )
        attributes["_modules"] = {
            name: None if child is None else copies[id(child)]
            for name, child in part._modules.items()
        }
        attributes["training"] = False
    replica: nn.Module = copies[id(module)]
    return replica


class _ReferenceRedirector:
    """A function that redirects references to modules and parameters to their copies."""

    def __init__(self, copies: Mapping[int, Any]) -> None:
        self.copies = copies
        self._open: set[int] = set()  # ids of the values that are being searched

    def __call__(self, value: Any, name: str) -> Any:
        """Return the value of attribute `name`, or one like it that refers to the copies."""
        if isinstance(value, nn.Module | nn.Parameter):
            return self.copies.get(id(value), value)
        if isinstance(value, Tensor | torch.fx.Graph) or id(value) in self._open:
            return value
        self._open.add(id(value))
        try:
            return self._redirected(value, name)
        finally:
            self._open.remove(id(value))

    def _redirected(self, value: Any, name: str) -> Any:
        parts = _taken_apart(value)
        if parts is None:
            inside = getattr(value, "__dict__", None)
            if type(inside) is dict and any(id(part) in self.copies for part in inside.values()):
                raise _Unreachable(f"its attribute {name!r} refers to its modules")
            return value
        contents, put_together = parts
        redirected = [self(part, name) for part in contents]
        return value if all(map(operator.is_, redirected, contents)) else put_together(redirected)


def _taken_apart(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """Return what a container or function refers to, and a function that makes a new one from it.

    For any other value, return None.
    """
    if type(value) in (list, tuple, set):
        return list(value), type(value)
    if type(value) is dict:
        return list(value.values()), lambda parts: dict(zip(value, parts, strict=True))
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__], lambda parts: MethodType(*parts)
    if type(value) is partial:
        function = [value.func, value.args, value.keywords]
        return function, lambda parts: partial(parts[0], *parts[1], **parts[2])
    if isinstance(value, FunctionType):
        return list(map(_content, value.__closure__ or ())), lambda parts: _closed_over(
            value, parts
        )
    return None


def _content(cell: CellType) -> Any:
    """Return the content of a closure's cell, or the cell itself if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _closed_over(function: FunctionType, contents: list[Any]) -> FunctionType:
    """Copy a function with other contents in its closure."""
    cells = tuple(part if isinstance(part, CellType) else CellType(part) for part in contents)
    copied = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    vars(copied).update(vars(function))
    return copied


@contextmanager
def _switched_to_eval(module: nn.Module) -> Iterator[None]:
    """Put the module itself into eval mode. The last of several blocks restores all modes."""

    def begin() -> Callable[[], None]:
        modes = {part: part.training for part in module.modules()}

        def restore() -> None:
            for part, mode in modes.items():
                part.training = mode

        return restore

    with shared_block(id(module), begin):
        for part in module.modules():
            part.training = False
        yield


# -- unchanged -------------------------------------------------------------------------------------


def copied(model: Model) -> Model:
    """Copy a model deeply, with constants in place of tensors that a pass has left in it.

    A model may keep such tensors, for example for an auxiliary loss, and PyTorch cannot copy a
    tensor that has a history.
    """
    inner: Any = getattr(model, "module", model)
    memo: dict[int, Any] = {}
    alive: list[Tensor] = []  # these stay alive, so that no other object gets their ids

    for module in inner.modules() if isinstance(inner, nn.Module) else ():
        for name, value in vars(module).items():
            if name in ("_modules", "_parameters") or type(value) in PLAIN:
                continue
            if type(value) in CONTAINERS and not value:
                # most containers are empty, and `deepcopy` would spend a third of its time here
                memo[id(value)] = type(value)()
                continue
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor) and not tensor.is_leaf:
                    alive.append(tensor)
                    memo[id(tensor)] = tensor.detach().clone()
    return deepcopy(model, memo)


@contextmanager
def restoring_attributes(module: nn.Module) -> Iterator[None]:
    """Undo what passes in the block assign to the module, such as attention that it keeps.

    What a pass adds to a buffer in place stays, as with any other graph. But if some of its numbers
    are no longer finite, as after a mean of no nodes, it gets those from before.
    """
    before = [(part, dict(vars(part))) for part in all_modules(module)]
    floating = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    buffers = [(buffer, buffer.clone()) for buffer in floating]
    try:
        yield
    finally:
        for part, attributes in before:
            vars(part).clear()
            vars(part).update(attributes)
        with torch.no_grad():
            for buffer, numbers in buffers:
                if bool((~buffer.isfinite() & numbers.isfinite()).any()):
                    buffer.copy_(numbers)


@contextmanager
def unchanged_by_errors(memory: PassMemory) -> Iterator[None]:
    """Forget what a pass in the block shows if it ends in an error, which may be the caller's."""
    known = {name: copy(value) for name, value in vars(memory).items()}
    try:
        yield
    except Exception:
        vars(memory).update(known)
        raise


class ModuleView:
    """A user's module, `module`, with weights that are neither copied nor changed."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def training(self) -> bool:
        """Whether any part of the module is in training mode."""
        return any(m.training for m in self.module.modules())

    def train(self, mode: bool = True) -> Self:
        """Put every part of the module into training mode, or into eval mode.

        Explanations do not depend on this, because they run in eval mode (see `eval_replica`).
        """
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        """Put every part of the module into eval mode."""
        return self.train(False)

    def evaluating(self) -> AbstractContextManager[None]:
        """Run passes within the block in eval mode, whatever the mode of the module is."""
        return in_eval_mode(self.module)

    @property
    def running(self) -> nn.Module:
        """The module that a pass runs, which within `evaluating` is its replica in eval mode."""
        return _evaluated.get().get(self.module, self.module)

    def parameters(self) -> Iterator[Tensor]:
        """Yield the parameters and buffers of the module, or a constant if it has none."""
        has_weights = False
        for value in chain(self.module.parameters(), self.module.buffers()):
            has_weights = True
            yield value
        if not has_weights:
            yield torch.zeros(())

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def float_dtype(self) -> torch.dtype:
        """The type of the first weights that are floats, or PyTorch's default."""
        floats = (p.dtype for p in self.parameters() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert the module's weights, as `torch.nn.Module.to` does."""
        self.module.to(*args, **kwargs)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the module's weights by name, as `torch.nn.Module.state_dict` does."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights into the module, as `torch.nn.Module.load_state_dict` does."""
        return self.module.load_state_dict(*args, **kwargs)

    @property
    def quantised_layer(self) -> str | None:
        """The path of the first layer with weights as packed integers, which pass no gradient."""
        kind, parts = torch.ScriptObject, all_modules(self.module)
        packed = [part for part in parts if any(type(v) is kind for v in vars(part).values())]
        for path, layer in self.module.named_modules() if packed else ():
            if layer is packed[0]:
                return path.removesuffix("._packed_params") or type(self.module).__name__
        return None
