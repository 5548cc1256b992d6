"""Pictures of a series can be compared, and read when they are printed grey or on a slide."""

import io
import re

import numpy as np
import pytest
from PIL import Image
from rdkit import Chem
from rdkit.Chem import rdDepictor
from reports import read_report
from scipy.spatial.distance import pdist

import graphxai as gx
from graphxai.datasets.samples import MOLECULES
from graphxai.tables.drawing import drawing
from graphxai.visualization import Scale, molecule_svg, superpixel_svg, svg_to_png
from graphxai.visualization.grid import aligned, aligned_series
from graphxai.visualization.layout import flaws, laid_out

CYCLOSPORIN = (
    "CC[C@H]1C(=O)N(C)CC(=O)N(C)[C@@H](CC(C)C)C(=O)N[C@@H](C(C)C)C(=O)N(C)[C@@H](CC(C)C)C(=O)"
    "N[C@@H](C)C(=O)N[C@H](C)C(=O)N(C)[C@@H](CC(C)C)C(=O)N(C)[C@@H](CC(C)C)C(=O)N(C)"
    "[C@@H](C(C)C)C(=O)N(C)[C@@H]([C@H](O)[C@H](C)C/C=C/C)C(=O)N1"
)
PROTAC = (
    "Cc1ncsc1-c1ccc(CNC(=O)[C@@H]2C[C@@H](O)CN2C(=O)[C@@H](NC(=O)COCCOCCOCCNC(=O)C[C@@H]2"
    "N=C(c3ccc(Cl)cc3)c3c(sc(C)c3C)-n3c(C)nnc32)C(C)(C)C)cc1"
)
VANCOMYCIN = (
    "CC1C(C(CC(O1)OC2C(C(C(OC2OC3=C4C=C5C=C3OC6=C(C=C(C=C6)C(C(C(=O)NC(C(=O)NC5C(=O)NC7C8="
    "CC(=C(C=C8)O)C9=C(C=C(C=C9O)O)C(NC(=O)C(C(C1=CC(=C(O4)C=C1)Cl)O)NC7=O)C(=O)O)CC(=O)N)"
    "NC(=O)C(CC(C)C)NC)O)Cl)CO)O)O)(C)N)O"
)
GROUPS = ["C", "CC", "CO", "F", "Cl", "N#C", "CN(C)", "NC(=O)", "CS(=O)(=O)", "c9ccccc9"]
AMINES = ["N", "NC", "N8CCOCC8", "N8CCCCC8", "NCC(=O)O", "NC8CC8"]
# a quinazoline with sixty pairs of substituents
SERIES = [f"{first}c1ccc2ncnc({amine})c2c1" for first in GROUPS for amine in AMINES]
CORE = "c1ccc2ncncc2c1"


def grey(svg: str) -> np.ndarray:
    """Return the luminance of a picture's pixels, 0 to 255."""
    return np.array(Image.open(io.BytesIO(svg_to_png(svg, 2.0))).convert("L"), dtype=float)


@pytest.mark.parametrize("palette", ["red-blue", "orange-purple"])
@pytest.mark.parametrize("size", [1.0, 0.6, 0.3])
def test_atoms_for_and_against_differ_in_a_grey_print(palette, size):
    ethane = Chem.MolFromSmiles("CCCC")
    relevance = np.array([size, 0, 0, -size])
    svg = molecule_svg(ethane, relevance, scale=Scale(1.0, palette))
    pixels, spread = grey(svg), []
    for atom in (0, 3):
        match = re.search(rf'data-atom="{atom}" cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', svg)
        assert match
        # shifted by the margin, and without the black bond inside
        x, y, radius = (2 * float(part) for part in match.groups())
        x, y = x + 32, y + 32
        rows, columns = np.ogrid[: pixels.shape[0], : pixels.shape[1]]
        inside = (rows - y) ** 2 + (columns - x) ** 2 < (0.8 * radius) ** 2
        values = pixels[inside & (pixels > 100)]
        low, high = np.quantile(values, [0.1, 0.97])
        spread.append(high - low)
    assert spread[0] < 4
    assert spread[1] > 12


def test_scores_without_a_sign_and_zeros_are_not_hatched():
    mol = Chem.MolFromSmiles("CCO")
    assert "against" not in molecule_svg(mol, np.array([1.0, 0.5, -0.01]), legend=("-", "+"))
    assert 'class="against"' in molecule_svg(mol, np.array([1.0, 0.5, -0.2]))


@pytest.mark.parametrize("cells", [4, 112])  # larger and smaller than lines are apart
def test_superpixels_for_and_against_differ_in_a_grey_print(cells):
    halves = np.arange(cells) // (cells // 2)
    segments = np.add.outer(2 * halves, halves)  # four quarters
    relevance = np.array([0.3, -0.3, 0.1, -0.1])
    options = {"scale": 1.0, "size": 200, "show_image": False, "color_bar": False}
    svg = superpixel_svg(np.zeros((cells, cells)), segments, relevance, **options)
    quarters = grey(svg)[32:432, 32:432].reshape(2, 200, 2, 200).swapaxes(1, 2).reshape(4, -1)
    low, high = np.quantile(quarters, [0.1, 0.97], axis=1)
    spread = high - low
    assert max(spread[0], spread[2]) < 1
    assert spread[1] > 12
    assert spread[3] > 4


def core_places(mols: list[Chem.Mol]) -> np.ndarray:
    """Return the places of the core's atoms in each drawing, in the order of the first."""
    pattern, places = Chem.MolFromSmarts(CORE), []
    for mol in mols:
        points = mol.GetConformer().GetPositions()[:, :2]
        ways = [points[list(way)] for way in mol.GetSubstructMatches(pattern, uniquify=False)]
        places.append(min(ways, key=lambda way: np.abs(way - (places or ways)[0]).max()))
    return np.array(places)


@pytest.mark.parametrize("core", [None, CORE])
def test_sixty_molecules_of_a_series_have_their_core_in_one_place(core):
    mols = [Chem.MolFromSmiles(smiles) for smiles in SERIES]
    assert len(mols) == 60
    places = core_places(aligned_series(mols, core))  # (60, 10, 2) in Angstrom
    assert np.linalg.norm(places - places[0], axis=-1).max() < 0.1
    apart = core_places([laid_out(mol) for mol in mols])
    assert np.linalg.norm(apart - apart[0], axis=-1).max() > 1


def test_a_drawing_given_leads_the_series_and_is_kept():
    mols = [Chem.MolFromSmiles(smiles) for smiles in SERIES[:5]]
    rdDepictor.Compute2DCoords(mols[2])
    conformer = mols[2].GetConformer()
    given = conformer.GetPositions()[:, [1, 0, 2]]  # mirrored
    conformer.SetPositions(given)
    placed = aligned_series(mols)
    assert np.allclose(placed[2].GetConformer().GetPositions(), given)
    places = core_places(placed)
    assert np.linalg.norm(places - places[2], axis=-1).max() < 0.1


def test_molecules_of_several_series_are_aligned_within_each():
    others = [f"{group}C1CCN(C)CC1" for group in ("O", "F", "CC", "N")]
    mols = [Chem.MolFromSmiles(smiles) for smiles in [*SERIES[:4], *others]]
    places = core_places(aligned_series(mols)[:4])
    assert np.linalg.norm(places - places[0], axis=-1).max() < 0.1


def test_no_atoms_coincide_in_a_series():
    """Laid out around its core, the dihydroimidazole of lanabecestat collapses into a point."""
    placed = aligned_series([Chem.MolFromSmiles(smiles) for smiles in MOLECULES.values()])
    assert [flaws(mol) for mol in placed] == [0] * len(MOLECULES)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"CC(=O)/C=C/C(=O)c1ccccc1", r"CC(=O)/C=C\C(=O)c1ccccc1"),
        (r"Oc1ccc(cc1)/C=C/c1cc(O)cc(O)c1", r"Oc1ccc(cc1)/C=C\c1cc(O)cc(O)c1"),  # resveratrol
    ],
)
def test_molecules_that_are_drawn_alike_keep_their_double_bonds(first, second):
    for drawn in ((first, second), (second, first)):
        mols = [Chem.MolFromSmiles(smiles) for smiles in drawn]
        reference = laid_out(mols[0])
        same_atoms = np.array([[k, k] for k in range(reference.GetNumAtoms())])
        for placed in (*aligned_series(mols), aligned(mols[1], reference, same_atoms)):
            read = Chem.MolFromMolBlock(Chem.MolToMolBlock(Chem.RemoveAllHs(placed)))
            assert Chem.MolToSmiles(read) in map(Chem.CanonSmiles, drawn)
            assert Chem.MolToSmiles(read) == Chem.MolToSmiles(placed)


def test_a_molecule_that_cannot_be_laid_out_alike_is_turned_as_close_as_it_can_be():
    """No other angle and no mirror image brings the corresponding atoms closer together."""
    reference, mol = map(Chem.MolFromSmiles, (SERIES[0], "CC(F)CCC(=O)NCCO"))
    reference = laid_out(reference)
    mapping = np.array([[0, 0], [9, 1], [5, 4], [3, 9]])  # with other distances in the reference
    points = aligned(mol, reference, mapping).GetConformer().GetPositions()[:, :2]
    drawn = laid_out(mol).GetConformer().GetPositions()[:, :2]
    assert pdist(points) == pytest.approx(pdist(drawn))
    wanted = reference.GetConformer().GetPositions()[mapping[:, 0], :2]
    here = points[mapping[:, 1]]
    assert here.mean(0) == pytest.approx(wanted.mean(0))
    here, wanted = here - here.mean(0), wanted - wanted.mean(0)
    turns = np.exp(1j * np.linspace(0, 2 * np.pi, 720, endpoint=False))[:, None]
    flat, there = (each @ (1, 1j) for each in (here, wanted))
    others = np.concatenate([turns * flat, turns * flat.conj()])
    least = np.square(abs(others - there)).sum(1).min()
    assert np.square(here - wanted).sum() <= least + 1e-9


def test_a_core_that_is_no_smarts_or_that_nothing_has_is_refused():
    mols = [Chem.MolFromSmiles(smiles) for smiles in SERIES[:3]]
    with pytest.raises(ValueError, match="is not a core that RDKit can read"):
        aligned_series(mols, "c1ccc(")
    with pytest.raises(ValueError, match="no molecule has the core"):
        aligned_series(mols, "[Si]")


def test_a_grid_and_a_report_draw_a_series_alike(tmp_path):
    explanations = gx.explain("solubility", SERIES[:3])
    for picture in (gx.grid(explanations), gx.grid(explanations, core=CORE)):
        assert "one scale for all 3 pictures" in picture
    page = gx.report("solubility", SERIES[:3], tmp_path / "page.html", detailed=0)
    drawn = [molecule["draw"] for molecule in read_report(page)["molecules"]]
    # the same shape, counted from one atom of the core
    shapes = []
    for smiles, picture in zip(SERIES, drawn, strict=False):
        x, y = (np.array(picture[axis], float) / 100 for axis in "xy")
        match = Chem.MolFromSmiles(smiles).GetSubstructMatches(Chem.MolFromSmarts(CORE))[0]
        shapes.append(np.stack([x, y], axis=1)[list(match)])
        shapes[-1] -= shapes[-1].mean(0)
    assert np.abs(np.array(shapes) - shapes[0]).max() < 0.1 / 1.5


def test_groups_of_stereocentres_and_isotopes_are_drawn_from_smiles_and_mol_files():
    mol = Chem.MolFromSmiles("C[C@H](O)[C@@H]([13CH3])C(=O)N[C@H](C)C([2H])Cl |&1:1,3,o1:8|")
    again = Chem.MolFromMolBlock(Chem.MolToV3KMolBlock(mol), removeHs=False)
    for each in (mol, again):
        picture = drawing(each)
        assert sorted(picture["g"].values()) == ["and1", "and1", "or1"]
        labels = [(label[0], label[3]) for label in picture["a"].values()]
        assert ("C", 13) in labels
        assert ("D", 0) in labels
        svg = molecule_svg(each, np.zeros(each.GetNumAtoms()))
        assert svg.count("<path") > molecule_svg(
            Chem.MolFromSmiles(Chem.MolToSmiles(each)), np.zeros(each.GetNumAtoms())
        ).count("<path")


@pytest.mark.parametrize("smiles", [CYCLOSPORIN, PROTAC, VANCOMYCIN])
def test_the_atoms_of_large_molecules_are_legible_on_a_slide(smiles):
    mol = Chem.MolFromSmiles(smiles)
    assert mol.GetNumHeavyAtoms() > 60
    svg = molecule_svg(mol, np.linspace(-1, 1, mol.GetNumAtoms()))
    width = float(re.search(r'<svg[^>]* width="(\d+)"', svg)[1])
    radius = min(float(r) for r in re.findall(r'data-atom="\d+"[^>]* r="([\d.]+)"', svg))
    # at 1280 pixels a disc is at least as wide as the letters of a slide's footnote are high
    assert 2 * radius * 1280 / width > 16
