"""Gradient methods agree with Captum, with explicit rules, and with differences."""

import shutil

import captum.attr
import numpy as np
import pytest
import torch
from bias_terms import bias_terms
from scipy.special import erf
from shapley import batch_of
from torch_geometric.data import Data

import graphxai as gx
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import digit_paths
from graphxai.evaluation.testing import check_batching, check_ledger, check_renumbering
from graphxai.explainers import get_explainer
from graphxai.explainers.control import generator_of_graph
from graphxai.models.graphormer import (
    CheckpointError,
    Graphormer,
    GraphormerConfig,
    StructureEncoding,
    collate,
    load_checkpoint,
    measure_mean_node,
    save_checkpoint,
)
from graphxai.rules import conservative as propagation
from graphxai.rules.conservative import conservative
from toy import random_graphormer

METHODS = ("saliency", "integrated_gradients", "attn_lrp", "lrp_ln")
SMOOTH = {"samples": 7, "noise": 0.4, "seed": 5}


@pytest.mark.parametrize("pre_layernorm", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_a_graph_scores_alike_alone_in_batches_padded_and_renumbered(method, pre_layernorm, smiles):
    model = random_graphormer(pre_layernorm=pre_layernorm)
    options = {"steps": 10} if method == "integrated_gradients" else {}
    check_batching(model, smiles, get_explainer(method, **options))
    check_renumbering(model, smiles, get_explainer(method, **options))


def captum_of(method, model, batch, **options):
    """Return Captum's attribution (B, T, D) of the first output."""
    tokens = model.embed(batch).detach()
    explainer = method(lambda x: model.encode(x, batch)[:, 0])
    return explainer.attribute(tokens.requires_grad_(), **options).detach()


def assert_tokens_close(attribution, expected):
    torch.testing.assert_close(attribution.graph_token, expected[:, 0])
    real = expected[:, 1:].masked_fill(~attribution.mask, 0)
    torch.testing.assert_close(attribution.relevance, real)


def test_gradient_methods_equal_captum(smiles):
    model = random_graphormer().double()
    batch = batch_of(model, smiles)
    gradient = captum_of(captum.attr.Saliency, model, batch)
    attribution = get_explainer("saliency").attribute(model, batch, "active")
    assert_tokens_close(attribution, gradient.square().sum(-1).sqrt())
    product = captum_of(captum.attr.InputXGradient, model, batch)
    attribution = get_explainer("gradient_input").attribute(model, batch, "active")
    assert_tokens_close(attribution, product.sum(-1))


def mean_gradient_in_loops(model, batch):
    """Return the mean gradient (T, D) of the first output at noisy embeddings of one graph."""
    tokens = model.embed(batch).detach()
    deviation = tokens[0, 1:].flatten().numpy().std()
    generator = generator_of_graph(SMOOTH["seed"], batch, 0)
    total = torch.zeros_like(tokens[0])
    for _ in range(SMOOTH["samples"]):
        noisy = tokens.clone()
        drawn = torch.randn(noisy[0, 1:].shape, generator=generator)
        noisy[0, 1:] += SMOOTH["noise"] * deviation * drawn.to(noisy)
        noisy.requires_grad_()
        total += torch.autograd.grad(model.encode(noisy, batch)[0, 0], noisy)[0][0]
    return total / SMOOTH["samples"]


def test_smoothgrad_is_the_length_of_the_mean_gradient_at_noisy_embeddings(smiles):
    model = random_graphormer().double()
    together = get_explainer("smoothgrad", **SMOOTH).attribute(
        model, batch_of(model, smiles), "active"
    )
    for row, text in enumerate(smiles):
        lengths = mean_gradient_in_loops(model, batch_of(model, [text])).norm(dim=-1)
        torch.testing.assert_close(together.graph_token[row], lengths[0])
        torch.testing.assert_close(together.relevance[row, : len(lengths) - 1], lengths[1:])
        assert not together.relevance[row, len(lengths) - 1 :].any()


def test_smoothgrad_of_a_wrapped_model_equals_a_loop_over_copies_of_its_features():
    torch.manual_seed(0)
    mixed = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mixed

        def forward(self, x, edge_index):
            messages = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
            return self.inner(x + messages).sum(0, keepdim=True)

    model = gx.wrap(Mixing().eval(), kind="regression")
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    graphs = [Data(x=torch.rand(n, 3), edge_index=edges[:, : 2 * (n - 1)]) for n in (4, 3, 2, 1)]
    explanations = gx.explain(model, graphs, "smoothgrad", **SMOOTH, progress=False)
    for data, explanation in zip(graphs, explanations, strict=True):
        expected = mean_gradient_in_loops(model, model.collate([data]))[1:]
        assert explanation.relevance == pytest.approx(expected.norm(dim=-1).numpy(), rel=1e-4)
        alone = gx.explain(model, data, "smoothgrad", **SMOOTH)
        assert alone.relevance == pytest.approx(explanation.relevance, rel=1e-4)


def test_smoothgrad_without_noise_is_saliency_and_draws_by_its_seed(smiles):
    model = random_graphormer()
    batch = batch_of(model, smiles)
    scores = {
        seed: get_explainer("smoothgrad", samples=2, seed=seed).attribute(model, batch).relevance
        for seed in (0, 1)
    }
    assert not torch.allclose(scores[0], scores[1])
    silent = get_explainer("smoothgrad", samples=2, noise=0).attribute(model, batch)
    torch.testing.assert_close(
        silent.relevance, get_explainer("saliency").attribute(model, batch).relevance
    )
    with pytest.raises(ValueError, match="samples must be at least 1, not 0"):
        get_explainer("smoothgrad", samples=0)
    with pytest.raises(ValueError, match="noise must not be negative, not -1"):
        get_explainer("smoothgrad", noise=-1)


def test_integrated_gradients_equal_captum(smiles):
    model = random_graphormer().double()
    for text in smiles[:4]:  # Captum repeats the tokens but not the batch they belong to
        batch = batch_of(model, [text])
        bias = model.bias(batch)
        tokens = model.embed(batch).detach()
        explainer = captum.attr.IntegratedGradients(
            lambda x, batch=batch, bias=bias: model.encode(x, batch, bias=bias)[:, 0]
        )
        expected, delta = explainer.attribute(tokens, n_steps=20, return_convergence_delta=True)
        method = get_explainer("integrated_gradients", steps=20, power=1)
        attribution = method.attribute(model, batch, "active")
        assert_tokens_close(attribution, expected.sum(-1))
        torch.testing.assert_close(attribution.unexplained, -delta.detach())


def test_integrated_gradients_are_complete_in_the_limit_of_many_steps(smiles):
    model = random_graphormer().double()
    batch = batch_of(model, smiles)
    gaps = [
        get_explainer("integrated_gradients", steps=steps).attribute(model, batch)
        for steps in (5, 20, 100)
    ]
    worst = [attribution.unexplained.abs().max().item() for attribution in gaps]
    assert worst[0] > worst[1] > worst[2]
    assert worst[2] < 1e-6
    none = model.encode(torch.zeros_like(model.embed(batch)), batch)[:, 0]
    torch.testing.assert_close(gaps[2].biases, none.detach())
    torch.testing.assert_close(gaps[2].features.sum(-1), gaps[2].relevance)
    with pytest.raises(ValueError, match="must be at least 1"):
        get_explainer("integrated_gradients", steps=0)


def test_crowded_points_leave_less_of_a_trained_model_unexplained():
    """LayerNorm puts most of the change close to zero, which evenly spaced points miss."""
    model = gx.load("bace")
    batch = batch_of(model, ["CC(=O)Oc1ccccc1C(=O)O", "CN1C(=N)NCC1(C)c1cccc(F)c1"])
    gaps = {
        power: get_explainer("integrated_gradients", power=power)
        .attribute(model, batch)
        .unexplained.abs()
        .max()
        for power in (1, 4)
    }
    assert gaps[4] < gaps[1]


class Relevance:
    """AttnLRP (Achtibat 2024) layer by layer in NumPy: relevance goes in, relevance comes out.

    Linear maps follow the rule `R_i = sum_j x_i w_ij R_j / y_j`, where y includes the bias, whose
    share stays there. Additions share in proportion. Tokens x are (T, D). `made` is what comes out
    of the softmaxes minus what is passed on to their logits.
    """

    def __init__(self, model, batch):
        self.model, self.heads = model, model.config.num_heads
        self.terms = {k: v[0].detach().numpy() for k, v in bias_terms(model, batch).items()}
        self.structure = dict.fromkeys(self.terms, 0.0)
        self.made = 0.0
        x = model.embed(batch)[0].detach().numpy()
        states = [x]
        for layer in model.layers:
            states.append(self.layer(layer, states[-1]))
        read = states[-1][:1]
        normed = self.norm(model.final_norm, read)
        self.output = self.linear(model.head, normed)[0, 0]
        relevance = np.array([[self.output] + [0.0] * (model.config.num_outputs - 1)])
        relevance = self.linear_back(model.head, normed, relevance)
        relevance = self.norm_back(model.final_norm, read, relevance)
        relevance = np.concatenate([relevance, np.zeros((len(x) - 1, x.shape[1]))])
        for layer, state in zip(reversed(model.layers), reversed(states[:-1]), strict=True):
            relevance = self.layer_back(layer, state, relevance)
        self.tokens = relevance.sum(-1)

    @staticmethod
    def linear(layer, x):
        return x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()

    def linear_back(self, layer, x, relevance):
        return x * (relevance / self.linear(layer, x) @ layer.weight.detach().numpy())

    @staticmethod
    def scale(layer, x):
        return layer.weight.detach().numpy() / np.sqrt(x.var(-1, keepdims=True) + layer.eps)

    def norm(self, layer, x):
        centred = x - x.mean(-1, keepdims=True)
        return centred * self.scale(layer, x) + layer.bias.detach().numpy()

    def norm_back(self, layer, x, relevance):
        ratio = relevance / self.norm(layer, x) * self.scale(layer, x)
        return x * (ratio - ratio.mean(-1, keepdims=True))

    def split(self, x):
        return x.reshape(len(x), self.heads, -1).transpose(1, 0, 2)  # (H, T, d)

    @staticmethod
    def join(x):
        return x.transpose(1, 0, 2).reshape(x.shape[1], -1)

    def attend(self, part, x):
        q = self.split(self.linear(part.query, x)) * part.scale
        k, v = self.split(self.linear(part.key, x)), self.split(self.linear(part.value, x))
        logits = q @ k.transpose(0, 2, 1) + sum(self.terms.values())
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return q, k, v, logits, weights / weights.sum(-1, keepdims=True)

    def attention(self, part, x):
        *_, v, _, weights = self.attend(part, x)
        return self.linear(part.output, self.join(weights @ v))

    def attention_back(self, part, x, relevance):
        q, k, v, logits, weights = self.attend(part, x)
        mixed = weights @ v
        relevance = self.split(self.linear_back(part.output, self.join(mixed), relevance))
        ratio = relevance / mixed
        to_weights = weights * (ratio @ v.transpose(0, 2, 1)) / 2  # half to each factor of A v
        to_values = v * (weights.transpose(0, 2, 1) @ ratio) / 2
        to_logits = logits * (to_weights - weights * to_weights.sum(-1, keepdims=True))
        self.made += to_weights.sum() - to_logits.sum()
        ratio = to_logits / logits
        for name, term in self.terms.items():
            self.structure[name] += (term * ratio).sum()
        to_query = q * (ratio @ k) / 2  # and to each factor of q k^T
        to_key = k * (ratio.transpose(0, 2, 1) @ q) / 2
        return (
            self.linear_back(part.query, x, self.join(to_query))
            + self.linear_back(part.key, x, self.join(to_key))
            + self.linear_back(part.value, x, self.join(to_values))
        )

    def feed_forward(self, part, x):
        inner = self.linear(part.expand, x)
        return self.linear(part.contract, inner * (1 + erf(inner / 2**0.5)) / 2)

    def feed_forward_back(self, part, x, relevance):
        inner = self.linear(part.expand, x)
        active = inner * (1 + erf(inner / 2**0.5)) / 2
        return self.linear_back(part.expand, x, self.linear_back(part.contract, active, relevance))

    def layer(self, layer, x):
        x = x + self.attention(layer.attention, self.norm(layer.attention_norm, x))
        return x + self.feed_forward(layer.ffn, self.norm(layer.ffn_norm, x))

    def layer_back(self, layer, x, relevance):
        normed = self.norm(layer.attention_norm, x)
        attended = self.attention(layer.attention, normed)
        middle = x + attended
        normed_middle = self.norm(layer.ffn_norm, middle)
        fed = self.feed_forward(layer.ffn, normed_middle)
        share = relevance / (middle + fed)
        inside = self.feed_forward_back(layer.ffn, normed_middle, fed * share)
        relevance = middle * share + self.norm_back(layer.ffn_norm, middle, inside)
        share = relevance / middle
        inside = self.attention_back(layer.attention, normed, attended * share)
        return x * share + self.norm_back(layer.attention_norm, x, inside)


def test_attn_lrp_equals_its_rules_layer_by_layer(smiles):
    model = random_graphormer(num_layers=2).double()
    for text in smiles[:5]:
        batch = batch_of(model, [text])
        expected = Relevance(model, batch)
        attribution = get_explainer("attn_lrp").attribute(model, batch, "active")
        np.testing.assert_allclose(attribution.output[0], expected.output)
        tokens = np.concatenate([attribution.graph_token.numpy(), attribution.relevance[0].numpy()])
        np.testing.assert_allclose(tokens, expected.tokens, atol=1e-9)
        for name, share in expected.structure.items():
            np.testing.assert_allclose(attribution.structure[name][0], share, atol=1e-9)
        assert set(attribution.remainders) == {"softmax"}
        np.testing.assert_allclose(attribution.remainders["softmax"][0], expected.made, atol=1e-9)


def test_products_share_the_relevance_between_both_factors():
    """Without the rule each factor gets all of it, and the sum is twice the product."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 3, 4, 5, generator=generator, requires_grad=True)
    values = torch.rand(2, 3, 5, 6, generator=generator, requires_grad=True)
    for products, times in ((False, 2), (True, 1)):
        with conservative(attention=False, layernorm=False, products=products):
            mixed = propagation.mix_values(weights, values)
        assert torch.equal(mixed, weights @ values)
        parts = torch.autograd.grad(mixed.sum(), (weights, values))
        total = (parts[0] * weights).sum() + (parts[1] * values).sum()
        torch.testing.assert_close(total, times * mixed.sum())


def superpixel_model():
    config = GraphormerConfig(
        tasks=random_graphormer().config.tasks,
        hidden_dim=16,
        ffn_dim=16,
        num_heads=2,
        num_node_features=3,
        position_bands=2,
        position_bias_bands=2,
    )
    torch.manual_seed(0)
    return Graphormer(config).eval().double()


def position_graph():
    generator = torch.Generator().manual_seed(3)
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]])
    x = torch.rand(4, 3, generator=generator, dtype=torch.float64)
    return Data(x=x, pos=torch.rand(4, 2, generator=generator), edge_index=edges)


class Scaled(torch.nn.Module):
    """A module that multiplies another's output by a factor."""

    def __init__(self, inner, factor):
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, *args):
        return self.factor * self.inner(*args)


def scale_term(model, name, factor):
    """Scale one term of the structural bias in place."""
    if name == "position":
        model.bias.position = Scaled(model.bias.position, factor)
        return
    parameter = {"spatial": "spatial", "edge": "bond", "graph token distance": "graph_token"}[name]
    with torch.no_grad():
        getattr(model.bias, parameter).mul_(factor)


@pytest.mark.parametrize("kind", ["molecules", "superpixels"])
def test_structure_shares_are_what_scaling_each_term_changes(kind, smiles):
    """d f_c / d s of a term scaled by s, at s = 1, is the sum of term x gradient."""

    def build():
        if kind == "superpixels":
            return superpixel_model()
        return random_graphormer().double()

    model = build()
    if kind == "superpixels":
        batch = collate([StructureEncoding.from_config(model.config)(position_graph())])
    else:
        batch = batch_of(model, smiles)
    attribution = get_explainer("gradient_input").attribute(model, batch, "active")
    extra = {"edge"} if kind == "molecules" else {"position"}
    assert set(attribution.structure) == {"spatial", "graph token distance"} | extra
    step = 1e-5
    for name, share in attribution.structure.items():
        outputs = []
        for factor in (1 + step, 1 - step):
            changed = build()
            scale_term(changed, name, factor)
            outputs.append(changed(batch)[:, 0].detach())
        difference = (outputs[0] - outputs[1]) / (2 * step)
        torch.testing.assert_close(share, difference, atol=1e-7, rtol=1e-5)


def test_terms_of_the_structural_bias_sum_to_it(smiles):
    model = random_graphormer(mask_distance=4).double()
    batch = batch_of(model, smiles)
    bias = model.bias(batch)
    total = sum(bias_terms(model, batch).values())
    torch.testing.assert_close(total, bias.masked_fill(bias.isinf(), 0.0))


def test_lrp_needs_no_structure_to_close_its_ledger(smiles):
    """Under constant attention no gradient reaches the structural bias."""
    model = random_graphormer()
    assert get_explainer("lrp").attribute(model, batch_of(model, smiles)).structure is None
    check_ledger(model, smiles, "lrp")


def test_the_ledger_counts_the_structure():
    model = random_graphormer()
    ledger = gx.explain(model, "CC(=O)Nc1ccccc1", "attn_lrp").ledger
    assert set(ledger.structure) == {"spatial", "edge", "graph token distance"}
    parts = ledger.nodes + ledger.graph_token + ledger.biases + sum(ledger.structure.values())
    assert ledger.total == pytest.approx(parts)
    assert ledger.total + ledger.unexplained == pytest.approx(ledger.output)
    text = ledger.to_dict()
    assert text["structure: edge"] == ledger.structure["edge"]
    assert "structure: edge" not in gx.explain(model, "CCO", "lrp").ledger.to_dict()


# --- from the mean node -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "attn_lrp"])
@pytest.mark.parametrize("embedding_layernorm", [False, True])
def test_relevance_from_the_mean_node_leaves_the_average_its_own_share(
    method, embedding_layernorm, smiles
):
    model = random_graphormer(embedding_layernorm=embedding_layernorm).double()
    batch = batch_of(model, smiles)
    tokens = model.embed(batch).detach()
    mean = tokens[:, 1:][batch.mask].mean(0)  # over these molecules
    encode = StructureEncoding.from_config(model.config)
    measured = measure_mean_node(model, [encode(molecule_to_data(s)) for s in smiles])
    torch.testing.assert_close(measured.sum(0), mean)

    zero = get_explainer(method).attribute(model, batch)
    attribution = get_explainer(method, baseline="mean").attribute(model, batch)
    tokens.requires_grad_()
    with conservative(**vars(type(get_explainer(method)).rules)):
        outputs = model.encode(tokens, batch)
    (gradient,) = torch.autograd.grad(outputs[:, 0].sum(), tokens)
    expected = ((tokens - mean) * gradient).sum(-1)[:, 1:].detach()
    torch.testing.assert_close(attribution.relevance, expected.masked_fill(~batch.mask, 0))
    torch.testing.assert_close(attribution.unexplained, zero.unexplained)
    torch.testing.assert_close(
        attribution.average_node + attribution.relevance.sum(-1), zero.relevance.sum(-1)
    )
    if attribution.features is not None:
        torch.testing.assert_close(attribution.features.sum(-1), attribution.relevance)
    check_batching(model, smiles, get_explainer(method, baseline="mean"))


def test_the_mean_node_is_stored_with_the_checkpoint_and_goes_with_its_weights(tmp_path):
    model = random_graphormer()
    with pytest.raises(ValueError, match="needs the mean node of the training set"):
        gx.explain(model, "CCO", baseline="mean")
    encode = StructureEncoding.from_config(model.config)
    measure_mean_node(model, [encode(molecule_to_data("CCO"))])
    again = load_checkpoint(save_checkpoint(model, tmp_path / "one"))
    assert torch.equal(again.mean_node, model.mean_node)
    e = gx.explain(again, "c1ccccc1O", baseline="mean")
    assert e.ledger.average_node is not None
    assert "average atoms" in e.caption
    assert abs(e.ledger.unexplained) < 1e-4
    with torch.no_grad():
        model.graph_token.add_(1)
    mean, model.mean_node = model.mean_node, None
    other = save_checkpoint(model, tmp_path / "two")
    shutil.copy(tmp_path / "one" / "mean_node.safetensors", other)
    assert load_checkpoint(other).mean_node is None  # measured on other weights
    model.mean_node = mean[:, :1]
    with pytest.raises(CheckpointError, match=r"mean_node\.safetensors: .* its shape is"):
        load_checkpoint(save_checkpoint(model, tmp_path / "three"))


def test_the_bundled_models_have_a_mean_node():
    for name, value in (("bace", "CCO"), ("mnist-superpixels", digit_paths()[3])):
        ledger = gx.explain(name, value, baseline="mean").ledger
        assert ledger.total == pytest.approx(ledger.output, abs=1e-3)
    with pytest.raises(ValueError, match="'zero' or 'mean'"):
        gx.explain("bace", "CCO", baseline="median")
