"""However a compound is handed over, its features are those of one canonical form."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import EnumerateStereoisomers
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from ways import WAYS, coming_perception, in_own_files

import graphxai as gx
from graphxai.cli import main as cli
from graphxai.cli.arguments import show_table
from graphxai.datasets.canonical_form import canonical_form, canonical_smiles, smiles_with_groups
from graphxai.datasets.fingerprints import structure_occurrences
from graphxai.datasets.isomers import isomers_in_order
from graphxai.datasets.molecules import molecule_graph, molecule_to_data
from graphxai.datasets.tables.structures import read_structures
from graphxai.datasets.tables.table import open_table
from graphxai.explainers import get_explainer
from graphxai.explanation.files import sdf_record
from graphxai.models.graphormer import Graphormer
from graphxai.tables.batches import PredictBatch
from graphxai.tables.drawing import drawing
from graphxai.tables.run import explain_table, predict_table
from graphxai.visualization.molecule import structure
from one_compound import MODELS
from one_compound import test_part as held_out_for_test


def as_floats(molecule: str | Chem.Mol) -> Data:
    graph = molecule_to_data(molecule)
    return Data(x=graph.x.float(), edge_index=graph.edge_index)


class OneAtom(nn.Module):
    def forward(self, x, edge_index, batch):
        return global_add_pool(x[:, :1], batch)


NITROFURANTOIN = "O=C1CN(N=Cc2ccc([N+](=O)[O-])o2)C(=O)N1"
ADRIFT = [
    "CC1CO1",
    "O=C1Nc2ccccc2/C1=C/c1ccc[nH]1",
    "O=C(O)/C=C\\c1ccccc1",
    "C[C@H]1CC[C@@H](O)CC1",
]
SOURCE = Path(gx.__file__).parents[1]


def predictions(model, given) -> np.ndarray:
    """Return probabilities of the last class and values, (n, tasks)."""
    rows = gx.predict(model, given, progress=False)
    return np.array(
        [
            [
                list(p.probabilities.values())[-1] if p.value is None else p.value
                for p in row.values()
            ]
            for row in rows
        ]
    )


ILOPROST = "CC#CCC(C)[C@H](O)/C=C/[C@@H]1[C@H]2c3cccc(CCCC(=O)O)c3O[C@H]2C[C@H]1O"  # an analogue


def test_a_double_bond_beside_a_wedge_of_an_extension_keeps_its_configuration():
    given = WAYS["CXSMILES"](Chem.MolFromSmiles(ILOPROST))
    assert "wU:" in given
    assert canonical_smiles(Chem.MolFromSmiles(given)) != ILOPROST  # which RDKit reads
    read = molecule_graph(given, canonical=True)
    assert canonical_smiles(read.read) == ILOPROST
    assert read.mol.GetNumConformers() == 1


@pytest.mark.parametrize("metal", ["[Pt@SP1]", "[Pt@SP2]", "[Pt]"])
def test_the_geometry_at_a_metal_is_set_aside_with_a_note(metal):
    """No training compound has its code, and RDKit finds a geometry in any coordinates."""
    drawn = f"N{metal}(N)(Cl)Cl"
    graph, plain = (molecule_graph(each, canonical=True) for each in (drawn, "N[Pt](N)(Cl)Cl"))
    assert torch.equal(graph.x, plain.x)
    noted = graph.as_given.changes if graph.get("as_given") else ()
    assert noted == (("geometry at a metal not seen by the model",) if "@" in metal else ())


BESIDE_DEFINED = "C(/C=C/c1ccccc1)=NCCCCCCN=C/C=C/c1ccccc1"  # two imines without configuration
IVERMECTIN = (  # an analogue
    "CO[C@H]1C[C@H](OC2/C(C)=C/C[C@@H]3C[C@@H](C[C@]4(C=C[C@H](C)[C@@H](C5CCCCC5)O4)O3)OC(=O)"
    "[C@@H]3C=C(C)[C@@H](O)[C@H]4OC/C(=C\\C=C\\[C@@H]2C)[C@]43O)O[C@@H](C)C1O"
)


BENT_IN_ITS_RING = f"{IVERMECTIN}[C@H]1C[C@H](OC)[C@@H](O)[C@H](C)O1"


@pytest.mark.parametrize("compound", [BESIDE_DEFINED, BENT_IN_ITS_RING, NITROFURANTOIN])
@pytest.mark.parametrize("hydrogens", [False, True])
def test_a_record_of_an_sd_file_is_read_as_the_same_compound(compound, hydrogens):
    mol = Chem.MolFromSmiles(compound)
    record = sdf_record(Chem.AddHs(mol) if hydrogens else mol, None, properties={})
    assert canonical_smiles(Chem.MolFromMolBlock(record)) == canonical_smiles(compound)


def test_counts_with_chirality_do_not_depend_on_the_mode_of_perception():
    mol = canonical_form(Chem.MolFromSmiles(IVERMECTIN)).mol
    expected = structure_occurrences(mol)
    with coming_perception():
        for ours, own in zip(structure_occurrences(mol), expected, strict=True):
            np.testing.assert_array_equal(ours, own)


RINGS = ["C1=C\\CC/C=C/CC/C=C\\CC/1", "O=C1CC/C=C\\CCCCCCCCCC1"]


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize(
    "way", ["deuterium and tritium", "explicit hydrogens", "SMILES with hydrogens"]
)
def test_a_double_bond_of_a_ring_keeps_its_configuration_without_hydrogens(way, ring):
    """RDKit removes hydrogens beside directions of bonds that it does not turn around."""
    given = WAYS[way](Chem.MolFromSmiles(ring))
    graph = molecule_graph(given, canonical=True)
    assert canonical_smiles(given) == canonical_smiles(graph.read) == ring
    features = (graph.edge_attr[:, 1].bincount(), graph.x.sum(0))
    of_ring = molecule_graph(ring, canonical=True)
    expected = (of_ring.edge_attr[:, 1].bincount(), of_ring.x.sum(0))
    assert all(map(torch.equal, features, expected))


@pytest.fixture(scope="module")
def compounds() -> list[Chem.Mol]:
    held_out = held_out_for_test("lipophilicity")[::60] + held_out_for_test("tox21")[::60]
    texts = [text for text in held_out if "." not in text]
    return [*map(Chem.MolFromSmiles, [NITROFURANTOIN, *ADRIFT, *texts])]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_handing_over_a_compound_has_one_answer(way, compounds):
    model = gx.load("lipophilicity")
    given = [WAYS[way](Chem.Mol(mol)) for mol in compounds]
    expected = predictions(model, [Chem.MolToSmiles(mol) for mol in compounds])
    used = [k for k, each in enumerate(given) if each is not None]
    assert len(used) >= len(compounds) / 4
    result = predictions(model, [given[k] for k in used])
    np.testing.assert_allclose(result, expected[used], atol=1e-4)


@pytest.fixture(scope="module")
def handed_over(compounds) -> list[tuple[int, str | Chem.Mol]]:
    """Return four compounds in every way, each with its number."""
    mols = compounds[:4]
    given = [(k, way(Chem.Mol(mol))) for way in WAYS.values() for k, mol in enumerate(mols)]
    texts = [Chem.MolToSmiles(mol) for mol in mols]
    own = [pair for _, in_file in in_own_files(texts) for pair in in_file.items()]
    assert len(WAYS) + len(own) // len(mols) >= 22
    return [pair for pair in [*enumerate(texts), *given, *own] if pair[1] is not None]


@pytest.mark.parametrize("name", [*MODELS, "hlm-clearance", "solubility-ph68"])
def test_every_bundled_model_has_one_answer_for_all_ways(name, handed_over):
    """The benchmark `ways.py` does this with 500 compounds."""
    answers = predictions(gx.load(name), [given for _, given in handed_over])
    expected = answers[[k for k, _ in handed_over]]  # the plain SMILES come first
    np.testing.assert_allclose(answers, expected, atol=1e-4)


def test_the_mode_of_perception_changes_nothing_and_stays_as_it_was(compounds):
    model, texts = gx.load("lipophilicity"), [Chem.MolToSmiles(mol) for mol in compounds]
    expected = predictions(model, texts)
    with coming_perception():
        assert np.array_equal(predictions(model, texts), expected)
        assert not Chem.GetUseLegacyStereoPerception()


@pytest.mark.parametrize("way", ["atom numbers", "carbon-13", "deuterium and tritium", "V2000"])
def test_a_training_compound_stays_one(way):
    model = gx.load("lipophilicity")
    compound = Chem.MolFromSmiles(gx.training_set_of(model).smiles[5])
    (prediction,) = gx.predict(model, WAYS[way](compound)).values()
    assert prediction.nearness.word == "training compound"


def test_the_share_of_a_heavy_hydrogen_is_on_its_atom():
    model = gx.load("lipophilicity")
    heavy, plain = (gx.explain(model, s) for s in ("[2H]C([3H])(C)O", "CCO"))
    assert heavy.smiles == "CCO"
    assert heavy.note == "isotope not seen by the model"
    symbols = [atom.GetSymbol() for atom in Chem.MolFromSmiles("[2H]C([3H])(C)O").GetAtoms()]
    given = heavy.by_atom_given(heavy.relevance)
    assert [s for s, value in zip(symbols, given, strict=True) if value == 0] == ["H", "H"]
    assert given[given != 0] == pytest.approx(plain.relevance[[1, 0, 2]], abs=1e-5)


def test_a_molecule_with_hydrogens_keeps_its_structure_in_space():
    mol = WAYS["structure in space"](Chem.MolFromSmiles("C[C@H](N)C(=O)O"))
    e = gx.explain(gx.load("lipophilicity"), mol)
    place = mol.GetConformer().GetPositions()[list(e.as_given.atoms)]
    np.testing.assert_allclose(e.mol.GetConformer().GetPositions(), place)
    assert e.note == "hydrogens made implicit"


def test_an_isotope_makes_no_stereocentre():
    for text in ("C[C@H]([2H])O", "[13CH3][C@H](C)O", "[2H]/C=C/C", "C[C@@]([3H])([2H])F"):
        graph = molecule_graph(text, canonical=True)
        assert not graph.x[:, 1].any()
        assert not graph.edge_attr[:, 1].any()


def test_the_form_of_a_form_is_itself(compounds):
    for mol in compounds:
        form = canonical_form(mol)
        smiles = Chem.MolToSmiles(form.mol)
        assert Chem.MolToSmiles(canonical_form(form.mol).mol) == smiles == canonical_smiles(smiles)


RACEMATES = {
    "of one centre": (
        *("C[C@H](N)c1ccccc1 |&1:1|", "C[C@@H](N)c1ccccc1 |&1:1|", "C[C@H](N)c1ccccc1 |o1:1|"),
        *("C[C@@H](N)c1ccccc1.Cl |&1:1|", "CC(N)c1ccccc1"),
    ),
    "of two centres": (
        "C[C@@H](N)[C@H](O)c1ccccc1 |&1:1,3|",
        "C[C@H](N)[C@@H](O)c1ccccc1 |&1:1,3|",
        "O[C@@H]([C@@H](C)N)c1ccccc1 |&1:1,2|",
    ),
}


def from_mol_block(text: str) -> Chem.Mol:
    return Chem.MolFromMolBlock(Chem.MolToV3KMolBlock(Chem.MolFromSmiles(text)))


@pytest.mark.parametrize("written", RACEMATES.values(), ids=RACEMATES)
@pytest.mark.parametrize("read", [str, Chem.MolFromSmiles, from_mol_block])
def test_a_racemate_is_one_compound_whichever_image_is_drawn(written, read):
    graphs = [molecule_graph(read(s), canonical=True, standardise="parent") for s in written]
    assert len({canonical_smiles(graph.read) for graph in graphs}) == 1


def test_a_racemate_is_no_enantiomer_in_any_file(tmp_path):
    drawn = RACEMATES["of one centre"][3]
    e = gx.explain(gx.load("lipophilicity"), drawn)
    of_enantiomer = gx.explain(gx.load("lipophilicity"), "C[C@H](N)c1ccccc1").prediction
    assert e.note == (
        "salt removed: hydrochloride; the mean over its 2 isomers; they get"
        f" {of_enantiomer.value:.2f} (log D at pH 7.4)"
    )
    assert e.as_given.smiles == drawn
    assert e.smiles == "C[C@H](N)c1ccccc1 |&1:1|"
    for suffix, read in ((".sdf", Chem.MolFromMolBlock), (".smi", Chem.MolFromSmiles)):
        mol = read(e.save(tmp_path / f"e{suffix}").read_text().split("\t")[0])
        assert canonical_smiles(mol) == "CC(N)c1ccccc1"
        (group,) = mol.GetStereoGroups()
        assert group.GetGroupType() == Chem.StereoGroupType.STEREO_AND
    enantiomer = Chem.MolFromSmiles("C[C@H](N)c1ccccc1")
    pictures = [structure(mol, (300, 300))[0] for mol in (e.molecule, enantiomer)]
    assert pictures[0].count("<path") - pictures[1].count("<path") == len("and1")
    wedges = [[kind for *_, kind, _ in drawing(mol)["b"]] for mol in (e.molecule, enantiomer)]
    assert "u" in wedges[0]
    assert not {"u"} & {*wedges[1]}


GROUPED = (
    *("C[C@@H](N)c1ccccc1.Cl |&1:1|", "Cl.O[C@@H](C)c1ccccc1 |o1:2|"),
    *("C[C@@H](N)[C@H](O)c1ccccc1.Cl |&1:1,3|", "[2H]O[C@H](C)c1ccccc1 |&1:2|"),
    *("C[C@H](N)[C@@H](O)[C@H](F)c1ccccc1.Cl |&1:1,3,o2:5|", "C[C@H](O)[C@@H](N)CC |&1:1,o1:3|"),
)


def test_a_group_of_absolute_centres_alone_is_not_written(tmp_path):
    """Other programs write every drawn centre into one."""
    mol = Chem.MolFromSmiles("C[C@H](N)C(=O)O |a:1|")
    (tmp_path / "absolute.sdf").write_text(f"{Chem.MolToV3KMolBlock(mol)}$$$$\n")
    (record,) = read_structures(tmp_path / "absolute.sdf")
    assert record.smiles == smiles_with_groups(mol) == "C[C@H](N)C(=O)O"


@pytest.mark.parametrize("drawn", GROUPED)
@pytest.mark.parametrize("read", [str, Chem.MolFromSmiles, from_mol_block])
def test_a_parent_keeps_groups_and_leads_back_to_the_atoms_given(drawn, read):
    """The atoms of its SMILES, and of its molecule, are those of the features."""
    given = read(drawn)
    graph = molecule_graph(given, canonical=True, standardise="parent")
    whole = Chem.MolFromSmiles(drawn) if isinstance(given, str) else given
    mol = Chem.MolFromSmiles(graph.smiles) if isinstance(given, str) else graph.mol
    numbers = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
    assert numbers == [whole.GetAtomWithIdx(k).GetAtomicNum() for k in graph.as_given.atoms]
    assert numbers == (graph.x[:, 0] + 1).tolist()
    kinds = sorted(group.GetGroupType().name for group in whole.GetStereoGroups())
    assert sorted(group.GetGroupType().name for group in mol.GetStereoGroups()) == kinds
    assert canonical_smiles(mol) == canonical_smiles(graph.read)


def test_isomers_of_groups_are_those_of_rdkit():
    options = EnumerateStereoisomers.StereoEnumerationOptions(onlyStereoGroups=True)
    for drawn in GROUPED:
        mol = Chem.MolFromSmiles(drawn)
        expected = EnumerateStereoisomers.EnumerateStereoisomers(mol, options)
        isomers = isomers_in_order(mol, mol)[0]
        names = [{Chem.CanonSmiles(Chem.MolToSmiles(m)) for m in of} for of in (isomers, expected)]
        assert names[0] == names[1]


def test_a_note_says_what_the_isomers_of_groups_get():
    model = gx.load("blood-brain-barrier")
    prediction, _ = gx.predict(model, "C[C@H](N)[C@H](O)c1ccc(Cl)cc1 |&1:1,o1:3|").values()
    four = [f"C[C@{a}H](N)[C@{b}H](O)c1ccc(Cl)cc1" for a in ("", "@") for b in ("", "@")]
    shares = predictions(model, four)[:, 0]
    said = f"its 4 isomers; they get {min(shares):.0%} to {max(shares):.0%} penetrant"
    assert f"{said} (blood-brain barrier)" in prediction.note
    many = "C[C@H](F)[C@@H](O)[C@H](Cl)[C@H](N)[C@@H](C)Br |&1:1,&2:3,&3:5,&4:7,&5:9|"
    prediction, _ = gx.predict(model, many).values()
    assert "the mean over a sample of 16 of its 32 isomers; they get" in prediction.note


def test_changes_of_a_racemate_are_racemates():
    """They are compared with it by the mean over their isomers, as it is."""
    model = gx.load("lipophilicity")
    result = gx.counterfactuals(model, GROUPED[0], "> 1", n=2)
    assert canonical_smiles(result.explanation.mol or result.explanation.smiles) == "CC(N)c1ccccc1"
    racemates = [each for each in result.ranked if "|" in each.smiles]
    assert racemates
    for each in racemates:
        of_isomer = gx.predict(model, each.smiles.split(" |")[0])["log D at pH 7.4"]
        assert each.prediction.value == pytest.approx(of_isomer.value, abs=1e-5)  # of both images
    assert all("@" not in each.smiles or each in racemates for each in result.ranked)


def test_a_racemate_of_an_sd_file_comes_back_as_one(tmp_path):
    path = tmp_path / "racemate.sdf"
    path.write_text(
        Chem.MolToV3KMolBlock(Chem.MolFromSmiles(RACEMATES["of one centre"][0])) + "$$$$\n"
    )
    (record,) = open_table(path).records()
    assert record.cells["smiles"] == "C[C@H](N)c1ccccc1 |&1:1|"


@pytest.mark.parametrize("suffix", [".smi", ".sdf", ".csv", ".parquet", ".json"])
@pytest.mark.parametrize("drawn", [NITROFURANTOIN, *ADRIFT, *GROUPED[1:4]])
def test_a_file_of_an_explanation_is_read_again_to_the_same_answer(tmp_path, suffix, drawn):
    model = gx.load("blood-brain-barrier")
    expected = predictions(model, [drawn])
    explanation = gx.explain(model, drawn)
    explanations = gx.explain(model, [drawn])
    path = explanations.save(tmp_path / f"e{suffix}")
    if suffix == ".json":
        read = json.loads(explanation.save(path).read_text())
        assert np.abs(predictions(model, [read["smiles"]]) - expected).max() < 1e-4
        return
    assert np.abs(predictions(model, path) - expected).max() < 1e-4
    if suffix in (".csv", ".parquet"):
        assert len(predictions(model, path)) == len(explanation.relevance)  # a row per atom
        out = tmp_path / f"table{suffix}"
        (tmp_path / "t.csv").write_text(f'smiles\n"{drawn}"\n')
        predict_table(model, tmp_path / "t.csv", out)
        assert np.abs(predictions(model, out) - expected).max() < 1e-4


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_every_table_of_a_result_has_its_molecules(tmp_path, suffix):
    """By columns whose cells are read again to the same answer."""
    model, drawn = gx.load("blood-brain-barrier"), GROUPED[1]
    other = drawn.replace("Cl", "F", 1) if "Cl" in drawn else "C[C@H](N)c1ccccc1 |&1:1|"
    explanation = gx.explain(model, drawn)
    tables = {
        ("smiles",): gx.pairs(model, drawn),
        ("molecule",): gx.fragments(explanation),
        ("smiles_a", "smiles_b"): gx.contrast(model, drawn, other),
    }
    for columns, result in tables.items():
        path = result.save(tmp_path / f"{columns[0]}{suffix}")
        for column, molecule in zip(columns, (drawn, other), strict=False):
            texts = [record.cells[column] for record in open_table(path, column).records()]
            assert len(set(texts)) == 1
            expected = predictions(model, [molecule])
            np.testing.assert_allclose(predictions(model, texts[:1]), expected, atol=1e-4)


def test_every_file_of_a_run_is_read_again_to_the_same_answers(tmp_path):
    """Notebooks read them, too: as frames, or by `gx.explain` and `gx.predict`."""
    model, given = gx.load("blood-brain-barrier"), [NITROFURANTOIN, *ADRIFT, *GROUPED]
    rows = "".join(f'"{drawn}"\n' for drawn in given)
    (tmp_path / "t.csv").write_text(f"smiles\n{rows}")
    method = get_explainer("gradient_input")
    explain_table(model, tmp_path / "t.csv", tmp_path, method, formats=("sdf", "parquet"))
    expected = predictions(model, given)
    for suffix in ("csv", "sdf", "parquet"):
        again = predictions(model, tmp_path / f"explanations.{suffix}")
        np.testing.assert_allclose(again, expected, atol=1e-4)
    frame = pandas.read_parquet(tmp_path / "explanations.parquet")
    np.testing.assert_allclose(predictions(model, frame), expected, atol=1e-4)
    parents = frame.parent.where(frame.parent != "", frame.smiles).tolist()
    np.testing.assert_allclose(predictions(model, parents), expected, atol=1e-4)


def test_rows_of_models_that_are_fed_by_their_own_code_say_so(tmp_path):
    """Wrapped models and converted Graphormers get what is drawn, as their authors' code does."""
    published = Graphormer(replace(gx.load("bace").config, ties="floyd", standardise="as drawn"))
    wrapped = gx.wrap(OneAtom(), kind="regression", featurize=as_floats, inputs="molecules")
    for model in (published.eval(), wrapped):
        (prediction, *_) = gx.predict(model, "CCO").values()
        assert prediction.note == gx.explain(model, "CCO").note == "read as drawn"
        assert not prediction.parent
    assert not next(iter(gx.predict("bace", "CCO").values())).note


def test_a_table_says_beforehand_how_many_rows_take_several_passes(tmp_path, capsys):
    """A value that mirror images share takes two for a chiral molecule."""
    (tmp_path / "t.csv").write_text(f'smiles\nCCO\n{ADRIFT[3]}\n"{GROUPED[2]}"\n')
    several = {"lipophilicity": "2 rows have stereocentres and take several passes"}
    several["bace"] = "1 row has stereocentres and takes several passes"
    for name, sentence in several.items():
        show_table(tmp_path / "t.csv", "smiles", [gx.load(name)])
        assert sentence in capsys.readouterr().err


def test_rows_say_what_isomers_and_likely_tautomers_get_if_that_is_wanted():
    model = gx.load("blood-brain-barrier")
    drawn = ["CC(N)C(O)c1ccccc1", "Cn1cnc2c1c(=O)n(C)c(=O)n2C", *GROUPED[:1]]
    rows = PredictBatch(model, forms=True)(drawn, [1, 2, 3])
    four = [f"C[C@{a}H](N)[C@{b}H](O)c1ccccc1" for a in ("", "@") for b in ("", "@")]
    shares = predictions(model, four)[:, 0]
    said = f"its 4 isomers get {min(shares):.0%} to {max(shares):.0%} penetrant"
    assert rows[0]["note"].startswith(f"{said} (blood-brain barrier), ")
    assert not rows[1]["note"]
    assert rows[2]["note"].count("its 2 isomers") == 1
    plain = PredictBatch(model)(drawn, [1, 2, 3])
    names = [name for name in plain[0] if name != "note"]
    assert [[row[n] for n in names] for row in plain] == [[r[n] for n in names] for r in rows]
    diazepinone = "N#Cc1ccsc1C1=Nc2ccc(Cl)cc2NC(=O)C1"
    (row,) = PredictBatch(model, forms=True)([diazepinone], [1])
    assert "a likely tautomer gets another class" in row["note"]
    other = row["note"].rpartition(": ")[2]
    (of_other, _), (before, _) = (gx.predict(model, s).values() for s in (other, diazepinone))
    assert of_other.label != before.label


@pytest.mark.parametrize("drawn", ["O=c1cccc[nH]1", "Oc1ccccn1"])
def test_a_row_notes_a_tautomer_of_another_value_within_the_interval(drawn, capsys):
    """2-Pyridone and 2-hydroxypyridine differ by more than half of the model's errors do."""
    model, task = gx.load("lipophilicity"), "log D at pH 7.4"
    (row,) = PredictBatch(model, forms=True)([drawn], [1])
    other = row["note"].rpartition(": ")[2]
    before, of_other = (gx.predict(model, each)[task] for each in (drawn, other))
    low, high = before.interval
    assert low < of_other.value < high
    assert row["note"] == f"a likely tautomer gets another value, {of_other} ({task}): {other}"
    cli.app(["predict", drawn, "--model", "lipophilicity"], standalone_mode=False)
    assert row["note"] in capsys.readouterr().out
    (plain,) = PredictBatch(model, forms=True)(["CCO"], [1])
    assert not plain["note"]
