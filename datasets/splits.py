"""Split graphs into training, validation and test parts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold
from rdkit.SimDivFilters import LeaderPicker

from .fingerprints import BitTable, ecfp4_bits, packed_bits

Item = TypeVar("Item")
FRACTIONS = (0.8, 0.1, 0.1)
NEAR = 0.6  # a cluster's molecules are more similar than this to its first one, as in Taylor 1995
MONTH_FIRST = re.compile(r"(\d{1,2})[./-]((?:19|20)\d{2})")
YEAR_FIRST = re.compile(r"((?:19|20)\d{2})[/-](\d{1,2})")
YEAR = re.compile(r"(19|20)\d{2}")
SHORT = re.compile(r"(0?[1-9]|1[0-2])\.\d{2}")
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "calibrate", "calibration"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True)
class Split:
    """The positions of the training, validation and test graphs, and how they were chosen.

    ``kind`` is ``"random"``, ``"scaffold"`` or the user's own word. ``seed`` is None if the split
    is deterministic.
    """

    train: tuple[int, ...]
    valid: tuple[int, ...]
    test: tuple[int, ...]
    kind: str = "given"
    seed: int | None = None

    def __post_init__(self) -> None:
        together = [*self.train, *self.valid, *self.test]
        if len(set(together)) != len(together):
            raise ValueError("a graph is in two parts of the split, or twice in one")

    def parts_of(self, items: Sequence[Item]) -> tuple[list[Item], list[Item], list[Item]]:
        """Return the training, the validation and the test part of a list of graphs or the like."""
        train, valid, test = (
            [items[k] for k in part] for part in (self.train, self.valid, self.test)
        )
        return train, valid, test

    def to_json(self) -> str:
        """Return one line of JSON to store with a checkpoint."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Split:
        """Read the split that `to_json` wrote.

        Raises:
            ValueError: the text is not the JSON of a split.
        """
        try:
            fields = json.loads(text)
            train, valid, test = (tuple(fields[part]) for part in ("train", "valid", "test"))
            return cls(train, valid, test, fields["kind"], fields["seed"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"this JSON is not a stored split: {error!r} is missing") from error


def _of_parts(parts: Iterable[Iterable[int]], kind: str, seed: int | None = None) -> Split:
    train, valid, test = (tuple(sorted(part)) for part in parts)
    return Split(train, valid, test, kind, seed)


def random_split(n: int, seed: int, fractions: Sequence[float] = FRACTIONS) -> Split:
    """Shuffle ``n`` graphs with ``seed`` and cut them by ``fractions`` (train, valid, test).

    The shuffle is Python's own, the same on every platform and version.
    """
    first, second = _cuts(n, fractions)
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return _of_parts((order[:first], order[first:second], order[second:]), "random", seed)


def scaffold_split(
    smiles: Sequence[str],
    fractions: Sequence[float] = FRACTIONS,
    *,
    include_chirality: bool = False,
) -> Split:
    """Keep molecules that share a Bemis-Murcko scaffold together. Rare scaffolds are for testing.

    This is the recipe of MoleculeNet (Wu 2018) and DeepChem. The scaffolds with most molecules go
    to the training part while they fit, the next ones to the validation part, and the rest to the
    test part. Ties are ordered by the position of their first molecule, last first. The split is
    deterministic.

    Args:
        smiles: valid SMILES; molecules without a ring share the empty scaffold.
        fractions: train, valid, test.
        include_chirality: treat scaffolds that differ in stereochemistry as different.

    Raises:
        ValueError: a SMILES cannot be read; the message names it.
    """
    groups = _scaffolds(smiles, include_chirality)
    return _by_groups(groups, fractions, "scaffold")


def cluster_split(smiles: Sequence[str], fractions: Sequence[float] = FRACTIONS) -> Split:
    """Keep similar molecules together. Rare clusters are for testing, as in `scaffold_split`.

    The clusters are those of sphere exclusion (Taylor 1995, Butina 1999) with RDKit's
    `LeaderPicker`. A molecule starts a cluster unless its ECFP4 Tanimoto similarity to an earlier
    start is above 0.6, and every molecule joins the start most similar to it. Clusters are dealt to
    the parts as scaffolds are.
    """
    bits = [ecfp4_bits(Chem.MolFromSmiles(text)) for text in smiles]
    starts = LeaderPicker().LazyBitVectorPick(bits, len(bits), 1 - NEAR)
    at_starts = BitTable(packed_bits([bits[start] for start in starts]))
    groups: dict[int, list[int]] = {}
    for position, bits_of_molecule in enumerate(bits):
        nearest = int(at_starts.similarities(bits_of_molecule).argmax())
        groups.setdefault(nearest, []).append(position)
    return _by_groups(list(groups.values()), fractions, "clusters")


def time_split(
    times: Sequence[str], fractions: Sequence[float] = FRACTIONS, rows: Sequence[int] | None = None
) -> Split:
    """Train on the oldest molecules and test on the newest. Equal times stay in the given order.

    Args:
        times: all numbers (years, batches), all ISO dates (2024-05-31), or all months (05.2024,
            5/2024, 2024-05), one per molecule.
        fractions: train, valid, test.
        rows: numbers of the molecules' rows, for messages.

    Raises:
        ValueError: a time is none of these, or only some are months; the message quotes it. Or all
            times are the same.
    """
    first, second = _cuts(len(times), fractions)
    numbers = _as_numbers(times, rows)
    if len(set(numbers)) < 2:
        raise ValueError(
            "all molecules have the same time: give a column with several, or split another way."
        )
    order = np.argsort(numbers, kind="stable").tolist()
    return _of_parts((order[:first], order[first:second], order[second:]), "time")


def given_split(
    parts: Sequence[str],
    seed: int = 0,
    rows: Sequence[int] | None = None,
    *,
    draw_valid: bool = True,
) -> Split:
    """Take the parts as given, "train", "valid" and "test" (or "training", "val", "calibration").

    Args:
        parts: the part of each molecule.
        seed: seed of the molecules that are drawn for validation.
        rows: numbers of the molecules' rows, for messages.
        draw_valid: whether to draw a ninth of the training part for validation if no molecule is
            for it.

    Raises:
        ValueError: a part has another name, or there is no molecule to train on or to test.
    """
    positions: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for position, text in enumerate(parts):
        part = PARTS.get(text.strip().casefold())
        if part is None:
            raise ValueError(
                f"{_quoted(text)} is not a part of a split{_place(position, rows)}: write train,"
                " valid or test."
            )
        positions[part].append(position)
    for part in ("train", "test"):
        if not positions[part]:
            raise ValueError(f"no molecule is marked {part!r}: a split needs some.")
    if draw_valid and not positions["valid"]:
        training = positions["train"]
        drawn = set(random.Random(seed).sample(training, len(training) // 9))
        positions["valid"] = sorted(drawn)
        positions["train"] = [k for k in training if k not in drawn]
    return _of_parts(positions.values(), "column")


def scaffold_folds(smiles: Sequence[str], count: int) -> list[NDArray[np.intp]]:
    """Deal molecules (n,) into `count` folds of similar size, each Murcko scaffold into one fold.

    The largest scaffolds go first, each into the fold that is smallest at that moment. A scaffold
    with more molecules than a fold should have is dealt molecule by molecule instead, because a
    congeneric series has nothing else to divide.
    """
    limit = len(smiles) / count
    groups = [
        part
        for group in _scaffolds(smiles)
        for part in ([group] if len(group) <= limit else [[k] for k in group])
    ]
    folds: list[list[int]] = [[] for _ in range(count)]
    for group in sorted(groups, key=len, reverse=True):
        min(folds, key=len).extend(group)
    return [np.array(sorted(fold), dtype=np.intp) for fold in folds]


def _scaffolds(smiles: Sequence[str], include_chirality: bool = False) -> list[list[int]]:
    """Return the positions of the molecules of each scaffold."""
    groups: dict[str, list[int]] = {}
    for position, text in enumerate(smiles):
        scaffold = _scaffold(text, include_chirality)
        if scaffold is None:
            raise ValueError(f"scaffold_split: molecule {position}, {text!r}, cannot be read")
        groups.setdefault(scaffold, []).append(position)
    return list(groups.values())


@lru_cache(100_000)  # a table is split into parts, and its training part into folds
def _scaffold(smiles: str, include_chirality: bool) -> str | None:
    """Return the Murcko scaffold of a molecule, or None if it cannot be read."""
    mol = Chem.MolFromSmiles(smiles)
    if mol is None:
        return None
    return str(MurckoScaffold.MurckoScaffoldSmiles(mol=mol, includeChirality=include_chirality))


def _by_groups(groups: Sequence[list[int]], fractions: Sequence[float], kind: str) -> Split:
    """Fill the training part with the largest groups, then the validation and the test part."""
    first, second = _cuts(sum(map(len, groups)), fractions)
    train, valid, test = parts = ([], [], [])  # type: tuple[list[int], list[int], list[int]]
    for group in sorted(groups, key=lambda group: (len(group), group[0]), reverse=True):
        if len(train) + len(group) <= first:
            train += group
        elif len(train) + len(valid) + len(group) <= second:
            valid += group
        else:
            test += group
    return _of_parts(parts, kind)


def _as_numbers(times: Sequence[str], rows: Sequence[int] | None) -> list[float]:
    """Return times as numbers: months, the numbers themselves, or the seconds of ISO dates."""
    texts = [text.strip() for text in times]
    months = _months(texts)
    if months is not None:
        return months
    with suppress(ValueError):
        numbers = [float(text) for text in texts]
        if all(map(isfinite, numbers)):
            return numbers
    seconds = []
    for position, text in enumerate(texts):
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"{_quoted(text)} is not a time{_place(position, rows)}: write all times as dates"
                " such as 2024-05-31, all as months such as 2024-05, or all as numbers such as"
                " 2024."
            ) from None
        aware = time if time.tzinfo else time.replace(tzinfo=UTC)
        seconds.append((aware - datetime(1, 1, 1, tzinfo=UTC)).total_seconds())
    return seconds


def _quoted(text: str) -> str:
    return repr(text) if text.strip() else "an empty cell"


def _place(position: int, rows: Sequence[int] | None) -> str:
    """Return " (row 12)" for messages about a molecule, or "" if its row is unknown."""
    return "" if rows is None else f" (row {rows[position]})"


def _months(texts: Sequence[str]) -> list[float] | None:
    """Return months since year 0 for 05.2017, 5/2017 or 2017-05, or None if there are no months.

    Raises:
        ValueError: some texts are months, and the others are years or fewer than these; or a text
            such as 05.17 may be a month or a number.
    """
    months = [_month(text) for text in texts]
    readable = [month for month in months if month is not None]
    if texts and len(readable) == len(texts):
        return readable
    if readable:
        month = texts[next(k for k, value in enumerate(months) if value is not None)]
        other = texts[months.index(None)]
        if len(readable) * 2 >= len(texts) or any(map(YEAR.fullmatch, texts)):
            raise ValueError(
                f"{month!r} looks like a month, but {other!r} does not: write all times as months"
                " such as 2024-05, or all as dates such as 2024-05-31."
            )
    if all(map(SHORT.fullmatch, texts)) and any(text.startswith("0") for text in texts):
        raise ValueError(
            f"{texts[0]!r} may be a month or a number: write months with the year first, such as"
            " 2024-05."
        )
    return None


def _month(text: str) -> float | None:
    """Return the months since year 0, or None if the text is not a month."""
    if match := MONTH_FIRST.fullmatch(text):
        month, year = int(match[1]), int(match[2])
    elif match := YEAR_FIRST.fullmatch(text):
        year, month = int(match[1]), int(match[2])
    else:
        return None
    return year * 12.0 + month - 1 if 1 <= month <= 12 else None


def _cuts(n: int, fractions: Sequence[float]) -> tuple[int, int]:
    """Return where the training part and the validation part end."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(
            f"fractions must be three numbers from 0 to 1 that sum to 1 (train, valid, test), "
            f"not {tuple(fractions)}"
        )
    return int(n * fractions[0] + 1e-9), int(n * (fractions[0] + fractions[1]) + 1e-9)
