"""The process of :mod:`pipeline.worker.forks` that loads an engine in one thread, and forks a child for each message.

Messages are pickles over one connection. First comes the pair (job, engine loader), answered by None or by the reason
why there are no children; then lists of requests, each answered by ("done", outcome) or ("died", error or None).
"""

from __future__ import annotations

import os
import signal
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from pipeline.codec import Request, masked_errors, redact
from pipeline.worker.engine_thread import EngineLike, EngineThread
from pipeline.worker.load_engine import keep_what_is_there


def main(descriptor: int) -> None:
    """Serve the connection of this number until its other end is closed."""
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
