"""A failed row can be corrected: by another setting, in its file, or by its id. The output says which rows were."""

from __future__ import annotations

import io
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline import layout
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.status import status
from pipeline.commands.summary import RunSummary
from pipeline.commands.validate import validate
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.errors import FingerprintError, SourceError
from pipeline.fingerprint import RETRY_SETTINGS
from pipeline.progress.live import frame
from pipeline.progress.snapshot import Snapshot
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from testing.pipeline.exactly_once import Stopped, StopsAfter
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Moment, Recorder, crash_points
from testing.pipeline.leases import expire_leases
from testing.pipeline.s3 import S3Server
from testing.sweeps import AT_EVERY

LONG, EMPTY = 3, 10
ROWS: list[dict[str, Any]] = [{"prompt": f"Count from {i}.", "note": f"n{i}"} for i in range(14)]
ROWS[LONG]["prompt"] = "So long. " * 40
ROWS[EMPTY]["prompt"] = None


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def changed(**prompts: str) -> list[dict[str, Any]]:
    """The rows with other prompts, by ``rNUMBER``."""
    return [{**row, "prompt": prompts.get(f"r{i}", row["prompt"])} for i, row in enumerate(ROWS)]


def fixed(job: Job, **more: Any) -> list[dict[str, Any]]:
    """The dead letters of a job, with prompts."""
    letters = read(job.config.output, table="dead_letters", format="arrow").to_pylist()
    return [{**letter, "prompt": f"Again {letter['note']}.", **more} for letter in letters]


class Job:
    """A job of 14 rows in units of 4: one is too long, one has no prompt."""

    def __init__(self, folder: Path, model: Path, **fields: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.source = write(folder / "a.jsonl", ROWS)
        own = {"columns": ["note"], "engine": EngineConfig(max_model_len=64), "unit_rows": 4, **fields}
        own = {"input": str(self.source), "output": str(folder / "out"), **own}
        self.config = RunConfig(
            model=str(model), sampling=SamplingParams(max_tokens=6, n=2), **own,
        )  # fmt: skip

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.config.output, layout.SCRATCH)

    def run(self, storage: Storage | None = None, executor: Any = None, **fields: Any) -> RunSummary:
        executor = executor or InlineExecutor()
        return run_on(executor, replace(self.config, **fields), storage or self.storage, lambda progress: None)

    def retry(self, storage: Storage | None = None, **fields: Any) -> RunSummary:
        return self.run(storage, retry_failed=True, **fields)

    def rows(self) -> dict[int, tuple[str, int | None]]:
        """Number of each row -> its finish reason, and the number of its retry."""
        table = read(self.config.output, format="arrow")
        names = ("note", "finish_reason", "retry")
        return {int(n[1:]): (reason, number) for n, reason, number in zip(*(table[c].to_pylist() for c in names))}  # noqa: B905

    def data(self) -> list[dict[str, Any]]:
        return read(self.config.output, format="arrow").drop(["stats", "timings"]).to_pylist()

    def problems(self, input: Path | None = None) -> tuple[str, ...]:
        return verify(self.config.output, input=str(input or self.source)).problems


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


@pytest.mark.parametrize("text", ["1.10", "5", "007", "True"])
def test_a_corrected_cell_of_csv_stays_the_text_that_it_is(tmp_path: Path, qwen3_folder: Path, text: str) -> None:
    job = Job(tmp_path, qwen3_folder)
    fixed = tmp_path / "fixed.csv"
    job.run()
    fixed.write_text(f"row_id,prompt,note\na.jsonl:{LONG},Again.,{text}\n")
    job.retry(input=str(fixed))
    assert [row["note"] for row in job.data() if row["retry"]] == [text] * 2


def test_a_validation_of_a_retry_takes_what_the_retry_takes(job: Job, tmp_path: Path) -> None:
    def problems(**fields: Any) -> tuple[str, ...]:
        return validate(replace(job.config, **fields)).problems

    assert "retry_failed" in problems(on_long_prompt="truncate_left")[0]
    assert problems(on_long_prompt="truncate_left", retry_failed=True) == ()
    by_id = str(write(tmp_path / "fixed.jsonl", fixed(job)))
    assert "run again with --retry-failed" in problems(input=by_id)[0]
    assert problems(input=by_id, retry_failed=True) == ()
    write(job.source, changed(r3="Short."))
    assert "its content changed" in problems()[0]
    assert problems(retry_failed=True) == ()
    assert "seed" in problems(retry_failed=True, seed=1)[0]


def failed(job: Job) -> list[int]:
    return [number for number, (reason, _) in job.rows().items() if reason == "error"]


@pytest.mark.parametrize(
    "fields",
    [
        {"on_long_prompt": "truncate_left"},
        {"engine": EngineConfig(max_model_len=500)},
        {"on_long_prompt": "truncate_right", "engine": EngineConfig(max_model_len=80)},
    ],
)
def test_a_setting_that_decides_whether_a_row_runs_may_change(job: Job, fields: dict[str, Any]) -> None:
    before = [row for row in job.data() if row["finish_reason"] != "error"]
    with pytest.raises(FingerprintError, match="retry_failed=True"):
        job.run(**fields)
    summary = job.retry(**fields)
    assert (summary.session.rows, failed(job)) == (2, [EMPTY])
    assert job.rows()[LONG] == ("stop", 1)
    assert {number for _, number in job.rows().values()} == {None, 1}
    assert [row for row in job.data() if row["retry"] is None] == before
    assert job.problems() == ()
    assert job.run(**fields).session.rows == 0, "the settings of a recorded retry continue it"
    assert job.run().session.rows == 0
    assert len(status(job.config.output)["retries"]) == 1


def test_fewer_tokens_may_be_asked_for_and_good_rows_keep_theirs(job: Job) -> None:
    job.retry(sampling=SamplingParams(max_tokens=2, n=2), engine=EngineConfig(max_model_len=500))
    hashes = {row["retry"]: row["params_hash"] for row in job.data() if row["finish_reason"] != "error"}
    assert len(hashes) == len(set(hashes.values())) == 2


@pytest.mark.parametrize("fields", [{"seed": 1}, {"sampling": SamplingParams(max_tokens=6)}, {"system_prompt": "Be."}])
def test_a_setting_that_changes_what_rows_give_may_not(job: Job, fields: dict[str, Any]) -> None:
    with pytest.raises(FingerprintError, match=next(iter(fields))):
        job.retry(on_long_prompt="truncate_left", **fields)


def test_rows_that_were_never_tried_are_not_done_with_the_settings_of_a_retry(
    tmp_path: Path, qwen3_folder: Path
) -> None:
    job = Job(tmp_path, qwen3_folder)
    with suppress(Stopped):
        job.run(executor=StopsAfter(2))
    with pytest.raises(FingerprintError, match=r"2 units are not done\. Finish the run with its own settings"):
        job.retry(on_long_prompt="truncate_left")
    write(job.source, changed(r10="There."))
    with pytest.raises(FingerprintError, match=r"with its own settings and retry_failed=True first"):
        job.retry(on_long_prompt="truncate_left")
    job.retry()
    job.retry(on_long_prompt="truncate_left")
    assert job.rows()[LONG] == ("stop", 2)
    assert failed(job) == []


def test_a_row_corrected_in_its_file_is_done_and_the_others_are_compared(job: Job) -> None:
    write(job.source, changed(r3="Short.", r10="There."))
    with pytest.raises(FingerprintError, match=r"'a\.jsonl': its content changed"):
        job.run()
    assert job.retry().session.rows == 2
    assert failed(job) == []
    assert {number for number, (_, retry) in job.rows().items() if retry == 1} == {LONG, EMPTY}
    assert job.problems() == ()
    assert job.run().session.rows == 0, "the corrected file is the input now"
    assert status(job.config.output)["retries"] == [{"number": 1, "differs": "corrected input file a.jsonl", "rows": 2}]


BEFORE = [{"prompt": "a", "tokens": 3}, {"prompt": "b", "tokens": "many"}, {"prompt": "c", "tokens": 4}]
AFTER = [{"prompt": "a", "tokens": 3}, {"prompt": "b", "tokens": 5}, {"prompt": "c", "tokens": 4}]


def test_a_correction_that_changes_the_inferred_type_of_a_column_is_taken(tmp_path: Path, qwen3_folder: Path) -> None:
    job = Job(tmp_path, qwen3_folder, columns=None, sampling_columns={"max_tokens": "tokens"})
    write(job.source, BEFORE)
    assert job.run().total.failed_rows == 1
    assert job.data()[0]["tokens"] == "3", "with another kind in the column, it is text"
    write(job.source, AFTER)
    assert job.retry().total.failed_rows == 0
    assert job.run().session.rows == 0
    assert [row["tokens"] for row in job.data()[::2]] == ["3", "5", "4"]
    assert job.problems() == ()


def test_a_corrected_file_of_csv_or_with_another_order_of_columns_is_taken(tmp_path: Path, qwen3_folder: Path) -> None:
    job = Job(tmp_path, qwen3_folder, columns=None)
    source = tmp_path / "b.csv"
    source.write_text("prompt,note\na,1\n,x\nc,3\n")
    assert job.run(input=str(source)).total.failed_rows == 1
    source.write_text("prompt,note\na,1\nb,2\nc,3\n")
    assert job.retry(input=str(source)).total.failed_rows == 0
    assert job.problems(source) == ()
    job.config = replace(job.config, output=str(tmp_path / "other"))
    job.source.write_text('{"prompt": broken\n{"prompt": "b", "note": 1}\n')
    assert job.run().total.failed_rows == 1
    job.source.write_text('{"note": 2, "prompt": "a"}\n{"prompt": "b", "note": 1}\n')
    assert job.retry().total.failed_rows == 0
    assert job.problems() == ()


def test_a_corrected_parquet_file_of_another_writer_is_taken(tmp_path: Path, qwen3_folder: Path) -> None:
    job = Job(tmp_path, qwen3_folder, columns=None)
    source = tmp_path / "b.parquet"
    pq.write_table(pa.table({"prompt": ["a", None]}), source)
    job.run(input=str(source))
    pq.write_table(pa.table({"prompt": pa.array(["a", "b"], pa.large_string())}), source)
    assert job.retry(input=str(source)).total.failed_rows == 0
    assert job.problems(source) == ()


def test_what_a_special_token_in_a_text_means_decides_whether_its_row_runs(tmp_path: Path, qwen3_folder: Path) -> None:
    job = Job(tmp_path, qwen3_folder, columns=None, special_tokens_in_text="fail")
    write(job.source, [{"prompt": "a"}, {"prompt": "b <|im_end|>"}])
    assert job.run().total.failed_rows == 1
    assert job.retry(special_tokens_in_text="text").total.failed_rows == 0


@pytest.mark.parametrize(
    "rows", [changed(r3="Short.", r2="Other."), changed(r3="Short.", r13="Other."), changed(r3="Short.")[:-1],
             [*changed(r3="Short."), ROWS[0]]],
    ids=["a row of the same unit", "a row of another unit", "a row is gone", "a row more"],
)  # fmt: skip
def test_a_file_in_which_more_than_failed_rows_changed_is_refused(job: Job, rows: list[dict[str, Any]]) -> None:
    before = job.data()
    write(job.source, rows)
    refusal = r"with all of its rows|more or fewer rows|its content changed"
    with pytest.raises((FingerprintError, SourceError), match=refusal):
        job.retry()
    write(job.source, ROWS)
    assert job.run().session.rows == 0
    assert job.data() == before


def test_a_corrected_copy_under_another_name_is_refused_and_adds_no_rows(job: Job, tmp_path: Path) -> None:
    copy = write(tmp_path / "b.jsonl", changed(r3="Short.", r10="There."))
    with pytest.raises(SourceError, match=r"Correct failed rows in their file; or give each corrected row with all"):
        job.retry(input=str(copy))
    assert len(job.rows()) == len(ROWS)


def test_a_file_is_corrected_where_another_one_of_the_run_is_gone(tmp_path: Path, qwen3_folder: Path) -> None:
    job = Job(tmp_path / "in", qwen3_folder, output=str(tmp_path / "out"), input=str(tmp_path / "in"))
    write(tmp_path / "in" / "b.jsonl", ROWS[:2])
    job.run()
    (tmp_path / "in" / "b.jsonl").unlink()
    write(job.source, changed(r3="Short.", r10="There."))
    assert job.retry().total.failed_rows == 0


def test_corrections_may_come_in_pieces(job: Job) -> None:
    write(job.source, changed(r3="Short."))
    job.retry()
    assert failed(job) == [EMPTY]
    write(job.source, changed(r3="Short.", r10="There."))
    job.retry()
    assert (job.rows()[LONG], job.rows()[EMPTY]) == (("stop", 1), ("stop", 2))
    assert job.problems() == ()


def test_a_plain_retry_has_no_number(job: Job) -> None:
    job.retry()
    assert failed(job) == [LONG, EMPTY]
    assert {number for _, number in job.rows().values()} == {None}


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
    assert any("corrected rows there are not" in problem for problem in job.problems())


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
        (lambda row: {"prompt": "x", "note": "y"}, r"lacks the columns \['row_id'\]"),
        (lambda row: {"row_id": row["row_id"], "prompt": "x"}, r"lacks the columns \['note'\]"),
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
@pytest.mark.parametrize("way", [pytest.param("setting", marks=pytest.mark.slow), "file", "rows"])
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


def test_failures_are_shown_by_cause_with_count_example_and_remedy_everywhere(job: Job) -> None:
    summary = job.run()
    lines = [own.line for own in summary.total.failed_by_cause]
    assert len(lines) == 2, "both are of one class"
    assert all(line.startswith("1 row: ") for line in lines)
    long = next(line for line in lines if "max_tokens" in line)
    assert re.search(rf"For example row a\.jsonl:{LONG}: prompt \+ max_tokens='.*\d+ \+ 6'\.$", long)
    assert "at most 64 tokens together, the model's length. Shorten the prompt, lower max_tokens" in long
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(frame(Snapshot(done=summary.total, total_rows=14), console))
    page = (Path(job.config.output) / "__wedlm" / "report.html").read_text()
    shown = (summary.describe(), "\n".join(status(job.config.output)["failed_by_cause"]), console.export_text())
    assert all(line in text for line in lines for text in shown)
    assert "RequestError" not in "".join(shown)
    assert "at most 64 tokens together" in page
    assert "Failures by cause" in page


def test_only_retries_that_work_are_recommended(job: Job) -> None:
    text = job.run().describe()
    assert all(f"{name}" in text for name in RETRY_SETTINGS)
    assert "row_id" in text
    assert "drop" not in text
    job.retry(on_long_prompt="truncate_left")
    text = job.run().describe()
    assert "Retries: retry 1 (on_long_prompt='truncate_left'): 2 rows" in text
