"""Drafts from history where forwards overlap: each waits for the one before it, as long as any are asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.engine.engines import loaded, run
from testing.engine.repeating import COST, TIGHT, Given, engine_of, new_engine, requests, tokens
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting.controller import Arm
from wedlm_core.engine.overlap import CompletedForward, OverlapLoop
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.types import Generation, Request, SamplingParams

WORDS = StructuredOutputs(regex=r"([a-z]+ ){6,12}[a-z]+")


class Turns(Given):
    """Is with history and without in turns of some forwards, drawn again each time."""

    def __init__(self, seed: int, longest: int) -> None:
        super().__init__(Arm.MASKS)
        self._rng, self._longest, self._turn = random.Random(seed), longest, 2

    def record(self, tokens: float, seconds: float) -> bool:
        """Count it, whatever it took."""
        self._turn -= 1
        if self._turn > 0:
            return False
        self.arm = Arm.MASKS if self.arm.has_history else Arm.HISTORY_AND_MASKS
        self._turn = self._rng.randint(1, self._longest)
        return True


def overlapping(controller: Given, **settings: Any) -> Engine:
    engine = new_engine(overlap=True, **settings)
    engine._drafting.controller = controller
    return engine


@contextmanager
def in_flight(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[bool, bool]]]:
    """Of every forward that is accounted: whether the next one is in flight, and whether drafts are asked for."""
    found: list[tuple[bool, bool]] = []
    complete = OverlapLoop._complete

    def noted(self: OverlapLoop, launched: Any) -> None:
        found.append((self._in_flight is not launched, self._waits()))
        complete(self, launched)

    with monkeypatch.context() as patch:
        patch.setattr(OverlapLoop, "_complete", noted)
        yield found


def twice(asked: list[Request]) -> list[Request]:
    """The same rows again: their text is in history by then."""
    return [replace(one, request_id=f"{turn}/{one.request_id}") for turn in range(2) for one in asked]


def drafted(done: list[Generation]) -> int:
    return sum(one.stats.history_drafts_accepted for one in done)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("settings", [{}, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("longest", "at_once"), [(1, 5), (3, 8), (40, 1), (40, 8)])
def test_the_output_does_not_depend_on_when_they_are_asked_for(
    temperature: float, longest: int, at_once: int, settings: dict[str, Any]
) -> None:
    asked = requests("autoregressive", temperature) + [
        replace(one, request_id=f"words/{one.request_id}")
        for one in requests("autoregressive", temperature, WORDS)[::3]
    ]
    expected = tokens(run(engine_of(history_drafts=False), asked))
    verified = [replace(one, params=replace(one.params, strategy="verified")) for one in asked]
    engine = overlapping(Turns(longest + at_once, longest), **settings)
    found = run(engine, twice(verified), at_once)
    for turn in range(2):
        own = [one for one in found if one.request_id.startswith(f"{turn}/")]
        assert {name.partition("/")[2]: one for name, one in tokens(own).items()} == expected
    assert drafted(found) > 0


def test_forwards_overlap_but_while_drafts_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = overlapping(Turns(1, 30))
    with in_flight(monkeypatch) as forwards:
        found = run(engine, twice(requests("verified", 0.0)), 4)
    ahead, waits = np.array(forwards).T
    assert not (ahead[1:] & waits[:-1] & waits[1:]).any(), "windows would miss their drafts"
    rest = ~waits[:-1] & ~waits[1:]
    assert rest.sum() > 40
    assert ahead[1:][rest].mean() > 0.9, "the last forward of a batch has no successor"
    assert drafted(found) > 0


def test_a_forward_that_the_device_waited_for_says_nothing_of_what_its_rows_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, completed = overlapping(Turns(1, 30)), list[CompletedForward]()
    consume = engine._consume_completed
    assert engine._loop is not None
    monkeypatch.setattr(engine._loop, "_consume", lambda one: (completed.append(one), consume(one)))
    with in_flight(monkeypatch) as forwards:
        run(engine, twice(requests("verified", 0.0)), 4)
    ahead = np.array(forwards)[:, 0]
    follows = np.append(False, ahead[:-1])  # it was launched while the one before was in flight
    known = np.array([one.rows is not None for one in completed])
    assert not (known & ~follows).any()
    assert (known & follows).sum() > 20
    assert sum(one.seconds is not None for one in completed) > 0.9 * len(completed), "steps are timed either way"


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "tight",
    [{"max_batch_rows": rows} for rows in (18, 19)] + [{"page_size": 4, "num_pages": pages} for pages in (27,)],
)
@pytest.mark.parametrize("slots", [4, 8])
def test_windows_that_keep_drafts_when_no_more_are_asked_for(
    agreeing_folder: Path, tight: dict[str, int], slots: int
) -> None:
    """Of sequences without a place in the last forward: they were rewritten while the next one had their rows."""
    model, tokenizer = loaded(agreeing_folder)
    config = EngineConfig(max_window=8, overlap=True, step_cost=COST, max_num_seqs=slots, **tight)
    engine, prompt = Engine(model, tokenizer, config), tuple(tokenizer.encode("nine plus one is ten"))
    controller, scheduler = Given(), engine._scheduler
    engine._drafting.controller = controller
    params = SamplingParams(strategy="verified", temperature=1.0, max_tokens=48, ignore_eos=True)
    plans, schedule, left = [], scheduler.schedule, 0
    asked = [Request(request_id=str(i), prompt_token_ids=prompt, seed=i % 8, params=params) for i in range(24)]

    def noted(*, may_preempt: bool = True) -> ForwardPlan | None:
        plans.append(schedule(may_preempt=may_preempt))
        return plans[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "schedule", noted)
        for one in asked:
            engine.add(one)
        done = []
        while engine.has_work():
            done += engine.step()
            planned = plans[-1].sequences if plans[-1] is not None else []
            out = [one.slot for one in (*scheduler.running, *scheduler.waiting) if one.slot >= 0 and one not in planned]
            keeps = bool((engine._table.source[out] == DraftSource.HISTORY).any())
            left += keeps and controller.arm.has_history
            on = not keeps or len(plans) % 16 < 12
            controller.arm = Arm.HISTORY_AND_MASKS if on else Arm.MASKS
    assert left > 0
    assert drafted(done) > 0
    plain = [replace(one, params=replace(params, strategy="autoregressive")) for one in asked]
    alone = Engine(
        model, tokenizer, replace(config, overlap=False, history_drafts=False, max_batch_rows=99, num_pages=200)
    )
    expected = {one.request_id: one.token_ids for one in run(alone, plain)}
    assert {one.request_id: one.token_ids for one in done} == expected


def test_they_take_as_few_forwards_as_where_none_overlap() -> None:
    asked, count = requests("verified", 0.0), {}
    for name, engine in (("overlap", overlapping(Given())), ("plain", engine_of(max_num_seqs=255))):
        engine._drafting.controller = Given()
        count[name] = sum(one.stats.decode_forwards for one in run(engine, twice(asked), 1))
    assert count["overlap"] == pytest.approx(count["plain"], rel=0.1)
