"""One table over several seeds, with measures of faithfulness, of a known truth and of the user."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from graphxai.evaluation import METRICS
from graphxai.evaluation.metrics import metric
from graphxai.evaluation.truth_metrics import iou, roc_auc
from graphxai.models.graphormer import save_checkpoint
from small_graphs import graph
from toy import random_graphormer

SMILES = ["CC(=O)Nc1ccccc1", "CCOC(C)=O", "c1ccncc1CCO"]


def oxygen(smiles):
    return np.array([atom.GetSymbol() == "O" for atom in Chem.MolFromSmiles(smiles).GetAtoms()])


TRUTHS = [oxygen(smiles) for smiles in SMILES]


class Summed(torch.nn.Module):
    """A model of graphs with one class against another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(width, 4), torch.nn.Linear(4, 1)

    def forward(self, x, edge_index, batch):
        hidden = self.first(x).relu()
        return self.last(hidden.new_zeros(int(batch.max()) + 1, 4).index_add(0, batch, hidden))


def seeds(kind):
    """Return three models of one architecture, and inputs with their true nodes."""
    graphs = [graph(n) for n in (5, 6, 7)]
    width = graphs[0].x.shape[1]
    models = [random_graphormer() if kind == "bundled" else Summed(width) for _ in range(3)]
    for k, model in enumerate(models):
        torch.manual_seed(k)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) / 4)
    if kind == "bundled":
        return models, SMILES, TRUTHS
    truths = [np.arange(g.num_nodes) < 2 for g in graphs]
    made = [gx.wrap(m, kind="binary", classes=("no", "yes")) for m in models]
    return made, graphs, truths


def largest_share(series):
    """Share of the largest |relevance|."""
    size = series.relevance.abs()
    return float(size.max() / size.sum())


def hit(relevance, truth):
    """Whether the most relevant node is true."""
    return float(truth[relevance.argmax()])


@pytest.mark.parametrize("kind", ["bundled", "wrapped"])
def test_a_table_over_seeds_has_the_mean_over_them_and_their_spread(kind):
    models, inputs, truths = seeds(kind)
    metrics = ["auac", "roc_auc", largest_share, hit]
    target = models[0].config.tasks[0].classes[1]
    options = {"metrics": metrics, "truths": truths, "target": target}
    named = {f"seed {k}": model for k, model in enumerate(models)}
    report = gx.evaluate(named, inputs, ["gradient_input"], **options)
    frame = report.to_frame().set_index(["metric", "method"])
    alone = [gx.evaluate(model, inputs, ["gradient_input"], **options) for model in models]
    for name in ("auac", "roc_auc", "largest_share", "hit"):
        means = [each.intervals(name)["gradient_input"].mean for each in alone]
        row = frame.loc[(name, "gradient_input")]
        assert np.std(means) > 0 or name == "hit"
        assert row["mean"] == pytest.approx(np.mean(means), abs=1e-6)
        assert row.sd == pytest.approx(np.std(means, ddof=1), abs=1e-6)
        assert (row.models, row.graphs) == (3, 3)
        assert row.passes == "1 forward, 1 backward"
        assert row.ms > 0
    assert list(report.seeds("auac").columns) == [*named, "mean", "sd"]
    explained = [gx.explain(models[0], given, "gradient_input", target=target) for given in inputs]
    pairs = list(zip([e.relevance for e in explained], truths, strict=True))
    first = alone[0].values("roc_auc")["gradient_input"]
    np.testing.assert_allclose(first, [roc_auc(*pair) for pair in pairs], atol=1e-6)
    hits = alone[0].values("hit")["gradient_input"]
    np.testing.assert_allclose(hits, [t[r.argmax()] for r, t in pairs])


def test_ties_are_bold_together_in_latex():
    models, inputs, truths = seeds("bundled")

    def same_as_first(model, batch, target):
        return batch.x[..., 0].float()

    def same_as_second(model, batch, target):
        return 2 * batch.x[..., 0].float()

    report = gx.evaluate(
        dict(zip("ab", models, strict=False)),
        inputs,
        [same_as_first, same_as_second],  # carbon has fewer protons than oxygen
        metrics=["roc_auc"],
        truths=truths,
    )
    lines = report.to_latex().splitlines()
    assert r"method & roc\_auc $\uparrow$ & ms & passes \\" in lines
    bold = {line.split(" & ")[0] for line in lines if r"\textbf{" in line}
    means = {name: each.mean for name, each in report.intervals("roc_auc").items()}
    best = max(means.values())
    tied = {name.replace("_", r"\_") for name, mean in means.items() if abs(mean - best) < 5e-4}
    assert bold == tied >= {r"same\_as\_first", r"same\_as\_second"}
    assert all(r"$\pm$" in line for line in lines if line.split(" & ")[0] in bold)


def test_a_registered_function_says_which_way_is_better(monkeypatch):
    monkeypatch.setattr("graphxai.evaluation.metrics.METRICS", dict(METRICS))
    monkeypatch.setattr("graphxai.evaluation.method_values.METRICS", dict(METRICS))

    @metric(False, "this test")
    def missed(relevance, truth):
        """Share of the true nodes with less relevance than the mean."""
        return float((relevance[truth] < relevance.mean()).mean())

    model, inputs, truths = random_graphormer(), SMILES, TRUTHS
    options = {"truths": truths, "metrics": [missed]}
    report = gx.evaluate(model, inputs, ["gradient_input"], **options)
    means = {name: each.mean for name, each in report.intervals("missed").items()}
    assert report.ranking("missed")[0] == min(means, key=means.get)
    assert r"missed $\downarrow$" in report.to_latex()


def test_the_table_is_saved_as_csv_parquet_and_latex(tmp_path):
    models, inputs, truths = seeds("wrapped")
    named = {f"seed {k}": model for k, model in enumerate(models)}
    options = {"truths": truths, "metrics": ["auac"], "out": tmp_path / "units"}
    report = gx.evaluate(named, inputs, ["lrp"], **options)
    folder = report.save(tmp_path / "report")
    frame = report.to_frame()
    for read in (pd.read_csv(folder / "table.csv"), pd.read_parquet(folder / "table.parquet")):
        pd.testing.assert_frame_equal(read, frame, check_dtype=False)
    assert (folder / "table.tex").read_text() == report.to_latex()
    assert set(frame.metric) == {"auac", "roc_auc"}  # the first measure of a truth is added
    again = gx.evaluate(named, inputs, ["lrp"], resume=True, **options)  # nothing is left to do
    pd.testing.assert_frame_equal(again.to_frame(), frame)
    other = [~truth for truth in truths]
    with pytest.raises(ValueError, match=r"other settings \(truths\)"):
        gx.evaluate(named, inputs, ["lrp"], resume=True, **(options | {"truths": other}))


def test_an_input_without_a_truth_has_no_value():
    report = gx.evaluate(
        random_graphormer(), SMILES, ["lrp"], metrics=["iou"], truths=[TRUTHS[0], None, TRUTHS[2]]
    )
    assert np.isfinite(report.values("iou")["lrp"]).tolist() == [True, False, True]
    explanation = gx.explain(random_graphormer(), SMILES[0])
    assert iou(explanation.relevance, TRUTHS[0]) >= 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"truths": TRUTHS[:2]}, "2 entries for 3 inputs"),
        ({"truths": [None] * 3}, "has no truth"),
        ({"truths": [TRUTHS[0], TRUTHS[0], TRUTHS[0]]}, "graph 1: truth has shape"),
        ({"truths": [TRUTHS[0], TRUTHS[1].astype(float), None]}, "several kinds"),
        ({"metrics": ["roc_auc"]}, "give truths="),
        ({"metrics": ["pearson"], "truths": TRUTHS}, "does not fit the truths"),
        ({"metrics": [lambda a, b, c: 0.0], "truths": TRUTHS}, "takes 3 arguments"),
    ],
)
def test_what_cannot_be_measured_is_named(changes, says):
    with pytest.raises(ValueError, match=says):
        gx.evaluate(random_graphormer(), SMILES, ["lrp"], **changes)
    if "metrics" not in changes:
        with pytest.raises(ValueError, match="there is no model"):
            gx.evaluate({}, SMILES, ["lrp"])


def test_the_command_measures_several_seeds_against_the_atoms_of_a_column(tmp_path):
    models, _, _ = seeds("bundled")
    for k, model in enumerate(models[:2]):
        save_checkpoint(model, tmp_path / f"seed{k}", card="# A seed\n")
    rows = [f"{s},{' '.join(map(str, np.flatnonzero(oxygen(s))))}" for s in SMILES]
    table = tmp_path / "test.csv"
    table.write_text("\n".join(["smiles,true_atoms", *rows]) + "\n")
    words = ["benchmark", str(tmp_path / "seed0"), str(table), "--truths", "true_atoms"]
    words += [word for k in range(2) for word in ("--model", str(tmp_path / f"seed{k}"))]
    words += ["--methods", "lrp", "--metrics", "auac,roc_auc", "--workers", "1"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    written = pd.read_csv(tmp_path / "out" / "table.csv")
    named = {f"seed{k}": gx.load(tmp_path / f"seed{k}") for k in range(2)}
    options = {"metrics": ["auac", "roc_auc"], "truths": TRUTHS}
    expected = gx.evaluate(named, SMILES, ["lrp"], **options).to_frame()
    columns = ["operator", "metric", "method", "mean", "low", "high", "graphs", "sd", "best"]
    pd.testing.assert_frame_equal(written[columns], expected[columns], check_dtype=False)
    settings = json.loads((tmp_path / "out" / "summary.json").read_text())["settings"]
    assert len(settings["checkpoints"]) == 2
