"""What masks are expected to bring is corrected by what they brought, by visits that cost little."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from testing.engine.planner_simulation import FixedWindow, Planned, Scenario, simulate
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.windows.comparison import Forwards
from wedlm_core.engine.windows.mask_race import MaskRace
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING

SEQUENCES, EVERY = 8, 8  # sequences, and forwards between plans


@dataclass(frozen=True, kw_only=True)
class Raced:
    """Which forwards had masks, and which of them were of visits."""

    masks: np.ndarray
    visits: np.ndarray
    bias: float

    def share(self, chosen: np.ndarray) -> float:
        """Tokens that came by masks, of those of the chosen forwards."""
        tokens = np.where(self.masks, 33.0, 8.0)[chosen]
        return float(tokens[self.masks[chosen]].sum() / tokens.sum())


def race(
    forwards: int, expected: float, true: Callable[[int], float], *, speed: Callable[[int], float] = lambda _: 1.0,
    elsewhere: Callable[[int], bool] = lambda _: False, seed: int = 0, prompts: bool = False,
    decoding: Callable[[int], int] | None = None, overhead: float = 0.0, sequences: int = SEQUENCES,
) -> Raced:  # fmt: skip
    """Plan and decode; logarithms of commits per second with masks over those without, expected and true."""
    rng, found, masks, plan_at = np.random.default_rng(seed), MaskRace(), False, 0
    found.overhead = overhead
    had, visits = [], []
    for forward in range(forwards):
        if forward >= plan_at:
            bias = found.bias(sequences)
            if found.arrive(sequences):
                found.learn(sequences, expected)
                bias = found.bias(sequences)
            masks = expected + bias > 0
            found.follow(sequences, expected + bias, masks)
            if found.is_due(sequences):
                found.begin(sequences)
                masks = not masks
            plan_at = forward + max(EVERY, found.to_come)
        had.append(masks)
        visits.append(found.visits > 0)
        tokens = float(rng.poisson(32)) + 1 if masks else 8.0
        rows = 40 * int(rng.poisson(tokens / 80)) if prompts else 0
        seconds = tokens * 1e-4 * (math.exp(-true(forward)) if masks else 1.0) + 2e-5 * rows
        noise = speed(forward) * float(rng.uniform(0.85, 1.15))
        own = sequences if decoding is None else decoding(forward)
        if rng.random() < 0.05:  # a step of prefill alone
            found.record(1e-3, 0, 0, 60, elsewhere=elsewhere(forward))
        found.record(seconds * noise, tokens, own, rows, elsewhere=elsewhere(forward))
    return Raced(masks=np.array(had), visits=np.array(visits), bias=found.bias(sequences))


def visits_of(found: Raced) -> list[int]:
    """Forwards of each visit."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], found.visits.astype(int), [0]))))
    return [int(end - begin) for begin, end in edges.reshape(-1, 2)]


def test_visits_that_need_dear_plans_are_longer_and_come_seldom() -> None:
    """Three plans beside small forwards took ten times what a visit was thought to cost."""
    cheap, dear = (race(40_000, -0.02, lambda _: -0.02, overhead=overhead) for overhead in (0.0, 20.0))
    few, many = visits_of(dear), visits_of(cheap)
    assert 3 * len(few) < len(many)
    assert min(few) > 2 * max(many)
    taken = len(few) * 20.0 + 0.04 * sum(few)  # forwards
    assert taken == pytest.approx(DEFAULT_TUNING.visit_share * 40_000, rel=0.5)


def test_what_a_comparison_has_yet_to_see_is_known() -> None:
    """Plans in between would tell nothing, and take their time."""
    found = MaskRace()

    def decode(forwards: int) -> None:
        for _ in range(forwards):
            found.record(1e-3, 8, SEQUENCES, 0, elsewhere=False)

    found.follow(SEQUENCES, -0.02, False)
    decode(60)
    assert found.to_come == 0
    found.begin(SEQUENCES)
    decode(found.to_come)
    assert not found.arrive(SEQUENCES)
    found.follow(SEQUENCES, -0.02, False)
    assert found.to_come > 40
    decode(found.to_come - 1)
    assert not found.arrive(SEQUENCES)
    decode(1)
    assert found.to_come == 0
    assert found.arrive(SEQUENCES)


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize(("expected", "true"), [(0.1, -0.1), (-0.1, 0.1), (0.05, 0.2), (-0.05, -0.2)])
def test_what_is_faster_is_taken_whatever_was_expected(expected: float, true: float, prompts: bool) -> None:
    found = race(4000, expected, lambda _: true, prompts=prompts)
    assert found.share(np.arange(4000) >= 1000) == pytest.approx(float(true > 0), abs=0.12)
    assert found.bias == pytest.approx(true - expected, abs=0.12)


def test_what_is_far_from_first_is_not_visited_and_none_is_sooner_than_masks_are() -> None:
    """Masks where none are cost more to visit, and none must not be slower than they."""
    assert not race(2000, -0.3, lambda _: -0.3).visits.any()
    assert race(2000, 0.3, lambda _: 0.3).visits.any()
    assert not race(2000, 1.0, lambda _: 1.0).visits.any()


@pytest.mark.parametrize("true", [-0.15, -0.05, 0.0, 0.05, 0.3])
def test_visits_cost_less_than_a_hundredth(true: float) -> None:
    """Of the time of 20,000 forwards: a visit takes the more time the further what comes second is behind."""
    found = race(20_000, true, lambda _: true)
    second = found.masks != (true > 0)
    tokens = np.where(found.masks, 33.0, 8.0)
    assert 0 < (tokens[second] * abs(true)).sum() < 0.01 * tokens.sum() + 1e-9 or true == 0.0


@pytest.mark.parametrize("true", [-0.05, -0.08])
def test_forwards_far_from_a_visit_are_only_counted(true: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """To record each would take a hundredth of the smallest steps; visits come all the same."""
    recorded = 0

    def count(forwards: Forwards, seconds: float, tokens: float, prefill: float) -> None:
        nonlocal recorded
        recorded += 1
        add(forwards, seconds, tokens, prefill)

    add = Forwards.add
    monkeypatch.setattr(Forwards, "add", count)
    few = race(20_000, true, lambda _: true)
    rested = recorded
    monkeypatch.setattr(MaskRace, "_forwards_left", lambda *_: 0)
    every = race(20_000, true, lambda _: true)
    assert 0 < rested < 0.5 * (recorded - rested)
    begins = [int((np.diff(found.visits.astype(int)) == 1).sum()) for found in (few, every)]
    assert begins[0] >= 0.8 * begins[1] > 0


def test_steps_in_which_none_decodes_age_nothing_that_is_known() -> None:
    """Long prompts are read in hundreds of them: what was learned would fade before a token came."""
    found = MaskRace()
    found.follow(SEQUENCES, -0.05, False)
    known = found._of(SEQUENCES, False)
    known.value, known.variance, known.visited, known.since = 0.1, 1e-3, 1e4, 0.0
    found.follow(SEQUENCES, -0.05, False)
    for _ in range(1000):
        found.record(1e-3, 0, 0, 512, elsewhere=False)
    found.arrive(SEQUENCES)
    assert found.bias(SEQUENCES) == 0.1
    for _ in range(4000):
        found.record(1e-3, 8, SEQUENCES, 0, elsewhere=False)
    found.arrive(SEQUENCES)
    assert found.bias(SEQUENCES) < 0.09


def test_a_machine_that_becomes_slower_meanwhile_says_nothing_of_masks() -> None:
    """A visit is compared with what is before and behind it: with that before alone 0.11 would count."""
    biases = [
        race(260, 0.05, lambda _: 0.05, speed=lambda forward: math.exp(forward / 400), seed=seed).bias
        for seed in range(12)
    ]
    assert abs(float(np.mean(biases))) < 0.06
    assert any(biases)


def test_drafts_from_elsewhere_are_another_case() -> None:
    """Beside history masks bring less: that says nothing of masks alone."""
    found = race(
        8000,
        0.05,
        lambda forward: -0.2 if forward // 400 % 2 else 0.05,
        elsewhere=lambda forward: forward // 400 % 2 == 1,
    )
    late, odd = np.arange(8000) >= 4000, np.arange(8000) // 400 % 2 == 1
    alone, beside = found.share(late & ~odd), found.share(late & odd)
    assert alone > 0.8
    assert beside < 0.35


def test_a_job_that_has_just_begun_is_not_held_up_by_a_visit_with_masks() -> None:
    """32 forwards with masks take as long as a hundred without: they come when the job has shown to be longer."""
    found = race(1500, -0.12, lambda _: -0.2)
    first = int(found.visits.argmax())
    assert found.visits.any()
    assert first > 300
    assert (np.where(found.masks, 33.0, 8.0)[:first].sum()) * 0.06 > 33.0 * 32 * 0.12


def test_one_disturbance_moves_what_is_known_by_little() -> None:
    steady = race(1500, 0.05, lambda _: 0.05)
    begin = int(steady.visits.argmax())
    hit = race(begin + 200, 0.05, lambda _: 0.05, speed=lambda forward: 8.0 if begin < forward < begin + 60 else 1.0)
    assert abs(hit.bias) < 0.5, "a factor of 8 is 2.1"


def visiting() -> MaskRace:
    """A race at the beginning of a visit to none, 8 tokens a millisecond before it."""
    found = MaskRace()
    found.follow(SEQUENCES, 0.02, True)
    for _ in range(200):
        found.record(1e-3, 8, SEQUENCES, 0, elsewhere=False)
        found.arrive(SEQUENCES)
    found.begin(SEQUENCES)
    return found


def test_a_visit_that_is_cut_short_teaches_nothing() -> None:
    found = visiting()
    for _ in range(10):
        found.record(1e-3, 80, SEQUENCES, 0, elsewhere=False)
    assert found.arrive(SEQUENCES), "the comparison ends"
    found.learn(SEQUENCES, 0.02)
    assert found.bias(SEQUENCES) == 0.0
    assert not found.visits


@pytest.mark.parametrize("slower", [1.3, 3.0])
@pytest.mark.parametrize(("expected", "true"), [(-0.05, 0.2), (0.1, -0.1)])
def test_a_wrong_comparison_does_not_last(expected: float, true: float, slower: float) -> None:
    """It once closed the case for ever: what is far from first was not compared again."""
    first = race(3000, expected, lambda _: true)
    begin = int(first.visits.argmax())
    found = race(
        40_000, expected, lambda _: true, speed=lambda forward: slower if begin <= forward < begin + 60 else 1.0
    )
    assert found.share(np.arange(40_000) >= 25_000) == pytest.approx(float(true > 0), abs=0.25)


def test_another_job_is_another_case() -> None:
    found = race(40_000, 0.12, lambda forward: -0.2 if forward < 3000 else 0.25)
    assert found.share(np.arange(40_000) < 3000) < 0.5
    assert found.share(np.arange(40_000) >= 20_000) > 0.8


def test_one_sequence_less_that_decodes_is_the_same_case() -> None:
    """One of them reads its prompt, nearly always: what was compared was never learned from."""
    found = race(4000, 0.1, lambda _: -0.1, decoding=lambda _: SEQUENCES - 1)
    assert found.bias < -0.1
    assert found.share(np.arange(4000) >= 1000) < 0.2


@pytest.mark.parametrize(("sequences", "every"), [(12, 10), (12, 40), (6, 20), (3, 10)])
def test_one_less_now_and_then_is_the_same_case_beside_any_number_of_them(sequences: int, every: int) -> None:
    """12 are nearer to 16 and 11 to 8: each such forward began the comparison anew, which never came to an end."""
    found = race(
        8000, 0.1, lambda _: -0.2, sequences=sequences, decoding=lambda forward: sequences - (forward % every == 0)
    )
    assert found.bias < -0.1
    assert found.share(np.arange(8000) >= 2000) < 0.2


def test_a_plan_for_one_less_is_of_the_same_case() -> None:
    found = MaskRace()
    for sequences in (12, 11, 12):
        found.record(1e-3, 12, sequences, 0, elsewhere=False)
        assert found._of(11, False) is found._of(12, False)


def test_a_comparison_that_only_forwards_of_others_follow_is_given_up() -> None:
    """Requests with fixed windows came in behind a visit: plans for what it had yet to see went on beside them."""
    found = visiting()
    while found.visits:
        found.record(1e-3, 80, SEQUENCES, 0, elsewhere=False)
    for _ in range(3):
        assert not found.arrive(SEQUENCES)
        found.follow(SEQUENCES, 0.02, True)
    found.record(1e-3, 80, SEQUENCES, 0, elsewhere=False)
    plans = 0
    while not found.arrive(SEQUENCES) and plans < 100:
        found.follow(SEQUENCES, 0.02, True)
        plans += 1
    assert 3 < plans < 8, "one that counts begins the wait anew"
    found.learn(SEQUENCES, 0.02)
    assert not found.is_comparing


def test_forwards_that_no_plan_is_for_are_not_of_a_visit_that_was_left_open() -> None:
    """A job ends in a visit, and one with fixed windows runs before another is planned for."""
    found = visiting()
    for _ in range(500):
        found.record(1e-3, 80 if found.visits == 0 else 8, SEQUENCES, 0, elsewhere=False)
    found.arrive(SEQUENCES)
    found.follow(SEQUENCES, 0.02, None)
    assert found.arrive(SEQUENCES)
    found.learn(SEQUENCES, 0.0)
    assert found.bias(SEQUENCES) == pytest.approx(0.0, abs=0.01)


def test_what_is_before_a_visit_is_of_the_same_kind_and_not_old() -> None:
    """160 forwards alone, 4000 beside history while the machine becomes slower, and alone again."""
    found = MaskRace()
    found.follow(SEQUENCES, 0.02, True)
    for forward in range(4200):
        found.record(1e-3 * (1.0 if forward < 160 else 1.5), 8, SEQUENCES, 0, elsewhere=160 <= forward < 4160)
        found.arrive(SEQUENCES)
        if forward in range(4160, 4180):
            assert not found.is_due(SEQUENCES)
    assert found.is_due(SEQUENCES)


CPU = StepCost.linear(fixed=0.45e-3, per_row=17e-6, floor_rows=8)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("acceptance", "hidden", "least"),
    [(0.9, (0.0, 0.4), 0.96), (0.75, (0.3, 0.0), 1.06), (0.85, (0.0, 0.25), 0.96), (0.8, (0.2, 0.0), 1.06)],
)
def test_an_engine_whose_estimates_miss_a_part_of_its_steps_is_as_fast_as_it_can_be(
    acceptance: float, hidden: tuple[float, float], least: float
) -> None:
    """By estimates alone it keeps masks that slow it by 8%, and does without masks that make it 15% faster."""
    scenario = Scenario(
        batch=8, context=64, acceptance=(acceptance,), stale=0.8, host_seconds=(0.3e-3, 0.46e-3), hidden=hidden,
        noise=0.1, tokens=64,
    )  # fmt: skip
    none, planned = (
        simulate(scenario, policy, forwards=2000, warm_up=50, cost=CPU).rate
        for policy in (FixedWindow(0), Planned(CPU))
    )
    assert planned >= least * none
