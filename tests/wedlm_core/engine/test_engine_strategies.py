"""Properties of ``streaming`` and ``blockwise``, and of all strategies mixed in one batch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from testing.engine.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, SamplingParams

_RANDOM = random.Random(5)
PROMPTS = [[_RANDOM.randrange(4, 300) for _ in range(_RANDOM.choice([1, 2, 9, 30, 64]))] for _ in range(24)]
MASK, VOCABULARY = 2, 320


def engine_of(folder: Path, **settings: object) -> Engine:
    model = load_model(folder, device="cpu", dtype=torch.float32)
    return Engine(model, Tokenizer.load(folder), EngineConfig(page_size=16, **settings))  # type: ignore[arg-type]


def generate(folder: Path, trace: bool = False, **params: object) -> list[Generation]:
    engine = engine_of(folder, trace=trace)
    return run(engine, requests_of(PROMPTS, SamplingParams(ignore_eos=True, **params)))  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_streaming_commits_in_every_forward_and_never_emits_the_mask_or_padding(
    agreeing_folder: Path, temperature: float
) -> None:
    out = generate(
        agreeing_folder, strategy="streaming", window_size=6, max_tokens=40, entropy_threshold=1.5,
        temperature=temperature,
    )  # fmt: skip
    for generation in out:
        assert len(generation.token_ids) == 40
        assert generation.stats.commit_histogram[0] == 0
        assert MASK not in generation.token_ids
        assert max(generation.token_ids) < Tokenizer.load(agreeing_folder).vocab_size
    assert sum(g.stats.tokens_per_forward for g in out) > 1.2 * len(out), "the threshold never filled a mask"


def test_streaming_without_fills_is_autoregressive(agreeing_folder: Path) -> None:
    streaming = generate(agreeing_folder, strategy="streaming", window_size=4, max_tokens=24, entropy_threshold=0.0)
    plain = generate(agreeing_folder, strategy="autoregressive", max_tokens=24)
    clean = [(s, p) for s, p in zip(streaming, plain, strict=True) if MASK not in p.token_ids
             and max(p.token_ids) < VOCABULARY]  # fmt: skip
    assert len(clean) > len(PROMPTS) // 3
    for s, p in clean:
        assert s.token_ids == p.token_ids


def test_streaming_forwards_nothing_behind_max_tokens(agreeing_folder: Path) -> None:
    limit = 11
    out = generate(agreeing_folder, trace=True, strategy="streaming", window_size=8, max_tokens=limit)
    for generation in out:
        assert generation.trace is not None
        last = max(max(step["positions"]) for step in generation.trace)
        assert last < generation.prompt_tokens + limit


@pytest.mark.parametrize("window", [1, 3, 8])
def test_blockwise_commits_whole_blocks_or_nothing(agreeing_folder: Path, window: int) -> None:
    out = generate(
        agreeing_folder, trace=True, strategy="blockwise", window_size=window, max_tokens=20, entropy_threshold=2.0
    )
    for generation in out:
        assert generation.trace is not None
        sizes = {len(step["decoder_committed"]) for step in generation.trace}
        assert sizes <= {0, window}
        assert window in sizes
