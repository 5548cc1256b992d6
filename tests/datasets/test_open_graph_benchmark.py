"""OGB's data sets of molecules are read from CSV alone, and scored as OGB scores them."""

import pickle
import re
import shutil
import zipfile

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, root_mean_squared_error

from graphxai.datasets import open_graph_benchmark
from graphxai.datasets.open_graph_benchmark import load_ogb, ogb_names
from graphxai.datasets.tables.table import open_table
from graphxai.runtime.download import DownloadError
from ogb_folders import bace_rows, part, write_molbace, write_ogb_folder

RNG = np.random.default_rng(0)
SMILES = ["C", "CC", "CCO", "CCN", "CO", "c1ccccc1"]
SPLIT = ([0, 2, 4], [5], [1, 3])


def test_molecules_labels_and_split_are_those_of_the_files(tmp_path):
    write_molbace(tmp_path)
    rows = bace_rows(100)
    loaded = load_ogb("ogbg-molbace", tmp_path, download=False)
    assert loaded.smiles == tuple(row["mol"] for row in rows)
    assert loaded.labels.tolist() == [[float(row["Class"])] for row in rows]
    assert (loaded.tasks, loaded.kind, loaded.metric) == (("Class",), "classification", "rocauc")
    for name in ("train", "valid", "test"):
        assert loaded.positions(name) == [k for k in range(100) if part(k) == name]


def test_missing_labels_are_nan_and_empty_cells_of_the_table(tmp_path):
    labels = [[1, ""], [0, 1], ["", 1], [1, 0], [0, ""], ["", ""]]
    folder = tmp_path / "ogbg_molclintox"
    write_ogb_folder(folder, SMILES, labels, ["approved", "toxic"], SPLIT)
    loaded = load_ogb("ogbg-molclintox", tmp_path)
    np.testing.assert_array_equal(
        loaded.labels, [[np.nan if cell == "" else cell for cell in row] for row in labels]
    )
    path = tmp_path / "table.csv"
    path.write_text(loaded.to_csv())
    records = [record.cells for record in open_table(path).records(("smiles", "toxic", "split"))]
    assert records[0] == {"smiles": "C", "toxic": "", "split": "train"}
    assert records[1] == {"smiles": "CC", "toxic": "1", "split": "test"}


def test_scores_are_those_of_scikit_learn(tmp_path):
    """For each of OGB's three scores, the mean over tasks that have both classes."""
    values = RNG.normal(size=(6, 1))
    write_ogb_folder(tmp_path / "ogbg_molesol", SMILES, values.tolist(), ["log S"], SPLIT)
    esol = load_ogb("ogbg-molesol", tmp_path)
    guess = RNG.normal(size=(2, 1))
    expected = root_mean_squared_error(values[[1, 3]], guess)
    assert esol.score(guess) == pytest.approx(expected)
    labels = RNG.integers(2, size=(40, 17)).astype(float)
    labels[:, 0] = 1
    labels[RNG.random((40, 17)) < 0.2] = np.nan
    cells = [["" if cell != cell else int(cell) for cell in row] for row in labels.tolist()]
    tasks = [f"task {k}" for k in range(17)]
    split = [range(10), range(10, 15), range(15, 40)]
    write_ogb_folder(tmp_path / "ogbg_molmuv", ["C" * k for k in range(1, 41)], cells, tasks, split)
    guess = RNG.random((25, 17))
    each = [
        average_precision_score(truth[known], score[known])
        for truth, score in zip(labels[15:].T[1:], guess.T[1:], strict=True)
        for known in [~np.isnan(truth)]
    ]
    assert load_ogb("ogbg-molmuv", tmp_path).score(guess) == pytest.approx(np.mean(each))


def test_a_part_with_one_class_has_no_score_and_other_shapes_are_refused(tmp_path):
    write_ogb_folder(tmp_path / "ogbg_molhiv", SMILES, [[0]] * 6, ["HIV_active"], SPLIT)
    hiv = load_ogb("ogbg-molhiv", tmp_path)
    assert np.isnan(hiv.score(np.zeros((2, 1))))
    with pytest.raises(ValueError, match=re.escape("(2,) must be (2, 1)")):
        hiv.score(np.zeros(2))


def test_every_data_set_of_molecules_has_a_name_and_no_other():
    names = ogb_names()
    assert {"ogbg-molbace", "ogbg-molhiv", "ogbg-molesol", "ogbg-molpcba"} < set(names)
    assert all(name.startswith("ogbg-mol") for name in names)
    with pytest.raises(ValueError, match="'ogbg-ppa' is none of OGB's data sets: ogbg-molbace"):
        load_ogb("ogbg-ppa")


class Bomb:
    """Raises an error when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


def test_pickles_in_the_folder_are_not_read(tmp_path):
    folder = write_molbace(tmp_path)
    (folder / "processed").mkdir()
    for name in ("processed/data_processed", "split/scaffold/split_dict.pt"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    assert len(load_ogb("ogbg-molbace", tmp_path).smiles) == 100


@pytest.fixture
def official(tmp_path, monkeypatch):
    """Serve an archive as OGB's server does, and return a function that changes and packs it."""
    folder = write_molbace(tmp_path / "made", 40).rename(tmp_path / "made" / "bace")
    (folder / "split/scaffold/split_dict.pt").write_bytes(pickle.dumps(Bomb()))
    archive = tmp_path / "served.zip"
    about = open_graph_benchmark._index()
    about["ogbg-molbace"]["url"] = archive.as_uri()
    monkeypatch.setattr(open_graph_benchmark, "_index", lambda: about)

    def pack(without="", extra=()):
        with zipfile.ZipFile(archive, "w") as packed:
            for path in sorted(folder.rglob("*")):
                name = f"bace/{path.relative_to(folder)}"
                if path.is_file() and name != without:
                    packed.write(path, name)
            for name, content in extra:
                packed.writestr(name, content, zipfile.ZIP_DEFLATED)
        return archive

    return pack


def test_the_official_archive_is_downloaded_and_its_csv_files_alone_are_unpacked(
    official, tmp_path
):
    official(extra=[("../outside.csv.gz", b""), ("bace/raw/../../outside.csv.gz", b"")])
    root = tmp_path / "root"
    loaded = load_ogb("ogbg-molbace", root)
    assert loaded.smiles == tuple(row["mol"] for row in bace_rows(40))
    unpacked = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    assert unpacked == {
        "ogbg_molbace.zip",
        *(
            f"ogbg_molbace/{name}"
            for name in (
                *("RELEASE_v1.txt", "mapping/mol.csv.gz", "raw/graph-label.csv.gz"),
                *(f"split/scaffold/{name}.csv.gz" for name in ("train", "valid", "test")),
            )
        ),
    }
    assert not list(tmp_path.rglob("outside*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"without": "bace/split/scaffold/test.csv.gz"}, r"lacks split/scaffold/test\.csv\.gz"),
        ({"without": "bace/RELEASE_v1.txt"}, r"lacks RELEASE_v1\.txt"),
        ({"extra": [("bace/raw/edge.csv.gz", bytes(1 << 20))]}, "far larger than its archive"),
    ],
)
def test_another_archive_is_refused_and_leaves_no_folder(official, tmp_path, change, message):
    official(**change)
    with pytest.raises(DownloadError, match=message):
        load_ogb("ogbg-molbace", tmp_path / "root")
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["ogbg_molbace.zip"]


def test_a_page_in_place_of_the_archive_is_refused(official, tmp_path):
    official().write_text("<html>Log in to the network</html>")
    with pytest.raises(DownloadError, match="is not OGB's archive of ogbg_molbace"):
        load_ogb("ogbg-molbace", tmp_path / "root")


def test_without_a_network_the_message_says_where_to_put_the_data(official, tmp_path):
    official().unlink()
    with pytest.raises(DownloadError, match=r"Without a network, put the file at .*molbace\.zip"):
        load_ogb("ogbg-molbace", tmp_path / "root")
    with pytest.raises(FileNotFoundError, match=r"contains ogbg_molbace/ \(root="):
        load_ogb("ogbg-molbace", tmp_path / "root", download=False)


def test_files_that_do_not_fit_each_other_are_refused(tmp_path):
    folder = tmp_path / "ogbg_molbace"

    def refused(message, *changes):
        content = {"smiles": SMILES, "labels": [[1]] * 6, "tasks": ["Class"], "split": SPLIT}
        write_ogb_folder(folder, **content | dict(changes))
        with pytest.raises(ValueError, match=message):
            load_ogb("ogbg-molbace", tmp_path)
        shutil.rmtree(folder)

    refused("which has 1 tasks", ("labels", [[1, 0]] * 6), ("tasks", ["a", "b"]))
    refused("cannot be read as ogbg-molbace", ("labels", [["active"]] * 6))
    refused("has no scaffold split of its 6 molecules", ("split", ([0], [1], [6])))
    refused("in two parts", ("split", ([0], [1], [0])))
    write_ogb_folder(folder, SMILES, [[1]] * 6, ["Class"], SPLIT)
    (folder / "RELEASE_v1.txt").rename(folder / "RELEASE_v2.txt")
    with pytest.raises(ValueError, match=r"has RELEASE_v2\.txt, but OGB's package expects"):
        load_ogb("ogbg-molbace", tmp_path)
    (folder / "RELEASE_v2.txt").unlink()
    (folder / "mapping/mol.csv.gz").unlink()
    with pytest.raises(ValueError, match=r"cannot be read as ogbg-molbace \(.*mol\.csv\.gz"):
        load_ogb("ogbg-molbace", tmp_path)
