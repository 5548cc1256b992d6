"""The commands `graphxai fragments` and `graphxai audit`: what the parts of molecules do.

An audit compares what a model makes of them with the labels.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from graphxai.datasets.tables.dialect import DEFAULT, Dialect
from graphxai.runtime.options import as_in, option
from graphxai.runtime.progress import progress_bar
from graphxai.tables.settings import RowSettings, TableRunSettings

from .arguments import (
    ALWAYS,
    ModelOptions,
    SharedOptions,
    kind_of,
    load_with_warning,
    model_line,
    require_out,
    require_sense,
    share_imports,
    show_table,
)
from .options import refuse_inapplicable, settings_as_options
from .terminal import SHOWN_REASONS, echo_left_out, print_table, tell

if TYPE_CHECKING:
    import pandas as pd

    from graphxai.chemistry.fragment_table import FragmentTable
    from graphxai.chemistry.fragments import Fragments
    from graphxai.chemistry.schemes import Scheme
    from graphxai.explainers import Explainer
    from graphxai.explanation.compute.models import Model
    from graphxai.explanation.explanation import Explanation

SCHEMES = ("auto", "brics", "scaffold", "rings", "groups", "residues", "protac", "components")
SHAPLEY = "shapley"  # besides the names of explainers
ROWS = 8  # of the table that are printed from each end


@dataclass(frozen=True)
class FragmentSettings(RowSettings):
    """What can be chosen when fragments are compared over a table."""

    excel_safe: bool = as_in(TableRunSettings, "excel_safe")


@dataclass(frozen=True)
class FragmentOptions:
    """How molecules are divided and explained, and which fragments are written."""

    scheme: str = option(
        "auto",
        "How to divide molecules: brics, scaffold, rings, groups, residues, protac or components."
        " By default peptides are divided into residues, PROTACs into their parts, all else by"
        " brics.",
        ALWAYS,
    )
    core: str | None = option(
        None, "SMARTS of a series' core: divide molecules into it and R-groups.", ALWAYS
    )
    smarts: list[str] | None = option(
        None, "Your own pattern instead, as NAME:SMARTS; repeat for more.", ALWAYS
    )
    model: str = as_in(SharedOptions, "model")
    as_drawn: bool = as_in(ModelOptions, "as_drawn")
    isomers: Literal["groups", "mean"] = as_in(ModelOptions, "isomers")
    molecule_features: list[str] | None = as_in(ModelOptions, "molecule_features")
    method: str | None = option(
        None,
        "Explanation method whose relevance is summed, see `graphxai methods`; or 'shapley': the"
        " Shapley value of each fragment, from forward passes alone [default: the model's own].",
        ALWAYS,
    )
    minimum: int = option(
        2, "List fragments found in at least this many molecules.", ("table",), names_kind=False
    )
    limit: int | None = option(None, "Read at most this many rows.", ("table",), names_kind=False)
    out: Path = option(Path("fragments.csv"), "Table to write (.csv, .tsv or .parquet).", ALWAYS)

    @property
    def explainers(self) -> list[str]:
        """The explanation method that was named, if it is one."""
        return [] if self.method in (None, SHAPLEY) else [str(self.method)]


@settings_as_options
def fragments(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(help="A SMILES, or a table of molecules (CSV, .smi, .sdf, .xlsx, Parquet)."),
    ],
    *,
    options: FragmentOptions,
    settings: FragmentSettings,
) -> None:
    """Sum relevance over the fragments of molecules, and compare fragments over a table.

    Each fragment has its mean relevance, as a whole and per atom, the spread and 95 % interval over
    molecules, counts, and examples.

    **Examples**

    `graphxai fragments examples/assay.csv --model mdr1-efflux --scheme brics --out fragments.csv`

    `graphxai fragments "CC(=O)Oc1ccccc1C(=O)O"`

    `graphxai fragments my.csv --workers 4`

    `graphxai fragments my.csv --method shapley` computes exact Shapley values up to 10
    fragments, and above that samples 64 orders; this part runs in one process.

    `graphxai fragments my.csv --smarts "anilide:c[NX3]C=O" --smarts "nitrile:C#N"`
    """
    kind = kind_of(source)
    if kind == "image":
        raise ValueError("fragments are parts of molecules: give a SMILES or a table.")
    refuse_inapplicable(context, kind)
    columns = (settings.smiles_column, None)
    require_sense(source, kind, [options.model], options.explainers, columns)
    division = division_of(options)
    from graphxai.chemistry.fragment_table import FragmentTable
    from graphxai.chemistry.fragments import fragments as divide
    from graphxai.chemistry.schemes import divided_line
    from graphxai.datasets.labels import with_unit
    from graphxai.explanation.api import explain
    from graphxai.explanation.files import FRAMES
    from graphxai.runtime.writing import exclusive_lock

    require_out(options.out, source, FRAMES)
    loaded = load_with_warning(options.model, reading=options)
    share_imports()
    minimum = 1 if kind == "smiles" else options.minimum
    with exclusive_lock(options.out):
        if kind == "smiles":
            explainer, further = _divided(options.method, loaded)
            explanation = explain(loaded, source, explainer, target=settings.target)
            parts = divide(explanation, division, **further)
            table = FragmentTable(division)
            table.add(parts)
            summed = SummedFragments(table, parts.explanation, 0, [])
        else:
            summed = sum_over_rows(loaded, source, options, division, settings)
    if summed.last is None:
        why = summed.reasons[0] if summed.reasons else "the table has no rows"
        raise ValueError(f"no molecule in {source} can be explained: {why}")
    frame = summed.table.to_frame(minimum=minimum)
    write_fragments(frame, options.out, summed.dialect, settings.excel_safe)
    explanation = summed.last
    subject = with_unit(explanation.subject, explanation.unit)
    plus = "" if explanation.unsigned else "+"
    _print(frame, f"{explanation.title}, relevance for {subject}", plus)
    tell(model_line(context, loaded))
    echo_left_out(summed.reasons, summed.rejected)
    left_out = f", {summed.rejected:,} left out" if summed.rejected else ""
    hidden = len(frame) - 2 * ROWS
    if hidden > 0:
        tell(f"{hidden:,} of {len(frame):,} fragments are left out here; all are in {options.out}")
    tell(f"divided into {divided_line(summed.table.schemes)}")
    listed = f"{_counted(len(frame), 'fragment')} in at least {_counted(minimum, 'molecule')}"
    tell(
        f"{listed}, out of {_counted(summed.table.molecules, 'molecule')}{left_out}: {options.out}"
    )


@dataclass(frozen=True)
class SummedFragments:
    """Fragments summed over the rows of a table.

    Attributes:
        last: explanation of the last molecule, or None if there was none.
        reasons: why the first of them were.
    """

    table: "FragmentTable"
    last: "Explanation | None"
    rejected: int
    reasons: list[str]
    dialect: Dialect = DEFAULT


def _divided(method: str | None, model: "Model") -> "tuple[Explainer, dict[str, Any]]":
    """Return what explains the molecules, and the further arguments of `fragments`."""
    from graphxai.explainers import get_explainer

    if method == SHAPLEY:  # whose values take the place of the relevance
        return get_explainer("gradient_input"), {"method": SHAPLEY, "model": model}
    return get_explainer(method, model=model), {}


def sum_over_rows(
    model: "Model",
    source: str,
    options: FragmentOptions,
    division: "Scheme",
    settings: FragmentSettings,
    further: "Callable[[Fragments, int], object] | None" = None,
) -> SummedFragments:
    """Explain the rows of a table, and sum relevance over their fragments.

    Args:
        division: how molecules are divided, see `fragments`.
        further: what takes the fragments and the number of each row, instead of a table of
            fragments.
    """
    from graphxai.chemistry.fragment_table import FragmentTable
    from graphxai.chemistry.fragments import fragments as divide
    from graphxai.tables.batches import ExplainedRow
    from graphxai.tables.run import explain_rows

    table, last, rejected = FragmentTable(division), None, 0
    reasons: list[str] = []
    opened, limit = show_table(source, settings.smiles_column), options.limit
    total = opened.count() if limit is None else min(limit, opened.count())
    explainer, valued = _divided(options.method, model)
    explained = explain_rows(model, source, explainer, settings=settings)
    with closing(explained) as rows, progress_bar("explaining", total) as advance:
        for row in islice(rows, limit):
            why = str(row)
            if isinstance(row, ExplainedRow):
                try:
                    parts = divide(row.explanation, division, **valued)
                    table.add(parts) if further is None else further(parts, row.row)
                    last, why = parts.explanation, ""
                except Exception as error:  # RDKit raises errors of any type
                    why = f"row {row.row}: cannot be divided: {error}"
            if why:
                rejected += 1
                reasons += [why][: SHOWN_REASONS - len(reasons)]
            advance(1)
    return SummedFragments(table, last, rejected, reasons, opened.dialect)


def write_fragments(frame: "pd.DataFrame", out: Path, dialect: Dialect, excel_safe: bool) -> None:
    """Write the fragments in the format of the file's suffix, with six digits in text."""
    import pandas as pd

    from graphxai.explanation.files import write_table
    from graphxai.tables.files import csv_options, guarded

    if excel_safe and out.suffix.lower() != ".parquet":
        texts = {n: guarded(frame[n].to_dict()) for n in ("name", "smiles", "examples")}
        frame = frame.assign(**{name: pd.Series(cells) for name, cells in texts.items()})
    write_table(
        frame,
        out,
        float_format=lambda value: dialect.number(f"{value:z.6g}"),
        **csv_options(dialect),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def division_of(options: FragmentOptions) -> "Scheme":
    """Return how molecules are divided: a scheme, the core, or the SMARTS patterns by name.

    The name of a pattern ends at the first colon.
    """
    if options.scheme not in SCHEMES:
        raise typer.BadParameter(
            f"--scheme is one of {', '.join(SCHEMES)}, not {options.scheme!r}."
        )
    named = {}
    for text in options.smarts or ():
        name, colon, smarts = text.partition(":")
        if not colon or not name.strip() or not smarts.strip():
            raise typer.BadParameter(f"--smarts {text!r}: write NAME:SMARTS.")
        named[name.strip()] = smarts.strip()
    if options.core is not None:
        from graphxai.chemistry.modalities import Core

        if named:
            raise typer.BadParameter("--core and --smarts divide molecules in two ways: give one.")
        return Core(options.core)
    return named or options.scheme


def _print(frame: "pd.DataFrame", title: str, plus: str) -> None:
    """Print the fragments of highest and of lowest mean relevance."""
    ends = [frame] if len(frame) <= 2 * ROWS else [frame.head(ROWS), frame.tail(ROWS)]
    rows: list[tuple[str, ...] | None] = []
    for row in (row for part in ends for row in [*part.itertuples(), None]):
        if row is None:
            rows.append(None)
            continue
        interval = f" [{row.low:{plus}z.3f}, {row.high:{plus}z.3f}]" if row.molecules > 1 else ""
        mean = f"{row.mean:{plus}z.3f}{interval}"
        rows.append((row.name, mean, f"{row.per_atom:{plus}z.3f}", str(row.molecules)))
    columns = ("mean relevance [95 % interval]", "per atom", "molecules")
    looks: dict[str, Any] = {"fragment": {"overflow": "fold"}} | {name: {} for name in columns}
    print_table(looks, rows, title=title, title_justify="left")


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
