"""Files and batches with the API's names (https://platform.openai.com/docs/api-reference/batch), and its errors."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from pipeline.errors import PipelineError

_ID = re.compile(r"(file-|batch_)[0-9a-f]{24}")
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MOST_SECONDS = 30 * _SECONDS["d"]
_MOST_KEYS, _KEY_LENGTH, _VALUE_LENGTH = 16, 64, 512
_ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata")


class ApiError(PipelineError):
    """A request that is refused, with the status, field and code of the answer."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def as_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def refuse(param: str, value: object, rule: str, remedy: str) -> ApiError:
    """The error of a field with a bad value; of a long value its begin is shown."""
    return ApiError(400, f"{param}={value!r:.100}: {rule}. {remedy}", param=param, code="invalid_value")


def new_id(prefix: str) -> str:
    """A new id. Ids sort by the time of their making, to the millisecond."""
    return f"{prefix}{int(time.time() * 1000):012x}{secrets.token_hex(6)}"


def is_id(name: object, prefix: str = "") -> bool:
    """Whether this is an id of ours: no other text becomes part of a path."""
    return isinstance(name, str) and name.startswith(prefix) and _ID.fullmatch(name) is not None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; ``host``: without its port."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file of the store; ``batch``: whose results it has, None for an uploaded one."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    batch: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As the API shows it."""
        shown = {name: value for name, value in asdict(self).items() if name != "batch"}
        return {"object": "file", "status": "processed", **shown}


class Status(StrEnum):
    """The status of a batch."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


_ENDED = (Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED)
_RUNNING = (Status.VALIDATING, Status.IN_PROGRESS)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch at one moment; each change makes a new record.

    Attributes:
        in_progress_at: when its run began; None while it waits for its turn.
        errors: faults of its input file.
        total, completed, failed: counts of requests.
    """

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: Status = Status.VALIDATING
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    metadata: Mapping[str, str] | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def priority(self) -> int:
        """Batches of a higher one run first."""
        return int((self.metadata or {}).get("priority", "0"))

    @property
    def has_ended(self) -> bool:
        """Whether its status is final."""
        return self.status in _ENDED

    @property
    def must_close(self) -> bool:
        """Whether no further request is to be run, and it has not ended."""
        late = self.status in _RUNNING and time.time() >= self.expires_at
        return late or self.status in (Status.FINALIZING, Status.CANCELLING)

    def moved(self, status: Status, **changes: Any) -> Batch:
        """The batch with another status, and the time of it."""
        return replace(self, status=status, **{f"{status.value}_at": int(time.time())} | changes)

    def cancelled(self) -> Batch | None:
        """The batch that was asked to end; None if it was asked before.

        Raises:
            ApiError: it has ended, or is about to.
        """
        if self.status in (Status.CANCELLING, Status.CANCELLED):
            return None
        if self.status not in _RUNNING:
            raise ApiError(400, f"the batch is {self.status}. Only a batch that runs or waits can be cancelled.")
        return self.moved(Status.CANCELLING)

    def result_id(self, kind: str) -> str:
        """The id of a file of its results: a process that continues an export writes the same file."""
        digest = hashlib.blake2b(f"{self.id}/{kind}".encode(), digest_size=6).hexdigest()
        return f"file-{self.id.removeprefix('batch_')[:12]}{digest}"

    def as_dict(self) -> dict[str, Any]:
        """As the API shows it."""
        counts = {name: getattr(self, name) for name in ("total", "completed", "failed")}
        shown = {own.name: getattr(self, own.name) for own in fields(self) if own.name not in counts}
        errors = {"object": "list", "data": list(self.errors)} if self.errors else None
        return {**shown, "object": "batch", "errors": errors, "request_counts": counts}


def new_batch(body: Any) -> Batch:
    """The batch that the body of a request asks for.

    Raises:
        ApiError: a field is missing, not known, or has a bad value.
    """
    if not isinstance(body, Mapping):
        raise refuse("body", body, "an object", f"Write {', '.join(_FIELDS)}.")
    for name in body:
        if name not in _FIELDS:
            raise refuse(name, body[name], f"the fields are {', '.join(_FIELDS)}", "Leave it out.")
    given: list[Any] = [body.get(name) for name in _FIELDS]
    file, endpoint, window, metadata = given
    if endpoint not in _ENDPOINTS:
        raise refuse("endpoint", endpoint, f"one of {list(_ENDPOINTS)}", "Pick one of these.")
    found = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= _MOST_SECONDS:
        raise refuse("completion_window", window, "a time of 30 days at most", 'Write "24h", "30m" or "7d".')
    _check_metadata({} if metadata is None else metadata)
    now = int(time.time())
    return Batch(id=new_id("batch_"), endpoint=endpoint, input_file_id=file, metadata=metadata,
                 completion_window=window, created_at=now, expires_at=now + seconds)  # fmt: skip


def _check_metadata(given: Any) -> None:
    if not isinstance(given, Mapping) or len(given) > _MOST_KEYS or not all(
        isinstance(value, str) and len(value) <= _VALUE_LENGTH and len(key) <= _KEY_LENGTH
        for key, value in given.items()
    ):  # fmt: skip
        rule = f"{_MOST_KEYS} keys at most, of {_KEY_LENGTH} characters, with texts of {_VALUE_LENGTH}"
        raise refuse("metadata", given, rule, "Shorten it.")
    if not re.fullmatch(r"-?[0-9]{1,6}", given.get("priority", "0")):
        raise refuse("metadata.priority", given["priority"], "a whole number as text", 'Write "10".')
