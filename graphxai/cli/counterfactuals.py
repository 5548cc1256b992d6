"""The command `graphxai counterfactuals`: what to change so that the model says something else."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import ColumnOption, kind_of, load_with_warning, require_out
from .terminal import echo, printable

if TYPE_CHECKING:
    from graphxai.chemistry.counterfactuals import Counterfactuals


def counterfactuals(
    source: Annotated[str, typer.Argument(help="A SMILES or a CSV table.")],
    towards: Annotated[
        str, typer.Option(help="What the model should say: a class, '>6.5' or '<6.5'.")
    ],
    n: Annotated[int, typer.Option("-n", min=1, help="How many to find for a molecule.")] = 12,
    keep: Annotated[str, typer.Option(help="SMARTS pattern that stays as it is.")] = "",
    model: Annotated[
        str, typer.Option(help="Name of a bundled model, or a checkpoint folder.")
    ] = "bace",
    sources: Annotated[
        str, typer.Option(help="Any of transformations, fragments and selfies, with commas.")
    ] = "transformations,fragments",
    predictions: Annotated[
        int, typer.Option(min=1, help="How many neighbours of a molecule to predict at most.")
    ] = 1000,
    steps: Annotated[int, typer.Option(min=1, help="How many changes in a row at most.")] = 2,
    smiles_column: ColumnOption = "smiles",
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    out: Annotated[Path, typer.Option(help="Table (.csv); for one molecule also a picture.")] = (
        Path("counterfactuals.csv")
    ),
) -> None:
    """Find what to change in a molecule so that the model predicts something else.

    Neighbours are made by transformations of medicinal chemistry, exchanged fragments or SELFIES.

    **Examples**

    `graphxai counterfactuals "O=C(Nc1ccc(F)cc1)c1ccccn1" --towards ">6" --keep "C(=O)N"`

    `graphxai counterfactuals molecules.csv --towards inactive -n 5 --out changes.csv`

    `graphxai counterfactuals "CCOc1ccccc1" --towards active --out changes.png`
    """
    from graphxai.chemistry.counterfactuals import counterfactuals as find
    from graphxai.datasets.progress import progress_bar
    from graphxai.datasets.writing import alone

    kind = kind_of(source)
    if kind == "image":
        raise ValueError("counterfactuals needs molecules: a SMILES or a CSV table.")
    suffixes = (".csv",) if kind == "table" else (".csv", ".svg", ".png", ".pdf")
    if out.suffix.lower() not in suffixes:
        raise typer.BadParameter(f"--out {out}: use one of {', '.join(suffixes)}.")
    require_out(out, source)
    loaded = load_with_warning(model)
    options: dict[str, Any] = {"keep": keep or (), "predictions": predictions, "steps": steps}
    options |= {"sources": [name.strip() for name in sources.split(",")], "seed": seed}
    if kind == "smiles":
        found = find(loaded, source, towards, n, **options)
        found.save(out)
        _print(found)
        echo(f"{found.summary}: {out}")
        return
    rows = _rows(Path(source), smiles_column)
    options["progress"] = False
    tables, left_out = [], []
    with alone(out), progress_bar("finding counterfactuals", len(rows)) as tick:
        for row, smiles in rows:
            try:
                frame = find(loaded, smiles, towards, n, **options).to_frame()
                frame.insert(0, "row", row)
                frame.insert(1, "molecule", smiles)
                tables.append(frame)
            except ValueError as error:
                left_out.append(f"row {row}: {error}")
            tick(1)
        if not tables:
            raise ValueError(f"no molecule in {source} has counterfactuals: {left_out[0]}")
        import pandas as pd

        from graphxai.explanation.files import write_csv

        write_csv(pd.concat(tables), out, index=False)
    for line in left_out[:10]:
        echo(f"left out: {line}", err=True)
    if len(left_out) > 10:
        echo(f"left out: {len(left_out) - 10} more rows", err=True)
    echo(f"counterfactuals of {len(tables):,} molecules: {out}")


def _rows(path: Path, column: str) -> list[tuple[int, str]]:
    from graphxai.datasets.molecules import iter_records

    rows = [(row, record[column]) for row, record in iter_records(path, (column,))]
    if not rows:
        raise ValueError(f"{path} has no rows.")
    return rows


def _print(found: "Counterfactuals") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    title = f"{found.explanation.prediction}, towards {found.wish}"
    shown = Table(
        Column("change", overflow="fold"),
        Column("SMILES", overflow="fold"),
        "prediction",
        "similarity",
        title=escape(printable(title)),
        title_justify="left",
    )
    for one in found:
        cells = (one.changes, one.smiles, str(one.prediction), f"{one.similarity:.2f}")
        shown.add_row(*(escape(printable(cell)) for cell in cells))
    Console().print(shown)
