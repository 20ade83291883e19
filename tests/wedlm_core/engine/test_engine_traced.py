"""An engine traces for the length of a block: the same tokens, and afterwards it is unchanged.

Where forwards overlap, another engine does it: ``test_engine_pretend_device.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.engine.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.errors import RequestError
from wedlm_core.llm import LLM
from wedlm_core.types import SamplingParams

PARAMS = SamplingParams(max_tokens=6, window_size=3, ignore_eos=True)
PROMPTS = [[7, 30, 41], [9, 60, 71, 12]]


def test_traces_are_made_in_the_block_and_nowhere_else(qwen3_folder: Path) -> None:
    engine = LLM(str(qwen3_folder), config=EngineConfig(max_num_seqs=2, max_window=4)).engine
    requests = requests_of(PROMPTS, PARAMS)
    plain = run(engine, requests)
    with engine.traced(2, 16) as tracing:
        done = run(tracing, requests)
    after = run(engine, requests)
    assert [g.token_ids for g in plain] == [g.token_ids for g in done] == [g.token_ids for g in after]
    assert {g.trace for g in (*plain, *after)} == {None}
    for generation in done:
        committed = [token for record in generation.trace or () for token in record["committed"]]
        assert tuple(committed) == generation.token_ids


def test_records_of_an_unfinished_request_are_there_at_any_time(qwen3_folder: Path) -> None:
    engine = LLM(str(qwen3_folder), config=EngineConfig(max_num_seqs=2, max_window=4)).engine
    (request,) = requests_of(PROMPTS[:1], PARAMS)
    with engine.traced(1, 16) as tracing:
        tracing.add(request)
        assert tracing.trace_of("0") == ()
        tracing.step()
        committed = [token for record in tracing.trace_of("0") for token in record["committed"]]
        assert committed == tracing.committed("0")
        tracing.abort("0")


def test_work_in_hand_is_not_traced_from_its_middle_on(qwen3_folder: Path) -> None:
    engine = LLM(str(qwen3_folder), config=EngineConfig(max_num_seqs=2, max_window=4)).engine
    engine.add(requests_of(PROMPTS, PARAMS)[0])
    with pytest.raises(RequestError, match="unfinished"), engine.traced(1, 16):
        pass
    engine.abort("0")
