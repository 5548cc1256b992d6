"""Goals for several properties are read, judged by the published formulas, and searched for."""

import re
from dataclasses import replace

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.desirability import DesirabilityCurve, geometric_mean
from graphxai.chemistry.profile_text import read_profile
from graphxai.chemistry.search.objectives import SearchObjective
from graphxai.contract.intervals import Conformal
from graphxai.contract.tasks import Task
from graphxai.explanation.compute.models import ModelPanel
from graphxai.explanation.prediction import Prediction
from toy import random_graphormer

AMIDE = "O=C(Nc1ccc(F)cc1)c1ccccn1"
PROFILE = "pIC50 > 7.5 (0 at 5), log D 1 to 3, active (weight 2)"
LOG_D = Task("log D at pH 7.4", "regression", unit="", offset=2.0, scale=1.5)


@pytest.fixture(scope="module")
def models():
    return [random_graphormer(num_layers=1), random_graphormer(num_layers=2, tasks=(LOG_D,))]


def derringer_suich(y, low, target, high, s, t):
    """Equation 2 of Derringer and Suich (1980), for the two-sided case."""
    if y < low or y > high:
        return 0.0
    return ((y - low) / (target - low)) ** s if y <= target else ((y - high) / (target - high)) ** t


def test_a_value_is_as_desirable_as_the_published_formulas_say():
    two_sided = DesirabilityCurve(1.0, 2.5, 2.5, 3.0, power=2)
    rising = DesirabilityCurve(zero_below=6.0, one_from=7.5)  # equation 1, with r = 1
    for y in (0.0, 1.0, 1.7, 2.49, 2.5, 2.6, 3.0, 6.5, 7.4, 9.0):
        assert two_sided(y) == pytest.approx(derringer_suich(y, 1.0, 2.5, 3.0, 2, 2))
        assert rising(y) == pytest.approx(min(1.0, max(0.0, (y - 6.0) / 1.5)))
    falling = DesirabilityCurve(one_to=-1.0, zero_above=1.0)
    assert [falling(y) for y in (-5, -1, 0, 0.5, 1, 4)] == [1, 1, 0.5, 0.25, 0, 0]


@pytest.mark.parametrize(
    ("low", "high", "sure"),
    [(1.2, 2.8, True), (1.0, 3.0, True), (0.9, 2.8, False), (1.2, 3.1, False), (-2.0, 9.0, False)],
)
def test_a_goal_is_surely_met_if_both_ends_of_the_interval_meet_it(models, low, high, sure):
    (goal,) = read_profile(ModelPanel.of(models[1]), "log D 1 to 3").goals
    width = (high - low) / 2
    prediction = Prediction(LOG_D.name, value=low + width, conformal=Conformal({"": [width] * 100}))
    assert prediction.interval == pytest.approx((low, high))
    assert goal.sure(prediction) is sure
    assert goal.sure(Prediction(LOG_D.name, value=2.0)) is None


def test_the_mean_is_geometric_and_a_single_zero_makes_it_zero():
    assert geometric_mean([0.2, 0.9, 0.5], [1, 1, 1]) == pytest.approx((0.2 * 0.9 * 0.5) ** (1 / 3))
    assert geometric_mean([0.2, 0.9], [3, 1]) == pytest.approx((0.2**3 * 0.9) ** 0.25)
    assert geometric_mean([1.0, 0.0], [1, 1]) == 0
    assert geometric_mean([1.0, None], [1, 1]) is None


def test_a_profile_names_properties_of_several_models_and_explains_itself(models):
    profile = gx.profile(models, PROFILE)
    assert [goal.of.name for goal in profile.goals] == ["pIC50", "log D at pH 7.4", "activity"]
    assert [goal.of.place for goal in profile.goals] == [0, 1, 0]
    assert profile.explanation.split("\n") == [
        "pIC50 > 7.5: desirability is 1 from 7.5 up, 0 below 5.",
        "log D at pH 7.4: 1 to 3: desirability is 1 between 1 and 3, 0 below -0.5 and above 4.5.",
        "activity: active: desirability is the probability of active, weight 2.",
        "Together: the weighted geometric mean, in which a single 0 makes all 0.",
    ]
    assert str(gx.profile(models, str(profile).replace(", ", "; "))) == str(profile)
    assert gx.profile(models, "LOGD = −1.5").goals[0].curve.one_from == -1.5
    predictions = gx.predict(models, AMIDE)
    score = profile.score(predictions)
    share = predictions["activity"].probabilities["active"]
    parts = [
        min(1, max(0, (predictions["pIC50"].value - 5) / 2.5)),
        derringer_suich(min(max(predictions["log D at pH 7.4"].value, 1), 3), 1, 1, 3, 1, 0),
        share,
    ]
    assert score.parts[0].desirability == pytest.approx(parts[0])
    assert score.overall == pytest.approx(
        (parts[0] * score.parts[1].desirability * share**2) ** 0.25
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "give 1 to 20 goals"),
        ("a" * 3000, "give 1 to 20 goals"),
        ("pIC50", "is not a goal. Goals can be: activity: inactive, active; pIC50 > 1"),
        ("<b>x</b> > 3", "no single property '<b>x</b>'"),
        ("activity > 3", "no single property 'activity'"),
        ("log D 3 to 1", "3 is above 1"),
        ("log D 1 to 3 (0 at 2)", "two values"),
        ("pIC50 > 7 (0 at 8)", "outside of what is wished"),
        ("pIC50 > 7 (weight 0)", "above 0"),
        ("pIC50 > 1e999", "not a finite number"),
        ("pIC50 > 7, pIC50 < 9", "two goals for 'pIC50'"),
        ("active (power 2)", "a class only has a weight"),
    ],
)
def test_what_is_no_profile_is_refused_with_what_can_be_asked(models, text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        gx.profile(models, text)


def test_several_models_predict_one_row_with_an_interval_and_a_domain_each(models):
    several = gx.predict(["solubility", "blood-brain-barrier"], [AMIDE, "CCO"])
    for name in ("solubility", "blood-brain-barrier"):
        for row, alone in zip(several, gx.predict(name, [AMIDE, "CCO"]), strict=True):
            for task, prediction in alone.items():
                assert row[task].in_full == prediction.in_full
                assert row[task].nearness == prediction.nearness
    frame = several.to_frame()
    assert frame["solubility_training_set"].tolist() == ["far", "training compound"]
    assert {"solubility_low (log mol/L)", "blood-brain barrier_set"} <= set(frame.columns)
    scores = gx.profile(["solubility", "blood-brain-barrier"], "solubility > -4, penetrant")
    assert scores.to_frame(several).shape == (2, 3)


def test_a_frame_of_desirabilities_has_an_empty_row_for_what_was_left_out(models):
    profile = gx.profile(models, PROFILE)
    predictions = gx.predict(models, AMIDE)
    first, left_out = profile.to_frame([predictions, None]).to_dict("records")
    assert first == pytest.approx(profile.score(predictions).columns)
    assert set(first) == set(left_out)
    assert np.isnan(list(left_out.values())).all()


def test_tasks_of_the_same_name_are_told_apart_and_a_model_may_leave_an_input_out(models):
    with pytest.warns(UserWarning, match="input 1 was left out by unnamed 2: 'xx' cannot be read"):
        twice = gx.predict([models[0], models[0]], ["CCO", "xx"], progress=False)
    tasks, unnamed = ("activity", "pIC50"), ("unnamed", "unnamed 2")
    names = [f"{task} ({model})" for model in unnamed for task in tasks]
    assert list(twice[0]) == names
    assert twice[0][names[0]].task == names[0]
    assert twice[1] is None
    panel = ModelPanel.of(models)
    partly = panel.merged([gx.predict(models[0], "CCO"), None])
    assert list(partly) == ["activity", "pIC50"]
    assert gx.profile(models, "log D > 1").score(partly).overall is None


def test_a_search_returns_the_front_that_no_neighbour_beats(models):
    options = {"predictions": 80, "steps": 1, "progress": False}
    changes = gx.counterfactuals(models, AMIDE, PROFILE, n=80, **options)
    start = gx.profile(models, PROFILE).score(gx.predict(models, Chem.CanonSmiles(AMIDE)))
    assert changes.score.overall == pytest.approx(start.overall, abs=1e-5)
    assert 3 < len(changes) == changes.improved <= changes.predicted <= 80
    again = gx.predict(models, [change.smiles for change in changes])
    points = [changes.profile.score(predictions).desirabilities for predictions in again]
    for change, point in zip(changes, points, strict=True):
        assert change.score.desirabilities == pytest.approx(point, abs=1e-4)
        assert (change.score.overall, sum(point)) > (start.overall, sum(start.desirabilities))
        mine = change.score.desirabilities
        pairs = [list(zip(other.score.desirabilities, mine, strict=True)) for other in changes]
        beaten = any(all(b >= a for b, a in pair) and any(b > a for b, a in pair) for pair in pairs)
        assert beaten == (change.front > 0)


def test_an_atom_speaks_against_goals_by_their_weight_and_by_what_they_lack(models):
    """A property's relevance counts as shares of its largest, as the units differ."""
    goals = "pIC50 < -9 (0 at 9, weight 3), log D > 9"
    search = SearchObjective.of(models, AMIDE, goals, sure=False, measured=None)
    (start,) = search.starts()
    lacks = [1 - part.desirability for part in search.profile.score(search.before).parts]
    expected = 0
    for model, target, weight in ((models[0], "pIC50", 3), (models[1], None, -1)):
        relevance = gx.explain(model, start.mol, target=target).relevance.astype(float)
        expected = expected + weight * lacks.pop(0) * relevance / abs(relevance).max()
    assert start.against == pytest.approx(expected)


def test_changes_say_what_was_measured_of_each_property(models, tmp_path):
    """The table has phenol and 2-fluorophenol: each property has its own changes from H to F."""
    table = tmp_path / "assay.csv"
    lines = ["c1ccccc1O,4,2", "Oc1ccccc1F,4.5,2.25", "c1ccccc1CN,5,1", "NCc1ccccc1F,5.75,"]
    table.write_text("\n".join(["smiles,pIC50,log D at pH 7.4", *lines]))
    given = {"n": 200, "predictions": 200, "steps": 1, "progress": False}
    phenol, fluorophenol = "c1ccccc1O", Chem.CanonSmiles("Oc1ccccc1F")
    before, after = gx.predict(models, [phenol, fluorophenol])
    rises = before["pIC50"].value < after["pIC50"].value
    goal = "pIC50 > 99 (0 at -99)" if rises else "pIC50 < -99 (0 at 99)"  # which a fluorine serves
    for measured in (table, {"pIC50": {"c1ccccc1O": 4, "Oc1ccccc1F": 4.5}}):
        changes = gx.counterfactuals(models, phenol, goal, measured=measured, **given)
        fluoro = next(c for c in changes if c.smiles == fluorophenol)
        assert (fluoro.measured["pIC50"].before, fluoro.measured["pIC50"].after) == (4, 4.5)
        if measured == table:
            assert fluoro.measured["pIC50"].changes == pytest.approx([0.5, 0.75])
            assert fluoro.measured["log D at pH 7.4"].changes == pytest.approx([0.25])
            assert fluoro.columns["log D at pH 7.4_measured_mean_change"] == pytest.approx(0.25)
            assert "0.62 (sd 0.18) in 2 pairs" in changes._table()
    (tmp_path / "bare.csv").write_text("smiles\nC\n")
    with pytest.raises(ValueError, match="has no measured values"):
        gx.counterfactuals(models, "CCO", goal, measured=tmp_path / "bare.csv")


def test_a_result_is_written_with_all_properties(models, tmp_path):
    changes = gx.counterfactuals(models, AMIDE, PROFILE, n=2, predictions=20, steps=1)
    assert repr(changes).split("\n")[1].startswith(f"0: {changes[0].changes}: desirability ")
    assert f", {changes.successes:,} meet all 3 goals, " in changes.summary
    for wished, words in (("active", "meet the goal,"), ("active, pIC50 > 1", "meet both goals,")):
        assert words in replace(changes, profile=gx.profile(models, wished)).summary
    table = changes.save(tmp_path / "changes.csv").read_text()
    assert "log D at pH 7.4_change" in table.splitlines()[0]
    records = list(Chem.SDMolSupplier(str(changes.save(tmp_path / "changes.sdf"))))
    assert [mol.GetProp("_Name") for mol in records[1:]] == [change.changes for change in changes]
    for mol, score in zip(records, (changes.score, *(c.score for c in changes)), strict=True):
        assert float(mol.GetProp("desirability")) == pytest.approx(score.overall, rel=1e-3)
    page = changes.save(tmp_path / "changes.html").read_text()
    assert all(text in page for text in ("geometric mean", changes[0].smiles))
    with pytest.raises(ValueError, match="give the values of each by its name"):
        gx.counterfactuals(models, AMIDE, PROFILE, measured={"C": 1.0})
    with pytest.raises(ValueError, match="leave out sure"):
        gx.counterfactuals(models, AMIDE, PROFILE, sure=True)
