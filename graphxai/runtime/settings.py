"""Functions that take the fields of a settings class as keywords."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, replace
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

__all__ = ["accepts", "as_in", "documented", "with_options"]

Result = TypeVar("Result")
Settings = TypeVar("Settings")


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
            settings = with_options(settings, options, function.__name__)
            return function(*args, settings=settings, **arguments)

        with_settings.__signature__ = _with_fields(  # type: ignore[attr-defined]
            signature, settings_class
        )
        return with_settings

    return decorate


def with_options(settings: Settings, options: Mapping[str, Any], function: str) -> Settings:
    """Return the settings with other values for some of their fields.

    Raises TypeError, in the name of a function, for a field that the settings do not have.
    """
    names = [declared.name for declared in fields(settings)]  # type: ignore[arg-type]
    for name in options:
        if name not in names:
            similar = get_close_matches(name, names, 1)
            hint = f"did you mean {similar[0]!r}? " if similar else ""
            raise TypeError(
                f"{function}() has no option {name!r}: {hint}Its options are {', '.join(names)}."
            )
    return replace(settings, **options)  # type: ignore[type-var]


def documented(settings_class: type[Settings]) -> type[Settings]:
    """Add the fields of a settings class, with their help and defaults, to its docstring."""
    declared: tuple[Field[Any], ...] = fields(settings_class)  # type: ignore[arg-type]
    lines = [f"    {declaration.name}: {_help_of(declaration)}" for declaration in declared]
    text = inspect.cleandoc(settings_class.__doc__ or "")
    settings_class.__doc__ = "\n".join([text, "", "Attributes:", *lines])
    return settings_class


def _help_of(declaration: Field[Any]) -> str:
    """The help of a field: of its option, or for a field of Python alone its own."""
    option = declaration.metadata.get("option")
    text = declaration.metadata["help"] if option is None else option.help
    return f"{text} By default {declaration.default!r}."


def _with_fields(signature: inspect.Signature, settings_class: type) -> inspect.Signature:
    """A signature with a keyword for each field of the class, and `settings` as optional."""
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
