"""An interrupt leaves nothing half loaded."""

import os
import signal
import sys
import threading

import pytest

from graphxai.runtime.interrupts import interrupts_deferred

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


def test_an_interrupt_waits_for_the_end_of_the_block():
    steps = []

    def interrupted():
        with interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("after the signal")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps == ["after the signal"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_module_that_is_interrupted_while_it_is_loaded_is_whole(tmp_path, monkeypatch):
    """As in a notebook where the first call of a function is stopped and made again."""
    package = tmp_path / "heavy_library"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from graphxai.runtime.lazy import lazily\n"
        "if TYPE_CHECKING:\n"
        "    from heavy_library.part import value\n"
        "__getattr__, __dir__, __all__ = lazily(__name__, __file__)\n"
    )
    (package / "part.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nvalue = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import heavy_library

    with pytest.raises(KeyboardInterrupt):
        heavy_library.value  # noqa: B018
    assert sys.modules["heavy_library.part"].value == 1
    assert heavy_library.value == 1
    for name in ("heavy_library.part", "heavy_library"):
        del sys.modules[name]


def test_other_threads_are_left_alone():
    handlers = []

    def work():
        with interrupts_deferred():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
