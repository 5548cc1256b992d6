"""Read the molecules of OGB, the Open Graph Benchmark (Hu 2020), and score predictions of them.

A data set such as "ogbg-molbace" has an official split and an official score. Only its CSV files
are read: OGB's own loaders also unpickle.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from graphxai.runtime.download import ROOT_ARGUMENT, DownloadError, data_root, fetch
from graphxai.runtime.extras import import_ogb
from graphxai.runtime.writing import csv_text

from .labels import LabelsKind
from .splits import Split
from .tables.opening import MAX_RATIO

MOLECULES, LABELS = "mapping/mol.csv.gz", "raw/graph-label.csv.gz"
PARTS = ("train", "valid", "test")
SMILES, IDENTIFIER = "smiles", "mol_id"  # columns of MOLECULES that are no tasks
UNPACKED = re.compile(r"(mapping|raw|split/\w+)/[\w-]+\.csv\.gz|RELEASE_v\d+\.txt")

Part = Literal["train", "valid", "test"]


@dataclass(frozen=True, eq=False)
class OgbMolecules:
    """A data set of molecules with its official split and its official score.

    Attributes:
        name: OGB's name, such as "ogbg-molbace".
        kind: the kind of all tasks.
        tasks: the names of the tasks.
        smiles: the molecules (n,).
        labels: their labels (n, tasks), NaN where one is missing.
        split: the official split.
        metric: OGB's name of the official score: "rocauc", "ap" or "rmse".
    """

    name: str
    kind: LabelsKind
    tasks: tuple[str, ...]
    smiles: tuple[str, ...]
    labels: NDArray[np.float64]
    split: Split
    metric: str

    def positions(self, part: Part) -> list[int]:
        """Return the positions of the molecules in a part of the split."""
        return list(getattr(self.split, part))

    def score(self, predictions: NDArray[np.float64], part: Part = "test") -> float:
        """Return the official score, computed by OGB's own `Evaluator`.

        Args:
            predictions: a score, probability or value for each molecule of the part and each task
                (m, tasks).
            part: the part that is predicted.

        Returns:
            The score, or NaN if no task has the labels that it needs.
        """
        evaluator = import_ogb("ogb.graphproppred.evaluate").Evaluator(self.name)
        truth = self.labels[self.positions(part)]
        if predictions.shape != truth.shape:
            raise ValueError(
                f"predictions {predictions.shape} must be {truth.shape}, as the labels."
            )
        try:
            return float(evaluator.eval({"y_true": truth, "y_pred": predictions})[self.metric])
        except RuntimeError:  # a part without both classes
            return float("nan")

    def to_csv(self) -> str:
        """Return a table with the columns `smiles`, the tasks, and `split`, the part."""
        part_of = {k: part for part in PARTS for k in getattr(self.split, part)}
        cells = (
            ["" if value != value else str(value).removesuffix(".0") for value in row]
            for row in self.labels.tolist()
        )
        rows = enumerate(zip(self.smiles, cells, strict=True))
        listed = ([smiles, *row, part_of[k]] for k, (smiles, row) in rows if k in part_of)
        return csv_text([SMILES, *self.tasks, "split"], listed)


def ogb_names() -> list[str]:
    """Return the names of OGB's data sets of molecules."""
    return [name for name, about in _index().items() if about["data type"] == "mol"]


def load_ogb(
    name: str, root: str | os.PathLike[str] | None = None, download: bool = True
) -> OgbMolecules:
    """Load a data set of OGB's molecules from the folder where OGB keeps it, `root/ogbg_molbace`.

    The folder has the official CSV files `mapping/mol.csv.gz`, `raw/graph-label.csv.gz` and
    `split/scaffold/train.csv.gz`, `valid.csv.gz` and `test.csv.gz`.

    Args:
        name: such as "ogbg-molbace", see `ogb_names`.
        root: data folder; None means `$GRAPHXAI_DATA`, else `~/.cache/graphxai`.
        download: fetch the official archive if the folder is missing.

    Raises:
        ValueError: there is no such data set, or its files do not fit each other or are of another
            release.
        DownloadError: the archive cannot be downloaded, or is not the official one.
        FileNotFoundError: the folder is missing and `download` is False.
    """
    if name not in ogb_names():
        raise ValueError(f"{name!r} is none of OGB's data sets: {', '.join(ogb_names())}.")
    about = _index()[name]
    folder = data_root(root) / name.replace("-", "_")
    if not folder.is_dir():
        if not download:
            raise FileNotFoundError(
                f"{folder} does not exist: allow the download, or give the folder that"
                f" contains {folder.name}/ ({ROOT_ARGUMENT} or GRAPHXAI_DATA)."
            )
        _download(about, folder)
    return _read(name, about, folder)


def _index() -> dict[str, dict[str, str]]:
    """Return what OGB's package says of each data set for predicting properties of graphs."""
    import pandas as pd

    index = Path(str(import_ogb("ogb").__file__)).parent / "graphproppred" / "master.csv"
    return pd.read_csv(index, index_col=0, dtype=str, keep_default_na=False).to_dict()


def _download(about: dict[str, str], folder: Path) -> None:
    """Fetch OGB's archive and unpack its CSV files.

    OGB publishes no digest. So the archive comes over TLS from OGB's own server, and it must have
    the release and the files that OGB's package expects.
    """
    url = about["url"].replace("http://", "https://")
    archive = fetch(url, folder.with_suffix(".zip"))
    top = f"{about['download_name']}/"
    needed = {MOLECULES, LABELS, f"RELEASE_v{about['version']}.txt"}
    needed |= {f"split/{about['split']}/{part}.csv.gz" for part in PARTS}
    try:
        with (
            zipfile.ZipFile(archive) as packed,
            tempfile.TemporaryDirectory(dir=folder.parent) as place,
        ):
            for entry in packed.infolist():
                file = entry.filename.removeprefix(top)
                if entry.filename.startswith(top) and UNPACKED.fullmatch(file):
                    if entry.file_size > MAX_RATIO * max(entry.compress_size, 1):
                        raise zipfile.BadZipFile(f"{file} is far larger than its archive")
                    target = Path(place) / folder.name / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(packed.read(entry))
                    needed.discard(file)
            if needed:
                raise zipfile.BadZipFile(f"it lacks {', '.join(sorted(needed))}")
            (Path(place) / folder.name).rename(folder)
    except (zipfile.BadZipFile, OSError) as error:
        raise DownloadError(
            f"{archive} is not OGB's archive of {folder.name}, or cannot be unpacked ({error})."
            f" Delete it to download it again from {url}."
        ) from error


def _read(name: str, about: dict[str, str], folder: Path) -> OgbMolecules:
    """Read the CSV files of a data set, and check that they fit each other."""
    import pandas as pd

    from .graph_folders import ogb_split

    release = f"RELEASE_v{about['version']}.txt"
    others = [path.name for path in folder.glob("RELEASE_v*.txt") if path.name != release]
    if others:
        raise ValueError(f"{folder} has {others[0]}, but OGB's package expects {release}.")
    try:
        table = pd.read_csv(folder / MOLECULES, dtype=str, keep_default_na=False)
        labels = pd.read_csv(folder / LABELS, header=None, dtype=np.float64).to_numpy()
        split = ogb_split(folder, about["split"])
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(
            f"{folder} cannot be read as {name} ({error}): put OGB's files there, or delete the"
            " folder to download them."
        ) from error
    tasks = tuple(column for column in table.columns if column not in (SMILES, IDENTIFIER))
    expected = (len(table), int(about["num tasks"]))
    if SMILES not in table.columns or labels.shape != expected or len(tasks) != expected[1]:
        raise ValueError(
            f"{folder} is not {name}, which has {expected[1]} tasks: {MOLECULES} has"
            f" {len(table):,} rows with the columns {', '.join(table.columns)}, and {LABELS} has"
            f" {labels.shape[0]:,} rows of {labels.shape[1]} labels."
        )
    together = () if split is None else (*split.train, *split.valid, *split.test)
    if split is None or not set(together) <= set(range(len(table))):
        raise ValueError(
            f"{folder} has no {about['split']} split of its {len(table):,} molecules in"
            f" split/{about['split']}/."
        )
    kind: LabelsKind = "regression" if about["task type"] == "regression" else "classification"
    smiles = tuple(table[SMILES])
    return OgbMolecules(name, kind, tasks, smiles, labels, split, about["eval metric"])
