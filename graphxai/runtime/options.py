"""Settings that Python and the command line share: a field declares its option and its keyword.

Functions that hand on keywords show them one by one, and misspelt names get a suggestion.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SAME: Any = object()  # as the default of an option: that of Python
Settings = TypeVar("Settings", bound="DataclassInstance")
Args = ParamSpec("Args")
Result = TypeVar("Result")


@dataclass(frozen=True)
class CommandLineOption:
    """How a field of a settings class appears on the command line.

    Attributes:
        applies_to: kinds of source for which the option means something; None for all of them.
        names_kind: whether the help page begins with the kind of source, if there is only one.
        minimum: smallest number allowed.
        maximum: largest number allowed.
        command_line_default: default of the command line, or SAME where it is that of Python.
        name: name of the option, such as "--format", or None where it is that of the field.
        parse: makes the value from the text that the user wrote; raises ValueError.
        repeat: whether the option may be given several times; `parse` then takes a list.
        complete: returns the values that begin with what was typed.
    """

    help: str
    applies_to: tuple[str, ...] | None
    names_kind: bool = True
    minimum: float | None = None
    maximum: float | None = None
    command_line_default: Any = SAME
    name: str | None = None
    parse: Callable[[Any], Any] | None = None
    repeat: bool = False
    complete: Callable[[str], list[str]] | None = None


def option(default: Any, help: str, applies_to: tuple[str, ...] | None, **details: Any) -> Any:
    """Declare a field of a settings class that is also an option of a command.

    The option is named after the field: `keep_teacher` becomes `--keep-teacher`. A flag whose
    default is True becomes its opposite: `teacher` becomes `--no-teacher`.

    Args:
        default: value of the field if nobody sets it.
        help, applies_to, details: the fields of `CommandLineOption`.
    """
    return field(
        default=default, metadata={"option": CommandLineOption(help, applies_to, **details)}
    )


def as_in(settings_class: type, name: str, default: Any = MISSING, **changes: Any) -> Any:
    """Declare a field as another settings class does.

    Args:
        changes: what else is different on the command line, see `CommandLineOption`.
    """
    (declared,) = (other for other in fields(settings_class) if other.name == name)
    chosen = declared.default if default is MISSING else default
    metadata = dict(declared.metadata)
    if changes:
        metadata["option"] = replace(metadata["option"], **changes)
    return field(default=chosen, metadata=metadata)


def with_options(settings: Settings, options: Mapping[str, Any], function: str) -> Settings:
    """Return settings with some fields replaced, as a function with keyword arguments does.

    Args:
        options: new values by the names of their fields.
        function: name of the function that was called, for the message.

    Raises TypeError if a name is not that of a field; the message names the closest field.
    """
    require_options(options, [each.name for each in fields(settings)], function)
    return replace(settings, **options)


def changes(settings: Any, usual: Any, apart_from: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields in which settings are not the usual ones, with their values."""
    names = (each.name for each in fields(settings) if each.name not in apart_from)
    values = {name: getattr(settings, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(usual, name)}


def written(values: dict[str, Any]) -> dict[str, str]:
    """Return the values of arguments as they are written in Python."""
    return {name: literal(value) for name, value in values.items()}


def literal(value: Any) -> str:
    """Return a value as it is written in Python, and a path as its text."""
    return repr(os.fspath(value) if isinstance(value, os.PathLike) else value)


def call_of(function: str, positional: Sequence[str], named: Mapping[str, str]) -> str:
    """Return the text of a call whose arguments are texts."""
    return f"{function}({', '.join([*positional, *(f'{n}={text}' for n, text in named.items())])})"


def documented(settings_class: type[Settings]) -> type[Settings]:
    """Add the help of every field, and its default, to the docstring of a settings class.

    A field that is not an option of a command has its `help` in its metadata.
    """
    lines = []
    for each in fields(settings_class):
        declared = each.metadata.get("option")
        text = each.metadata.get("help") if declared is None else declared.help
        if text is None:
            continue
        if each.default is True:  # the help is that of the flag that makes it false
            text = f"if False: {text[0].lower()}{text[1:]}"
        lines.append(f"    {each.name}: {text} By default {each.default!r}.")
    text = inspect.cleandoc(settings_class.__doc__ or "")
    settings_class.__doc__ = "\n".join([f"{text}\n\nAttributes:", *lines])
    return settings_class


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
    before = [argument for argument in arguments if argument.kind is not keyword_only]
    after = [
        argument.replace(default=None) if argument.name == "settings" else argument
        for argument in arguments
        if argument.kind is keyword_only
    ]
    return signature.replace(parameters=[*before, *keywords_of(settings_class), *after])


def keywords_of(settings_class: type, defaults: Any = None) -> list[inspect.Parameter]:
    """Return a keyword for each field of a settings class, with the defaults of an instance."""
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default if defaults is None else getattr(defaults, each.name),
            annotation=each.type,
        )
        for each in fields(settings_class)
    ]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence with the name most like a misspelt one, to append to an error, or ""."""
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), by_lower_case, 1)
    return f" Did you mean {by_lower_case[close[0]]!r}?" if close else ""


def require_options(given: Iterable[str], known: Sequence[str], function: str) -> None:
    """Raise TypeError if an option is none of those that a function knows, with the closest one."""
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"they are {', '.join(known)}."
            raise TypeError(f"{function} has no option {name!r}: {hint}")


def names_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names in texts that an option holds, each with one or with several by commas."""
    names = (name.strip() for text in texts for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def listed(value: Any, name: str) -> tuple[Any, ...]:
    """Return a list of names, such as "x", of which a single one may be given as it is.

    Raises TypeError, with the name of the argument, for what is neither.
    """
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} is a name or a list of names, not {value!r}.")
    return tuple(value)


def with_keywords(
    function: Callable[Args, Result], defaults: DataclassInstance | None = None
) -> Callable[Args, Result]:
    """Show the keywords of `**options: Unpack[SomeTypedDict]` in a function's signature.

    Type checkers read them from the annotation. With this decorator, notebooks complete them, the
    documentation lists them, and one that does not exist is a TypeError, as for any function. Their
    defaults are those of settings with the same fields, or else they are shown as `...`, and stand
    in the docstring.
    """
    plain = inspect.signature(function)
    *others, last = plain.parameters.values()
    if defaults is None:
        (options,) = get_args(last.annotation)  # what Unpack[...] holds
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
            for name, kind in options.__annotations__.items()
        ]
    else:
        keywords = keywords_of(type(defaults), defaults)
    signature = plain.replace(parameters=[*others, *keywords])
    known = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]

    @wraps(function)
    def called(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        by_name = [name for name in kwargs if name not in signature.parameters]
        require_options(by_name, known, f"{function.__name__}()")
        return function(*args, **kwargs)

    called.__signature__ = signature  # type: ignore[attr-defined]
    return called
