"""An option that does not apply to a source is refused, and settings make options by themselves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from graphxai.cli.options import (
    APPLIES_ALWAYS,
    applies_to,
    refuse_inapplicable,
    settings_as_options,
)
from graphxai.runtime.options import option


@dataclass(frozen=True)
class BakingSettings:
    """Settings of a command that exists for these tests only."""

    count: int = option(1, "How many.", applies_to=("table",), minimum=1)
    shape: Literal["round", "long"] | None = option(None, "Shape.", applies_to=None)
    yeast: bool = option(True, "Leave out the yeast.", applies_to=("table", "smiles"))
    salted: bool = option(False, "Add salt.", applies_to=None)
    recipe: str | Path | None = option("plain", "Name, or 'none'.", applies_to=None)
    devices: int | str = option(1, "Devices.", applies_to=None, command_line_default="auto")
    fan: bool = option(True, "Use the fan.", applies_to=None, name="--fan/--still")
    heat: int = option(0, "Heat.", applies_to=None, maximum=3)
    quiet: bool = True  # of Python alone


@pytest.fixture
def call():
    """Return a function that runs a command with arguments: its exit code, text and settings."""
    seen = []
    app = typer.Typer()

    @app.command()
    @settings_as_options
    def bake(
        context: typer.Context,
        source: Annotated[str, typer.Argument()],
        settings: BakingSettings,
        name: Annotated[str, typer.Option(), applies_to("smiles")] = "x",
        level: Annotated[float | None, typer.Option(), APPLIES_ALWAYS] = None,
    ) -> None:
        refuse_inapplicable(context, source)
        seen.append(settings)

    def run(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        text = " ".join(result.output.replace("│", " ").split())  # without the frames
        return result.exit_code, text, seen[-1] if seen else None

    return run


def test_settings_of_the_command_line_are_those_of_python(call):
    code, text, settings = call("table")
    assert code == 0, text
    assert settings == BakingSettings(devices="auto")
    arguments = ("--count", 3, "--shape", "long", "--no-yeast", "--salted", "--devices", 4)
    code, text, settings = call("table", *arguments, "--recipe", "none", "--level", "0.5")
    assert code == 0, text
    expected = BakingSettings(
        count=3, shape="long", yeast=False, salted=True, recipe=None, devices=4
    )
    assert settings == expected
    assert type(settings.shape) is str
    assert not call("table", "--still")[2].fan
    assert call("table", "--fan")[2].fan


def test_the_help_page_has_every_declared_option_and_no_other(call):
    code, text, _ = call("--help")
    assert code == 0
    for name in ("--count", "--shape", "--no-yeast", "--salted", "--recipe", "--level"):
        assert name in text
    for name in ("--quiet", "--settings", "--yeast", "--no-salted", "--context"):
        assert f" {name} " not in text
    assert "Leave out the yeast." in text


def test_values_are_checked_where_they_are_declared(call):
    assert call("table", "--count", 0)[0] == 2
    assert call("table", "--shape", "square")[0] == 2
    assert call("table", "--heat", 4)[0] == 2


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("smiles", ("--count", 3), "--count is for a table, not for a SMILES."),
        ("smiles", ("--count", 1), "--count is for a table, not for a SMILES."),
        ("image", ("--no-yeast",), "--no-yeast is for a table or a SMILES, not for a picture."),
        (
            "ray",
            ("--count", 3, "--name", "y"),
            "--count is for a table; --name is for a SMILES, not for --engine ray.",
        ),
    ],
)
def test_an_option_that_does_not_apply_is_refused(call, source, arguments, message):
    """A default that the user typed is refused too, because it would be ignored as well."""
    code, text, _ = call(source, *arguments)
    assert code == 2
    assert message in text


def test_an_option_that_applies_is_accepted(call):
    assert call("smiles", "--name", "y", "--no-yeast", "--salted")[0] == 0
    assert call("image", "--salted", "--shape", "round", "--level", 0.5)[0] == 0


def test_an_option_without_a_declaration_is_an_error_of_the_program():
    app = typer.Typer()

    @app.command()
    def bake(context: typer.Context, limit: Annotated[int, typer.Option()] = 0) -> None:
        refuse_inapplicable(context, "table")

    result = CliRunner().invoke(app, [])
    assert isinstance(result.exception, TypeError)
    assert "--limit does not declare what it applies to" in str(result.exception)


def test_a_kind_of_source_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="unknown kinds of source"):
        applies_to("tabel")
