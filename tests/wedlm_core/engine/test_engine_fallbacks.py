"""Optimisations that raise: the engine goes on without them, with the same outputs; it says so once and counts it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from testing.engine.engines import run
from testing.engine.repeating import TIGHT, new_engine, requests
from wedlm_core.engine import Engine
from wedlm_core.engine import parts as parts_module
from wedlm_core.engine.drafting.controller import Controller
from wedlm_core.engine.drafting.drafting import Drafting
from wedlm_core.engine.drafting.windows import HistoryWindows
from wedlm_core.kv.prefix import PrefixIndex
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.types import Generation, Request

PERSON = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0,
                                                                             "maximum": 120}}}  # fmt: skip
SEAMS = [
    *((HistoryWindows, name) for name in ("open", "close", "draft")),
    *((Drafting, name) for name in ("admit", "plan", "observe", "close")),
    *((Controller, name) for name in ("choose", "record")),
    *((PrefixIndex, name) for name in ("match", "insert", "forget")),
]


def job() -> list[Request]:
    """Rows with a grammar and without, in turns."""
    plain = requests("verified", 0.0)
    formed = requests("verified", 0.0, StructuredOutputs(json=PERSON))
    pairs = itertools.chain.from_iterable(zip(plain, formed, strict=True))
    return [replace(request, request_id=str(i)) for i, request in enumerate(pairs)]


def outputs(engine: Engine) -> list[tuple[Any, ...]]:
    return [facts(one) for one in run(engine, job(), at_once=14)]


def facts(one: Generation) -> tuple[Any, ...]:
    return one.token_ids, one.finish_reason, one.error


def engine(**settings: Any) -> Engine:
    return new_engine(**TIGHT, max_num_seqs=8, **settings)


@cache
def expected() -> list[tuple[Any, ...]]:
    return outputs(new_engine(**TIGHT, max_num_seqs=8, history_drafts=False, prefix_caching=False))


def breaks(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int) -> Callable[[], int]:
    """From its call number ``at`` on, a method raises; returns a function that says how often it did."""
    original, calls = getattr(owner, name), itertools.count()
    raised = 0

    def broken(*args: Any, **options: Any) -> Any:
        nonlocal raised
        if next(calls) >= at:
            raised += 1
            raise ValueError(f"{name} is broken")
        return original(*args, **options)

    monkeypatch.setattr(owner, name, broken)
    return lambda: raised


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize(("owner", "name"), SEAMS, ids=lambda value: getattr(value, "__name__", value))
def test_an_optimisation_that_raises_is_left_out(
    owner: Any, name: str, at: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, want = engine(), expected()
    raised = breaks(monkeypatch, owner, name, at)
    assert outputs(made) == want
    assert raised(), "else nothing was tried"
    snapshot = made.snapshot()
    assert snapshot.counters.fallbacks == raised()
    assert len([r for r in caplog.records if r.name == "wedlm_core.fallback"]) == min(1, raised())
    assert made.pages.num_free == made.pages.num_pages


def test_a_step_cost_that_cannot_be_measured_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made, want = new_engine(**TIGHT, max_num_seqs=8, step_cost=None), expected()
    breaks(monkeypatch, parts_module, "cached_or_measured_cost", 0)
    assert outputs(made) == want
    assert made.snapshot().counters.fallbacks == 1
