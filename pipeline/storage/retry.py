"""Retries of file and storage operations: the only place that repeats one. Lasting errors are raised at once."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

from pipeline.errors import PipelineError, SinkError
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import CredentialsError, MisuseError

_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.2
_ENOUGH_SECONDS = 30.0
"""No further attempt begins after this time: file systems of stores retry by themselves, too."""
_LASTING = (MisuseError, FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
"""Errors that another attempt would raise again."""

_DURING_THE_RUN = "Committed rows stay; fix the storage (path, space, permissions, network) and run again to continue."
BEFORE_THE_RUN = "Check the address, its permissions and the network, and run again."
"""The remedy for failures while a run is being planned."""
_SIGN_IN = (
    "Set them in the environment (of S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile), or as key and "
    "secret of storage_options; storage_options={'anon': True} reads a public bucket."
)

_T = TypeVar("_T")


def with_retries(
    action: Callable[[], _T],
    what: str,
    wait: Callable[[float], None] = time.sleep,
    failure: type[PipelineError] = SinkError,
    remedy: str = _DURING_THE_RUN,
) -> _T:
    """Call ``action`` up to five times, with growing pauses, as long as it raises an OSError that may pass.

    Args:
        action: the operation.
        what: its name in the error message, such as "reading PATH".
        wait: sleeps for so many seconds.
        failure: type of the error to raise.
        remedy: last sentences of the error.

    Raises:
        PipelineError: of type ``failure``: the last attempt failed too, or the error is a lasting one.
    """
    begin = time.monotonic()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return action()
        except OSError as error:
            is_last = attempt == _ATTEMPTS or time.monotonic() - begin > _ENOUGH_SECONDS
            if is_last or isinstance(error, _LASTING):
                times = "" if attempt == 1 else f" {attempt} times, last"
                if isinstance(error, CredentialsError):
                    raise failure(without_credentials(what, error)) from error
                raise failure(f"{what} failed{times} with {type(error).__name__}: {error}. {remedy}") from error
            wait(_FIRST_WAIT_SECONDS * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


def without_credentials(what: str, error: CredentialsError) -> str:
    """The message for a store that cannot be used, as there are no credentials for it."""
    return f"{what}: no usable credentials ({error}). {_SIGN_IN}"


class RetryingStorage:
    """A storage whose calls are tried up to five times.

    A stream (:meth:`create`) cannot be repeated here: its writer repeats the whole stream with :func:`with_retries`.
    Reading a missing object stays a FileNotFoundError; every other failure is a SinkError.
    """

    def __init__(self, inner: Storage) -> None:
        """``inner``: the storage to call."""
        self.inner = inner

    @property
    def url(self) -> str:
        """Path or URL of the output."""
        return self.inner.url

    def _try(self, action: Callable[[], _T], what: str, key: str) -> _T:
        return with_retries(action, f"{what} {self.url}/{key}")

    def _find(self, action: Callable[[], _T], what: str, key: str) -> _T:
        """:meth:`_try`, but a missing object stays a FileNotFoundError."""
        try:
            return self._try(action, what, key)
        except SinkError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise

    def put(self, key: str, data: bytes) -> None:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        self._try(functools.partial(self.inner.put, key, data), "writing", key)

    def put_new(self, key: str, data: bytes) -> bool:
        """See the protocol. ``data`` must differ between callers, to recognise an attempt that only seemed to fail."""

        def attempt() -> bool:
            return self.inner.put_new(key, data) or self.inner.read(key) == data

        return self._try(attempt, "writing", key)

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Not retried."""
        return self.inner.create(key)

    def read(self, key: str) -> bytes:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        return self._find(functools.partial(self.inner.read, key), "reading", key)

    def read_many(self, keys: Sequence[str]) -> list[bytes]:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        return self._find(functools.partial(self.inner.read_many, keys), "reading", keys[0] if keys else "")

    def open(self, key: str) -> BinaryIO:
        """Opening is retried, reading is not."""
        return self._find(functools.partial(self.inner.open, key), "opening", key)

    def exists(self, key: str) -> bool:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        return self._try(functools.partial(self.inner.exists, key), "looking for", key)

    def keys(self, prefix: str) -> list[str]:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        return self._try(functools.partial(self.inner.keys, prefix), "listing", prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        return self._try(functools.partial(self.inner.sizes, prefix), "listing", prefix)

    def folders(self) -> list[str]:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        return self._try(self.inner.folders, "listing", "")

    def walk(self, prefix: str) -> Iterator[list[str]]:
        """See the protocol. Starts again after a failure, so a key may occur twice."""
        pages = self.inner.walk(prefix)

        def next_page() -> list[str] | None:
            nonlocal pages
            try:
                return next(pages, None)
            except OSError:
                pages = self.inner.walk(prefix)
                raise

        while (page := self._try(next_page, "listing", prefix)) is not None:
            yield page

    def delete(self, key: str) -> None:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        self._try(functools.partial(self.inner.delete, key), "removing", key)

    def delete_objects(self, keys: Sequence[str]) -> None:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        self._try(functools.partial(self.inner.delete_objects, keys), "removing", keys[0] if keys else "")

    def promote(self, source: str, target: str) -> None:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        self._find(functools.partial(self.inner.promote, source, target), "moving", source)

    def sweep(self, before: float) -> None:
        """See :class:`~pipeline.storage.protocol.Storage`."""
        self._try(functools.partial(self.inner.sweep, before), "sweeping", "")


_THREADS = 16

_R = TypeVar("_R")


def map_ahead(function: Callable[[_T], _R], items: Iterable[_T], threads: int = _THREADS) -> Iterator[_R]:
    """``map``, with up to ``threads`` calls ahead of the result that is taken; memory holds so many results."""
    running: deque[Future[_R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                if len(running) >= threads:
                    yield running.popleft().result()
                running.append(pool.submit(function, item))
            while running:
                yield running.popleft().result()
        finally:
            for call in running:
                call.cancel()
