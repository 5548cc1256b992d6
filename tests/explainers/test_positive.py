"""The positive rules of Chefer 2021b agree with loops in NumPy and with their own lemmas."""

import numpy as np
import pytest
import torch

from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.evaluation.testing import check_batching, check_renumbering
from graphxai.explainers import get_explainer
from graphxai.explainers.positive import pass_relevance_back
from graphxai.models.graphormer import StructureEncoding, collate
from graphxai.rules.conservative import record
from graphxai.rules.positive import (
    CHEFER,
    PLAIN,
    normalised,
    positive_addition,
    positive_product,
    through_addition,
    through_linear,
    through_product,
)
from positive_reference import Reference, rolled_out
from toy import random_graphormer

METHODS = ("transformer_attribution", "lrp_zplus", "partial_lrp")
ARCHITECTURES = {
    "pre-LN": {"pre_layernorm": True},
    "post-LN": {"pre_layernorm": False},
    "pre-LN, transform head": {"pre_layernorm": True, "head": "transform"},
    "post-LN, LayerNorm on the embedding, no final one": {
        "pre_layernorm": False,
        "head": "transform",
        "embedding_layernorm": True,
        "final_layernorm": False,
    },
}
architecture = pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())


def small(**changes):
    sizes = {"num_layers": 2, "hidden_dim": 8, "ffn_dim": 10, "num_heads": 2}
    return random_graphormer(**(sizes | changes)).double()


def batch_of(model, smiles, **options):
    encode = StructureEncoding.from_config(model.config)
    return collate([encode(molecule_to_data(s)) for s in smiles], **options)


def reference_of(model, batch):
    """Return the same network in NumPy, its tokens, and d(outputs[0]) / dA by autograd."""
    with record() as tape:
        tokens = model.embed(batch).detach().requires_grad_()
        outputs = model.encode(tokens, batch)
    gradients = torch.autograd.grad(outputs[0, 0], tape.attention)
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    reference = Reference(state, model.config, model.bias(batch)[0].detach().numpy())
    tokens = tokens[0].detach().numpy()
    np.testing.assert_allclose(reference.output(reference.forward(tokens)[1]), outputs[0].detach())
    return reference, tokens, [gradient[0].numpy() for gradient in gradients]


@architecture
@pytest.mark.parametrize(("target", "sign"), [("active", 1), ("inactive", -1)])
def test_all_three_methods_equal_their_formulas_in_numpy(changes, target, sign):
    model = small(**changes)
    batch = batch_of(model, ["CCO"])
    reference, tokens, gradients = reference_of(model, batch)
    row = np.array([sign, 0.0])
    _, of_attention = reference.relevance(tokens, row, "chefer")
    plain, plain_attention = reference.relevance(tokens, row, "plain")
    expected = {
        "transformer_attribution": rolled_out(of_attention, [sign * g for g in gradients]),
        "lrp_zplus": plain.sum(-1),
        "partial_lrp": plain_attention[-1].mean(0)[0],
    }
    for method, scores in expected.items():
        attribution = get_explainer(method).attribute(model, batch, target)
        np.testing.assert_allclose(attribution.relevance[0], scores[1:], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(attribution.graph_token[0], scores[0], rtol=1e-8, atol=1e-12)


@architecture
def test_relevance_of_every_attention_matrix_equals_numpy(changes):
    model = small(num_layers=3, **changes)
    batch = batch_of(model, ["CO"])
    reference, tokens, _ = reference_of(model, batch)
    for rules, name in ((CHEFER, "chefer"), (PLAIN, "plain")):
        expected, matrices = reference.relevance(tokens, np.array([1.0, 0.0]), name)
        relevance = pass_relevance_back(model, batch, Target(), rules)
        np.testing.assert_allclose(relevance.tokens[0], expected, rtol=1e-7, atol=1e-12)
        for matrix, other in zip(relevance.attention, matrices, strict=True):
            np.testing.assert_allclose(matrix[0], other, rtol=1e-7, atol=1e-12)


def test_positive_rule_of_a_linear_map_worked_out_by_hand():
    """x = (1, -2) and w = ((3, 1), (-1, -4)) have the positive products 3 and 8."""
    x, weight = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 1.0], [-1.0, -4.0]])
    relevance_of_x = through_linear(x, weight, torch.tensor([[5.0, 7.0]]))
    torch.testing.assert_close(relevance_of_x, torch.tensor([[5.0, 7.0]]))
    both = through_linear(x.abs(), weight, torch.tensor([[5.0, 0.0]]))  # 3 and 2 of 5
    torch.testing.assert_close(both, torch.tensor([[3.0, 2.0]]))


def test_rules_pass_on_as_much_relevance_as_they_get():
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    x, weight, relevance = normal(2, 3, 40), normal(20, 40), normal(2, 3, 20)
    below = through_linear(x, weight, relevance)
    torch.testing.assert_close(below.sum((1, 2)), relevance.sum((1, 2)))
    u, v, relevance = normal(2, 3, 8), normal(2, 3, 8), normal(2, 3, 8)
    for rule in (through_addition, positive_addition):
        to_u, to_v = rule(u, v, relevance)
        torch.testing.assert_close((to_u + to_v).sum((1, 2)), relevance.sum((1, 2)))
    a, v, relevance = normal(2, 4, 5).softmax(-1), normal(2, 5, 3), normal(2, 4, 3)
    to_a, to_v = through_product(a, v, relevance)
    torch.testing.assert_close(to_a.sum((1, 2)), relevance.sum((1, 2)) / 2)
    torch.testing.assert_close(to_v.sum((1, 2)), relevance.sum((1, 2)) / 2)
    for part in positive_product(a, v, relevance):
        torch.testing.assert_close(part.sum((1, 2)), relevance.sum((1, 2)))


def test_attention_that_almost_vanishes_gives_finite_relevance():
    """Sharp heads have weights whose reciprocal is not finite; such products count as zero."""
    a = torch.tensor([[[1.0, 1e-320]]], dtype=torch.float64)
    v = torch.tensor([[[-1.0], [2.0]]], dtype=torch.float64)
    to_a, to_v = positive_product(a, v, torch.ones(1, 1, 1, dtype=torch.float64))
    torch.testing.assert_close(to_a.flatten(), torch.tensor([1.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(to_v.flatten(), torch.tensor([1.0, 0.0], dtype=torch.float64))


def test_relevance_of_a_skip_connection_does_not_explode():
    """In the example of Eq. 8 and 9, Eq. 2 gives e^5 and 1 - e^5; Eq. 10 keeps Lemma 2."""
    u = torch.tensor([[5.0, 4.0]], dtype=torch.float64).exp()
    to_u, to_v = through_addition(u, 1 - u, torch.ones_like(u))
    assert to_u.sum() + to_v.sum() == pytest.approx(2.0)
    assert 0 <= to_u.sum() <= 2
    assert 0 <= to_v.sum() <= 2
    a, b = u.sum(), (1 - u).sum()  # Eq. 2: R_u = u and R_v = v, as u + v = 1
    torch.testing.assert_close(to_u, u * 2 / (a.abs() + b.abs()))
    torch.testing.assert_close(to_v, -(1 - u) * 2 / (a.abs() + b.abs()))


def test_normalisation_is_over_one_graph():
    first, second, incoming = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(1))
    together = normalised(first, second, incoming)
    for b in range(2):
        alone = normalised(first[b : b + 1], second[b : b + 1], incoming[b : b + 1])
        for in_batch, by_itself in zip(together, alone, strict=True):
            torch.testing.assert_close(in_batch[b], by_itself[0])
    over_the_batch = normalised(first[None], second[None], incoming[None])  # the released code's
    assert (over_the_batch[0][0] - together[0]).abs().max() > 0.01


@architecture
@pytest.mark.usefixtures("recorded_once")
def test_scores_of_a_graph_depend_on_nothing_else(changes, unlike):
    model = random_graphormer(**changes)
    for method in METHODS:
        check_batching(model, unlike, method, tolerance=1e-5)
        check_renumbering(model, unlike, method, tolerance=1e-5)


@architecture
def test_z_plus_relevance_sums_to_one_and_is_not_negative(changes, smiles):
    model = random_graphormer(**changes)
    attribution = get_explainer("lrp_zplus").attribute(model, batch_of(model, smiles))
    assert (attribution.relevance >= 0).all()
    torch.testing.assert_close(
        attribution.relevance.sum(-1) + attribution.graph_token, torch.ones(len(smiles))
    )


def test_padding_has_no_relevance_anywhere(smiles):
    model = random_graphormer()
    batch = batch_of(model, smiles, pad_to=40)
    padding = torch.nn.functional.pad(~batch.mask, (1, 0))  # (B, T)
    for rules in (CHEFER, PLAIN):
        relevance = pass_relevance_back(model, batch, Target(), rules)
        assert (relevance.tokens[padding] == 0).all()
        for matrix in relevance.attention:
            assert (matrix.sum(1).transpose(1, 2)[padding] == 0).all()
            if matrix.shape[2] > 1:
                assert (matrix.sum(1)[padding] == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_one_logit_is_explained_as_two_opposite_logits(method, smiles):
    """Up to scale, a logit z for the second class is the softmax of (-z, z)."""
    one_logit = random_graphormer(tasks=(Task("activity", "binary", ("inactive", "active")),))
    two = random_graphormer(tasks=(Task("activity", "multiclass", ("inactive", "active")),))
    state = one_logit.state_dict()
    for name in ("head.weight", "head.bias"):
        state[name] = torch.cat([-state[name], state[name]])
    two.load_state_dict(state)
    batch = batch_of(one_logit, smiles)
    by_class = {}
    for name in ("inactive", "active"):
        by_class[name] = get_explainer(method).attribute(one_logit, batch, name).relevance
        expected = get_explainer(method).attribute(two, batch, name).relevance
        torch.testing.assert_close(by_class[name], expected)
    assert not torch.allclose(by_class["active"], by_class["inactive"])


def test_relevance_has_no_unit(smiles):
    """Relevance starts from one: a regression in other units has the same relevance."""
    batch, relevances = None, []
    for scale in (1.0, 250.0):
        model = random_graphormer(tasks=(Task("logS", "regression", offset=3.0, scale=scale),))
        batch = batch_of(model, smiles)
        relevances.append(get_explainer("lrp_zplus").attribute(model, batch).relevance)
    torch.testing.assert_close(*relevances)


def test_weights_stay_in_single_precision_and_without_gradients(smiles):
    model = random_graphormer()
    attribution = get_explainer("transformer_attribution").attribute(model, batch_of(model, smiles))
    assert attribution.relevance.dtype == attribution.outputs.dtype == torch.float32
    assert all(p.dtype == torch.float32 and p.grad is None for p in model.parameters())
    torch.testing.assert_close(attribution.outputs, model(batch_of(model, smiles)).detach())


def test_a_model_of_another_kind_is_refused(smiles):
    model = random_graphormer()

    class Wrapped:
        config, training = model.config, False
        embed, encode, split_by_feature = model.embed, model.encode, model.split_by_feature

        def train(self, mode=True):
            return self

    with pytest.raises(TypeError, match=r"torch\.nn\.Module, which Wrapped is not"):
        get_explainer("lrp_zplus").attribute(Wrapped(), batch_of(model, smiles))


@pytest.mark.parametrize("batch", [(5,), (3, 4)])
def test_values_that_many_products_share_get_the_sum_of_their_relevance(batch):
    draw = torch.Generator().manual_seed(0)
    a = torch.rand(*batch, 3, 3, generator=draw)
    v, relevance = torch.rand(3, 4, generator=draw), torch.rand(*batch, 3, 4, generator=draw)
    of_a, of_v = positive_product(a, v, relevance, torch.matmul)
    copies = v.expand(*batch, 3, 4)
    each_a, each_v = positive_product(a, copies, relevance, torch.matmul)
    torch.testing.assert_close(of_a, each_a)
    torch.testing.assert_close(of_v, each_v.flatten(0, -3).sum(0))


def test_ablations_equal_their_formulas_in_numpy():
    """Table 3 of Chefer 2021b: attention in place of its gradient, and one block alone."""
    model = small()
    batch = batch_of(model, ["CCO"])
    reference, tokens, gradients = reference_of(model, batch)
    _, of_attention = reference.relevance(tokens, np.array([1, 0.0]), "chefer")
    with record() as tape, torch.no_grad():
        model(batch)
    attention = [weights[0].numpy() for weights in tape.attention]
    attention[-1] = attention[-1][:, :1]  # the reference has the graph token's row alone
    expected = {
        (False, None): rolled_out(of_attention, attention),
        (True, 1): rolled_out(of_attention[-1:], gradients[-1:]),
        (True, 2): rolled_out(of_attention[:1], gradients[:1]),
    }
    for (gradient, block), scores in expected.items():
        explainer = get_explainer("transformer_attribution", gradient=gradient, block=block)
        attribution = explainer.attribute(model, batch, "active")
        np.testing.assert_allclose(attribution.relevance[0], scores[1:], rtol=1e-8, atol=1e-12)
    with pytest.raises(ValueError, match="there is no block 3: the model has 2"):
        get_explainer("transformer_attribution", block=3).attribute(model, batch)
    with pytest.raises(ValueError, match="block counts from 1"):
        get_explainer("transformer_attribution", block=0)
