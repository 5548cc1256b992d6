"""The app works in a headless Chromium, in several tabs, and after the server is restarted."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from browser import browsing, chromium

if chromium() is None:
    pytest.skip(
        "no Chromium on this machine (Debian: apt install chromium)", allow_module_level=True
    )
pytest.importorskip("websocket", reason="websocket-client is not installed")
pytest.importorskip("uvicorn", reason="the extra `app` is not installed")

import uvicorn
from rdkit import Chem

import graphxai as gx
from graphxai.datasets.canonical_form import smiles_with_groups
from graphxai.tables.app import overview, server
from graphxai.tables.app.answers import OfferedModels
from graphxai.tables.app.guard import PublicAddress
from graphxai.tables.app.page import block_of, read, smiles_of_block
from reverse_proxy import reverse_proxy
from toy import random_graphormer

AMIDE = "CC(=O)Nc1ccc(OC)cc1"
ATTACK = "</script><img src=x onerror=\"document.title='attacked'\">"
NODES = "document.querySelectorAll('#tree .node').length"
SHOWN = "byId('written').textContent"


@contextmanager
def serving(models, token, port=0, public=None):
    """Run the server in a thread, perhaps behind a proxy with an address, and yield its own."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        port = listener.getsockname()[1]
        app = server.application(models, token, port, public and PublicAddress.of(public))
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/?token={token}"
        finally:
            running.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def models():
    return OfferedModels([random_graphormer(num_layers=1)])


@pytest.fixture(scope="module")
def address(models):
    with serving(models, "a-token") as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    with browsing() as page:
        page.size(1200, 900)
        yield page


@pytest.fixture
def page(browser, address):
    browser.open("about:blank")
    browser.errors.clear()
    browser.requests.clear()
    browser.open(address)
    browser.wait("about !== null")
    yield browser
    assert browser.errors == []
    home = address.partition("?")[0]
    assert {url.startswith((home, "data:image/", "blob:")) for url in browser.requests} == {True}


def show(page, text):
    page.click("#smiles")
    page.js("byId('smiles').select()")
    page.type(text)
    page.key("Enter")


def start(page, smiles=AMIDE):
    show(page, smiles)
    page.wait(f"{SHOWN} === {json.dumps(smiles)}")
    page.wait("!byId('outlook').hidden")  # which moves what is below it


def atom(number):
    return f'#picture circle.hit[data-place="{number}"]'


def test_click_edit_lock_undo_and_contrast(page):
    start(page)
    assert "active" in page.js("byId('prediction').textContent")
    page.click(atom(8))
    page.wait("byId('options').children.length > 3")
    option = "[...document.querySelectorAll('#options button')].find(b => b.textContent.startsWith"
    page.wait(f"{option}('aromatic OCH3 to F')) !== undefined")
    page.js(f"{option}('aromatic OCH3 to F')).click()")
    page.wait(f"{SHOWN} === 'CC(=O)Nc1ccc(F)cc1' && {NODES} === 2")
    assert "points" in page.js("byId('tree').innerText")  # the change of the probability
    page.click("#undo")
    page.wait(f"{SHOWN} === {json.dumps(AMIDE)}")
    page.click("[aria-label='Contrast with aromatic OCH3 to F']")
    page.wait("!byId('contrast').hidden && byId('contrasted').naturalWidth > 100")
    page.click(atom(7))
    page.wait("byId('options').children.length > 0")
    page.click("#lock-part")
    page.wait("document.querySelectorAll('#picture .locked').length > 0")
    locked = page.js("current().locked")
    page.click("#redo")
    page.wait(f"{SHOWN} !== {json.dumps(AMIDE)}")
    page.click("#undo")
    page.wait(f"JSON.stringify(current().locked) === '{json.dumps(locked, separators=(',', ':'))}'")


def test_molecules_that_follow_at_once_all_get_a_prediction(page):
    page.js("for (const smiles of ['CCO', 'CCCO', 'CCCCO']) add(smiles, '', -1)")
    page.wait(f"{SHOWN} === 'CCCCO'")
    texts = "[...document.querySelectorAll('#tree .node')].map((node) => node.innerText)"
    page.wait(f"{texts}.length === 3 && {texts}.every((text) => text.includes('%'))")


def test_an_example_its_properties_a_goal_and_what_changes_do_to_all(page):
    page.wait("!byId('welcome').hidden")
    page.click("[data-example]")
    page.wait("!byId('outlook').hidden && byId('properties').children.length === 2")
    assert page.js("byId('welcome').hidden")
    assert page.js("byId('smiles').value") == page.js(SHOWN)  # the field follows what is shown
    set_field(page, "goal", "pIC50 1 to 3, active")
    page.wait("byId('desirability').textContent.startsWith('desirability 0.')")
    assert page.js("byId('properties').querySelectorAll('meter').length") == 2
    assert "geometric mean" in page.js("byId('goals').textContent")
    set_field(page, "name", ATTACK)
    assert page.js("byId('tree').querySelector('button').textContent").startswith(ATTACK)
    page.click(atom(5))
    page.wait("byId('options').querySelectorAll('svg').length > 3")  # a picture for each change
    assert "desirability" in page.js("byId('options').textContent")
    assert "pIC50" in page.js("byId('options').textContent")
    assert page.js("byId('wish').value") == "pIC50 1 to 3, active"
    page.click("#start")
    page.wait("byId('suggestions').textContent.includes('Pareto front')")
    page.click("#suggestions button")
    page.wait(f"{NODES} === 2 && byId('smiles').value === {SHOWN}")
    assert page.js("new URLSearchParams(location.hash.slice(1)).get('goal')")
    page.js("byId('properties').querySelectorAll('button')[1].click()")  # explained by its task
    page.wait("byId('prediction').textContent.startsWith('pIC50')")
    set_field(page, "goal", ATTACK)
    page.wait("byId('notice').textContent.includes('is not a goal')")
    page.errors[:] = [error for error in page.errors if "400" not in error]  # the answer above


def set_field(page, name, value):
    page.js(
        f"(field => {{ field.value = {json.dumps(value)}; field.dispatchEvent(new Event('change'));"
        f" }})(byId('{name}'))"
    )


def test_keys_alone_do_the_same(page):
    page.key("/")
    page.type(AMIDE)
    page.key("Enter")
    page.wait(f"{SHOWN} === {json.dumps(AMIDE)}")
    page.js("document.activeElement.blur()")
    page.key("p")
    first = page.js("document.activeElement.dataset.place")
    for _ in range(3):
        page.key("ArrowRight")
    assert page.js("document.activeElement.dataset.place") not in (first, None)
    page.key("Enter")
    page.wait("byId('options').children.length > 0")
    chosen = page.js("document.activeElement.dataset.place")
    page.key("l")
    page.wait("document.querySelectorAll('#picture .locked').length > 0")
    assert page.js("document.activeElement.dataset.place") == chosen  # from where arrows go on
    page.key("l")
    page.wait("document.querySelectorAll('#picture .locked').length === 0")
    page.wait("byId('options').children.length > 0")
    page.js("document.querySelector('#options button').focus()")
    page.key("Enter")
    page.wait(f"{NODES} === 2 && {SHOWN} !== {json.dumps(AMIDE)}")
    page.js("document.activeElement.blur()")
    page.key("u")
    page.wait(f"{SHOWN} === {json.dumps(AMIDE)}")


def test_suggestions_stream_in_and_can_be_cancelled(page, monkeypatch):
    start(page)
    reached, go_on, asked = threading.Event(), threading.Event(), []
    search = overview.search

    def slow(*args, **options):
        for predicted, best in search(*args, **options):
            asked.append(predicted)
            yield predicted, best
            if predicted:
                reached.set()
                go_on.wait(20)

    monkeypatch.setattr(overview, "search", slow)
    page.js("byId('wish').value = 'active'")
    page.click("#start")
    page.wait("byId('suggestions').children.length > 3")
    assert reached.wait(20)
    page.click("#cancel")
    go_on.set()
    page.wait("byId('progress').textContent.includes('Ended before') && byId('cancel').hidden")
    monkeypatch.setattr(overview, "search", search)
    page.click("#suggestions button")  # what had come can be tried
    page.wait(f"{NODES} === 2 && {SHOWN} !== {json.dumps(AMIDE)}")
    assert len(asked) <= 4  # of 11 steps
    page.js("byId('wish').value = 'purple'")
    page.click("#start")
    page.wait("byId('notice').textContent.includes('is not a goal')")
    page.js("byId('wish').value = 'active'")
    page.click("#sure")
    page.click("#start")
    page.wait("byId('notice').textContent.includes('how wrong the model is')")
    page.errors.clear()  # the answers above


def test_a_basket_is_kept_in_the_address_and_exported(page, tmp_path):
    start(page)
    page.click("#keep")
    page.wait("byId('basket').children.length === 1")
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    assert AMIDE in exported(page, tmp_path / "basket.csv")
    mol = Chem.MolFromMolBlock(exported(page, tmp_path / "basket.sdf"))
    assert Chem.MolToSmiles(mol) == Chem.CanonSmiles(AMIDE)
    assert "Chosen molecules" in exported(page, tmp_path / "basket.html")
    link = page.js("location.origin + '/' + location.hash")
    page.js("history.replaceState(null, '', location.pathname + location.search)")
    page.call("Page.reload")
    page.wait("document.readyState === 'complete' && about !== null && !current()")
    show(page, link)  # as a colleague would
    page.wait(f"{SHOWN} === {json.dumps(AMIDE)} && byId('basket').children.length === 1")
    assert "token" not in link


def exported(page, path):
    """Click on the button for this kind of file, and return what it saves."""
    page.click(f"[data-kind='{path.suffix[1:]}']")
    page.wait(f"!document.querySelector('[data-kind={path.suffix[1:]}]').disabled")
    for _ in range(100):
        if path.exists():
            break
        page.js("new Promise(done => setTimeout(done, 50))")
    return path.read_text()


def test_files_are_opened_by_button_and_by_drop_and_a_row_is_picked(page, tmp_path):
    structures, table = tmp_path / "two.sdf", tmp_path / "two.csv"
    table.write_text("name;structure\nethanol;CCO\namine;CCN\n")
    with Chem.SDWriter(str(structures)) as writer:
        for smiles in ("CCOC", "CC(=O)N"):
            writer.write(Chem.MolFromSmiles(smiles))
    page.call("DOM.enable")
    top = page.call("DOM.getDocument")["root"]["nodeId"]
    field = page.call("DOM.querySelector", nodeId=top, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", files=[str(structures)], nodeId=field)
    page.wait("byId('rows').children.length === 2 && byId('rows').innerText.includes('%')")
    page.click("#rows tr:last-child button")
    page.wait(f"{SHOWN} === 'CC(N)=O'")
    drop(page, {"items": [], "files": [str(table)], "dragOperationsMask": 1})
    page.wait("byId('table-name').textContent.startsWith('two.csv')")
    page.wait("byId('rows').innerText.includes('ethanol')")
    page.wait("byId('rows').innerText.includes('%')")  # which moves what is beside it
    page.click("#rows tr:first-child button")
    page.wait(f"{SHOWN} === 'CCO'")
    table.write_text("name,smiles\nethanol,CCO\nbroken,C1CC\nempty,\n")
    drop(page, {"items": [], "files": [str(table)], "dragOperationsMask": 1})
    for row, why in ((2, "'C1CC' cannot be read: ring 1"), (3, "the SMILES is empty")):
        page.wait(f"byId('rows').children[{row - 1}]?.innerText.includes('not readable')")
        page.click(f"#rows tr:nth-child({row}) button")
        page.wait(f"byId('notice').textContent.includes({json.dumps(why)})")
        assert page.js(f"{SHOWN} === 'CCO' && {NODES} === 2")
    page.errors.clear()  # the server refused both
    text = {"mimeType": "text/plain", "data": "CCCN"}
    drop(page, {"items": [text], "dragOperationsMask": 1})
    page.wait(f"{SHOWN} === 'CCCN'")


# what may go wrong on the way between two libraries: charges, stereo, aromatic rings, isotopes
DRAWN = ["C[C@H](N)C(=O)O", "C/C=C\\C(C)=O", "Cn1cnc2c1c(=O)n(C)c(=O)n2C", "C[N+](=O)[O-]",
         "[2H]C#N", "c1ccc2[nH]ccc2c1", "O=c1cc[nH]cc1", "C[C@]12CC[C@H](C1)CC2=O", "F/C=C/F",
         "CS(=O)(=O)c1ccsc1", "C[n+]1ccccc1", "O=C1CC[C@@H](c2ccc(Cl)cc2)N1", "CC=CC",
         "C[C@H](O)[C@@H](N)CO |&1:1,3|", "C[C@@H](F)C[C@H](C)Cl |o1:1,&1:4|"]  # fmt: skip


# how many pixels of the editor are dark
INKED = """(canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data
    .filter((value, k, all) => k % 4 === 0 && value < 150 && all[k + 3]).length)
    (byId('sketcher').firstChild.shadowRoot.querySelectorAll('canvas')[1])"""


def test_a_molecule_is_drawn_and_then_changed_in_the_editor(page):
    page.wait("sketching !== null && byId('sketcher').firstChild !== null")
    x, y = page.js("(r => [r.x, r.y])(byId('sketcher').getBoundingClientRect())")
    page.press(x + 33, y + 202)  # the tool for benzene
    page.press(x + 250, y + 200)
    page.click("#sketched")
    page.wait(f"{SHOWN} === 'c1ccccc1' && byId('sketch').hidden")
    page.click("#draw")
    page.wait("sketchedFrom.index === 0")
    page.wait(f"{INKED} > 100")  # it shows the molecule
    page.click("#sketched")  # nothing was changed
    page.wait("byId('sketch').hidden")
    page.js("sketch()")
    page.js("sketching.then(({ editor }) => editor.getMolecule().setAtomicNo(0, 7))")
    page.click("#sketched")
    page.wait(f"{SHOWN} === 'c1ccncc1' && {NODES} === 2")
    assert page.js("current().parent") == 0
    blocks = json.dumps([block_of(read(smiles)) for smiles in DRAWN])
    through = f"""sketching.then(({{ library }}) =>
        {blocks}.map((block) => library.Molecule.fromMolfile(block).toMolfileV3()))"""
    for smiles, block in zip(DRAWN, page.js(through), strict=True):
        assert smiles_of_block(block) == smiles_with_groups(Chem.MolFromSmiles(smiles))


def test_a_racemate_stays_one_when_it_is_typed_shown_again_and_drawn(page):
    racemate = "C[C@H](N)c1ccc(O)cc1 |&1:1|"
    start(page, f"{racemate}")
    assert "the mean over its 2 isomers" in page.js("byId('caption').textContent")
    page.click("#smiles")
    page.key("Enter")  # the field holds the molecule shown
    show(page, f"{racemate} my racemate")
    assert page.js(NODES) == 1
    page.click("#draw")
    page.wait("sketchedFrom.index === 0")
    page.js(
        "sketching.then(({ editor }) => { const m = editor.getMolecule(); for (let k = 0;"
        " k < m.getAllAtoms(); k++) if (m.getAtomicNo(k) === 8) m.setAtomicNo(k, 9); })"
    )
    page.click("#sketched")
    page.wait(f"{SHOWN} === 'C[C@H](N)c1ccc(F)cc1 |&1:1|'")
    show(page, "CCO  |  not an extension")
    page.wait(f"{SHOWN} === 'CCO'")
    assert page.js("labelOf(current())") == "|  not an extension"


def test_the_editor_is_as_published_with_its_licence():
    folder = files("graphxai.tables.app") / "openchemlib"
    row = re.compile(r"^\| `(\S+)` \| `\S+` \| `([0-9a-f]{64})` \|$", re.MULTILINE)
    recorded = dict(row.findall((folder / "README.md").read_text()))
    assert set(recorded) == {"openchemlib.js", "LICENSE"}
    for name, digest in recorded.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_rows_are_sorted_searched_and_filtered(page):
    names = "[...document.querySelectorAll('#rows td:nth-child(2)')].map(c => c.textContent)"
    table = "smiles,name,pIC50\nCCO,b,7\nCC(=O)NC,a,>3\nc1ccccc1O,c,5\nCCC(N)=O,d,9\n"
    page.js(f"open(new File([{json.dumps(table)}], 'assay.csv'))")
    page.wait("byId('rows').querySelectorAll('svg').length === 4")
    assert page.js("byId('row-heads').textContent").startswith("structuremoleculemeasured pIC50")
    page.js("sortRows('measured pIC50')")
    page.wait(f"JSON.stringify({names}) === JSON.stringify(['d', 'b', 'c', 'a'])")  # a bound last
    page.js("sortRows('predicted pIC50')")
    page.wait("byId('row-heads').textContent.includes('pIC50 ▾')")
    page.wait("table.rows.every(row => row.overview)")
    values = page.js("table.chosen.map(row => row.overview.cells[1].value)")
    assert values == sorted(values, reverse=True)
    page.js("sortRows('trust')")
    page.wait("byId('row-heads').textContent.includes('trust ▾')")
    page.wait("document.querySelectorAll('#rows td:last-child .badge').length === 4")
    level = page.js("trustOf(table.rows[0])[0]")
    page.choose("#row-trust", "good" if level != "good" else "warning")
    page.wait("!document.querySelector('#rows tr') || byId('row-count').textContent !== ''")
    assert page.js("table.chosen.every(row => trustOf(row)[0] === byId('row-trust').value)")
    page.choose("#row-trust", "")
    page.wait("table.chosen.length === 4")
    set_field(page, "row-smarts", "C(=O)N")
    page.wait(f"JSON.stringify({names}.sort()) === JSON.stringify(['a', 'd'])")
    page.js("(s => { s.value = 'a'; s.dispatchEvent(new Event('input')); })(byId('row-search'))")
    page.wait(f"JSON.stringify({names}) === JSON.stringify(['a'])")
    page.click("#rows button")
    page.wait("byId('properties').textContent.includes('measured > 3')")
    set_field(page, "core", "c1ccccc1")
    page.js("byId('series').open = true")
    page.wait("byId('sar').querySelectorAll('tbody svg').length === 1")
    page.click("#sar tbody button")
    page.wait(f"{SHOWN} === 'c1ccccc1O'")
    set_field(page, "row-smarts", "C(")
    page.wait("byId('notice').textContent.includes('is not a SMARTS')")
    page.errors[:] = [error for error in page.errors if "400" not in error]  # the answer above


def drop(page, data):
    for kind in ("dragEnter", "dragOver", "drop"):
        page.call("Input.dispatchDragEvent", type=kind, x=300, y=300, data=data)


def test_hostile_smiles_tables_and_links_run_nothing(page):
    start(page)
    show(page, ATTACK)
    page.wait("byId('notice').textContent.includes('is a reaction: give one molecule')")
    assert page.js(NODES) == 1
    quoted = ATTACK.replace('"', '""')
    table = f'name,smiles\n"{quoted}",CCO\nx,"{quoted}"\ny,CCN\n'
    page.js(f"open(new File([{json.dumps(table)}], {json.dumps(ATTACK + '.csv')}))")
    page.wait("byId('rows').children.length === 3")
    page.wait("byId('rows').innerText.includes('not readable')")
    page.click("#rows tr:first-child button")
    page.wait(f"{SHOWN} === 'CCO'")
    page.click("#keep")
    node = quote(json.dumps([-1, AMIDE, ATTACK, [0]]))
    page.js(f"restore({json.dumps(f'n={node}&n=[1]&n={{&at=9&model={quote(ATTACK)}')})")
    page.wait(f"{SHOWN} === {json.dumps(AMIDE)}")
    page.wait("byId('notice').textContent.includes('which is not offered here')")
    assert page.js("document.title") == "graphxai"
    assert page.js("document.querySelectorAll('img[src=x]').length") == 0
    assert page.js("typeof trustedTypes") == "object"
    page.errors[:] = [error for error in page.errors if "400" not in error]  # answers above


def test_methods_stand_side_by_side_and_the_target_is_chosen_in_place(page):
    start(page)
    page.js("byId('beside').open = true")
    page.wait("document.querySelectorAll('#sides input').length > 5")
    page.js("[...document.querySelectorAll('#sides input')].slice(1, 4).forEach(i => i.click())")
    page.wait("byId('panels').children.length === 3")
    assert page.js("byId('panels').querySelectorAll('svg circle').length") == 3 * 12
    page.choose("#target", json.dumps(["pIC50", ""], separators=(",", ":")))
    page.wait("byId('prediction').textContent.startsWith('pIC50')")
    assert "task=pIC50" in page.js("location.hash")


def test_the_page_works_in_a_folder_of_a_proxy(browser, models):
    with (
        reverse_proxy("/user/ann/proxy/8765/") as (page, behind),
        serving(models, "proxied", public=page) as address,
    ):
        behind.append(urlsplit(address).port)
        browser.errors.clear()
        browser.open(f"{page}?token=proxied")
        browser.wait("typeof about === 'object' && about !== null")
        browser.wait("sketching !== null && byId('sketcher').firstChild !== null")
        start(browser)
        assert browser.js("host.address('')") == f"{page}#"
        browser.click("#start")
        browser.wait("byId('suggestions').children.length > 2")
        browser.click("#cancel")
        assert browser.errors == []
        browser.js("open(new File(['smiles\\n' + 'CCO\\n'.repeat(250000)], 'long.csv'))")
        browser.wait("byId('notice').textContent.includes('a proxy on the way')")
        browser.errors.clear()


def test_twenty_tabs_at_once_all_show_their_molecule(page, address):
    tabs = []
    for k in range(20):
        node = json.dumps([-1, "C" * (k + 2) + "O", "", []])
        tabs.append(page.tab(f"{address}#n={node.replace(' ', '')}"))
    for k, tab in enumerate(tabs):
        tab.wait(f"typeof state === 'object' && {SHOWN} === '{'C' * (k + 2)}O'")
        assert tab.errors == []
        tab.call("Page.close")
        tab.close()


@contextmanager
def commanded(*given):
    """Run `graphxai app` in a process of its own, and yield it and the address that it prints."""
    command = [sys.executable, "-m", "graphxai", "app", "--no-browser", *given]
    root = str(Path(gx.__file__).parents[1])
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def test_a_server_that_was_killed_and_started_again_is_recognised(browser):
    with commanded() as (process, address):
        browser.open(address)
        browser.wait("about !== null")
        start(browser)
        port = address.split(":")[2].split("/")[0]
        process.kill()
        process.wait()
        browser.choose("#method", "gae")
        browser.wait("byId('notice').textContent.includes('does not answer')")
    assert browser.js(SHOWN) == AMIDE  # what was there stays
    link = browser.js("location.origin + '/' + location.hash")
    with commanded("--port", port) as (_, address):
        browser.choose("#method", "lrp_ah")
        browser.wait("byId('notice').textContent.includes('Start graphxai app again')")
        browser.open("about:blank")
        browser.open(address)
        browser.wait("about !== null")
        show(browser, link)
        browser.wait(f"{SHOWN} === {json.dumps(AMIDE)}")
    browser.errors.clear()  # of the requests in between


@pytest.mark.parametrize(("width", "height"), [(1200, 900), (390, 800)])
def test_nothing_is_wider_than_the_window(page, width, height):
    page.size(width, height)
    start(page, "C[C@H]1OC[C@@]2(N=C(N)SC[C@H]12)c1cc(NC(=O)c2cnc(cn2)C(F)F)ccc1F")
    assert page.js("document.documentElement.scrollWidth") <= width
    page.size(1200, 900)
