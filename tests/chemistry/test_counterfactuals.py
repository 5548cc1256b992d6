"""What to change in a molecule so that the model predicts something else."""

import re
from collections import Counter
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.counterfactuals import pareto_fronts, search
from graphxai.chemistry.feasibility import accessibility, alerts
from graphxai.chemistry.goal import Goal

AMIDE = "O=C(Nc1ccc(F)cc1)c1ccccn1"


@pytest.fixture(scope="module")
def model():
    return gx.load("bace")


@pytest.fixture(scope="module")
def found(model):
    return gx.counterfactuals(model, AMIDE, "pIC50: >5.5", n=5, predictions=200, steps=1)


def test_a_goal_that_the_molecule_reaches_already_is_named(model):
    found = gx.counterfactuals(model, "c1ccccc1O", "inactive", n=2, predictions=20, steps=1)
    assert re.search(r"are inactive, like the molecule itself \(\d+ %\)\. Ask", found.summary)
    assert found.summary.endswith("Ask for another class or value")


def test_counterfactuals_are_distinct_valid_neighbours_with_the_models_own_predictions(
    model, found
):
    start = Chem.CanonSmiles(AMIDE)
    assert len({one.smiles for one in found}) == len(found) == 5
    assert start not in {one.smiles for one in found}
    again = gx.predict(model, [one.smiles for one in found])
    for one, prediction in zip(found, again, strict=True):
        assert one.prediction.value == pytest.approx(prediction["pIC50"].value, abs=1e-4)
        assert one.reached == (one.prediction.value > 5.5)
        assert 0 < one.similarity < 1
        assert one.accessibility is None or 1 <= one.accessibility <= 10
    assert found.predicted <= 200
    assert list(found.to_frame().smiles) == [one.smiles for one in found]


def test_a_predicted_change_comes_with_an_interval_of_both_errors(model, found):
    before = gx.predict(model, AMIDE)["pIC50"]
    for one in found:
        change = one.prediction.value - before.value
        half = np.hypot(*(p.interval[1] - p.value for p in (before, one.prediction)))
        assert one.predicted_change == pytest.approx(change, abs=1e-4)
        assert one.change_interval == pytest.approx((change - half, change + half), abs=1e-3)
    row = found.to_frame().iloc[0]
    assert row.predicted_change_low < row.predicted_change < row.predicted_change_high
    assert row.range.startswith("90 %: ")


def test_a_class_changes_its_probability_and_has_no_interval(model):
    found = gx.counterfactuals(model, AMIDE, "inactive", n=1, predictions=5, steps=1)
    before = gx.predict(model, AMIDE)["BACE-1 inhibition"].probabilities["inactive"]
    after = found[0].prediction.probabilities["inactive"]
    assert found[0].predicted_change == pytest.approx(after - before, abs=1e-5)
    assert found[0].change_interval is None
    assert found[0].prediction.classes is not None


def test_what_was_measured_stands_on_the_result_and_in_its_files(model, found, tmp_path):
    product = found[0].smiles
    values = {product: 7.25, AMIDE: 5.5, "c1ccccc1CN": 5.0, "Fc1ccccc1CN": 5.75}
    options = {"n": 5, "predictions": 200, "steps": 1, "measured": values}
    again = gx.counterfactuals(model, AMIDE, "pIC50: >5.5", **options)
    assert [one.smiles for one in again] == [one.smiles for one in found]
    assert found[0].measured is None
    assert (again[0].measured.before, again[0].measured.after) == (5.5, 7.25)
    assert again.to_frame().measured[0] == 7.25
    for suffix in (".csv", ".sdf", ".html"):
        text = again.save(tmp_path / f"found{suffix}").read_text()
        assert "7.25" in text, suffix
    structures = list(Chem.SDMolSupplier(str(tmp_path / "found.sdf")))
    assert [Chem.MolToSmiles(mol) for mol in structures[1:]] == [one.smiles for one in again]
    assert structures[1].GetProp("measured") == "7.25"


def test_the_share_at_the_changed_atoms_is_that_of_the_contrast(found):
    frame = found.to_frame()
    assert len(found) > 0
    for k, share in enumerate(found.at_change):
        account = found.contrast(k).account
        expected = (account.changed_a - account.changed_b) / account.output
        assert share == pytest.approx(expected, rel=1e-4)
        assert frame.at_change[k] == share


def test_a_search_without_a_result_has_no_shares(model, found):
    nothing = replace(found, ranked=())
    assert nothing.at_change == ()
    assert nothing.to_frame().empty


def test_the_same_call_finds_the_same(model, found):
    again = gx.counterfactuals(model, AMIDE, "pIC50: >5.5", n=5, predictions=200, steps=1)
    assert [one.smiles for one in again] == [one.smiles for one in found]
    assert again.first == found.first


def test_a_second_step_says_by_which_changes_it_got_there(model):
    found = gx.counterfactuals(
        model, "CCO", "pIC50: >9", n=4, predictions=200, sources=["transformations"]
    )
    two = [one for one in found if one.way]
    assert two
    for one in two:
        ((name, between),) = one.way
        assert one.changes == f"{name}, then {one.change}"
        assert Chem.MolFromSmiles(between) is not None
    assert found.first is None
    assert "none reaches" in found.summary
    assert [one.distance for one in found] == sorted((o.distance for o in found), reverse=True)


@pytest.mark.parametrize("goal", ["pIC50: >9", "pIC50: >5.2"])
def test_few_of_the_changes_shown_are_at_the_same_atoms(model, goal):
    """Whether the goal is out of reach or near."""
    options = {"predictions": 200, "steps": 1, "sources": ["transformations"]}
    tried = gx.counterfactuals(model, AMIDE, goal, n=200, **options)
    assert (tried.successes == 0) == (goal == "pIC50: >9")
    shown = gx.counterfactuals(model, AMIDE, goal, n=10, **options)
    assert len(shown) == 10
    assert max(Counter(one.atoms for one in shown).values()) <= 2
    best = max(tried, key=lambda one: one.distance)
    if not tried.successes:
        assert shown[0] == best


@pytest.mark.parametrize("goal", ["inactive", "pIC50: <6.9"])
def test_only_those_that_the_model_is_sure_of(model, goal):
    """Of a class, the set has it alone; of a value, the whole interval is beyond the limit."""
    oxane = "CC(=O)N[C@@H](Cc1cc(F)cc(F)c1)[C@H](O)C[NH2+]C1(c2cccc(C(C)(C)C)c2)CCOCC1"
    options = {"n": 1, "predictions": 64, "steps": 1}
    any_, found = (
        gx.counterfactuals(model, oxane, goal, sure=sure, **options) for sure in (False, True)
    )
    assert (found.successes, found.sure) == (any_.successes, any_.sure)
    assert 1 <= found.sure < found.successes
    assert f"{found.sure} surely" in found.summary
    assert len(found) == 1
    assert found.to_frame().sure.all()
    assert not any_.to_frame().sure.all()
    for one in found:
        if goal == "inactive":
            assert one.prediction.classes == ("inactive",)
        else:
            assert one.prediction.interval[1] < 6.9


def test_sure_ones_are_refused_where_errors_are_unknown(model):
    unknown = copy(model)
    unknown.conformal = {}
    with pytest.raises(ValueError, match=r"how wrong the model is for 'pIC50' is not known"):
        gx.counterfactuals(unknown, AMIDE, "pIC50: >5.5", sure=True)
    found = gx.counterfactuals(unknown, AMIDE, "pIC50: >5.5", n=1, predictions=5, steps=1)
    assert (found.sure, found[0].sure) == (None, None)
    assert "surely" not in found.summary


def test_kept_atoms_are_in_every_counterfactual_also_after_two_steps(model):
    found = gx.counterfactuals(
        model, AMIDE, "pIC50: >9", n=6, keep="C(=O)N", predictions=300, sources=["transformations"]
    )
    pattern = Chem.MolFromSmarts("C(=O)N")
    assert all(Chem.MolFromSmiles(one.smiles).HasSubstructMatch(pattern) for one in found)
    assert any(one.way for one in found)


def test_the_picture_draws_the_molecule_first_and_escapes_nothing_away(found):
    picture = found.svg(columns=2)
    assert "the molecule" in picture
    assert all(str(one.prediction) in picture for one in found)
    assert found.contrast(0).b.smiles == found[0].smiles


def test_goals_are_read_and_refused_by_name(model):
    assert Goal.of("inactive", model).label == "inactive"
    assert Goal.of("<6.5", model) == Goal("pIC50", limit=6.5, side=-1)
    with pytest.raises(ValueError, match="BACE-1 inhibition: inactive, active; pIC50: >LIMIT"):
        Goal.of("soluble", model)
    with pytest.raises(ValueError, match="matches no atom"):
        gx.counterfactuals(model, AMIDE, "active", keep="[Br]")
    with pytest.raises(ValueError, match="not a SMARTS"):
        gx.counterfactuals(model, AMIDE, "active", keep="[")
    with pytest.raises(ValueError, match="unknown source 'magic'"):
        gx.counterfactuals(model, AMIDE, "active", sources=["magic"])


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


def test_a_search_tells_the_best_so_far_and_works_only_when_asked(model, found):
    steps = search(model, AMIDE, "pIC50: >5.5", n=5, predictions=200, steps=1)
    first, second = next(steps), next(steps)
    assert (first.predicted, len(first)) == (0, 0)
    assert 0 < second.predicted <= 64
    last = [second, *steps][-1]
    assert [one.smiles for one in last] == [one.smiles for one in found]
    assert (last.predicted, last.first) == (found.predicted, found.first)
