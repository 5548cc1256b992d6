"""The command `graphxai fit-masked-atoms`: fit what the operator `resample` draws from."""

from pathlib import Path
from typing import Annotated

import typer

from .arguments import MoleculeModelOption, SeedOption, kind_of, load_with_warning
from .options import APPLIES_ALWAYS, applies_to, refuse_inapplicable
from .terminal import echo


def fit_masked_atoms(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A table of molecules [default: the training compounds].", show_default=False
        ),
    ] = None,
    model: MoleculeModelOption = "bace",
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the molecules."), APPLIES_ALWAYS
    ] = 30,
    smiles_column: Annotated[
        str | None,
        typer.Option(help="Column with structures, for a table [default: by its name or content]."),
        applies_to("table"),
    ] = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the two files [default: beside the model's checkpoint]."),
        APPLIES_ALWAYS,
    ] = None,
) -> None:
    """Fit a model that draws hidden atoms, for the removal operator `resample`.

    Then `graphxai benchmark --operators resample` finds it beside the checkpoint. It takes a minute
    or two, and nothing is written before the end.

    **Examples**

    `graphxai fit-masked-atoms --model runs/mine`

    `graphxai fit-masked-atoms molecules.csv --model runs/mine --seed 1`

    `graphxai benchmark runs/mine test.csv --operators mask,resample`
    """
    from graphxai.datasets.tables.table import open_table
    from graphxai.datasets.training_set import FILE
    from graphxai.evaluation.masked_atoms import fit_masked_atoms as fit
    from graphxai.runtime.writing import exclusive_lock, folder_at

    refuse_inapplicable(context, "training" if source is None else "table")
    loaded = load_with_warning(model)
    beside = loaded.origin.folder
    path = source or (beside / FILE if beside is not None else Path(FILE))
    if source is None and not path.is_file():
        raise ValueError(
            f"model {loaded.origin.name!r} has no {FILE} beside it: give a table of molecules."
        )
    if kind_of(str(path)) != "table":
        raise ValueError("fit-masked-atoms needs a table of molecules.")
    table = open_table(path, "smiles" if source is None else smiles_column)
    column = table.structures.name
    smiles = [record.cells[column] for record in table.records((column,))]
    folder = folder_at(out or beside or Path())
    with exclusive_lock(folder):
        fitted = fit(loaded, smiles, epochs=epochs, seed=seed, data=path.name)
        fitted.save(folder)
    measured = fitted.card["held_out"]
    if measured["graphs"]:
        echo(
            f"in {measured['graphs']} held-out molecules with half their atoms hidden, the most"
            f" probable atom is the true one for {measured['right with 50% hidden']:.0%} of them"
        )
    echo(f"written: {folder}; use it with --operators resample")
