"""Engines that are kept full, slow actors that hold nobody up, rows that meet where their prefix is cached."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.actors.engine_thread import EngineThread
from pipeline.actors.lookahead import Lookahead
from pipeline.codec import EngineConfig, Generation, Request, SamplingParams
from pipeline.config import RunConfig
from pipeline.gathering import together
from pipeline.graph import units_per_actor
from tests.support.pipeline_fakes import FakeEngine
from wedlm_core import LLM


def request(number: int, *prompt: int, max_tokens: int = 4) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number)


# --- actors ---------------------------------------------------------------------------------------


class _Actor:
    """A model of an engine: ``slots`` rows run at once, each for its length divided by the actor's speed."""

    def __init__(self, slots: int, speed: float) -> None:
        self.slots, self.speed, self.seconds_full = slots, speed, 0.0
        self.units: list[list[float]] = []

    def advance(self, seconds: float) -> None:
        rows = [(unit, i) for unit in self.units for i, left in enumerate(unit) if left > 0][: self.slots]
        self.seconds_full += seconds * len(rows) / self.slots
        for unit, i in rows:
            unit[i] -= seconds * self.speed
        self.units = [unit for unit in self.units if any(left > 0 for left in unit)]


def simulated(config: RunConfig, units: Sequence[Sequence[float]], speeds: Sequence[float]) -> tuple[float, float]:
    """Seconds until the last unit is done, and the share of that for which the fastest actor was full."""
    held = units_per_actor(config, len(units[0]), len(units))
    actors = [_Actor(config.engine.max_num_seqs, speed) for speed in speeds]
    waiting, now, step = [list(unit) for unit in units], 0.0, 0.25
    while waiting or any(actor.units for actor in actors):
        for actor in sorted(actors, key=lambda actor: len(actor.units)):
            while waiting and len(actor.units) < held:
                actor.units.append(waiting.pop(0))
        for actor in actors:
            actor.advance(step)
        now += step
    return now, max(actors, key=lambda actor: actor.speed).seconds_full / now


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 0.25), (1.0, 1.0, 1.0, 0.2)])
def test_a_slow_actor_neither_hoards_units_nor_holds_up_the_end(speeds: tuple[float, ...]) -> None:
    draw = random.Random(0)
    units = [[draw.expovariate(1 / 10) + 1 for _ in range(8)] for _ in range(600)]
    config = RunConfig(input="", output="-", actors=len(speeds), engine=EngineConfig(max_num_seqs=16))
    ideal = sum(map(sum, units)) / (16 * sum(speeds))
    seconds, full = simulated(config, units, speeds)
    assert seconds < 1.25 * ideal
    assert full > 0.8


def test_one_actor_is_full_to_the_end_whatever_its_rows_are() -> None:
    draw = random.Random(1)
    units = [[draw.paretovariate(1.5) for _ in range(8)] for _ in range(400)]
    config = RunConfig(input="", output="-", engine=EngineConfig(max_num_seqs=16))
    ideal = sum(map(sum, units)) / 16
    seconds, full = simulated(config, units, (1.0,))
    assert seconds < 1.1 * ideal + max(map(max, units))
    assert full > 0.8


# --- rows -----------------------------------------------------------------------------------------


@given(prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=40), window=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_look_ahead_gives_everything_back_orders_each_window_and_lets_nobody_starve(
    prompts: list[list[int]], window: int
) -> None:
    ahead = Lookahead(window)
    requests = [request(i, *prompt) for i, prompt in enumerate(prompts)]
    for one in requests:
        ahead.put(one)
    order = [ahead.pop() for _ in requests]
    assert len(ahead) == 0
    for first in range(0, len(requests), window):
        part = order[first : first + window]
        assert sorted(part, key=lambda r: int(r.request_id)) == requests[first : first + window]
        assert [r.prompt_token_ids for r in part] == sorted(r.prompt_token_ids for r in part)


def test_an_engine_is_given_what_it_can_feed_on_and_no_more() -> None:
    class Watched(FakeEngine):
        most_held = 0

        def step(self) -> list[Generation]:
            self.most_held = max(self.most_held, len(self._requests))
            return super().step()

    engine = Watched(slots=8)
    thread = EngineThread(engine, slots=8)
    outcome = thread.submit([request(i, 10 + i % 7) for i in range(200)]).result(timeout=30)
    thread.close()
    assert len(outcome) == 200
    assert engine.most_at_once == 8
    assert 8 < engine.most_held <= 12


def test_rows_that_share_a_prefix_meet_in_the_cache_and_give_the_same_tokens(qwen3_folder: Path) -> None:
    """Twelve families of prompts in turns, and pages for few of them: by arrival each finds its prefix evicted."""
    draw = random.Random(3)
    families = [[draw.randrange(10, 200) for _ in range(64)] for _ in range(12)]
    requests = [request(i, *families[i % 12], 10 + i, max_tokens=2) for i in range(48)]
    engine_config = EngineConfig(max_num_seqs=4, page_size=16, num_pages=28)
    tokens, cached = [], []
    for window in (1, 48):
        thread = EngineThread(LLM(str(qwen3_folder), config=engine_config).engine, slots=4)
        thread._queue = Lookahead(window)
        outcome = thread.submit(requests).result(timeout=120)
        thread.close()
        done = [outcome[r.request_id] for r in requests]
        assert all(isinstance(g, Generation) for g in done)
        tokens.append([g.token_ids for g in done if isinstance(g, Generation)])
        cached.append(sum(g.stats.cached_prompt_tokens for g in done if isinstance(g, Generation)))
    assert tokens[0] == tokens[1]
    assert cached[1] > 2 * cached[0] + 500


# --- the ledger's side ----------------------------------------------------------------------------


def test_items_that_arrive_while_the_consumer_is_busy_come_together_in_order_with_the_error_last() -> None:
    ready = threading.Event()

    def items():
        yield 0
        yield from range(1, 50)
        ready.set()
        raise ValueError("the end")

    groups, got = together(items()), []
    while not got or got[-1][-1] != 49:
        got.append(next(groups))
        ready.wait(10)
    with pytest.raises(ValueError, match="the end"):
        next(groups)
    assert [i for group in got for i in group] == list(range(50))
    assert len(got) <= 3
