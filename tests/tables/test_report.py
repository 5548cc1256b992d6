"""The report as a file has what it should, cannot run data, and draws what it means."""

import base64
import copy
import csv
import hashlib
import json
import os
import re
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem
from rdkit.DataStructs import TanimotoSimilarity
from reports import read_report
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.explanation.compute.models import ModelPanel
from graphxai.models.graphormer import load_checkpoint, save_checkpoint
from graphxai.tables.drawing import UNIT, drawing
from graphxai.tables.report.build import card_html, embedded
from graphxai.tables.report.cards import CLIFF, OUTLIER, STRONGEST, UNTRUSTED, in_full
from graphxai.tables.report.contents import WIDTH, similarity_map
from graphxai.tables.report.full_cards import default_goal
from graphxai.tables.report.structure_activity import StructureActivity
from graphxai.visualization import Scale
from graphxai.visualization.text import minus_signs
from toy import random_graphormer

ATTACK = "</script><script>window.attacked = true</script><img src=x onerror=alert(1)>"
ROWS = [
    (ATTACK, "CC(=O)Oc1ccccc1C(=O)O"),
    ("a/b\\c 'quoted' \"twice\" & <b>", "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F"),
    ("broken", "C1CC("),
    ("Ωmega \u2028 line", "CC(C)Cc1ccc(cc1)C(C)C(=O)O"),
    (ATTACK, "<script>alert(2)</script>"),
    ("salt", "CC(=O)[O-].[Na+]"),
]
GOOD = [row for row in ROWS if row[0] != "broken" and not row[1].startswith("<")]


class Parsed(HTMLParser):
    """A page's elements with their attributes, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, text):
        if self._inside in self.texts:
            self.texts[self._inside][-1] += text


def read(path: Path) -> tuple[Parsed, dict]:
    parsed = Parsed(path.read_text(encoding="utf-8"))
    return parsed, read_report(path)


@pytest.fixture(scope="module")
def bace():
    return gx.load("bace")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "attack <b>.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("compound", "structure"), *ROWS])
    return path


@pytest.fixture(scope="module")
def page(bace, table, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    return gx.report(bace, table, out, smiles_column="structure", name_column="compound")


def test_only_the_reports_own_script_can_run(page):
    parsed, _ = read(page)
    scripts = [attributes for tag, attributes in parsed.elements if tag == "script"]
    assert [script.get("type") for script in scripts] == ["text/plain", "application/json", None]
    policy = next(a["content"] for t, a in parsed.elements if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind, text in (("script", parsed.texts["script"][2]), ("style", parsed.texts["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not [a for _, attributes in parsed.elements for a in attributes if a.startswith("on")]


def test_the_file_refers_to_nothing_external(page):
    parsed, _ = read(page)
    for tag, attributes in parsed.elements:
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert not {"src", "href", "style"} & set(attributes)
    assert "url(" not in parsed.texts["style"][0]
    assert "@import" not in parsed.texts["style"][0]


def test_script_writes_text_only_as_text(page):
    parsed, _ = read(page)
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\("
    assert not re.search(banned, parsed.texts["script"][2])


def test_names_come_through_unchanged_and_never_as_markup(page):
    parsed, data = read(page)
    assert [molecule["name"] for molecule in data["molecules"]] == [name for name, _ in GOOD]
    packed, shown, script = parsed.texts["script"]
    assert "<" not in packed + shown
    assert "attacked" not in script
    assert "\u2028" not in shown


def test_the_column_of_names_is_found_and_titles_the_cards(bace, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("ID,SMILES\nGX-1,CCO\nGX-2,CCN\n")
    _, data = read(gx.report(bace, path, tmp_path / "r.html", detailed=0))
    assert [molecule["name"] for molecule in data["molecules"]] == ["GX-1", "GX-2"]


def test_rows_that_cannot_be_read_are_listed_with_their_reason(page):
    _, data = read(page)
    assert [row[:2] for row in data["rejected"]] == [[3, "C1CC("], [5, "<script>alert(2)</script>"]]
    assert "')' missing" in data["rejected"][0][2]


def test_relevance_and_ledger_are_those_of_the_explanation(page, bace):
    _, data = read(page)
    unit = 10.0 ** -data["feature_decimals"]
    assert unit <= data["limit"] / 1000  # the page shows three digits of the limit
    for molecule, (_, smiles) in zip(data["molecules"], GOOD, strict=True):
        explanation = gx.explain(bace, smiles)
        np.testing.assert_allclose(molecule["r"], explanation.relevance, rtol=1e-3, atol=1e-9)
        by_atom = np.reshape(molecule["features"], explanation.features.shape) * unit
        np.testing.assert_allclose(by_atom.sum(axis=1), molecule["r"], rtol=1e-2, atol=3e-3)
        np.testing.assert_allclose(by_atom, explanation.features, rtol=5.1e-3, atol=0.51 * unit)
        ledger = molecule["ledger"]
        parts = ledger["nodes"] + ledger["graph_token"] + ledger["biases"]
        assert parts + ledger["unexplained"] == pytest.approx(ledger["output"], abs=1e-5)
        for name, other in molecule["others"].items():
            expected = gx.explain(bace, smiles, name).relevance
            np.testing.assert_allclose(other["r"], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "output"),
    [
        ("active", "The output for the target, active, is a logit: +0.7 doubles the odds."),
        ("pIC50", "The output for the target, pIC50, is the predicted value."),
    ],
)
def test_technical_words_are_explained(bace, tmp_path, target, output):
    path = gx.report(bace, ["CCO"], tmp_path / "r.html", target=target, detailed=0)
    words = read(path)[1]["words"]
    assert output in words["intro"]
    assert "The sum of atoms on a card is that of its colours" in words["intro"]
    terms = ["without nodes", "change", "centrality", "graph token", "biases", "unexplained"]
    assert list(words["terms"]) == terms


def test_the_explained_task_is_the_first_prediction_of_a_card(bace, tmp_path):
    for target, task in ((None, "BACE-1 inhibition"), ("pIC50", "pIC50")):
        options = {"target": target, "detailed": 0, "level": 0.8}
        data = read(gx.report(bace, ["CCO"], tmp_path / "r.html", **options))[1]
        tasks = [name for name, _ in data["molecules"][0]["predictions"]]
        assert tasks[0] == task
        expected = gx.predict(bace, "CCO")[task].at(0.8).range
        assert data["molecules"][0]["ranges"][0] == minus_signs(expected)
        assert "80 %" in expected
        assert sorted(tasks) == ["BACE-1 inhibition", "pIC50"]


def test_scores_without_a_ledger_need_no_words_for_it(bace, tmp_path):
    data = read(gx.report(bace, ["CCO"], tmp_path / "r.html", "gae", detailed=0))[1]
    assert data["words"]["terms"] == {}
    assert "raises or lowers" not in data["words"]["intro"]


def test_scores_without_a_sign_have_a_scale_from_zero(bace, tmp_path):
    path = gx.report(bace, ["CCO", "CCN"], tmp_path / "r.html", "gae", compared=("lrp", "rollout"))
    data = read(path)[1]
    assert data["ticks"][0] == 0
    assert data["unsigned"] == {"gae": "attended to, gradient-weighted", "rollout": "attended to"}
    assert set(data["unsigned_colours"][:3]) == {"#ffffff"}
    assert data["unsigned_colours"][-1] == Scale(1.0, one_sided=True).hex(1.0)[0]
    assert all(m["legend"] == ["", data["unsigned"]["gae"]] for m in data["molecules"])
    assert "which has no sign" in data["words"]["intro"]


def test_values_and_outputs_name_their_task_and_unit(tmp_path):
    tasks = (Task("solvation", "regression", unit="kcal/mol"), Task("CT_TOX", "binary", ("0", "1")))
    model = random_graphormer(tasks=tasks)
    named = [
        read(gx.report(model, ["CCO"], tmp_path / "r.html", target=target, detailed=0))[1]
        for target in (None, "CT_TOX: 0")
    ]
    assert [data["value"] for data in named] == [
        "solvation (kcal/mol)", "Probability of CT_TOX: 0"
    ]  # fmt: skip
    targets = [data["molecules"][0]["target"] for data in named]
    assert targets == ["solvation (kcal/mol)", "CT_TOX: 0"]
    assert named[0]["molecules"][0]["predictions"][0][1].endswith(" kcal/mol")


def test_fragments_contain_every_atom_once_and_sum_to_the_ledger(page):
    _, data = read(page)
    for molecule in data["molecules"]:
        atoms = sorted(atom for part in molecule["fragments"] for atom in part[2])
        assert atoms == list(range(len(molecule["r"])))
        total = sum(part[3] for part in molecule["fragments"])
        assert total == pytest.approx(molecule["ledger"]["nodes"], abs=2e-3)


def test_one_colour_scale_ends_at_the_quantile_of_all_atoms(page):
    _, data = read(page)
    values = np.concatenate([molecule["r"] for molecule in data["molecules"]])
    assert data["limit"] == pytest.approx(np.quantile(np.abs(values), 0.975), rel=1e-3)


def test_fragments_over_the_set_are_ranked_by_their_mean(bace, tmp_path):
    smiles = [f"{chain}c1ccccc1" for chain in ("C", "CC", "CCC", "CCCC", "CO", "CCO", "F")]
    _, data = read(gx.report(bace, smiles, tmp_path / "r.html", detailed=0))
    inside: dict[str, list[float]] = {}
    for molecule in data["molecules"]:
        for _, part, _, relevance in molecule["fragments"]:
            inside.setdefault(part, []).append(relevance)
    often = {part: np.mean(values) for part, values in inside.items() if len(values) >= 3}
    rows = data["fragments"]["rows"]
    assert {row["smiles"] for row in rows} == set(often)
    for row in rows:
        mean, low, high = row["mean"]
        assert mean == pytest.approx(often[row["smiles"]], rel=1e-3)
        assert low <= mean <= high
        assert np.multiply(row["per_atom"], row["atoms"]) == pytest.approx(row["mean"], rel=1e-2)
        for place in row["examples"]:
            assert row["smiles"] in [part[1] for part in data["molecules"][place]["fragments"]]


def test_other_methods_are_run_for_the_molecules_that_deserve_a_full_card(bace, tmp_path):
    smiles = ["CCO", "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F", "CCN"]
    _, data = read(gx.report(bace, smiles, tmp_path / "r.html", detailed=1))
    plain, full, other = data["molecules"]
    assert set(full["others"]) == {"gradient_input", "gae", "occlusion"}
    assert full["full"] == STRONGEST
    assert plain["others"] == other["others"] == {}
    assert "full" not in plain
    assert "equivalent inputs" in [name for name, *_ in full["trust"]["signs"]]
    assert [name for name, *_ in plain["trust"]["signs"]] == [
        "training set",
        "confidence",
        "ledger",
    ]
    assert data["words"]["full"].startswith("1 of the 3 molecules has a full card")


def test_similar_molecules_lie_side_by_side_on_the_map(bace, tmp_path):
    families = ["c1ccc(cc1)C(=O)N", "C1CCNCC1S(=O)(=O)", "OC1OC(CO)C(O)C1O"]
    smiles = [f"{family}{'C' * n}" for n in range(1, 9) for family in families]
    molecules = [Chem.MolFromSmiles(text) for text in smiles]
    places_on_map = similarity_map(molecules)
    assert places_on_map == similarity_map(molecules)  # the same on every run
    places = np.array([places_on_map["x"], places_on_map["y"]]).T
    assert places.min() == 0
    assert places.max() == WIDTH
    family = np.arange(len(smiles)) % len(families)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + 1e9 * np.eye(len(smiles))
    assert np.mean(family[apart.argmin(axis=1)] == family) > 0.9
    assert 0.5 < places_on_map["kept"] <= 1
    bits = [ecfp4_bits(mol) for mol in molecules]
    for place, similar in enumerate(places_on_map["similar"]):
        exact = np.array([TanimotoSimilarity(bits[place], other) for other in bits])
        assert similar[0] == [place, 100]
        assert [percent for _, percent in similar] == np.rint(
            100 * np.sort(exact)[::-1][:20]
        ).tolist()
        assert [np.rint(100 * exact[k]) for k, _ in similar] == [p for _, p in similar]
    assert similarity_map(molecules[:4]) is None
    alike = similarity_map([molecules[0]] * 6)
    assert alike is not None
    _, data = read(gx.report(bace, ["CCO", "CCN"], tmp_path / "r.html", detailed=0))
    assert data["map"] is None


AMIDE = "O=C(Nc1ccc(F)cc1)c1ccccn1"


def test_full_cards_have_the_counterfactuals_that_were_asked_for(bace, tmp_path, monkeypatch):
    monkeypatch.setattr("graphxai.tables.report.full_cards.PREDICTIONS", 20)
    options = {"counterfactuals": 2, "towards": "pIC50: >7", "detailed": 1}
    _, data = read(gx.report(bace, [AMIDE, "CCO"], tmp_path / "r.html", target="pIC50", **options))
    (card,) = [m for m in data["molecules"] if "changes" in m]
    assert "full" in card
    assert card["changes"]["summary"].startswith("Towards pIC50 > 7: ")
    counterfactuals = gx.counterfactuals(bace, card["smiles"], "pIC50: >7", n=2, predictions=20)
    for shown, counterfactual in zip(card["changes"]["found"], counterfactuals, strict=True):
        assert (shown["smiles"], shown["name"]) == (counterfactual.smiles, counterfactual.changes)
        assert shown["prediction"].startswith(minus_signs(str(counterfactual.prediction)))
        assert shown["change"] == minus_signs(f"pIC50: {counterfactual.change_in_full}")
        assert "(90 %: " in shown["change"]
        assert shown["measured"] == ""
        assert shown["similarity"] == pytest.approx(counterfactual.similarity, abs=0.01)
        assert shown["near"] == counterfactual.prediction.nearness.sentence
        again = gx.explain(bace, counterfactual.smiles, target="pIC50")
        trust = gx.trust(bace, counterfactual.smiles, target="pIC50")
        assert shown["trust"]["level"] == trust.level
        np.testing.assert_allclose(shown["r"], again.relevance, rtol=1e-3, atol=1e-5)
        assert len(shown["draw"]["x"]) == len(again)


def test_a_change_to_a_class_says_by_how_much_its_probability_rises(tmp_path, monkeypatch):
    monkeypatch.setattr("graphxai.tables.report.full_cards.PREDICTIONS", 20)
    model = random_graphormer(num_layers=1)
    options = {"counterfactuals": 1, "detailed": 1, "target": "active", "towards": "active"}
    _, data = read(gx.report(model, [AMIDE], tmp_path / "r.html", **options))
    (shown,) = data["molecules"][0]["changes"]["found"]
    before, after = (
        gx.predict(model, smiles)["activity"].probabilities["active"]
        for smiles in (AMIDE, shown["smiles"])
    )
    points = minus_signs(f"{100 * (after - before):+.0f}")
    assert points not in ("+0", "+100")
    assert shown["change"] == f"active: {points} percentage points"


def test_counterfactuals_of_a_report_name_what_its_own_table_measured(bace, tmp_path, monkeypatch):
    monkeypatch.setattr("graphxai.tables.report.full_cards.PREDICTIONS", 20)
    table, start = tmp_path / "assay.csv", "Cc1ccccc1F"
    options = {"n": 1, "predictions": 20, "progress": False}
    (counterfactual,) = gx.counterfactuals(bace, start, "pIC50: >9", **options)
    table.write_text(f"smiles,pIC50\n{start},4\n{counterfactual.smiles},4.75\nCCO,\n")
    wanted = {"counterfactuals": 1, "towards": "pIC50: >9", "detailed": 9, "target": "pIC50"}
    _, data = read(gx.report(bace, table, tmp_path / "r.html", level=0.8, **wanted))
    (shown,) = data["molecules"][0]["changes"]["found"]
    (same,) = gx.counterfactuals(bace, start, "pIC50: >9", measured=table, **options)
    assert shown["smiles"] == same.smiles != counterfactual.smiles  # the table's own are not new
    assert shown["measured"].startswith("expected +")
    _, own, judged = shown["measured"].rsplit("; ", 2)
    assert own == "pIC50 +0.75 in 1 pair"
    assert judged == "the model had this exchange right in 1 of 1 measured pair"
    ends = [p.at(0.8).interval[1] - p.value for p in (same.before, same.prediction)]
    low = same.predicted_change - np.hypot(*ends)
    assert f"(80 %: {low:+.2f} to " in shown["change"].replace("−", "-")


def test_without_a_wish_counterfactuals_go_towards_another_class_or_a_higher_value(bace):
    classes, value = gx.predict(bace, AMIDE).values()
    other = {"active": "inactive", "inactive": "active"}[classes.label]
    assert default_goal(classes) == f"BACE-1 inhibition: {other}"
    assert default_goal(value) == f"pIC50: >{value.value + 1:.3g}"


def test_counterfactuals_that_make_no_sense_are_refused_or_said(bace, tmp_path):
    out = tmp_path / "r.html"
    with pytest.raises(ValueError, match="'soluble' is not a goal"):
        gx.report(bace, ["CCO"], out, counterfactuals=1, towards="soluble")
    assert not out.exists()
    table = tmp_path / "molecules.csv"
    table.write_text("smiles\nCCO\n")
    command = ["report", str(table), "--out", str(out), "--counterfactuals", "1", "--towards"]
    done = CliRunner().invoke(app, [*command, "inactive"])
    assert done.exit_code == 0, done.output
    _, data = read(out)
    assert data["molecules"][0]["changes"] == {"summary": "It is inactive already.", "found": []}


def test_every_card_can_be_full(bace, tmp_path):
    _, data = read(gx.report(bace, ["CCO", "CCN", "CCC"], tmp_path / "r.html", limit=2))
    assert len(data["molecules"]) == 2
    assert all(molecule["others"] for molecule in data["molecules"])
    assert data["words"]["full"] == ""


def test_full_cards_go_to_strong_doubtful_steep_and_strange_molecules_in_turn():
    def molecule(smiles: str, strongest=0.1, level="good", value=6.0, measured=6.0) -> dict:
        record = {"smiles": smiles, "strongest": abs(strongest), "level": level, "label": None}
        return record | {"value": value, "measured": [measured, str(measured)]}

    records = [
        molecule("CCCCCCCO"),
        molecule("c1ccccc1CCNC(=O)CC", measured=3.0, value=3.1),
        molecule("c1ccccc1CCNC(=O)CCC", measured=9.0, value=8.9),
        molecule("OCC1OC(O)C(O)C1O", value=2.0),
        molecule("FC(F)(F)c1ccncc1", level="warning"),
        molecule("O=C1CCCN1", level="caution"),
        molecule("C1CC1", strongest=-5.0),
    ]
    assert list(in_full(records, 5)) == [6, 4, 2, 3, 0]
    assert list(in_full(records, 6)) == [6, 4, 2, 3, 0, 5]
    assert in_full(records, 4) == {6: STRONGEST, 4: UNTRUSTED, 2: CLIFF, 3: OUTLIER}
    assert in_full(records, 0) == {}
    assert len(in_full(records, 7)) == 7


def test_one_molecule_can_be_reported(bace, tmp_path):
    _, data = read(gx.report(bace, "C", tmp_path / "r.html"))
    assert data["molecules"][0]["draw"]["a"] == {"0": ["C", 4, 0, 0, 0, "E"]}


def test_what_cannot_be_in_a_report_is_an_error(bace, tmp_path):
    with pytest.raises(ValueError, match="the molecule cannot be explained"):
        gx.report(bace, ["C1CC("], tmp_path / "r.html")
    with pytest.raises(ValueError, match="no molecule in 2 molecules can be explained"):
        gx.report(bace, ["C1CC(", "C1CC"], tmp_path / "r.html")
    with pytest.raises(ValueError, match="cannot be explained"):
        gx.report("mnist-superpixels", ["CCO"], tmp_path / "r.html")
    with pytest.raises(ValueError, match="2 names for 1"):
        gx.report(bace, ["CCO"], tmp_path / "r.html", names=["a", "b"])
    with pytest.raises(ValueError, match=r"r\.pdf: a report is a web page; name it \.html"):
        gx.report(bace, ["CCO"], tmp_path / "r.pdf")
    assert not list(tmp_path.glob("r.*"))


def test_a_table_too_long_for_a_page_stops_before_anything_is_explained(bace, tmp_path):
    out, table = tmp_path / "report.html", tmp_path / "library.csv"
    table.write_text("smiles\n" + "CCO\n" * 50_001)
    for library in (table, ["CCO"] * 50_001):
        with pytest.raises(ValueError, match="a page shows up to 50,000"):
            gx.report(bace, library, out)
        assert not out.exists()
    assert len(read(gx.report(bace, table, out, limit=2, detailed=0))[1]["molecules"]) == 2
    run = CliRunner().invoke(app, ["report", str(table), "--out", str(out)])
    assert run.exit_code != 0


def test_a_long_page_says_that_it_is_slow_and_leaves_the_map_out(bace, tmp_path, monkeypatch):
    for module in ("build", "cards", "contents"):
        monkeypatch.setattr(f"graphxai.tables.report.{module}.SMOOTH", 5)
    library = ["C" * k for k in range(2, 8)]
    with pytest.warns(UserWarning, match="shows 6 of up to 50,000 molecules. With more than 5 it"):
        long = read(gx.report(bace, library, tmp_path / "long.html", detailed=2))[1]
    short = read(gx.report(bace, library[:5], tmp_path / "short.html", detailed=0))[1]
    assert (long["map"] is None, short["map"] is None) == (True, False)
    assert len(long["molecules"]) == 6
    assert "looks for cliffs in the first 5 alone" in long["words"]["notes"][0]
    assert short["words"]["notes"] == []


def test_a_model_card_is_escaped(tmp_path):
    card = (
        f"# {ATTACK}\n\n| a | <b> |\n|---|---|\n| `<i>` | **x** |\n\n    <pre>\n\n* <li>\n* two\n"
    )
    model = load_checkpoint(save_checkpoint(random_graphormer(), tmp_path / "m", card=card))
    text = gx.report(model, ["CCO"], tmp_path / "r.html", detailed=0).read_text(encoding="utf-8")
    tags = [tag for tag, _ in Parsed(text).elements]
    assert tags.count("script") == 3  # the details of molecules, the data, the script
    assert "img" not in tags
    shown = card_html(card)
    assert "<strong>x</strong>" in shown
    assert "<code>&lt;i&gt;</code>" in shown
    assert shown.count("<li>") == 2


def test_a_card_may_have_any_number_of_headings():
    shown = card_html("# First\n" + "## Another\n" * 1200 + "last").replace("\n", "")
    assert shown == "<h3>First</h3>" + "<h4>Another</h4>" * 1200 + "<p>last</p>"
    assert card_html("# Alone").strip() == "<h3>Alone</h3>"


def test_a_card_too_large_to_be_one_is_left_out(tmp_path):
    model = load_checkpoint(save_checkpoint(random_graphormer(), tmp_path / "m", card="# Card\n"))
    os.truncate(tmp_path / "m" / "README.md", 300_000_000)
    page = gx.report(model, ["CCO"], tmp_path / "r.html", detailed=0)
    assert page.stat().st_size < 10_000_000


def test_data_in_a_page_are_json_without_markup():
    value = {"</script>": ["<!--", "&amp;", "\u2028", "\ud800", "𝛼"]}
    text = embedded(value)
    assert not re.search("[<>&\u2028]", text)
    content = json.loads(text)
    assert content["</script>"][:3] == ["<!--", "&amp;", "\u2028"]
    assert content["</script>"][4] == "𝛼"


def test_command_writes_a_report(table, tmp_path):
    out = tmp_path / "new folder" / "report.html"
    command = ["report", str(table), "--smiles-column", "structure", "--name-column", "compound"]
    done = CliRunner().invoke(app, [*command, "--out", str(out), "--limit", "2", "--detailed", "0"])
    assert done.exit_code == 0, done.output
    _, data = read(out)
    assert [molecule["name"] for molecule in data["molecules"]] == [name for name, _ in ROWS[:2]]


def test_bonds_have_the_length_of_a_unit_and_the_orders_of_a_kekule_structure(smiles):
    for text in [*smiles, "c1ccc2ccccc2c1", "C#N", "[NH3]->[Pt]"]:
        mol = Chem.MolFromSmiles(text)
        drawn = drawing(mol)
        assert drawn["e"] == [atom.GetSymbol() for atom in mol.GetAtoms()]
        ends = {frozenset(bond[:2]) for bond in drawn["b"]}
        assert ends == {
            frozenset((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())) for bond in mol.GetBonds()
        }
        points = np.array([drawn["x"], drawn["y"]]).T
        lengths = [np.linalg.norm(points[i] - points[j]) for i, j, *_ in drawn["b"]]
        assert not lengths or np.median(lengths) == pytest.approx(UNIT, abs=2)
        Chem.Kekulize(mol, clearAromaticFlags=True)
        order = {1: 1, "w": 1, "h": 1, "d": 1, 2: 2, 3: 3}
        expected = [1 if b.GetBondTypeAsDouble() == 0 else int(b.GetBondTypeAsDouble()) for b in
                    mol.GetBonds()]  # fmt: skip
        assert [order[bond[2]] for bond in drawn["b"]] == expected


def test_the_inner_line_of_an_aromatic_bond_lies_in_the_ring():
    drawn = drawing(Chem.MolFromSmiles("c1ccccc1"))
    points = np.array([drawn["x"], drawn["y"]], dtype=float).T
    centre = points.mean(axis=0)
    doubles = [bond for bond in drawn["b"] if bond[2] == 2]
    assert len(doubles) == 3
    for i, j, _, side in doubles:
        along = points[j] - points[i]
        left = np.array([along[1], -along[0]])  # y points down
        assert np.sign(left @ (centre - points[i])) == side


def test_mirror_images_differ_in_their_wedges():
    wedges = []
    for text in ("C[C@H](N)O", "C[C@@H](N)O"):
        drawn = drawing(Chem.MolFromSmiles(text))
        wedges.append([bond[2] for bond in drawn["b"] if bond[2] in ("w", "h")])
    assert sorted(wedges) == [["h"], ["w"]]


@pytest.mark.parametrize(
    ("smiles", "atom", "label"),
    [
        ("CN", 1, ["N", 2, 0, 0, 0]),
        ("C[NH3+]", 1, ["N", 3, 1, 0, 0]),
        ("[13CH3]C", 0, ["C", 3, 0, 13, 0]),
        ("C[O]", 1, ["O", 0, 0, 0, 1]),
        ("[2H]OC", 0, ["D", 0, 0, 0, 0]),
        ("C=C=C", 1, ["C", 0, 0, 0, 0]),
    ],
)
def test_labels_show_hydrogens_charge_isotope_and_radicals(smiles, atom, label):
    assert drawing(Chem.MolFromSmiles(smiles))["a"][str(atom)][:5] == label


def test_the_carbons_of_a_skeleton_have_no_label():
    assert drawing(Chem.MolFromSmiles("CC(C)Cc1ccccc1"))["a"] == {}


@pytest.fixture(scope="module")
def assay(data_folder, bace, tmp_path_factory) -> Path:
    """Write four measured compounds of BACE from each part of the model's split, and ethanol."""
    with (data_folder / "bace/raw/bace.csv").open() as file:
        rows = list(csv.DictReader(file))
    split = bace.origin.metadata["split"]
    chosen = [rows[k] for part in ("train", "valid", "test") for k in split[part][:4]]
    path = tmp_path_factory.mktemp("assay") / "assay.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("smiles", "pIC50", "hit"))
        writer.writerows((row["mol"], row["pIC50"], row["Class"]) for row in chosen)
        writer.writerow(("CCO", "", ""))
    return path


def test_measured_values_and_the_models_split_are_shown(bace, assay, tmp_path):
    options = {"target": "pIC50", "detailed": 0}
    _, data = read(gx.report(bace, assay, tmp_path / "r.html", **options))
    molecules = data["molecules"]
    parts = ["training"] * 4 + ["validation"] * 4 + ["test"] * 4 + [""]
    assert [molecule["part"] for molecule in molecules] == parts
    with assay.open() as file:
        measured = [row["pIC50"] for row in csv.DictReader(file)]
    for molecule, text in zip(molecules[:-1], measured, strict=False):
        assert molecule["measured"][0] == pytest.approx(float(text), rel=1e-3)
        low, high = gx.predict(bace, molecule["smiles"])["pIC50"].interval
        outside = not low <= float(text) <= high
        assert molecule["measured"][2] == ("outside the 90 % interval" if outside else "")
    assert molecules[-1]["measured"] is None
    assert molecules[-1]["near"].startswith("far from the training set")
    predicted = [gx.predict(bace, m["smiles"])["pIC50"].value for m in molecules[8:12]]
    errors = np.subtract(predicted, [float(text) for text in measured[8:12]])
    part, _, count, scores = data["measured"]["groups"][0]
    assert (part, count) == ("test", 4)
    assert f"RMSE {np.sqrt(np.mean(errors**2)):.3g}" in scores


def test_measured_classes_are_read_from_the_column_that_is_named(bace, assay, tmp_path):
    task = bace.config.tasks[0].name
    out = tmp_path / "r.html"
    _, data = read(gx.report(bace, assay, out, measured={task: "hit"}, detailed=0))
    with assay.open() as file:
        hits = [row["hit"] for row in csv.DictReader(file)]
    classes = [m["measured"][1] for m in data["molecules"][:-1]]
    assert classes == [("inactive", "active")[int(hit)] for hit in hits[:-1]]
    right = np.mean(
        [m["label"] == c for m, c in zip(data["molecules"][8:12], classes[8:12], strict=True)]
    )
    assert data["measured"]["groups"][0][3].endswith(f"{right:.0%} predicted right")
    with pytest.raises(ValueError, match="no column 'pKi'"):
        gx.report(bace, assay, out, measured={"pIC50": "pKi"})
    with pytest.raises(ValueError, match="no task 'pKi'"):
        gx.report(bace, assay, out, measured={"pKi": "pIC50"})
    command = ["report", str(assay), "--out", str(out), "--detailed", "0", "--limit", "2"]
    done = CliRunner().invoke(app, [*command, "--measured", f"{task}=hit"])
    assert done.exit_code == 0, done.output
    assert read(out)[1]["measured"]["column"] == "hit"


def test_files_of_every_format_become_a_report_or_say_what_to_do(bace, tmp_path):
    sdf, book, listed = (tmp_path / name for name in ("a.sdf", "b.csv", "c.smi"))
    sdf.write_text(Chem.MolToMolBlock(Chem.MolFromSmiles("CCO")) + "$$$$\n")
    book.write_bytes(b"PK\x03\x04" + bytes(99))
    listed.write_text("CCO ethanol\nCCN\n")
    out = tmp_path / "r.html"
    for path, smiles in ((sdf, ["CCO"]), (str(sdf), ["CCO"]), (listed, ["CCO", "CCN"])):
        _, data = read(gx.report(bace, path, out, detailed=0))
        assert [molecule["smiles"] for molecule in data["molecules"]] == smiles
    for path, message in (
        (book, "cannot be read as a workbook|openpyxl"),
        (tmp_path / "a.pdb", "no such file"),
    ):
        with pytest.raises((ValueError, ImportError, FileNotFoundError), match=message):
            gx.report(bace, path, out)
    with pytest.raises(ValueError, match=r"^the molecule cannot be explained: "):
        gx.report(bace, "C1CC", out)


def test_without_measured_values_there_is_no_plot(page):
    _, data = read(page)
    assert data["measured"] is None


@pytest.mark.parametrize(
    ("header", "cells", "values"),
    [
        ("pIC50", ["9,15", "8,9?", "1.023", "", "28,2"], [9.15, None, 1023, None, 28.2]),
        ("BACE-1 inhibition", ["Active", "inactive ", "No", "maybe", "1"], [1, 0, 0, None, 1]),
    ],
)
def test_measured_values_are_read_as_in_training(bace, tmp_path, header, cells, values):
    table = tmp_path / "assay.csv"
    smiles = ["CCO", "CCN", "CCC", "CCCO", "CCCN"]
    lines = [f"{text};{cell}" for text, cell in zip(smiles, cells, strict=True)]
    table.write_text("\n".join([f"smiles;{header}", *lines]))
    count, example = (4, "8,9?") if header == "pIC50" else (5, "maybe")
    note = (
        f"1 of {count} measured values in column '{header}' was not understood, such as"
        f" '{example}'."
    )
    with pytest.warns(UserWarning, match=re.escape(note)):
        out = gx.report(bace, table, tmp_path / "r.html", target=header, detailed=0)
    _, data = read(out)
    values_shown = [m["measured"] and m["measured"][0] for m in data["molecules"]]
    assert values_shown == [
        value if value is None else pytest.approx(value, rel=1e-3) for value in values
    ]
    assert data["words"]["notes"][0] == note


def test_bounds_are_shown_and_scored_beside_what_was_measured(bace, tmp_path):
    table, out = tmp_path / "assay.csv", tmp_path / "r.html"
    cells = {"CCO": "4.5", "CCN": ">9", "CCC": "<9", "CCCO": "<=0.5"}
    table.write_text("\n".join(["smiles,pIC50", *map(",".join, cells.items())]))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*not understood.*")
        gx.report(bace, table, out, target="pIC50", detailed=0)
    _, data = read(out)
    bounds = [molecule["bound"] for molecule in data["molecules"]]
    ends = [gx.predict(bace, smiles)["pIC50"].interval for smiles in cells]
    assert ends[3][0] > 0.5
    surprises = ["" if high >= 9 else "outside the 90 % interval" for _, high in ends[1:2]]
    surprises += ["", "outside the 90 % interval"]
    words = [[9, "> 9", 1], [9, "< 9", -1], [0.5, "< 0.5", -1]]
    assert bounds == [None, *([*w, s] for w, s in zip(words, surprises, strict=True))]
    ((_, _, count, scores),) = data["measured"]["groups"]
    assert count == 4
    assert scores.endswith("1 of 3 within their bounds")  # a small molecule is between


def test_a_measured_task_that_is_not_explained_is_named(bace, assay, tmp_path):
    out, wanted = tmp_path / "r.html", 'choose the target "pIC50"'
    with pytest.warns(UserWarning, match=wanted):
        gx.report(bace, assay, out, detailed=0, limit=2)
    assert wanted in read(out)[1]["words"]["notes"][0]
    with pytest.warns(UserWarning, match=r"pIC50 \(column 'hit'\)"):
        gx.report(bace, assay, out, detailed=0, limit=2, measured={"pIC50": "hit"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.report(bace, assay, out, detailed=0, limit=2, target="pIC50")
    assert read(out)[1]["words"]["notes"] == []


def test_the_page_is_headed_by_the_score_of_the_explained_task(bace, assay, tmp_path):
    out = tmp_path / "r.html"
    for target, score in (("pIC50", "pIC50: R2 0."), ("active", "BACE-1 inhibition: ROC-AUC 0.")):
        gx.report(bace, assay, out, detailed=0, limit=2, target=target)
        assert read(out)[1]["model"]["summary"].startswith(score)


def test_measured_pairs_are_told_below_the_heading(bace, assay, tmp_path, monkeypatch):
    out, metadata = tmp_path / "r.html", copy.deepcopy(bace.origin.metadata)
    metadata["scores"]["pIC50"]["pairs"] = {"n": 40, "r": 0.5, "right": 0.8}
    monkeypatch.setattr(bace, "origin", replace(bace.origin, metadata=metadata))
    gx.report(bace, assay, out, detailed=0, limit=2, target="pIC50")
    model = read(out)[1]["model"]
    scores = "; changes in 40 measured pairs: r 0.50, 80% of signs right"
    assert model["summary"] == f"{model['heading']}{scores}"


def test_useless_intervals_of_every_model_on_the_page_are_pointed_out(bace, tmp_path, monkeypatch):
    second = random_graphormer(num_layers=1, tasks=(LOG_D,))
    coverage = {"log D": {"level": 0.9, "width": 8.0, "guess": 6.0}}
    monkeypatch.setattr(second, "origin", replace(second.origin, metadata={"coverage": coverage}))
    with pytest.warns(UserWarning, match="for log D, the 90 % intervals are no better than"):
        out = gx.report([bace, second], ["CCO"], tmp_path / "r.html", detailed=0)
    assert any("for log D" in note for note in read(out)[1]["words"]["notes"])


def test_measured_values_that_are_none_of_the_task_are_pointed_out(bace, tmp_path):
    table = tmp_path / "assay.csv"
    table.write_text("smiles,nM\nCCO,55\nCCN,12000\nCCC,800\n")
    with pytest.warns(UserWarning, match="but pIC50 was mostly from"):
        gx.report(
            *(bace, table, tmp_path / "r.html"),
            target="pIC50",
            measured={"pIC50": "nM"},
            detailed=0,
        )


LOG_D = Task("log D", "regression", offset=2.0, scale=1.5)
GOAL = "pIC50 > 7.5 (0 at 5), log D 1 to 3, active (weight 2)"


def test_several_models_give_one_card_with_every_property_and_its_desirability(tmp_path):
    models = [random_graphormer(num_layers=1), random_graphormer(num_layers=1, tasks=(LOG_D,))]
    molecules = {ATTACK: "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "salt": "CC(=O)[O-].[Na+]"}
    given = {"names": list(molecules), "goal": GOAL, "detailed": 1, "counterfactuals": 1}
    out = gx.report(models, list(molecules.values()), tmp_path / "several.html", **given)
    parsed, data = read(out)
    assert [tag for tag, _ in parsed.elements].count("script") == 3
    assert data["several"]["names"] == ["activity", "pIC50", "log D"]
    profile = gx.profile(models, GOAL)
    assert data["several"]["goals"] == profile.explanation.split("\n")
    for content, smiles in zip(data["molecules"], molecules.values(), strict=True):
        predictions = gx.predict(models, smiles)
        score = profile.score(predictions)
        assert content["desirability"] == pytest.approx(score.overall)
        assert [each[0] for each in content["properties"]] == [
            minus_signs(str(prediction)) for prediction in predictions.values()
        ]
        assert [each[4] for each in content["properties"]] == pytest.approx(
            [score.parts[k].desirability for k in (2, 0, 1)]
        )
        (view,) = content["views"]
        seen = gx.explain(models[1], smiles)
        assert view["r"] == pytest.approx(seen.relevance.tolist(), rel=1e-3, abs=1e-6)
        cells = dict(zip(data["columns"], content["cells"], strict=True))
        assert float(cells["desirability"]) == pytest.approx(score.overall, rel=1e-4)
        assert float(cells["log D"]) == pytest.approx(predictions["log D"].value, rel=1e-4)
    (changes,) = [m["changes"] for m in data["molecules"] if "changes" in m]
    assert changes["found"][0]["prediction"].startswith("desirability ")
    with pytest.raises(ValueError, match="either goal or towards"):
        gx.report(models, ["C"], tmp_path / "no.html", goal=GOAL, towards="active")
    with pytest.raises(ValueError, match="'tasty' is not a goal"):
        gx.report(models, ["C"], tmp_path / "no.html", goal="tasty")


SERIES = {  # anilides of which one has a hostile name, with what was "measured"
    ATTACK: ("CC(=O)Nc1ccccc1", "5", "1.5"),
    "fluoro": ("CC(=O)Nc1ccc(F)cc1", "5.5", ">2"),
    "methoxy": ("COc1ccc(NC(C)=O)cc1", "6", "2.5"),
    "meta": ("CC(=O)Nc1cccc(F)c1", "5.25", ""),
    "salt": ("CC(=O)Nc1ccc(Cl)cc1.Cl", "6.5", "2"),
    "octane": ("CCCCCCCC", "1", ""),
}


def test_pairs_groups_and_measured_values_of_all_models_are_shown(tmp_path):
    models = [random_graphormer(num_layers=1), random_graphormer(num_layers=1, tasks=(LOG_D,))]
    table, out = tmp_path / "series.csv", tmp_path / "series.html"
    with table.open("w", newline="") as file:
        rows = [(name, *cells) for name, cells in SERIES.items()]
        csv.writer(file).writerows([("name", "smiles", "pIC50", "log D"), *rows])
    options = {"name_column": "name", "goal": "log D 1 to 3", "target": "active", "detailed": 0}
    options["core"] = "CC(=O)Nc1ccc([*:1])cc1"
    _, data = read(gx.report(models, table, out, **options))
    cells = [m["properties"] for m in data["molecules"]]
    assert [c[1][7] and c[1][7][0] for c in cells] == [5, 5.5, 6, 5.25, 6.5, 1]
    assert [c[2][7] and c[2][7][0] for c in cells] == [1.5, None, 2.5, None, 2, None]
    assert cells[1][2][8] == [2, "> 2", 1, ""]
    assert [each["task"] for each in data["measured_others"]] == ["pIC50", "log D"]
    predicted = gx.predict(models, [smiles for smiles, *_ in SERIES.values()])
    values = np.array([each["pIC50"].value for each in predicted])
    error = np.sqrt(np.mean((values - [5, 5.5, 6, 5.25, 6.5, 1]) ** 2))
    assert f"RMSE {error:.3g}" in data["measured_others"][0]["groups"][0][3]

    sar = data["sar"]
    assert [each[0] for each in sar["properties"]] == ["activity", "pIC50", "log D"]
    (row,) = sar["exchanges"]["pIC50"]["rows"]  # H to F, in two pairs
    old, new, at, count, measured, changes, pairs = row
    assert [sar["parts"][smiles][0] for smiles in (old, new)] == ["H", "fluoro"]
    assert (at, count) == ("c", 2)
    assert measured == pytest.approx([0.375, np.std([0.25, 0.5], ddof=1)], rel=1e-3)
    assert changes[1][0] == pytest.approx(np.mean(values[[1, 3]] - values[0]), abs=1e-3)
    assert sorted(pairs) == [[0, 1, 0.5], [0, 3, 0.25]]
    mine, core = sar["cores"]
    named = {row[0]: [sar["parts"][smiles][0] for smiles in row[1]] for row in mine["rows"]}
    assert [groups[0] for _, groups in sorted(named.items())] == [
        "H", "fluoro", "methoxy", "H", "chloro"
    ]  # fmt: skip
    assert named[3] == ["H", "fluoro"]  # whose fluorine is elsewhere
    assert core["smiles"] == "c1ccccc1"
    by_place = {place: (groups, known) for place, groups, known, _ in core["rows"]}
    assert set(by_place) == {0, 1, 2, 3, 4}  # all but octane
    substituents = [groups for _, groups, *_ in core["rows"]]
    assert substituents == sorted(substituents)  # equal ones stand together
    assert by_place[4][1] == [6.5, 2]
    assert by_place[1][1] == [5.5, ">2"]
    assert sar["exchanges"]["log D"]["bounded"] == 1
    assert "*Cl" in by_place[4][0]


def test_a_racemate_of_a_series_has_the_prediction_of_its_card():
    written = [f"C[C@H](N)c1ccc({part})cc1 |&1:1|" for part in ("F", "Cl", "OC")]
    series = StructureActivity(ModelPanel.of("bace"), written, {"pIC50": [5.0, 6.0, 7.0]})
    rows = series.core("CC(N)c1ccccc1", list(series.places))["rows"]
    for place, _, _, (_, (value, _)) in rows:
        assert value == pytest.approx(gx.predict("bace", written[place])["pIC50"].value, rel=1e-3)


def test_a_series_has_what_each_r_group_adds_and_its_empty_cells_filled():
    ring, acyl = {"": 0.0, "F": 0.5, "Cl": 1.0, "OC": 1.5}, {"C": 0.0, "CC": 0.25, "FC": 1.0}
    values = {
        f"{tail}C(=O)Nc1ccc{f'({part})' if part else ''}cc1": 5 + a + b
        for part, a in ring.items()
        for tail, b in acyl.items()
        if (part, tail) != ("OC", "FC")
    }
    panel = ModelPanel.of(random_graphormer(num_layers=1))
    sar = StructureActivity(panel, list(values), {"pIC50": list(values.values())})
    table = sar.core("c1cc([*:1])ccc1NC(=O)[*:2]", list(sar.places))
    (fit,) = table["fits"]
    assert (fit["name"], fit["compounds"]) == ("pIC50", 11)
    assert fit["q2"] > 0.9
    adds = {(group, part): value for group, part, _, value, *_ in fit["parts"]}
    assert adds["R1", "*OC"] - adds["R1", "*[H]"] == pytest.approx(1.5, abs=0.2)
    empty = [
        (own, other, value)
        for own, cells, is_empty in fit["matrix"]
        for (other, value, *_), left in zip(cells, is_empty, strict=True)
        if left
    ]
    ((own, other, value),) = empty
    assert {own, other} == {"*OC", "*CF"}
    assert value == pytest.approx(7.5, abs=0.3)
    few = sar.core("c1cc([*:1])ccc1NC(=O)[*:2]", list(sar.places)[:4])
    assert few["fits"] == []


def test_a_core_of_r_groups_is_drawn_with_their_numbers():
    labels = drawing(Chem.MolFromSmiles("c1ccc([*:12])cc1"))["a"].values()
    assert [label[0] for label in labels] == ["R12"]


def test_a_map_of_few_molecules_keeps_all_neighbours():
    """Of eleven molecules, the ten most similar and the ten nearest are all others."""
    molecules = [Chem.MolFromSmiles(f"c1ccccc1{'C' * n}O") for n in range(11)]
    assert similarity_map(molecules)["kept"] == 1
