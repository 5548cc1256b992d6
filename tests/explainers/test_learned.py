"""The learned explainer is trained on a known truth, and saved with what it needs."""

import json
import os
from hashlib import sha256

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from shapley import batch_of
from torch import nn
from torch_geometric.nn import SimpleConv, global_add_pool

import graphxai as gx
from graphxai.contract.method_names import CONTROLS
from graphxai.contract.model import explaining
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.rules import RULES
from graphxai.evaluation.curves import node_series
from graphxai.evaluation.testing import check_batching, check_renumbering
from graphxai.explainers import FittedExplainer, fit_explainer, get_explainer
from graphxai.explainers.learned.network import class_numbers
from graphxai.explainers.learned.passes import (
    areas,
    gradients_of_probability,
    node_features,
    soft_presence,
)
from graphxai.explainers.orders import in_order
from graphxai.explainers.registry import methods_for
from graphxai.models.graphormer import Ensemble, StructureEncoding, save_checkpoint
from graphxai.rules.conservative import conservative, record
from other_models import GpsModel, graph_of, molecules
from toy import random_graphormer

TASKS = (Task("digit", "multiclass", ("a", "b", "c")), Task("logP", "regression"))


def roc_auc(truth, scores):
    above = scores[truth][:, None] - scores[~truth][None]
    return ((above > 0) + 0.5 * (above == 0)).mean()


@pytest.fixture(scope="module")
def model():
    return random_graphormer(tasks=TASKS, num_layers=2, hidden_dim=16, ffn_dim=16, num_heads=2)


@pytest.fixture(scope="module")
def few(smiles):
    return [*smiles[1:3], "CCO", "CC(=O)N", "c1ccccc1O", "CCN"] * 3


@pytest.fixture(scope="module")
def fitted(model, few):
    return fit_explainer(model, few, epochs=1, data="small molecules", seed=3)


# --- features ------------------------------------------------------------------------------------


def test_features_of_a_molecule_equal_single_gradients(model):
    batch = batch_of(model, ["CC(=O)NO"])
    path = torch.tensor([[0.5, -1.0, 2.0, 0.25, -1.25]])
    size = path.abs().mean()
    target = Target("b").resolve(model.config, model(batch).detach())
    with explaining(model):
        features, states = node_features(model, batch, target, path)
    assert features.shape == (1, 5, 2 * (2 * 2 + 2 + 2) + 2 * 2 + 5)
    assert states.shape == (1, 5, 2 * 16)
    expected = []
    for rules in ({"attention": False, "layernorm": False}, {"activation": "ratio"}):
        with conservative(**rules), record(attention_gradients=True) as tape:
            log_p = model(batch)[0, :3].log_softmax(-1)[1]
        v = log_p - (1 - log_p.exp()).log()
        first, last = torch.autograd.grad(v, tape.attention, retain_graph=True)
        gates = []
        for weights, slope in zip(tape.attention, (first, last), strict=True):
            weights, gate = weights[0].detach(), torch.zeros_like(weights[0])
            for head, query, key in torch.cartesian_prod(
                *map(torch.arange, weights.shape)
            ).tolist():
                row = weights[head, query]
                others = row.clone()
                others[key] = 0
                gate[head, query, key] = (row - others / others.sum()) @ slope[0, head, query]
            gates.append(gate)
        by_state = torch.autograd.grad(v, tape.hidden[:2])
        products = [(h * g)[0].sum(-1)[None] for h, g in zip(tape.hidden, by_state, strict=False)]
        rows = torch.cat([gates[0].sum(1), gates[1].sum(1), gates[0][:, 0], *products])
        expected.append(rows[:, 1:].T / size)
        if not expected[1:]:
            shares = torch.cat([weights[0, :, 0, 1:] for weights in tape.attention]).T * 6
    of_v = torch.cat([*expected, path.T / size], dim=1).asinh()
    torch.testing.assert_close(features[0, :, : of_v.shape[1]], of_v, atol=1e-5, rtol=1e-4)
    rest = features[0, :, of_v.shape[1] :]
    torch.testing.assert_close(rest[:, : shares.shape[1]], shares, atol=1e-5, rtol=1e-4)
    assert rest[:, shares.shape[1]].argsort().tolist() == path[0].argsort().tolist()
    torch.testing.assert_close(
        rest[0, -3:], torch.stack([torch.tensor(0.1), v.asinh(), size.log()])
    )


# --- what is learned -----------------------------------------------------------------------------


def test_soft_presence_becomes_the_removal_of_nodes_below_the_threshold(model):
    batch = batch_of(model, ["CC(=O)NO", "CCO"])
    scores = torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0], [0.0, 2.0, 1.0, 0.0, 0.0]])
    shares = torch.tensor([[0.45, 0.5], [0.9, 0.95]])
    presence = soft_presence(scores, batch.mask, shares, 1e-3).exp().round()
    assert presence[0].tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 1, 1]]
    assert presence[1].tolist() == [[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]


def test_the_slope_of_the_probability_is_its_difference_quotient():
    model = random_graphormer(tasks=TASKS).double()
    batch = batch_of(model, ["CC(=O)NO"])
    presence = -torch.tensor([[0.1, 3.0, 0.7, 0.0, 1.5]], dtype=torch.double)
    target = Target("c", "digit").resolve(model.config, model(batch).detach())
    with explaining(model):
        (gradients,) = gradients_of_probability(model, batch, target, presence[None])

    @torch.no_grad()
    def probability(log_presence):
        bias = model.bias(batch)
        bias[:, :, :, 1:] += log_presence[:, None, None, :]
        return model.encode(model.embed(batch), batch, bias=bias)[0, :3].softmax(-1)[2]

    for node in range(5):
        step = torch.zeros_like(presence)
        step[0, node] = 1e-5
        slope = (probability(presence + step) - probability(presence - step)) / 2e-5
        assert gradients[0, node].item() == pytest.approx(slope.item(), abs=1e-8)


class SumOfMessages(nn.Module):
    """A network of messages whose output is linear in the presence of each node."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.conv, self.head = SimpleConv(aggr="sum"), nn.Linear(9, 3)
        self.scale = scale

    def forward(self, x, edge_index, batch):
        h = x + F.elu(x - 0.5) + self.conv(x, edge_index)
        return self.scale * self.head(global_add_pool(h, batch))


def test_the_slope_of_a_wrapped_model_is_what_a_node_adds_to_a_coalition():
    torch.manual_seed(0)
    graph = graph_of("CC(=O)NO")
    # outputs near zero, where the probability is linear
    model = gx.wrap(SumOfMessages(1e-5).double().eval(), kind="multiclass", classes=("a", "b", "c"))
    graph.x = graph.x.double()
    batch = model.collate([model.prepare(graph).data])
    target = Target("c").resolve(model.config, model(batch).detach())
    present = torch.tensor([[True, False, True, True, False]])
    presence = torch.where(present, 0.0, -torch.inf).double()
    with explaining(model):
        added, lost = gradients_of_probability(model, batch, target, presence.expand(2, 1, -1))

    @torch.no_grad()
    def probability(shown):
        outputs = model.encode(model.embed(batch), batch, shown[None])
        return torch.sigmoid(target.log_odds(outputs)).item()

    for node in range(5):
        alone = torch.arange(5) == node
        for gradient, there in ((added, present[0]), (lost, ~present[0])):
            gained = probability(there | alone) - probability(there & ~alone)
            expected = gained if present[0, node] else 0.0  # absent nodes have no chance to share
            assert gradient[0, node].item() == pytest.approx(expected, rel=1e-4, abs=1e-12)
    assert added.abs().max() > 1e-7


def test_held_out_areas_are_those_of_the_benchmark(model):
    texts = ["CC(=O)NO", "CCO"]
    batch = batch_of(model, texts)
    scores = torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0], [0.0, 2.0, 1.0, 0.0, 0.0]])
    target = Target("c", "digit")
    held_out_areas = areas(model, batch, target.resolve(model.config, model(batch)), scores)
    for area, text, order in zip(held_out_areas, texts, scores, strict=True):
        data = StructureEncoding.from_config(model.config)(molecule_to_data(text))
        curve = node_series(model, data, order[: data.num_nodes], target).activation
        assert area.item() == pytest.approx(curve.area, abs=1e-6)


def test_values_follow_the_order_and_equivalent_nodes_share_theirs():
    values = torch.tensor([[5.0, -1.0, 2.0, 0.0], [4.0, 1.0, 0.0, 0.0]])
    order = torch.tensor([[0.1, 0.4, 0.4, -3.0], [-1.0, 2.0, 9.0, 9.0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert in_order(values, order, mask).tolist() == [[0, 3.5, 3.5, -1], [1, 4, 0, 0]]


def test_it_finds_the_halogens_that_its_start_misses():
    """The model was trained on the rule; the molecules explained were not used for fitting."""
    rule, ends = RULES["halogen"], ("F", "Cl", "Br", "O", "N", "C#N", "S", "C(=O)O")
    scaffolds = ("CCCX", "CCC(C)X", "c1ccc(X)cc1", "CCC(=O)NX", "CC1CC1X", "CCCCX", "NCCX", "OCCX")
    smiles = [text.replace("X", end) for text in scaffolds for end in ends]
    truths = [rule.truth(text) for text in smiles]
    model = random_graphormer(
        tasks=(Task("halogen", "binary", ("no", "yes")),),
        **{"num_layers": 2, "hidden_dim": 16, "ffn_dim": 16, "num_heads": 2},
    )
    batch = batch_of(model, smiles)
    labels = torch.tensor([rule.label_of(truth) for truth in truths]).float()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(50):
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(model(batch)[:, 0], labels).backward()
        optimiser.step()
    assert ((model(batch)[:, 0] > 0) == labels.bool()).float().mean() > 0.95
    fitted = fit_explainer(model, smiles[::2], epochs=2, held_out=0)
    others = [k for k in range(1, len(smiles), 2) if labels[k]]
    means = {}
    for method, options in (("lrp_path", {}), ("learned", {"fitted": fitted})):
        explained = gx.explain(model, [smiles[k] for k in others], method, **options)
        pairs = zip(explained, (truths[k] for k in others), strict=True)
        means[method] = np.mean([roc_auc(truth, e.relevance) for e, truth in pairs])
    assert means["learned"] > means["lrp_path"] + 0.1, means


# --- the method ----------------------------------------------------------------------------------


def test_a_graph_gets_the_same_scores_alone_in_batches_and_renumbered(model, fitted, smiles):
    explainer = get_explainer("learned", fitted=fitted)
    check_batching(model, smiles[1:4], explainer)
    check_renumbering(model, smiles[1:4], explainer)


def test_scores_are_those_of_lrp_path_in_another_order(model, fitted, smiles):
    learned, path = (
        gx.explain(model, smiles[2], method, target="b", **options)
        for method, options in (("learned", {"fitted": fitted}), ("lrp_path", {}))
    )
    assert sum(learned.relevance) == pytest.approx(sum(path.relevance), rel=1e-4)
    assert learned.relevance.max() == pytest.approx(path.relevance.max(), rel=1e-4)


def test_a_wrapped_model_is_fitted_and_its_files_are_bound_to_its_weights(few, tmp_path):
    torch.manual_seed(0)
    module = SumOfMessages().eval()
    wrapped = gx.wrap(module, kind="multiclass", classes=("a", "b", "c"), task="digit")
    graphs = [graph_of(text) for text in few]
    fitted, again = (gx.fit_explainer(wrapped, graphs, epochs=1) for _ in range(2))
    for name, value in fitted.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name]), name
    assert set(fitted.card["held_out"]) == {
        "graphs", "auac of learned", "auac of marginals at halves"
    }  # fmt: skip
    explainer = get_explainer("learned", fitted=fitted.save(tmp_path))
    check_batching(wrapped, graphs[:4], explainer)
    check_renumbering(wrapped, graphs[:4], explainer)
    learned, lrp = (gx.explain(wrapped, graphs[0], m, target="b") for m in (explainer, "lrp"))
    np.testing.assert_allclose(sorted(learned.relevance), sorted(lrp.relevance), atol=1e-5)
    with torch.no_grad():
        module.head.bias += 1
    with pytest.raises(ValueError, match="other weights"):
        gx.explain(wrapped, graphs[0], explainer, target="b")


def test_the_same_seed_gives_the_same_explainer(model, few, fitted):
    torch.manual_seed(11)
    again = fit_explainer(model, few, epochs=1, data="small molecules", seed=3).network.state_dict()
    for name, value in fitted.network.state_dict().items():
        assert torch.equal(value, again[name]), name


def test_a_saved_explainer_is_found_beside_the_checkpoint(model, few, tmp_path):
    folder = save_checkpoint(model, tmp_path / "model")
    loaded = gx.load(folder)
    with pytest.raises(ValueError, match=r"fit one with gx\.fit_explainer"):
        gx.explain(loaded, "CCO", "learned", target="b")
    assert "learned" not in methods_for(loaded)
    fitted = gx.fit_explainer(loaded, few, shapley_orders=2, epochs=1, data="small molecules")
    fitted.save(folder)
    assert "learned" in methods_for(loaded)
    given = gx.explain(loaded, "CC(=O)NO", "learned", target="b", fitted=fitted)
    explanation = gx.explain(loaded, "CC(=O)NO", "learned", target="b")
    assert (explanation.relevance == given.relevance).all()
    stored = FittedExplainer.load(folder)
    for name, value in stored.network.state_dict().items():
        assert torch.equal(value, fitted.network.state_dict()[name]), name
    card = stored.card
    assert card == fitted.card
    assert (card["data"], card["graphs"], card["seed"]) == ("small molecules", 16, 0)
    assert card["settings"]["shapley_orders"] == 2
    assert set(card["held_out"]) == {"graphs", "auac of learned", "auac of lrp_path"}
    with torch.no_grad():
        loaded.head.bias += 1
    gx.load(save_checkpoint(loaded, folder))
    with pytest.raises(ValueError, match="other weights"):
        gx.explain(gx.load(folder), "CCO", "learned", target="b")


def test_best_means_this_method_where_it_is_fitted(run):
    aspirin = "CC(=O)Oc1ccccc1C(=O)O"
    best, learned = (gx.explain(gx.load("bace"), aspirin, name) for name in ("best", "learned"))
    assert best.method == "learned"
    np.testing.assert_array_equal(best.relevance, learned.relevance)
    assert "best: learned (4 forward, 4 backward)" in run("methods")[2]
    unfitted, marginals = (
        gx.explain("solubility", aspirin, name) for name in ("best", "path_marginals")
    )
    assert unfitted.method == "path_marginals"
    np.testing.assert_array_equal(unfitted.relevance, marginals.relevance)
    with pytest.raises(ValueError, match="only regressions: use 'path_marginals'"):
        gx.explain("solubility", aspirin, "learned")
    wrapped = gx.wrap(GpsModel("layer_norm").eval(), kind="regression")
    report = gx.evaluate(wrapped, molecules()[:1], "best", steps=3)
    assert set(report.methods) == {"path_marginals", *CONTROLS}


def test_it_explains_the_classes_of_every_task_it_was_fitted_to(few):
    tasks = (
        Task("A", "binary", ("no", "yes")),
        TASKS[1],
        *TASKS[:1],
        Task("B", "binary", ("0", "1")),
    )
    sizes = {"num_layers": 2, "hidden_dim": 16, "ffn_dim": 16, "num_heads": 2}
    model = random_graphormer(tasks=tasks, **sizes)
    explainer = get_explainer("learned", fitted=fit_explainer(model, few, epochs=1))
    assert explainer.fitted.tasks == ("A", "digit", "B")
    numbers = {"A: no": 0, "A: yes": 1, "a": 2, "c": 4, "B: 0": 5, "B: 1": 6}
    outputs = torch.zeros(3, 6)
    for target, number in numbers.items():
        resolved = Target(target).resolve(model.config, outputs)
        class_of_graph = class_numbers(resolved, explainer.fitted.tasks_in(model))
        assert class_of_graph.tolist() == [number] * 3
        learned, path = (
            gx.explain(model, few[1], method, target=target).relevance
            for method in (explainer, "lrp_path")
        )
        np.testing.assert_allclose(sorted(learned), sorted(path), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="classes of 'A', 'digit', 'B', not to 'logP'"):
        gx.explain(model, "CCO", explainer, target="logP")
    fitted_to_b = fit_explainer(model, few, task="B", epochs=1)
    assert fitted_to_b.tasks == ("B",)
    with pytest.raises(ValueError, match="classes of 'B', not to 'yes'"):
        gx.explain(model, "CCO", get_explainer("learned", fitted=fitted_to_b), target="A: yes")


def test_what_it_cannot_explain_is_refused(model, fitted, few):
    explainer = get_explainer("learned", fitted=fitted)
    for target in ("logP", ("a", "b")):
        with pytest.raises(ValueError, match="fitted to the classes of 'digit'"):
            gx.explain(model, "CCO", explainer, target=target)
    with pytest.raises(ValueError, match="another kind"):
        gx.explain(random_graphormer(tasks=TASKS), "CCO", explainer, target="a")
    wrapped = gx.wrap(GpsModel(), kind="regression")
    with pytest.raises(ValueError, match="another kind"):
        gx.explain(wrapped, molecules()[0], explainer)
    with pytest.raises(ValueError, match="only regressions"):
        fit_explainer(wrapped, molecules())
    with pytest.raises(TypeError, match="a single model"):
        fit_explainer(Ensemble([model, model]), few)
    with pytest.raises(ValueError, match="only regressions"):
        fit_explainer(random_graphormer(tasks=TASKS[1:]), few)
    left_out = pytest.warns(UserWarning, match="1 of 16 graphs were left out")
    with left_out, pytest.raises(ValueError, match="too few"):
        fit_explainer(model, [*few[:15], "not a molecule"])


# --- files ---------------------------------------------------------------------------------------


def change_card(**changes):
    def damage(folder):
        content = json.loads((folder / "explainer.json").read_text()) | changes
        (folder / "explainer.json").write_text(json.dumps(content))

    return damage


def change_tensors(**changes):
    def damage(folder):
        path = folder / "explainer.safetensors"
        tensors = {k: v for k, v in (load_file(path) | changes).items() if v is not None}
        save_file(tensors, path)
        change_card(network_sha256=sha256(path.read_bytes()).hexdigest())(folder)

    return damage


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def pipe(folder):
    (folder / "explainer.safetensors").unlink()
    os.mkfifo(folder / "explainer.safetensors")


def enlarge(folder):
    with (folder / "explainer.json").open("ab") as file:
        file.truncate(1 << 25)


@pytest.mark.parametrize(
    "damage",
    [
        write("explainer.json", b""),
        write("explainer.json", b"[]"),
        write("explainer.json", b"[" * 100_000),
        write("explainer.json", b"\xff\xfe"),
        write("explainer.safetensors", b"\x80\x04pickle"),
        change_card(format="other"),
        change_card(tasks=None),
        change_card(tasks=[]),
        change_card(tasks=[3]),
        change_card(card=[]),
        change_card(network_sha256="0" * 64),
        change_tensors(path=None),
        change_tensors(stranger=torch.zeros(2)),
        change_tensors(mean=torch.zeros(3)),
        change_tensors(components=torch.zeros(5)),
        change_tensors(path=torch.tensor(float("nan"))),
        change_tensors(path=torch.tensor(1)),
        change_tensors(deviation=torch.zeros(61)),
        pipe,
        enlarge,
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path, fitted, damage):
    fitted.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=r"explainer\.(json|safetensors): cannot be read"):
        get_explainer("learned", fitted=tmp_path)


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(ValueError, match=r"explainer\.json: no such file; make it with gx\.fit"):
        get_explainer("learned", fitted=tmp_path)


def test_a_fit_that_is_interrupted_writes_nothing(run, tmp_path, monkeypatch, few, model):
    folder = save_checkpoint(model, tmp_path / "model")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["smiles", *few]))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("graphxai.explainers.learned.train.follow_curves", interrupted)
    out = tmp_path / "out"
    code, _, _ = run("fit-explainer", table, "--model", folder, "--out", out)
    assert code == 130
    assert list(out.iterdir()) == []


def test_the_command_fits_to_a_table(run, tmp_path, few, model):
    folder = save_checkpoint(model, tmp_path / "model")
    (tmp_path / "table.csv").write_text("\n".join(["smiles", *few]))
    code, _, error = run("fit-explainer", "--model", folder)
    assert code == 1
    assert "no training.csv beside it" in error
    code, said, _ = run(
        "fit-explainer", tmp_path / "table.csv", "--model", folder, "--epochs", 1, "--seed", 5
    )
    assert code == 0
    assert "AUAC on 2 held-out graphs" in said
    assert FittedExplainer.load(folder).card["data"] == "table.csv: 18 drawn"
