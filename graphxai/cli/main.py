"""The command line: parse, call, print. Heavy imports wait until a command runs."""

import gc
import logging
import sys
import warnings
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from graphxai.runtime.version import VERSION

from .answers import INVOCATION, SCHEMA_FILE, print_document, with_shared_options, without_dashes
from .terminal import (
    INTERRUPTED,
    STOPPED,
    Termination,
    escape_what_cannot_be_shown,
    going_on_unheard,
    heeding_signals,
    is_resumable,
    leave_at_once,
    printable,
    silence,
    tell,
)

if TYPE_CHECKING:
    app: typer.Typer

_FORMAT = warnings.formatwarning
SEVERAL_ELSEWHERE = ("--model", "--method")  # options that can be repeated in some commands


class _FlagsWithoutTypes:
    """Shows flags on a help page, `--help` among them, without a type, which would be `<bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, where flags have no type."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class HelpfulCommand(_FlagsWithoutTypes, TyperCommand):
    """A command whose help shows flags without a type."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, in which `-` is standard input or standard output.

        An option that is given twice counts as it was given last, but for those of which other
        commands take several.
        """
        INVOCATION.command = str(self.name)
        args = list(without_dashes(str(self.name), args))
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            for parameter, times in Counter(given).items():
                name = parameter.opts[0]
                if name in SEVERAL_ELSEWHERE and times > 1 and not parameter.multiple:
                    said = f"{name} is given {times} times, but this command takes one."
                    raise typer.BadParameter(said, ctx=ctx)
        return super().parse_args(ctx, args)


class HelpfulGroup(_FlagsWithoutTypes, TyperGroup):
    """A group of commands whose help shows flags without a type."""


def _print_version(show_version: bool) -> None:
    if show_version:
        typer.echo(f"graphxai {VERSION} from {Path(__file__).resolve().parents[1]}")
        raise typer.Exit


def _print_schema(show_schema: bool) -> None:
    if show_schema:
        typer.echo(SCHEMA_FILE.read_text(encoding="utf-8"), nl=False)
        raise typer.Exit


def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback if there is an error.")
    ] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    show_schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Show the JSON schema of what --json prints, and exit.",
            callback=_print_schema,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


def examples(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")] = Path("examples"),
) -> None:
    """Write example tables and a picture of a digit into a folder, to try the other commands.

    The pages of the documentation use these files. A file of yours is never overwritten.

    **Examples**

    `graphxai examples`

    `graphxai report examples/molecules.csv --name-column name --out report.html`
    """
    from graphxai.datasets.samples import example_files
    from graphxai.runtime.writing import folder_at, write_whole

    contents = {name: path.read_bytes() for name, path in example_files().items()}
    different = [
        str(folder / name)
        for name, content in contents.items()
        if (folder / name).exists() and (folder / name).read_bytes() != content
    ]
    if different:
        raise ValueError(
            f"{', '.join(different)}: there is another file of this name. Choose another folder:"
            " graphxai examples FOLDER"
        )
    folder_at(folder)
    for name, content in contents.items():
        write_whole(folder / name, content)
        tell(f"written: {folder / name}")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("demo"),
) -> None:
    """Explain sample molecules and digits with the bundled models, without a network.

    **Example**

    `graphxai demo --out demo/`
    """
    from .demo import FIRST, run

    written = run(out, tell)
    tell(f"\n{len(written)} pictures; look at these first:")
    for path in written:
        if path.stem in FIRST:
            tell(f"  {path.resolve()}")


# The module of each command, in the order of the help page
_MODULES = {
    **{name: name for name in ("explain", "predict", "benchmark")},
    **{"report": "pages", "fragments": "fragments", "audit": "fragments"},
    **{"counterfactuals": "counterfactuals", "changes": "counterfactuals", "app": "pages"},
    **{"train": "train", "adapt": "fit", "examples": "main"},
    **dict.fromkeys(("fit_explainer", "fit_masked_atoms"), "fit"),
    **{"models": "listing", "methods": "listing", "demo": "main"},
}


@cache
def _program_of(*names: str) -> typer.Typer:
    """Return a program with some commands, whose modules alone are imported."""
    made = typer.Typer(
        name="graphxai",
        cls=HelpfulGroup,
        help="See what drives a model's predictions for molecules, tables, graphs and digits.\n\n"
        "`graphxai examples` writes the files that the examples of each command name.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    made.callback()(_options)
    for name in names:
        command = getattr(import_module(f"{__package__}.{_MODULES[name]}"), name)
        made.command(cls=HelpfulCommand)(with_shared_options(command))
    return made


def __getattr__(name: str) -> typer.Typer:
    """Return the program with all commands as `app`, when it is first asked for."""
    if name == "app":
        return _program_of(*_MODULES)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _needed(arguments: list[str]) -> typer.Typer:
    """Return the program with the command that was typed, or else with all."""
    name = arguments[0].replace("-", "_") if arguments else ""
    return _program_of(*[name] if name in _MODULES else _MODULES)


def program() -> None:
    """Run the command line as a program of its own, which ends at once when it is interrupted."""
    try:
        main(at_once=True)
    except SystemExit as stop:
        if stop.code in STOPPED:
            leave_at_once(int(stop.code))
        raise


def main(*, at_once: bool = False) -> None:
    """Run the command line. An error is one readable line and a non-zero exit status.

    Args:
        at_once: whether the process ends if it is still at work a second after Ctrl-C or SIGTERM.
    """
    # Importing makes half a million objects that stay. Looking for garbage among them every 700
    # objects takes a tenth of the time of a short command, and looking five times still a
    # fourteenth. A table takes 150 MiB more for it.
    gc.set_threshold(1_000_000, 20, 20)
    escape_what_cannot_be_shown()
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    # --debug may be anywhere on the line
    arguments = [argument for argument in arguments if argument != "--debug"]
    warnings.formatwarning = _printable_warning
    INVOCATION.begin()
    if debug:
        sys.excepthook = lambda *error: tell("".join(format_exception(*error)), logging.ERROR)
    with heeding_signals() as termination:
        if at_once:
            termination.too_late = lambda: leave_at_once(_stopped(termination, arguments))
        try:
            _run(arguments, debug, termination)
        except KeyboardInterrupt:
            raise SystemExit(_stopped(termination, arguments)) from None
        except SystemExit as stop:
            _answer(int(stop.code or 0), arguments)
            raise
        finally:
            with going_on_unheard():
                INVOCATION.begin()  # what a machine asked of this run is no matter of the next


def _answer(status: int, arguments: list[str]) -> None:
    """Print the JSON document, if one is wanted: also where the arguments could not be read."""
    if INVOCATION.json or (INVOCATION.error and "--json" in arguments):
        with going_on_unheard():
            print_document(status)


def _stopped(termination: Termination, arguments: list[str]) -> int:
    """Print how to go on, and return the status of a command that was stopped."""
    stop = termination.exit(is_resumable(get_command(_needed(arguments)), arguments))
    INVOCATION.error = {"type": "Interrupt", "message": "the command was stopped"}
    _answer(status := int(stop.code or 0), arguments)
    return status


def _run(arguments: list[str], debug: bool, termination: Termination) -> None:
    """Run a command, and end with its status. Raise KeyboardInterrupt if it was stopped."""
    try:
        code = _needed(arguments)(args=arguments, prog_name="graphxai", standalone_mode=False) or 0
        if termination.stopped:  # the app closes its connections, and then returns
            raise KeyboardInterrupt
        raise SystemExit(INVOCATION.status(code))
    except (KeyboardInterrupt, typer.Abort):
        raise KeyboardInterrupt from None
    except SystemExit as stop:
        if termination.stopped or stop.code == INTERRUPTED:
            raise KeyboardInterrupt from None
        raise
    except BrokenPipeError:  # of a table, or of a page of help
        silence(sys.stdout)
        raise SystemExit(1) from None
    except Exception as error:
        if termination.stopped:  # such as a worker process that was stopped, too
            raise KeyboardInterrupt from None
        if debug:
            raise
        usage = getattr(error, "format_message", None)  # a wrong argument or option
        text = " ".join(str(usage() if usage else error).split())
        if usage and not text:  # no argument at all: typer has printed the help
            raise SystemExit(2) from None
        hint = " (--help shows the options)" if usage else ""
        expected = usage or isinstance(error, ValueError | OSError | ImportError | RuntimeError)
        if not expected:
            hint = f" ({type(error).__name__}; --debug shows where it comes from)"
        INVOCATION.error = {"type": type(error).__name__, "message": text or type(error).__name__}
        tell(f"error: {INVOCATION.error['message']}{hint}", logging.ERROR)
        raise SystemExit(getattr(error, "exit_code", 1)) from None


def _printable_warning(
    message: Warning | str, category: type[Warning], *place: Any, **more: Any
) -> str:
    """Return a warning for the terminal, without a line of code if it is meant for the user."""
    if category is UserWarning:
        return printable(f"warning: {message}\n")
    return printable(_FORMAT(message, category, *place, **more))


if __name__ == "__main__":
    main()
