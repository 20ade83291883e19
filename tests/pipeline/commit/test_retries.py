"""A failed row can be corrected by another setting or in its file. The output says which rows were."""

from __future__ import annotations

import io
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.status import status
from pipeline.commands.validate import validate
from pipeline.errors import FingerprintError, SourceError
from pipeline.fingerprint import RETRY_SETTINGS
from pipeline.progress.live import frame
from pipeline.progress.snapshot import Snapshot
from testing.pipeline.exactly_once import Stopped, StopsAfter
from testing.pipeline.failing_job import EMPTY, LONG, ROWS, Job, changed, failed, fixed, write


@pytest.fixture
def job(tmp_path: Path, qwen3_folder: Path) -> Job:
    job = Job(tmp_path, qwen3_folder)
    assert job.run().total.failed_rows == 2
    return job


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


def test_a_correction_may_change_the_type_of_a_column_that_is_not_passed_on(tmp_path: Path, qwen3_folder: Path) -> None:
    job = Job(tmp_path, qwen3_folder, columns=[], sampling_columns={"max_tokens": "t"})
    write(job.source, [{"prompt": "a", "t": 1}, {"prompt": "b", "t": "many"}])
    assert job.run().total.failed_rows == 1
    assert job.problems() == (), "the columns that parameters are read from are compared too"
    write(job.source, [{"prompt": "a", "t": 1}, {"prompt": "b", "t": 2}])
    assert job.retry().total.failed_rows == 0
    assert job.problems() == ()
    write(job.source, [{"prompt": "a", "t": 3}, {"prompt": "b", "t": 2}])
    with pytest.raises(FingerprintError, match="its content changed"):
        job.run()


def test_rows_in_memory_whose_correction_changes_a_type_are_to_be_given_by_id(
    tmp_path: Path, qwen3_folder: Path
) -> None:
    job = Job(tmp_path, qwen3_folder, columns=None, sampling_columns={"max_tokens": "t"})
    job.run(input=[{"prompt": "a", "t": 1}, {"prompt": "b", "t": "many"}])
    with pytest.raises(FingerprintError, match="with the corrected rows and their row_id as input"):
        job.retry(input=[{"prompt": "a", "t": 1}, {"prompt": "b", "t": 2}])
    with pytest.raises(SourceError, match=r"corrected row 0: column 't': max_tokens='2': an integer"):
        job.retry(input=[{"row_id": "rows:1", "prompt": "b", "t": "2"}])
    assert job.retry(input=[{"row_id": "rows:1", "prompt": "b", "t": 2}]).total.failed_rows == 0


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
