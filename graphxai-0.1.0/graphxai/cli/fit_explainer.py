"""The command `graphxai fit-explainer`: fit the explainer `learned` to a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import (
    DeviceOption,
    MoleculeModelOption,
    SeedOption,
    kind_of,
    load_with_warning,
)
from .options import APPLIES_ALWAYS, applies_to, refuse_inapplicable
from .terminal import echo

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import Model

DIGITS = "mnist-superpixels"


def fit_explainer(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            help=f"A table of molecules, a folder of graphs (its training part is taken), or"
            f" {DIGITS} [default: the training compounds].",
            show_default=False,
        ),
    ] = None,
    model: MoleculeModelOption = "bace",
    task: Annotated[
        str | None,
        typer.Option(help="Task to explain [default: all with classes]."),
        APPLIES_ALWAYS,
    ] = None,
    graphs: Annotated[
        int,
        typer.Option(min=1, help="How many graphs to draw; a tenth is held out to measure."),
        APPLIES_ALWAYS,
    ] = 1000,
    shapley_orders: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Learn first from Shapley values over so many orders [default: from"
            " path_marginals, at a fraction of the cost].",
        ),
        APPLIES_ALWAYS,
    ] = None,
    epochs: Annotated[
        int,
        typer.Option(min=1, help="Passes over the activation curves of the graphs."),
        APPLIES_ALWAYS,
    ] = 6,
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
    device: DeviceOption = None,
) -> None:
    """Fit the explanation method `learned` to a model, on graphs that no test uses.

    Then `--method learned` finds it beside the checkpoint. It takes a few minutes, and
    nothing is written before the end.

    **Examples**

    `graphxai fit-explainer --model runs/mine`

    `graphxai fit-explainer molecules.csv --model runs/mine --graphs 2000 --seed 1`

    `graphxai fit-explainer mnist-superpixels --model runs/mnist --shapley-orders 32`

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --model runs/mine --method learned --out aspirin.svg`
    """
    from graphxai.explainers import fit_explainer as fit
    from graphxai.runtime.writing import exclusive_lock, folder_at

    refuse_inapplicable(context, _kind_of(source))
    loaded = load_with_warning(model, device)
    inputs, data = _inputs(loaded, source, smiles_column)
    folder = folder_at(out or loaded.origin.folder or Path())
    drawn = _drawn(inputs, graphs, seed)
    with exclusive_lock(folder):
        fitted = fit(
            loaded,
            drawn,
            task=task,
            shapley_orders=shapley_orders,
            epochs=epochs,
            seed=seed,
            data=f"{data}: {len(drawn)} drawn",
        )
        fitted.save(folder)
    measured = fitted.card["held_out"]
    if measured["graphs"]:
        echo(
            f"AUAC on {measured['graphs']} held-out graphs: {measured['auac of learned']:.3f},"
            f" of lrp_path {measured['auac of lrp_path']:.3f}"
        )
    echo(f"written: {folder}; use it with --method learned")


def _kind_of(source: str | None) -> str:
    """Tell what the graphs are drawn from: 'training', 'mnist-superpixels' or 'table'."""
    if source is None:
        return "training"
    return DIGITS if source == DIGITS else "table"


def _inputs(loaded: "Model", source: str | None, column: str | None) -> tuple[list[Any], str]:
    """Return the graphs to draw from, and what they are in words."""
    from graphxai.datasets.training_set import FILE

    name, folder = loaded.origin.name, loaded.origin.folder
    if source is not None and Path(source).is_dir():
        from graphxai.evaluation.sources import training_source

        graphs = training_source(loaded, source)
        return list(graphs.inputs.values()), graphs.title
    if loaded.config.reads == "graphs":
        raise ValueError(f"model {name!r} needs a folder of graphs as its source.")
    if (source == DIGITS) == loaded.config.reads_molecules:
        needed = "a table of molecules" if source == DIGITS else DIGITS
        raise ValueError(f"model {name!r} needs {needed} as its source.")
    if source == DIGITS:
        from graphxai.datasets.mnist import load_mnist

        count = int(loaded.origin.metadata.get("train_images") or 9000)
        images, _ = load_mnist(None, "train", limit=count)
        return list(images), "MNIST, training images"
    path = folder / FILE if source is None and folder is not None else Path(source or "")
    if source is None and not path.is_file():
        raise ValueError(f"model {name!r} has no {FILE} beside it: give a table of molecules.")
    if kind_of(str(path)) != "table":
        raise ValueError("fit-explainer needs a table of molecules.")
    from graphxai.datasets.tables.table import open_table

    table = open_table(path, "smiles" if source is None else column)
    name = table.structures.name
    return [record.cells[name] for record in table.records((name,))], path.name


def _drawn(inputs: list[Any], count: int, seed: int) -> list[Any]:
    import random

    return random.Random(seed).sample(inputs, count) if count < len(inputs) else inputs
