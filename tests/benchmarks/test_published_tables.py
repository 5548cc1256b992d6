"""The tables that one command writes into the pages."""

import pytest
import tables


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
    for script, page in tables.SCRIPTS.values():
        assert (tables.ROOT / "benchmarks" / script.split()[0]).exists()
        assert (tables.ROOT / "benchmarks" / page).exists()
