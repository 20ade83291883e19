"""Drafts from history are asked for where tokens come faster with them, and else ever more seldom."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from wedlm_core.engine.history_trials import Trials


def decode(
    trials: Trials,
    forwards: int,
    speed: Callable[[int], float],
    *,
    sequences: int = 8,
    gains: bool = True,
    first: int = 0,
) -> list[bool]:
    """Whether drafts are asked for, forward by forward; with them tokens come ``speed(forward)`` times as fast."""
    rng, asked = np.random.default_rng(first), []
    for forward in range(first, first + forwards):
        asked.append(trials.asks)
        tokens = int(rng.integers(4, 12))
        seconds = tokens * 1e-4 * float(rng.uniform(0.8, 1.2))
        trials.record(seconds / (speed(forward) if trials.asks else 1.0), tokens, sequences)
        if trials.asks and gains:
            trials.gained(1e-3)
    return asked


@pytest.mark.parametrize("sequences", [1, 8, 32])
def test_where_they_pay_they_are_asked_for_but_for_a_few_forwards_to_compare(sequences: int) -> None:
    asked = decode(Trials(), 20_000, lambda _: 1.3, sequences=sequences)
    assert np.mean(asked) > 0.96
    assert not all(asked)


def test_one_sequence_less_now_and_then_is_the_same_case() -> None:
    """Engines have powers of two of them, and one that reads its prompt: that is known as all of them."""
    trials = Trials()
    for sequences in (12, 11) * 200:
        decode(trials, 10, lambda _: 1.3, sequences=sequences, first=10)
    assert len(trials._arms) == 1


def test_where_they_pay_a_little_they_are_not_compared_half_of_the_time() -> None:
    shares = [np.mean(decode(Trials(), 20_000, lambda _: 1.08, first=1000 * seed)) for seed in range(4)]
    assert np.mean(shares) > 0.82


def test_the_first_trial_lasts_until_it_is_learned_how_far_drafts_are_trusted() -> None:
    """Text that repeats in each row was given up behind 48 forwards, in which few drafts are bought, for a thousand."""
    for seed in range(4):
        rng, trials, asked = np.random.default_rng(seed), Trials(), []
        for _ in range(1500):
            asked.append(trials.asks)
            tokens = int(rng.integers(4, 12))
            speed = 1.0 if not trials.asks else 0.7 if trials._passed < 80 else 1.5
            trials.record(tokens * 1e-4 * float(rng.uniform(0.8, 1.2)) / speed, tokens, 8)
            if trials.asks:
                trials.gained(1e-3)
        assert np.mean(asked[700:]) > 0.9


def by_tokens(tokens: Callable[[Trials, int], int], forwards: int, seed: int, sequences: int) -> list[bool]:
    """Whether drafts are asked for, where so many tokens of a sequence come with each forward."""
    rng, trials, asked = np.random.default_rng(seed), Trials(), []
    for forward in range(forwards):
        asked.append(trials.asks)
        trials.record(1e-3 * float(rng.uniform(0.8, 1.2)), tokens(trials, forward) * sequences, sequences)
        if trials.asks:
            trials.gained(1e-3)
    return asked


@pytest.mark.parametrize("sequences", [1, 8])
def test_a_trial_whose_drafts_are_not_accepted_ends_at_once(sequences: int) -> None:
    """Masks bring three tokens a forward, and a trial of history has none: it went on for 128 forwards."""
    for seed in range(10):
        asked = by_tokens(lambda trials, forward: 1 if trials.asks and forward > 127 else 3, 3000, seed, sequences)
        begins = np.flatnonzero(np.diff(asked[200:], prepend=False) & asked[200:])
        lasts = [asked[200 + begin :].index(False) for begin in begins]
        assert 0 < max(lasts) <= 32


def test_a_trial_whose_drafts_are_accepted_is_not_ended_early() -> None:
    """Masks bring three tokens a forward, history two at first and five when it has learned how far to trust."""
    for seed in range(10):
        asked = by_tokens(lambda trials, _: 3 if not trials.asks else 2 if trials._passed < 40 else 5, 1000, seed, 1)
        assert np.mean(asked[500:]) > 0.9


def test_what_pays_beside_masks_is_tried_alone_before_it_stays() -> None:
    """The first forwards had masks, whose drafts were all right: history alone was kept for 256 forwards and more."""
    for seed in range(4):
        trials = Trials()
        asked = decode(trials, 128, lambda _: 1.2, sequences=1, first=1000 * seed)
        asked += decode(trials, 2000, lambda _: 0.6, sequences=1, first=1000 * seed + 128)
        assert np.mean(asked[:600]) < 0.45
        assert np.mean(asked[600:]) < 0.1


def test_what_pays_in_one_forward_of_seven_is_not_given_up_for_a_few_without() -> None:
    for seed in range(4):
        rng, trials, asked = np.random.default_rng(seed), Trials(), []
        for _ in range(1000):
            asked.append(trials.asks)
            gains = trials.asks and rng.random() < 0.15
            tokens = 40 if gains else int(rng.integers(4, 8))
            trials.record(7e-4 * float(rng.uniform(0.9, 1.1)), tokens, 1)
            if gains:
                trials.gained(1e-3)
        assert np.mean(asked) > 0.8


def test_where_they_do_not_pay_they_are_asked_for_ever_more_seldom() -> None:
    asked = decode(Trials(), 20_000, lambda _: 0.8)
    assert np.mean(asked[:1000]) < 0.35
    assert 0 < np.mean(asked[10_000:]) < 0.04


def test_trials_that_cost_much_are_seldom_from_the_beginning() -> None:
    """Pauses that begin short and double would have had six of them by then."""
    for seed in range(5):
        asked = decode(Trials(), 12_000, lambda _: 0.5, first=1000 * seed)
        begins = np.flatnonzero(np.diff(asked[400:], prepend=False) & asked[400:])
        assert 2 <= len(begins) <= 4
        assert begins[0] < 1000, "there may have been little yet that repeats"


def test_a_trial_that_says_nothing_clear_is_not_paid_for() -> None:
    """Its first forwards take texts in; what it might have missed is worth more."""
    trials, paused = in_a_trial(), 0
    for forward in itertools.count():
        if not trials.asks:
            break
        trials.record(2e-2 if forward < 8 else 1e-3, 8, 8)
        trials.gained(1e-3)
    while not trials.asks:
        trials.record(1e-3, 8, 8)
        paused += 1
    assert paused < 500


def test_what_gains_nothing_is_not_tried_for_long() -> None:
    asked = decode(Trials(), 20_000, lambda _: 1.0, gains=False)
    assert np.mean(asked[:100]) < 0.6
    assert np.mean(asked[1000:]) < 0.01


def test_text_that_begins_to_repeat_is_found_out_and_so_is_text_that_no_longer_does() -> None:
    trials = Trials()
    asked = decode(trials, 40_000, lambda forward: 1.4 if 5000 <= forward < 30_000 else 0.8)
    assert np.mean(asked[2500:5000]) < 0.1
    assert np.mean(asked[10_000:30_000]) > 0.9
    assert np.mean(asked[36_000:]) < 0.1
    decode(trials, 4000, lambda _: 1.4, first=50_000)
    stopped = decode(trials, 300, lambda _: 1.0, gains=False, first=60_000)
    assert np.mean(stopped[60:]) < 0.1, "at once where nothing is gained any more"


def test_numbers_of_sequences_are_compared_with_their_like() -> None:
    """Many sequences take fewer seconds a token: that says nothing of drafts."""
    trials, asked = Trials(), []
    for turn in range(60):
        many = turn % 2
        asked += decode(trials, 300, lambda _, many=many: 1.3 * (4 if many else 1), sequences=32 if many else 2,
                        first=300 * turn)  # fmt: skip
    assert np.mean(asked[3000:]) > 0.8


def test_steps_in_which_none_decodes_count_with_the_next() -> None:
    """With drafts sequences end one by one, and prompts are read beside others; without them all at once."""
    trials, asked = Trials(), []
    for forward in range(20_000):
        asked.append(trials.asks)
        if trials.asks:
            trials.record(1.1e-3, 8, 8)
            trials.gained(1e-3)
        else:
            if forward % 8 == 0:
                trials.record(4e-3, 0, 0)
            trials.record(1e-3, 8, 8)
    assert np.mean(asked[2000:]) > 0.9, "1.1 ms a forward, and 1.5 without"


@pytest.mark.parametrize(("sequences", "forwards"), [(1, 128), (8, 128), (16, 64), (32, 48), (256, 48)])
def test_of_many_sequences_fewer_first_forwards_tell_as_much(sequences: int, forwards: int) -> None:
    asked = decode(Trials(), 400, lambda _: 0.9, sequences=sequences)
    assert asked.index(False) == forwards
    again = asked.index(True, forwards)
    assert all(asked[again : again + 20]), "later trials have their own length"


def in_a_trial() -> Trials:
    """Trials at the beginning of one, behind forwards that showed that drafts do not pay."""
    trials = Trials()
    while trials.asks or trials._is_steady:
        trials.record(2e-3 if trials.asks else 1e-3, 8, 8)
        trials.gained(1e-3)
    while not trials.asks:
        trials.record(1e-3, 8, 8)
    return trials


def test_a_trial_in_which_something_was_gained_outlives_a_pause_of_gains() -> None:
    """Where rows end together there are forwards without any; a trial that never gained ends at once."""
    for gains, lasts in ((3, True), (0, False)):
        trials = in_a_trial()
        for forward in range(16):
            trials.record(1e-3, 8, 8)
            trials.gained(1e-3 if forward < gains else 0.0)
        assert trials.asks == lasts


def test_a_forward_that_was_disturbed_ends_no_trial() -> None:
    """Its seconds alone would make drafts seem to cost twice as much, if with an error as large."""
    trials = in_a_trial()
    for forward in range(40):
        trials.record(20e-3 if forward == 12 else 0.9e-3, 8, 8)
        trials.gained(1e-3)
    assert trials.asks


def with_prompts(trials: Trials, forwards: int, speed: float, seed: int, *, period: int = 0) -> float:
    """The share of forwards with drafts, which take as many tokens again; prompts take a third of the time, in bursts.

    The machine is shared: it is faster and slower from forward to forward, and a hundredth of them are disturbed.

    Args:
        trials: that decide.
        forwards: in all.
        speed: with drafts, over that without.
        seed: of what is chance.
        period: forwards after which the machine becomes half as slow again, or as fast as before; 0 is never.
    """
    rng, asked, drift, rest = np.random.default_rng(seed), 0, 0.0, 0
    for forward in range(forwards):
        drift = 0.8 * drift + float(rng.normal(0, 0.05))
        noise = float(np.exp(drift)) * (3.0 if rng.random() < 0.01 else 1.0)
        noise *= 1.5 if period and forward // period % 2 else 1.0
        tokens = max(1, int(rng.normal(16, 5))) if trials.asks else 8
        prompts = 80 * int(rng.poisson(tokens / 60))
        seconds = 16e-4 / speed if trials.asks else 8e-4
        asked += trials.asks
        rest = rest - 1 if rest else trials.rest()
        if not rest:
            trials.record((seconds + 3e-5 * prompts) * noise, tokens, 8, prompts)
        trials.gained(1e-3)
    return asked / forwards


@pytest.mark.parametrize(("speed", "least", "most"), [(0.8, 0.0, 0.2), (1.3, 0.83, 1.0)])
def test_chance_decides_in_no_run(speed: float, least: float, most: float) -> None:
    """What prompts take in bursts told nothing of drafts, but hid a fifth: some runs in 20 kept what slowed them."""
    shares = [with_prompts(Trials(), 4000, speed, seed) for seed in range(20)]
    assert least <= min(shares) <= max(shares) <= most, shares


def test_a_machine_that_becomes_faster_says_nothing_of_drafts() -> None:
    """What is compared was measured around the same time: forwards of the pause before counted, from a slower time."""
    shares = [with_prompts(Trials(), 8000, 0.9, seed, period=1100) for seed in range(20)]
    assert np.mean(shares) < 0.1, shares
    assert max(shares) < 0.2, shares


def test_a_trial_is_compared_with_the_forwards_just_before_it() -> None:
    """The machine is twice as fast since then, with drafts and without."""
    trials = Trials()
    while trials.asks or trials._is_steady:
        trials.record(2e-3, 8, 8)
        trials.gained(1e-3)
    trials.rest()
    while not trials.asks:
        trials.record(1e-3, 8, 8)
    while trials.asks and not trials._is_steady:
        trials.record(1e-3, 8, 8)
        trials.gained(1e-3)
    assert not trials.asks


@pytest.mark.parametrize(("before", "after", "asked"), [(0.8, 1.4, True), (1.4, 0.8, False)])
def test_what_is_clear_is_not_outvoted_by_what_was_found_before(before: float, after: float, asked: bool) -> None:
    """Jobs change: two or three trials had to contradict those of twenty thousand forwards."""
    for seed in range(5):
        trials = Trials()
        decode(trials, 20_000, lambda _: before, first=10**6 * seed + 1)
        for forward in itertools.count(10**6 * seed + 500_000):  # until it is tried again, or compared anew
            if trials.asks == asked:
                break
            decode(trials, 1, lambda _: after, first=forward)
        found = decode(trials, 2000, lambda _: after, first=10**6 * seed + 600_000)
        assert (np.mean(found[500:]) > 0.5) == asked


def test_what_the_first_forwards_say_is_forgotten() -> None:
    """There is little yet that could repeat: a job of which half repeats was given up for thousands of forwards."""
    trials = Trials()
    decode(trials, 300, lambda forward: 0.6 if forward < 280 else 1.0)
    assert not trials._known or trials._known[4].value < 0.05


def test_trials_that_say_little_count_together() -> None:
    """A gain of a seventh is less than the machine changes by: a trial that missed it gave it up for long."""
    shares = [with_prompts(Trials(), 16_000, 1.15, seed) for seed in range(10)]
    assert np.mean(shares) > 0.65, shares
