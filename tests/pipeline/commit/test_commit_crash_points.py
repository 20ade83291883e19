"""A crash before and after every operation on the output, in every kind of run; a re-run equals an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.commands.read import read
from pipeline.commit import ledger
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Moment, Recorder, boundary, crash_points
from testing.pipeline.leases import expire_leases
from testing.repository import ROOT
from testing.sweeps import AT_EVERY

BAD = {3: "", 9: None}
ROWS = [{"prompt": BAD.get(i, f"Count from {i} to {i + 4}."), "topic": f"t{i % 3}"} for i in range(11)]
PUBLISHING = {"part", "dead letters", "list of units", "publication record", "promote", "manifest"}
LATER = [{"prompt": f"Count from {i} to {i + 4}.", "topic": "late"} for i in range(20, 25)]


class Case(SmallJob):
    """A job whose input may get further files; of another case the input is shared and the output copied."""

    def __init__(self, folder: Path, model: Path, like: Case | None = None) -> None:
        super().__init__(folder, model, like=like, rows=ROWS)
        self.config = replace(self.config, input=f"{self.source.parent}/*.parquet", target_part_bytes=6000)

    def add_file(self, name: str, rows: list[dict[str, Any]]) -> None:
        pq.write_table(pa.Table.from_pylist(rows), self.source.parent / name, row_group_size=4)

    def check(self, expected: list[dict[str, Any]]) -> None:
        """The published rows are the expected ones, to us and to plain readers, and nothing is left over."""
        assert self.data() == expected
        parts = sorted(Path(self.config.output).glob("data-*/*.parquet"))
        assert sum(pq.read_metadata(part).num_rows for part in parts) == len(expected)
        dead = read(self.config.output, table="dead_letters", format="arrow")
        assert dead.num_rows == sum(row["finish_reason"] == "error" for row in expected)
        for left in (layout.STAGED, layout.PUBLISH, layout.SCRATCH):
            assert self.storage.keys(left) == []


MakeCase = Callable[..., Case]


@pytest.fixture
def make(tmp_path: Path, qwen3_folder: Path) -> MakeCase:
    numbers = iter(range(10_000))
    return lambda *like: Case(tmp_path / str(next(numbers)), qwen3_folder, *like)


def crashes(
    make: MakeCase, prepare: Callable[[Case], None], until: str | None = None, *, every: bool = False,
    only: Collection[str] = (), **fields: Any,
) -> Iterator[tuple[Case, Moment]]:  # fmt: skip
    """For crash points of a run with ``fields`` on a prepared case: a fresh case whose run died there.

    ``until``: after this boundary it is a run like any other. ``every``: as in :func:`crash_points`. ``only``: at these
    boundaries.
    """
    prepared = make()
    prepare(prepared)
    whole, recorder = make(prepared), Recorder()
    whole.run(storage=FaultyStorage(whole.storage, recorder), **fields)
    assert len(recorder.moments) > 8
    for at in crash_points(recorder.moments, every=every):
        moment = recorder.moments[at]
        if boundary(moment) == until:
            return
        if only and boundary(moment) not in only:
            continue
        case = make(prepared)
        with pytest.raises(Killed):
            case.run(storage=FaultyStorage(case.storage, CrashAt(at)), **fields)
        expire_leases(case.storage)
        yield case, moment


@AT_EVERY
def test_a_first_run_that_dies_anywhere_is_completed_by_the_next(make: MakeCase, every: bool) -> None:
    undisturbed = make()
    undisturbed.run()
    expected = undisturbed.data()
    seen = set()
    for case, moment in crashes(make, lambda case: None, every=every):
        seen.add(boundary(moment))
        published = sorted(Path(case.config.output).glob("data-*/*"))
        assert not published or sum(pq.read_metadata(p).num_rows for p in published) == len(expected), "all or nothing"
        case.run(executor := InlineExecutor(), target_part_bytes=2**30)
        assert boundary(moment) not in PUBLISHING or executor.units_done == 0, "committed units are not done again"
        case.check(expected)
    assert seen >= {"lease", "state", "stage", "ledger", "part", "dead letters", "list of units",
                    "publication record", "promote", "manifest", "remove stage", "sweep"
                    }, "every boundary was crossed"  # fmt: skip


@AT_EVERY
def test_a_second_publication_that_dies_anywhere_leaves_the_first_and_is_completed(make: MakeCase, every: bool) -> None:
    def prepare(case: Case) -> None:
        case.run()
        case.add_file("b.parquet", LATER)

    undisturbed = make()
    prepare(undisturbed)
    undisturbed.run()
    expected = undisturbed.data()
    first = [row for row in expected if row["row_id"].startswith("a.")]
    for case, moment in crashes(make, prepare, every=every):
        there = read(case.config.output, format="arrow").num_rows
        assert there in (len(first), len(expected)), moment
        case.run()
        case.check(expected)


@AT_EVERY
def test_discarding_an_output_that_dies_anywhere_loses_no_row_of_the_next_run(make: MakeCase, every: bool) -> None:
    undisturbed = make()
    undisturbed.run()
    expected = undisturbed.data()
    for case, _ in crashes(make, lambda case: case.run(), until="state", every=every, mode="new"):
        case.run()
        case.check(expected)


@AT_EVERY
def test_a_compaction_of_the_ledger_that_dies_anywhere_forgets_nothing(
    make: MakeCase, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    undisturbed = make()
    undisturbed.run()
    expected = undisturbed.data()

    def prepare(case: Case) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ledger, "_COMPACT_SEGMENTS", 1000)
            with pytest.raises(Killed):
                case.run(storage=FaultyStorage(case.storage, _stop_at("publication record")))
        expire_leases(case.storage)

    monkeypatch.setattr(ledger, "_COMPACT_SEGMENTS", 1)
    for case, moment in crashes(make, prepare, until="part", every=every):
        case.run(executor := InlineExecutor())
        assert executor.units_done == 0, moment
        case.check(expected)


@AT_EVERY
def test_a_run_that_makes_a_snapshot_at_every_commit_and_dies_anywhere_is_completed(
    make: MakeCase, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    undisturbed = make()
    undisturbed.run()
    expected = undisturbed.data()
    monkeypatch.setattr(ledger, "_SNAPSHOT_ENTRIES", 1)
    monkeypatch.setattr(ledger, "_COMPACT_SEGMENTS", 1)

    def prepare(case: Case) -> None:
        with pytest.raises(Killed):
            case.run(storage=FaultyStorage(case.storage, _stop_at("publication record")))
        expire_leases(case.storage)

    own = {"ledger", "remove ledger", "snapshot", "remove snapshot", "list of units"}
    seen = set()
    for prepared in (lambda case: None, prepare):
        for case, moment in crashes(make, prepared, every=every, only=() if every else own):
            seen.add(boundary(moment))
            case.run()
            case.check(expected)
    assert seen >= {"snapshot", "remove snapshot"}


def _stop_at(name: str) -> Callable[[Moment], None]:
    def inject(moment: Moment) -> None:
        if boundary(moment) == name:
            raise Killed

    return inject


def test_runs_that_die_one_after_the_other_at_random_moments_end_in_the_same_rows(make: MakeCase) -> None:
    undisturbed = make()
    recorder = Recorder()
    undisturbed.run(storage=FaultyStorage(undisturbed.storage, recorder))
    expected = undisturbed.data()
    for seed in range(6):
        case, draw = make(), random.Random(seed)
        for _ in range(4):
            try:
                case.run(storage=FaultyStorage(case.storage, CrashAt(draw.randrange(len(recorder.moments)))))
            except Killed:
                expire_leases(case.storage)
        case.run()
        case.check(expected)


REAL_KILLS = [("ledger", True), ("part", True), ("publication record", True), ("promote", True), ("remove stage", True)]
"""Boundaries, and whether the signal comes after them."""


def test_processes_killed_by_signal_9_at_each_boundary_are_continued_by_others(make: MakeCase) -> None:
    undisturbed = make()
    undisturbed.run()
    cases = {kill: make() for kill in REAL_KILLS}
    lines = [
        f"{case.config.input}\t{case.config.output}\t{name}\t{int(after)}" for (name, after), case in cases.items()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "testing.pipeline.killed_runs", undisturbed.config.model], input="\n".join(lines),
        cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.split() == [str(-signal.SIGKILL)] * len(cases)
    for case in cases.values():
        case.run()  # the lease of a process of this machine that is dead does not count
        case.check(undisturbed.data())
