"""The engine thread keeps its engine full, orders rows by length and prefix, cancels work; draining an iterator."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster.streams import drain
from pipeline.codec import EngineConfig, Generation, Request, SamplingParams
from pipeline.worker.engine_thread import DroppedError, EngineThread, RequestQueue
from pipeline.worker.lengths import Lengths, kind_of
from pipeline.worker.unit_worker import Runs
from testing.pipeline.fakes import FakeEngine
from wedlm_core import LLM


def request(number: int, *prompt: int, max_tokens: int = 4) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number)


# --- rows -----------------------------------------------------------------------------------------


_PROMPTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=40)


@given(prompts=_PROMPTS, window=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_requests_of_one_length_are_sorted_by_prompt_within_each_window(prompts: list[list[int]], window: int) -> None:
    waiting = RequestQueue(window, Lengths())
    requests = [request(i, *prompt) for i, prompt in enumerate(prompts)]
    for one in requests:
        waiting.put(one)
    order = [waiting.pop()[0] for _ in requests]
    assert len(waiting) == 0
    for first in range(0, len(requests), window):
        part = order[first : first + window]
        assert sorted(part, key=lambda r: int(r.request_id)) == requests[first : first + window]
        assert [r.prompt_token_ids for r in part] == sorted(r.prompt_token_ids for r in part)


@given(lengths=st.lists(st.integers(1, 40), min_size=2, max_size=12), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_scored_texts_of_one_prompt_follow_each_other_whatever_their_lengths(lengths: list[int], seed: int) -> None:
    """So that the prompt is computed once."""
    waiting = RequestQueue(2 * len(lengths), Lengths())
    prompts = [(seed, row) for row in range(6)]
    for number, prompt in enumerate(prompts):
        for place, length in enumerate(lengths):
            waiting.put(replace(request(number * 100 + place, *prompt), continuation=(7,) * length))
    order = [waiting.pop()[0].prompt_token_ids for _ in range(len(prompts) * len(lengths))]
    assert [prompt for prompt, _ in itertools.groupby(order)] == prompts


@given(data=st.data(), sizes=st.lists(st.integers(0, 6), max_size=60), window=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_long_requests_go_first_and_no_request_waits_for_more_than_a_few_windows(
    data: st.DataObject, sizes: list[int], window: int
) -> None:
    """Puts and pops in any order, and lengths that are learned meanwhile; every request comes out once."""
    lengths = Lengths()
    waiting, held, popped = RequestQueue(window, lengths), dict[int, int](), set[int]()
    overtaken: Counter[int] = Counter()
    left = list(enumerate(sizes))
    while left or held:
        if left and (not held or data.draw(st.booleans())):
            number, size = left.pop(0)
            waiting.put(request(number, 7, max_tokens=2**size))
            held[number] = size
            continue
        own = int(waiting.pop()[0].request_id)
        assert own not in popped
        popped.add(own)
        size = held.pop(own)
        overtaken.update(other for other in held if other < own)
        assert all(its <= size for other, its in held.items() if other // window <= own // window), "the longest first"
        kind = kind_of((7,), 1, SamplingParams(max_tokens=64))
        lengths.learn(kind, data.draw(st.integers(0, 64)))
    assert popped == set(range(len(sizes)))
    assert all(count < window * (max(sizes) - sizes[number] + 1) for number, count in overtaken.items())


def test_the_order_of_waiting_requests_follows_the_lengths_that_are_learned() -> None:
    lengths = Lengths()
    waiting = RequestQueue(100, lengths)
    params = SamplingParams(max_tokens=2000)
    for opening, tokens in ((1, 5), (2, 90)):
        waiting.put(Request(request_id=str(opening), prompt_token_ids=(opening,), params=params))
        for _ in range(50):
            lengths.learn(kind_of((opening,), 1, params), tokens)
    assert [waiting.pop()[0].request_id for _ in range(2)] == ["2", "1"]


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
    """Twelve families of prompts in turns, and pages for few of them: first in, first out, each prefix is evicted."""
    draw = random.Random(3)
    families = [[draw.randrange(10, 200) for _ in range(64)] for _ in range(12)]
    requests = [request(i, *families[i % 12], 10 + i, max_tokens=2) for i in range(48)]
    engine_config = EngineConfig(max_num_seqs=4, page_size=16, num_pages=28)
    tokens, cached = [], []
    for window in (1, 48):
        thread = EngineThread(LLM(str(qwen3_folder), config=engine_config).engine, slots=4)
        thread._queue = RequestQueue(window, thread.lengths)
        outcome = thread.submit(requests).result(timeout=120)
        thread.close()
        done = [outcome[r.request_id] for r in requests]
        assert all(isinstance(g, Generation) for g in done)
        tokens.append([g.token_ids for g in done if isinstance(g, Generation)])
        cached.append(sum(g.stats.cached_prompt_tokens for g in done if isinstance(g, Generation)))
    assert tokens[0] == tokens[1]
    assert cached[1] > 2 * cached[0] + 500


def test_rows_are_equal_to_the_bit_whichever_of_them_begin_first(qwen3_folder: Path) -> None:
    """Rows of 1 to 48 tokens at temperature 1: the shortest first, then the longest first."""
    draw = random.Random(5)
    prompts = [[draw.randrange(10, 200) for _ in range(1 + i % 9)] for i in range(24)]
    params = [SamplingParams(max_tokens=1 + 2 * i, ignore_eos=True, temperature=1.0, logprobs=2) for i in range(24)]
    requests = [
        Request(request_id=str(i), prompt_token_ids=tuple(prompt), params=own, seed=i)
        for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))
    ]
    found = []
    for window in (1, 48):
        thread = EngineThread(LLM(str(qwen3_folder), config=EngineConfig(max_num_seqs=4)).engine, slots=4)
        thread._max_engine_requests = 4
        thread._queue = RequestQueue(window, thread.lengths)
        outcome = thread.submit(requests).result(timeout=120)
        thread.close()
        found.append(outcome)
    first, second = ([outcome[r.request_id] for r in requests] for outcome in found)
    assert list(found[0]) != list(found[1])
    for a, b in zip(first, second, strict=True):
        assert isinstance(a, Generation)
        assert isinstance(b, Generation)
        assert (a.token_ids, a.text, a.logprobs, a.top_logprobs) == (b.token_ids, b.text, b.logprobs, b.top_logprobs)


# --- units not wanted any more ------------------------------------------------------------------


def test_what_is_dropped_leaves_the_engine_and_the_others_go_on() -> None:
    class Gated(FakeEngine):
        go = threading.Event()
        stepped = threading.Event()

        def step(self) -> list[Generation]:
            self.stepped.set()
            assert self.go.wait(30)
            return super().step()

    engine = Gated(slots=4)
    thread = EngineThread(engine, slots=4)
    unwanted = thread.submit([request(i, 10) for i in range(20)])
    assert engine.stepped.wait(30)
    wanted = thread.submit([request(i, 10) for i in range(20, 30)])
    thread.drop(unwanted)
    thread.drop(unwanted)
    engine.go.set()
    with pytest.raises(DroppedError):
        unwanted.result(timeout=30)
    assert len(wanted.result(timeout=30)) == 10
    thread.drop(wanted)  # too late: nothing happens
    assert len(thread.submit([request(99, 10)]).result(timeout=30)) == 1
    thread.close()
    assert not engine.has_work()


def test_a_run_that_is_dropped_before_it_begins_or_while_it_waits_ends_and_its_name_is_free_again() -> None:
    stopped: list[Future[int]] = []

    def stop(future: Future[int]) -> None:
        stopped.append(future)
        future.set_exception(DroppedError())

    runs = Runs(stop)
    runs.drop("early")
    with pytest.raises(DroppedError), runs.run("early"):
        raise AssertionError("it was to be left out")
    with runs.run("early"):
        done: Future[int] = Future()
        done.set_result(7)
        assert runs.wait("early", lambda: done) == 7

    submitted = threading.Event()

    def submit() -> Future[int]:
        submitted.set()
        return Future()

    def late() -> None:
        assert submitted.wait(30)
        runs.drop("late")

    dropper = threading.Thread(target=late)
    dropper.start()
    with pytest.raises(DroppedError), runs.run("late"):
        runs.wait("late", submit)
    dropper.join()
    assert len(stopped) == 1


# --- draining ----------------------------------------------------------------------------


def test_items_that_become_ready_while_the_consumer_is_busy_come_in_one_list_in_order_with_the_error_last() -> None:
    ready = threading.Event()

    def items():
        yield 0
        yield from range(1, 50)
        ready.set()
        raise ValueError("the end")

    groups, got = drain([items]), []
    while not got or got[-1][-1] != 49:
        got.append(next(groups))
        ready.wait(10)
    with pytest.raises(ValueError, match="the end"):
        next(groups)
    assert [i for group in got for i in group] == list(range(50))
    assert len(got) <= 3


def test_a_consumer_that_is_slow_for_long_slows_the_source_down() -> None:
    drawn = 0

    def items():
        nonlocal drawn
        while drawn < 100_000:
            drawn += 1
            yield drawn

    groups = drain([items])
    assert next(groups)[0] == 1
    before = -1
    while before != drawn:
        before = drawn
        threading.Event().wait(0.2)
    assert drawn < 10_000
    groups.close()
