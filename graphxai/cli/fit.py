"""The commands `fit-explainer`, `fit-masked-atoms` and `adapt`, which learn from a model."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphxai.runtime.options import as_in, option

from .answers import answer
from .arguments import ALWAYS, SharedOptions, kind_of, load_with_warning, require_sense
from .options import APPLIES_ALWAYS, refuse_inapplicable, settings_as_options
from .terminal import echo, tell

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import Model

DIGITS = "mnist-superpixels"


@dataclass(frozen=True)
class MaskedAtomsOptions:
    """What is fitted to a model, on which molecules, and where the result goes."""

    model: str = as_in(SharedOptions, "model")
    epochs: int = option(30, "Passes over the molecules.", ALWAYS, minimum=1)
    smiles_column: str | None = option(
        None,
        "Column with structures, for a table [default: by its name or content].",
        ("table",),
        names_kind=False,
    )
    seed: int = as_in(SharedOptions, "seed")
    out: Path | None = option(
        None, "Folder for the two files [default: beside the model's checkpoint].", ALWAYS
    )


@dataclass(frozen=True)
class ExplainerOptions:
    """What is fitted to a model, on which graphs, and where the result goes."""

    model: str = as_in(SharedOptions, "model")
    task: str | None = option(None, "Task to explain [default: all with classes].", ALWAYS)
    graphs: int = option(
        1000, "How many graphs to draw; a tenth is held out to measure.", ALWAYS, minimum=1
    )
    shapley_orders: int | None = option(
        None,
        "Learn first from Shapley values over so many orders [default: from path_marginals, at a"
        " fraction of the cost].",
        ALWAYS,
        minimum=1,
    )
    epochs: int = option(6, "Passes over the activation curves of the graphs.", ALWAYS, minimum=1)
    smiles_column: str | None = as_in(MaskedAtomsOptions, "smiles_column")
    seed: int = as_in(SharedOptions, "seed")
    out: Path | None = as_in(MaskedAtomsOptions, "out")
    device: str | None = as_in(SharedOptions, "device")


@settings_as_options
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
    *,
    options: ExplainerOptions,
) -> None:
    """Fit the explanation method `learned` to a model, on graphs that no test uses.

    Then `--method learned` finds it beside the checkpoint. It takes a few minutes, and
    nothing is written before the end.

    **Examples**

    `graphxai fit-explainer --model bace --graphs 200 --out fitted/`

    `graphxai fit-explainer my.csv --model runs/mine --graphs 2000 --seed 1`

    `graphxai fit-explainer mnist-superpixels --model runs/mnist --shapley-orders 32`

    `graphxai explain "CC(=O)Oc1ccccc1C(=O)O" --model runs/mine --method learned --out aspirin.svg`
    """
    kind = "training" if source is None else DIGITS if source == DIGITS else "table"
    refuse_inapplicable(context, kind)
    is_table = kind == "table" and not Path(source or "").is_dir() and kind_of(str(source)) == kind
    require_sense(
        source or "", "table" if is_table else "", [options.model], (), [options.smiles_column]
    )
    from graphxai.explainers import fit_explainer as fit

    loaded = load_with_warning(options.model, options.device)
    inputs, data = _inputs(loaded, source, options.smiles_column)
    drawn = inputs
    if options.graphs < len(inputs):
        drawn = random.Random(options.seed).sample(inputs, options.graphs)
    names = ("task", "shapley_orders", "epochs", "seed")
    settings: dict[str, Any] = {name: getattr(options, name) for name in names}
    settings["data"] = f"{data}: {len(drawn)} drawn"
    sentence = "AUAC on {graphs} held-out graphs: {auac of learned:.3f}, of lrp_path"
    sentence += " {auac of lrp_path:.3f}"
    _save(options.out, loaded, lambda: fit(loaded, drawn, **settings), sentence, "--method learned")


def _save(
    out: Path | None, loaded: "Model", fit: Callable[[], Any], sentence: str, use: str
) -> None:
    """Fit a network and write it, and say in a sentence how it fares on held-out graphs."""
    from graphxai.runtime.writing import exclusive_lock, folder_at

    folder = folder_at(out or loaded.origin.folder or Path())
    with exclusive_lock(folder):
        fitted = fit()
        fitted.save(folder)
    measured = fitted.card["held_out"]
    if measured["graphs"]:
        echo(sentence.format_map(measured))
    tell(f"written: {folder}; use it with {use}")


def _inputs(loaded: "Model", source: str | None, column: str | None) -> tuple[list[Any], str]:
    """Return the graphs to draw from, and what they are as text."""
    name = loaded.origin.name
    if source is not None and Path(source).is_dir():
        from graphxai.evaluation.sources import source as graphs_of

        graphs = graphs_of(loaded, source, "train")
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
    return _molecules(loaded, source, column, "fit-explainer")


def _molecules(
    loaded: "Model", source: str | Path | None, column: str | None, command: str
) -> tuple[list[str], str]:
    """Return the SMILES of a table, by default of the training compounds, and the table's name."""
    from graphxai.datasets.tables.table import open_table
    from graphxai.datasets.training_set import FILE

    path = Path(source) if source is not None else (loaded.origin.folder or Path()) / FILE
    if source is None and not path.is_file():
        raise ValueError(
            f"model {loaded.origin.name!r} has no {FILE} beside it: give a table of molecules."
        )
    if kind_of(str(path)) != "table":
        raise ValueError(f"{command} needs a table of molecules.")
    table = open_table(path, "smiles" if source is None else column)
    name = table.structures.name
    return [record.cells[name] for record in table.records((name,))], path.name


@settings_as_options
def fit_masked_atoms(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A table of molecules [default: the training compounds].", show_default=False
        ),
    ] = None,
    *,
    options: MaskedAtomsOptions,
) -> None:
    """Fit a model that draws hidden atoms, for the removal operator `resample`.

    Then `graphxai benchmark --operators resample` finds it beside the checkpoint. It takes a minute
    or two, and nothing is written before the end.

    **Examples**

    `graphxai fit-masked-atoms --model bace --out fitted/`

    `graphxai fit-masked-atoms my.csv --model runs/mine --seed 1`

    `graphxai benchmark runs/mine test.csv --operators mask,resample`
    """
    refuse_inapplicable(context, kind := "training" if source is None else "table")
    require_sense(source or "", kind, [options.model], (), [options.smiles_column])
    from graphxai.learning.recipes.masked_atoms import fit_masked_atoms as fit

    loaded = load_with_warning(options.model)
    smiles, data = _molecules(loaded, source, options.smiles_column, "fit-masked-atoms")
    settings: dict[str, Any] = {"epochs": options.epochs, "seed": options.seed, "data": data}
    sentence = (
        "in {graphs} held-out molecules with half their atoms hidden, the most probable atom is the"
        " true one for {right with 50% hidden:.0%} of them"
    )
    use = "--operators resample"
    _save(options.out, loaded, lambda: fit(loaded, smiles, **settings), sentence, use)


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

    `graphxai adapt mdr1-efflux examples/assay.csv --target-column efflux --out runs/own`
    """
    require_sense(table, "table", [model], (), (options.smiles_column, options.target_column))
    from graphxai.learning.processes.adapting import adapt as adapt_model

    names = ("target_column", "task", "smiles_column")
    given: dict[str, Any] = {name: getattr(options, name) for name in names}
    folder = adapt_model(model, table, out, **given, log=tell)
    answer(files=[folder])
    tell(f"written: {folder}")
