"""Files are read back with the tools they are for, and notebooks show what they should."""

import base64
import csv
import hashlib
import html
import io
import json
import pickle
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pypdf import PdfReader
from rdkit import Chem
from rdkit.Chem import AllChem

import graphxai as gx
from graphxai.cli import main as cli
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import MOLECULES, digit_paths
from graphxai.datasets.superpixels import region_adjacency
from graphxai.explanation.comparison import side_by_side
from graphxai.explanation.explanations import SHOWN
from graphxai.explanation.files import SUFFIXES, write_csv, write_parquet
from graphxai.models.graphormer import save_checkpoint
from graphxai.tables.files import above_noise
from graphxai.visualization import Scale, displayed
from graphxai.visualization.render import COLUMN, pictures_to_pdf
from graphxai.visualization.text import minus_signs
from other_models import GpsModel
from toy import random_graphormer

VERUBECESTAT = MOLECULES["verubecestat"]
NASTY = '$$$$\n><script>alert(1)</script> & "x"\t\''


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=2)


@pytest.fixture(scope="module")
def verubecestat(model):
    return gx.explain(model, VERUBECESTAT)


@pytest.fixture(scope="module")
def several(model, smiles):
    with pytest.warns(UserWarning, match="left out"):
        return gx.explain(model, [smiles[2], "C1CC", *smiles])


@pytest.fixture(scope="module")
def digit():
    return gx.explain("mnist-superpixels", digit_paths()[3])


def test_an_explanation_introduces_itself_in_a_few_words(verubecestat):
    text = repr(verubecestat)
    assert text.startswith(f"Explanation({VERUBECESTAT}: ")
    assert f"for {verubecestat.target!r}, output {verubecestat.output:+.3f}, unexplained" in text
    assert len(text) < 400


def relevance_of(mol):
    return [atom.GetDoubleProp("Relevance") for atom in mol.GetAtoms()]


# --- structures --------------------------------------------------------------------------------


def test_rdkit_puts_relevance_of_an_sd_file_on_the_atoms(several, tmp_path):
    path = several.save(tmp_path / "all.sdf")
    read = list(Chem.SDMolSupplier(str(path), removeHs=False))
    explained = [explanation for explanation in several if explanation is not None]
    assert len(read) == len(explained)
    for mol, explanation in zip(read, explained, strict=True):
        assert np.array_equal(np.float32(relevance_of(mol)), explanation.relevance)
        symbols = [atom.GetSymbol() for atom in explanation.molecule.GetAtoms()]
        assert [atom.GetSymbol() for atom in mol.GetAtoms()] == symbols
        assert Chem.MolToSmiles(mol) == Chem.CanonSmiles(explanation.smiles)
        assert mol.GetProp("Target") == "active"
        assert float(mol.GetProp("Output")) == pytest.approx(explanation.output)
        assert mol.GetProp("Prediction activity") == str(explanation.prediction)
    assert path.read_text().count("V2000") == len(explained)


def test_an_sd_file_has_the_coordinates_that_a_molecule_came_with(model):
    mol = Chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")
    AllChem.EmbedMolecule(mol, randomSeed=1)
    record = gx.explain(model, mol).to_sdf()
    read = Chem.MolFromMolBlock(record)
    np.testing.assert_allclose(
        read.GetConformer().GetPositions(), mol.GetConformer().GetPositions(), atol=1e-4
    )
    drawn = Chem.MolFromMolBlock(gx.explain(model, "CCO").to_sdf())
    assert not drawn.GetConformer().Is3D()
    assert np.ptp(drawn.GetConformer().GetPositions()) > 1


def test_hydrogens_that_are_atoms_keep_their_relevance(tmp_path):
    """Published models, which read molecules as they are drawn, have nodes for them."""
    published = random_graphormer(num_layers=2, ties="floyd")
    with pytest.warns(UserWarning, match="hydrogens are explicit atoms"):
        explanation = gx.explain(published, Chem.AddHs(Chem.MolFromSmiles("CO")))
    assert len(explanation) == 6
    path = explanation.save(tmp_path / "a.sdf")
    (mol,) = Chem.SDMolSupplier(str(path), removeHs=False)
    assert np.array_equal(np.float32(relevance_of(mol)), explanation.relevance)


def test_rdkit_reads_relevance_from_smiles(several, tmp_path):
    path = several.save(tmp_path / "all.smi")
    explained = [explanation for explanation in several if explanation is not None]
    supplier = Chem.SmilesMolSupplier(str(path), titleLine=False)
    assert [mol.GetNumAtoms() for mol in supplier] == [len(e) for e in explained]
    for line, explanation in zip(path.read_text().splitlines(), explained, strict=True):
        mol = Chem.MolFromSmiles(line)
        place = [atom.GetAtomMapNum() - 1 for atom in mol.GetAtoms()]
        assert sorted(place) == list(range(len(explanation)))
        assert np.array_equal(np.float32(relevance_of(mol)), explanation.relevance[place])
        symbols = [atom.GetSymbol() for atom in explanation.molecule.GetAtoms()]
        assert [atom.GetSymbol() for atom in mol.GetAtoms()] == [symbols[i] for i in place]
        for atom in mol.GetAtoms():
            atom.SetAtomMapNum(0)
        assert Chem.MolToSmiles(mol) == Chem.CanonSmiles(explanation.smiles)
        assert mol.GetProp("_Name").startswith("lrp for active, output")


def test_properties_of_the_users_molecule_do_not_get_into_its_smiles(model):
    mol = Chem.MolFromSmiles("CCO")
    mol.GetAtomWithIdx(0).SetProp("secret", "value")
    AllChem.Compute2DCoords(mol)
    assert "secret" not in gx.explain(model, mol).to_cxsmiles()
    assert mol.GetAtomWithIdx(0).HasProp("secret")


def test_names_cannot_break_out_of_files_and_pages(tmp_path):
    model = random_graphormer(
        num_layers=1, tasks=(Task(NASTY, "binary", ("no", NASTY)), Task("$$$$", "regression"))
    )
    model.origin = type(model.origin)(NASTY, NASTY)
    both = gx.explain(model, ["CCO", "CC"])
    text = "".join(explanation.to_sdf() for explanation in both)
    read = list(Chem.ForwardSDMolSupplier(io.BytesIO(text.encode())))
    assert [mol.GetNumAtoms() for mol in read] == [3, 2]
    assert [len(relevance_of(mol)) for mol in read] == [3, 2]
    for shown in (both._repr_svg_(), both[0]._repr_svg_(), both[0].section()):
        assert "<script" not in shown
    assert "<script" not in both.save(tmp_path / "both.html").read_text()
    drawn = dict.fromkeys(("smiles", "mol"))
    for shown in (replace(both[0], **drawn), gx.Explanations(replace(e, **drawn) for e in both)):
        assert "<script" not in shown._repr_html_()


@pytest.mark.parametrize(
    "name", ["$$$$", ">  <Row>", "a\n$$$$\nb", "M  END", "=1+1", "x\0y\u2028z"]
)
def test_no_title_ends_a_record_of_an_sd_file(model, name):
    both = gx.explain(model, ["CCO", "CC"])
    text = "".join(explanation.to_sdf(title=name, Row=k) for k, explanation in enumerate(both))
    read = list(Chem.ForwardSDMolSupplier(io.BytesIO(text.encode())))
    assert [mol.GetNumAtoms() for mol in read] == [3, 2]
    assert [mol.GetProp("Row") for mol in read] == ["0", "1"]
    shown = "".join(c if c.isprintable() else " " for c in name)
    assert [" ".join(mol.GetProp("_Name").split()) for mol in read] == [" ".join(shown.split())] * 2


def test_fragments_say_what_they_can_be_written_as(verubecestat, tmp_path):
    with pytest.raises(ValueError, match=r"cannot write '\.json'; use .*\.csv"):
        gx.fragments(verubecestat).save(tmp_path / "fr.json")
    assert list(tmp_path.iterdir()) == []


# --- tables ------------------------------------------------------------------------------------


def test_parquet_holds_the_atoms_and_all_the_rest(verubecestat, several, tmp_path):
    path = verubecestat.save(tmp_path / "one.parquet")
    frame = pd.read_parquet(path)
    assert np.array_equal(frame.relevance.to_numpy(), verubecestat.relevance)
    assert frame.symbol.tolist() == verubecestat.to_frame().symbol.tolist()
    stored = json.loads(pq.read_schema(path).metadata[b"graphxai"])
    assert stored == json.loads(json.dumps(verubecestat.to_dict()))
    frame = pd.read_parquet(several.save(tmp_path / "all.parquet"))
    assert sorted(frame.input.unique()) == [0, *range(2, len(several))]
    for place, rows in frame.groupby("input"):
        assert np.array_equal(rows.relevance.to_numpy(), several[place].relevance)
        assert rows.atom.tolist() == list(range(len(several[place])))


def test_csv_and_json_of_a_list_name_the_input(several, tmp_path):
    frame = pd.read_csv(several.save(tmp_path / "all.csv"))
    pd.testing.assert_frame_equal(frame[["input", "atom"]], several.to_frame()[["input", "atom"]])
    stored = json.loads(several.save(tmp_path / "all.json").read_text())
    assert [entry["input"] for entry in stored] == [0, *range(2, len(several))]
    assert stored[0]["ledger"] == several[0].ledger.to_dict()


def test_pyg_accepts_the_explanation_as_its_own(verubecestat, digit):
    from torch_geometric.explain import Explanation

    for explanation in (verubecestat, digit):
        pyg_explanation = explanation.to_pyg()
        assert isinstance(pyg_explanation, Explanation)
        assert pyg_explanation.validate(raise_on_error=True)
        assert pyg_explanation.available_explanations == ["node_mask"]
        assert np.array_equal(pyg_explanation.node_mask[:, 0].numpy(), explanation.relevance)
        assert pyg_explanation.num_nodes == len(explanation)
        assert pyg_explanation.ledger["output"] == explanation.output
    data = molecule_to_data(VERUBECESTAT)
    assert verubecestat.to_pyg().edge_index.equal(data.edge_index)
    pixels = digit.to_pyg()
    assert np.array_equal(pixels.edge_index.numpy(), region_adjacency(digit.segments))
    means = [digit.image[digit.segments == k].mean() for k in range(len(digit))]
    assert pixels.x[:, 0].numpy() == pytest.approx(means, abs=1e-6)
    assert pixels.pos.shape == (len(digit), 2)
    assert verubecestat.to_pyg().threshold("topk", 3).node_mask.count_nonzero() == 3


def test_what_cannot_be_written_is_reported(verubecestat, digit, tmp_path, monkeypatch):
    for name in ("a.pt", "a.pkl", "a.doc", "a"):
        with pytest.raises(ValueError, match=r"cannot write .*use \.svg, \.png, \.pdf, \.html"):
            verubecestat.save(tmp_path / name)
    assert ".pt" not in SUFFIXES
    with pytest.raises(ValueError, match="has no molecule"):
        digit.save(tmp_path / "digit.sdf")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"\.\[parquet\]"):
        verubecestat.save(tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


# --- pictures ----------------------------------------------------------------------------------


def test_a_pdf_has_a_page_for_each_picture(verubecestat, several, digit, tmp_path):
    page = PdfReader(verubecestat.save(tmp_path / "one.pdf")).pages[0]
    svg = ElementTree.fromstring(verubecestat.svg())
    assert (float(page.mediabox.width), float(page.mediabox.height)) == (
        float(svg.get("width")),
        float(svg.get("height")),
    )
    assert not page.images  # lines, not pixels
    some = several[:5]
    pages = PdfReader(some.save(tmp_path / "all.pdf", width=300, height=250)).pages
    assert len(pages) == sum(explanation is not None for explanation in some)
    assert len(PdfReader(digit.save(tmp_path / "digit.pdf")).pages) == 1


def test_a_pdf_without_the_extra_or_in_other_scripts_holds_an_image(verubecestat, monkeypatch):
    pages = PdfReader(
        io.BytesIO(pictures_to_pdf([verubecestat.svg(title="苯", width=300, height=250)]))
    ).pages
    assert len(pages[0].images) == 1
    monkeypatch.setitem(__import__("sys").modules, "fpdf", None)
    page = PdfReader(
        io.BytesIO(pictures_to_pdf([verubecestat.svg(width=300, height=250)] * 2))
    ).pages[1]
    assert (float(page.mediabox.width), float(page.mediabox.height)) == (300, 250)
    assert len(page.images) == 1


def test_pictures_of_a_list_are_a_grid(several, tmp_path):
    written = several[:3].save(tmp_path / "all.svg", columns=2)
    assert written.read_text() == several[:3].grid(columns=2)
    with Image.open(several[:3].save(tmp_path / "all.png")) as picture:
        assert picture.format == "PNG"


def test_a_page_contains_pictures_and_numbers(verubecestat, several, tmp_path):
    page = several[:3].save(tmp_path / "all.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("data:image/svg+xml;base64,") == sum(e is not None for e in several[:3])
    assert "<td>C</td>" in page
    code = re.search(
        'base64,([^"]+)', verubecestat.save(tmp_path / "one.html", scale=2).read_text()
    )[1]
    assert base64.b64decode(code).decode() == verubecestat.svg(scale=2)


def test_a_grid_of_several_methods_names_each_and_shares_no_scale(model, verubecestat):
    other = gx.explain(model, verubecestat.smiles, "gradient_input")
    picture = gx.grid([verubecestat, other])
    assert "LRP: " in picture
    assert "Gradient x Input: " in picture
    limits = [re.search("full colour at ([0-9.]+)", e.svg())[1] for e in (verubecestat, other)]
    assert re.findall("full colour at ([0-9.]+)", picture) == limits


def test_a_grid_of_several_targets_names_each_and_shares_a_scale_of_one_unit_only(
    model, verubecestat
):
    tasks = [task.name for task in model.config.tasks]
    explanations = [
        gx.explain(model, verubecestat.smiles, target=t)
        for t in (*model.config.tasks[0].classes, tasks[1])
    ]
    picture = gx.grid(explanations)
    for explanation in explanations:
        assert f"{explanation.headline}, for {explanation.target}" in picture
    assert len(set(re.findall("full colour at ([0-9.]+)", picture))) > 1
    assert len(set(re.findall("full colour at ([0-9.]+)", gx.grid(explanations[:2])))) == 1
    with pytest.raises(ValueError, match="1 titles for 3 explanations"):
        gx.grid(explanations, titles=["one"])
    with pytest.raises(ValueError, match="a number or None, not 'shared'"):
        gx.grid(explanations, scale="shared")


def test_a_grid_of_a_model_with_one_task_names_the_task_in_every_panel():
    one_task = random_graphormer(tasks=(Task("logS", "regression"),))
    explanations = [gx.explain(one_task, smiles) for smiles in ("CCO", "CCN")]
    picture = gx.grid(explanations)
    for explanation in explanations:
        assert f'aria-label="logS: {minus_signs(str(explanation.prediction))}' in picture


def test_the_colour_scale_may_be_a_number(verubecestat, several):
    assert verubecestat.svg(scale=2) == verubecestat.svg(scale=Scale(2.0))
    both = [e for e in several if e is not None][:2]
    assert gx.grid(both, scale=2) == gx.grid(both, scale=Scale(2.0))
    assert gx.grid(both, scale=2) != gx.grid(both)
    with pytest.raises(ValueError, match="finite and above 0"):
        verubecestat.svg(scale=-1)


# --- notebooks ---------------------------------------------------------------------------------


def test_several_explanations_are_a_list_that_shows_itself(model, several):
    assert isinstance(several, list)
    assert several == list(several)
    assert type(several[1:]) is type(several)
    assert several[1] is None
    assert json.dumps([e and e.method for e in several])
    picture = several._repr_svg_()
    assert picture.count("<svg") == 1
    assert f"{len(several)} inputs, 1 left out (None)" in picture
    many = type(several)([several[0]] * (SHOWN + 5))
    assert f"{SHOWN + 5} inputs, 5 more not shown" in many._repr_svg_()
    assert "0 inputs" in type(several)()._repr_html_()
    assert len(pickle.loads(pickle.dumps(several))) == len(several)


class MeanOfRows(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).mean(1)


@pytest.fixture(scope="module")
def rows():
    """Return two explanations of rows of tokens, which have no picture."""
    torch.manual_seed(0)
    model = gx.wrap(MeanOfRows(4, 1).eval(), kind="binary", inputs="tokens")
    return gx.explain(model, [torch.randn(3, 4), torch.randn(5, 4)])


def test_inputs_without_pictures_show_numbers(rows):
    explanations = rows
    assert "<svg" not in explanations._repr_html_()
    assert explanations[0].prediction.label in explanations._repr_html_()
    html = explanations[0]._repr_html_()
    top = int(np.argmax(np.abs(explanations[0].relevance)))
    assert f"<td>{top}</td><td>{explanations[0].relevance[top]:+.4f}</td>" in html


def test_a_notebook_keeps_one_form_of_a_picture(model, verubecestat, several, rows):
    """Jupyter stores every form that a result offers, and shows one."""
    data = molecule_to_data("CCO")
    del data.smiles
    graph, bare = gx.explain(model, data), rows[0]
    drawn = (
        verubecestat,
        several,
        graph,
        gx.fragments(verubecestat),
        gx.contrast(model, "CCCO", "CCCN"),
    )
    for shown in (*drawn, bare, type(several)([bare])):
        forms = {form: getattr(shown, f"_repr_{form}_", lambda: None)() for form in ("svg", "html")}
        assert [form for form, text in forms.items() if text] == [
            "svg" if shown in drawn else "html"
        ]


def test_no_picture_is_wider_than_the_column_of_a_notebook(model, several):
    """Jupyter shows SVG as an image of its own size, which a narrower column cuts."""
    wide = gx.grid(several, width=640, height=480)
    contrast = gx.contrast(model, "CCCO", "CCCN")
    for shown in (wide, contrast, gx.fragments(several[0]), several[0]):
        drawn = str(shown) if shown is wide else shown.svg()
        full, root = (ElementTree.fromstring(svg) for svg in (drawn, shown._repr_svg_()))
        assert float(root.get("width")) <= COLUMN
        assert root.get("viewBox") == full.get("viewBox")
        shapes = [[float(e.get(side)) for side in ("width", "height")] for e in (full, root)]
        assert shapes[0][0] / shapes[0][1] == pytest.approx(shapes[1][0] / shapes[1][1], rel=0.01)
        assert "max-width:100%" in root.get("style")
        assert full.get("style") is None


def test_compare_explains_one_input_by_several_methods(model):
    methods = ["lrp", "gae"]
    shown = gx.compare(model, VERUBECESTAT, methods)
    assert shown == side_by_side([gx.explain(model, VERUBECESTAT, method) for method in methods])
    assert shown._repr_svg_() == displayed(shown)
    assert "lowers pIC50" in gx.compare(model, VERUBECESTAT, target="pIC50")
    assert gx.compare(model, VERUBECESTAT, "lrp") == gx.compare(model, [VERUBECESTAT], ["lrp"])
    with pytest.raises(ValueError, match="use grid for several"):
        gx.compare(model, ["CCO", "CCN"], methods)


def test_compare_works_for_bundled_saved_and_wrapped_models(tmp_path):
    ElementTree.fromstring(gx.compare("bace", "CC(=O)Oc1ccccc1C(=O)O"))
    ElementTree.fromstring(gx.compare("mnist-superpixels", digit_paths()[3], ["lrp", "gae"]))
    folder = save_checkpoint(random_graphormer(num_layers=1), tmp_path / "other")
    assert gx.compare(folder, "CCO") == gx.compare(gx.load(folder), "CCO")
    wrapped = gx.wrap(GpsModel().eval(), kind="binary", featurize=float_graph)
    ElementTree.fromstring(gx.compare(wrapped, "CCO", ["lrp", "gradient_input"]))


def test_an_explanation_holds_its_target_to_be_explained_again(model, digit):
    for target in (None, "inactive", "pIC50", ("active", "inactive"), ("pIC50", "active")):
        first = gx.explain(model, VERUBECESTAT, target=target)
        again = gx.explain(model, VERUBECESTAT, target=first.wanted)
        assert again.target == first.target
        assert np.array_equal(again.relevance, first.relevance)
    assert digit.wanted == gx.Target(digit.prediction.label, digit.prediction.task)


def float_graph(smiles):
    data = molecule_to_data(smiles)
    data.x, data.edge_attr = data.x.float(), data.edge_attr.float()
    return data


# --- the command line --------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, capsys, model, tmp_path):
    folder = save_checkpoint(model, tmp_path / "toy")

    def call(*arguments):
        line = ["graphxai", "explain", *map(str, arguments), "--model", str(folder)]
        monkeypatch.setattr("sys.argv", line)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr()

    return call


def test_every_format_can_be_asked_for_on_the_command_line(run, tmp_path):
    for suffix in SUFFIXES:
        out = tmp_path / "new" / f"a{suffix}"
        assert run("CC(=O)Oc1ccccc1C(=O)O", "--out", out)[0] == 0
        assert out.stat().st_size > 100
    code, printed = run("CCO", "--method", "lrp", "--method", "gae", "--out", tmp_path / "c.pdf")
    assert code == 0
    code, printed = run("CCO", "--method", "lrp", "--method", "gae", "--out", tmp_path / "c.sdf")
    assert code != 0
    assert "go into one picture" in " ".join(printed.err.split())


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "molecules.csv"
    rows = ["CC(=O)Oc1ccccc1C(=O)O", "C1CC", "CC(=O)[O-].[Na+]", "C", "c1ccccc1"]
    path.write_text("smiles\n" + "\n".join(rows) + "\n")
    return path


def rows_of(folder):
    with (folder / "explanations.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("formats", [["csv,parquet,sdf"], ["csv", "parquet", "sdf,csv"]])
def test_tables_come_as_parquet_and_sdf_too(run, table, tmp_path, formats):
    out = tmp_path / "results"
    asked = [word for each in formats for word in ("--format", each)]
    code, _ = run(table, "--out", out, *asked, "--pictures", "none")
    assert code == 0
    rows = rows_of(out)
    frame = pd.read_parquet(out / "explanations.parquet")
    assert frame.row.tolist() == [1, 3, 4, 5]
    assert frame.output.dtype == np.float64
    structures = list(Chem.SDMolSupplier(str(out / "explanations.sdf")))
    for row, parquet, mol in zip(rows, frame.itertuples(), structures, strict=True):
        assert int(mol.GetProp("Row")) == int(row["row"]) == parquet.row
        values = [float(value) for value in row["relevance"].split()]
        np.testing.assert_allclose(parquet.relevance, values, rtol=1e-6)
        digits = [*map(float, above_noise([*relevance_of(mol)]))]
        np.testing.assert_allclose(digits, values, rtol=1e-6)
        assert parquet.output == float(row["output"])


HOSTILE = ['two\nlines, "quoted"', "a/../b", "<script>alert(1)</script>", "=1+1", "$$$$"]


def test_names_of_compounds_are_in_every_file_and_break_none(run, tmp_path):
    table, out = tmp_path / "named.csv", tmp_path / "results"
    smiles = ["CCO", "C1CC", "CC", "C", "c1ccccc1"]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("ID", "smiles"), *zip(HOSTILE, smiles, strict=True)])
    arguments = (table, "--name-column", "ID", "--out", out, "--format", "parquet,sdf")
    code, printed = run(*arguments)
    assert code == 0, printed.err
    names = [HOSTILE[k] for k in (0, 2, 3, 4)]
    assert [row["ID"] for row in rows_of(out)] == names
    assert pd.read_parquet(out / "explanations.parquet")["ID"].tolist() == names
    structures = list(Chem.SDMolSupplier(str(out / "explanations.sdf")))
    titles = [" ".join(name.split()) for name in names]  # one line is all that an SD file has
    assert [mol.GetProp("_Name").strip() for mol in structures] == titles
    assert pd.read_csv(out / "rejected.csv")["ID"].tolist() == ["a/../b"]
    assert sorted(path.name for path in (out / "pictures").iterdir()) == [
        f"{row:06d}.svg" for row in (1, 3, 4, 5)
    ]
    table_file = out / "explanations.csv"
    table_file.write_bytes(table_file.read_bytes()[:-10])  # killed within the last row
    code, printed = run(*arguments, "--resume")
    assert "1 explained" in printed.err
    assert [row["ID"] for row in rows_of(out)] == names


def test_a_run_with_other_columns_is_not_resumed(run, table, tmp_path):
    out = tmp_path / "results"
    arguments = (table, "--out", out, "--pictures", "none")
    run(*arguments)
    path = out / "explanations.csv"
    path.write_text(path.read_text().replace("centrality,", "", 1))
    code, printed = run(*arguments, "--resume")
    assert code == 1
    assert "has different columns" in printed.err


def test_centrality_is_a_column_if_the_method_gives_it(run, table, tmp_path, model):
    run(table, "--out", tmp_path / "lrp", "--pictures", "none", "--format", "parquet")
    ledger = gx.explain(model, "CC(=O)Oc1ccccc1C(=O)O").ledger
    row = rows_of(tmp_path / "lrp")[0]
    assert float(row["centrality"]) == pytest.approx(ledger.centrality, rel=1e-4)
    assert pd.read_parquet(tmp_path / "lrp" / "explanations.parquet").centrality.notna().all()
    run(table, "--out", tmp_path / "gae", "--pictures", "none", "--method", "gae")
    assert {row["centrality"] for row in rows_of(tmp_path / "gae")} == {""}


def test_an_interrupted_run_repeats_no_structure(run, table, tmp_path):
    out = tmp_path / "results"
    arguments = (table, "--out", out, "--format", "sdf,parquet", "--pictures", "none")
    run(*arguments)
    whole = (out / "explanations.sdf").read_text()
    records = whole.split("$$$$\n")
    lines = (out / "explanations.csv").read_text().splitlines(keepends=True)
    # The run was killed within the fourth structure, before it wrote the table's third row.
    (out / "explanations.csv").write_text("".join(lines[:3]))
    (out / "explanations.sdf").write_text("$$$$\n".join(records[:3]) + "$$$$\n" + records[3][:99])
    (out / "explanations.parquet").unlink()
    code, printed = run(*arguments, "--resume")
    assert code == 0
    assert "2 explained" in printed.err
    read = [int(m.GetProp("Row")) for m in Chem.SDMolSupplier(str(out / "explanations.sdf"))]
    assert read == [1, 3, 4, 5]
    assert pd.read_parquet(out / "explanations.parquet").row.tolist() == [1, 3, 4, 5]
    code, printed = run(table, "--out", out, "--pictures", "none", "--resume")
    assert code == 1
    assert "holds a run with sdf" in printed.err


def test_a_table_without_a_good_row_is_an_error_and_gives_an_empty_parquet_file(run, tmp_path):
    table = tmp_path / "bad.csv"
    table.write_text("smiles\nC1CC\n")
    out = tmp_path / "results"
    assert run(table, "--out", out, "--format", "parquet,sdf")[0] == 1
    assert pd.read_parquet(out / "explanations.parquet").empty
    assert (out / "explanations.sdf").read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("TABLE", "--format", "xlsx"), "unknown format 'xlsx'"),
        (("CCO", "--format", "sdf"), "--format is for a table, not for a SMILES"),
        (("CCO", "--out", "x.pt"), "use one of .svg"),
    ],
)
def test_formats_that_are_not_there_are_refused(run, table, tmp_path, arguments, message):
    given = [table if argument == "TABLE" else argument for argument in arguments]
    if given[0] is table:
        given += ["--out", tmp_path / "r"]
    code, printed = run(*given)
    assert code != 0
    assert message in " ".join(printed.err.split())


# --- safety ------------------------------------------------------------------------------------


def test_no_script_can_run_in_a_page_and_its_styles_are_allowed(verubecestat, several, tmp_path):
    for result in (verubecestat, several[:3]):
        page = result.save(tmp_path / "a.html").read_text()
        policy = html.unescape(re.search('Content-Security-Policy" content="([^"]+)"', page)[1])
        rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
        assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert rules["img-src"] == "data:"
        assert "unsafe-inline" not in policy
        assert "script-src" not in rules
        (style,) = re.findall("<style>(.*?)</style>", page)
        for text in {style, *re.findall('style="([^"]*)"', page)}:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in rules["style-src"]


def test_values_that_are_not_finite_reach_no_result(verubecestat, tmp_path):
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not a finite number"):
            replace(verubecestat, relevance=np.full_like(verubecestat.relevance, value))
        with pytest.raises(ValueError, match="not a finite number"):
            replace(verubecestat, ledger=replace(verubecestat.ledger, biases=value))
    strange = replace(verubecestat, provenance={"weight": np.nan})
    with pytest.raises(ValueError, match="JSON"):
        strange.save(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def test_a_table_begins_with_a_byte_order_mark_only_if_it_is_asked_for(tmp_path):
    """Excel looks for the mark; other programs take it for a part of the first column's name."""
    frame = pd.DataFrame({"smiles": ["CCO"]})
    plain = write_csv(frame, tmp_path / "plain.csv", index=False).read_bytes()
    assert plain.startswith(b"smiles")
    marked = write_csv(frame, tmp_path / "marked.csv", byte_order_mark=True, index=False)
    assert marked.read_bytes() == b"\xef\xbb\xbf" + plain


def test_what_parquet_holds_beside_the_table_is_json_for_every_reader(tmp_path):
    """JSON has no NaN, though Python writes one."""
    frame = pd.DataFrame({"atom": [1]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_parquet(frame, tmp_path / "x.parquet", {"output": float("nan")})
    assert not (tmp_path / "x.parquet").exists()


def test_results_are_written_to_files_only(verubecestat, several, tmp_path):
    import os

    for suffix in SUFFIXES:
        pipe = tmp_path / f"pipe{suffix}"
        os.mkfifo(pipe)
        for result in (verubecestat, several):
            with pytest.raises(OSError, match="is a device, a pipe or a socket"):
                result.save(pipe)


def test_explanations_of_a_frame_keep_its_index(tmp_path):
    frame = pd.DataFrame({"smiles": ["CCO", "nonsense", "CN"]}, index=[7, "b", 2])
    with pytest.warns(UserWarning, match="input 1 was left out"):
        explained = gx.explain("solubility", frame)
    assert explained.labels == [7, "b", 2]
    assert explained[1:].labels == ["b", 2]
    atoms = explained.to_frame()
    assert atoms.input.tolist() == [7, 7, 7, 2, 2]
    explained.save(tmp_path / "atoms.json")
    assert [e["input"] for e in json.loads((tmp_path / "atoms.json").read_text())] == [7, 2]
    assert list(gx.explain("solubility", ["CCO", "CN"]).to_frame().input.unique()) == [0, 1]
