"""What modules a model has, without wrappers, and how it is called eagerly or with gradients."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphxai.runtime.scope import shared_block


def all_modules(module: nn.Module) -> list[nn.Module]:
    """List the module and all modules in it like `modules`, but in a third of the time."""
    modules: dict[int, nn.Module] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if id(part) not in modules:
            modules[id(part)] = part
            waiting += [child for child in reversed(part._modules.values()) if child is not None]
    return list(modules.values())


def form_of(module: nn.Module) -> tuple[Any, ...]:
    """Return the types and shapes of a module's parts, which are the same in its copies."""
    parts = all_modules(module)  # one walk through the tree; `parameters` would need another
    weights = (p for part in parts for p in part._parameters.values() if p is not None)
    return *map(type, parts), *(p.shape for p in weights)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` or `DataParallel` wraps, with the same weights."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return unwrapped(inner) if isinstance(inner, nn.Module) and inner is not model else model


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run a model eagerly within the block, if any part of it is compiled.

    Compiled code runs no hooks and hides its operations. PyTorch has one setting for all threads.
    In the meantime, compiled code in other threads runs eagerly too, with the same results.
    """

    compiled = any(map(_is_compiled, all_modules(model)))
    eagerly = partial(entered, torch.compiler.set_stance, "force_eager")
    with shared_block("eager", eagerly) if compiled else nullcontext():
        yield


@contextmanager
def requiring_gradients(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Let tensors require a gradient within the block; the edges to them stay valid.

    Leaves whose relevance is wanted do so anyway.
    """
    tensors = [tensor for tensor in tensors if not tensor.requires_grad]
    for tensor in tensors:
        tensor.requires_grad_()
    try:
        yield
    finally:
        for tensor in tensors:
            tensor.requires_grad_(False)


def entered(block: Callable[[Any], AbstractContextManager[Any]], setting: Any) -> Any:
    """Enter a block with a setting of PyTorch, and return what leaves it."""
    opened = ExitStack()
    opened.enter_context(block(setting))
    return opened.close


def _is_compiled(module: nn.Module) -> bool:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    # asking a module for an attribute that it lacks is slow
    may_wrap = "_orig_mod" in vars(module) or "_orig_mod" in module._modules
    return (may_wrap or "module" in module._modules) and unwrapped(module) is not module
