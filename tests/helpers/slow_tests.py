"""The tests that `make test` leaves to `make test-slow`, chosen by how long they take.

.venv/bin/python -m pytest -n 3 --junitxml times.xml   # on two idle cores
python tests/helpers/slow_tests.py times.xml           # writes tests/data/slow_tests.txt anew
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

FILE = Path(__file__).resolve().parents[1] / "data" / "slow_tests.txt"
OF_EVERY_CHANGE = "tests/test_house.py"  # which any change may break
SECONDS = 1.5  # of all tests of a function; what is below takes four minutes on two cores


def slow_tests(times: Path) -> list[str]:
    """Return the functions, such as `tests/test_api.py::test_names`, whose tests take long.

    Those that were not run stay listed.
    """
    seconds = Counter[str]()
    for test in ElementTree.parse(times).getroot().iter("testcase"):
        path = test.attrib["classname"].replace(".", "/")
        seconds[f"{path}.py::{function_of(test.attrib['name'])}"] += float(test.attrib["time"])
    not_run = set(FILE.read_text().split()) - seconds.keys()  # of which nothing new is known
    slow = {name for name, each in seconds.items() if each > SECONDS}
    return sorted(name for name in slow | not_run if not name.startswith(OF_EVERY_CHANGE))


def function_of(test: str) -> str:
    """Return a test without its parameters."""
    return test.split("[")[0]


if __name__ == "__main__":
    FILE.write_text("".join(f"{name}\n" for name in slow_tests(Path(sys.argv[1]))))
