"""Shares say what the output is without a fragment, and the measured removal stands beside it."""

import numpy as np
import pytest
import torch

import graphxai as gx
from chemprop_models import mpnn
from graphxai.contract.inputs import prepare_for
from graphxai.tables.card import fragments_shown
from graphxai.wrapping.removal import outputs_of_parts
from toy import random_graphormer

AMIDE = "CC(=O)Nc1ccc(O)cc1"


@pytest.fixture(scope="module")
def model():
    return random_graphormer()


@pytest.mark.parametrize("method", ["lrp", "shares"])
def test_each_fragment_has_the_output_without_it_said_and_measured(model, method):
    parts = gx.fragments(gx.explain(model, AMIDE, method), method="shares", model=model)
    e = parts.explanation
    assert e.method == "shares"
    assert parts.total == pytest.approx(e.output - e.without_nodes, abs=1e-5)
    for part in parts:
        rest = [atom for atom in range(len(e)) if atom not in part.atoms]
        keep = torch.tensor([[atom in rest for atom in range(len(e))]])
        removed = outputs_of_parts(model, prepare_for(model, AMIDE).data, keep, "mask")
        assert part.without.said == pytest.approx(e.value_of(rest), abs=1e-6)
        assert part.without.measured == pytest.approx(removed[0, 0].item(), abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"passing": "Atom", "agg": "Sum"}])
def test_networks_of_chemprop_have_both(options):
    pytest.importorskip("chemprop")
    network = gx.wrap(mpnn(**options))
    parts = gx.fragments(gx.explain(network, AMIDE, "shares"), method="shares", model=network)
    e = parts.explanation
    assert e.relevance.sum() == pytest.approx(e.ledger.change, abs=1e-5)
    assert e.spread is None  # there are marginals, so no order was needed
    assert all(np.isfinite(part.without).all() for part in parts)


def test_picture_table_and_card_have_both(model):
    e = gx.explain(model, AMIDE, "shares")
    parts = gx.fragments(e, method="shares", model=model)
    first, frame = parts[0], parts.to_frame()
    np.testing.assert_allclose(frame.without_measured, [part.without.measured for part in parts])
    assert str(first.without) in parts.svg()
    assert [part.without for part in fragments_shown(e, model)] == [p.without for p in parts]
    assert fragments_shown(gx.explain(model, AMIDE), model)[0].without is None
    assert "without" not in gx.fragments(e).to_frame()


def test_sampled_values_of_fragments_have_their_errors_in_the_picture(model):
    many = gx.explain(model, "O=C(NCCOCCNC(=O)c1ccc(O)cc1)c1ccc(NC(=O)C2CCCC2)cc1")
    parts = gx.fragments(many, method="shapley", model=model)
    assert parts[0].error is not None
    assert f"± {parts[0].error:.2g} standard error" in parts.svg()


def test_the_model_has_to_be_the_one_explained(model):
    e = gx.explain(model, AMIDE, "shares")
    with pytest.raises(ValueError, match="pass it"):
        gx.fragments(e, method="shares")
