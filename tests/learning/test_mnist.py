"""The recipe of the bundled digit model trains it, and the model itself works."""

import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from graphxai.cli.main import app
from graphxai.datasets.mnist import load_mnist, read_digit
from graphxai.datasets.samples import digit_paths
from graphxai.datasets.superpixels import image_to_data, images_to_data
from graphxai.learning.predicting import predict
from graphxai.learning.recipes.mnist import calibrate, measure, mnist_config, train_mnist
from graphxai.learning.settings import DigitSettings
from graphxai.models.graphormer import Graphormer, load_checkpoint
from graphxai.runtime.download import DownloadError
from mnist_files import write_mnist

BUNDLED = Path(__file__).resolve().parents[2] / "models/graphormer/pretrained/mnist-superpixels"


@pytest.fixture
def model() -> Graphormer:
    return load_checkpoint(BUNDLED)


def test_the_recipe_trains_measures_and_writes_a_checkpoint(
    tmp_path: Path, mnist_digits: np.ndarray
) -> None:
    pytest.importorskip("lightning.pytorch")
    labels = np.repeat(np.arange(10, dtype=np.uint8), 10)
    write_mnist(tmp_path / "data" / "mnist", mnist_digits, labels)
    small = mnist_config(num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=4)
    settings = {"root": tmp_path / "data", "epochs": 1, "versions": 2, "num_test": 20}
    settings |= {"config": small, "accelerator": "cpu", "progress": False}
    folder = train_mnist(tmp_path / "run", **settings)  # type: ignore[arg-type]
    metadata = load_checkpoint(folder).origin.metadata
    assert metadata["train_images"] == 90
    assert metadata["test_images"] == 20
    call = "`train_mnist('runs/mnist-superpixels', epochs=1, num_train=100, versions=2, num_test=20"
    model = "config=mnist_config(num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=4)"
    assert f"{call}, {model})`" in (folder / "README.md").read_text("utf-8")
    with pytest.raises(ValueError, match="resume"):
        train_mnist(tmp_path / "run", **settings)  # type: ignore[arg-type]


def test_the_card_of_unchanged_images_tells_of_no_deformation(
    tmp_path: Path, mnist_digits: np.ndarray
) -> None:
    pytest.importorskip("lightning.pytorch")
    write_mnist(tmp_path / "data" / "mnist", mnist_digits, np.arange(100, dtype=np.uint8) // 10)
    small = mnist_config(num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=4)
    folder = train_mnist(
        tmp_path / "run", root=tmp_path / "data", config=small, epochs=1, versions=1, num_test=20,
        accelerator="cpu", progress=False,
    )  # fmt: skip
    card = (folder / "README.md").read_text("utf-8")
    assert "90 were used unchanged." in card
    assert "deformed" not in card
    assert "1 pass over the images" in card


@pytest.mark.parametrize(
    ("options", "versions"),
    [({}, 10), ({"epochs": 8}, 10), ({"epochs": 1}, 3), ({"versions": 7}, 7)],
)
def test_a_short_run_prepares_fewer_versions(options: dict[str, int], versions: int) -> None:
    assert DigitSettings(**options).versions_used == versions


def test_temperature_lowers_the_loss_and_keeps_the_classes() -> None:
    torch.manual_seed(0)
    y = torch.randint(10, (400,))
    outputs = 8 * (torch.nn.functional.one_hot(y, 10) + torch.randn(400, 10))  # overconfident
    model = Graphormer(mnist_config(num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=4))
    weight = model.head.weight.clone()
    temperature = calibrate(model, outputs, y)
    assert temperature > 2
    assert torch.allclose(model.head.weight * temperature, weight)
    after = measure(outputs / temperature, y)
    assert after["ece"] < measure(outputs, y)["ece"]
    assert after["accuracy"] == measure(outputs, y)["accuracy"]


def test_figures_follow_their_definitions() -> None:
    outputs = torch.tensor([[9.0, 0], [9, 0], [0, 9], [9, 0]])
    figures = measure(outputs, torch.tensor([0, 0, 1, 1]))
    assert figures["accuracy"] == 0.75
    assert figures["ece"] == pytest.approx(abs(0.75 - outputs[0].softmax(0)[0].item()), abs=1e-6)
    assert figures["interval"] == pytest.approx([0.3006, 0.9544], abs=1e-3)  # Wilson 1927
    assert figures["recall"] == [1.0, 0.5]
    assert figures["confused"][0] == [1, 0, 1]


def test_the_bundled_model_is_small_and_reports_how_good_it_is(model: Graphormer) -> None:
    assert (BUNDLED / "model.safetensors").stat().st_size < 3_000_000
    assert model.config.tasks[0].name == "digit"
    assert model.origin.metadata["test"]["accuracy"] > 0.95


def test_the_bundled_model_reads_the_sample_digits(model: Graphormer) -> None:
    paths = digit_paths()
    outputs = predict(model, [image_to_data(read_digit(path)) for path in paths])
    assert (outputs.argmax(-1) == torch.arange(10)).sum() >= 9


def test_the_bundled_model_reaches_95_percent_on_official_test_images(
    model: Graphormer, data_folder: Path
) -> None:
    images, labels = load_mnist(data_folder, "test", limit=600, download=False)
    assert len(images) == 600
    outputs = predict(model, list(images_to_data(images)))
    assert (outputs.argmax(-1).numpy() == labels).mean() > 0.95


def test_without_data_the_command_names_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning.pytorch")

    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    arguments = ["train", "mnist-superpixels", "--out", str(tmp_path / "run")]
    arguments += ["--data", str(tmp_path), "--accelerator", "cpu"]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, DownloadError)
    assert "--data FOLDER" in str(error)
    assert "root=" not in str(error)
