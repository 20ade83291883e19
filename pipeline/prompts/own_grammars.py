"""Compiles rows' own grammars in a separate process, with limits of memory and processor time.

A grammar of a few lines may take minutes and gigabytes. It ends that process only, and its row fails.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pipeline.child_process import start_child
from pipeline.codec import Failure, RequestError, StructuredOutputs, explain
from pipeline.config import RunConfig
from pipeline.prompts.model_files import load_tokenizer, model_folder
from pipeline.prompts.structures import compiler_arguments
from pipeline.stages import announce
from wedlm_core.tokenizer import Tokenizer

__all__ = ["grammar_faults"]

_SERVER = "wedlm_core.grammar.compile_server"
_SECONDS, _BYTES = 5, 1 << 30  # of a grammar; large ones take a second
_IDLE_SECONDS = 60.0  # after which the process ends
_KNOWN = 256  # grammars whose faults are kept


def grammar_faults(given: Sequence[Mapping[str, Any] | None], config: RunConfig) -> dict[int, Failure]:
    """Checks rows' own grammars; gives the reason of each that fails, by the place of the row.

    Args:
        given: the sampling parameters of each row's own.
        config: names the model.
    """
    asked: dict[str, list[int]] = {}
    for place, own in enumerate(given):
        if own and own.get("structured_outputs"):
            asked.setdefault(json.dumps(own["structured_outputs"], default=str), []).append(place)
    faults = dict[int, Failure]()
    for places in asked.values():
        fault = _fault((given[places[0]] or {})["structured_outputs"], config)
        if fault is not None:
            faults |= dict.fromkeys(places, fault)
    return faults


def _fault(fields: Any, config: RunConfig) -> Failure | None:
    try:
        wanted = StructuredOutputs(**fields)
    except Exception:  # reported with the row's other parameters
        return None
    return _process(load_tokenizer(config), model_folder(config)).fault(wanted)


@functools.lru_cache(maxsize=1)
def _process(tokenizer: Tokenizer, folder: Path) -> _Process:
    return _Process(tokenizer, folder)


class _Process:
    """The process of one model. It is started for the first grammar, and again after it has ended. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, folder: Path) -> None:
        self._model = tokenizer, folder
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self.fault = functools.lru_cache(maxsize=_KNOWN)(self._fault)

    def _fault(self, wanted: StructuredOutputs) -> Failure | None:
        """Why a grammar cannot be compiled within the limits; None if it can."""
        with self._lock:
            while True:
                try:
                    process, connection = self._running or self._start()
                except (EOFError, OSError) as error:  # its engine will compile it, and say what is wrong with it
                    announce(f"a row's grammar is compiled by its engine alone, without limits: {error!r}")
                    return None
                fault: Any
                try:
                    fault = _asked(connection, wanted)
                except (EOFError, OSError):
                    self._running = None
                    connection.close()
                    if (status := process.wait()) == 0:  # it had nothing to do for a while
                        continue
                    fault = _too_large(wanted, status)
                return None if fault is None else Failure.of(fault)

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        process = start_child(_SERVER, theirs, {}, quiet=True)
        _asked(ours, (compiler_arguments(*self._model), _BYTES, _SECONDS, _IDLE_SECONDS))
        self._running = process, ours
        return self._running


def _asked(connection: Connection, message: object) -> Any:
    connection.send(message)
    return connection.recv()


def _too_large(wanted: StructuredOutputs, status: int) -> RequestError:
    limit = f"{_SECONDS} s" if status == -signal.SIGXCPU else f"{_BYTES >> 20} MiB of memory"
    rule = f"takes more than {limit} to compile"
    return RequestError(
        explain(f"structured_outputs.{wanted.kind}", getattr(wanted, wanted.kind), rule, "Simplify it.")
    )
