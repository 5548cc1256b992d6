"""Checkpointed blocks and `torch.vmap` as plain calls, in which the rules act as anywhere else.

A checkpoint computes its block again in the backward pass, when no rule is in force any more; what
`torch.vmap` maps over cannot be followed. PyTorch has no setting for either. Within a block of this
file both are called directly: a checkpointed function as it stands, a mapped one on one entry after
the other. Other threads' calls go on as ever, and with the last block nothing is left of it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch._functorch.apis as functorch
import torch.utils.checkpoint as checkpointing
from torch.utils._pytree import tree_flatten, tree_unflatten

Block = Callable[[], AbstractContextManager[object]]

_lock = threading.Lock()
_users = 0
_replaced = ExitStack()  # puts PyTorch's own functions back
_plain: ContextVar[bool] = ContextVar("graphxai_plain_calls", default=False)
_mapped: ContextVar[Block | None] = ContextVar("graphxai_mapped", default=None)


@contextmanager
def plain_calls(mapped: Block | None = None) -> Iterator[None]:
    """In this thread checkpoints call their functions directly.

    So does `torch.vmap`, within the block `mapped`, if one is given here or further out.
    """
    tokens = _plain.set(True), _mapped.set(mapped or _mapped.get())
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _mapped.reset(tokens[1])
        _plain.reset(tokens[0])


def is_transformed() -> bool:
    """Whether what runs is inside of a transform of `torch.func`, as `grad` or `jvp`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _count(change: int) -> None:
    """The first user replaces PyTorch's functions, the last one puts them back."""
    global _users
    with _lock:
        before, _users = _users, _users + change
        if not before:
            _replace(checkpointing.CheckpointFunction, "apply", _reentrant)
            _replace(checkpointing, "_checkpoint_without_reentrant_generator", _without_hooks)
            _replace(functorch, "vmap_impl", _vmap)
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
