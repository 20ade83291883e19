"""Resources used by all calls of a run: added up over calls that end and calls that are killed, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.commands.run import run_on
from pipeline.commands.status import status
from pipeline.commands.summary import RunSummary
from pipeline.commit.usage import Usage, read_usage
from pipeline.config import RunConfig
from pipeline.progress.snapshot import ResourceSeconds
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor, MemoryStorage
from testing.pipeline.scheduled_table import ScheduledTable, prompts


def usage(storage: MemoryStorage, epoch: int, used: list[float], **more: Any) -> Usage:
    return Usage(storage=storage, **{"epoch": epoch, "since": 0, **more},
                 used=lambda: ResourceSeconds(accelerators=used[0], cpus=2 * used[0]))  # fmt: skip


def test_a_further_round_of_a_call_counts_what_the_call_has_used_once() -> None:
    storage, used = MemoryStorage(), [3.0]
    usage(storage, 1, [10.0]).save()
    usage(storage, 2, used).save()
    used[0] = 7.0
    again = usage(storage, 2, used)
    again.save()
    assert again.total.accelerators == read_usage(storage).accelerators == 17.0


def test_a_writer_that_was_taken_over_adds_nothing_twice() -> None:
    storage, asleep = MemoryStorage(), [10.0]
    first = usage(storage, 1, asleep)
    first.save()
    usage(storage, 2, [5.0]).save()
    asleep[0] = 90.0
    first.save()
    assert read_usage(storage).accelerators == 15.0


def test_a_call_that_uses_nothing_writes_nothing_and_a_discarded_run_does_not_count() -> None:
    storage = MemoryStorage()
    usage(storage, 1, [0.0]).save()
    assert storage.objects == {}
    usage(storage, 2, [4.0]).save()
    assert usage(storage, 3, [1.0], since=3).total.accelerators == 1.0


def test_a_damaged_record_is_as_none_and_a_store_that_refuses_it_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    usage(storage, 1, [4.0]).save()
    storage.objects[layout.usage(1)] = b"{"
    own = usage(storage, 2, [1.0])
    assert own.total.accelerators == 1.0

    def refuse(*args: Any) -> None:
        raise OSError("full")

    monkeypatch.setattr(storage, "put", refuse)
    own.save()


class Paid(InlineExecutor):
    """Each unit takes an hour of a GPU; it ends after so many units."""

    def __init__(self, units: int = 99) -> None:
        super().__init__()
        self._left = units

    def run_units(self, job: Any, work: Any) -> Any:
        for records in super().run_units(job, work):
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            yield records

    def used(self) -> ResourceSeconds:
        return ResourceSeconds(accelerators=3600.0 * self.units_done)


def test_a_run_that_continues_tells_this_call_and_all_of_them(tmp_path: Path, qwen3_folder: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n' * 40)
    config = RunConfig(input=str(tmp_path / "in.jsonl"), output=str(tmp_path / "out"), model=str(qwen3_folder),
                       unit_rows=8, price_per_hour=2.0)  # fmt: skip

    def go(executor: InlineExecutor) -> RunSummary:
        return run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)

    with pytest.raises(KeyboardInterrupt):
        go(Paid(units=3))
    summary = go(Paid())
    assert (summary.used.accelerators, summary.used_by_all.accelerators) == (2 * 3600.0, 5 * 3600.0)
    assert (summary.cost, summary.cost_of_all) == (4.0, 10.0)
    text = summary.describe()
    assert "Cost of this run: 7200.0 GPU-seconds" in text
    each = 18e9 / summary.total.completion_tokens
    assert f"Cost of all runs: 18000.0 GPU-seconds reserved by actors, {each:.1f} per million" in text
    assert "Cost of all runs: 18000.0" in go(Paid()).describe(), "also where nothing was left to do"
    assert status(config.output)["gpu_seconds"] == 18000.0


def test_rounds_of_a_scheduled_run_count_once(tmp_path: Path, qwen3_folder: Path) -> None:
    table = ScheduledTable(str(tmp_path / "table"), qwen3_folder)
    for number in range(4):
        table.put(f"{number}.parquet", prompts(number, 4))
    first = table.run(Paid(), max_files=1).summary
    assert first is not None
    assert first.used == first.used_by_all == ResourceSeconds(accelerators=4 * 3600.0)
    table.put("9.parquet", prompts(90, 4))
    second = table.run(Paid()).summary
    assert second is not None
    assert second.used_by_all.accelerators == 5 * 3600.0
