"""The engine on a CUDA device: one step later than the host, without syncs, with graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from testing.engine.engines import COST, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.forward.async_launch import AsyncLaunch
from wedlm_core.engine.forward.model_runner import ModelRunner
from wedlm_core.engine.forward.pack_gpu import DeviceBatch
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request, SamplingParams

pytestmark = pytest.mark.gpu  # streams, pinned copies and CUDA graphs exist on a CUDA device only

STRATEGIES = ("verified", "reference", "streaming", "autoregressive", "blockwise")
# Batch invariant attention and one stated step cost: two engines differ only by the test's variable.
CONFIG = EngineConfig(
    max_num_seqs=16,
    max_window=8,
    max_model_len=512,
    num_pages=400,
    page_size=16,
    attention="triton",
    batch_invariant=True,
    step_cost=COST,
    graph_rows=128,
    graph_seconds=600.0,  # tests beside this one take time and memory of the device, which captures would account for
    graph_bytes=1 << 38,
)


@cache
def loaded(folder: Path, device: str = "cuda") -> tuple[Decoder, Tokenizer]:
    return load_model(folder, device=device), Tokenizer.load(folder)


def engine_of(folder: Path, **settings: Any) -> Engine:
    return Engine(*loaded(folder), replace(CONFIG, **settings))


def some_requests(strategy: str, count: int = 12, **fixed: Any) -> list[Request]:
    prompts = [[(7 * i + j * j) % 300 for j in range(1 + 5 * i % 23)] for i in range(count)]
    given = {"max_tokens": 40, "window_size": 4, "ignore_eos": True, "entropy_threshold": 2.0, **fixed}
    return requests_of(prompts, SamplingParams(strategy=strategy, **given))


def tokens(generations: list[Generation]) -> list[tuple[int, ...]]:
    return [g.token_ids for g in generations]


def no_more_captures(engine: Engine) -> None:
    """Each waits for the device, once."""
    launch = engine._runner.launch
    assert isinstance(launch, AsyncLaunch)
    assert launch.graphs is not None
    launch.graphs._book._seconds = 0.0


@pytest.fixture
def no_syncs() -> Iterator[None]:
    """Torch raises where it would wait for the device."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_work_around_forwards_is_recorded_and_gives_the_same_tokens(
    agreeing_folder: Path, strategy: str, temperature: float
) -> None:
    """Sequences come and go, windows change, greedy ones come first: each kind of forward has records of its own."""
    base = some_requests(strategy, temperature=temperature)
    greedy = [replace(one, request_id=f"greedy {one.request_id}") for one in some_requests(strategy, window_size=6)]
    engine, eager = engine_of(agreeing_folder), engine_of(agreeing_folder)
    eager._runner.launch.steps = None  # type: ignore[attr-defined]
    for requests in (greedy, base, greedy[:5] + base[5:]):
        found = run(engine, requests, at_once=5)
        assert tokens(found) == tokens(run(eager, requests, at_once=5))
    assert engine._runner.launch.steps.recorded >= 6  # type: ignore[attr-defined]


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_overlap_gives_the_tokens_of_the_plain_loop(agreeing_folder: Path, strategy: str, graphs: bool) -> None:
    expected = run(engine_of(agreeing_folder, overlap=False), some_requests(strategy))
    found = run(engine_of(agreeing_folder, overlap=True, cuda_graphs=graphs), some_requests(strategy))
    assert tokens(found) == tokens(expected)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}])
@pytest.mark.parametrize("window", [4, "auto"])
def test_steady_state_has_no_sync(agreeing_folder: Path, no_syncs: None, sampling: Any, window: Any) -> None:
    """Nothing in a step waits for the device but the one wait for the outcome of the step before."""
    engine = engine_of(agreeing_folder, num_pages=1000, max_model_len=1024)
    for request in some_requests("verified", max_tokens=900, window_size=window, **sampling):
        engine.add(request)
    for _ in range(100):  # captures, compilations and prefill are done
        engine.step()
    torch.cuda.synchronize()
    no_more_captures(engine)
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(20):
        engine.step()
    torch.cuda.set_sync_debug_mode("default")
    assert len(engine._sequences) == 12


def test_admission_has_no_sync(agreeing_folder: Path, no_syncs: None) -> None:
    """New sequences are set up while a forward is under way."""
    engine = engine_of(agreeing_folder)
    requests = some_requests("verified", max_tokens=300)
    for request in requests[:6]:
        engine.add(request)
    for _ in range(60):
        engine.step()
    for request in some_requests("verified", max_tokens=1):
        engine.add(replace(request, request_id=f"warm {request.request_id}"))
    for _ in range(20):
        engine.step()
    for request in requests[6:]:
        engine.add(request)
    no_more_captures(engine)
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(10):
        engine.step()
    torch.cuda.set_sync_debug_mode("default")
    assert all(engine.committed(one.request_id) for one in requests[6:]), "they were admitted"


def test_graphs_compute_what_runs_eagerly(agreeing_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden states of every forward, replayed and eager."""
    engine = engine_of(agreeing_folder)
    runner, plain = engine._runner, AsyncLaunch._run_model
    replayed = 0

    def both(self: AsyncLaunch, batch: DeviceBatch) -> torch.Tensor:
        nonlocal replayed
        expected = runner.model_runner.run_device_rows(batch.id_T, batch.position_T, batch.kv_entry_T, batch.rows)
        found = plain(self, batch)
        real = int(batch.rows.cu_rows_Z[-1])
        torch.testing.assert_close(found[:real], expected[:real], rtol=1e-4, atol=1e-4)
        replayed += batch.rows.total <= CONFIG.graph_rows
        return found

    monkeypatch.setattr(AsyncLaunch, "_run_model", both)
    run(engine, some_requests("verified"))
    assert replayed > 5


def test_a_forward_that_cannot_be_captured_runs_eagerly(
    agreeing_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = run(engine_of(agreeing_folder, cuda_graphs=False), some_requests("verified"))
    plain = ModelRunner.run_device_rows

    def asking(self: ModelRunner, *batch: Any) -> torch.Tensor:
        hidden_TD = plain(self, *batch)
        assert hidden_TD[0, 0].item() < torch.inf  # the host asks for a value: not allowed in a capture
        return hidden_TD

    monkeypatch.setattr(ModelRunner, "run_device_rows", asking)
    engine = engine_of(agreeing_folder)
    assert "cannot be captured" in caplog.text
    torch.randn(3, device="cuda")  # which a recording that failed would refuse
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert tokens(run(engine, some_requests("verified"))) == tokens(expected)


@pytest.mark.parametrize("page_size", [64, 256])
@pytest.mark.parametrize("attention", ["auto", "triton"])
def test_bfloat16_ends_where_it_should(agreeing_folder: Path, attention: str, page_size: int) -> None:
    """Lengths, not tokens: near-ties fall either way in bfloat16. Vendors' kernels want pages of 256 tokens."""
    model = load_model(agreeing_folder, device="cuda", dtype=torch.bfloat16)
    config = replace(CONFIG, attention=attention, page_size=page_size, num_pages=60, batch_invariant=False)
    engine = Engine(model, Tokenizer.load(agreeing_folder), config)
    assert [len(t) for t in tokens(run(engine, some_requests("verified")))] == [40] * 12


def test_the_tiny_model_gives_on_gpu_what_it_gives_on_cpu() -> None:
    """Verified, greedy, float32: issue 5's condition."""
    folder = Path(resolve("tiny"))
    tokenizer = Tokenizer.load(folder)
    texts = ["Count from 3 to 9.", "Count from 12 to 20.", "Copy: a b c d e", "What is 3 + 4?"]
    requests = requests_of([tokenizer.encode(t) for t in texts], SamplingParams(max_tokens=64, window_size=8))
    expected = run(Engine(load_model(folder), tokenizer, EngineConfig()), requests)
    settings = replace(CONFIG, max_model_len=None, page_size=64, num_pages=100)
    found = run(Engine(load_model(folder, device="cuda"), tokenizer, settings), requests)
    assert tokens(found) == tokens(expected)
