"""Files are written whole, through links, and to nothing but files."""

import json
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest

import graphxai as gx
from graphxai.runtime import writing
from graphxai.runtime.writing import (
    Appended,
    atomic_write,
    exclusive_lock,
    folder_at,
    json_text,
    place_of,
    write_whole,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links, pipes and modes of POSIX")


def test_a_file_is_written_through_a_link(tmp_path):
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    (tmp_path / "ahead.csv").symlink_to(tmp_path / "later.csv")
    for name in ("link.csv", "ahead.csv"):
        write_whole(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "real.csv").read_text() == (tmp_path / "later.csv").read_text() == "new"


def test_what_is_not_a_file_is_refused_with_the_reason(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "astray").symlink_to(tmp_path / "nowhere" / "x")
    for place, reason in (
        (tmp_path / "pipe", "is a device, a pipe or a socket"),
        ("/dev/null", "is a device, a pipe or a socket"),
        (tmp_path, "is a folder: name a file"),
        (tmp_path / "loop", "cannot be written"),
        (tmp_path / "astray", "a link into a folder that does not exist"),
    ):
        with pytest.raises(OSError, match=reason):
            place_of(place)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        folder_at(tmp_path / "pipe")


def refused_to_others(write):
    """Return what a user who does not own the files is told when they write."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        if os.getuid() == 0:  # to whom nothing is read-only
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            write()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, encoding="utf-8") as said:
        return said.read()


@pytest.fixture
def read_only():
    """Return a folder in which nobody may write, with a file that anybody may change."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "old.csv").write_text("old")
        (folder / "old.csv").chmod(0o666)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def locked(path):
    with exclusive_lock(path):
        pass


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("new.csv", lambda path: write_whole(path, "x")),
        ("old.csv", lambda path: write_whole(path, "x")),
        ("new.csv", lambda path: Appended(path)),
        ("new.parquet", lambda path: place_of(path)),
        ("folder", lambda path: folder_at(path)),
        ("folder/inner/deep", lambda path: folder_at(path)),
        ("new.csv", locked),
        ("", locked),
    ],
)
def test_a_read_only_folder_gets_the_sentence_of_a_full_disk(read_only, name, write):
    path = read_only / name
    said = refused_to_others(lambda: write(path))
    assert re.fullmatch(
        rf"OSError: {path} cannot be written: (Permission denied|its folder is read-only)\."
        " Nothing half-written was left\\.",
        said,
    ), said
    assert [each.name for each in read_only.iterdir()] == ["old.csv"]
    assert (read_only / "old.csv").read_text() == "old"


@pytest.mark.parametrize("suffix", ["svg", "png", "csv", "json", "html", "sdf", "parquet"])
def test_no_form_of_a_result_says_anything_else(read_only, suffix):
    explanation = gx.explain("bace", "CCO")
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    for path in (read_only / f"result.{suffix}", read_only / "folder" / f"result.{suffix}"):
        said = refused_to_others(lambda path=path: explanation.save(path))
        assert said.startswith(f"OSError: {read_only}/"), said
        assert said.endswith(". Nothing half-written was left."), said


def test_a_file_that_exists_grows_in_a_read_only_folder(read_only):
    def grow():
        with Appended(read_only / "old.csv") as file:
            file.write(" and new")

    assert refused_to_others(grow) == ""
    assert (read_only / "old.csv").read_text() == "old and new"


def test_an_error_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path):
    path = write_whole(tmp_path / "a.csv", "old")
    path.chmod(0o640)
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines(["new" * 10_000, None])
    assert path.read_text() == "old"
    write_whole(path, "newer")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_json_has_an_entry_a_line_and_lists_of_numbers_on_one():
    content = {
        "rows": [2, -3, 1e-5, 4.25],
        "names": ["a, b", "[\n 1,\n 2\n]"],
        "pairs": [[1, 2], [3]],
        "nothing": [],
        "flags": [True, None],
        "deep": [{"interval": [0.5, 1]}],
    }
    text = json_text(content)
    assert json.loads(text) == content
    lines = text.splitlines()
    assert ' "rows": [2, -3, 1e-05, 4.25],' in lines
    assert "  [1, 2]," in lines
    assert '   "interval": [0.5, 1]' in lines
    assert json_text({"rows": list(range(10_000))}).count("\n") == 3


def test_pieces_are_synced_once_a_second_and_never_for_nothing(tmp_path, monkeypatch):
    clock, synced = [1.5], []
    monkeypatch.setattr(writing.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(writing.os, "fsync", lambda _: synced.append(clock[0]))
    with Appended(tmp_path / "rows.csv") as file:
        for clock[0] in (2.0, 2.4, 3.2, 3.9, 4.3):
            file.write("row\n")
        file.sync()
    assert synced == [3.2, 4.3]
