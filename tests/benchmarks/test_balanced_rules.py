"""Balanced molecules for a rare rule: all its positives, and negatives that resemble them."""

import pandas as pd

from balanced_rules import balanced_table, most_alike

BORON = ["OB(O)c1ccccc1", "CB(O)O", "OB(O)c1ccncc1", "B1OCCO1"]
PLAIN = [f"{'C' * n}O" for n in range(1, 20)] + ["OC(O)c1ccccc1", "OC(O)c1ccncc1", "c1ccccc1"]


def test_rare_positives_are_all_taken_with_a_few_negatives_each():
    labels = pd.DataFrame({"smiles": BORON + PLAIN, "boron": [True] * 4 + [False] * len(PLAIN)})
    table = balanced_table(labels, "boron", size=100, seed=0)
    positives = {
        text for text, answer in zip(table.smiles, table.of("boron"), strict=True) if answer
    }
    assert positives == set(BORON)
    assert len(table.smiles) == len(set(table.smiles)) == 5 * len(BORON)  # four negatives for each
    assert {"OC(O)c1ccccc1", "OC(O)c1ccncc1"} <= set(table.smiles)  # the hard ones
    few = balanced_table(labels, "boron", size=10, seed=1)
    assert few.of("boron").sum() == 4
    assert len(few.smiles) == 10


def test_each_positive_in_turn_gets_the_negative_most_like_it():
    alike = most_alike(BORON[:1] + BORON[2:3], PLAIN, 2)
    assert alike == ["OC(O)c1ccccc1", "OC(O)c1ccncc1"]
    assert len(set(most_alike(BORON[:1], PLAIN, 3))) == 3
