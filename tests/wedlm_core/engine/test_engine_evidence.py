"""The evidence of a generation is a function of its tokens, to the last bit, however they were committed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wedlm_core import LLM, EngineConfig, Evidence, Generation, SamplingParams

PROMPTS = ["Count from 3 to 19.", "What is 47 + 25?", "Write a short story about a fox in the barn.", "Copy: a b c."]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", config=EngineConfig(max_num_seqs=8))


def of(llm: LLM, prompts: list[str], **fields: object) -> list[Generation]:
    params = SamplingParams(**{"max_tokens": 48, "temperature": 0.9, "seed": 5, "logprobs": True, **fields})  # type: ignore[arg-type]
    return llm.generate(prompts, params)


def told(generation: Generation) -> Evidence:
    return replace(generation.evidence, draft_agreement=None)


@pytest.mark.parametrize("strategy", ["verified", "autoregressive"])
def test_the_worst_log_probability_is_the_lowest_of_all_tokens(llm: LLM, strategy: str) -> None:
    for generation in of(llm, PROMPTS, strategy=strategy):
        assert generation.logprobs
        assert generation.evidence.worst_logprob == pytest.approx(min(generation.logprobs), abs=1e-7)
        mean = sum(generation.logprobs) / len(generation.logprobs)
        assert generation.evidence.mean_logprob == pytest.approx(mean, abs=1e-7)


def test_it_does_not_depend_on_strategy_window_or_batch(llm: LLM) -> None:
    plain = [told(generation) for generation in of(llm, PROMPTS, strategy="autoregressive")]
    assert len({evidence.worst_logprob for evidence in plain}) == len(plain)
    for window in (1, 4, 16, "auto"):
        assert [told(generation) for generation in of(llm, PROMPTS, window_size=window)] == plain
    assert [told(of(llm, [prompt])[0]) for prompt in PROMPTS] == plain


def test_without_a_next_token_head_there_are_no_log_probabilities(llm: LLM) -> None:
    (generation,) = of(llm, PROMPTS[:1], strategy="reference", window_size=4, logprobs=False)
    assert (generation.evidence.mean_logprob, generation.evidence.worst_logprob) == (None, None)
    assert generation.evidence.max_entropy is not None
