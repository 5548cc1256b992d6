"""Splits are disjoint, complete, repeatable, and a scaffold is never in two parts."""

import numpy as np
import pytest
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphxai.datasets.splits import (
    Split,
    cluster_split,
    given_split,
    random_split,
    scaffold_folds,
    scaffold_split,
    time_split,
)

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


def deepchem_split(smiles: list[str], first: int, second: int) -> list[list[int]]:
    """DeepChem's ScaffoldSplitter: sets by size, then by their first molecule, from the largest."""
    sets: dict[str, list[int]] = {}
    for place, text in enumerate(smiles):
        sets.setdefault(MurckoScaffold.MurckoScaffoldSmiles(text), []).append(place)
    ordered = sorted(sets.items(), key=lambda each: (len(each[1]), each[1][0]), reverse=True)
    train, valid, test = [], [], []
    for _, members in ordered:
        if len(train) + len(members) > first:
            if len(train) + len(valid) + len(members) > second:
                test += members
            else:
                valid += members
        else:
            train += members
    return [train, valid, test]


def test_scaffolds_of_equal_size_are_dealt_as_deepchem_deals_them() -> None:
    """Eight rings of two molecules each: which of them are tested depends on the ties alone."""
    rings = ("c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccsc1", "c1ccoc1", "C1CCCC1", "C1CC1", "C1CCC1")
    smiles = [f"{start}{ring}" for start in ("C", "O") for ring in rings]
    split = scaffold_split(smiles, (0.5, 0.25, 0.25))
    parts = [split.train, split.valid, split.test]
    assert parts == [tuple(sorted(part)) for part in deepchem_split(smiles, 8, 12)]
    assert split.test == (0, 1, 8, 9)  # the scaffolds that come first


def test_a_split_survives_json() -> None:
    for split in (random_split(20, 3), scaffold_split(SMILES)):
        assert Split.from_json(split.to_json()) == split
    with pytest.raises(ValueError, match="not a stored split"):
        Split.from_json('{"train": []}')


def test_a_cluster_of_similar_molecules_is_in_one_part() -> None:
    series = ["C" * n + "c1ccc(O)cc1" for n in range(8, 24)]  # each like the next
    others = ["CC(=O)Nc1ccncc1", "O=S(=O)(N)c1ccsc1", "FC(F)(F)C1CCNC1", "N#CC1CCOC1"]
    split = cluster_split(others + series)
    assert set(split.train) == set(range(4, 20))
    assert split.kind == "clusters"
    assert cluster_split(others + series) == split


def test_the_parts_of_a_list_are_in_the_order_of_the_split():
    split = Split(train=(4, 0), valid=(2,), test=(3, 1))
    assert split.parts_of("abcde") == (["e", "a"], ["c"], ["d", "b"])


def test_the_newest_molecules_are_tested() -> None:
    days = [f"2024-{month:02d}-15" for month in (5, 1, 9, 12, 3, 7, 2, 11, 4, 10)]
    split = time_split(days)
    assert (split.valid, split.test) == ((7,), (3,))
    years = ["2010", "1999", "2020.5", "2001", "2003", "2004", "2005", "2006", "2007", "2008"]
    assert time_split(years).test == (2,)
    with pytest.raises(ValueError, match=r"'03\.04\.2024' is not a time: write all times as dates"):
        time_split([*days, "03.04.2024"])
    with pytest.raises(ValueError, match="all molecules have the same time: give a column with"):
        time_split(["2024-01-15", "2024-01-15T00:00"] * 5)


@pytest.mark.parametrize("form", ["{m:02d}.{y}", "{m}/{y}", "{y}-{m:02d}"])
def test_months_are_sorted_by_year_first(form: str) -> None:
    dates = [(2017, 3), (2016, 12), (2018, 1), (2017, 11), (2015, 5), (2016, 1), (2014, 12)]
    times = [form.format(y=year, m=month) for year, month in dates]
    split = time_split(times, (4 / 7, 1 / 7, 2 / 7))
    assert split.test == (2, 3)
    assert split.valid == (0,)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["05.2017", "13.2017", "04.2018"], "'05.2017' looks like a month, but '13.2017' does not"),
        (["2017"] * 9 + ["05.2017"], "'05.2017' looks like a month, but '2017' does not"),
        (["01.2010", "1.201"], "'01.2010' looks like a month, but '1.201' does not"),
        (["05.17", "11.16"], "'05.17' may be a month or a number"),
    ],
)
def test_what_may_be_a_month_or_a_number_is_refused(times: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        time_split(times)


def test_an_empty_cell_is_named_with_its_row() -> None:
    with pytest.raises(ValueError, match=r"an empty cell is not a part of a split \(row 7\)"):
        given_split(["train", "", "test"], rows=[4, 7, 9])
    with pytest.raises(ValueError, match=r"an empty cell is not a time \(row 7\)"):
        time_split(["2024-01-01", "", "2024-02-01"], rows=[4, 7, 9])


def test_given_parts_are_kept_and_a_lacking_validation_part_is_drawn_from_training() -> None:
    words = ["training"] * 18 + ["Test"] * 3
    split = given_split(words, seed=1)
    assert split.test == (18, 19, 20)
    assert len(split.valid) == 2
    assert set(split.train) | set(split.valid) == set(range(18))
    with pytest.raises(ValueError, match="no molecule is marked 'test'"):
        given_split(["train", "valid"])


def test_a_scaffold_is_in_one_fold_only_unless_it_fills_more() -> None:
    names = [MurckoScaffold.MurckoScaffoldSmiles(text) for text in SMILES]
    folds = scaffold_folds(SMILES, 3)
    assert sorted(np.concatenate(folds).tolist()) == list(range(len(SMILES)))
    where = {k: number for number, fold in enumerate(folds) for k in fold}
    for scaffold in ("c1ccncc1", "C1CCCCC1", ""):
        assert len({where[k] for k, name in enumerate(names) if name == scaffold}) == 1
    assert len({where[k] for k, name in enumerate(names) if name == "c1ccccc1"}) > 1
    assert {len(fold) for fold in folds} == {7}


def test_wrong_fractions_and_overlaps_are_refused() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        random_split(10, 0, (0.8, 0.1, 0.2))
    with pytest.raises(ValueError, match="two parts"):
        Split((0, 1), (1,), ())
    with pytest.raises(ValueError, match="molecule 1, 'x'"):
        scaffold_split(["C", "x"])
