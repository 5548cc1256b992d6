"""Record what the library puts out on real input, as a net under a change of its layout.

    python tests/recorded_outputs.py record FOLDER [--only PATTERN]
    python tests/recorded_outputs.py compare BEFORE AFTER

Run it from the root of a checkout, before and after. It uses public names and the command line
alone, so that it runs whatever the layout. Numbers are recorded to the last bit. Times, dates and
paths of the machine are left out.
"""

import argparse
import csv
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path.cwd()  # of the checkout that is recorded, which may have another layout than this file
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONPATH": str(ROOT), "NO_COLOR": "1",
    "GRAPHXAI_DATA": str(ROOT / "no-data"),
}  # fmt: skip
ROWS = 40  # of the example tables
VERUBECESTAT = "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F"
ANILIDE = "O=C(Nc1ccc(F)cc1)c1ccccn1"
SMILES = ["CCO", "CC(=O)Oc1ccccc1C(=O)O", "C[N+](C)(C)CC(=O)[O-]", ANILIDE, VERUBECESTAT]
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00|Z)?"), "DATE"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|seconds|min|minutes)\b"), "TIME"),
    (re.compile(r"\b\d+:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b[mp][0-9a-f]{10}\b"), "ID"),  # of shapes that matplotlib draws
    (re.compile(r'"(seconds|time|duration|ms)": ?[\d.e-]+'), "TIME"),
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
TIMED_COLUMNS = ("ms", "seconds")
CHANGES = ["changes", "assay.csv", "--model", "mdr1-efflux", "--measured-column", "efflux"]

COMMANDS: dict[str, list[list[str]]] = {
    "models": [["models"]],
    "methods": [["methods"]],
    "examples": [["examples", "out"]],
    "explain-molecule": [
        ["explain", VERUBECESTAT, "--out", "one.svg"],
        ["explain", VERUBECESTAT, "--method", "lrp", "--method", "gae", "--out", "two.png"],
        ["explain", "CCO", "--model", "solubility", "--out", "page.html"],
        ["explain", "not a molecule"],
    ],
    "explain-table": [
        ["explain", "molecules.csv", "--out", "svg"],
        ["explain", "molecules.csv", "--out", "files", "--pictures", "none",
         "--format", "csv,parquet,sdf"],
        ["explain", "molecules.csv", "--model", "lipophilicity", "--method", "lrp,occlusion",
         "--out", "methods", "--pictures", "none", "--workers", "2"],
    ],
    "explain-digit": [["examples", "given"], ["explain", "given/digit.png", "--model",
                      "mnist-superpixels", "--out", "digit.svg"]],
    "predict": [
        ["predict", VERUBECESTAT],
        ["predict", "molecules.csv", "--out", "bace.csv"],
        ["predict", "molecules.csv", "--level", "0.8", "--out", "narrow.csv", "--workers", "2"],
        ["predict", "molecules.csv", "--model", "tox21", "--out", "tox21.csv"],
        ["predict", ANILIDE, "--model", "bace", "--model", "solubility",
         "--goal", "pIC50 > 7, solubility > -4"],
        ["predict", "molecules.csv", "--model", "bace", "--model", "solubility", "--out",
         "panel.csv"],
    ],
    "report": [
        ["report", "assay.csv", "--model", "mdr1-efflux", "--measured", "MDR1 efflux=efflux",
         "--out", "report.html", "--detailed", "3"],
        ["report", "assay.csv", "--out", "towards.html", "--detailed", "2", "--counterfactuals",
         "2", "--towards", "active"],
        ["report", "assay.csv", "--model", "bace", "--model", "solubility", "--goal",
         "pIC50 > 7, solubility > -4", "--out", "panel.html", "--detailed", "2"],
    ],
    "fragments": [
        ["fragments", VERUBECESTAT],
        ["fragments", "molecules.csv", "--scheme", "brics", "--out", "brics.csv"],
        ["fragments", "molecules.csv", "--smarts", "amide:C(=O)N", "--out", "smarts.csv"],
        ["fragments", "molecules.csv", "--method", "shapley", "--out", "shapley.csv"],
    ],
    "counterfactuals": [
        ["counterfactuals", ANILIDE, "--towards", ">6", "--keep", "C(=O)N"],
        *[["counterfactuals", ANILIDE, "--towards", "active", "-n", "3", "--out", f"one.{kind}"]
          for kind in ("csv", "html", "sdf")],
        ["counterfactuals", "few.csv", "--towards", "inactive", "-n", "2", "--out", "table.csv"],
        ["counterfactuals", "assay.csv", "--model", "mdr1-efflux", "--towards", "<-1",
         "--measured-column", "efflux", "-n", "1", "--out", "measured.csv"],
    ],
    "counterfactuals-of-several": [
        ["counterfactuals", "CCOc1ccccc1", "--towards", "pIC50 5 to 6, inactive", "--out",
         f"several.{kind}"] for kind in ("csv", "html", "sdf")
    ],
    "changes": [
        [*CHANGES, "--out", "changes.csv"],
        [*CHANGES, "--pairs", "--out", "pairs.csv"],
        [*CHANGES, "--core", "NC(=O)c1ccccc1", "--out", "rgroups.csv"],
    ],
    "train": [
        ["train", "assay.csv", "--target-column", "efflux", "--out", "trained", "--no-teacher",
         "--epochs", "1", "--split", "random"],
        ["predict", "molecules.csv", "--model", "trained", "--out", "predicted.csv"],
        ["benchmark", "trained", "assay.csv", "--limit", "3", "--methods", "lrp,gae", "--metrics",
         "auac,srg", "--out", "measured"],
    ],
    "benchmark": [
        ["benchmark", "rules", "assay.csv", "--limit", "2", "--out", "refused", "--rule", "none"],
    ],
}  # fmt: skip


def recorded_command(name: str, folder: Path) -> None:
    """Run the commands of a name one after the other, and keep their words and files."""
    _write_tables(folder)
    for number, arguments in enumerate(COMMANDS[name]):
        run = subprocess.run(
            [sys.executable, "-m", "graphxai", *arguments],
            cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        words = f"{arguments}\nexit {run.returncode}\n{run.stdout}\n--- errors\n{run.stderr}"
        (folder / f"words-{number}.txt").write_text(words, encoding="utf-8")


def _write_tables(folder: Path) -> None:
    """Write the first rows of the example tables into a folder."""
    for table, name, rows in (
        ("assay", "assay", ROWS), ("molecules", "molecules", 12), ("molecules", "few", 3)
    ):  # fmt: skip
        lines = (ROOT / "datasets" / "examples" / f"{table}.csv").read_text().splitlines()
        (folder / f"{name}.csv").write_text("\n".join(lines[: rows + 1]) + "\n")


def bundled(name: str) -> Callable[[Path], None]:
    """Return the record of a bundled model."""

    def record(folder: Path) -> None:
        import graphxai as gx

        _explained(gx.load(name), SMILES, folder)

    return record


def digits(folder: Path) -> None:
    """Record the model of digits on a picture of the examples."""
    import graphxai as gx

    picture = sorted((ROOT / "datasets" / "sample_digits").glob("*.png"))[:2]
    _explained(gx.load("mnist-superpixels"), list(map(str, picture)), folder)


def wrapped(folder: Path) -> None:
    """Record a wrapped network with float features and attention."""
    from torch import nn
    from torch_geometric.nn import GINConv, GPSConv, global_mean_pool

    from small_graphs import graph, started, wrapped

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 8)
            messages = GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
            self.layer = GPSConv(8, messages, heads=2, norm="LayerNorm")
            self.last = nn.Linear(8, 1)

        def forward(self, x: Any, edge_index: Any, batch: Any) -> Any:
            x = self.layer(self.first(x), edge_index, batch)
            return self.last(global_mean_pool(x, batch))

    _explained(wrapped(started(Network())), [graph(5), graph(8)], folder)


def wrapped_codes(folder: Path) -> None:
    """Record a wrapped network whose nodes are codes of an embedding."""
    import torch
    from torch import nn
    from torch_geometric.nn import GCNConv, global_add_pool

    from small_graphs import graph, started, wrapped

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes, self.layer = nn.Embedding(5, 8), GCNConv(8, 8)
            self.last = nn.Linear(8, 1)

        def forward(self, x: Any, edge_index: Any, batch: Any) -> Any:
            x = self.layer(self.codes(x), edge_index).relu()
            return self.last(global_add_pool(x, batch))

    graphs = [graph(5), graph(8)]
    for each in graphs:
        each.x = torch.arange(len(each.x)) % 5
    _explained(wrapped(started(Network())), graphs, folder)


def chemprop(folder: Path) -> None:
    """Record a network of chemprop."""
    import graphxai as gx

    _explained(gx.load(ROOT / "tests" / "data" / "chemprop" / "2.1.2.pt"), SMILES[:4], folder)


def evaluated(folder: Path) -> None:
    """Record a report of several methods."""
    import graphxai as gx

    report = gx.evaluate(
        "bace", SMILES, ["lrp", "gae", "occlusion"], target="active", metrics="all", steps=5,
        progress=False,
    )  # fmt: skip
    report.save(folder / "report")
    rows = report.rows.drop(columns="note").to_dict("records")
    (folder / "rows.json").write_text(_json(rows), encoding="utf-8")


def _explained(model: Any, inputs: list[Any], folder: Path) -> None:
    """Record predictions, and what every method says of the inputs, or why it refuses."""
    import graphxai as gx
    from graphxai.explainers import REGISTRY

    said: dict[str, Any] = {"model": repr(model), "predictions": []}
    for prediction in gx.predict(model, inputs):
        values = prediction if isinstance(prediction, dict) else {"": prediction}
        said["predictions"].append({name: value.to_dict() for name, value in values.items()})
    for method in REGISTRY:
        try:
            explanations = gx.explain(model, inputs, method, progress=False)
            said[method] = [e.to_dict() for e in explanations]
        except Exception as error:
            said[method] = f"{type(error).__name__}: {error}"
    (folder / "explained.json").write_text(_json(said), encoding="utf-8")


def _json(value: Any) -> str:
    """Return JSON whose numbers are exact."""

    def exact(other: Any) -> Any:
        return other.tolist() if hasattr(other, "tolist") else repr(other)

    return json.dumps(value, indent=1, sort_keys=True, default=exact) + "\n"


PARTS: dict[str, Callable[[Path], None]] = {
    "python-bace": bundled("bace"),
    "python-solubility": bundled("solubility"),
    "python-digits": digits,
    "python-wrapped": wrapped,
    "python-codes": wrapped_codes,
    "python-chemprop": chemprop,
    "python-evaluate": evaluated,
} | {name: lambda folder, name=name: recorded_command(name, folder) for name in COMMANDS}


def record(folder: Path, pattern: str) -> None:
    """Record all parts whose names fit the pattern, each in a folder of its own."""
    for name, part in PARTS.items():
        if fnmatch.fnmatch(name, pattern):
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir(parents=True)
            part(folder / name)
            print("recorded:", name, flush=True)


def compare(before: Path, after: Path) -> int:
    """Print what differs between two records, and return how many files do."""
    names = {p.relative_to(top) for top in (before, after) for p in top.rglob("*") if p.is_file()}
    differing = 0
    for name in sorted(names):
        first, second = before / name, after / name
        if not (first.exists() and second.exists()):
            print(f"{name}: only {'before' if first.exists() else 'after'}")
            differing += 1
            continue
        one, other = _content(first), _content(second)
        if one != other:
            print(f"{name}: {_difference(one, other)}")
            differing += 1
    print(f"{differing} of {len(names)} files differ")
    return differing


def _content(path: Path) -> list[str]:
    """Return the lines of a file without what changes from run to run."""
    raw = path.read_bytes()
    if path.suffix == ".csv":
        rows = list(csv.reader(raw.decode("utf-8").splitlines()))
        kept = [k for k, name in enumerate(rows[0]) if name not in TIMED_COLUMNS] if rows else []
        return [repr([row[k] for k in kept if k < len(row)]) for row in rows]
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return [f"{info.filename} {info.CRC}" for info in archive.infolist()]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return [raw.hex()]
    text = re.sub(rf"{re.escape(str(path.parents[1]))}\S*?(?=/|\s|$)", "FOLDER", text)
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return text.splitlines()


def _difference(before: list[str], after: list[str]) -> str:
    """Return the first line that differs, and by how much the numbers of the file do."""
    for number, (one, other) in enumerate(zip(before, after, strict=False), 1):
        if one != other:
            place = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            shown = slice(max(0, place - 40), max(0, place - 40) + 120)
            text = f"line {number}: {one[shown]!r} -> {other[shown]!r}"
            numbers = [[float(n) for line in lines for n in NUMBER.findall(line)]
                       for lines in (before, after)]  # fmt: skip
            if len(numbers[0]) != len(numbers[1]):
                return text
            largest = max((abs(a - b) for a, b in zip(*numbers, strict=True)), default=0.0)
            return f"{text}; numbers differ by {largest:.2g} at most"
    return f"{len(before)} lines -> {len(after)}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = parser.add_subparsers(dest="what", required=True)
    recording = kinds.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", default="*", help="names of parts, with *")
    comparing = kinds.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "record":
        record(arguments.folder.resolve(), arguments.only)
    else:
        sys.exit(compare(arguments.before, arguments.after) > 0)


if __name__ == "__main__":
    main()
