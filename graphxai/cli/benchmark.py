"""The command `graphxai benchmark`: measure explainers on a test set."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .arguments import DeviceOption, SeedOption, naming_data_option, share_imports
from .completion import method_names
from .options import APPLIES_ALWAYS, applies_to, refuse_inapplicable
from .terminal import echo, printable, typed_command

NAMED = ("bace", "mnist-superpixels")
MODELS = applies_to(*NAMED, "checkpoint")  # not for rules, for which models are trained


def benchmark(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="'bace', 'mnist-superpixels', 'rules', or a checkpoint folder.")
    ],
    table: Annotated[
        Path | None,
        typer.Argument(
            help="Table of molecules, for a checkpoint or for rules. A checkpoint also takes a"
            " folder of graphs, of which it uses those held out for testing."
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="'all', or method names separated by commas [default: lrp,gradient_input].",
            autocompletion=method_names,
        ),
        APPLIES_ALWAYS,
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            help="'all', or metric names separated by commas"
            " [default: auac,au_mse,srg,partial_sums_scaled]."
        ),
        MODELS,
    ] = None,
    operators: Annotated[
        list[str] | None,
        typer.Option(
            help="How nodes are removed: 'all', or some of mask,zero,delete,resample [default:"
            " mask]. 'resample' draws other atoms in their place; see fit-masked-atoms."
        ),
        MODELS,
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Points per curve; Ali 2022 takes 11 [default: all]."), MODELS
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Measure at most this many graphs, drawn with the seed."),
        APPLIES_ALWAYS,
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="'true' (the label), 'predicted', or a class [default: true if there are labels]."
        ),
        MODELS,
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="Task, if the model has several [default: the first]."),
        MODELS,
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Checkpoint to use instead of the bundled one; repeat for several seeds."
        ),
        MODELS,
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Rule to train on; repeat, or 'all' [default: indole,halogen,logp]."),
        applies_to("rules"),
    ] = None,
    smiles_column: Annotated[
        str | None,
        typer.Option(help="Column with structures [default: by its name or content]."),
        applies_to("checkpoint", "rules"),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="Column with the true class, as name or number."),
        applies_to("checkpoint"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Data folder [default: $GRAPHXAI_DATA, or a cache]."),
        applies_to(*NAMED, "rules"),
    ] = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Output folder [default: bench/SOURCE]."), APPLIES_ALWAYS
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after an interruption."), APPLIES_ALWAYS
    ] = False,
    refit: Annotated[
        str | None,
        typer.Option(
            help="Train on graphs with nodes removed before measuring: 'f-fidelity' (at random) or"
            " 'roar' (without each method's top share)."
        ),
        MODELS,
    ] = None,
    training: Annotated[
        Path | None,
        typer.Option(help="Table of training molecules for --refit, with the same columns."),
        MODELS,
    ] = None,
    refit_limit: Annotated[
        int | None,
        typer.Option(help="Train on at most this many graphs, drawn with the seed."),
        MODELS,
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes; the results are the same for any number [default: all free cores, if"
            " that is faster than one].",
        ),
        MODELS,
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Measure how faithful explanation methods are, with intervals and tests.

    Writes all scores, a summary, a table for LaTeX, figures and examples to a folder.

    **Examples**

    `graphxai benchmark bace --methods all --out bench/bace`

    `graphxai benchmark mnist-superpixels --methods lrp,gae --limit 200 --operators all`

    `graphxai benchmark bace --methods all --workers 4`

    `graphxai benchmark runs/mine test.csv --label-column activity --metrics all`

    `graphxai benchmark runs/graphs my-graphs --methods lrp,gae,occlusion`

    `graphxai benchmark bace --methods all --device cuda`

    `graphxai benchmark bace --methods lrp,gae --refit f-fidelity` measures with a model that was
    trained further on masked molecules, so that these are nothing new to it.

    `graphxai benchmark rules molecules.csv --rule indole --methods all` trains on molecules whose
    relevant atoms are known, and scores the methods against these atoms.
    """
    kind = source if source in (*NAMED, "rules") else "checkpoint"
    refuse_inapplicable(context, kind)
    if training is not None and refit is None:
        raise typer.BadParameter("--training is for --refit.")
    if kind == "rules":
        _benchmark_rules(table, methods, rule, limit, smiles_column, data, seed, out, resume)
        return
    if table is not None and source in NAMED:
        raise typer.BadParameter(
            "a table goes with a checkpoint folder, not with a named data set."
        )
    if table is None and source not in NAMED:
        raise typer.BadParameter(
            f"{source!r} is not one of {', '.join(NAMED)}; after a checkpoint folder, give a table"
            " of molecules or a folder of graphs."
        )
    share_imports()
    from graphxai.api import load
    from graphxai.contract.target import Target
    from graphxai.evaluation import Refit, evaluate, merged
    from graphxai.evaluation.examples import examples_svg
    from graphxai.evaluation.metrics import DEFAULT_METRICS
    from graphxai.evaluation.sources import source as graphs_of
    from graphxai.evaluation.sources import training_source
    from graphxai.runtime.writing import exclusive_lock, folder_at, write_whole

    if refit is not None and table is not None and training is None:
        raise typer.BadParameter("--refit with a table needs --training, a table with labels.")
    columns: dict[str, Any] = {
        "data": data, "smiles_column": smiles_column, "label_column": label_column
    }  # fmt: skip
    folder = out or Path("bench") / Path(source).name
    name = source if table is None else str(table)
    measured: list[tuple[Any, Any, Any]] = []
    with exclusive_lock(folder_at(folder)), naming_data_option():
        for checkpoint in model or [source]:
            loaded = load(checkpoint)
            graphs = graphs_of(loaded, name, **columns).sample(limit, seed)
            further = None
            if refit is not None:
                learned = training_source(loaded, str(training or name), **columns)
                learned = learned.labelled().sample(refit_limit, seed)
                labels = [learned.labels[key] for key in learned.inputs]
                further = Refit(refit, list(learned.inputs.values()), labels)
            report = evaluate(
                loaded,
                graphs.inputs,
                _listed(methods, "lrp,gradient_input"),
                labels=None if refit == "roar" and target == "predicted" else graphs.labels or None,
                target=Target(target, task),
                metrics=_listed(metrics, ",".join(DEFAULT_METRICS)),
                operators=_listed(operators, "mask"),
                steps=steps,
                seed=seed,
                out=folder,
                resume=resume or bool(measured),
                workers=workers,
                device=device,
                refit=further,
            )
            measured.append((loaded, graphs, report))
        report = merged(report for *_, report in measured)
        loaded, graphs, first = measured[0]
        report.settings.update(command=typed_command(), data=graphs.title, limit=limit)
        report.save(folder)
        examples = examples_svg(loaded, graphs.inputs, first)
        if examples is not None:
            write_whole(folder / "examples.svg", examples)
        _print(report, folder)


def _benchmark_rules(
    table: Path | None,
    methods: list[str] | None,
    rule: list[str] | None,
    limit: int | None,
    smiles_column: str | None,
    data: Path | None,
    seed: int,
    out: Path | None,
    resume: bool,
) -> None:
    """Train on each rule, explain, and score against the atoms that the rule names."""
    from graphxai.datasets.rules import RULES, get_rule
    from graphxai.datasets.tables.table import open_table
    from graphxai.evaluation.ground_truth_report import benchmark_rule, tables
    from graphxai.explainers import REGISTRY, get_explainer
    from graphxai.runtime.writing import exclusive_lock, folder_at, write_whole

    folder = out or Path("bench") / "rules"
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise FileExistsError(
            f"{folder} already holds a run; add --resume or choose another folder."
        )
    rules = _listed(rule, "indole,halogen,logp")
    rules = list(RULES) if rules == "all" else [get_rule(name).name for name in rules]
    names = _listed(methods, "lrp,gradient_input")
    if names == "all":  # models trained here have no fitted explainers
        names = [name for name, cls in REGISTRY.items() if not cls.traits.needs_fitting]
    chosen = [get_explainer(name) for name in names]
    molecules = None
    if table is not None:
        opened = open_table(table, smiles_column)
        name = opened.structures.name
        molecules = list(filter(None, (record.cells[name] for record in opened.records((name,)))))
    with exclusive_lock(folder_at(folder)), naming_data_option():
        for name in rules:
            benchmark_rule(
                name,
                folder / name,
                chosen,
                molecules=molecules,
                data=data,
                limit=limit or 100,
                seed=seed,
                progress=sys.stderr.isatty(),
            )
            echo(f"done: {name}")
    text = tables(folder, rules)
    write_whole(folder / "summary.md", text)
    echo(text.partition("###")[0])
    echo(f"written: {folder / 'summary.md'}")


def _listed(values: list[str] | None, default: str) -> Any:
    """Read names that are given one by one or separated by commas. "all" stays "all"."""
    names = [n.strip() for value in values or [default] for n in value.split(",") if n.strip()]
    return "all" if "all" in names else names


def _print(report: Any, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    for line in report.robustness_sentences():
        echo(line)
    frame = report.table()
    shown = list(frame.columns)[:2]
    console = Console()
    printed = Table(Column("method", no_wrap=True), *shown, title=f"graphs: {frame.attrs['n']}")
    for name, row in frame[shown].iterrows():
        printed.add_row(printable(report.labelled(str(name))), *row)
    console.print(printed)
    for method, failed in report.failures.items():
        echo(f"{method} gave no scores for {len(failed)} graphs: {failed[0][1]}", err=True)
    for key, reason in report.rejected[:10]:
        echo(f"left out: {key}: {reason}", err=True)
    if len(report.rejected) > 10:
        echo(f"left out: {len(report.rejected) - 10} more", err=True)
    echo(f"written: {folder / 'summary.md'}")
