"""LRP along the activation path agrees, at its two points, with autograd through the softmax."""

import math

import numpy as np
import pytest
import torch
from shapley import batch_of

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.explainers import get_explainer
from graphxai.explainers.activation_path import LrpPath, lrp_and_presence
from graphxai.explainers.passes import Embedded
from graphxai.rules import conservative as propagation
from other_models import GpsModel, SparseModel, molecules, trained
from toy import random_graphormer


@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_effect_of_presence_is_the_derivative_through_the_softmax(
    pre_layernorm, smiles, monkeypatch
):
    model = random_graphormer(pre_layernorm=pre_layernorm).double()
    batch = batch_of(model, smiles)
    start = Embedded.of(model, batch)
    tokens, bias = start.tokens, start.bias
    generator = torch.Generator().manual_seed(0)
    presence = torch.rand(tokens.shape[:2], generator=generator, dtype=torch.double) + 0.1
    *_, effect = lrp_and_presence(start, presence, Target())

    def attention(query, key, bias):
        """Attend with constant weights, whereas what is added to the scores has a gradient."""
        return torch.softmax((query @ key.transpose(-2, -1)).detach() + bias, dim=-1)

    monkeypatch.setattr(propagation, "softmax_attention", attention)
    logs = presence.log().requires_grad_()
    with propagation.conservative(attention=False, activation="ratio"):
        outputs = model.encode(tokens, batch, bias=bias + logs[:, None, None, :])
    f = Target().resolve(model.config, outputs)(outputs)
    (expected,) = torch.autograd.grad(f.sum(), logs)
    torch.testing.assert_close(effect, expected, atol=1e-10, rtol=1e-8)


def test_with_everything_present_it_is_lrp_twice_and_the_effect_of_presence(smiles):
    model = random_graphormer().double()
    batch = batch_of(model, smiles)
    lrp = get_explainer("lrp").attribute(model, batch).relevance
    start = Embedded.of(model, batch)
    *_, effect = lrp_and_presence(start, torch.ones_like(start.tokens[..., 0]), Target())
    relevance = LrpPath(floor=1.0).attribute(model, batch).relevance
    expected = (2 * lrp + effect[:, 1:]).masked_fill(~batch.mask, 0)
    torch.testing.assert_close(relevance, expected, atol=1e-10, rtol=1e-8)


def test_presence_falls_from_one_to_the_floor_and_is_equal_for_equal_relevance():
    model = random_graphormer()
    batch = batch_of(model, ["CCCCCC", "CCC"])
    relevance = torch.tensor([[0.0, 5.0, 5.0, 0.0, 0.0, -5.0, -5.0], [0.0, 2.0, 2.0, 2.0, 9, 9, 9]])
    presence = LrpPath(floor=0.05, steepness=50).presence_of(relevance, batch)
    middle = math.sqrt(0.05)
    expected = torch.tensor([1, 1, 1, middle, middle, 0.05, 0.05])
    torch.testing.assert_close(presence[0], expected)
    torch.testing.assert_close(presence[1], torch.tensor([1, middle, middle, middle, 1, 1, 1]))


def test_symmetric_atoms_have_equal_scores():
    model = random_graphormer()
    relevance = (
        get_explainer("lrp_path").attribute(model, batch_of(model, ["Cc1ccccc1"])).relevance[0]
    )
    torch.testing.assert_close(relevance[[2, 3]], relevance[[6, 5]], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"), [({"floor": 0}, "floor"), ({"steepness": -1}, "steepness")]
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LrpPath(**options)


@pytest.mark.parametrize("module", [GpsModel, SparseModel])
def test_in_wrapped_models_it_is_lrp_of_the_graph_and_of_its_upper_half(module):
    graphs = molecules()[:3]
    model = gx.wrap(trained(module(), graphs, steps=3), kind="regression")
    for graph, explanation in zip(
        graphs, gx.explain(model, graphs, method="lrp_path"), strict=True
    ):
        expected = gx.explain(model, graph).relevance
        median = sorted(expected)[(len(expected) - 1) // 2]
        # Symmetric atoms are equal but for rounding, and stay or go together.
        above = torch.from_numpy(expected >= median - 1e-4 * abs(expected).max())
        expected[above] += gx.explain(model, graph.subgraph(above)).relevance
        np.testing.assert_allclose(explanation.relevance, expected, rtol=1e-3, atol=1e-5)
