"""Tokens of a sentence, coloured in lines."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

import graphxai as gx
from graphxai.visualization import PALETTES, Scale, tokens_svg
from graphxai.visualization.frame import ink_on

SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> list[tuple[str, float, float, str]]:
    """Return title, left, top and colour of each token."""
    tokens = [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("class") == "token"]
    rects = [(g.find(f"{SVG}title"), g.find(f"{SVG}rect")) for g in tokens]
    return [(t.text, float(r.get("x")), float(r.get("y")), r.get("fill")) for t, r in rects]


def test_tokens_follow_each_other_with_the_colour_of_their_relevance() -> None:
    values, words = [1.0, -0.5, 0.0], ["not", "<b>bad</b>", "at all"]
    drawn = boxes(tokens_svg(values, words=words, scale=Scale(1.0)))
    assert [title.split(":")[0] for title, *_ in drawn] == words
    assert [color for *_, color in drawn] == Scale(1.0).hex(values)
    assert [x for _, x, _, _ in drawn] == sorted(x for _, x, _, _ in drawn)
    assert len({y for _, _, y, _ in drawn}) == 1


def test_every_word_has_the_same_margin_in_its_box() -> None:
    root = ElementTree.fromstring(tokens_svg([1.0, -0.5], words=["a", "longer"]))
    margins = []
    for token in (g for g in root.iter(f"{SVG}g") if g.get("class") == "token"):
        box, word = token.find(f"{SVG}rect"), token.find(f"{SVG}g")
        left = float(re.match(r"translate\((\S+) ", word.get("transform"))[1])
        margins.append(left - float(box.get("x")))
    assert margins == pytest.approx(margins[:1] * 2, abs=0.02)  # the file has two decimals
    assert margins[0] > 0


def test_a_long_text_breaks_into_lines_and_a_longer_one_is_refused() -> None:
    drawn = boxes(tokens_svg([0.1] * 60, words=["word"] * 60))
    lines = [y for _, _, y, _ in drawn]
    assert len(set(lines)) > 2
    assert lines == sorted(lines)
    with pytest.raises(ValueError, match="this picture needs at least"):
        tokens_svg([0.1] * 2000, words=["word"] * 2000)
    with pytest.raises(ValueError, match="one number per word: there are 2 words, got 3 numbers"):
        tokens_svg([0.1] * 3, words=["a", "b"])


def test_the_explanation_of_a_sentence_is_drawn_and_saved(tmp_path) -> None:
    torch.manual_seed(0)

    class Sentence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 1)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

        def forward(self, ids, padding_mask=None):
            x = self.layer(self.words(ids), src_key_padding_mask=padding_mask)
            return self.head(x.mean(1))

    classes = {"kind": "binary", "classes": ("no", "yes")}
    model = gx.wrap(Sentence().eval(), inputs="tokens", embedding="words", **classes)
    explanation = gx.explain(model, torch.tensor([3, 1, 4]))
    path = explanation.save(tmp_path / "t.svg", words=["a", "fine", "day"])
    titles = [title for title, *_ in boxes(path.read_text())]
    assert [re.split(":", title)[0] for title in titles] == ["a", "fine", "day"]
    assert [title.split(":")[0] for title, *_ in boxes(explanation.svg())] == ["0", "1", "2"]
    assert explanation.node_word == "tokens"


def test_a_word_is_read_on_every_colour_of_its_box() -> None:
    """WCAG 2.1 asks for a contrast of 4.5 between a text and what lies under it."""
    for palette in PALETTES:
        svg = tokens_svg(np.linspace(-1, 1, 81), words=["a"] * 81, scale=Scale(1.0, palette))
        pairs = re.findall(r'fill="(#\w{6})"/><g[^>]* fill="(#\w{6})"', svg)
        assert len(pairs) == 81
        for box, ink in pairs:
            assert contrast(box, ink) >= 4.5, (palette, box)


@pytest.mark.parametrize(
    "color", ["#000000", "#767676", "#e3544a", "#0000ff", "#00ff00", "#ffffff"]
)
def test_ink_has_the_better_contrast_of_black_and_white(color) -> None:
    best = max(contrast(color, "#000000"), contrast(color, "#ffffff"))
    assert contrast(color, ink_on(color)) == best >= 21**0.5


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours such as #0a0b0c, as WCAG 2.1 defines it."""
    luminances = []
    for color in (first, second):
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)
