"""Explain or predict every row of a table in a stream that can restart and reports bad rows.

A run folder holds

* `explanations.csv`, with one row per molecule;
* `rejected.csv`, with the rows that were left out and the reason;
* `run.json`, with the hash of the table, model, weights, method, target and pictures;
* `pictures/`;
* on request, `explanations.sdf`, and `explanations.parquet`, which is converted from the CSV file
  at the end of the run.

Rows are written and synced in chunks, which are numbered from the top of the table. So a run that
was interrupted continues to the same files, byte for byte.

If the table has a column of names, each file holds the names of the compounds. Both tables also
have all other columns of the input. They are written like the input, with its separator, its
decimal mark, and the byte-order mark by which Excel knows UTF-8.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from graphxai.contract.intervals import LEVEL
from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.datasets.molecules import MAX_QUOTED, RejectedRow
from graphxai.datasets.training_set import training_set_of
from graphxai.explainers import Explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.models import (
    Model,
    isomers_meant,
    loaded_once,
    standardisation_of,
    versions,
)
from graphxai.explanation.compute.predicting import set_nearness
from graphxai.explanation.explanations import saturated_limit
from graphxai.explanation.files import require_pyarrow
from graphxai.runtime.options import accepts
from graphxai.runtime.progress import Progress, no_progress, resumed
from graphxai.runtime.writing import folder_at

from .batches import (
    ExplainBatch,
    ExplainedRow,
    NamedRejectedRow,
    PredictBatch,
    rejected_cells,
    require_molecules,
)
from .files import CsvFormat, table_to_write, with_items
from .rows import RowSource, TableRow, chunk_size, map_rows, other_cells, own_cell
from .run_folder import RunFolder
from .settings import FORMATS, ExplanationSettings, PredictionSettings, RowSettings

SCALED = 500  # by the relevance of how many rows the shared colour scale of a table is chosen
IDENTIFYING = ("row", "name", "smiles")
KEPT_REASONS = 100  # how many rejected rows `predict_table` returns


@dataclass(frozen=True)
class TableCounts:
    """How many rows a run has done.

    Attributes:
        done: how many rows have a result.
        rejected: how many rows were left out.
        earlier: how many rows an earlier run had done.
        nearness: how many rows have each word for their nearness to the training set.
    """

    done: int = 0
    rejected: int = 0
    earlier: int = 0
    nearness: Mapping[str, int] = field(default_factory=dict)


@accepts(ExplanationSettings)
def explain_table(
    model: Model,
    path: str | Path,
    folder: str | Path,
    explainer: Explainer,
    *,
    settings: ExplanationSettings,
    progress: Progress = no_progress,
) -> TableCounts:
    """Explain each molecule of a table into `folder`, with the files that the module lists.

    A row that cannot be read, explained, drawn or written is rejected, and the run goes on. An SD
    file holds each name as a title of one line. A resumed run begins after the rows that an earlier
    run with the same settings wrote. The files are the same for any number of processes.

    Args:
        model: the model.
        path: the table.
        folder: the folder of the run.
        explainer: the method.
        settings: the keywords of `ExplanationSettings`.
        progress: is called with the number of rows done since the last call.

    Raises:
        FileExistsError: there are results but `resume` is off, or files of another origin.
        ValueError: the results come from a different run, or a format is unknown.
        ImportError: Parquet is wanted, but pyarrow is not installed.
        OSError: a file cannot be written, or another run uses the folder.
    """
    look = settings.pictures, "sdf" in settings.formats, settings.level
    batch = ExplainBatch(model, explainer, settings.target, *look)
    require_molecules(model)
    for name in settings.formats:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name!r}; choose from {', '.join(FORMATS)}.")
    if "parquet" in settings.formats:
        require_pyarrow(Path("explanations.parquet"))
    folder = folder_at(folder)
    source = RowSource.of(path, settings.smiles_column, settings.name_column)
    description = _description(model, source, explainer, settings)
    outputs = _Outputs.of(source, batch, settings.excel_safe)
    rejected, nearness = 0, Counter[str]()
    with ExitStack() as stack:
        files = RunFolder(stack, folder, description, outputs.done, outputs.rejected, settings)
        batch.check()
        progress = resumed(progress, len(files.finished))
        chunks = source.chunks(files.finished, chunk_size(batch))
        total = source.table.count() - len(files.finished)
        with closing(map_rows(batch, chunks, settings.workers, total)) as results:
            for chunk in results:
                rows = [
                    outputs.cells(row, result)
                    for row, result in chunk
                    if row.number not in files.finished
                ]
                files.write(rows)
                rejected += sum("reason" in row for row in rows)
                nearness.update(row["training_set"] for row in rows if "reason" not in row)
                progress(len(rows))
        if "parquet" in settings.formats:
            files.write_parquet()
    return TableCounts(nearness.total(), rejected, len(files.finished), nearness)


@accepts(RowSettings)
def explain_rows(
    model: "Model | str | Path",
    path: str | Path,
    explainer: Method = DEFAULT_METHOD,
    *,
    settings: RowSettings,
    skip: Collection[int] = (),
) -> Generator[ExplainedRow | NamedRejectedRow, None, None]:
    """Explain the rows of a table except those in `skip`, and yield them in order.

    The model and the explainer may be given by name, as in `gx.explain`.

    The keywords are those of `RowSettings`. Rows are explained in batches, by processes that end
    with the generator. A row that cannot be explained is rejected. An error that concerns every
    molecule is raised.
    """
    model = loaded_once(model)
    batch = ExplainBatch(model, explainer, settings.target)
    batch.check()
    training = training_set_of(model)
    source = RowSource.of(path, settings.smiles_column, settings.name_column)
    total = source.table.count() - len(skip)
    chunks = source.chunks(skip, chunk_size(batch))
    results = map_rows(batch.explanations, chunks, settings.workers, total)
    with closing(results):
        for _, row in chain.from_iterable(results):
            if isinstance(row, ExplainedRow):
                set_nearness(row.explanation, training)
            if row.row not in skip:
                yield row


@accepts(PredictionSettings)
def predict_table(
    model: "Model | Sequence[Model]",
    path: str | Path,
    out: IO[str] | str | Path | list[dict[str, Any]],
    *,
    settings: PredictionSettings,
    goal: str = "",
    rejected: IO[str] | None = None,
    progress: Progress = no_progress,
) -> tuple[TableCounts, list[RejectedRow]]:
    """Predict each molecule of a table, write a table, and return the first rows left out.

    The keywords are those of `PredictionSettings`. Several models predict one row, in which each
    property has an interval and a nearness to the training set.

    Args:
        model: a model, or a list of models.
        path: the table.
        out: the .csv, .tsv or .parquet file to write, an open file for CSV, or a list that gets a
            dict for each row.
        goal: what is wished for the properties, as `gx.profile` reads it. Each row then says how
            desirable it is. Needs a list of models.
        rejected: a file for the rows that were left out, with the reasons, or None.
    """
    several = isinstance(model, Sequence)
    models: Any = tuple(model) if isinstance(model, Sequence) else model
    for each in models if several else (models,):
        require_molecules(each)
    batch = PredictBatch(models, settings.level, goal, settings.forms)
    source = RowSource.of(path, settings.smiles_column, settings.name_column)
    outputs = _Outputs.of(source, batch, settings.excel_safe)
    chunks = source.chunks()
    first = list(islice(chunks, 1))  # a damaged file raises before anything is written
    if rejected is not None:
        rejected.write(outputs.rejected.header)
    left_out: list[RejectedRow] = []
    nearness, refused = Counter[str](), 0
    results = map_rows(batch, chain(first, chunks), settings.workers, source.table.count())
    with table_to_write(out, outputs.done) as write, closing(results):
        for chunk in results:
            rows = [outputs.cells(row, result) for row, result in chunk]
            done = [row for row in rows if "reason" not in row]
            failed = [row for row in rows if "reason" in row]
            write(done)
            if rejected is not None:
                rejected.write(outputs.rejected.lines(failed))
            nearness.update(row.get("training_set", "") for row in done)
            refused += len(failed)
            for row in failed[: max(0, KEPT_REASONS - len(left_out))]:
                smiles = row[outputs.places["smiles"]]
                left_out.append(RejectedRow(row["row"], smiles, row["reason"]))
            progress(len(rows))
    return TableCounts(nearness.total(), refused, nearness=nearness), left_out


@accepts(RowSettings)
def common_limit(
    model: Model,
    path: str | Path,
    explainer: Explainer,
    *,
    settings: RowSettings,
    progress: Progress = no_progress,
) -> float:
    """Return where a colour scale ends that all pictures of a table share.

    It is that of a grid, but of the first `SCALED` rows, so that long tables do not take twice as
    long.
    """
    values: list[Any] = []
    with closing(explain_rows(model, path, explainer, settings=settings)) as rows:
        for row in islice(rows, SCALED):
            if isinstance(row, ExplainedRow):
                values.append(row.explanation.relevance)
            progress(1)
    return saturated_limit(np.concatenate(values)) if values else 1.0


@dataclass(frozen=True)
class _Outputs:
    """How the rows of a table and their results are written.

    Attributes:
        headings: the names of the table's other columns in the outputs.
        places: the names of its columns of names and structures there, by those in a result.
    """

    headings: tuple[str, ...]
    places: Mapping[str, str]
    done: CsvFormat
    rejected: CsvFormat

    @classmethod
    def of(
        cls, source: RowSource, batch: ExplainBatch | PredictBatch, excel_safe: bool
    ) -> "_Outputs":
        """Put the table's columns, as they are and where they are, before the results."""
        columns = batch.columns(source.name_column is not None)
        results = {name: kind for name, kind in columns.items() if name not in IDENTIFYING}
        headings = source.headings({"row", *results, "reason"}, source.repeated)
        first = {"row": int, **dict.fromkeys(headings.values(), str)}
        places = {"smiles": headings[source.table.structures.name]}
        if source.name_column is not None:
            places["name"] = headings[source.name_column]
        others = tuple(headings[name] for name in source.others)
        look = source.table.dialect, excel_safe
        done = CsvFormat({**first, **results}, *look)
        return cls(others, places, done, CsvFormat({**first, "reason": str}, *look))

    def cells(self, row: TableRow, result: Mapping[str, Any] | NamedRejectedRow) -> dict[str, Any]:
        """Return the cells of a row with its result, also for its record of an SD file."""
        if isinstance(result, NamedRejectedRow):
            result = rejected_cells(result, "name" in self.places)
        others = other_cells(row, self.headings)
        results = {name: cell for name, cell in result.items() if name not in self.places}
        cells = others | results | {self.places[n]: result[n] for n in self.places if n in result}
        if "reason" not in result or len(row.cell) <= MAX_QUOTED:
            cells[self.places["smiles"]] = own_cell(row.cell)
        if "record" in cells:
            cells["record"] = with_items(cells["record"], others)
        return cells


def _description(
    model: Model, source: RowSource, explainer: Explainer, settings: ExplanationSettings
) -> dict[str, Any]:
    """Describe a run for `run.json` by everything that must be the same to resume it."""
    with source.table.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "table": digest,
        "smiles_column": source.table.structures.name,
        "name_column": source.name_column,
        "model": model.origin.name,
        "sha256": model.origin.sha256,
        "method": explainer.name,
        "target": None if settings.target is None else str(settings.target),
        "pictures": None if settings.pictures is None else asdict(settings.pictures),
        "sdf": True if "sdf" in settings.formats else None,
        "level": None if settings.level == LEVEL else settings.level,
        "excel_safe": settings.excel_safe or None,
        "standardise": standardisation_of(model),
        "isomers": "mean" if isomers_meant(model) == "mean" else None,
        "versions": versions(),
    }
