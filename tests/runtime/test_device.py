"""Models compute where they are told to, and refuse what is not there."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from other_models import GpsModel, molecules
from toy import random_graphormer

SMILES = ["CCO", "c1ccccc1O", "CC(=O)N"]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def models() -> dict:
    torch.manual_seed(0)
    graphs = [graph for graph in molecules() if graph.num_nodes < 12][:3]
    return {
        "Graphormer": (random_graphormer(), SMILES),
        "wrapped": (gx.wrap(GpsModel().eval(), kind="regression"), graphs),
    }


@pytest.mark.parametrize("name", ["Graphormer", "wrapped"])
@pytest.mark.parametrize("device", DEVICES)
def test_inputs_and_results_move_by_themselves(name, device):
    model, inputs = models()[name]
    for method in ("lrp", "gradient_input", "rollout", "occlusion"):
        expected = gx.explain(model, inputs, method)
        explanations = gx.explain(model, inputs, method, device=device)
        assert next(model.parameters()).device.type == device
        for explanation, other in zip(explanations, expected, strict=True):
            size = max(abs(other.relevance).max(), 1e-3)
            exact = 0 if device == "cpu" else 1e-4 * size
            np.testing.assert_allclose(explanation.relevance, other.relevance, rtol=0, atol=exact)
        model.to("cpu")


@pytest.mark.parametrize("device", DEVICES)
def test_evaluation_runs_on_a_device(device):
    model, inputs = models()["Graphormer"]
    options = {"metrics": ["auac"], "operators": ["mask", "zero", "delete"], "progress": False}
    expected = gx.evaluate(model, inputs, ["lrp"], **options)
    on_device = gx.evaluate(model, inputs, ["lrp"], device=device, **options)
    values = [
        [value for unit in report.units for each in unit.values.values() for value in each.values()]
        for report in (on_device, expected)
    ]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-3)


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_in_one_sentence(device):
    said = f"^cannot compute on the device '{device}'; this machine has cpu.*\\.$"
    with pytest.raises(ValueError, match=said):
        gx.explain("bace", "CCO", device=device)
    with pytest.raises(ValueError, match=said):
        gx.evaluate("bace", ["CCO"], device=device)


def test_the_command_line_takes_a_device(tmp_path):
    for name in ("cpu", "default"):
        options = ["--device", name] if name == "cpu" else []
        done = CliRunner().invoke(
            app, ["explain", "CCO", "--out", f"{tmp_path / name}.csv", *options]
        )
        assert done.exit_code == 0, done.output
    assert (tmp_path / "cpu.csv").read_text() == (tmp_path / "default.csv").read_text()
    done = CliRunner().invoke(app, ["explain", "CCO", "--device", "abacus"])
    assert "cannot compute on the device 'abacus'" in str(done.exception)
