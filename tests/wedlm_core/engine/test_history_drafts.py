"""Drafts from history: they change how many forwards a text takes, and no token of it; rows are bought as they pay."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from testing.engine.engines import run
from testing.engine.repeating import COST, TIGHT, Given, engine_of, new_engine, requests, tokens
from wedlm_core.config import EngineConfig
from wedlm_core.config.engine import least_history_bytes
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.engine.history import check_bytes
from wedlm_core.engine.history_drafts import HistoryDrafts
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.errors import ConfigError
from wedlm_core.kernels.cpu.purchase import buy_rows, step_seconds
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Request


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("at_once", [1, 8])
def test_the_output_does_not_depend_on_drafts_from_history(temperature: float, at_once: int) -> None:
    expected = tokens(run(engine_of(history_drafts=False), requests("autoregressive", temperature)))
    plain = run(engine_of(history_drafts=False, **TIGHT), requests("verified", temperature), at_once)
    found = run(engine_of(**TIGHT), requests("verified", temperature), at_once)
    assert tokens(found) == tokens(plain) == expected
    assert sum(one.stats.history_drafts for one in plain) == 0


def test_with_a_grammar_as_well() -> None:
    words = StructuredOutputs(regex=r"([a-z]+ ){6,12}[a-z]+")
    for temperature in (0.0, 1.0):
        expected = tokens(run(engine_of(history_drafts=False), requests("autoregressive", temperature, words)))
        assert tokens(run(engine_of(**TIGHT), requests("verified", temperature, words), 6)) == expected


@pytest.mark.parametrize("pays", [False, True])
def test_with_grammars_alone_too_history_rests_only_where_it_does_not_pay(pays: bool) -> None:
    cost = COST if pays else StepCost.linear(fixed=1e-3, per_row=1.0)
    folder, words = resolve("tiny"), StructuredOutputs(regex=r"([a-z]+ ){6,12}[a-z]+")
    engine = Engine(load_model(folder), Tokenizer.load(folder), EngineConfig(max_window=16, step_cost=cost))
    for turn in range(3):  # the same prompts again: all of their outputs were seen
        asked = [replace(one, request_id=f"{turn}/{one.request_id}") for one in requests("verified", 0.0, words)]
        done = run(engine, asked, 4)
    assert engine._history is not None
    assert bool(sum(one.stats.history_drafts_accepted for one in done)) == pays
    assert engine._history._trials.asks == pays, "where no draft is worth its row"


def test_text_that_was_seen_takes_fewer_forwards() -> None:
    dear = StepCost.linear(fixed=1.0, per_row=1.0, floor_rows=3)  # no mask pays for two rows
    folder = resolve("tiny")
    forwards = {}
    for history in (True, False):
        config = EngineConfig(max_window=16, step_cost=dear, history_drafts=history)
        engine = Engine(load_model(folder), Tokenizer.load(folder), config)
        if engine._history is not None:
            engine._history._trials = Given()  # how long forwards take here is not what is asked
        same = requests("verified", 0.0)[:3]
        for turn in range(6):  # the same rows again: all of the text is known, and trusted after some turns
            done = run(engine, [Request(request_id=f"{turn}{r.request_id}", prompt_token_ids=r.prompt_token_ids,
                                        params=r.params, seed=r.seed) for r in same], 1)  # fmt: skip
        forwards[history] = sum(one.stats.decode_forwards for one in done)
        if history:
            assert all(one.stats.history_drafts_accepted > one.stats.mask_drafts_accepted for one in done)
    assert forwards[True] < 0.8 * forwards[False]


@pytest.mark.parametrize("overlap", [False, True])
def test_rows_that_begin_alike_have_drafts_in_their_first_forward(
    monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    dear, same, forwards = StepCost.linear(fixed=1.0, per_row=0.1, floor_rows=3), requests("verified", 0.0)[:6], {}
    expected = tokens(run(engine_of(history_drafts=False), same))
    for first in (True, False):
        engine = new_engine(step_cost=dear, overlap=overlap)
        assert engine._history is not None
        engine._history._trials = Given()  # how long forwards take here is not what is asked
        engine._history._asks = True
        if not first:
            monkeypatch.setattr(engine._history, "begin", lambda *_: None)
        for turn in range(12):  # how far first drafts are to be trusted is learned apart
            done = run(engine, [replace(one, request_id=f"{turn}/{one.request_id}") for one in same], 2)
        assert {name.partition("/")[2]: one for name, one in tokens(done).items()} == expected
        forwards[first] = [one.stats.decode_forwards for one in done]
    assert sum(forwards[True]) < sum(forwards[False]) - len(same) // 2, "a forward less for most"


@pytest.mark.parametrize("asked_again", [False, True])
def test_texts_that_are_not_asked_for_are_taken_in_later(asked_again: bool) -> None:
    """Whether rows begin or end while the engine does not ask, it remembers them all, and drafts what others do."""
    folder, shared = resolve("tiny"), []
    for paused in (False, True):
        config = EngineConfig(max_window=16, step_cost=COST, max_num_seqs=4)
        engine = Engine(load_model(folder), Tokenizer.load(folder), config)
        drafts = engine._history
        assert drafts is not None
        drafts._trials = trials = Given()
        trials.asks = not paused
        for number, request in enumerate(requests("verified", 0.0)):
            engine.add(request)
            engine.step()
            if paused and asked_again and number % 2:
                assert drafts._history is None or not drafts._history._open.any()
                trials.asks = True
            while engine.has_work():
                engine.step()
            trials.asks = not paused
        history = drafts._history
        assert history is not None
        assert not drafts._prompts
        assert not drafts._waiting
        assert not history._open.any()
        assert bool(drafts._ended) == paused or asked_again, "they wait until it is asked"
        drafts._take_in()
        shared.append(history._logs.token[len(history._logs.token) // 2 :].copy())
    assert np.array_equal(*shared)
    assert (shared[0] != 0).sum() > 500


def test_nothing_is_drafted_from_a_sequence_that_was_aborted() -> None:
    table = SlotTable(2, 9)
    history = HistoryDrafts(table, WindowPlanner(table, 4, 99), max_window=4, max_bytes=1 << 20)
    engine = engine_of()
    (request,) = requests("verified", 0.0)[:1]
    engine.add(request)
    engine.step()
    engine.abort(request.request_id)
    assert not engine._table.recalls.any()
    history.close(0, (1,))  # one that never was remembered


def resting(max_bytes: int) -> tuple[HistoryDrafts, SlotTable, Sequence]:
    """A history that does not ask, and a sequence in the first of its slots that it has yet to take in."""
    table = SlotTable(2, 9)
    table.set_limit(0, 1 << 15)
    drafts = HistoryDrafts(table, WindowPlanner(table, 4, 99), max_window=4, max_bytes=max_bytes)
    sequence = Sequence(request=requests("verified", 0.0)[0], arrival=0, head=True, widest=4, slot=0)
    drafts.open([sequence])
    return drafts, table, sequence


def test_drafts_of_a_slot_that_was_closed_are_none_of_the_next_windows() -> None:
    """Grammars write some as well: they would seem to be there until the slot has another sequence."""
    drafts, table, _ = resting(1 << 20)
    table.source[0], drafts.placed = DraftSource.HISTORY, True
    drafts.close(0)
    assert not table.source.any()


def test_texts_that_wait_are_no_more_than_the_history_would_not_forget_at_once() -> None:
    drafts, _, sequence = resting(1 << 20)
    assert drafts._history is not None
    most = 1 << drafts._history.shared_bits
    for number in range(20):
        drafts.close(0, (number,) * (most // 3))
        drafts.open([sequence])
    assert sum(len(output) for _, output in drafts._ended) == drafts._ended_tokens <= most
    assert [output[0] for _, output in drafts._ended] == [17, 18, 19], "the last ones"
    assert {len(end) for end, _ in drafts._ended} == {8}, "no whole prompts"
    for _ in range(2000):
        drafts.close(0, (1,))
        drafts.open([sequence])
    assert len(drafts._ended) == 512
    drafts._take_in()
    assert not drafts._ended
    assert drafts._ended_tokens == 0


def test_texts_that_wait_take_little_memory() -> None:
    """However much the history may hold: they wait as numbers of Python's."""
    drafts, _, sequence = resting(1 << 27)
    for _ in range(200):
        drafts.close(0, (7,) * 9999)
        drafts.open([sequence])
    assert drafts._ended_tokens <= 1 << 18


@pytest.mark.parametrize("pause", [50, 96, 97, 300])
def test_forwards_that_tell_nothing_count_until_the_next_trial(pause: int) -> None:
    """Those with a prompt that history is for: others are not of its sequences."""
    drafts, _, sequence = resting(1 << 20)
    drafts._trials._begin(asks=False, forwards=pause)
    drafts._trials._is_steady = drafts._asks = False
    one, woken = np.array([1]), 0
    for _ in range(pause):
        assert not drafts.asks
        woken += drafts.wakes(one, 0)
        drafts.record_step(1e-3)
    assert drafts.wakes(one, 0)
    assert drafts.asks
    assert woken == 0
    drafts._trials._begin(asks=False, forwards=pause)
    drafts._asks = drafts._learns_last = False
    drafts.wakes(one, 0)
    left = drafts._trials._left, drafts._resting
    drafts.close(sequence.slot)
    for _ in range(2 * pause):
        assert not drafts.wakes(one, 0)
    assert (drafts._trials._left, drafts._resting) == left


def test_in_a_long_pause_no_text_is_kept_until_those_come_that_a_trial_would_take_in() -> None:
    drafts, table, sequence = resting(1 << 20)
    later = Sequence(request=sequence.request, arrival=1, head=True, widest=4, slot=1)
    drafts.running = lambda: [later]
    drafts._trials._is_steady = drafts._asks = False
    one = np.array([1])

    def pause(forwards: int) -> None:
        drafts._trials._begin(asks=False, forwards=forwards)
        drafts._resting = 0
        assert not drafts.wakes(one, 0)

    for number in range(600):  # one in two forwards
        drafts.close(0, (number,))
        drafts.open([sequence])
        drafts._resting = 2
        assert not drafts.wakes(one, 0)
        assert not drafts.wakes(one, 0)
    pause(1300)
    assert drafts._prompts, "the texts of all forwards that are left may be wanted"
    pause(5000)
    assert not drafts._prompts
    assert not drafts._waiting
    assert not drafts._ended
    assert not table.recalls.any()
    left = 4999 - 96 - math.ceil(1.25 * 512 * 1202 / 600)
    for forward in range(left):
        assert not drafts._prompts, forward
        drafts.open([sequence])
        drafts.close(0, (1,))
        drafts.record_step(1e-3)
        assert not drafts.wakes(one, 0)
    assert drafts._prompts == {1: later.request.prompt_token_ids}
    assert list(np.flatnonzero(table.recalls)) == [1]
    drafts.close(1, (7,))
    assert [output for _, output in drafts._ended] == [(7,)]


def test_a_pause_through_which_few_texts_end_is_one_of_all_of_them() -> None:
    drafts, _, _ = resting(1 << 20)
    drafts._trials._begin(asks=False, forwards=16_000)
    drafts._trials._is_steady = drafts._asks = False
    for _ in range(10_000):
        assert not drafts.wakes(np.array([1]), 0)
        assert drafts._prompts


def test_who_runs_when_a_long_pause_ends_gets_drafts_again_and_the_same_tokens() -> None:
    folder, expected = resolve("tiny"), tokens(run(engine_of(history_drafts=False), requests("autoregressive", 0.0)))
    config = EngineConfig(max_window=16, step_cost=COST, max_num_seqs=4)
    engine = Engine(load_model(folder), Tokenizer.load(folder), config)
    drafts = engine._history
    assert drafts is not None
    drafts._trials = Given()
    run(engine, [replace(one, request_id=f"first/{one.request_id}") for one in requests("verified", 0.0)], 4)
    drafts._trials._begin(asks=False, forwards=150)
    drafts._trials._is_steady = False
    drafts._forwards, drafts._ends = 513, 513 * 40  # so it leaves, for about 40 forwards
    for one in requests("verified", 0.0):
        engine.add(one)
    away, running, done = 0, 0, []
    while engine.has_work():
        done += engine.step()
        away += drafts._away > 0
        if away and not drafts._away and not drafts._trials.asks:
            running, drafts._trials.asks = len(drafts._prompts), True
            before = sum(one.stats.history_drafts_accepted for one in done)
    assert 30 < away < 45
    assert running > 1, "some end in that forward"
    assert tokens(done) == expected
    assert before == 0
    assert sum(one.stats.history_drafts_accepted for one in done) > 0


def test_too_little_memory_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="history_bytes=1000"):
        engine_of(history_bytes=1000)
    for sequences in (1, 3, 8, 1000):
        least = least_history_bytes(sequences)
        check_bytes(EngineConfig(max_num_seqs=sequences, history_bytes=least).history_bytes, sequences)
        with pytest.raises(ConfigError, match=f"at least {least}"):
            check_bytes(least - 1, sequences)
        with pytest.raises(ConfigError, match=f"at least {least}"):
            EngineConfig(max_num_seqs=sequences, history_bytes=least - 1)
        EngineConfig(max_num_seqs=sequences, history_bytes=1, history_drafts=False)
    with pytest.raises(ConfigError, match=r"history_drafts=True.*overlap"):
        EngineConfig(history_drafts=True, overlap=True)


def test_rows_are_bought_as_a_search_over_all_thresholds_buys_them() -> None:
    table = SlotTable(8, 9)
    table.adaptive[:4] = True
    table.widest[:4], table.limit[:4], table.rows[:4] = 4, 100, 3
    planner = WindowPlanner(table, 4, 99)
    cost = StepCost.linear(fixed=1.0, per_row=0.05, floor_rows=6)
    planner.plan(np.arange(4), cost, 1 << 20)
    acceptance = np.random.default_rng(1).random((4, 6)).cumprod(axis=1)
    prices = planner.prices
    assert prices is not None
    bought = buy_rows(prices._replace(seconds_per_commit=0.0), acceptance, 5.0, 12.0, 1 << 20)
    flat = np.sort(acceptance.reshape(-1))[::-1]
    seconds = [step_seconds(prices, 12.0 + n, True) for n in range(len(flat) + 1)]
    commits = [5.0 + flat[:n].sum() for n in range(len(flat) + 1)]
    count = int((acceptance >= bought.threshold).sum())
    assert commits[count] / seconds[count] >= 0.999 * max(np.array(commits) / seconds)
    assert buy_rows(prices, acceptance, 5.0, 12.0, 2).threshold >= flat[2], "no more than there is room for"

    rich = prices._replace(seconds_per_commit=0.9 * seconds[count] / commits[count])  # the run is better than this
    fewer = int((acceptance >= buy_rows(rich, acceptance, 5.0, 12.0, 1 << 20).threshold).sum())
    net = np.array(commits) - np.array(seconds) / rich.seconds_per_commit
    assert net[fewer] >= max(net) - 0.01 * commits[-1]
    assert fewer <= count


def test_masks_are_learned_beside_history_in_the_first_forwards() -> None:
    """They were closed from the first one on: the first comparison was with windows of which nothing was known."""
    drafts, _, _ = resting(1 << 20)
    one, asked = np.array([1]), []
    for _ in range(700):
        drafts.wakes(one, 0)
        asked.append((drafts._asks, drafts.asks))
        drafts._trials.gained(1e-3)
        drafts.record_step(1e-3)
    assert (True, False) in asked[:128]
    assert (True, True) not in asked[:128]
    assert (True, True) in asked[128:], "a trial is of history alone"
