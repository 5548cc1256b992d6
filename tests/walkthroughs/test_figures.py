"""The figures of the first screen are those of runs: made here, or recorded by a benchmark."""

import json
import re
from pathlib import Path
from statistics import mean

import pandas as pd
import pytest
from sklearn.metrics import r2_score

import graphxai as gx
from graphxai.datasets.samples import example_files

ROOT = Path(__file__).resolve().parents[2]
PRETRAINED = ROOT / "models" / "graphormer" / "pretrained"


def read(path: str) -> str:
    """Return the text of a page with single spaces, so that no line break hides a sentence."""
    return " ".join((ROOT / path).read_text("utf-8").split())


def metadata(model: str) -> dict:
    return json.loads((PRETRAINED / model / "config.json").read_text("utf-8"))["metadata"]


def rows_by_method(path: str, section: str = "") -> dict[str, list[float]]:
    """Return the numbers in each row of a page's tables that begins with a method's name."""
    text = (ROOT / path).read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*\|(.*)\|$", text[text.index(section) :], re.MULTILINE)
    return {name: [float(x) for x in re.findall(r"-?\d\.\d+", cells)] for name, cells in rows}


def test_the_table_of_methods_is_what_the_command_gives(run, data_folder, tmp_path, monkeypatch):
    """Those of its methods that take seconds are measured anew, on all 152 test compounds."""
    monkeypatch.setenv("GRAPHXAI_DATA", str(data_folder))
    monkeypatch.setattr("graphxai.evaluation.output._save", lambda *_: None)  # draws the figures
    methods = ["path_marginals", "lrp_path", "lrp", "random"]
    run("benchmark", "bace", "--methods", ",".join(methods), "--out", tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "table.csv").set_index(["method", "metric"])["mean"]
    shown = rows_by_method("README.md", "## I have a network")
    assert {*methods, "shapley_sampling"} == shown.keys()
    half_a_digit = {"auac": 6e-4, "au_mse": 6e-3, "srg": 6e-4}  # of what is printed, and rounding
    for method in methods:
        for (metric, tolerance), value in zip(half_a_digit.items(), shown[method], strict=True):
            assert value == pytest.approx(table[method, metric], abs=tolerance), (method, metric)


def test_the_figures_of_shapley_sampling_are_the_recorded_ones():
    recorded = rows_by_method("docs/choose.md", "<!-- made by make tables: bace -->")
    auac, au_mse, srg = recorded["shapley_sampling"][:3]
    row = f"| `shapley_sampling` | 8 per atom | {auac:.3f} | {au_mse:.2f} | {srg:.3f} |"
    assert row in read("README.md")


@pytest.mark.filterwarnings("ignore")
def test_the_scores_of_the_assay_are_those_of_the_commands(run, tmp_path, monkeypatch):
    """Both models are trained in full, on the table that the first screen trains them on."""
    monkeypatch.chdir(tmp_path)
    run("examples")
    train = ["train", "examples/assay.csv", "--target-column", "efflux", "--split", "random"]
    run(*train, "--no-teacher", "--out", "network")
    run(*train, "--model", "process", "--out", "process")
    network, process = (
        json.loads((tmp_path / name / "model" / "scores.json").read_text("utf-8"))["scores"]
        for name in ("network", "process")
    )
    of, n = network["efflux"]["scores"], network["efflux"]["n"]
    r2, forest = (of[name]["R2"][0] for name in ("graphormer", "forest"))
    by_process = process["efflux"]["scores"]["graphormer"]["R2"][0]  # named so for any model
    page = read("README.md")
    assert f"R² is {r2:.2f} for the model and {forest:.2f} for the forest, on only {n} test" in page
    assert f"in seconds ({by_process:.3f} on the same molecules)" in page


def test_as_many_molecules_are_to_be_used_with_care_as_the_page_says():
    table = pd.read_csv(example_files()["molecules.csv"])
    model = gx.load("lipophilicity")
    levels = [gx.trust(model, e).level for e in gx.explain(model, table.smiles.tolist())]
    words = {7: "seven", 12: "twelve"}
    care, all_of_them = words[levels.count("caution")], words[len(levels)]
    assert f'of these {all_of_them}, {care} say "use with care"' in read("README.md")


def test_scores_of_the_ten_tables_are_means_of_the_recorded_runs():
    runs = json.loads((ROOT / "benchmarks" / "moleculeace.json").read_text("utf-8"))
    scores = [run["scores"]["network"] for run in runs]
    rmse, cliff_rmse = (mean(s[name] for s in scores) for name in ("rmse", "cliff_rmse"))
    sentence = f"`graphxai train` has a mean RMSE of {rmse:.3f}, and {cliff_rmse:.3f} on"
    assert len(runs) == 30
    assert sentence in read("README.md")


def test_the_best_published_method_is_that_of_the_published_table(published_tables):
    """The best by the mean RMSE over the ten tables, among the methods that have all ten."""
    runs = json.loads((ROOT / "benchmarks" / "moleculeace.json").read_text("utf-8"))
    published = pd.read_csv(published_tables / "moleculeace" / "published.csv")
    published = published[published.dataset.isin({run["table"] for run in runs})]
    methods = published.groupby(["algorithm", "descriptor"])[["rmse", "cliff_rmse"]]
    best = methods.mean()[methods.size() == 10].sort_values("rmse").iloc[0]
    sentence = f"the best of {methods.ngroups} published methods has {best.rmse:.3f} and"
    assert f"{sentence} {best.cliff_rmse:.3f}" in read("README.md")


def test_the_score_of_log_d_is_that_of_its_test_compounds(published_tables):
    """Also of those whose form has changed since the training."""
    card = metadata("lipophilicity")
    split, scores = card["split"], card["scores"]["log D at pH 7.4"]["scores"]
    table = pd.read_csv(published_tables / "molecules" / "lipo.csv")
    table.index += 1  # rows are numbered from 1
    test = table.drop([*split["train_rows"], *split["valid_rows"]])
    assert len(test) == 420
    predicted = gx.predict(gx.load("lipophilicity"), test.smiles.tolist()).to_frame()
    score = r2_score(test.lipo, predicted["log D at pH 7.4"])
    forest = scores["descriptor_forest"]["R2"][0]
    sentence = f"`lipophilicity` has R² {score:.3f} on new scaffolds, a forest with descriptors"
    assert f"{sentence} {forest:.3f}" in read("README.md")


def test_the_scores_of_digits_and_of_new_scaffolds_of_bace_are_the_recorded_ones():
    accuracy = metadata("mnist-superpixels")["test"]["accuracy"]
    assert f"{accuracy:.1%}".replace("%", " %") in read("README.md")
    splits = json.loads((ROOT / "benchmarks/results/bace_quality.json").read_text("utf-8"))
    (scaffold,) = (split for split in splits if split["split"] == "scaffold")
    network, forest = (scaffold[name]["roc_auc"] for name in ("graphormer", "forest"))
    recipe = f"`bace`'s recipe, without removal, has ROC-AUC {network:.3f} on new scaffolds"
    sentence = f"{recipe}, a forest {forest:.3f}"
    assert sentence in read("README.md")


def test_the_figures_of_the_registered_test_are_those_of_its_page():
    page = (ROOT / "benchmarks" / "hybrids.md").read_text("utf-8")
    table = page.split("AUAC / SRG by kind of model")[1]
    spans = []
    for method in ("path_marginals", "lrp"):
        row = re.search(rf"^\| {method} \|(.*)$", table, re.MULTILINE)[1]
        kinds = re.findall(r"(\.\d+)/", row)
        values = [float(auac) for auac in (*kinds[:3], *kinds[4:7])]  # the others have no attention
        spans.append(f"{min(values):.2f} to {max(values):.2f}")
    assert f"was {spans[0]} by kind, that of `lrp` {spans[1]} (" in read("README.md")
