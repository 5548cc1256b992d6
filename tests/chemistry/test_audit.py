"""A bias that was planted in a model is named first, and a model without one is left in peace."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import f as f_distribution
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool

import graphxai as gx
from graphxai.chemistry.audit import COLUMNS
from graphxai.cli.main import main
from graphxai.datasets.samples import example_files
from graphxai.evaluation.statistics import GroupTest, holm

KINDS = 12  # of nodes, each of which is a group
SEEDS = range(20)


class Sum(nn.Module):
    """Add up a score of each node, which a hidden layer may change."""

    def __init__(self, hidden=0):
        super().__init__()
        wide = [nn.Linear(KINDS, hidden), nn.GELU(), nn.Linear(hidden, 1)]
        self.scores = nn.Sequential(*wide) if hidden else nn.Linear(KINDS, 1, bias=False)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.scores(x), batch)


def drawn(seed, count):
    """Return graphs of a few nodes of different kinds, and the parts of each by their kind."""
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(KINDS, rng.integers(2, 5), replace=False) for _ in range(count)]
    graphs = [
        Data(x=torch.eye(KINDS)[kinds], edge_index=torch.zeros(2, 0, dtype=torch.long))
        for kinds in chosen
    ]
    return graphs, [{f"kind {kind}": [k] for k, kind in enumerate(kinds)} for kinds in chosen]


def labels_for(graphs, weights, seed):
    """Draw labels whose log-odds are the sum of the weights (KINDS,) of the nodes."""
    logits = np.array([float((graph.x @ weights).sum()) for graph in graphs])
    return (np.random.default_rng(seed).random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(int)


def audited(network, graphs, labels, parts, **options):
    model = gx.wrap(network.eval(), kind="binary", classes=("no", "yes"))
    return gx.audit(model, graphs, labels, parts, progress=False, **options)


def planted(seed, bias):
    """Audit a model that knows the weights of all kinds, with a constant more for one of them."""
    rng = np.random.default_rng(seed)
    weights = torch.tensor(rng.normal(0, 0.7, KINDS), dtype=torch.float32)
    culprit = int(rng.integers(KINDS))
    graphs, parts = drawn(seed, 400)
    labels = labels_for(graphs, weights, seed)
    network = Sum()
    network.scores.weight.data = weights[None].clone()
    network.scores.weight.data[0, culprit] += bias
    return audited(network, graphs, labels, parts), f"kind {culprit}"


def test_a_constant_that_a_model_adds_for_a_group_is_named_first_for_every_seed():
    for seed in SEEDS:
        audit, culprit = planted(seed, 2.5)
        first = audit.to_frame().iloc[0]
        assert (first["name"], first.verdict) == (culprit, "favoured")
        assert first.excess_low > 0


def test_a_group_that_a_model_holds_too_much_against_the_target_is_disfavoured():
    audit, culprit = planted(0, -2.5)
    first = audit.to_frame().iloc[0]
    assert (first["name"], first.verdict) == (culprit, "disfavoured")
    assert first.excess_high < 0


def test_a_model_without_bias_gets_a_verdict_in_about_one_of_twenty_sets():
    flagged = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        groups = rng.random((200, KINDS)) < 0.2
        shares = groups * rng.normal(0, 0.8, KINDS)
        labels = (rng.random(200) < 1 / (1 + np.exp(-shares.sum(1)))).astype(float)
        test = GroupTest(shares.sum(1), labels, binary=True)
        flagged += min(holm([test(groups[:, k], shares[:, k])[1] for k in range(KINDS)])) < 0.05
    assert flagged <= 10  # binomial: 5 are expected, more than 10 have a probability of 1 %


def test_a_bias_that_networks_learned_from_their_labels_is_named_first_for_every_seed():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        weights = torch.tensor(rng.normal(0, 0.7, KINDS), dtype=torch.float32)
        culprit = int(rng.integers(KINDS))
        graphs, _ = drawn(seed, 1500)
        labels = labels_for(graphs, weights, seed)
        having = np.array([bool(graph.x[:, culprit].any()) for graph in graphs])
        labels = np.where(
            having & (rng.random(len(labels)) < 0.7), 1, labels
        )  # favoured in training
        torch.manual_seed(seed)
        network, batch = Sum(hidden=16), Batch.from_data_list(graphs)
        optimizer = torch.optim.Adam(network.parameters(), 0.02)
        wanted = torch.tensor(labels, dtype=torch.float32)[:, None]
        for _ in range(120):
            outputs = network(batch.x, batch.edge_index, batch.batch)
            loss = nn.functional.binary_cross_entropy_with_logits(outputs, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        fresh, parts = drawn(1000 + seed, 500)
        audit = audited(network, fresh, labels_for(fresh, weights, 1000 + seed), parts)
        assert audit.to_frame()["name"][0] == f"kind {culprit}"


def test_a_group_that_occurs_with_the_culprit_has_no_verdict_of_its_own():
    rng = np.random.default_rng(0)
    groups = rng.random((1500, 8)) < 0.25
    groups[:, 1] = np.where(groups[:, 0], rng.random(1500) < 0.9, rng.random(1500) < 0.03)
    shares = groups * rng.normal(0, 1.0, 8)
    labels = (rng.random(1500) < 1 / (1 + np.exp(-shares.sum(1)))).astype(float)
    shares[:, 0] += 2.0 * groups[:, 0]
    test = GroupTest(shares.sum(1), labels, binary=True)
    (_, p, gain), (_, p_companion, gain_companion) = (
        test(groups[:, k], shares[:, k]) for k in (0, 1)
    )
    assert p < 1e-4
    assert p_companion < 0.01  # beside the culprit it looks guilty
    assert gain > 1.5 * gain_companion
    test.allow(groups[:, 0], shares[:, 0])
    assert test(groups[:, 1], shares[:, 1])[1] > 0.05


def test_likelihoods_are_those_of_other_libraries():
    rng = np.random.default_rng(1)
    output, group = rng.normal(size=300), rng.random(300) < 0.3
    labels = (rng.random(300) < 1 / (1 + np.exp(-(0.4 + 1.5 * output - group)))).astype(float)
    columns = np.stack([output, group], axis=1)
    fitted = LogisticRegression(C=1e12, tol=1e-10).fit(columns, labels)
    constant, *_ = GroupTest(output, labels, binary=True)(group, np.zeros(300))
    assert constant == pytest.approx(fitted.coef_[0, 1], abs=1e-4)
    values = output + 0.3 * group + rng.normal(size=300)
    _, p, _ = GroupTest(output, values, binary=False)(group, np.zeros(300))
    rests = [
        np.linalg.lstsq(design, values, rcond=None)[1][0]
        for design in (np.stack([np.ones(300), output], 1), np.c_[np.ones(300), columns])
    ]
    exact = f_distribution.sf((rests[0] - rests[1]) / rests[1] * 297, 1, 297)
    assert p == pytest.approx(exact, rel=0.02)


def test_an_overconfident_model_is_not_biased_by_that():
    rng = np.random.default_rng(2)
    groups = rng.random((500, 8)) < 0.3
    shares = groups * rng.normal(0, 0.8, 8)
    labels = (rng.random(500) < 1 / (1 + np.exp(-shares.sum(1)))).astype(float)
    plain = GroupTest(shares.sum(1), labels, binary=True)
    sure = GroupTest(5 * shares.sum(1), labels, binary=True)
    assert sure.slope == pytest.approx(plain.slope / 5, rel=0.08)
    for k in range(8):
        assert plain(groups[:, k], shares[:, k])[1] > 0.05 / 8
        assert sure(groups[:, k], 5 * shares[:, k])[1] > 0.05 / 8


SMILES = ["CCO", "OCC", "CCN", "CCCO", "CCCN", "c1ccccc1O", "c1ccccc1N", "CC(C)O", "CC(C)N", "CCF"]
CLASSES = ["active", "active", "inactive", *["active", "inactive"] * 3, "active"]


def test_a_list_a_frame_and_a_file_of_molecules_give_the_same_audit(tmp_path):
    frame = pd.DataFrame({"smiles": SMILES, "BACE-1 inhibition": CLASSES})
    frame.to_csv(tmp_path / "t.csv", index=False)
    listed = gx.audit("bace", SMILES, CLASSES, "groups", at_least=2)
    framed = gx.audit("bace", frame, parts="groups", at_least=2)
    read = gx.audit("bace", str(tmp_path / "t.csv"), parts="groups", at_least=2)
    pd.testing.assert_frame_equal(listed.to_frame(), framed.to_frame())
    pd.testing.assert_frame_equal(listed.to_frame(), read.to_frame())
    assert listed.objects == 9  # ethanol counts once
    assert tuple(listed.to_frame()) == COLUMNS
    table = gx.fragment_table(gx.explain("bace", SMILES), "groups").set_index("name")
    for row in listed.to_frame("share").itertuples():
        assert row.objects == table.molecules[row.name]
        assert row.share == pytest.approx(table["mean"][row.name])
    assert listed.to_frame("share").share.is_monotonic_decreasing


def test_the_labels_of_a_group_are_counted_among_its_objects():
    audit = gx.audit("bace", SMILES, CLASSES, {"N": "[#7]", "O": "[#8]"}, at_least=2).to_frame()
    labelled = audit.set_index("name").labelled
    assert labelled.to_dict() == {"N": 0.0, "O": 1.0}
    predicted = gx.predict("bace", ["CCN", "CCCN", "c1ccccc1N", "CC(C)N"])
    means = np.mean([p["BACE-1 inhibition"].probabilities["active"] for p in predicted])
    assert audit.set_index("name").predicted["N"] == pytest.approx(means)


def test_values_are_audited_in_their_unit_or_with_a_threshold():
    values = np.linspace(-2, 1, len(SMILES))
    audit = gx.audit("solubility", SMILES, values, "groups", at_least=2)
    assert audit.target == "solubility (log mol/L)"
    first = audit.to_frame().iloc[0]
    assert first.excess == pytest.approx(first.predicted - first.labelled)
    classes = ["active" if value >= 0 else "inactive" for value in values]
    pd.testing.assert_frame_equal(
        gx.audit("bace", SMILES, values, "groups", threshold=0, at_least=2).to_frame(),
        gx.audit("bace", SMILES, classes, "groups", at_least=2).to_frame(),
    )


def test_names_in_a_text_are_groups():
    network = nn.Module()
    network.words, network.head = nn.Embedding(4, 4), nn.Linear(4, 1)
    network.words.weight.data = torch.diag(torch.tensor([0.1, -0.2, 2.0, 0.0]))
    network.head.weight.data = torch.ones(1, 4)
    network.forward = lambda ids: network.head(network.words(ids)).sum(1)
    options = {"inputs": "tokens", "embedding": "words", "kind": "binary"}
    model = gx.wrap(network.eval(), classes=("negative", "positive"), **options)
    rng = np.random.default_rng(0)
    texts = [torch.tensor(rng.integers(0, 4, 5)) for _ in range(60)]
    parts = [
        {"lee": np.flatnonzero(text == 2), "barry": np.flatnonzero(text == 3)} for text in texts
    ]
    audit = gx.audit(model, texts, rng.integers(0, 2, 60), parts).to_frame()
    assert audit["name"][0] == "lee"
    assert audit.share[0] == pytest.approx(2 * np.mean([n for t in texts if (n := (t == 2).sum())]))


def test_salts_are_groups_of_a_model_that_reads_them():
    model = gx.load("bace", as_drawn=True)
    smiles = [f"{'C' * k}[NH3+].[{ion}-]" for k in range(1, 5) for ion in ("Cl", "Br")]
    labels = ["active", "inactive"] * 4
    audit = gx.audit(model, smiles, labels, "components", at_least=4).to_frame()
    assert sorted(audit.smiles) == ["[Br-]", "[Cl-]"]
    with pytest.raises(ValueError, match="as_drawn=True"):  # all salts of an amine are one compound
        gx.audit("bace", [f"{'C' * k}N.Cl" for k in range(1, 9)], labels, "components")


def test_what_cannot_be_audited_says_why():
    with pytest.raises(ValueError, match="needs shares of the output"):
        gx.audit("bace", SMILES, CLASSES, method="rollout")
    with pytest.raises(ValueError, match="one class or value"):
        gx.audit("bace", SMILES, CLASSES, target=("active", "inactive"))
    with pytest.raises(ValueError, match="name a class of 'digit'"):
        gx.audit("mnist-superpixels", [], [])
    with pytest.raises(ValueError, match="9 labels for 10 inputs"):
        gx.audit("bace", SMILES, CLASSES[1:])
    with pytest.raises(ValueError, match="all labels are the same"):
        gx.audit("bace", SMILES, ["active"] * len(SMILES))
    with pytest.raises(ValueError, match="at least 50 objects"):
        gx.audit("bace", SMILES, CLASSES, at_least=50)
    with pytest.raises(ValueError, match="no column 'BACE-1 inhibition'"):
        gx.audit("bace", SMILES)
    with pytest.raises(ValueError, match="has not two"):
        gx.audit("solubility", SMILES, CLASSES, threshold=1)


def test_the_command_writes_a_table_or_json_and_prints_the_groups(tmp_path, monkeypatch, capsys):
    table = example_files()["assay.csv"]
    lines = table.read_text().splitlines()[:60]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    command = ["audit", "t.csv", "--model", "mdr1-efflux", "--measured-column", "efflux"]
    for out in ("a.csv", "a.json"):
        monkeypatch.setattr("sys.argv", ["graphxai", *command, "--out", out, "--workers", "1"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 0
    printed = capsys.readouterr().err
    expected = gx.audit("mdr1-efflux", "t.csv", "efflux")
    assert expected.headline in " ".join(printed.split())
    written = pd.read_csv("a.csv")
    assert tuple(written) == COLUMNS
    assert written["name"].tolist() == expected.to_frame()["name"].tolist()
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["objects"] == expected.objects
    assert [group["p"] for group in content["groups"]] == pytest.approx(expected.to_frame().p)


def test_names_of_groups_are_escaped_in_a_notebook():
    graphs, parts = drawn(0, 40)
    hostile = [{f"<script>{name}": nodes for name, nodes in each.items()} for each in parts]
    audit = audited(Sum(), graphs, np.arange(40) % 2, hostile)
    assert "&lt;script&gt;kind" in audit._repr_html_()
    assert "<script" not in audit._repr_html_()
    assert repr(audit).startswith("Audit(12 groups in 40 objects")
