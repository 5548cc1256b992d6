"""The public names and their parameters are those that users were promised."""

from pathlib import Path

from graphxai.runtime.version import VERSION
from public_names import FILE, public_names


def test_public_names_and_their_parameters_are_the_promised_ones():
    promised = FILE.read_text(encoding="utf-8").splitlines()
    present = public_names().splitlines()
    gone = [line for line in promised if line not in present]
    new = [line for line in present if line not in promised]
    difference = {"no longer as promised": gone, "new": new}
    assert difference == {"no longer as promised": [], "new": []}, (
        "If this is meant, follow docs/about.md and run `python tests/helpers/public_names.py`."
    )


def test_the_version_to_cite_is_that_of_the_package():
    page = Path(__file__).parents[1] / "docs" / "about.md"
    assert f"version = {{{VERSION}}}" in page.read_text()
