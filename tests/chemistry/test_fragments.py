"""Fragments partition a molecule, have names, and share its relevance."""

import re
from importlib.util import find_spec
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import BRICS
from rdkit.Chem.Scaffolds import MurckoScaffold
from scipy import stats

import graphxai as gx
from graphxai.chemistry import names as fragment_names
from graphxai.chemistry.fragments import listed_names
from graphxai.chemistry.names import described, name_in_words
from graphxai.chemistry.ring_system_names import ring_names, ring_table
from graphxai.chemistry.schemes import named_groups
from graphxai.cli import main as cli
from graphxai.datasets.samples import MOLECULES
from graphxai.models.graphormer import save_checkpoint
from graphxai.visualization import Scale
from toy import random_graphormer

SCHEMES = ("brics", "scaffold", "rings", "groups")
OWN = ["c", "[#6]~[#7]", "C"]  # patterns that overlap
ODD = [
    "C",
    "[Na+].[Cl-]",
    "[H][H]",
    "*CC",
    "C1CC12CC2",  # spiro
    "C1CC2CCC1CC2",  # bridged
    "[CH-]1C=CC=C1.[CH-]1C=CC=C1.[Fe+2]",
    "O=C1C=CC(=O)c2ccccc21",
    "N->[Pt](<-N)(Cl)Cl",
]


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=2)


@pytest.fixture(scope="module")
def explained(model, smiles):
    with_hydrogens = Chem.AddHs(Chem.MolFromSmiles("CC(=O)Nc1ccccc1"))
    published = random_graphormer(num_layers=2, ties="floyd")
    with pytest.warns(UserWarning, match="hydrogens are explicit atoms"):
        has_hydrogens = gx.explain(published, with_hydrogens)
    return [*gx.explain(model, [*MOLECULES.values(), *smiles, *ODD]), has_hydrogens]


@pytest.fixture(scope="module")
def of(model):
    """Return the fragments of a SMILES."""
    return lambda smiles, scheme: gx.fragments(gx.explain(model, smiles), scheme)


@pytest.mark.parametrize("scheme", [*SCHEMES, OWN], ids=[*SCHEMES, "SMARTS"])
def test_every_atom_is_in_one_fragment_and_the_sums_close(explained, scheme):
    for explanation in explained:
        parts = gx.fragments(explanation, scheme)
        atoms = sorted(index for part in parts for index in part.atoms)
        assert atoms == list(range(len(explanation)))
        assert parts.total == pytest.approx(explanation.ledger.nodes, abs=1e-6)
        for part in parts:
            expected = explanation.relevance[list(part.atoms)].astype(float).sum()
            assert part.relevance == pytest.approx(expected, abs=1e-6)


def test_brics_fragments_are_those_of_rdkit(explained):
    for explanation in explained:
        broken = BRICS.BreakBRICSBonds(explanation.molecule)
        for atom in broken.GetAtoms():
            if not atom.GetAtomicNum():
                atom.SetIsotope(0)
        expected = sorted(
            Chem.CanonSmiles(Chem.MolToSmiles(part, isomericSmiles=False))
            for part in Chem.GetMolFrags(broken, asMols=True, sanitizeFrags=False)
        )
        pieces = sorted(part.smiles for part in gx.fragments(explanation, "brics"))
        assert pieces == expected


def test_the_scaffold_is_what_is_left_when_ends_are_cut_again_and_again(explained):
    for explanation in explained:
        mol = explanation.molecule
        graph = nx.Graph([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()])
        while ends := [node for node, degree in graph.degree if degree < 2]:
            graph.remove_nodes_from(ends)
        core = set(graph)
        doubly = {
            end
            for bond in mol.GetBonds()
            if bond.GetBondType() == Chem.BondType.DOUBLE
            for end, other in (
                (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()),
                (bond.GetEndAtomIdx(), bond.GetBeginAtomIdx()),
            )
            if other in core
        }
        expected = core | doubly  # what is double bonded to rings and linkers belongs to them
        parts = gx.fragments(explanation, "scaffold")
        scaffold = {index for part in parts if part.name == "scaffold" for index in part.atoms}
        assert scaffold == expected
        whole = MurckoScaffold.GetScaffoldForMol(mol)
        assert len(scaffold) == whole.GetNumAtoms()


def test_ring_systems_are_what_bridges_leave(explained):
    """A bond is in a ring if the graph stays connected without it."""
    for explanation in explained:
        mol = explanation.molecule
        graph = nx.Graph([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()])
        graph.remove_edges_from(list(nx.bridges(graph)))
        expected = sorted(
            tuple(sorted(part)) for part in nx.connected_components(graph) if len(part) > 1
        )
        parts = gx.fragments(explanation, "rings")
        assert sorted(part.atoms for part in parts if part.name != "rest") == expected


@pytest.mark.parametrize(
    ("smiles", "groups"),
    [
        ("CC(=O)Oc1ccccc1C(=O)O", ["carboxylic acid", "ester"]),
        ("CC(=O)Nc1ccc(O)cc1", ["amide", "phenol"]),
        ("CCOC(=O)N(C)C", ["carbamate"]),
        ("NC(=O)Nc1ccccc1", ["urea"]),
        ("NC(N)=NCC", ["guanidine"]),
        ("Cc1ccc(cc1)S(=O)(=O)NC", ["sulfonamide"]),
        ("CS(=O)(=O)C", ["sulfone"]),
        ("CS(=O)C", ["sulfoxide"]),
        ("C[N+](=O)[O-]", ["nitro"]),
        ("CCN(CC)CCOC", ["ether", "tertiary amine"]),
        ("CNCC", ["secondary amine"]),
        ("NCCc1ccccc1N", ["aromatic amine", "primary amine"]),
        ("FC(F)(F)c1ccccc1C#N", ["nitrile", "trifluoromethyl"]),
        ("O=Cc1ccccc1C(C)=O", ["aldehyde", "ketone"]),
        ("CC(=O)[O-].[Na+]", ["carboxylate"]),
        ("C=CCC#CCO", ["alcohol", "alkene", "alkyne"]),
        ("O=C1NC(=O)c2ccccc21", ["imide"]),
        ("Clc1ccc(I)cc1Br", ["bromine", "chlorine", "iodine"]),
        ("OB(O)c1ccccc1", ["boronic acid or ester"]),
        ("CC(C)CC", []),
    ],
)
def test_functional_groups_are_named_as_chemists_do(of, smiles, groups):
    assert sorted(part.name for part in of(smiles, "groups") if part.name != "rest") == groups


def test_every_pattern_can_be_read_and_no_name_hides_another():
    for name, smarts in named_groups():
        assert Chem.MolFromSmarts(smarts) is not None, name
    assert len(ring_names()) == len(ring_table())
    assert len(fragment_names.group_names()) == sum(
        bool(row["name"]) for row in fragment_names.substituent_table()
    )


@pytest.mark.parametrize(
    ("smiles", "name"),
    [
        ("*c1ccccc1", "benzene ring"),
        ("*c1ccc(F)cn1", "pyridine ring with fluoro"),
        ("*c1cc(F)cc(F)c1C", "benzene ring with 2 fluoro, methyl"),
        ("*n1cccc1", "pyrrole ring"),
        ("*c1ccc[nH]1", "pyrrole ring"),
        ("*N1CCN(C)CC1", "piperazine ring with methyl"),
        ("*C1CS(=O)(=O)CC(*)C1O", "thiane dioxide ring with hydroxyl"),
        ("*N1c2ccccc2Sc2ccc(Cl)cc21", "phenothiazine ring with chloro"),
        ("*c1cc(=O)oc2ccccc12", "chromene ring with oxo"),
        ("*OC", "methoxy"),
        ("*C(C)(C)C", "tert-butyl"),
        ("*c1ccc2c(c1)CC1(CC1)C2", None),
        ("*c1ccc(-c2ccccc2)cc1", None),
        ("*CCCCCCCC", None),
    ],
)
def test_fragments_have_names_in_words_where_these_are_known(smiles, name):
    assert name_in_words(Chem.CanonSmiles(smiles)) == name


@pytest.mark.parametrize(
    ("smiles", "words"),
    [
        ("*OC", "methoxy"),
        ("*CC(*)C(O)C*", "CH2CHCH(OH)CH2"),
        ("*c1ccc(-c2ccccn2)cc1", "C11H8N with benzene ring and pyridine ring"),
        ("*CC(*)C(=O)[O-]", "CH2CH(C(=O)O-)"),
        ("*C1CCN(C(=O)CCl)S1(=O)=O", "isothiazolidine dioxide ring with C(=O)CH2Cl"),
        ("*=Cc1cccc(*)c1", "benzene ring with CH="),
        ("*c1ccc(OCCN(C)C)cc1C", "benzene ring with OCH2CH2N(CH3)2, methyl"),
        ("*c1ccc(CCCCCCCCCCCC)cc1", "C18H29 with benzene ring"),
        ("*c1ccc2c(c1)CC1(CC1)C2", "spiro[cyclopropane-indane] ring"),
        ("not a SMILES", "not a SMILES"),
    ],
)
def test_fragments_without_a_name_are_described_by_formula_and_rings(smiles, words):
    assert described(smiles) == words


def test_no_fragment_has_a_bare_smiles_for_a_name(of):
    for smiles in MOLECULES.values():
        assert all(part.name != part.smiles for part in of(smiles, "brics"))


def test_fragments_of_one_name_are_told_apart_by_their_first_atom():
    """The number is that of the atom in the molecule that was given, here a salt."""
    parts = gx.fragments(gx.explain("bace", "Cl.c1ccccc1CC(N)Cc1ccccc1"), "rings")
    assert sorted(listed_names(parts)) == [
        "benzene ring (atom 1)",
        "benzene ring (atom 11)",
        "rest",
    ]
    assert "benzene ring (atom 11)" in repr(parts)
    assert "benzene ring (atom 11)" in parts.svg()


def test_the_relevance_per_atom_is_that_of_the_fragment_over_its_atoms(of):
    parts = of("CCCCCCc1ccccc1", "brics")
    frame = parts.to_frame()
    size = frame.atoms.str.split().str.len()
    np.testing.assert_allclose(frame.per_atom * size, frame.relevance, rtol=1e-12)
    assert [part.per_atom for part in parts] == frame.per_atom.tolist()


def test_patterns_go_by_the_order_given_and_share_no_atom(of):
    parts = of("CC(=O)Nc1ccccc1", {"amide": "C(=O)N", "anilide": "c[NX3]C=O", "ring": "c1ccccc1"})
    assert sorted(part.name for part in parts) == ["amide", "rest", "ring"]
    parts = of("CC(=O)Nc1ccccc1", {"anilide": "c[NX3]C=O", "amide": "C(=O)N"})
    assert {part.name: part.atoms for part in parts}["anilide"] == (1, 2, 3, 4)
    assert {part.name for part in of("CCO", ["[OH]"])} == {"[OH]", "rest"}


def test_the_numbering_of_the_atoms_does_not_matter(model):
    generator = np.random.default_rng(0)
    for smiles in (*list(MOLECULES.values())[:4], "NC(=O)CC(=O)NC(=O)N", "C1CC12CC2"):
        mol = Chem.MolFromSmiles(smiles)
        order = generator.permutation(mol.GetNumAtoms()).tolist()
        first, second = gx.explain(model, [mol, Chem.RenumberAtoms(mol, order)])
        for scheme in (*SCHEMES, OWN):
            before, after = (by_structure(gx.fragments(e, scheme)) for e in (first, second))
            assert before.keys() == after.keys()
            tolerance = 1e-4 * np.abs(first.relevance).max()
            for key, sums in before.items():
                np.testing.assert_allclose(after[key], sums, atol=tolerance)


def by_structure(parts):
    sums_by_structure = {}
    for part in parts:
        sums_by_structure.setdefault((part.name, part.smiles, len(part.atoms)), []).append(
            part.relevance
        )
    return {key: sorted(sums) for key, sums in sums_by_structure.items()}


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("murcko", "unknown scheme 'murcko'; choose one of 'brics', 'scaffold', 'rings', 'groups'"),
        ([], "list of SMARTS is empty"),
        (["C(("], r"RDKit cannot read the SMARTS 'C\(\('"),
        ([""], "RDKit cannot read the SMARTS"),
    ],
)
def test_schemes_that_mean_nothing_are_refused(of, scheme, message):
    with pytest.raises(ValueError, match=message):
        of("CCO", scheme)


def test_a_graph_without_a_molecule_has_no_fragments(model):
    from graphxai.datasets.molecules import molecule_to_data

    data = molecule_to_data("CCO")
    del data.smiles
    with pytest.raises(ValueError, match="'brics' divides molecules: a graph is divided by"):
        gx.fragments(gx.explain(model, data), "brics")
    assert gx.fragments(gx.explain(model, data)).scheme == "communities"


def test_pictures_show_each_fragment_in_the_colour_of_its_sum(explained):
    parts = gx.fragments(explained[0], "brics")
    svg = parts.svg()
    root = ElementTree.fromstring(svg)
    scale = Scale.fit([part.relevance for part in parts])
    for part in parts:
        assert svg.count(f'fill="{scale.hex(part.relevance)[0]}"') >= 2  # the area and the list
    areas = [group for group in root.iter() if group.get("class") == "fragments"]
    assert len(list(areas[0])) == len(parts)
    for part in parts:
        drawn = ElementTree.fromstring(part.svg(scale=scale))
        assert scale.hex(part.relevance)[0] in ElementTree.tostring(drawn, encoding="unicode")
    for explanation in explained:
        for scheme in ("rings", OWN):
            fragments = gx.fragments(explanation, scheme)
            ElementTree.fromstring(fragments.svg())
            ElementTree.fromstring(fragments[0].svg())


def test_arcs_show_the_interactions_of_fragments_on_the_scale_of_their_sums(explained):
    parts = gx.fragments(explained[0], "brics")
    largest = 2 * max(abs(part.relevance) for part in parts)
    interactions = {(0, 1): -largest, (2, 1): largest / 4}
    root = ElementTree.fromstring(parts.svg(interactions=interactions))
    group = next(group for group in root.iter() if group.get("class") == "interactions")
    arcs = [path for path in group if len(path)]  # those with a title, without the outlines
    scale = Scale.fit([largest])
    assert [arc.get("stroke") for arc in arcs] == [
        scale.hex(largest / 4)[0],
        scale.hex(-largest)[0],
    ]
    assert [arc[0].text.partition(":")[0] for arc in arcs] == ["3 and 2", "1 and 2"]
    assert float(arcs[0].get("stroke-width")) == pytest.approx(
        float(arcs[1].get("stroke-width")) / 4, rel=0.1
    )
    ends = [
        tuple(map(float, re.split("[MQ ]", arc.get("d"))[k:][:2])) for arc in arcs for k in (1, 5)
    ]
    circles = {
        (float(c.get("cx")), float(c.get("cy"))) for c in root.iter() if c.tag.endswith("circle")
    }
    assert set(ends) <= circles  # they end at the numbers
    for pair in ((0, 0), (0, len(parts)), (-1, 0)):
        with pytest.raises(ValueError, match="is no pair of the"):
            parts.svg(interactions={pair: 1.0})
    with pytest.raises(TypeError, match=r"values of pairs, such as \{\(0, 1\): 0.5\}"):
        parts.svg(interactions=np.zeros((len(parts), len(parts))))


def test_no_module_hides_a_function_of_its_name():
    """Once imported, a module `graphxai.fragments` would hide the function."""
    for name in gx.__all__:
        assert find_spec(f"graphxai.{name}") is None, name


def test_names_of_patterns_cannot_break_out_of_pictures_and_pages(of):
    name = '<script>alert(1)</script>&"'
    parts = of("CCO", {name: "O"})
    assert "<script" not in parts.svg()
    assert "<script" not in parts._repr_svg_()
    ElementTree.fromstring(parts.svg())


def test_fragments_are_a_sequence_from_most_for_to_most_against(explained, tmp_path):
    parts = gx.fragments(explained[0])
    relevance = [part.relevance for part in parts]
    assert relevance == sorted(relevance, reverse=True)
    assert parts[0] in parts
    assert len(parts[1:]) == len(parts) - 1
    frame = pd.read_csv(parts.save(tmp_path / "parts.csv"))
    np.testing.assert_allclose(frame.relevance, relevance)
    for suffix in ("svg", "png", "pdf"):
        assert parts.save(tmp_path / f"parts.{suffix}").stat().st_size > 1000


def test_the_list_beside_the_molecule_has_one_number_of_decimals(explained):
    parts = gx.fragments(explained[0])
    root = ElementTree.fromstring(parts.svg())
    listed = next(group for group in root.iter() if group.get("class") == "list")
    caption = [e.get("aria-label") for e in listed.iter() if e.get("aria-label")]
    values = [text.replace("−", "-") for text in caption if text[0] in "+−0"]
    assert len({len(text.partition(".")[2]) for text in values}) == 1
    rounded = 0.5 * 10.0 ** -len(values[0].partition(".")[2])
    sums = [part.relevance for part in parts]
    np.testing.assert_allclose([float(text) for text in values], sums, atol=rounded)


def test_a_table_has_the_mean_over_molecules_with_its_interval(model):
    explained = gx.explain(
        model, ["Oc1ccccc1", "Cc1ccccc1CCc1ccccc1", "c1ccccc1", "c1ccncc1", "CCO"]
    )
    table = gx.fragment_table([*explained, None], "rings").set_index("name")
    means = []
    for explanation in explained[:3]:
        rings = Chem.GetSymmSSSR(explanation.molecule)
        means.append(np.mean([explanation.relevance[list(r)].sum(dtype=float) for r in rings]))
    row = table.loc["benzene ring"]
    assert (row["molecules"], row["count"]) == (3, 4)
    assert row["mean"] == pytest.approx(np.mean(means), abs=1e-6)
    assert row["sd"] == pytest.approx(np.std(means, ddof=1), abs=1e-6)
    interval = stats.t.interval(0.95, df=2, loc=np.mean(means), scale=stats.sem(means))
    assert (row["low"], row["high"]) == pytest.approx(interval, rel=1e-4)
    each = row["atoms"], row["per_atom"], row["per_atom_low"], row["per_atom_high"]
    assert each == pytest.approx((6, *(value / 6 for value in (row["mean"], *interval))), rel=1e-4)
    strongest = explained[int(np.argmax(np.abs(means)))].smiles
    assert row["examples"].split()[0] == strongest
    assert np.isnan(table.loc["pyridine ring", "low"])  # one molecule has no spread
    assert list(table["mean"]) == sorted(table["mean"], reverse=True)
    assert "pyridine ring" not in set(gx.fragment_table(explained, "rings", minimum=2).name)


def test_a_compound_that_comes_twice_counts_once_in_a_table(model):
    once = gx.explain(model, ["Oc1ccccc1", "Cc1ccccc1"])
    again = gx.explain(model, ["c1ccc(O)cc1", "c1ccccc1O"])
    expected = gx.fragment_table(once, "rings")
    pd.testing.assert_frame_equal(gx.fragment_table([*once, *again], "rings"), expected)
    assert gx.fragment_table([*once, *again]).attrs["molecules"] == 2


def test_the_rest_has_no_structure_of_its_own(model):
    table = gx.fragment_table(gx.explain(model, ["CCO", "CCCN"]), {"hydroxyl": "[OH]"})
    assert dict(zip(table.name, table.smiles, strict=True)) == {"hydroxyl": "*O", "rest": ""}


def test_a_table_distinguishes_structures_with_the_same_name(model):
    explained = gx.explain(model, ["COc1ccccc1C(=O)NC", "COc1ccc(cc1)C(=O)NC"])
    brics = gx.fragment_table(explained, "brics")
    names = {"benzene ring *c1ccccc1*", "benzene ring *c1ccc(*)cc1"}  # ortho and para
    assert names <= set(brics.name)
    assert brics.name.is_unique
    rings = gx.fragment_table(explained, "rings")
    assert list(rings.name).count("benzene ring") == 1


def test_a_table_has_one_method_and_one_target(model):
    first, second = gx.explain(model, "CCO"), gx.explain(model, "CCO", target="pIC50")
    with pytest.raises(ValueError, match="one method and target"):
        gx.fragment_table([first, second])
    assert gx.fragment_table([]).empty


def test_the_command_writes_what_python_gives(model, tmp_path, monkeypatch, capsys):
    source = tmp_path / "molecules.csv"
    source.write_text("smiles\nCC(=O)Nc1ccccc1\nC1CC\nCC(=O)Nc1ccncc1\nCCOc1ccccc1\n")
    folder = save_checkpoint(model, tmp_path / "toy")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["graphxai", "fragments", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr()

    out = tmp_path / "new" / "fragments.csv"
    code, printed = run(source, "--model", folder, "--out", out, "--minimum", 1)
    assert code == 0
    assert "left out: row 2" in printed.err
    explained = gx.explain(model, ["CC(=O)Nc1ccccc1", "CC(=O)Nc1ccncc1", "CCOc1ccccc1"])
    expected = gx.fragment_table(explained, "brics")
    table = pd.read_csv(out)
    assert set(table.name) == set(expected.name)
    np.testing.assert_allclose(
        table.set_index("smiles")["mean"].sort_index(),
        expected.set_index("smiles")["mean"].sort_index(),
        atol=1e-5,
    )
    with_patterns = (
        "--smarts",
        "anilide:c[NX3]C=O",
        "--limit",
        3,
        "--out",
        tmp_path / "own.parquet",
    )
    assert run(source, "--model", folder, *with_patterns)[0] == 0
    assert set(pd.read_parquet(tmp_path / "own.parquet").name) == {"anilide", "rest"}
    code, printed = run(source, "--scheme", "murcko")
    assert code != 0
    assert "--scheme is one of auto, brics" in printed.err
    code, printed = run(
        source, "--model", folder, "--core", "c1ccccc1", "--out", out, "--minimum", 1
    )
    assert code == 0
    assert "divided into a core and its R-groups (3 molecules)" in printed.err
    names = {"core", "rest", "R1: acetamido", "R1: ethoxy"}  # one has no benzene ring
    assert set(pd.read_csv(out).name) == names
    code, printed = run(source, "--core", "c1ccccc1", "--smarts", "amide:C(=O)N")
    assert code != 0
    assert "give one" in printed.err


@pytest.mark.parametrize("molecule", ["CCO", Chem.MolFromSmiles("CCO")])
def test_a_molecule_must_be_explained_before_it_is_divided(molecule):
    with pytest.raises(TypeError, match=r"graphxai\.fragments\(graphxai\.explain\("):
        gx.fragments(molecule)
