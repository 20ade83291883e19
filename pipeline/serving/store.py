"""The store of the endpoint: files and batches below one folder or URL, shared by servers and their processes.

A file is ``files/ID/content.jsonl``, and exists once ``files/ID/record.json`` does. An open batch is the newest record
``queue/ID/NUMBER.json``: each change is a put of the next number that succeeds once, so of concurrent changes one wins
and the others look again. A batch that has ended is ``batches/ID.json``; its folder in the queue is removed, and does
not count if a slow process makes it again. ``runs/ID`` is the output of its run.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from typing import Any, BinaryIO, TypeVar

from pipeline import layout
from pipeline.serving.api_objects import ApiError, Batch, Status, StoredFile, is_id, refuse
from pipeline.sources.text import open_text
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import map_ahead
from pipeline.storage.urls import join

_Made = TypeVar("_Made")
_SCRATCH = "tmp"
_RECORD = re.compile(r"queue/(batch_[0-9a-f]{24})/([0-9]{6})\.json")


def page(known: set[str], query: Mapping[str, str], most: int) -> tuple[list[str], int]:
    """The ids after ``after``, the newest first unless ``order`` is ``asc``, and ``limit``, from a request.

    Raises:
        ApiError: a bad value.
    """
    limit, after, order = query.get("limit", str(most)), query.get("after"), query.get("order", "desc")
    if not re.fullmatch(r"[0-9]{1,6}", limit) or not 1 <= int(limit) <= most:
        raise refuse("limit", limit, f"from 1 to {most}", "Correct it, or leave it out.")
    if after is not None and not is_id(after):
        raise refuse("after", after, "no id of a file or batch", "Give the last id of the page before.")
    if order not in ("asc", "desc"):
        raise refuse("order", order, "asc or desc", "Pick one of these.")
    ids = sorted(filter(is_id, known), reverse=order == "desc")
    return [one for one in ids if after is None or (one < after if order == "desc" else one > after)], int(limit)


class Store:
    """The files and batches of an endpoint, below a path or URL whose file system has these options. Thread-safe."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.storage: Storage = open_storage(url, _SCRATCH, options)
        self._options = dict(options)
        self._seen: dict[str, Batch | None] = {}

    def sweep(self) -> None:
        """Remove unfinished uploads. An upload to another server then fails, and its client tries again."""
        self.storage.delete(_SCRATCH)

    def url_of(self, key: str) -> str:
        """Path or URL of a key."""
        return join(self.storage.url, key)

    def content(self, name: str) -> str:
        """The key of a file's content."""
        return f"files/{name}/content.jsonl"

    def text(self, name: str) -> AbstractContextManager[BinaryIO]:
        """The content of a file, to read line by line."""
        return open_text(self.url_of(self.content(name)), self._options)

    def put_file(self, file: StoredFile) -> None:
        """Make a file visible, whose content is there."""
        self.storage.put(f"files/{file.id}/record.json", json.dumps(asdict(file)).encode())

    def file(self, name: str) -> StoredFile:
        """A file; an ApiError if there is none."""
        key = f"files/{name}/record.json"
        found = self._read(key, lambda raw: StoredFile(**raw)) if is_id(name, "file-") else None
        if found is None:
            raise _missing("file", name)
        return found

    def files(self, query: Mapping[str, str], most: int) -> tuple[Iterator[StoredFile], int]:
        """The files after the place that a request names, and its limit."""
        ids, limit = page({key.split("/")[1] for key in self.storage.keys("files")}, query, most)
        return (file for file in self._each(ids, self.file) if query.get("purpose") in (None, file.purpose)), limit

    def delete_file(self, file: StoredFile) -> None:
        """Remove a file; one of results with the output of its run.

        Raises:
            ApiError: an open batch reads it.
        """
        for batch in self.open_batches():
            if batch.input_file_id == file.id:
                raise ApiError(400, f"{file.id}: {batch.id} reads it. Cancel that, or wait.", code="file_in_use")
        self.storage.delete_objects([f"files/{file.id}/record.json"])
        self.storage.delete(f"files/{file.id}")
        if file.batch is not None:
            self.storage.delete(f"runs/{file.batch}")

    def create(self, batch: Batch) -> None:
        """Put a new batch into the queue."""
        self._put_record(batch, 1)

    def batch(self, name: str) -> Batch:
        """A batch, with the counts of a second ago while it runs; an ApiError if there is none."""
        _, found = self._newest(name)
        if found.has_ended:
            return found
        return self._read(f"queue/{name}/counts.json", lambda raw: replace(found, **raw)) or found

    def batches(self, query: Mapping[str, str], most: int) -> tuple[Iterator[Batch], int]:
        """The batches after the place that a request names, and its limit."""
        ended = {key.rsplit("/", 1)[-1].removesuffix(".json") for key in self.storage.keys("batches")}
        ids, limit = page(ended | set(self._numbers("queue")), query, most)
        return self._each(ids, self.batch), limit

    def open_batches(self) -> list[Batch]:
        """The batches in the queue, without the counts of runs. One with a damaged record is left out, and logged."""
        seen: dict[str, Batch | None] = {}
        for name, number in self._numbers("queue").items():
            key = f"queue/{name}/{number:06d}.json"
            try:
                seen[key] = self._seen.get(key) or self._record(key)
            except ApiError as error:
                seen[key] = None
                if key not in self._seen:
                    print(error, file=sys.stderr, flush=True)
        self._seen = seen
        return [own for own in seen.values() if own is not None]

    def change(self, name: str, move: Callable[[Batch], Batch | None]) -> Batch:
        """Change a batch that has not ended, and return it.

        ``move`` gives the new one, or None to leave it; it is called again if another process was faster.
        """
        while True:
            number, batch = self._newest(name)
            changed = move(batch)
            if changed is None or batch.has_ended:
                return batch
            if self._put_record(changed, number + 1):
                return changed

    def settle(self, name: str) -> None:
        """Move a batch that has ended out of the queue."""
        if (batch := self._newest(name)[1]).has_ended:
            self.storage.put(f"batches/{name}.json", _bytes_of(batch))
            self.storage.delete(f"queue/{name}")

    def put_counts(self, name: str, completed: int, failed: int) -> None:
        """Show how far a run is."""
        self.storage.put(f"queue/{name}/counts.json", json.dumps({"completed": completed, "failed": failed}).encode())

    def lease_of(self, name: str) -> Storage:
        """The storage with the lease of the process that works on a batch."""
        return open_storage(self.url_of(f"queue/{name}"), layout.SCRATCH, self._options)

    def _newest(self, name: str) -> tuple[int, Batch]:
        """The number of the newest record, and the batch; 0 if it has left the queue."""
        for _ in range(2 * is_id(name, "batch_")):  # it may leave the queue in between
            if (batch := self._record(f"batches/{name}.json")) is not None:
                return 0, batch
            number = self._numbers(f"queue/{name}").get(name, 0)
            if number and (batch := self._record(f"queue/{name}/{number:06d}.json")) is not None:
                return number, batch
        raise _missing("batch", name)

    def _numbers(self, folder: str) -> dict[str, int]:
        """Id of each batch in the queue -> the number of its newest record."""
        found = map(_RECORD.fullmatch, self.storage.keys(folder))  # sorted
        return {own[1]: int(own[2]) for own in found if own is not None}

    def _put_record(self, batch: Batch, number: int) -> bool:
        return self.storage.put_new(f"queue/{batch.id}/{number:06d}.json", _bytes_of(batch))

    def _record(self, key: str) -> Batch | None:
        return self._read(key, lambda raw: Batch(**{**raw["batch"], "status": Status(raw["batch"]["status"])}))

    def _read(self, key: str, make: Callable[[Any], _Made]) -> _Made | None:
        """The value that a record is read as; None if there is none, an ApiError if it is damaged."""
        try:
            return make(json.loads(self.storage.read(key)))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):
            raise ApiError(500, f"{key}: a damaged record. Restore or remove it.", code="damaged_record") from None

    def _each(self, ids: list[str], read: Callable[[str], Any]) -> Iterator[Any]:
        def found(name: str) -> Any:
            with suppress(ApiError):  # it was removed after the listing
                return read(name)

        return filter(None, map_ahead(found, ids))


def _bytes_of(batch: Batch) -> bytes:
    """A record with a mark of its own, which tells a put that only seemed to fail from another process's put."""
    return json.dumps({"batch": asdict(batch), "put": uuid.uuid4().hex}).encode()


def _missing(kind: str, name: str) -> ApiError:
    return ApiError(404, f"no {kind} has the id {name!r:.100}. List them for the ids.", param="id", code="not_found")
