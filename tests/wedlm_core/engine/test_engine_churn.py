"""Requests come, are aborted and finish in any order; survivors give the same output as alone, and no page leaks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.engine.engines import run
from testing.engine.mixed_requests import request_of
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation


@cache
def loaded(folder: Path) -> tuple[Decoder, Tokenizer]:
    return load_model(folder), Tokenizer.load(folder)


@cache
def alone(folder: Path, kind: int) -> Generation:
    (generation,) = run(Engine(*loaded(folder), EngineConfig(max_window=4)), [request_of(kind, "0")])
    return generation


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 39)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("step"), st.integers(1, 4)),
    ),
    min_size=5,
    max_size=40,
)


@given(
    events=EVENTS,
    config=st.builds(
        EngineConfig,
        max_num_seqs=st.sampled_from([1, 3, 8]),
        max_batch_rows=st.sampled_from([9, 30, 2048]),
        prefill_chunk=st.sampled_from([None, 2, 7]),
        max_window=st.just(4),
        page_size=st.sampled_from([2, 8]),
        kv_cache_bytes=st.sampled_from([None, 2 * 2 * 2 * 8 * 4 * 80]),  # the second: 80 tokens of this model
        prefix_caching=st.booleans(),
        overlap=st.booleans(),
    ),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_survivors_are_untouched(qwen3_folder: Path, events: list[tuple[str, int]], config: EngineConfig) -> None:
    engine = Engine(*loaded(qwen3_folder), config)
    kinds: dict[str, int] = {}
    waiting: list[str] = []
    for number, (event, value) in enumerate(events):
        if event == "add":
            kinds[str(number)] = value
            waiting.append(str(number))
            engine.add(request_of(value, str(number)))
        elif event == "abort" and waiting:
            engine.abort(waiting.pop(value % len(waiting)))
        elif event == "step":
            for _ in range(value):
                check(engine, waiting, kinds, qwen3_folder)
        engine.pages.check_integrity()
        assert len(engine._sequences) == len(waiting)
    while engine.has_work():
        check(engine, waiting, kinds, qwen3_folder)
    assert waiting == []
    engine.pages.check_integrity()
    assert engine.pages.num_free == engine.pages.num_pages


def check(engine: Engine, waiting: list[str], kinds: dict[str, int], folder: Path) -> None:
    for generation in engine.step():
        waiting.remove(generation.request_id)
        expected = alone(folder, kinds[generation.request_id])
        assert generation.token_ids == expected.token_ids
        assert generation.text == expected.text
        assert generation.finish_reason == expected.finish_reason
        ours, theirs = generation.stats, expected.stats
        assert ours.commit_histogram == theirs.commit_histogram
        assert ours.rows_forwarded == theirs.rows_forwarded
        assert ours.max_entropy == theirs.max_entropy
