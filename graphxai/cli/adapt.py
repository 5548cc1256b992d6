"""The command `graphxai adapt`: move a model's values towards own measurements."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from graphxai.runtime.options import as_in, option

from .answers import answer
from .arguments import ALWAYS
from .fit import MaskedAtomsOptions
from .options import APPLIES_ALWAYS, settings_as_options
from .terminal import tell


@dataclass(frozen=True)
class AdaptOptions:
    """Which column measures which task, and where the result goes."""

    target_column: str | None = option(
        None, "Column of values [default: the one with the task's name].", ALWAYS
    )
    task: str | None = option(
        None, "Task that it measures [default: the first with values].", ALWAYS
    )
    smiles_column: str | None = as_in(
        MaskedAtomsOptions, "smiles_column", applies_to=None, names_kind=True
    )


@settings_as_options
def adapt(
    model: Annotated[
        str, typer.Argument(help="A bundled, trained, chemprop or wrapped (my.py:model) model.")
    ],
    table: Annotated[Path, typer.Argument(help="A table of own measurements.")],
    out: Annotated[Path, typer.Option(help="Folder for the adapted model."), APPLIES_ALWAYS],
    *,
    options: AdaptOptions,
) -> None:
    """Adapt a model of values to ten or more own measurements, in seconds.

    A Gaussian process learns what the model gets wrong, and its values are added to the model's.
    Explanations have a line for each of the two. Adapting the result again with more measurements
    updates it.

    **Example**

    `graphxai adapt bace examples/assay.csv --out runs/own`
    """
    from graphxai.learning.processes.adapting import adapt as adapt_model

    folder = adapt_model(
        model,
        table,
        out,
        target_column=options.target_column,
        task=options.task,
        smiles_column=options.smiles_column,
        log=tell,
    )
    answer(files=[folder])
    tell(f"written: {folder}")
