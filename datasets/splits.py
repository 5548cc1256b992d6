"""Split graphs into training, validation and test parts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

__all__ = ["Split", "random_split", "scaffold_split"]

FRACTIONS = (0.8, 0.1, 0.1)


@dataclass(frozen=True)
class Split:
    """Positions of the training, validation and test graphs, and how they were chosen.

    ``kind`` is ``"random"``, ``"scaffold"`` or the user's own word; ``seed`` is None if the split
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
            return cls(
                train=tuple(fields["train"]),
                valid=tuple(fields["valid"]),
                test=tuple(fields["test"]),
                kind=fields["kind"],
                seed=fields["seed"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"this JSON is not a stored split: {error!r} is missing") from error


def random_split(n: int, seed: int, fractions: Sequence[float] = FRACTIONS) -> Split:
    """Shuffle ``n`` graphs with ``seed`` and cut them by ``fractions`` (train, valid, test).

    The shuffle is Python's own, the same on every platform and version.
    """
    first, second = _cuts(n, fractions)
    order = list(range(n))
    random.Random(seed).shuffle(order)
    train, valid, test = order[:first], order[first:second], order[second:]
    return Split(
        tuple(sorted(train)), tuple(sorted(valid)), tuple(sorted(test)), kind="random", seed=seed
    )


def scaffold_split(
    smiles: Sequence[str],
    fractions: Sequence[float] = FRACTIONS,
    *,
    include_chirality: bool = False,
) -> Split:
    """Keep molecules that share a Bemis-Murcko scaffold together; rare scaffolds are for testing.

    The recipe of MoleculeNet (Wu 2018) and DeepChem: scaffolds are taken by the number of their
    molecules, the largest to the training part while they fit, then to the validation part, the
    rest to the test part. Ties are ordered by the position of their first molecule, last first.
    The split is deterministic.

    Args:
        smiles: valid SMILES; molecules without a ring share the empty scaffold.
        fractions: train, valid, test.
        include_chirality: treat scaffolds that differ in stereochemistry as different.

    Raises:
        ValueError: a SMILES cannot be read; the message names it.
    """
    first, second = _cuts(len(smiles), fractions)
    groups: dict[str, list[int]] = {}
    for position, text in enumerate(smiles):
        mol = Chem.MolFromSmiles(text)
        if mol is None:
            raise ValueError(f"scaffold_split: molecule {position}, {text!r}, cannot be read")
        scaffold = MurckoScaffold.MurckoScaffoldSmiles(mol=mol, includeChirality=include_chirality)
        groups.setdefault(scaffold, []).append(position)
    by_size = sorted(groups.values(), key=lambda group: (len(group), group[0]), reverse=True)
    train: list[int] = []
    valid: list[int] = []
    test: list[int] = []
    for group in by_size:
        if len(train) + len(group) <= first:
            train += group
        elif len(train) + len(valid) + len(group) <= second:
            valid += group
        else:
            test += group
    return Split(tuple(sorted(train)), tuple(sorted(valid)), tuple(sorted(test)), kind="scaffold")


def _cuts(n: int, fractions: Sequence[float]) -> tuple[int, int]:
    """Return where the training part and the validation part end."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(
            f"fractions must be three numbers from 0 to 1 that sum to 1 (train, valid, test), "
            f"not {tuple(fractions)}"
        )
    return int(n * fractions[0] + 1e-9), int(n * (fractions[0] + fractions[1]) + 1e-9)
