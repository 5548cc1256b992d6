"""The command `graphxai counterfactuals`: what to change so that the model says something else."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import ColumnOption, kind_of, load_with_warning, require_out
from .terminal import echo, printable

if TYPE_CHECKING:
    from graphxai.chemistry.counterfactuals import Counterfactuals
    from graphxai.chemistry.measurements import Measurements
    from graphxai.explanation.compute.models import LoadedModel


def counterfactuals(
    source: Annotated[str, typer.Argument(help="A SMILES or a CSV table.")],
    towards: Annotated[
        str, typer.Option(help="What the model should say: a class, '>6.5' or '<6.5'.")
    ],
    n: Annotated[int, typer.Option("-n", min=1, help="How many to find for a molecule.")] = 12,
    keep: Annotated[str, typer.Option(help="SMARTS pattern to leave unchanged.")] = "",
    model: Annotated[
        str, typer.Option(help="Name of a bundled model, or a checkpoint folder.")
    ] = "bace",
    sources: Annotated[
        str,
        typer.Option(help="Any of transformations, fragments, selfies, separated by commas."),
    ] = "transformations,fragments",
    predictions: Annotated[
        int, typer.Option(min=1, help="Predict at most this many neighbours of a molecule.")
    ] = 1000,
    steps: Annotated[int, typer.Option(min=1, help="At most this many changes in a row.")] = 2,
    sure: Annotated[
        bool, typer.Option("--sure", help="Only those that the model is sure of.")
    ] = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="Table with measured values, to compare the changes with [default: the table of"
            " molecules, if it has a column named after a task]."
        ),
    ] = None,
    measured_column: Annotated[
        str | None, typer.Option(help="Column of these values [default: named after a task].")
    ] = None,
    smiles_column: ColumnOption = "smiles",
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    out: Annotated[
        Path,
        typer.Option(
            help="Table (.csv), structures (.sdf); of one molecule also a picture or page."
        ),
    ] = Path("counterfactuals.csv"),
) -> None:
    """Find what to change in a molecule so that the model predicts something else.

    Neighbours are made by transformations of medicinal chemistry, exchanged fragments or SELFIES.

    **Examples**

    `graphxai counterfactuals "O=C(Nc1ccc(F)cc1)c1ccccn1" --towards ">6" --keep "C(=O)N"`

    `graphxai counterfactuals molecules.csv --towards inactive -n 5 --out changes.csv`

    `graphxai counterfactuals "CCOc1ccccc1" --towards active --sure --out changes.html`

    `graphxai counterfactuals molecules.csv --towards ">6" --measured assay.csv --out changes.sdf`

    `graphxai counterfactuals assay.csv --towards ">6" --measured-column pIC50 --out changes.csv`
    """
    from graphxai.chemistry.counterfactuals import counterfactuals as find
    from graphxai.chemistry.goal import Goal
    from graphxai.chemistry.measurements import Measurements, NoNumbersError
    from graphxai.runtime.progress import progress_bar
    from graphxai.runtime.writing import exclusive_lock

    kind = kind_of(source)
    if kind == "image":
        raise ValueError("counterfactuals needs molecules: a SMILES or a CSV table.")
    suffixes = (".csv", ".sdf") + (() if kind == "table" else (".svg", ".png", ".pdf", ".html"))
    if out.suffix.lower() not in suffixes:
        raise typer.BadParameter(f"--out {out}: use one of {', '.join(suffixes)}.")
    require_out(out, source)
    loaded = load_with_warning(model)
    options: dict[str, Any] = {"keep": keep or (), "predictions": predictions, "steps": steps}
    options |= {
        "sources": [name.strip() for name in sources.split(",")],
        "seed": seed,
        "sure": sure,
    }
    columns = [measured_column] if measured_column else Goal.of(towards, loaded).columns(loaded)
    if measured is not None or measured_column:
        if measured is None and kind == "smiles":
            raise typer.BadParameter("--measured-column is a column of a table: give --measured.")
        options["measured"] = Measurements.read(measured or source, columns, smiles_column)
    elif kind == "table":
        try:
            options["measured"] = Measurements.read(source, columns, smiles_column)
        except NoNumbersError as error:
            echo(f"warning: {error}", err=True)
        except ValueError:
            pass  # nothing was measured
    if doubt := _doubt(loaded, Goal.of(towards, loaded).task, options.get("measured")):
        echo(f"warning: {doubt}", err=True)
    if kind == "smiles":
        found = find(loaded, source, towards, n, **options)
        found.save(out)
        _print(found)
        echo(f"{found.summary}.")
        echo(f"written: {out}")
        return
    rows = _rows(Path(source), smiles_column)
    options["progress"] = False
    results, left_out = [], []
    with exclusive_lock(out), progress_bar("finding counterfactuals", len(rows)) as advance:
        for row, smiles in rows:
            try:
                results.append((row, smiles, find(loaded, smiles, towards, n, **options)))
            except ValueError as error:
                left_out.append(f"row {row}: {error}")
            advance(1)
        if not results:
            raise ValueError(f"no molecule in {source} has counterfactuals: {left_out[0]}")
        _save(results, out)
    for line in left_out[:10]:
        echo(f"left out: {line}", err=True)
    if len(left_out) > 10:
        echo(f"left out: {len(left_out) - 10} more rows", err=True)
    echo(f"counterfactuals of {len(results):,} molecules: {out}")


def _doubt(model: "LoadedModel", wished: str, measured: "Measurements | None") -> str:
    """Say so if measured values hardly look like the task they stand for; else empty.

    The task is the one that names their column, or else the goal's.
    """
    if measured is None:
        return ""
    tasks = {task.name: task for task in model.config.tasks}
    return measured.doubt(tasks[measured.name if measured.name in tasks else wished])


def _save(results: "list[tuple[int, str, Counterfactuals]]", out: Path) -> None:
    """One file of the counterfactuals of several molecules: row, SMILES, what was found."""
    import pandas as pd

    from graphxai.explanation.files import write_csv, write_text

    if out.suffix.lower() == ".sdf":
        write_text((record for row, _, found in results for record in found.to_sdf(row=row)), out)
        return
    tables = []
    for row, smiles, found in results:
        frame = found.to_frame()
        frame.insert(0, "row", row)
        frame.insert(1, "molecule", smiles)
        tables.append(frame)
    write_csv(pd.concat(tables), out, index=False)


def _rows(path: Path, column: str) -> list[tuple[int, str]]:
    from graphxai.datasets.csv_files import iter_records

    rows = [(row, record[column]) for row, record in iter_records(path, (column,))]
    if not rows:
        raise ValueError(f"{path} has no rows.")
    return rows


def _print(found: "Counterfactuals") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from graphxai.chemistry.counterfactual_results import AT_CHANGE, percent

    title = f"{found.explanation.prediction.in_full}, towards {found.goal}"
    shown = Table(
        Column("change", overflow="fold"),
        Column("SMILES", overflow="fold"),
        "prediction",
        "predicted change",
        AT_CHANGE,
        "similarity",
        *(["measured"] if any(one.measured for one in found) else []),
        title=escape(printable(title)),
        title_justify="left",
    )
    for one, share in zip(found, found.at_change, strict=True):
        predicted = f"{one.prediction}, sure" if one.sure else str(one.prediction)
        cells = [one.changes, one.smiles, predicted, one.change_in_full, percent(share)]
        cells += [f"{one.similarity:.2f}", *([one.measured.sentence] if one.measured else [])]
        shown.add_row(*(escape(printable(cell)) for cell in cells))
    Console().print(shown)
