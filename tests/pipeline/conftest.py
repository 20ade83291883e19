"""Fixtures of the pipeline's tests: no waiting for other processes, and small jobs without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.pauses import no_pauses


@pytest.fixture(autouse=True, scope="module")
def no_waiting() -> Iterator[None]:
    """See :func:`no_pauses`."""
    with no_pauses():
        yield


@pytest.fixture
def make_job(tmp_path: Path, qwen3_folder: Path) -> Callable[[], SmallJob]:
    """Jobs on a local folder, each with an input and an output of its own."""
    numbers = iter(range(1000))
    return lambda: SmallJob(tmp_path / str(next(numbers)), qwen3_folder)


@pytest.fixture(scope="session")
def undisturbed_rows(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> list[dict[str, Any]]:
    """The data columns of a :class:`SmallJob`."""
    job = SmallJob(tmp_path_factory.mktemp("undisturbed"), qwen3_folder)
    job.run()
    return job.data()
