"""The report works in a headless Chromium, by mouse and keys, and survives attacks."""

import csv
import io
import json
import time
import zlib
from base64 import b64encode
from itertools import pairwise

import pytest
from reports import page_of, read_report

import graphxai as gx
from browser import browsing, chromium
from graphxai.contract.tasks import Task
from graphxai.tables.files import guarded
from graphxai.visualization import Scale
from toy import random_graphormer

if chromium() is None:
    pytest.skip(
        "no Chromium on this machine (Debian: apt install chromium)", allow_module_level=True
    )
pytest.importorskip("websocket", reason="websocket-client is not installed")

ATTACK = "</script><img src=x onerror=\"document.title='attacked'\">"
MOLECULES = {
    "aspirin": "CC(=O)Oc1ccccc1C(=O)O",
    ATTACK: "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "verubecestat": "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",
    "slash/name": "CC(=O)Nc1ccc(O)cc1",
    "silane": "CCCCC[Si](C)(C)C",
    "known": "O1CC[C@@H](NC(=O)[C@@H](Cc2cc3cc(ccc3nc2N)-c2ccccc2C)C)CC1(C)C",
}
NAMES = "[...document.querySelectorAll('.card > :first-child')].map(b => b.textContent)"
FOCUS = "document.activeElement.textContent"


@pytest.fixture(scope="module")
def explained():
    return dict(zip(MOLECULES, gx.explain("bace", list(MOLECULES.values())), strict=True))


@pytest.fixture(scope="module")
def browser():
    with browsing() as page:
        page.size(1200, 900)
        yield page


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    return gx.report("bace", list(MOLECULES.values()), out, names=list(MOLECULES))


@pytest.fixture
def page(browser, path):
    browser.errors.clear()
    browser.requests.clear()
    browser.open(path)
    browser.wait("document.querySelectorAll('.card svg circle').length > 50")
    yield browser
    assert browser.errors == []
    assert browser.requests == [path.resolve().as_uri()]  # nothing else was asked for


def figure(page, relevance: float) -> str:
    """Return a relevance with as many decimals as the page's colour scale shows."""
    digits = f"{page.js('data.limit'):.2e}"
    return f"{relevance:+.{max(0, 2 - int(digits[5:]))}f}".replace("-", "−")


def place(name: str) -> str:
    return f'.card[data-place="{list(MOLECULES).index(name)}"]'


def test_names_are_shown_as_text_and_run_nothing(page):
    assert page.js(NAMES) == list(MOLECULES)
    assert page.js("document.title") == "bace: 6 molecules"
    assert page.js("document.querySelectorAll('img').length") == 0


def test_atoms_have_the_colour_of_their_relevance(page, explained):
    limit = page.js("data.limit")
    for name in ("aspirin", "verubecestat"):
        circles = f"[...document.querySelectorAll('{place(name)} circle')]"
        fills = page.js(f"{circles}.map(c => c.getAttribute('fill'))")
        expected = Scale(limit).hex(explained[name].relevance)
        for fill, colour in zip(fills, expected, strict=True):
            levels = [int(text[k : k + 2], 16) for text in (fill, colour) for k in (1, 3, 5)]
            assert max(abs(a - b) for a, b in zip(levels[:3], levels[3:], strict=True)) <= 1


def test_a_long_page_makes_its_cards_as_it_is_scrolled(browser, path, tmp_path):
    """The molecules of a small report are repeated, each under a name of its own."""
    data = read_report(path)
    repeated = [
        molecule | {"name": f"{molecule['name']} {k}", "row": len(MOLECULES) * k + at}
        for k in range(150)
        for at, molecule in enumerate(data["molecules"])
    ]
    for molecule in repeated:
        width, unit = len(data["features"]), 10 ** data["feature_decimals"]
        scaled = [value / unit for value in molecule["features"]]
        molecule["features"] = [scaled[i : i + width] for i in range(0, len(scaled), width)]
    long = tmp_path / "long.html"
    long.write_text(page_of(data | {"molecules": repeated, "map": None}, "long"), "utf-8")
    browser.errors.clear()
    browser.open(long)
    browser.wait("document.querySelectorAll('.card svg circle').length > 50")
    cards, total = "document.querySelectorAll('.card').length", len(repeated)
    browser.wait(f"{cards} === 300")
    assert browser.js("document.getElementsByTagName('*').length") < 20 * 300
    assert browser.js("openBlocks.length") <= 300 / 16 + 1  # what others show is still packed
    height = browser.js("byId('grid').getBoundingClientRect().height")
    places = "[...document.querySelectorAll('.card')].map(card => card.getBoundingClientRect().top)"
    first, second = sorted(set(browser.js(places)))[:2]
    space = "document.querySelector('.card').getBoundingClientRect().height"
    space += " + parseFloat(getComputedStyle(byId('grid')).rowGap)"
    assert second - first == pytest.approx(browser.js(space))  # no gap for cards to come
    browser.js("document.querySelector('.card > button').focus()")
    browser.key("End")
    assert browser.js(FOCUS) == repeated[-1]["name"]
    assert browser.js(cards) == total
    assert browser.js(NAMES) == [molecule["name"] for molecule in repeated]
    assert browser.js("byId('grid').getBoundingClientRect().height") == pytest.approx(height)
    browser.wait("document.querySelector('.card:last-child svg circle') !== null")
    atom = browser.js("aboutAtom(data.molecules.at(-1), 3).map(line => line.textContent).join()")
    last = gx.explain("bace", list(MOLECULES.values())[-1])
    strongest = abs(last.features[3]).argmax()
    assert last.feature_names[strongest] in atom
    assert figure(browser, last.features[3][strongest]) in atom
    browser.js("byId('search').value = 'silane'; arrange()")
    assert browser.js("shown.length") == 150
    browser.js("byId('search').value = ''; arrange()")
    assert browser.js(cards) < total / 2
    browser.js("window.scrollTo(0, document.body.scrollHeight)")
    browser.wait(f"{cards} === {total}")
    assert browser.errors == []


def test_pointing_at_an_atom_shows_its_relevance_features_and_fragment(page, explained):
    explanation = explained["aspirin"]
    page.hover(f'{place("aspirin")} circle[data-atom="3"]')
    page.wait("!byId('tip').hidden")
    text = page.js("byId('tip').innerText")
    assert figure(page, explanation.relevance[3]) in text
    strongest = abs(explanation.features[3]).argmax()
    assert explanation.feature_names[strongest] in text
    part = next(part for part in gx.fragments(explanation) if 3 in part.atoms)
    assert part.name in text
    marks = f"document.querySelectorAll('{place('aspirin')} .marks circle').length"
    assert page.js(marks) == len(part.atoms)
    page.hover("h1")
    page.wait("byId('tip').hidden")
    assert page.js(marks) == 0


def test_a_click_opens_the_ledger_methods_and_trust(page, explained):
    page.click(f"{place('aspirin')} .line")
    page.wait("byId('detail').open")
    text = page.js("byId('detail').innerText")
    ledger = explained["aspirin"].ledger
    for value in (ledger.nodes, ledger.graph_token, ledger.output):
        assert figure(page, value) in text
    for words in ("Do not rely on this prediction", "Gradient x Input", "Occlusion", "Nearest"):
        assert words in text
    page.hover('dialog svg.large circle[data-atom="0"]')
    page.wait("!byId('tip').hidden && byId('tip').closest('dialog') !== null")
    page.key("Escape")
    page.wait("!byId('detail').open")


def test_tautomers_are_drawn_instead_of_written(page, explained):
    tautomers = gx.trust("bace", explained["verubecestat"]).tautomers.structures
    assert tautomers
    page.click(f"{place('verubecestat')} .line")
    page.wait("byId('detail').open")
    drawn = "document.querySelectorAll('.structures svg:has(.structure)').length"
    assert page.js(drawn) == len(tautomers)
    assert not any(smiles in page.js("byId('detail').innerText") for smiles in tautomers)
    page.key("Escape")


def test_each_technical_word_is_explained_where_it_is_met(page):
    assert "is a logit: +0.7 doubles the odds" in page.js("byId('intro').innerText")
    page.click(f"{place('aspirin')} .line")
    page.wait("byId('detail').open")
    words = "document.querySelector('dialog details')"
    assert page.js(f"{words}.open") is False
    page.click("dialog details summary")
    page.wait(f"{words}.open")
    rows = page.js(f"[...{words}.closest('.block').querySelectorAll('th')].map(t => t.innerText)")
    explained_words = page.js(f"[...{words}.querySelectorAll('dt')].map(t => t.innerText)")
    assert explained_words == [
        "without nodes",
        "change",
        "centrality",
        "graph token",
        "biases",
        "unexplained",
    ]
    assert set(explained_words) < set(rows)


def test_numbers_of_a_colour_scale_do_not_touch(page):
    ends = """[...document.querySelectorAll('.bar .tick')].map((tick) => {
        const { left, right } = tick.getBoundingClientRect(); return [left, right]; })"""
    for limit in (0.017, 0.17, 0.31, 0.45, 1.7, 4.0, 17.0, 1700.0):
        ticks = [*Scale(limit).ticks()]
        page.js(f"byId('bar').replaceChildren(colourBar({limit}, {ticks}))")
        places = page.js(ends)
        assert len(places) >= 3
        for (_, right), (left, _) in pairwise(places):
            assert left > right + 3, limit


def test_figures_of_one_scale_have_one_format_and_zero_no_sign(page):
    shown = page.js("[1.2345, -0.05, 0.1, 123.456, 4e-4, -4e-4, 0].map(v => signed(v, 0.5))")
    assert shown == ["+1.234", "−0.050", "+0.100", "+123.456", "0.000", "0.000", "0.000"]
    assert page.js("[250, -31.2].map(v => signed(v, 250))") == ["+250", "−31"]
    cards = page.js("[...document.querySelectorAll('.card .soft')].map(c => c.innerText)")
    decimals = {len(card.rsplit(".", 1)[1]) for card in cards}
    assert len(decimals) == 1


def test_a_compound_like_the_training_compounds_gives_no_warning(page):
    badge = f"document.querySelector('{place('known')} .badge').className"
    assert page.js(badge) == "badge caution"  # near, but the model is not sure of its class
    assert page.js(f"document.querySelector('{place('silane')} .badge').className") == (
        "badge warning"
    )


def test_everything_can_be_reached_with_the_keyboard(page):
    page.js("byId('all').focus()")
    page.key("Tab")
    assert page.js(FOCUS) == "aspirin"
    page.key("ArrowRight")
    assert page.js(FOCUS) == ATTACK
    page.key("End")
    assert page.js(FOCUS) == "known"
    page.key("ArrowLeft")
    page.key("Enter")
    page.wait("byId('detail').open")
    assert page.js("byId('detail-title').textContent") == "silane"
    page.key("ArrowRight")
    page.wait("document.querySelector('.atom').textContent.startsWith('C 0: ')")
    page.key("ArrowRight")
    page.wait("document.querySelector('.atom').textContent.startsWith('C 1: ')")
    page.key("Escape")
    page.wait("!byId('detail').open")
    assert page.js(FOCUS) == "silane"
    assert page.js("getComputedStyle(document.activeElement.parentNode).boxShadow") != "none"


def test_tabs_follow_the_arrow_keys(page):
    page.js("byId('tab-molecules').focus()")
    for tab in ("map", "fragments"):
        page.key("ArrowRight")
        assert page.js("document.activeElement.id") == f"tab-{tab}"
    assert page.js("!byId('fragments').hidden && byId('molecules').hidden")
    page.key("ArrowRight")
    assert page.js("document.activeElement.id") == "tab-basket"
    page.key("ArrowRight")
    assert "Data." in page.js("byId('card').innerText")
    assert page.js("byId('tab-rejected').hidden")


def test_pairs_and_r_groups_are_sorted_and_lead_to_molecules(browser, tmp_path):
    rows = {"<b>": ("c1ccccc1CC", 5), "F": ("Fc1ccc(CC)cc1", 6), "Cl": ("Clc1ccc(CC)cc1", 7)}
    rows |= {"m-F": ("Fc1cccc(CC)c1", 4), "m-Cl": ("Clc1cccc(CC)c1", 6)}
    lines = [f"{name},{smiles},{value}" for name, (smiles, value) in rows.items()]
    (tmp_path / "series.csv").write_text("\n".join(["name,smiles,pIC50", *lines]))
    options = {"name_column": "name", "target": "pIC50", "detailed": 0}
    out = gx.report(
        random_graphormer(num_layers=1), tmp_path / "series.csv", tmp_path / "r.html", **options
    )
    browser.errors.clear()
    browser.open(out)
    browser.click("#tab-sar")
    first = "byId('sar').querySelector('tbody tr').textContent"
    for arrow, largest in (("▾", "+1.50"), ("▴", "−1.50")):  # H to Cl, Cl to F
        browser.js("byId('sar').querySelectorAll('thead button')[4].click()")
        browser.wait(f"byId('sar').querySelector('thead').textContent.includes('pIC50 {arrow}')")
        assert largest in browser.js(first)
    browser.wait("byId('sar').querySelectorAll('details[open] svg path').length > 20")
    browser.wait(
        "byId('sar').querySelector('details[open] thead').textContent.includes('CompoundR1')"
    )
    browser.js(
        "[...byId('sar').querySelectorAll('button')].find(b => b.textContent === '<b>').click()"
    )
    browser.wait("byId('detail-title').textContent === '<b>'")
    assert browser.errors == []


def test_sorting_follows_prediction_and_relevance(page, explained):
    page.choose("#sort", "prediction, high to low")
    by_activity = sorted(
        explained, key=lambda name: -explained[name].prediction.probabilities["active"]
    )
    assert page.js(NAMES) == by_activity
    page.choose("#sort", "sum over atoms, low to high")
    assert page.js(NAMES) == sorted(explained, key=lambda name: explained[name].ledger.nodes)
    page.choose("#sort", "name")
    assert page.js(NAMES)[-1] == "verubecestat"


def test_search_finds_names_and_smiles_and_filters_combine(page, explained):
    page.click("#search")
    page.type("SLASH/")
    page.wait(f"{NAMES}.length === 1")
    assert page.js(NAMES) == ["slash/name"]
    assert page.js("byId('count').textContent") == "1 of 6 molecules"
    page.js("byId('search').value = ''")
    page.type("S1(=O)")
    page.wait(f"{NAMES}.join() === 'verubecestat'")
    page.js("byId('search').value = ''")
    page.choose("#trust", "warning")
    warned = page.js(NAMES)
    assert "silane" in warned
    assert "known" not in warned
    page.choose("#trust", "")
    page.js("byId('low').focus()")
    page.type("0.3")
    likely = [n for n, e in explained.items() if e.prediction.probabilities["active"] >= 0.3]
    page.wait(f"{NAMES}.length === {len(likely)}")
    assert page.js(NAMES) == likely


def test_rows_with_structures_are_sorted_filtered_and_opened(page, explained):
    names = "[...document.querySelectorAll('#rows td:nth-child(2)')].map(c => c.textContent)"
    page.click("#as-table")
    page.wait("document.querySelectorAll('#rows svg circle').length > 50")
    assert page.js(names) == list(MOLECULES)
    head = "[...document.querySelectorAll('#rows th button')].find(b => b.textContent.startsWith"
    page.js(f"{head}('pIC50')).click()")
    values = {name: e.predictions[1].value for name, e in explained.items()}
    assert page.js(names) == sorted(values, key=lambda name: -values[name])  # numbers: large first
    page.js(f"{head}('pIC50')).click()")
    assert page.js(names) == sorted(values, key=lambda name: values[name])
    page.js("(s => { s.value = 'verube'; s.dispatchEvent(new Event('input')); })(byId('search'))")
    page.wait(f"JSON.stringify({names}) === '[\"verubecestat\"]'")
    page.click("#rows td:nth-child(2) button")
    page.wait("dialog.open")
    assert page.js("byId('detail-title').textContent") == "verubecestat"
    page.key("Escape")
    page.js("(s => { s.value = ''; s.dispatchEvent(new Event('input')); })(byId('search'))")
    page.click("#as-table")
    page.wait("document.querySelectorAll('.card').length === 6")


def test_a_fragment_leads_to_the_molecules_that_contain_it(page):
    page.click("#tab-fragments")
    page.click("#fragments .more")
    page.wait("!byId('fragment').hidden && !byId('molecules').hidden")
    smiles = page.js("fragment")
    expected = page.js(
        "data.molecules.filter(m => m.fragments.some(f => f[1] === fragment)).map(m => m.name)"
    )
    assert smiles
    assert page.js(NAMES) == expected
    page.click("#fragment")
    page.wait(f"{NAMES}.length === 6")


def test_the_palette_can_be_colour_blind_safe(page, explained):
    page.choose("#palette", "orange-purple")
    fill = page.js(f"document.querySelector('{place('aspirin')} circle').getAttribute('fill')")
    limit = page.js("data.limit")
    assert fill == Scale(limit, "orange-purple").hex(explained["aspirin"].relevance[:1])[0]


def test_scores_without_a_sign_and_equivalent_atoms_are_drawn_as_such(browser, tmp_path):
    nitrobenzene = "O=[N+]([O-])c1ccccc1"
    path = gx.report("bace", [nitrobenzene], tmp_path / "r.html", "saliency", detailed=0)
    browser.open(path)
    browser.wait("document.querySelectorAll('.card svg circle').length > 5")
    circles = "[...document.querySelectorAll('.card circle')].map(c => c.getAttribute('fill'))"
    fills = browser.js(circles)
    assert fills[0] == fills[2]
    for fill in fills:
        red, green, blue = (int(fill[k : k + 2], 16) for k in (1, 3, 5))
        assert green >= max(red, blue)
    assert browser.js("byId('bar').innerText").split("\n")[0] == "0"
    assert "sensitive to" in browser.js("byId('bar').innerText")
    assert "BACE-1 inhibition: " in browser.js("document.querySelector('.card').innerText")
    browser.js(
        "openMolecule(0); document.querySelector('svg.large').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
    )
    text = browser.js("byId('detail').innerText")
    assert "(sensitive to)" in text
    assert "O 0, O 2, which are equivalent by resonance" in text


def test_the_policy_stops_a_script_that_got_in(browser, path):
    browser.open(path)
    browser.js(
        "window.stopped = []; document.addEventListener('securitypolicyviolation',"
        " event => stopped.push(event.effectiveDirective))"
    )
    browser.js(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s); document.body.setAttribute('onclick', 'window.ran = 2');"
        " document.body.click(); fetch('https://example.org/').catch(() => 0);"
        " new Image().src = 'https://example.org/x.png'; })()"
    )
    browser.wait("stopped.length >= 4")
    stopped = {"script-src-elem", "script-src-attr", "connect-src", "img-src"}
    assert set(browser.js("stopped")) == stopped
    assert browser.js("window.ran === undefined")


def test_the_printed_page_has_all_molecules_fragments_and_the_card(page):
    pypdf = pytest.importorskip("pypdf")
    text = "".join(p.extract_text() for p in pypdf.PdfReader(io.BytesIO(page.pdf())).pages)
    for words in ("aspirin", "slash/name", "known", "Most positive", "BACE-1 inhibition"):
        assert words in text
    assert page.js("[...document.querySelectorAll('.card svg')].every(s => s.firstChild)")


def downloaded(page, folder) -> list[dict[str, str]]:
    """Click on the basket's button, and return the rows that it saves."""
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click("#csv")
    file = folder / "basket.csv"
    end = time.monotonic() + 10
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return list(csv.DictReader(file.open(newline="", encoding="utf-8")))


def test_chosen_molecules_leave_as_a_table_that_runs_no_formula(page, explained, tmp_path):
    page.click(f"{place('aspirin')} .keep")
    page.wait("byId('tab-basket').textContent === 'Basket (1)'")
    assert page.js("byId('detail').open") is False
    page.js("cards[4].firstChild.focus()")
    page.key("b")
    page.js("openMolecule(1)")
    page.click("dialog .keep")
    assert page.js("document.querySelector('dialog .keep').textContent") == "\u2713 In the basket"
    page.key("Escape")
    assert page.js("location.hash") == "#basket=1,5,2"
    page.js("data.molecules[4].name = '=HYPERLINK(\"x\"),1'; data.molecules[1].smiles = '@SUM(1)'")
    page.click("#tab-basket")
    rows = downloaded(page, tmp_path)
    assert [row["name"] for row in rows] == ["aspirin", '\'=HYPERLINK("x"),1', ATTACK]
    assert [row["smiles"] for row in rows][1:] == [MOLECULES["silane"], "'@SUM(1)"]
    assert float(rows[0]["sum over atoms"]) == pytest.approx(
        explained["aspirin"].ledger.nodes, 1e-4
    )
    assert rows[0]["trust"] == "warning"
    for row, name in zip(rows, ("aspirin", "silane", ATTACK), strict=True):
        value = explained[name].predictions[1].value
        assert float(row["pIC50"]) == pytest.approx(value, rel=1e-4)  # a number, not a sentence


def test_the_basket_is_guarded_as_other_tables_are(page):
    cells = ["=1", "+a", "-1.5", "-", "@x", "\tx", "3 -4", "a=1", "", "−2", "−x", 'a"b', "-1e5 x"]
    written = page.js(f"{json.dumps(cells)}.map(cell)")
    plain = [text.replace("−", "-") for text in cells]
    expected = guarded(dict(enumerate(plain)))
    assert next(csv.reader([",".join(written)])) == list(expected.values())


def test_a_basket_comes_back_with_its_address_and_can_be_emptied(page, path):
    page.js("location.hash = '#basket=6,3,99,<img>'")
    page.wait("byId('tab-basket').textContent === 'Basket'")
    page.js("location.hash = '#basket=6,3,99,1.5'")
    page.wait("byId('tab-basket').textContent === 'Basket (2)'")
    page.call("Page.reload")
    page.wait("document.readyState === 'complete' && basket.size === 2")
    page.requests.pop()  # the page itself, once more
    page.click("#tab-basket")
    assert page.js("byId('chosen').innerText").startswith("known")
    page.click("#chosen li:first-child .plain")
    assert page.js("[...basket.keys()]") == ["3"]
    page.click("#empty")
    assert page.js("basket.size === 0 && byId('exports').hidden && location.hash === ''")
    page.click("#tab-molecules")
    page.choose("#sort", "name")
    page.click("#all")
    assert page.js("basket.size") == len(MOLECULES)


def test_a_point_of_the_map_opens_its_molecule_by_mouse_and_keys(page):
    page.click("#tab-map")
    page.wait("document.querySelectorAll('#plot .point').length === 6")
    assert "no unit" in page.js("byId('plot').textContent")
    x, y = page.js("mapPlaces[5]")
    page.js("byId('plot').scrollIntoView({block: 'nearest'})")
    left, top, size = page.js(
        "(b => [b.left, b.top, b.width / byId('plot').viewBox.baseVal.width])"
        "(byId('plot').getBoundingClientRect())"
    )
    for kind in ("mousePressed", "mouseReleased"):
        at = {"x": left + size * x, "y": top + size * y}
        page.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
    page.wait("byId('detail').open")
    assert page.js("byId('detail-title').textContent") == "known"
    page.key("Escape")
    page.wait("!byId('detail').open && document.activeElement.id === 'plot'")
    page.js("pointAt([...mapPlaces.keys()].sort((a, b) => mapPlaces[a][0] - mapPlaces[b][0])[0])")
    seen = set()
    for _ in range(8):
        seen.add(page.js("mapAt"))
        page.key("ArrowRight")
    across = [page.js(f"mapPlaces[{at}][0]") for at in seen]
    assert len(seen) > 1
    assert page.js("mapPlaces[mapAt][0]") == max(across)
    name = page.js("nameOf(data.molecules[mapAt])")
    assert name in page.js("byId('map-molecule').innerText")
    page.key("b")
    assert page.js("document.querySelectorAll('#plot .kept rect').length") == 1
    page.key("Enter")
    page.wait("byId('detail').open")
    assert page.js("byId('detail-title').textContent") == name


def test_the_map_is_coloured_by_prediction_trust_or_a_fragment(page, explained):
    page.click("#tab-map")
    fills = "[...document.querySelectorAll('#plot .point')].map(p => p.getAttribute('fill'))"
    assert len(set(page.js(fills))) > 3
    ticks = "[...document.querySelectorAll('#map-key .tick')].map(t => t.textContent)"
    assert page.js(ticks) == ["0", "0.5", "1"]
    page.choose("#colour-by", "trust")
    assert "do not rely: " in page.js("byId('map-key').innerText")
    shapes = "p.tagName + (p.getAttribute('d') || '').replace(/[^a-z]/gi, '') + p.getAttribute('r')"
    points = f"[...document.querySelectorAll('#plot .point')].map(p => {shapes})"
    levels = page.js("data.molecules.map(levelOf)")
    assert len(set(page.js(points))) == len(set(levels)) > 1  # told apart without colours
    smiles = json.dumps(page.js("data.fragments.rows[0].smiles"))
    page.choose("#colour-by", f"*{json.loads(smiles)}")
    holds = f"m => m.fragments.some(f => f[1] === {smiles})"
    holding = page.js(f"data.molecules.filter({holds}).length")
    assert f": {holding}" in page.js("byId('map-key').innerText")
    page.click("#tab-molecules")
    page.click("#search")
    page.type("silane")
    page.wait(f"{NAMES}.length === 1")
    page.click("#tab-map")
    assert page.js("document.querySelectorAll('#plot .left').length") == 5


def test_fragments_are_ranked_per_atom_or_as_a_whole_on_axes_with_numbers(page):
    page.click("#tab-fragments")
    first = "[...document.querySelectorAll('#parts > div:first-child .part .mean')]"
    titles = f"{first}.map(p => p.textContent)"
    for column in ("per_atom", "mean"):
        page.choose("#ranking", column)
        rows = page.js(f"data.fragments.rows.map(r => [r.{column}[0], r.name])")
        ranked = sorted((row for row in rows if row[0] > 0), key=lambda row: -row[0])
        assert page.js(titles) == [name for _, name in ranked[:12]]
    rows = page.js("data.fragments.rows.map(r => [r.name, r.smiles])")
    assert not [name for name, smiles in rows if name == smiles]
    page.js("byId('parts').replaceChildren(range([0.3, 0.1, 0.5], 0.6))")
    svg = "document.querySelector('#parts .range')"
    assert page.js(f"[...{svg}.querySelectorAll('text')].map(t => t.textContent)") == [
        "−0.5", "0", "+0.5"
    ]  # fmt: skip
    at = {
        text: page.js(f"[...{svg}.querySelectorAll('text')][{k}].getAttribute('x') - 0")
        for k, text in enumerate((-0.5, 0, 0.5))
    }
    low, high = page.js(f"{svg}.querySelector('.interval').getAttribute('d').match(/[\\d.]+/g)")[
        ::2
    ]
    assert float(high) == pytest.approx(at[0.5], abs=0.1)
    assert float(low) == pytest.approx(at[0] + 0.2 * (at[0.5] - at[0]), abs=0.1)


def test_the_first_molecule_is_on_the_first_screen_of_a_phone(page):
    page.size(390, 844)
    try:
        page.wait("document.querySelector('details.fold').open === false")
        bottom = page.js("document.querySelector('.card').getBoundingClientRect().bottom")
        assert bottom <= 844
        page.click(".fold summary")
        page.wait("byId('search').getBoundingClientRect().height > 0")
    finally:
        page.size(1200, 900)
    page.wait("document.querySelector('details.fold').open")


def test_counterfactuals_are_shown_with_their_molecule_and_fill_the_basket(
    browser, tmp_path, monkeypatch
):
    monkeypatch.setattr("graphxai.tables.report.full_cards.PREDICTIONS", 30)
    smiles = "O=C(Nc1ccc(F)cc1)c1ccccn1"
    options = {"counterfactuals": 2, "towards": "pIC50: >9", "names": [ATTACK]}
    out = gx.report("bace", [smiles], tmp_path / "r.html", compared=(), **options)
    out.write_text(out.read_text().replace("aromatic H to", "\\u003cimg src=x onerror=alert(1)>"))
    browser.errors.clear()
    browser.open(out)
    browser.wait("document.querySelectorAll('.card svg circle').length > 5")
    assert browser.js("byId('tab-map').hidden")
    browser.js("openMolecule(0)")
    text = browser.js("byId('detail').innerText")
    assert "Towards pIC50 > 9: " in text
    counterfactual = browser.js("data.molecules[0].changes.found[0]")
    for words in (
        counterfactual["name"],
        counterfactual["prediction"],
        counterfactual["change"],
        f"similarity {counterfactual['similarity']}",
    ):
        assert words in text
    browser.click("dialog figure .keep")
    browser.js("dialog.close()")
    browser.click("#tab-basket")
    assert browser.js("location.hash") == "#basket=1.0"
    (row,) = downloaded(browser, tmp_path)
    assert (row["name"], row["smiles"], row["changes"]) == (
        ATTACK,
        counterfactual["smiles"],
        counterfactual["name"],
    )
    assert float(row["predicted change"]) == counterfactual["delta"]  # a number
    assert row["predicted change in words"] == counterfactual["change"].replace("−", "-")
    assert browser.js("document.querySelectorAll('img').length") == 0
    assert browser.errors == []


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_window(page, width):
    page.size(width, 800)
    try:
        for tab in ("#tab-molecules", "#tab-map", "#tab-fragments", "#tab-basket", "#tab-model"):
            page.click(tab)
            assert page.js("document.documentElement.scrollWidth") <= width
        page.click("#tab-molecules")
        page.click(f"{place('verubecestat')} .line")
        page.wait("byId('detail').open")
        assert page.js("byId('detail').scrollWidth") <= width
    finally:
        page.size(1200, 900)


def test_only_molecules_near_the_window_are_drawn(browser, tmp_path):
    smiles = ["C" * n for n in range(1, 16)] * 10
    path = gx.report("bace", smiles, tmp_path / "many.html", detailed=0)
    browser.errors.clear()
    browser.open(path)
    browser.wait("document.querySelectorAll('.card svg circle').length > 50")
    drawn = "[...document.querySelectorAll('.card svg')].filter(s => s.firstChild).length"
    browser.wait("document.querySelectorAll('.card').length === 150")
    assert browser.js(drawn) < 100
    browser.js("scrollTo(0, document.documentElement.scrollHeight)")
    browser.wait("cards[149].querySelector('circle') !== null")
    end = time.monotonic() + 10
    while browser.js("cards[0].querySelector('circle') !== null") and time.monotonic() < end:
        time.sleep(0.02)
    assert browser.js(drawn) < 100
    assert browser.errors == []


def test_a_saved_page_shows_its_picture_and_styles_and_runs_no_script(browser, tmp_path):
    explanation = gx.explain("bace", "CCO")
    path = explanation.save(tmp_path / "one.html")
    browser.errors.clear()
    browser.open(path)
    browser.wait("document.images[0].complete && document.images[0].naturalWidth > 100")
    shown = explanation.ledger._repr_html_().count("padding-left: 0.5em")
    indented_cells = (
        "[...document.querySelectorAll('details td')].filter(cell => cell.style.paddingLeft)"
    )
    assert (
        browser.js(f"{indented_cells}.filter(cell => cell.style.paddingLeft === '0.5em').length")
        == shown
    )
    assert browser.errors == []
    text = path.read_text().replace("</section>", "<script>document.title = 'ran'</script>")
    path.write_text(text)
    browser.open(path)
    browser.wait("document.images[0].complete")
    assert browser.js("document.title") != "ran"
    browser.errors.clear()


def test_a_point_of_measured_against_predicted_opens_its_molecule(browser, tmp_path):
    table = tmp_path / "assay.csv"
    rows = [f"{smiles},{6 + k / 2}" for k, smiles in enumerate(MOLECULES.values())]
    table.write_text("\n".join(["smiles,pIC50", "NCCC.CS(=O)(=O)O,99", *rows, "CCO,"]) + "\n")
    out = gx.report("bace", table, tmp_path / "r.html", target="pIC50", detailed=0)
    browser.errors.clear()
    browser.open(out)
    browser.wait("document.querySelectorAll('.card svg circle').length > 20")
    cards = "[...document.querySelectorAll('.card')].map(c => c.innerText)"
    card = browser.js(cards)[1 + list(MOLECULES).index("known")]
    assert "measured 8.5 · in validation" in card
    assert "measured" not in browser.js(cards)[-1]
    salt = gx.predict("bace", "NCCC.CS(=O)(=O)O")["pIC50"].note
    assert salt.startswith("salt removed")
    assert f"measured 99, outside the 90 % interval · {salt}" in browser.js(cards)[0]
    browser.click("#tab-measured")
    browser.wait("document.querySelectorAll('svg.measured circle').length === 7")
    lines = browser.js("byId('measured').innerText")
    assert "validation part of the model" in lines
    browser.click("svg.measured circle:last-of-type")
    browser.wait("byId('detail').open")
    assert "in validation" in browser.js("byId('detail').innerText")
    assert browser.errors == []


def test_all_properties_of_several_models_stand_on_card_row_and_in_the_dialog(browser, tmp_path):
    log_d = Task("log D", "regression", offset=2.0, scale=1.5)
    models = [random_graphormer(num_layers=1), random_graphormer(num_layers=1, tasks=(log_d,))]
    given = {"names": [ATTACK, "two"], "goal": "pIC50 > 7, log D 1 to 3", "detailed": 0}
    browser.open(gx.report(models, ["CCO", "c1ccccc1O"], tmp_path / "several.html", **given))
    browser.errors.clear()
    assert browser.js("document.querySelectorAll('.card .properties li').length") == 8
    browser.js("openMolecule(0)")
    browser.wait("dialog.open")
    shown = browser.js("dialog.textContent")
    for text in ("All properties", "What each model sees", "geometric mean", "together"):
        assert text in shown
    browser.js("dialog.close()")
    browser.click("#as-table")
    heads = browser.js("[...document.querySelectorAll('#rows th')].map(h => h.textContent)")
    assert heads[2:6] == ["activity", "pIC50", "log D", "Desirability"]
    assert browser.js("document.title") != "attacked"
    assert browser.errors == []


def test_the_page_tells_the_score_weights_and_card_of_every_model(browser, tmp_path):
    names = ("bace", "solubility")
    browser.open(gx.report(names, ["CCO"], tmp_path / "several.html", detailed=0))
    about = browser.js("byId('about').textContent")
    assert "come from this model. solubility also predicts" in about
    browser.click("#tab-model")
    told = browser.js("byId('model').innerText")
    heads = browser.js("[...document.querySelectorAll('#card h3')].map(h => h.textContent)")
    assert len(heads) == len(names)
    for model in map(gx.load, names):
        assert f"Model\t{model.origin.name}" in told
        assert f"Weights (SHA-256)\t{model.origin.sha256}" in told
    assert "Test score\tsolubility: R2" in told
    assert "Test score\tBACE-1 inhibition: ROC-AUC" in told


def test_the_page_unpacks_a_block_however_it_was_packed(page):
    ways = [(0, zlib.Z_DEFAULT_STRATEGY), (9, zlib.Z_DEFAULT_STRATEGY), (6, zlib.Z_FIXED)]
    ways.append((6, zlib.Z_HUFFMAN_ONLY))
    for text in ("", "a", "− Ωmega 🙂 " * 500, "".join(map(chr, range(32, 20_000))), "x" * 70_000):
        for level, strategy in ways:
            packer = zlib.compressobj(level, wbits=-15, strategy=strategy)
            packed = b64encode(packer.compress(text.encode()) + packer.flush()).decode()
            assert page.js(f"unpacked({json.dumps(packed)})") == text
