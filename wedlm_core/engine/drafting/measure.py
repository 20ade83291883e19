"""Measure the seconds of real forwards, on scratch state and scratch pages."""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from wedlm_core.cache import one_at_a_time
from wedlm_core.config import EngineConfig
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.drafting.bench import Bench
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.drafting.cost_table import CostSample, cache_key, fit, load_cached, save_cached
from wedlm_core.engine.forward.async_launch import AsyncLaunch
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.kv.pages import PageManager, SequencePages

_LOG = logging.getLogger(__name__)
_VERSION = 19  # of the measurement: raise it when steps change so much that kept tables mislead
_ROUNDS = 5  # of a measurement, at most
_MOST_SPREAD = 1.5  # slowest over fastest of equal forwards, as the median of all kinds
_TILE = 64  # rows of a tile of products on a GPU


def _most_sequences(config: EngineConfig) -> int:
    """Sequences that are measured with at most: the engine's buffers hold no more than its own number."""
    return min(CONSTANTS.measured_sequences, config.max_num_seqs)


def cached_or_measured_cost(runner: Runner, pages: PageManager, overlapping: AsyncLaunch | None = None) -> StepCost:
    """Load the cost of this engine's forwards from the cache, or measure it now.

    Measuring takes 3 seconds if forwards take a few milliseconds, and about 10 if they are slow; compilation of kernels
    is not included. It is safe in the middle of a run: it uses free pages (and measures fewer points if few are
    free), and does not touch the engine's windows.

    Args:
        runner: the engine's.
        pages: its page manager.
        overlapping: its launch, if its loop is a step ahead of the device. Then forwards are measured back to back,
            since the host's work between them costs nothing.
    """
    key = _key(runner)
    cost = load_cached(key)
    if cost is None:
        # Several engines that start on one machine at once would measure each other's noise.
        with one_at_a_time(f"step-cost-{key}"):
            cost = load_cached(key) or _measured(runner, pages, overlapping, key)
    return cost


def _measured(runner: Runner, pages: PageManager, overlapping: AsyncLaunch | None, key: str) -> StepCost:
    """The cost, measured now and kept under ``key``."""
    begin = time.perf_counter()
    with _scratch(runner, pages, overlapping) as scratch:
        if scratch is None:
            return StepCost.linear(fixed=1.0, per_row=1 / 64, floor_rows=16)  # no page free: a guess, not kept
        samples, spread = _timed(scratch.bench, _points(runner.padding, runner.config, scratch.deepest))
    cost = replace(fit(samples), quantum=runner.padding)
    _LOG.info("measured %d kinds of forwards in %.1f s: %s", len(samples), time.perf_counter() - begin, cost)
    if spread <= _MOST_SPREAD:
        save_cached(key, cost)
    else:  # kept, it would give windows of the wrong sizes to all later jobs
        _LOG.info("equal forwards differed by %.1f times, as on a busy machine: the next start measures again", spread)
    return cost


def _key(runner: Runner) -> str:
    model, device = runner.model, runner.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    shape = hashlib.blake2b(json.dumps(model.config.to_hf(), sort_keys=True).encode(), digest_size=8).hexdigest()
    return cache_key(
        version=_VERSION,
        model=shape,
        device=name,
        dtype=model.dtype,
        weights=runner.config.weight_dtype + "-" * (not runner.config.quantised_head),
        kv=runner.pool.dtype,
        threads=torch.get_num_threads() if device.type == "cpu" else 0,
        attention=runner.backend.name,
        overlap=str(runner.config.overlap),
        graphs=str(runner.config.cuda_graphs),
        page_size=runner.pool.page_size,
        most_rows=runner.config.max_batch_rows,
        most_sequences=_most_sequences(runner.config),
        widest=runner.config.max_window,
        padding=runner.padding,
        torch=torch.__version__,
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "cpu")
    except OSError:
        return "cpu"


@dataclass(frozen=True, kw_only=True)
class _Scratch:
    """A bench on pages of its own; sequences hold up to ``deepest`` tokens of context."""

    bench: Bench
    deepest: int


@contextmanager
def _scratch(runner: Runner, pages: PageManager, overlapping: AsyncLaunch | None) -> Iterator[_Scratch | None]:
    """A bench for the duration of the block; None where no pages are free."""
    config = runner.config
    reach = 2 * config.max_window + 1
    deepest = min(runner.state.tokens_SL.shape[1] - reach - 1, max(CONSTANTS.measured_contexts))
    own: list[SequencePages] = []
    try:
        most = _most_sequences(config)
        while deepest > 0 and not (own := _open(pages, deepest + reach, most)):
            deepest //= 2
        if deepest > 0 and runner.device.type == "cpu":
            for scratch in own:
                runner.pool.clear(scratch.pages)
        if deepest > 0:
            yield _Scratch(bench=Bench.over(runner, own, overlapping, most), deepest=deepest)
        else:
            yield None
    finally:
        for scratch in own:
            pages.close(scratch)


def _open(pages: PageManager, tokens: int, most: int) -> list[SequencePages]:
    """Open up to ``most`` scratch sequences of this number of tokens, until no pages are free."""
    found: list[SequencePages] = []
    while len(found) < most:
        scratch = pages.open([], 0)
        if not pages.grow(scratch, tokens):
            pages.close(scratch)
            break
        found.append(scratch)
    return found


def _points(quantum: int, config: EngineConfig, deepest: int) -> list[tuple[int, int, int]]:
    """``(rows, sequences, context)``, the most important first: all row counts, then more sequences, then depth.

    All are forwards that the engine itself could run: no more sequences, rows, and rows of a sequence than it allows.

    Args:
        quantum: fewer rows are padded to this many.
        config: the engine's.
        deepest: context at most.
    """
    contexts = sorted({min(context, deepest) for context in CONSTANTS.measured_contexts})
    most, widest = _most_sequences(config), 2 * config.max_window + 1
    reachable = min(config.max_batch_rows, most * widest)
    counts = [min(quantum, reachable)]
    while counts[-1] * 2 <= reachable:
        counts.append(counts[-1] * 2)
    # After a full tile of rows a product has another one: a jump in the cost, which a line would hide.
    jumps = [rows + quantum for rows in counts if quantum > 1 and _TILE <= rows <= reachable - quantum]
    found = dict.fromkeys(
        (rows, sequences, context)
        for context in contexts
        for of_few in (True, False)
        for rows in (counts + jumps if of_few and context == contexts[0] else counts)
        for sequences in (-(-rows // min(16, widest)) if of_few else min(rows, most),)
        if sequences <= most and -(-rows // sequences) <= widest
    )
    return list(found)


def _timed(bench: Bench, points: list[tuple[int, int, int]]) -> tuple[list[CostSample], float]:
    """Rounds over the points until the time is up; points that would take too much of it are left out.

    Returns the samples, and the median over the points of the slowest round's seconds over the fastest's.

    The limit is the time of some of the smallest forwards. Compilation in the first forward of a process counts neither
    as its time nor for the limit: it may take longer than all the others.
    """
    seconds: dict[tuple[int, int, int], list[float]] = {}
    bench.run(*points[0])
    first = bench.forwards * bench.run(*points[0])
    least, most = CONSTANTS.measured_seconds
    limit = min(max(400 * first, least), most)
    begin = bench.clock()
    slowest = 0.0  # seconds per row so far, to guess the time of a larger forward
    for point in points * _ROUNDS:
        known = seconds.get(point)
        guess = bench.forwards * (statistics.median(known) if known else slowest * point[0])
        left = limit - (bench.clock() - begin)
        if guess > min(left, limit / 8) and len(seconds) >= 4:  # with fewer points there is no table
            continue
        # In a job, short forwards follow others of their kind, with warm caches and threads.
        before = 2 if guess < 2e-3 else 0
        seconds.setdefault(point, []).append(bench.run(*point, before=before))
        slowest = statistics.median(seconds[point]) / point[0]
    samples = [
        CostSample(rows=rows, sequences=sequences, context=context, seconds=statistics.median(times))
        for (rows, sequences, context), times in seconds.items()
    ]
    return samples, statistics.median(max(times) / min(times) for times in seconds.values())
