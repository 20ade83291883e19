"""Processes that work for rows under limits of memory and processor time: both ends of one.

The process runs this module. Messages are pickles over one connection: first an opening (the function, its arguments
and the limits), then requests, each with its answer: a value, and an error. A request that exceeds a limit ends its
process only. A process that keeps memory after a request ends, too.
"""

from __future__ import annotations

import gc
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from pipeline.child_process import start_child
from pipeline.errors import ResourceError

_IDLE_SECONDS = 60.0  # the process ends then
_TRIES = 3
_PAUSES_SECONDS = (1.0, 5.0)  # between attempts to start a process
_ENDED = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)
"""Statuses of a process that no request has ended: it was idle, or others killed it."""
_OUT_OF_MEMORY = 77
"""Status of a process that could not allocate memory."""
_MOST_KEPT = 16
"""A process may keep 1 / this of the memory after a request. Otherwise the next request has a fresh process, so that
its fate does not depend on the one before."""
_MOST_CHARS = 2_000  # of an error


class ExceededError(Exception):
    """A request has ended its process. The text says how, such as "takes more than 5 s"."""


class UnstartedError(ResourceError, OSError):
    """No process can be started; no fault of a request."""


class UnsendableError(Exception):
    """A request cannot be pickled, so no other process can work for it."""


class LimitedProcess:
    """A process with limits. It is started for the first request, and again after it has ended. Thread-safe.

    Args:
        prepare: function of a module that the process imports; it makes the function that answers requests. It is not
            limited.
        arguments: gives its arguments at each start.
        seconds: processor time of a request.
        most_bytes: memory of a request.
    """

    def __init__(
        self, prepare: Callable[..., Callable[[Any], object]], arguments: Callable[[], tuple[Any, ...]] = tuple, *,
        seconds: int, most_bytes: int,
    ) -> None:  # fmt: skip
        self._prepare, self._arguments = prepare, arguments
        self._seconds, self._bytes = seconds, most_bytes
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def ask(self, request: object) -> Any:
        """The answer to a request, or its error.

        Raises:
            ExceededError: the request exceeds a limit, or has ended its process in another way.
            UnstartedError: no process can be started.
            UnsendableError: the request cannot be pickled.
            Exception: of the function that answers; one that is very long, or cannot be sent, is a RuntimeError.
        """
        try:
            message = pickle.dumps(request)
        except Exception as error:
            raise UnsendableError(f"{type(error).__name__}: {' '.join(str(error).split())[:_MOST_CHARS]}") from error
        value, fault = self._answer(message)
        if fault is not None:
            raise fault
        return value

    def _answer(self, message: bytes) -> tuple[Any, Exception | None]:
        with self._lock:
            status = 0
            for _ in range(_TRIES):
                process, connection = self._running or self._started()
                try:
                    return _answer(connection, message)
                except (EOFError, OSError):
                    self._end(connection)
                    status = process.wait()
                except BaseException:  # an interrupt: the answer of this request is not that of the next one
                    self._end(connection)
                    raise
                if status not in _ENDED:
                    break
        raise ExceededError(self._fate(status))

    def _fate(self, status: int) -> str:
        """How a request has exceeded its limits, by the exit status of its process."""
        if status == -signal.SIGXCPU:
            return f"takes more than {self._seconds} s"
        if status == _OUT_OF_MEMORY:
            return f"takes more than {self._bytes >> 20} MiB of memory"
        return f"ended its process ({_way(status)}), which may have {self._bytes >> 20} MiB of memory"

    def _unstarted(self, why: str) -> UnstartedError:
        """The error of a process that ends before it can serve; ``why``: how."""
        return UnstartedError(
            f"{__name__}: the process that works for rows under limits cannot be started ({why}). Check that "
            f"{sys.executable} runs, that memory is free, and the limit of processes (ulimit -u)."
        )

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        """A new process; where none starts, other attempts follow, as the machine may lack memory for a while only."""
        for pause in _PAUSES_SECONDS:
            with suppress(UnstartedError):
                return self._start()
            time.sleep(pause)
        return self._start()

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        opening = self._prepare, self._arguments(), self._bytes, self._seconds, _IDLE_SECONDS
        try:
            process = start_child(__name__, theirs, {}, quiet=True)
        except OSError as error:
            raise self._unstarted(f"{type(error).__name__}: {error}") from error
        try:
            _answer(ours, pickle.dumps(opening))
        except (EOFError, OSError) as error:
            raise self._unstarted(_way(process.wait())) from error
        self._running = process, ours
        return self._running

    def _end(self, connection: Connection) -> None:
        self._running = None
        connection.close()


def _way(status: int) -> str:
    """How a process with this exit status has ended."""
    return f"exit code {status}" if status >= 0 else f"signal {-status}, {signal.strsignal(-status)}"


def _answer(connection: Connection, message: bytes) -> Any:
    connection.send_bytes(message)
    return connection.recv()


def main(descriptor: int) -> None:
    """Serve the connection of this number until its other end is closed, or nothing comes for a while."""
    connection = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is meant for the parent, which closes the connection
    prepare, arguments, most_bytes, seconds, idle_seconds = connection.recv()
    answer_to = prepare(*arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most_kept = _address_space() + most_bytes // _MOST_KEPT
    size = 0
    connection.send(None)
    while size <= most_kept:
        if not connection.poll(idle_seconds):
            return
        _limit(resource.RLIMIT_AS, (size or _address_space()) + most_bytes)
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
        try:
            connection.send(_answer_of(connection, answer_to))
        except EOFError:
            return
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)
        size = _address_space()
        if size > most_kept:
            gc.collect()
            size = _address_space()


def _answer_of(connection: Connection, answer_to: Callable[[Any], object]) -> tuple[object, Exception | None]:
    """The answer to the next request, or its error, unless it is for want of memory."""
    data = connection.recv_bytes()
    try:
        request = pickle.loads(data)
    except MemoryError:
        raise
    except Exception as error:
        return None, _in_short(error)
    try:
        return answer_to(request), None
    except MemoryError:
        raise
    except Exception as error:
        return None, _portable(error)


def _portable(error: Exception) -> Exception:
    """The error, if it is short and another process can read it."""
    try:
        read: Exception = pickle.loads(pickle.dumps(error))
        return read if len(str(error)) <= _MOST_CHARS else _in_short(error)
    except Exception:
        return RuntimeError(type(error).__name__)


def _in_short(error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}"
    return RuntimeError(text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}...")


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _address_space() -> int:
    """Bytes of this process's address space; 0 where the system does not say, and so does not limit it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
