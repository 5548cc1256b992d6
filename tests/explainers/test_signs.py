"""Scores without a sign are never shown as speaking for or against anything."""

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import graphxai as gx
from graphxai.datasets.samples import digit_paths
from graphxai.explainers import REGISTRY, Traits, get_explainer
from graphxai.visualization import Scale
from other_models import quick_explainer

MOLECULES = ["O=[N+]([O-])c1ccccc1", "CC(=O)Nc1ccc(O)cc1"]
TWO_SIDED = re.compile("raises|lowers|against|for active|for pIC50")
UNSIGNED = {
    "saliency", "smoothgrad", "gnn_explainer", "gae", "gae_rollout", "transformer_attribution",
    "masked_lrp", "lrp_zplus", "partial_lrp", "rollout", "attention_flow", "attention_last",
}  # fmt: skip


@pytest.fixture(scope="module")
def bace():
    return gx.load("bace")


def words(svg: str) -> list[str]:
    """Return the text that a picture shows."""
    elements = ElementTree.fromstring(svg).iter()
    return [text for e in elements if (text := e.get("aria-label")) is not None]


@pytest.mark.parametrize(
    "name", [m for m, cls in REGISTRY.items() if cls.traits.explains_any_model]
)
@pytest.mark.parametrize("target", ["active", "pIC50"])
def test_every_method_has_the_key_of_its_scores(name, target, bace):
    explanations = gx.explain(bace, MOLECULES, quick_explainer(name), target=target, progress=False)
    lowest = min(e.relevance.min() for e in explanations)
    for e in explanations:
        shown = words(e.svg(title="", subtitle=""))
        negative = [text for text in shown if re.match("[+−]", text)]
        if name in UNSIGNED or lowest >= 0:  # for other methods, the scores tell
            assert lowest >= 0
            assert e.legend == ("", REGISTRY[name].traits.large_score_means)
            assert REGISTRY[name].traits.large_score_means in shown
            assert not negative
            assert not any(TWO_SIDED.search(text) for text in (*shown, *e.legend, e.caption))
        else:
            assert lowest < 0
            assert REGISTRY[name].traits.large_score_means == ""
            assert len(e.legend) == 2
            assert all(TWO_SIDED.search(text) for text in e.legend)
            assert set(e.legend) <= set(shown)
            assert negative


def test_grad_cam_with_positive_scores_only_has_no_sign():
    e = gx.explain("bace", MOLECULES[1], get_explainer("grad_cam", pooled=True))
    assert e.relevance.min() >= 0
    assert e.legend[0] == ""


def test_masks_of_pyg_have_no_sign_and_attributions_may():
    from torch_geometric.explain import CaptumExplainer, GNNExplainer

    from graphxai.explainers.pyg import from_pyg

    assert from_pyg(GNNExplainer(epochs=1)).traits.large_score_means == "kept by the mask"
    signed = from_pyg(CaptumExplainer("IntegratedGradients"), node_mask="attributes")
    assert signed.traits.large_score_means == ""


def test_a_comparison_keeps_each_methods_own_key():
    for value in (MOLECULES[1], digit_paths()[3]):
        model = "bace" if value is MOLECULES[1] else "mnist-superpixels"
        shown = words(gx.compare(model, value, ["lrp", "saliency", "rollout"]))
        assert {"sensitive to", "attended to"} <= set(shown)
        assert sum(text.startswith("against") for text in shown) == 1


def test_a_grid_without_signs_has_one_bar_from_zero_and_a_mixed_one_a_bar_each():
    model = gx.load("bace")
    saliency = gx.explain(model, MOLECULES, "saliency", progress=False)
    lrp = gx.explain(model, MOLECULES, progress=False)
    shown = words(gx.grid(saliency))
    assert shown.count("sensitive to") == shown.count("0") == 1
    mixed = words(gx.grid([saliency[0], lrp[0]], scale=0.5))
    assert mixed.count("sensitive to") == mixed.count("for active") == 1


def test_a_scale_of_the_user_is_taken_from_zero():
    e = gx.explain("bace", MOLECULES[1], "rollout")
    svg = e.svg(scale=Scale(0.2, "orange-purple"))
    fills = [c.get("fill") for c in ElementTree.fromstring(svg).iter() if c.get("data-atom")]
    assert fills == Scale(0.2, one_sided=True).hex(e.relevance)


def test_numbers_beside_a_picture_have_no_plus_sign():
    e = gx.explain("bace", MOLECULES[1], "gae")
    assert ">+" not in e.section().partition("<details>")[0].partition("<table>")[2]
    parts = gx.fragments(e)
    assert not any(text.startswith("+") for text in words(parts.svg()))
    largest = max(parts, key=lambda part: part.relevance)
    assert Scale(1.0, one_sided=True).hex(1.0)[0] in largest.svg()


def test_the_png_has_neither_red_nor_blue():
    e = gx.explain("bace", MOLECULES[1], "saliency")
    pixels = np.asarray(Image.open(io.BytesIO(e.png())).convert("RGB")).reshape(-1, 3).astype(int)
    red, green, blue = pixels.T
    assert not ((red > green + 10) | (blue > green + 10)).any()
    assert (green > red + 60).any()


def test_check_sign_finds_a_method_that_claims_too_much():
    from graphxai.evaluation.testing import check_sign

    class Wrong(REGISTRY["lrp"]):
        name, traits = "wrong", Traits(adds_up=True, large_score_means="attended to")

    model = gx.load("bace")
    check_sign(model, MOLECULES, "saliency")
    with pytest.raises(AssertionError, match="wrong gave a score of -"):
        check_sign(model, MOLECULES, Wrong())
