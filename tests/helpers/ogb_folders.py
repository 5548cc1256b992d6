"""Write folders in the layout of OGB's data sets of molecules, with real molecules of BACE."""

import csv
import gzip
import lzma
from collections.abc import Sequence
from pathlib import Path

BACE = Path(__file__).resolve().parents[1] / "data" / "bace" / "bace.csv.xz"
PARTS = ("train", "valid", "test")


def bace_rows(count: int) -> list[dict[str, str]]:
    """Return rows of BACE, spread over the file, which is sorted by potency."""
    with lzma.open(BACE, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    return rows[:: len(rows) // count][:count]


def write_ogb_folder(
    folder: Path,
    smiles: Sequence[str],
    labels: Sequence[Sequence[object]],
    tasks: Sequence[str],
    split: Sequence[Sequence[int]],
) -> Path:
    """Write the CSV files of a data set as OGB distributes them, and return the folder."""
    header = [*tasks, "smiles", "mol_id"]
    rows = zip(smiles, labels, strict=True)
    molecules = [header, *([*row, text, f"mol_{k}"] for k, (text, row) in enumerate(rows))]
    files: dict[str, Sequence[Sequence[object]]] = {
        "mapping/mol": molecules,
        "raw/graph-label": labels,
    }
    for part, positions in zip(PARTS, split, strict=True):
        files[f"split/scaffold/{part}"] = [[k] for k in positions]
    for name, content in files.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(content)
    (folder / "RELEASE_v1.txt").touch()
    return folder


def write_molbace(root: Path, count: int = 100) -> Path:
    """Write `root/ogbg_molbace`: for each fold of ten molecules, eight to train, one and one."""
    rows = bace_rows(count)
    split = [[k for k in range(count) if part(k) == name] for name in PARTS]
    labels = [[row["Class"]] for row in rows]
    smiles = [row["mol"] for row in rows]
    return write_ogb_folder(root / "ogbg_molbace", smiles, labels, ["Class"], split)


def part(k: int) -> str:
    """Return the part of the molecule at a position."""
    return {8: "valid", 9: "test"}.get(k % 10, "train")
