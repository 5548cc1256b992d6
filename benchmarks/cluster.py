"""Explain a table with Ray while actors and drivers are killed at random, and count the rows.

    python benchmarks/cluster.py --rows 20000 --out /somewhere

A small untrained model and small molecules, some of them unreadable. First the table is explained
by one process without Ray. Then with Ray: an actor is killed after some seconds, some seconds later
the driver, and it is started again with --resume, until a driver ends by itself. Every row must
be there once, and its relevance that of the run without Ray. The measured figures are in
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
import torch

from graphxai.datasets.features import ATOM_CARDINALITIES, BOND_CARDINALITIES
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import Graphormer, GraphormerConfig, Task
from graphxai.models.graphormer.checkpoint import load_checkpoint, save_checkpoint
from graphxai.tables.run import explain_table

HOSTILE = ("", "not a molecule", "C1CC", "C" * 30_000, "[H][H", "c1cccc1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=2, help="drivers to kill, each after an actor")
    parser.add_argument(
        "--wait", type=float, nargs=2, default=(10, 25), help="seconds until a kill"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    smiles = molecules(chance, given.rows)
    frame = pd.DataFrame({"smiles": smiles})
    frame.to_parquet(given.out / "molecules.parquet", row_group_size=3000)
    frame.to_csv(given.out / "molecules.csv", index=False)
    save_checkpoint(small_model(), given.out / "model")

    started = time.process_time()
    model = load_checkpoint(given.out / "model")
    explain_table(model, given.out / "molecules.csv", given.out / "local", get_explainer("lrp"))
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


def molecules(chance: random.Random, rows: int) -> list[str]:
    """SMILES of a few atoms, one in 200 of them hostile."""
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
    """Run a driver; kill an actor, then the driver. Whether the driver ended before."""
    driver = subprocess.Popen(command(out))
    workers = wait_for_actors(driver)
    time.sleep(chance.uniform(*wait))
    if driver.poll() is None and (alive := [worker for worker in workers if worker.is_running()]):
        chosen = chance.choice(alive)
        chosen.send_signal(signal.SIGKILL)
        print(f"killed actor {chosen.pid}")
        time.sleep(chance.uniform(*wait))
    if driver.poll() is None:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        print(f"killed driver {driver.pid}")
        psutil.wait_procs([worker for worker in workers if worker.is_running()], timeout=60)
        return False
    return True


def wait_for_actors(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that explain, once there are shards: they are at work then."""
    while driver.poll() is None:
        children = psutil.Process(driver.pid).children(recursive=True)
        if found := [child for child in children if "MapWorker" in "".join(child.cmdline())]:
            return found
        time.sleep(0.5)
    return []


def shards_in(out: Path) -> pd.DataFrame:
    shards = sorted((out / "results" / "shards").glob("*.parquet"))
    return pd.concat(map(pd.read_parquet, shards)) if shards else pd.DataFrame({"row": []})


def compare(out: Path, rows: int) -> None:
    found = shards_in(out).set_index("row")
    assert found.index.tolist() == list(range(1, rows + 1)), "not every row once, in order"
    explained = pd.read_csv(out / "local" / "explanations.csv").set_index("row")
    rejected = pd.read_csv(out / "local" / "rejected.csv").set_index("row")
    assert found.index[found["reason"].isna()].equals(explained.index)
    assert found["reason"].dropna().to_dict() == rejected["reason"].to_dict()
    largest = 0.0
    for row, text in explained["relevance"].items():
        expected = np.array(str(text).split(), dtype=np.float64)
        largest = max(largest, float(abs(found["relevance"][row] - expected).max()))
    assert largest <= 1e-6, largest
    manifest = json.loads((out / "results" / "manifest.json").read_text())
    size = sum(file.stat().st_size for file in (out / "results" / "shards").iterdir())
    print(f"rows {rows}, each once; explained {manifest['explained']}, left out {len(rejected)}")
    print(f"largest difference of relevance: {largest:.1e}")
    print(f"shards {len(manifest['shards'])}, {size / rows:.0f} bytes a row")


if __name__ == "__main__":
    main()
