"""A pass that several methods look at is recorded once, and they give the same results as alone."""

import warnings

import pytest
import torch
from torch import nn

import graphxai as gx
from graphxai.engine.attention import passes
from graphxai.explainers import get_explainer
from graphxai.runtime.derived_values import cached_passes
from other_models import GpsModel, graph_of

METHODS = ["gae", "rollout", "partial_lrp", "transformer_attribution", "masked_lrp", "lrp_zplus"]


@pytest.fixture
def recorded(monkeypatch) -> list[str]:
    """Collect the types of the rows of every pass that is recorded."""
    seen: list[str] = []
    record = passes.record_pass

    def noting(given):
        seen.append(str(given.rows.dtype))
        return record(given)

    monkeypatch.setattr(passes, "record_pass", noting)
    return seen


def a_model(kind: str = "multihead") -> tuple:
    torch.manual_seed(0)
    module = GpsModel("layer_norm", "relu", kind).eval()
    model = gx.wrap(module, kind="regression")
    graphs = [model.prepare(graph_of(smiles)).data for smiles in ("CNC", "CC(=O)O")]
    batch = model.collate(graphs[:1] if kind == "performer" else graphs)
    # the checks that are made once for a model are made here
    get_explainer("transformer_attribution").attribute(model, batch)
    return module, model, batch


def test_both_halves_of_transformer_attribution_look_at_one_pass(recorded):
    _, model, batch = a_model()
    recorded.clear()
    get_explainer("transformer_attribution").attribute(model, batch)
    assert recorded == ["torch.float64"]


@pytest.mark.parametrize("kind", ["multihead", "performer"])
def test_methods_in_a_block_record_once_and_give_what_they_give_alone(recorded, kind):
    _, model, batch = a_model(kind)  # the matrices of a performer are made on demand
    alone = [get_explainer(name).attribute(model, batch) for name in METHODS]
    recorded.clear()
    with cached_passes(most=4):
        for name, wanted in zip(METHODS, alone, strict=True):
            attribution = get_explainer(name).attribute(model, batch)
            assert torch.equal(attribution.relevance, wanted.relevance), name
            assert torch.equal(attribution.output, wanted.output), name
    assert sorted(recorded) == ["torch.float32", "torch.float64"]
    recorded.clear()
    get_explainer("gae").attribute(model, batch)
    assert recorded == ["torch.float32"]


def test_changed_weights_and_other_inputs_are_recorded_anew(recorded):
    module, model, batch = a_model()
    explainer = get_explainer("gae")
    with cached_passes(most=4):
        before = explainer.attribute(model, batch)
        with torch.no_grad():
            module.embed.weight.mul_(-1.0)
        recorded.clear()
        after = explainer.attribute(model, batch)
        assert len(recorded) == 1
        assert not torch.equal(before.output, after.output)
        other = model.collate([model.prepare(graph_of("CCO")).data])
        assert explainer.attribute(model, other).relevance.shape == (1, 3)
        assert len(recorded) == 2
    fresh = explainer.attribute(model, batch)
    assert torch.equal(after.relevance, fresh.relevance)


def test_a_pass_with_random_numbers_is_recorded_every_time(recorded):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.gps = GpsModel("layer_norm", "relu")

        def forward(self, x, edge_index, edge_attr, batch):
            noise = torch.randn(1) if x.requires_grad else torch.zeros(1)
            return self.gps(x, edge_index, edge_attr, batch) + noise

    torch.manual_seed(0)
    model = gx.wrap(Noisy().eval(), kind="regression")
    batch = model.collate([model.prepare(graph_of("CNC")).data])
    with cached_passes(most=4), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        get_explainer("rollout").attribute(model, batch)
        recorded.clear()
        get_explainer("rollout").attribute(model, batch)
    assert len(recorded) == 1
