"""Salts, charges and tautomers of one molecule become the same parent, in training and after."""

import pytest
from rdkit import Chem

from graphxai.datasets.standardise import standardised
from graphxai.learning.cleaning import clean_table


@pytest.mark.parametrize(
    ("written", "parent"),
    [
        ("CC(=O)[O-].[Na+]", "CC(=O)O"),
        ("C[NH3+].[Cl-]", "CN"),
        ("Oc1ccccn1", "O=c1cccc[nH]1"),
        ("C[N+](=O)[O-]", "C[N+](=O)[O-]"),
        ("C1CC", "C1CC"),
        ("", ""),
    ],
)
def test_the_parent_of_a_molecule(written, parent):
    assert standardised(written) == parent
    mol = Chem.MolFromSmiles(written)
    if mol is not None and written:
        assert Chem.MolToSmiles(standardised(mol)) == parent


def test_salts_of_one_molecule_are_merged_and_reported(tmp_path):
    path = tmp_path / "salts.csv"
    rows = [f"{'C' * n}C(=O)O,{n}" for n in range(1, 21)] + ["CC(=O)[O-].[Na+],3"]
    path.write_text("smiles,y\n" + "\n".join(rows) + "\n")
    assert len(clean_table(path, "smiles", ["y"]).graphs) == 21
    table = clean_table(path, "smiles", ["y"], standardise=True)
    assert len(table.graphs) == 20
    assert table.y[0, 0] == 2  # the median of 1 and 3
    changed = next(finding for finding in table.findings if finding.check == "standardised")
    assert [row.row for row in changed.rows] == [21]
