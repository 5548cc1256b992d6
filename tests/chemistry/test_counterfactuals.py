"""Changes of a molecule are found with which the model predicts something else."""

import re
from collections import Counter
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.profile_text import read_goal
from graphxai.chemistry.search.changed_molecules import accessibility, alerts, pareto_fronts
from graphxai.chemistry.search.counterfactuals import search
from graphxai.chemistry.search.objectives import SearchObjective

AMIDE = "O=C(Nc1ccc(F)cc1)c1ccccn1"


@pytest.fixture(scope="module")
def model():
    return gx.load("bace")


@pytest.fixture(scope="module")
def counterfactuals(model):
    return gx.counterfactuals(model, AMIDE, "pIC50: >5.5", n=5, predictions=200, steps=1)


def test_a_goal_that_the_molecule_reaches_already_is_named(model):
    counterfactuals = gx.counterfactuals(
        model, "c1ccccc1O", "inactive", n=2, predictions=20, steps=1
    )
    assert re.search(
        r"are inactive, like the molecule itself \(\d+ %\)\. Ask", counterfactuals.summary
    )
    assert counterfactuals.summary.endswith("Ask for another class or value")


def test_counterfactuals_are_distinct_valid_neighbours_with_the_models_own_predictions(
    model, counterfactuals
):
    start = Chem.CanonSmiles(AMIDE)
    assert (
        len({counterfactual.smiles for counterfactual in counterfactuals})
        == len(counterfactuals)
        == 5
    )
    assert start not in {counterfactual.smiles for counterfactual in counterfactuals}
    again = gx.predict(model, [counterfactual.smiles for counterfactual in counterfactuals])
    for counterfactual, prediction in zip(counterfactuals, again, strict=True):
        assert counterfactual.prediction.value == pytest.approx(prediction["pIC50"].value, abs=1e-4)
        assert counterfactual.reached == (counterfactual.prediction.value > 5.5)
        assert 0 < counterfactual.similarity < 1
        assert counterfactual.accessibility is None or 1 <= counterfactual.accessibility <= 10
    assert counterfactuals.predicted <= 200
    assert repr(counterfactuals).startswith(f"Counterfactuals({counterfactuals.predicted} neighb")
    assert len(repr(counterfactuals).split("\n")) == 1 + len(counterfactuals)
    assert list(counterfactuals.to_frame().smiles) == [
        counterfactual.smiles for counterfactual in counterfactuals
    ]


def test_a_predicted_change_comes_with_an_interval_of_both_errors(model, counterfactuals):
    before = gx.predict(model, AMIDE)["pIC50"]
    for counterfactual in counterfactuals:
        change = counterfactual.prediction.value - before.value
        half = np.hypot(*(p.interval[1] - p.value for p in (before, counterfactual.prediction)))
        assert counterfactual.predicted_change == pytest.approx(change, abs=1e-4)
        assert counterfactual.change_interval == pytest.approx(
            (change - half, change + half), abs=1e-3
        )
    row = counterfactuals.to_frame().iloc[0]
    assert row.predicted_change_low < row.predicted_change < row.predicted_change_high
    assert row.range.startswith("90 %: ")


def test_a_class_changes_its_probability_and_has_no_interval(model):
    counterfactuals = gx.counterfactuals(model, AMIDE, "inactive", n=1, predictions=5, steps=1)
    before = gx.predict(model, AMIDE)["BACE-1 inhibition"].probabilities["inactive"]
    after = counterfactuals[0].prediction.probabilities["inactive"]
    assert counterfactuals[0].predicted_change == pytest.approx(after - before, abs=1e-5)
    assert counterfactuals[0].change_interval is None
    assert counterfactuals[0].prediction.classes is not None


def test_what_was_measured_stands_on_the_result_and_in_its_files(model, counterfactuals, tmp_path):
    product = counterfactuals[0].smiles
    values = {product: 7.25, AMIDE: 5.5, "c1ccccc1CN": 5.0, "Fc1ccccc1CN": 5.75}
    options = {"n": 5, "predictions": 200, "steps": 1, "measured": values}
    options["sources"] = ["transformations", "fragments"]  # as without a table
    again = gx.counterfactuals(model, AMIDE, "pIC50: >5.5", **options)
    assert [counterfactual.smiles for counterfactual in again] == [
        counterfactual.smiles for counterfactual in counterfactuals
    ]
    assert counterfactuals[0].measured is None
    assert (again[0].measured.before, again[0].measured.after) == (5.5, 7.25)
    assert again.to_frame().measured[0] == 7.25
    for suffix in (".csv", ".sdf", ".html"):
        text = again.save(tmp_path / f"found{suffix}").read_text()
        assert "7.25" in text, suffix
    structures = list(Chem.SDMolSupplier(str(tmp_path / "found.sdf")))
    assert [Chem.MolToSmiles(mol) for mol in structures[1:]] == [
        counterfactual.smiles for counterfactual in again
    ]
    assert structures[1].GetProp("measured") == "7.25"


def test_the_share_at_the_changed_atoms_is_that_of_the_contrast(counterfactuals):
    frame = counterfactuals.to_frame()
    assert len(counterfactuals) > 0
    for k, share in enumerate(counterfactuals.at_change):
        account = counterfactuals.contrast(k).account
        expected = (account.changed_a - account.changed_b) / account.output
        assert share == pytest.approx(expected, rel=1e-4)
        assert frame.at_change[k] == share


def test_a_search_without_a_result_has_no_shares(model, counterfactuals):
    nothing = replace(counterfactuals, ranked=())
    assert nothing.at_change == ()
    assert nothing.to_frame().empty


def test_the_same_call_finds_the_same(model, counterfactuals):
    again = gx.counterfactuals(model, AMIDE, "pIC50: >5.5", n=5, predictions=200, steps=1)
    assert [counterfactual.smiles for counterfactual in again] == [
        counterfactual.smiles for counterfactual in counterfactuals
    ]
    assert again.first == counterfactuals.first


def test_a_second_step_says_by_which_changes_it_got_there(model):
    counterfactuals = gx.counterfactuals(
        model, "CCO", "pIC50: >9", n=4, predictions=200, sources=["transformations"]
    )
    two = [counterfactual for counterfactual in counterfactuals if counterfactual.way]
    assert two
    for counterfactual in two:
        ((name, between),) = counterfactual.way
        assert counterfactual.changes == f"{name}, then {counterfactual.change}"
        assert Chem.MolFromSmiles(between) is not None
    assert counterfactuals.first is None
    assert "none reaches" in counterfactuals.summary
    assert [counterfactual.distance for counterfactual in counterfactuals] == sorted(
        (o.distance for o in counterfactuals), reverse=True
    )


@pytest.mark.parametrize("goal", ["pIC50: >9", "pIC50: >5"])
def test_few_of_the_changes_shown_are_at_the_same_atoms(model, goal):
    """This holds whether the goal is out of reach or near."""
    options = {"predictions": 200, "steps": 1, "sources": ["transformations"]}
    tried = gx.counterfactuals(model, AMIDE, goal, n=200, **options)
    assert (tried.successes == 0) == (goal == "pIC50: >9")
    shown = gx.counterfactuals(model, AMIDE, goal, n=10, **options)
    assert len(shown) == 10
    assert max(Counter(counterfactual.atoms for counterfactual in shown).values()) <= 2
    best = max(tried, key=lambda counterfactual: counterfactual.distance)
    if not tried.successes:
        assert shown[0] == best


PYRROLIDINONE = (
    "CC(=O)N[C@]1(CC(C)C)CCN([C@@H](CCc2ccccc2)C(=O)N[C@@H](Cc2cc(F)cc(F)c2)"
    "[C@H](O)[C@H]2Cc3ccccc3CN2)C1=O"
)
QUINOLINE = "Cc1ccccc1-c1ccc2nc(N)c(CC(C)C(=O)NCCC(C)(C)C)cc2c1"


@pytest.mark.parametrize(
    ("molecule", "goal"), [(PYRROLIDINONE, "active"), (QUINOLINE, "pIC50: <7.5")]
)
def test_only_those_that_the_model_is_sure_of(molecule, goal):
    """The set has one class alone, or the whole interval of a value is beyond the limit."""
    model = gx.load("bace")
    options = {"n": 1, "predictions": 64, "steps": 1}
    any_, counterfactuals = (
        gx.counterfactuals(model, molecule, goal, sure=sure, **options) for sure in (False, True)
    )
    assert (counterfactuals.successes, counterfactuals.sure) == (any_.successes, any_.sure)
    assert 1 <= counterfactuals.sure < counterfactuals.successes
    assert f"{counterfactuals.sure} surely" in counterfactuals.summary
    assert len(counterfactuals) == 1
    assert counterfactuals.to_frame().sure.all()
    assert not any_.to_frame().sure.all()
    for counterfactual in counterfactuals:
        if goal == "active":
            assert counterfactual.prediction.classes == ("active",)
        else:
            assert counterfactual.prediction.interval[1] < 7.5


def test_sure_ones_are_refused_where_errors_are_unknown(model):
    unknown = copy(model)
    unknown.conformal = {}
    with pytest.raises(ValueError, match=r"how wrong the model is for 'pIC50' is not known"):
        gx.counterfactuals(unknown, AMIDE, "pIC50: >5.5", sure=True)
    counterfactuals = gx.counterfactuals(unknown, AMIDE, "pIC50: >5.5", n=1, predictions=5, steps=1)
    assert (counterfactuals.sure, counterfactuals[0].sure) == (None, None)
    assert "surely" not in counterfactuals.summary


def test_kept_atoms_are_in_every_counterfactual_also_after_two_steps(model):
    counterfactuals = gx.counterfactuals(
        model, AMIDE, "pIC50: >9", n=6, keep="C(=O)N", predictions=300, sources=["transformations"]
    )
    pattern = Chem.MolFromSmarts("C(=O)N")
    assert all(
        Chem.MolFromSmiles(counterfactual.smiles).HasSubstructMatch(pattern)
        for counterfactual in counterfactuals
    )
    assert any(counterfactual.way for counterfactual in counterfactuals)


def test_the_picture_draws_the_molecule_first_and_escapes_nothing_away(counterfactuals):
    picture = counterfactuals.svg(columns=2)
    assert "the molecule" in picture
    assert all(str(counterfactual.prediction) in picture for counterfactual in counterfactuals)
    assert counterfactuals.contrast(0).b.smiles == counterfactuals[0].smiles


def test_goals_are_read_and_refused_by_name(model):
    assert read_goal(model, "inactive").label == "inactive"
    below = read_goal(model, "<6.5")
    assert str(below) == str(read_goal(model, "pIC50: <6.5")) == "pIC50 < 6.5"
    assert below.curve.one_to == 6.5
    with pytest.raises(ValueError, match="BACE-1 inhibition: inactive, active; pIC50 > 1"):
        read_goal(model, "soluble")
    with pytest.raises(ValueError, match="two limits"):
        read_goal(model, "pIC50 5 to 6")
    with pytest.raises(ValueError, match="matches no atom"):
        gx.counterfactuals(model, AMIDE, "active", keep="[Br]")
    with pytest.raises(ValueError, match="not a SMARTS"):
        gx.counterfactuals(model, AMIDE, "active", keep="[")
    with pytest.raises(ValueError, match="unknown source 'magic'"):
        gx.counterfactuals(model, AMIDE, "active", sources=["magic"])


def test_atoms_speak_against_goals_by_what_each_goal_lacks(model):
    """Derringer and Suich (1980) give the desirability, and a goal asks for what it lacks of 1."""
    objective = SearchObjective.of(
        model, AMIDE, "active; pIC50 > 9 (0 at 4, weight 2)", False, None
    )
    (start,) = objective.starts()
    predicted = gx.predict(model, AMIDE)
    probability, value = (
        predicted["BACE-1 inhibition"].probabilities["active"],
        predicted["pIC50"].value,
    )
    lacks = {"BACE-1 inhibition": 1 - probability, "pIC50": 2 * (1 - (value - 4) / 5)}
    assert min(lacks.values()) > 0
    expected = np.zeros(len(start.against))
    for name, lack in lacks.items():
        relevance = gx.explain(model, AMIDE, target=name).relevance
        expected -= lack * relevance / np.abs(relevance).max()
    np.testing.assert_allclose(start.against, expected, atol=1e-5)


def test_pareto_fronts_against_the_definition():
    values = np.random.default_rng(0).integers(0, 4, (40, 3)).astype(float)
    left, expected, front = set(range(40)), np.zeros(40, int), 0
    while left:
        best = {
            i
            for i in left
            if not any(
                (values[j] >= values[i]).all() and (values[j] > values[i]).any() for j in left
            )
        }
        for i in best:
            expected[i] = front
        left, front = left - best, front + 1
    assert (pareto_fronts(values) == expected).all()


def test_feasibility_tells_a_simple_molecule_from_a_hard_and_a_reactive_one():
    easy, hard = (
        Chem.MolFromSmiles("CC(=O)Nc1ccccc1"),
        Chem.MolFromSmiles("CC1CCC2C(C)C(=O)OC3OC4(C)CCC1C23OO4"),
    )
    if accessibility(easy) is not None:
        assert accessibility(easy) < 2 < accessibility(hard)
    assert alerts(easy) == ()
    assert "aldehyde" in " ".join(alerts(Chem.MolFromSmiles("CCC=O"))).lower()


def test_a_search_tells_the_best_so_far_and_works_only_when_asked(model, counterfactuals):
    steps = search(model, AMIDE, "pIC50: >5.5", n=5, predictions=200, steps=1)
    first, second = next(steps)[1](), next(steps)[1]()
    assert (first.predicted, len(first)) == (0, 0)
    assert 0 < second.predicted <= 64
    last = list(steps)[-1][1]()
    assert [counterfactual.smiles for counterfactual in last] == [
        counterfactual.smiles for counterfactual in counterfactuals
    ]
    assert (last.predicted, last.first) == (counterfactuals.predicted, counterfactuals.first)


def test_a_search_of_few_predictions_is_judged_like_a_long_one(model):
    few = gx.counterfactuals(model, "CCC=O", "pIC50: >9", n=2, predictions=3, measured={"CCC=O": 4})
    assert len(few) == 2
    for counterfactual in few:
        expected = accessibility(Chem.MolFromSmiles(counterfactual.smiles))
        assert counterfactual.accessibility == expected
        assert counterfactual.measured.before == 4
