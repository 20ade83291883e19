"""Fixtures of the command lines' tests: no waiting for other processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testing.pipeline.pauses import no_pauses


@pytest.fixture(autouse=True, scope="module")
def no_waiting() -> Iterator[None]:
    """See :func:`no_pauses`."""
    with no_pauses():
        yield
