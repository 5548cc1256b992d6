"""Checkpoints survive saving and loading; errors name what is broken."""

import json
import math
import os
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load, load_file, save_file

import graphxai as gx
from graphxai.contract.checkpoint_files import WEIGHTS, require_shapes
from graphxai.models.graphormer import (
    CheckpointError,
    Graphormer,
    checkpoint,
    load_checkpoint,
    load_huggingface,
    locate,
    save_checkpoint,
)
from toy import random_graphormer


@pytest.fixture
def folder(tmp_path):
    return save_checkpoint(
        random_graphormer(), tmp_path / "model", card="# Card\n", metadata={"seed": 3}
    )


def test_a_checkpoint_survives_saving_and_loading(folder):
    model = load_checkpoint(folder)
    original = random_graphormer()
    assert model.config == original.config
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), original.state_dict().values(), strict=True)
    )
    assert model.origin.metadata == {"seed": 3}
    assert len(model.origin.sha256) == 64
    assert not model.training
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize(
    ("place", "name"),
    [("runs/solubility/model", "solubility"), ("runs/solubility", "solubility")],
)
def test_a_model_is_named_after_its_run(tmp_path, place, name):
    save_checkpoint(random_graphormer(), tmp_path / place)
    assert load_checkpoint(tmp_path / place).origin.name == name


@pytest.mark.parametrize("name", ["bace", "mnist-superpixels", "tox21"])  # one and several networks
def test_loading_a_model_leaves_the_random_numbers_of_the_user_as_they_are(name):
    before = torch.get_rng_state().clone()
    gx.load(name)
    assert torch.equal(torch.get_rng_state(), before)


def test_names_that_do_not_fit_are_counted():
    expected, stored = (dict.fromkeys(names, (1,)) for names in ("abc", "xyz"))
    words = "missing key 'a', unexpected key 'x' and 4 more"
    with pytest.raises(CheckpointError, match=words):
        require_shapes(expected, stored, WEIGHTS)


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-500])


def garble(folder):
    (folder / "model.safetensors").write_bytes(b"\x80\x04pickle" * 40)


def drop_key(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["layers.1.ffn.expand.weight"]
    save_file(tensors, folder / "model.safetensors")


def add_key(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"stranger": torch.zeros(2)}, folder / "model.safetensors")


def change_shape(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["graph_token"] = torch.zeros(31)
    save_file(tensors, folder / "model.safetensors")


def poison(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["graph_token"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")


def break_json(folder):
    (folder / "config.json").write_text('{"format": ')


def foreign_format(folder):
    (folder / "config.json").write_text('{"format": "other"}')


def bad_setting(folder):
    content = json.loads((folder / "config.json").read_text())
    content["model"]["hidden_dim"] = 33
    (folder / "config.json").write_text(json.dumps(content))


def set_value(name, value):
    def damage(folder):
        content = json.loads((folder / "config.json").read_text())
        content["model"][name] = value
        (folder / "config.json").write_text(json.dumps(content))

    return damage


def set_task(name, value):
    def damage(folder):
        content = json.loads((folder / "config.json").read_text())
        content["model"]["tasks"][0][name] = value
        (folder / "config.json").write_text(json.dumps(content))

    return damage


def round_off(folder):
    tensors = load((folder / "model.safetensors").read_bytes())
    tensors["graph_token"] = tensors["graph_token"].int()
    save_file(tensors, folder / "model.safetensors")


def set_weights(value):
    def damage(folder):
        tensors = load((folder / "model.safetensors").read_bytes())
        save_file(tensors | {"graph_token": value}, folder / "model.safetensors")

    return damage


def pipe_instead_of(name):
    def damage(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def inflate(folder):
    """Make a file that claims 300 MB, most of which the disk does not hold."""
    os.truncate(folder / "config.json", 300_000_000)


def unknown_setting(folder):
    content = json.loads((folder / "config.json").read_text())
    content["model"]["colour"] = "red"
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"model\.safetensors: corrupt or truncated"),
        (garble, r"model\.safetensors: corrupt or truncated"),
        (drop_key, r"model\.safetensors: .*missing key 'layers\.1\.ffn\.expand\.weight'"),
        (add_key, r"model\.safetensors: .*unexpected key 'stranger'"),
        (change_shape, r"key 'graph_token' has shape \(31,\).* \(32,\)"),
        (poison, r"key 'graph_token' holds values that are not finite"),
        (break_json, r"config\.json: cannot be read as JSON"),
        (foreign_format, r"config\.json: 'format' is not"),
        (bad_setting, r"config\.json: invalid model configuration: .*multiple of num_heads"),
        (unknown_setting, r"config\.json: .*unknown configuration names: colour"),
        (
            round_off,
            r"model\.safetensors: key 'graph_token' holds torch\.int32, not floating-point numbers",
        ),
        (set_value("dropout", math.nan), r"config\.json: .*dropout must be in \[0, 1\), not nan"),
        (set_value("layernorm_eps", math.nan), r"config\.json: .*layernorm_eps must be positive"),
        (set_value("num_hops", -1), r"config\.json: .*num_hops must not be negative"),
        (set_value("position_bands", -1), r"config\.json: .*position_bands must not be negative"),
        (set_task("scale", 0), r"config\.json: .*scale must be positive, not 0"),
        (set_task("offset", "x"), r"config\.json: .*offset is 'x', not a finite number"),
        (set_task("classes", "ab"), r"config\.json: .*classes must be a list of names"),
        (set_task("name", " "), r"config\.json: .*a task's name must be non-empty text, not ' '"),
        (set_task("classes", ["a", "a"]), r"config\.json: .*two classes have the same name"),
        (set_task("name", "pIC50"), r"config\.json: .*two tasks have the same name"),
        (set_value("max_degree", -2), r"config\.json: .*max_degree must not be negative"),
        (set_value("max_distance", 40_000_000), r"config\.json: .*40,000,302 rows of structural"),
        (set_value("max_distance", 32_000), r"key 'bias\.spatial' has shape \(32, 4\)"),
        (set_value("max_degree", 10**12), r"config\.json: .*max_degree is 10+, too large for"),
        (set_value("num_layers", 10**9), r"config\.json: .*num_layers is 10+, too large for"),
        (set_value("hidden_dim", 4 * 10**9), r"config\.json: .*hidden_dim is 40+, too large for"),
        (set_value("ffn_dim", 10**30), r"config\.json: .*ffn_dim is 10+, too large for"),
        (set_value("position_bias_bands", 10**6), r"config\.json: .*too large for"),
        (set_value("position_bands", 2000), r"config\.json: .*position_bands is 2000, too large"),
        (set_value("edge_cardinalities", [900, 900]), r"config\.json: .*rows of structural bias"),
        (set_value("node_cardinalities", [10**30]), r"config\.json: invalid model configuration"),
        (set_value("node_feature_names", list(range(9))), r"node_feature_names must hold names"),
        (set_value("mask_distance", 0), r"config\.json: .*mask_distance must be at least 1"),
        (
            set_value("mask_distance", 1e30),
            r"config\.json: .*mask_distance is 1e\+30, which has the",
        ),
        (set_value("mask_distance", 10**30), r"config\.json: .*mask_distance must .* up to 32,768"),
        (set_value("num_hops", 10**30), r"config\.json: .*rows of structural bias, more than"),
        (inflate, r"config\.json: cannot be read as JSON: it is larger than 16777216 bytes"),
        (set_value("layernorm_eps", 1e30), r"config\.json: .*layernorm_eps must be positive"),
        (set_value("extra", 3), r"config\.json: .*extra is 3, which has the wrong type"),
        (set_value("tasks", 3), r"config\.json: invalid model configuration"),
        (set_task("unit", {}), r"config\.json: .*unit must be text"),
        (
            set_weights(torch.zeros(32).to(torch.float8_e4m3fn)),
            r"key 'graph_token' holds torch\.float8_e4m3fn, not floating-point numbers of 16",
        ),
        (
            set_weights(torch.full((32,), 1e300, dtype=torch.float64)),
            r"key 'graph_token' holds values that are too large for torch\.float32",
        ),
        (pipe_instead_of("config.json"), r"config\.json: .*not a regular file"),
        (pipe_instead_of("model.safetensors"), r"model\.safetensors: .*not a regular file"),
    ],
)
def test_a_damaged_checkpoint_is_named(folder, damage, message):
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_equal_mean_nodes_are_equal_files(folder):
    model = load_checkpoint(folder)
    model.mean_node = torch.ones(len(model.config.node_feature_names), model.config.hidden_dim)
    assert len({checkpoint.save_mean_node(model, folder).read_bytes() for _ in range(8)}) == 1


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_mean_node_of_another_size_is_named(folder, difference):
    model = load_checkpoint(folder)
    rows = len(model.feature_names)
    model.mean_node = torch.zeros(rows, model.config.hidden_dim + difference)
    checkpoint.save_mean_node(model, folder)
    with pytest.raises(CheckpointError, match=rf"its shape is \({rows}, .*, not \({rows}, 32\)"):
        load_checkpoint(folder)


def test_a_run_is_named_like_its_model(folder):
    assert locate(folder.parent) == locate(folder) == folder


def test_a_model_that_may_be_large_takes_no_memory_before_it_is_checked(monkeypatch):
    config = random_graphormer(
        num_layers=1, hidden_dim=8, ffn_dim=8, num_heads=2, node_cardinalities=(),
        node_feature_names=("x", "y"), num_node_features=2, position_bands=60,
    ).config  # fmt: skip
    model = Graphormer(config)
    size = sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(checkpoint, "SMALL", size - 1)
    assert checkpoint.outlined(config, checkpoint.shapes_of(model.state_dict())).graph_token.is_meta


def test_a_model_is_not_made_before_its_shapes_are_known(folder, monkeypatch):
    content = json.loads((folder / "config.json").read_text())
    content["model"]["max_distance"] = 32_000
    (folder / "config.json").write_text(json.dumps(content))
    made = []
    whole = checkpoint.Graphormer.__init__

    def noted(self, config):
        whole(self, config)
        made.extend(parameter.device.type for parameter in self.parameters())

    monkeypatch.setattr(checkpoint.Graphormer, "__init__", noted)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)
    assert set(made) == {"meta"}


def test_missing_files_and_pickles_are_named(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle"):
        load_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="neither a folder nor the name of a bundled model"):
        locate(tmp_path / "nowhere")


def test_a_folder_without_any_weights_is_named_without_a_word_of_pickles(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: no such file\.$"):
        load_checkpoint(folder)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_precision_are_read_as_numbers_of_32_bits(folder, kind):
    stored = {name: value.to(kind) for name, value in load_file(folder / WEIGHTS).items()}
    save_file(stored, folder / WEIGHTS)
    for name, value in load_checkpoint(folder).state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, stored[name].float())


def test_a_published_checkpoint_with_a_missing_key_is_named(tmp_path):
    config = {"model_type": "graphormer", "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"encoder.x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing key 'classifier\."):
        load_huggingface(tmp_path)
    with pytest.raises(CheckpointError, match="load_huggingface"):
        load_checkpoint(tmp_path)


def test_a_list_of_structures_that_was_changed_is_pointed_out(tmp_path):
    folder = tmp_path / "bace"
    shutil.copytree(locate("bace"), folder)
    training, held_out = folder / "training.csv", folder / "held_out.csv"
    lines = training.read_bytes().splitlines()
    training.write_bytes(b"\r\n".join(lines) + b"\r\n")  # as git does on Windows
    held_out.unlink()  # as the card advises
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.load(folder)
    training.write_bytes(b"\n".join(lines[: len(lines) // 2]))
    with pytest.warns(UserWarning, match=r"training\.csv was changed .* intervals") as caught:
        gx.load(folder)
    assert caught[0].filename == __file__
    training.write_bytes(b"\n".join([*lines[:-1], b"CCO"]) + b"\n")
    with pytest.warns(UserWarning, match=r"training\.csv was changed"):
        gx.load(folder)
