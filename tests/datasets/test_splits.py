"""Splits are disjoint, complete, repeatable, and a scaffold is never in two parts."""

import pytest
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphxai.datasets.splits import Split, random_split, scaffold_split

SMILES = ["c1ccccc1C", "c1ccccc1CC", "c1ccncc1", "C1CCCCC1", "c1ccccc1O", "CCO", "CCN"] * 3


def test_a_random_split_is_a_partition_and_repeats() -> None:
    split = random_split(1513, 0)
    assert (len(split.train), len(split.valid), len(split.test)) == (1210, 151, 152)
    assert sorted(split.train + split.valid + split.test) == list(range(1513))
    assert split == random_split(1513, 0)
    assert split.test != random_split(1513, 1).test


def test_a_scaffold_is_in_one_part_only() -> None:
    split = scaffold_split(SMILES, (0.5, 0.25, 0.25))
    parts = [
        {MurckoScaffold.MurckoScaffoldSmiles(SMILES[i]) for i in part}
        for part in (split.train, split.valid, split.test)
    ]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert sorted(split.train + split.valid + split.test) == list(range(len(SMILES)))
    assert len(parts[0]) == 1
    assert "c1ccccc1" in parts[0]  # the largest group


def test_a_split_survives_json() -> None:
    for split in (random_split(20, 3), scaffold_split(SMILES)):
        assert Split.from_json(split.to_json()) == split
    with pytest.raises(ValueError, match="not a stored split"):
        Split.from_json('{"train": []}')


def test_wrong_fractions_and_overlaps_are_refused() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        random_split(10, 0, (0.8, 0.1, 0.2))
    with pytest.raises(ValueError, match="two parts"):
        Split((0, 1), (1,), ())
    with pytest.raises(ValueError, match="molecule 1, 'x'"):
        scaffold_split(["C", "x"])
