"""Explain with Ray: a table on all cores of a machine or of a cluster, or a Ray dataset.

Every process fetches the model once, and runs in one thread. For a table, it reads a piece,
explains it and writes its shard. Only the names of the pieces pass through Ray, so that no reader
has to keep up with hundreds of processes. The rows have the same numbers however often something is
killed. Tasks do the work, not actors, because Ray keeps the processes of tasks for the next run,
where they need not import torch again.
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

from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.contract.model import weights_hash
from graphxai.explainers import get_explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.models import (
    Model,
    isomers_meant,
    load,
    provenance,
    standardisation_of,
    versions,
)
from graphxai.runtime.extras import missing_extra
from graphxai.runtime.interrupts import sigterm_handler_kept
from graphxai.runtime.options import accepts
from graphxai.runtime.progress import progress_bar, resumed
from graphxai.runtime.writing import exclusive_lock, folder_at

from .batches import ExplainBatch
from .pieces import Piece, absolute, cells_of, files_of, spans_left, structures_of
from .rows import CHUNK, ExplainFrame
from .run import TableCounts
from .run_folder import ShardFolder, require_complete
from .settings import DatasetSettings, RaySettings

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.data import Dataset

BLOCKS = 10_000  # how many blocks of Ray Data there are at most, which more pieces share


@accepts(DatasetSettings)
def explain_dataset(
    dataset: "Dataset",
    model: "Model | str | Path",
    method: Method = DEFAULT_METHOD,
    *,
    settings: DatasetSettings,
) -> "Dataset":
    """Explain each row of a Ray dataset, and return a dataset that is computed when it is read.

    The column of SMILES may hold any values, because a row that cannot be explained has a `reason`.
    At most `workers` processes explain at a time, by default one for each core.

    Args:
        dataset: the dataset.
        model, method: as for `explain`, for molecules. The model is loaded here and sent to the
            processes.
        settings: the keywords of `DatasetSettings`.

    Raises:
        ImportError: the extra `scale` is not installed.
        ValueError: the model, method or target is not suitable.
    """
    ray = _ray()
    batch = _batch(model, method, settings.target)
    frame = ExplainFrame(batch, settings.smiles_column, settings.row_column, settings.name_column)
    _start(ray, None)
    return dataset.map_batches(
        _Fetched(ray.put(frame)),
        batch_size=settings.batch_size,
        batch_format="pyarrow",
        compute=ray.data.TaskPoolStrategy(size=settings.workers),
    )


@accepts(RaySettings)
def explain_on_ray(
    model: "Model | str | Path",
    table: str | os.PathLike[str],
    out: str | os.PathLike[str],
    method: Method = DEFAULT_METHOD,
    *,
    settings: RaySettings,
    progress: bool | None = None,
) -> TableCounts:
    """Explain a table with Ray, and write shards and a manifest (see `shards`).

    By default one process for each core explains. A small table is cut into smaller shards, so that
    all processes have work. A resumed run explains only the rows that no finished shard holds.
    Finished shards stay, whatever happens. If Ray starts a cluster on this machine, the cluster
    ends with the run.

    Args:
        model, method: as for `explain`, for molecules.
        table, out: paths or addresses, see `pieces`.
        settings: the keywords of `RaySettings`.
        progress: as for `explain`.

    Raises:
        ImportError: the extra `scale` is not installed.
        FileExistsError: there are results, but `resume` is off.
        ValueError: the results come from a different run.
        OSError: a shard cannot be written.
    """
    ray = _ray()
    batch = _batch(model, method, settings.target)
    table, results = absolute(table), ShardFolder(absolute(out))
    named = settings.name_column
    structures = structures_of(table, settings.smiles_column)
    columns = [structures] if named is None else [structures, named]
    files = files_of(table, columns)
    rows = sum(piece.rows for piece in files)
    description = _description(batch, table, files, columns) | {"versions": versions()}
    nearness: Counter[str] = Counter()
    with ExitStack() as stack:
        if results.is_local:
            stack.enter_context(exclusive_lock(folder_at(results.path)))
        before = results.begin(description, settings.resume)
        advance = stack.enter_context(progress_bar("explaining", rows, show=progress))
        advance = resumed(advance, sum(shard.rows for shard in before))
        if _start(ray, settings.address):
            stack.callback(ray.shutdown)
        cores = int(ray.cluster_resources().get("CPU", 1))  # of all machines
        workers = settings.workers or max(1, cores)
        size = min(settings.shard_rows, CHUNK * math.ceil(max(rows, 1) / (4 * workers * CHUNK)))
        done = [shard.span for shard in before]
        left = [piece.part(span) for piece in files for span in spans_left(piece, done, size)]
        frame = ExplainFrame(batch, structures, "row", named)
        work = _WriteShards(frame, table, columns, results)
        for count, nearness_of_piece in _mapped(ray, work, left, workers):
            nearness.update(nearness_of_piece)
            advance(count)
        shards = results.shards()
        require_complete(shards, rows)
        outcome = {"rows": rows, "versions": versions() | {"ray": ray.__version__}}
        results.finish(description | outcome, shards)
    new = [shard for shard in shards if shard not in before]
    rejected, earlier = sum(shard.rejected for shard in new), sum(shard.rows for shard in before)
    return TableCounts(sum(shard.rows for shard in new) - rejected, rejected, earlier, nearness)


@dataclass(frozen=True)
class _Fetched:
    """Work that a process of Ray fetches once, from `ref`, and then runs in one thread."""

    ref: "ObjectRef[Callable[[Any], Any]]"

    def __call__(self, batch: Any) -> Any:
        return _fetched(self.ref)(batch)


@lru_cache(1)
def _fetched(ref: "ObjectRef[Callable[[Any], Any]]") -> Callable[[Any], Any]:
    torch.set_num_threads(1)
    return _ray().get(ref)


@dataclass(frozen=True)
class _WriteShards:
    """Read pieces of a table, explain them and write their shards."""

    frame: ExplainFrame
    table: str
    columns: Sequence[str]
    results: ShardFolder

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of each piece, how near they are to the training set, and its error."""
        results: list[tuple[int, str, str]] = []
        for text in batch["piece"]:
            try:
                results.append((*self._write(Piece.of(text)), ""))
            except OSError as error:  # as text, because Ray would wrap it and lose its cause
                results.append((0, "{}", str(error)))
        rows, nearness, errors = map(list, zip(*results, strict=True))
        return {"rows": rows, "nearness": nearness, "error": errors}

    def _write(self, piece: Piece) -> tuple[int, str]:
        values, *names = cells_of(piece, self.table, list(self.columns))
        numbers = range(piece.first, piece.first + piece.rows)
        rows = self.frame.explain(values, numbers, names[0] if names else None)
        self.results.write(piece.first, rows)
        return piece.rows, json.dumps(Counter(filter(None, rows["training_set"].to_pylist())))


def _mapped(
    ray: Any, work: _WriteShards, pieces: Sequence[Piece], workers: int
) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the rows and the nearness of each piece, as soon as it is finished."""
    if not pieces:
        return
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    items = [{"piece": piece.to_json()} for piece in pieces]
    mapped = ray.data.from_items(items, override_num_blocks=min(len(items), BLOCKS)).map_batches(
        _Fetched(ray.put(work)),
        batch_size=1,
        compute=ray.data.TaskPoolStrategy(size=min(workers, len(items))),
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
        import ray.data  # importing takes a second
    except ImportError as error:
        raise missing_extra("the engine 'ray' needs", "Ray", "scale") from error
    return ray


# How many seconds Ray waits for its own processes. A later version of Ray may have other names.
START_VARIABLES = ("RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s")


def _start(ray: Any, address: str | None) -> bool:
    """Join the cluster, or start Ray on this machine. Return False if Ray was running before."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports nothing home
    options = {} if address or "RAY_ADDRESS" in os.environ else {"include_dashboard": False}
    with sigterm_handler_kept():
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
        except Exception as error:  # Ray raises several types, and Exception itself
            if "timed out" not in str(error).lower() and START_VARIABLES[0] not in str(error):
                raise
            longer = " ".join(f"{name}=120" for name in START_VARIABLES)
            raise RuntimeError(
                f"Ray did not start in time: {error} On a busy machine, give it two minutes by"
                f" these environment variables: {longer}"
            ) from error
    return True


def _batch(model: "Model | str | Path", method: Method, target: Any) -> ExplainBatch:
    """Check and load the model and the method, because other machines lack the model's folder."""
    model = load(model) if isinstance(model, str | Path) else model
    batch = ExplainBatch(model, method, target)
    batch.check()
    return batch


def _description(
    batch: ExplainBatch, table: str, files: Sequence[Piece], columns: Sequence[str]
) -> dict[str, Any]:
    """Describe the run for the manifest by everything that must be the same to resume it."""
    assert not isinstance(batch.model, str | Path)
    origin = provenance(batch.model, get_explainer(batch.method, model=batch.model))
    listed = repr([(piece.path, piece.rows, piece.version) for piece in files])
    return {
        "table": table,
        "files": hashlib.sha256(listed.encode()).hexdigest(),
        "columns": list(columns),
        "model": origin["model"],
        "sha256": weights_hash(batch.model),
        "method": origin["method"],
        "options": origin["options"],  # which include seeds
        "target": None if batch.target is None else str(batch.target),
        "standardise": standardisation_of(batch.model),
        "isomers": isomers_meant(batch.model),
    }
