"""A process that compiles grammars to see whether that ends, under limits of memory and of processor time.

Messages are pickles over one connection. First come the arguments of :class:`GrammarCompiler`, the bytes and seconds
that a grammar may take, and the seconds without a message after which the process ends. The answer is None. Then come
structured outputs. The answer to each is None, or the :class:`WeDLMError` with which it is refused. The process dies of
a grammar that exceeds a limit, by ``SIGXCPU`` where that is the limit of time.
"""

from __future__ import annotations

import math
import os
import resource
import time
from multiprocessing.connection import Connection

from wedlm_core.errors import WeDLMError
from wedlm_core.grammar.compiler import GrammarCompiler
from wedlm_core.structured_outputs import StructuredOutputs

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Serve the connection of this number until its other end is closed, or nothing comes for a while."""
    connection = Connection(descriptor)
    arguments, most_bytes, most_seconds, idle_seconds = connection.recv()
    compiler = GrammarCompiler(*arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_AS, _address_space() + most_bytes)
    answer: WeDLMError | None = None
    while True:
        connection.send(answer)
        if not connection.poll(idle_seconds):
            return
        try:
            wanted = connection.recv()
        except EOFError:
            return
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + most_seconds)
        answer = _refusal(compiler, wanted)


def _refusal(compiler: GrammarCompiler, wanted: StructuredOutputs) -> WeDLMError | None:
    try:
        compiler.check(wanted)
    except WeDLMError as error:
        return error
    return None


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
