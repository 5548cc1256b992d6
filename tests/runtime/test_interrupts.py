"""An interrupt leaves nothing half loaded."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from graphxai.runtime import lazy
from graphxai.runtime.interrupts import interrupts_deferred, sigterm_handler_kept

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


def test_a_library_that_a_function_imports_is_loaded_in_one_piece(tmp_path, monkeypatch):
    """Otherwise Python forgets it, but not what its compiled parts have registered."""
    package = tmp_path / "late_library"
    package.mkdir()
    (package / "__init__.py").write_text("from late_library import part\nwhole = True\n")
    (package / "part.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(lazy, "LIBRARIES", {"late_library"})
    lazy.import_in_one_piece()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        import late_library

        assert late_library.whole
        time.sleep(10)
    loaded = sys.modules.pop("late_library")
    assert loaded.part is sys.modules.pop("late_library.part")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("prompt", ["", "sys.ps1 = '>>> '"])
def test_imports_are_watched_only_where_python_outlives_an_interrupt(prompt):
    """A script ends on Ctrl-C, so that nothing has to be whole, and its imports are as they are."""
    code = f"import sys; {prompt}\nimport graphxai\nprint(*map(type, sys.meta_path))"
    finders = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert ("graphxai" in finders) is bool(prompt)


def test_an_interrupt_of_our_import_takes_effect_before_the_next_library(tmp_path, monkeypatch):
    """A function may need several large libraries, and nobody waits for all of them."""
    ours = tmp_path / "our_package"
    ours.mkdir()
    (ours / "__init__.py").write_text(
        "from graphxai.runtime.lazy import lazily\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from .part import value as value\n"
        "__getattr__, __dir__, __all__ = lazily(__name__, __file__)\n"
    )
    (ours / "part.py").write_text("import first_library, second_library\nvalue = 1\n")
    (tmp_path / "first_library.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport its_own_library\n"
    )
    for name in ("its_own_library", "second_library"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(lazy, "OURS", "our_package")
    lazy.import_in_one_piece()
    import our_package

    with pytest.raises(KeyboardInterrupt):
        our_package.value  # noqa: B018
    assert "its_own_library" in sys.modules
    assert "second_library" not in sys.modules
    assert our_package.value == 1
    for name in ("our_package", "our_package.part", "first_library", "second_library"):
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


def test_a_library_that_takes_over_sigterm_does_not_keep_it():
    """Ray sets handlers that end the process without a word, while it starts and afterwards."""

    def stopped(number, frame):
        raise KeyboardInterrupt(number)

    def taken_over_and_stopped():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stopped)
    try:
        with pytest.raises(KeyboardInterrupt), sigterm_handler_kept():
            taken_over_and_stopped()
        assert signal.getsignal(signal.SIGTERM) is stopped
    finally:
        signal.signal(signal.SIGTERM, before)
