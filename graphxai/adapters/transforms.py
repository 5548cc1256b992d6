"""Run checkpoints, `torch.vmap` and scripted functions as plain calls, so that rules apply.

A checkpoint recomputes its block in the backward pass, when rules are no longer in force;
operations within `torch.vmap` cannot be followed. PyTorch has no setting for either. Within a block
of this file both are called directly: a checkpointed function unchanged, a mapped one on one entry
after another. A scripted function runs as its original Python. TorchScript without Python source,
such as modules and traced functions, runs unchanged and hidden. Calls in other threads are not
affected, and the last block undoes everything.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch._functorch.apis as functorch
import torch.utils.checkpoint as checkpointing
from torch.jit._state import _try_get_jit_cached_function
from torch.utils._pytree import tree_flatten, tree_unflatten

from graphxai.rules.scope import Blocks

Block = Callable[[], AbstractContextManager[object]]

_lock = threading.Lock()
_users = 0
_replaced = ExitStack()  # puts PyTorch's own functions back
_plain: Blocks[bool] = Blocks("graphxai_plain_calls", False)
_mapped: Blocks[Block | None] = Blocks("graphxai_mapped", None)
_unseen: Blocks[Block | None] = Blocks("graphxai_unseen", None)


@contextmanager
def plain_calls(mapped: Block | None = None, unseen: Block | None = None) -> Iterator[None]:
    """In this thread checkpoints call their functions directly.

    So does `torch.vmap`, within the block `mapped`, and so do scripted functions, and TorchScript
    runs within the block `unseen`, if these are given here or further out.
    """
    _count(1)
    try:
        with (
            _plain.block(True),
            _mapped.block(mapped or _mapped.get()),
            _unseen.block(unseen or _unseen.get()),
        ):
            yield
    finally:
        _count(-1)


def is_transformed() -> bool:
    """Whether the code is running inside a transform of `torch.func`, such as `grad` or `jvp`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _count(change: int) -> None:
    """The first user replaces PyTorch's functions, the last one restores them."""
    global _users
    with _lock:
        before, _users = _users, _users + change
        if not before:
            _replace(checkpointing.CheckpointFunction, "apply", _reentrant)
            _replace(checkpointing, "_checkpoint_without_reentrant_generator", _without_hooks)
            _replace(functorch, "vmap_impl", _vmap)
            _replace(torch._C.ScriptFunction, "__call__", _scripted)
            _replace(torch._C.ScriptMethod, "__call__", _scripted)
        elif not _users:
            _replaced.close()


def _replace(owner: Any, name: str, by: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name, None)
    if original is None:  # another version of PyTorch
        return
    own = name in vars(owner)
    setattr(owner, name, by(original))
    _replaced.callback(setattr, owner, name, original) if own else _replaced.callback(
        delattr, owner, name
    )


def _reentrant(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if not _plain.get():
            return original(function, preserve, *args)
        return function(*args)

    return apply


def _without_hooks(original: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        if _plain.get():
            yield
        else:
            yield from original(*args, **kwargs)

    return generator


def _scripted(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        unseen = _unseen.get()
        if unseen is None:
            return original(self, *args, **kwargs)
        written = getattr(self, "_torchdynamo_inline", None)
        if written is not None and _try_get_jit_cached_function(written) is not None:
            return written(*args, **kwargs)  # as it was scripted, not traced
        with unseen():
            return original(self, *args, **kwargs)

    return call


def _vmap(original: Callable[..., Any]) -> Callable[..., Any]:
    def vmap(
        func: Callable[..., Any],
        in_dims: Any,
        out_dims: Any,
        randomness: str,
        chunk_size: int | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        mapped = _mapped.get()
        if mapped is None:
            return original(func, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
        values, layout = tree_flatten(args)
        dims = _broadcast(in_dims, args)
        sizes = [v.shape[d] for v, d in zip(values, dims, strict=True) if d is not None]
        if not sizes or not sizes[0]:
            return original(func, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
        results = []
        with mapped():
            for i in range(sizes[0]):
                pairs = zip(values, dims, strict=True)
                entry = [v if d is None else v.select(d, i) for v, d in pairs]
                results.append(func(*tree_unflatten(entry, layout), **kwargs))
        columns = zip(*(tree_flatten(result)[0] for result in results), strict=True)
        stacked = [
            column[0] if d is None else torch.stack(column, d)
            for column, d in zip(columns, _broadcast(out_dims, results[0]), strict=True)
        ]
        return tree_unflatten(stacked, tree_flatten(results[0])[1])

    return vmap


def _broadcast(dims: Any, values: Any) -> list[int | None]:
    """The axis of each leaf of nested values, where `dims` may name one for a whole branch."""
    if dims is None or isinstance(dims, int):
        return [dims] * len(tree_flatten(values)[0])
    if isinstance(values, dict):
        return [d for key in values for d in _broadcast(dims[key], values[key])]
    if not isinstance(values, tuple | list):
        return _broadcast(dims[0], values)  # out_dims=(0,) of a function with one result
    pairs = zip(dims, values, strict=True)
    return [d for dim, value in pairs for d in _broadcast(dim, value)]
