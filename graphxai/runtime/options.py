"""Settings that Python and the command line share: a field declares its option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, TypeVar

from .suggestions import require_options

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["SAME", "CommandLineOption", "documented", "option", "with_options"]

SAME: Any = object()  # as the default of an option: that of Python
Settings = TypeVar("Settings", bound="DataclassInstance")


@dataclass(frozen=True)
class CommandLineOption:
    """How a field of a settings class appears on the command line.

    Attributes:
        help: text of the help page.
        applies_to: kinds of source for which the option means something; None for all of them.
        minimum: smallest number allowed.
        default: default of the command line, or SAME where it is that of Python.
        name: name of the option, such as "--format", or None where it is that of the field.
        parse: makes the value from the text that the user wrote; raises ValueError.
        repeat: whether the option may be given several times; `parse` then takes a list.
    """

    help: str
    applies_to: tuple[str, ...] | None
    minimum: float | None = None
    default: Any = SAME
    name: str | None = None
    parse: Callable[[Any], Any] | None = None
    repeat: bool = False


def option(
    default: Any,
    help: str,
    *,
    applies_to: tuple[str, ...] | None,
    minimum: float | None = None,
    command_line_default: Any = SAME,
    name: str | None = None,
    parse: Callable[[Any], Any] | None = None,
    repeat: bool = False,
) -> Any:
    """Declare a field of a settings class that is also an option of a command.

    The option is named after the field: `keep_teacher` becomes `--keep-teacher`. A flag whose
    default is True becomes its opposite: `teacher` becomes `--no-teacher`.

    Args:
        default: value of the field if nobody sets it.
        help: text of the help page.
        applies_to: kinds of source for which the option means something; None for all of them.
        minimum: smallest number allowed.
        command_line_default: default of the command line, where it differs from `default`.
        name: name of the option, where it is not that of the field.
        parse: makes the value from the text that the user wrote; raises ValueError.
        repeat: whether the option may be given several times; `parse` then takes a list.
    """
    declared = CommandLineOption(
        help, applies_to, minimum, command_line_default, name, parse, repeat
    )
    return field(default=default, metadata={"option": declared})


def with_options(settings: Settings, options: Mapping[str, Any], function: str) -> Settings:
    """Return settings with some fields replaced, as a function with keyword arguments does.

    Args:
        settings: an instance of a settings class.
        options: new values by the names of their fields.
        function: name of the function that was called, for the message.

    Raises:
        TypeError: a name is not that of a field; the message names the closest field.
    """
    require_options(options, [each.name for each in fields(settings)], function)
    return replace(settings, **options)


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
    text = cleandoc(settings_class.__doc__ or "")
    settings_class.__doc__ = "\n".join([f"{text}\n\nAttributes:", *lines])
    return settings_class
