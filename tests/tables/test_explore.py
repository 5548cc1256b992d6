"""The app in a notebook answers the messages of a view, here without a browser."""

import asyncio
import base64
import sys
import threading
from html import escape

import pytest

pytest.importorskip("anywidget", reason="anywidget is not installed (extra `notebook`)")

import graphxai as gx
from graphxai.tables.app import overview
from graphxai.tables.app.answers import ANSWERS, Body, OfferedModels
from toy import random_graphormer

AMIDE = "CC(=O)Nc1ccc(OC)cc1"
ASKED = {"model": "unnamed", "method": "lrp", "task": "activity", "label": "active"}


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


@pytest.fixture
def view(model):
    return gx.explore(model, AMIDE)


def replies(view, messages, until=1):
    """Collect what the view sends back to a page, until so many requests are over."""
    received, senders = [], set()

    async def kernel():
        def send(content, buffers=None):
            received.append(content)
            senders.add(threading.current_thread())

        view.send = send
        for message in messages:
            view._handle_custom_msg(message, [])
        while sum("over" in reply or "error" in reply for reply in received) < until:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(kernel(), 60))
    assert senders == {threading.main_thread()}
    return received


def test_the_kernel_answers_as_the_server_does(model, view):
    asked = [("card", {"smiles": AMIDE}), ("changes", {"smiles": AMIDE, "place": [8]})]
    messages = [{"id": str(k), "name": n, "body": ASKED | b} for k, (n, b) in enumerate(asked)]
    all_replies = replies(view, messages, until=2)
    for k, (name, body) in enumerate(asked):
        value, over = (reply for reply in all_replies if reply["id"] == str(k))
        assert value["value"] == ANSWERS[name](OfferedModels([model]), Body(ASKED | body))
        assert over["over"]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"name": "card", "body": ASKED | {"smiles": "nonsense"}}, "cannot be read"),
        ({"name": "card", "body": ASKED | {"model": "../../etc/passwd"}}, "no model"),
        ({"name": "suggest", "body": ASKED | {"smiles": AMIDE, "towards": "blue"}}, "blue"),
        ({"name": "__class__", "body": {}}, "no request"),
        ({"name": ["card"], "body": "text"}, "no request"),
        ({}, "no request"),
    ],
)
def test_a_bad_message_is_answered_in_words(view, message, words):
    (reply,) = replies(view, [message | {"id": "1"}])
    assert words in reply["error"]


def test_a_search_streams_lets_others_in_and_stops_when_cancelled(view, monkeypatch):
    search, steps = overview.search, []

    def counted(*args, **options):
        for predicted, best in search(*args, **options):
            steps.append(predicted)
            yield predicted, best

    monkeypatch.setattr(overview, "search", counted)
    body = ASKED | {"smiles": AMIDE, "towards": "activity: active"}
    replies_sent = []

    async def kernel():
        view.send = lambda content, buffers=None: replies_sent.append(content)
        view._handle_custom_msg({"id": "search", "name": "suggest", "body": body}, [])
        view._handle_custom_msg({"id": "other", "name": "about", "body": {}}, [])
        while sum(reply["id"] == "search" for reply in replies_sent) < 2:
            await asyncio.sleep(0.001)
        view._handle_custom_msg({"id": "search", "cancel": True}, [])
        while not any(reply["id"] == "search" and "over" in reply for reply in replies_sent):
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(kernel(), 60))
    assert [reply["id"] for reply in replies_sent[:2]] == ["search", "other"]
    assert len(steps) <= 4  # of 11


def test_what_is_shown_can_be_read_and_set(model):
    view = gx.explore(model, [AMIDE, "CCO"])
    assert (view.smiles, view.basket) == (AMIDE, [])
    view.smiles = "CCN"
    assert view.smiles == "CCN"
    assert view.link.count("n=") == 3
    view.link += "&b=" + '["CCO", "ethanol", ""]'
    assert view.basket == [{"smiles": "CCO", "name": "ethanol", "changes": ""}]
    view.smiles = "CCCl"
    assert view.smiles == "CCCl"
    assert view.basket[0]["name"] == "ethanol"  # what was there stays
    with pytest.raises(ValueError, match="cannot be read"):
        view.smiles = "nonsense"
    with pytest.raises(ValueError, match="cannot be read"):
        gx.explore(model, "nonsense")
    assert gx.explore(model).smiles == ""
    with pytest.raises(ValueError, match="reads digits"):
        gx.explore("mnist-superpixels")


def test_the_script_loads_nothing_and_is_that_of_the_app(view):
    (sent, _) = replies(view, [{"id": "p", "name": "program"}])
    for script in (view._esm, sent["value"]):
        assert "http" not in script.replace("http://www.w3.org/2000/svg", "").replace("https?:", "")
        assert "import " not in script
    assert "byId" in sent["value"]


def test_without_anywidget_the_extra_is_named(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "graphxai.tables.app.widget", raising=False)
    with pytest.raises(ImportError, match=r"\.\[notebook\]"):
        gx.explore(model, AMIDE)


class Shown:
    """What a notebook shows of calls of `display`, and the request that runs."""

    def __init__(self):
        self.outputs, self.request = [], {}

    def display(self, data, **options):
        self.outputs.append(data)
        place = len(self.outputs) - 1
        handle = type("Handle", (), {})()
        handle.update = lambda data, **options: self.outputs.__setitem__(place, data)
        return handle

    def get_parent(self):
        return self.request

    def run(self, cell, number, view):
        self.request = {"metadata": {"cellId": cell}, "header": {"msg_id": str(number)}}
        view._ipython_display_()


@pytest.fixture
def shown(monkeypatch):
    """A notebook as far as it shows results."""
    shown = Shown()
    shown.kernel = shown
    monkeypatch.setattr("IPython.get_ipython", lambda: shown)
    monkeypatch.setattr("IPython.display.display", shown.display)
    return shown


def test_where_no_kernel_answers_a_picture_and_the_predictions_remain(model, shown):
    view = gx.explore(model, [AMIDE, "CCO"])
    view._ipython_display_()
    view.smiles = "CCN"  # the last molecule on view
    still, app = shown.outputs
    explained = gx.explain(model, "CCN")
    assert base64.b64decode(still["image/png"]) == explained._repr_png_()
    assert f"base64,{still['image/png']}" in still["text/html"]
    assert escape(explained.prediction.in_full) in still["text/html"]
    assert "Run the cell again" in still["text/html"]
    assert view.still in still["text/html"]  # by which the view hides it
    assert "application/vnd.jupyter.widget-view+json" in app
    gx.explore(model)._ipython_display_()
    assert len(shown.outputs) == 3


def test_a_notebook_stores_little_of_a_view_and_nothing_of_one_that_is_gone(model, shown):
    first = gx.explore(model, AMIDE)
    assert sum(len(str(value)) for value in first.get_state().values()) < 4_000
    shown.run("cell 1", 1, first)
    shown.run("cell 2", 2, first)
    second = gx.explore(model, AMIDE)
    shown.run("cell 1", 3, second)
    assert first.comm is not None  # cell 2 shows it
    shown.run("cell 2", 4, second)
    assert (first.comm, first.layout.comm) == (None, None)
    assert second.comm is not None
    with pytest.raises(NotImplementedError):  # which IPython takes for: show the text
        first._ipython_display_()
