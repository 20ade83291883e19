"""History drafts: the kernels equal the readable lists, in bounded memory, and probabilities are learned."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.history_oracle import HistoryOracle
from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.engine.drafting.history import History
from wedlm_core.errors import ConfigError, IntegrityError

SLOTS, DRAFTS, AHEAD = 3, 6, 2
SMALL = 28 << 10  # bytes: 512 tokens for running sequences, 512 for finished ones
EVERYTHING = replace(CONSTANTS, least_acceptance=0.0)  # nothing is too improbable to be proposed

token = st.integers(0, 2)  # few, so that texts repeat
# Also longer than what is remembered.
texts = st.builds(lambda text, times: text * times, st.lists(token, max_size=40), st.integers(1, 4))
slots = st.integers(0, SLOTS - 1)
opens = st.tuples(st.just("open"), slots, texts, st.integers(0, 160))
closes = st.tuples(st.just("close"), slots, st.booleans())
forwards = st.tuples(
    st.just("forward"),
    st.tuples(*[st.integers(0, DRAFTS)] * SLOTS),  # budgets
    st.tuples(*[st.lists(token, max_size=AHEAD)] * SLOTS),  # drafts from elsewhere
    st.tuples(*[st.integers(0, DRAFTS + AHEAD)] * SLOTS),  # drafts that turn out right
    st.tuples(*[st.lists(token, max_size=4)] * SLOTS),  # tokens behind them
)
histories = st.lists(st.one_of(opens, closes, forwards, forwards, forwards), max_size=24)
tunings = st.sampled_from(
    [
        CONSTANTS,
        replace(CONSTANTS, orders=(2, 4), walk=3, least_acceptance=0.0),
        replace(CONSTANTS, orders=(2,), walk=40),
        replace(CONSTANTS, least_acceptance=0.0, least_probability=0.9),
    ]
)


class Pair:
    """A history and its oracle, driven together."""

    def __init__(self, tuning: DraftingConstants, tokens: int) -> None:
        max_bytes = tokens * (4 + 8 * len(tuning.orders))
        self.fast = History(SLOTS, DRAFTS, most_ahead=AHEAD, max_bytes=max_bytes, constants=tuning)
        self.slow = HistoryOracle(int(self.fast._logs.bits[-1]), tuning)
        self.running: set[int] = set()

    def open(self, slot: int, tokens: list[int], output: int) -> None:
        if slot in self.running:
            self.close(slot, True)
        self.running.add(slot)
        self.fast.open(slot, np.array(tokens, dtype=np.int64), output=min(output, len(tokens)))
        self.slow.open(slot, tokens, min(output, len(tokens)))
        self.slow.resize(slot, int(self.fast._logs.bits[slot]))

    def close(self, slot: int, keep: bool) -> None:
        if slot in self.running:
            self.running.remove(slot)
            self.fast.close(slot, keep=keep)
            self.slow.close(slot, keep)

    def forward(self, budgets, given, right, behind) -> None:  # type: ignore[no-untyped-def]
        slots = np.array(sorted(self.running), dtype=np.int64)
        budget_S = np.array(budgets)[slots]
        ahead_S = np.array([len(one) for one in given])[slots]
        given_SB = np.array([one + [0] * (AHEAD - len(one)) for one in given])[slots]
        found = self.fast.propose(slots, budget_S, given_SB, ahead_S)
        committed = []
        for i, slot in enumerate(slots.tolist()):
            one = self.slow.propose(slot, int(budget_S[i]), given[slot])
            count = found.count_S[i]
            assert found.token_SD[i, :count].tolist() == one.tokens
            assert found.acceptance_SD[i, :count].tolist() == np.float32(one.acceptance).tolist()
            assert found.match_S[i] == one.match
            committed.append((given[slot] + one.tokens)[: right[slot]] + behind[slot])
        for slot, tokens in zip(slots.tolist(), committed, strict=True):
            self.slow.append(slot, tokens)
        width = max(map(len, committed), default=0)
        token_SC = np.array([one + [0] * (width - len(one)) for one in committed], dtype=np.int64)
        self.fast.append(
            slots, token_SC.reshape(len(slots), width), np.array([len(one) for one in committed], np.int64)
        )
        for slot in self.running:
            self.slow.resize(slot, int(self.fast._logs.bits[slot]))


@settings(max_examples=60, deadline=None)
@given(histories, tunings, st.sampled_from([512, 2048]))
def test_the_kernels_equal_the_readable_lists(history: list, tuning: DraftingConstants, tokens: int) -> None:  # type: ignore[type-arg]
    pair = Pair(tuning, tokens)
    for name, *values in history:
        getattr(pair, name)(*values)


@pytest.mark.parametrize("seed", range(4))
def test_the_kernels_equal_the_readable_lists_over_long_texts(seed: int) -> None:
    draw = random.Random(seed)
    # Texts are several times as long as what is remembered, and so are the finished rows.
    wide = replace(EVERYTHING, orders=(1, 3), walk=40, least_probability=0.8)
    pair = Pair(draw.choice([EVERYTHING, wide]), 512)

    def tokens(most: int) -> list[int]:
        return [draw.randrange(3) for _ in range(draw.randint(0, most))]

    for _ in range(80):
        if draw.random() < 0.3:
            text = tokens(30) * draw.randint(1, 6)
            pair.open(draw.randrange(SLOTS), text, draw.randint(0, len(text)))
        budgets, right = ([draw.randint(0, DRAFTS) for _ in range(SLOTS)] for _ in range(2))
        pair.forward(budgets, [tokens(AHEAD) for _ in range(SLOTS)], right, [tokens(6) for _ in range(SLOTS)])


def propose(history: History, slot: int, budget: int = DRAFTS) -> list[int]:
    found = history.propose(np.array([slot]), np.array([budget]))
    return found.token_SD[0, : found.count_S[0]].tolist()


def commit(history: History, slot: int, tokens: list[int]) -> None:
    history.append(np.array([slot]), np.array([tokens], dtype=np.int64), np.array([len(tokens)]))


def test_the_beginning_of_a_long_prompt_is_found_again() -> None:
    history = History(1, 8, constants=EVERYTHING)
    prompt = np.random.default_rng(0).permutation(151_936)[:100_000]
    history.open(0, prompt)
    commit(history, 0, prompt[:2].tolist())
    assert propose(history, 0, 8) == prompt[2:10].tolist()


def test_a_text_with_a_period_goes_on_for_ever() -> None:
    history = History(1, 8, constants=EVERYTHING)
    history.open(0, np.array([5, 6, 7, 5, 6]))
    assert propose(history, 0, 8) == [7, 5, 6, 7, 5, 6, 7, 5]


def test_kept_rows_help_others_by_their_output_and_others_do_not() -> None:
    history = History(2, 4)
    for keep, first in ((True, 10), (False, 20)):
        history.open(0, np.arange(first, first + 5), output=3)
        history.close(0, keep=keep)
    for first, expected in ((10, [12, 13, 14]), (20, [])):
        history.open(1, np.array([1, first, first + 1]))  # ends as that row's prompt
        assert propose(history, 1, 4) == expected, "and no draft is from beyond the end of a row"
        history.close(1, keep=False)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_a_row_that_was_never_opened_is_remembered_as_others_are(sizes: list[tuple[int, int]], seed: int) -> None:
    opened, whole = History(1, 4, max_bytes=SMALL), History(1, 4, max_bytes=SMALL)
    rng = np.random.default_rng(seed)
    for prompt, output in sizes:
        row = rng.integers(0, 2**40, prompt + output)
        opened.open(0, row, output=output)
        opened.close(0)
        whole.remember([(tuple(row[:prompt].tolist()), tuple(row[prompt:].tolist()))])
    assert opened.shared_tokens == whole.shared_tokens
    half = len(opened._logs.token) // 2
    for name in ("token", "before", "head"):
        mine, theirs = getattr(opened._logs, name), getattr(whole._logs, name)
        assert np.array_equal(mine[..., half:], theirs[..., half:]), name


def history_of(*rows: list[int]) -> History:
    """A history with finished rows."""
    history = History(1, 8, constants=EVERYTHING)
    for row in rows:
        history.open(0, np.array(row), output=len(row))
        history.close(0)
    return history


def test_behind_the_end_of_a_row_another_source_goes_on() -> None:
    history = history_of([1, 2, 3, 4])
    history.open(0, np.array([3, 4, 8, 9, 1]))
    assert propose(history, 0, 5) == [2, 3, 4, 8, 9]


def test_where_a_text_is_in_doubt_finished_rows_go_on() -> None:
    history = history_of([7, 2, 3, 50, 51], [6, 2, 3, 50, 51])
    history.open(0, np.array([1, 2, 3, 40, 98, 1, 2, 3, 41, 99, 1]))
    assert propose(history, 0) == [2, 3, 50, 51], "the text knows what follows 1, and not what follows 3 here"


@pytest.mark.parametrize(("right", "next_one"), [(3, 52), (4, 53), (1, 41)])
def test_behind_a_wrong_draft_the_text_that_it_is_from_goes_on(right: int, next_one: int) -> None:
    history = history_of([7, 2, 3, 50, 51, 52, 53, 54], [6, 2, 3, 50, 51, 52, 53, 54])
    history.open(0, np.array([1, 2, 3, 40, 98, 1, 2, 3, 41, 99, 1]))
    drafts = propose(history, 0, 8)
    assert drafts[:6] == [2, 3, 50, 51, 52, 53]
    commit(history, 0, [*drafts[:right], 77])  # a token that was never seen stands in place of a draft
    assert propose(history, 0, 1) == [next_one]


def test_memory_is_bounded_and_the_oldest_rows_are_forgotten() -> None:
    history = History(1, 4, max_bytes=SMALL)
    size = history.bytes
    assert size <= SMALL + 8192, "the tables of texts, and little else"
    for first in range(1000, 1000 + 200 * 10, 10):
        history.open(0, np.arange(first, first + 10), output=10)
        history.close(0)
    assert history.bytes == size
    assert history.shared_tokens == 512
    found = []
    for first in range(1000, 1000 + 200 * 10, 10):
        history.open(0, np.array([first, first + 1]))
        found.append(propose(history, 0, 1) == [first + 2])
        history.close(0, keep=False)
    assert found == [False] * found.count(False) + [True] * found.count(True)
    assert found.count(True) == 512 // 11


def test_a_text_that_does_not_fit_is_remembered_from_its_end() -> None:
    history = History(2, 1, max_bytes=SMALL)
    text = np.arange(3000)
    history.open(0, text)
    history.open(1, text[:100])
    commit(history, 0, [2900, 2901])
    assert propose(history, 0) == [2902]
    commit(history, 0, [5, 6])
    assert propose(history, 0) != [7]
    commit(history, 1, [5, 6])
    assert propose(history, 1) == [7], "the other text is whole"


@given(st.lists(token, min_size=1, max_size=60), st.integers(0, 60))
def test_a_sequence_that_is_opened_again_goes_on_as_before(text: list[int], output: int) -> None:
    output = min(output, len(text))
    one, other = History(1, DRAFTS, max_bytes=SMALL), History(1, DRAFTS, max_bytes=SMALL)
    one.open(0, np.array(text[: len(text) - output], dtype=np.int64))
    for written in text[len(text) - output :]:
        commit(one, 0, [written])
    other.open(0, np.array(text), output=output)
    assert propose(one, 0) == propose(other, 0)
    for history in (one, other):
        history.close(0)
        history.open(0, np.array(text[:1]))
    assert one.shared_tokens == other.shared_tokens
    assert propose(one, 0) == propose(other, 0)


def test_acceptance_is_learned_from_what_is_committed_although_no_draft_was_bought() -> None:
    def estimate(right: float) -> float:
        history, draw = History(1, 1), np.random.default_rng(0)
        history.open(0, np.tile(np.arange(50), 20))
        for _ in range(400):
            draft = propose(history, 0, 1)
            follow = draft if draft and draw.random() < right else [int(draw.integers(50))]
            commit(history, 0, follow)
        while not propose(history, 0, 1):
            commit(history, 0, [int(draw.integers(50))])
        return float(history.propose(np.array([0]), np.array([1])).acceptance_SD[0, 0])

    assert estimate(0.99) > 0.9
    assert estimate(0.3) < 0.6


def test_positions_are_counted_anew_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wedlm_core.engine.drafting.history._REBASE", 1200)
    history = History(1, 4, max_bytes=SMALL)
    for first in range(1000, 3000, 10):
        history.open(0, np.arange(first, first + 10), output=10)
        history.close(0)
        assert history._logs.end[-1] <= 1200 + 11
    history.open(0, np.array([2990, 2991]))
    assert propose(history, 0, 4) == [2992, 2993, 2994, 2995]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="64 slots need at least"):
        History(64, 4, max_bytes=100_000)
    history = History(2, 4)
    with pytest.raises(IntegrityError):
        history.close(0)
    with pytest.raises(IntegrityError):
        history.propose(np.array([0]), np.array([4]))
    history.open(0, np.array([1]))
    with pytest.raises(IntegrityError):
        history.open(0, np.array([1]))
    with pytest.raises(IntegrityError):
        commit(history, 1, [1])
    history.reset()
    history.open(0, np.array([1]))


def test_importing_history_brings_no_torch() -> None:
    code = "import sys, wedlm_core.engine.drafting.history; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
