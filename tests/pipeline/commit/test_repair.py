"""Published files that are missing or damaged: said when a run begins, and generated again where that is asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import jobs.generate
from pipeline import layout
from pipeline.commands.read import read
from pipeline.commit.lease import hold_lease
from pipeline.errors import ConfigError, DamagedError, OutputError, SinkError
from testing.pipeline.damage import FAULTS
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.s3 import S3Server

Rows = list[dict[str, Any]]


@pytest.fixture
def job(tmp_path: Path, qwen3_folder: Path) -> SmallJob:
    job = SmallJob(tmp_path, qwen3_folder)
    job.run(target_part_bytes=1)
    assert len(list(Path(job.config.output).glob("data-000000/*"))) == 6, "a part for each unit"
    return job


SHOWS = ("deleted", "empty", "cut in the middle", "the last byte is gone", "another file's content")
"""Damage that a listing shows; damage of the same size takes reading."""


@pytest.mark.sweep(5)
@pytest.mark.parametrize("what", ["part", "dead letters"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_published_file_is_named_and_its_rows_are_made_again_on_request(
    job: SmallJob, undisturbed_rows: Rows, what: str, fault: str
) -> None:
    key = "data-000000/part-000002.parquet" if what == "part" else job.storage.keys(layout.DEAD_LETTERS)[0]
    FAULTS[fault](job.storage, key)
    if fault in SHOWS:
        with pytest.raises(DamagedError, match=rf"{key}: .*Restore.*--repair") as caught:
            job.run()
        assert "\n" not in str(caught.value)
    else:
        job.run()
        assert any(key in problem for problem in job.problems()), "verify reads it"
    executor = InlineExecutor()
    job.run(executor, repair=True)
    assert executor.units_done == (1 if what == "part" else 2), "only the units whose rows are gone"
    assert job.data() == undisturbed_rows
    assert job.problems() == ()
    rows = pq.read_table(job.config.output)
    assert rows.num_rows == len(undisturbed_rows), "plain readers see each row once"
    job.run(executor := InlineExecutor(), repair=True)
    assert executor.units_done == 0


def test_a_whole_publication_that_is_gone_is_made_again(job: SmallJob, undisturbed_rows: Rows) -> None:
    job.storage.delete("data-000000")
    with pytest.raises(DamagedError, match=r"part-000000.*missing, with 8 rows.*and 3 more"):
        job.run()
    job.run(executor := InlineExecutor(), repair=True)
    assert executor.units_done == 6
    assert job.data() == undisturbed_rows
    assert job.problems() == ()


def test_a_repair_that_is_interrupted_goes_on_without_being_asked_again(job: SmallJob, undisturbed_rows: Rows) -> None:
    for number in (1, 4):
        job.storage.delete(f"data-000000/part-00000{number}.parquet")
    job.stop_after(1, repair=True)
    with pytest.raises(DamagedError, match="--repair"):
        job.run()
    job.run(executor := InlineExecutor(), repair=True)
    assert executor.units_done == 1
    assert job.data() == undisturbed_rows
    assert job.problems() == ()


def test_the_command_says_it_and_does_it(job: SmallJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.storage.delete("data-000000/part-000001.parquet")
    argv = ["--input", job.config.input, "--output", job.config.output, "--model", job.config.model,
            "--set", "unit_rows=4", "--set", "sampling.max_tokens=6", "--set", "sampling.n=2", "--quiet"]  # fmt: skip
    assert jobs.generate.main(argv) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert re.search(r"part-000001\.parquet: missing, with \d rows", said)
    assert "--repair" in said


def test_repair_and_a_new_run_contradict_each_other(job: SmallJob) -> None:
    with pytest.raises(ConfigError, match="repair"):
        job.run(repair=True, mode="new")


def test_the_same_on_an_object_store(s3: S3Server, tmp_path: Path, qwen3_folder: Path, undisturbed_rows: Rows) -> None:
    job = SmallJob(tmp_path, qwen3_folder, f"{s3.bucket('repair')}/out", s3.options)
    job.run(target_part_bytes=1)
    job.storage.delete("data-000000/part-000002.parquet")
    FAULTS["a bit is flipped"](job.storage, "data-000000/part-000004.parquet")
    with pytest.raises(DamagedError, match=r"part-000002\.parquet: missing"):
        job.run()
    job.run(executor := InlineExecutor(), repair=True)
    assert executor.units_done == 2
    for kind, state_fault in ((layout.RUN, "empty"), (layout.UNITS, "a bit is flipped")):
        for key in job.storage.keys(kind):
            FAULTS[state_fault](job.storage, key)
        job.run()
    assert job.data() == undisturbed_rows
    assert job.problems() == ()


def test_a_reader_during_a_replacement_is_told_to_read_again_not_to_repair(job: SmallJob) -> None:
    listed = read(job.config.output)
    with hold_lease(job.storage):
        job.storage.delete("data-000000")
        with pytest.raises(OutputError, match=r"process \d+ on .*Read again") as caught:
            listed.to_arrow()
    assert "repair" not in str(caught.value)
    with pytest.raises(DamagedError, match="--repair"):
        listed.to_arrow()
    job.run(repair=True)
    with pytest.raises(OutputError, match="a run published rows") as caught:
        listed.to_arrow()
    assert "repair" not in str(caught.value), "it was replaced by that run"
    assert read(job.config.output).to_arrow().num_rows > 0


@pytest.mark.parametrize("name", ["notes.txt", "x.parquet", ".DS_Store"])
def test_a_file_of_others_in_a_publication_stays_when_the_publication_is_replaced(job: SmallJob, name: str) -> None:
    foreign = Path(job.config.output, "data-000000", name)
    foreign.write_text("not ours")
    rows = read(job.config.output).to_arrow().num_rows
    job.run(retry_failed=True)
    job.run(retry_failed=True)
    assert foreign.read_text() == "not ours"
    assert sorted(path.name for path in foreign.parent.iterdir()) == [name]
    assert read(job.config.output).to_arrow().num_rows == rows
    assert [problem for problem in job.problems() if name not in problem] == []


@pytest.mark.parametrize("taken", ["data-000000-r001", "data-000000-r001/notes.txt"])
def test_a_file_of_others_under_the_name_of_a_publication_is_named_at_once(job: SmallJob, taken: str) -> None:
    foreign = Path(job.config.output, taken)
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("not ours")
    with pytest.raises(
        SinkError, match=r"data-000000-r001.*move them elsewhere|move them elsewhere.*data-000000-r001"
    ) as caught:
        job.run(retry_failed=True)
    assert "times, last" not in str(caught.value), "no other attempt could succeed"
    foreign.rename(job.source.parent / "elsewhere")
    job.run()
    assert job.problems() == ()
