"""The app shows several properties of a molecule, what is wished, and what changes do to all."""

import base64
import json

import pytest
from rdkit import Chem

pytest.importorskip("starlette", reason="the extra `app` is not installed")

from reports import read_report

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.evaluation.trust import trust
from graphxai.tables.app import overview as overviews
from graphxai.tables.app.answers import ANSWERS, Body, OfferedModels, suggested
from toy import random_graphormer

AMIDE = "O=C(Nc1ccc(F)cc1)c1ccccn1"
GOAL = "pIC50 > 7.5 (0 at 5), log D 1 to 3, active (weight 2)"
AMIDES = Chem.MolFromSmarts("C(=O)N")
ATTACK = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def models():
    log_d = Task("log D", "regression", offset=2.0, scale=1.5)
    return OfferedModels([random_graphormer(num_layers=1), random_graphormer(tasks=(log_d,))])


def asked(models, request, **fields):
    return json.loads(json.dumps(ANSWERS[request](models, Body(fields)), allow_nan=False))


def test_how_far_a_molecule_may_be_is_decided_by_the_errors_of_each_model(tmp_path):
    """Far molecules were predicted as well as near ones by one model, and worse by the other."""
    names, smiles = ["hiv", "solubility"], "C1CC2CC1C3C2C4CC3C5C4C6CC5C7C6CCC7"
    (molecule,) = asked(OfferedModels(names), "overview", smiles=[smiles])["molecules"]
    assert [(cell["word"], cell["level"]) for cell in molecule["cells"]] == [
        ("far", "good"),
        ("far", "caution"),
    ]
    assert "predicted as well as nearer ones" in molecule["cells"][0]["near"]
    data = read_report(gx.report(names, [smiles], tmp_path / "r.html", detailed=0))
    for shown, cell in zip(data["molecules"][0]["properties"], molecule["cells"], strict=True):
        assert (shown[2], shown[3], shown[9]) == (cell["word"], cell["near"], cell["level"])


def test_each_molecule_has_every_property_and_its_desirability(models):
    answer = asked(models, "overview", smiles=[AMIDE, "nonsense", "CCO"], goal=GOAL)
    names = [[name, task, label] for name, _, task, label in answer["properties"]]
    assert names == [
        ["activity", "activity", "active"],
        ["pIC50", "pIC50", ""],
        ["log D", "log D", ""],
    ]
    members = [models[name] for name in models.names]
    profile = gx.profile(members, GOAL)
    assert answer["goals"] == profile.explanation.split("\n")
    assert answer["molecules"][1] is None
    for smiles, molecule in ((AMIDE, answer["molecules"][0]), ("CCO", answer["molecules"][2])):
        predictions = gx.predict(members, smiles)
        assert molecule["desirability"] == pytest.approx(profile.score(predictions).overall)
        values = [cell["value"] for cell in molecule["cells"]]
        expected = [
            predictions["activity"].probabilities["active"],
            predictions["pIC50"].value,
            predictions["log D"].value,
        ]
        assert values == pytest.approx(expected, rel=1e-3)
    plain = asked(models, "overview", smiles=["CCO"])
    assert plain["molecules"][0]["desirability"] is None
    with pytest.raises(ValueError, match="is not a goal"):
        asked(models, "overview", smiles=["CCO"], goal=ATTACK)
    with pytest.raises(ValueError, match="at most 64"):
        asked(models, "overview", smiles=["C"] * 65)


def test_joined_goals_are_searched_for_on_the_front_and_a_single_goal_as_before(
    models, monkeypatch
):
    monkeypatch.setattr(overviews, "PREDICTIONS", 40)
    fields = {"model": models.names[0], "task": "activity", "label": "active", "smiles": AMIDE}
    wish = {"towards": f"activity: {GOAL}", "wish": GOAL, "locked": [0, 1]}
    *_, last = suggested(models, Body(fields | wish))
    assert last["predicted"] == 40
    members = [models[name] for name in models.names]
    expected = gx.counterfactuals(members, AMIDE, GOAL, keep=[0, 1], predictions=40)
    assert [change["smiles"] for change in last["found"]] == [each.smiles for each in expected]
    for change in last["found"]:
        assert [name for name, *_ in change["properties"]] == ["activity", "pIC50", "log D"]
        assert change["measured"] == ""
    for change, each in zip(last["found"], expected, strict=True):
        goals = {part.goal.of.name: part.goal for part in each.score.parts}
        for name, *shown in change["properties"]:
            predictions = each.predictions[name], each.before[name]
            wished = [goals[name].desirability(prediction) for prediction in predictions]
            assert [facts["desirability"] for facts in shown] == pytest.approx(wished)
    first = expected[0].smiles
    content = base64.b64encode(f"smiles,log D\n{AMIDE},1\n{first},1.5\n".encode()).decode()
    key = ANSWERS["read"](models, Body({"name": "a.csv", "content": content}))["key"]
    *_, last = suggested(models, Body(fields | wish | {"table": {"key": key, "column": ""}}))
    assert last["found"][0]["measured"].startswith("measured log D 1.5 (before 1)")
    single = suggested(models, Body(fields | {"towards": "activity: active", "wish": "active"}))
    assert "properties" not in next(single)


def opened(models, text, name="assay.csv"):
    content = base64.b64encode(text.encode()).decode()
    answer = asked(models, "read", name=name, content=content)
    return {"key": answer["key"], "column": ""}, answer["rows"]


def test_measured_values_of_the_open_table_stand_beside_its_rows(models):
    text = "smiles,pIC50,activity,log D\nCCO,7.25,active,\nxx,>6,no,\nCCN,< 4,,\nC,odd,1,\n"
    table, _ = opened(models, text)
    measured = asked(models, "measured", table=table)["measured"]
    assert set(measured) == {"pIC50", "activity"}  # log D has a column without values
    assert measured["pIC50"] == [[7.25, "7.25"], [None, "> 6"], [None, "< 4"], None]
    assert measured["activity"] == [[1, "active"], [0, "inactive"], None, [1, "active"]]
    assert asked(models, "measured", table={"key": "gone"})["measured"] == {}


def test_rows_are_searched_for_a_substructure_in_pieces(models, monkeypatch):
    smiles = ["CCO", "CC(=O)NC", "nonsense", "O=C(N)c1ccccc1", "C1CC1", "CC(N)=O"]
    table, rows = opened(models, "smiles\n" + "\n".join(smiles))
    amides = [k for k in (0, 1, 3, 4, 5) if Chem.MolFromSmiles(smiles[k]).HasSubstructMatch(AMIDES)]
    answer = asked(models, "match", table=table, smarts="C(=O)N", first=0)
    assert answer == {"matches": amides, "slow": 0, "next": len(rows)}
    monkeypatch.setattr("graphxai.tables.app.tables.AT_A_TIME", -1.0)
    assert asked(models, "match", table=table, smarts="C(=O)N", first=3)["next"] == 3
    for smarts in ("C(", ATTACK, "", "C" * 501):
        with pytest.raises(ValueError, match="is not a SMARTS pattern"):
            asked(models, "match", table=table, smarts=smarts, first=0)
    with pytest.raises(ValueError, match="open it again"):
        asked(models, "match", table={"key": "gone"}, smarts="C", first=0)
    with pytest.raises(ValueError, match="first must be"):
        asked(models, "match", table=table, smarts="C", first="0")
    plain = asked(models, "overview", smiles=["CCO", "C" * 101], plain=True)["molecules"]
    assert ["draw" in each for each in plain] == [False, False]
    large = asked(models, "overview", smiles=["C" * 101])["molecules"][0]
    assert large["draw"] is None
    assert len(large["cells"]) == 3


def test_an_edit_with_six_properties_explains_one_batch_and_predicts_each_model_once(monkeypatch):
    """The page asks for the card and the overview. They took 5.0 times one explanation."""
    tasks = [Task(f"property {k}", "regression", offset=2.0, scale=1.5) for k in range(6)]
    models = OfferedModels([random_graphormer(num_layers=1, tasks=(task,)) for task in tasks])
    explained, predicted = [], []
    explain = trust.explain_prepared

    def counted(model, prepared, *arguments, **options):
        explained.append(len(prepared))
        return explain(model, prepared, *arguments, **options)

    monkeypatch.setattr(trust, "explain_prepared", counted)
    for place, model in enumerate(models.panel.models):
        model.register_forward_pre_hook(lambda *_, k=place: predicted.append(k))
    about = {"model": models.names[0], "task": tasks[0].name, "label": "", "method": "lrp"}
    for smiles in (AMIDE, AMIDE.replace("F", "Cl")):  # the second is an edit of the first
        explained.clear()
        predicted.clear()
        asked(models, "card", **about, smiles=smiles, like=None)
        asked(models, "overview", smiles=[smiles], goal="")
        assert explained == [3]  # the molecule, written in three ways
        assert sorted(predicted) == [0, 1, 2, 3, 4, 5]
