"""The command `graphxai predict`: predict a molecule, a table of them, a digit, or graphs."""

import io
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from graphxai.runtime.options import as_in, option
from graphxai.runtime.progress import progress_bar
from graphxai.tables.settings import PredictionSettings

from .answers import INVOCATION, answer, on_standard_output
from .answers import counts as count_rows
from .arguments import (
    ModelsOptions,
    SharedOptions,
    check_level,
    kind_of,
    load_several,
    model_line,
    require_kind,
    require_nodes,
    require_out,
    require_sense,
    share_imports,
    show_table,
    value_of,
)
from .options import refuse_inapplicable, settings_as_options
from .terminal import PrintableOutput, echo, echo_left_out, tell

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import Model
    from graphxai.explanation.prediction import Prediction


@dataclass(frozen=True)
class PredictOptions:
    """What predicts, what is wished for, and where the predictions go."""

    model: list[str] | None = as_in(ModelsOptions, "model")
    goal: str = option(
        "",
        "Values to aim at, such as 'pIC50 > 7.5, log D 1 to 3': adds how desirable a molecule is.",
        ("smiles", "table"),
    )
    as_drawn: bool = as_in(ModelsOptions, "as_drawn")
    isomers: Literal["groups", "mean"] = as_in(ModelsOptions, "isomers")
    molecule_features: list[str] | None = as_in(ModelsOptions, "molecule_features")
    out: Path | None = option(
        None,
        "File to write (.csv, .tsv or .parquet), for a table or graphs [default: print].",
        ("table", "graphs"),
    )
    node: list[int] | None = as_in(SharedOptions, "node")


@settings_as_options
def predict(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="A SMILES; a table (CSV, .smi, .sdf, .xlsx, Parquet, also .gz); a picture of a"
            " digit; or a folder of graphs."
        ),
    ],
    *,
    options: PredictOptions,
    settings: PredictionSettings,
) -> None:
    """Predict a molecule, a table of molecules, a digit, or the graphs of a folder.

    **Examples**

    `graphxai predict "CC(=O)Oc1ccccc1C(=O)O"`

    `graphxai predict examples/molecules.csv --name-column name --out predictions.csv`

    `graphxai predict my.csv --level 0.8 --out predictions.csv`

    `graphxai predict my.csv --workers 4 --out predictions.csv`

    `graphxai predict my-graphs --model runs/graphs --out predictions.csv`

    `graphxai predict CCO --model bace --model solubility --goal "pIC50 > 7, solubility > -4"`
    """
    kind = kind_of(source, graphs=True)
    refuse_inapplicable(context, kind)
    out = None if options.out and on_standard_output(options.out) else options.out
    goal, nodes = options.goal, options.node or []
    if out is not None:
        from graphxai.explanation.files import FRAMES

        require_out(out, source, FRAMES)
    columns = (settings.smiles_column, settings.name_column)
    require_sense(source, kind, options.model or (), (), columns, settings.level)
    models = load_several(options, "mnist-superpixels" if kind == "image" else "bace")
    for each in models:
        require_kind(each, source, kind)
        check_level(context, each)
    answer(models=[model.origin.name for model in models])
    first, several = models[0], len(models) > 1 or bool(goal)
    used = model_line(context, *models)
    if kind == "table":
        _predict_table(models if several else first, source, out, goal, settings, used)
    elif kind == "graphs":
        for each in models:
            require_nodes(each, nodes)
        _predict_graphs(models, Path(source), out, nodes=nodes, level=settings.level)
    elif several:
        _predict_properties(models, value_of(source, kind), goal, settings.level)
    else:
        _predict_one(first, source, kind, settings.level, used)


def _predict_properties(models: "list[Model]", value: str | Path, goal: str, level: float) -> None:
    """Print what several models predict, each with its training set, and how desirable it is."""
    from graphxai.chemistry.profile_text import profile
    from graphxai.explanation.api import predict as predict_one

    from .printing import print_note

    predictions = {name: each.at(level) for name, each in predict_one(models, value).items()}
    note = _note(models, value)
    answer(predictions=[_as_answer(each, note) for each in predictions.values()])
    for name, prediction in predictions.items():
        near = prediction.nearness
        echo(f"{name}: {prediction.in_full}; {near.sentence if near else ''}".rstrip("; "))
    print_note(note)
    if goal:
        score = profile(models, goal).score(predictions)
        for part in score.parts:
            echo(f"{part.desirability:.2f} {part.goal.explanation}")
        echo(f"desirability: {score.overall:.2f}")
        answer(desirability=score.overall)


def _predict_one(model: "Model", source: str, kind: str, level: float, used: str) -> None:
    from graphxai.explanation.api import predict as predict_one

    from .printing import print_nearness, print_note

    predictions = predict_one(model, value_of(source, kind))
    for prediction in predictions.values():
        echo(f"{prediction.task}: {prediction.at(level).in_full}")
    note = _note([model], source) if kind == "smiles" else prediction.note
    answer(predictions=[_as_answer(p.at(level), note) for p in predictions.values()])
    tell(used)
    print_note(note)
    print_nearness(prediction)


def _note(models: "list[Model]", smiles: str | Path) -> str:
    """Return what was done to a molecule, and what its isomers and likely tautomers get."""
    from graphxai.tables.batches import PredictBatch

    (row,) = PredictBatch(models, forms=True)([str(smiles)], [1])
    return str(row.get("note", ""))


def _as_answer(prediction: "Prediction", note: str) -> dict[str, Any]:
    """Return a prediction with its note and how near the molecule is to the training set."""
    near = prediction.nearness
    of_set = {"training_set": None if near is None else near.to_dict()}
    return prediction.to_dict() | ({"note": note} if note else {}) | of_set


def _predict_table(
    models: "Model | list[Model]",
    source: str,
    out: Path | None,
    goal: str,
    settings: PredictionSettings,
    used: str,
) -> None:
    """Predict every row of a table. Exit with status 1 if none can be predicted."""
    from graphxai.runtime.writing import exclusive_lock, write_whole
    from graphxai.tables.run import predict_table

    from .printing import nearness_line

    share_imports()
    listed = models if isinstance(models, list) else [models]
    table = show_table(source, settings.smiles_column, listed)
    refused, rows = io.StringIO(), list[dict[str, Any]]()
    lock = nullcontext() if out is None else exclusive_lock(out)
    with progress_bar("predicting", table.count()) as advance, lock:
        counts, rejected = predict_table(
            models,
            source,
            out or (rows if INVOCATION.json else PrintableOutput()),
            settings=settings,
            goal=goal,
            rejected=refused,
            progress=advance,
        )
    kept = None if out is None else out.with_name(f"{out.stem}.rejected.csv")
    if kept is not None and (counts.rejected or kept.exists()):
        write_whole(kept, refused.getvalue())
    summary = f"{counts.done} predicted, {counts.rejected} left out"
    tell(summary if out is None else f"{summary}: {out}")  # the table is on stdout
    tell(used)
    if counts.done and not isinstance(models, list):
        tell(nearness_line(counts.nearness))
    echo_left_out(map(str, rejected), counts.rejected)
    answer(counts=count_rows(counts.done, counts.rejected), rejected=list(map(asdict, rejected)))
    answer(**({"rows": rows} if out is None else {"files": [out]}))
    if counts.rejected and kept is not None:
        tell(f"the rows left out, with reasons: {kept}")
    if counts.rejected and not counts.done:
        raise typer.Exit(1)


def _predict_graphs(
    models: "list[Model]", source: Path, out: Path | None, *, nodes: Sequence[int], level: float
) -> None:
    """Predict every graph of a folder, and write or print a row for each, or for each of its nodes.

    Exit with status 1 if no graph could be predicted.
    """
    import pandas as pd

    from graphxai.datasets.graph_folders import load_graphs
    from graphxai.explanation.api import predict as predict_inputs
    from graphxai.explanation.files import write_table
    from graphxai.explanation.prediction import table_cells

    rows: list[dict[str, Any]] = []
    num_left_out = 0
    graphs = list(load_graphs(source).graphs)
    for node in nodes or (None,):
        about = {} if node is None else {"node": node}
        predictions = predict_inputs(models, graphs, node=node)
        for number, by_task in enumerate(predictions):
            if by_task is None:
                num_left_out += 1
                continue
            cells = table_cells([each.at(level) for each in by_task.values()])
            rows.append({"graph": number} | about | cells)
    frame = pd.DataFrame(rows, columns=None if rows else ["graph"])
    if "node" in frame:
        frame = frame.sort_values(["graph", "node"])
    if out is None and not INVOCATION.json:
        PrintableOutput().write(frame.to_csv(index=False, lineterminator="\n"))
    elif out is not None:
        write_table(frame, out)
    answer(counts=count_rows(len(rows), num_left_out), rejected=[])
    answer(**({"rows": frame.to_dict("records")} if out is None else {"files": [out]}))
    INVOCATION.rejected += num_left_out
    summary = f"{len(rows)} predicted, {num_left_out} left out"
    tell(summary if out is None else f"{summary}: {out}")
    if not rows:
        raise typer.Exit(1)
