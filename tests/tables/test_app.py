"""The server of the app refuses strangers, answers the page, and survives bad requests."""

import base64
import csv
import gzip
import io
import json
import threading
from contextlib import suppress
from functools import partial

import pytest
from rdkit import Chem

pytest.importorskip("starlette", reason="the extra `app` is not installed")
pytest.importorskip("httpx", reason="starlette's test client needs httpx")

from reports import read_report
from starlette.testclient import TestClient

import graphxai as gx
from graphxai.chemistry.profile_text import read_goal
from graphxai.chemistry.search.counterfactuals import search
from graphxai.contract.target import Target
from graphxai.explanation.compute.models import ModelPanel
from graphxai.tables.app import answers, overview, server, tables
from graphxai.tables.app.answers import OfferedModels
from graphxai.tables.app.guard import PublicAddress
from toy import random_graphormer

TOKEN, PORT = "the-token", 4567
HOME = f"http://127.0.0.1:{PORT}"
AMIDE = "CC(=O)Nc1ccc(OC)cc1"
ATTACK = "</script><img src=x onerror=alert(1)>"
ASKED = {"model": "unnamed", "method": "lrp", "task": "activity", "label": "active"}


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


@pytest.fixture(scope="module")
def client(model):
    app = server.application(OfferedModels([model]), TOKEN, PORT)
    with TestClient(app, base_url=HOME, headers={"X-Graphxai-Token": TOKEN}) as test_client:
        yield test_client


@pytest.fixture
def ask(client):
    def call(what, status=200, **body):
        content = json.dumps(ASKED | body)  # httpx would not send half a surrogate pair
        headers = {"Content-Type": "application/json"}
        answer = client.post(f"/api/{what}", content=content, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    return call


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Graphxai-Token": "another"},
        {"X-Graphxai-Token": ""},
        {"X-Graphxai-Token": "caf\u00e9".encode().decode("latin-1")},
        {"Host": f"evil.example:{PORT}"},  # DNS rebinding
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://localhost:{PORT}"},  # another origin than the host asked
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_strangers_are_refused(client, headers):
    headers = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = client.post("/api/card", json=ASKED | {"smiles": "CCO"}, headers=headers)
    assert answer.status_code == 403
    assert set(answer.json()) == {"error"}


def test_our_own_page_is_answered(client):
    headers = {"Origin": HOME, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/about", json={}, headers=headers).status_code == 200


PUBLIC = "https://hub.example/user/ann/proxy/8765"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "hub.example", "Origin": "https://hub.example"}, 200),
        ({"Host": f"127.0.0.1:{PORT}", "Origin": "https://hub.example"}, 200),  # host rewritten
        ({"Host": f"127.0.0.1:{PORT}", "Origin": HOME}, 200),
        ({"Host": "hub.example", "Origin": "http://hub.example"}, 403),
        ({"Host": "hub.example", "Origin": "https://hub.example:8443"}, 403),
        ({"Host": "hub.example", "Origin": "https://evil.example"}, 403),
        ({"Host": "hub.example", "Origin": HOME}, 403),
        ({"Host": "evil.example", "Origin": "https://hub.example"}, 403),
        ({"Host": "hub.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "hub.example", "X-Graphxai-Token": "another"}, 403),
    ],
)
def test_behind_a_proxy_its_own_address_is_answered_and_no_other(model, headers, status):
    public = PublicAddress.of(PUBLIC)
    app = server.application(OfferedModels([model]), TOKEN, PORT, public)
    with TestClient(app, base_url=HOME, headers={"X-Graphxai-Token": TOKEN}) as proxied:
        assert proxied.post("/api/about", json={}, headers=headers).status_code == status


def test_the_public_address_is_read_strictly():
    assert PublicAddress.of(PUBLIC).page == f"{PUBLIC}/"
    assert PublicAddress.of("https://hub.example:443").host == "hub.example"
    assert PublicAddress.of("http://hub.example:8443/a").origin == "http://hub.example:8443"
    for wrong in (
        "hub.example",
        "ftp://a",
        "https://",
        "https://u:p@a/",
        "https://a/?b",
        "https://[",
        "https://a/\n",
    ):
        with pytest.raises(ValueError, match="is not the address of a page"):
            PublicAddress.of(wrong)


def test_the_page_needs_the_token_and_allows_its_own_script_alone(client):
    for address in ("/", "/?token=", "/?token=another", "/openchemlib.js"):
        assert client.get(address).status_code == 403
    page = client.get(f"/?token={TOKEN}")
    assert page.status_code == 200
    assert TOKEN not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    places = [f"http://{host}:{PORT}/openchemlib.js" for host in ("127.0.0.1", "localhost")]
    assert [part.rstrip(";") for part in policy.split() if "http" in part] == places
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"  # a SMILES is never run as a script
    assert page.headers["cache-control"] == "no-store"


def test_sizes_and_kinds_of_requests_are_bounded(client, ask, monkeypatch):
    monkeypatch.setattr(server, "LARGEST", 10_000)
    monkeypatch.setattr(server, "LARGEST_FILE", 10_000)
    assert client.post("/api/read", json={"content": "C" * 30_000}).status_code == 413
    assert client.post("/api/card", json={"smiles": "C" * 20_000}).status_code == 413
    ask("read", **upload("nearly.csv", "smiles\n" + "CCO\n" * 2000))  # longer as base64
    monkeypatch.setattr(server, "LARGEST", 2_000_000)
    refused = client.post("/api/card", json={"smiles": "C" * 2_000_000})
    assert refused.json() == {"error": "more than 2 MB: send less."}
    text = {"content": json.dumps(ASKED), "headers": {"Content-Type": "text/plain"}}
    assert client.post("/api/card", **text).status_code == 415
    for content in ("[1]", "{", "[" * 5000):
        sent = {"content": content, "headers": {"Content-Type": "application/json"}}
        assert client.post("/api/card", **sent).status_code == 400
    assert client.get("/api/card").status_code == 405
    assert client.post("/api/nothing", json={}).status_code == 404
    for body in ({"smiles": "C" * 101}, {"smiles": 5}, {"smiles": "CCO", "method": "none"}):
        assert "error" in ask("card", 400, **body)
    assert "at most 64" in ask("predict", 400, smiles=["C"] * 65)["error"]
    assert "there is no model" in ask("card", 400, smiles="C", model="../../etc/passwd")["error"]


def test_a_request_that_takes_too_long_is_stopped(ask, monkeypatch):
    ended = threading.Event()

    def rows_without_end(models, body):
        try:
            while True:
                with suppress(Exception):  # as of a row that cannot be read
                    Chem.MolFromSmiles("CCO")
        finally:
            ended.set()

    monkeypatch.setattr(server, "LONGEST", 0.1)
    monkeypatch.setitem(server.ANSWERS, "endless", rows_without_end)
    assert "ask for less" in ask("endless", 503)["error"]
    assert ended.is_set()
    ask("about")


def test_a_request_waits_its_turn_only_so_long(client, ask, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.05)
    begun, end = threading.Event(), threading.Event()

    def slow(models, body):
        begun.set()
        end.wait(10)

    monkeypatch.setitem(server.ANSWERS, "slow", slow)
    first = threading.Thread(target=lambda: client.post("/api/slow", json={}))
    first.start()
    begun.wait(10)
    assert "busy" in ask("about", 503)["error"]
    end.set()
    first.join()
    ask("about")


@pytest.mark.parametrize("smiles", ["", "nonsense", ATTACK, "\ud800", "C\x00", "C1CC", "."])
def test_what_is_no_molecule_is_an_error_in_words(ask, smiles):
    error = ask("card", 400, smiles=smiles)["error"]
    assert "SMILES" in error or "cannot be read" in error
    assert ask("predict", smiles=[smiles, "CCO"])[1]["text"]


def test_a_card_says_what_the_library_says(model, ask):
    card = ask("card", smiles=AMIDE)
    explanation = gx.explain(model, AMIDE, target="active")
    assert card["r"] == pytest.approx(explanation.relevance.tolist(), rel=1e-3)
    assert card["ledger"]["output"] == pytest.approx(explanation.output, rel=1e-4)
    probability = explanation.prediction.probabilities["active"]
    assert card["now"]["value"] == pytest.approx(probability, rel=1e-3)
    assert card["trust"]["sentence"] == gx.trust(model, explanation).sentence
    value = ask("card", smiles=AMIDE, task="pIC50", label="")
    assert value["now"]["value"] == pytest.approx(explanation.predictions[1].value, rel=1e-3)


def test_changes_are_those_that_fit_the_place_with_the_models_predictions(model, ask):
    methoxy = 8  # the oxygen of AMIDE
    options = ask("changes", smiles=AMIDE, place=[methoxy])["options"]
    names = {option["name"] for option in options}
    assert {"aromatic OCH3 to F", "ether O to S"} <= names
    assert "amide reversed" not in names
    now = gx.predict(model, AMIDE)["activity"].probabilities["active"]
    for option in options:
        assert methoxy in option["atoms"]
        then = gx.predict(model, option["smiles"])["activity"].probabilities["active"]
        assert option["value"] == pytest.approx(then, rel=1e-3)
        assert option["delta"] == pytest.approx(then - now, abs=1e-3)
    sizes = [abs(option["delta"]) for option in options]
    assert sizes == sorted(sizes, reverse=True)


def test_a_change_that_makes_a_stereocentre_is_predicted_for_each_isomer(model, ask):
    options = ask("changes", smiles="CCC(C)CC(=O)N", place=[1])["options"]
    of_isomers = [option for option in options if option["isomers"]]
    assert of_isomers
    now = gx.predict(model, "CCC(C)CC(=O)N")["activity"].probabilities["active"]
    for option in of_isomers:
        isomers = [text.split()[0] for text in option["isomers"].split("; ")]
        values = [gx.predict(model, s)["activity"].probabilities["active"] for s in isomers]
        assert len(isomers) > 1
        assert option["smiles"] in isomers
        least = min(values, key=lambda value: abs(value - now))
        assert option["value"] == pytest.approx(least, rel=1e-3)


def test_a_bond_offers_exchanged_fragments_and_what_is_locked_stays(ask):
    bond = [1, 3]  # carbonyl carbon and nitrogen
    free = {o["name"]: o for o in ask("changes", smiles=AMIDE, place=bond)["options"]}
    assert "amide reversed" in free
    assert any(option["source"] == "BRICS exchange" for option in free.values())
    ring = [4, 5, 6, 7, 10, 11]
    locked = ask("changes", smiles=AMIDE, place=[7], locked=[7, 8, 9])["options"]
    assert "aromatic OCH3 to F" not in {option["name"] for option in locked}
    assert ask("changes", smiles=AMIDE, place=[5], locked=[8])["options"]
    assert "number of an atom" in ask("changes", 400, smiles=AMIDE, place=[99])["error"]
    assert ask("changes", smiles=AMIDE, place=[ring[1]])["options"]


def test_a_changed_molecule_is_drawn_like_the_one_before(ask):
    before = ask("card", smiles=AMIDE)
    option = next(
        o for o in ask("changes", smiles=AMIDE, place=[8])["options"] if o["name"].endswith("to F")
    )
    like = {"smiles": AMIDE, "x": before["draw"]["x"], "y": before["draw"]["y"]}
    for origin in (option["origin"], None):  # given by the change, or found again
        after = ask("card", smiles=option["smiles"], like=like | {"origin": origin})
        pairs = [(was, new) for new, was in enumerate(after["origin"]) if was >= 0]
        assert len(pairs) >= 9
        for axis in "xy":
            shifts = [before["draw"][axis][a] - after["draw"][axis][b] for a, b in pairs]
            assert max(shifts) - min(shifts) <= 3  # hundredths of a bond
    for wrong in ({"smiles": AMIDE, "x": ["a"], "y": [1e99]}, {"smiles": "C" * 5}, 5):
        assert ask("card", smiles=AMIDE, like=wrong)["draw"]


def test_a_contrast_is_an_inert_picture_with_an_account(model, ask):
    answer = ask("contrast", a=AMIDE, b="CC(=O)Nc1ccc(F)cc1")
    assert answer["picture"].startswith("data:image/svg+xml;base64,")
    account = gx.contrast(model, AMIDE, "CC(=O)Nc1ccc(F)cc1", target="active").account
    assert answer["account"]["output"] == pytest.approx(account.output, rel=1e-3)
    assert "in common" in ask("contrast", 400, a="CCO", b="c1ccccc1")["error"]


def test_suggestions_come_line_by_line_and_end_as_the_library_says(client, model, monkeypatch):
    monkeypatch.setattr(overview, "PREDICTIONS", 90)
    asked = ASKED | {"smiles": AMIDE, "towards": "activity: active", "locked": [0, 1, 2, 3]}
    with client.stream("POST", "/api/suggest", json=asked) as answer:
        lines = [json.loads(line) for line in answer.iter_lines()]
    counts = [line["predicted"] for line in lines]
    assert counts[:3] == [0, 8, 72]
    assert counts == sorted(counts)
    assert counts[-1] == 90
    amide = Chem.MolFromSmarts("CC(=O)N")
    last = lines[-1]["found"]
    assert all(
        Chem.MolFromSmiles(suggestion["smiles"]).HasSubstructMatch(amide) for suggestion in last
    )
    *_, (_, expected) = search(model, AMIDE, "active", keep=[0, 1, 2, 3], predictions=90)
    shown = [(suggestion["smiles"], suggestion["name"]) for suggestion in last]
    assert shown == [(suggestion.smiles, suggestion.changes) for suggestion in expected()]
    unknown = client.post("/api/suggest", json=asked | {"sure": True})
    assert unknown.status_code == 400  # this model has no errors measured
    assert "how wrong the model is for 'activity' is not known" in unknown.json()["error"]
    wrong = client.post("/api/suggest", json=asked | {"towards": "activity: blue"})
    assert wrong.status_code == 400
    assert "inactive, active" in wrong.json()["error"]


@pytest.mark.parametrize("name", ["assay.csv", "assay.sdf"])
def test_suggestions_have_intervals_and_end_with_what_the_open_table_measured(monkeypatch, name):
    monkeypatch.setattr(overview, "PREDICTIONS", 40)
    model = gx.load("bace")
    *_, (_, suggestions) = search(model, AMIDE, "pIC50: >99", predictions=40)
    first = suggestions()[0]
    values = {AMIDE: "5", first.smiles: "5.75", "CCO": "n/a"}
    mols = {smiles: Chem.MolFromSmiles(smiles) for smiles in values}
    for smiles, mol in mols.items():
        mol.SetProp("pIC50", values[smiles])
    text = "smiles;pIC50\n" + "\n".join(map(";".join, values.items()))
    if name.endswith(".sdf"):
        text = "".join(Chem.SDWriter.GetText(mol) for mol in mols.values())
    asked = {"smiles": AMIDE, "task": "pIC50", "towards": "pIC50: >99", "model": "bace"}
    app = server.application(OfferedModels([model]), TOKEN, PORT)
    with (
        TestClient(app, base_url=HOME, headers={"X-Graphxai-Token": TOKEN}) as client,
    ):
        asked["table"] = client.post("/api/read", json=upload(name, text)).json()
        with client.stream("POST", "/api/suggest", json=asked) as answer:
            lines = list(answer.iter_lines())
        *before, last = (json.loads(line)["found"] for line in lines)
    assert all(shown["measured"] == "" for shown in before[-1])
    shown = next(shown for shown in last if shown["smiles"] == first.smiles)
    assert shown["measured"].startswith("measured pIC50 5.75 (before 5)")
    assert shown["within"].startswith("90 %: ")
    assert shown["within"].replace("−", "-") == first.change_range


def test_the_open_tables_numbers_are_read_as_in_training_and_what_is_not_is_told(monkeypatch):
    monkeypatch.setattr(overview, "PREDICTIONS", 5)
    bace, target = gx.load("bace"), Target(None, "pIC50")
    panel, goal = ModelPanel.of(bace), read_goal(bace, "pIC50: >99")
    steps = []
    for cells in (("9,15", "8,7", "eight"), (">9", ">8", ">7")):
        rows = [f"{s};{cell}" for s, cell in zip((AMIDE, "CCO", "CCN"), cells, strict=True)]
        content = "\n".join(["smiles;pIC50", *rows]).encode()
        key = tables.rows_of("assay.csv", content)["key"]
        measured = partial(tables.measured_in, panel, key, "", goal)
        *_, last = overview.suggestions(bace, AMIDE, "pIC50: >99", target, (), 1, False, measured)
        steps.append(last)
        measurements = measured()["pIC50"]
        assert list(measurements.values.values()) == ([9.15, 8.7] if cells[0] == "9,15" else [])
    assert "1 of 3 measured values in column 'pIC50' was not understood" in steps[0]["summary"]
    assert "3 are bounds, such as '>9'" in steps[1]["summary"]
    assert steps[1]["found"][0]["measured"] == ""


def test_pairs_and_groups_of_the_open_table_are_those_of_the_library(model, ask):
    pairs = {AMIDE: "5", "CC(=O)Nc1ccccc1": "6.5", "CCc1ccccc1": "3", "CCc1ccc(OC)cc1": "3.5"}
    content = "\n".join(["smiles,pIC50", *map(",".join, pairs.items()), f"{AMIDE},6", "x,7"])
    table = {"key": ask("read", **upload("series.csv", content))["key"], "column": ""}
    shown = ask("series", table=table)
    (row,) = shown["exchanges"]["pIC50"]["rows"]
    (expected,) = gx.table_changes(model, pairs | {AMIDE: 5.5}, "pIC50")
    assert [row[0], row[1], row[3]] == [expected.exchange.old, expected.exchange.new, 2]
    assert row[4][0] == pytest.approx(expected.columns["measured_mean_change"])
    assert row[5][1][0] == pytest.approx(expected.columns["predicted pIC50_mean_change"], rel=1e-2)
    assert {tuple(pair[:2]) for pair in row[6]} == {(1, 0), (2, 3)}  # rows of the table
    groups = ask("series", table=table, core="CC(=O)Nc1ccc([*:1])cc1")["cores"][0]
    assert {row[0]: row[1] for row in groups["rows"]} == {0: ["*OC"], 1: ["*[H]"]}
    assert "RDKit cannot read the SMARTS" in ask("series", 400, table=table, core="C(")["error"]
    assert "no compound of the table" in ask("series", 400, table=table, core="[Se]")["error"]
    empty = {"key": ask("read", **upload("bare.csv", f"smiles\n{AMIDE}"))["key"], "column": ""}
    assert "no measured values" in ask("series", 400, table=empty)["error"]


def test_the_trust_of_rows_is_that_of_a_report(model, ask, tmp_path):
    smiles = [AMIDE, "CCCCCC", "c1ccncc1"]
    path = gx.report(model, smiles, tmp_path / "r.html", detailed=0, target="active")
    data = read_report(path)
    expected = [[m["trust"]["level"], m["trust"]["sentence"]] for m in data["molecules"]]
    assert ask("trust", smiles=[*smiles, "nonsense", ATTACK]) == [*expected, None, None]


def test_suggestions_may_be_only_those_that_the_model_is_sure_of(monkeypatch):
    monkeypatch.setattr(overview, "PREDICTIONS", 64)
    oxane = "CC(=O)N[C@@H](Cc1cc(F)cc(F)c1)[C@H](O)C[NH2+]C1(c2cccc(C(C)(C)C)c2)CCOCC1"
    target = Target(task="BACE-1 inhibition")
    any_, sure = (
        list(overview.suggestions(gx.load("bace"), oxane, "inactive", target, (), 3, sure))[-1][
            "found"
        ]
        for sure in (False, True)
    )
    assert {suggestion["sure"] for suggestion in sure} == {True}
    assert False in {suggestion["sure"] for suggestion in any_}


def test_a_search_that_nobody_reads_stops(model, monkeypatch):
    """When the page cancels, uvicorn closes the stream of lines."""
    import anyio

    predicted = []
    monkeypatch.setattr(server, "_in_turn", lambda *args: _called(predicted, *args))

    async def read_two():
        steps = iter([{"predicted": k} for k in range(1, 100)])
        lines = server.lines_of(None, None, {"predicted": 0}, steps)
        await anext(lines)
        await anext(lines)
        await lines.aclose()

    anyio.run(read_two)
    assert len(predicted) == 1


async def _called(seen, turn, request, work, *args):
    seen.append(work)
    return work(*args)


CSV = "Name;Canonical_SMILES;x\nfirst;CCO;1\n=cmd|' /C calc'!A0;CCN;2\n" + ATTACK + ";CC;3\n"


def upload(name, content, **more):
    content = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    return {"name": name, "content": base64.b64encode(content).decode(), **more}


def test_tables_are_read_as_they_come(ask, monkeypatch):
    answer = ask("read", **upload("a.csv", CSV))
    assert [row[1] for row in answer["rows"]] == ["CCO", "CCN", "CC"]
    assert [row[0] for row in answer["rows"]][::2] == ["first", ATTACK]
    answer = ask("read", **upload("list.smi", "CCO ethanol\nc1ccccc1\n"))
    assert answer["rows"] == [["ethanol", "CCO", ""], ["", "c1ccccc1", ""]]
    answer = ask("read", **upload("a.csv", "a,b\n1,2\n"))
    assert (answer["rows"], answer["columns"]) == ([], ["a", "b"])
    assert "can be read as SMILES" in answer["choice"]
    answer = ask("read", **upload("a.csv", "a,b\n1,CCOC\n"))
    assert answer["rows"] == [["", "CCOC", ""]]
    assert "column 'b', as the only one" in answer["choice"]
    answer = ask("read", **upload("a.csv", "a,b\nCCCC,CCOC\n", column="b"))
    assert answer["rows"] == [["", "CCOC", ""]]
    answer = ask("read", **upload("a.csv.gz", gzip.compress(b"Smiles\rCCO\r")))
    assert answer["rows"] == [["", "CCO", ""]]
    record = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO"))
    sdf = f"ethanol{record}$$$$\nbad\n\n\nnonsense\n$$$$\n"
    rows = ask("read", **upload("b.sdf", sdf))["rows"]
    assert rows[0] == ["ethanol", "CCO", ""]
    assert rows[1][:2] == ["", ""]
    assert "mol block" in rows[1][2]
    monkeypatch.setattr(tables, "LARGEST_TABLE", 2000)
    assert ask("read", **upload("a.csv", "smiles\n" + "C\n" * 2500))["more"] == 500
    twice = ask("read", **upload("twice.csv", "smiles,smiles\nC,C\n"))
    assert twice["choice"].startswith("twice.csv has more than one column")
    unclear = ask("read", **upload("unclear.csv", "a,b\nCCOCC,CCCC\n"))
    assert unclear["choice"].endswith("structures, 'a', 'b': choose it here.")
    for name, way in {"a.zip": "unpack it", "a.ods": "save the sheet as .xlsx or CSV"}.items():
        answer = ask("read", 400, **upload(name, b"PK\x03\x04"))
        assert answer["error"] == f"{name} is not a table of molecules that can be read: {way}."
    for text in ("", b"PK\x03\x04", "smiles\nCC" + "C" * 100 + '\n"open\nC'):
        answer = ask("read", 400, **upload("x.csv", text))
        assert answer["error"].startswith("x.csv")
    assert "base64" in ask("read", 400, name="x.csv", content="\u00e9")["error"]


def test_a_file_that_is_too_large_is_refused_with_what_is_allowed(ask, monkeypatch):
    monkeypatch.setattr(answers, "LARGEST_FILE", 1_000_000)
    table = "smiles\n" + "CCO\n" * 250_000
    assert "larger than 1 MB: open a part" in ask("read", 400, **upload("a.csv", table))["error"]


def test_the_basket_has_the_columns_and_the_dialect_of_the_open_table(client):
    table = f"smiles;name;IC50;prediction\n{AMIDE};a1;5,5;x\nCCO;a2;;y\n".encode()
    key = client.post("/api/read", json=upload("t.csv", table)).json()["key"]
    basket = [{"smiles": s, "name": "", "changes": ""} for s in (AMIDE, "CCN")]
    asked = ASKED | {"kind": "csv", "basket": basket, "table": {"key": key, "column": ""}}
    text = client.post("/api/export", json=asked).json()["text"]
    rows = list(csv.DictReader(io.StringIO(text), delimiter=";"))
    assert [row["IC50"] for row in rows] == ["5,5", ""]
    assert 0 <= float(rows[0]["activity: active"].replace(",", ".")) <= 1
    assert "," in rows[0]["activity: active"]


def test_the_basket_becomes_csv_sdf_and_a_report(client):
    basket = [
        {"smiles": AMIDE, "name": "=1+1", "changes": "aromatic H to F"},
        {"smiles": "CCO", "name": ATTACK, "changes": ""},
    ]
    files = {}
    for kind in ("csv", "sdf", "html"):
        answer = client.post("/api/export", json=ASKED | {"kind": kind, "basket": basket})
        assert answer.status_code == 200, answer.text
        files[kind] = answer.json()["text"]
    rows = list(csv.DictReader(io.StringIO(files["csv"])))
    assert [row["smiles"] for row in rows] == [AMIDE, "CCO"]
    assert rows[0]["name"] == "'=1+1"  # no formula for a spreadsheet
    assert rows[0]["changes"] == "aromatic H to F"
    assert 0 <= float(rows[0]["activity: active"]) <= 1
    supplier = Chem.ForwardSDMolSupplier(io.BytesIO(files["sdf"].encode()))
    assert [Chem.MolToSmiles(mol) for mol in supplier] == [Chem.CanonSmiles(AMIDE), "CCO"]
    assert "<img src=x" not in files["html"]
    for wrong in ([], [{}] * 61):
        asked = ASKED | {"kind": "csv", "basket": wrong}
        assert client.post("/api/export", json=asked).status_code == 400


def test_twenty_requests_at_once_are_all_answered(client):
    answers = []

    def request(k):
        smiles = "C" * (k + 1) + "O"
        answers.append(client.post("/api/card", json=ASKED | {"smiles": smiles}).json())

    threads = [threading.Thread(target=request, args=(k,)) for k in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {len(answer["r"]) for answer in answers} == set(range(2, 22))


def test_only_models_of_molecules_are_shown():
    with pytest.raises(ValueError, match="reads digits"):
        OfferedModels(["mnist-superpixels"])
