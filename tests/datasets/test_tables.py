"""The reader of tables takes every format and dialect that people have, and refuses traps."""

import csv
import gzip
import io
import math
import os
import re
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem

from graphxai.datasets.cell_numbers import parsed_numbers
from graphxai.datasets.molecule_reading import MoleculeError
from graphxai.datasets.tables import opening
from graphxai.datasets.tables import rows as rows_module
from graphxai.datasets.tables import table as table_module
from graphxai.datasets.tables.dialect import Dialect, text_layout
from graphxai.datasets.tables.opening import TableError
from graphxai.datasets.tables.rows import as_text
from graphxai.datasets.tables.structures import records_in
from graphxai.datasets.tables.table import column_values, open_table, structures_in


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def smiles_of(path: Path) -> list[str]:
    table = open_table(path)
    name = table.structures.name
    return [record.cells[name] for record in table.records([name])]


TEXTS = {  # the same three molecules, as different programs write them
    "comma": "smiles,name\nCCO,a\nCCN,b\nc1ccccc1,c\n",
    "semicolon, Excel's first line": "sep=;\r\nSMILES;name\r\nCCO;a\r\nCCN;b\r\nc1ccccc1;c\r\n",
    "quoted first line": '"sep=|"\nSMILES|name\nCCO|a\nCCN|b\nc1ccccc1|c\n',
    "bar": "id|canonical_smiles\n1|CCO\n2|CCN\n3|c1ccccc1\n",
    "tab": "id\tIsomeric SMILES\n1\tCCO\n2\tCCN\n3\tc1ccccc1\n",
    "comment sign": "#smiles,name\nCCO,a\nCCN,b\nc1ccccc1,c\n",
    "line feeds of old Macs": "Smiles,name\rCCO,a\rCCN,b\rc1ccccc1,c\r",
    "one column": "SMILES\nCCO\nCCN\nc1ccccc1\n",
    "empty columns at the end": "smiles,name,,\nCCO,a,,\nCCN,b\nc1ccccc1,c,,\n".replace(
        ",b", ",b,"
    ),
    "by content": "compound id,drawn\nX1,CCO\nX2,CCN\nX3,c1ccccc1\n",
    "list": "CCO a\nCCN\tb\n\nc1ccccc1 benzene, pure\n",
    "list with header": "smiles name\nCCO a\nCCN b\nc1ccccc1 c\n",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_the_same_table_is_read_whatever_program_wrote_it(tmp_path: Path, kind: str) -> None:
    assert smiles_of(written(tmp_path, "table.txt", TEXTS[kind])) == ["CCO", "CCN", "c1ccccc1"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_every_encoding_of_excel_is_read_and_written_back_for_excel(
    tmp_path: Path, encoding: str
) -> None:
    text = "Säure;SMILES;pKa\nEssigsäure;CC(=O)O;4,76\nÄpfelsäure;OC(CC(=O)O)C(=O)O;3,46\n"
    table = open_table(written(tmp_path, "table.csv", text.encode(encoding)))
    assert table.dialect == Dialect(";", ",", byte_order_mark=True)
    assert [record.cells["Säure"] for record in table.records()] == ["Essigsäure", "Äpfelsäure"]


@pytest.mark.parametrize("letter", ["Ж", "分", "🧪"])
def test_a_file_in_utf_8_is_not_one_of_excel_wherever_its_start_is_cut(letter: str) -> None:
    content = ("smiles,name\nCCO," + letter * 20).encode()
    for end in range(len(content) - 8, len(content)):
        assert not text_layout(content[:end], None).dialect.byte_order_mark


def test_a_stray_zero_byte_does_not_make_a_file_utf_16() -> None:
    assert text_layout(b"smiles,name\nCCO,\0\n", None).encoding == "utf-8-sig"


def test_the_separator_divides_the_larger_share_of_the_rows(tmp_path: Path) -> None:
    """A comma divides more lines into two, but a semicolon divides every row."""
    text = 'smiles,solvent;note\nCCO,water;"clear\nand cold"\nCCN,water;"one\ntwo"\n'
    assert open_table(written(tmp_path, "a.csv", text)).dialect.separator == ";"


@pytest.mark.parametrize(("first", "word"), [("", "A"), ("sep=;\n", "z")])
def test_a_quote_may_hold_lines_but_has_to_be_closed(tmp_path: Path, first: str, word: str) -> None:
    text = first + 'note;smiles\n"plain";CCN\n"two\nlines";CCO\n'
    notes = [row.cells["note"] for row in open_table(written(tmp_path, "a.csv", text)).records()]
    assert notes == ["plain", "two\nlines"]
    table = open_table(written(tmp_path, "b.csv", text + f'"{word};CCC\nmore;CCS\n'))
    with pytest.raises(TableError, match=f"in line {5 + bool(first)} is never closed"):
        list(table.records())


def test_lines_of_a_list_have_extensions_of_chemaxon_and_names(tmp_path: Path) -> None:
    lines = ("CC* |$;;R1$| ethyl group", "CCO", "CCN a|b", "CCC |c", "CCS |", "C1CC open ring")
    table = open_table(written(tmp_path, "list.smi", "\n".join(lines)))
    rows = [(row.number, *row.cells.values()) for row in table.records()]
    assert rows == [
        (1, "CC* |$;;R1$|", "ethyl group"),
        (2, "CCO", ""),
        (3, "CCN", "a|b"),
        (4, "CCC", "|c"),
        (5, "CCS", "|"),
        (6, "C1CC", "open ring"),
    ]


def test_rows_are_counted_for_the_bar_of_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "HEAD", 16)  # bytes that are counted at a time
    block = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO"))
    for name, content, expected in (
        ("one.csv", "smiles,x\nCCO,1\n", 1),
        ("five.csv", "smiles,x\n" + "CCO,1\n" * 5, 5),
        ("mac.csv", "smiles,x\r" + "CCO,1\r" * 5, 5),
        ("five.smi", "CCO a name\n" * 5, 5),
        ("three.sdf", f"{block}$$$$\n" * 3, 3),
    ):
        assert open_table(written(tmp_path, name, content)).count() == expected, name
    openpyxl, _ = pytest.importorskip("openpyxl"), pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"smiles": ["CCO"] * 4})
    frame.to_parquet(tmp_path / "four.parquet")
    book = openpyxl.Workbook()
    for cell in ("smiles", "CCO", "CCN"):
        book.active.append([cell])
    book.save(tmp_path / "two.xlsx")
    assert open_table(tmp_path / "four.parquet").count() == 4
    assert open_table(tmp_path / "two.xlsx").count() == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999_999_999_999_999.0, "999999999999999"),
        (1e15, "1000000000000000.0"),
        (-1e18, "-1e+18"),
        (math.inf, ""),
        (datetime(2024, 5, 17), "2024-05-17"),
        (datetime(2024, 5, 17, 8, 30), "2024-05-17 08:30:00"),
        (datetime(2024, 5, 17, tzinfo=UTC), "2024-05-17 00:00:00+00:00"),
        (datetime(2024, 5, 17, 8, 30, tzinfo=UTC), "2024-05-17 08:30:00+00:00"),
        (b"CCO", "CCO"),
    ],
)
def test_a_typed_cell_is_the_text_that_a_spreadsheet_shows(value: object, text: str) -> None:
    assert as_text(value) == text


def test_a_packed_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    packed = gzip.compress(b"smiles,x\nCCO,1\n")
    for name in ("table.csv.gz", "table.csv"):
        assert smiles_of(written(tmp_path, name, packed)) == ["CCO"]
    equal = gzip.compress(b"smiles\n" + b"C\n" * 20_000)  # to a 500th, which is no trap when small
    assert len(smiles_of(written(tmp_path, "equal.csv.gz", equal))) == 20_000
    damaged = written(tmp_path, "half.csv.gz", gzip.compress(os.urandom(10**5))[:-100])
    with pytest.raises(TableError, match="damaged"):
        list(open_table(damaged, "smiles").records())


def test_the_choice_of_the_column_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "id,Canonical_SMILES\n1,CCO\n")
    assert open_table(path).choice == (
        "structures: column 'Canonical_SMILES', by its name; names: column 'id'"
    )
    asked = open_table(path, "canonical_smiles")
    assert (asked.structures.name, asked.choice) == ("Canonical_SMILES", "names: column 'id'")
    path = written(tmp_path, "b.csv", "id,drawn\nX1,CCOC\nX2,c1ccccc1\n")
    assert "the only one whose cells can be read as SMILES" in open_table(path).choice
    assert open_table(written(tmp_path, "c.csv", "smiles,x\nCCO,1\n")).choice == ""
    path = written(tmp_path, "d.csv", "mol,smi\nCHEMBL1,CCOC\nCHEMBL2,CCCC\n")
    assert open_table(path).structures.name == "smi"  # `mol` holds names
    path = written(tmp_path, "e.csv", "Structure;pIC50\nC1CC;5,2\nCCOC;6,1\nc1ccccc1;7,0\n")
    assert open_table(path).structures.name == "Structure"  # despite a ring that is not closed
    path = written(tmp_path, "f.csv", "Ligand (SMILES),x\nCCOCC,1\nnot drawn yet,2\nCCCC,3\n")
    assert open_table(path).structures.name == "Ligand (SMILES)"  # half of the cells may be wrong
    path = written(tmp_path, "h.csv", "smiles,y,x,y,z,z\nCCO,1,2,3,4,5\n")
    assert open_table(path).choice == (
        "not read: columns 'y', 'z', as several have the name; rename them"
    )
    cells = ["CCOCC", "c1ccccc1", "CCCC(", "CCCN", "CCCO"]
    path = written(tmp_path, "g.csv", "drawn,x\n" + "".join(f"{cell},1\n" for cell in cells))
    assert open_table(path).structures.name == "drawn"  # and a fifth of them under any name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (",".join(f"c{k}" for k in range(33)) + "\n", "its columns: 'c0', .*, 'c29' and 3 more."),
        ("a,b\n1,2\n", "its columns: 'a', 'b'[.]$"),
        ("a,b\n1,2\n", "no column of structures.*--smiles-column.*'a', 'b'"),
        ("a,b\nCCOCC,CCCC\n", "several columns of structures, 'a', 'b': name it with"),
        ("Smiles,SMILES\nCCO,CCN\n", "several columns of structures"),
        ("a,ligand smiles\nCCOCC,CCCC\nCCCCO,CCC(\n", "several columns of structures"),
        ("a,b\nCCOCC,1\nCCCC(,2\n", "no column of structures"),
        ("CCO,5\nCCN,6\n", "no header.*first line is a molecule"),
        ("", "the file is empty"),
    ],
)
def test_a_column_of_structures_that_cannot_be_told_is_asked_for(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(TableError, match=words):
        open_table(written(tmp_path, "table.csv", text)).structures  # noqa: B018


def test_rows_that_do_not_fit_the_header_are_named_and_give_no_cells(tmp_path: Path) -> None:
    text = "smiles,pIC50,name\nCCO,5,1,cmpd1\nCCN,6.2,cmpd2\nCCC\nCCS,6,salt, wet\nCCF,7,x,,\n"
    records = list(open_table(written(tmp_path, "table.csv", text)).records(["smiles", "name"]))
    assert [record.number for record in records] == [1, 2, 3, 4, 5]
    assert [record.cells["smiles"] for record in records] == ["", "CCN", "", "", "CCF"]
    assert "'5,1' may be a number with a decimal comma" in records[0].problem
    assert "1 cell, the header has 3" in records[2].problem
    assert "put a cell that contains ',' between double quotes" in records[3].problem
    tabs = written(tmp_path, "tabs.txt", "smiles\tpIC50\nCCO\t5\t1\n")
    (record,) = open_table(tabs, "smiles").records(["smiles"])
    assert r"put a cell that contains '\t' between double quotes" in record.problem


def test_every_record_of_an_sd_file_is_counted(tmp_path: Path) -> None:
    """RDKit's own readers lose records after a line with only a space or without a name.

    See rdkit issues 4139 and 9068.
    """
    block = Chem.MolToMolBlock(Chem.MolFromSmiles("C[C@H](N)C(=O)O"))
    records = [
        f"{block}> 12 <ID> (3)\nfirst\n\n",
        f"{block}>  <ID>\nsecond\n \n",
        f"{block}>\nno name\n\n>  <pKa>\n2.3\n\n",
        "nothing here\n",
        f"{block}>  <ID>\nfifth\nof two lines\n\n>  <pKa> (5)\n>10\n\n",
    ]
    path = written(tmp_path, "set.sdf", "$$$$\n".join(records))  # without a last $$$$
    table = open_table(path)
    assert table.columns == ("smiles", "name", "ID", "pKa")
    rows = list(table.records())
    assert [row.cells["ID"] for row in rows] == ["first", "second", "", "", "fifth\nof two lines"]
    assert [row.cells["pKa"] for row in rows] == ["", "", "2.3", "", ">10"]
    assert [row.cells["smiles"] for row in rows] == ["C[C@H](N)C(=O)O"] * 3 + [""] + [
        "C[C@H](N)C(=O)O"
    ]
    assert "mol block" in rows[3].problem
    molecules = structures_in(Chem.SDMolSupplier(str(path)))
    assert [isinstance(mol, MoleculeError) for mol in molecules or []] == [
        *[False] * 3,
        True,
        False,
    ]


def test_items_called_like_the_first_columns_of_an_sd_file_are_kept(tmp_path: Path) -> None:
    block = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO"))
    items = ">  <name>\nethanol\n\n>  <smiles>\nOCC\n\n>  <NAME>\nEtOH\n\n"
    table = open_table(written(tmp_path, "set.sdf", f"{block}{items}$$$$\ntitle{block}{items}"))
    assert table.columns == ("smiles", "name", "input name", "input smiles", "NAME")
    assert [[*row.cells.values()] for row in table.records()] == [
        ["CCO", "ethanol", "ethanol", "OCC", "EtOH"],
        ["CCO", "title", "ethanol", "OCC", "EtOH"],
    ]
    assert table.names_column == "name"
    without = items.replace("<name>", "<other>")
    assert open_table(written(tmp_path, "b.sdf", f"{block}{without}")).names_column == "NAME"


@pytest.mark.parametrize("block", [[], ["benzene", "", "", "no such line"]])
def test_a_record_whose_block_does_not_end_keeps_its_data(block: list[str]) -> None:
    lines = [*block, ">  <ID>", "first", "", ">  <pKa>", "2.3"]
    (record,) = records_in(lines, "the file")
    assert record.properties == {"ID": "first", "pKa": "2.3"}
    assert record.block == "\n".join(block) + "\n"


def test_a_workbook_is_read_like_its_text(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [
        ["Smiles", "IC50", "note"],
        ["CCO", 5.0, None],
        [],
        ["CCN", 1.25, True],
        ["CCC", 1, "", 7],
    ]:
        book.active.append(row)
    book.create_sheet("more")
    book.save(tmp_path / "book.xlsx")
    table = open_table(tmp_path / "book.xlsx")
    assert "sheet 'Sheet', the first of 2" in table.choice
    rows = list(table.records(["Smiles", "IC50", "note"]))
    assert [list(row.cells.values()) for row in rows] == [
        ["CCO", "5", ""],
        ["CCN", "1.25", "True"],
        ["", "", ""],
    ]
    assert "right of the header's last column" in rows[2].problem
    assert table.dialect.byte_order_mark


def test_formulas_of_a_workbook_that_no_spreadsheet_computed_are_named(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [["SMILES", "IC50", "pIC50", "note"], ["CCO", 1e-6, "=-LOG10(B2)", None], ["CCN"]]:
        book.active.append(row)
    book.save(tmp_path / "book.xlsx")
    assert open_table(tmp_path / "book.xlsx").choice.endswith(
        "empty: formulas of columns 'pIC50', as the file has no values of them; open it in a"
        " spreadsheet and save it"
    )
    # as a spreadsheet saves it
    with zipfile.ZipFile(tmp_path / "book.xlsx") as parts:
        contents = {name: parts.read(name) for name in parts.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    assert b"</f><v />" in contents[sheet] or b"</f><v/>" in contents[sheet]
    contents[sheet] = re.sub(rb"</f><v ?/>", b"</f><v>6</v>", contents[sheet])
    with zipfile.ZipFile(tmp_path / "saved.xlsx", "w") as parts:
        for name, content in contents.items():
            parts.writestr(name, content)
    saved = open_table(tmp_path / "saved.xlsx")
    assert "formulas" not in saved.choice
    assert [row.cells["pIC50"] for row in saved.records()] == ["6", ""]


@pytest.mark.parametrize("suffix", [".xlsx", ".parquet"])
def test_a_packed_workbook_and_a_packed_parquet_file_are_read(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("openpyxl" if suffix == ".xlsx" else "pyarrow")
    frame = pd.DataFrame({"smiles": ["CCO", "CCN"], "y": [1.5, 2.0]})
    plain = tmp_path / f"table{suffix}"
    if suffix == ".xlsx":
        frame.to_excel(plain, index=False)
    else:
        frame.to_parquet(plain)
    packed = written(tmp_path, f"table{suffix}.gz", gzip.compress(plain.read_bytes()))
    assert list(open_table(packed).records()) == list(open_table(plain).records())
    assert open_table(packed).count() == 2
    half = written(tmp_path, f"half{suffix}.gz", packed.read_bytes()[:-100])
    with pytest.raises(TableError, match="damaged"):
        list(open_table(half).records())


def test_a_workbook_without_structures_on_its_first_sheet_says_which_sheet_that_is(
    tmp_path: Path,
) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "Read me"
    book.active.append(["measured in May"])
    for row in (["SMILES"], ["CCO"]):
        (book["Data"] if "Data" in book else book.create_sheet("Data")).append(row)
    book.save(tmp_path / "book.xlsx")
    which = "This is sheet 'Read me', the first of 2: move the sheet with the structures"
    for asked in (None, "SMILES"):
        with pytest.raises(TableError, match=which):
            _ = open_table(tmp_path / "book.xlsx", asked).structures
    column = "no column 'pIC50'.* This is sheet 'Read me', the first of 2: move the sheet with the"
    with pytest.raises(TableError, match=column):
        open_table(tmp_path / "book.xlsx").column("pIC50")


def test_a_workbook_with_a_cell_far_away_does_not_take_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["smiles"])
    book.active["XFD1048576"] = "far"
    book.save(tmp_path / "far.xlsx")
    with pytest.raises(TableError, match="empty rows"):
        list(open_table(tmp_path / "far.xlsx").records(["smiles"]))
    monkeypatch.setattr(rows_module, "MAX_CONTENT", 1000)
    with pytest.raises(TableError, match="when it is unpacked"):
        open_table(tmp_path / "far.xlsx")


def test_parquet_is_read_like_its_text(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"smiles": ["CCO", None], "y": [1.0, 2.5], "n": [1, None]})
    frame.to_parquet(tmp_path / "table.parquet")
    rows = list(open_table(tmp_path / "table.parquet").records())
    assert [list(row.cells.values()) for row in rows] == [["CCO", "1", "1"], ["", "2.5", ""]]
    assert [row.number for row in rows] == [1, 2]


def test_files_made_to_harm_end_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "ALWAYS_UNPACKED", 1 << 20)
    monkeypatch.setattr(rows_module, "MAX_LINE", 1 << 20)
    bomb = written(tmp_path, "bomb.csv.gz", gzip.compress(b"\0" * (1 << 22)))
    lines = written(tmp_path, "lines.csv.gz", gzip.compress(b"smiles\n" + b"C\n" * (1 << 21)))
    line = written(tmp_path, "line.csv", b"smiles\n" + b"C" * (1 << 22))
    half = written(tmp_path, "half.xlsx", b"PK\x03\x04 not a zip file")
    old = written(tmp_path, "old.xls", b"\xd0\xcf\x11\xe0 old Excel")
    fifo = tmp_path / "pipe.csv"
    os.mkfifo(fifo)
    for path, words in {
        bomb: "times larger|line of over",
        lines: "more than 200 times larger",
        line: "line of over",
        half: "cannot be read as a workbook|openpyxl",
        old: "save the sheet",
        fifo: "device or a pipe",
        Path("/dev/zero"): "device or a pipe",
        tmp_path: "is a folder",
        tmp_path / "none.csv": "no such file",
    }.items():
        with pytest.raises((TableError, FileNotFoundError, ImportError), match=words):
            list(open_table(path, "smiles").records())


def test_a_bomb_of_zips_is_refused_by_the_sizes_it_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openpyxl")
    monkeypatch.setattr(rows_module, "MAX_CONTENT", 1 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("xl/workbook.xml", b"\0" * (1 << 22))
    with pytest.raises(TableError, match="when it is unpacked"):
        open_table(tmp_path / "bomb.xlsx")


@pytest.mark.parametrize("sign", [">", ">=", ">>", "\u2265", "\u2a7e"])
def test_every_way_of_writing_above_is_a_lower_bound(sign: str) -> None:
    (bound,) = parsed_numbers([f"{sign}10", "3"]).bounds
    assert (bound.side, bound.value) == (1, 10)


@pytest.mark.parametrize("sign", ["<", "<=", "<<", "\u2264", "\u2a7d"])
def test_every_way_of_writing_below_is_an_upper_bound(sign: str) -> None:
    (bound,) = parsed_numbers([f"{sign}10", "3"]).bounds
    assert (bound.side, bound.value) == (-1, 10)


def test_frames_and_arrays_give_their_structures() -> None:
    frame = pd.DataFrame({"SMILES": ["CCO", None], "y": [1.0, 2.5]}, index=[4, 2])
    assert structures_in(frame) == structures_in(frame.SMILES) == ["CCO", None]
    assert structures_in(frame.SMILES.to_numpy(dtype=object)) == ["CCO", None]
    assert structures_in(np.unique(["CCO", "C", "C"])) == ["C", "CCO"]
    assert column_values(frame.assign(y=[1.0, math.nan]), "y") == [1.0, None]
    assert structures_in(np.zeros((3, 3))) is None  # an image
    assert structures_in(["C"]) is None
    with pytest.raises(TableError, match="no column of structures"):
        structures_in(pd.DataFrame({"a": [1], "b": [2]}))


def test_arrow_arrays_give_their_structures() -> None:
    pa = pytest.importorskip("pyarrow")
    assert structures_in(pa.array(["CCO", None])) == ["CCO", None]
    assert structures_in(pa.chunked_array([["CCO"], ["C"]])) == ["CCO", "C"]
    assert structures_in(pa.table({"n": [1], "Smiles": ["CCO"]})) == ["CCO"]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1,234.5", "950.25"], [1234.5, 950.25]),
        (["1,234,567", "1,000"], [1234567, 1000]),
        (["1,234.5", "1,023"], [1234.5, 1023]),
        (["1.234,5", "1.023"], [1234.5, 1023]),
        (["1,234.5", "12,023", "123,456"], [1234.5, 12023, 123456]),
    ],
)
def test_english_and_german_thousands_are_numbers(cells: list[str], values: list[float]) -> None:
    assert parsed_numbers(cells).values.tolist() == values


def test_a_table_of_any_length_is_read_row_by_row(tmp_path: Path) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([["smiles", "text"], *[["C" * (1 + k % 9), k] for k in range(9000)]])
    rows = open_table(written(tmp_path, "long.csv", out.getvalue())).records(["text"])
    assert next(rows).number == 1
    assert sum(1 for _ in rows) == 8999


def test_a_frame_in_place_of_a_file_is_refused_with_what_to_do():
    frame = pd.DataFrame({"smiles": ["CCO", "CCN"], "y": [1.0, 2.0]})
    for given in (frame, frame.set_index("smiles").y):
        with pytest.raises(TypeError, match=r"from its file, not from a \w+: write it to one"):
            table_module.open_table(given)
