"""What machines use of the command line: JSON, standard streams, quiet, a log, a status of its own.

Answers go to standard output, and words about the run to standard error. With `--json` the only
answer is one document; `answers.schema.json` describes it for every command, with the statuses.
"""

from __future__ import annotations

import atexit
import inspect
import json
import logging
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from graphxai.runtime import progress
from graphxai.runtime.notices import LOGGER
from graphxai.runtime.version import VERSION

from .options import APPLIES_ALWAYS

SCHEMA = 1  # of the documents; a change that readers would notice raises it
SCHEMA_FILE = Path(__file__).with_name("answers.schema.json")
REJECTED = 3  # the status of a command that left rows out, with --fail-on-rejected
SOURCES, SINKS = ("-", "/dev/stdin"), ("-", "/dev/stdout")  # standard input and output
REJECTING = (
    "explain", "predict", "report", "fragments", "audit", "counterfactuals", "benchmark"
)  # fmt: skip
INTO_FOLDERS = ("adapt", "benchmark", "demo", "fit-explainer", "fit-masked-atoms", "train")
ANSWERING = ("explain", "predict", "counterfactuals", "models", "methods", "train")


@dataclass
class Invocation:
    """What the user of this invocation wants, and what the command has found so far.

    Attributes:
        quiet: whether only answers, warnings and errors are printed.
        fail_on_rejected: whether rows that were left out make the status `REJECTED`.
        streams_a_file: whether a result file takes standard output.
        error: why it failed, or None.
        stack: what is closed at the end.
    """

    json: bool = False
    quiet: bool = False
    fail_on_rejected: bool = False
    streams_a_file: bool = False
    command: str = ""
    rejected: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def begin(self) -> None:
        """Forget an earlier invocation of the same process."""
        self.stack.close()
        vars(self).update(vars(Invocation()))
        progress.set_hidden(False)

    def status(self, code: int) -> int:
        """Return the status of a command that ended with this one."""
        return REJECTED if code == 0 and self.fail_on_rejected and self.rejected else code

    def document(self, status: int) -> dict[str, Any]:
        """Return what a machine reads of the invocation."""
        header = {"schema": SCHEMA, "version": VERSION, "command": self.command, "status": status}
        return header | {"result": plain(self.result) or None, "error": self.error}


INVOCATION = Invocation()


def answer(**result: Any) -> None:
    """Add to the answer that `--json` prints."""
    INVOCATION.result |= result


def counts(done: int, rejected: int, earlier: int = 0) -> dict[str, int]:
    """Return how many rows are done, were left out, and had been done by an earlier run."""
    return {"done": done, "rejected": rejected, "earlier": earlier}


def print_document(status: int) -> None:
    """Print the JSON document of the invocation on one line."""
    text = json.dumps(INVOCATION.document(status), ensure_ascii=True, allow_nan=False)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """Return JSON values, with null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if hasattr(value, "item"):  # a number of NumPy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@cache
def _streams() -> Path:
    """Return a folder for what passes through standard streams, which ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="graphxai-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def on_standard_output(out: str | Path) -> bool:
    """Return whether the user wants this file on standard output."""
    return Path(out).parent == _streams() and Path(out).stem == "standard output"


def named_streams(text: str) -> str:
    """Return words in which the files of standard streams have the names of these."""
    if not _streams.cache_info().currsize:  # there are none
        return text
    return re.sub(rf"{re.escape(str(_streams()))}.(standard \w+)(\.\w+)?", r"\1", text)


def require_one_file(out: str | Path) -> None:
    """Raise BadParameter if a folder is to go to standard output."""
    if on_standard_output(out):
        raise typer.BadParameter("--out -: the results fill a folder: name it.")


def without_dashes(command: str, arguments: list[str]) -> Iterator[str]:
    """Replace `-`, or the device of a standard stream, by a file that stands for the stream."""
    before = ""
    for argument in arguments:
        given = argument.removeprefix("--out=")
        if given in SINKS and (before == "--out" or given != argument):
            out = _standard_output(".html" if command == "report" else ".csv")
            if command in INTO_FOLDERS:
                require_one_file(out)
            yield argument.removesuffix(given) + str(out)
        elif argument in SOURCES and not before.startswith("--"):
            yield str(_standard_input())
        else:
            yield argument
        before = argument


def _standard_input() -> Path:
    """Write standard input to a file, because tables are read more than once."""
    path = _streams() / "standard input.csv"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def _standard_output(suffix: str) -> Path:
    """Return a file that is copied to standard output at the end."""
    path = _streams() / f"standard output{suffix}"
    path.unlink(missing_ok=True)
    INVOCATION.streams_a_file = True
    INVOCATION.stack.callback(_copy, path)
    return path


def _copy(path: Path) -> None:
    if path.exists() and not INVOCATION.json:
        sys.stdout.flush()
        stream = getattr(sys.stdout, "buffer", None)
        if stream is None:
            sys.stdout.write(path.read_text(encoding="utf-8-sig"))
            return
        stream.write(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))  # no mark for Excel
        stream.flush()


def start_log(file: Path | None) -> None:
    """Write the words, warnings and errors of the invocation to the end of a file, too."""
    if file is None:
        return
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    INVOCATION.stack.callback(handler.close)
    INVOCATION.stack.callback(LOGGER.removeHandler, handler)
    INVOCATION.stack.callback(LOGGER.setLevel, before)


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that all have, or all that answer or leave rows out."""
    name = command.__name__
    added = {"quiet": _flag("quiet", "Print nothing but the answer, warnings and errors.")}
    text = "Also write words, warnings and errors to the end of this file."
    added["log_file"] = _option(Path | None, start_log, None, "--log-file", help=text)
    if name in REJECTING:
        text = f"End with status {REJECTED} if a row was left out."
        added["fail_on_rejected"] = _flag("fail_on_rejected", text)
    if name in ANSWERING:
        text = "Print one JSON document instead; `graphxai --schema` describes it."
        added["json"] = _flag("json", text)
    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def with_shared(**given: Any) -> None:
        command(**{name: value for name, value in given.items() if name not in added})

    listed = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()
    ]
    whole: Any = with_shared
    whole.__signature__ = inspect.Signature([*listed, *added.values()])
    whole.__annotations__ = {each.name: each.annotation for each in [*listed, *added.values()]}
    return with_shared


def _flag(name: str, help: str) -> inspect.Parameter:
    """Return a flag that sets the attribute of this name of the invocation."""

    def use(wanted: bool) -> None:
        setattr(INVOCATION, name, wanted)
        progress.set_hidden(INVOCATION.quiet)

    return _option(bool, use, False, f"--{name.replace('_', '-')}", help=help)


def _option(
    kind: Any, use: Callable[[Any], None], default: Any, name: str, *, help: str
) -> inspect.Parameter:
    """Return the parameter of a command for an option whose value is used while it is parsed."""

    def callback(value: Any) -> Any:
        use(value)
        return value

    info: Any = typer.Option(name, help=help, callback=callback)
    annotation: Any = Annotated[kind, info, APPLIES_ALWAYS]
    named = name.removeprefix("--").replace("-", "_")
    return inspect.Parameter(
        named, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
