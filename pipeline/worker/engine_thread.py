"""One engine in a thread of its own: units are submitted from many threads and batched continuously.

Between two steps the thread gives the engine as many requests as it can feed on, those that share a prefix one
after the other, and hands every unit back when its last sample is done. No unit waits for another one's end: there
is no batch barrier. Knows no Ray and no Arrow.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.codec import Failure, Generation, Request
from pipeline.worker.prefix_queue import Lookahead

__all__ = ["DroppedError", "EngineLike", "EngineThread"]

_DEFAULT_SLOTS = 64

Outcome = dict[str, "Generation | Failure"]


class DroppedError(Exception):
    """What was submitted is not wanted any more."""


class EngineLike(Protocol):
    """What is needed of an engine."""

    def add(self, request: Request) -> None:
        """Take a request, or raise; the engine is unaffected by a bad one."""
        ...

    def abort(self, request_id: str) -> None:
        """Forget an unfinished request."""
        ...

    def step(self) -> list[Generation]:
        """One forward; the generations that finished in it."""
        ...

    def has_work(self) -> bool:
        """Whether a step would do anything."""
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
class _Drop:
    future: Future[Outcome]


class EngineThread:
    """Owns ``engine``: nobody else may touch it.

    Args:
        engine: see :class:`EngineLike`.
        slots: sequences that the engine runs at once. It is given half as many again, so that a slot that falls
            free is filled in the same step; the others wait here, where twice as many as there are slots are
            ordered by prefix together.
        on_fatal: called in the engine's thread with what ``step`` raised; an engine that failed in the middle
            of a forward is never used again. If it returns, all waiting and later units get the exception. (It
            comes first: were it to end the process, no unit may be reported as failed before.)
    """

    def __init__(
        self,
        engine: EngineLike,
        on_fatal: Callable[[BaseException], None] | None = None,
        *,
        slots: int = _DEFAULT_SLOTS,
    ) -> None:
        self._engine = engine
        self._appetite = slots + max(1, slots // 2)
        self._queue = Lookahead(2 * slots)
        self._on_fatal = on_fatal
        self._inbox: queue.SimpleQueue[_Submission | _Drop | None] = queue.SimpleQueue()
        self._waiting: dict[str, _Submission] = {}
        self._running: set[str] = set()
        self._broken: BaseException | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> Future[Outcome]:
        """Queue requests (ids unique among unfinished ones); resolves to a result for each request id.

        A request that the engine refuses resolves to a Failure and leaves the others alone.
        """
        submission = _Submission(requests=requests, future=Future())
        with self._lock:
            if self._broken is not None:
                submission.future.set_exception(self._broken)
            elif requests:
                self._inbox.put(submission)
            else:
                submission.future.set_result({})
        return submission.future

    def drop(self, future: Future[Outcome]) -> None:
        """Stop working on what was submitted; unless it is done, its future raises :class:`DroppedError`."""
        self._inbox.put(_Drop(future=future))

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        try:
            while not closing or self._waiting or self._engine.has_work():
                idle = not self._waiting and not self._engine.has_work()
                closing = self._take(wait=idle and not closing) or closing
                self._feed()
                if self._engine.has_work():
                    for generation in self._engine.step():
                        self._running.remove(generation.request_id)
                        self._waiting.pop(generation.request_id).settle(generation.request_id, generation)
        except BaseException as error:
            self._fail(error)

    def _take(self, *, wait: bool) -> bool:
        """Queue what has been submitted; block for the first where ``wait``. True: no more will come."""
        while True:
            try:
                submission = self._inbox.get(block=wait)
            except queue.Empty:
                return False
            if submission is None:
                return True
            wait = False
            if isinstance(submission, _Drop):
                self._forget(submission.future)
                continue
            for request in submission.requests:
                self._waiting[request.request_id] = submission
                self._queue.put(request)

    def _feed(self) -> None:
        """Give the engine what it can use."""
        while len(self._queue) and len(self._running) < self._appetite:
            request = self._queue.pop()
            if request.request_id not in self._waiting:
                continue  # dropped
            try:
                self._engine.add(request)
            except Exception as error:  # a bad request is its row's failure, whatever it raised
                self._waiting.pop(request.request_id).settle(request.request_id, Failure.of(error))
            else:
                self._running.add(request.request_id)

    def _forget(self, future: Future[Outcome]) -> None:
        """Abort what runs of a submission; what waits is passed over when its turn comes."""
        dropped = [request_id for request_id, own in self._waiting.items() if own.future is future]
        for request_id in dropped:
            del self._waiting[request_id]
            if request_id in self._running:
                self._running.remove(request_id)
                self._engine.abort(request_id)
        if dropped:
            future.set_exception(DroppedError())

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._broken = error
            waiting = {id(s): s for s in self._waiting.values()}
            while not self._inbox.empty():
                if isinstance(late := self._inbox.get(), _Submission):
                    waiting[id(late)] = late
        if self._on_fatal is not None:
            self._on_fatal(error)
        for submission in waiting.values():
            submission.future.set_exception(error)
