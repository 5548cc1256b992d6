"""Tables have the same rows under the same numbers, whatever the format and the cut."""

import random

import pytest

from graphxai.tables.batches import ExplainBatch
from graphxai.tables.pieces import Piece, cells_of, files_of, spans_left, structures_of
from graphxai.tables.rows import ExplainFrame
from toy import random_graphormer

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SMILES = [f"{'C' * (k % 7 + 1)}O" for k in range(53)]
NAMES = [f"compound, {k}" for k in range(53)]
COLUMNS = ["smiles", "name"]


def as_csv(table, folder):
    pytest.importorskip("pyarrow.csv").write_csv(table, folder / "t.csv")
    return folder / "t.csv"


def as_parquet(table, folder):
    pq.write_table(table, folder / "t.parquet", row_group_size=10)
    return folder / "t.parquet"


def as_folder(table, folder):
    place = folder / "parts"
    place.mkdir()
    (place / "_SUCCESS").touch()
    for k, cut in enumerate((20, 0, 33)):  # one of them is empty
        first = (0, 20, 20)[k]
        pq.write_table(table.slice(first, cut), place / f"part-{k}.parquet", row_group_size=7)
    return place


def as_lance(table, folder):
    pytest.importorskip("lance").write_dataset(table, str(folder / "t.lance"))
    return folder / "t.lance"


def as_address(table, folder):
    return f"fsspec+file://{as_parquet(table, folder)}"


def as_csv_at_an_address(table, folder):
    return f"fsspec+file://{as_csv(table, folder)}"


def test_a_row_that_does_not_fit_its_header_is_an_error_in_its_piece(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("ID,Smiles\na,CCO\nb,CCN,1\nc,CCC\n")
    assert structures_of(path, None) == "Smiles"
    (piece,) = files_of(path, ["Smiles", "ID"])
    piece = Piece.of(piece.to_json()).part((2, 4))
    structures, names = cells_of(piece, str(path), ["Smiles", "ID"])
    assert "it has 3 cells, the header has 2" in str(structures[0])
    assert (structures[1], names) == ("CCC", ["", "c"])
    frame = ExplainFrame(ExplainBatch(random_graphormer(num_layers=1)), "Smiles", "row")
    reasons = frame.explain(structures, [2, 3], None)["reason"].to_pylist()
    assert reasons == [str(structures[0]), None]


@pytest.mark.parametrize(
    "write", [as_csv, as_parquet, as_folder, as_lance, as_address, as_csv_at_an_address]
)
def test_pieces_together_are_the_table(write, tmp_path):
    table = pa.table({"other": range(53), "smiles": SMILES, "name": NAMES})
    place = str(write(table, tmp_path))
    files = files_of(place, COLUMNS)
    assert sum(piece.rows for piece in files) == 53
    rows = {}
    for piece in files:
        for span in spans_left(piece, [(13, 15)], size=8):
            part = piece.part(span)
            numbers = range(part.first, part.first + part.rows)
            rows |= dict(
                zip(numbers, zip(*cells_of(part, place, COLUMNS), strict=True), strict=True)
            )
    expected = dict(enumerate(zip(SMILES, NAMES, strict=True), start=1))
    assert rows == {row: cells for row, cells in expected.items() if row not in (13, 14)}


def test_what_is_left_is_what_was_not_done():
    """For random spans that are done, the answer is compared with sets of row numbers."""
    chance = random.Random(0)
    for _ in range(100):
        piece = Piece("t", chance.randint(1, 50), 0, chance.randint(0, 60))
        cuts = sorted(chance.sample(range(1, 120), 8))
        done = list(zip(cuts[::2], cuts[1::2], strict=True))
        spans = list(spans_left(piece, done, size=9))
        left = [row for first, end in spans for row in range(first, end)]
        finished = {row for first, end in done for row in range(first, end)}
        of_piece = range(piece.first, piece.first + piece.rows)
        assert left == [row for row in of_piece if row not in finished]
        assert all(
            (first - piece.first) // 9 == (end - 1 - piece.first) // 9 for first, end in spans
        )


def test_tables_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.parquet: no such file"):
        files_of(tmp_path / "nothing.parquet", ["smiles"])
    with pytest.raises(ValueError, match=r"cannot be read; give a file, or a folder.*\.parquet"):
        files_of(tmp_path, ["smiles"])
    pq.write_table(pa.table({"SMILES": ["C"]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet has no column 'smiles'; its columns: SMILES"):
        files_of(tmp_path / "t.parquet", ["smiles"])
