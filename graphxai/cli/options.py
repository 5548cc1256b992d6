"""What an option applies to, and options that are made from the fields of settings.

A field says beside its help for which kinds of source its option means something. The command then
refuses every option that was given for another kind:

    @dataclass(frozen=True)
    class PredictionSettings:
        workers: int | None = option(None, "...", applies_to=("table",))

    @settings_as_options
    def predict(
        context: typer.Context,
        source: Annotated[str, typer.Argument(help="A SMILES or a table.")],
        settings: PredictionSettings,
    ) -> None:
        refuse_inapplicable(context, kind_of(source))

An option without such a declaration is an error of the program, which every call reports.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from graphxai.runtime.options import SAME, CommandLineOption

# The kinds of source that commands tell apart, in the words of their messages.
SOURCES = {
    "smiles": "a SMILES",
    "table": "a table",
    "image": "a picture",
    "folder": "a folder of pictures",
    "graphs": "a folder of graphs",
    "ray": "--engine ray",
    "bace": "bace",
    "mnist-superpixels": "mnist-superpixels",
    "ogb": "a data set of OGB",
    "rules": "rules",
    "cliffs": "--truth cliffs",
    "checkpoint": "a checkpoint folder",
    "training": "the training compounds",
}
NONE = "none"  # the word for None where the default is another value


@dataclass(frozen=True)
class AppliesTo:
    """The kinds of source for which an option means something, or None for all of them."""

    kinds: tuple[str, ...] | None

    def __post_init__(self) -> None:
        unknown = set(self.kinds or ()) - set(SOURCES)
        if unknown:
            raise ValueError(f"unknown kinds of source {sorted(unknown)}; see options.SOURCES.")


APPLIES_ALWAYS = AppliesTo(None)


def applies_to(*kinds: str) -> AppliesTo:
    """Declare, in the `Annotated` of an option, the kinds of source that it applies to."""
    return AppliesTo(kinds)


def refuse_inapplicable(context: typer.Context, kind: str) -> None:
    """Refuse the options given on the command line that do not apply to a kind of source.

    A value that is the default is refused, too, if the user typed it.

    `kind` is the kind of source, a key of `SOURCES`.

    Raises:
        typer.BadParameter: an option was given that does not apply.
        TypeError: an option of the command does not declare what it applies to.
    """
    callback: Any = context.command.callback
    signature = inspect.signature(callback, eval_str=True)
    refused: dict[tuple[str, ...], list[str]] = {}
    for parameter in context.command.params:
        if parameter.param_type_name != "option" or parameter.name not in signature.parameters:
            continue  # --help is an option without an argument of the function
        name = max(parameter.opts + parameter.secondary_opts, key=len)
        kinds = _applicability(signature.parameters[parameter.name], name).kinds
        given = was_given(context, parameter.name)
        if given and kinds is not None and kind not in kinds:
            refused.setdefault(kinds, []).append(name)
    if refused:
        reasons = [
            f"{_listed(names)} {'is' if len(names) == 1 else 'are'} for"
            f" {_listed([SOURCES[k] for k in kinds], 'or')}"
            for kinds, names in refused.items()
        ]
        raise typer.BadParameter(f"{'; '.join(reasons)}, not for {SOURCES[kind]}.")


def was_given(context: typer.Context, name: str) -> bool:
    """Return whether the user typed an option, even if its value is the default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _applicability(parameter: inspect.Parameter, name: str) -> AppliesTo:
    """Return what the annotation of a command's parameter says that the option applies to."""
    for metadata in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(metadata, AppliesTo):
            return metadata
    raise TypeError(f"{name} does not declare what it applies to: add applies_to(...).")


def _listed(names: list[str], conjunction: str = "and") -> str:
    """Join names as in a sentence: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def settings_as_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that the fields of its frozen dataclasses declare.

    An argument of the decorated function whose type is a dataclass gives way to the options of that
    class, in their order, and the function receives an instance. Fields that
    `graphxai.runtime.options.option` did not declare keep their defaults. A field that several
    classes share is one option.

    An option for a field that may be None, but by default is not, takes the word "none". A field
    that is true by default has a flag that makes it false, unless it is given a name. The help of
    an option for one kind of source begins with that kind, unless its text says it.
    """
    arguments = inspect.signature(command, eval_str=True).parameters
    classes: dict[str, type] = {
        name: parameter.annotation
        for name, parameter in arguments.items()
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation)
    }
    hints = {name: get_type_hints(each) for name, each in classes.items()}
    declared = {
        name: {field.name: field for field in fields(each) if "option" in field.metadata}
        for name, each in classes.items()
    }
    parameters: dict[str, inspect.Parameter] = {}  # keywords, in the order of the help page
    for name, parameter in arguments.items():
        if name not in classes:
            parameters[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for field in declared.get(name, {}).values():
            parameters.setdefault(field.name, _parameter(field, hints[name][field.name]))

    @wraps(command)
    def with_settings(**given: Any) -> None:
        made = {
            name: each(**{
                field.name: _from_text(given[field.name], field, hints[name][field.name])
                for field in declared[name].values()
            })
            for name, each in classes.items()
        }  # fmt: skip
        command(**made, **{name: given[name] for name in arguments if name not in classes})

    listed = list(parameters.values())
    with_settings.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    with_settings.__annotations__ = {p.name: p.annotation for p in listed}
    return with_settings


def _parameter(field: Field[Any], hint: Any) -> inspect.Parameter:
    """Return the parameter of a command function for a field of settings."""
    declared: CommandLineOption = field.metadata["option"]
    if field.default is MISSING:
        raise TypeError(f"the option {field.name!r} needs a default.")
    dashed = field.name.replace("_", "-")
    chosen = declared.command_line_default
    default = field.default if chosen is SAME else chosen
    names: tuple[str, ...] = (declared.name,) if declared.name else ()
    if declared.parse is not None:
        hint = list[str] | None if declared.repeat else str | None
        default = ",".join(default) if isinstance(default, tuple) else default
        default = [default] if declared.repeat and default else default
    if hint is bool and not names:  # the flag says the opposite of the default
        names, default = ((f"--no-{dashed}" if default else f"--{dashed}"),), False
    kinds, help = declared.applies_to or (), declared.help
    if len(kinds) == 1 and declared.names_kind:
        first = help[0] if help[:2].isupper() else help[0].lower()
        help = f"{kinds[0].capitalize()}: {first}{help[1:]}"
    info: Any = typer.Option(
        *names,
        help=help,
        min=declared.minimum,
        max=declared.maximum,
        autocompletion=declared.complete,
    )
    read_as = _typer_type(field.name, hint)
    annotation: Any = Annotated[read_as, info, AppliesTo(declared.applies_to)]
    if default is not None and isinstance(default, int) and str in _types(hint):
        default = str(default)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _types(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the one type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _typer_type(name: str, hint: Any) -> Any:
    """Return a type that typer reads: one type, an enumeration for a Literal, or text."""
    types = [member for member in _types(hint) if member is not type(None)]
    plain: Any = types[0] if len(types) == 1 else str
    if get_origin(plain) is Literal:
        words = get_args(plain)
        enumeration: Any = Enum  # of names that are known only now
        plain = enumeration(name.title().replace("_", ""), dict(zip(words, words, strict=True)))
    return plain | None if type(None) in _types(hint) else plain


def _from_text(value: Any, field: Field[Any], hint: Any) -> Any:
    """Return what typer read as the value of a field."""
    declared: CommandLineOption = field.metadata["option"]
    if declared.parse is not None:
        try:
            return field.default if value is None else declared.parse(value)
        except ValueError as error:
            name = declared.name or f"--{field.name.replace('_', '-')}"
            raise typer.BadParameter(f"{name}: {error}") from error
    if hint is bool and declared.name is None:
        return value != field.default  # whether the flag was given, or not given
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str) and type(None) in _types(hint) and field.default is not None:
        value = None if value == NONE else value
    if isinstance(value, str) and int in _types(hint) and value.isdigit():
        value = int(value)
    return value
