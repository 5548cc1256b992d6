"""Explain with Ray: a table on all cores of a machine or of a cluster, or a Ray dataset.

Every process fetches the model once, and runs in one thread. For a table, it reads a piece of it,
explains it and writes its shard; only the pieces' names pass through Ray, so that no reader has to
keep up with hundreds of processes, and the rows have the same numbers however often something is
killed. The work is done by tasks, not by actors: Ray keeps the processes of tasks for the next run,
which need not import torch again.
"""

import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from graphxai.api import load
from graphxai.explainers import get_explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.models import LoadedModel
from graphxai.explanation.provenance import provenance, versions
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.writing import exclusive_lock, folder_at

from .batches import ExplainBatch
from .frames import ExplainFrame
from .pieces import Piece, absolute, cells_of, files_of, spans_left
from .run import CHUNK, Counts
from .shards import Results, require_complete

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.data import Dataset

SHARD = 64 * CHUNK  # rows of a shard: half a minute of LRP on one core
BLOCKS = 10_000  # most blocks of Ray Data; a larger number of pieces shares them


def explain_dataset(
    dataset: "Dataset",
    model: LoadedModel | str | Path,
    method: Method = "lrp",
    *,
    target: Any = None,
    smiles_column: str = "smiles",
    row_column: str | None = None,
    name_column: str | None = None,
    workers: int | None = None,
    batch_size: int = 1024,
) -> "Dataset":
    """Explain each row of a Ray dataset; returns a dataset, which is computed when it is read.

    model, method, target: as for `explain`, for molecules. The model is loaded here and sent to the
    processes. smiles_column: any values; a row that cannot be explained has a `reason`. row_column,
    name_column: integers and names to carry along as `row` and `name`. workers: the largest
    number of processes that explain at a time, by default one for each core. batch_size: rows that
    a process takes at a time.

    Raises ImportError without the extra `scale`, and ValueError for an unsuitable model, method or
    target.
    """
    ray = _ray()
    frame = ExplainFrame(_batch(model, method, target), smiles_column, row_column, name_column)
    _start(ray, None)
    return dataset.map_batches(
        _Fetched(ray.put(frame)),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.TaskPoolStrategy(size=workers),
    )


def explain_on_ray(
    model: LoadedModel | str | Path,
    table: str | os.PathLike[str],
    out: str | os.PathLike[str],
    method: Method = "lrp",
    *,
    target: Any = None,
    smiles_column: str = "smiles",
    name_column: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    shard_rows: int = SHARD,
    resume: bool = False,
    progress: bool | None = None,
) -> Counts:
    """Explain a table with Ray; writes shards and a manifest (see `shards`).

    table, out: paths or addresses, see `pieces`. address: of a cluster; by default Ray runs on this
    machine, for as long as this takes. workers: processes that explain, by default one for each
    core. shard_rows: largest number of rows of a shard; a small table is cut so that all of them
    have work. resume: explain only rows that no finished shard holds. progress: as for
    `explain`.

    Raises ImportError without the extra `scale`, FileExistsError if there are results and `resume`
    is off, ValueError if they come from a different run, OSError if a shard cannot be written.
    Finished shards stay, whatever happens.
    """
    ray = _ray()
    batch = _batch(model, method, target)
    table, results = absolute(table), Results(absolute(out))
    columns = [smiles_column] if name_column is None else [smiles_column, name_column]
    files = files_of(table, columns)
    rows = sum(piece.rows for piece in files)
    settings = _settings(batch, table, files, columns)
    nearness: Counter[str] = Counter()
    with ExitStack() as stack:
        if results.is_local:
            stack.enter_context(exclusive_lock(folder_at(results.path)))
        before = results.begin(settings, resume)
        advance = stack.enter_context(progress_bar("explaining", rows, show=progress))
        advance(sum(shard.rows for shard in before))
        if _start(ray, address):
            stack.callback(ray.shutdown)
        workers = workers or _cores(ray)
        size = min(shard_rows, CHUNK * math.ceil(max(rows, 1) / (4 * workers * CHUNK)))
        done = [shard.span for shard in before]
        left = [piece.part(span) for piece in files for span in spans_left(piece, done, size)]
        frame = ExplainFrame(batch, smiles_column, "row", name_column)
        work = _WriteShards(frame, table, columns, results)
        for count, found in _mapped(ray, work, left, workers):
            nearness.update(found)
            advance(count)
        shards = results.shards()
        require_complete(shards, rows)
        about = {"rows": rows, "versions": versions() | {"ray": ray.__version__}}
        results.finish(settings | about, shards)
    new = [shard for shard in shards if shard not in before]
    rejected = sum(shard.rejected for shard in new)
    explained = sum(shard.rows for shard in new) - rejected
    return Counts(explained, rejected, sum(shard.rows for shard in before), nearness)


@dataclass(frozen=True)
class _Fetched:
    """Work that a process of Ray fetches once, and does in one thread. ref: where Ray has it."""

    ref: "ObjectRef[Callable[[Any], Any]]"

    def __call__(self, batch: Any) -> Any:
        return _fetched(self.ref)(batch)


@lru_cache(1)
def _fetched(ref: "ObjectRef[Callable[[Any], Any]]") -> Callable[[Any], Any]:
    torch.set_num_threads(1)
    found: Callable[[Any], Any] = _ray().get(ref)
    return found


@dataclass(frozen=True)
class _WriteShards:
    """Reads pieces of a table, explains them and writes their shards."""

    frame: ExplainFrame
    table: str
    columns: Sequence[str]
    results: Results

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Take pieces; give the rows of each, how near they are to the training set, and errors."""
        found = [self._tried(Piece.of(piece)) for piece in batch["piece"]]
        rows, nearness, error = map(list, zip(*found, strict=True))
        return {"rows": rows, "nearness": nearness, "error": error}

    def _tried(self, piece: Piece) -> tuple[int, str, str]:
        try:
            return *self._written(piece), ""
        except OSError as error:  # as text: Ray would wrap it, and lose its cause
            return 0, "{}", str(error)

    def _written(self, piece: Piece) -> tuple[int, str]:
        values, *names = cells_of(piece, self.table, list(self.columns))
        numbers = range(piece.first, piece.first + piece.rows)
        rows = self.frame.explain(values, numbers, names[0] if names else None)
        self.results.write(piece.first, rows)
        return piece.rows, json.dumps(Counter(filter(None, rows["training_set"].to_pylist())))


def _mapped(
    ray: Any, work: _WriteShards, pieces: Sequence[Piece], workers: int
) -> Iterator[tuple[int, dict[str, int]]]:
    """What the work gives for each piece, in the order in which they are finished."""
    if not pieces:
        return
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    items = [{"piece": piece.to_json()} for piece in pieces]
    mapped = ray.data.from_items(items, override_num_blocks=min(len(items), BLOCKS)).map_batches(
        _Fetched(ray.put(work)),
        batch_size=1,
        compute=ray.data.TaskPoolStrategy(size=workers),
    )
    context = ray.data.DataContext.get_current()
    shown, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        for row in mapped.iter_rows():
            if row["error"]:
                raise OSError(row["error"])
            yield row["rows"], json.loads(row["nearness"])
    finally:
        context.enable_progress_bars = shown


def _ray() -> Any:
    try:
        import ray.data  # takes a second
    except ImportError as error:
        raise ImportError(
            "Ray is not installed: install it with `pip install 'graphxai[scale]'`."
        ) from error
    return ray


def _start(ray: Any, address: str | None) -> bool:
    """Join the cluster, or start Ray on this machine, unless it is running; whether it was not."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports nothing home
    options = {} if address or "RAY_ADDRESS" in os.environ else {"include_dashboard": False}
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    return True


def _cores(ray: Any) -> int:
    """The number of cores of all machines."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _batch(model: LoadedModel | str | Path, method: Method, target: Any) -> ExplainBatch:
    """The callable for these, with the model itself, as other machines have no such folder."""
    model = load(model) if isinstance(model, str | Path) else model
    batch = ExplainBatch(model, method, target)
    batch.check()
    return batch


def _settings(
    batch: ExplainBatch, table: str, files: Sequence[Piece], columns: Sequence[str]
) -> dict[str, Any]:
    """What must agree when a run is resumed."""
    from graphxai.evaluation.benchmark import weights_hash

    assert isinstance(batch.model, LoadedModel)
    origin = provenance(batch.model, get_explainer(batch.method))
    listed = repr([(piece.path, piece.rows, piece.version) for piece in files])
    return {
        "table": table,
        "files": hashlib.sha256(listed.encode()).hexdigest(),
        "columns": list(columns),
        "model": origin["model"],
        "sha256": weights_hash(batch.model),
        "method": origin["method"],
        "options": origin["options"],  # seeds among them
        "target": None if batch.target is None else str(batch.target),
    }
