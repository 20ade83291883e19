"""Sweeps: tests with more cases than the default run has time for."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence

import pytest

AT_EVERY = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow(reason="a run for every moment: 10 to 20 s"))],
    ids=["of each kind", "every"],
)  # fmt: skip
"""Gives a test ``every``, for :func:`testing.pipeline.faults.crash_points`: those of each kind by
default, all of them with the slow tests."""


def mark_rest_as_slow(items: Sequence[pytest.Item]) -> None:
    """Of each test with ``@pytest.mark.sweep(most)`` leave ``most`` cases to the default run; the others are slow.

    A checksum of their names picks them: the same in every process and run, and no value of a parameter is favoured.
    """
    sweeps: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep"):
            sweeps[item.nodeid.partition("[")[0]].append(item)
    for cases in sweeps.values():
        marker = cases[0].get_closest_marker("sweep")
        assert marker is not None
        (most,) = marker.args
        for item in sorted(cases, key=lambda item: zlib.crc32(item.nodeid.encode()))[most:]:
            item.add_marker(pytest.mark.slow)
