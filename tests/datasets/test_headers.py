"""The header of a table is found below titles, in two rows, and above a row of units."""

import pytest
from rdkit import Chem

from graphxai.datasets.molecule_reading import MoleculeError
from graphxai.datasets.tables.dialect import find_header
from graphxai.datasets.tables.table import open_table, structures_in


def rows(text):
    return [line.split(",") for line in text.splitlines()]


@pytest.mark.parametrize(
    ("text", "first", "count", "names"),
    [
        ("smiles,y\nCCO,1", 0, 1, ("smiles", "y")),
        ("cpd,y\nCCO,1", 0, 1, ("cpd", "y")),
        ("Report of May\n,,\nID,SMILES,y\na,CCO,1", 2, 1, ("ID", "SMILES", "y")),
        (",,A,,B,\nID,SMILES,IC50,n,IC50,n\na,CCO,1,2,3,4", 1, 1,
         ("ID", "SMILES", "A IC50", "A n", "B IC50", "B n")),
        ("ID,SMILES,A,,B\n,,IC50,n,IC50\na,CCO,1,2,3", 0, 2,
         ("ID", "SMILES", "A IC50", "A n", "B IC50")),
        ("ID,SMILES,IC50,t\n,,nM,h\na,CCO,1,2", 0, 2, ("ID", "SMILES", "IC50", "t")),
        ("SMILES,y\n,5\nCCO,1", 0, 1, ("SMILES", "y")),  # a row without a structure
        ("SMILES,y,z\n,low,\nCCO,1,", 0, 1, ("SMILES", "y", "z")),
        ("SMILES,,y\n,none,\nCCO,,1", 0, 1, ("SMILES", "column 2", "y")),
        ("drawn,note\nCCO,SMILES\nCCN,structure", 0, 1, ("drawn", "note")),  # rows of data
        ("mol,y\nCCO,1,smiles", 0, 1, ("mol", "y")),  # a remark beside a row of data
    ],
)  # fmt: skip
def test_a_header_is_known_by_the_title_of_the_structures(text, first, count, names):
    header = find_header(rows(text))
    assert (header.first, header.rows, header.names) == (first, count, names)


def test_a_row_of_units_gives_the_units():
    assert find_header(rows("ID,SMILES,IC50,t\n,,(nM),h\na,CCO,1,2")).units == {
        "IC50": "nM",
        "t": "h",
    }


def test_the_column_that_the_user_names_shows_which_row_is_the_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("Exported by the robot\n\nNo;Zeichnung;y\n1;CCO;2\n2;CCN;3\n")
    table = open_table(path, "Zeichnung")
    assert table.columns == ("No", "Zeichnung", "y")
    assert [record.cells["Zeichnung"] for record in table.records()] == ["CCO", "CCN"]
    assert "header: the row that begins with 'No'" in table.choice


def block(smiles):
    return Chem.MolToMolBlock(Chem.MolFromSmiles(smiles))


def test_sd_files_in_utf_16_are_read(tmp_path):
    path = tmp_path / "a.sdf"
    path.write_text(f"{block('CCO')}>  <pKi>\n7.5\n\n$$$$\n{block('CCN')}$$$$\n", "utf-16")
    assert structures_in(path) == ["CCO", "CCN"]
    assert open_table(path).columns == ("smiles", "name", "pKi")


def test_an_empty_record_is_called_one(tmp_path):
    path = tmp_path / "a.sdf"
    none = "\n\n\n  0  0  0  0  0  0  0  0  0  0999 V2000\nM  END\n"
    path.write_text(f"{block('CCO')}$$$$\n\n$$$$\n{none}$$$$\n")
    first, empty, without = structures_in(path)
    assert first == "CCO"
    assert isinstance(empty, MoleculeError)
    assert str(empty) == "the record is empty: it has no mol block."
    assert str(without) == "its mol block has no atoms."
