"""Retries of file and storage operations: the only place that repeats one. Lasting errors are raised at once."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, TypeVar

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
    failure: type[PipelineError] = SinkError,
    remedy: str = _DURING_THE_RUN,
) -> _T:
    """Call ``action`` up to five times, with growing pauses, as long as it raises an OSError that may pass.

    ``what``: name of the operation in the message, such as "reading PATH"; ``remedy``: last sentences of it.

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
            time.sleep(_FIRST_WAIT_SECONDS * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


def without_credentials(what: str, error: CredentialsError) -> str:
    """The message for a store that cannot be used, as there are no credentials for it."""
    return f"{what}: no usable credentials ({error}). {_SIGN_IN}"


def _retried(name: str, doing: str, *, finds: bool = False) -> Any:
    """The method of this name, with retries.

    ``doing``: a verb, for the error. ``finds``: a missing object stays a FileNotFoundError.
    """

    def call(storage: RetryingStorage, *args: Any, **named: Any) -> Any:
        method = functools.partial(getattr(storage.inner, name), *args, **named)
        return storage.attempt(method, doing, next(iter(args), ""), finds=finds)

    return call


class RetryingStorage:
    """A storage whose calls are tried up to five times.

    A stream (:meth:`create`) cannot be repeated here: its writer repeats the whole stream with :func:`with_retries`.
    Reading a missing object stays a FileNotFoundError; every other failure is a SinkError.
    """

    put = _retried("put", "writing")
    read = _retried("read", "reading", finds=True)
    open = _retried("open", "opening", finds=True)  # opening is retried, reading is not
    exists = _retried("exists", "looking for")
    keys = _retried("keys", "listing")
    sizes = _retried("sizes", "listing")
    folders = _retried("folders", "listing")
    delete = _retried("delete", "removing")
    delete_objects = _retried("delete_objects", "removing")
    promote = _retried("promote", "moving", finds=True)
    sweep = _retried("sweep", "sweeping")

    def __init__(self, inner: Storage) -> None:
        """``inner``: the storage to call."""
        self.inner = inner

    @property
    def url(self) -> str:
        """Path or URL of the output."""
        return self.inner.url

    def attempt(self, action: Callable[[], _T], doing: str, key: object, *, finds: bool = False) -> _T:
        """An operation on a key, or on several, with retries; see :func:`_retried`."""
        name = key if isinstance(key, str) else next(iter(key), "") if isinstance(key, Sequence) else ""
        try:
            return with_retries(action, f"{doing} {self.url}/{name}")
        except SinkError as error:
            if finds and isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise

    def put_new(self, key: str, data: bytes) -> bool:
        """See the protocol. ``data`` must differ between callers, to recognise an attempt that only seemed to fail."""

        def put() -> bool:
            return self.inner.put_new(key, data) or self.inner.read(key) == data

        return self.attempt(put, "writing", key)

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Not retried."""
        return self.inner.create(key)

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

        while (page := self.attempt(next_page, "listing", prefix)) is not None:
            yield page


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
