"""Lines of a batch: each fault of an input is named with its line, and each request has one line of results."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.commands.export import export
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.progress.snapshot import Progress
from pipeline.serving.api_objects import Batch, Status, StoredFile, new_batch, new_id
from pipeline.serving.batch_lines import check_lines, write_results
from pipeline.serving.store import Store
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.openai_batch import CHAT, COMPLETIONS, completion_line


def checked(*lines: Any, most: int = 10) -> list[tuple[str, int | None]]:
    data = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    return [(own["code"], own["line"]) for own in check_lines(io.BytesIO(data), COMPLETIONS, most)[1]]


def test_lines_that_are_requests_have_no_fault() -> None:
    lines = [completion_line(str(i)) for i in range(10)]
    assert checked(*lines) == []
    assert check_lines(io.BytesIO(b"\n" + json.dumps(lines[0]).encode()), COMPLETIONS, 10) == (1, ())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", "invalid_json_line"),
        (b"\xff\xfe\x00", "invalid_json_line"),
        (b"7", "invalid_json_line"),
        (b"[" * 100_000, "invalid_json_line"),
        (b'{"custom_id": NaN}', "invalid_request"),
        ({}, "invalid_request"),
        ({**completion_line("a"), "custom_id": ""}, "invalid_request"),
        ({**completion_line("a"), "custom_id": None}, "invalid_request"),
        ({**completion_line("a"), "method": "GET"}, "invalid_request"),
        ({**completion_line("a"), "url": CHAT}, "invalid_request"),
        ({**completion_line("a"), "body": "text"}, "invalid_request"),
        (completion_line("first"), "duplicate_custom_id"),
    ],
)
def test_a_fault_is_named_with_its_line(line: Any, code: str) -> None:
    assert checked(completion_line("first"), b"", line, completion_line("last")) == [(code, 3)]


def test_too_many_requests_too_many_faults_and_no_request() -> None:
    lines = [completion_line(str(i)) for i in range(12)]
    assert checked(*lines) == [("too_many_requests", 11)]
    assert len(checked(*[b"{"] * 300, most=1000)) == 100
    assert checked(b"") == checked() == [("empty_file", None)]


class StoppedError(Exception):
    """The run is ended in the middle."""


def begun(folder: Path, names: Sequence[str], *, stop: bool) -> tuple[Store, Batch, RunConfig]:
    """A batch whose run is done, or was stopped after its first unit; the second request of each four fails."""
    store = Store(str(folder / "store"), {})
    lines = [completion_line(name, **({"nonsense": 1} if i % 4 == 1 else {})) for i, name in enumerate(names)]
    file = StoredFile(id=new_id("file-"), bytes=1, created_at=0, filename="f", purpose="batch")
    store.storage.put(store.content(file.id), "".join(json.dumps(line) + "\n" for line in lines).encode())
    store.put_file(file)
    body = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    batch = replace(new_batch(body), total=len(names))
    store.create(batch)
    config = RunConfig(input=store.url_of(store.content(file.id)), output=store.url_of(f"runs/{batch.id}"),
                       model="tiny", unit_rows=4, input_format="openai-batch")  # fmt: skip

    def ended(progress: Progress) -> None:
        if stop and progress.done.units:
            raise StoppedError

    storage = open_storage(config.output, layout.SCRATCH, {})
    if stop:
        with pytest.raises(StoppedError):
            run_on(InlineExecutor(), config, storage, ended)
    else:
        run_on(InlineExecutor(), config, storage, ended)
    return store, batch, replace(config, input="files", output=store.storage.url)


def lines_of(store: Store, name: str | None) -> list[dict[str, Any]]:
    return [] if name is None else [json.loads(line) for line in store.storage.read(store.content(name)).splitlines()]


NAMES = [f"request {i}" for i in range(10)]


def test_results_of_a_run_are_those_that_export_writes(tmp_path: Path) -> None:
    store, batch, config = begun(tmp_path, NAMES, stop=False)
    found = write_results(store, batch, config, Status.COMPLETED)
    export(store.url_of(f"runs/{batch.id}"), tmp_path / "r.jsonl")
    for kind, name in (("output_file_id", "r.jsonl"), ("error_file_id", "r_errors.jsonl")):
        assert store.storage.read(store.content(found[kind])) == (tmp_path / name).read_bytes()
        assert store.file(found[kind]).bytes == (tmp_path / name).stat().st_size
    assert (found["completed"], found["failed"]) == (7, 3)
    before = store.storage.read(store.content(found["output_file_id"]))
    assert write_results(store, batch, config, Status.COMPLETED) == found
    assert store.storage.read(store.content(found["output_file_id"])) == before


@pytest.mark.parametrize("ending", [Status.CANCELLED, Status.EXPIRED])
def test_each_request_of_a_batch_that_was_ended_has_one_line(tmp_path: Path, ending: Status) -> None:
    store, batch, config = begun(tmp_path, NAMES, stop=True)
    found = write_results(store, batch, config, ending)
    answers, errors = (lines_of(store, found[kind]) for kind in ("output_file_id", "error_file_id"))
    assert [line["custom_id"] for line in answers] == [NAMES[0], *NAMES[2:4]]
    assert [line["custom_id"] for line in errors] == [NAMES[1], *NAMES[4:]]
    assert {line["error"]["code"] for line in errors[1:]} == {f"batch_{ending}"}
    assert (found["completed"], found["failed"]) == (3, 7)


def test_a_batch_whose_turn_never_came_has_no_answers(tmp_path: Path) -> None:
    store, batch, config = begun(tmp_path, NAMES, stop=False)
    store.storage.delete(f"runs/{batch.id}")
    found = write_results(store, batch, config, Status.CANCELLED)
    assert (found["output_file_id"], found["completed"], found["failed"]) == (None, 0, 10)
    unchecked = write_results(store, replace(batch, total=0), config, Status.CANCELLED)
    assert (unchecked["output_file_id"], unchecked["error_file_id"]) == (None, None)
    assert store.storage.keys(f"files/{batch.result_id('errors')}") == []
