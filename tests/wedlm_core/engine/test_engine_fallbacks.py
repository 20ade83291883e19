"""Optimisations and grammars that raise: the engine goes on without them; it says so once and counts it.

Without an optimisation outputs are the same. A row whose grammar raised has the same output, or fails alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher

from testing.engine.engines import run
from testing.engine.repeating import TIGHT, new_engine, requests
from wedlm_core.engine import Engine
from wedlm_core.engine import parts as parts_module
from wedlm_core.engine.constrained import grammar_masks
from wedlm_core.engine.constrained.matching import Constraint
from wedlm_core.engine.drafting.controller import Controller
from wedlm_core.engine.drafting.drafting import Drafting
from wedlm_core.engine.drafting.windows import HistoryWindows
from wedlm_core.errors import RequestError
from wedlm_core.grammar import Grammar, compiler
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


class Matcher:
    """A matcher of the library, whose class allows no subclass and no patch; tests break its methods."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.own = LLMatcher(*args, **options)

    def deep_copy(self) -> Matcher:
        copy = object.__new__(Matcher)
        copy.own = self.own.deep_copy()
        return copy


def calling(name: str) -> Callable[..., Any]:
    def call(self: Matcher, *args: Any) -> Any:
        return getattr(self.own, name)(*args)

    call.__name__ = name
    return call


CALLED = ["compute_ff_tokens", "consume_tokens", "is_error", "is_stopped", "rollback", "try_consume_tokens",
          "unsafe_compute_mask_ptr", "validate_tokens"]  # fmt: skip
for called in (*CALLED, "compute_bitmask", "get_error", "is_accepting", "stop_reason"):
    setattr(Matcher, called, calling(called))
ENTRIES = [
    (Grammar, "origin"),
    *((Constraint, name) for name in ("accept", "draft")),
    (grammar_masks, "_ask"),
    *((Matcher, name) for name in (*CALLED, "deep_copy")),
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


def breaks(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int, before: float = math.inf
) -> Callable[[], int]:
    """From its call number ``at`` on, a method raises; returns a function that says how often it did."""
    original, calls = getattr(owner, name), itertools.count()
    raised = 0

    def broken(*args: Any, **options: Any) -> Any:
        nonlocal raised
        if at <= next(calls) < before:
            raised += 1
            raise ValueError(f"{name} is broken")
        return original(*args, **options)

    monkeypatch.setattr(owner, name, broken)
    return lambda: raised


@pytest.mark.sweep(16)
@pytest.mark.parametrize("at", [0, pytest.param(3, marks=pytest.mark.slow)])
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


def broken_grammars(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int, before: float
) -> tuple[list[tuple[Any, ...]], Engine, int]:
    """Outputs of a job whose grammars raise once they are compiled, its engine, and how often they raised."""
    monkeypatch.setattr(compiler.llguidance, "LLMatcher", Matcher)
    made = engine()
    assert outputs(made) == expected(), "the grammar is compiled"
    raised = breaks(monkeypatch, owner, name, at, before)
    return outputs(made), made, raised()


@pytest.mark.sweep(12)
@pytest.mark.parametrize("at", [0, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("owner", "name"), ENTRIES, ids=lambda value: getattr(value, "__name__", value))
def test_a_row_whose_grammar_raises_once_has_the_same_output(
    owner: Any, name: str, at: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found, made, raised = broken_grammars(monkeypatch, owner, name, at, at + 1)
    assert found == expected()
    assert made.snapshot().counters.fallbacks == raised
    assert len([r for r in caplog.records if r.name == "wedlm_core.fallback"]) == raised
    assert raised or at, "else nothing was tried"


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("owner", "name"), ENTRIES, ids=lambda value: getattr(value, "__name__", value))
def test_rows_whose_grammar_keeps_raising_fail_alone(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found, made, raised = broken_grammars(monkeypatch, owner, name, 7, math.inf)
    failed = [i for i, (one, want) in enumerate(zip(found, expected(), strict=True)) if one != want]
    assert all(i % 2 for i in failed), "rows with a grammar alone"
    assert all("the grammar library failed" in found[i][2] for i in failed)
    assert raised
    assert made.snapshot().counters.fallbacks == raised
    assert len([r for r in caplog.records if r.name == "wedlm_core.fallback"]) == 1
    assert made.pages.num_free == made.pages.num_pages


def test_a_grammar_that_cannot_be_compiled_for_any_reason_is_refused_by_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, request = engine(), job()[1]
    breaks(monkeypatch, compiler.llguidance, "LLMatcher", 0)
    with pytest.raises(RequestError, match=r"structured_outputs\.json=.*LLMatcher is broken"):
        made.add(request)
    assert not made.has_work()
