"""Make the data set of one rule, with true atoms and a split, or a table labelled by several."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase

from graphxai.runtime.download import ROOT_ARGUMENT, data_root
from graphxai.runtime.progress import Progress, no_progress, progress_bar
from graphxai.runtime.writing import csv_text, write_whole

from .rules import RULES, RuleTask, Truth, get_rule
from .splits import FRACTIONS, Split, random_split
from .tables.table import open_table


@dataclass(frozen=True, eq=False)
class RuleDataset:
    """Distinct molecules with the answer to a rule's question.

    Args:
        smiles: n canonical SMILES.
        labels (n,): 0 or 1, or the value.
        truths: n arrays (N,), see `RuleTask`, in the atom order of `smiles`.
        unreadable: number of SMILES that were left out because RDKit cannot read them.
    """

    rule: RuleTask
    smiles: tuple[str, ...]
    labels: NDArray[np.float32]
    truths: tuple[Truth, ...]
    split: Split
    unreadable: int = 0

    def scored(self, positions: Iterable[int] | None = None, limit: int | None = None) -> list[int]:
        """Return the positions of molecules in which some atoms are true and others are not.

        For an additive rule these are all positions.

        Args:
            positions: positions to choose from, by default the test part.
            limit: largest number of positions to return.
        """
        choice = self.split.test if positions is None else positions
        every, truths = self.rule.kind == "additive", self.truths
        return [k for k in choice if every or (truths[k].any() and not truths[k].all())][:limit]


def rule_dataset(
    smiles: Iterable[str],
    rule: str | RuleTask,
    *,
    size: int = 4000,
    balance: float = 0.5,
    seed: int = 0,
    fractions: Sequence[float] = FRACTIONS,
    max_atoms: int = 60,
) -> RuleDataset:
    """Choose `size` molecules for a rule, a fraction `balance` of them positives.

    The SMILES are shuffled with `seed` and taken in that order, each molecule once. If one class
    runs short, the other is reduced to keep the balance, and the set is smaller. An additive rule
    takes molecules as they come, and a signed one as many of each of its cases. They are split at
    random, with `seed`, into training, validation and test part, by `fractions`. Unreadable SMILES
    are counted, and molecules with more than `max_atoms` are skipped.

    Raises:
        ValueError: an unknown rule, a balance outside 0 to 1, or fewer than 10 molecules.
    """
    task = get_rule(rule)
    if not 0 < balance < 1:
        raise ValueError(f"balance must lie between 0 and 1, not {balance:g}.")
    chance = random.Random(seed)
    order = list(smiles)
    chance.shuffle(order)
    shares: dict[_Class, float] = {True: balance, False: 1 - balance}
    if task.kind == "additive":
        shares = {None: 1.0}
    elif task.cases:
        shares = dict.fromkeys(task.cases, 1 / len(task.cases))
    counts_wanted = {answer: round(size * share) for answer, share in shares.items()}
    rows, unreadable = _take(order, task, counts_wanted, max_atoms)
    total = min(len(rows[answer]) / share for answer, share in shares.items())
    chosen = [
        row for answer, share in shares.items() for row in rows[answer][: round(total * share)]
    ]
    if len(chosen) < 10:
        names: dict[_Class, str] = {True: "positives", False: "negatives", None: "molecules"}
        counts = ", ".join(f"{len(r)} {names.get(c, repr(c))}" for c, r in rows.items())
        raise ValueError(
            f"too few molecules for the rule {task.name!r}: {counts} among {len(order)} SMILES."
        )
    chance.shuffle(chosen)
    truths = tuple(truth for _, truth in chosen)
    return RuleDataset(
        task,
        tuple(text for text, _ in chosen),
        np.array([task.label_of(truth) for truth in truths], dtype=np.float32),
        truths,
        random_split(len(chosen), seed, fractions),
        unreadable,
    )


def local_smiles(root: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the column `smiles` of all tables `<root>/molecules/*.csv`, by file name and row.

    root: data folder; None means `$GRAPHXAI_DATA`, else `~/.cache/graphxai`.

    Raises:
        FileNotFoundError: there is no such table.
        ValueError: a table has no such column.
    """
    folder = data_root(root) / "molecules"
    tables = sorted(folder.glob("*.csv"))
    if not tables:
        raise FileNotFoundError(
            f"no tables in {folder}: put CSV files with a column 'smiles' there (any"
            " drug-like molecules will do), give the folder that contains molecules/ with"
            f" {ROOT_ARGUMENT} or the environment variable GRAPHXAI_DATA, or pass a list of SMILES."
        )
    columns = (open_table(table, "smiles").records(["smiles"]) for table in tables)
    return [record.cells["smiles"] for records in columns for record in records]


_Row = tuple[str, Truth]
_Class = bool | str | None  # the answer or case; None for all molecules of an additive rule


def _take(
    smiles: Sequence[str], task: RuleTask, counts_wanted: dict[_Class, int], max_atoms: int
) -> tuple[dict[_Class, list[_Row]], int]:
    """Take the first molecules of each class, as many as wanted, and count the unreadable ones."""
    rows: dict[_Class, list[_Row]] = {answer: [] for answer in counts_wanted}
    unreadable = 0
    with rdBase.BlockLogs():
        for canonical, mol in distinct_molecules(smiles, max_atoms):
            if all(len(rows[answer]) >= count for answer, count in counts_wanted.items()):
                break
            if mol is None:
                unreadable += 1
                continue
            truth = task.mark(mol)
            answer: _Class = task.case(mol) if task.case else bool(truth.any())
            answer = None if task.kind == "additive" else answer
            if answer == "":  # the rule does not apply
                continue
            if len(rows[answer]) < counts_wanted[answer]:
                rows[answer].append((canonical, truth))
    return rows, unreadable


RARE = ("indole", "phosphorus", "boron", "large-ring")  # at most 6 % of drug-like molecules


@dataclass(frozen=True, eq=False)
class RuleTable:
    """Distinct molecules with the answers to several rules' questions.

    Args:
        smiles: n canonical SMILES.
        labels (n, rules): 0 or 1, or the value of an additive rule.
    """

    rules: tuple[RuleTask, ...]
    smiles: tuple[str, ...]
    labels: NDArray[np.float32]
    split: Split

    def of(self, rule: str) -> NDArray[np.float32]:
        """Return the answers (n,) to one rule, or raise a ValueError if the table lacks it."""
        names = [task.name for task in self.rules]
        if rule not in names:
            raise ValueError(f"no rule {rule!r} in the table; it has {', '.join(names)}.")
        return self.labels[:, names.index(rule)]

    def with_truth(self, rule: str, limit: int | None = None) -> list[tuple[str, Truth]]:
        """Return test molecules, at most `limit`, in which some atoms are true and others are not.

        Each comes with its truth (N,), see `RuleTask`. For an additive rule, these are the first
        test molecules.
        """
        task, answers = get_rule(rule), self.of(rule)
        every = task.kind == "additive"
        chosen = (self.smiles[k] for k in self.split.test if every or answers[k])
        marked = ((smiles, task.truth(smiles)) for smiles in chosen)
        return list(islice((each for each in marked if every or not each[1].all()), limit))

    def without_truth(self, rule: str, limit: int | None = None) -> list[str]:
        """Return test molecules, at most `limit`, in which no atom is true: a rule's null set."""
        if get_rule(rule).kind == "additive":
            return []
        answers = self.of(rule)
        return [self.smiles[k] for k in self.split.test if not answers[k]][:limit]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV file with the SMILES, the part of the split, and a column for every rule."""
        header = ["smiles", "part", *(rule.name for rule in self.rules)]
        part = dict.fromkeys(self.split.train, "train") | dict.fromkeys(self.split.valid, "valid")
        rows = enumerate(zip(self.smiles, self.labels.tolist(), strict=True))
        cells = ([s, part.get(k, "test"), *(f"{v:.7g}" for v in row)] for k, (s, row) in rows)
        write_whole(Path(path), csv_text(header, cells))


def read_rule_table(path: str | os.PathLike[str]) -> RuleTable:
    """Read the CSV file that `RuleTable.save` wrote, or raise a ValueError for another table."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    header = rows[0] if rows else []
    if header[:2] != ["smiles", "part"] or not set(header[2:]) <= set(RULES):
        raise ValueError(f"{path} is not a table of rules: smiles, part and names of rules.")
    parts: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for k, row in enumerate(rows[1:]):
        if len(row) != len(header) or row[1] not in parts:
            raise ValueError(f"{path}, row {k + 2}: a SMILES, a part of the split and the labels.")
        parts[row[1]].append(k)
    return RuleTable(
        tuple(RULES[name] for name in header[2:]),
        tuple(row[0] for row in rows[1:]),
        np.array([[float(cell) for cell in row[2:]] for row in rows[1:]], dtype=np.float32),
        Split(tuple(parts["train"]), tuple(parts["valid"]), tuple(parts["test"])),
    )


def rule_table(
    smiles: Iterable[str],
    rules: Sequence[str | RuleTask] = tuple(RULES),
    *,
    size: int = 20_000,
    rare: Sequence[str] = RARE,
    seed: int = 0,
    fractions: Sequence[float] = FRACTIONS,
    max_atoms: int = 60,
    progress: bool | None = False,
) -> RuleTable:
    """Choose `size` molecules and label them by every rule.

    All molecules with the answer yes to a rule in `rare` are taken, in random order, up to half of
    the size. The others come as they are. So all but the rare rules are as frequent as among the
    given molecules. SMILES that cannot be read and molecules with more than `max_atoms` are
    skipped. The molecules are split at random into training, validation and test part, by
    `fractions`.

    Raises:
        ValueError: an unknown rule, or fewer than 10 molecules.
    """
    tasks = tuple(get_rule(rule) for rule in rules)
    enriched = [task for task in tasks if task.name in rare]
    order = list(smiles)
    random.Random(seed).shuffle(order)
    chosen: list[str] = []
    others: list[str] = []
    with rdBase.BlockLogs(), progress_bar("reading", len(order), show=progress) as advance:
        for text, mol in distinct_molecules(order, max_atoms, advance):
            if mol is None:
                continue
            scarce = any(task.truth(mol).any() for task in enriched)
            (chosen if scarce and len(chosen) < size // 2 else others).append(text)
    chosen += others[: size - len(chosen)]
    if len(chosen) < 10:
        raise ValueError(f"too few molecules for a table of rules: {len(chosen)}.")
    random.Random(seed).shuffle(chosen)
    labels = np.empty((len(chosen), len(tasks)), dtype=np.float32)
    with rdBase.BlockLogs(), progress_bar("labelling", len(chosen), show=progress) as advance:
        for row, text in zip(labels, chosen, strict=True):
            row[:] = [task.label(Chem.MolFromSmiles(text)) for task in tasks]
            advance(1)
    return RuleTable(tasks, tuple(chosen), labels, random_split(len(chosen), seed, fractions))


def distinct_molecules(
    smiles: Iterable[str], max_atoms: int, progress: Progress = no_progress
) -> Iterator[tuple[str, Chem.Mol | None]]:
    """Yield each molecule of up to `max_atoms` once, as canonical SMILES and as read from it.

    So the atoms have the order of that SMILES. One that cannot be read is None.
    """
    seen: set[str] = set()
    for text in smiles:
        progress(1)
        mol = Chem.MolFromSmiles(text) if text else None
        if mol is None:
            yield text, None
            continue
        canonical = Chem.MolToSmiles(mol)
        if canonical not in seen and 0 < mol.GetNumAtoms() <= max_atoms:
            seen.add(canonical)
            yield canonical, Chem.MolFromSmiles(canonical)
