"""The command `graphxai fragments`: which fragments drive the predictions for a table."""

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphxai.runtime.progress import progress_bar

from .arguments import ExcelOption, WorkersOption, load_with_warning, require_out
from .terminal import echo, printable

if TYPE_CHECKING:
    import pandas as pd

SCHEMES = ("brics", "scaffold", "rings", "groups")
WRITABLE = (".csv", ".parquet")
SHAPLEY = "shapley"  # besides the names of explainers
ROWS = 8  # of the table that are printed from each end
LISTED = 10  # rows left out that are named one by one


def fragments(
    source: Annotated[Path, typer.Argument(help="CSV table of molecules.")],
    smiles_column: Annotated[str, typer.Option(help="Column with SMILES.")] = "smiles",
    scheme: Annotated[
        str, typer.Option(help="How to divide molecules: brics, scaffold, rings or groups.")
    ] = "brics",
    smarts: Annotated[
        list[str] | None,
        typer.Option(help="Your own pattern instead, as NAME:SMARTS; repeat for more."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Name of a bundled model, or a checkpoint folder.")
    ] = "bace",
    method: Annotated[
        str,
        typer.Option(
            help="Explanation method whose relevance is summed, see `graphxai methods`; or"
            " 'shapley': the Shapley value of each fragment, from forward passes alone."
        ),
    ] = "lrp",
    target: Annotated[
        str | None,
        typer.Option(help="Class or task to explain [default: the second of two classes]."),
    ] = None,
    minimum: Annotated[
        int, typer.Option(help="List fragments found in at least this many molecules.")
    ] = 2,
    limit: Annotated[int | None, typer.Option(help="Read at most this many rows.")] = None,
    out: Annotated[Path, typer.Option(help="Table to write (.csv or .parquet).")] = Path(
        "fragments.csv"
    ),
    excel_safe: ExcelOption = False,
    workers: WorkersOption = None,
) -> None:
    """Sum relevance over the fragments of every molecule, and compare fragments over the table.

    For each fragment: mean relevance, of the whole and of one atom, spread, 95 % intervals over
    molecules, counts, examples.

    **Examples**

    `graphxai fragments molecules.csv --smiles-column smiles --scheme brics --out fragments.csv`

    `graphxai fragments molecules.csv --workers 4`

    `graphxai fragments molecules.csv --method shapley` computes exact Shapley values up to 10
    fragments, and above that samples 64 orders; this part runs in one process.

    `graphxai fragments molecules.csv --smarts "anilide:c[NX3]C=O" --smarts "nitrile:C#N"`
    """
    if scheme not in SCHEMES:
        raise typer.BadParameter(f"--scheme is one of {', '.join(SCHEMES)}, not {scheme!r}.")
    if out.suffix.lower() not in WRITABLE:
        raise typer.BadParameter(f"--out {out}: use one of {', '.join(WRITABLE)}.")
    import pandas as pd

    from graphxai.chemistry.fragment_table import FragmentTable
    from graphxai.chemistry.fragments import fragments as divided
    from graphxai.datasets.labels import with_unit
    from graphxai.explainers import get_explainer
    from graphxai.explanation.files import require_pyarrow, write_csv
    from graphxai.runtime.writing import atomic_write, exclusive_lock
    from graphxai.tables.files import guarded
    from graphxai.tables.run import ExplainedRow, count_rows, explain_rows

    require_out(out, source)
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file; give a CSV table of molecules.")
    if out.suffix.lower() == ".parquet":
        require_pyarrow(out)
    chosen = _patterns(smarts) if smarts else scheme
    table = FragmentTable(chosen)
    loaded = load_with_warning(model)
    left_out: list[str] = []  # the first few
    rejected = 0
    rows = count_rows(source) if limit is None else min(limit, count_rows(source))
    explained = explain_rows(
        loaded,
        source,
        get_explainer("gradient_input" if method == SHAPLEY else method),
        smiles_column=smiles_column,
        target=target,
        workers=workers,
    )
    with (
        exclusive_lock(out),
        closing(explained) as found,
        progress_bar("explaining", rows) as advance,
    ):
        for one in islice(found, limit):
            why = str(one)
            if isinstance(one, ExplainedRow):
                try:
                    parts = (
                        divided(one.explanation, chosen, "shapley", model=loaded)
                        if method == SHAPLEY
                        else divided(one.explanation, chosen)
                    )
                    table.add(parts)
                    explanation, why = parts.explanation, ""
                except Exception as error:  # RDKit raises errors of any type
                    why = f"row {one.row}: cannot be divided: {error}"
            if why:
                rejected += 1
                left_out += [why][: LISTED - len(left_out)]
            advance(1)
    if not table.molecules:
        why = left_out[0] if left_out else "the table has no rows"
        raise ValueError(f"no molecule in {source} can be explained: {why}")
    frame = table.to_frame(minimum=minimum)
    if out.suffix.lower() == ".csv":
        safe = frame
        if excel_safe:
            texts = {n: guarded(frame[n].to_dict()) for n in ("name", "smiles", "examples")}
            safe = frame.assign(**{name: pd.Series(cells) for name, cells in texts.items()})
        write_csv(safe, out, index=False, float_format=lambda value: f"{value:z.6g}")
    else:
        with atomic_write(out, "wb") as file:
            frame.to_parquet(file, index=False)
    of = with_unit(explanation.subject, explanation.unit)
    _print(frame, f"{explanation.title}, relevance for {of}", "" if explanation.unsigned else "+")
    for line in left_out:
        echo(f"left out: {line}", err=True)
    if rejected > len(left_out):
        echo(f"left out: {rejected - len(left_out)} more rows", err=True)
    hidden = len(frame) - 2 * ROWS
    if hidden > 0:
        echo(f"{hidden:,} of {len(frame):,} fragments are left out here; all are in {out}")
    listed = f"{_counted(len(frame), 'fragment')} in at least {_counted(minimum, 'molecule')}"
    echo(f"{listed}, out of {_counted(table.molecules, 'molecule')}: {out}")


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _patterns(given: list[str]) -> dict[str, str]:
    """SMARTS by name; the name ends at the first colon."""
    named = {}
    for text in given:
        name, colon, smarts = text.partition(":")
        if not colon or not name.strip() or not smarts.strip():
            raise typer.BadParameter(f"--smarts {text!r}: write NAME:SMARTS.")
        named[name.strip()] = smarts.strip()
    return named


def _print(frame: "pd.DataFrame", title: str, plus: str) -> None:
    """Print the fragments of highest and of lowest mean relevance; plus: sign of positive ones."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    shown = Table(
        Column("fragment", overflow="fold"),
        "mean relevance [95 % interval]",
        "per atom",
        "molecules",
        title=escape(printable(title)),
        title_justify="left",
    )
    ends = frame if len(frame) <= 2 * ROWS else [frame.head(ROWS), frame.tail(ROWS)]
    shared = set(frame.name[frame.name.duplicated()])  # one name, bound in several ways
    for part in [ends] if not isinstance(ends, list) else ends:
        for row in part.itertuples():
            name = f"{row.name}  {row.smiles}" if row.name in shared else row.name
            interval = (
                f" [{row.low:{plus}z.3f}, {row.high:{plus}z.3f}]" if row.molecules > 1 else ""
            )
            mean = f"{row.mean:{plus}z.3f}{interval}"
            cells = mean, f"{row.per_atom:{plus}z.3f}", str(row.molecules)
            shown.add_row(escape(printable(name)), *cells)
        shown.add_section()
    Console().print(shown)
