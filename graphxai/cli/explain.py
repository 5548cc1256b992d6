"""`graphxai explain`: a molecule, a table of molecules, or a digit."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphxai.runtime.progress import progress_bar

from .arguments import (
    ColumnOption,
    DeviceOption,
    ExcelOption,
    LevelOption,
    ModelOption,
    NameOption,
    WorkersOption,
    kind_of,
    level_for,
    load_with_warning,
    require_kind,
    require_no_table_options,
    require_out,
    value_of,
)
from .terminal import echo

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import LoadedModel
    from graphxai.explanation.explanation import Explanation
    from graphxai.tables.run import Counts

PICTURES = (".svg", ".png", ".pdf")
WRITABLE = (*PICTURES, ".html", ".csv", ".parquet", ".json", ".sdf", ".smi")


class Engine(StrEnum):
    """What runs over a table."""

    local = "local"
    ray = "ray"


class Palette(StrEnum):
    """Colours of the pictures; the second is colour-blind safe."""

    red_blue = "red-blue"
    orange_purple = "orange-purple"


def explain(
    source: Annotated[
        str,
        typer.Argument(
            help="A SMILES, a CSV table, or a picture of a digit; with --engine ray also a Parquet"
            " or Lance table, a folder, or an address such as s3://bucket/molecules.parquet."
        ),
    ],
    model: ModelOption = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Explanation method; see `graphxai methods`. `best` has the highest AUAC for its"
            " passes (learned: 4 forward, 4 backward). Repeat to compare several."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Class or task to explain [default: the predicted class, or the second of two]."
        ),
    ] = None,
    place: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="File to write: picture (.svg, .png, .pdf), page (.html), values (.csv, .parquet,"
            " .json) or structure with values (.sdf, .smi); for a table, a folder.",
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
    atom_numbers: Annotated[
        bool,
        typer.Option("--atom-numbers", help="Write each atom's number, as in tables, beside it."),
    ] = False,
    pictures: Annotated[
        str, typer.Option(help="Pictures for a table: 'svg', 'png' or 'none'.")
    ] = "svg",
    formats: Annotated[
        str,
        typer.Option("--format", help="Files for a table: csv (always written), parquet, sdf."),
    ] = "csv",
    level: LevelOption = None,
    excel_safe: ExcelOption = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run over a table.")
    ] = False,
    workers: WorkersOption = None,
    device: DeviceOption = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="What explains a table: 'ray' uses all cores of a machine or a cluster, and writes"
            " Parquet shards and a manifest (`pip install 'graphxai[scale]'`)."
        ),
    ] = Engine.local,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster [default: Ray runs on this machine]."),
    ] = None,
    shard_rows: Annotated[
        int | None,
        typer.Option(min=1, help="With --engine ray: largest number of rows of a shard."),
    ] = None,
) -> None:
    """Explain a molecule, a table of molecules, or a picture of a digit.

    **Examples**

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --out aspirin.svg`

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --method lrp --method gae --out compared.png`

    `graphxai explain molecules.csv --smiles-column smiles --out results/ --scale shared`

    `graphxai explain molecules.csv --name-column ID --out results/ --format csv,parquet,sdf`

    `graphxai explain molecules.csv --workers 4 --out results/ --pictures none`

    `graphxai explain molecules.csv --out results/ --pictures none --device cuda`

    `graphxai explain s3://bucket/molecules.parquet --engine ray --out s3://bucket/results/`

    `graphxai explain digit.png --model mnist-superpixels --out digit.svg`
    """
    if engine is Engine.ray:
        local = formats != "csv" or excel_safe or atom_numbers or scale != "own"
        if local or device or level is not None:
            raise typer.BadParameter(
                "--engine ray writes Parquet shards without pictures, on CPUs, with intervals at"
                " 0.9: leave out --format, --excel-safe, --atom-numbers, --scale, --device and"
                " --level."
            )
        if method and len(method) > 1:
            raise typer.BadParameter("a table takes one --method at a time.")
        options: dict[str, Any] = {"target": target, "smiles_column": smiles_column}
        options |= {"name_column": name_column}
        options |= {"address": ray_address, "resume": resume, "workers": workers}
        options |= {} if shard_rows is None else {"shard_rows": shard_rows}
        _explain_on_ray(
            source, model or "bace", (method or ["lrp"])[0], place or "results", options
        )
        return
    if ray_address or shard_rows:
        raise typer.BadParameter("--ray-address and --shard-rows are for --engine ray.")
    out = None if place is None else Path(place)
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
            atom_numbers, pictures, files, level, excel_safe, resume, workers, device,
        )  # fmt: skip
        return
    require_no_table_options(name_column, workers)
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

    loaded = load_with_warning(name, device)
    require_kind(loaded, source, kind)
    if atom_numbers and kind == "image":
        raise typer.BadParameter("--atom-numbers is for molecules.")
    if out is not None:
        require_out(out, source if kind == "image" else "")
    wanted = level_for(loaded, level)
    found = [_explain_one(loaded, source, kind, m, target).at(wanted) for m in chosen]
    for explanation in found:
        print_explanation(explanation)
    print_glossary(found)
    if out is not None:
        _save(found, out, palette, limit, {"atom_numbers": True} if atom_numbers else {})
        echo(f"written: {out}")


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
    model: "LoadedModel", source: str, kind: str, method: str, target: str | None
) -> "Explanation":
    from graphxai.api import explain as explain_one

    found: Explanation = explain_one(model, value_of(source, kind), method, target=target)
    return found


def _save(
    found: "list[Explanation]",
    out: Path,
    palette: Palette,
    limit: float | None,
    options: dict[str, Any],
) -> None:
    options = options | {"scale": limit, "palette": palette.value}
    if len(found) == 1:
        found[0].save(out, **options if out.suffix.lower() in (*PICTURES, ".html") else {})
        return
    from graphxai.explanation.grid import side_by_side

    side_by_side(found, **options).save(out)


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
    atom_numbers: bool,
    pictures: str,
    formats: list[str],
    level: float | None,
    excel_safe: bool,
    resume: bool,
    workers: int | None,
    device: str | None,
) -> None:
    from graphxai.explainers import get_explainer
    from graphxai.tables.run import Pictures, count_rows, explain_table, largest_relevance

    folder = out or Path("results")
    model, explainer = load_with_warning(name, device), get_explainer(method)
    common: dict[str, Any] = {"smiles_column": smiles_column, "target": target, "workers": workers}
    rows = count_rows(source)
    limit = _limit(scale)
    if scale == "shared" and pictures != "none":
        with progress_bar("colour scale", rows) as advance:
            limit = largest_relevance(model, source, explainer, progress=advance, **common) or None
    wanted = (
        None if pictures == "none" else Pictures(f".{pictures}", palette.value, limit, atom_numbers)
    )
    common |= {"name_column": name_column, "pictures": wanted, "formats": formats}
    common |= {"excel_safe": excel_safe, "resume": resume, "level": level_for(model, level)}
    with progress_bar("explaining", rows) as advance:
        counts = explain_table(model, source, folder, explainer, progress=advance, **common)
    _print_counts(counts, folder, folder / "rejected.csv")


def _print_counts(counts: "Counts", folder: Path | str, reasons: Path | str) -> None:
    """Say what a run over a table did; exit status 1 if it explained nothing at all."""
    from .printing import nearness_line

    earlier = f", {counts.earlier} rows done before" if counts.earlier else ""
    echo(f"{counts.done} explained, {counts.rejected} left out{earlier}: {folder}")
    if counts.done:
        echo(nearness_line(counts.nearness))
    if counts.rejected:
        echo(f"reasons: {reasons}", err=True)
    if counts.rejected and not counts.done and not counts.earlier:
        raise typer.Exit(1)


def _explain_on_ray(
    source: str, name: str, method: str, folder: str, options: dict[str, Any]
) -> None:
    from graphxai.tables.cluster import explain_on_ray

    counts = explain_on_ray(load_with_warning(name), source, folder, method, **options)
    _print_counts(counts, folder, "column `reason`")
