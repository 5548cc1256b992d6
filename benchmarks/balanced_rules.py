"""Draw molecules for a rule whose positives are rare: all of them, and negatives like them."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator
from rdkit.DataStructs import BulkTanimotoSimilarity

from graphxai.datasets.molecules import load_bace
from graphxai.datasets.rule_molecules import local_smiles
from graphxai.datasets.rule_tables import RuleTable
from graphxai.datasets.rules import RULES
from graphxai.datasets.splits import random_split

LARGEST = 60  # atoms
NEGATIVES = 4  # at most so many for each positive
POOL = 20_000  # negatives among which those like the positives are looked for
# More test molecules than usual, as some rules have few positives
FRACTIONS = (0.7, 0.1, 0.2)


def smiles_of(data: Path | None) -> list[str]:
    """Return the SMILES of all tables of molecules in the data folder."""
    smiles = local_smiles(data) + [graph.smiles for graph in load_bace(data)]
    tables = sorted(data.glob("moleculeace/CHEMBL*.csv")) if data else []
    return smiles + [text for table in tables for text in pd.read_csv(table)["smiles"]]


def labelled(data: Path | None, rules: Sequence[str], path: Path) -> pd.DataFrame:
    """Return each distinct molecule once, with a column `smiles` and one for every rule.

    The table is kept at `path`, as the labels of 70,000 molecules take minutes.
    """
    if path.exists():
        return pd.read_csv(path)
    rows = {}
    with rdBase.BlockLogs():
        for text in smiles_of(data):
            mol = Chem.MolFromSmiles(text) if text else None
            if mol is None or not 0 < mol.GetNumAtoms() <= LARGEST:
                continue
            canonical = Chem.MolToSmiles(mol)
            if canonical not in rows and Chem.MolFromSmiles(canonical) is not None:
                rows[canonical] = [bool(RULES[name].label(canonical)) for name in rules]
    table = pd.DataFrame(rows.values(), columns=list(rules))
    table.insert(0, "smiles", list(rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)
    return table


def balanced_table(labels: pd.DataFrame, name: str, size: int, seed: int) -> RuleTable:
    """Choose up to `size` molecules for a rule, half of them positives if there are enough.

    Where positives are fewer, there are up to four negatives for each. Half of the negatives are
    hard: each is the one most like some positive, by the Tanimoto similarity of ECFP4, among 20,000
    that are drawn. The molecules are distinct, so that none of the test part was learned.

    Args:
        labels: as from `labelled`.
        name: the rule.
        size: the largest number of molecules.
        seed: seed of the choice and of the split.
    """
    chance = random.Random(seed)
    answers = labels[name].to_numpy()
    positives, pool = list(labels.smiles[answers]), list(labels.smiles[~answers])
    positives = chance.sample(positives, min(len(positives), size // 2))
    pool = chance.sample(pool, min(len(pool), POOL))
    wanted = min(size - len(positives), NEGATIVES * len(positives))
    alike = most_alike(positives, pool, wanted // 2)
    rest = [text for text in pool if text not in set(alike)]
    chosen = positives + alike + rest[: wanted - len(alike)]
    chance.shuffle(chosen)
    positive = set(positives)
    values = np.array([[text in positive] for text in chosen], dtype=np.float32)
    split = random_split(len(chosen), seed, FRACTIONS)
    return RuleTable((RULES[name],), tuple(chosen), values, split)


def most_alike(positives: Sequence[str], pool: Sequence[str], number: int) -> list[str]:
    """Return `number` molecules of the pool, by turns the next one most like each positive."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    with rdBase.BlockLogs():
        bits = [generator.GetFingerprint(Chem.MolFromSmiles(text)) for text in pool]
        of_positives = [generator.GetFingerprint(Chem.MolFromSmiles(text)) for text in positives]
    ranks = -(-number // len(positives))  # rounded up
    near = [
        np.argsort(BulkTanimotoSimilarity(one, bits))[::-1][: 3 * ranks] for one in of_positives
    ]
    taken: dict[int, None] = {}
    for rank in range(3 * ranks):
        for order in near:
            if len(taken) < number:
                taken.setdefault(int(order[rank]))
    return [pool[k] for k in taken]
