"""Runs requests in child processes that are forked from a *fork server*, so that a death costs no start of an engine.

The fork server is a separate process with one thread. It loads the engine once and then runs nothing: each child begins
with a fresh engine, 20 ms after the request. Threads do not survive a fork, and an actor has many; hence the second
process, which holds the engine's memory once more until :meth:`Forks.close`. A GPU's context does not survive a fork
either, so there are no children on a GPU.

Messages are pickles over one connection. First comes the pair (job, engine loader), answered by None or by the reason
why there are no children; then lists of requests, each answered by ("done", outcome) or ("died", error or None).
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pipeline.child_process import start_child
from pipeline.codec import Request, masked_errors, redact
from pipeline.stages import announce
from pipeline.worker.engine_thread import EngineLike, EngineThread, Outcome
from pipeline.worker.load_engine import keep_what_is_there, uses_gpu
from pipeline.worker.row_isolation import ChildDiedError, NoChildrenError
from wedlm_core.host_memory import available_memory

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Keeps libraries of the server from starting threads: those of BLAS, OpenMP, the tokenizer and Arrow's allocator."""

_END_SECONDS = 5.0


class Forks:
    """The children of this process, one at a time. Thread-safe.

    ``task`` makes the pickled pair (job, engine loader) that the server loads its engine with. ``note`` is called with
    the error of an engine that raised in a child.
    """

    def __init__(self, task: Callable[[], bytes], note: Callable[[str], None] = lambda error: None) -> None:
        self._task, self._note = task, note
        self._one = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forks")
        self._server: subprocess.Popen[bytes] | None = None
        self._connection, self._theirs = Pipe()
        self._usable = sys.platform == "linux"

    @property
    def usable(self) -> bool:
        """Whether there may be children: not on a GPU, nor where memory has no room for a second engine."""
        return self._usable and (self._server is not None or (not uses_gpu() and _has_room()))

    def submit(self, requests: Sequence[Request]) -> Future[Outcome]:
        """Run requests in a child, after those before; the future resolves to a result for each request id.

        It raises :class:`ChildDiedError` where the child dies, and :class:`NoChildrenError` where there is none.
        """
        return self._one.submit(self._run, list(requests))

    def close(self) -> None:
        """Run the submitted calls, then end the server."""
        self._one.submit(self._end).result()
        self._one.shutdown()

    def _run(self, requests: list[Request]) -> Outcome:
        if not requests:
            return {}
        try:
            if self._server is None:
                self._start()
            kind, found = self._ask(pickle.dumps(requests))
        except (EOFError, OSError, pickle.PickleError) as error:
            announce(f"no child processes can be started, so rows continue in this process: {error!r}")
            self._end()
            raise NoChildrenError from error
        if kind == "done":
            outcome: Outcome = found
            return outcome
        if found:
            self._note(found)
        raise ChildDiedError

    def _start(self) -> None:
        """Start the server and wait until it has loaded its engine."""
        if not self._usable:
            raise OSError("it was ended")
        announce("rows have killed processes: a second engine is loaded, whose child processes run their units")
        self._server = start_child(__name__, self._theirs, _ONE_THREAD)
        if (problem := self._ask(self._task())) is not None:
            raise OSError(problem)

    def _ask(self, message: bytes) -> Any:
        self._connection.send_bytes(message)
        return self._connection.recv()

    def _end(self) -> None:
        self._usable = False
        self._connection.close()  # the server and its child end then
        if self._server is not None:
            try:
                self._server.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()


def _has_room() -> bool:
    """Whether as much memory is available as this process, with its engine, has in use."""
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    available = available_memory()
    return available is not None and available > resident


def main(descriptor: int) -> None:
    """Be the fork server: serve the connection of this number until its other end is closed."""
    connection = Connection(descriptor)
    try:
        with masked_errors():
            job, load = connection.recv()
            engine = load(job, 1)
        threads = len(os.listdir("/proc/self/task"))
        problem = None if threads == 1 else f"its engine has {threads} threads, which do not survive a fork"
    except Exception as error:
        traceback.print_exc()
        problem = redact(f"its engine could not be loaded: {error}")
    connection.send(problem)
    if problem is not None:
        return
    keep_what_is_there()
    slots = job.config.engine.max_num_seqs
    while (requests := _received(connection)) is not None:
        connection.send(_in_child(connection, engine, slots, requests))


def _received(connection: Connection) -> Any:
    """The next message; None at the end."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _in_child(connection: Connection, engine: EngineLike, slots: int, requests: list[Request]) -> Any:
    """The answer of a child that runs requests. Ends this process if ``connection`` is closed meanwhile."""
    ours, theirs = Pipe(duplex=False)
    child = os.fork()
    if not child:
        ours.close()
        connection.close()
        _run(theirs, engine, slots, requests)
    theirs.close()
    if connection in wait([connection, ours]):  # nothing is asked before the answer, so it is the end
        os.kill(child, signal.SIGKILL)
        os._exit(0)
    answer = _received(ours)
    ours.close()
    os.waitpid(child, 0)
    return ("died", None) if answer is None else answer


def _run(answers: Connection, engine: EngineLike, slots: int, requests: list[Request]) -> Any:
    """Run requests, answer, and end this process."""
    status = 1
    try:
        thread = EngineThread(engine, lambda error: _give_up(answers, error), slots=slots)
        answers.send(("done", thread.submit(requests).result()))
        status = 0
    finally:
        os._exit(status)


def _give_up(answers: Connection, error: BaseException) -> None:
    """The engine raised: nothing of it can be trusted any more."""
    try:
        answers.send(("died", redact("".join(traceback.format_exception(error)))))
    finally:
        os._exit(1)
