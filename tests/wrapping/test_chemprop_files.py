"""Files of chemprop are read without running anything that they name; chemprop is not needed."""

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

import graphxai as gx
from chemprop_models import Called
from graphxai.models.graphormer.checkpoint import CheckpointError
from graphxai.wrapping.chemprop.loading import ChempropRunSettings, run_settings
from graphxai.wrapping.chemprop.paths import is_chemprop_path
from graphxai.wrapping.chemprop.records import StoredObject, read_file

FILES = Path(__file__).parents[1] / "data" / "chemprop"
RUN = FILES / "run_2.2.4"


@pytest.mark.parametrize(
    "path", [FILES / "2.0.0.pt", FILES / "2.1.2.pt", RUN / "model_0" / "best.pt"], ids=str
)
def test_a_file_names_the_classes_of_its_parts_as_records(path):
    file = read_file(path)
    classes = {
        block: file.hyperparameters[block]["cls"]
        for block in ("message_passing", "agg", "predictor")
    }
    assert all(issubclass(kind, StoredObject) for kind in classes.values())
    assert classes["message_passing"].name == "chemprop.nn.message_passing.base.BondMessagePassing"
    width = file.hyperparameters["message_passing"]["d_h"]
    assert file.state["message_passing.W_h.weight"].shape == (width, width)


def test_nothing_that_a_hostile_file_names_is_called(tmp_path):
    path, trace = tmp_path / "model.pt", tmp_path / "trace"
    content = {
        "hyper_parameters": {"message_passing": Called(os.mkdir, str(trace))},
        "state_dict": OrderedDict(weight=torch.zeros(1)),
    }
    torch.save(content, path)
    torch.load(path, weights_only=False)  # the file does what it says
    trace.rmdir()
    with pytest.raises(CheckpointError):  # either PyTorch refuses the name, or it is a record
        gx.load(path)
    assert not trace.exists()


def test_a_call_of_any_function_becomes_a_record_of_its_arguments(tmp_path):
    path = tmp_path / "model.pt"
    called = {"metrics": Called(pickle.loads, "anything")}
    torch.save({"hyper_parameters": called, "state_dict": {}}, path)
    record = read_file(path).hyperparameters["metrics"]
    assert isinstance(record, StoredObject)
    assert record.name.endswith("pickle.loads")
    assert record.args == ("anything",)


def packed_again(path, change):
    """Pack a file of chemprop again, compressed, with other contents of its parts."""
    source = FILES / "2.1.2.pt"
    with zipfile.ZipFile(source) as parts, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for part in parts.infolist():
            file.writestr(part.filename, change(part.filename, parts.read(part)))


def test_a_file_that_would_fill_the_memory_is_refused_unopened(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    packed_again(path, lambda name, old: bytes(200_000_000) if name.endswith("data/0") else old)
    assert path.stat().st_size < 300_000
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(CheckpointError, match=r"model\.pt would take \d{3,4} times its size"):
        gx.load(path)


def test_a_file_of_very_many_parts_is_refused_unopened(tmp_path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as file:
        for k in range(10_001):
            file.writestr(f"model/data/{k}", b"")
    with pytest.raises(CheckpointError, match="10,001 parts"):
        gx.load(path)


@pytest.mark.parametrize("times", [999, 1001])
def test_a_network_keeps_at_most_a_million_integers(tmp_path, times):
    """Each becomes a weight of four bytes, and a file may show the same ones many times."""
    content = torch.load(FILES / "2.1.2.pt", weights_only=False)
    numbers = torch.zeros(1000, dtype=torch.int32)
    content["state_dict"].update({f"metrics.{k}": numbers[:] for k in range(times)})
    torch.save(content, tmp_path / "model.pt")
    if times == 999:
        gx.load(tmp_path / "model.pt")
        return
    with pytest.raises(CheckpointError, match=r"its weights have 1,001,\d+ integers"):
        gx.load(tmp_path / "model.pt")


def test_a_file_that_somebody_compressed_is_read(tmp_path):
    path = tmp_path / "model.pt"
    packed_again(path, lambda name, content: content)
    here, there = read_file(path).state, read_file(FILES / "2.1.2.pt").state
    assert set(here) == set(there)
    assert all(torch.equal(here[key], there[key]) for key in there)


@pytest.mark.parametrize("kept", [0, 100, 15_000, -1])
def test_a_file_that_is_cut_off_is_named_with_what_to_do(tmp_path, kept):
    path = tmp_path / "model.pt"
    path.write_bytes((FILES / "2.1.2.pt").read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.pt is cut off, .* download it again"):
        gx.load(path)


def test_nobody_is_told_to_let_a_file_run_code(tmp_path):
    path = tmp_path / "model.pt"
    content = torch.load(FILES / "2.1.2.pt", weights_only=False)
    content["hyper_parameters"]["message_passing"]["activation"] = Called(os.mkdir, "a")
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"mkdir") as error:
        gx.load(path)
    assert "weights_only" not in str(error.value)


def test_names_that_the_user_allowed_are_records_too_and_stay_allowed(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"hyper_parameters": {"x": Called(len, "abc")}, "state_dict": {}}, path)
    with torch.serialization.safe_globals([Called, len]):
        before = torch.serialization.get_safe_globals()
        assert isinstance(read_file(path).hyperparameters["x"], StoredObject)
        assert set(torch.serialization.get_safe_globals()) == set(before)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"state_dict": {}, "args": None}, "chemprop convert"),  # of chemprop 1
        ({"state_dict": {}, "hyper_parameters": 3}, "graphxai.wrap"),
        (torch.zeros(3), "graphxai.wrap"),
    ],
)
def test_a_file_of_something_else_is_refused_with_what_to_do(tmp_path, content, says):
    torch.save(content, path := tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=says):
        gx.load(path)


@pytest.mark.parametrize("content", [b"", b"no model", b"PK\x03\x04 broken", b"\x80\x02."])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        gx.load(path)


def test_a_missing_file_is_refused_with_its_name(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        gx.load(tmp_path / "model.pt")


def test_a_run_is_told_from_a_checkpoint_by_its_files(tmp_path):
    assert is_chemprop_path(RUN)
    assert is_chemprop_path(RUN / "model_0" / "best.pt")
    assert is_chemprop_path("somewhere/last.ckpt")
    assert not is_chemprop_path("bace")
    assert not is_chemprop_path(tmp_path)  # an empty folder


def test_the_settings_of_a_run_are_read_beside_its_models():
    expected = ChempropRunSettings(("charge",), ignore_stereo=True)
    assert run_settings(RUN) == run_settings(RUN / "model_1" / "best.pt") == expected
    assert run_settings(FILES / "2.1.2.pt") == ChempropRunSettings()


@pytest.mark.parametrize("option", ["add-h", "keep-h"])
def test_a_run_whose_graphs_have_hydrogens_is_refused(tmp_path, option):
    (tmp_path / "config.toml").write_text(f"depth = [3]\n{option} = true\n")
    with pytest.raises(CheckpointError, match=f"--{option}"):
        run_settings(tmp_path / "model_0" / "best.pt")
