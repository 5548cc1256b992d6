"""Similarities to many molecules at once are those that RDKit computes one by one."""

import numpy as np
from rdkit import Chem
from rdkit.DataStructs import BulkTanimotoSimilarity, CreateFromBitString

from graphxai.datasets.fingerprints import BITS, BitTable, ecfp4_bits, packed_bits

SMILES = ("C", "CCO", "CC(=O)Oc1ccccc1C(=O)O", "CN1CCC[C@H]1c1cccnc1", "[Na+].[Cl-]", "*C")


def test_the_similarities_are_tanimotos_to_the_bit():
    bits = [ecfp4_bits(Chem.MolFromSmiles(text)) for text in SMILES]
    table = BitTable(packed_bits(bits))
    for each in bits:
        assert table.similarities(each).tolist() == BulkTanimotoSimilarity(each, bits)


def test_molecules_may_share_more_bits_than_a_byte_counts():
    rng = np.random.default_rng(0)
    rows = ["".join(map(str, rng.integers(2, size=BITS))) for _ in range(5)]
    bits = [CreateFromBitString(row) for row in rows]
    table = BitTable(packed_bits(bits))
    for each in bits:
        assert each.GetNumOnBits() > 255
        assert table.similarities(each).tolist() == BulkTanimotoSimilarity(each, bits)
