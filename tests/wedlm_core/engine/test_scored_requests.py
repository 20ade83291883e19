"""Requests with a continuation, among requests that generate: each has the bits that it has alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from testing.engine.engines import requests_of
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.errors import CapacityError, RequestError
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import FinishReason, Generation, Request, SamplingParams

PROMPT = tuple(i * 7 % 330 for i in range(70))
ENDS = [(9,), (9, 11), (200, 3, 5, 8)]


def engine_of(folder: Path, damaged: int | None = None) -> Engine:
    model = load_model(folder)
    if damaged is not None:
        model.embed.weight[damaged] = math.nan
    return Engine(model, Tokenizer.load(folder), EngineConfig(page_size=16, num_pages=24, max_num_seqs=4, max_window=4))


def scored(name: str, end: tuple[int, ...], prompt: tuple[int, ...] = PROMPT) -> Request:
    return Request(request_id=name, prompt_token_ids=prompt, params=SamplingParams(), continuation=end)


def finish(engine: Engine, requests: list[Request]) -> dict[str, Generation]:
    for one in requests:
        engine.add(one)
    done = {}
    while engine.has_work():
        done |= {one.request_id: one for one in engine.step()}
    engine.pages.check_integrity()
    assert engine.pages.num_free == engine.pages.num_pages
    return done


def test_both_kinds_of_requests_have_the_same_bits_together_and_apart(qwen3_folder: Path) -> None:
    plain = requests_of([[5, 6, 7] * 12, list(PROMPT), [9, 8, 7] * 12], SamplingParams(max_tokens=12, window_size=4))
    ends = [scored(f"s{number}", end) for number, end in enumerate(ENDS)]
    apart = {name: own for one in (*plain, *ends) for name, own in finish(engine_of(qwen3_folder), [one]).items()}
    mixed = [ends[0], plain[0], plain[1], ends[1], plain[2], ends[2]]
    together = finish(engine_of(qwen3_folder), mixed)
    assert together.keys() == apart.keys()
    for name, one in together.items():
        assert (one.token_ids, one.logprobs) == (apart[name].token_ids, apart[name].logprobs), name
    for one, end in zip(ends, ENDS, strict=True):
        found = together[one.request_id]
        assert (found.token_ids, found.prompt_tokens, found.finish_reason) == (end, len(PROMPT), FinishReason.STOP)
        assert found.logprobs is not None
        assert found.evidence.worst_logprob == min(found.logprobs)


def test_an_aborted_request_leaves_nothing(qwen3_folder: Path) -> None:
    engine = engine_of(qwen3_folder)
    for name in "abc":
        engine.add(scored(name, (9, 11)))
    with pytest.raises(RequestError, match="request_id"):
        engine.add(scored("b", (9,)))
    engine.abort("b")
    done = finish(engine, [])
    assert set(done) == {"a", "c"}
    assert not finish(engine_of(qwen3_folder), []), "an engine without requests has no work"


def test_a_row_that_is_no_number_fails_and_spoils_no_other(qwen3_folder: Path) -> None:
    done = finish(engine_of(qwen3_folder, damaged=50), [scored("bad", (9,), (*PROMPT, 50)), scored("good", (9,))])
    assert done["bad"].finish_reason is FinishReason.ERROR
    assert "no numbers" in str(done["bad"].error)
    assert done["good"].logprobs == finish(engine_of(qwen3_folder), [scored("good", (9,))])["good"].logprobs


def test_a_request_that_cannot_be_scored_is_refused(qwen3_folder: Path) -> None:
    engine = engine_of(qwen3_folder)
    for own, kind in ((scored("a", (9, 999)), RequestError), (scored("a", (9,), ()), RequestError),
                      (scored("a", (9,) * 400), CapacityError)):  # fmt: skip
        with pytest.raises(kind):
            engine.add(own)
    assert not engine.has_work()
