"""The report in a headless Chromium: mouse, keys, sorting, searching, printing, attacks."""

import io
import time

import pytest

import graphxai as gx
from browser import browsing, chromium
from graphxai.visualization import Scale

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
    "octane": "CCCCCCCC",
    "known": "O1CC[C@@H](NC(=O)[C@@H](Cc2cc3cc(ccc3nc2N)-c2ccccc2C)C)CC1(C)C",
}
NAMES = "[...document.querySelectorAll('.card button')].map(b => b.textContent)"
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
    """A relevance with as many decimals as the page's colour scale shows."""
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
    for words in ("Do not rely on this explanation", "Gradient x Input", "Occlusion", "Nearest"):
        assert words in text
    page.hover('dialog svg.large circle[data-atom="0"]')
    page.wait("!byId('tip').hidden && byId('tip').closest('dialog') !== null")
    page.key("Escape")
    page.wait("!byId('detail').open")


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
    assert page.js(f"document.querySelector('{place('octane')} .badge').className") == (
        "badge warning"
    )


def test_everything_can_be_reached_with_the_keyboard(page):
    page.js("byId('palette').focus()")
    page.key("Tab")
    assert page.js(FOCUS) == "aspirin"
    page.key("ArrowRight")
    assert page.js(FOCUS) == ATTACK
    page.key("End")
    assert page.js(FOCUS) == "known"
    page.key("ArrowLeft")
    page.key("Enter")
    page.wait("byId('detail').open")
    assert page.js("byId('detail-title').textContent") == "octane"
    page.key("ArrowRight")
    page.wait("document.querySelector('.atom').textContent.startsWith('C 0: ')")
    page.key("ArrowRight")
    page.wait("document.querySelector('.atom').textContent.startsWith('C 1: ')")
    page.key("Escape")
    page.wait("!byId('detail').open")
    assert page.js(FOCUS) == "octane"
    assert page.js("getComputedStyle(document.activeElement.parentNode).boxShadow") != "none"


def test_tabs_follow_the_arrow_keys(page):
    page.js("byId('tab-molecules').focus()")
    page.key("ArrowRight")
    assert page.js("document.activeElement.id") == "tab-fragments"
    assert page.js("!byId('fragments').hidden && byId('molecules').hidden")
    page.key("ArrowRight")
    assert "Data." in page.js("byId('card').innerText")
    assert page.js("byId('tab-rejected').hidden")


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
    assert "octane" in warned
    assert "known" not in warned
    page.choose("#trust", "")
    page.js("byId('low').focus()")
    page.type("0.3")
    likely = [n for n, e in explained.items() if e.prediction.probabilities["active"] >= 0.3]
    page.wait(f"{NAMES}.length === {len(likely)}")
    assert page.js(NAMES) == likely


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


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_window(page, width):
    page.size(width, 800)
    try:
        for tab in ("#tab-molecules", "#tab-fragments", "#tab-model"):
            page.click(tab)
            assert page.js("document.documentElement.scrollWidth") <= width
        page.click("#tab-molecules")
        page.click(f"{place('verubecestat')} .line")
        page.wait("byId('detail').open")
        assert page.js("byId('detail').scrollWidth") <= width
    finally:
        page.size(1200, 900)


def test_only_molecules_near_the_window_are_drawn(browser, tmp_path):
    smiles = ["C" * n for n in range(1, 31)] * 20
    path = gx.report("bace", smiles, tmp_path / "many.html", detailed=0)
    browser.errors.clear()
    browser.open(path)
    browser.wait("document.querySelectorAll('.card svg circle').length > 50")
    drawn = "[...document.querySelectorAll('.card svg')].filter(s => s.firstChild).length"
    assert browser.js("document.querySelectorAll('.card').length") == 600
    assert browser.js(drawn) < 100
    browser.js("scrollTo(0, document.documentElement.scrollHeight)")
    browser.wait("cards[599].querySelector('circle') !== null")
    end = time.monotonic() + 10
    while browser.js("cards[0].querySelector('circle') !== null") and time.monotonic() < end:
        time.sleep(0.02)
    assert browser.js(drawn) < 100
    assert browser.errors == []


def test_a_saved_page_shows_its_picture_and_styles_and_runs_no_script(browser, tmp_path):
    one = gx.explain("bace", "CCO")
    path = one.save(tmp_path / "one.html")
    browser.errors.clear()
    browser.open(path)
    browser.wait("document.images[0].complete && document.images[0].naturalWidth > 100")
    shown = one.ledger._repr_html_().count("padding-left: 0.5em")
    found = "[...document.querySelectorAll('details td')].filter(cell => cell.style.paddingLeft)"
    assert browser.js(f"{found}.filter(cell => cell.style.paddingLeft === '0.5em').length") == shown
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
    table.write_text("\n".join(["smiles,pIC50", *rows, "CCO,"]) + "\n")
    out = gx.report("bace", table, tmp_path / "r.html", target="pIC50", detailed=0)
    browser.errors.clear()
    browser.open(out)
    browser.wait("document.querySelectorAll('.card svg circle').length > 20")
    cards = "[...document.querySelectorAll('.card')].map(c => c.innerText)"
    known = browser.js(cards)[list(MOLECULES).index("known")]
    assert "measured 8.5 · in validation" in known
    assert "measured" not in browser.js(cards)[-1]
    browser.click("#tab-measured")
    browser.wait("document.querySelectorAll('svg.measured circle').length === 6")
    lines = browser.js("byId('measured').innerText")
    assert "validation part of the model" in lines
    browser.click("svg.measured circle:last-of-type")
    browser.wait("byId('detail').open")
    assert "in validation" in browser.js("byId('detail').innerText")
    assert browser.errors == []
