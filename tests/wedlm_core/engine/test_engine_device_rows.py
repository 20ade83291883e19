"""Forwards whose attention plans from device tensors; without a GPU, Triton's interpreter runs its kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testing.engine.copied_inputs import CopiedInputs
from testing.engine.engines import loaded, plain_decoder, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.forward.async_launch import AsyncLaunch
from wedlm_core.engine.forward.graph_policy import GraphBook
from wedlm_core.engine.forward.pack_gpu import DeviceBatch
from wedlm_core.types import Request, SamplingParams

CONFIG = EngineConfig(max_num_seqs=4, max_window=4, page_size=8, max_model_len=64, overlap=True, attention="triton")


def some_requests(strategy: str) -> list[Request]:
    prompts = [[3, 5, 7, 11, 13], [17], [19, 23, 29, 31, 37, 41, 43, 47, 53]]
    params = SamplingParams(max_tokens=6, ignore_eos=True, strategy=strategy, window_size=3, entropy_threshold=2.0)
    return requests_of(prompts, params)


def with_kernels(folder: Path) -> Engine:
    """An engine whose windows are packed and advanced as on a GPU."""
    engine = Engine(*loaded(folder), CONFIG)
    launch = engine._runner.launch
    assert isinstance(launch, AsyncLaunch)
    launch.has_kernels = True
    return engine


def plain_engine(folder: Path) -> Engine:
    """An engine that waits for each forward, which torch computes."""
    with plain_decoder():
        return Engine(*loaded(folder), replace(CONFIG, overlap=False, attention="auto"))


def test_windows_of_all_strategies_go_either_way_in_turns(agreeing_folder: Path) -> None:
    """Forwards of kernels between forwards of groups, on the same windows."""
    some = [
        replace(one, request_id=f"{strategy} {one.request_id}")
        for strategy in ("verified", "streaming", "reference", "autoregressive") for one in some_requests(strategy)
    ]  # fmt: skip
    plain = plain_engine(agreeing_folder)
    expected, found = run(plain, some, at_once=3), run(with_kernels(agreeing_folder), some, at_once=3)
    assert [g.token_ids for g in found] == [g.token_ids for g in expected]


def test_buffers_of_a_graph_hold_the_forward(agreeing_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured forward would compute the forward's result from its buffers.

    At its own bounds and at the most general ones, after other forwards have left their traces in the buffers.
    """
    engine = Engine(*loaded(agreeing_folder), CONFIG)
    runner = engine._runner
    book = GraphBook(limit=64, sequences=4, most_kv=96, seconds=1.0, most_bytes=1)
    inputs = CopiedInputs(rows=64, sequences=4, page_size=8, device=runner.device)
    compared = 0

    def both(self: AsyncLaunch, batch: DeviceBatch) -> torch.Tensor:
        nonlocal compared
        expected = runner.model_runner.run_device_rows(batch.id_T, batch.position_T, batch.kv_entry_T, batch.rows)
        rows, real = batch.rows, int(batch.rows.cu_rows_Z[-1])
        sequences = rows.kv_lengths_S.shape[0]
        for key in (
            book.key(rows.total, sequences=sequences, max_rows=rows.max_rows, max_kv=rows.max_kv),
            book.general(rows.total),
        ):
            inputs.fill(key, batch)
            found = inputs.run(key, runner.model_runner.run_device_rows)
            torch.testing.assert_close(found[:real], expected[:real])
            compared += 1
        return expected

    monkeypatch.setattr(AsyncLaunch, "_run_model", both)
    run(engine, some_requests("verified"))
    assert compared > 6


def test_fresh_buffers_stand_for_one_row(agreeing_folder: Path) -> None:
    """Runs before a capture touch the first KV slot only."""
    runner = Engine(*loaded(agreeing_folder), CONFIG)._runner
    book = GraphBook(limit=16, sequences=4, most_kv=96, seconds=1.0, most_bytes=1)
    inputs = CopiedInputs(rows=16, sequences=4, page_size=8, device=runner.device)
    with torch.inference_mode():
        for key in book.first_keys():
            assert inputs.run(key, runner.model_runner.run_device_rows).shape[0] == key.size
    written = runner.pool.k[0].view(runner.pool.heads, -1, runner.pool.head_dim).abs().sum(dim=(0, 2))
    assert written.nonzero().flatten().tolist() == [0]


def test_the_most_likely_tokens_are_those_of_the_plain_engine(agreeing_folder: Path) -> None:
    """Some sequences report them; only the device knows where their rows begin."""
    reported = (True, 3, 5)
    some = [
        replace(one, params=replace(one.params, logprobs=most))
        for one, most in zip(some_requests("verified"), reported, strict=True)
    ]
    plain = plain_engine(agreeing_folder)
    expected, found = run(plain, some), run(with_kernels(agreeing_folder), some)
    assert [g.token_ids for g in found] == [g.token_ids for g in expected]
    for mine, other, most in zip(found, expected, reported, strict=True):
        assert (mine.top_logprobs is None) == (other.top_logprobs is None) == (most is True)
        for place, known in zip(mine.top_logprobs or (), other.top_logprobs or (), strict=True):
            assert [token for token, _ in place] == [token for token, _ in known]
            assert [nats for _, nats in place] == pytest.approx([nats for _, nats in known], abs=1e-4)
