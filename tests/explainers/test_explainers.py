"""Explainers agree with their formulas, alone, in batches, padded and renumbered."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from shapley import batch_of

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.samples import digit_paths
from graphxai.evaluation.testing import check_all, check_ledger, check_no_trace
from graphxai.explainers import REGISTRY, Attribution, Explainer, get_explainer, register
from graphxai.explainers.base import _side_by_side
from graphxai.rules.conservative import record
from other_models import FEW_STEPS, quick_explainer
from toy import random_graphormer

METHODS = (
    "random",
    "gradient_input",
    "lrp_ah",
    "lrp_ln",
    "lrp_ah_ln",
    "lrp",
    "lrp_path",
    "attention_last",
    "rollout",
    "gae",
    "gae_rollout",
    "attention_flow",
    "cam",
    "grad_cam",
    "att_cat",
    "saliency",
    "smoothgrad",
    "integrated_gradients",
    "attn_lrp",
    "occlusion",
    "shapley_sampling",
    "gnn_explainer",
)


def test_every_method_of_the_papers_is_registered():
    assert set(METHODS) <= set(REGISTRY)
    assert all(cls.title and cls.source and cls.traits.cost for cls in REGISTRY.values())


@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_properties_hold_for_every_method(pre_layernorm, unlike, few_steps):
    check_all(random_graphormer(pre_layernorm=pre_layernorm), unlike)


def test_properties_hold_with_all_steps(monkeypatch):
    """These methods have steps, or are left out by the test above."""
    methods = [*FEW_STEPS, "lrp_ah", "lrp_ln", "lrp_ah_ln"]
    monkeypatch.setattr("graphxai.evaluation.testing.methods_for", lambda model: methods)
    check_all(gx.load("bace"), ["BrBr", "C"])


@pytest.mark.parametrize("smiles", [["C12C3C4C1C5C2C3C45"], ["C1CCCCC1", "CCO"]])
def test_properties_hold_where_all_atoms_are_alike(smiles, few_steps):
    """Equal scores differ by rounding, which no method may mistake for a difference."""
    model = gx.load("bace")
    check_all(model, smiles)
    for method in ("lrp", "lrp_path", "gradient_input", "occlusion"):
        alike = gx.explain(model, smiles[0], method).relevance
        assert np.ptp(alike) < 1e-3 * np.abs(alike).max()


@pytest.mark.parametrize("pre_layernorm", [True, False])
@pytest.mark.parametrize("head", ["linear", "transform"])
@pytest.mark.parametrize("embedding_layernorm", [True, False])
def test_ledger_of_lrp_closes_for_every_architecture(
    pre_layernorm, head, embedding_layernorm, smiles
):
    model = random_graphormer(
        pre_layernorm=pre_layernorm,
        head=head,
        embedding_layernorm=embedding_layernorm,
        tasks=(Task("logS", "regression", offset=-3.1, scale=2.2),),
    )
    check_ledger(model, smiles)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_gap_in_the_ledger_is_judged_by_the_size_of_its_terms(scale, smiles):
    """A term that is left out is noticed in outputs of any unit, and rounding in none."""

    class OfAnotherUnit(get_explainer("lrp").__class__):
        lost = 0.0

        def attribute(self, *args, **options):
            whole = super().attribute(*args, **options)
            terms = ("relevance", "graph_token", "biases", "output")
            scaled = {name: scale * getattr(whole, name) for name in terms}
            scaled["relevance"] = (1 - self.lost) * scaled["relevance"]
            return replace(whole, features=None, **scaled)

    model, explainer = random_graphormer(), OfAnotherUnit()
    check_ledger(model, smiles, explainer)
    explainer.lost = 0.05
    with pytest.raises(AssertionError, match="the ledger misses"):
        check_ledger(model, smiles, explainer)


def test_ledger_closes_in_double_precision_to_rounding(smiles):
    model = random_graphormer().double()
    attribution = get_explainer("lrp").attribute(model, batch_of(model, smiles))
    assert attribution.unexplained.abs().max() < 1e-12


def test_lrp_ah_ln_without_the_ratio_leaves_the_activation_unexplained(smiles):
    model = random_graphormer()
    attribution = get_explainer("lrp_ah_ln").attribute(model, batch_of(model, smiles))
    assert attribution.unexplained.abs().max() > 1e-2


class Frozen:
    """Stand-ins for `propagation` that replay the factors of a first pass as constants."""

    def __init__(self):
        self.replay = False
        self.factors = []

    def constant(self, value):
        if not self.replay:
            self.factors.append(value)
            return value
        return next(self.position)

    def restart(self):
        self.replay, self.position = True, iter(self.factors)

    def softmax_attention(self, query, key, bias):
        return self.constant(torch.softmax(query @ key.transpose(-2, -1) + bias, -1))

    def layer_norm(self, x, weight, bias, eps):
        scale = self.constant((x.var(-1, unbiased=False, keepdim=True) + eps) ** -0.5)
        return (x - x.mean(-1, keepdim=True)) * scale * weight + bias

    def gelu(self, x):
        return x * self.constant(0.5 * (1 + torch.erf(x / 2**0.5)))


def test_lrp_equals_removing_a_token_from_the_network_of_constants(monkeypatch, smiles):
    """That network is affine, so a token's relevance is what the output loses without it."""
    model = random_graphormer().double()
    batch = batch_of(model, smiles[4:5])
    attribution = get_explainer("lrp").attribute(model, batch)
    frozen = Frozen()
    for name in ("softmax_attention", "layer_norm", "gelu"):
        monkeypatch.setattr(f"graphxai.rules.conservative.{name}", getattr(frozen, name))
    with torch.no_grad():
        tokens = model.embed(batch)
        output = model.encode(tokens, batch)[0, 0]
        losses = []
        for token in range(tokens.shape[1]):
            without = tokens.clone()
            without[0, token] = 0
            frozen.restart()
            losses.append(output - model.encode(without, batch)[0, 0])
    losses = torch.stack(losses)
    torch.testing.assert_close(attribution.relevance[0], losses[1:])
    torch.testing.assert_close(attribution.graph_token[0], losses[0])


def test_rollout_and_gae_equal_their_matrix_products(smiles):
    model = random_graphormer()
    for text in smiles:
        batch = batch_of(model, [text])
        with record(all_queries=True) as tape:
            output = model(batch)[:, 0].sum()
        gradients = torch.autograd.grad(output, tape.attention)
        size = batch.mask.shape[1] + 1
        rollout, gae = torch.eye(size), torch.eye(size)
        for weights, gradient in zip(tape.attention, gradients, strict=True):
            mean = weights[0].mean(0) + torch.eye(size)
            rollout = (mean / mean.sum(-1, keepdim=True)) @ rollout
            gae = gae + (weights[0] * gradient[0]).relu().mean(0) @ gae
        for method, matrix in {"rollout": rollout, "gae": gae}.items():
            attribution = get_explainer(method).attribute(model, batch, "active")
            torch.testing.assert_close(attribution.relevance[0], matrix[0, 1:])
            torch.testing.assert_close(attribution.graph_token[0], matrix[0, 0])
        summed = get_explainer("rollout", readout="sum").attribute(model, batch)
        torch.testing.assert_close(summed.relevance[0], rollout.sum(0)[1:])
        columns = get_explainer("attention_last", readout="sum").attribute(model, batch)
        torch.testing.assert_close(columns.relevance[0], tape.attention[-1][0].mean(0).sum(0)[1:])


def test_summed_readout_ignores_padding(smiles):
    model = random_graphormer()
    for method in ("rollout", "attention_last"):
        explainer = get_explainer(method, readout="sum")
        together = explainer.attribute(model, batch_of(model, smiles))
        alone = explainer.attribute(model, batch_of(model, smiles[:1]))
        torch.testing.assert_close(together.relevance[0, :1], alone.relevance[0])


def test_features_split_each_nodes_relevance_exactly(smiles):
    model = random_graphormer()
    attribution = get_explainer("lrp").attribute(model, batch_of(model, smiles))
    assert attribution.features.shape[-1] == len(model.feature_names) == 10
    assert model.feature_names[-1] == "centrality"
    torch.testing.assert_close(
        attribution.features.sum(-1), attribution.relevance, atol=1e-5, rtol=1e-4
    )


def test_random_scores_follow_from_seed_and_graph(smiles):
    model = random_graphormer()
    batch = batch_of(model, smiles)
    first = get_explainer("random", seed=1).attribute(model, batch).relevance
    assert torch.equal(first, get_explainer("random", seed=1).attribute(model, batch).relevance)
    assert not torch.equal(first, get_explainer("random", seed=2).attribute(model, batch).relevance)
    drawn = get_explainer("random", generator=torch.Generator().manual_seed(3))
    again = get_explainer("random", generator=torch.Generator().manual_seed(3))
    assert torch.equal(
        drawn.attribute(model, batch).relevance, again.attribute(model, batch).relevance
    )


def test_one_logit_is_two_classes():
    model = random_graphormer()
    batch = batch_of(model, ["CCO"])
    lrp = get_explainer("lrp")
    active = lrp.attribute(model, batch, "active")
    inactive = lrp.attribute(model, batch, "inactive")
    torch.testing.assert_close(active.relevance, -inactive.relevance)
    torch.testing.assert_close(active.output, -inactive.output)
    contrast = lrp.attribute(model, batch, ("active", "inactive"))
    torch.testing.assert_close(contrast.output, active.output)
    assert contrast.labels == ("active against inactive",)
    by_task = lrp.attribute(model, batch, "pIC50")
    torch.testing.assert_close(by_task.output, model(batch)[:, 1].detach())


def test_targets_of_several_classes():
    model = random_graphormer(tasks=(Task("digit", "multiclass", ("a", "b", "c")),))
    batch = batch_of(model, ["CCO", "c1ccccc1"])
    outputs = model(batch).detach()
    predicted = get_explainer("lrp").attribute(model, batch)
    torch.testing.assert_close(predicted.output, outputs.max(-1).values)
    contrast = get_explainer("lrp").attribute(model, batch, (0, "c"))
    torch.testing.assert_close(contrast.output, outputs[:, 0] - outputs[:, 2])
    assert contrast.unexplained.abs().max() < 1e-4


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (7, ValueError, "target 7 is out of range: task 'activity' has 2 classes"),
        (-1, ValueError, "out of range"),
        ("toxic", ValueError, r"no class 'toxic' .*'activity' \(inactive, active\), 'pIC50'"),
        (Target(task="logP"), ValueError, "no task 'logP'"),
        (Target("active", task="pIC50"), ValueError, "regression and has no classes"),
        (2.5, TypeError, "a target is a class name"),
    ],
)
def test_a_target_the_model_does_not_have_is_named(target, error, message):
    model = random_graphormer()
    with pytest.raises(error, match=message):
        get_explainer("lrp").attribute(model, batch_of(model, ["CCO"]), target)


def test_training_mode_and_no_grad_do_not_change_the_result(smiles):
    model = random_graphormer(dropout=0.5, attention_dropout=0.5)
    batch = batch_of(model, smiles)
    expected = get_explainer("lrp").attribute(model, batch).relevance
    model.train()
    with torch.no_grad():
        relevance = get_explainer("lrp").attribute(model, batch).relevance
    assert torch.equal(relevance, expected)
    assert model.training


def test_frozen_parameters_are_explained_too(smiles):
    model = random_graphormer()
    batch = batch_of(model, smiles)
    expected = {m: quick_explainer(m).attribute(model, batch).relevance for m in METHODS}
    model.requires_grad_(False)
    for method, relevance in expected.items():
        torch.testing.assert_close(
            quick_explainer(method).attribute(model, batch).relevance, relevance
        )


def test_explaining_leaves_no_trace(smiles):
    check_no_trace(random_graphormer(), smiles)


def test_gradients_are_equal_across_runs_with_several_threads(smiles):
    model = random_graphormer()
    batch = batch_of(model, smiles * 4)
    seen = []
    torch.set_num_threads(2)
    try:
        for _ in range(12):
            model.zero_grad()
            model(batch).sum().backward()
            attribution = get_explainer("lrp").attribute(model, batch)
            seen.append([p.grad.clone() for p in model.parameters()] + [attribution.relevance])
    finally:
        torch.set_num_threads(1)
    for values in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], values, strict=True))


def test_own_explainers_can_be_used_by_class_and_by_name():
    class Degree(Explainer):
        name, title, source = "degree", "Degree", "test"

        def _attribute(self, model, batch, target):
            from graphxai.explainers.base import scored

            outputs = model(batch)
            scores = torch.cat([torch.zeros(len(batch), 1), batch.in_degree.float()], dim=1)
            return scored(scores, batch, outputs, target.resolve(model.config, outputs))

    model = random_graphormer()
    attribution = get_explainer(Degree).attribute(model, batch_of(model, ["CCO"]))
    assert attribution.relevance.tolist() == [[1.0, 2.0, 1.0]]
    register(Degree)
    try:
        assert isinstance(get_explainer("degree"), Degree)
    finally:
        del REGISTRY["degree"]
    with pytest.raises(ValueError, match="already exists"):
        register(type("Other", (Degree,), {"name": "lrp"}))


def test_unknown_methods_and_readouts_are_named():
    with pytest.raises(ValueError, match=r"unknown method 'lime'; the methods are: .*lrp"):
        get_explainer("lime")
    with pytest.raises(ValueError, match="readout must be"):
        get_explainer("rollout", readout="mean")
    with pytest.raises(TypeError, match="cannot be explained"):
        get_explainer("lrp").attribute(torch.nn.Linear(2, 2), None)


def test_relevance_is_zero_at_padding(smiles):
    model = random_graphormer()
    batch = batch_of(model, smiles)
    for method in METHODS:
        relevance = quick_explainer(method).attribute(model, batch).relevance
        assert np.all(relevance[~batch.mask].numpy() == 0)


def test_a_share_that_a_part_of_a_batch_lacks_is_zero_for_each_of_its_graphs():
    """Graphs of one size may share a pass, so parts may have different numbers of graphs."""

    def part(graphs: int, nodes: int, **others: torch.Tensor) -> Attribution:
        each, mask = torch.ones(graphs), torch.ones(graphs, nodes, dtype=torch.bool)
        return Attribution(mask.float(), each, each, each, each[:, None], (), mask, others=others)

    parts = [part(1, 4), part(3, 2, constants=torch.tensor([1.0, 2.0, 3.0])), part(2, 1)]
    joined = _side_by_side(parts, torch.ones(6, 4, dtype=torch.bool))
    assert joined.others["constants"].tolist() == [0, 1, 2, 3, 0, 0]
    assert joined.relevance.sum(1).tolist() == [4, 2, 2, 2, 1, 1]


def test_scores_that_do_not_depend_on_the_class_say_so():
    """Attention and the positive rule alone know nothing of the class explained."""
    model, digit = gx.load("mnist-superpixels"), digit_paths()[3]
    said = {name for name, cls in REGISTRY.items() if "class" in cls.traits.caveat}
    assert said == {"attention_last", "rollout", "attention_flow", "lrp_zplus", "partial_lrp"}
    for method in sorted(said | {"lrp", "gae", "grad_cam", "transformer_attribution"}):
        three, eight = (gx.explain(model, digit, method, target=c) for c in ("3", "8"))
        alike = np.corrcoef(three.relevance, eight.relevance)[0, 1]
        assert (alike > 0.98) == (method in said), (method, alike)
        assert (method in said) == ("class" in three.caption)


def test_an_option_that_means_the_output_leads_to_target():
    with pytest.raises(ValueError, match=r"has no option 'task'.* chosen by target="):
        gx.explain("bace", "CCO", task="pIC50")
