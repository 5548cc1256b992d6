"""What a run on Ray does of its own: how it cuts a table, what it writes, and how Ray starts.

A stand-in for Ray calls the work here. `walkthroughs/test_cluster.py` runs on Ray itself.
"""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from graphxai.tables import cluster
from toy import random_graphormer

CHUNK = 16  # rows, instead of some hundred
ROWS = 10 * CHUNK
CORES = 2


class Inline:
    """A Ray with some cores, whose tasks run in this process when their results are read."""

    __version__ = "0"

    def __init__(self, running=False, fault=None):
        self.running, self.fault = running, fault
        self.pieces, self.started_with, self.stopped = [], None, False
        self.data = SimpleNamespace(
            from_items=self.from_items,
            TaskPoolStrategy=SimpleNamespace,
            DataContext=SimpleNamespace(
                get_current=lambda: SimpleNamespace(enable_progress_bars=True)
            ),
        )

    def is_initialized(self):
        return self.running

    def init(self, **options):
        if self.fault is not None:
            raise self.fault
        self.started_with = options

    def shutdown(self):
        self.stopped = True

    def cluster_resources(self):
        return {"CPU": float(CORES)}

    def put(self, work):
        return lambda: work

    def get(self, ref):
        return ref()

    def from_items(self, items, override_num_blocks):
        self.pieces = [json.loads(item["piece"]) for item in items]
        self.items = items
        return self

    def map_batches(self, function, batch_size, compute):
        self.function = function
        return self

    def iter_rows(self):
        for item in self.items:
            answer = self.function({"piece": [item["piece"]]})
            yield {name: values[0] for name, values in answer.items()}


@pytest.fixture
def ray(monkeypatch):
    ray = Inline()
    monkeypatch.setattr(cluster, "_ray", lambda: ray)
    monkeypatch.setattr(cluster, "CHUNK", CHUNK)
    cluster._fetched.cache_clear()
    yield ray
    cluster._fetched.cache_clear()


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1, hidden_dim=8, ffn_dim=8)


def explained(model, folder, **options):
    """Explain a table in which every tenth structure cannot be read."""
    smiles = ["C1CC" if row % 10 == 0 else "CO" for row in range(1, ROWS + 1)]
    pd.DataFrame({"smiles": smiles}).to_parquet(folder / "table.parquet")
    return cluster.explain_on_ray(
        model, folder / "table.parquet", folder / "out", progress=False, **options
    )


def test_every_row_of_a_table_is_written_once_under_its_number_and_counted(model, tmp_path, ray):
    counts = explained(model, tmp_path)
    rows = pd.read_parquet(tmp_path / "out" / "shards").sort_values("row")
    assert rows["row"].tolist() == list(range(1, ROWS + 1))
    refused = rows.loc[rows["reason"].notna(), "row"].tolist()
    assert refused == list(range(10, ROWS + 1, 10))
    assert (counts.done, counts.rejected) == (ROWS - len(refused), len(refused))


def test_a_small_table_is_cut_so_that_each_worker_has_four_shards_of_whole_chunks(
    model, tmp_path, ray
):
    """As a worker that ends early then finds more, and a chunk is what a pass batches."""
    explained(model, tmp_path, workers=1)
    sizes = [piece["rows"] for piece in ray.pieces]
    # a quarter of the table, in whole chunks: ten chunks make shards of three, three, three and one
    assert sizes == [3 * CHUNK, 3 * CHUNK, 3 * CHUNK, CHUNK]


def test_a_ray_that_runs_already_is_joined_and_left_running(model, tmp_path, ray):
    ray.running = True
    explained(model, tmp_path)
    assert ray.started_with is None
    assert not ray.stopped


def test_a_ray_that_was_started_for_the_run_ends_with_it(model, tmp_path, ray):
    explained(model, tmp_path)
    assert ray.started_with is not None
    assert ray.stopped


@pytest.mark.parametrize("named", ["timed out", cluster.START_VARIABLES[0]])
def test_a_start_that_takes_too_long_is_told_from_other_faults(named):
    """Ray says that it timed out, or names the variable of how long it waits for its processes."""
    with pytest.raises(RuntimeError, match="did not start in time"):
        cluster._start(Inline(fault=Exception(f"Ray gave up: {named}")), None)
    with pytest.raises(ConnectionError, match="no such cluster"):
        cluster._start(Inline(fault=ConnectionError("no such cluster")), "ray://nowhere")
