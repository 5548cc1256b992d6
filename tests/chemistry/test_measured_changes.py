"""Exchanges of measured pairs are suggested for the same kind of atom, and nothing unstable."""

import warnings

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.matching import unstable_groups
from graphxai.chemistry.measurements import Measurements, measurements_for_tasks
from graphxai.chemistry.search.neighbours import measured_changes, mutated
from graphxai.chemistry.search.transformations import transformed
from graphxai.datasets.matched_pairs import Exchange, environment_of
from graphxai.datasets.tables.table import open_table
from graphxai.runtime.reading import packaged_rows

# by group, what follows a phenyl ring before and after a change that makes it
MADE = {
    "hemiaminal": ("CN(C)CC", "CN(C)C(C)O"),
    "hemiacetal": ("COCC", "COC(C)O"),
    "geminal diol": ("CC(C)O", "CC(C)(O)O"),
    "hemithioacetal": ("CSCC", "CSC(C)O"),
    "aminal": ("CN(C)CC", "CN(C)C(C)N"),
    "alpha-haloamine": ("CN(C)CC", "CN(C)C(C)F"),
    "alpha-halo ether": ("COCC", "COC(C)F"),
    "alpha-halo alcohol": ("CC(C)O", "CC(C)(F)O"),
    "acyl halide": ("CCC=O", "CCC(=O)Cl"),
    "sulfonyl halide": ("CCS(C)(=O)=O", "CCS(=O)(=O)F"),
    "halogen at nitrogen or oxygen": ("CCNC", "CCN(C)Cl"),
    "peroxide": ("CCO", "CCOO"),
    "enol": ("CC=C", "CC(O)=C"),
    "enamine with N-H": ("CC=C", "CC(NC)=C"),
    "imine": ("CC(C)=NOC", "CC(C)=N"),
    "anhydride": ("CC(C)=O", "CC(=O)OC(C)=O"),
    "carbamic or carbonic acid": ("CNC=O", "CNC(=O)O"),
    "chain of three heteroatoms": ("CN(C)N(C)C", "CN(C)N(C)N"),
}


def suggested(lead: str, values: dict[str, float], **options) -> dict:
    """Return the changes that raise the measured value, by SMILES."""
    measured = {"pIC50": Measurements.of(values.items(), "pIC50", "as drawn")}
    mol = Chem.MolFromSmiles(lead)
    made = measured_changes(mol, measured, lambda means: means["pIC50"].mean, **options)
    return {change.smiles: change for change in made}


def test_each_of_the_unstable_groups_has_a_change_that_would_make_it():
    listed = packaged_rows("graphxai.chemistry", "unstable_groups.csv")
    assert list(MADE) == [row["name"] for row in listed]
    assert len(MADE) == 18


@pytest.mark.parametrize("group", MADE)
def test_no_unstable_group_is_suggested(group, monkeypatch):
    """The pair raised the value, and would be suggested for a homologue if it were stable."""
    before, after = MADE[group]
    pair = {f"c1ccccc1{before}": 5.0, f"c1ccccc1{after}": 7.0}
    product = Chem.CanonSmiles(f"Cc1ccccc1{after}")
    assert unstable_groups(Chem.MolFromSmiles(product))[group]
    assert suggested(f"Cc1ccccc1{before}", pair) == {}
    monkeypatch.setattr("graphxai.chemistry.matching._unstable", tuple)
    assert product in suggested(f"Cc1ccccc1{before}", pair)


@pytest.mark.parametrize("smiles", ["CN1CCCC1", "CCOCC", "CC(C)C(=O)C", "OCCN(C)CCO", "CC=CC"])
def test_no_source_makes_an_unstable_group(smiles):
    mol = Chem.MolFromSmiles(smiles)
    for change in [*transformed(mol), *mutated(mol, 200, seed=0)]:
        assert not unstable_groups(Chem.MolFromSmiles(change.smiles)), change


def test_a_group_that_the_molecule_has_may_stay():
    oxazepam_like = Chem.MolFromSmiles("CN1CCC1O")
    assert unstable_groups(oxazepam_like)["hemiaminal"] == 1
    assert any(Chem.MolFromSmiles(c.smiles) for c in transformed(oxazepam_like))


def test_an_exchange_is_made_at_the_same_kind_of_atom_alone():
    """A methyl that was measured at the nitrogen of an amide says nothing about an amine."""
    pair = {"CC(=O)NCc1ccccc1": 5.0, "CC(=O)N(C)Cc1ccccc1": 6.0}
    assert list(suggested("CC(=O)NCc1ccccc1F", pair)) == ["CC(=O)N(C)Cc1ccccc1F"]
    assert suggested("CCNCc1ccccc1F", pair) == {}
    amide, amine = (Chem.MolFromSmiles(s).GetAtomWithIdx(2) for s in ("CCNC=O", "CCNC"))
    assert (environment_of(amide), environment_of(amine)) == ("N(C)(C=)", "N(C)(C)")
    assert environment_of(amide, without=1) == "N(C=)"


def test_compounds_that_were_measured_and_changes_for_the_worse_are_not_suggested():
    pair = {"c1ccccc1CCO": 5.0, "c1ccccc1CCOC": 6.0, "Cc1ccccc1CCOC": 4.0}
    assert suggested("Cc1ccccc1CCO", pair) == {}
    assert suggested("Cc1ccccc1CCOC", pair) == {}
    assert list(suggested("Fc1ccccc1CCO", pair)) == ["COCCc1ccccc1F"]
    assert suggested("Fc1ccccc1CCO", pair, keep=range(9))  # its hydrogen may leave
    pair = {"c1ccccc1CCF": 5.0, "c1ccccc1CCCl": 6.0}
    assert list(suggested("Cc1ccccc1CCF", pair)) == ["Cc1ccccc1CCCl"]
    assert suggested("Cc1ccccc1CCF", pair, keep=[9]) == {}


def test_a_configuration_stays_where_hydrogen_is_exchanged():
    pair = {"c1ccccc1CCC": 5.0, "c1ccccc1CCC#N": 6.5}
    assert set(suggested("C[C@H](N)c1ccccc1CCC", pair)) == {"C[C@H](N)c1ccccc1CCC#N"}


def test_means_of_few_pairs_are_drawn_towards_zero():
    """The formula of the posterior mean, with variances counted over all exchanges both ways."""
    rng = np.random.default_rng(0)
    values = {}
    for k, tail in enumerate(["C", "CC", "CCC", "CF", "CCl"]):
        values[f"c1ccccc1N{tail}"] = 5 + k / 10
        values[f"c1ccc(F)cc1N{tail}"] = 6 + k / 10 + rng.normal(scale=0.4)
    values["c1ccc(Cl)cc1NC"] = 7.0
    table = Measurements.of(values.items(), "pIC50", "as drawn")
    groups, place = {}, {}
    for a, b, pair in table.pairs:
        change = table.values[b] - table.values[a]
        for exchange, delta in ((pair.exchange, change), (pair.exchange.reversed, -change)):
            groups.setdefault((exchange, pair.environment), []).append(delta)
            place[exchange, pair.environment] = (exchange.old, pair.environment), exchange
    n = sum(map(len, groups.values()))
    within = sum(np.var(g) * len(g) for g in groups.values()) / (n - len(groups))
    between = sum(len(g) * np.mean(g) ** 2 for g in groups.values()) - len(groups) * within
    prior = between / n
    for key, changes in groups.items():
        where, exchange = place[key]
        mean = table.exchanges[where][exchange]
        share = len(changes) * prior / (len(changes) * prior + within)
        half = 1.645 * np.sqrt(prior * (1 - share) + within)
        assert mean.mean == pytest.approx(share * np.mean(changes))
        assert (mean.low, mean.high) == pytest.approx((mean.mean - half, mean.mean + half))
        assert (mean.pairs, abs(mean.mean) <= abs(np.mean(changes))) == (len(changes), True)
    fluorine = table.exchanges["*[H]", "c(c)(c)"][Exchange("*[H]", "*F", "c")]
    assert fluorine.pairs == 5


def test_a_goal_without_potency_warns_where_ring_systems_are_lost():
    donepezil = "COc1cc2CC(CC3CCN(Cc4ccccc4)CC3)C(=O)c2cc1OC"
    options = {"n": 3, "predictions": 16, "steps": 1, "sources": ["fragments"]}
    with pytest.warns(UserWarning, match=r"lose a ring system .*benzene.* add potency"):
        gx.counterfactuals("solubility", donepezil, "> -2", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.counterfactuals("solubility", donepezil, "> -2", keep="c1ccccc1CN1CCCCC1", **options)


def test_lost_ring_systems_are_those_of_the_molecule_as_the_model_read_it():
    """Neither how a molecule is drawn nor its counter-ion counts, and it stays as it was."""
    drawn = Chem.MolFromSmiles("c1ccccc1C(=O)O")
    Chem.Kekulize(drawn, clearAromaticFlags=True)
    raw = Chem.MolFromSmiles("c1ccccc1C(=O)O", sanitize=False)
    before = raw.ToBinary()
    options = {"predictions": 40, "steps": 1, "sources": ["transformations"]}
    for molecule in (drawn, raw):
        with pytest.warns(UserWarning, match=r"lose a ring system .*\(benzene\)"):
            gx.counterfactuals("solubility", molecule, "> 9", **options)
    assert raw.ToBinary() == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.counterfactuals("solubility", "CCCN.Cc1ccc(cc1)S(=O)(=O)O", "> 9", **options)


def test_a_search_among_measured_exchanges_alone_needs_a_table():
    options = {"n": 3, "predictions": 10, "steps": 1, "sources": ["measured"]}
    with pytest.raises(ValueError, match="needs measured="):
        gx.counterfactuals("solubility", "Fc1ccccc1CCO", "> 5", **options)
    pair = {"c1ccccc1CCO": -3.0, "c1ccccc1CCOC": -2.0}
    found = gx.counterfactuals("solubility", "Fc1ccccc1CCO", "> 5", measured=pair, **options)
    assert [each.smiles for each in found] == ["COCCc1ccccc1F"]
    (mean,) = found[0].expected.values()
    assert 0 < mean.mean < 1
    row = found.to_frame().iloc[0]
    assert (row.expected_change, row.source) == (mean.mean, "measured pairs")
    assert "expected +" in found[0].measured_sentence


def test_a_measured_exchange_that_also_reaches_the_goal_is_suggested_once():
    """It stands among the promising exchanges and among those nearest to the goal."""
    options = {"n": 60, "predictions": 60, "steps": 1}
    pair = {"c1ccccc1CCO": -2.0, "c1ccccc1CCOC": -3.0}
    goal = "< -1.5"
    suggestions = gx.counterfactuals("solubility", "Fc1ccccc1CCO", goal, measured=pair, **options)
    smiles = [each.smiles for each in suggestions]
    assert "COCCc1ccccc1F" in smiles
    assert len(smiles) == len(set(smiles))


def test_hydrogen_on_an_aromatic_ring_is_named_as_such():
    """Which hydrogen was exchanged is what a chemist asks first."""
    pair = {"c1ccccc1CCO": -2.0, "Fc1ccccc1CCO": -3.0}
    options = {"n": 5, "predictions": 20, "steps": 1, "sources": ["measured"]}
    suggestions = gx.counterfactuals("solubility", "c1ccccc1CCOC", "< -2", measured=pair, **options)
    assert {each.change for each in suggestions} == {"aromatic H to fluoro"}


def test_a_column_with_the_unit_of_the_task_comes_before_one_of_its_name(tmp_path):
    path = tmp_path / "ki.csv"
    path.write_text("smiles,y,y [pKi]\nCCO,-1,7\nCCN,-2,8\nCCC,-3,9\n")
    assert open_table(path).source_of("y", "pKi") == "y [pKi]"
    assert open_table(path).source_of("y") == "y"
    units = {"y": "pKi"}
    assert measurements_for_tasks(path, units, None).values == {"CCO": 7, "CCN": 8, "CCC": 9}
    assert measurements_for_tasks(path, units, "y").values == {"CCO": -1, "CCN": -2, "CCC": -3}


def test_values_that_became_logarithms_are_called_so(tmp_path):
    path = tmp_path / "ki.csv"
    path.write_text("smiles,Ki (nM)\nCCO,1000\nCCN,10000\nCCC,1500\n")
    read = measurements_for_tasks(path, {"pKi": ""}, "Ki (nM)")
    assert (read.name, read.values["CCO"]) == ("pKi", pytest.approx(6))
    plain = measurements_for_tasks(path, {"solubility": ""}, "Ki (nM)")
    assert (plain.name, plain.values["CCO"]) == ("Ki (nM)", 1000)


def test_a_column_that_names_its_unit_is_read_with_that_unit_alone(tmp_path):
    path = tmp_path / "clearance.csv"
    path.write_text("smiles,clearance (mL/min)\nCCO,1.5\nCCN,2.5\nCCC,3.5\n")
    read = Measurements.read(path, ["clearance"], units={"clearance": "mL/min"})
    assert (read.name, read.values) == ("clearance", {"CCO": 1.5, "CCN": 2.5, "CCC": 3.5})
    with pytest.raises(ValueError, match="clearance"):
        Measurements.read(path, ["clearance"], units={"clearance": "mL/h"})
