"""The command `graphxai benchmark`: measure explainers on a test set."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from graphxai.contract.method_names import MEASURED_METHODS
from graphxai.runtime.extras import is_ogb_name
from graphxai.runtime.options import as_in, names_in, option

from .arguments import ALWAYS, SharedOptions, naming_data_option, require_sense, share_imports
from .listing import method_names
from .options import refuse_inapplicable, settings_as_options
from .terminal import echo, echo_left_out, print_table, tell, typed_command

NAMED = ("bace", "mnist-superpixels")
MODELS = (*NAMED, "ogb", "checkpoint")  # not for rules, for which models are trained
ON_CLIFFS = (*MODELS, "cliffs")
METHODS = ",".join(MEASURED_METHODS)
RULES = "indole,halogen,logp"
OF_LAYERS = 20  # graphs whose relevance is summed at every layer


@dataclass(frozen=True)
class BenchmarkOptions:
    """What is measured, on which graphs, and how."""

    methods: list[str] | None = option(
        None,
        f"'all', or method names separated by commas [default: {METHODS}].",
        ALWAYS,
        complete=method_names,
    )
    metrics: list[str] | None = option(
        None,
        "'all', or metric names separated by commas [default: auac,au_mse,srg,exchange_error].",
        MODELS,
    )
    operators: list[str] | None = option(
        None,
        "How nodes are removed: 'all', or some of mask,zero,delete,resample [default: mask]."
        " 'resample' draws other atoms in their place; see fit-masked-atoms.",
        MODELS,
    )
    steps: int | None = option(None, "Points per curve; Ali 2022 takes 11 [default: all].", MODELS)
    limit: int | None = option(
        None, "Measure at most this many graphs, drawn with the seed.", ALWAYS
    )
    target: str | None = option(
        None,
        "'true' (the label), 'predicted', or a class [default: true if there are labels].",
        ON_CLIFFS,
    )
    task: str | None = option(
        None, "Task, if the model has several [default: the first].", ON_CLIFFS
    )
    model: list[str] | None = option(
        None, "Checkpoint to use instead of the bundled one; repeat for several seeds.", MODELS
    )
    rule: list[str] | None = option(
        None,
        f"Rule to train on; repeat, or 'all' [default: {RULES}].",
        ("rules",),
        names_kind=False,
    )
    smiles_column: str | None = as_in(
        SharedOptions, "smiles_column", applies_to=("checkpoint", "rules", "cliffs")
    )
    label_column: str | None = option(
        None,
        "Column with the true class, as name or number; for cliffs with measured values [default:"
        " named after the task].",
        ("checkpoint", "cliffs"),
        names_kind=False,
    )
    truth: Literal["cliffs"] | None = option(
        None,
        "'cliffs' scores pairs of similar compounds of a table that differ at least tenfold, by the"
        " atoms that differ.",
        ("checkpoint", "cliffs"),
        names_kind=False,
    )
    truths: str | None = option(
        None,
        "Column with the true atoms (numbers from 0, separated by spaces), or attribute of graphs"
        " with the true nodes.",
        ("checkpoint",),
        names_kind=False,
    )
    data: Path | None = option(
        None, "Data folder [default: $GRAPHXAI_DATA, or a cache].", (*NAMED, "ogb", "rules")
    )
    seed: int = as_in(SharedOptions, "seed")
    out: Path | None = option(None, "Output folder [default: bench/SOURCE].", ALWAYS)
    resume: bool = option(False, "Continue after an interruption.", ALWAYS)
    refit: str | None = option(
        None,
        "Train on graphs with nodes removed before measuring: 'f-fidelity' (at random) or 'roar'"
        " (without the nodes that each method ranks highest).",
        MODELS,
    )
    training: Path | None = option(
        None, "Table of training molecules for --refit, with the same columns.", MODELS
    )
    refit_limit: int | None = option(
        None, "Train on at most this many graphs, drawn with the seed.", MODELS
    )
    workers: int | None = option(
        None,
        "Processes; the results are the same for any number [default: all free cores, if that is"
        " faster than one].",
        MODELS,
        minimum=1,
    )
    device: str | None = as_in(SharedOptions, "device")

    @property
    def columns(self) -> dict[str, Any]:
        """Where the graphs and their labels are."""
        names = ("data", "smiles_column", "label_column", "task", "truths")
        return {name: getattr(self, name) for name in names}


@settings_as_options
def benchmark(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="'bace', 'mnist-superpixels', 'rules', a data set of OGB such as 'ogbg-molbace',"
            " or a checkpoint folder."
        ),
    ],
    table: Annotated[
        Path | None,
        typer.Argument(
            help="Table of molecules, for a checkpoint or for rules. A checkpoint also takes a"
            " folder of graphs, of which it uses those held out for testing."
        ),
    ] = None,
    *,
    options: BenchmarkOptions,
) -> None:
    """Measure how faithful explanation methods are, with intervals and tests.

    Writes all scores, a summary, a table for LaTeX, figures and examples to a folder.

    **Examples**

    `graphxai benchmark bace --methods lrp,path_marginals --limit 20 --out bench/bace`

    `graphxai benchmark mnist-superpixels --methods lrp,gae --limit 200 --operators all`

    `graphxai benchmark bace --methods all --workers 4`

    `graphxai benchmark runs/mine test.csv --label-column activity --metrics all`

    `graphxai benchmark runs/mine test.csv --truths true_atoms --metrics auac,roc_auc`

    `graphxai benchmark runs/graphs my-graphs --methods lrp,gae,occlusion`

    `graphxai benchmark bace --methods all --device cuda`

    `graphxai benchmark bace --methods lrp,gae --refit f-fidelity` measures with a model that was
    trained further on masked molecules, so that these are nothing new to it.

    `graphxai benchmark ogbg-molbace --model runs/molbace` measures on the official test molecules.

    `graphxai benchmark rules molecules.csv --rule indole --methods all` trains on molecules whose
    relevant atoms are known, and scores the methods against these atoms.

    `graphxai benchmark runs/mine test.csv --truth cliffs` scores them by the atoms in which similar
    compounds of very different potency differ.
    """
    kind = source if source in (*NAMED, "rules") else "checkpoint"
    kind = "ogb" if is_ogb_name(source) else kind
    if options.truth == "cliffs" and table is not None and kind == "checkpoint":
        kind = "cliffs"
    refuse_inapplicable(context, kind)
    if options.training is not None and options.refit is None:
        raise typer.BadParameter("--training is for --refit.")
    named = _listed(options.methods, METHODS)
    require_sense("", "", options.model or (), () if named == "all" else named)
    if kind == "rules":
        _benchmark_rules(table, options)
        return
    if table is not None and kind == "cliffs":
        _benchmark_cliffs(source, table, options)
        return
    if options.truth == "cliffs":
        raise typer.BadParameter("--truth cliffs needs a checkpoint folder and a table.")
    if table is not None and kind != "checkpoint":
        raise typer.BadParameter(
            "a table goes with a checkpoint folder, not with a named data set."
        )
    if kind == "ogb" and not options.model:
        raise typer.BadParameter(f"name the model to measure on {source}: --model CHECKPOINT.")
    if table is None and kind == "checkpoint":
        raise typer.BadParameter(
            f"{source!r} is not one of {', '.join(NAMED)}; after a checkpoint folder, give a table"
            " of molecules or a folder of graphs."
        )
    share_imports()
    from graphxai.evaluation import merged
    from graphxai.evaluation.report import examples_svg
    from graphxai.runtime.writing import exclusive_lock, folder_at, write_whole

    if options.refit is not None and table is not None and options.training is None:
        raise typer.BadParameter("--refit with a table needs --training, a table with labels.")
    folder = options.out or Path("bench") / Path(source).name
    name = source if table is None else str(table)
    measured: list[tuple[Any, Any, Any]] = []
    with exclusive_lock(folder_at(folder)), naming_data_option():
        for checkpoint in options.model or [source]:
            measured.append(_measure(checkpoint, name, options, folder, further=bool(measured)))
        report = merged(report for *_, report in measured)
        loaded, graphs, first = measured[0]
        report.settings.update(command=typed_command(), data=graphs.title, limit=options.limit)
        report.save(folder)
        examples = examples_svg(loaded, graphs.inputs, first)
        if examples is not None:
            write_whole(folder / "examples.svg", examples)
        _save_layers(loaded, list(graphs.inputs.values())[:OF_LAYERS], folder)
        _print(report, folder)


def _save_layers(model: Any, inputs: list[Any], folder: Path) -> None:
    """Write how much relevance there is at every layer, where the layers can be told."""
    from graphxai.evaluation import layer_sums
    from graphxai.explanation.files import write_csv
    from graphxai.runtime.writing import atomic_write
    from graphxai.visualization.curves import layers_figure

    try:
        sums = layer_sums(model, inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        echo(f"no figure of the layers: {error}")
        return
    write_csv(sums, folder / "layers.csv", index=False)
    for suffix in ("png", "svg"):
        with atomic_write(folder / f"layers.{suffix}", "wb") as file:
            layers_figure(sums).savefig(file, format=suffix, dpi=160)


def _measure(
    checkpoint: str, data: str, options: BenchmarkOptions, folder: Path, *, further: bool
) -> tuple[Any, Any, Any]:
    """Return a model, the graphs it was measured on, and the report.

    Args:
        data: the name of the data set, or the path of a table or folder.
        further: whether the folder holds the results of other models of this run.
    """
    from graphxai.contract.target import Target
    from graphxai.evaluation import Refit, evaluate
    from graphxai.evaluation.metrics import DEFAULT_METRICS
    from graphxai.evaluation.sources import source as graphs_of
    from graphxai.explanation.api import load

    loaded = load(checkpoint)
    graphs = graphs_of(loaded, data, **options.columns).sample(options.limit, options.seed)
    refit = None
    if options.refit is not None:
        learned = graphs_of(loaded, str(options.training or data), "train", **options.columns)
        learned = learned.labelled().sample(options.refit_limit, options.seed)
        labels = [learned.labels[key] for key in learned.inputs]
        refit = Refit(options.refit, list(learned.inputs.values()), labels)
    # ROAR scores no model without nodes, so that labels serve for the target alone
    unused = options.refit == "roar" and options.target == "predicted"
    as_typed: dict[str, Any] = {
        name: getattr(options, name) for name in ("steps", "seed", "workers", "device")
    }
    report = evaluate(
        loaded,
        graphs.inputs,
        _listed(options.methods, METHODS),
        labels=None if unused else graphs.labels or None,
        target=Target(options.target, options.task),
        metrics=_listed(options.metrics, ",".join(DEFAULT_METRICS)),
        operators=_listed(options.operators, "mask"),
        out=folder,
        resume=options.resume or further,
        refit=refit,
        truths=graphs.truths or None,
        **as_typed,
    )
    return loaded, graphs, report


def _benchmark_rules(table: Path | None, options: BenchmarkOptions) -> None:
    """Train on each rule, explain, and score against the atoms that the rule names."""
    from graphxai.datasets.rules import RULES as ALL_RULES
    from graphxai.datasets.rules import get_rule
    from graphxai.datasets.tables.table import open_table
    from graphxai.evaluation.ground_truth_report import tables
    from graphxai.explainers import REGISTRY, get_explainer
    from graphxai.learning.recipes.rules import benchmark_rule
    from graphxai.runtime.writing import exclusive_lock, folder_at, write_whole

    folder = _empty_folder(options, "rules")
    rules = _listed(options.rule, RULES)
    rules = list(ALL_RULES) if rules == "all" else [get_rule(name).name for name in rules]
    names = _listed(options.methods, METHODS)
    if names == "all":  # networks trained here have no fitted explainers
        names = [name for name, cls in REGISTRY.items() if cls.traits.explains_any_model]
    chosen = [get_explainer(name) for name in names]
    molecules = None
    if table is not None:
        opened = open_table(table, options.smiles_column)
        name = opened.structures.name
        molecules = list(filter(None, (record.cells[name] for record in opened.records((name,)))))
    with exclusive_lock(folder_at(folder)), naming_data_option():
        for name in rules:
            benchmark_rule(
                name,
                folder / name,
                chosen,
                molecules=molecules,
                data=options.data,
                limit=options.limit or 100,
                seed=options.seed,
                progress=sys.stderr.isatty(),
            )
            tell(f"done: {name}")
    text = tables(folder, rules)
    write_whole(folder / "summary.md", text)
    echo(text.partition("###")[0])
    tell(f"written: {folder / 'summary.md'}")


def _empty_folder(options: BenchmarkOptions, name: str) -> Path:
    """Return the output folder, which holds no run unless that is continued."""
    folder = options.out or Path("bench") / name
    if folder.exists() and any(folder.iterdir()) and not options.resume:
        raise FileExistsError(
            f"{folder} already holds a run; add --resume or choose another folder."
        )
    return folder


def _benchmark_cliffs(checkpoint: str, table: Path, options: BenchmarkOptions) -> None:
    """Score methods by the atoms in which the activity cliffs of a table differ."""
    from graphxai.chemistry.cliff_truth import evaluate_cliffs
    from graphxai.chemistry.measurements import measurements_for_tasks
    from graphxai.contract.target import Target
    from graphxai.evaluation.ground_truth_report import ROWS, detail
    from graphxai.explanation.api import load
    from graphxai.explanation.compute.models import standardisation_of
    from graphxai.explanation.files import write_csv
    from graphxai.runtime.writing import exclusive_lock, folder_at, write_whole

    folder = _empty_folder(options, "cliffs")
    model, target = load(checkpoint), Target(options.target, options.task)
    task, way = target.task_in(model.config), standardisation_of(model)
    units, columns = {task.name: task.unit}, (options.label_column, options.smiles_column)
    measured = measurements_for_tasks(table, units, *columns, way)
    rows = evaluate_cliffs(
        model,
        list(measured.values),
        list(measured.values.values()),
        _listed(options.methods, METHODS),
        target=target,
        limit=options.limit,
        seed=options.seed,
    )
    counts = (f"{count} {why}" for why, count in rows.attrs["left_out"].items() if count)
    left_out = ", ".join(counts) or "none"
    title = f"{rows.graph.nunique()} activity cliffs in {measured.name}; left out: {left_out}"
    text = f"{title}\n\n{detail(rows)}\n"
    with exclusive_lock(folder_at(folder)):
        write_csv(rows, folder / ROWS, index=False)
        write_whole(folder / "summary.md", text)
    echo(text)
    tell(f"written: {folder / 'summary.md'}")


def _listed(values: list[str] | None, default: str) -> Any:
    """Read names that are given one by one or separated by commas. "all" stays "all"."""
    names = names_in(values or [default])
    return "all" if "all" in names else list(names)


def _print(report: Any, folder: Path) -> None:
    for line in report.sentences():
        echo(line)
    frame = report.table(costs=True)
    shown: list[str] = [*list(frame.columns)[:-2][:2], "ms", "passes"]
    columns: dict[str, Any] = {"method": {"no_wrap": True}} | {name: {} for name in shown}
    rows = ((report.labelled(str(name)), *row) for name, row in frame[shown].iterrows())
    print_table(columns, rows, title=f"graphs: {frame.attrs['n']}")
    for method, failed in report.failures.items():
        tell(f"{method} gave no scores for {len(failed)} graphs: {failed[0][1]}")
    echo_left_out((f"{key}: {why}" for key, why in report.rejected), len(report.rejected), "")
    tell(f"written: {folder / 'summary.md'}")
