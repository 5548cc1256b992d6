"""Pictures of molecules say what the numbers say, in colours, words and files."""

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from fontTools.pens.svgPathPen import SVGPathPen
from fontTools.ttLib import TTFont
from PIL import Image
from rdkit import Chem
from rdkit.Chem import AllChem, rdDepictor

from graphxai.visualization import PALETTES, Scale, grid_svg, molecule_svg, save_picture, svg_to_png
from graphxai.visualization.color import signed, signed_alike
from graphxai.visualization.frame import BAR_ROOM, color_bar, document
from graphxai.visualization.layout import layout_note
from graphxai.visualization.text import (
    draw_text,
    fit_text,
    font_file,
    minus_signs,
    text_width,
)

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}"
UNTITLED = {"title": "", "description": ""}
VERUBECESTAT = "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F"
NASTY = '<script>alert(1)</script> & "x"'
ODD_MOLECULES = {
    "methane": "C",
    "proton": "[H+]",
    "salt": "CC(=O)[O-].[Na+]",
    "metal": "[Fe+2].[CH-]1C=CC=C1.[CH-]1C=CC=C1",
    "dative": "N->[Pt](<-N)(Cl)Cl",
    "radical and isotope": "[13CH3]C([O])=[N+](C)[O-]",
    "dummy": "*c1ccccc1",
    "five atoms": "CC(C)CO",
    "90 atoms": "C" + "NC(=O)C(CC(C)C)" * 11 + "O",
}


def relevance_of(mol: Chem.Mol, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=mol.GetNumAtoms())


def elements(svg: str, attribute: str) -> dict[int, ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return {int(e.get(attribute)): e for e in root.iter() if e.get(attribute) is not None}


@pytest.fixture
def mol() -> Chem.Mol:
    return Chem.MolFromSmiles(VERUBECESTAT)


# --- colour ------------------------------------------------------------------------------------


@pytest.mark.parametrize("palette", PALETTES)
def test_zero_is_white(palette: str) -> None:
    scale = Scale(0.3, palette)
    np.testing.assert_array_equal(scale.rgb([0.0, -0.0]), np.ones((2, 3)))
    np.testing.assert_allclose(scale.rgb([1e-9, -1e-9]), 1, atol=1e-6)  # from either side
    assert [scale.place(value) for value in (-0.3, 0.0, 0.3)] == [0, 0.5, 1]
    assert not scale.exceeded([0.3, -0.3])
    assert scale.exceeded([0.0, 0.31])
    assert scale.exceeded([0.0, -0.31])


def test_red_is_for_and_blue_is_against() -> None:
    (red, _, blue_of_red), (red_of_blue, _, blue) = Scale(1.0).rgb([0.7, -0.7])
    assert red > blue_of_red
    assert blue > red_of_blue


@pytest.mark.parametrize("palette", PALETTES)
def test_colour_deepens_with_relevance_and_saturates_at_the_limit(palette: str) -> None:
    scale = Scale(2.0, palette)
    for sign in (1, -1):
        darkness = 3 - scale.rgb(sign * np.linspace(0, 2, 50)).sum(1)
        assert (np.diff(darkness) > 0).all()
        np.testing.assert_array_equal(scale.rgb(sign * 2.0), scale.rgb(sign * 1e9))


def luminance(rgb: np.ndarray) -> np.ndarray:
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("palette", PALETTES)
def test_black_labels_stay_readable_on_every_colour(palette: str) -> None:
    shade = luminance(Scale(1.0, palette).rgb(np.linspace(-1, 1, 101)))
    assert ((shade + 0.05) / 0.05).min() > 4.5  # the contrast WCAG asks for


@pytest.mark.parametrize("palette", PALETTES)
def test_neither_sign_looks_stronger_than_the_other(palette: str) -> None:
    amount = np.linspace(0, 1, 21)
    scale = Scale(1.0, palette)
    lightness = [116 * np.cbrt(luminance(scale.rgb(s * amount))) - 16 for s in (1, -1)]
    assert np.abs(lightness[0] - lightness[1]).max() < 5  # of 100


def test_the_safe_palette_survives_red_green_colour_blindness() -> None:
    # Full protanopia and deuteranopia in linear RGB (Vienot, Brettel and Mollon 1999).
    matrices = (
        [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
        [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    )
    ends = Scale(1.0, "orange-purple").rgb([1.0, -1.0]) ** 2.2
    for matrix in matrices:
        seen = np.clip(ends @ np.transpose(matrix), 0, 1) ** (1 / 2.2)
        assert np.abs(seen[0] - seen[1]).max() > 0.4


def test_one_scale_covers_a_whole_set() -> None:
    assert Scale.fit([0.1, -0.2], np.array([[0.05, -0.7]])).limit == 0.7
    assert Scale.fit([0.1, -0.7]).rgb(0.1).shape == (3,)


@pytest.mark.parametrize("arrays", [(), ([],), ([0.0, 0.0],)])
def test_a_set_without_relevance_still_has_a_scale(arrays: tuple[list[float], ...]) -> None:
    assert Scale.fit(*arrays).limit == 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_relevance_that_is_not_finite_is_refused_by_its_place(bad: float) -> None:
    with pytest.raises(ValueError, match=r"finite.*index 1"):
        Scale.fit([0.0, bad])
    with pytest.raises(ValueError, match="array 1"):
        Scale.fit([0.0], [bad])


def test_a_scale_needs_a_limit_above_zero_and_a_known_palette() -> None:
    for limit in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="limit"):
            Scale(limit)
    with pytest.raises(ValueError, match="red-blue"):
        Scale(1.0, "rainbow")


@pytest.mark.parametrize("limit", [1.0, 0.37, 0.0042, 3e-9, 999.0, 1.3e7, 0.9999999999])
def test_ticks_are_round_symmetric_and_inside(limit: float) -> None:
    ticks = Scale(limit).ticks()
    assert 3 <= len(ticks) <= 7
    assert ticks[len(ticks) // 2] == 0
    np.testing.assert_allclose(ticks, -np.array(ticks)[::-1])
    assert max(ticks) <= limit * (1 + 1e-8)
    assert max(ticks) > limit / 2
    assert all(len(f"{advance:.3e}".split("e")[0].rstrip("0")) <= 5 for advance in ticks)


def test_numbers_are_written_with_sign_and_three_digits() -> None:
    wanted = {0.25: "+0.25", -1.3e-5: "−1.3e−5", 0.0: "0", -1234.4: "−1234", 5e6: "+5e6"}
    assert {value: signed(value) for value in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("freesolv: -3.20 kcal/mol", "freesolv: −3.20 kcal/mol"),
        ("BACE-1 inhibition: -.5 against -2", "BACE-1 inhibition: −.5 against −2"),
        ("Gradient-weighted rollout", "Gradient-weighted rollout"),
        ("CC(=O)[O-].c1cc-2c(cc1)-2", "CC(=O)[O-].c1cc-2c(cc1)-2"),
    ],
)
def test_negative_numbers_in_titles_have_a_minus_sign_and_names_keep_their_hyphens(
    mol: Chem.Mol, text: str, wanted: str
) -> None:
    assert minus_signs(text) == wanted
    for svg in (
        molecule_svg(mol, relevance_of(mol), title=text),
        grid_svg([molecule_svg(mol, relevance_of(mol))], 1, text),
    ):
        title = ElementTree.fromstring(svg).find(f"{SVG}title")
        assert title is not None
        assert title.text == wanted
        assert f'aria-label="{wanted}"' in svg


# --- text --------------------------------------------------------------------------------------


def test_text_is_outlines_of_which_a_picture_holds_each_once(mol: Chem.Mol) -> None:
    line = draw_text("Aspirin", 0, 0, 12)
    assert line.count("<use") == len("Aspirin")
    assert "<path" not in line
    panel = molecule_svg(mol, relevance_of(mol), title="Aspirin", subtitle="aspirin, ASA")
    for svg in (panel, grid_svg([panel, panel], 2, "Aspirin twice")):
        root = ElementTree.fromstring(svg)
        defined = [e.get("id") for e in root.iter(f"{SVG}path") if e.get("id") is not None]
        used = [e.get(f"{XLINK}href") for e in root.iter(f"{SVG}use")]
        assert {f"#{name}" for name in defined} == set(used)
        assert len(defined) == len(set(defined)) < len(used)


def test_the_outlines_of_a_line_are_those_of_the_font() -> None:
    """Each glyph begins where the advances of those before it end (DejaVu Sans, by fontTools)."""
    font = TTFont(font_file())
    widths = [font["hmtx"][font.getBestCmap()[ord(letter)]][0] for letter in "Wave"]
    root = ElementTree.fromstring(document(100, 20, draw_text("Wave", 5, 9, 10), **UNTITLED))
    uses = list(root.iter(f"{SVG}use"))
    assert [float(use.get("x")) for use in uses] == [sum(widths[:k]) for k in range(4)]
    glyphs = {f"#{e.get('id')}": e.get("d") for e in root.iter(f"{SVG}path")}
    for letter, use in zip("Wave", uses, strict=True):
        pen = SVGPathPen(font.getGlyphSet())
        font.getGlyphSet()[font.getBestCmap()[ord(letter)]].draw(pen)
        assert glyphs[use.get(f"{XLINK}href")] == pen.getCommands().replace(".0", "")


def test_text_is_cut_where_it_does_not_fit() -> None:
    text, size = fit_text("word " * 100, 18, 200, smallest=10)
    assert text.endswith("…")
    assert text_width(text, size) <= 200


def test_a_title_that_would_be_cut_takes_two_lines(mol: Chem.Mol) -> None:
    title = "acetoxy to (3,4-dichlorophenyl)oxy, then 2-carboxyphenyl to 2,3-dichlorophenyl"
    svg = molecule_svg(mol, relevance_of(mol), title=title, width=400, height=310)
    lines = [e.get("aria-label", "") for e in ElementTree.fromstring(svg).iter()]
    lines = [line for line in lines if len(line) > 20 and line in title]
    assert " ".join(lines) == title
    assert len(lines) == 2


def test_text_outside_the_font_is_left_to_the_viewer() -> None:
    assert ">化学 &lt;b&gt;</text>" in draw_text("化学 <b>", 0, 0, 12)


# --- molecule ----------------------------------------------------------------------------------


def test_every_atom_has_exactly_the_colour_of_its_relevance(mol: Chem.Mol) -> None:
    relevance = relevance_of(mol)
    scale = Scale(1.0)
    atoms = elements(molecule_svg(mol, relevance, scale=scale), "data-atom")
    assert [atoms[i].get("fill") for i in range(mol.GetNumAtoms())] == scale.hex(relevance)


def test_every_bond_has_the_mean_of_its_ends_in_its_middle(mol: Chem.Mol) -> None:
    relevance = relevance_of(mol)
    scale = Scale.fit(relevance)
    svg = molecule_svg(mol, relevance)
    root = ElementTree.fromstring(svg)
    gradients = {e.get("id"): e for e in root.iter(f"{SVG}linearGradient")}
    bonds = elements(svg, "data-bond")
    assert len(bonds) == mol.GetNumBonds()
    for bond in mol.GetBonds():
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        stops = gradients[bonds[bond.GetIdx()].get("fill")[5:-1]].findall(f"{SVG}stop")
        wanted = scale.hex([relevance[i], (relevance[i] + relevance[j]) / 2, relevance[j]])
        assert [stop.get("stop-color") for stop in stops] == wanted
        assert stops[1].get("offset") == "50%"


def test_a_shared_scale_gives_equal_relevance_equal_colour(mol: Chem.Mol) -> None:
    ethanol = Chem.MolFromSmiles("CCO")
    weak, strong = np.array([0.1, -0.2, 0.0]), relevance_of(mol)
    strong[0] = 0.1
    scale = Scale.fit(weak, strong)
    first = elements(molecule_svg(ethanol, weak, scale=scale), "data-atom")[0]
    second = elements(molecule_svg(mol, strong, scale=scale), "data-atom")[0]
    assert first.get("fill") == second.get("fill") == scale.hex(0.1)[0]


def test_the_atoms_lie_beneath_the_drawing_and_inside_the_picture(mol: Chem.Mol) -> None:
    svg = molecule_svg(mol, relevance_of(mol), width=500, height=400)
    assert svg.index("data-atom") < svg.index('class="structure"')
    for atom in elements(svg, "data-atom").values():
        x, y, radius = (float(atom.get(name)) for name in ("cx", "cy", "r"))
        assert radius - 16 <= x <= 500 - 16 - radius
        assert radius - 16 <= y <= 400 - 16 - radius


@pytest.mark.parametrize("name", ODD_MOLECULES)
def test_odd_molecules_are_drawn(name: str) -> None:
    odd = Chem.MolFromSmiles(ODD_MOLECULES[name])
    svg = molecule_svg(odd, relevance_of(odd), title=name)
    assert len(elements(svg, "data-atom")) == odd.GetNumAtoms()
    assert len(np.unique(pixels(svg, 0.5).reshape(-1, 3), axis=0)) > 10


def test_a_ring_that_can_not_be_kekulized_is_drawn() -> None:
    odd = Chem.MolFromSmiles("c1cccc1", sanitize=False)
    assert len(elements(molecule_svg(odd, np.ones(5)), "data-atom")) == 5


def test_explicit_hydrogens_have_their_own_relevance() -> None:
    water = Chem.AddHs(Chem.MolFromSmiles("O"))
    assert len(elements(molecule_svg(water, [1.0, -0.5, -0.5]), "data-atom")) == 3


def test_a_molecule_without_atoms_gives_an_empty_picture() -> None:
    assert elements(molecule_svg(Chem.Mol(), []), "data-atom") == {}


def test_relevance_of_another_length_is_refused_with_both_numbers(mol: Chem.Mol) -> None:
    with pytest.raises(ValueError, match=r"28 atoms.*27 numbers"):
        molecule_svg(mol, np.zeros(27))
    with pytest.raises(ValueError, match=r"shape \(28, 1\)"):
        molecule_svg(mol, np.zeros((28, 1)))


def test_relevance_that_is_not_a_number_is_refused(mol: Chem.Mol) -> None:
    with pytest.raises(ValueError, match="finite"):
        molecule_svg(mol, np.full(28, np.nan), scale=Scale(1.0))


def test_drawing_neither_changes_the_molecule_nor_depends_on_its_past(mol: Chem.Mol) -> None:
    relevance = relevance_of(mol)
    first = molecule_svg(mol, relevance)
    before = mol.ToBinary()
    assert molecule_svg(mol, relevance) == first
    assert mol.ToBinary() == before
    mol.GetAtomWithIdx(0).SetProp("note", "from elsewhere")
    folded = Chem.AddHs(mol)
    assert AllChem.EmbedMolecule(folded, randomSeed=7) == 0
    assert molecule_svg(Chem.RemoveHs(folded), relevance) == first
    rdDepictor.SetPreferCoordGen(True)
    try:
        assert molecule_svg(mol, relevance) == first
    finally:
        rdDepictor.SetPreferCoordGen(False)


def test_a_layout_is_kept_unless_another_is_wanted() -> None:
    ethanol = Chem.MolFromSmiles("CCO")
    rdDepictor.Compute2DCoords(ethanol)
    conformer = ethanol.GetConformer()
    for index, (x, y) in enumerate([(0, 0), (0, 1.5), (0, 3)]):
        conformer.SetAtomPosition(index, (x, y, 0))
    kept = elements(molecule_svg(ethanol, np.ones(3)), "data-atom")
    assert len({atom.get("cx") for atom in kept.values()}) == 1
    fresh = elements(molecule_svg(ethanol, np.ones(3), keep_layout=False), "data-atom")
    assert len({atom.get("cx") for atom in fresh.values()}) == 3


def test_crowded_macrocycles_get_the_layout_with_fewer_overlaps() -> None:
    crowded = Chem.MolFromSmiles(
        "CC[C@@H]1OC(=O)[C@H](C)[C@@H](OC2CC(C)(OC)C(O)C(C)O2)[C@H](C)[C@@H](OC2OC(C)CC(N(C)C)C2O)"
        "[C@](C)(O)C[C@@H](C)C(=O)[C@H](C)[C@@H](O)[C@]1(C)O"
    )
    atoms = elements(molecule_svg(crowded, relevance_of(crowded)), "data-atom")
    points = np.array([[float(a.get("cx")), float(a.get("cy"))] for a in atoms.values()])
    distance = np.linalg.norm(points[:, None] - points, axis=-1)
    bonded = Chem.GetAdjacencyMatrix(crowded).astype(bool)
    length = np.median(distance[bonded])
    distance[bonded | np.eye(len(points), dtype=bool)] = np.inf
    assert distance.min() > 0.6 * length


ENDLESS = (  # CoordGen does not return for it
    "CC(C)(C)C1=CC2=C(C(=C1)C(C)(C)C)OCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCOC3=C(C=C(C=C3C(C)(C)C)"
    "C(C)(C)C)C#CC#CC#CC#CC#CC#C2"
)


def test_a_ring_too_large_for_coordgen_has_a_plain_layout_and_says_so() -> None:
    mol = Chem.MolFromSmiles(ENDLESS)
    begun = time.process_time()
    assert len(elements(molecule_svg(mol, relevance_of(mol)), "data-atom")) == mol.GetNumAtoms()
    assert time.process_time() - begun < 10
    assert "a ring of 58 atoms" in layout_note(mol)
    assert not layout_note(Chem.MolFromSmiles("c1ccccc1CCCCCCCCCCCCCCCCCCCCCCCC"))


def test_the_bar_has_numbers_and_words(mol: Chem.Mol) -> None:
    svg = molecule_svg(mol, np.zeros(28), scale=Scale(0.5), legend=("inactive", "active"))
    for label in ("inactive", "active", "0", "+0.4", "−0.4"):
        assert f'aria-label="{label}"' in svg
    bare = molecule_svg(mol, np.zeros(28), scale=Scale(0.5), color_bar=False)
    assert "colour-bar" not in bare


@pytest.mark.parametrize("width", [150, 200, 240, 300, 400, 640])
@pytest.mark.parametrize("name", ["", " active", " a class with a long name", " carcinogenic"])
def test_words_of_the_bar_have_one_size_and_stay_inside(width: int, name: str) -> None:
    """They are at least 9 pixels high, however narrow the picture; the bar keeps its space."""
    bar = color_bar(Scale(0.7), 0, 0, width, ("against" + name, "for" + name), values=[1.0])
    root = ElementTree.fromstring(document(width, BAR_ROOM, bar, **UNTITLED))
    lines = [e for e in root.iter(f"{SVG}g") if e.get("role") == "text"][:2]
    sizes, spans = [], []
    for line in lines:
        left, zoom = re.match(
            r"translate\((\S+) \S+\) scale\((\S+) ", line.get("transform")
        ).groups()
        sizes.append(round(float(zoom) * 2048, 1))  # units of the font in an em
        taken = text_width(line.get("aria-label"), sizes[-1])
        spans.append((float(left), float(left) + taken))
    assert sizes[0] == sizes[1] >= 9
    assert 0 < spans[0][0] < spans[0][1] < spans[1][0] < spans[1][1] < width
    gradient = next(root.iter(f"{SVG}linearGradient"))
    assert float(gradient.get("x2")) - float(gradient.get("x1")) >= 0.3 * width


def test_the_numbers_of_a_column_have_the_same_decimals() -> None:
    assert signed_alike([1.149, 0.3, -0.057]) == ["+1.15", "+0.30", "−0.06"]
    assert signed_alike([12.34, 0.001]) == ["+12.3", "0.0"]
    assert signed_alike([1.3e-5, -2e-6]) == ["+1.30e−5", "−0.20e−5"]
    assert signed_alike([]) == []


def test_every_atom_gets_its_number_on_request(mol: Chem.Mol) -> None:
    relevance = np.zeros(28)
    numbered, plain = (molecule_svg(mol, relevance, atom_numbers=on) for on in (True, False))
    digits = sum(len(str(number)) for number in range(28))
    assert numbered.count("class='note'") == digits
    assert "class='note'" not in plain


def test_a_scale_without_sign_starts_at_zero_and_has_a_colour_of_its_own(mol: Chem.Mol) -> None:
    scale = Scale(0.3, one_sided=True)
    assert scale.ticks() == (0.0, 0.1, 0.2, 0.3)
    assert scale.hex([0.0, -0.3]) == ["#ffffff", "#ffffff"]
    assert scale.hex(0.3)[0] not in Scale(0.3).hex([0.3, -0.3])
    light = [rgb.mean() for rgb in scale.rgb(np.linspace(0, 0.3, 9))]
    assert light == sorted(light, reverse=True)
    svg = molecule_svg(mol, np.linspace(0, 0.3, 28), scale=scale, legend=("against", "attended to"))
    labels = [
        e.get("aria-label") for e in ElementTree.fromstring(svg).iter() if e.get("aria-label")
    ]
    assert labels == ["attended to", "0", "0.1", "0.2", "0.3"]
    description = next(e.text for e in ElementTree.fromstring(svg).iter(f"{SVG}desc"))
    assert "from 0 to 0.3" in description
    assert "Green is attended to, white is zero" in description


@pytest.mark.parametrize("width", [200, 420, 640])
def test_a_bar_without_sign_stays_inside_with_its_word(width: int) -> None:
    words = ("", "attended to, gradient-weighted")
    bar = color_bar(Scale(0.5, one_sided=True), 0, 0, width, words, values=[0.7])
    svg = document(width, BAR_ROOM, bar, **UNTITLED)
    picture = np.asarray(Image.open(io.BytesIO(svg_to_png(svg, 2.0))).convert("L"))
    assert picture[:, :8].min() == picture[:, -8:].min() == 255
    assert picture.min() < 60


# --- safety and files --------------------------------------------------------------------------


def test_a_title_can_not_break_out_of_the_picture(mol: Chem.Mol) -> None:
    picture = molecule_svg(
        mol, np.zeros(28), title=NASTY + "\x00\x1b", subtitle=NASTY + "化", legend=(NASTY, NASTY)
    )
    for svg in (picture, grid_svg([picture], 1, NASTY)):
        root = ElementTree.fromstring(svg)
        assert "script" not in {element.tag.removeprefix(SVG) for element in root.iter()}
        assert root.find(f"{SVG}title").text.startswith("<script>alert(1)</script> & ")
        assert "<script" not in svg
        svg_to_png(svg, 0.25)


def test_a_picture_says_in_words_what_it_shows(mol: Chem.Mol) -> None:
    relevance = np.linspace(-0.5, 1, 28)
    root = ElementTree.fromstring(molecule_svg(mol, relevance, title="T", subtitle="p = 0.9"))
    assert root.find(f"{SVG}title").text == "T"
    description = root.find(f"{SVG}desc").text
    assert "p = 0.9. 28 atoms with relevance from −0.5 to +1." in description
    assert "Red is for, blue is against, white is zero" in description


def pixels(svg: str, scale: float) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(svg_to_png(svg, scale))).convert("RGB"))


def test_the_png_shows_the_colour_of_each_atom_at_its_place() -> None:
    chain = Chem.MolFromSmiles("CCCCC")
    relevance = np.array([1.0, 0.5, 0.0, -0.5, -1.0])
    svg = molecule_svg(chain, relevance, width=400, height=300)
    picture = pixels(svg, 2.0)
    assert picture.shape == (600, 800, 3)
    shift = svg.index("data-atom")
    offset = svg.rindex("translate(", 0, shift) + len("translate(")
    left, top = map(float, svg[offset : svg.index(")", offset)].split())
    for index, atom in elements(svg, "data-atom").items():
        # One of two places above and below the atom is free of black bonds.
        x, y = float(atom.get("cx")) + left, float(atom.get("cy")) + top
        radius = float(atom.get("r"))
        spots = [picture[int(2 * (y + d * radius)), int(2 * x)] for d in (-0.8, 0.8)]
        wanted = np.rint(Scale(1.0).rgb(relevance[index]) * 255)
        assert min(np.abs(spot - wanted).max() for spot in spots) <= 1


def test_a_cell_of_a_table_in_pandas_shows_the_picture_as_it_is(mol: Chem.Mol) -> None:
    svg = molecule_svg(mol, relevance_of(mol), title="two\nlines", subtitle="a\nb", note="c\nd")
    with pd.option_context("display.max_colwidth", None):
        assert svg in pd.DataFrame({"picture": [svg]}).to_html(escape=False)
    assert ElementTree.fromstring(svg).find(f"{SVG}title").text == "two lines"


def test_a_picture_needs_no_style_attribute_which_web_sites_remove(mol: Chem.Mol) -> None:
    svg = molecule_svg(mol, np.zeros(mol.GetNumAtoms()))
    assert "style" not in svg
    with_styles = re.sub(r" stroke-width='([^']*)'", r" style='stroke-width:\1'", svg)
    assert svg_to_png(svg) == svg_to_png(with_styles)
    assert svg_to_png(svg) != svg_to_png(re.sub(r" stroke='[^']*'", "", svg))  # the bonds are gone


def test_a_thumbnail_has_letters_and_colours_and_leaves_its_words_to_the_description(
    mol: Chem.Mol,
) -> None:
    relevance = relevance_of(mol)
    svg = molecule_svg(mol, relevance, title="T", subtitle="p = 0.9", width=250, height=180)
    assert "colour-bar" not in svg
    assert len(elements(svg, "data-atom")) == mol.GetNumAtoms()
    assert "class='atom-" in svg  # RDKit's letters
    assert ElementTree.fromstring(svg).find(f"{SVG}title").text == "T"
    assert "p = 0.9." in ElementTree.fromstring(svg).find(f"{SVG}desc").text
    for size in ((72, 64), (250, 180)):
        width, height = size
        painted = pixels(molecule_svg(mol, relevance, width=width, height=height), 1.0)
        assert painted.shape[:2] == (height, width)
        assert painted.min() < 100
    with pytest.raises(ValueError, match="at least 72 x 64 pixels; 71 x 64 are too few"):
        molecule_svg(mol, relevance, width=71, height=64)


def test_the_png_has_text_without_any_fonts_of_the_system(mol: Chem.Mol) -> None:
    svg = molecule_svg(mol, np.zeros(28), title="A title")
    assert "<text" not in svg
    assert pixels(svg, 1.0)[10:32].min() < 60


def test_a_machine_without_fonts_draws_the_letters_it_can(tmp_path) -> None:
    (tmp_path / "fonts.conf").write_text("<fontconfig></fontconfig>")
    code = (
        "import io, numpy as np; from PIL import Image;"
        "from graphxai.visualization import molecule_svg, svg_to_png; from rdkit import Chem;"
        "drawn = [Image.open(io.BytesIO(svg_to_png(molecule_svg(Chem.MolFromSmiles('C'), [0.0],"
        " title=t), 1.0))).convert('L') for t in ('IIIIII 酶', 'MMMMMM 酶')];"
        "print(*(int((np.asarray(d)[10:36] < 128).sum()) for d in drawn))"
    )
    surroundings = os.environ | {"FONTCONFIG_FILE": str(tmp_path / "fonts.conf")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=surroundings, check=True
    )
    narrow, wide = map(int, done.stdout.split())
    assert wide > 1.5 * narrow > 0  # empty boxes would all be alike


def test_pictures_are_saved_by_suffix(mol: Chem.Mol, tmp_path) -> None:
    svg = molecule_svg(mol, relevance_of(mol))
    assert save_picture(svg, tmp_path / "a.svg").read_text(encoding="utf-8") == svg
    png = save_picture(svg, str(tmp_path / "a.PNG"), scale=1.0)
    assert Image.open(png).size == (640, 480)
    assert png.read_bytes() == svg_to_png(svg, 1.0)
    assert save_picture([svg, svg], tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    for name in ("a.jpg", "a", "a.svg.gz"):
        with pytest.raises(ValueError, match=r"\.svg, \.png or \.pdf"):
            save_picture(svg, tmp_path / name)


def test_what_is_not_a_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="scale"):
        svg_to_png("<svg/>", 0)
    with pytest.raises(ValueError):  # noqa: PT011 - the rasteriser's own words
        svg_to_png("no svg")


def test_pictures_are_the_same_in_every_process(mol: Chem.Mol) -> None:
    code = (
        "from rdkit import Chem; from graphxai.visualization import molecule_svg, svg_to_png;"
        f"mol = Chem.MolFromSmiles({VERUBECESTAT!r});"
        "svg = molecule_svg(mol, [(i % 7) - 3 for i in range(28)], title='T');"
        "import hashlib, sys;"
        "print(hashlib.sha256(svg.encode() + svg_to_png(svg, 0.5)).hexdigest())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(code, {})
    assert there.stdout == here.getvalue()


def test_importing_the_package_loads_no_drawing_library() -> None:
    code = (
        "import sys, importlib.util as u; import graphxai.visualization;"
        "print([m for m in ('rdkit', 'matplotlib', 'fontTools', 'pyvips', 'torch')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
