"""Logits come in chunks of bounded size, and the chunks change nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from wedlm_core import LLM, EngineConfig, SamplingParams
from wedlm_core.model.draw import Draw, Drawn, StepRows

PROMPTS = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [12]]


@given(rows=st.integers(1, 4096), count=st.integers(1, 1 << 32), vocab=st.integers(1, 200_000))
def test_rows_and_bytes_both_bound_a_chunk(rows: int, count: int, vocab: int) -> None:
    config = EngineConfig(logits_chunk_rows=rows, logits_chunk_bytes=count)
    found = config.logits_rows(vocab)
    assert 1 <= found <= rows
    assert found == 1 or found * vocab * 4 <= count
    assert found == rows or (found + 1) * vocab * 4 > count, "and no smaller than they ask"


def test_no_more_rows_of_logits_than_that_and_the_same_tokens(
    agreeing_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=12, window_size=8, ignore_eos=True)
    plain = LLM(str(agreeing_folder), device="cpu", config=EngineConfig(max_window=8))
    vocab = plain.model_config.vocab_size
    # 16 rows: a multiple of the padding of row counts on a CPU, with any product.
    config = EngineConfig(max_window=8, logits_chunk_bytes=16 * vocab * 4)
    small = LLM(str(agreeing_folder), device="cpu", config=config)
    seen: dict[str, list[int]] = {"plain": [], "small": []}
    for name, llm in (("plain", plain), ("small", small)):

        def counted(hidden: Tensor, head: Callable[[Tensor], Tensor], name: str) -> Tensor:
            seen[name].append(hidden.shape[0])
            return head(hidden)

        def drawn(rows: StepRows, draw: Draw, inside: Callable[[StepRows, Draw], Drawn], name: str) -> Drawn:
            seen[name].append(draw.picks.total)
            return inside(rows, draw)

        runner = llm.engine._runner
        monkeypatch.setattr(runner.choose, "_head", partial(counted, head=runner.choose._head, name=name))
        model_runner = runner.model_runner
        monkeypatch.setattr(model_runner, "draw", partial(drawn, inside=model_runner.draw, name=name))
    tokens = [[one.token_ids for one in llm.generate(PROMPTS, params)] for llm in (plain, small)]
    assert tokens[0] == tokens[1]
    assert max(seen["plain"]) > 16
    assert max(seen["small"]) == 16
    assert torch.get_num_threads() <= 4, "with more threads row counts are padded further"
