"""Methods are measured with models trained further on graphs without some nodes."""

import json

import numpy as np
import pytest
import torch

import graphxai as gx
from graphxai.cli.main import main
from graphxai.contract.inputs import prepare_for
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.evaluation import Refit
from graphxai.learning.predicting import encode_all
from graphxai.models.graphormer import collate, save_checkpoint
from graphxai.wrapping.removal import outputs_of_parts
from graphxai.wrapping.subgraphs import remaining
from other_models import GpsModel
from toy import random_graphormer

pytest.importorskip("lightning")

CHAINS = ["C" * k + end for k in range(4, 12) for end in ("", "O")]  # alkanes and alcohols
LABELS = ["yes" if "O" in smiles else "no" for smiles in CHAINS]


@pytest.fixture(scope="module")
def model():
    task = Task("oxygen", "binary", ("no", "yes"))
    return random_graphormer(tasks=(task,), num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=2)


def refit(kind, **changes):
    options = {"epochs": 8, "shares": (0.2,), "learning_rate": 1e-2}
    return Refit(kind, CHAINS * 6, LABELS * 6, **(options | changes))


def oxygen(model, batch, target):
    """Return the true scores (B, N): one at oxygen."""
    return (batch.x[..., 0] == 7).float()


@pytest.mark.parametrize("operator", ["mask", "delete"])
def test_the_graph_to_train_on_is_the_graph_that_is_measured(model, operator):
    data = prepare_for(model, "CC(=O)Oc1ccccc1C(=O)O").data
    keep = torch.arange(13) % 3 != 0
    part = encode_all([remaining(data, keep, operator)], model.config)
    output = model(collate(part))
    expected = outputs_of_parts(model, data, keep[None], operator)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_the_truth_beats_random_where_the_top_share_is_removed_before_training(
    model, tmp_path, small_figures
):
    """Without its oxygen an alcohol cannot be told from an alkane."""
    measured = [smiles for smiles in CHAINS if "O" in smiles]
    options = {"target": "yes", "operators": "delete", "out": tmp_path, "progress": False}
    report = gx.evaluate(model, measured, [oxygen], refit=refit("roar"), **options)
    means = {name: values.mean() for name, values in report.values("roar").items()}
    assert means["oxygen"] > means["random"] + 0.05
    report.save(tmp_path / "report")
    assert "roar" in (tmp_path / "report" / "summary.md").read_text()
    assert (tmp_path / "refit").is_dir()


def test_a_judge_measures_what_another_model_explains(model):
    other = random_graphormer(
        tasks=model.config.tasks, num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=2
    )
    with torch.no_grad():
        for value in other.parameters():
            value.mul_(1.1)
    own_report = gx.evaluate(other, CHAINS[:4], [oxygen], target="yes", progress=False)
    judged = gx.evaluate(model, CHAINS[:4], [oxygen], target="yes", judge=other, progress=False)
    np.testing.assert_allclose(judged.values("auac")["oxygen"], own_report.values("auac")["oxygen"])


def test_measuring_after_training_on_masked_graphs_is_repeatable_and_kept(model, tmp_path):
    options = {"target": "yes", "progress": False, "metrics": ("auac", "srg")}
    before = [value.clone() for value in model.parameters()]
    first = gx.evaluate(
        model, CHAINS[:4], [oxygen], refit=refit("f-fidelity"), out=tmp_path / "a", **options
    )
    assert all(map(torch.equal, before, model.parameters()))  # the one explained
    torch.rand(3)  # the caller's own random numbers play no part
    again = gx.evaluate(model, CHAINS[:4], [oxygen], refit=refit("f-fidelity"), **options)
    assert first.rows.value.tolist() == again.rows.value.tolist()
    itself = gx.evaluate(model, CHAINS[:4], [oxygen], **options)
    assert first.rows.value.tolist() != itself.rows.value.tolist()
    settings = json.loads((tmp_path / "a" / "run.json").read_text()).popitem()[1]
    assert settings["refit"]["graphs"] == 6 * len(CHAINS)
    assert list((tmp_path / "a" / "refit").rglob("metrics.csv"))
    options |= {"out": tmp_path / "a", "resume": True, "refit": refit("f-fidelity", epochs=9)}
    with pytest.raises(ValueError, match="other settings"):
        gx.evaluate(model, CHAINS[:4], [oxygen], **options)


def test_what_cannot_be_trained_is_refused_with_a_way_out(model):
    with pytest.raises(ValueError, match="unknown refit 'road'; choose from f-fidelity, roar"):
        Refit("road", CHAINS, LABELS)
    with pytest.raises(ValueError, match="16 inputs, but 1 labels"):
        Refit("roar", CHAINS, [1])
    wrapped = gx.wrap(GpsModel().eval(), kind="regression")
    data = molecule_to_data("CCO")
    data.x, data.edge_attr = data.x.float(), data.edge_attr.float()
    with pytest.raises(ValueError, match="pass it as judge="):
        gx.evaluate(wrapped, [data], ["random"], refit=refit("f-fidelity"))
    with pytest.raises(ValueError, match="not by 'zero'"):
        gx.evaluate(model, CHAINS, ["random"], refit=refit("roar"), operators="zero")


def test_the_command_trains_on_a_table_before_measuring(
    model, tmp_path, monkeypatch, capsys, small_figures
):
    table = tmp_path / "table.csv"
    rows = [f"{smiles},{label}" for smiles, label in zip(CHAINS, LABELS, strict=True)]
    table.write_text("\n".join(["smiles,oxygen", *rows]) + "\n")
    folder = save_checkpoint(model, tmp_path / "toy")
    out = tmp_path / "bench"
    given = ["benchmark", folder, table, "--label-column", "oxygen", "--methods", "gradient_input"]
    given += ["--limit", 4, "--out", out, "--refit", "f-fidelity", "--workers", 1]

    def run(*more):
        monkeypatch.setattr("sys.argv", ["graphxai", *map(str, given), *map(str, more)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code

    assert run() != 0
    assert "needs --training" in capsys.readouterr().err
    assert not run("--training", table)
    assert "f-fidelity" in (out / "summary.md").read_text()
