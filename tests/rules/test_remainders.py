"""Relevance that operations create or lose agrees with differences, and the sum closes."""

import pytest
import torch
import torch.nn.functional as F
from rdkit import Chem

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.datasets.samples import digit_paths
from graphxai.explainers import get_explainer
from graphxai.models.graphormer import layers
from graphxai.models.graphormer import model as graphormer
from graphxai.rules.conservative import conservative, record
from other_models import GpsModel, molecules
from toy import random_graphormer

REMAINING = {
    "gradient_input": {"softmax", "products", "LayerNorm", "activation"},
    "lrp_ah": {"LayerNorm", "activation"},
    "lrp_ln": {"softmax", "products", "activation"},
    "lrp_ah_ln": {"activation"},
    "attn_lrp": {"softmax"},
    "lrp": set(),
}
DRUGS = (
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",
    "CC(=O)[O-].[Na+]",
    "C",
)


def batch_of(model, inputs):
    return model.collate([prepare_for(model, value).data for value in inputs])


def summed(attribution):
    return sum(attribution.remainders.values(), torch.zeros_like(attribution.output))


@pytest.mark.parametrize("pre_layernorm", [True, False])
@pytest.mark.parametrize("head", ["linear", "transform"])
@pytest.mark.parametrize("embedding_layernorm", [True, False])
def test_remainders_sum_to_what_is_unexplained(pre_layernorm, head, embedding_layernorm, smiles):
    model = random_graphormer(
        pre_layernorm=pre_layernorm, head=head, embedding_layernorm=embedding_layernorm
    ).double()
    batch = batch_of(model, smiles)
    for method, names in REMAINING.items():
        for target in ("active", "inactive", "pIC50"):
            attribution = get_explainer(method).attribute(model, batch, target)
            assert set(attribution.remainders) == names
            size = sum(
                (abs(part) for part in attribution.remainders.values()), attribution.output.abs()
            )
            assert (
                (attribution.unexplained - summed(attribution)).abs() < 1e-12 * (1 + size)
            ).all()


@pytest.mark.parametrize("name", ["bace", "mnist-superpixels"])
def test_ledgers_of_the_bundled_models_close_by_name(name):
    inputs = digit_paths() if name == "mnist-superpixels" else list(DRUGS)
    for method in REMAINING:
        for explanation in gx.explain(gx.load(name), inputs, method):
            ledger = explanation.ledger
            named = sum(ledger.remainders.values())
            size = sum(abs(value) for value in ledger.to_dict().values())
            assert ledger.unexplained == pytest.approx(named, abs=2e-6 * size)


class Ends:
    """Stand-ins for `propagation` in which the ends of operations can be scaled.

    For one end, `d f / d scale` at scale 1 is its `sum x dx`. What the rules hold constant is
    replayed from the first pass.
    """

    def __init__(self, rules):
        self.rules, self.scaled, self.step = rules, "", 0.0
        self.constants, self.first = [], True

    def pass_with(self, scaled, step):
        self.scaled, self.step, self.position = scaled, step, iter(self.constants)

    def constant(self, value):
        if self.first:
            self.constants.append(value)
            return value
        return next(self.position)

    def end(self, name, x):
        return x * (1 + self.step) if name == self.scaled else x

    def softmax_attention(self, query, key, bias):
        logits = self.end("q", query) @ self.end("k", key).transpose(-2, -1)
        weights = torch.softmax(self.end("s", self.end("qk", logits) + bias), dim=-1)
        return self.constant(weights) if self.rules.attention else self.end("softmax", weights)

    def mix_values(self, weights, values):
        return self.end("Av", self.end("A", weights) @ self.end("v", values))

    def layer_norm(self, x, weight, bias, eps):
        x = self.end("to norm", x)
        scale = (x.var(-1, unbiased=False, keepdim=True) + eps) ** -0.5
        scale = self.constant(scale) if self.rules.layernorm else scale
        return self.end("norm", (x - x.mean(-1, keepdim=True)) * scale * weight) + bias

    def gelu(self, x):
        return self.end("gelu", F.gelu(self.end("to gelu", x)))

    def linear(self, x, weight, bias, alike):
        return F.linear(x, weight, bias)

    def add_bias(self, x, bias):
        return x + bias

    def current_tape(self):
        return None


ENDS = {  # what leaves each operation, what enters it
    "softmax": (("softmax",), ("s",)),
    "products": (("qk", "Av"), ("q", "k", "A", "v")),
    "LayerNorm": (("norm",), ("to norm",)),
    "activation": (("gelu",), ("to gelu",)),
}


@pytest.mark.parametrize("pre_layernorm", [True, False])
@pytest.mark.parametrize("method", ["gradient_input", "lrp_ah", "lrp_ln", "lrp_ah_ln"])
def test_each_remainder_is_what_scaling_the_ends_of_its_operation_changes(
    method, pre_layernorm, monkeypatch
):
    explainer = get_explainer(method)
    model = random_graphormer(num_layers=2, pre_layernorm=pre_layernorm, head="transform").double()
    batch = batch_of(model, DRUGS)
    attribution = explainer.attribute(model, batch, "active")
    tokens = model.embed(batch)
    ends = Ends(explainer.rules)
    monkeypatch.setattr(layers, "rules", ends)
    monkeypatch.setattr(graphormer, "rules", ends)

    def slope(end, step=1e-5):
        values = []
        for signed in (step, -step):
            ends.pass_with(end, signed)
            values.append(model.encode(tokens, batch)[:, 0])
        return (values[0] - values[1]) / (2 * step)

    with torch.no_grad():
        torch.testing.assert_close(model.encode(tokens, batch)[:, 0], attribution.output)
        ends.first = False
        for name, remainder in attribution.remainders.items():
            leaving, entering = ENDS[name]
            expected = sum(map(slope, leaving)) - sum(map(slope, entering))
            torch.testing.assert_close(remainder, expected, atol=1e-7, rtol=1e-6)


def test_a_graph_has_the_same_remainders_alone_and_in_a_batch(smiles):
    model = random_graphormer().double()
    for method in ("gradient_input", "attn_lrp"):
        together = get_explainer(method).attribute(model, batch_of(model, smiles))
        for row, text in enumerate(smiles):
            alone = get_explainer(method).attribute(model, batch_of(model, [text]))
            for name, share in together.remainders.items():
                torch.testing.assert_close(share[row], alone.remainders[name][0])


def test_remainders_are_invariant_to_atom_order():
    model = random_graphormer()
    molecule = Chem.MolFromSmiles(DRUGS[1])
    turned = Chem.RenumberAtoms(molecule, list(reversed(range(molecule.GetNumAtoms()))))
    for method in ("gradient_input", "lrp_ln"):
        first, second = (gx.explain(model, m, method).ledger for m in (molecule, turned))
        assert first.remainders == pytest.approx(second.remainders, rel=1e-4, abs=1e-4)


def test_zero_attention_adds_nothing_to_the_remainders(smiles):
    """Distant pairs are excluded, and sharp attention falls to zero in floating point."""
    model = random_graphormer(mask_distance=3)
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.query.weight.mul_(20)
    batch = batch_of(model, smiles)
    with record() as tape:
        model(batch)
    assert (tape.attention[1] == 0).any()
    attribution = get_explainer("attn_lrp").attribute(model, batch)
    size = sum(
        share.abs() for share in attribution.structure.values()
    ) + attribution.relevance.abs().sum(-1)
    assert ((attribution.unexplained - summed(attribution)).abs() < 1e-5 * (1 + size)).all()


def test_only_operations_without_a_rule_are_recorded():
    model = random_graphormer(num_layers=2)
    batch = batch_of(model, DRUGS)
    with record() as tape:
        plain = model(batch)
    assert tape.operations == []
    assert not tape.reads_class_token  # a Graphormer's graph token is no token of a wrapped model
    with conservative(activation="ratio"), record(operations=True) as tape:
        model(batch)
    assert tape.operations == []
    with conservative(), record(operations=True) as tape:
        model(batch)
    assert [operation.name for operation in tape.operations] == ["activation"] * 2
    with record(operations=True) as tape:
        torch.testing.assert_close(model(batch), plain)
    names = [operation.name for operation in tape.operations]
    assert names == ["LayerNorm", "LayerNorm", "activation"] * 2 + ["LayerNorm"]


def test_wrapped_models_have_no_remainders():
    model = gx.wrap(GpsModel().eval(), kind="regression")
    ledger = gx.explain(model, molecules()[0], "gradient_input").ledger
    assert ledger.remainders == {}
    assert ledger.unexplained != 0
    assert not any(name.startswith("unexplained: ") for name in ledger.to_dict())
