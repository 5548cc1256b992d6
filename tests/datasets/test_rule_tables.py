"""Molecules are labelled by several rules at once."""

import numpy as np
import pytest
from rdkit import Chem

from graphxai.datasets.rule_molecules import RuleTable, read_rule_table, rule_table
from graphxai.datasets.rules import RULES
from graphxai.datasets.splits import Split

ALKANES = ["C" * n for n in range(3, 40)]
SMILES = [*ALKANES, "CCCl", "CCBr", "OB(O)c1ccccc1", "CP", "CCP", "C1CC", "CCO", "OCC"]
CHOSEN = ("halogen", "phosphorus", "boron", "logp")


def test_labels_are_the_answers_of_the_rules():
    table = rule_table(SMILES, CHOSEN, size=30)
    assert len(set(table.smiles)) == len(table.smiles) == 30
    for name in CHOSEN:
        expected = [RULES[name].label(smiles) for smiles in table.smiles]
        np.testing.assert_allclose(table.of(name), np.float32(expected))
    with pytest.raises(ValueError, match="no rule 'pains'"):
        table.of("pains")


def test_molecules_that_answer_a_rare_rule_are_all_taken():
    table = rule_table(SMILES, CHOSEN, size=20)
    wanted = {Chem.CanonSmiles(smiles) for smiles in ("OB(O)c1ccccc1", "CP", "CCP")}
    assert wanted <= set(table.smiles)


def test_rare_molecules_are_preferred_for_half_of_the_size_and_not_beyond():
    """Seven acids among 171 alkanes: by chance alone, a table of 12 would hold hardly any."""
    acids = ["OB(O)c1ccccc1" + "C" * n for n in range(7)]
    alkanes = [f"{'C' * n}C({'C' * m})C" for n in range(1, 19) for m in range(1, n + 1)]
    table = rule_table([*acids, *alkanes], ["boron"], size=12)
    assert table.of("boron").sum() == 6


def test_one_atom_is_a_molecule_and_no_atom_is_none():
    table = rule_table(["C", "", *ALKANES], ["halogen"], size=len(ALKANES) + 1, max_atoms=39)
    assert set(table.smiles) == {"C", *ALKANES}
    smaller = rule_table(["C", "", *ALKANES], ["halogen"], size=len(ALKANES) + 1, max_atoms=38)
    assert set(smaller.smiles) == {"C", *ALKANES[:-1]}


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = rule_table(SMILES, CHOSEN, size=30)
    table.save(tmp_path / "table.csv")
    again = read_rule_table(tmp_path / "table.csv")
    assert again.smiles == table.smiles
    assert [rule.name for rule in again.rules] == list(CHOSEN)
    np.testing.assert_allclose(again.labels, table.labels, rtol=1e-6)
    for part in ("train", "valid", "test"):
        assert sorted(getattr(again.split, part)) == sorted(getattr(table.split, part))


def test_molecules_are_told_apart_by_whether_an_atom_is_true():
    table = rule_table(SMILES, CHOSEN, size=40, fractions=(0.1, 0.1, 0.8))
    molecules = table.with_truth("halogen")
    assert all(truth.any() and not truth.all() for _, truth in molecules)
    nothing = table.without_truth("halogen")
    assert not any(RULES["halogen"].label(smiles) for smiles in nothing)
    assert len(molecules) + len(nothing) == len(table.split.test)
    assert len(table.without_truth("halogen", 3)) == 3
    assert table.without_truth("logp") == []
    assert len(table.with_truth("logp", 2)) == 2


def test_a_molecule_whose_contributions_cancel_has_a_truth_as_well():
    labels = np.zeros((3, 1), dtype=np.float32)
    table = RuleTable((RULES["logp"],), ("CC", "CO", "CN"), labels, Split((), (), (0, 1, 2)))
    assert [smiles for smiles, _ in table.with_truth("logp")] == ["CC", "CO", "CN"]


def test_another_table_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("smiles,activity\nC,1\n")
    with pytest.raises(ValueError, match="not a table of rules"):
        read_rule_table(tmp_path / "table.csv")
    (tmp_path / "table.csv").write_text("smiles,part,activity\nC,train,1\n")
    with pytest.raises(ValueError, match="not a table of rules"):
        read_rule_table(tmp_path / "table.csv")
    (tmp_path / "table.csv").write_text("smiles,part,logp\nC,somewhere,1\n")
    with pytest.raises(ValueError, match="row 2"):
        read_rule_table(tmp_path / "table.csv")
    with pytest.raises(ValueError, match="too few"):
        rule_table(["C", "CC"], CHOSEN)
