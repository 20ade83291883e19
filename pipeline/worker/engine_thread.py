"""Runs one engine in its own thread: many threads submit units, whose requests are batched continuously.

Between two steps the thread tops up the engine's queue, the longest requests first and those that share a prefix next
to each other, and resolves a unit's future when its last sample is done. No unit waits for another: there is no batch
barrier. Knows no Ray and no Arrow.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from pipeline.codec import Failure, Generation, Request
from pipeline.worker.lengths import OPENING, Kind, Lengths, kind_of

_Entry = tuple[int, Sequence[int], int, Kind, Request]
"""Window, prompt, number and kind of a request, and the request."""


class RequestQueue:
    """A queue that returns long requests first, and requests with a common prefix one after the other.

    Requests are grouped in windows as they arrive. A request that is expected to be twice as long moves to the window
    before, so only requests of the next few windows can overtake a shorter one. Within a window, requests of one size
    are sorted by token ids: a shared prefix is still in the engine's cache when the next row needs it. The tokens that
    a row generates do not depend on the order.

    Args:
        window: requests of a window, 1 or more. With 1, requests of one size keep their order of arrival.
        lengths: gives the expected lengths.
    """

    def __init__(self, window: int, lengths: Lengths) -> None:
        self._window, self._lengths = window, lengths
        self._numbers = itertools.count()
        self._heap: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, request: Request, *, first: bool = False) -> None:
        """Add a request; ``first``: before all that were added without it."""
        prompt = request.prompt_token_ids
        if request.continuation:  # all of one size, so that texts after one prompt follow each other
            kind = Kind(names=(), least=0, most=0)
        else:
            kind = kind_of(prompt[:OPENING], len(prompt), request.params)
        heapq.heappush(self._heap, self._entry(next(self._numbers) - _FIRST * first, kind, request))

    def pop(self) -> tuple[Request, Kind]:
        """Remove and return the next request, with its kind; raises IndexError if the queue is empty."""
        if self._lengths.order_is_due():
            self._heap = [self._entry(number, kind, request) for _, _, number, kind, request in self._heap]
            heapq.heapify(self._heap)
        *_, kind, request = heapq.heappop(self._heap)
        return request, kind

    def _entry(self, number: int, kind: Kind, request: Request) -> _Entry:
        window = number // self._window - self._lengths.size([kind])
        return window, request.prompt_token_ids, number, kind, request


_FIRST = 1 << 62
_DEFAULT_SLOTS = 64
_T = TypeVar("_T")

Outcome = dict[str, "Generation | Failure"]


@dataclass(frozen=True, kw_only=True)
class LinkedRequest(Request, ABC):
    """A request that others follow, one after the other under its id."""

    @abstractmethod
    def after(self, generation: Generation) -> LinkedRequest | Generation | Failure:
        """The next request, or the result of all of them."""

    @abstractmethod
    def failed(self, error: BaseException) -> Failure:
        """The result of all of them where the engine refuses this one."""


class DroppedError(Exception):
    """The submitted work was cancelled."""


class EngineLike(Protocol):
    """The part of an engine that the thread uses."""

    def add(self, request: Request) -> None:
        """Queue a request. Raises for a bad one, which leaves the engine as it was."""
        ...

    def abort(self, request_id: str) -> None:
        """Remove an unfinished request."""
        ...

    def step(self) -> list[Generation]:
        """Run one forward; returns the generations that finished in it."""
        ...

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        ...


@dataclass(kw_only=True)
class _Submission:
    requests: Sequence[Request]
    future: Future[Outcome]
    outcome: Outcome = field(default_factory=dict)

    def settle(self, request_id: str, result: Generation | Failure) -> None:
        self.outcome[request_id] = result
        if len(self.outcome) == len(self.requests):
            self.future.set_result(self.outcome)


@dataclass(frozen=True, kw_only=True)
class _Task:
    work: Callable[[EngineLike], Any]
    future: Future[Any]


class EngineThread:
    """A thread that owns ``engine``: no other thread may use it.

    Args:
        engine: see :class:`EngineLike`.
        slots: sequences that the engine runs at once. The engine gets half as many requests again, so that a slot that
            becomes free is filled in the same step. Other requests wait in a :class:`RequestQueue` with a window
            of twice the slots.
        on_fatal: called in the engine's thread with the exception that ``step`` raised. An engine that failed in the
            middle of a forward is never used again. ``on_fatal`` is called before any future is resolved, as it may end
            the process, and then no unit must have been reported as failed. If it returns, all waiting and later units
            get the exception.

    Attributes:
        lengths: learned from the requests that finish.
    """

    def __init__(
        self,
        engine: EngineLike,
        on_fatal: Callable[[BaseException], None] | None = None,
        *,
        slots: int = _DEFAULT_SLOTS,
    ) -> None:
        self._engine = engine
        self._max_engine_requests = slots + max(1, slots // 2)
        self.lengths = Lengths()
        self._queue = RequestQueue(2 * slots, self.lengths)
        self._on_fatal = on_fatal
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """The wishes of other threads, as functions that this thread calls."""
        self._closing = False
        self._tasks: list[_Task] = []
        self._waiting: dict[str, _Submission] = {}
        self._running: dict[str, tuple[Request, Kind]] = {}
        self._fatal: BaseException | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> Future[Outcome]:
        """Queue requests (ids unique among unfinished ones); the future resolves to a result for each request id.

        A request that the engine refuses gets a Failure as its result.
        """
        submission = _Submission(requests=requests, future=Future())
        with self._lock:
            if self._fatal is not None:
                submission.future.set_exception(self._fatal)
            elif requests:
                self._inbox.put(partial(self._take, submission))
            else:
                submission.future.set_result({})
        return submission.future

    def drop(self, future: Future[Outcome]) -> None:
        """Cancel a submission; unless it is done, its future raises :class:`DroppedError`."""
        self._inbox.put(partial(self._cancel, future))

    def when_idle(self, work: Callable[[EngineLike], _T]) -> Future[_T]:
        """Run ``work`` on the engine, in its thread, as soon as no request is left; submissions wait meanwhile.

        Its exception becomes the future's.
        """
        task = _Task(work=work, future=Future())
        with self._lock:
            if self._fatal is not None:
                task.future.set_exception(self._fatal)
            else:
                self._inbox.put(partial(self._tasks.append, task))
        return task.future

    def snapshot(self) -> Any:
        """The engine's ``snapshot()``, from any thread; None for an engine that has none."""
        read = getattr(self._engine, "snapshot", None)
        return None if read is None else read()

    @property
    def queue_depth(self) -> int:
        """Requests that are submitted and do not run yet."""
        snapshot = self.snapshot()
        running = len(self._running) if snapshot is None else snapshot.running
        return max(0, len(self._waiting) - running)

    def close(self) -> None:
        """Finish all submissions, then end the thread."""
        self._inbox.put(self._close)
        self._thread.join()

    def _close(self) -> None:
        self._closing = True

    def _run(self) -> None:
        try:
            while not self._closing or self._waiting or self._engine.has_work():
                idle = not self._waiting and not self._engine.has_work()
                if idle and self._tasks:
                    _do(self._tasks.pop(0), self._engine)
                    continue
                self._receive(wait=idle and not self._closing)
                self._feed()
                if self._engine.has_work():
                    for generation in self._engine.step():
                        self._finish(generation)
            for task in self._tasks:
                task.future.set_exception(DroppedError())
        except BaseException as error:
            self._fail(error)

    def _receive(self, *, wait: bool) -> None:
        """Do the things that were asked for; with ``wait``, block for the first one."""
        with suppress(queue.Empty):
            self._inbox.get(block=wait)()
            while not self._closing:
                self._inbox.get(block=False)()

    def _take(self, submission: _Submission) -> None:
        for request in submission.requests:
            self._waiting[request.request_id] = submission
            self._queue.put(request)

    def _feed(self) -> None:
        """Top up the engine's requests from the queue."""
        while len(self._queue) and len(self._running) < self._max_engine_requests:
            request, kind = self._queue.pop()
            if request.request_id not in self._waiting:
                continue  # cancelled
            try:
                self._engine.add(request)
            except Exception as error:  # a bad request is its row's failure, whatever it raised
                failure = request.failed(error) if isinstance(request, LinkedRequest) else Failure.of(error)
                self._waiting.pop(request.request_id).settle(request.request_id, failure)
            else:
                self._running[request.request_id] = request, kind

    def _finish(self, generation: Generation) -> None:
        """Resolve the request of a generation, or queue the one that follows it."""
        request, kind = self._running.pop(generation.request_id)
        self.lengths.learn(kind, len(generation.token_ids))
        result: Request | Generation | Failure = generation
        if isinstance(request, LinkedRequest):
            try:
                result = request.after(generation)
            except Exception as error:  # its row's failure
                result = request.failed(error)
        if isinstance(result, Request):
            self._queue.put(result, first=True)  # while its prefix is in the cache
        else:
            self._waiting.pop(request.request_id).settle(request.request_id, result)

    def _cancel(self, future: Future[Outcome]) -> None:
        """Abort the running requests of a submission; :meth:`_feed` skips the waiting ones."""
        cancelled = [request_id for request_id, own in self._waiting.items() if own.future is future]
        for request_id in cancelled:
            del self._waiting[request_id]
            if request_id in self._running:
                del self._running[request_id]
                self._engine.abort(request_id)
        if cancelled:
            future.set_exception(DroppedError())

    def _fail(self, error: BaseException) -> None:
        if self._on_fatal is not None:
            self._on_fatal(error)  # meanwhile submissions wait: none may be told before
        with self._lock:
            self._fatal = error
            self._running.clear()  # nothing is aborted in an engine that failed
            while not self._inbox.empty():
                self._inbox.get()()
            waiting = {id(s): s for s in self._waiting.values()}
        for task in self._tasks:
            task.future.set_exception(error)
        for submission in waiting.values():
            submission.future.set_exception(error)


def _do(task: _Task, engine: EngineLike) -> None:
    try:
        task.future.set_result(task.work(engine))
    except BaseException as error:
        task.future.set_exception(error)
