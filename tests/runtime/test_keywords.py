"""Keywords that a function hands on as a whole are its own to whoever calls it."""

import inspect
from typing import TypedDict, Unpack

import pytest

import graphxai as gx
from graphxai.runtime.options import with_keywords


class Options(TypedDict, total=False):
    depth: int
    name: str


@with_keywords
def grown(start: int, *, by: int = 1, **options: Unpack[Options]) -> int:
    return start + by * options.get("depth", 1)


def test_every_keyword_stands_in_the_signature():
    assert list(inspect.signature(grown).parameters) == ["start", "by", "depth", "name"]
    assert "out" in inspect.signature(gx.evaluate).parameters


def test_a_keyword_that_does_not_exist_is_an_error():
    assert grown(1, by=2, depth=3) == 7
    with pytest.raises(TypeError, match=r"grown\(\) has no option 'dept': did you mean 'depth'"):
        grown(1, dept=3)
    with pytest.raises(TypeError, match="did you mean 'workers'"):
        gx.evaluate("bace", ["CCO"], worker=2)
