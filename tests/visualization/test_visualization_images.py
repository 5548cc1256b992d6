"""Superpixel images and grids show what they should."""

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rdkit import Chem

from graphxai.visualization import (
    Scale,
    grid_svg,
    molecule_svg,
    superpixel_row_svg,
    superpixel_svg,
    svg_to_png,
)

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def digit(mnist_digits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a real digit (28, 28), its SLIC segments, and a relevance for each."""
    segmentation = pytest.importorskip("skimage.segmentation")
    image = mnist_digits[87] / 255  # an eight
    segments = segmentation.slic(image, 75, compactness=0.1, channel_axis=None, start_label=0)
    segments = np.unique(segments, return_inverse=True)[1].reshape(28, 28)
    return image, segments, np.random.default_rng(0).normal(size=segments.max() + 1)


def pixels(svg: str, scale: float = 1.0) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(svg_to_png(svg, scale))).convert("RGB"))


def fills(svg: str) -> dict[int, str]:
    root = ElementTree.fromstring(svg)
    marked = [e for e in root.iter() if e.get("data-segment")]
    return {int(e.get("data-segment")): e.get("fill") for e in marked}


def test_every_segment_has_exactly_the_colour_of_its_relevance(digit) -> None:
    image, segments, relevance = digit
    scale = Scale(1.5)
    colour_of_segment = fills(superpixel_svg(image, segments, relevance, scale=scale))
    assert [colour_of_segment[i] for i in range(len(relevance))] == scale.hex(relevance)


def test_segments_cover_the_pixels_they_own() -> None:
    image = np.zeros((4, 4))
    segments = np.array([[0, 0, 1, 1], [0, 2, 2, 1], [3, 2, 2, 1], [3, 3, 3, 3]])
    relevance = np.array([1.0, -1.0, 0.5, -0.25])
    svg = superpixel_svg(image, segments, relevance, size=200, show_image=False, color_bar=False)
    picture = pixels(svg)
    # near the centre of each pixel of the image, between the white lines of negative relevance
    inner = picture[16:216, 16:216][25::50, 29::50]
    np.testing.assert_array_equal(inner, np.rint(Scale(1.0).rgb(relevance[segments]) * 255))


def test_the_image_is_shown_as_it_is(digit) -> None:
    image, segments, _ = digit
    svg = superpixel_row_svg(image, segments, {}, size=280)
    panel = pixels(svg)
    top = next(y for y in range(200) if (panel[y, 20:290] < 160).all())
    seen = panel[top + 5 : top + 280 : 10, 16 + 5 : 16 + 280 : 10, 0]
    np.testing.assert_allclose(seen, image * 255, atol=1)


def test_without_a_shared_scale_each_method_has_its_own_bar(digit) -> None:
    image, segments, relevance = digit
    methods = {"LRP": relevance, "Gradient × Input": relevance * 1e-3}
    separate = superpixel_row_svg(image, segments, methods, title="Digit 8")
    assert separate.count('class="colour-bar"') == 2
    shared = superpixel_row_svg(image, segments, methods, scale=Scale.fit(*methods.values()))
    assert shared.count('class="colour-bar"') == 1
    for name in ("Image", "Superpixels", "LRP", "Gradient × Input"):
        assert f'aria-label="{name}"' in separate


def test_bars_in_a_row_do_not_share_gradients(digit) -> None:
    image, segments, relevance = digit
    svg = superpixel_row_svg(image, segments, {"a": relevance, "b": relevance})
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("image", "segments", "relevance", "message"),
    [
        (np.zeros((2, 2, 3)), np.zeros((2, 2), int), [1.0], r"image.*\(H, W\)"),
        (np.full((2, 2), 255.0), np.zeros((2, 2), int), [1.0], r"\[0, 1\]"),
        (np.zeros((2, 2)), np.zeros((3, 2), int), [1.0], r"\(3, 2\).*\(2, 2\)"),
        (np.zeros((2, 2)), np.zeros((2, 2)), [1.0], "integers"),
        (np.zeros((2, 2)), np.full((2, 2), -1), [1.0], "integers"),
        (np.zeros((2, 2)), np.eye(2, dtype=int), [1.0], "2 segments, got 1 numbers"),
        (np.zeros((2, 2)), np.eye(2, dtype=int), [1.0, np.nan], "finite"),
        (np.full((2, 2), np.nan), np.eye(2, dtype=int), [1.0, 1.0], "image.*finite"),
    ],
)
def test_input_that_does_not_fit_is_refused(image, segments, relevance, message) -> None:
    with pytest.raises(ValueError, match=message):
        superpixel_svg(image, segments, relevance)


@pytest.mark.parametrize("shape", [(1, 1), (3, 9)])
def test_blank_images_of_any_shape_are_drawn(shape: tuple[int, int]) -> None:
    svg = superpixel_svg(np.ones(shape), np.zeros(shape, np.uint8), [0.0])
    assert pixels(svg).min() < 200


def panel(seed: int, **options) -> str:
    mol = Chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")
    values = np.random.default_rng(seed).normal(size=13)
    return molecule_svg(mol, values, width=300, height=240, title=f"Method {seed}", **options)


def test_every_id_in_a_grid_is_unique_and_every_reference_resolves() -> None:
    inner = grid_svg([panel(0), panel(0), panel(1)], 2, "Aspirin", scale=Scale(1.0))
    svg = grid_svg([inner, inner], 1)
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]+)\)", svg)
    used += [
        name for names in re.findall(r'aria-labelledby="([^"]+)"', svg) for name in names.split()
    ]
    assert used
    assert set(used) <= set(ids)


def test_a_grid_shows_each_panel_as_it_is_alone() -> None:
    panels = [panel(seed, color_bar=False) for seed in range(3)]
    svg = grid_svg(panels, 2)
    picture = pixels(svg)
    assert picture.shape[1] == 600
    for index, single in enumerate(panels):
        x, y = 300 * (index % 2), 240 * (index // 2)
        np.testing.assert_allclose(
            picture[y : y + 240, x : x + 300].astype(int), pixels(single).astype(int), atol=2
        )


def test_a_grid_has_one_bar_for_all_panels_on_request() -> None:
    panels = [panel(seed, color_bar=False) for seed in range(2)]
    assert "colour-bar" not in grid_svg(panels, 2)
    assert grid_svg(panels, 2, scale=Scale(0.5)).count('class="colour-bar"') == 1


def test_a_grid_mixes_pictures_of_different_size(digit) -> None:
    image, segments, relevance = digit
    svg = grid_svg([superpixel_svg(image, segments, relevance), panel(0)], 5)
    width, height = (float(ElementTree.fromstring(svg).get(name)) for name in ("width", "height"))
    assert pixels(svg).shape == (round(height), round(width), 3)


def test_a_grid_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one panel"):
        grid_svg([], 2)
    with pytest.raises(ValueError, match="column"):
        grid_svg([panel(0)], 0)
    with pytest.raises(ValueError, match="panel 1 is not an SVG"):
        grid_svg([panel(0), "<p>no</p>"], 2)


def test_panels_stand_in_the_middle_with_the_key_below_them() -> None:
    image, segments, values = np.zeros((4, 4)), np.arange(16).reshape(4, 4) // 8, [1.0, -1.0]
    alone = superpixel_svg(image, segments, values, size=100)
    row = superpixel_row_svg(image, segments, {"a": values, "b": values}, size=100)
    for svg, count in ((alone, 2), (row, 4)):
        root = ElementTree.fromstring(svg)
        width, height = float(root.get("width")), float(root.get("height"))
        panels = [(float(x), float(y)) for x, y in re.findall(PANEL, svg)]
        lefts = [x for x, _ in panels]
        assert len(panels) == count
        assert len({y for _, y in panels}) == 1
        assert np.diff(lefts).min() > 100
        assert lefts[0] == pytest.approx(width - (lefts[-1] + 100))
        keys = [float(y) for y in re.findall(KEY, svg)]
        assert panels[0][1] + 100 < min(keys) < max(keys) < height


PANEL = re.compile(r'<g transform="translate\((\S+) (\S+)\)">')
KEY = re.compile(r'aria-label="(?:for|against|[−+]1)"[^>]*translate\(\S+ (\S+)\)')


def test_the_description_of_a_digit_has_no_sentence_without_words() -> None:
    image, segments = np.zeros((2, 2)), np.array([[0, 0], [1, 1]])
    for subtitle, start in (("", "2 superpixels"), (" An eight ", "An eight. 2 superpixels")):
        svg = superpixel_svg(image, segments, [1.0, -1.0], subtitle=subtitle)
        (text,) = re.findall("<desc[^>]*>(.*?)</desc>", svg)
        assert text.startswith(start)
