"""An input that changed after planning or reading never gets its rows mixed with others; a mere copy does no harm."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jobs.verify
from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, FingerprintError, SourceError
from pipeline.plan.job import Job, resolve_job
from pipeline.plan.units import Work
from pipeline.prompts.model_files import _resolved, check_same_model, resolved_model
from pipeline.sources import source_of
from pipeline.storage.local import LocalStorage
from pipeline.types import CommitRecord
from pipeline.worker.load_engine import load_engine
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor, MemoryStorage
from testing.pipeline.s3 import S3Server
from wedlm_core.file_digest import file_digest

LINES = 64
LINE_BYTES = 160_000
EDITED = 37
"""A line that no sample of the digest sees."""


def prompt(number: int, mark: str = "") -> str:
    return f"Count from {number} to {number + 3}.{mark}"


class BigJob(SmallJob):
    """An input of 10 MB; the digest sees less than half of it."""

    def __init__(self, folder: Path, model: Path) -> None:
        super().__init__(folder, model)
        self.source = folder / "big.jsonl"
        draw = random.Random(1)
        with self.source.open("w") as file:
            for number in range(LINES):
                row = {"prompt": prompt(number), "ballast": ""}
                row["ballast"] = draw.randbytes((LINE_BYTES - len(json.dumps(row)) - 1) // 2).hex()
                file.write(json.dumps(row).ljust(LINE_BYTES - 1) + "\n")
        self.config = replace(
            self.config, input=str(self.source), unit_rows=8, columns=[], sampling=SamplingParams(max_tokens=4),
            target_part_bytes=2**20,
        )  # fmt: skip

    def edit(self, keep_times: bool = False) -> None:
        """Another prompt of equal length in one line, in place."""
        before, digest = self.source.stat(), file_digest(self.source)
        with self.source.open("r+b") as file:
            file.seek(EDITED * LINE_BYTES)
            line = file.read(LINE_BYTES)
            file.seek(EDITED * LINE_BYTES)
            file.write(line.replace(prompt(EDITED).encode(), prompt(73).encode()))
        assert file_digest(self.source) == digest, "the digest does not see it"
        if keep_times:
            os.utime(self.source, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert self.source.stat().st_mtime_ns == before.st_mtime_ns
        assert self.source.stat().st_size == before.st_size


@pytest.fixture
def job(tmp_path: Path, qwen3_folder: Path) -> BigJob:
    return BigJob(tmp_path, qwen3_folder)


@pytest.mark.parametrize("keep_times", [False, True], ids=["plain", "with the old times"])
def test_an_edit_at_equal_size_between_runs_is_named(job: BigJob, keep_times: bool) -> None:
    job.run()
    job.edit(keep_times)
    with pytest.raises(
        FingerprintError, match=r"big\.jsonl.*rows 32 to 39.*its content changed.*Restore the file.*mode='new'"
    ):
        job.run()


def test_an_edit_between_an_interrupted_run_and_its_continuation_is_named(job: BigJob) -> None:
    job.stop_after(6)
    job.edit()
    with pytest.raises(FingerprintError, match="rows 32 to 39"):
        job.run()
    assert not list(Path(job.config.output).glob("data-*"))


def test_an_edit_of_what_was_not_read_yet_makes_an_output_of_one_version(job: BigJob) -> None:
    """All that is committed equals the file as it is now: so the output is of that version, and verify proves it."""
    job.stop_after(4)
    job.edit()
    job.run()
    assert job.problems() == ()


class EditsAfter(InlineExecutor):
    """Does something when so many units are committed, while others are still to be read."""

    def __init__(self, units: int, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._after, self._meanwhile = units, meanwhile

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        for number, task in enumerate(work.tasks):
            for unit in task.units:
                if number == 0 and unit.index == self._after:
                    self._meanwhile()
                yield from super().run_units(job, Work.of([unit]))


@pytest.mark.parametrize("after", [2, 6], ids=["before its rows are read", "after its rows were read"])
def test_an_edit_during_the_run_publishes_nothing_mixed(job: BigJob, after: int) -> None:
    executor = EditsAfter(after, job.edit)
    if after == 6:
        with pytest.raises(FingerprintError, match=r"rows 32 to 39.*its content changed"):
            job.run(executor)
        assert not list(Path(job.config.output).glob("data-*"))
    else:  # every row was read from a file that equals the present one
        job.run(executor)
        assert job.problems() == ()


def test_an_edit_that_the_digest_sees_ends_the_run_when_a_slice_is_read_late(
    tmp_path: Path, qwen3_folder: Path
) -> None:
    job = SmallJob(tmp_path, qwen3_folder)

    def edit() -> None:
        table = pq.read_table(job.source)
        topics = pa.array([*table["topic"].to_pylist()[:-1], "t9"])
        pq.write_table(table.set_column(1, "topic", topics), job.source, row_group_size=8)

    with pytest.raises(SourceError, match=r"a\.parquet: it was changed during the run\. Restore the file"):
        job.run(EditsAfter(2, edit))
    assert not list(Path(job.config.output).glob("data-*"))


def test_a_copy_or_a_checkout_of_the_same_content_goes_on(job: BigJob, caplog: pytest.LogCaptureFixture) -> None:
    job.stop_after(5)
    aside = job.source.with_suffix(".aside")
    shutil.copyfile(job.source, aside)
    os.replace(aside, job.source)  # another inode, other times
    executor = InlineExecutor()
    with caplog.at_level(logging.WARNING):
        job.run(executor)
    assert executor.units_done == 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert "touched or copied since the last run; 5 units read again, their rows are the same" in line
    caplog.clear()
    job.run()
    assert not caplog.records, "the new identity is known from then on"


def test_an_input_that_is_touched_or_removed_during_the_run_does_no_harm(
    job: BigJob, caplog: pytest.LogCaptureFixture
) -> None:
    job.run(EditsAfter(3, lambda: os.utime(job.source)))
    assert job.problems() == ()
    kept = job.source.read_bytes()
    with caplog.at_level(logging.WARNING):
        job.run(RemovesAtTheEnd(job.source), mode="new")
    assert [r.getMessage() for r in caplog.records if "gone since it was read" in r.getMessage()]
    job.source.write_bytes(kept)
    assert job.problems() == ()


class RemovesAtTheEnd(InlineExecutor):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        yield from super().run_units(job, work)
        self._path.unlink()


def test_verify_reads_again_what_the_prompts_came_from(job: BigJob, capsys: pytest.CaptureFixture[str]) -> None:
    """No column of the input is in the output; the edited prompt is found."""
    job.run()
    argv = [job.config.output, "--input", job.config.input]
    assert jobs.verify.main(argv) == 0
    printed = capsys.readouterr().out
    assert "proved: each row of the input is there" in printed
    assert "not proved: that the model gives these tokens" in printed
    assert jobs.verify.main(argv[:1]) == 0
    assert "not proved: that the rows are those of the input" in capsys.readouterr().out
    job.edit(keep_times=True)
    assert jobs.verify.main(argv) == 1
    printed = capsys.readouterr().out
    assert "rows 32 to 39 of 'big.jsonl': the input's rows are not those that were read for it" in printed
    assert "proved: each row" not in printed
    assert printed.endswith("NOT proven\n")


def test_an_object_that_is_replaced_during_the_run_is_noticed(s3: S3Server, tmp_path: Path, qwen3_folder: Path) -> None:
    bucket = s3.bucket("edited-inputs")
    import s3fs

    fs = s3fs.S3FileSystem(**s3.options)
    rows = pa.table({"prompt": [prompt(i) for i in range(24)]})
    edited = pa.table({"prompt": [prompt(i if i != 20 else 99) for i in range(24)]})
    url = f"{bucket}/in/a.parquet"

    def put(table: pa.Table) -> None:
        with fs.open(url, "wb") as file:
            pq.write_table(table, file, row_group_size=8)

    put(rows)
    config = RunConfig(
        input=url, output=str(tmp_path / "out"), model=str(qwen3_folder), unit_rows=4, storage_options=s3.options,
        sampling=SamplingParams(max_tokens=4),
    )  # fmt: skip
    job = SmallJob(tmp_path / "other", qwen3_folder)
    job.config = config
    with pytest.raises(SourceError, match="changed during the run"):
        job.run(EditsAfter(2, lambda: put(edited)))
    put(rows)
    job.run()  # the same bytes have the same ETag
    assert job.problems() == ()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_that_is_replaced_during_the_run_is_not_loaded(tmp_path: Path, qwen3_folder: Path, name: str) -> None:
    """Actors and tokenising tasks start late, and again after a death: each checks its model."""
    model = Path(shutil.copytree(qwen3_folder, tmp_path / "model"))
    config = RunConfig(input=[{"prompt": "a"}], output=str(tmp_path / "out"), model=str(model))
    job = resolve_job(config, source_of(config, LocalStorage(tmp_path / "out", layout.SCRATCH)), MemoryStorage())
    job = replace(job, model_digest=resolved_model(config).digest(config.engine.smoothing))
    check_same_model(config, job.model_digest)
    load_engine(job, 1)
    before = (model / name).read_bytes()
    (model / name).write_bytes(before + b"\n" if name.endswith("json") else before[:-1] + bytes([before[-1] ^ 1]))
    _resolved.cache_clear()  # another process
    with pytest.raises(ConfigError, match=r"has changed since the run began\. Restore it"):
        check_same_model(config, job.model_digest)
    if name.endswith("safetensors"):
        with pytest.raises(ConfigError, match="has changed since"):
            load_engine(job, 1)
