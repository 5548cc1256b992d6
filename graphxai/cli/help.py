"""Help pages: only options that take a value show a type beside their name."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help shows flags, `--help` among them, without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's parameters; flags have an empty metavar."""
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """The same for `graphxai` itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The group's parameters; flags have an empty metavar."""
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    # typer would show `<bool>`, the type of the Python variable
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
