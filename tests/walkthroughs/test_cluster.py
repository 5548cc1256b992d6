"""A table on Ray has every row once and a local run's numbers, whatever is killed.

Ray takes some ten seconds to start here, so there is one Ray for the file. `benchmarks/cluster.py`
kills processes and drivers over 20,000 rows.
"""

import contextlib
import json
import os
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

import graphxai as gx
from graphxai.cli import main as cli
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import load_checkpoint, save_checkpoint
from graphxai.tables.cluster import explain_on_ray
from graphxai.tables.files import above_noise
from graphxai.tables.run import explain_table
from graphxai.tables.run_folder import ShardFolder
from pages import run_blocks_for
from toy import random_graphormer

if find_spec("ray") is None:  # its import takes long, and only the tests of this file need it
    pytest.skip("the extra `scale` is not installed", allow_module_level=True)
CORES = 2


@pytest.fixture(scope="module")
def folder_of_ray(tmp_path_factory):
    """Yield the folder in which Ray's processes run, and stop Ray at the end.

    Ray starts neither the process that collects logs nor the one that would start more machines.
    """
    import ray

    with pytest.MonkeyPatch.context() as without:
        for process in ("start_log_monitor", "start_monitor"):
            without.setattr(f"ray._private.node.Node.{process}", lambda self: None, raising=False)
        yield tmp_path_factory.mktemp("ray")
        ray.shutdown()


@pytest.fixture
def running(folder_of_ray) -> Path:
    """Start Ray with two cores, and return the folder in which it runs."""
    import ray

    if not ray.is_initialized():
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        with contextlib.chdir(folder_of_ray):
            ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    return folder_of_ray


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Make a model, a table in two formats, and the results of a run without Ray."""
    folder = tmp_path_factory.mktemp("cluster")
    # rows of width 8 have other last bits in batches of another size
    save_checkpoint(random_graphormer(num_layers=1, hidden_dim=16, ffn_dim=16), folder / "model")
    smiles = ["C1CC" if k % 50 == 7 else "C" * (k % 9 + 1) + "O" * (k % 2) for k in range(600)]
    table = pd.DataFrame({"smiles": smiles, "ID": [f"c{k}" for k in range(600)]})
    table.to_csv(folder / "t.csv", index=False)
    table.to_parquet(folder / "t.parquet", row_group_size=100)
    model = load_checkpoint(folder / "model")
    explain_table(model, folder / "t.csv", folder / "local", get_explainer("lrp"))
    return folder


def rows_of(results: Path) -> pd.DataFrame:
    return pd.read_parquet(results / "shards").sort_values("row").set_index("row")


def assert_same_as_local(results: Path, folder: Path, rows: int = 600) -> None:
    frame = rows_of(results)
    assert frame.index.tolist() == list(range(1, rows + 1))
    expected = pd.read_csv(folder / "local" / "explanations.csv").set_index("row")
    rejected = pd.read_csv(folder / "local" / "rejected.csv").set_index("row")
    assert frame["reason"].dropna().to_dict() == rejected["reason"].to_dict()
    for row, text in expected["relevance"].items():
        values = np.array(str(text).split(), dtype=float)
        np.testing.assert_allclose(frame["relevance"][row], values, rtol=0, atol=1e-6)
    # no molecule of the table has another parent, and pandas reads empty cells as numbers
    assert expected[["parent", "note"]].isna().all(axis=None)
    assert (frame.loc[expected.index, ["parent", "note"]] == "").all(axis=None)
    numbers = expected.drop(columns=["picture", "parent", "note"]).select_dtypes("number").columns
    np.testing.assert_allclose(frame.loc[expected.index, numbers], expected[numbers], atol=1e-6)


def kill_a_process(shards: Path) -> bool:
    """Wait for the first shard; kill one of the processes that explain."""
    for _ in range(1200):
        if list(shards.glob("*.parquet")):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "ray::MapBatches" in " ".join(process.cmdline()):
                        process.send_signal(signal.SIGKILL)
                        return True
        time.sleep(0.1)
    return False


@pytest.mark.filterwarnings("ignore")
def test_the_page_for_platform_engineers_explains_its_table(running, monkeypatch):
    """It runs before anything is killed, because Ray reports that late, amid the page's output."""
    import ray

    stopped = []
    monkeypatch.setattr(ray, "shutdown", lambda: stopped.append(True))  # the next tests go on
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1})  # enough for nine rows
    run_blocks_for("ray", running, monkeypatch)
    assert stopped == [True]


def test_a_killed_process_loses_nothing_and_a_run_is_resumed(running, place, tmp_path):
    out, table = tmp_path / "out", place / "t.parquet"
    options = {"workers": CORES, "shard_rows": 128, "name_column": "ID"}
    with ThreadPoolExecutor() as pool:
        killed = pool.submit(kill_a_process, out / "shards")
        counts = explain_on_ray(place / "model", table, out, **options)
        assert killed.result()
    assert (counts.done, counts.rejected, counts.earlier) == (588, 12, 0)
    assert_same_as_local(out, place)
    assert rows_of(out)["name"][8] == "c7"
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["rows"] == 600
    assert manifest["sha256"] == load_checkpoint(place / "model").origin.sha256
    assert sum(shard["rows"] for shard in manifest["shards"]) == 600

    with pytest.raises(FileExistsError, match="continue with --resume"):
        explain_on_ray(place / "model", table, out, **options)
    for changed in ({"method": "gradient_input"}, {"target": "active"}):
        with pytest.raises(ValueError, match=f"holds a run with {next(iter(changed))} = "):
            explain_on_ray(place / "model", table, out, **options, **changed, resume=True)
    with pytest.raises(ValueError, match="holds a run with model = "):
        explain_on_ray("bace", table, out, **options, resume=True)

    first, second, *others = sorted((out / "shards").glob("*.parquet"))
    untouched = {path: path.stat().st_mtime_ns for path in others}
    first.unlink()
    second.write_bytes(second.read_bytes()[:1000])  # cut off
    options["shard_rows"] = 100  # other cuts: the rows decide, not the files
    counts = explain_on_ray(place / "model", table, out, **options | {"workers": 1}, resume=True)
    assert counts.earlier == 600 - 256
    assert_same_as_local(out, place)
    assert {path: path.stat().st_mtime_ns for path in others} == untouched


def test_a_table_of_fewer_shards_than_workers_gives_no_advice_of_ray(running, place, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        counts = explain_on_ray(place / "model", place / "t.csv", tmp_path / "out", workers=2)
    assert (counts.done, counts.rejected) == (588, 12)


def test_a_dataset_is_explained_while_it_is_read(running, place):
    import ray.data

    dataset = ray.data.read_csv(str(place / "t.csv"))
    explained = gx.explain_dataset(dataset, place / "model", name_column="ID")
    frame = explained.to_pandas().set_index("name")
    assert len(frame) == 600
    assert frame["reason"].notna().sum() == 12
    expected = gx.explain(load_checkpoint(place / "model"), "CCCCO").relevance
    digits = [*map(float, above_noise(expected.tolist()))]
    np.testing.assert_allclose(frame["relevance"]["c3"], digits, atol=1e-6)


def test_a_shard_that_cannot_be_written_is_one_error_and_the_others_stay(running, place, tmp_path):
    (tmp_path / "out" / "shards" / "000000000513.parquet").mkdir(parents=True)
    with pytest.raises(OSError, match=r"000000000513\.parquet is a folder"):
        explain_on_ray(
            place / "model", place / "t.csv", tmp_path / "out", workers=1, shard_rows=128
        )
    (tmp_path / "out" / "shards" / "000000000513.parquet").rmdir()
    shards = ShardFolder(str(tmp_path / "out")).shards()
    assert shards
    assert all(shard.rows == 128 for shard in shards)


def test_the_command_line_names_what_is_missing(tmp_path, monkeypatch, capsys):
    for words, said in [
        (["t.parquet", "--engine", "ray", "--format", "sdf"], "--format is for a table"),
        (["s3://bucket/t.parquet"], "needs --engine ray"),
        (["CCO", "--ray-address", "auto"], "--ray-address is for --engine ray"),
        ([str(tmp_path / "t.parquet"), "--engine", "ray"], "no such file or folder"),
    ]:
        monkeypatch.setattr("sys.argv", ["graphxai", "explain", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code
        error = " ".join(capsys.readouterr().err.split())
        assert said in error
        assert error.count("error:") == 1
