"""The command `graphxai explain`: explain a molecule, a table of molecules, or a digit."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphxai.runtime.progress import progress_bar
from graphxai.tables.settings import ClusterSettings, ExplanationSettings, Pictures

from .arguments import (
    AsDrawnOption,
    DeviceOption,
    ModelOption,
    MoleculeFeaturesOption,
    NodeOption,
    check_level,
    kind_of,
    load_with_warning,
    model_line,
    require_kind,
    require_out,
    share_imports,
    show_table,
    value_of,
)
from .completion import method_names
from .options import APPLIES_ALWAYS, applies_to, options_from, refuse_inapplicable
from .terminal import echo

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import Model
    from graphxai.explanation.explanation import Explanation
    from graphxai.tables.run import TableCounts

PICTURES = (".svg", ".png", ".pdf")
WRITABLE = (*PICTURES, ".html", ".csv", ".parquet", ".json", ".sdf", ".smi")


class Engine(StrEnum):
    """What runs over a table."""

    local = "local"
    ray = "ray"


class PictureFormat(StrEnum):
    """Pictures for a table."""

    svg = "svg"
    png = "png"
    none = "none"


@options_from(ClusterSettings, "cluster")
@options_from(Pictures, "drawing")
@options_from(ExplanationSettings)
def explain(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="A SMILES; a table (CSV, .smi, .sdf, .xlsx, Parquet, also .gz); a picture of a"
            " digit; or a folder of graphs. With --engine ray also a Lance table, a folder of"
            " tables, or an address such as s3://bucket/molecules.parquet."
        ),
    ],
    *,
    model: ModelOption = None,
    as_drawn: AsDrawnOption = False,
    molecule_features: MoleculeFeaturesOption = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Explanation method; see `graphxai methods`. `best` means learned, whose first"
            " nodes restore the prediction soonest for its 4 forward and 4 backward passes. Repeat"
            " to compare several.",
            autocompletion=method_names,
        ),
        APPLIES_ALWAYS,
    ] = None,
    place: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="File to write: picture (.svg, .png, .pdf), page (.html), values (.csv, .parquet,"
            " .json) or structure with values (.sdf, .smi); for a table, a folder.",
        ),
        APPLIES_ALWAYS,
    ] = None,
    settings: ExplanationSettings,
    drawing: Pictures,
    scale: Annotated[
        str,
        typer.Option(
            help="Colour scale: 'own' for each picture, 'shared' by the whole table, or a number:"
            " the relevance shown in full colour."
        ),
        applies_to("smiles", "table", "image", "graphs"),
    ] = "own",
    pictures: Annotated[
        PictureFormat,
        typer.Option(help="Pictures for a table or graphs."),
        applies_to("table", "graphs"),
    ] = PictureFormat.svg,
    node: NodeOption = None,
    device: DeviceOption = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="What explains a table: 'ray' uses all cores of a machine or a cluster, and writes"
            " Parquet shards and a manifest, with intervals at 0.9 and without pictures. It needs"
            " the extra `scale`."
        ),
        applies_to("table", "ray"),
    ] = Engine.local,
    cluster: ClusterSettings,
) -> None:
    """Explain a molecule, a table of molecules, or a picture of a digit.

    **Examples**

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --out aspirin.svg`

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --method lrp --method gae --out compared.png`

    `graphxai explain molecules.csv --smiles-column drawn --out results/ --scale shared`

    `graphxai explain molecules.csv --name-column ID --out results/ --format csv,parquet,sdf`

    `graphxai explain molecules.csv --workers 4 --out results/ --pictures none`

    `graphxai explain molecules.csv --out results/ --pictures none --device cuda`

    `graphxai explain s3://bucket/molecules.parquet --engine ray --out s3://bucket/results/`

    `graphxai explain digit.png --model mnist-superpixels --out digit.svg`

    `graphxai explain my-graphs --model runs/graphs --out results/`
    """
    kind = "ray" if engine is Engine.ray else kind_of(source, graphs=True)
    refuse_inapplicable(context, kind)
    methods = [name.strip() for names in method or ["lrp"] for name in names.split(",")]
    limit = _limit(scale)
    model = model or ("mnist-superpixels" if kind == "image" else "bace")
    reading: dict[str, Any] = {"as_drawn": as_drawn, "molecule_features": molecule_features}
    if kind in ("table", "ray", "graphs"):
        if len(methods) > 1:
            raise typer.BadParameter("a table or folder takes one --method at a time.")
        share_imports()
    if kind == "graphs":
        from .explain_graphs import explain_graphs

        loaded = load_with_warning(model, device)
        require_kind(loaded, source, kind)
        explain_graphs(
            loaded,
            Path(source),
            methods[0],
            _folder(place),
            target=settings.target,
            nodes=node or [],
            suffix=None if pictures is PictureFormat.none else f".{pictures.value}",
            options={"scale": limit, "palette": drawing.palette},
        )
    elif kind == "ray":
        on_ray = load_with_warning(model, as_drawn=as_drawn)
        _explain_on_ray(source, on_ray, methods[0], place or "results", settings, cluster)
        echo(model_line(context, on_ray))
    elif kind == "table":
        if pictures is not PictureFormat.none:
            look = replace(drawing, suffix=f".{pictures.value}", limit=limit)
            settings = replace(settings, pictures=look)
        folder = _folder(place)
        loaded = load_with_warning(model, device, **reading)
        check_level(context, loaded, settings.level)
        _explain_table(loaded, source, methods[0], folder, settings, scale == "shared")
        echo(model_line(context, loaded))
    else:
        out = None if place is None else Path(place)
        if out is not None:
            _require_writable(out, source if kind == "image" else "", methods)
        loaded = load_with_warning(model, device, **reading)
        require_kind(loaded, source, kind)
        check_level(context, loaded, settings.level)
        explanations = [
            _explain_one(loaded, source, kind, name, settings.target).at(settings.level)
            for name in methods
        ]
        _print(explanations)
        echo(model_line(context, loaded))
        if out is not None:
            _save(explanations, out, replace(drawing, limit=limit))
            echo(f"written: {out}")


def _limit(scale: str) -> float | None:
    """Return the relevance shown in full colour, or None if the pictures decide about it."""
    if scale in ("own", "shared"):
        return None
    try:
        limit = float(scale)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise typer.BadParameter(f"--scale is 'own', 'shared' or a positive number, not {scale!r}.")
    return limit


def _folder(place: str | None) -> Path:
    """Return the folder for the results of a table."""
    folder = Path(place or "results")
    if folder.suffix.lower() in WRITABLE and not folder.is_dir():
        raise typer.BadParameter(f"--out {folder}: for a table, name a folder, not a file.")
    return folder


def _require_writable(out: Path, source: str, methods: list[str]) -> None:
    """Raise an error unless a molecule or digit can be written to this file."""
    require_out(out, source, WRITABLE)
    if len(methods) > 1 and out.suffix.lower() not in PICTURES:
        allowed = ", ".join(PICTURES)
        raise typer.BadParameter(
            f"several methods go into one picture: --out must end in {allowed}."
        )


def _explain_one(
    model: "Model", source: str, kind: str, method: str, target: str | None
) -> "Explanation":
    from graphxai.api import explain as explain_input
    from graphxai.explainers import get_explainer

    value, explainer = value_of(source, kind), get_explainer(method)
    explanation: Explanation = explain_input(model, value, explainer, target=target)
    return explanation


def _print(explanations: "list[Explanation]") -> None:
    from .printing import print_explanation, print_glossary

    for explanation in explanations:
        print_explanation(explanation)
    print_glossary(explanations)


def _save(explanations: "list[Explanation]", out: Path, look: Pictures) -> None:
    """Write one explanation to a file of any type, or several side by side to a picture."""
    options: dict[str, Any] = {"scale": look.limit, "palette": look.palette}
    if look.atom_numbers:
        options["atom_numbers"] = True
    if len(explanations) == 1:
        is_drawn = out.suffix.lower() in (*PICTURES, ".html")
        explanations[0].save(out, **options if is_drawn else {})
        return
    from graphxai.explanation.grid import side_by_side

    side_by_side(explanations, **options).save(out)


def _explain_table(
    model: "Model",
    source: str,
    method: str,
    folder: Path,
    settings: ExplanationSettings,
    shared_scale: bool,
) -> None:
    from graphxai.explainers import get_explainer
    from graphxai.tables.run import explain_table, largest_relevance

    explainer = get_explainer(method)
    rows = show_table(source, settings.smiles_column).count()
    if shared_scale and settings.pictures is not None:
        with progress_bar("colour scale", rows) as advance:
            limit = largest_relevance(
                model,
                source,
                explainer,
                smiles_column=settings.smiles_column,
                target=settings.target,
                workers=settings.workers,
                progress=advance,
            )
        settings = replace(settings, pictures=replace(settings.pictures, limit=limit or None))
    with progress_bar("explaining", rows) as advance:
        counts = explain_table(
            model, source, folder, explainer, settings=settings, progress=advance
        )
    _print_counts(counts, folder, folder / "rejected.csv")


def _print_counts(counts: "TableCounts", folder: Path | str, reasons: Path | str) -> None:
    """Say what a run over a table did. Exit with status 1 if it explained nothing at all."""
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
    source: str,
    model: "Model",
    method: str,
    folder: str,
    settings: ExplanationSettings,
    cluster: ClusterSettings,
) -> None:
    from graphxai.tables.cluster import explain_on_ray
    from graphxai.tables.settings import RaySettings

    chosen = RaySettings(
        smiles_column=settings.smiles_column,
        name_column=settings.name_column,
        target=settings.target,
        resume=settings.resume,
        workers=settings.workers,
        **vars(cluster),
    )
    # Said beforehand, because SIGTERM may end a process that starts Ray without another word.
    echo("starting Ray; if the run is stopped, continue it with --resume", err=True)
    counts = explain_on_ray(model, source, folder, method, settings=chosen)
    _print_counts(counts, folder, "column `reason`")
