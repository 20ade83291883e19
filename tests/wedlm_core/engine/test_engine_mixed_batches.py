"""Requests of all strategies in one batch: each gives the same output as alone, and drafting learns from its own only.

The shipped model and a small random one; random windows, temperatures, lengths, batch sizes, page sizes and pools.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.engine.engines import loaded, plain_decoder, run
from testing.engine.features import random_features
from wedlm_core.config import EngineConfig
from wedlm_core.config.engine_config import StreamingSwitches
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting.acceptance import Acceptance
from wedlm_core.engine.drafting.step_time import StepReport
from wedlm_core.engine.drafting.windows import Suggestions
from wedlm_core.engine.forward.outcome import fetch
from wedlm_core.engine.forward.runner import StepDetail
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.model.sources import resolve
from wedlm_core.types import Generation, Request, SamplingParams, Strategy

COST = StepCost.linear(fixed=1.0, per_row=1 / 40, floor_rows=60)
COSTS = (COST, StepCost.linear(fixed=1.0, per_row=1e-4), StepCost.linear(fixed=0.1, per_row=1.0))
SWITCHES = (
    StreamingSwitches(),
    StreamingSwitches(prefill_token=False, clip=False),
    StreamingSwitches(head_fills_leftmost=False, fallback=True, suppress=False, hole_price=0.0),
)
VERIFIED = 0  # the number of its decoding, in every engine
MODELS = ("tiny", "agreeing")
MAX_WINDOW = 16  # the value of "auto" for reference and blockwise
BATCHES = 10  # of each model


def engine_of(folder: Path, *, by_torch: bool = False, **fields: Any) -> Engine:
    with plain_decoder() if by_torch else nullcontext():
        return Engine(*loaded(folder), EngineConfig(**{"max_window": MAX_WINDOW, "step_cost": COST, **fields}))


@pytest.fixture(params=MODELS)
def folder(request: pytest.FixtureRequest) -> Path:
    return resolve("tiny") if request.param == "tiny" else request.getfixturevalue("agreeing_folder")


SHARED = tuple(range(40, 64))
"""The beginning of many prompts: their pages are shared."""


def random_request(rng: random.Random, name: str, strategy: Strategy | None = None) -> Request:
    """Any strategy, unless it is given; half of the windows are chosen by the engine."""
    strategy = strategy or rng.choice(list(Strategy))
    own = tuple(rng.randrange(300) for _ in range(rng.choice([1, 2, 5, 8, 16, 33])))
    max_tokens = rng.choice([1, 2, 7, 18])
    fields: dict[str, Any] = {
        "logprobs": strategy in ("verified", "autoregressive"),
        "top_k": rng.choice([0, 0, 5]),
        "stop_token_ids": rng.choice([(), tuple(range(20, 60))]),
    }
    if rng.random() < 0.3:
        fields |= random_features(rng, strategy, max_tokens)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0]),
        top_p=rng.choice([1.0, 1.0, 0.8]),
        ignore_eos=rng.random() < 0.5,
        strategy=strategy,
        window_size=rng.choice(["auto", "auto", 1, 3, 8, 16]),
        entropy_threshold=rng.choice([None, 0.4, 2.0]),
        **fields,
    )
    prompt = SHARED[: rng.choice([8, 16, 24])] + own if rng.random() < 0.4 else own
    return Request(request_id=name, prompt_token_ids=prompt, params=params, seed=rng.randrange(1000))


def random_engine(rng: random.Random, folder: Path) -> tuple[Engine, dict[str, Any]]:
    """Page and batch sizes, chunked prefill, a pool that may be small, overlapping forwards, both CPU paths."""
    size = rng.choice([4, 16, 64])
    chosen = {
        "page_size": size,
        # The longest request is 57 + 18 tokens and 33 rows of a window.
        "num_pages": rng.choice([-(-112 // size), -(-260 // size), -(-4096 // size)]),
        "max_num_seqs": rng.choice([2, 5, 16]),
        "max_batch_rows": rng.choice([40, 99, 2048]),
        "prefill_chunk": rng.choice([None, 5]),
        "prefix_caching": rng.random() < 0.7,
        "overlap": rng.random() < 0.3,
        "by_torch": rng.choice([False, False, True]),
        "logits_chunk_rows": rng.choice([7, 1024]),
        "step_cost": rng.choice(COSTS),
        "streaming": rng.choice(SWITCHES),
    }
    chosen["trace"] = not chosen["overlap"] and rng.random() < 0.2
    return engine_of(folder, **chosen), chosen


@cache
def roomy(folder: Path, by_torch: bool, streaming: StreamingSwitches) -> Engine:
    """Runs one request at a time."""
    return engine_of(folder, by_torch=by_torch, streaming=streaming)


def alone(folder: Path, request: Request, chosen: dict[str, Any]) -> Generation:
    """The output of a request alone, by the same decoder and switches."""
    (generation,) = run(roomy(folder, chosen["by_torch"], chosen["streaming"]), [request])
    return generation


def assert_as_alone(found: Generation, request: Request, folder: Path, chosen: dict[str, Any]) -> None:
    """Token for token; ``verified`` moreover as ``autoregressive``. Adaptive ``streaming`` depends on its windows."""
    params = request.params
    if params.adaptive and params.strategy == Strategy.STREAMING:
        assert 1 <= len(found.token_ids) <= params.max_tokens
        return
    expected = alone(folder, request, chosen)
    assert found.token_ids == expected.token_ids, params
    assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
    assert found.logprobs == expected.logprobs
    assert found.top_logprobs == expected.top_logprobs
    if params.strategy == Strategy.VERIFIED:
        plain = replace(request, params=replace(params, strategy="autoregressive"))
        assert found.token_ids == alone(folder, plain, chosen).token_ids
    if not params.adaptive:
        kept = {"preemptions": 0, "cached_prompt_tokens": 0}
        assert replace(found.stats, **kept) == replace(expected.stats, **kept), params


@pytest.mark.sweep(4)
@pytest.mark.parametrize("seed", range(BATCHES))
def test_every_row_of_a_random_mix_is_what_it_is_alone(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    engine, chosen = random_engine(rng, folder)
    requests = [random_request(rng, str(i)) for i in range(rng.choice([2, 6, 14]))]
    found = run(engine, requests, at_once=rng.choice([None, 3]))
    assert [g.request_id for g in found] == [r.request_id for r in requests]
    for generation, request in zip(found, requests, strict=True):
        assert_as_alone(generation, request, folder, chosen)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_mix_in_a_pool_that_preempts_and_shares_is_what_its_rows_are_alone(folder: Path, overlap: bool) -> None:
    rng = random.Random(7)
    chosen = {"by_torch": False, "streaming": SWITCHES[0]}
    engine = engine_of(folder, page_size=4, num_pages=48, max_num_seqs=8, prefill_chunk=5, overlap=overlap, **chosen)
    requests = []
    for i in range(20):
        request = random_request(rng, str(i), list(Strategy)[i % 5])
        params = replace(request.params, max_tokens=40, ignore_eos=True, logprobs=False)
        # Pages that admission sets aside for a fixed window are hardly ever needed: growing outputs preempt.
        params = replace(params, stop_token_ids=(), window_size="auto" if params.adaptive else 2)
        requests.append(replace(request, prompt_token_ids=(*SHARED[:12], i), params=params))
    found = run(engine, requests)
    assert sum(g.stats.preemptions for g in found) > 0
    assert sum(g.stats.cached_prompt_tokens for g in found) > 0
    for generation, request in zip(found, requests, strict=True):
        assert len(generation.token_ids) == 40
        assert_as_alone(generation, request, folder, chosen)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", range(4))
def test_the_rest_of_a_mix_is_what_it_is_alone_where_some_are_aborted(folder: Path, seed: int) -> None:
    rng = random.Random(100 + seed)
    engine, chosen = random_engine(rng, folder)
    requests = {str(i): random_request(rng, str(i)) for i in range(14)}
    waiting, done = list(requests), dict[str, Generation]()
    aborted = set[str]()
    while waiting or engine.has_work():
        for name in waiting[: rng.choice([0, 1, 5])]:
            engine.add(requests[name])
            waiting.remove(name)
        done.update((g.request_id, g) for g in engine.step())
        engine.pages.check_integrity()
        assert len(engine._sequences) == len(requests) - len(waiting) - len(done) - len(aborted)
        running = [name for name in requests if name not in {*waiting, *done, *aborted}]
        if running and rng.random() < 0.2:
            aborted.add(rng.choice(running))
            engine.abort(max(aborted & set(running)))
    engine.pages.check_integrity()
    assert engine.pages.num_free == engine.pages.num_pages
    assert {*done, *aborted} == set(requests)
    assert aborted
    for name, generation in done.items():
        assert_as_alone(generation, requests[name], folder, chosen)


class Witness:
    """Counts accepted drafts of verified sequences, from their group's own commit, along with an engine's."""

    def __init__(self, engine: Engine) -> None:
        self.counted = engine._drafting._acceptance
        self.expected = Acceptance(len(engine._table.limit), MAX_WINDOW)
        self.mixed = 0  # forwards with verified adaptive sequences and other strategies
        self._table, self._details = engine._table, list[StepDetail]()
        forward, observe, clear = engine._runner.forward, engine._drafting.observe, self.counted.clear

        def keeping_details(plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
            outcome, self._details = forward(plan, table)
            return outcome, self._details

        def observing_too(report: StepReport) -> Suggestions | None:
            slots_D, rows_D, ended_D = report.slots_D, report.rows_D, report.ended_D
            if self._details:
                self._count(slots_D, rows_D, ended_D)
            elif len(slots_D):  # all verified, by the compiled kernel: there is nothing to join
                self._observe(slots_D, rows_D, ended_D, report.outcome)
            return observe(report)

        def clearing_too(slots_S: IntArray, family_S: IntArray) -> None:
            clear(slots_S, family_S)
            self.expected.clear(slots_S, family_S)

        engine._runner.forward = keeping_details  # type: ignore[method-assign]
        engine._drafting.observe = observing_too  # type: ignore[method-assign]
        self.counted.clear = clearing_too  # type: ignore[method-assign]

    def _count(self, slots_D: IntArray, rows_D: IntArray, ended_D: BoolArray) -> None:
        first = 0
        for detail in self._details:
            part = slice(first, first + len(detail.layout.count_S))
            first = part.stop
            own = outcome_of_group(detail)
            verified = self._table.group[slots_D[part][0]] == VERIFIED
            if verified and self._observe(slots_D[part], rows_D[part], ended_D[part], own):
                self.mixed += len(self._details) > 1

    def _observe(self, slots_D: IntArray, rows_D: IntArray, ended_D: BoolArray, own: StepOutcome) -> bool:
        mine = self._table.adaptive[slots_D] & (rows_D > 1)
        if mine.any():
            self.expected.observe(
                slots_D[mine], own.valid_D[mine], own.offered_D[mine], own.agreed_D[mine],
                (own.next_valid_D & ~ended_D)[mine],
            )  # fmt: skip
        return bool(mine.any())


def outcome_of_group(detail: StepDetail) -> StepOutcome:
    """One group's commit, as it is on the device."""
    return fetch(detail.commit, torch.zeros_like(detail.commit.count_S))


@pytest.mark.parametrize("seed", range(3))
def test_acceptance_is_counted_in_a_mixed_batch_as_in_the_verified_sequences_by_themselves(
    folder: Path, seed: int
) -> None:
    rng = random.Random(seed)
    engine = engine_of(folder, max_num_seqs=8, page_size=16, history_drafts=False)
    witness = Witness(engine)
    requests = []
    for i in range(16):
        request = random_request(rng, str(i))
        params = replace(request.params, max_tokens=18, ignore_eos=True, stop_token_ids=())
        if params.strategy == Strategy.VERIFIED or i % 2:
            params = replace(params, strategy="verified", window_size="auto")
        elif params.strategy == Strategy.STREAMING:
            params = replace(params, window_size="auto", entropy_threshold=9.0)  # accepts nearly all
        requests.append(replace(request, params=params))
    run(engine, requests)
    assert witness.mixed > 3
    assert witness.counted._job.sum() > 10
    counted, expected = witness.counted, witness.expected
    np.testing.assert_array_equal(counted._job[VERIFIED], expected._job[VERIFIED])
    still = counted._family_S == VERIFIED  # slots whose last sequence was verified
    np.testing.assert_array_equal(counted._counts[:, still], expected._counts[:, still])
