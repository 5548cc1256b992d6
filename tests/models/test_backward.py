"""The explicit pass agrees with autograd, and says when it applies."""

import copy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.utils.parametrize
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.contract.target import Target
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import MOLECULES, digit_paths
from graphxai.explainers import get_explainer
from graphxai.explainers.passes import (
    Embedded,
    by_autograd,
    graphormer_without_nodes,
    run_pass,
)
from graphxai.models.graphormer import Graphormer, StructureEncoding, collate
from graphxai.models.graphormer.original_encoder import prepared_encoder
from graphxai.rules.conservative import record
from toy import random_graphormer

RULES = ("gradient_input", "lrp_ah", "lrp_ln", "lrp_ah_ln", "lrp", "attn_lrp")
KINDS = {
    "pre-LN": {},
    "post-LN": {"pre_layernorm": False},
    "published": {
        "pre_layernorm": False,
        "embedding_layernorm": True,
        "final_layernorm": False,
        "head": "transform",
    },
    "masked, one layer": {"num_layers": 1, "mask_distance": 3, "head": "transform"},
}


def batch_of(model, inputs):
    return collate([prepare_for(model, value).data for value in inputs])


def both_ways(model, batch, method, weights, structure=False):
    """Compute shares along the explicit pass and through autograd."""
    rules = get_explainer(method).rules
    start = Embedded.of(model, batch)
    passes = [way(start, rules, structure) for way in (run_pass, by_autograd)]
    assert not passes[0].outputs.requires_grad
    assert passes[1].outputs.requires_grad
    return start.tokens, [(p.outputs.detach(), p.back(weights)) for p in passes]


def assert_equal_shares(tokens, ways, tolerance):
    """Check all shares of the ledger, relative to the largest share of the batch.

    Remainders are differences of sums over all features of all tokens. So they are checked relative
    to the sum of the absolute terms, in proportion to which sums are rounded.
    """
    (outputs, actual_shares), (expected_outputs, expected) = ways
    terms = float((tokens * expected.tokens).abs().sum((1, 2)).max())
    relevance = (tokens * expected.tokens).sum(-1)
    shares = [relevance, expected.biases, expected_outputs, *expected.remainders.values()]
    allowed = tolerance * float(max(share.abs().max() for share in shares))
    torch.testing.assert_close(outputs, expected_outputs, rtol=0, atol=allowed)
    pairs = [
        ((tokens * actual_shares.tokens).sum(-1), relevance),
        (actual_shares.biases, expected.biases),
    ]
    for actual, other in pairs:
        torch.testing.assert_close(actual, other, rtol=0, atol=allowed)
    assert actual_shares.remainders.keys() == expected.remainders.keys()
    for name, remainder in expected.remainders.items():
        actual = actual_shares.remainders[name]
        torch.testing.assert_close(actual, remainder, rtol=0, atol=tolerance * terms)
    assert (actual_shares.structure is None) == (expected.structure is None)
    if expected.structure is not None:
        size = float(expected.structure.abs().max())
        atol = 10 * tolerance * size  # entries are no shares: they are sums over layers
        torch.testing.assert_close(actual_shares.structure, expected.structure, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", RULES)
def test_the_explicit_pass_equals_autograd(method, kind, smiles):
    model = random_graphormer(**KINDS[kind]).double()
    generator = torch.Generator().manual_seed(1)
    for inputs in (smiles, smiles[-1:]):  # padded, and alone
        batch = batch_of(model, inputs)
        weights = torch.randn(len(inputs), 2, generator=generator, dtype=torch.double)
        assert prepared_encoder(model)
        for structure in (False, True):
            tokens, ways = both_ways(model, batch, method, weights, structure)
            assert_equal_shares(tokens, ways, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_without_nodes_is_that_of_the_model(kind):
    model = random_graphormer(**KINDS[kind]).double()
    batch = batch_of(model, ["CCO"])
    with torch.no_grad():
        expected = model.encode(model.embed(batch), batch, keep=torch.zeros_like(batch.mask))
    outputs = graphormer_without_nodes(model, prepared_encoder(model))
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-12)
    model.layers[0].attention.value.register_forward_hook(lambda part, x, y: 2 * y)
    # only the model itself knows what a hook does
    assert graphormer_without_nodes(model, prepared_encoder(model)) is None


def _in_place(model):
    with torch.no_grad():
        model.layers[0].attention.value.weight.mul_(1.5)


def _through_data(model):  # PyTorch's counter of changes misses this one
    model.layers[-1].ffn.expand.weight.data.mul_(1.5)


def _through_numpy(model):
    model.layers[0].ffn_norm.weight.detach().numpy()[0] += 1.0


def _by_new_data(model):
    model.head.weight.data = model.head.weight.data * 1.5


def _by_a_new_parameter(model):
    part = model.layers[0].attention.key
    part.weight = torch.nn.Parameter(part.weight.detach() * 1.5)


def _by_a_transpose(model):  # in the same place in memory
    part = model.layers[0].attention.query
    part.weight.data = part.weight.data.T


def _by_a_state(model):
    model.load_state_dict({name: 1.5 * value for name, value in model.state_dict().items()})


def _of_the_token(model):
    model.graph_token.data.mul_(1.5)


def _of_an_order(model):
    model.layers[0], model.layers[1] = model.layers[1], model.layers[0]


def _of_a_setting(model):
    model.layers[0].attention_norm.eps = 0.1


@pytest.mark.parametrize(
    "change",
    [
        *(_in_place, _through_data, _through_numpy, _by_new_data, _by_a_new_parameter),
        *(_by_a_transpose, _by_a_state, _of_the_token, _of_an_order, _of_a_setting),
    ],
)
def test_a_change_of_a_weight_is_noticed_however_it_was_made(change):
    """What was computed from the weights is kept from one explanation to the next.

    A copy of the model has never been explained, so nothing was kept for it.
    """
    model = random_graphormer()
    before = gx.explain(model, "CCO", target="active")
    change(model)
    after, anew = (gx.explain(m, "CCO", target="active") for m in (model, copy.deepcopy(model)))
    assert np.array_equal(after.relevance, anew.relevance)
    assert after.ledger == anew.ledger
    assert not np.array_equal(after.relevance, before.relevance)
    assert after.output != before.output


def test_weights_that_are_too_many_to_compare_are_read_anew_in_each_explanation(monkeypatch):
    model = random_graphormer()
    kept = gx.explain(model, "CCO", target="active")
    assert prepared_encoder(model) is prepared_encoder(model)
    monkeypatch.setattr("graphxai.runtime.derived_values._MOST", 0)
    model = copy.deepcopy(model)
    anew = gx.explain(model, "CCO", target="active")
    assert prepared_encoder(model) is not prepared_encoder(model)
    np.testing.assert_allclose(anew.relevance, kept.relevance, rtol=1e-4, atol=1e-5)
    assert anew.without_nodes == pytest.approx(kept.without_nodes, rel=1e-5)


@cache
def bundled(name: str) -> tuple[Graphormer, list]:
    inputs = digit_paths()[:3] if name == "mnist-superpixels" else list(MOLECULES.values())[:8]
    return gx.load(name), inputs


@pytest.mark.parametrize("name", ["bace", "molecules", "mnist-superpixels"])
@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "gradient_input"])
def test_bundled_models_get_the_same_shares(method, name):
    model, inputs = bundled(name)
    model = copy.deepcopy(model).double()  # what is compared is not the rounding
    target = ("7", "1") if name == "mnist-superpixels" else None
    for some in (inputs, inputs[1:2]):
        batch = batch_of(model, some)
        weights = Target.of(target).resolve(model.config, model(batch).detach()).weights
        tokens, ways = both_ways(model, batch, method, weights)
        assert_equal_shares(tokens, ways, 1e-13)


@pytest.mark.parametrize(
    ("method", "options", "target"),
    [
        ("lrp", {}, ("active", "inactive")),
        ("lrp", {"baseline": "mean"}, "pIC50"),
        ("attn_lrp", {}, None),
        ("lrp_path", {}, None),
    ],
)
def test_an_attribution_is_the_same_with_autograd(method, options, target, monkeypatch, smiles):
    model = copy.deepcopy(bundled("bace")[0]).double()  # what is compared is not the rounding
    batch = batch_of(model, smiles)
    explainer = get_explainer(method, **options)
    quick = explainer.attribute(model, batch, target)
    monkeypatch.setattr("graphxai.models.graphormer.backward.follows", lambda rules: False)
    slow = explainer.attribute(model, batch, target)
    shares = [slow.relevance, slow.graph_token, slow.biases, slow.output]
    shares += [*(slow.structure or {}).values(), *(slow.remainders or {}).values()]
    allowed = 1e-12 * float(max(share.abs().max() for share in shares))
    for name in ("relevance", "graph_token", "biases", "output", "features"):
        values, expected = getattr(quick, name), getattr(slow, name)
        assert (values is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(values, expected, rtol=0, atol=allowed)
    assert quick.labels == slow.labels
    assert (quick.structure or {}).keys() == (slow.structure or {}).keys()
    for name, share in (slow.structure or {}).items():
        torch.testing.assert_close(quick.structure[name], share, rtol=0, atol=allowed)


# --- when autograd runs instead -----------------------------------------------------------------


class Louder(nn.Linear):
    """A layer with which a user replaces the model's own."""

    def forward(self, x):
        return 2 * super().forward(x)


def replace_head(model):
    model.head = Louder(32, 2)


def replace_ffn_norm(model):
    model.layers[1].ffn_norm = nn.LayerNorm(32)


def add_hook(model):
    model.layers[0].attention.value.register_forward_hook(lambda m, i, output: 2 * output)


def add_backward_hook(model):
    model.layers[1].ffn.register_full_backward_hook(lambda m, i, o: (2 * i[0],))


def override_forward(model):
    model.layers[2].ffn.forward = lambda x: 0 * x


def parametrize(model):
    double = nn.Identity()
    double.forward = lambda weight: 2 * weight
    torch.nn.utils.parametrize.register_parametrization(
        model.layers[0].ffn.expand, "weight", double
    )


def add_a_module(model):
    model.layers[0].add_module("adapter", nn.Linear(32, 32))


def turn_dropout_on(model):
    torch.manual_seed(0)
    model.layers[0].dropout.p = 0.0
    model.layers[0].dropout.train()


def half_precision(model):
    model.to(torch.bfloat16)


CHANGES = (
    replace_head,
    replace_ffn_norm,
    add_hook,
    add_backward_hook,
    override_forward,
    parametrize,
    add_a_module,
    turn_dropout_on,
    half_precision,
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_explained_through_autograd(change, smiles):
    model = random_graphormer()
    assert prepared_encoder(model)
    change(model)
    assert not prepared_encoder(model)
    batch = batch_of(model, smiles[-2:])
    attribution = get_explainer("lrp").attribute(model, batch, "active")
    start = Embedded.of(model, batch)
    expected = by_autograd(start, get_explainer("lrp").rules)
    shares = expected.back(torch.tensor([[1.0, 0.0]] * 2, dtype=start.tokens.dtype))
    relevance = (start.tokens * shares.tokens).sum(-1)[:, 1:].masked_fill(~batch.mask, 0)
    assert torch.equal(attribution.relevance, relevance)


def test_a_subclass_a_patched_class_and_global_hooks_take_autograd(monkeypatch):
    class Mine(Graphormer):
        pass

    model = random_graphormer()
    assert not prepared_encoder(Mine(model.config).eval())
    assert not prepared_encoder(object())
    assert not prepared_encoder(model.train())
    model.eval()
    hook = register_module_forward_hook(lambda module, inputs, output: None)
    assert not prepared_encoder(model)
    hook.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert not prepared_encoder(model)
    assert prepared_encoder(model)
    monkeypatch.setattr(type(model.layers[0].ffn), "forward", lambda self, x: x)
    assert not prepared_encoder(model)


def test_an_enclosing_record_does_not_see_the_pass(smiles):
    model = random_graphormer()
    batch = batch_of(model, smiles)
    plain = get_explainer("lrp").attribute(model, batch)
    with record(biases=True) as tape:
        recorded = get_explainer("lrp").attribute(model, batch)
    assert not tape.biases
    assert not tape.attention
    assert torch.equal(plain.relevance, recorded.relevance)


def test_a_large_graph_is_explained_in_parts_with_the_same_result(monkeypatch, smiles):
    """Its structural bias is filled piece by piece, and its attention computed twice."""
    model = random_graphormer()
    for inputs in (smiles, smiles[-1:]):  # a batch, and one graph
        batch, lrp = batch_of(model, inputs), get_explainer("lrp")
        expected = lrp.attribute(model, batch)
        with monkeypatch.context() as patched:
            patched.setattr("graphxai.models.graphormer.layers._PAIRS", 40)
            patched.setattr("graphxai.models.graphormer.backward._KEPT", 0)
            attribution = lrp.attribute(model, batch)
        assert torch.equal(attribution.relevance, expected.relevance)
        assert torch.equal(attribution.biases, expected.biases)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads memory from /proc")
def test_lrp_of_2000_nodes_takes_less_than_700_megabytes():
    """Beside the process itself, the graph takes 206, its structural bias and one attention 256."""
    model, explainer = gx.load("bace"), get_explainer("lrp")
    graph = molecule_to_data("NCC(=O)" * 499, max_atoms=2000)
    batch = collate([StructureEncoding.from_config(model.config)(graph)])
    graph_itself = sum(t.nbytes for t in (batch.bag_codes, batch.bag_weights, batch.bag_offsets))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    attribution = explainer.attribute(model, batch)
    taken = resident("VmHWM") - before + graph_itself
    assert attribution.unexplained.abs().max() < 1e-5
    assert taken < 700e6


def resident(name: str) -> int:
    """Return the process's memory now (VmRSS) or at its peak (VmHWM) in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
