"""Explain a table with Ray while processes and drivers are killed at random, and count the rows.

    python benchmarks/cluster.py --rows 20000 --out /somewhere
    python benchmarks/cluster.py --costs --out /somewhere

The model is small and untrained, and some of the small molecules cannot be read. First, one process
explains the table without Ray. Then Ray explains it. After some seconds a process is killed, and
some seconds later the driver, which is started again with --resume until one driver finishes. Every
row must be there once, with the relevance of the run without Ray. With `--costs`, the script prints
the processor time of the bundled model for a molecule, and the size of a row. The figures are in
`cluster.md`.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import torch

from graphxai import load
from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, BOND_CARDINALITIES
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    load_checkpoint,
    locate,
    save_checkpoint,
)
from graphxai.tables.batches import ExplainBatch
from graphxai.tables.rows import ExplainFrame
from graphxai.tables.run import explain_table
from graphxai.tables.run_folder import ShardFolder

HOSTILE = ("", "not a molecule", "C1CC", "C" * 30_000, "[H][H", "c1cccc1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument(
        "--kills", type=int, default=2, help="drivers to kill, each after a process"
    )
    parser.add_argument(
        "--wait", type=float, nargs=2, default=(10, 25), help="seconds until a kill"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.costs:
        costs(given.out)
        return
    smiles = molecules(chance, given.rows)
    frame = pd.DataFrame({"smiles": smiles})
    frame.to_parquet(given.out / "molecules.parquet", row_group_size=3000)
    frame.to_csv(given.out / "molecules.csv", index=False)
    save_checkpoint(small_model(), given.out / "model")

    started = time.process_time()
    model = load_checkpoint(given.out / "model")
    table, local = given.out / "molecules.csv", given.out / "local"
    explain_table(model, table, local, get_explainer("lrp"), resume=True)
    print(f"one process without Ray: {time.process_time() - started:.0f} s of processor time")
    for _ in range(given.kills):
        survived = run(given.out, chance, given.wait)
        print(f"killed; finished rows so far: {shards_in(given.out)['row'].nunique()}")
        if survived:
            break
    started = time.monotonic()
    subprocess.run(command(given.out), check=True)
    print(f"the last driver: {time.monotonic() - started:.0f} s")
    compare(given.out, given.rows)


def costs(out: Path, repeats: int = 7) -> None:
    """Print how much processor time and space a million molecules like those of BACE take."""
    torch.set_num_threads(1)
    smiles = pd.read_csv(locate("bace") / "training.csv")["smiles"].tolist()
    table = pa.table({"row": range(1, len(smiles) + 1), "smiles": smiles})
    for method in ("lrp", "gradient_input", "occlusion"):
        explain = ExplainFrame(ExplainBatch(load("bace"), method), row_column="row")
        part = table.slice(0, 128 if method == "occlusion" else len(smiles))
        times = []
        for _ in range(repeats):
            started = time.process_time()
            rows = explain(part)
            times.append((time.process_time() - started) / len(part))
        print(f"{method}: {1e3 * min(times):.2f} ms of processor time a molecule, min of {repeats}")
        if method == "lrp":
            (out / "shards").mkdir(exist_ok=True)
            ShardFolder(str(out)).write(1, rows)
            size = (out / "shards" / "000000000001.parquet").stat().st_size
            atoms = sum(map(len, rows["relevance"].to_pylist())) / len(rows)
            print(f"{size / len(rows):.0f} bytes a row, {atoms:.1f} atoms a molecule")


def molecules(chance: random.Random, rows: int) -> list[str]:
    """Return SMILES of a few atoms. One in 200 of them is hostile."""
    parts = ("C", "O", "N", "CC", "C(=O)", "C(F)", "C(Cl)", "c1ccccc1")
    return [
        chance.choice(HOSTILE)
        if chance.random() < 0.005
        else "C" + "".join(chance.choices(parts, k=chance.randint(1, 4)))
        for _ in range(rows)
    ]


def small_model() -> Graphormer:
    torch.manual_seed(0)
    tasks = (Task("active", "binary", ("no", "yes")),)
    config = GraphormerConfig(
        tasks,
        num_layers=1,
        hidden_dim=16,
        ffn_dim=32,
        num_heads=2,
        node_cardinalities=ATOM_CARDINALITIES,
        edge_cardinalities=BOND_CARDINALITIES,
    )
    return Graphormer(config).eval()


def command(out: Path) -> list[str]:
    table, results = out / "molecules.parquet", out / "results"
    options = ["--engine", "ray", "--resume", "--shard-rows", "512", "--out", str(results)]
    program = [sys.executable, "-m", "graphxai", "explain", str(table)]
    return [*program, "--model", str(out / "model"), *options]


def run(out: Path, chance: random.Random, wait: tuple[float, float]) -> bool:
    """Run a driver and kill first a process, then the driver, unless it has ended by then.

    Return whether the driver ended on its own.
    """
    driver = subprocess.Popen(command(out))
    wait_for_a_shard(driver, out)
    time.sleep(chance.uniform(*wait))
    if workers := explaining(driver):
        chosen = chance.choice(workers)
        chosen.send_signal(signal.SIGKILL)
        print(f"killed process {chosen.pid}")
        time.sleep(chance.uniform(*wait))
    if driver.poll() is None:
        children = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        print(f"killed driver {driver.pid}")
        psutil.wait_procs(children, timeout=60)
        return False
    return True


def wait_for_a_shard(driver: subprocess.Popen[bytes], out: Path) -> None:
    """Wait until there is a new shard, or the driver has ended."""
    before = len(shard_files(out))
    while driver.poll() is None and len(shard_files(out)) == before:
        time.sleep(0.2)


def explaining(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the processes that explain. Between two tasks there may be none for a moment."""
    while driver.poll() is None:
        children = psutil.Process(driver.pid).children(recursive=True)
        if busy := [child for child in children if "ray::MapBatches" in title_of(child)]:
            return busy
        time.sleep(0.05)
    return []


def title_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def shard_files(out: Path) -> list[Path]:
    return sorted((out / "results" / "shards").glob("*.parquet"))


def shards_in(out: Path) -> pd.DataFrame:
    return pd.concat(map(pd.read_parquet, shard_files(out)))


def compare(out: Path, rows: int) -> None:
    rows_found = shards_in(out).set_index("row")
    assert rows_found.index.tolist() == list(range(1, rows + 1)), "not every row once, in order"
    explained = pd.read_csv(out / "local" / "explanations.csv").set_index("row")
    rejected = pd.read_csv(out / "local" / "rejected.csv").set_index("row")
    assert rows_found.index[rows_found["reason"].isna()].equals(explained.index)
    assert rows_found["reason"].dropna().to_dict() == rejected["reason"].to_dict()
    largest = 0.0
    for row, text in explained["relevance"].items():
        expected = np.array(str(text).split(), dtype=np.float64)
        largest = max(largest, float(abs(rows_found["relevance"][row] - expected).max()))
    assert largest <= 1e-6, largest
    manifest = json.loads((out / "results" / "manifest.json").read_text())
    size = sum(file.stat().st_size for file in shard_files(out))
    print(f"rows {rows}, each once; explained {manifest['explained']}, left out {len(rejected)}")
    print(f"largest difference of relevance: {largest:.1e}")
    print(f"shards {len(manifest['shards'])}, {size / rows:.0f} bytes a row")


if __name__ == "__main__":
    main()
