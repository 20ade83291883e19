"""Fixtures of the pipeline's tests: no waiting for other processes, and small jobs without Ray."""

from __future__ import annotations

import functools
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
def _jobs_that_ran(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> Callable[[int | None], SmallJob]:
    @functools.cache
    def ran(units: int | None) -> SmallJob:
        job = SmallJob(tmp_path_factory.mktemp("ran"), qwen3_folder)
        if units is None:
            job.run()
        else:
            job.stop_after(units)
        return job

    return ran


@pytest.fixture
def make_job_that_ran(
    tmp_path: Path, qwen3_folder: Path, _jobs_that_ran: Callable[[int | None], SmallJob]
) -> Callable[..., SmallJob]:
    """Jobs as with ``make_job``, after a run to the end, or one that was stopped after so many units.

    Their outputs are copies of one, which takes a tenth of the time of a run. They share its input.
    """
    numbers = iter(range(1000))

    def make(units: int | None = None) -> SmallJob:
        return SmallJob(tmp_path / f"ran{next(numbers)}", qwen3_folder, like=_jobs_that_ran(units))

    return make


@pytest.fixture(scope="session")
def undisturbed_rows(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> list[dict[str, Any]]:
    """The data columns of a :class:`SmallJob`."""
    job = SmallJob(tmp_path_factory.mktemp("undisturbed"), qwen3_folder)
    job.run()
    return job.data()
