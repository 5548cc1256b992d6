"""Inputs that once were faults stay harmless."""

import pytest
from hostile import CHECKS, check, corpus


@pytest.mark.parametrize("kind", CHECKS)
def test_what_once_was_a_fault_is_none_now(kind, request):
    if kind == "model":
        request.getfixturevalue("only_relevance")
    for case in corpus():
        if case["kind"] == kind:
            try:
                check(kind, case["value"])
            except Exception as error:
                raise AssertionError(f"{case['why']}: {str(case['value'])[:200]}") from error
