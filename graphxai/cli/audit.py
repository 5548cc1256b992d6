"""The command `graphxai audit`: which groups a model favours more than the labels do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from graphxai.runtime.options import as_in, option

from .arguments import (
    ALWAYS,
    load_with_warning,
    model_line,
    require_out,
    require_sense,
    share_imports,
    show_table,
)
from .fragments import (
    SHAPLEY,
    FragmentOptions,
    FragmentSettings,
    division_of,
    sum_over_rows,
    write_fragments,
)
from .options import refuse_inapplicable, settings_as_options
from .terminal import echo_left_out, print_table, tell


@dataclass(frozen=True)
class AuditOptions(FragmentOptions):
    """How molecules are divided and explained, and what they are compared with."""

    measured_column: str | None = option(
        None, "Column of labels [default: the one named after the task].", ALWAYS
    )
    threshold: float | None = option(
        None, "For a column of numbers: the value from which the second class begins.", ALWAYS
    )
    minimum: int = option(5, "Test groups found in at least this many molecules.", ALWAYS)
    limit: int | None = as_in(FragmentOptions, "limit", applies_to=ALWAYS)
    seed: int = option(0, "Seed of the bootstrap intervals.", ALWAYS)
    out: Path = option(Path("audit.csv"), "Table to write (.csv, .tsv, .parquet or .json).", ALWAYS)


@settings_as_options
def audit(
    context: typer.Context,
    table: Annotated[
        Path, typer.Argument(help="Table of labelled molecules: CSV, .smi, .sdf, .xlsx, Parquet.")
    ],
    *,
    options: AuditOptions,
    settings: FragmentSettings,
) -> None:
    """Find the groups of atoms that a model favours, or disfavours, more than the labels do.

    Groups are fragments, scaffolds, rings, salts, functional groups or your own patterns. Give
    molecules that are new to the model: it has learned the labels of its training set, with their
    bias.

    **Examples**

    `graphxai audit examples/assay.csv --model mdr1-efflux --measured-column efflux`

    `graphxai audit new.csv --model runs/mine --scheme scaffold --out audit.json`

    `graphxai audit new.csv --model runs/mine --smarts "sulfonamide:NS(=O)=O"`

    `graphxai audit new.csv --model runs/salts --as-drawn --scheme components`
    """
    refuse_inapplicable(context, "table")
    columns = (settings.smiles_column, None)
    require_sense(table, "table", [options.model], options.explainers, columns)
    from graphxai.chemistry.audit import HEAD, GroupEvidence, audited_task, labels_in
    from graphxai.explanation.files import FRAMES
    from graphxai.runtime.writing import exclusive_lock

    require_out(options.out, table, (*FRAMES, ".json"))
    division = division_of(options)
    loaded = load_with_warning(options.model, reading=options)
    method = None if options.method == SHAPLEY else options.method
    task = audited_task(loaded, settings.target, method)
    opened = show_table(table, settings.smiles_column)
    rows, labels = labels_in(opened, task, options.measured_column, options.threshold)
    label_of = {row.number: label for row, label in zip(rows, labels.tolist(), strict=True)}
    share_imports()
    evidence = GroupEvidence(task)
    with exclusive_lock(options.out):
        summed = sum_over_rows(
            *(loaded, str(table), options, division, settings),
            lambda parts, row: evidence.add(parts, label_of[row]),
        )
        audited = evidence.audit(at_least=options.minimum, seed=options.seed)
        if options.out.suffix.lower() == ".json":
            audited.save(options.out)
        else:
            write_fragments(audited.frame, options.out, opened.dialect, settings.excel_safe)
    looks: dict[str, Any] = {key: {} for key in HEAD} | {HEAD[0]: {"overflow": "fold"}}
    title = f"{audited.title}, relevance for {audited.target}"
    print_table(looks, audited.cells(), title=title, title_justify="left")
    tell(model_line(context, loaded))
    echo_left_out(summed.reasons, summed.rejected)
    tell(f"{audited.headline}; all groups: {options.out}")
