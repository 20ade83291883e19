"""Logits that are no numbers (damaged weights, a dtype that overflows) make an error of a row, never its text."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from testing.engine.engines import plain_decoder, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.model.quantised import quantise
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import FinishReason, SamplingParams, Strategy

NAN = math.nan
BAD = 50
"""A token whose embedding is no number in the damaged model."""
PROMPTS = [[5, 6, 7], [5, BAD, 7], [9] * 20, [9] * 20 + [BAD] * 13, [11, 12], [13] * 30]


@cache
def engine_of(
    folder: Path, attention: str, *, overlap: bool = False, damaged: float | None = None, weight_dtype: str = "auto"
) -> Engine:
    """One for all strategies: values left by an earlier row must harm none."""
    model = load_model(folder)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)  # its own
    if damaged is not None:
        model.embed.weight[BAD] = damaged
    quantise(model, weight_dtype)
    # A pool so small that pages of damaged rows go to others at once.
    cost = StepCost.linear(fixed=1.0, per_row=1 / 40, floor_rows=60)
    backend = "auto" if attention == "by torch" else attention
    config = EngineConfig(
        attention=backend, page_size=8, num_pages=16, max_num_seqs=3, max_window=8, step_cost=cost, overlap=overlap
    )
    with plain_decoder() if attention == "by torch" else nullcontext():
        return Engine(model, Tokenizer.load(folder), config)


@pytest.mark.sweep(8)
@pytest.mark.parametrize(
    ("attention", "overlap", "damaged", "weight_dtype"),
    [
        ("compiled", False, math.nan, "auto"),
        ("compiled", True, math.nan, "auto"),
        ("by torch", False, math.nan, "auto"),
        ("sdpa", False, math.inf, "auto"),
        ("compiled", False, math.nan, "int8"),
        ("by torch", False, math.inf, "int8"),
    ],
)
@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_row_of_logits_that_are_no_numbers_is_an_error_and_others_are_what_they_were(
    qwen3_folder: Path, strategy: Strategy, attention: str, overlap: bool, damaged: float, weight_dtype: str
) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True, strategy=strategy, window_size=4, temperature=0.5)
    requests = requests_of(PROMPTS * 2, params)
    expected = run(engine_of(qwen3_folder, attention, weight_dtype=weight_dtype), requests)
    engine = engine_of(qwen3_folder, attention, overlap=overlap, damaged=damaged, weight_dtype=weight_dtype)
    found = run(engine, requests)
    for request, ours, theirs in zip(requests, found, expected, strict=True):
        if BAD in request.prompt_token_ids:
            assert ours.finish_reason == FinishReason.ERROR
            assert ours.error is not None
            assert "logits" in ours.error
            assert ours.text == ""
        elif BAD in theirs.token_ids:
            continue  # it generated the damaged token itself
        else:
            assert ours.token_ids == theirs.token_ids
            assert ours.error is None


@pytest.mark.parametrize("strategy", ["verified", "autoregressive"])
def test_under_a_grammar_too_the_error_names_the_logits(strategy: str) -> None:
    folder = resolve("tiny")
    model = load_model(folder)
    model.lm_head.weight.data.fill_(NAN)
    engine = Engine(model, Tokenizer.load(folder), EngineConfig(max_num_seqs=2))
    params = SamplingParams(strategy=strategy, structured_outputs=StructuredOutputs(regex="[a-z]+ [0-9]+"))
    done = run(engine, requests_of([[5, 6, 7], [8, 9]], [params] * 2))
    assert [one.finish_reason for one in done] == [FinishReason.ERROR] * 2
    assert all(one.error and one.error.startswith("logits") for one in done)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("attention", ["compiled", "by torch", "sdpa"])
def test_what_a_grammar_forces_leaves_no_keys_behind_that_are_no_numbers(attention: str, overlap: bool) -> None:
    """None of its rows chooses, so perhaps no one looks at their logits."""
    forced = SamplingParams(max_tokens=24, structured_outputs=StructuredOutputs(choice=["the answer is yes"]))
    before = requests_of([[5, BAD, 7] + [9] * 60, [6, BAD] * 15], [forced] * 2)
    free = SamplingParams(max_tokens=12, ignore_eos=True)
    after = requests_of([[5, 6, 7], [9] * 20, [11, 12], [13] * 30] * 2, [free] * 8)
    expected = run(engine_of(resolve("tiny"), attention), after)
    engine = engine_of(resolve("tiny"), attention, overlap=overlap, damaged=NAN)
    for one in run(engine, before):
        assert one.text == "the answer is yes" or (one.error or "").startswith("logits"), "never blamed on the grammar"
    for ours, theirs in zip(run(engine, after), expected, strict=True):
        assert BAD in theirs.token_ids or ours.token_ids == theirs.token_ids


def test_a_damaged_head_makes_an_error_of_every_row(qwen3_folder: Path) -> None:
    model = load_model(qwen3_folder)
    model.lm_head.weight[7, 3] = torch.nan
    engine = Engine(model, Tokenizer.load(qwen3_folder), EngineConfig(max_window=8))
    params = SamplingParams(max_tokens=5, window_size=4, stop=["e"])
    mixed = [replace(params, strategy=s) for s in Strategy]
    found = run(engine, requests_of([[5, 6]] * len(mixed), mixed))
    assert [g.finish_reason for g in found] == [FinishReason.ERROR] * len(mixed)
