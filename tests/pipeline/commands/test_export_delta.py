"""Publications in a Delta table: one commit each, exactly once, whatever dies and whoever else writes there."""

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
from pipeline.commands.export_delta import export_delta
from pipeline.commands.read import read
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DamagedError, OutputError
from pipeline.sinks.delta_table import table_options
from pipeline.storage.open import open_storage
from testing.pipeline.delta import export_with, rows_of
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import FakeEngine, InlineExecutor
from testing.pipeline.faults import CrashAt, Killed, Moment, Recorder
from testing.pipeline.s3 import S3Server
from testing.repository import ROOT

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")


class PickyEngine(FakeEngine):
    """Refuses a third of the requests."""

    def add(self, request: Request) -> None:
        if request.seed % 3 == 0:
            raise RequestError("not this one")
        super().add(request)


def published(output: str | Path, options: Any = None) -> list[dict[str, Any]]:
    rows = read(str(output), format="arrow", storage_options=options).to_pylist()
    return sorted(rows, key=lambda row: (row["row_id"], row["sample_index"]))


def log(table: str | Path) -> list[list[dict[str, Any]]]:
    """The actions of each version."""
    files = sorted(Path(table, "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def count(actions: list[dict[str, Any]], kind: str) -> int:
    return sum(kind in action for action in actions)


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


@pytest.fixture(scope="module")
def moments(two: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Moment]:
    """Every moment of an export to a new table."""
    recorder = Recorder()
    export_with(str(two), str(tmp_path_factory.mktemp("whole") / "table"), recorder)
    assert {moment.operation for moment in recorder.moments} == {
        "create table", "add columns", "commit", "create", "close",
    }  # fmt: skip
    return recorder.moments


def check(table: str | Path, output: Path) -> None:
    """The rows of the output, one commit for each publication, and only files that were published."""
    assert rows_of(str(table)) == published(output)
    commits = [actions for actions in log(table) if count(actions, "txn")]
    assert len(commits) == 2
    assert [count(actions, "add") for actions in commits] == [
        len(list(folder.iterdir())) for folder in sorted(output.glob("data-*"))
    ]


def test_each_publication_is_one_commit_and_all_readers_see_its_rows(two: Path, tmp_path: Path) -> None:
    done = export_delta(two, tmp_path / "table")
    check(tmp_path / "table", two)
    assert done.committed == ("data-000000", "data-000001")
    assert done.rows == len(published(two))
    history = deltalake.DeltaTable(str(tmp_path / "table")).history()
    assert [entry.get("wedlm.publication") for entry in history][:1] == ["data-000001"]
    duckdb = pytest.importorskip("duckdb")
    lake = deltalake.DeltaTable(str(tmp_path / "table")).to_pyarrow_dataset()  # noqa: F841  # DuckDB finds it
    assert duckdb.sql("select count(*), count(more) from lake").fetchall() == [(len(published(two)), 5)]


def test_exporting_again_does_nothing(two: Path, tmp_path: Path) -> None:
    first = export_delta(two, tmp_path / "table")
    before = sorted(path for path in (tmp_path / "table").rglob("*"))
    again = export_delta(two, tmp_path / "table")
    assert (again.committed, again.rows, again.version) == ((), 0, first.version)
    assert sorted(path for path in (tmp_path / "table").rglob("*")) == before


def test_an_export_that_dies_anywhere_is_completed_by_the_next(
    two: Path, moments: list[Moment], tmp_path: Path
) -> None:
    sizes = {0, 9, 14}
    for at, moment in enumerate(moments):
        table = tmp_path / str(at)
        with pytest.raises(Killed):
            export_with(str(two), str(table), CrashAt(at))
        if deltalake.DeltaTable.is_deltatable(str(table)):
            there = rows_of(str(table))
            assert len(there) in sizes, f"{moment}: all of a publication or nothing"
        export_delta(two, table)
        check(table, two)


def test_exports_that_die_one_after_the_other_end_in_the_same_rows(
    two: Path, moments: list[Moment], tmp_path: Path
) -> None:
    for at in range(len(moments)):
        try:
            export_with(str(two), str(tmp_path / "table"), CrashAt(at % 4 + 2))
        except Killed:
            continue
        break
    export_delta(two, tmp_path / "table")
    check(tmp_path / "table", two)


def test_processes_killed_by_signal_9_between_any_two_operations(
    two: Path, moments: list[Moment], tmp_path: Path
) -> None:
    # Of the copies of files one is enough here: each of them dies in the test above.
    first = next(at for at, moment in enumerate(moments) if moment.operation == "create")
    ends = [at for at, moment in enumerate(moments) if moment.operation not in ("create", "close") or at < first + 3]
    tables = [tmp_path / str(at) for at in ends]
    done = subprocess.run(
        [sys.executable, "-m", "testing.pipeline.delta", str(two)], cwd=ROOT, capture_output=True, text=True,
        input="\n".join(f"{table}\t{table.name}" for table in tables), check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.split() == [str(-signal.SIGKILL)] * len(tables)
    for table in tables:
        export_delta(two, table)
        check(table, two)


@pytest.mark.parametrize("operation", ["create table", "add columns", "commit"])
def test_another_process_that_is_quicker_is_noticed(two: Path, tmp_path: Path, operation: str) -> None:
    raced = []

    def race(moment: Moment) -> None:
        if (moment.operation, moment.after) == (operation, False) and not raced:
            raced.append(moment)
            export_delta(two, tmp_path / "table")

    done = export_with(str(two), str(tmp_path / "table"), race)
    assert raced
    assert len(done.committed) == (1 if operation == "add columns" else 0)
    check(tmp_path / "table", two)


def foreign_row(two: Path) -> pa.Table:
    rows = read(str(two), format="arrow").slice(0, 1)
    at = rows.schema.get_field_index("row_id")
    return rows.set_column(at, rows.schema.field(at), pa.array(["theirs"]))


def write(table: Path, rows: pa.Table, mode: str = "append") -> None:
    schema = pa.schema([pa.field(field.name, field.type) for field in rows.schema])
    deltalake.write_deltalake(str(table), rows.cast(schema), mode=mode, schema_mode="merge")


def test_rows_that_others_write_stay_and_do_not_matter(two: Path, tmp_path: Path) -> None:
    table, seen = tmp_path / "table", []

    def write_too(moment: Moment) -> None:
        if (moment.operation, moment.after) == ("commit", False):
            seen.append(moment)
            if 2 <= len(seen) <= 4:
                write(table, foreign_row(two))

    export_with(str(two), str(table), write_too)
    assert len(seen) == 5, "the first was made, the second was refused three times"
    rows = rows_of(str(table))
    assert [row for row in rows if row["row_id"] != "theirs"] == published(two)
    assert sum(row["row_id"] == "theirs" for row in rows) == 3


def test_a_table_of_somebody_else_is_added_to_only_if_asked(two: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write(table, foreign_row(two), "overwrite")
    with pytest.raises(OutputError, match="holds rows of other writers"):
        export_delta(two, table)
    assert len(rows_of(str(table))) == 1
    export_delta(two, table, append=True)
    assert len(rows_of(str(table))) == 1 + len(published(two))
    assert export_delta(two, table).committed == ()


def test_a_table_that_cannot_take_the_files_is_left_alone(two: Path, tmp_path: Path) -> None:
    def create(name: str, schema: pa.Schema, **options: Any) -> Path:
        deltalake.DeltaTable.create(str(tmp_path / name), schema=schema, **options)
        return tmp_path / name

    row_id = pa.field("row_id", pa.string())
    cases = [
        (create("type", pa.schema([("row_id", pa.int64())])), "column 'row_id' is .*long.* there, and .*string"),
        (create("null", pa.schema([row_id, pa.field("x", pa.int64(), nullable=False)])), "'x' must not be null there"),
        (create("parts", pa.schema([row_id, ("x", pa.int64())]), partition_by=["x"]), r"partitioned by \['x'\]"),
    ]
    limited = create("limit", pa.schema([("x", pa.int64())]))
    deltalake.DeltaTable(str(limited)).alter.add_constraint({"positive": "x > 0"})
    cases.append((limited, "setting 'delta.constraints.positive'"))
    for table, words in cases:
        version = deltalake.DeltaTable(str(table)).version()
        with pytest.raises(OutputError, match=words):
            export_delta(two, table)
        assert deltalake.DeltaTable(str(table)).version() == version


def test_columns_that_others_added_are_null_in_our_rows(two: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    deltalake.DeltaTable.create(str(table), schema=pa.schema([("label", pa.string())]))
    export_delta(two, table)
    rows = rows_of(str(table))
    assert [{name: value for name, value in row.items() if name != "label"} for row in rows] == published(two)
    assert {row["label"] for row in rows} == {None}


def test_a_revision_takes_the_place_of_the_rows_before_whatever_dies(
    make_job: Callable[[], SmallJob], tmp_path: Path
) -> None:
    job = make_job()
    job.run(InlineExecutor(engine=PickyEngine))
    base = tmp_path / "base"
    export_delta(job.config.output, base)
    before = published(job.config.output)
    job.retry()
    after = published(job.config.output)
    assert after != before
    recorder = Recorder()
    shutil.copytree(base, tmp_path / "whole")
    export_with(job.config.output, str(tmp_path / "whole"), recorder)
    for at in range(len(recorder.moments)):
        table = tmp_path / f"table{at}"
        shutil.copytree(base, table)
        with pytest.raises(Killed):
            export_with(job.config.output, str(table), CrashAt(at))
        assert rows_of(str(table)) in (before, after)
        export_delta(job.config.output, table)
        assert rows_of(str(table)) == after
        (last,) = [actions for actions in log(table) if count(actions, "remove")]
        assert count(last, "add") == len(list(Path(job.config.output).glob("data-*/*")))


def test_a_revision_of_rows_that_were_never_exported(make_job: Callable[[], SmallJob], tmp_path: Path) -> None:
    job = make_job()
    job.run()
    job.retry()
    assert export_delta(job.config.output, tmp_path / "table").committed == ("data-000000-r001",)
    assert rows_of(str(tmp_path / "table")) == published(job.config.output)


def test_files_that_others_have_rewritten_are_not_guessed(make_job: Callable[[], SmallJob], tmp_path: Path) -> None:
    job, table = make_job(), tmp_path / "table"
    job.run()
    export_delta(job.config.output, table)
    deltalake.DeltaTable(str(table)).optimize.compact()
    assert rows_of(str(table)) == published(job.config.output)
    assert export_delta(job.config.output, table).committed == ()
    job.retry()
    with pytest.raises(OutputError, match=r"not in the Delta table any more .*OPTIMIZE"):
        export_delta(job.config.output, table)


def test_a_discarded_run_is_another_output(make_job: Callable[[], SmallJob], tmp_path: Path) -> None:
    job, table = make_job(), tmp_path / "table"
    job.run()
    export_delta(job.config.output, table)
    job.run(mode="new")
    with pytest.raises(OutputError, match="or of this output before mode='new'"):
        export_delta(job.config.output, table)


def test_a_moved_output_goes_on(two: Path, tmp_path: Path) -> None:
    export_delta(two, tmp_path / "table")
    shutil.copytree(two, tmp_path / "moved")
    assert export_delta(tmp_path / "moved", tmp_path / "table").committed == ()


def test_damaged_files_are_not_taken(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path / "out")
    part = next((tmp_path / "out" / "data-000001").iterdir())
    data = part.read_bytes()
    part.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(DamagedError, match="SHA-256 differs"):
        export_delta(tmp_path / "out", tmp_path / "table")
    assert len(rows_of(str(tmp_path / "table"))) == 9
    part.unlink()
    with pytest.raises(DamagedError, match="missing"):
        export_delta(tmp_path / "out", tmp_path / "table")
    part.write_bytes(data)
    export_delta(tmp_path / "out", tmp_path / "table")
    check(tmp_path / "table", two)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1], pa.uint8()), "'x: uint8'"),
        (pa.array([1], pa.timestamp("ns")), r"'x: timestamp\[ns\]'"),
        (pa.array([[{"t": 1}]], pa.list_(pa.struct([("t", pa.time64("us"))]))), "'x: list<.*time64"),
    ],
)
def test_columns_that_delta_lacks_are_named(
    make_job: Callable[[], SmallJob], tmp_path: Path, column: pa.Array, words: str
) -> None:
    job = make_job()
    pq.write_table(pa.table({"prompt": ["a"], "topic": ["b"], "x": column}), job.source)
    job.run()
    with pytest.raises(ConfigError, match=f"cannot hold columns .*{words}"):
        export_delta(job.config.output, tmp_path / "table")
    assert not (tmp_path / "table").exists()


def test_faults_of_the_caller(make_job: Callable[[], SmallJob], tmp_path: Path, two: Path) -> None:
    job = make_job()
    with pytest.raises(OutputError, match="nothing is published there"):
        export_delta(job.config.output, tmp_path / "table")
    job.run(output_format="jsonl")
    with pytest.raises(ConfigError, match="output_format='jsonl': a Delta table is of Parquet files"):
        export_delta(job.config.output, tmp_path / "table")
    with pytest.raises(ConfigError, match="lies inside the output"):
        export_delta(two, two / "table")


def test_without_the_library_the_extra_is_named(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"pip install 'wedlm-batch\[delta\]'"):
        export_delta(two, tmp_path / "table")


def test_on_a_store_also_by_processes_at_once(two: Path, s3: S3Server) -> None:
    table = f"{s3.bucket(f'b{uuid.uuid4().hex[:12]}')}/lake/table"
    code = ("import sys, json; from pipeline import export_delta; o = json.loads(sys.argv[3]);"
            "print(len(export_delta(sys.argv[1], sys.argv[2], table_storage_options=o).committed))")  # fmt: skip
    command = [sys.executable, "-c", code, str(two), table, json.dumps(s3.options)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * 2
    assert sum(map(int, said)) == 2
    options = table_options(table, s3.options)
    assert rows_of(table, options) == published(two)
    assert export_delta(two, table, table_storage_options=s3.options).committed == ()
