"""The command `graphxai app` starts the server and opens a browser."""

import html
import os
import re
import stat
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

pytest.importorskip("uvicorn", reason="the extra `app` is not installed")


@pytest.fixture
def started(monkeypatch):
    """Record what the command listens on and opens, and interrupt the server at once."""
    started_app = {"opened": []}

    def serve(server, sockets):
        started_app["host"], started_app["port"] = sockets[0].getsockname()
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Server.run", serve)

    def opened(address):
        """Record what a browser is started with, and where the file that it names leads to."""
        file = Path(url2pathname(urlsplit(address).path))
        (leads_to,) = re.findall('href="(.*)"', file.read_text())
        private = stat.S_IMODE(file.parent.stat().st_mode) == 0o700 or os.name != "posix"
        started_app["opened"].append((address, html.unescape(leads_to), private, file))

    monkeypatch.setattr("webbrowser.open", opened)
    return started_app


def test_the_page_is_served_to_this_machine_alone_at_a_new_address_each_time(run, started):
    addresses = []
    for _ in range(2):
        code, printed, errors = run("app")
        assert (code, errors) == (0, "")  # Ctrl-C is how it ends
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", printed)
        assert started["host"] == "127.0.0.1"
        assert f":{started['port']}/" in address
        addresses.append(address)
    assert [leads_to for _, leads_to, _, _ in started["opened"]] == addresses
    assert len({address.partition("token=")[2] for address in addresses}) == 2


def test_a_port_that_no_machine_has_is_refused(run, started):
    code, _, errors = run("app", "--port", 65536)
    assert code == 2
    assert "less than or equal to 65535" in errors
    assert started == {"opened": []}


def test_the_key_is_in_no_command_line_and_no_file_of_others(run, started):
    """Everybody on a machine can read the command line with which a browser is started."""
    assert run("app")[0] == 0
    ((given, leads_to, private, file),) = started["opened"]
    key = leads_to.partition("token=")[2]
    assert key
    assert key not in given
    assert private
    assert not file.exists()  # the server has ended


def test_no_browser_is_opened_unless_wished_and_pictures_are_refused(run, started):
    assert run("app", "--no-browser")[0] == 0
    assert started["opened"] == []
    code, _, errors = run("app", "--model", "mnist-superpixels")
    assert code == 1
    assert "models of molecules" in errors
