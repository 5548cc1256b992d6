"""The command `graphxai explain`: explain a molecule, a table, a digit, or a folder of graphs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.datasets.tables.opening import SUFFIXES as TABLES
from graphxai.runtime.options import as_in, names_in, option
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.writing import folder_at
from graphxai.tables.settings import ClusterSettings, ExplanationSettings, Pictures

from .answers import INVOCATION, answer, on_standard_output, require_one_file
from .answers import counts as count_rows
from .arguments import (
    ALWAYS,
    ModelOptions,
    SharedOptions,
    check_level,
    kind_of,
    load_with_warning,
    model_line,
    require_kind,
    require_nodes,
    require_out,
    require_sense,
    share_imports,
    show_table,
    value_of,
)
from .listing import method_names
from .options import refuse_inapplicable, settings_as_options
from .terminal import echo_left_out, tell

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import Model
    from graphxai.explanation.explanation import Explanation
    from graphxai.tables.run import TableCounts

PICTURES = (".svg", ".png", ".pdf")
WRITABLE = (*PICTURES, ".html", ".csv", ".parquet", ".json", ".sdf", ".smi")


@dataclass(frozen=True)
class ExplainOptions(ModelOptions):
    """What explains, and where the results go."""

    method: list[str] | None = option(
        None,
        "Explanation method; `graphxai methods` lists them. `best` is the method learned where it"
        " was fitted to the model, and path_marginals elsewhere. Repeat to compare several.",
        ALWAYS,
        complete=method_names,
    )
    out: str | None = option(
        None,
        "File to write: picture (.svg, .png, .pdf), page (.html), values (.csv, .parquet, .json)"
        " or structure with values (.sdf, .smi); for a table, a folder.",
        ALWAYS,
    )


@dataclass(frozen=True)
class ComputingOptions:
    """The scale of the pictures, the nodes to read, and what computes."""

    scale: str = option(
        "shared",
        "Colour scale: 'shared' by all pictures of a table, 'own' for each, or a number: the"
        " relevance shown in full colour.",
        ("smiles", "table", "image", "graphs"),
    )
    pictures: Literal["svg", "png", "none"] = option(
        "svg", "Pictures for a table or graphs.", ("table", "graphs")
    )
    node: list[int] | None = as_in(SharedOptions, "node")
    device: str | None = as_in(SharedOptions, "device")
    engine: Literal["local", "ray"] = option(
        "local",
        "What explains a table: 'ray' uses all cores of a machine or a cluster, and writes Parquet"
        " shards and a manifest, with intervals at 0.9 and without pictures. It needs the extra"
        " `scale`.",
        ("table", "ray"),
    )

    @property
    def suffix(self) -> str | None:
        """The suffix of the pictures, or None if there are none."""
        return None if self.pictures == "none" else f".{self.pictures}"


@settings_as_options
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
    options: ExplainOptions,
    settings: ExplanationSettings,
    drawing: Pictures,
    computing: ComputingOptions,
    cluster: ClusterSettings,
) -> None:
    """Explain a molecule, a table of molecules, or a picture of a digit.

    **Examples**

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --out aspirin.svg`

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --method lrp --method gae --out compared.png`

    `graphxai explain examples/molecules.csv --name-column name --out results/ --scale shared`

    `graphxai explain my.csv --smiles-column drawn --out results/ --format csv,parquet,sdf`

    `graphxai explain my.csv --workers 4 --out results/ --pictures none`

    `graphxai explain my.csv --out results/ --pictures none --device cuda`

    `graphxai explain s3://bucket/molecules.parquet --engine ray --out s3://bucket/results/`

    `graphxai explain examples/digit.png --model mnist-superpixels --out digit.svg`

    `graphxai explain my-graphs --model runs/graphs --out results/`
    """
    kind = "ray" if computing.engine == "ray" else kind_of(source, graphs=True)
    refuse_inapplicable(context, kind)
    methods = list(names_in(options.method or [DEFAULT_METHOD]))
    drawing = replace(drawing, limit=_limit(computing.scale))
    columns = (settings.smiles_column, settings.name_column)
    named = methods if options.method else ()
    require_sense(source, kind, [options.model], named, columns, settings.level)
    if kind in ("table", "ray", "graphs"):
        if len(methods) > 1:
            raise typer.BadParameter("a table or folder takes one --method at a time.")
        share_imports()
    if kind in ("ray", "graphs"):
        require_one_file(options.out or "results")
    if kind in ("table", "graphs"):
        folder = Path(options.out or "results")
        if on_standard_output(folder):
            folder, computing = folder.with_suffix(""), replace(computing, pictures="none")
        if folder.suffix.lower() in (*WRITABLE, *TABLES) and not folder.is_dir():
            raise typer.BadParameter(f"--out {folder}: for a table, name a folder, not a file.")
    elif kind != "ray" and options.out is not None:
        require_out(Path(options.out), source if kind == "image" else "", WRITABLE)
        if len(methods) > 1 and Path(options.out).suffix.lower() not in PICTURES:
            allowed = ", ".join(PICTURES)
            raise typer.BadParameter(
                f"several methods go into one picture: --out must end in {allowed}."
            )
    from graphxai.explainers.registry import default_method

    model = load_with_warning(
        options.model or ("mnist-superpixels" if kind == "image" else "bace"),
        computing.device,
        reading=options,
    )
    if not options.method:
        methods = [default_method(model)]
    answer(models=[model.origin.name])
    if kind == "graphs":
        require_kind(model, source, kind)
        _explain_graphs(
            model, Path(source), methods[0], folder, settings.target, drawing, computing
        )
        return
    if kind == "ray":
        from graphxai.tables.cluster import explain_on_ray

        shared = ("smiles_column", "name_column", "target", "resume", "workers")
        given = {name: getattr(settings, name) for name in shared}
        given |= {"address": cluster.address, "shard_rows": cluster.shard_rows}
        # Said beforehand, because SIGTERM may end a process that starts Ray without another word.
        tell("starting Ray; if the run is stopped, continue it with --resume")
        place = options.out or "results"
        counts = explain_on_ray(model, source, place, methods[0], **given)
        _print_counts(counts, place, "column `reason`")
    elif kind == "table":
        if computing.suffix is not None:
            settings = replace(settings, pictures=replace(drawing, suffix=computing.suffix))
        check_level(context, model)
        _explain_table(model, source, methods[0], folder, settings, computing.scale == "shared")
        if options.out and on_standard_output(options.out):
            (folder / "explanations.csv").replace(options.out)
    else:
        from graphxai.explainers import get_explainer
        from graphxai.explanation.api import explain as explain_input

        from .printing import print_explanation, print_glossary

        require_kind(model, source, kind)
        check_level(context, model)
        explanations = [
            explain_input(
                model, value_of(source, kind), get_explainer(name), target=settings.target
            ).at(settings.level)
            for name in methods
        ]
        if options.out is not None:
            _save(explanations, Path(options.out), drawing)
        answer(explanations=[explanation.to_dict() for explanation in explanations])
        for explanation in explanations:
            print_explanation(explanation)
        print_glossary(explanations)
    tell(model_line(context, model))
    if kind in ("smiles", "image") and options.out is not None:
        tell(f"written: {options.out}")
        answer(files=[options.out])


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


def _save(explanations: "list[Explanation]", out: Path, look: Pictures) -> None:
    options: dict[str, Any] = {"scale": look.limit, "palette": look.palette}
    if look.atom_numbers:
        options["atom_numbers"] = True
    if len(explanations) == 1:
        is_drawn = out.suffix.lower() in (*PICTURES, ".html")
        explanations[0].save(out, **options if is_drawn else {})
        return
    from graphxai.explanation.comparison import side_by_side

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
    from graphxai.tables.run import SCALED, common_limit, explain_table

    explainer = get_explainer(method)
    rows = show_table(source, settings.smiles_column, [model]).count()
    if shared_scale and settings.pictures is not None:
        with progress_bar("colour scale", min(rows, SCALED)) as advance:
            given = {
                name: getattr(settings, name) for name in ("smiles_column", "target", "workers")
            }
            limit = common_limit(model, source, explainer, **given, progress=advance)
        settings = replace(settings, pictures=replace(settings.pictures, limit=limit))
    with progress_bar("explaining", rows) as advance:
        counts = explain_table(
            model, source, folder, explainer, settings=settings, progress=advance
        )
    _print_counts(counts, folder, folder / "rejected.csv")


def _print_counts(counts: "TableCounts", folder: Path | str, reasons: Path | str) -> None:
    """Say what a run over a table did. Exit with status 1 if it explained nothing at all."""
    from graphxai.datasets.tables.table import open_table

    from .printing import nearness_line

    earlier = f", {counts.earlier} rows done before" if counts.earlier else ""
    tell(f"{counts.done} explained, {counts.rejected} left out{earlier}: {folder}")
    answer(counts=count_rows(counts.done, counts.rejected, counts.earlier), files=[folder])
    if counts.done:
        tell(nearness_line(counts.nearness))
    if counts.rejected and on_standard_output(folder):  # whose other files do not last
        rows = open_table(reasons).records(("row", "reason"))
        refused = (f"row {cells['row']}: {cells['reason']}" for _, cells, _ in rows)
        echo_left_out(refused, counts.rejected)
    elif counts.rejected:
        INVOCATION.rejected += counts.rejected
        tell(f"reasons: {reasons}")
    if counts.rejected and not counts.done and not counts.earlier:
        raise typer.Exit(1)


def _explain_graphs(
    model: "Model",
    source: Path,
    method: str,
    out: Path,
    target: str | None,
    drawing: Pictures,
    computing: ComputingOptions,
) -> None:
    """Explain every graph of a folder, and write tables and pictures to another folder.

    Raises ValueError if the model does not read graphs, or nodes are missing or not wanted.
    Exit with status 1 if no graph could be explained.
    """
    from graphxai.datasets.graph_folders import load_graphs
    from graphxai.explainers import get_explainer
    from graphxai.explanation.api import explain as explain_inputs
    from graphxai.explanation.explanations import common_scale

    nodes = computing.node or []
    require_nodes(model, nodes)
    graphs, explainer = load_graphs(source).graphs, get_explainer(method)
    explained: dict[str, Explanation | None] = {}
    if nodes:
        for k, graph in enumerate(graphs):
            results = explain_inputs(model, graph, explainer, target=target, node=list(nodes))
            explained |= {f"{k}/{node}": e for node, e in zip(nodes, results, strict=True)}
    else:
        results = explain_inputs(model, graphs, explainer, target=target)
        explained = {str(k): e for k, e in enumerate(results)}
    usable = {key: e for key, e in explained.items() if e is not None}
    _write_tables(usable, folder_at(out))
    drawn = [key for key, e in usable.items() if computing.suffix is not None and e.has_picture]
    scale: Any = drawing.limit
    if computing.scale == "shared":
        scale = common_scale([usable[key] for key in drawn], drawing.palette)
    for key in drawn:
        picture = folder_at(out / "pictures") / f"{key.replace('/', '-')}{computing.suffix}"
        usable[key].save(picture, scale=scale, palette=drawing.palette)
    left_out = len(explained) - len(usable)
    tell(f"{len(usable)} explained, {left_out} left out: {out}")
    INVOCATION.rejected += left_out
    answer(counts=count_rows(len(usable), left_out), files=[out])
    if drawn:
        tell(f"pictures: {len(drawn)} in {out / 'pictures'}")
    if not usable:
        raise typer.Exit(1)


def _write_tables(explained: Mapping[str, "Explanation"], out: Path) -> None:
    import pandas as pd

    from graphxai.explanation.files import write_csv

    predictions, relevance = [], []
    for key, explanation in explained.items():
        about = {name: getattr(explanation, name) for name in ("method", "target", "output")}
        about = {"graph": key} | about
        for prediction in explanation.predictions:
            predictions.append(about | {"task": prediction.task, "prediction": prediction.in_full})
        for node, value in enumerate(explanation.relevance.tolist()):
            relevance.append({"graph": key, "node": node, "relevance": value})
    write_csv(pd.DataFrame(predictions), out / "predictions.csv", index=False)
    write_csv(pd.DataFrame(relevance), out / "relevance.csv", index=False)
