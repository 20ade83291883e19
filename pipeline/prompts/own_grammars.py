"""Compiles rows' own grammars in a separate process, with limits of memory and processor time.

A grammar of a few lines may take minutes and gigabytes. It ends that process only, and its row fails.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.codec import Failure, RequestError, StructuredOutputs, explain
from pipeline.config import RunConfig
from pipeline.prompts.limited_process import ExceededError, LimitedProcess
from pipeline.prompts.model_files import ResolvedModel, resolved_model
from pipeline.prompts.structures import compiler_arguments

_SERVER = f"{__name__.rpartition('.')[0]}.compile_server"
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
    return _compiler(resolved_model(config))(wanted)


@functools.lru_cache(maxsize=1)
def _compiler(model: ResolvedModel) -> Callable[[StructuredOutputs], Failure | None]:
    """Says why a grammar cannot be compiled for a model within the limits."""
    process = LimitedProcess(
        _SERVER, lambda: compiler_arguments(model), seconds=_SECONDS, most_bytes=_BYTES,
        idle_seconds=_IDLE_SECONDS,
    )  # fmt: skip

    @functools.lru_cache(maxsize=_KNOWN)
    def fault(wanted: StructuredOutputs) -> Failure | None:
        try:
            error = process.ask(wanted)
        except ExceededError as exceeded:
            rule = f"its compilation {exceeded}"
            value = getattr(wanted, wanted.kind)
            error = RequestError(explain(f"structured_outputs.{wanted.kind}", value, rule, "Simplify it."))
        return None if error is None else Failure.of(error)

    return fault


os.register_at_fork(after_in_child=_compiler.cache_clear)  # two processes cannot share a connection
