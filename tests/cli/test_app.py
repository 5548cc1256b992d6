"""The command `graphxai app`."""

import re

import pytest

pytest.importorskip("uvicorn", reason="the extra `app` is not installed")


@pytest.fixture
def started(monkeypatch):
    """What the command listens on and opens; the server itself is interrupted at once."""
    found = {"opened": []}

    def serve(server, sockets):
        found["host"], found["port"] = sockets[0].getsockname()
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Server.run", serve)
    monkeypatch.setattr("webbrowser.open", found["opened"].append)
    return found


def test_the_page_is_served_to_this_machine_alone_at_a_new_address_each_time(run, started):
    addresses = []
    for _ in range(2):
        code, printed, errors = run("app")
        assert (code, errors) == (0, "")  # Ctrl-C is how it ends
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", printed)
        assert started["host"] == "127.0.0.1"
        assert f":{started['port']}/" in address
        addresses.append(address)
    assert started["opened"] == addresses
    assert len({address.partition("token=")[2] for address in addresses}) == 2


def test_no_browser_is_opened_unless_wished_and_pictures_are_refused(run, started):
    assert run("app", "--no-browser")[0] == 0
    assert started["opened"] == []
    code, _, errors = run("app", "--model", "mnist-superpixels")
    assert code == 1
    assert "models of molecules" in errors
