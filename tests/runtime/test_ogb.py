"""OGB is imported without its question to the network, and nothing else notices."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START = """
import importlib, os, sys, threading
os.environ.pop("OUTDATED_IGNORE", None)  # an import of OGB elsewhere in these tests sets it
threading.Thread.start = lambda thread: sys.exit("a thread was started")
"""
IMPORT = "import graphxai.datasets.features, ogb.utils.features\n"
CASES = {
    "no thread asks the network": "",
    "what imports `outdated` afterwards gets it": (
        "import outdated\noutdated.check_outdated('x', '1')"
    ),
    "its warnings are as before": "assert 'OUTDATED_IGNORE' not in os.environ",
    "a module that was imported before is kept": "assert sys.modules.get('outdated') is before",
}


@pytest.mark.parametrize("before", ["None", "importlib.import_module('outdated')"])
@pytest.mark.parametrize("check", CASES.values(), ids=CASES)
def test_importing_our_package_leaves_no_trace(check, before, tmp_path):
    """A stand-in for `outdated` is installed, since that package asks when it is imported, too."""
    (tmp_path / "outdated.py").write_text("def check_outdated(package, version): return False, '1'")
    path = f"sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\nbefore = {before}\n"
    code = START + path + IMPORT + check
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_our_package_the_thread_is_started(tmp_path):
    """This is what the other tests guard against."""
    (tmp_path / "outdated.py").write_text("def check_outdated(package, version): return False, '1'")
    code = START + f"sys.path.insert(0, {str(tmp_path)!r})\nimport ogb"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "a thread was started" in done.stderr
