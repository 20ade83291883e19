"""The lines of a batch's files: those of its input are checked, and those of its results written."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, BinaryIO

from pipeline import layout
from pipeline.commands.export import failed_line, result_lines
from pipeline.config import RunConfig
from pipeline.serving.api_objects import Batch, Status, StoredFile
from pipeline.serving.store import Store
from pipeline.sources.formats.jsonl import parsed_rows
from pipeline.sources.formats.openai_batch import BODY, CUSTOM_ID
from pipeline.sources.text import lines_of
from pipeline.storage.open import open_storage

_MOST_FAULTS = 100
"""A file with so many faults is not read any further."""
_UNDONE = {
    Status.CANCELLED: ("batch_cancelled", "This request was not run: its batch was cancelled."),
    Status.EXPIRED: ("batch_expired", "This request could not be run before the completion window expired."),
}
Fault = Mapping[str, Any]


def requests_of(stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    """The number and value of each line that is not blank; of one that is no JSON, a ``ValueError``."""
    for number, line in enumerate(lines_of(stream), 1):
        for value in parsed_rows([line]):
            yield number, value


def check_lines(stream: BinaryIO, endpoint: str, most: int) -> tuple[int, tuple[Fault, ...]]:
    """The number of requests (at most ``most``) of an input file, and its faults as a batch's ``errors`` have them."""
    faults: list[Fault] = []
    seen: set[bytes] = set()
    count = 0
    for number, value in requests_of(stream):
        count += 1
        if count > most:
            faults.append(fault("too_many_requests", f"more than {most} requests. Split the file.", number))
        elif (found := _fault_of(number, value, endpoint, seen)) is not None:
            faults.append(found)
        if count > most or len(faults) >= _MOST_FAULTS:
            break
    if not count:
        faults.append(fault("empty_file", "the file has no request. Write one on each line."))
    return count, tuple(faults)


def _fault_of(number: int, value: Any, endpoint: str, seen: set[bytes]) -> Fault | None:
    if not isinstance(value, Mapping):
        why = value.args[0] if isinstance(value, ValueError) else "no JSON object"
        return fault("invalid_json_line", f"{why}. Write one request as JSON.", number)
    name = value.get(CUSTOM_ID)
    rules = {
        CUSTOM_ID: (isinstance(name, str) and name != "", "text that names the request"),
        "method": (value.get("method") == "POST", "POST"),
        "url": (value.get("url") == endpoint, f"the batch's endpoint, {endpoint}"),
        BODY: (isinstance(value.get(BODY), Mapping), "an object of model, prompt and parameters"),
    }
    for param, (fits, rule) in rules.items():
        if not fits:
            given = f"is {getattr(value[param], 'text', value[param])!r:.100}" if param in value else "is missing"
            return fault("invalid_request", f"{param} {given}: it must be {rule}. Correct it.", number, param)
    digest = hashlib.blake2b(str(name).encode(), digest_size=16).digest()
    if digest in seen:
        return fault("duplicate_custom_id", f"{name!r:.100} is also in an earlier line. Rename it.", number, CUSTOM_ID)
    seen.add(digest)
    return None


def fault(code: str, message: str, line: int | None = None, param: str | None = None) -> Fault:
    """An entry of a batch's ``errors``."""
    return {"code": code, "message": message, "line": line, "param": param}


def write_results(store: Store, batch: Batch, config: RunConfig, ending: Status) -> dict[str, Any]:
    """Write the files of results; again for the same committed rows, the same bytes.

    ``ending``: the status that the batch is about to have. Returns the fields of the batch that this changes.
    """
    ids = {failed: batch.result_id(kind) for failed, kind in ((False, "output"), (True, "errors"))}
    lines, sizes = Counter[bool](), Counter[bool]()
    with ExitStack() as stack:
        files = {failed: stack.enter_context(store.storage.create(store.content(ids[failed]))) for failed in ids}
        for failed, line in _results(store, batch, config, ending):
            files[failed].write(data := line.encode() + b"\n")
            lines[failed] += 1
            sizes[failed] += len(data)
    for failed, name in ids.items():
        if not lines[failed]:
            store.storage.delete(f"files/{name}")
            continue
        filename = f"{batch.id}_{'errors' if failed else 'output'}.jsonl"
        store.put_file(StoredFile(id=name, bytes=sizes[failed], created_at=int(time.time()), filename=filename,
                                  purpose="batch_output", batch=batch.id))  # fmt: skip
    return {"output_file_id": ids[False] if lines[False] else None, "completed": lines[False],
            "error_file_id": ids[True] if lines[True] else None, "failed": lines[True]}  # fmt: skip


def _results(store: Store, batch: Batch, config: RunConfig, ending: Status) -> Iterator[tuple[bool, str]]:
    """Whether a request failed, and its line: those that were run, then the others of a batch that was ended."""
    output, options, done = store.url_of(f"runs/{batch.id}"), config.output_options, set[str]()
    if open_storage(output, layout.SCRATCH, options).exists(layout.RUN):
        for name, failed, line in result_lines(output, committed=True, model=config.model, storage_options=options):
            done.add(name)
            yield failed, line
    if ending not in _UNDONE or len(done) == batch.total:
        return
    with store.text(batch.input_file_id) as stream:
        for _, value in requests_of(stream):
            if value[CUSTOM_ID] not in done:
                yield True, failed_line(value[CUSTOM_ID], batch.endpoint, *_UNDONE[ending], batch.id)
