"""Help pages, where only options that take a value show a type beside their name."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class HelpfulCommand(TyperCommand):
    """A command whose help shows flags, `--help` among them, without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's parameters, where flags have no type."""
        return _without_types(super().get_params(ctx))


class HelpfulGroup(TyperGroup):
    """A group of commands whose help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the group's parameters, where flags have no type."""
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    # typer would show `<bool>`, the type of the Python variable
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
