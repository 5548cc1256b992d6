"""A selection of heads is compared with random masks of its size and with corrupted ones."""

import numpy as np
import pytest

import graphxai as gx
from graphxai.contract.method_names import CONTROLS
from graphxai.evaluation import HeadControl, evaluate_truth, head_control
from graphxai.explainers import get_explainer
from toy import random_graphormer

SMILES = ["CC(=O)O", "CCN(CC)CCO", "Cc1ccccc1C#N"]
TRUTHS = [np.arange(n) % 3 == 0 for n in (4, 8, 9)]


def test_the_p_value_is_the_share_of_masks_that_are_as_good():
    means = np.array([0.1, 0.2, 0.3, 0.4])
    control = HeadControl("auac", np.full(5, 0.3), np.repeat(means[:, None], 5, 1), {})
    assert control.p_value == pytest.approx((1 + 2) / (1 + 4))
    fewer = HeadControl("au_mse", np.full(5, 0.1), control.random, {}, higher_is_better=False)
    assert fewer.p_value == pytest.approx((1 + 1) / (1 + 4))


def test_masks_have_the_size_of_the_selection_and_end_with_every_head():
    model = random_graphormer(num_layers=2, num_heads=4)
    mask = np.array([[1, 0, 0, 1], [0, 0, 0, 0]])
    control = head_control(model, SMILES, mask, truths=TRUTHS, masks=3)
    values = {}
    for name in (get_explainer("masked_lrp", heads=mask), "transformer_attribution"):
        rows = evaluate_truth(model, SMILES, TRUTHS, [name])
        values[rows.method[0]] = rows[
            (rows.metric == "roc_auc") & ~rows.method.isin(CONTROLS)
        ].value
    np.testing.assert_allclose(control.selected, values["masked_lrp"])
    np.testing.assert_allclose(control.corrupted[1.0].mean(0), values["transformer_attribution"])
    assert control.random.shape == (3, 3)
    frame = control.to_frame()
    assert frame.masks.tolist() == [1, 3, 5, 5, 5, 1]
    assert frame["mean"][1] == pytest.approx(control.random.mean())


def test_curves_of_removed_nodes_serve_without_a_truth():
    model = random_graphormer(num_layers=2, num_heads=4)
    control = head_control(
        model, SMILES, np.eye(2, 4, dtype=int), masks=2, steps=3, metric="au_mse"
    )
    assert not control.higher_is_better
    assert control.selected.shape == (3,)


@pytest.mark.parametrize("every", [0, 1])
def test_a_selection_without_other_masks_of_its_size_is_refused(every):
    with pytest.raises(ValueError, match="no other masks of this size"):
        head_control(random_graphormer(), SMILES, np.full((3, 4), every))


def test_a_mask_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="the mask is for 2 layers with 4 heads; the model has 4"):
        gx.explain("bace", "CCO", "masked_lrp", heads=np.ones((2, 4)))
    with pytest.raises(ValueError, match="heads is a mask"):
        get_explainer("masked_lrp", heads=np.ones(4))
