"""The app in a notebook shows two views on one page of marimo, in a headless Chromium."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

from browser import MIDDLE, browsing, chromium

if chromium() is None:
    pytest.skip(
        "no Chromium on this machine (Debian: apt install chromium)", allow_module_level=True
    )
pytest.importorskip("websocket", reason="websocket-client is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed (extra `notebook`)")
if find_spec("marimo") is None:  # its import takes long, and only the notebook needs it
    pytest.skip("marimo is not installed: pip install marimo", allow_module_level=True)

AMIDE = "CC(=O)Nc1ccc(OC)cc1"
NOTEBOOK = f"""
import marimo

app = marimo.App()


@app.cell
def _():
    from pathlib import Path
    import graphxai as gx
    from graphxai.tables.app import overview
    from toy import random_graphormer

    search = overview.search

    def counted(*args, **options):
        for found in search(*args, **options):
            with Path("steps.txt").open("a") as file:
                file.write(".")
            yield found

    overview.search = counted
    first = gx.explore(random_graphormer(num_layers=1), {AMIDE!r})
    first.observe(lambda change: Path("shown.txt").write_text(first.smiles), "link")
    first
    return first, gx


@app.cell
def _(first, gx):
    second = gx.explore(first._models["unnamed"], "CCO")
    second
    return
"""
# The shadow roots of all views, however deep a notebook nests them.
VIEWS = """window.views = (node = document) => [...node.querySelectorAll("*")].flatMap((one) =>
  one.className === "graphxai-view" ? [one.shadowRoot]
    : one.shadowRoot ? views(one.shadowRoot) : []);
window.at = (k, selector) => views()[k]?.querySelector(selector);"""
PATIENCE = 120.0  # seconds, for a kernel that imports torch


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Run a notebook, and yield its folder and the browser that shows it."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "notebook.py").write_text(NOTEBOOK)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    paths = os.pathsep.join([*map(str, sys.path), str(Path(__file__).parents[1] / "helpers")])
    command = [sys.executable, "-m", "marimo", "-q", "run", "notebook.py", "--headless"]
    process = subprocess.Popen(
        [*command, "--no-token", "--port", str(port)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        patiently(lambda: answers(address))
        with browsing() as page:
            page.size(1300, 1000)
            page.call("Page.navigate", url=address)
            page.js(VIEWS)
            patiently(lambda: page.js(f"{VIEWS} views().length === 2"))
            patiently(lambda: shown(page, 0) == AMIDE and shown(page, 1) == "CCO")
            yield folder, page
            assert page.errors == []
            home = (address, "data:", "blob:", "ws:")
            assert {url.startswith(home) for url in page.requests} == {True}
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def answers(address):
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except OSError:
        return False


def patiently(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def shown(page, view):
    return page.js(f"at({view}, '#written')?.textContent")


def click(page, view, selector):
    """Click on an element. If the page moved just before, so that the click missed, click again."""
    place = f"at({view}, {json.dumps(selector)})"
    page.js(
        f"window.hit = false; {place}.addEventListener('click', () => (window.hit = true),"
        " { once: true, capture: true })"
    )

    def pressed():
        page.press(*page.js(MIDDLE % (place, "center")))
        return page.js("window.hit")

    patiently(pressed)


def test_two_views_of_a_notebook_are_changed_apart(notebook):
    folder, page = notebook
    click(page, 0, '#picture circle.hit[data-place="8"]')
    patiently(lambda: page.js("at(0, '#options').children.length > 3"))
    assert page.js("at(1, '#options').children.length") == 0
    page.js(
        "[...at(0, '#options').querySelectorAll('button')]"
        ".find(b => b.textContent.startsWith('aromatic OCH3 to F')).click()"
    )
    patiently(lambda: shown(page, 0) == "CC(=O)Nc1ccc(F)cc1")
    patiently(lambda: (folder / "shown.txt").read_text() == "CC(=O)Nc1ccc(F)cc1")  # in Python
    assert shown(page, 1) == "CCO"
    click(page, 0, "h1")  # now the keys are the first view's
    page.key("u")
    patiently(lambda: shown(page, 0) == AMIDE)
    click(page, 1, "#smiles")
    page.type("CCN")
    page.key("Enter")
    patiently(lambda: shown(page, 1) == "CCN")
    assert shown(page, 0) == AMIDE
    click(page, 1, "#draw")  # the kernel sends the editor
    patiently(lambda: page.js("at(1, '#sketcher').childElementCount") == 1)


def test_suggestions_stream_into_a_notebook_and_can_be_cancelled(notebook):
    folder, page = notebook
    page.js("at(0, '#wish').value = 'active'")
    click(page, 0, "#start")
    patiently(lambda: page.js("at(0, '#suggestions').children.length > 3"))
    click(page, 0, "#cancel")
    patiently(lambda: "Ended before" in page.js("at(0, '#progress').textContent"))
    click(page, 1, '#picture circle.hit[data-place="1"]')  # the kernel answers others
    patiently(lambda: page.js("at(1, '#options').children.length > 0"))
    assert len((folder / "steps.txt").read_text()) < 11  # of 11


def test_a_view_follows_the_notebooks_colours(notebook):
    _, page = notebook
    assert page.js("getComputedStyle(at(0, 'section')).backgroundColor") == "rgb(255, 255, 255)"
    page.js("document.body.style.backgroundColor = 'rgb(10, 10, 10)'")  # whatever is above it
    page.js(
        "for (let n = views()[0].host; n; n = n.parentElement || n.getRootNode().host)"
        " n.style.background = n === document.body ? 'black' : 'none'"
    )
    page.js("document.documentElement.dataset.theme = 'dark'")
    patiently(
        lambda: page.js("getComputedStyle(at(0, 'section')).backgroundColor") == "rgb(30, 34, 40)"
    )
