"""Intervals and sets of classes hold at their level, and are wider far from the training set."""

import json
import math

import numpy as np
import pytest
import torch

import graphxai as gx
from graphxai.contract.checkpoint_files import CONFORMAL
from graphxai.contract.intervals import ALIKE, Conformal, from_json, to_json
from graphxai.contract.tasks import Task
from graphxai.learning import conformal, reliability
from graphxai.learning.conformal import Unseen
from graphxai.models.graphormer import CheckpointError, load_checkpoint, save_checkpoint
from toy import random_graphormer

SCORES = np.abs(np.random.default_rng(3).normal(size=99)).tolist()
CLASSES = {"inactive": [-3.0] * 50 + [1.0] * 49, "active": [-3.0] * 99}
VALUE = gx.Prediction("pIC50", value=6.0, conformal=Conformal({"": SCORES}, 2.0))


def at(similarity):
    return gx.Prediction(
        "pIC50", value=6.0, nearness=nearness(similarity), conformal=VALUE.conformal
    )


def nearness(similarity):
    from graphxai.datasets.training_set import Nearness

    return Nearness("near", similarity)


def test_the_interval_reaches_to_the_rank_of_the_level():
    """Of n + 1 exchangeable errors, the new one is among the k smallest in k of n + 1 cases."""
    low, high = at(1.0).interval
    assert high - 6.0 == pytest.approx(6.0 - low)
    assert high - 6.0 == pytest.approx(sorted(SCORES)[89])  # 90 of 100
    assert at(1.0).at(0.5).interval[1] - 6.0 == pytest.approx(sorted(SCORES)[49])
    assert at(1.0).at(0.995).interval == (-math.inf, math.inf)


def test_an_interval_follows_from_the_first_of_molecules_that_are_equally_near():
    draws = np.random.default_rng(0)
    similarity = draws.random(2 * ALIKE).round(1)  # many are alike
    errors = draws.random(2 * ALIKE)
    measured = Conformal({"": errors.tolist()}, similarity=similarity.tolist())
    for near in (0.0, 0.25, 0.4, 0.95):
        order = np.argsort(np.abs(similarity - near), kind="stable")[:ALIKE]
        for level in (0.5, 0.9, 0.99):
            half = np.sort(errors[order])[math.ceil(level * (ALIKE + 1) - 1e-9) - 1]
            assert measured.interval(0.0, near, level) == (-half, half)


def test_far_molecules_get_wider_intervals():
    widths = [high - low for low, high in (at(s).interval for s in (1.0, 0.5, 0.0))]
    assert widths[1] == pytest.approx(2 * widths[0])
    assert widths[2] == pytest.approx(3 * widths[0])
    assert VALUE.interval == at(0.0).interval  # not known: as if nothing were similar


def test_far_molecules_get_more_classes():
    conformal = Conformal({"inactive": [2.0] * 99, "active": [2.0] * 99}, 2.0)
    likely = {"inactive": 0.02, "active": 0.98}  # margin 3.9
    assert conformal.classes(likely, 1.0) == ("active",)
    assert conformal.classes(likely, 0.0) == ("inactive", "active")


def test_the_predicted_class_is_always_in_the_set():
    conformal = Conformal({"inactive": [-9.0] * 99, "active": [-9.0] * 99})
    assert conformal.classes({"inactive": 0.4, "active": 0.6}, 1.0) == ("active",)
    assert conformal.classes({"inactive": 0.0, "active": 1.0}, 1.0) == ("active",)


def test_a_class_exactly_as_clear_as_the_rank_of_the_level_cannot_be_excluded():
    """A share `level` of new molecules does not exceed the score at this rank, so it counts."""
    probabilities = {"a": 0.25, "b": 0.25, "c": 0.5}
    margin = np.log(0.5) - np.log(0.25)
    at_the_margin = Conformal({name: [margin] * 99 for name in probabilities})
    just_below = Conformal({name: [np.nextafter(margin, 0)] * 99 for name in probabilities})
    assert at_the_margin.classes(probabilities, 1.0) == ("a", "b", "c")
    assert just_below.classes(probabilities, 1.0) == ("c",)


@pytest.mark.parametrize(
    ("scores", "probability", "sure"),
    [
        ([-4.0] * 50 + [-1.0] * 49, 0.99, True),
        ([-4.0] * 50 + [-1.0] * 49, 0.9, False),
        ([-4.0] * 49 + [-1.0] * 50, 0.9, True),
        ([1.0] * 99, 0.9, True),
        ([1.0] * 99, 0.6, False),
    ],
    ids=["as half", "alone, not as half", "as half, just", "alone", "the other class fits too"],
)
def test_a_model_is_sure_of_a_class_that_is_alone_and_as_clear_as_for_half_of_those_measured(
    scores, probability, sure
):
    """The probabilities are 4.6, 2.2, 2.2, 2.2 and 0.4 logits apart."""
    scores = Conformal({"inactive": scores, "active": scores})
    by_class = {"inactive": 1 - probability, "active": probability}
    assert gx.Prediction("a", "active", by_class, conformal=scores).sure is sure


def test_whether_a_model_is_sure_is_not_known_without_errors_or_classes():
    assert gx.Prediction("a", "active", {"inactive": 0.1, "active": 0.9}).sure is None
    assert VALUE.sure is None


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan])
def test_a_level_lies_between_0_and_1(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        VALUE.at(level)


def test_a_prediction_states_its_range():
    plain = gx.Prediction("pIC50", value=6.0)
    assert (plain.interval, plain.classes, plain.range, plain.in_full) == (None, None, "", "6.00")
    prediction = gx.Prediction("pIC50", value=6.0, conformal=Conformal({"": [0.5] * 99}))
    assert prediction.in_full == "6.00 (90 %: 5.50 to 6.50)"
    assert "90 %: 5.50 to 6.50" in prediction._repr_html_()
    assert prediction.to_dict()["interval"] == [5.5, 6.5]
    few = gx.Prediction("pIC50", value=6.0, conformal=Conformal({"": [0.5] * 3}))
    assert few.range == "90 %: any value"
    assert few.to_dict()["interval"] == [None, None]
    class_ = gx.Prediction(
        "a", "active", {"inactive": 0.2, "active": 0.8}, conformal=Conformal(CLASSES)
    )
    assert class_.classes == ("active",)
    assert class_.at(0.45).range == "45 %: active"
    assert not math.isfinite(gx.Prediction("a", value=1.0, conformal=Conformal({})).interval[0])


def test_a_change_is_as_uncertain_as_two_independent_errors():
    wide, narrow = (Conformal({"": [half] * 99}) for half in (0.4, 0.3))
    before = gx.Prediction("pIC50", value=6.0, conformal=wide)
    after = gx.Prediction("pIC50", value=6.7, conformal=narrow)
    assert after.change_since(before) == pytest.approx((0.2, 1.2))  # 0.3² + 0.4² = 0.5²
    assert before.change_since(after) == pytest.approx((-1.2, -0.2))
    assert after.change_since(gx.Prediction("pIC50", value=6.0)) is None
    unknown = gx.Prediction("pIC50", value=6.0, conformal=Conformal({}))
    assert not any(map(math.isfinite, after.change_since(unknown)))


def test_errors_of_a_teacher_count_as_those_on_the_calibration_molecules_do():
    """Pooled scores are those of all molecules at once, without those that lack a prediction."""
    rng = np.random.default_rng(0)
    read, y, near = rng.normal(size=(3, 60))
    near = np.abs(np.tanh(near))
    parts = [conformal.conformal_scores(REGRESSION, Unseen(read[k], y[k], near[k]))
             for k in (slice(0, 20), slice(20, 60))]  # fmt: skip
    together = conformal.conformal_scores(REGRESSION, Unseen(read, y, near))
    both = conformal.pooled(parts)
    assert both.n == 60
    assert both.interval(0.3, 0.5) == pytest.approx(together.interval(0.3, 0.5))
    assert conformal.pooled([None, parts[1]]).n == 40
    assert conformal.pooled([None]) is None
    read[:10] = np.nan
    assert conformal.conformal_scores(REGRESSION, Unseen(read, y, near)).n == 50


@pytest.fixture
def folder(tmp_path):
    model = random_graphormer()
    model.conformal = {"pIC50": Conformal({"": SCORES}, 1.0), "activity": Conformal(CLASSES, 1.0)}
    return save_checkpoint(model, tmp_path / "model")


def test_scores_are_saved_and_loaded_with_their_weights(folder):
    loaded = load_checkpoint(folder)
    assert set(loaded.conformal) == {"pIC50", "activity"}
    assert loaded.conformal["pIC50"].interval(0.0, 0.5)[1] == pytest.approx(
        1.5 * sorted(SCORES)[89], rel=1e-4
    )
    loaded.conformal = {}
    assert not (save_checkpoint(loaded, folder) / CONFORMAL).exists()
    assert load_checkpoint(folder).conformal == {}


@pytest.mark.parametrize("digit", "0f")
def test_scores_of_other_weights_are_not_used(folder, digit):
    path = folder / CONFORMAL
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": digit * 64}))
    assert load_checkpoint(folder).conformal == {}


@pytest.mark.parametrize(
    "tasks",
    [
        None,
        [],
        {"unknown": {"slope": 1, "scores": {"": [1]}}},
        {"pIC50": 3},
        {"pIC50": {"slope": 1, "scores": {"": "12"}}},
        {"pIC50": {"slope": 1, "scores": {"": [1, None]}}},
        {"pIC50": {"slope": 1, "scores": {"": [math.nan]}}},
        {"pIC50": {"slope": 1, "scores": {"": [10**400]}}},
        {"pIC50": {"slope": 1, "scores": {"": [-1]}}},
        {"pIC50": {"slope": 1, "scores": {"": [1e300]}}},
        {"pIC50": {"slope": 1, "scores": {"": [True]}}},
        {"pIC50": {"slope": -1, "scores": {"": [1]}}},
        {"pIC50": {"slope": math.inf, "scores": {"": [1]}}},
        {"pIC50": {"scores": {"": [1]}}},
        {"pIC50": {"slope": 1, "scores": {"active": [1]}}},
        {"activity": {"slope": 1, "scores": {"perhaps": [1]}}},
    ],
)
def test_hostile_scores_are_refused(tasks):
    config = random_graphormer().config
    with pytest.raises(ValueError, match=r"task|scores|slope"):
        from_json(tasks, config)


@pytest.mark.parametrize("slope", [0, 0.5])
def test_errors_may_grow_slowly_or_not_at_all_with_the_distance(slope):
    entry = {"slope": slope, "scores": {"": [1.0] * 99}}
    read = from_json({"pIC50": entry}, random_graphormer().config)["pIC50"]
    assert read.interval(0.0, 0.0) == (-1 - slope, 1 + slope)
    assert read.interval(0.0, 1.0) == (-1, 1)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"tasks": {"pIC50": 1}}'])
def test_a_broken_file_is_named(folder, text):
    (folder / CONFORMAL).write_text(text)
    with pytest.raises(CheckpointError, match=r"conformal\.json"):
        load_checkpoint(folder)


def test_predictions_and_explanations_have_intervals(folder):
    model = load_checkpoint(folder)
    predictions = gx.predict(model, "CCO")
    assert predictions["pIC50"].interval is not None
    assert predictions["activity"].classes is not None
    explanation = gx.explain(model, "CCO", target="pIC50")
    assert explanation.prediction.in_full in repr(explanation)
    assert explanation.prediction.in_full in explanation.section()
    assert "80 %" in explanation.at(0.8).section()
    assert explanation.to_dict()["predictions"][1]["level"] == 0.9
    assert f"<Range pIC50>  (1) \n{explanation.prediction.range}" in explanation.to_sdf()


def test_tables_have_columns_for_intervals_and_sets(folder, tmp_path):
    import io

    from graphxai.tables.batches import ExplainBatch
    from graphxai.tables.run import predict_table

    table, out = tmp_path / "t.csv", io.StringIO()
    table.write_text("smiles\nCCO\nc1ccccc1\n")
    predict_table(load_checkpoint(folder), table, out, level=0.5)
    header, first, _ = out.getvalue().splitlines()
    cells = dict(zip(header.split(","), first.split(","), strict=True))
    value = float(cells["pIC50"])
    half = 2 * sorted(SCORES)[49]  # of an unknown training set
    assert float(cells["pIC50_low"]) == pytest.approx(value - half, rel=1e-3)
    assert float(cells["pIC50_high"]) == pytest.approx(value + half, rel=1e-3)
    assert cells["activity"] in cells["activity_set"].split(" or ")
    assert {"pIC50_low", "activity_set"} <= set(ExplainBatch(folder).columns())
    plain = io.StringIO()
    predict_table(random_graphormer(), table, plain)
    assert "_low" not in plain.getvalue()


RNG = np.random.default_rng(0)
REGRESSION = Task("y", "regression")
BINARY = Task("a", "binary", ("no", "yes"))


def drawn(n):
    """Draw predictions that are worse far from the training set: values, labels, similarities."""
    similarity = RNG.uniform(0.1, 0.9, n)
    read = RNG.normal(size=n)
    return read, read + (2 - similarity) * RNG.normal(size=n), similarity


def limits(share, n):
    """Return six standard errors of a share."""
    return 6 * (share * (1 - share) / n) ** 0.5


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_at_their_level_on_exchangeable_data(level):
    """Over many calibrations the mean coverage is the level, whatever the model."""
    held = []
    for _ in range(40):
        read, y, similarity = drawn(100 + 50)
        made = conformal.conformal_scores(REGRESSION, Unseen(read[:99], y[:99], similarity[:99]))
        report = conformal.coverage(
            REGRESSION, made, Unseen(read[99:], y[99:], similarity[99:]), level
        )
        held.append(report["held"])
    spread = np.std(held) / len(held) ** 0.5
    assert abs(np.mean(held) - level) < 4 * spread + 0.01


def test_sets_hold_for_each_class_on_exchangeable_data():
    task = Task("a", "binary", ("no", "yes"))
    p = RNG.beta(0.6, 2.0, size=4000)
    y = (RNG.random(4000) < p).astype(float)
    overconfident = p**2 / (p**2 + (1 - p) ** 2)
    similarity = RNG.uniform(0, 1, 4000)
    made = conformal.conformal_scores(
        task, Unseen(overconfident[:1000], y[:1000], similarity[:1000])
    )
    report = conformal.coverage(
        task, made, Unseen(overconfident[1000:], y[1000:], similarity[1000:])
    )
    for share, n in report["held_by_class"].values():
        calibrated = min(len(scores) for scores in made.scores.values())
        assert share > 0.9 - limits(0.9, n) - limits(0.9, calibrated)


def p_value(score, calibrated):
    """Return the share of molecules as strange as the new one or more (Vovk 2005), counting it."""
    return (1 + (calibrated >= score).sum()) / (1 + len(calibrated))


def test_an_interval_ends_where_the_p_value_falls_to_one_minus_the_level():
    """It counts the errors of the molecules that are as near to the training set as the new one."""
    read, y, similarity = drawn(430)
    made = conformal.conformal_scores(REGRESSION, Unseen(read[:330], y[:330], similarity[:330]))
    errors = np.abs(y - read)[:330]
    for value, near in zip(read[330:], similarity[330:], strict=True):
        alike = np.argsort(np.abs(np.round(similarity[:330], 4) - near), kind="stable")[:ALIKE]
        low, high = made.interval(value, near, 0.85)
        assert high - value == pytest.approx(value - low)
        half = high - value
        assert p_value(half * (1 - 1e-9), errors[alike]) > 0.15
        assert p_value(half * (1 + 1e-9), errors[alike]) <= 0.15


def test_intervals_hold_near_and_far_and_survive_their_file():
    """Errors grow fivefold away from the training set, which one width cannot follow."""
    similarity = RNG.uniform(0, 1, 9000)
    y = (5 - 4 * similarity) * RNG.normal(size=9000)
    unseen = Unseen(np.zeros(9000), y, similarity)
    made = conformal.conformal_scores(REGRESSION, unseen)
    for level in (0.5, 0.9):
        ends = np.array([made.interval(0.0, s, level) for s in similarity[:1000]])
        held = np.abs(y[:1000]) <= ends[:, 1]
        for group in (similarity[:1000] > 0.8, similarity[:1000] < 0.2):
            assert abs(held[group].mean() - level) < limits(level, ALIKE) / 1.5
    config = random_graphormer(tasks=(Task("y", "regression"),)).config
    again = from_json(json.loads(json.dumps(to_json({"y": made}))), config)["y"]
    assert again.interval(0.0, 0.9) == pytest.approx(made.interval(0.0, 0.9), rel=1e-4)
    broken = {"y": {"slope": 0, "scores": {"": [1.0, 2.0]}, "similarity": [0.5]}}
    with pytest.raises(ValueError, match="does not have a number for each score"):
        from_json(broken, config)


def test_a_class_that_is_left_alone_without_being_likely_says_what_is_ruled_out():
    scores = Conformal({"penetrant": [-1.0] * 99, "not penetrant": [0.5] * 99})
    half = {"penetrant": 0.49, "not penetrant": 0.51}
    alone = gx.Prediction("BBB", "not penetrant", half, conformal=scores)
    assert alone.classes == ("not penetrant",)
    assert alone.range == "penetrant ruled out at 90 %"
    sure = gx.Prediction(
        "BBB", "penetrant", {"penetrant": 0.99, "not penetrant": 0.01}, conformal=scores
    )
    assert sure.range == "90 %: penetrant"


def test_a_set_holds_the_classes_whose_p_value_exceeds_one_minus_the_level():
    task = Task("a", "multiclass", ("x", "y", "z"))
    p = RNG.dirichlet([1, 1, 1], size=230)
    labels = np.array([RNG.choice(3, p=row) for row in p])
    made = conformal.conformal_scores(task, Unseen(p[:130], labels[:130].astype(float), None))
    margins = np.array([[np.log(np.delete(row, c).max() / row[c]) for c in range(3)] for row in p])
    calibrated = [margins[:130][labels[:130] == c, c] for c in range(3)]
    for row, strange in zip(p[130:], margins[130:], strict=True):
        named = dict(zip(task.classes, row, strict=True))
        expected = {
            name
            for name, margin, scores in zip(task.classes, strange, calibrated, strict=True)
            if p_value(margin, scores) > 0.15
        }
        assert set(made.classes(named, None, 0.85)) == expected | {task.classes[row.argmax()]}


def test_a_temperature_changes_no_set():
    task = Task("a", "multiclass", ("x", "y", "z"))
    logits = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    y = RNG.integers(3, size=300).astype(float)

    def sets(temperature):
        p = (logits / temperature).double().softmax(1).numpy()
        made = conformal.conformal_scores(task, Unseen(p[:150], y[:150], None))
        return [made.classes(dict(zip(task.classes, row, strict=True)), None) for row in p[150:]]

    assert sets(1.0) == sets(2.5)


def test_missing_labels_are_left_out_and_long_tables_drawn_from():
    read, y, similarity = drawn(3000)
    assert (
        conformal.conformal_scores(REGRESSION, Unseen(read, np.full(3000, np.nan), similarity))
        is None
    )
    y[::2] = np.nan
    made = conformal.conformal_scores(REGRESSION, Unseen(read, y, similarity))
    assert len(made.scores[""]) == 1000


def test_all_molecules_of_a_rare_class_count():
    task = Task("t", "binary", ("no", "yes"))
    y = np.zeros(3000)
    y[:12] = 1
    made = conformal.conformal_scores(task, Unseen(np.linspace(0.1, 0.9, 3000), y, None))
    assert {name: len(scores) for name, scores in made.scores.items()} == {"no": 1000, "yes": 12}


def test_an_interval_holds_its_ends():
    scores = Conformal({"": [0.5] * 99})
    read, measured = np.full(4, 6.0), np.array([5.5, 6.5, 6.6, np.nan])
    report = conformal.coverage(Task("pIC50", "regression"), scores, Unseen(read, measured, None))
    assert report == {"level": 0.9, "n": 3, "held": pytest.approx(2 / 3), "width": 1.0}


def test_sets_of_classes_are_counted_by_the_class_measured():
    task = Task("activity", "binary", ("inactive", "active"))
    scores = Conformal({name: [-9.0] * 99 for name in task.classes})  # only the best class fits
    read, measured = np.array([0.9, 0.2, 0.8]), np.array([1.0, 0.0, 0.0])
    report = conformal.coverage(task, scores, Unseen(read, measured, None))
    assert report["held_by_class"] == {"inactive": [0.5, 2], "active": [1.0, 1]}
    assert report["single"] == 1.0


def test_a_card_says_how_many_the_intervals_held():
    reports = {
        "pIC50": {"level": 0.9, "n": 152, "held": 134 / 152, "width": 2.1, "far": [0.75, 20]},
        "logD": {"level": 0.9, "n": 200, "held": 0.88, "width": 1.5, "far": [0.7, 30]},
        "all far": {"level": 0.9, "n": 20, "held": 0.5, "width": 1.5, "far": [0.5, 20]},
        "tox": {
            "level": 0.9, "n": 10, "held": 0.8, "single": 0.5, "held_by_class": {"no": [0.8, 10]}
        },
    }  # fmt: skip
    from graphxai.learning.card import coverage_text

    text = coverage_text(reports, {"pIC50": "log M"})
    # 119 of 132 near and 15 of 20 far: p is 0.06
    assert "pIC50: 90 % intervals held 88 % of 152; median width 2.10 log M" in text
    assert "all far: 90 % intervals held 50 % of 20; median width 1.50" in text
    said = "91 % of the 170 molecules like the training set and 70 % of the 30 far from it"
    assert f"logD: 90 % intervals held 88 % of 200, that is {said}; median width 1.50" in text
    assert "tox: 90 % sets of classes held 80 % of 10; no 80 % of 10; 50 % have a single" in text


def test_width_grows_with_distance_only_where_errors_do():
    rng = np.random.default_rng(2)
    similarity = rng.uniform(size=2000)
    y = rng.normal(size=2000)
    noise = rng.normal(size=2000)
    for growth in (0.0, 2.0):
        read = y + noise * (1 + growth * (1 - similarity))
        made = conformal.conformal_scores(REGRESSION, Unseen(read, y, similarity))
        widths = [np.diff(made.interval(0.0, s)).item() for s in (0.1, 0.9)]
        true = (1 + 0.9 * growth) / (1 + 0.1 * growth)
        assert widths[0] / widths[1] == pytest.approx(true, rel=0.25)
    alike = conformal.conformal_scores(REGRESSION, Unseen(read, y, None))
    assert alike.interval(0.0, 0.1) == alike.interval(0.0, 0.9)
    labels = (rng.uniform(size=2000) < 0.5).astype(float)
    logits = (2 * labels - 1) * (3 - 4 * (1 - similarity)) + noise
    sure = Unseen(1 / (1 + np.exp(-logits)), labels, similarity)
    slopes = [conformal.best_slope(BINARY, sure)]
    scores = [
        conformal.conformal_scores(BINARY, Unseen(sure.readings, labels, similarity), slope)
        for slope in (*slopes, 0.0)
    ]
    sizes = [
        conformal.coverage(BINARY, each, Unseen(sure.readings, labels, similarity))["single"]
        for each in scores
    ]
    assert sizes[0] >= sizes[1]


def test_intervals_and_sets_no_better_than_a_guess_are_named():
    """A guess without a model needs the width that holds as many labels around their median."""
    labels = np.arange(101.0)
    assert conformal.guess_width(REGRESSION, labels) == pytest.approx(90)
    wide = {"y": {"level": 0.9, "width": 95.0, "guess": 90.0}}
    assert reliability.uninformative(wide, {"y": "mM"}) == [
        "for y, the 90 % intervals are no better than a guess: half of them are 95 mM wide or more,"
        " and 90 mM around the median of all labels would do"
    ]
    (line,) = reliability.uninformative({"y": {"level": 0.9, "width": None, "guess": 90.0}})
    assert "half of them are infinite, and 90 around" in line
    (line,) = reliability.uninformative({"toxic": {"level": 0.9, "single": 0.03}})
    assert line.startswith("for toxic, 97% of the 90 % sets name more than one class")
    good = {"y": {"level": 0.9, "width": 20.0, "guess": 90.0}, "c": {"level": 0.9, "single": 0.6}}
    assert reliability.uninformative(good) == []
    for odd in (None, [], {"y": 3}, {"y": {"level": "x"}}, {"y": {"level": 0.9, "width": "a"}}):
        assert reliability.uninformative(odd) == []
