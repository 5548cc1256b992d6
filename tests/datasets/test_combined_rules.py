"""Rules whose parts need each other: the case, the answer and the sign of every atom."""

import numpy as np
import pytest
from rdkit import Chem

from graphxai.datasets.rule_molecules import rule_dataset
from graphxai.datasets.rules import COMBINED_RULES, get_rule
from graphxai.evaluation.truth_metrics import roc_auc_against, signed_roc_auc, unsigned_roc_auc

MOLECULES = [
    ("xor", "CCCl", "A", True, {2: 1}),
    ("xor", "CC(=O)O", "B", True, {1: 1, 2: 1, 3: 1}),
    ("xor", "ClCC(=O)O", "both", False, {0: -1, 2: -1, 3: -1, 4: -1}),
    ("xor", "CCC", "neither", False, {}),
    ("a-not-b", "CCCl", "A", True, {2: 1}),
    ("a-not-b", "OCCCl", "both", False, {0: -1, 3: 1}),
    ("a-not-b", "CCO", "B", False, {}),  # there is nothing that it could deny
    ("alike", "FCCCCF", "alike", True, {0: 1, 5: 1}),
    ("alike", "FCCCCCl", "different", False, {0: -1, 5: -1}),
    ("alike", "FCCF", "", False, {}),  # too near
    ("two-chlorines", "ClCC(F)Cl", "two", True, {0: 1, 4: 1}),
    ("two-chlorines", "ClCC(F)F", "one", False, {}),
    ("two-chlorines", "FCC(F)F", "none", False, {}),
    ("two-chlorines", "CCCl", "", False, {}),
]


@pytest.mark.parametrize(("rule", "smiles", "case", "answer", "signs"), MOLECULES)
def test_what_a_part_says_depends_on_the_other(rule, smiles, case, answer, signs):
    task = get_rule(rule)
    truth = task.truth(smiles)
    assert {int(k): int(truth[k]) for k in np.flatnonzero(truth)} == signs
    assert truth.dtype == np.int8
    assert task.label(smiles) is answer
    assert task.case(Chem.MolFromSmiles(smiles)) == case


def test_a_data_set_has_as_many_molecules_of_each_case():
    a, b = ["CCCCCCCCCC"[:n] for n in range(1, 9)], "C(=O)O"
    smiles = [*a, *(f"{x}Cl" for x in a), *(f"{x}{b}" for x in a), *(f"Cl{x}{b}" for x in a)]
    dataset = rule_dataset(smiles, "xor", size=24)
    cases = [COMBINED_RULES["xor"].case(Chem.MolFromSmiles(s)) for s in dataset.smiles]
    assert {case: cases.count(case) for case in cases} == dict.fromkeys(
        ("both", "A", "B", "neither"), 6
    )
    assert dataset.labels.sum() == 12
    alone = [f"{x}Cl" for x in a]
    with pytest.raises(ValueError, match="0 'both'"):
        rule_dataset(alone, "xor", size=24)


def test_atoms_for_and_against_are_scored_apart():
    relevance, truth = [3.0, 1.0, -2.0, -1.0, 0.0], np.array([1, 0, -1, 0, 0], dtype=np.int8)
    assert signed_roc_auc(relevance, truth) == 1
    assert roc_auc_against(relevance, truth) == 1
    assert unsigned_roc_auc(relevance, truth) == 1
    assert signed_roc_auc([-3.0, 1.0, 2.0, -1.0, 0.0], truth) == 0
    assert unsigned_roc_auc([-3.0, 1.0, 2.0, -1.0, 0.0], truth) == 1
    assert np.isnan(signed_roc_auc(relevance, np.zeros(5, dtype=np.int8)))
