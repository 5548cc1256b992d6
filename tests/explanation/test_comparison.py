"""The difference of two explanations of one input: normalised, and on one scale."""

from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

import graphxai as gx
from graphxai.datasets.samples import digit_paths
from graphxai.explainers import get_explainer
from graphxai.visualization import Scale

HOSTILE = ("</text><script>alert(1)</script>", '" onload="x', "a & b")
WORDS = ["an", "]]>", HOSTILE[0], "journey\x00"]
SALT = "CC(=O)[O-].[Na+]"


class WordScores(nn.Module):
    """A model whose output for a class is the sum of a score of each word."""

    def __init__(self, scores):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.eye(len(scores)))
        self.head = nn.Linear(len(scores), len(scores[0]), bias=False)
        self.head.weight.data = torch.tensor(scores).T

    def forward(self, ids):
        return self.head(self.words(ids)).sum(1)


def word_model(scores, classes=HOSTILE):
    network = WordScores(scores).eval()
    return gx.wrap(network, inputs="tokens", embedding="words", kind="multiclass", classes=classes)


SCORES = [[2.0, 0.0, 0.0], [1.0, 3.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 0.0]]
SENTENCE = torch.arange(4)


def fills(svg, kind):
    """The colours of the words, or of nodes with an attribute of this name."""
    root = ElementTree.fromstring(svg)
    if kind == "token":
        groups = [g for g in root.iter() if g.get("class") == "token"]
        return [next(e.get("fill") for e in g if e.tag.endswith("rect")) for g in groups]
    return [e.get("fill") for e in root.iter() if e.get(kind)]


def words_of(svg):
    return [e.get("aria-label") for e in ElementTree.fromstring(svg).iter() if e.get("aria-label")]


def test_two_classes_of_a_sentence_are_told_apart_word_by_word():
    shown = gx.compare(
        word_model(SCORES), SENTENCE, targets=(0, 1), difference=True, words=WORDS, width=520
    )
    first, second = (np.array([row[k] for row in SCORES]) for k in (0, 1))
    first, second = first / abs(first).sum(), second / abs(second).sum()
    gap = first - second
    # in the last picture a class has its colour only where a word speaks for it
    either = np.maximum(first, 0) - np.maximum(second, 0)
    scale = Scale.fit(first, second, gap, either)
    assert fills(shown, "token") == scale.hex(np.concatenate([first, second, gap, either]))
    assert f"{abs(gap).sum() / 2:.0%} of relevance differs" in shown
    assert {f"for {HOSTILE[1]}", f"higher for {HOSTILE[1]}"} <= set(words_of(shown))
    assert "<script" not in shown


def test_a_molecule_shows_where_two_methods_disagree_on_the_scale_of_both():
    shown = gx.compare("bace", "CCO", ["lrp", "gradient_input"], difference=True)
    lrp, gradient = (gx.explain("bace", "CCO", m).relevance for m in ("lrp", "gradient_input"))
    lrp, gradient = lrp / abs(lrp).sum(), gradient / abs(gradient).sum()
    values = [lrp, gradient, lrp - gradient]
    assert fills(shown, "data-atom") == Scale.fit(*values).hex(np.concatenate(values))
    assert {"LRP minus Gradient x Input", "higher for LRP"} <= set(words_of(shown))


def test_methods_that_agree_have_a_white_difference():
    methods = [get_explainer("lrp"), get_explainer("lrp")]
    shown = gx.compare("bace", "CCO", methods, difference=True)
    assert set(fills(shown, "data-atom")[6:]) == {"#ffffff"}
    assert " 0% of relevance differs" in shown
    assert {"LRP", "LRP 2"} <= set(words_of(shown))


def test_scores_without_a_sign_are_compared_by_their_size():
    molecule = "CC(=O)Oc1ccccc1C(=O)O"
    shown = gx.compare("bace", molecule, ["lrp", "rollout"], difference=True, as_drawn=True)
    sizes = [abs(gx.explain("bace", molecule, m).relevance) for m in ("lrp", "rollout")]
    lrp, rollout = (size / size.sum() for size in sizes)
    scale = Scale.fit(lrp, rollout, lrp - rollout)
    drawn = fills(shown, "data-atom")
    assert drawn[2 * len(lrp) :] == scale.hex(lrp - rollout)
    assert "larger for LRP" in words_of(shown)


def test_seeds_of_a_method_and_models_are_named_by_what_differs():
    seeds = [get_explainer("shapley_sampling", seed=s, permutations=1) for s in (0, 1)]
    words = words_of(gx.compare("bace", "CCO", seeds, difference=True))
    assert "seed=0 minus seed=1" in words
    assert any(text.startswith("Shapley values (sampled), relevance for active") for text in words)
    words = words_of(gx.compare("bace", "CCO", ["lrp", "rollout"], difference=True))
    assert any(text.startswith("relevance for active") for text in words)  # no method's alone
    other = [[score + 1 for score in row] for row in SCORES]
    models = [word_model(SCORES), word_model(other)]
    shown = gx.compare(models, SENTENCE, target=1, difference=True)
    first, second = (np.array([row[1] for row in scores]) for scores in (SCORES, other))
    gap = first / abs(first).sum() - second / abs(second).sum()
    scale = Scale.fit(first / abs(first).sum(), second / abs(second).sum(), gap)
    assert fills(shown, "token")[8:] == scale.hex(gap)


def test_two_classes_of_a_digit_have_a_colour_each():
    shown = gx.compare("mnist-superpixels", digit_paths()[3], targets=("3", "8"), difference=True)
    first, second = (
        gx.explain("mnist-superpixels", digit_paths()[3], target=t).relevance for t in ("3", "8")
    )
    first, second = first / abs(first).sum(), second / abs(second).sum()
    values = [first, second, first - second, first.clip(0) - second.clip(0)]
    drawn = fills(shown, "data-segment")
    assert drawn == Scale.fit(*values).hex(np.concatenate(values))
    assert {"for 3", "against 8", "3 minus 8", "3 and 8"} <= set(words_of(shown))


def test_a_palette_and_a_scale_of_the_user_hold_for_all_panels():
    shown = gx.compare("bace", "CCO", difference=True, palette="orange-purple", scale=2.0)
    lrp = gx.explain("bace", "CCO").relevance
    wanted = Scale(2.0, "orange-purple").hex(lrp / abs(lrp).sum())
    assert fills(shown, "data-atom")[:3] == wanted


def test_what_is_no_difference_of_two_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"two targets\. This comparison has 3"):
        gx.compare("bace", "CCO", ["lrp", "gae", "rollout"], difference=True)
    with pytest.raises(ValueError, match="but not both"):
        gx.compare("bace", "CCO", target="active", targets=("active", "inactive"))
    models = [gx.load("bace"), gx.load("bace", as_drawn=True)]
    with pytest.raises(ValueError, match="read it as the same graph"):
        gx.compare(models, SALT, difference=True)


class Patches(nn.Module):
    """A model whose output for a class is the sum of a score of each patch's first number."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 2, bias=False)
        self.head.weight.data = torch.tensor([[1.0], [-2.0]])
        self.places = nn.Parameter(torch.linspace(-1, 2, 6)[:, None])

    def forward(self, patches):
        return self.head(patches * self.places).sum(1)


@pytest.fixture
def patches_model():
    """A wrapped model of six patches, which fill no square, so that the grid has to be given."""
    classes = ("cat", "dog")
    return gx.wrap(Patches().eval(), kind="multiclass", classes=classes, inputs="tokens")


SIX = torch.tensor([[0.5], [1.0], [-1.0], [2.0], [0.25], [-0.5]])


@pytest.mark.parametrize("image", [None, np.linspace(0, 1, 24).reshape(4, 6)])
def test_patches_of_an_image_show_where_two_methods_disagree(patches_model, image):
    pair = ["gradient_input", "saliency"]
    shown = gx.compare(patches_model, SIX, pair, difference=True, grid=(2, 3), image=image)
    sizes = [abs(gx.explain(patches_model, SIX, method).relevance) for method in pair]
    first, second = (size / size.sum() for size in sizes)
    assert fills(shown, "data-segment")[-6:] == Scale.fit(first, second, first - second).hex(
        first - second
    )
    assert "Gradient x Input minus Saliency" in words_of(shown)


def test_two_classes_of_patches_have_a_colour_each(patches_model):
    both = {"targets": ("cat", "dog"), "difference": True}
    shown = gx.compare(patches_model, SIX, "lrp", **both, grid=(2, 3))
    first, second = (gx.explain(patches_model, SIX, target=t).relevance for t in ("cat", "dog"))
    first, second = first / abs(first).sum(), second / abs(second).sum()
    values = [first, second, first - second, first.clip(0) - second.clip(0)]
    assert fills(shown, "data-segment") == Scale.fit(*values).hex(np.concatenate(values))
    beside = gx.grid(gx.explain(patches_model, [SIX, 2 * SIX], progress=False), grid=(3, 2))
    assert len(fills(beside, "data-segment")) == 12


def test_patches_are_drawn_into_axes_of_matplotlib(patches_model):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    _, axes = pyplot.subplots()
    gx.explain(patches_model, SIX).plot(ax=axes, grid=(2, 3))
    (picture,) = axes.images
    assert picture.get_array().shape[2] in (3, 4)
    pyplot.close()
