"""Failed rows are corrected by rows of their own, by id, with types that stay; a kill anywhere loses none."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.commands.read import read
from pipeline.commands.status import status
from pipeline.commands.verify import verify
from pipeline.errors import SourceError
from pipeline.storage.open import open_storage
from testing.pipeline.failing_job import EMPTY, LONG, ROWS, Job, changed, failed, fixed, write
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Moment, Recorder, crash_points
from testing.pipeline.leases import expire_leases
from testing.pipeline.s3 import S3Server
from testing.sweeps import AT_EVERY


@pytest.fixture
def job(tmp_path: Path, qwen3_folder: Path) -> Job:
    job = Job(tmp_path, qwen3_folder)
    assert job.run().total.failed_rows == 2
    return job


TYPED = {"number": 3, "part": 3.5, "flag": True, "word": "1.10", "object": {"a": 3, "b": "x"}, "list": [3]}


@pytest.fixture
def typed(tmp_path: Path, qwen3_folder: Path) -> Job:
    """A job with a failed row whose columns have types."""
    job = Job(tmp_path, qwen3_folder, columns=list(TYPED))
    write(job.source, [{**TYPED, "prompt": text} for text in ("Count from 1.", "So long. " * 40, "Count from 3.")])
    assert job.run().total.failed_rows == 1
    return job


@pytest.mark.parametrize(
    ("name", "value"),
    [("number", "03"), ("number", True), ("number", 2.7), ("part", "1e3"), ("part", 2**53 + 1), ("flag", 1),
     ("flag", "true"), ("word", 5), ("word", True), ("object", {"a": 3, "b": "x", "c": 9}),
     ("object", {"a": "3", "b": "x"}), ("list", ["3"]), ("list", [2.5])],
)  # fmt: skip
def test_a_corrected_value_of_another_type_is_refused_and_not_changed(typed: Job, name: str, value: Any) -> None:
    rows: Any = [{**TYPED, "prompt": "Again.", "row_id": "a.jsonl:1", name: value}]
    for given in (rows, str(write(typed.source.with_name("fixed.jsonl"), rows))):
        with pytest.raises(SourceError, match=f"corrected row 0.*column '{name}' is") as raised:
            typed.retry(input=given)
        assert "__wedlm" not in str(raised.value)
    assert typed.problems() == ()


@pytest.mark.parametrize(
    ("name", "value"), [("number", 4), ("number", None), ("part", 4), ("word", "5"), ("list", []), ("list", [None])]
)
def test_a_corrected_value_comes_out_as_it_is_written(typed: Job, name: str, value: Any) -> None:
    rows = [{**TYPED, "prompt": "Again.", "row_id": "a.jsonl:1", name: value}]
    typed.retry(input=str(write(typed.source.with_name("fixed.jsonl"), rows)))
    assert [row[name] for row in typed.data() if row["retry"]] == [value] * 2
    assert typed.problems() == ()


@pytest.mark.parametrize("text", ["1.10", "True"])
def test_a_corrected_cell_of_csv_stays_the_text_that_it_is(tmp_path: Path, qwen3_folder: Path, text: str) -> None:
    job = Job(tmp_path, qwen3_folder)
    fixed = tmp_path / "fixed.csv"
    job.run()
    fixed.write_text(f"row_id,prompt,note\na.jsonl:{LONG},Again.,{text}\n")
    job.retry(input=str(fixed))
    assert [row["note"] for row in job.data() if row["retry"]] == [text] * 2


WAYS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "setting": lambda job: {"on_long_prompt": "truncate_left"},
    "file": lambda job: {"input": str(write(job.source, changed(r3="Short.", r10="There.")))},
    "rows": lambda job: {"input": str(write(job.source.parent / "fixed.jsonl", fixed(job)))},
}


@pytest.mark.parametrize("name", ["fixed.jsonl", "a.jsonl"])
def test_corrected_rows_alone_take_the_place_of_failed_ones_by_id(job: Job, tmp_path: Path, name: str) -> None:
    before = [row for row in job.data() if row["finish_reason"] != "error"]
    (tmp_path / "elsewhere").mkdir()
    by_id = write(tmp_path / "elsewhere" / name, fixed(job, note="corrected"))
    summary = job.retry(input=str(by_id))
    assert (summary.session.rows, summary.corrected_rows) == (2, True)
    now = job.data()
    assert [row for row in now if row["retry"] is None] == before
    assert [row["row_id"] for row in now if row["retry"]] == [f"a.jsonl:{i}" for i in (LONG, LONG, EMPTY, EMPTY)]
    assert {row["note"] for row in now if row["retry"]} == {"corrected"}, "columns are those of the corrected row"
    assert len(read(job.config.output, table="dead_letters", format="arrow")) == 0
    assert job.problems() == ()
    assert status(job.config.output)["retries"] == [
        {"number": 1, "differs": f"corrected rows of {by_id}", "rows": 2}
    ]  # fmt: skip
    assert job.run().session.rows == 0, "the run goes on with its own input"
    assert job.problems() == ()
    (copy,) = Path(job.config.output).glob("__wedlm/input/*/rows.parquet")
    rows = pq.read_table(copy)
    pq.write_table(rows.set_column(rows.schema.get_field_index("note"), "note", pa.array(["x", "y"])), copy)
    assert any("corrected rows changed after they were given" in problem for problem in job.problems())


def test_corrected_rows_may_have_a_column_with_the_name_of_the_ids(tmp_path: Path, qwen3_folder: Path) -> None:
    job = Job(tmp_path, qwen3_folder, columns=["note", "(row id)"])
    write(job.source, [{**row, "(row id)": f"own {i}"} for i, row in enumerate(ROWS)])
    job.run()
    summary = job.retry(input=str(write(tmp_path / "fixed.jsonl", fixed(job))))
    assert summary.total.failed_rows == 0
    assert [row["(row id)"] for row in job.data()[::2]] == [f"own {i}" for i in range(len(ROWS))]
    assert job.problems() == ()


@pytest.mark.parametrize("form", ["row_id", "id_column", "renamed"])
def test_corrected_rows_without_the_retry_are_refused_and_doubled_by_no_run(
    tmp_path: Path, qwen3_folder: Path, form: str
) -> None:
    own = {"row_id": {}, "id_column": {"id_column": "note"}, "renamed": {"column_prefix": "gen_"}}[form]
    job = Job(tmp_path, qwen3_folder, **own)
    job.run()
    by_id = write(tmp_path / "fixed.jsonl", fixed(job))
    with pytest.raises(SourceError, match=r"would be in it twice.*--retry-failed.*begun with"):
        job.run(input=str(by_id))
    assert job.run().total.rows == len(ROWS)
    assert job.retry(input=str(by_id)).total.failed_rows == 0
    assert job.run().session.rows == 0
    more = write(tmp_path / "more.jsonl", [{"prompt": "Count.", "note": "new", "row_id": "other.jsonl:3"}])
    assert job.run(input=str(more)).session.rows == 1, "rows with ids of other outputs are new input"


@pytest.mark.parametrize("last", [False, True])
def test_failed_rows_of_a_unit_may_be_corrected_one_at_a_time(tmp_path: Path, qwen3_folder: Path, last: bool) -> None:
    job = Job(tmp_path, qwen3_folder, unit_rows=14)
    job.run()
    letters = fixed(job)
    session = job.retry(input=str(write(tmp_path / "one.jsonl", [letters[last]]))).session
    assert (session.rows, session.failed_rows) == (1, 0), "the summary counts the rows of this run"
    left = [LONG, EMPTY][not last]
    assert failed(job) == [left]
    dead = read(job.config.output, table="dead_letters", format="arrow").to_pylist()
    assert [(letter["note"], letter["attempt"]) for letter in dead] == [(f"n{left}", 1)]
    assert job.problems() == ()
    job.retry(input=str(write(tmp_path / "two.jsonl", [letters[not last]])))
    assert failed(job) == []
    assert job.problems() == ()
    write(job.source, changed(r3="Short."))
    assert job.retry().session.rows == 0, "the other rows of the unit are still known"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: {**row, "row_id": "a.jsonl:0"}, r"'a\.jsonl:0'\] are not ids of failed rows.* in its file"),
        (lambda row: {"prompt": "x", "note": "y"}, r"needs the columns \['row_id'\] too"),
        (lambda row: {"row_id": row["row_id"], "prompt": "x"}, r"needs the columns \['note'\] too"),
        (lambda row: {**row, "row_id": None}, r"corrected row 0 has row_id=None"),
    ],
)
def test_corrected_rows_that_fit_no_failed_row_are_refused(
    job: Job, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    before = job.data()
    first = change(fixed(job)[0])
    with pytest.raises(SourceError, match=message):
        job.retry(input=str(write(tmp_path / "fixed.jsonl", [first])))
    assert job.run().session.rows == 0
    assert job.data() == before


def test_rows_of_an_id_column_and_of_memory_are_corrected_by_it(tmp_path: Path, qwen3_folder: Path) -> None:
    rows = [{"prompt": row["prompt"], "id": f"k{i}"} for i, row in enumerate(ROWS)]
    job = Job(tmp_path, qwen3_folder, columns=None, id_column="id")
    job.run(input=rows)
    job.retry(input=[{"id": "k3", "prompt": "Short."}])
    table = read(job.config.output, format="arrow").to_pylist()
    assert {row["id"]: row["prompt"] for row in table if row["retry"] == 1} == {"k3": "Short."}
    assert verify(job.config.output, input=rows).problems == ()


def test_lines_of_an_openai_batch_are_corrected_by_their_custom_id(tmp_path: Path, qwen3_folder: Path) -> None:
    def line(number: int, **body: Any) -> dict[str, Any]:
        own = {"prompt": f"Count {number}.", "max_tokens": 4, **body}
        return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": own}

    job = Job(tmp_path, qwen3_folder, columns=None)
    batch = write(tmp_path / "batch.jsonl", [line(0), line(1, model="gpt-4o"), line(2, top_p=7), line(3)])
    assert job.run(input=str(batch)).total.failed_rows == 2
    assert job.retry(input=str(batch), served_model_names=["gpt-4o"]).total.failed_rows == 1
    by_id = write(tmp_path / "fixed.jsonl", [line(2)])
    assert job.retry(input=str(by_id)).total.failed_rows == 0
    assert job.problems(batch) == ()


def test_corrected_rows_are_kept_in_an_output_on_an_object_store(
    tmp_path: Path, qwen3_folder: Path, s3: S3Server
) -> None:
    job = Job(tmp_path, qwen3_folder, report=False)
    place = f"{s3.bucket(f'b-{uuid.uuid4().hex[:12]}')}/out"
    job.config = replace(job.config, output=place, output_storage_options=s3.options)
    own = {"storage": open_storage(place, layout.SCRATCH, s3.options)}
    job.run(**own)
    letters = read(place, table="dead_letters", format="arrow", storage_options=s3.options).to_pylist()
    by_id = write(tmp_path / "fixed.jsonl", [{**letter, "prompt": "Short."} for letter in letters])
    assert job.retry(input=str(by_id), **own).total.failed_rows == 0
    found = verify(place, input=str(job.source), storage_options=s3.options, input_storage_options={})
    assert found.problems == ()


@AT_EVERY
@pytest.mark.parametrize("way", [*(pytest.param(way, marks=pytest.mark.slow) for way in ("setting", "file")), "rows"])
def test_a_kill_anywhere_then_the_same_command_equals_the_undisturbed_one(
    tmp_path: Path, qwen3_folder: Path, way: str, every: bool
) -> None:
    job = Job(tmp_path, qwen3_folder, unit_rows=7, report=False)
    job.run()
    fields = WAYS[way](job)
    kept = tmp_path / "kept"
    shutil.move(job.config.output, kept)

    def corrected(inject: Callable[[Moment], None]) -> None:
        shutil.rmtree(job.config.output, ignore_errors=True)
        shutil.copytree(kept, job.config.output)
        with suppress(Killed):
            job.retry(FaultyStorage(job.storage, inject), **fields)

    recorder = Recorder()
    corrected(recorder)
    whole = job.data()
    assert [row["retry"] for row in whole].count(1) >= 2
    for at in crash_points(recorder.moments, every=every):
        corrected(CrashAt(at))
        expire_leases(job.storage)
        job.retry(**fields)
        assert job.data() == whole, at
        assert job.problems() == ()
