"""A model is moved towards own measurements by a process, and says what each of the two adds."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.datasets import fingerprints
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.explanation.compute.models import load
from graphxai.learning import conformal
from graphxai.learning.processes.adapting import NOISE
from graphxai.models.graphormer import locate
from graphxai.models.process import SummedModel
from graphxai.tables.app.molecules import card

CORES = ("c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccc2ccccc2c1")
SMILES = [chain + core for core in CORES for chain in ("", "C", "CC", "OC", "NC", "FC")]
NEW = "CCCc1ccncc1"
TASK = "log D at pH 7.4"
CHEMPROP = Path(__file__).parents[1] / "data" / "chemprop" / "run_2.2.4"


def written(path, smiles, values, heading="logD"):
    lines = [f"{s},{v}" for s, v in zip(smiles, values, strict=True)]
    path.write_text("\n".join([f"smiles,{heading}", *lines]) + "\n")
    return path


def measured(smiles):
    """Return what a model of log D misses by one, and by two where there is a pyridine."""
    return [gx.predict("lipophilicity", s)[TASK].value + 1 + ("n" in s) for s in smiles]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    table = written(folder / "own.csv", SMILES, measured(SMILES))
    return gx.adapt("lipophilicity", table, folder / "out", target_column="logD")


def test_the_value_is_the_models_and_a_process_on_its_residuals(adapted):
    model = gx.load(adapted)
    assert isinstance(model, SummedModel)
    counts = structure_counts(SMILES)
    kernel = similarity(counts, counts).astype(float)
    errors = np.array([1.0 + ("n" in s) for s in SMILES])
    weights = np.linalg.solve(kernel + NOISE * np.eye(len(SMILES)), errors - errors.mean())
    expected = similarity(structure_counts([NEW]), counts)[0] @ weights + errors.mean()
    base = gx.predict("lipophilicity", NEW)[TASK].value
    adapted_value = gx.predict(model, NEW)[TASK]
    assert adapted_value.value - base == pytest.approx(expected, abs=1e-4)
    assert 1.5 < expected < 2
    low, high = adapted_value.interval
    assert low < adapted_value.value < high


def test_one_ledger_has_a_line_for_each_model_and_closes(adapted):
    model = gx.load(adapted)
    e = gx.explain(model, NEW)
    assert abs(e.ledger.unexplained) < 1e-5
    parts = e.ledger.node_parts
    assert set(parts) == {"model", "process"}
    alone = gx.explain("lipophilicity", NEW)
    of_process = gx.explain(model.process, NEW)
    np.testing.assert_allclose(e.features[:, 0], alone.relevance, atol=1e-5)
    np.testing.assert_allclose(e.features[:, 1], of_process.relevance, atol=1e-5)
    np.testing.assert_allclose(e.relevance, e.features.sum(1), atol=1e-6)
    both = (
        gx.explain(each, NEW, "occlusion").relevance for each in ("lipophilicity", model.process)
    )
    np.testing.assert_allclose(gx.explain(model, NEW, "occlusion").relevance, sum(both), atol=1e-4)


def test_hiding_atoms_hides_them_from_both_models(adapted):
    model = gx.load(adapted)
    item = model.prepare(NEW)
    batch = model.collate([item.graph])
    keep = torch.ones(1, item.num_nodes, dtype=torch.bool)
    keep[0, :3] = False
    with torch.no_grad():
        together = model.encode(model.embed(batch), batch, keep)
        of_base = model.base.encode(model.base.embed(batch.base), batch.base, keep)
        of_process = model.process.encode(model.process.embed(batch.process), batch.process, keep)
    torch.testing.assert_close(together, of_base + of_process.float())


def test_a_value_far_from_the_rest_is_pointed_out_as_in_training(tmp_path):
    values = [*np.linspace(4, 9, len(SMILES) - 1), 1e6]
    table = written(tmp_path / "own.csv", SMILES, values)
    expected = f"values far from the rest: 1 (kept), first 1e+06 of {SMILES[-1]}"
    with pytest.warns(UserWarning, match=re.escape(expected)) as caught:
        out = gx.adapt("lipophilicity", table, tmp_path / "out", target_column="logD")
    assert caught[0].filename == __file__
    assert expected in gx.load(out).origin.metadata["summary"]


def test_a_base_that_is_gone_is_named_with_what_to_do(tmp_path):
    base, table = tmp_path / "base", written(tmp_path / "own.csv", SMILES, range(len(SMILES)))
    shutil.copytree(locate("lipophilicity"), base)
    out = gx.adapt(base, table, tmp_path / "out", target_column="logD")
    shutil.move(base, tmp_path / "elsewhere")
    with pytest.raises(
        ValueError, match=r"base .*/base' .* Put it back, or write its new"
    ) as error:
        gx.load(out)
    assert str(base) in str(error.value)
    config = json.loads((out / "config.json").read_text())
    config["base"]["path"] = str(tmp_path / "elsewhere")
    (out / "config.json").write_text(json.dumps(config))
    assert gx.predict(gx.load(out), NEW)[TASK].value


def test_more_values_update_it_and_a_newer_value_replaces_an_older_one(adapted, tmp_path):
    more = written(tmp_path / "more.csv", [NEW, SMILES[0]], [9.0, -9.0])
    again = gx.adapt(adapted, more, tmp_path / "again", target_column="logD")
    model = gx.load(again)
    assert model.process.config.carriers == len(SMILES) + 1
    assert model.origin.metadata["adapted"] == "lipophilicity"
    rows = (again / "training.csv").read_text().splitlines()
    assert sum(row.endswith(",-9") for row in rows) == 1
    assert gx.predict(model, NEW)[TASK].value > gx.predict(adapted, NEW)[TASK].value + 1


def test_the_median_of_several_values_of_a_molecule_counts_and_is_said(tmp_path):
    own, lines, predicted = SMILES[:8], [], []
    first, *values = measured(own)
    for name, of_first in (("a", [1, 5, 0]), ("b", [0, 5, 1]), ("median", [1])):
        smiles = [own[0]] * len(of_first) + own[1:]
        table = written(tmp_path / f"{name}.csv", smiles, [first + k for k in of_first] + values)
        out = gx.adapt(
            "lipophilicity", table, tmp_path / f"out {name}", target_column="logD", log=lines.append
        )
        predicted.append(gx.predict(gx.load(out), NEW)[TASK].value)
    assert predicted == [predicted[-1]] * 3
    said = "molecules measured several times with different values: 1; median taken"
    assert sum(line.startswith(said) for line in lines) == 2


def test_training_compounds_are_not_read_again_for_each_adaptation(adapted, tmp_path, monkeypatch):
    described, ecfp4_bits = [], fingerprints.ecfp4_bits
    for module in (fingerprints, conformal):
        monkeypatch.setattr(
            module, "ecfp4_bits", lambda mol: described.append(mol) or ecfp4_bits(mol)
        )
    table = written(tmp_path / "own.csv", SMILES[:8], range(8))
    gx.adapt("lipophilicity", table, tmp_path / "out", target_column="logD")
    assert 8 <= len(described) <= 4 * 8  # and not once for each of the 3,780 of the model


def test_rows_that_are_not_learned_from_are_said(tmp_path):
    own, lines = [*SMILES[:8], "not a molecule"], []
    values = [*measured(SMILES[:7]), "about 3", 1.0]
    table = written(tmp_path / "own.csv", own, values)
    out = tmp_path / "out"
    gx.adapt("lipophilicity", table, out, target_column="logD", log=lines.append)
    assert "on 7 of your molecules" in lines[0]
    assert any("1 " in line and "'about 3'" in line for line in lines[1:])
    assert "rows left out, whose molecule cannot be read: 1" in lines
    assert all(f"\n* {line}" in (out / "README.md").read_text() for line in lines)


def test_bounds_are_learned_kept_and_replaced_by_values(tmp_path):
    pyridines = [smiles for smiles in SMILES if "n" in smiles]
    others = [smiles for smiles in SMILES if "n" not in smiles]
    values, lines = measured(others), []

    def answer(cells, model="lipophilicity", own=(*others, *pyridines), name="own"):
        table = written(tmp_path / f"{name}.csv", own, cells)
        out = gx.adapt(model, table, tmp_path / name, target_column="logD", log=lines.append)
        return out, gx.predict(gx.load(out), NEW)[TASK].value

    _, without = answer(values, own=others, name="without")
    _, idle = answer([*values, *[">-40"] * len(pyridines)], name="idle")
    folder, above = answer([*values, *[">4"] * len(pyridines)], name="above")
    _, below = answer([*values, *["<-4"] * len(pyridines)], name="below")
    assert idle == pytest.approx(without, abs=0.1)  # they lie where nobody doubts it
    assert above > without + 1
    assert below < without - 1
    assert any(f"{len(pyridines)} bounds were learned" in line for line in lines)
    assert (folder / "training.csv").read_text().count(">4\n") == len(pyridines)
    _, again = answer(values[:1], model=folder, own=others[:1], name="again")
    assert again == pytest.approx(above, abs=1e-5)
    _, replaced = answer([0.0] * len(pyridines), model=folder, own=pyridines, name="replaced")
    assert replaced < above - 1


CHIRAL = ["C[C@H](N)" + core for core in CORES] + ["C[C@@H](O)" + core for core in CORES]
RACEMATE = "CC[C@H](O)c1ccncc1 |&1:2|"
OF_NEW = ["C[C@H](N)c1ccc(Cl)nc1", "C[C@@H](N)c1ccc(Cl)nc1"]  # both images


@pytest.fixture(scope="module")
def adapted_to_images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    own = [*SMILES, *CHIRAL, f'"{RACEMATE}"']
    table = written(folder / "own.csv", own, np.sin(np.arange(len(own))))
    return gx.adapt("lipophilicity", table, folder / "out", target_column="logD")


def test_both_mirror_images_get_one_answer_which_is_the_mean_over_their_counts(adapted_to_images):
    """The base cannot know them. The kernel with each image is written out by hand."""
    model, own = gx.load(adapted_to_images), [*SMILES, *CHIRAL, "CCC(O)c1ccncc1"]
    carried = structure_counts(own)
    images = structure_counts([s.replace("@", "@@").replace("@@@@", "@") for s in own])
    kernel = (similarity(carried, carried) + similarity(images, carried)).astype(float) / 2
    base = [gx.predict("lipophilicity", s)[TASK].value for s in (*own[:-1], RACEMATE, OF_NEW[0])]
    factor = model.factor
    errors = np.sin(np.arange(len(own))) - factor * np.array(base[:-1])
    task = gx.load("lipophilicity").config.tasks[0]
    errors -= (1 - factor) * task.offset
    weights = np.linalg.solve(kernel + NOISE * np.eye(len(own)), errors - errors.mean())
    near = similarity(structure_counts(OF_NEW), carried).mean(0)
    expected = factor * base[-1] + (1 - factor) * task.offset + near @ weights + errors.mean()
    values = [row[TASK].value for row in gx.predict(model, OF_NEW)]
    assert values == pytest.approx([expected] * 2, abs=2e-4)
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    first, other = gx.explain(model, OF_NEW)
    np.testing.assert_allclose(first.relevance, other.relevance, atol=1e-6)
    assert abs(first.ledger.unexplained) < 1e-5


@pytest.mark.parametrize("smiles", [OF_NEW[0], OF_NEW[1], NEW])
def test_a_measurements_share_is_its_value_times_what_it_counts(adapted_to_images, smiles):
    """With the kernel of both images written out by hand, as in the test before."""
    model, own = gx.load(adapted_to_images), [*SMILES, *CHIRAL, "CCC(O)c1ccncc1"]
    carried = structure_counts(own)
    images = structure_counts([s.replace("@", "@@").replace("@@@@", "@") for s in own])
    kernel = (similarity(carried, carried) + similarity(images, carried)).astype(float) / 2
    assert np.abs(kernel - similarity(carried, carried)).max() > 0.01  # so that it matters
    covariance = kernel + NOISE * np.eye(len(own))
    weights = model.process.weights[:, 0].detach().double().numpy()
    both = OF_NEW if "@" in smiles else [smiles]
    near = similarity(structure_counts(both), carried).mean(0).astype(float)
    counted = np.linalg.solve(covariance, near) * (covariance @ weights)
    account = gx.kernel_account(model, smiles)
    by_smiles = {each.smiles: each.share for each in account.training}
    scale = gx.load("lipophilicity").config.tasks[0].scale
    for text, expected in zip([*SMILES, *CHIRAL], counted, strict=False):
        assert by_smiles[text] == pytest.approx(scale * expected, abs=1e-5)


def test_without_the_measured_structures_there_is_no_account_over_images(
    adapted_to_images, tmp_path
):
    folder = shutil.copytree(adapted_to_images, tmp_path / "model")
    (folder / "training.csv").unlink()
    with pytest.raises(ValueError, match="mean over mirror images, and its training molecules"):
        gx.kernel_account(gx.load(folder), NEW)


@pytest.mark.parametrize("smiles", [OF_NEW[0], RACEMATE, NEW])
def test_an_account_is_that_of_the_mean_over_isomers_and_images(adapted_to_images, smiles):
    model = gx.load(adapted_to_images)
    account, e = gx.kernel_account(model, smiles), gx.explain(model, smiles)
    assert account.output == pytest.approx(e.output, abs=1e-5)
    for shares in (account.training, account.structures):
        total = account.mean + account.beside + sum(each.share for each in shares)
        assert total == pytest.approx(account.output, abs=1e-5)
    np.testing.assert_allclose(account.relevance, e.features[:, 1], atol=1e-5)
    first = account.training[0]
    assert account.shared_atoms(0)[1].sum() == pytest.approx(first.share, abs=1e-5)


def test_a_racemate_stays_one_on_file_and_when_a_model_is_updated(adapted_to_images, tmp_path):
    assert RACEMATE.split()[1] in (adapted_to_images / "training.csv").read_text()
    more = written(tmp_path / "more.csv", [f'"{RACEMATE.replace("@", "@@")}"'], [7.0])
    again = gx.adapt(adapted_to_images, more, tmp_path / "again", target_column="logD")
    rows = [row for row in (again / "training.csv").read_text().splitlines() if "&1" in row]
    assert len(rows) == 1
    assert rows[0].endswith(",7")


def wrapped(path):
    """Write code with a wrapped model, and return the name of the model."""
    path.write_text(
        "import torch, graphxai as gx\n"
        "from graphxai.contract.tasks import Task\n"
        "from graphxai.datasets.molecules import molecule_to_data\n"
        "from torch_geometric.nn import global_add_pool\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        torch.manual_seed(0)\n"
        "        self.element, self.head = torch.nn.Embedding(119, 8), torch.nn.Linear(8, 1)\n"
        "    def forward(self, data):\n"
        "        h = torch.relu(self.element(data.x[:, 0]))\n"
        "        return self.head(global_add_pool(h, data.batch))\n"
        "model = gx.wrap(Net().eval(), Task('logD', 'regression'), inputs='molecules',\n"
        "                featurize=molecule_to_data)\n"
    )
    return f"{path}:model"


def test_a_wrapped_model_is_adapted_by_path_and_hash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrapped(tmp_path / "mine.py")
    table = written(tmp_path / "own.csv", SMILES, range(len(SMILES)))
    out = gx.adapt("mine.py:model", table, tmp_path / "out")
    stored = json.loads((out / "config.json").read_text())
    assert stored["base"]["path"] == f"{tmp_path / 'mine.py'}:model"
    e = gx.explain(out, NEW)
    assert abs(e.ledger.unexplained) < 1e-5
    stored["base"]["sha256"] = "0" * 64
    (out / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="other weights than when this model was made from it"):
        load(out)


@pytest.mark.parametrize("kind", ["wrapped", "chemprop"])
def test_other_models_are_adapted_updated_and_shown(kind, tmp_path):
    if kind == "chemprop":
        pytest.importorskip("chemprop", reason="chemprop is an extra")
    base = wrapped(tmp_path / "theirs.py") if kind == "wrapped" else CHEMPROP
    task = gx.load(base).config.tasks[0].name
    table = written(tmp_path / "own.csv", SMILES, range(len(SMILES)))
    out = gx.adapt(base, table, tmp_path / "out", target_column="logD")
    named = json.loads((out / "config.json").read_text())["base"]
    assert named["path"] == str(base)
    more = written(tmp_path / "more.csv", [NEW], [30.0])
    before = gx.predict(gx.load(out), NEW)[task]
    model = gx.load(gx.adapt(out, more, tmp_path / "again", target_column="logD"))
    assert model.process.config.carriers == len(SMILES) + 1
    after = gx.predict(model, NEW)[task]
    assert after.value > before.value + 1
    assert after.interval[0] < after.value < after.interval[1]
    e = gx.explain(model, NEW)
    assert abs(e.ledger.unexplained) < 1e-4
    assert set(e.ledger.node_parts) == {"model", "process"}
    shown = card(model, NEW, model.default_method, Target(None))
    assert shown["value"] == pytest.approx(after.value, rel=1e-3)
    page = gx.report(model, [NEW, "CCO"], tmp_path / "report.html").read_text("utf-8")
    assert "measured" in page
    account = gx.kernel_account(model, NEW)
    assert account.training[0].smiles == NEW
    assert account.training[0].measured == "30"


def test_what_cannot_be_adapted_is_refused_with_what_to_do(tmp_path):
    table = written(tmp_path / "own.csv", SMILES[:3], [1, 2, 3])
    with pytest.raises(ValueError, match="train a model of your own with `graphxai train`"):
        gx.adapt("hiv", table, tmp_path / "out")
    with pytest.raises(ValueError, match=r"3 measurements .* at least 5 are needed"):
        gx.adapt("lipophilicity", table, tmp_path / "out", target_column="logD")
    unread = written(tmp_path / "unread.csv", ["xx", *SMILES[:3]], [4, 1, 2, 3])
    with pytest.raises(
        ValueError, match=r"3 measurements .* cannot read the first: 'xx' cannot be"
    ):
        gx.adapt("lipophilicity", unread, tmp_path / "out", target_column="logD")
    once = written(tmp_path / "once.csv", SMILES[:1], [1])
    with pytest.raises(ValueError, match=r"1 measurement of"):
        gx.adapt("lipophilicity", once, tmp_path / "out", target_column="logD")
    with pytest.raises(ValueError, match=r"'log P' is none that has values"):
        gx.adapt("lipophilicity", table, tmp_path / "out", task="log P")
    model = gx.load("lipophilicity")
    model.origin = type(model.origin)()
    with pytest.raises(ValueError, match="give the name or path of the model"):
        gx.adapt(model, table, tmp_path / "out", target_column="logD")


def test_values_in_another_unit_than_the_models_are_refused(tmp_path):
    heading = "solubility (uM)"
    table = written(tmp_path / "own.csv", SMILES[:6], range(100, 700, 100), heading)
    with pytest.raises(ValueError, match=r"has values in .M, .* is in log mol/L: convert them"):
        gx.adapt("solubility", table, tmp_path / "out", target_column=heading)
    assert not (tmp_path / "out").exists()
    for heading in ("logS (log mol/L)", "logS (mol/L)"):
        logs = written(tmp_path / "logs.csv", SMILES[:6], range(-6, 0), heading)
        assert gx.adapt("solubility", logs, tmp_path / "out", target_column=heading)


def test_another_model_in_the_folder_is_not_overwritten(adapted, tmp_path):
    table = written(tmp_path / "own.csv", SMILES[:6], range(6))
    mean = shutil.copytree(adapted, tmp_path / "mean")  # as training writes the mean of two models
    config = json.loads((mean / "config.json").read_text())
    (mean / "config.json").write_text(json.dumps(config | {"metadata": {}}))
    network = shutil.copytree(gx.load("lipophilicity").origin.folder, tmp_path / "network")
    for folder, base in ((mean, "lipophilicity"), (network, "lipophilicity"), (network, network)):
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        with pytest.raises(ValueError, match="already contains another model: choose another"):
            gx.adapt(base, table, folder, target_column="logD")
        assert all((folder / name).read_bytes() == text for name, text in before.items())


def test_the_command_writes_a_model_for_the_report_and_the_app(tmp_path):
    table = written(tmp_path / "own.csv", SMILES[:10], range(10))
    command = ["adapt", "lipophilicity", table, "--target-column", "logD", "--out", tmp_path / "m"]
    done = subprocess.run(
        [sys.executable, "-m", "graphxai", *map(str, command)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "each left out in turn" in done.stderr + done.stdout
    page = gx.report(tmp_path / "m", [NEW, "CCO"], tmp_path / "report.html")
    assert TASK in page.read_text("utf-8")
    assert len(gx.fragments(gx.explain(tmp_path / "m", NEW)))
    assert "</svg>" in gx.compare(tmp_path / "m", NEW).svg()


def test_a_model_that_knows_nothing_of_a_series_counts_less(tmp_path):
    """Values that run against the model's are predicted better without it."""
    against = [-gx.predict("lipophilicity", s)[TASK].value for s in SMILES]
    table = written(tmp_path / "own.csv", SMILES, against)
    model = gx.load(gx.adapt("lipophilicity", table, tmp_path / "m", target_column="logD"))
    assert model.factor == 0
    e = gx.explain(model, NEW)
    assert abs(e.ledger.unexplained) < 1e-5
    of_process = gx.explain(model.process, NEW)
    np.testing.assert_allclose(e.relevance, of_process.relevance, atol=1e-5)
    assert "count 0 times" in str(model.origin.metadata["words"])


def test_tasks_without_own_values_stay_as_they_are(tmp_path):
    """A model of a class and a value keeps its classes' sets, and its outputs are not scaled."""
    table = written(tmp_path / "own.csv", SMILES, [5 + k / 10 for k in range(len(SMILES))], "pIC50")
    model = gx.load(gx.adapt("bace", table, tmp_path / "m"))
    assert model.factor == 1
    of_class, of_base = (gx.predict(each, NEW)["BACE-1 inhibition"] for each in (model, "bace"))
    assert of_class.probabilities == pytest.approx(of_base.probabilities, abs=1e-6)
    assert of_class.range == of_base.range
    page = gx.report(model, [NEW, "CCO"], tmp_path / "report.html").read_text("utf-8")
    assert '"summary":""' in page  # which the page would call a test score
    assert "score on test data is unknown" in page
