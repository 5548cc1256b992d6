"""`graphxai predict`: a molecule, a table of molecules, or a digit."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from graphxai.runtime.progress import progress_bar

from .arguments import (
    ColumnOption,
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
from .terminal import Printed, echo


def predict(
    source: Annotated[str, typer.Argument(help="A SMILES, a CSV table, or a picture of a digit.")],
    model: ModelOption = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write [default: print].")] = None,
    smiles_column: ColumnOption = "smiles",
    name_column: NameOption = None,
    level: LevelOption = None,
    excel_safe: ExcelOption = False,
    workers: WorkersOption = None,
) -> None:
    """Predict a molecule, a table of molecules, or a digit.

    **Examples**

    `graphxai predict "CC(=O)Oc1ccccc1C(=O)O"`

    `graphxai predict molecules.csv --name-column ID --out predictions.csv`

    `graphxai predict molecules.csv --level 0.8 --out predictions.csv`

    `graphxai predict molecules.csv --workers 4 --out predictions.csv`
    """
    from .printing import nearness_line, print_nearness

    kind = kind_of(source)
    if kind != "table":
        require_no_table_options(name_column, workers)
    loaded = load_with_warning(model or ("mnist-superpixels" if kind == "image" else "bace"))
    require_kind(loaded, source, kind)
    chosen = level_for(loaded, level)
    if kind != "table":
        from graphxai.api import predict as predict_one
        from graphxai.tables.batches import teacher_columns

        for prediction in predict_one(loaded, value_of(source, kind)).values():
            echo(f"{prediction.task}: {prediction.at(chosen).in_full}")
        if kind == "smiles":
            for cells in teacher_columns(loaded, [loaded.prepare(source)]):
                for name, text in cells.items():
                    echo(f"{name}: {text}")
        print_nearness(prediction)
        return
    from graphxai.runtime.writing import atomic_write, exclusive_lock
    from graphxai.tables.run import count_rows, predict_table

    columns: dict[str, Any] = {"smiles_column": smiles_column, "name_column": name_column}
    columns |= {"excel_safe": excel_safe, "workers": workers, "level": chosen}
    with progress_bar("predicting", count_rows(source)) as advance, ExitStack() as stack:
        file: Any = Printed()
        if out:
            require_out(out, source)
            stack.enter_context(exclusive_lock(out))
            file = stack.enter_context(atomic_write(out))
        counts, rejected = predict_table(loaded, source, file, progress=advance, **columns)
    if out:
        echo(f"{counts.done} predicted: {out}")
    if counts.done:
        echo(nearness_line(counts.nearness), err=out is None)  # the table is on stdout
    for row in rejected[:10]:
        echo(f"left out: {row}", err=True)
    if len(rejected) > 10:
        echo(f"left out: {len(rejected) - 10} more rows", err=True)
    if rejected and not counts.done:
        raise typer.Exit(1)
