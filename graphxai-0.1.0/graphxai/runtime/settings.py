"""Let functions take the fields of a settings class as keywords."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, field, fields
from functools import wraps
from typing import Any, TypeVar

from .options import with_options

__all__ = ["accepts", "as_in"]

Result = TypeVar("Result")


def as_in(settings_class: type, name: str, default: Any = MISSING) -> Any:
    """Declare a field as another settings class does, with its default or another one."""
    (declared,) = (other for other in fields(settings_class) if other.name == name)
    chosen = declared.default if default is MISSING else default
    return field(default=chosen, metadata=declared.metadata)


def accepts(settings_class: type) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Let a function that has an argument `settings` also take the fields of a class as keywords.

    The keywords take precedence over the settings that were passed, or over the defaults. The
    function raises TypeError for a keyword that is neither an argument of its own nor a field, and
    its signature lists them all.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        signature = inspect.signature(function)

        @wraps(function)
        def with_settings(*args: Any, **keywords: Any) -> Result:
            options = {k: v for k, v in keywords.items() if k not in signature.parameters}
            arguments = {k: v for k, v in keywords.items() if k in signature.parameters}
            settings = arguments.pop("settings", None) or settings_class()
            settings = with_options(settings, options, f"{function.__name__}()")
            return function(*args, settings=settings, **arguments)

        with_settings.__signature__ = _with_fields(  # type: ignore[attr-defined]
            signature, settings_class
        )
        # else tools would look for the defaults of all these arguments in the function's source
        del with_settings.__wrapped__
        return with_settings

    return decorate


def _with_fields(signature: inspect.Signature, settings_class: type) -> inspect.Signature:
    """Return a signature with a keyword for each field of the class, and `settings` optional."""
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    arguments = list(signature.parameters.values())
    options = [
        inspect.Parameter(
            declaration.name,
            keyword_only,
            default=declaration.default,
            annotation=declaration.type,
        )
        for declaration in fields(settings_class)
    ]
    before = [argument for argument in arguments if argument.kind is not keyword_only]
    after = [
        argument.replace(default=None) if argument.name == "settings" else argument
        for argument in arguments
        if argument.kind is keyword_only
    ]
    return signature.replace(parameters=[*before, *options, *after])
