"""``LLM.score`` on the shipped model: transformers' log-probabilities, and refusals."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from testing.engine.reference_scores import expected
from wedlm_core import LLM, SamplingParams
from wedlm_core.errors import RequestError

CONTEXTS = ["Count from 3 to 9.", "What is 47 + 25?", "Solve 3x + 4 = 25.", "Write a short story about a fox. " * 12]
ENDS = [" 3, 4, 5", "72", "\nAnswer: 7", "Once upon a time a fox lived.", "banana"]


@cache
def ours() -> LLM:
    return LLM("tiny")


def test_scores_are_those_of_transformers_on_the_same_weights() -> None:
    """Within 2e-4 nats a token (float32; values from -30 to 0), and the same tokens are greedy."""
    prompts = [context for context in CONTEXTS for _ in ENDS]
    ends = ENDS * len(CONTEXTS)
    seen: set[bool] = set()
    for prompt, end, score in zip(prompts, ends, ours().score(prompts, ends), strict=True):
        context, tokens = ours().tokenizer.encode_prompt(prompt), tuple(ours().tokenizer.encode(end))
        logprobs, greedy = expected((*context, *tokens), len(tokens))
        torch.testing.assert_close(torch.tensor(score.logprobs), logprobs, atol=2e-4, rtol=0)
        assert list(score.greedy) == greedy
        assert (score.token_ids, score.context_tokens) == (tokens, len(context))
        assert score.logprob == pytest.approx(float(logprobs.sum()), abs=2e-3)
        seen |= set(greedy)
    assert seen == {True, False}


def test_what_greedy_decoding_generates_is_greedy_and_has_the_log_probabilities_it_reported() -> None:
    generated = ours().generate(CONTEXTS[:3], SamplingParams(max_tokens=40, logprobs=True))
    for one, score in zip(generated, ours().score(CONTEXTS[:3], [g.token_ids for g in generated]), strict=True):
        assert score.is_greedy
        assert score.logprobs == pytest.approx(one.logprobs, abs=1e-4)
        assert math.isclose(math.log(score.perplexity), -score.logprob / len(score.logprobs))


def test_the_shipped_model_begins_no_answer_with_a_line_end() -> None:
    plain = ours().generate(CONTEXTS[:3], SamplingParams(max_tokens=40))
    for prompt, answer in zip(CONTEXTS, plain, strict=False):
        assert answer.text, prompt
        assert answer.text == answer.text.lstrip(), prompt


def test_a_chat_has_the_tokens_of_its_template_and_none_around_it() -> None:
    talk = [{"role": "user", "content": CONTEXTS[0]}]
    (answer,) = ours().chat(talk, SamplingParams(max_tokens=40, window_size=16))
    assert list(answer.prompt_token_ids) == ours().tokenizer.apply_chat_template(talk)
    assert answer.stats.tokens_per_forward > 2, "a prompt of another form makes drafts worthless"


def test_a_prompt_alone_is_scored_from_its_second_token() -> None:
    (score,) = ours().score("Count from 3 to 9.")
    ids = ours().tokenizer.encode("Count from 3 to 9.")
    assert (score.token_ids, score.context_tokens) == (tuple(ids[1:]), 1)
    (same,) = ours().score([ids[:1]], [ids[1:]])
    assert same.logprobs == score.logprobs


def test_truncation_keeps_what_is_scored_and_the_end_of_the_context() -> None:
    llm = LLM("tiny", max_model_len=32)
    context, end = [5 + i % 90 for i in range(60)], [7, 8, 9]
    with pytest.raises(RequestError, match="truncate"):
        llm.score([context], [end])
    (cut,) = llm.score([context], [end], truncate="left")
    (kept,) = llm.score([context[-30:]], [end])
    assert (cut.context_tokens, cut.truncated_tokens, cut.logprobs) == (30, 30, kept.logprobs)
    with pytest.raises(RequestError, match="in pieces"):
        llm.score([context], [list(range(5, 38))], truncate="left")


def test_refusals_name_the_value() -> None:
    for arguments, words in (
        ((["a", "b"], ["c"]), "one for each of the 2 prompts"),
        (([""], ["c"]), "at least one token"),
        ((["a"], [""]), "at least one token"),
        ((["x"],), "at least one token"),
    ):
        with pytest.raises(RequestError, match=words):
            ours().score(*arguments)
    with pytest.raises(RequestError, match="truncate='right'"):
        ours().score(["a"], ["b"], truncate="right")  # type: ignore[arg-type]
    assert ours().score([], []) == []
