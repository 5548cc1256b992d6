"""The command line: parse, call, print. Heavy imports wait until a command runs."""

import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphxai.datasets.progress import progress_bar

from .arguments import NameOption, kind_of, load_with_warning, require_kind, value_of
from .benchmark import benchmark
from .fragments import fragments
from .help import Command, Group
from .report import report
from .train import train

if TYPE_CHECKING:
    from graphxai.explanation.explanation import Explanation
    from graphxai.models.graphormer import Graphormer

INTERRUPTED = 130
PICTURES = (".svg", ".png", ".pdf")
WRITABLE = (*PICTURES, ".html", ".csv", ".parquet", ".json", ".sdf", ".smi")

app = typer.Typer(
    name="graphxai",
    cls=Group,
    help="Explain graph transformers: see which atoms or pixels drove a prediction.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


class Palette(StrEnum):
    """Colours of the pictures; the second is colour-blind safe."""

    red_blue = "red-blue"
    orange_purple = "orange-purple"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"graphxai {version('graphxai')}")
        raise typer.Exit


@app.callback()
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
) -> None:
    pass


ModelOption = Annotated[
    str | None,
    typer.Option(help="Name of a bundled model, or a checkpoint folder [default: fits the input]."),
]
ColumnOption = Annotated[str, typer.Option(help="Column with SMILES, for a table.")]


@app.command(cls=Command)
def explain(
    source: Annotated[str, typer.Argument(help="A SMILES, a CSV table, or a picture of a digit.")],
    model: ModelOption = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Explanation method; see `graphxai methods`. Repeat to compare several."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Class or task to explain [default: the predicted class, or the second of two]."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write: picture (.svg, .png, .pdf), page (.html), values (.csv, .parquet,"
            " .json) or structure with values (.sdf, .smi); for a table, a folder."
        ),
    ] = None,
    smiles_column: ColumnOption = "smiles",
    name_column: NameOption = None,
    palette: Annotated[Palette, typer.Option(help="Colours of the pictures.")] = Palette.red_blue,
    scale: Annotated[
        str,
        typer.Option(
            help="Colour scale: 'own' for each picture, 'shared' by the whole table, or a number:"
            " the relevance shown in full colour."
        ),
    ] = "own",
    pictures: Annotated[
        str, typer.Option(help="Pictures for a table: 'svg', 'png' or 'none'.")
    ] = "svg",
    formats: Annotated[
        str,
        typer.Option("--format", help="Files for a table: csv (always written), parquet, sdf."),
    ] = "csv",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run over a table.")
    ] = False,
) -> None:
    """Explain a molecule, a table of molecules, or a picture of a digit.

    **Examples**

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --out aspirin.svg`

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --method lrp --method gae --out compared.png`

    `graphxai explain molecules.csv --smiles-column smiles --out results/ --scale shared`

    `graphxai explain molecules.csv --name-column ID --out results/ --format csv,parquet,sdf`

    `graphxai explain digit.png --model mnist-superpixels --out digit.svg`
    """
    kind = kind_of(source)
    name = model or ("mnist-superpixels" if kind == "image" else "bace")
    chosen = [name.strip() for names in method or ["lrp"] for name in names.split(",")]
    limit = _limit(scale)
    if kind == "table":
        if len(chosen) > 1:
            raise typer.BadParameter("a table takes one --method at a time.")
        if pictures not in ("svg", "png", "none"):
            raise typer.BadParameter("--pictures is 'svg', 'png' or 'none'.")
        if out is not None and out.suffix.lower() in WRITABLE and not out.is_dir():
            raise typer.BadParameter(f"--out {out}: for a table, name a folder, not a file.")
        files = [name.strip() for name in formats.split(",") if name.strip()]
        _explain_table(
            source, name, chosen[0], target, out, smiles_column, name_column, palette, scale,
            pictures, files, resume,
        )  # fmt: skip
        return
    _require_no_names(name_column)
    if formats != "csv":
        raise typer.BadParameter(
            "--format is for tables; for one molecule, the suffix of --out sets the format."
        )
    if out is not None and out.suffix.lower() not in WRITABLE:
        raise typer.BadParameter(f"--out {out}: use one of {', '.join(WRITABLE)}.")
    if out is not None and len(chosen) > 1 and out.suffix.lower() not in PICTURES:
        allowed = ", ".join(PICTURES)
        raise typer.BadParameter(
            f"several methods go into one picture: --out must end in {allowed}."
        )
    from .printing import print_explanation, print_glossary

    loaded = load_with_warning(name)
    require_kind(loaded, source, kind)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    found = [_explain_one(loaded, source, kind, m, target) for m in chosen]
    for explanation in found:
        print_explanation(explanation)
    print_glossary(found)
    if out is not None:
        _save(found, out, palette, limit)
        typer.echo(f"written: {out}")


@app.command(cls=Command)
def predict(
    source: Annotated[str, typer.Argument(help="A SMILES, a CSV table, or a picture of a digit.")],
    model: ModelOption = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write [default: print].")] = None,
    smiles_column: ColumnOption = "smiles",
    name_column: NameOption = None,
) -> None:
    """Predict a molecule, a table of molecules, or a digit.

    **Examples**

    `graphxai predict "CC(=O)Oc1ccccc1C(=O)O"`

    `graphxai predict molecules.csv --name-column ID --out predictions.csv`
    """
    kind = kind_of(source)
    if kind != "table":
        _require_no_names(name_column)
    loaded = load_with_warning(model or ("mnist-superpixels" if kind == "image" else "bace"))
    require_kind(loaded, source, kind)
    if kind != "table":
        from graphxai.api import predict as predict_one

        for prediction in predict_one(loaded, value_of(source, kind)).values():
            typer.echo(f"{prediction.task}: {prediction}")
        return
    from graphxai.tables.run import count_rows, predict_table

    columns: dict[str, Any] = {"smiles_column": smiles_column, "name_column": name_column}
    partial = out.with_name(out.name + ".partial") if out else None
    if partial:
        partial.parent.mkdir(parents=True, exist_ok=True)
    with progress_bar("predicting", count_rows(source)) as tick:
        if partial is None:
            counts, rejected = predict_table(loaded, source, sys.stdout, tick=tick, **columns)
        else:
            try:
                with partial.open("w", encoding="utf-8", newline="") as file:
                    counts, rejected = predict_table(loaded, source, file, tick=tick, **columns)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    if partial and out:
        partial.replace(out)
        typer.echo(f"{counts.done} predicted: {out}")
    for row in rejected[:10]:
        typer.echo(f"left out: {row}", err=True)
    if len(rejected) > 10:
        typer.echo(f"left out: {len(rejected) - 10} more rows", err=True)
    if rejected and not counts.done:
        raise typer.Exit(1)


app.command(cls=Command)(benchmark)
app.command(cls=Command)(report)
app.command(cls=Command)(fragments)
app.command(cls=Command)(train)


@app.command(cls=Command)
def models() -> None:
    """List the bundled models."""
    from .printing import print_models

    print_models()


@app.command(cls=Command)
def methods() -> None:
    """List the explanation methods."""
    from .printing import print_methods

    print_methods()


@app.command(cls=Command)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("demo"),
) -> None:
    """Explain sample molecules and digits with the bundled models; needs no network.

    **Example**

    `graphxai demo --out demo/`
    """
    from .demo import run

    written = run(out, typer.echo)
    typer.echo(f"\n{len(written)} pictures; look at these first:")
    for path in written:
        if path.stem in ("molecules", "elenbecestat-methods", "digits", "digit-methods"):
            typer.echo(f"  {path.resolve()}")


def main() -> None:
    """Run the command line; an error is one readable line and a non-zero exit status."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    # --debug may stand anywhere on the line
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = app(args=arguments, prog_name="graphxai", standalone_mode=False) or 0
        raise SystemExit(code)
    except (KeyboardInterrupt, typer.Abort):
        raise _interrupted() from None
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            raise _interrupted() from None
        raise
    except BrokenPipeError:
        raise SystemExit(1) from None
    except Exception as error:
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
        typer.echo(f"error: {text or type(error).__name__}{hint}", err=True)
        raise SystemExit(getattr(error, "exit_code", 1)) from None


def _interrupted() -> SystemExit:
    typer.echo("interrupted; continue a table, benchmark or training run with --resume.", err=True)
    return SystemExit(INTERRUPTED)


def _require_no_names(name_column: str | None) -> None:
    if name_column is not None:
        raise typer.BadParameter("--name-column is for tables.")


def _limit(scale: str) -> float | None:
    if scale in ("own", "shared"):
        return None
    try:
        limit = float(scale)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise typer.BadParameter(f"--scale is 'own', 'shared' or a positive number, not {scale!r}.")
    return limit


def _explain_one(
    model: "Graphormer", source: str, kind: str, method: str, target: str | None
) -> "Explanation":
    from graphxai.api import explain as explain_one

    found: Explanation = explain_one(model, value_of(source, kind), method, target=target)
    return found


def _save(found: "list[Explanation]", out: Path, palette: Palette, limit: float | None) -> None:
    from graphxai.visualization import Scale

    scale = None if limit is None else Scale(limit, palette.value)
    if len(found) == 1:
        options: dict[str, Any] = {}
        if out.suffix.lower() in (*PICTURES, ".html"):
            options = {"scale": scale, "palette": palette.value}
        found[0].save(out, **options)
        return
    from graphxai.explanation.grid import side_by_side

    side_by_side(found, palette=palette.value, scale=scale).save(out)


def _explain_table(
    source: str,
    name: str,
    method: str,
    target: str | None,
    out: Path | None,
    smiles_column: str,
    name_column: str | None,
    palette: Palette,
    scale: str,
    pictures: str,
    formats: list[str],
    resume: bool,
) -> None:
    from graphxai.explainers import get_explainer
    from graphxai.tables.run import Pictures, count_rows, explain_table, largest_relevance

    folder = out or Path("results")
    model, explainer = load_with_warning(name), get_explainer(method)
    common: dict[str, Any] = {"smiles_column": smiles_column, "target": target}
    rows = count_rows(source)
    limit = _limit(scale)
    if scale == "shared" and pictures != "none":
        with progress_bar("colour scale", rows) as tick:
            limit = largest_relevance(model, source, explainer, tick=tick, **common) or None
    wanted = None if pictures == "none" else Pictures(f".{pictures}", palette.value, limit)
    common |= {"name_column": name_column, "pictures": wanted, "formats": formats}
    with progress_bar("explaining", rows) as tick:
        counts = explain_table(model, source, folder, explainer, resume=resume, tick=tick, **common)
    earlier = f", {counts.earlier} rows done before" if counts.earlier else ""
    typer.echo(f"{counts.done} explained, {counts.rejected} left out{earlier}: {folder}")
    if counts.rejected:
        typer.echo(f"reasons: {folder / 'rejected.csv'}", err=True)
    if counts.rejected and not counts.done and not counts.earlier:
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
