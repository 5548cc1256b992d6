"""Keywords that several functions hand on as a whole, and show one by one."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, get_args

Args = ParamSpec("Args")
Result = TypeVar("Result")


def with_keywords(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Show the keywords of `**options: Unpack[SomeTypedDict]` in a function's signature.

    Type checkers read them from the annotation. With this decorator, notebooks complete them, the
    documentation lists them, and one that does not exist is a TypeError, as for any function. Their
    defaults are shown as `...`, and stand in the docstring.
    """
    plain = inspect.signature(function)
    *others, last = plain.parameters.values()
    (options,) = get_args(last.annotation)  # what Unpack[...] holds
    keywords = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
        for name, kind in options.__annotations__.items()
    ]
    signature = plain.replace(parameters=[*others, *keywords])

    @wraps(function)
    def called(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        signature.bind(*args, **kwargs)
        return function(*args, **kwargs)

    called.__signature__ = signature  # type: ignore[attr-defined]
    return called
