"""Evidence: repetition equals a plain count, scripts are told apart, and truncation is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wedlm_core import CommitStats, FinishReason, Generation
from wedlm_core.evidence import EVIDENCE, Evidence, repeats_of, script_of


@given(st.lists(st.integers(0, 3), max_size=40))
def test_repeats_are_those_that_a_search_of_all_that_went_before_finds(tokens: list[int]) -> None:
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    old = [gram in grams[:i] for i, gram in enumerate(grams)]
    stretches = [n for n in range(1, len(old) + 1) if any(all(old[i : i + n]) for i in range(len(old) - n + 1))]
    assert repeats_of(tokens) == (sum(old) / len(old) if old else 0.0, max(stretches) + 3 if stretches else 0)


def test_a_loop_is_a_long_repeat_and_free_text_is_none() -> None:
    assert repeats_of([1, 2, 3] * 20) == (pytest.approx(54 / 57), 57), "all but the first round"
    assert repeats_of(range(60)) == (0.0, 0)
    assert repeats_of([7, 7, 7]) == (0.0, 0), "below four tokens"


@pytest.mark.parametrize(
    ("text", "script", "share"),
    [
        ("", None, None),
        ("12, 13!", None, None),
        ("Count to 9.", "LATIN", 1.0),
        ("naïve café", "LATIN", 1.0),
        ("Привет", "CYRILLIC", 1.0),
        ("答案是 42", "CJK", 1.0),
        ("The answer 答案", "LATIN", 9 / 11),
        ("ab вг", "CYRILLIC", 0.5),
        ("ひらがな", "HIRAGANA", 1.0),
    ],
)
def test_the_script_is_that_of_most_letters(text: str, script: str | None, share: float | None) -> None:
    assert script_of(text) == (script, share)


def test_a_generation_shows_its_evidence() -> None:
    stats = CommitStats(mean_logprob=-0.5, worst_logprob=-2.0, mean_entropy=0.25, max_entropy=1.0, draft_agreement=0.75)
    generation = Generation(
        request_id="0", text="Да", token_ids=(1, 2, 3, 4, 1, 2, 3, 4), finish_reason=FinishReason.LENGTH, stats=stats
    )
    assert generation.evidence == Evidence(
        mean_logprob=-0.5, worst_logprob=-2.0, mean_entropy=0.25, max_entropy=1.0, draft_agreement=0.75,
        repeated_ngrams=0.2, longest_repeat=4, truncated=True, script="CYRILLIC", script_share=1.0,
    )  # fmt: skip
    assert not Generation(request_id="0", finish_reason=FinishReason.STOP).evidence.truncated
    assert [name for name, _ in EVIDENCE] == list(Evidence.__dataclass_fields__)
