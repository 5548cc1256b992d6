"""Files that pose as models of chemprop run nothing, fill no memory, and are refused by name."""

import io
import multiprocessing
import os
import pickle
import re
import struct
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from chemprop_models import Called
from resident_memory import loading_memory_mb

pytest.importorskip("chemprop")
MODEL = Path(__file__).parents[1] / "data" / "chemprop" / "2.1.2.pt"
HEAD, END = b"\x80\x02", b"."
SHOWN = 100  # MB of numbers that a file pretends to have, or has


def text(value):
    """Return the instruction that puts a text on the stack."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def packed(path, pickled, parts=None, **options):
    """Write an archive as `torch.save` does, with these instructions and parts."""
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("model/data.pkl", pickled)
        for name, content in (parts or {}).items():
            file.writestr(f"model/{name}", content)


def model_with(path, change):
    """Write the model of the tests with other contents, made by `change(content)`."""
    content = torch.load(MODEL, weights_only=False)
    change(content)
    torch.save(content, path)


def leaving_a_trace(path):
    return f"mkdir {path}-was-here"


def activation_calls(path):
    call = Called(os.system, leaving_a_trace(path))
    model_with(path, lambda c: c["hyper_parameters"]["message_passing"].update(activation=call))


def class_is_called(path):
    packed(path, HEAD + b"cposix\nsystem\n" + text(leaving_a_trace(path)) + b"\x85R" + END)


def newer_protocol_calls(path):
    packed(path, pickle.dumps(Called(os.system, leaving_a_trace(path)), 4))


def oldest_protocol_calls(path):
    packed(path, b"(S'" + leaving_a_trace(path).encode() + b"'\niposix\nsystem\n" + END)


def state_is_set(path):
    """`BUILD` sets attributes, here those of a module of the standard library."""
    packed(path, HEAD + b"cos\n__dict__\n}" + text("system") + b"K\x01sb" + END)


def extension_calls(path):
    packed(path, HEAD + b"\x82\x01" + text(leaving_a_trace(path)) + b"\x85R" + END)


def lists_without_end(path):
    packed(path, HEAD + b"]" * 5_000_000 + END)


def dictionaries_up_to_the_limit(path):
    packed(path, HEAD + b"(" + b"}" * 499_000 + b"t" + END)


def calls_up_to_the_limit(path):
    packed(path, HEAD + b"cbuiltins\nobject\nq\x00(" + b"h\x00)R" * 124_000 + b"t" + END)


def many_names(path):
    names = b"".join(b"ca\n%d\n" % number for number in range(50_000))
    packed(path, HEAD + b"(" + names + b"t" + END)


def a_text_for_every_call(path):
    """Each call of a text's letters would be a tuple of all of them."""
    start = HEAD + text("ab" * 100_000) + b"q\x00cbuiltins\nset\nq\x01("
    packed(path, start + b"h\x01h\x00R" * 50_000 + b"t" + END)


def a_place_far_away(path):
    """A memory that is a list would get two thousand million places."""
    packed(path, HEAD + b"]r\xff\xff\xff\x7f" + END)


def a_text_that_is_cut_off(path):
    packed(path, HEAD + b"X\xff\xff\xff\xff" + b"short" + END)


def laughs(depth=60):
    """A tuple of two tuples of two tuples and so on: 2^60 when written out, or hashed."""
    return b")q\x00" + b"h\x00h\x00\x86q\x00" * depth


def laughs_as_a_key(path):
    packed(path, HEAD + b"}" + laughs() + b"Ns" + END)


def laughs_as_a_width(path):
    value = ()
    for _ in range(60):
        value = (value, value)
    model_with(path, lambda c: c["hyper_parameters"]["message_passing"].update(d_h=value))


def laughs_as_an_activation(path):
    value = ()
    for _ in range(60):
        value = (value, value)
    model_with(path, lambda c: c["hyper_parameters"]["message_passing"].update(activation=value))


def deep_tuples_as_a_key(path):
    packed(path, HEAD + b"})" + b"\x85" * 400_000 + b"Ns" + END)


def tensor_of(size, offset=b"K\x00", stride=None, key="0"):
    """Return the instructions of a model whose one tensor has this size, in instructions."""
    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + b"K\x01t"
    )
    arguments = b"(" + storage + b"Q" + offset + size + (stride or size) + b"\x89}t"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"R"
    state = text("state_dict") + b"}" + text("weight") + tensor + b"s"
    return HEAD + b"}(" + state + text("hyper_parameters") + b"}u" + END


def one_number_shown_often(path):
    million = b"J" + struct.pack("<i", 1_000_000)
    packed(
        path, tensor_of(million + million + b"\x86", stride=b"K\x00K\x00\x86"), {"data/0": bytes(4)}
    )


def a_tensor_before_its_numbers(path):
    start = b"J" + struct.pack("<i", -1000)
    packed(path, tensor_of(b"K\x01\x85", offset=start), {"data/0": bytes(4)})


def a_tensor_past_its_numbers(path):
    packed(path, tensor_of(b"K\x01\x85", offset=b"K\x02"), {"data/0": bytes(8)})


def a_size_that_is_a_list(path):
    """A list times a thousand million has a thousand million entries."""
    billion = b"J" + struct.pack("<i", 10**9)
    packed(path, tensor_of(b"(]K\x01a" + billion + b"t"), {"data/0": bytes(8)})


def a_size_of_many_digits(path):
    number = b"\x8a\xff" + b"\x7f" * 255
    packed(path, tensor_of(b"(" + number * 800 + b"t"), {"data/0": bytes(8)})


def numbers_that_are_missing(path):
    packed(path, tensor_of(b"K\x01\x85", key="1"), {"data/0": bytes(8)})


def a_very_wide_activation(path):
    class PReLU(torch.nn.PReLU):
        """Has its settings in its state, as no module of PyTorch has."""

    PReLU.__module__, PReLU.__qualname__ = "torch.nn.modules.activation", "PReLU"
    wide = torch.nn.PReLU()
    wide.__dict__ |= {"num_parameters": 500_000_000, "device": "cpu"}
    model_with(path, lambda c: c["hyper_parameters"]["message_passing"].update(activation=wide))


def integers_shown_under_many_names(path):
    numbers = torch.ones(500_000, dtype=torch.int32)
    model_with(path, lambda c: c["state_dict"].update({f"x{n}": numbers[:] for n in range(2000)}))


def a_very_wide_scaling(path):
    name = "predictor.output_transform.mean"
    wide = torch.zeros(SHOWN * 500_000, dtype=torch.float16)
    model_with(path, lambda c: c["state_dict"].update({name: wide}))


def numbers_that_unfold(path):
    parts = {"data/0": bytes(SHOWN * 2_000_000)}
    packed(path, tensor_of(b"K\x01\x85"), parts, compression=zipfile.ZIP_DEFLATED)


def packed_by_another_method(path):
    packed(path, tensor_of(b"K\x01\x85"), {"data/0": bytes(400)}, compression=zipfile.ZIP_LZMA)


def a_very_long_directory(path):
    packed(path, HEAD, {f"data/{number}": b"" for number in range(100_000)})


def two_parts_of_one_name(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", HEAD + b"}" + END)
        file.writestr("other/data.pkl", HEAD + b"cposix\nsystem\n" + END)


def a_directory_that_lies(path):
    """The directory says that a part has 4 GB less a byte, and the part has 8 bytes."""
    packed(path, tensor_of(b"K\x01\x85"), {"data/0": bytes(8)})
    content = path.read_bytes()
    entry = content.rindex(b"PK\x01\x02")
    path.write_bytes(content[: entry + 24] + b"\xff\xff\xff\xee" + content[entry + 28 :])


def a_part_that_was_changed(path):
    packed(path, tensor_of(b"K\x01\x85"), {"data/0": b"original"})
    path.write_bytes(path.read_bytes().replace(b"original", b"modified"))


def numbers_of_another_machine(path):
    parts = {"data/0": bytes(4), "byteorder": b"big"}
    packed(path, tensor_of(b"K\x01\x85"), parts)


def half_a_file(path):
    content = MODEL.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def a_file_in_a_file(path):
    """What comes before an archive is skipped, and may be another file."""
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as file:
        file.writestr("model/data.pkl", HEAD + b"cposix\nsystem\n" + END)
    path.write_bytes(MODEL.read_bytes()[:20_000] + outer.getvalue())


HOSTILE = {
    activation_calls: "posix.system",
    class_is_called: "not a model of chemprop",
    newer_protocol_calls: "cannot be read .*instruction",
    oldest_protocol_calls: "cannot be read .*instruction",
    state_is_set: "not a model of chemprop",
    extension_calls: "cannot be read .*instruction EXT1",
    lists_without_end: "cannot be read .*longer than 500,000 bytes",
    dictionaries_up_to_the_limit: "not a model of chemprop",
    calls_up_to_the_limit: "not a model of chemprop",
    many_names: "cannot be read .*more than 1,000 classes",
    a_text_for_every_call: "not a model of chemprop",
    a_place_far_away: "not a model of chemprop",
    a_text_that_is_cut_off: "cannot be read",
    laughs_as_a_key: "cannot be read .*keys",
    laughs_as_a_width: "d_h is",
    laughs_as_an_activation: "activation is",
    deep_tuples_as_a_key: "cannot be read .*keys",
    one_number_shown_often: "larger than the numbers stored",
    a_tensor_before_its_numbers: "not given in integers",
    a_tensor_past_its_numbers: "larger than the numbers stored",
    a_size_that_is_a_list: "not given in integers",
    a_size_of_many_digits: "larger than the numbers stored",
    numbers_that_are_missing: "cannot be read .*data/1",
    a_very_wide_activation: "do not fit together",
    integers_shown_under_many_names: "integers",
    a_very_wide_scaling: "50,000,000 values",
    numbers_that_unfold: "times its size",
    packed_by_another_method: "compressed in a way",
    a_very_long_directory: "is cut off, or not a file",
    two_parts_of_one_name: "not named as torch.save",
    a_directory_that_lies: "would take 4.0 GB|is cut off",
    a_part_that_was_changed: "is cut off, or not a file",
    numbers_of_another_machine: "another order",
    half_a_file: "is cut off, .* download it again",
    a_file_in_a_file: "not a model of chemprop",
}


@pytest.fixture(scope="module")
def measured():
    """Return a function that loads a file in a process of its own, which did so before."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the resident set is read from /proc")
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        assert process.submit(loading_memory_mb, MODEL).result()[1] == ""
        yield lambda path: process.submit(loading_memory_mb, path).result()


@pytest.mark.parametrize("write", HOSTILE, ids=lambda write: write.__name__)
def test_a_hostile_file_runs_nothing_fills_no_memory_and_is_named(tmp_path, measured, write):
    path = tmp_path / "model.pt"
    write(path)
    started = time.monotonic()
    grown, said = measured(path)
    assert time.monotonic() - started < 30
    assert said.startswith(str(path))
    assert re.search(HOSTILE[write], said), said
    assert not any(advice in said for advice in ("weights_only", "torch.load", "safe_globals"))
    assert list(tmp_path.iterdir()) == [path]  # nothing that the file names has run
    assert grown < 4 * path.stat().st_size / 1e6 + 50


def test_an_honest_file_of_a_large_network_takes_little_more_than_itself(tmp_path, measured):
    path = tmp_path / "model.pt"

    def with_a_copy_of_the_training(content):
        content["optimizer_states"] = [torch.zeros(SHOWN * 250_000)]  # of no use here

    model_with(path, with_a_copy_of_the_training)
    grown, said = measured(path)
    assert said == ""
    assert path.stat().st_size > SHOWN * 1e6
    assert grown < 50
