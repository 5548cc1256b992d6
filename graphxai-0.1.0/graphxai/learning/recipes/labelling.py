"""Let a teacher label new molecules, part by part, so that an interruption loses one part."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graphxai.runtime.progress import in_chunks
from graphxai.runtime.writing import atomic_write, json_text, write_whole

__all__ = ["LabelledMolecules", "label_molecules"]

FloatArray = NDArray[np.float64]
ABOUT, LEFT_OUT = "molecules.json", "left_out.npy"
PART = 500  # molecules


class LabellingTeacher(Protocol):
    """A teacher that labels molecules."""

    def predict(self, smiles: Sequence[str]) -> FloatArray:
        """Return labels (n, tasks)."""
        ...

    def left_out(self) -> FloatArray:
        """Predict each training molecule without having seen it, (n, tasks)."""
        ...


@dataclass(frozen=True, eq=False)
class LabelledMolecules:
    """New molecules with a teacher's labels.

    Attributes:
        smiles: the molecules (m,).
        labels: their labels (m, tasks).
        left_out: the teacher's prediction for each of its training molecules, made without that
            molecule (n, tasks).
    """

    smiles: list[str]
    labels: FloatArray
    left_out: FloatArray


def label_molecules(
    folder: Path,
    identity: dict[str, Any],
    make_molecules: Callable[[], list[str]],
    fit_teacher: Callable[[], LabellingTeacher],
    *,
    resume: bool,
    show: bool | None = None,
) -> LabelledMolecules:
    """Make molecules and let a teacher label them, 500 at a time. Each part is stored.

    The teacher is fitted only if something is left for it to do.

    Args:
        folder: where the molecules and labels are stored. Files of another identity are deleted,
            among them a teacher that `fit_teacher` may store there.
        identity: what must be the same for stored labels to be used, as JSON values.
        make_molecules: makes the molecules.
        fit_teacher: fits the teacher.
        resume: whether to use what is stored.
        show: as for `progress_bar`.
    """
    teacher = cache(fit_teacher)
    folder.mkdir(parents=True, exist_ok=True)
    stored = _stored_molecules(folder / ABOUT, identity) if resume else None
    if stored is None:
        for path in (*folder.glob("*.npy"), *folder.glob("*.safetensors")):
            path.unlink()
        stored = make_molecules()
        write_whole(folder / ABOUT, json_text({"identity": identity, "smiles": stored}))
    left_out = _array(folder / LEFT_OUT, lambda: teacher().left_out())
    labels = []
    for number, part in enumerate(in_chunks(stored, "labelling", size=PART, show=show)):
        path = folder / f"labels-{number:05d}.npy"
        labels.append(_array(path, lambda part=part: teacher().predict(part)))  # type: ignore[misc]
    return LabelledMolecules(stored, np.concatenate(labels) if labels else left_out[:0], left_out)


def _stored_molecules(path: Path, identity: dict[str, Any]) -> list[str] | None:
    """Return the stored molecules of this identity, or None if there are none."""
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["smiles"] if content["identity"] == identity else None


def _array(path: Path, compute: Callable[[], FloatArray]) -> FloatArray:
    """Return a stored array, or compute and store it."""
    if path.is_file():
        return np.load(path, allow_pickle=False)
    values = compute()
    with atomic_write(path, "wb") as file:
        np.save(file, values, allow_pickle=False)
    return values
