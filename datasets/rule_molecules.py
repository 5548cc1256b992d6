"""Make the data set of one rule: balanced molecules with labels, true atoms and a split."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rdkit import rdBase

from graphxai.runtime.download import ROOT_ARGUMENT, data_root

from .rule_tables import distinct_molecules
from .rules import RuleTask, Truth, get_rule
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
