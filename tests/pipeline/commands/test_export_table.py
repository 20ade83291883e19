"""Publications in tables: one commit each, exactly once, whatever dies and whoever else writes there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.codec import Request, RequestError
from pipeline.commands.etl import etl_on
from pipeline.commands.etl_config import EtlConfig
from pipeline.commands.export_table import export_table
from pipeline.commands.read import read
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DamagedError, OutputError, SinkError
from pipeline.sinks.table_sink import ConflictError
from pipeline.storage.open import open_storage
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import FakeEngine, InlineExecutor
from testing.pipeline.faults import CrashAt, Killed, Moment, Recorder, crash_points
from testing.pipeline.s3 import S3Server
from testing.repository import ROOT
from testing.sweeps import AT_EVERY

pytest.importorskip("deltalake", reason="deltalake is not installed")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")

from testing.pipeline.tables import KINDS, Lake, sorted_rows


class PickyEngine(FakeEngine):
    """Refuses a third of the requests."""

    def add(self, request: Request) -> None:
        if request.seed % 3 == 0:
            raise RequestError("not this one")
        super().add(request)


def published(output: str | Path, options: Any = None) -> list[dict[str, Any]]:
    return sorted_rows(read(str(output), format="arrow", storage_options=options))


class Table:
    """A table that scheduled runs append to: two publications, the second with a column more."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.inputs, self.output = folder / "in", folder / "out"
        self.config = RunConfig(
            input=str(self.inputs), output=str(self.output), model=str(model), unit_rows=4, target_part_bytes=9000
        )  # fmt: skip

    def add(self, name: str, rows: list[dict[str, Any]], **fields: Any) -> None:
        self.inputs.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), self.inputs / name)
        etl_on(InlineExecutor(), EtlConfig(run=self.config, **fields), self.storage, lambda progress: None)

    @property
    def storage(self) -> Any:
        return open_storage(str(self.output), layout.SCRATCH)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> Path:
    """An output of two publications; the columns of the second are more."""
    table = Table(tmp_path_factory.mktemp("two"), qwen3_folder)
    table.add("a.parquet", [{"prompt": f"Count from {i}." if i != 3 else ""} for i in range(9)])
    table.add("b.parquet", [{"prompt": f"Count to {i}.", "more": [i]} for i in range(5)])
    return table.output


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A table that is not there."""
    return Lake(request.param, tmp_path / "lake")


def at_moments(output: Path | str, lake: Lake, *, every: bool = False) -> list[int]:
    """Moments of an export whose crash leaves another state; else the first and the last of each kind."""
    recorder = Recorder()
    lake.export_with(output, recorder)
    moments = [moment for moment in recorder.moments if moment.operation in ("fit", "commit")]
    assert len(moments) >= 4
    return crash_points(recorder.moments, every=every)


def check(lake: Lake, output: Path) -> None:
    """The rows of the output, one commit for each publication."""
    assert lake.rows() == lake.of(published(output))
    assert lake.committed() == ["data-000000", "data-000001"]


def test_each_publication_is_one_commit_and_another_export_makes_none(two: Path, lake: Lake) -> None:
    done = lake.export(two)
    check(lake, two)
    assert done.committed == ("data-000000", "data-000001")
    assert done.rows == len(published(two))
    before = sorted(lake.folder.rglob("*"))
    again = lake.export(two)
    assert (again.committed, again.rows, again.version) == ((), 0, done.version)
    assert sorted(lake.folder.rglob("*")) == before


def test_publications_come_one_after_the_other(qwen3_folder: Path, tmp_path: Path, lake: Lake) -> None:
    table = Table(tmp_path / "job", qwen3_folder)
    for at, rows in enumerate([[{"prompt": "a"}], [{"prompt": "b", "more": "x"}], [{"prompt": "c"}]]):
        table.add(f"{at}.parquet", rows)
        assert lake.export(table.output).committed == (f"data-{at:06d}",)
        assert lake.rows() == lake.of(published(table.output))
    table.add("1.parquet", [{"prompt": "d", "more": "y"}], on_changed="reprocess")
    (table.inputs / "0.parquet").unlink()
    table.add("3.parquet", [{"prompt": "e"}], on_changed="reprocess")
    done = lake.export(table.output)
    assert {name[:11] for name in done.committed} == {"data-000000", "data-000001", "data-000003"}
    assert lake.rows() == lake.of(published(table.output))
    assert len(lake.rows()) == 3


@AT_EVERY
def test_an_export_that_dies_anywhere_is_completed_by_the_next(two: Path, lake: Lake, every: bool) -> None:
    for at in at_moments(two, Lake(lake.kind, lake.folder / "whole"), every=every):
        own = Lake(lake.kind, lake.folder / str(at))
        with pytest.raises(Killed):
            own.export_with(two, CrashAt(at))
        if own.exists():
            assert len(own.rows()) in (9, 14), "all of a publication or nothing"
        own.export(two)
        check(own, two)


def test_processes_killed_by_signal_9_and_two_at_once_commit_each_publication_once(two: Path, tmp_path: Path) -> None:
    killed = [
        (Lake(kind, tmp_path / f"{kind}{at}"), str(at))
        for kind in KINDS
        for at in at_moments(two, Lake(kind, tmp_path / kind))[1::3]
    ]
    raced = [(Lake(kind, tmp_path / f"{kind}-raced"), "") for kind in KINDS]
    done = subprocess.run(
        [sys.executable, "-m", "testing.pipeline.tables", str(two)], cwd=ROOT, capture_output=True, text=True,
        input="\n".join(f"{lake.kind}\t{lake.folder}\t{at}" for lake, at in [*killed, *raced]), check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    ends = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert ends[: len(killed)] == [[-signal.SIGKILL]] * len(killed)
    assert [sum(counts) for counts in ends[len(killed) :]] == [2] * len(raced)
    for lake, _ in killed:
        lake.export(two)
    for lake, _ in [*killed, *raced]:
        check(lake, two)


@pytest.mark.parametrize("at", range(3))
def test_another_process_that_is_quicker_is_noticed(two: Path, lake: Lake, at: int) -> None:
    raced: list[Moment] = []

    def race(moment: Moment) -> None:
        if moment.key == "table" and not moment.after:
            raced.append(moment)
            if len(raced) == at + 1:
                lake.export(two)

    done = lake.export_with(two, race)
    assert len(raced) > at
    assert done.committed == ()
    check(lake, two)


def test_a_table_that_refuses_all_the_time_ends_the_export(two: Path, tmp_path: Path) -> None:
    def refuse(moment: Moment) -> None:
        if moment.operation == "commit":
            raise ConflictError("somebody else")

    with pytest.raises(SinkError, match="Others commit all the time"):
        Lake("delta", tmp_path).export_with(two, refuse)


@pytest.mark.parametrize(("method", "answer"), [("done", {}), ("fit", True)])
def test_a_sink_that_breaks_the_protocol_ends_the_export(two: Path, tmp_path: Path, method: str, answer: Any) -> None:
    sink = Lake("own", tmp_path).sink()
    setattr(sink, method, lambda *arguments: answer)
    with pytest.raises(SinkError, match=rf"rows.db: {method}\(\) "):
        export_table(two, sink, append=True)
    assert method == "fit" or len(Lake("own", tmp_path).rows()) == 9


@AT_EVERY
def test_a_revision_takes_the_place_of_the_rows_before_whatever_dies(
    make_job: Callable[[], SmallJob], lake: Lake, every: bool
) -> None:
    job = make_job()
    job.run(InlineExecutor(engine=PickyEngine))
    lake.export(job.config.output)
    kept = lake.folder.rename(lake.folder.with_name("kept"))
    before = published(job.config.output)
    job.retry()
    after = published(job.config.output)
    assert after != before

    def restored() -> Lake:
        shutil.rmtree(lake.folder, ignore_errors=True)
        shutil.copytree(kept, lake.folder)
        return lake

    for at in at_moments(job.config.output, restored(), every=every):
        with pytest.raises(Killed):
            restored().export_with(job.config.output, CrashAt(at))
        assert lake.rows() in (lake.of(before), lake.of(after))
        lake.export(job.config.output)
        assert lake.rows() == lake.of(after)
        assert lake.committed()[-1] == "data-000000-r001"


def test_a_discarded_run_is_another_output(make_job_that_ran: Callable[[], SmallJob], lake: Lake) -> None:
    job = make_job_that_ran()
    lake.export(job.config.output)
    job.run(mode="new")
    with pytest.raises(OutputError, match="or of this output before mode='new'"):
        lake.export(job.config.output)
    lake.export(job.config.output, append=True)
    assert lake.rows() == lake.of(sorted_rows(pa.Table.from_pylist(published(job.config.output) * 2)))


def test_damaged_files_are_not_taken(two: Path, tmp_path: Path, lake: Lake) -> None:
    shutil.copytree(two, tmp_path / "out")
    part = next((tmp_path / "out" / "data-000001").iterdir())
    data = part.read_bytes()
    part.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(DamagedError, match="SHA-256 differs"):
        lake.export(tmp_path / "out")
    assert len(lake.rows()) == 9
    part.unlink()
    with pytest.raises(DamagedError, match="missing"):
        lake.export(tmp_path / "out")
    part.write_bytes(data)
    lake.export(tmp_path / "out")
    check(lake, two)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1], pa.uint8()), "'x: uint8'"),
        (pa.array([1], pa.timestamp("ns")), r"'x: timestamp\[ns\]'"),
        (pa.array([1], pa.timestamp("ms")), r"'x: timestamp\[ms\]'.*another unit than us"),
        (pa.array([[{"t": 1}]], pa.list_(pa.struct([("t", pa.time64("us"))]))), "'x: list<.*time64"),
    ],
)
def test_columns_that_tables_lack_are_named(
    make_job: Callable[[], SmallJob], tmp_path: Path, column: pa.Array, words: str
) -> None:
    job = make_job()
    pq.write_table(pa.table({"prompt": ["a"], "topic": ["b"], "x": column}), job.source)
    job.run()
    for kind in ("delta", "iceberg"):
        lake = Lake(kind, tmp_path / kind)
        with pytest.raises(ConfigError, match=f"cannot hold columns .*{words}"):
            lake.export(job.config.output)
        assert not lake.exists()


def test_faults_of_the_caller(make_job: Callable[[], SmallJob], tmp_path: Path, two: Path) -> None:
    job = make_job()
    with pytest.raises(OutputError, match="no run was begun there"):
        export_table(job.config.output, tmp_path / "table")
    job.stop_after(1, output_format="jsonl")
    with pytest.raises(OutputError, match="nothing is published there"):
        export_table(job.config.output, tmp_path / "table")
    job.run(output_format="jsonl")
    with pytest.raises(ConfigError, match="output_format='jsonl': tables take Parquet files"):
        export_table(job.config.output, tmp_path / "table")
    with pytest.raises(ConfigError, match="lies inside the output"):
        export_table(two, two / "table")
    with pytest.raises(ConfigError, match="format='hudi': one of"):
        export_table(two, tmp_path / "table", format="hudi")
    with pytest.raises(ConfigError, match=r"table_options=.*a mapping"):
        export_table(two, "lake.rows", format="iceberg", table_options="uri")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Write NAMESPACE\.TABLE"):
        export_table(two, tmp_path / "table", format="iceberg")


@pytest.mark.parametrize("package", ["deltalake", "pyiceberg"])
def test_without_the_library_the_extra_is_named(two: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    format = {"deltalake": "delta", "pyiceberg": "iceberg"}[package]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'wedlm-batch\[{format}\]'"):
        export_table(two, "lake.rows", format=format)


def test_a_delta_table_on_a_store_also_by_processes_at_once(two: Path, s3: S3Server) -> None:
    table = f"{s3.bucket(f'b{uuid.uuid4().hex[:12]}')}/lake/table"
    code = ("import sys, json; from pipeline import export_table; o = json.loads(sys.argv[3]);"
            "print(len(export_table(sys.argv[1], sys.argv[2], to_storage_options=o).committed))")  # fmt: skip
    command = [sys.executable, "-c", code, str(two), table, json.dumps(s3.options)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as running:
        own = export_table(two, table, to_storage_options=s3.options)
        assert len(own.committed) + int(running.communicate()[0]) == 2
    assert export_table(two, table, to_storage_options=s3.options).committed == ()
