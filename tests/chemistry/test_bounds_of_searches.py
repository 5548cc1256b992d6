"""Calls into libraries that could take for ever have a bound by time or by size."""

import time
from itertools import combinations

import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.matching import SearchTimeError, matches_in_time
from graphxai.chemistry.schemes import named_scheme
from graphxai.chemistry.search.counterfactuals import counterfactuals
from graphxai.datasets import matched_pairs as pairs

FULLERENE = (
    "c12c3c4c5c1c1c6c7c2c2c8c3c3c9c4c4c%10c5c5c1c1c6c6c%11c7c2c2c7c8c3c3c8c9c4c4c9c%10c5c5c1c1c6c6"
    "c%11c2c2c7c3c3c8c4c4c9c5c1c1c6c2c3c41"
)
VAGUE = "~".join(["*"] * 40 + ["[#92]"])  # a path of 40 atoms to an atom that is not there
DRUG = "CC(C)(C)NC(=O)[C@@H]1CN(Cc2cccnc2)CCN1C[C@@H](O)C[C@@H](Cc1ccccc1)C(=O)N"


@pytest.mark.parametrize("pattern", [VAGUE, f"[$({VAGUE})]"], ids=["plain", "nested"])
def test_a_search_that_would_not_end_is_stopped_and_says_what_to_do(pattern):
    begun = time.process_time()
    with pytest.raises(SearchTimeError, match=r"took more than 0\.2 s: name the elements"):
        matches_in_time(Chem.MolFromSmiles(FULLERENE), Chem.MolFromSmarts(pattern), seconds=0.2)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("smarts", ["c1ccccc1", "C(=O)N", "[$(CC(=O))]", "C~C~C", "[#92]"])
@pytest.mark.parametrize("unique", [True, False])
def test_a_search_in_time_has_the_matches_of_rdkit(smarts, unique):
    mol, pattern = Chem.MolFromSmiles(DRUG), Chem.MolFromSmarts(smarts)
    expected = mol.GetSubstructMatches(pattern, uniquify=unique)
    assert matches_in_time(mol, pattern, uniquify=unique) == expected


def test_patterns_of_users_are_searched_in_time():
    with pytest.raises(SearchTimeError):
        named_scheme([VAGUE], Chem.MolFromSmiles(FULLERENE))
    with pytest.raises(SearchTimeError):
        counterfactuals("bace", FULLERENE, "active", keep=VAGUE)


def test_a_core_that_many_molecules_share_gives_the_pairs_of_its_first_ones(monkeypatch):
    series = [Chem.MolFromSmiles(f"{'C' * k}Oc1ccc2ccccc2c1CCCCC") for k in range(1, 7)]
    every = pairs.matched_pairs(series)
    assert set(every) == set(combinations(range(6), 2))
    monkeypatch.setattr(pairs, "MOST_ALIKE", 3)
    with pytest.warns(UserWarning, match="6 molecules share the core .* the first 3"):
        some = pairs.matched_pairs(series)
    assert {pair: every[pair] for pair in some} == some
    assert set(combinations(range(3), 2)) <= set(some)


def test_only_parts_of_pairs_that_are_wanted_are_written(monkeypatch):
    series = [Chem.MolFromSmiles(f"c1ccc2ccccc2c1CCC{part}") for part in ("N", "O", "Cl", "Br")]
    written, write = [], pairs.SingleBondCut.part_smiles
    monkeypatch.setattr(
        pairs.SingleBondCut, "part_smiles", lambda cut, mol: written.append(mol) or write(cut, mol)
    )
    assert pairs.matched_pairs(series, lambda i, j: False) == {}
    assert written == []
    assert set(pairs.matched_pairs(series, lambda i, j: (i, j) == (1, 3))) == {(1, 3)}
    assert {series.index(mol) for mol in written} == {1, 3}


def test_molecules_too_large_to_be_compared_have_no_pairs():
    chain = "C" * 200
    assert pairs.matched_pairs([Chem.MolFromSmiles(chain + end) for end in "NO"]) == {}


def test_pairs_of_a_long_table_are_those_of_its_first_compounds(monkeypatch):
    monkeypatch.setattr("graphxai.chemistry.measurements.MOST_COMPARED", 2)
    rows = [("c1ccccc1CCN", 5.0), ("Clc1ccccc1CCN", 6.0), ("Fc1ccccc1CCN", 9.0)]
    with pytest.warns(UserWarning, match="Pairs are those of the first 2 compounds"):
        table = gx.Measurements.of(rows)
    assert table.about(rows[0][0], rows[1][0]).changes == (1.0,)
    assert table.about(rows[0][0], rows[2][0]).changes == ()
    assert table.about(rows[0][0], rows[2][0]).after == 9.0
