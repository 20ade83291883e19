"""An engine with overlapping forwards equals the plain one: tokens, texts, reasons and statistics."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.engine.engines import COST, loaded, plain_decoder, requests_of, run
from wedlm_core import LLM
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.strategies import Refills
from wedlm_core.decoding.strategies.verified import VerifiedDecoding
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting import measure
from wedlm_core.engine.drafting.bench import IN_FLIGHT
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.forward.async_launch import AsyncLaunch, InFlightForward
from wedlm_core.engine.forward.graph_policy import graph_sizes
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.overlap import CompletedForward, head_rows
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.errors import ConfigError
from wedlm_core.model.int8_gpu import Tiles, tiles_of
from wedlm_core.types import Generation, Request, SamplingParams

STRATEGIES = ("verified", "reference", "streaming", "autoregressive", "blockwise")


def engine_of(folder: Path, **settings: Any) -> Engine:
    return Engine(*loaded(folder), EngineConfig(**{"max_window": 8, "step_cost": COST, **settings}))


def requests_like(strategy: str, seed: int, count: int = 16, **fixed: Any) -> list[Request]:
    rng = random.Random(seed)
    prompts = [[rng.randrange(300) for _ in range(rng.choice([1, 4, 8, 23]))] for _ in range(count)]
    params = [
        SamplingParams(
            **{
                "max_tokens": rng.choice([1, 2, 9, 30]), "temperature": rng.choice([0.0, 0.8]),
                "top_k": rng.choice([0, 5]), "ignore_eos": rng.random() < 0.5, "stop": rng.choice([(), ("e",)]),
                "stop_token_ids": rng.choice([(), tuple(range(20, 60))]), "window_size": rng.choice([1, 3, 8]),
                "entropy_threshold": rng.choice([0.4, 3.0]), "logprobs": strategy in ("verified", "autoregressive"),
                "strategy": strategy, **fixed,
            }
        )
        for _ in prompts
    ]  # fmt: skip
    return requests_of(prompts, params)


def assert_same(found: list[Generation], expected: list[Generation], *, stats: bool = True) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        np.testing.assert_array_equal(ours.logprobs or (), theirs.logprobs or ())
        if stats:
            same = replace(theirs.stats, preemptions=ours.stats.preemptions)
            assert replace(ours.stats, cached_prompt_tokens=0) == replace(same, cached_prompt_tokens=0)


TIGHT = {"page_size": 4, "max_batch_rows": 40, "prefill_chunk": 5, "max_num_seqs": 6}


@pytest.mark.sweep(5)
@pytest.mark.parametrize(("settings", "by_torch"), [({}, False), (TIGHT, False), (TIGHT, True)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(agreeing_folder: Path, strategy: str, settings: dict[str, Any], by_torch: bool) -> None:
    requests = requests_like(strategy, seed=len(strategy))
    with plain_decoder() if by_torch else nullcontext():
        expected = run(engine_of(agreeing_folder, overlap=False), requests)
        assert_same(run(engine_of(agreeing_folder, overlap=True, **settings), requests), expected)


@pytest.mark.parametrize("settings", [{}, TIGHT], ids=["roomy", "tight"])
def test_adaptive_windows_are_verified(agreeing_folder: Path, settings: dict[str, Any]) -> None:
    """Windows follow drafting's observations, which come a step later with overlap: the tokens do not."""
    requests = requests_like("verified", seed=2, window_size="auto", max_tokens=40)
    expected = run(engine_of(agreeing_folder, overlap=False), requests)
    assert_same(run(engine_of(agreeing_folder, overlap=True, **settings), requests), expected, stats=False)


def test_adaptive_streaming_ends_and_counts(agreeing_folder: Path) -> None:
    """Its tokens depend on windows; its windows stay within the rows that were set aside (else the loop raises)."""
    requests = requests_like("streaming", seed=1, window_size="auto", max_tokens=40, ignore_eos=True, stop=())
    requests = [replace(r, params=replace(r.params, stop_token_ids=())) for r in requests]
    found = run(engine_of(agreeing_folder, overlap=True, **TIGHT), requests)
    assert [len(g.token_ids) for g in found] == [40] * len(requests)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("max_tokens", [0, 1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_short_outputs(agreeing_folder: Path, strategy: str, max_tokens: int) -> None:
    requests = requests_like(strategy, seed=1, max_tokens=max_tokens)
    expected = run(engine_of(agreeing_folder, overlap=False), requests)
    assert_same(run(engine_of(agreeing_folder, overlap=True, max_num_seqs=3), requests, at_once=5), expected)


def test_at_the_models_limit(agreeing_folder: Path) -> None:
    """The forward that runs past an end stays within the tables."""
    settings = {"max_model_len": 32, "page_size": 4}
    requests = [
        r for s in STRATEGIES for r in requests_like(s, 3, 3, max_tokens=24, window_size=8, ignore_eos=True, stop=())
    ]
    requests = [replace(r, request_id=str(i), prompt_token_ids=r.prompt_token_ids[:8]) for i, r in enumerate(requests)]
    expected = run(engine_of(agreeing_folder, overlap=False, **settings), requests)
    assert_same(run(engine_of(agreeing_folder, overlap=True, **settings), requests), expected)


def test_samples_and_streams(agreeing_folder: Path) -> None:
    plain, overlapping = (LLM(str(agreeing_folder), config=EngineConfig(overlap=overlap)) for overlap in (False, True))
    params = SamplingParams(max_tokens=20, temperature=0.9, seed=3, n=3, window_size=4)
    assert_same(overlapping.generate(["ab", "c"], params), plain.generate(["ab", "c"], params))
    one = replace(params, n=1, seed=4)
    pieces = list(overlapping.stream("ab", one))
    (expected,) = plain.generate("ab", one)
    assert "".join(p.text for p in pieces) == expected.text


def test_an_abort_with_a_forward_in_flight(agreeing_folder: Path) -> None:
    """The slot of an aborted request is taken by the next one while the old one's rows are still in flight."""
    requests = requests_like("verified", seed=2, count=4, max_tokens=30, ignore_eos=True, stop=(), stop_token_ids=())
    expected = run(engine_of(agreeing_folder, overlap=False), requests)
    engine = engine_of(agreeing_folder, overlap=True, max_num_seqs=2)
    for request in requests[:2]:
        engine.add(request)
    for _ in range(4):
        assert not engine.step()
    engine.abort("0")
    engine.abort("1")
    assert engine.pages.num_free == engine.pages.num_pages
    assert_same(run(engine, requests[2:]), expected[2:])


def test_results_come_one_step_late(agreeing_folder: Path) -> None:
    (request,) = requests_like("autoregressive", seed=2, count=1, max_tokens=3, ignore_eos=True, stop=())
    request = replace(request, params=replace(request.params, stop_token_ids=()))
    steps = []
    for overlap in (False, True):
        engine = engine_of(agreeing_folder, overlap=overlap)
        engine.add(request)
        steps.append(next(i for i in range(1, 20) if engine.step()))
    assert steps == [3, 4]


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"trace": True, "overlap": True}, "overlap"), ({"cuda_graphs": True, "overlap": False}, "cuda_graphs")],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}=True"):
        EngineConfig(**settings)


@given(masks=st.integers(0, 8), kept=st.integers(0, 8), drafts=st.integers(0, 8), left=st.integers(1, 20))
def test_row_bounds_hold_for_verified(masks: int, kept: int, drafts: int, left: int) -> None:
    """Against every number of drafts that may agree."""
    before = min(masks + drafts, left)  # window places: drafts and masks, up to the limit
    drafts = min(drafts, before)
    one = np.ones(1, dtype=np.int64)
    refills = Refills(masks_D=one * masks, kept_D=one * kept, widest_D=one * 8)
    (bound,) = VerifiedDecoding().next_rows(refills, one * (before + 1), one * left).tolist()
    for agreed in range(min(drafts, left - 1) + 1):
        count = agreed + 1
        remain = min(max(before - count, 0), kept, left - count)
        rows = 1 + remain + min(masks, left - count - remain)
        assert left - count == 0 or rows <= bound


def test_costs_are_measured_with_a_forward_in_flight(
    agreeing_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement runs forwards of its own through the same runner; those in flight do not notice."""
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path))
    plain = requests_like("verified", seed=4, count=3, max_tokens=30, window_size=3)
    adaptive = requests_like("verified", seed=9, count=3, max_tokens=30, window_size="auto")
    requests = [*plain, *(replace(r, request_id=f"auto {r.request_id}") for r in adaptive)]
    expected = run(engine_of(agreeing_folder, overlap=False), requests)
    engine = engine_of(agreeing_folder, overlap=True, step_cost=None, page_size=16, num_pages=200)
    for request in requests[:3]:
        engine.add(request)
    done = {g.request_id: g for _ in range(2) for g in engine.step()}
    assert engine._step_cost is None
    for request in requests[3:]:
        engine.add(request)
    assert engine._step_cost is not None
    while engine.has_work():
        done.update((g.request_id, g) for g in engine.step())
    assert_same([done[r.request_id] for r in requests], expected, stats=False)


def test_costs_of_an_overlapping_engine_are_of_forwards_that_do_not_wait_for_each_other(
    agreeing_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the host's work between two forwards, which the device hides, would make rows look cheap."""
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measure, "CONSTANTS", replace(CONSTANTS, measured_seconds=(0.1, 0.1)))
    flying = most = 0
    start, wait = AsyncLaunch.start, InFlightForward.wait

    def counted(self: AsyncLaunch, *given: Any) -> InFlightForward:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        return start(self, *given)

    def waited(self: InFlightForward) -> Any:
        nonlocal flying
        flying -= 1
        return wait(self)

    monkeypatch.setattr(AsyncLaunch, "start", counted)
    monkeypatch.setattr(InFlightForward, "wait", waited)
    cost = engine_of(agreeing_folder, overlap=True, step_cost=None, num_pages=200).measure_step_cost()
    assert cost.seconds[0] > 0
    assert most == IN_FLIGHT > 2
    assert flying == 0


def completed_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[CompletedForward]:
    """Grows by each forward that the engine completes."""
    seen, consume = list[CompletedForward](), engine._consume_completed
    assert engine._loop is not None
    monkeypatch.setattr(engine._loop, "_consume", lambda completed: (seen.append(completed), consume(completed)))
    return seen


def test_forwards_cost_what_their_planned_rows_cost(agreeing_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device computes planned rows: by the rows that sequences turned out to have, tables seem wrong."""
    engine = engine_of(agreeing_folder, overlap=True)
    launched: list[int] = []
    launch = AsyncLaunch.launch

    def watched(self: AsyncLaunch, runner: Runner, plan: ForwardPlan, table: SlotTable) -> InFlightForward:
        launched.append(int(plan.prefill_S.sum() + plan.decode_S.sum()))
        return launch(self, runner, plan, table)

    seen, told = completed_of(engine, monkeypatch), list[float | None]()
    monkeypatch.setattr(AsyncLaunch, "launch", watched)
    learn = engine._drafting._learn
    monkeypatch.setattr(engine._drafting, "_learn", lambda report: (told.append(report.forward_rows), learn(report)))
    run(engine, requests_like("verified", seed=3, count=4, max_tokens=30, window_size=4))
    known = [(one, rows) for one, rows in zip(seen, launched, strict=False) if one.rows is not None]
    assert [one.rows for one, _ in known] == [rows for _, rows in known]
    assert any(rows > one.plan.decode_S.sum() + one.plan.prefill_S.sum() for one, rows in known)
    assert [rows for rows in told if rows is not None] == [one.rows for one, _ in known]


def test_a_forward_behind_a_measurement_says_nothing_of_what_forwards_cost(
    agreeing_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds of measuring, in the middle of a job, made windows seem slow."""
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path))
    engine = engine_of(agreeing_folder, overlap=True, step_cost=None, page_size=16, num_pages=200)
    seen = completed_of(engine, monkeypatch)
    (request,) = requests_like("autoregressive", seed=1, count=1, max_tokens=20, ignore_eos=True, stop=())
    engine.add(request)
    for _ in range(6):
        engine.step()
    before = len(seen)
    engine.measure_step_cost()
    for _ in range(6):
        engine.step()
    timed = [one.seconds is not None for one in seen]
    assert timed[before:] == [True, False, True, True, True, True], "the one in flight meanwhile, and the next"


@pytest.mark.parametrize("most", [512, 441, 1024])
def test_the_head_is_compiled_for_every_kind_of_product_before_a_job(most: int) -> None:
    """Tiles, and whether all of them are full of rows: a kernel each."""

    def kind(rows: int) -> tuple[Tiles, bool]:
        tiles = tiles_of(rows, 151_936)
        return tiles, rows % tiles.rows == 0

    compiled = {kind(rows) for rows in head_rows(graph_sizes(1024), most, 8)}
    assert compiled >= {kind(rows) for rows in range(8, most + 1, 8)}
