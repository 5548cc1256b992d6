"""Methods that read attention and its gradient agree with formulas in NumPy and networkx."""

import networkx
import numpy as np
import pytest
import torch
from shapley import batch_of

from graphxai.evaluation.testing import check_batching, check_renumbering
from graphxai.explainers import get_explainer
from graphxai.explainers.attention import maximum_flows
from graphxai.rules.conservative import record
from toy import random_graphormer

METHODS = ("gae_rollout", "attention_flow", "cam", "grad_cam", "att_cat")


def traced(model, batch):
    """Return attention (L, H, T, T) and its gradient, and each layer's input tokens and theirs."""
    with record(all_queries=True) as tape:
        tokens = model.embed(batch).detach().requires_grad_()
        output = model.encode(tokens, batch)[0, 0]
    layers = len(tape.attention)
    gradients = torch.autograd.grad(output, tape.attention + tape.hidden[:layers])
    recorded = (tape.attention, gradients[:layers], tape.hidden[:layers], gradients[layers:])
    return [np.stack([x[0].detach().numpy() for x in values]) for values in recorded]


def explain(method, model, batch, **options):
    """Return scores of the first graph's tokens, (T,)."""
    attribution = get_explainer(method, **options).attribute(model, batch, "active")
    return np.concatenate([attribution.graph_token[:1].numpy(), attribution.relevance[0].numpy()])


@pytest.mark.parametrize("pre_layernorm", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_a_graph_scores_alike_alone_in_batches_padded_and_renumbered(method, pre_layernorm, smiles):
    model = random_graphormer(pre_layernorm=pre_layernorm)
    check_batching(model, smiles, method)
    check_renumbering(model, smiles, method)
    check_batching(model, smiles, get_explainer("grad_cam", pooled=True))


@pytest.mark.parametrize("pre_layernorm", [True, False])
def test_methods_equal_their_formulas(pre_layernorm, smiles):
    model = random_graphormer(pre_layernorm=pre_layernorm).double()
    for text in smiles[:4]:
        batch = batch_of(model, [text])
        attention, gradient, hidden, hidden_gradient = traced(model, batch)
        size = attention.shape[-1]
        rollout = np.eye(size)
        for weights, slope in zip(attention, gradient, strict=True):
            layer = np.maximum(weights * slope, 0).mean(0) + np.eye(size)
            rollout = layer / layer.sum(-1, keepdims=True) @ rollout
        np.testing.assert_allclose(explain("gae_rollout", model, batch), rollout[0], atol=1e-12)

        last, slope = attention[-1][:, 0], gradient[-1][:, 0]  # (H, T)
        np.testing.assert_allclose(explain("cam", model, batch), slope.mean(0), atol=1e-12)
        expected = (slope * last).mean(0)
        np.testing.assert_allclose(explain("grad_cam", model, batch), expected, atol=1e-12)
        expected = np.maximum((slope.mean(1, keepdims=True) * last).mean(0), 0)
        scores = explain("grad_cam", model, batch, pooled=True)
        np.testing.assert_allclose(scores, expected, atol=1e-12)

        class_activation = (hidden * hidden_gradient).sum(-1)  # (L, T)
        expected = (attention.mean((1, 2)) * class_activation).sum(0)
        np.testing.assert_allclose(explain("att_cat", model, batch), expected, atol=1e-12)


def test_att_cat_adds_up_gradient_times_input_when_attention_is_even(smiles):
    """With every attention 1 / T, one layer's AttCAT is its Gradient x Input over T."""
    model = random_graphormer(num_layers=1).double()
    with torch.no_grad():
        for part in (model.layers[0].attention.query, model.bias):
            for parameter in part.parameters():
                parameter.zero_()
    batch = batch_of(model, smiles[2:3])
    size = batch.mask.shape[1] + 1
    scores, expected = explain("att_cat", model, batch), explain("gradient_input", model, batch)
    np.testing.assert_allclose(scores, expected / size, atol=1e-12)


def flow_by_networkx(capacities, token):
    """Compute with networkx the maximum flow from token 0 on top to `token` at the bottom."""
    graph = networkx.DiGraph()
    for layer, matrix in enumerate(capacities, 1):
        for q, k in np.ndindex(matrix.shape):
            graph.add_edge((layer, q), (layer - 1, k), capacity=matrix[q, k])
    return networkx.maximum_flow_value(graph, (len(capacities), 0), (0, token))


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_attention_flow_is_the_maximum_flow_of_networkx(num_layers, smiles):
    model = random_graphormer(num_layers=num_layers)
    for text in smiles[:2]:
        batch = batch_of(model, [text])
        with record(all_queries=True) as tape, torch.no_grad():
            model(batch)
        means = [weights[0].mean(0).double().numpy() for weights in tape.attention]
        capacities = [(mean + np.eye(len(mean))) / 2 for mean in means]
        expected = [flow_by_networkx(capacities, t) for t in range(len(means[0]))]
        np.testing.assert_allclose(
            explain("attention_flow", model, batch), expected, atol=1e-6, rtol=0
        )


def test_flow_through_two_layers_is_a_sum_of_minima():
    rng = np.random.default_rng(0)
    first, second = rng.dirichlet(np.ones(6), size=(2, 6))
    expected = np.minimum(second[0][:, None], first).sum(0)
    np.testing.assert_allclose(maximum_flows([first, second]), expected, atol=1e-8)
    np.testing.assert_allclose(maximum_flows([first, second[:1]]), expected, atol=1e-8)


def test_flow_of_random_networks_is_that_of_networkx():
    rng = np.random.default_rng(1)
    for layers in (2, 3, 4):
        capacities = list(rng.dirichlet(0.3 * np.ones(5), size=(layers, 5)))
        expected = [flow_by_networkx(capacities, token) for token in range(5)]
        np.testing.assert_allclose(maximum_flows(capacities), expected, atol=1e-7)


def test_attention_flow_and_gae_rollout_stay_within_their_bounds(smiles):
    model = random_graphormer()
    batch = batch_of(model, smiles[2:3])
    flow = explain("attention_flow", model, batch)
    assert (flow >= 0).all()
    assert (flow <= 1 + 1e-6).all()
    assert (flow >= explain("rollout", model, batch) - 1e-6).all()  # one way to send a flow
    np.testing.assert_allclose(explain("gae_rollout", model, batch).sum(), 1, atol=1e-5)
