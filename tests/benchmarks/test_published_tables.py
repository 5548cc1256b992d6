"""The tables that one command writes into the pages."""

import pytest
import tables

from graphxai.runtime.download import data_root


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_page_of_a_table_has_a_place_for_it(name):
    for page in tables.TABLES[name].pages:
        text = (tables.ROOT / page).read_text(encoding="utf-8")
        _, _, rest = text.partition(f"<!-- made by make tables: {name} -->\n")
        assert "<!-- end -->" in rest, page


def test_a_table_is_written_between_its_marks_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- made by make tables: a -->\nold\n<!-- end -->\nafter\n")
    tables.write_block(page, "a", iter(["| 1 |", "", "* two", ""]))
    assert page.read_text() == (
        "before\n<!-- made by make tables: a -->\n| 1 |\n\n* two\n<!-- end -->\nafter\n"
    )
    with pytest.raises(ValueError, match="has no line '<!-- made by make tables: b -->'"):
        tables.write_block(page, "b", iter([]))


def test_every_script_with_tables_is_there():
    for script in tables.SCRIPTS.values():
        for call in (*script.calls, script.trial or script.calls[0]):
            assert (tables.ROOT / "benchmarks" / call.split()[0]).exists()
        assert (tables.ROOT / script.page).exists()


def block(name):
    """Return the lines that a page has between the marks of a script."""
    text = (tables.ROOT / tables.SCRIPTS[name].page).read_text(encoding="utf-8")
    _, _, rest = text.partition(f"<!-- made by make tables: {name} -->\n")
    return rest.partition("<!-- end -->")[0].splitlines()


NEEDED = {
    "moleculeace": "moleculeace/published.csv",
    "shares": "bace/raw/bace.csv",
    "removal": "bace/raw/bace.csv",
}


def with_data(*names):
    """Return the names, where those without their data at hand are skipped."""
    missing = {n: n in NEEDED and not (data_root() / NEEDED[n]).exists() for n in names}
    reason = "the data are not in $GRAPHXAI_DATA"
    return [pytest.param(n, marks=pytest.mark.skipif(missing[n], reason=reason)) for n in names]


@pytest.mark.parametrize("name", with_data("moleculeace", "own-data"))
def test_a_page_has_the_table_of_the_stored_results(name):
    printed = tables.printed_by(tables.SCRIPTS[name].trial.format(out="none"))
    assert tables.first_table(printed) == block(name)


@pytest.mark.parametrize("name", with_data("ways", "shares", "removal"))
def test_a_trial_makes_a_table_with_the_columns_of_the_page(name, tmp_path):
    printed = tables.printed_by(tables.SCRIPTS[name].trial.format(out=tmp_path))
    head, _, *rows = tables.first_table(printed)
    page = (tables.ROOT / tables.SCRIPTS[name].page).read_text(encoding="utf-8")
    first, *_ = block(name) or [line for line in page.splitlines() if line[:1] == "|"] or [head]
    assert first.startswith(head.removesuffix(" |"))
    assert all(len(row.split("|")) == len(head.split("|")) for row in rows)
    assert name == "ways" or rows
