"""Settings that Python and the command line share: a field declares its option."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CommandLineOption", "option"]


@dataclass(frozen=True)
class CommandLineOption:
    """How a field of a settings class appears on the command line.

    Attributes:
        help: text of the help page.
        applies_to: kinds of source for which the option means something; None for all of them.
        minimum: smallest number allowed.
        default: default of the command line, where it differs from that of Python; else None.
    """

    help: str
    applies_to: tuple[str, ...] | None
    minimum: float | None = None
    default: Any = None


def option(
    default: Any,
    help: str,
    *,
    applies_to: tuple[str, ...] | None,
    minimum: float | None = None,
    command_line_default: Any = None,
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
    """
    declared = CommandLineOption(help, applies_to, minimum, command_line_default)
    return field(default=default, metadata={"option": declared})
