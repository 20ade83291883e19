"""The engine's counters are the sums of its generations' statistics, in any mix."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from testing.engine.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.llm import LLM
from wedlm_core.statistics import DRAFT_SOURCES
from wedlm_core.types import Generation, SamplingParams, Strategy

SYSTEM = list(range(10, 22))
SMALL: dict[str, Any] = {"max_num_seqs": 8, "page_size": 4, "num_pages": 48, "prefill_chunk": 5}


def tiny_engine(**fields: Any) -> Engine:
    return LLM("tiny", config=EngineConfig(**fields)).engine


def mixed(engine: Engine) -> list[Generation]:
    """Every strategy, prompts that share a prefix, in a pool that makes the youngest wait."""
    strategies = list(Strategy)
    prompts = [[*SYSTEM, 100 + i, *range(200, 200 + i)] for i in range(20)]
    params = [
        SamplingParams(max_tokens=30 + i, strategy=strategies[i % 5], window_size=2, ignore_eos=i % 4 > 0)
        for i in range(20)
    ]
    return run(engine, requests_of(prompts, params))


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapping"])
def test_counters_are_the_sums_over_the_generations(overlap: bool) -> None:
    engine = tiny_engine(**SMALL, overlap=overlap)
    before = engine.snapshot()
    assert (before.running, before.waiting, before.kv_pages_used, before.counters.forwards) == (0, 0, 0, 0)
    stats = [generation.stats for generation in mixed(engine)]
    found = engine.snapshot().counters
    assert found.tokens == sum(s.generated_tokens for s in stats)
    assert found.decode_forwards == sum(s.decode_forwards for s in stats)
    assert found.decode_rows == sum(s.rows_forwarded for s in stats)
    assert found.cached_prompt_tokens == sum(s.cached_prompt_tokens for s in stats) > 0
    assert found.preemptions == sum(s.preemptions for s in stats) > 0
    assert found.prompt_tokens == sum(len(SYSTEM) + 1 + i for i in range(20))
    # Every prompt token is computed once or found in the cache; rows of a preemption are computed again.
    assert found.prompt_rows >= found.prompt_tokens - found.cached_prompt_tokens
    assert found.forwards < found.decode_forwards


@pytest.mark.sweep(2)
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapping"])
@pytest.mark.parametrize("most", [1, 8])
def test_a_forward_commits_one_token_autoregressively_and_never_more_than_it_has_rows(overlap: bool, most: int) -> None:
    engine = tiny_engine(**{**SMALL, "max_num_seqs": most}, overlap=overlap)
    for generation, strategy in zip(mixed(engine), 4 * list(Strategy), strict=True):
        stats = generation.stats
        assert 0 < stats.prefix_cacheability <= 1, strategy
        assert all(getattr(stats, f"{own}_drafts_accepted") <= getattr(stats, f"{own}_drafts") for own in DRAFT_SOURCES)
        assert sum(stats.commit_histogram) == stats.decode_forwards
        assert sum(size * count for size, count in enumerate(stats.commit_histogram)) == stats.generated_tokens
        if strategy == Strategy.AUTOREGRESSIVE:
            assert (stats.tokens_per_forward, stats.prefix_cacheability) == (1.0, 1.0)


def test_masks_are_those_of_the_windows() -> None:
    engine = tiny_engine(max_num_seqs=2)
    run(engine, requests_of([[10, 11]], SamplingParams(max_tokens=6, strategy="autoregressive", ignore_eos=True)))
    assert engine.snapshot().counters.masks == 0
    run(engine, requests_of([[10, 11]], SamplingParams(max_tokens=40, window_size=5, ignore_eos=True)))
    found = engine.snapshot().counters
    assert found.masks % 5 == 0
    assert 40 <= found.masks <= 5 * 40


def test_another_thread_reads_them_while_the_engine_runs() -> None:
    engine = tiny_engine(**SMALL)
    thread = threading.Thread(target=mixed, args=(engine,))
    thread.start()
    seen = []
    while thread.is_alive():
        seen.append(engine.snapshot())
        time.sleep(0.002)
    tokens = [snapshot.counters.tokens for snapshot in seen]
    assert tokens == sorted(tokens)
    assert max(snapshot.occupancy for snapshot in seen) == 1.0
    assert 0 < max(snapshot.kv_pages_share for snapshot in seen) <= 1.0
    assert max(snapshot.waiting for snapshot in seen) > 0
