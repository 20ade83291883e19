"""Sweeps: the default run takes some of the cases, the slow one the others, and no case is in neither."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
SOURCE = """
import pytest

@pytest.mark.sweep(3)
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(2))
def test_of_many_cases(a, b): ...

@pytest.mark.sweep(3)
@pytest.mark.parametrize("a", range(2))
def test_of_few_cases(a): ...

@pytest.mark.parametrize("a", range(5))
def test_that_is_no_sweep(a): ...
"""
CONFTEST = """
import pytest
from testing.sweeps import mark_rest_as_slow

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_rest_as_slow(items)
"""


def run(pytester: pytest.Pytester, expression: str) -> set[str]:
    result = pytester.runpytest("-m", expression, "--collect-only", "-q", "-p", "no:cacheprovider")
    return {line for line in result.outlines if "::" in line}


def test_every_case_is_in_one_of_the_two_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SOURCE)
    pytester.makeconftest(CONFTEST)
    default, slow = run(pytester, "not slow"), run(pytester, "slow")
    assert len(default) == 3 + 2 + 5
    assert len(slow) == 8 - 3
    assert not default & slow
    assert run(pytester, "not slow") == default, "the same each time"


def test_no_sweep_of_this_run_is_larger_than_it_says(request: pytest.FixtureRequest) -> None:
    if "not slow" not in request.config.getoption("markexpr"):
        pytest.skip("a run that was told to take all of them")
    sweeps = {item.nodeid.partition("[")[0]: item for item in request.session.items if item.get_closest_marker("sweep")}
    for name, one in sweeps.items():
        found = sum(item.nodeid.partition("[")[0] == name for item in request.session.items)
        assert found <= one.get_closest_marker("sweep").args[0]
