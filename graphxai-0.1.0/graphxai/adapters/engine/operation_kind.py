"""What each ATen operation always does, read from its schema."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from .decompositions import DECOMPOSITIONS

VALUELESS = {  # operations whose result does not depend on the values of their arguments
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_empty_strided", "randint_like", "zero", "fill",
}  # fmt: skip


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


def out_of_place(func: Any) -> Any:
    """Return the variant of an in-place operation that returns a new tensor."""
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").rstrip("_"))
    if func._overloadname in packet.overloads():
        return getattr(packet, func._overloadname)
    wanted = [str(argument.type) for argument in func._schema.arguments]
    for name in packet.overloads():  # `transpose_` has the variant `transpose.int`
        overload = getattr(packet, name)
        if [str(argument.type) for argument in overload._schema.arguments] == wanted:
            return overload
    raise NotImplementedError(f"{func} has no variant that returns a new tensor.")
