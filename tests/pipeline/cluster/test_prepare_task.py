"""Prefetch tasks whose processes die: the next process goes on where the last one was, and innocent rows are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline import layout
from pipeline.cluster import prepare_task
from pipeline.cluster.prepare_task import prepare_units, read_hints, unpack
from pipeline.codec import SamplingParams
from pipeline.config import RunConfig
from pipeline.errors import EngineDiedError
from pipeline.plan.job import resolve_job
from pipeline.plan.units import plan_units
from pipeline.prompts import tokenize
from pipeline.prompts.tokenize import prepare_rows
from pipeline.sources import source_of
from pipeline.storage.local import LocalStorage
from pipeline.worker.crash_bisection import CrashBisection
from pipeline.worker.lengths import kind_of


class Died(BaseException):
    """The process is gone."""


@pytest.fixture
def prepare(qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a task of three units of four rows in processes that die at their kth row; deaths, and the units."""
    config = RunConfig(input=[{"prompt": f"p{i}"} for i in range(12)], output=str(tmp_path), model=str(qwen3_folder))
    storage = LocalStorage(config.output, layout.SCRATCH)
    job = resolve_job(config, source_of(config, storage), storage)
    units = list(plan_units(job.sliced, 4, "f"))
    monkeypatch.setattr(prepare_task, "own_node", lambda: "")  # which asks Ray
    ran = 0

    def deadly(strikes: int) -> Any:
        def prepare_some(table: pa.Table, rows: Sequence[int], *more: Any) -> pa.Table:
            nonlocal ran
            ran += len(rows)
            if ran >= strikes:
                raise Died
            return prepare_rows(table, rows, *more)

        return prepare_some

    def run(strikes: int) -> tuple[int, list[pa.Table]]:
        nonlocal ran
        bisection = CrashBisection(2, max_engine_deaths=3)
        for module in (prepare_task, tokenize):
            monkeypatch.setattr(module, "prepare_rows", deadly(strikes))
        for deaths in range(100):
            ran = 0
            try:
                return deaths, [unpack(block) for block in list(prepare_units(units, job, bisection))[1::2]]
            except Died:
                continue
        raise AssertionError("it does not end")

    return run


def test_a_fault_of_the_kth_row_of_a_process_costs_no_row(prepare: Any) -> None:
    """Units that the last process had prepared are not prepared again, nor do they count as progress again."""
    expected = prepare(100)[1]
    for strikes in range(2, 13):
        deaths, found = prepare(strikes)
        assert found == expected, strikes
        assert deaths <= 2 * 12, strikes


def test_where_every_first_row_kills_the_task_ends(prepare: Any) -> None:
    with pytest.raises(EngineDiedError, match="processes in a row died while they read"):
        prepare(1)


def test_the_hints_of_a_unit_are_the_kinds_of_its_rows_that_an_engine_sees_too(
    qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rows: with a limit, without a limit, invalid, too long."""
    limits = [3, None, -1, 700]
    config = RunConfig(
        input=[{"prompt_token_ids": [7, 8, i], "limit": limit} for i, limit in enumerate(limits)], output=str(tmp_path),
        model=str(qwen3_folder), sampling_columns={"max_tokens": "limit"},
        sampling=SamplingParams(max_tokens=20, ignore_eos=True),
    )  # fmt: skip
    storage = LocalStorage(config.output, layout.SCRATCH)
    job = resolve_job(config, source_of(config, storage), storage)
    monkeypatch.setattr(prepare_task, "own_node", lambda: "")
    units = list(plan_units(job.sliced, 4, "f"))
    histogram, kinds = read_hints(next(prepare_units(units, job, CrashBisection(2, max_engine_deaths=3))))
    seen = [
        kind_of((7, 8, i), 3, SamplingParams(max_tokens=tokens, ignore_eos=True)) for i, tokens in enumerate((3, 20))
    ]  # fmt: skip
    assert sorted(kinds) == sorted(seen)
    assert not histogram, "with one actor the dispatcher has no choice"
