"""Shards appear whole or not at all, on a disk and in a store, and say which rows they hold."""

import errno
import os

import pytest

from graphxai.tables.run_folder import Shard, ShardFolder, require_complete

pa = pytest.importorskip("pyarrow")
SETTINGS = {"table": "t", "columns": ["smiles"]}


def rows(first: int, count: int):
    reasons = pa.array(["bad", *[None] * (count - 1)], pa.string())
    return pa.table({"row": range(first, first + count), "reason": reasons})


@pytest.fixture(params=["", "fsspec+file://"])
def results(request, tmp_path) -> ShardFolder:
    folder = ShardFolder(f"{request.param}{tmp_path / 'out'}")
    assert folder.begin(SETTINGS, resume=False) == []
    return folder


def test_footers_say_which_rows_are_done(results):
    results.write(11, rows(11, 5))
    results.write(1, rows(1, 10))
    shards = results.begin(SETTINGS, resume=True)
    assert [shard.span for shard in shards] == [(1, 11), (11, 16)]
    assert [shard.rejected for shard in shards] == [1, 1]
    with pytest.raises(FileExistsError, match="--resume"):
        results.begin(SETTINGS, resume=False)
    with pytest.raises(ValueError, match=r"holds a run with table = 't', not 'u': choose"):
        results.begin(SETTINGS | {"table": "u"}, resume=True)


def test_a_shard_that_was_cut_off_is_not_done(results, tmp_path):
    results.write(1, rows(1, 10))
    results.write(11, rows(11, 5))
    (path,) = (tmp_path / "out" / "shards").glob("*11.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    assert [shard.first for shard in results.begin(SETTINGS, resume=True)] == [1]
    assert not path.exists()


def test_a_full_disk_leaves_finished_shards_and_nothing_else(tmp_path, monkeypatch):
    results = ShardFolder(str(tmp_path / "out"))
    results.begin(SETTINGS, resume=False)
    results.write(1, rows(1, 10))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"000000000011\.parquet cannot be written: No space left"):
        results.write(11, rows(11, 5))
    assert [path.name for path in (tmp_path / "out" / "shards").iterdir()] == [
        "000000000001.parquet"
    ]
    assert [shard.first for shard in results.shards()] == [1]


def test_rows_that_are_missing_or_there_twice_are_found():
    whole = [Shard("a", 1, 10, 0), Shard("b", 11, 5, 2)]
    require_complete(whole, 15)
    for wrong in (whole[:1], whole[1:], [whole[0], *whole], [whole[0], Shard("b", 10, 6, 0)]):
        with pytest.raises(RuntimeError, match="missing or appears twice"):
            require_complete(wrong, 15)
