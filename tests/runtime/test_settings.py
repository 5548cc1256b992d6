"""A function takes the fields of its settings as keywords, and names those that do not exist."""

import inspect
from dataclasses import dataclass

import pytest

from graphxai.runtime.options import accepts, as_in, documented, option


@documented
@dataclass(frozen=True)
class BrewSettings:
    """What can be chosen for a brew."""

    minutes: int = option(3, "How long it steeps.", applies_to=None)
    milk: bool = option(False, "Add milk.", applies_to=None)


@dataclass(frozen=True)
class MugSettings:
    """What can be chosen for a mug, which holds a brew."""

    minutes: int = as_in(BrewSettings, "minutes", 5)
    milk: bool = as_in(BrewSettings, "milk")


@accepts(BrewSettings)
def brew(leaves, *, settings: BrewSettings, log=None):
    return leaves, settings, log


def test_keywords_go_to_the_settings():
    assert brew("green") == ("green", BrewSettings(), None)
    assert brew("green", milk=True, log=print) == ("green", BrewSettings(milk=True), print)


def test_a_keyword_takes_precedence_over_settings():
    chosen = BrewSettings(minutes=7, milk=True)
    assert brew("green", settings=chosen)[1] is not None
    assert brew("green", settings=chosen, minutes=1)[1] == BrewSettings(minutes=1, milk=True)
    assert chosen.minutes == 7


def test_a_wrong_name_is_named_with_the_right_one():
    with pytest.raises(TypeError, match=r"brew\(\) has no option 'minute': did you mean 'minutes'"):
        brew("green", minute=3)
    with pytest.raises(TypeError, match="they are minutes, milk"):
        brew("green", sugar=True)


def test_the_signature_and_the_docstring_show_every_option():
    parameters = inspect.signature(brew).parameters
    assert list(parameters) == ["leaves", "minutes", "milk", "settings", "log"]
    assert parameters["minutes"].default == 3
    assert "minutes: How long it steeps. By default 3." in BrewSettings.__doc__


def test_a_field_is_declared_once_for_several_classes():
    assert MugSettings() == MugSettings(minutes=5, milk=False)
    declared = {f.name: f.metadata for f in MugSettings.__dataclass_fields__.values()}
    assert declared["minutes"] == BrewSettings.__dataclass_fields__["minutes"].metadata


def test_reports_and_tables_say_which_option_was_meant(tmp_path):
    import graphxai as gx
    from graphxai.tables.run import explain_table, predict_table

    with pytest.raises(TypeError, match="did you mean 'detailed'"):
        gx.report("bace", ["CCO"], tmp_path / "r.html", detaild=3)
    with pytest.raises(TypeError, match="did you mean 'excel_safe'"):
        explain_table(None, "t.csv", tmp_path, None, excelsafe=True)
    with pytest.raises(TypeError, match="did you mean 'name_column'"):
        predict_table(None, "t.csv", None, names_column="ID")
