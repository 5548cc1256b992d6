"""Molecules become the graphs that OGB defines, and bad input is recognised."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem

from graphxai.datasets import molecule_reading
from graphxai.datasets.features import (
    ATOM_CARDINALITIES,
    ATOM_FEATURE_NAMES,
    BOND_CARDINALITIES,
    BOND_FEATURE_NAMES,
    atom_features,
    bond_features,
)
from graphxai.datasets.molecules import (
    MoleculeError,
    load_bace,
    molecule_to_data,
    molecules_to_data,
    read_table,
)
from graphxai.datasets.tables.table import open_table
from graphxai.runtime.download import DownloadError, data_root, fetch

SAMPLE = [
    "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",  # verubecestat
    "C/C=C/[C@@H](Cl)Br",
    "F/C=C\\F",
    "[Na+].[O-]C(=O)c1ccccc1",
    "[13CH4]",
    "[CH3]",
    "[O][O]",
    "C",
    "*c1ccccc1",
    "C[S@](=O)CC",
    "FS(F)(F)(F)(F)F",
    "FP(F)(F)(F)F",
    "[Fe+2].[Cl-].[Cl-]",
    "[NH3]->[Cu]",
    "C[Zn]C",
    "[U]",
    "C#N",
    "C=C=C",
    "O=[N+]([O-])c1ccccc1",
    "[H][H]",
    "[2H]C([2H])([2H])O",
    "[Cl-].[NH4+].[H+]",
    "C1=CC=CC=CC=C1",
    "[Pt@SP1](Cl)(Cl)([NH3])[NH3]",
    "[Te-6]",
]


def assert_equals_ogb(smiles: str) -> None:
    from ogb.utils.mol import smiles2graph

    graph, mol = smiles2graph(smiles), Chem.MolFromSmiles(smiles)
    ends, bonds = bond_features(mol)
    np.testing.assert_array_equal(graph["node_feat"], atom_features(mol), err_msg=smiles)
    np.testing.assert_array_equal(graph["edge_index"], ends, err_msg=smiles)
    np.testing.assert_array_equal(graph["edge_feat"], bonds, err_msg=smiles)


@pytest.mark.parametrize("smiles", SAMPLE)
def test_features_equal_those_of_ogb(smiles: str) -> None:
    assert_equals_ogb(smiles)


def test_features_equal_those_of_ogb_on_bace(data_folder: Path) -> None:
    """Every fourth molecule has nearly all features that occur in the data set."""
    graphs = load_bace(data_folder, download=False)
    assert len(graphs) == 1513
    whole, chosen = (
        sum(len(codes.unique()) for codes in torch.cat([data.x for data in part]).T)
        for part in (graphs, graphs[::4])
    )
    assert chosen >= whole - 1
    for data in graphs[::4]:
        assert_equals_ogb(data.smiles)


def test_bace_has_the_published_number_of_actives_and_classes_follow_pic50(
    data_folder: Path,
) -> None:
    y = torch.cat([data.y for data in load_bace(data_folder, download=False)])
    assert int(y[:, 0].sum()) == 691
    disagree = (y[:, 1] >= 7) != (y[:, 0] == 1)
    assert int(disagree.sum()) == 17  # crystal-structure ligands that the data set counts as active


def test_values_stay_below_their_cardinalities() -> None:
    assert len(ATOM_FEATURE_NAMES) == len(ATOM_CARDINALITIES) == 9
    assert len(BOND_FEATURE_NAMES) == len(BOND_CARDINALITIES) == 3
    for smiles in SAMPLE:
        data = molecule_to_data(smiles)
        assert (data.x < torch.tensor(ATOM_CARDINALITIES)).all()
        assert (data.edge_attr < torch.tensor(BOND_CARDINALITIES)).all()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 50])
@pytest.mark.parametrize("canonical", [True, False])
def test_many_molecules_become_the_graphs_of_each(count: int, canonical: bool) -> None:
    molecules = [*SAMPLE[:20], "C1CC", Chem.MolFromSmiles("OC[C@H](F)N"), "", *SAMPLE, "CCπ"][
        :count
    ]
    graphs = list(molecules_to_data(molecules, canonical=canonical))
    assert len(graphs) == len(molecules)
    for molecule, graph in zip(molecules, graphs, strict=True):
        if isinstance(graph, MoleculeError):
            with pytest.raises(MoleculeError, match=f"^{re.escape(str(graph))}$"):
                molecule_to_data(molecule, canonical=canonical)
            continue
        expected = molecule_to_data(molecule, canonical=canonical)
        assert graph.keys() == expected.keys()
        for key in ("x", "edge_index", "edge_attr"):
            assert torch.equal(graph[key], expected[key])
        assert (graph.smiles, graph.vocabulary) == (expected.smiles, "ogb")


def test_a_source_of_many_molecules_is_read_as_needed() -> None:
    source = iter(["CCO"] * 1000)
    assert next(molecules_to_data(source)).num_nodes == 3
    assert 968 <= len(list(source)) <= 999


def test_a_single_atom_has_empty_edges_of_the_right_shape() -> None:
    data = molecule_to_data("C")
    assert data.x.shape == (1, 9)
    assert data.edge_index.shape == (2, 0)
    assert data.edge_attr.shape == (0, 3)


def test_an_rdkit_molecule_keeps_the_order_of_its_atoms() -> None:
    mol = Chem.RenumberAtoms(Chem.MolFromSmiles("CCO"), [2, 0, 1])
    data = molecule_to_data(mol)
    assert data.x[:, 0].tolist() == [7, 5, 5]
    assert [atom.GetSymbol() for atom in data.mol.GetAtoms()] == ["O", "C", "C"]
    assert data.mol is not mol  # what the user does to it later changes nothing
    assert data.smiles == "CCO"


def test_an_unsanitised_rdkit_molecule_is_completed() -> None:
    raw = Chem.MolFromSmiles("C1=CC=CC=C1O", sanitize=False)
    assert torch.equal(molecule_to_data(raw).x, molecule_to_data("C1=CC=CC=C1O").x)
    assert raw.NeedsUpdatePropertyCache()


@pytest.mark.parametrize(
    ("smiles", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("C1CC", "ring 1 is opened but never closed"),
        ("CC(C", r"1 '\)' missing"),
        ("CC)C", r"missing"),
        ("c1cccc1", "kekulize"),
        ("C(C)(C)(C)(C)C", "valence"),
        ("caffeine", "is not an element|not SMILES"),
        ("InChI=1S/C2H6O/c1-2-3/h3H,2H2,1H3", "is an InChI, not a SMILES: convert it"),
        ("InChI=1/CH4/h1H4 methane", "is an InChI, not a SMILES: convert it"),
        ("LFQSCWFLJHTTHZ-UHFFFAOYSA-N", "is an InChIKey, not a SMILES: .* look up the SMILES"),
        ("CCπ", "'π' at position 3"),
        ("C" * 501, "501 atoms"),
    ],
)
def test_a_bad_smiles_is_named_with_its_reason(
    smiles: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MoleculeError, match=words):
        molecule_to_data(smiles)
    assert capfd.readouterr() == ("", "")


def test_a_molecule_without_atoms_is_refused() -> None:
    with pytest.raises(MoleculeError, match="no atoms"):
        molecule_to_data(Chem.Mol())


def test_one_bad_row_in_a_thousand_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    rows = [f"{'C' * (1 + i % 20)}O,{i}" for i in range(1000)]
    rows[499] = "C1CC,7"
    path = tmp_path / "table.csv"
    path.write_bytes(("\ufeffsmiles,value\r\n" + "\r\n".join(rows) + "\r\n").encode())
    graphs, rejected = read_table(path, "smiles", ["value"])
    assert len(graphs) == 999
    assert [r.row for r in rejected] == [500]
    assert rejected[0].smiles == "C1CC"
    assert "ring" in str(rejected[0])
    assert (graphs[0].row, graphs[-1].row) == (1, 1000)
    assert graphs[-1].y.tolist() == [[999.0]]


def test_missing_labels_are_nan_and_words_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("id;smiles;a;b\n1;CCO;;2.5\n2;CC;NA;\n3;CCC;active;1\n4;CCCC;1;\n5;CCN;1\n")
    graphs, rejected = read_table(path, "smiles", ["a", "b"])
    assert torch.cat([g.y for g in graphs]).isnan().tolist() == [
        [True, False],
        [True, True],
        [False, True],
    ]
    assert "'active', which is not a number" in rejected[0].reason
    assert "it has 3 cells, the header has 4" in rejected[1].reason


def test_a_missing_column_is_named_with_the_existing_ones(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("SMILES,pIC50\nCCO,5\n")
    assert len(read_table(path, "smiles")[0]) == 1  # whatever the case
    with pytest.raises(ValueError, match=r"no column 'mol'; its columns: 'SMILES', 'pIC50'"):
        read_table(path, "mol")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_table(tmp_path / "none.csv")


def test_bace_without_a_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="GRAPHXAI_DATA"):
        load_bace(tmp_path, download=False)


def test_a_download_is_checked_and_leaves_no_half_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    url, target = source.as_uri(), tmp_path / "sub" / "file"
    with pytest.raises(DownloadError, match="md5"):
        fetch(url, target, md5="0" * 32)
    assert list(target.parent.iterdir()) == []
    assert fetch(url, target, md5="900150983cd24fb0d6963f7d28e17f72").read_bytes() == b"abc"
    with pytest.raises(DownloadError, match="put the file at"):
        fetch((tmp_path / "none").as_uri(), tmp_path / "other")
    with pytest.raises(DownloadError, match="not the official file"):
        fetch(url, target, sha256="0" * 64)


def test_the_data_folder_is_the_argument_then_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAPHXAI_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("x") == Path("x")
    monkeypatch.delenv("GRAPHXAI_DATA")
    assert data_root().name == "graphxai"


VERUBECESTAT = "C[C@]1(CS(=O)(=O)N(C(=N1)N)C)c1cc(NC(=O)c2ccc(F)cn2)ccc1F"
RING_STEREO = "C[C@H]1CC[C@@H](O)CC1"  # no centre of its own kind: cis and trans


@pytest.mark.parametrize(
    "smiles", [VERUBECESTAT, RING_STEREO, "N[C@@H](C)C(=O)O", "F/C=C/[C@H](O)C"]
)
def test_canonical_chirality_is_the_same_however_a_molecule_is_written(smiles: str) -> None:
    mol = Chem.MolFromSmiles(smiles)
    expected = None
    for seed in range(20):
        text = Chem.MolToRandomSmilesVect(mol, 1, randomSeed=seed + 1)[0]
        data = molecule_to_data(text, canonical=True)
        order = list(Chem.CanonicalRankAtoms(Chem.MolFromSmiles(text)))
        rows = sorted(zip(order, data.x.tolist(), strict=True))
        expected = expected or rows
        assert rows == expected


def test_enantiomers_have_opposite_canonical_chirality() -> None:
    left, right = (molecule_to_data(s, canonical=True).x for s in ("N[C@@H](C)CO", "N[C@H](C)CO"))
    assert left[1, 1] != right[1, 1]
    assert torch.equal(left[[0, 2, 3, 4]], right[[0, 2, 3, 4]])


def test_molecules_from_rdkit_in_any_state_equal_their_smiles() -> None:
    for smiles in ("F/C=C/F", "C[C@H](C)O", "Oc1ccccc1", VERUBECESTAT):
        expected = molecule_to_data(smiles)
        raw = Chem.MolFromSmiles(smiles, sanitize=False)
        kekulised = Chem.MolFromSmiles(smiles)
        Chem.Kekulize(kekulised, clearAromaticFlags=True)
        for mol in (raw, kekulised):
            graph = molecule_to_data(mol)
            assert torch.equal(graph.x, expected.x)
            assert torch.equal(graph.edge_attr, expected.edge_attr)


def test_explicit_hydrogens_give_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"use Chem\.RemoveHs") as caught:
        molecule_to_data(Chem.AddHs(Chem.MolFromSmiles("CCO")))
    assert caught[0].filename == __file__  # the line that called, not one of the package


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CC O", "text after the SMILES 'CC'"),
        ("CC\nO", "text after the SMILES 'CC'"),
        ("CCO>>CC=O", "is a reaction"),
    ],
)
def test_more_than_a_smiles_is_refused(text: str, message: str) -> None:
    with pytest.raises(MoleculeError, match=message):
        molecule_to_data(text)


def test_an_unclosed_quote_is_named_and_not_swallowed(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('smiles,note\nCCO,fine\nCC,"oops\nCCN,x\nCCC,y\n')
    with pytest.raises(ValueError, match="a quote opened in line 3 is never closed"):
        read_table(path)
    path.write_text('smiles,note\nCCO,"two\nlines"\nCC,"said ""so"""\n')
    assert len(read_table(path)[0]) == 2


def test_long_cells_padded_headers_and_utf_16_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("id, smiles\n1,CCO\n2," + "C" * 200_000 + "\n3,CC\n")
    graphs, rejected = read_table(path)
    assert [int(g.row) for g in graphs] == [1, 3]
    assert "200,000 characters" in rejected[0].reason
    path.write_text("smiles;name\r\nCCO;é\r\n", encoding="utf-16")
    assert len(read_table(path)[0]) == 1
    path.write_text("smiles,smiles\nC,CC\n")
    with pytest.raises(ValueError, match="more than one column"):
        read_table(path)


def test_an_error_of_any_type_from_rdkit_refuses_one_molecule_only() -> None:
    mol = Chem.RWMol(Chem.MolFromSmiles("CCO"))
    mol.AddAtom(Chem.Atom(6))
    mol.AddBond(2, 3, Chem.BondType.THREECENTER)
    graphs = list(molecules_to_data(["CCO", mol.GetMol(), "CCN"]))
    assert [isinstance(graph, MoleculeError) for graph in graphs] == [False, True, False]
    assert "RDKit cannot read this molecule" in str(graphs[1])


@pytest.mark.parametrize("text", ["C" * 10_000_000, "C.[H]" * 2_000_000, "=" * 10_000_000])
def test_length_is_checked_before_parsing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(molecule_reading.Chem, "MolFromSmiles", None)
    with pytest.raises(MoleculeError, match=r"^'.{77}\.\.\.' has 10,000,000 characters"):
        molecule_to_data(text)


@pytest.mark.parametrize("extension", ["", " |$A$|", ".[H][H]"])
def test_size_is_checked_before_rings_are_found(
    extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sanitised = []
    monkeypatch.setattr(molecule_reading.Chem, "SanitizeMol", sanitised.append)
    with pytest.raises(MoleculeError, match="has 9600 atoms, more than the limit of 500"):
        molecule_to_data("c1ccccc1" * 1600 + extension)
    assert not sanitised


def test_a_control_character_in_an_extension_is_refused() -> None:
    with pytest.raises(MoleculeError, match="has a control character: remove it"):
        molecule_to_data("CCO |$\x1b[31mA;;$|")


def test_latin_1_is_read_as_such(tmp_path: Path) -> None:
    text = "naïve;smiles\nCafé – 5 µM;CCO\n苯;CC\n"
    lines = text.splitlines(keepends=True)
    path = tmp_path / "mixed.csv"  # as when files of two programs are joined
    path.write_bytes("".join(lines[:2]).encode("cp1252") + lines[2].encode())
    rows = [row.cells["naïve"] for row in open_table(path).records(("smiles", "naïve"))]
    assert rows == ["Café – 5 µM", "苯"]
