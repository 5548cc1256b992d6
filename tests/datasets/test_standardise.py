"""Salts, charges and tautomers of one molecule become the same parent, in training and after."""

import re

import pytest
from rdkit import Chem
from rdkit.Chem.rdMolDescriptors import CalcMolFormula

import graphxai as gx
from graphxai.datasets import tautomer_form
from graphxai.datasets.as_given import MixtureError
from graphxai.datasets.molecules import molecule_graph, molecules_to_data
from graphxai.datasets.standardise import may_change, parent_of
from graphxai.datasets.tautomer_form import one_proton_form
from graphxai.learning.cleaning import clean_table
from graphxai.runtime.reading import packaged_rows
from graphxai.tables.batches import ExplainBatch, PredictBatch

BESYLATE = (
    "C[C@]1(CS(=O)(=O)N(C(=N1)N)C)c1cc(NC(=O)c2ccc(F)cn2)ccc1F.OS(=O)(=O)c1ccccc1"  # verubecestat
)
PARENTS = [
    ("CC(=O)[O-].[Na+]", "CC(=O)O", ("salt removed: sodium", "charges neutralised")),
    ("[Na]OC(C)=O", "CC(=O)O", ("salt removed: sodium",)),
    ("C[NH3+].[Cl-]", "CN", ("salt removed: chloride", "charges neutralised")),
    ("CCCCN.Cl.O.O", "CCCCN", ("salt removed: hydrochloride", "solvent removed: water x 2")),
    ("[H+].[Cl-].CCCCN", "CCCCN", ("salt removed: chloride",)),
    ("[NH3+]CC(=O)[O-]", "NCC(=O)O", ("charges neutralised",)),
    ("C[S+]([O-])CCC", "CCCS(C)=O", ("charges neutralised",)),
    ("CN.CN.OS(=O)(=O)O", "CN", ("salt removed: sulfate", "one of 2 copies kept")),
    ("CCCCCCN.OC(=O)/C=C/C(=O)O", "CCCCCCN", ("salt removed: fumarate",)),
    ("CCCCCCN.OC(=O)/C=C\\C(=O)O", "CCCCCCN", ("salt removed: maleate",)),
    # Betaines stay neutral as a whole, and the strongest acid is the one that is ionised.
    (
        "C[N+](C)(C)CC(=O)O.[Cl-]",
        "C[N+](C)(C)CC(=O)[O-]",
        ("salt removed: chloride", "charges neutralised"),
    ),
    ("[NH3+]C(CC[S+](C)C)C(=O)[O-]", "NC(CC[S+](C)C)C(=O)[O-]", ("charges neutralised",)),
    (
        "C[N+](C)(C)CC(C(=O)[O-])CS(=O)(=O)[O-].[Na+]",
        "C[N+](C)(C)CC(C(=O)O)CS(=O)(=O)[O-]",
        ("salt removed: sodium", "charges neutralised"),
    ),
    (
        "C[N+](C)(C)CC(C(=O)[O-])CS(=O)(=O)O",
        "C[N+](C)(C)CC(C(=O)O)CS(=O)(=O)[O-]",
        ("proton moved",),
    ),
    ("C[N+](C)(C)CCc1ccc([O-])cc1", "C[N+](C)(C)CCc1ccc(O)cc1", ("charges neutralised",)),
    # metformin pamoate: the counter-ion is larger than the drug
    (
        "CN(C)C(=N)NC(=N)N.OC(=O)c1cc2ccccc2c(Cc2c(O)c(C(=O)O)cc3ccccc23)c1O",
        "CN(C)C(=N)N=C(N)N",
        ("salt removed: pamoate", "proton moved between nitrogens"),
    ),
]
THEMSELVES = (
    "C[N+](=O)[O-]",
    "c1cc[n+]([O-])cc1",
    "CN=[N+]=[N-]",
    "C[N+](C)(C)C",
    "C[N+](C)(C)CC(=O)[O-]",
    "C[n+]1cccc(C(=O)[O-])c1",
    "CCOP(=O)([O-])OCC[N+](C)(C)C",
    "[Na+].[Cl-]",
    "Cl[Pt](Cl)(N)N",
    "[CH-]1C=CC=C1.[CH-]1C=CC=C1.[Fe+2]",
    "CS(C)=O",
    "CCOC(=O)[N-]c1c[n+](N2CCOCC2)no1",  # molsidomine: no proton can take its charges away
)


@pytest.mark.parametrize(("drawn", "parent", "changes"), PARENTS)
def test_the_parent_of_a_salt_and_what_was_done(drawn, parent, changes):
    mol = Chem.MolFromSmiles(drawn)
    result = parent_of(mol, "parent")
    assert Chem.MolToSmiles(result.mol) == Chem.CanonSmiles(parent)
    assert result.changes == changes
    assert may_change(drawn)
    assert parent_of(result.mol, "parent") is None


@pytest.mark.parametrize("drawn", THEMSELVES)
def test_what_is_its_own_parent(drawn):
    assert parent_of(Chem.MolFromSmiles(drawn), "parent") is None


@pytest.mark.parametrize("given", [BESYLATE, Chem.MolFromSmiles(BESYLATE)], ids=["text", "mol"])
def test_the_atoms_of_a_parent_lead_back_to_the_molecule_given(given):
    graph = molecule_graph(given, standardise="parent")
    drawn = Chem.MolFromSmiles(BESYLATE) if isinstance(given, str) else given
    parent = graph.get("mol") or Chem.MolFromSmiles(graph.smiles)
    atoms = graph.as_given.atoms
    assert graph.as_given.size == drawn.GetNumAtoms() == 38
    assert parent.GetNumAtoms() == len(atoms) == 28
    for atom in parent.GetAtoms():
        before = drawn.GetAtomWithIdx(atoms[atom.GetIdx()])
        assert before.GetSymbol() == atom.GetSymbol()
        neighbours = {atoms[other.GetIdx()] for other in atom.GetNeighbors()}
        assert neighbours == {other.GetIdx() for other in before.GetNeighbors()}


@pytest.mark.parametrize(
    ("drawn", "way"),
    [
        (BESYLATE, "parent"),
        (r"C[NH2+]C/C=C\c1ccc2[nH]ccc2c1.[Cl-]", "parent"),
        ("C[N+](C)(C)C[C@H](O)CC(=O)[O-]", "parent"),
        ("[O-]c1ccccn1", "parent"),
        (r"C/C(=N\NC(=O)Nc1ccccc1)c1ncccc1", "tautomers"),  # which loses its configuration
    ],
)
def test_a_parent_has_the_graph_of_its_smiles(drawn, way):
    """With and without a stereocentre, a double bond with configuration and a fused ring."""
    parent = molecule_graph(drawn, standardise=way)
    read = molecule_graph(parent.smiles, standardise=way)
    assert parent.x.tolist() == read.x.tolist()
    edges = [
        sorted(zip(*graph.edge_index.tolist(), graph.edge_attr.tolist(), strict=True))
        for graph in (parent, read)
    ]
    assert edges[0] == edges[1]


def test_a_mixture_of_two_compounds_is_refused_by_name():
    with pytest.raises(MixtureError, match=r"a mixture of .*CN1CCC.* and .*CCCc1ccccc1"):
        molecule_graph("CN1CCC(c2ccccc2)CC1.CCCc1ccccc1C(C)(C)C", standardise="parent")


def test_two_borates_are_a_mixture_whatever_stands_beside_them():
    borates = "F[B-](F)(F)c1ccccc1.F[B-](F)(F)c1ccccc1C"
    for further in ("", ".O=[Si]=O"):
        with pytest.raises(MixtureError, match=r"a mixture of .*B-.* and .*B-"):
            molecule_graph(borates + further, standardise="parent")


PROPRANOLOL = "CC(C)[NH2+]CC(O)COc1cccc2ccccc12"
BARF = "FC(F)(F)c1cc([B-](c2cc(C(F)(F)F)cc(C(F)(F)F)c2)(c2cc(C(F)(F)F)cc(C(F)(F)F)c2)"
BARF += "c2cc(C(F)(F)F)cc(C(F)(F)F)c2)cc(C(F)(F)F)c1"
UNLISTED = "Cc1ccc([B-](c2ccccc2)(c2ccccc2)c2ccccc2)cc1"
IONS = {
    "hexafluorophosphate": "F[P-](F)(F)(F)(F)F",
    "hexafluoroarsenate": "F[As-](F)(F)(F)(F)F",
    "hexafluoroantimonate": "F[Sb-](F)(F)(F)(F)F",
    "tetrafluoroborate": "F[B-](F)(F)F",
    "tetraphenylborate": "c1ccc([B-](c2ccccc2)(c2ccccc2)c2ccccc2)cc1",
    "tetrakis[3,5-bis(trifluoromethyl)phenyl]borate": BARF,
    "bistriflimide": "O=S(=O)([N-]S(=O)(=O)C(F)(F)F)C(F)(F)F",
}
REMARKS = [
    (f"{PROPRANOLOL}.{UNLISTED}", "counter-ion that is not listed removed: Cc1ccc"),
    ("C[N+](C)(C)CCc1ccccc1", "the cation is kept, as no proton can remove its charge"),
    ("CC[B-](F)(F)F.[K+]", "potassium; the anion is kept, as no proton can remove its charge"),
    ("[2H]OCc1ccccc1", "isotope not seen by the model"),
    ("[3H]OCc1ccccc1", "isotope not seen by the model"),
    ("[2H]OC(=O)c1ccccc1.[NH4+]", "isotope not seen by the model; salt removed: ammonium"),
]


@pytest.mark.parametrize(("drawn", "remark"), REMARKS)
@pytest.mark.parametrize("read", [str, Chem.MolFromSmiles], ids=["text", "mol"])
def test_what_is_not_read_as_its_parent_is_said_wherever_it_is_predicted(drawn, remark, read):
    model, given = gx.load("lipophilicity"), read(drawn)
    (prediction,) = gx.predict(model, given).values()
    for said in (prediction, gx.explain(model, given)):
        assert re.search(remark, said.note)
    predicted = PredictBatch(model)([drawn], [1])
    explained = ExplainBatch(model)([drawn], [1])
    for (row,) in (predicted, explained):
        assert re.search(remark, row["note"])
    changed = re.search("removed|isotope", predicted[0]["note"])
    assert (predicted[0]["parent"] == "") == (changed is None)


@pytest.mark.parametrize("drawn", ["OCc1ccccc1", "O[13CH2]c1ccccc1", "[H]OCc1ccccc1", "C[35Cl]"])
def test_other_isotopes_and_hydrogens_need_no_remark(drawn):
    assert molecule_graph(drawn, standardise="parent").get("as_given") is None


def test_graphs_that_were_not_changed_have_the_same_attributes():
    """So that PyG can put them into one batch."""
    plain, heavy = molecules_to_data(["OCc1ccccc1", "[2H]OCc1ccccc1"])
    assert set(plain.keys()) == set(heavy.keys())


@pytest.mark.parametrize("ion", IONS.values(), ids=IONS)
def test_an_anion_without_room_for_a_proton_is_a_counter_ion(ion):
    """Whichever is larger, the answer is that for the base."""
    result = parent_of(Chem.MolFromSmiles(f"{PROPRANOLOL}.{ion}"), "parent")
    assert Chem.MolToSmiles(result.mol) == "CC(C)NCC(O)COc1cccc2ccccc12"
    name = next(name for name, smiles in IONS.items() if smiles == ion)
    assert result.changes == (f"salt removed: {name}", "charges neutralised")


@pytest.mark.parametrize("kind", ["salt", "solvent"])
def test_a_counter_ion_or_solvent_is_listed_under_one_name(kind):
    rows = packaged_rows("graphxai.datasets", "counter_ions.csv")
    listed = [row["smiles"] for row in rows if row["kind"] == kind]
    assert len(listed) > 20
    assert len({Chem.CanonSmiles(smiles) for smiles in listed}) == len(listed)


def test_a_training_table_names_what_was_read_as_it_is_drawn(tmp_path):
    drawn = [*("C" * k for k in range(1, 23)), "C[N+](C)(C)C", "[2H]OC"]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["smiles,y", *(f"{s},{k}" for k, s in enumerate(drawn))]))
    findings = {finding.check: finding for finding in clean_table(path, "smiles", ["y"]).findings}
    assert [row.row for row in findings["read as drawn"].rows] == [23]
    assert [row.row for row in findings["isotopes"].rows] == [24]


def test_worker_processes_give_the_same_parents():
    drawn = [smiles for smiles, _, _ in PARENTS] * 3
    here, there = (list(molecules_to_data(drawn, standardise="parent", workers=n)) for n in (1, 2))
    for graph, other in zip(here, there, strict=True):
        assert (graph.smiles, graph.as_given) == (other.smiles, other.as_given)
        assert bool((graph.x == other.x).all())


def test_tautomers_are_one_molecule_if_that_is_wanted():
    pyridone, pyridinol = "O=c1cccc[nH]1", "Oc1ccccn1"
    same = {molecule_graph(s, standardise="tautomers").smiles for s in (pyridone, pyridinol)}
    assert len(same) == 1
    assert molecule_graph(pyridinol, standardise="parent").smiles == pyridinol


def test_tautomers_that_were_not_all_tried_are_named():
    large = Chem.MolFromSmiles("C" * 100 + "c1ccccn1")
    assert parent_of(large, "tautomers").changes == ("tautomer as drawn, for more than 100 atoms",)
    assert parent_of(large, "parent") is None
    peptide = Chem.MolFromSmiles("NCC(=O)" * 14 + "NCC(=O)O")
    assert parent_of(peptide, "tautomers").changes == ("not all tautomers tried",)


def test_salts_of_one_molecule_are_merged_and_reported(tmp_path):
    path = tmp_path / "salts.csv"
    rows = [f"{'C' * n}C(=O)O,{n}" for n in range(1, 21)] + ["CC(=O)[O-].[Na+],3"]
    rows += ["CCCCCc1ccccc1.CCCCCCC1CCCC1,5"]
    path.write_text("smiles,y\n" + "\n".join(rows) + "\n")
    assert len(clean_table(path, "smiles", ["y"], standardise="as drawn").graphs) == 22
    table = clean_table(path, "smiles", ["y"])
    assert len(table.graphs) == 20
    assert table.y[0, 0] == 2  # the median of 1 and 3
    finding_of = {finding.check: finding for finding in table.findings}
    assert [row.row for row in finding_of["standardised"].rows] == [21]
    assert [row.row for row in finding_of["mixture of compounds"].rows] == [22]


ONE_FORM = {
    "theophylline": ("Cn1c(=O)c2[nH]cnc2n(C)c1=O", "Cn1c(=O)c2nc[nH]c2n(C)c1=O"),
    "phenylguanidine": ("NC(=N)Nc1ccccc1", "NC(N)=Nc1ccccc1", "NC(=[NH2+])Nc1ccccc1"),
    "4-methylimidazole": ("Cc1cnc[nH]1", "Cc1c[nH]cn1", "Cc1c[nH]c[nH+]1", "Cc1c[nH+]c[nH]1"),
    "2-methyltetrazole": ("Cc1nnn[nH]1", "Cc1nn[nH]n1"),
    "indazole": ("c1ccc2[nH]ncc2c1", "c1ccc2n[nH]cc2c1"),
    "N-methylacetamidine": ("CC(=N)NC", r"C/C(N)=N\C", "CC(N)=[NH+]C"),
    "metformin": ("CN(C)C(=N)NC(=N)N", "CN(C)C(N)=NC(=N)N", "CN(C)C(=[NH2+])N=C(N)N"),
    "N-ethylacetamidine": ("CC(=[NH])[NH]CC", "CC([NH2])=[N]CC", "CC(N)=NCC"),
    "an iminohydantoin": ("CN1C(=N)NC(C)(C)C1=O", "CN1C(=O)C(C)(C)N=C1N"),
}


@pytest.mark.parametrize("drawn", ONE_FORM.values(), ids=ONE_FORM)
def test_protons_that_move_between_nitrogens_make_one_compound(drawn):
    forms = {molecule_graph(s, canonical=True, standardise="parent").smiles for s in drawn}
    assert len(set(map(Chem.CanonSmiles, forms))) == 1
    (form,) = set(map(Chem.CanonSmiles, forms))
    formulas = {CalcMolFormula(Chem.MolFromSmiles(s)) for s in (form, drawn[0])}
    assert len(formulas) == 1


CATIONS = {  # bases, each with ways of drawing its cation
    "C1CCN2CCCN=C2C1": ("C1CC[NH+]2CCCN=C2C1", "C1CCN2CCC[NH+]=C2C1", "C1CC[N+]2=C(C1)NCCC2"),
    "CN=C(N)N(C)C": ("CNC(N)=[N+](C)C", "CNC(=[NH2+])N(C)C", "C[NH+]=C(N)N(C)C"),
    "Nc1ccccn1": ("Nc1cccc[nH+]1", "[NH2+]=c1cccc[nH]1", "[NH3+]c1ccccn1"),
    "CN(C)c1ccncc1": ("CN(C)c1cc[nH+]cc1", "C[N+](C)=c1cc[nH]cc1"),
    "Nc1nc2ccccc2[nH]1": ("Nc1[nH]c2ccccc2[nH+]1", "[NH2+]=c1[nH]c2ccccc2[nH]1"),
}


@pytest.mark.parametrize("base", CATIONS)
def test_a_delocalised_cation_is_its_base_wherever_its_charge_is_drawn(base):
    drawn = [*CATIONS[base], base]
    graphs = [molecule_graph(s, canonical=True, standardise="parent") for s in drawn]
    assert {Chem.CanonSmiles(graph.smiles) for graph in graphs} == {base}


def test_a_charge_that_a_neighbour_balances_stays_where_it_is():
    for drawn in ("CC(N)=[N+](C)[O-]", "C[N+](C)=C(C)N(C)C"):
        graph = molecule_graph(drawn, canonical=True, standardise="parent")
        assert Chem.CanonSmiles(graph.smiles) == Chem.CanonSmiles(drawn)


@pytest.mark.parametrize("drawn", ["Oc1ccccn1", "Nc1ccccn1", "CC(=O)N", "CC(=O)CC(C)=O", "CN=NC"])
def test_other_tautomers_stay_as_drawn(drawn):
    graph = molecule_graph(drawn, canonical=True, standardise="parent")
    assert graph.smiles == drawn
    assert graph.get("as_given") is None


def test_a_form_of_the_indazole_keeps_the_sextet_of_its_benzo_ring():
    assert Chem.MolToSmiles(one_proton_form(Chem.MolFromSmiles("c1ccc2n[nH]cc2c1"))) == (
        Chem.CanonSmiles("c1ccc2[nH]ncc2c1")
    )


def test_a_proton_is_not_moved_back(monkeypatch):
    """A form with its proton back in place is known without that RDKit sanitises it."""
    sanitised = []
    count = tautomer_form._sanitised
    monkeypatch.setattr(tautomer_form, "_sanitised", lambda mol: sanitised.append(1) or count(mol))
    assert one_proton_form(Chem.MolFromSmiles("Cc1c[nH]cn1")).GetNumAtoms() == 6
    assert len(sanitised) == 1


def test_theophylline_has_one_answer_however_its_proton_is_drawn():
    model = gx.load("blood-brain-barrier")
    first, second = (gx.explain(model, s) for s in ONE_FORM["theophylline"])
    assert second.note == "proton moved between nitrogens"
    assert first.prediction.probabilities == second.prediction.probabilities
    assert first.nearness.word == second.nearness.word == "training compound"
    given = second.by_atom_given(second.relevance)
    assert given.sum() == pytest.approx(first.relevance.sum(), abs=1e-5)
