"""Drafts from history: the continuation of the longest match, in bounded memory, with learned probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.drafting.history import History
from wedlm_core.errors import ConfigError

DRAFTS = 6
SMALL = 28 << 10  # bytes: 512 tokens for running sequences, 512 for finished ones
LARGE = 64 << 20
EVERYTHING = replace(CONSTANTS, least_acceptance=0.0)  # nothing is too improbable to be proposed

token = st.integers(0, 2)  # few, so that texts repeat


def history(slots: int = 1, drafts: int = DRAFTS, max_bytes: int = LARGE) -> History:
    return History(slots, drafts, max_bytes=max_bytes, constants=EVERYTHING)


def propose(one: History, slot: int = 0, budget: int = DRAFTS) -> list[int]:
    token_DP, acceptance_DP = one.propose(np.array([slot]), np.array([budget]))
    count = int(np.count_nonzero(acceptance_DP[0]))
    assert count <= budget
    assert not acceptance_DP[0, count:].any()
    assert (np.diff(acceptance_DP[0, :count]) <= 0).all()
    return token_DP[0, :count].tolist()


def commit(one: History, slot: int, tokens: list[int]) -> None:
    one.append(np.array([slot]), np.array([tokens], dtype=np.int64), np.array([len(tokens)]))


def finish(one: History, slot: int, prompt: list[int], output: list[int]) -> None:
    one.open(slot, np.array(prompt, dtype=np.int64))
    commit(one, slot, output)
    one.close(slot)


def longest_match(text: list[int], ends: list[int]) -> int:
    """Tokens of the longest suffix of ``ends`` that stands in ``text`` with a token after it, 32 at most."""
    best = 0
    for end in range(1, len(text)):
        same = 0
        while same < min(end, len(ends), CONSTANTS.walk) and text[end - 1 - same] == ends[-1 - same]:
            same += 1
        best = max(best, same)
    return best


@settings(max_examples=40, deadline=None)
@given(st.lists(token, min_size=1, max_size=30))
def test_the_first_draft_follows_most_of_the_longest_matches_in_the_own_text(text: list[int]) -> None:
    one = history()
    one.open(0, np.array(text))
    drafts = propose(one)
    best = longest_match(text, text)
    assert bool(drafts) == (best > 0)
    if drafts:
        ends = [end for end in range(best, len(text)) if text[end - best : end] == text[len(text) - best :]]
        after = [text[end] for end in ends]
        latest = {found: end for end, found in zip(ends, after, strict=True)}
        assert drafts[0] == max(latest, key=lambda found: (after.count(found), latest[found]))


def test_a_long_match_is_found_however_often_its_last_token_occurred_since() -> None:
    one = history()
    one.open(0, np.array([1, 2, 3, 9, *[3, 8] * 40, 1, 2, 3]))
    assert propose(one, 0, 1) == [9]


@settings(max_examples=40, deadline=None)
@given(st.lists(token, min_size=1, max_size=40), st.integers(0, 40))
def test_a_text_is_the_same_whether_it_was_prompt_or_committed(text: list[int], first: int) -> None:
    first = min(first, len(text))
    whole, parts = history(), history()
    whole.open(0, np.array(text))
    parts.open(0, np.array(text[:first], dtype=np.int64))
    for one in text[first:]:
        commit(parts, 0, [one])
    assert propose(whole) == propose(parts)


def test_the_beginning_of_a_long_prompt_is_found_again() -> None:
    one = history(drafts=8)
    prompt = np.random.default_rng(0).permutation(151_936)[:100_000]
    one.open(0, prompt)
    commit(one, 0, prompt[:2].tolist())
    assert propose(one, 0, 8) == prompt[2:10].tolist()


def test_a_text_with_a_period_goes_on_for_ever() -> None:
    one = history(drafts=8)
    one.open(0, np.array([5, 6, 7, 5, 6]))
    assert propose(one, 0, 8) == [7, 5, 6, 7, 5, 6, 7, 5]
    assert propose(one, 0, 100) == [7, 5, 6, 7, 5, 6, 7, 5], "the tables have no room for more"


def test_most_votes_decide_and_then_the_latest() -> None:
    one = history()
    one.open(0, np.array([1, 7, 20, 4, 1, 7, 30, 5, 1, 7, 20, 6, 1, 7]))
    assert propose(one)[0] == 20
    commit(one, 0, [30, 8, 1, 7])
    assert propose(one)[0] == 30


def test_finished_rows_help_others_by_their_output_and_nothing_reaches_over_their_end() -> None:
    one = history(2)
    finish(one, 0, [10, 11], [12, 13, 14])
    finish(one, 0, [90], [91])
    one.open(1, np.array([1, 10, 11]))  # ends as that row's prompt
    assert propose(one, 1) == [12, 13, 14]


def test_a_row_that_was_not_kept_helps_nobody() -> None:
    one = history(2)
    one.open(0, np.array([10, 11]))
    commit(one, 0, [12, 13])
    one.open(0, np.array([50]))  # in place of the one before
    one.open(1, np.array([10, 11]))
    assert propose(one, 1) == []
    assert propose(one, 0) == [], "and the text before is no part of the one that took its slot"


def test_slots_do_not_see_each_other() -> None:
    one = history(2)
    one.open(0, np.array([1, 2, 3, 4]))
    one.open(1, np.array([1, 2]))
    assert propose(one, 1) == []


def test_memory_is_bounded_and_the_oldest_rows_are_forgotten() -> None:
    one = history(max_bytes=SMALL)
    assert one.bytes <= SMALL
    firsts = range(1000, 1000 + 200 * 10, 10)
    for first in firsts:
        finish(one, 0, [], list(range(first, first + 10)))
    found = []
    for first in firsts:
        one.open(0, np.array([first, first + 1]))
        found.append(propose(one, 0, 1) == [first + 2])
    assert found == sorted(found)
    assert found.count(True) == 512 // 11


def test_a_text_that_does_not_fit_is_remembered_from_its_end() -> None:
    one = history(2, max_bytes=SMALL)
    text = np.arange(3000)
    one.open(0, text)
    one.open(1, text[:100])
    commit(one, 0, [2900, 2901])
    assert propose(one, 0)[0] == 2902
    commit(one, 0, [5, 6])
    assert propose(one, 0) == []
    commit(one, 1, [5, 6])
    assert propose(one, 1)[0] == 7, "the other text is whole"


def test_acceptance_is_learned_from_what_is_committed_although_no_draft_was_bought() -> None:
    def estimate(right: float) -> float:
        one, draw = history(drafts=1), np.random.default_rng(0)
        one.open(0, np.tile(np.arange(50), 20))
        for _ in range(400):
            draft = propose(one, 0, 1)
            follow = draft if draft and draw.random() < right else [int(draw.integers(50))]
            commit(one, 0, follow)
        while not propose(one, 0, 1):
            commit(one, 0, [int(draw.integers(50))])
        return float(one.propose(np.array([0]), np.array([1]))[1][0, 0])

    assert estimate(0.99) > 0.9
    assert estimate(0.3) < 0.6


def test_a_draft_is_tested_once_and_those_after_a_wrong_one_never() -> None:
    one = history()
    one.open(0, np.tile(np.arange(6), 4))
    tested = 0.0
    for right in (6, 3, 0):
        drafts = propose(one)
        commit(one, 0, [*drafts[:right], 77, *drafts[right + 1 :]][:6])
        commit(one, 0, np.tile(np.arange(6), 4).tolist())
        assert one._memory.tests[:, 0].sum() == pytest.approx(tested + min(right + 1, 6), rel=0.05)
        assert (one._memory.tests[:, 1] <= one._memory.tests[:, 0]).all()
        tested = float(one._memory.tests[:, 0].sum())


def test_drafts_that_were_always_right_are_certain_however_many_they_were() -> None:
    one = history(drafts=1)
    one.open(0, np.tile(np.arange(10), 10))
    for _ in range(2000):
        commit(one, 0, propose(one, 0, 1))
    assert one.propose(np.array([0]), np.array([1]))[1][0, 0] > 0.98


def test_the_source_that_was_right_more_often_is_followed() -> None:
    one, found = history(), []
    finish(one, 0, [1], [2, 3])
    for _ in range(8):
        one.open(0, np.array([1, 9, 8, 1]))  # by its own text 9 follows 1
        found.append(propose(one)[0])
        commit(one, 0, [2])
    assert found[0] == 9
    assert found[-1] == 2


def test_places_whose_token_was_not_proposed_vote_no_more() -> None:
    one = history()
    one.open(0, np.array([1, 2, 3, 20, 1, 2, 3, 21, 1, 2, 6, 22, 1, 4, 6, 23, 1, 4, 6, 24, 1]))
    assert propose(one, 0, 2) == [2, 3]


def test_a_draft_is_more_probable_after_a_longer_match_and_with_more_of_the_votes() -> None:
    def first(text: list[int]) -> float:
        one = history()
        one.open(0, np.array(text))
        return float(one.propose(np.array([0]), np.array([1]))[1][0, 0])

    assert first([4, 9, 4]) < first([3, 4, 9, 3, 4]) < first([1, 2, 3, 4, 9, 1, 2, 3, 4]) < 1
    assert first([4, 9, 4, 8, 4, 9, 4]) < first([4, 9, 4, 9, 4, 9, 4])


def test_finished_rows_hold_outputs_and_no_more_of_prompts_than_a_match_needs() -> None:
    one = history()
    finish(one, 0, list(range(100)), [200, 201])
    one.open(0, np.array([5, 6]))
    assert propose(one) == []
    one.open(0, np.array([97, 98, 99]))
    assert propose(one) == [200, 201]


def test_positions_are_counted_anew_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wedlm_core.engine.drafting.history._MOST_POSITIONS", 1200)
    one = history(max_bytes=SMALL)
    for first in range(1000, 5000, 10):
        finish(one, 0, [], list(range(first, first + 10)))
        assert one._rings.end.max() <= 1200 + 12
    one.open(0, np.array([4990, 4991]))
    assert propose(one, 0, 4) == [4992, 4993, 4994, 4995]
    one.open(0, np.array([1000, 1001]))
    assert propose(one) == [], "older tokens are gone"


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="64 slots need at least"):
        History(64, 4, max_bytes=100_000)
