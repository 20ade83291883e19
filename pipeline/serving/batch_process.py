"""The process of one batch: checks the input, runs the requests, and writes the files of results.

It is a child of a server, and holds the batch's lease. It may end at any moment: the next one goes on from the batch's
record and from the committed rows of its run. A run is stopped when its server has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import FrameType

from pipeline.codec import WeDLMError, redact
from pipeline.commands.run import run
from pipeline.commit.lease import hold_lease
from pipeline.config import RunConfig
from pipeline.errors import LeaseError, PipelineError, SourceError
from pipeline.progress.snapshot import Progress
from pipeline.serving.api_objects import Batch, Status
from pipeline.serving.batch_lines import check_lines, fault, write_results
from pipeline.serving.store import Store

_LOOK_SECONDS = 1.0
"""Between two looks at a running batch, which may be cancelled, and between two counts of its requests."""
_ENDINGS = {Status.FINALIZING: Status.COMPLETED, Status.CANCELLING: Status.CANCELLED}
"""Other batches that are closed have expired."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The work of a process. ``may_run``: whether the batch may be run; else it is checked, or closed."""

    config: RunConfig
    batch: str
    may_run: bool
    max_requests: int


def main(descriptor: int) -> None:
    """Do the order that comes over this connection, and exit: with 1 after an error, which is printed."""
    signal.signal(signal.SIGTERM, _stop)
    server = Connection(descriptor)
    try:
        order: Order = server.recv()
    except EOFError:  # the server has ended
        return
    try:
        perform(order, server)
    except LeaseError:  # another process works on it
        return
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (PipelineError, WeDLMError, OSError) as error:
        print(redact(f"{order.batch}: {error}"), file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def perform(order: Order, server: Connection) -> None:
    """Take a batch as far as it may go.

    Raises:
        LeaseError: another process works on it.
        PipelineError, WeDLMError, OSError: it may be tried again.
    """
    store = Store(order.config.output, order.config.output_options)
    with hold_lease(store.lease_of(order.batch)) as lease:
        batch = store.batch(order.batch)
        if batch.status is Status.VALIDATING and not batch.must_close:
            batch = _check(store, batch, order.max_requests)
        if batch.status is Status.IN_PROGRESS and not batch.must_close and order.may_run:
            batch = _run(store, batch, order.config, server)
        if batch.must_close:
            ending = _ENDINGS.get(batch.status, Status.EXPIRED)
            lease.verify()
            results = write_results(store, batch, order.config, ending)
            batch = store.change(batch.id, lambda own: own.moved(ending, **results))
        print(f"{batch.id}: {batch.status}", file=sys.stderr, flush=True)
    store.settle(order.batch)


def _check(store: Store, batch: Batch, most: int) -> Batch:
    """Check the input; the batch is then in progress, or has failed."""
    try:
        with store.text(batch.input_file_id) as stream:
            count, faults = check_lines(stream, batch.endpoint, most)
    except (SourceError, FileNotFoundError) as error:
        return _fail(store, batch, error)
    if faults:
        return store.change(batch.id, _unless_closing(lambda own: own.moved(Status.FAILED, errors=faults)))
    ready = _unless_closing(lambda own: own.moved(Status.IN_PROGRESS, in_progress_at=None, total=count))
    return store.change(batch.id, ready)


def _fail(store: Store, batch: Batch, error: Exception) -> Batch:
    """End a batch whose input cannot be used. Clients see the file's id, and not the place of the store.

    Raises:
        Exception: the error itself, if the store does not answer.
    """
    if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
        raise error
    place = redact(store.url_of(store.content(batch.input_file_id)))
    errors = (fault("invalid_file", redact(str(error)).replace(place, batch.input_file_id)),)
    return store.change(batch.id, _unless_closing(lambda own: own.moved(Status.FAILED, errors=errors)))


def _unless_closing(move: Callable[[Batch], Batch]) -> Callable[[Batch], Batch | None]:
    """The change of a batch that was not cancelled meanwhile."""
    return lambda own: None if own.must_close else move(own)


def _run(store: Store, batch: Batch, config: RunConfig, server: Connection) -> Batch:
    """Run the batch until it is done, cancelled or expired; it is then to be closed, or has failed.

    Raises:
        SystemExit, KeyboardInterrupt: the process was asked to stop.
        PipelineError, WeDLMError, OSError: the run failed.
    """
    if batch.in_progress_at is None:
        batch = store.change(batch.id, _unless_closing(lambda own: replace(own, in_progress_at=int(time.time()))))
    job = replace(
        config, input=store.url_of(store.content(batch.input_file_id)), output=store.url_of(f"runs/{batch.id}"),
        input_format="openai-batch", mode="resume", limit=None, input_storage_options=config.output_options,
        report=False, retry_failed=False,
    )  # fmt: skip
    print(f"{batch.id}: runs {batch.total} requests", file=sys.stderr, flush=True)
    try:
        with _stopped_in_time(store, batch.id, server):
            run(config=job, on_progress=_counting(store, batch.id), progress="none")
    except SystemExit:
        if (batch := store.batch(batch.id)).must_close:
            return batch
        raise
    except SourceError as error:
        return _fail(store, batch, error)
    return store.change(batch.id, lambda own: None if own.status in _ENDINGS else own.moved(Status.FINALIZING))


@contextmanager
def _stopped_in_time(store: Store, name: str, server: Connection) -> Iterator[None]:
    """Context: this process gets SIGTERM when the batch is cancelled or expires, or when its server ends."""
    over, ending = threading.Event(), threading.Lock()

    def watch() -> None:
        while not over.is_set() and not server.poll(_LOOK_SECONDS):
            with suppress(PipelineError, OSError):  # the store may be back for the next look
                if store.batch(name).must_close:
                    break
        with ending:
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        yield
    finally:
        with ending:
            over.set()


def _counting(store: Store, name: str) -> Callable[[Progress], None]:
    """A function that shows the counts of a run's requests."""
    shown = -_LOOK_SECONDS

    def show(progress: Progress) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _LOOK_SECONDS:
            shown, done = time.monotonic(), progress.done
            with suppress(PipelineError, OSError):
                store.put_counts(name, completed=done.rows - done.failed_rows, failed=done.failed_rows)

    return show
