"""Replace arguments of a call at any depth; turn a call into a function of some of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


def mapped(values: Any, change: Callable[[Any], Any], of: type = Tensor) -> Any:
    """Nested arguments with every entry of a type changed."""
    if isinstance(values, of):
        return change(values)
    if isinstance(values, tuple | list):
        made = [mapped(value, change, of) for value in values]
        return type(values)(*made) if hasattr(values, "_fields") else type(values)(made)
    if isinstance(values, dict):
        return {key: mapped(value, change, of) for key, value in values.items()}
    return values


@dataclass(frozen=True)
class _Place:
    """Placeholder in a call's arguments for the input with this number."""

    number: int


def in_terms_of(inputs: list[Tensor], func: Any, args: Any, kwargs: Any) -> Callable[..., Tensor]:
    """The operation as a function of these inputs; everything else stays the same."""
    numbers = {id(t): _Place(i) for i, t in enumerate(inputs)}
    places = mapped((args, kwargs), lambda t: numbers.get(id(t), t.detach()))

    def f(*values: Tensor) -> Tensor:
        args, kwargs = mapped(places, lambda place: values[place.number], of=_Place)
        out: Tensor = func(*args, **kwargs)
        return out

    return f
