"""A crash before and after every operation on the outputs of a chain; a re-run equals an undisturbed one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import layout
from testing.pipeline.chains import NAMES, ChainExecutor, SmallChain
from testing.pipeline.fakes import FakeEngine
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Recorder, crash_points
from testing.pipeline.leases import expire_leases

Inject = Callable[..., None]
_DEFAULT = 4
"""Crash points that are tried by default, evenly spread."""


def run(chain: SmallChain, inject: Inject, **fields: Any) -> None:
    chain.run(ChainExecutor(), [FaultyStorage(storage, inject) for storage in chain.storages], **fields)


def crashed(chain: SmallChain, at: int, **fields: Any) -> None:
    inject = CrashAt(at)
    with pytest.raises(Killed):
        run(chain, inject, **fields)
    for storage in chain.storages:
        expire_leases(storage)


def check(chain: SmallChain, expected: dict[str, list[dict[str, Any]]]) -> None:
    assert chain.every() == expected
    assert chain.problems() == []
    for name, storage in zip(NAMES, chain.storages, strict=True):
        parts = Path(f"{chain.output}/{name}").glob("data-*/*.parquet")
        assert sum(pq.read_metadata(part).num_rows for part in parts) == len(expected[name])
        for left in (layout.STAGED, layout.PUBLISH, layout.SCRATCH):
            assert storage.keys(left) == []


def points(recorder: Recorder, every: bool) -> list[int]:
    found = crash_points(recorder.moments)
    return found if every else found[:: max(1, len(found) // _DEFAULT)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> dict[str, list[dict[str, Any]]]:
    chain = SmallChain(tmp_path_factory.mktemp("undisturbed"), qwen3_folder)
    chain.run()
    return chain.every()


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_crash_anywhere_in_a_new_chain(
    tmp_path: Path, qwen3_folder: Path, expected: dict[str, list[dict[str, Any]]], every: bool
) -> None:
    """All points take two minutes, hence slow."""
    recorder = Recorder()
    run(SmallChain(tmp_path / "whole", qwen3_folder), recorder)
    for at in points(recorder, every):
        chain = SmallChain(tmp_path / str(at), qwen3_folder)
        crashed(chain, at)
        chain.run()
        check(chain, expected)


@pytest.mark.slow(reason="a chain for each of some crash points: 14 s, minutes for every one")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_crash_anywhere_in_a_retry_that_changes_rows_of_both_stages(
    tmp_path: Path, qwen3_folder: Path, expected: dict[str, list[dict[str, Any]]], every: bool
) -> None:
    """All points take four minutes, hence slow."""

    class Refuses(FakeEngine):
        def add(self, request: Any) -> None:
            if sum(request.prompt_token_ids) % 4 == 0:
                raise RuntimeError("not this one")
            super().add(request)

    def failed(name: str) -> SmallChain:
        chain = SmallChain(tmp_path / name, qwen3_folder)
        chain.run(ChainExecutor(engine=Refuses))
        return chain

    recorder = Recorder()
    run(failed("whole"), recorder, retry_failed=True)
    for at in points(recorder, every)[:: 1 if every else 3]:
        chain = failed(str(at))
        crashed(chain, at, retry_failed=True)
        chain.run(retry_failed=True)
        check(chain, expected)
