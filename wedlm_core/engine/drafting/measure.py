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
from wedlm_core.engine.drafting.cost_table import CostSample, cache_key, fit, load_cached, misfit, save_cached
from wedlm_core.engine.forward.async_launch import AsyncLaunch
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.kv.pages import PageManager, SequencePages

__all__ = ["cached_or_measured_cost"]

_LOG = logging.getLogger(__name__)
_VERSION = 18  # of the measurement: raise it when steps change so much that kept tables mislead
_CONTEXTS = {"cpu": (64, 512), "cuda": (64, 1024)}  # on a GPU, the time to read shallow KV is too short to measure
_FIRST_JUMP = 64  # rows of a tile of products on a GPU
_LARGE = 1024  # rows of forwards that are measured last
_CPU = torch.device("cpu")
_SEQUENCES = {"cpu": 64, "cuda": 256}  # at most: engines of that size and above share a table
_SHORT, _BEFORE = 2e-3, 2  # seconds of forwards after so many of their kind, which are not timed
_OFF = 4.0  # misfit of a table to its own samples above which a warning is logged: the machine was busy
_WARP = 2.0  # misfit of a kept table to forwards of today above which it is measured again


@dataclass(frozen=True, kw_only=True)
class _Effort:
    """The limits of a measurement.

    Attributes:
        rounds: most rounds over all points.
        seconds: least and most seconds of its time limit; one forward may exceed the limit.
        forwards: between these two, the limit is the time of this number of the smallest forwards.
        points: number of points that are measured whatever their time.
    """

    rounds: int
    seconds: tuple[float, float]
    forwards: int
    points: int


_TABLE = _Effort(rounds=5, seconds=(2.5, 10.0), forwards=400, points=4)  # with fewer points there is no table
_CHECK = _Effort(rounds=3, seconds=(0.2, 1.0), forwards=40, points=1)
_proven: set[tuple[str, StepCost]] = set()
"""Tables that this process measured or checked, with their keys."""


def _most_sequences(config: EngineConfig, device: torch.device) -> int:
    """Sequences that are measured with at most: the engine's buffers hold no more than its own number."""
    return min(_SEQUENCES.get(device.type, _SEQUENCES["cuda"]), config.max_num_seqs)


def _contexts(device: torch.device) -> tuple[int, ...]:
    return _CONTEXTS.get(device.type, _CONTEXTS["cuda"])


def cached_or_measured_cost(runner: Runner, pages: PageManager, overlapping: AsyncLaunch | None = None) -> StepCost:
    """Load the cost of this engine's forwards from the cache, or measure it now.

    Measuring takes 3 seconds if forwards take a few milliseconds, and about 10 if they are slow; compilation of kernels
    is not included. Each process checks a table from the cache against a few forwards, since it may have been measured
    on a busy machine. It is safe in the middle of a run: it uses free pages (and measures fewer points if few are
    free), and does not touch the engine's windows.

    Args:
        runner: the engine's.
        pages: its page manager.
        overlapping: its launch, if its loop is a step ahead of the device. Then forwards are measured back to back,
            since the host's work between them costs nothing.
    """
    key = _key(runner)
    cost = load_cached(key)
    if cost is not None and ((key, cost) in _proven or misfit(cost, _check(runner, pages, overlapping)) <= _WARP):
        _proven.add((key, cost))
        return cost
    # Several engines that start on one machine at once would measure each other's noise.
    with one_at_a_time(f"step-cost-{key}"):
        other = load_cached(key)
        if other is not None and other != cost:  # measured while this process waited
            _proven.add((key, other))
            return other
        return _measured(runner, pages, overlapping, key)


def _measured(runner: Runner, pages: PageManager, overlapping: AsyncLaunch | None, key: str) -> StepCost:
    """The cost, measured now and kept under ``key``."""
    begin = time.perf_counter()
    samples = _measure(runner, pages, overlapping)
    if not samples:
        return StepCost.linear(fixed=1.0, per_row=1 / 64, floor_rows=16)  # no page free: a guess, not kept
    # Beyond 64 rows padding may be coarser; that is a few of many rows, and the table's knots have it in them.
    cost = replace(fit(samples), quantum=runner.padding.few)
    save_cached(key, cost)
    _proven.add((key, cost))
    off = misfit(cost, samples)
    _LOG.info(
        "measured %d kinds of forwards in %.1f s, off by %.2f: %s", len(samples), time.perf_counter() - begin, off, cost
    )
    if off > _OFF:
        _LOG.warning(
            "forwards are off from the table of their costs by up to %.1f times, so windows may have the wrong "
            "sizes: was this machine busy? The next start checks the table, and measures again if it is wrong", off
        )  # fmt: skip
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
        most_sequences=_most_sequences(runner.config, device),
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


def _measure(runner: Runner, pages: PageManager, overlapping: AsyncLaunch | None) -> list[CostSample]:
    """Medians over rounds of all points that fit in the time and the free pages."""
    with _scratch(runner, pages, overlapping) as scratch:
        if scratch is None:
            return []
        points = list(_points(runner.padding.few, runner.config, scratch.deepest, runner.device))
        return _timed(scratch.bench, points, _TABLE)


def _check(runner: Runner, pages: PageManager, overlapping: AsyncLaunch | None) -> list[CostSample]:
    """The same of a few points in a tenth of the time: the fewest rows; a row, and eight, for each of all sequences."""
    with _scratch(runner, pages, overlapping) as scratch:
        if scratch is None:
            return []
        points = list(_points(runner.padding.few, runner.config, scratch.deepest, runner.device))
        points = [point for point in points if point[2] == points[0][2]]
        most = _most_sequences(runner.config, runner.device)
        wanted = (points[0][0], most, 8 * most)
        chosen = dict.fromkeys(min(points, key=lambda point: (abs(point[0] - rows), -point[1])) for rows in wanted)
        return _timed(scratch.bench, list(chosen), _CHECK)


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
    deepest = min(runner.state.tokens_SL.shape[1] - reach - 1, max(_contexts(runner.device)))
    own: list[SequencePages] = []
    try:
        most = _most_sequences(config, runner.device)
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


def _points(
    quantum: int, config: EngineConfig, deepest: int, device: torch.device = _CPU
) -> Iterator[tuple[int, int, int]]:
    """``(rows, sequences, context)``, the most important first: all row counts, then more sequences, then depth.

    All are forwards that the engine itself could run: no more sequences, rows, and rows of a sequence than it allows.

    Args:
        quantum: fewer rows are padded to this many.
        config: the engine's.
        deepest: context at most.
        device: of the engine.
    """
    points = list(_all_points(quantum, config, deepest, device))
    yield from sorted(points, key=lambda point: point[0] > _LARGE)  # these take long, and windows seldom have so many


def _all_points(
    quantum: int, config: EngineConfig, deepest: int, device: torch.device
) -> Iterator[tuple[int, int, int]]:
    """:func:`_points`, large ones among the others."""
    contexts = sorted({min(c, deepest) for c in _contexts(device)})
    most, widest = _most_sequences(config, device), 2 * config.max_window + 1
    reachable = min(config.max_batch_rows, most * widest)
    counts = [min(quantum, reachable)]
    while counts[-1] * 2 <= reachable:
        counts.append(counts[-1] * 2)
    few = {rows: -(-rows // min(16, widest)) for rows in counts}
    many = {rows: min(rows, most) for rows in counts}
    for context in contexts:
        for sequences in (few, many):
            for rows in counts:
                own = sequences[rows]
                if own > most or -(-rows // own) > widest or (sequences is many and own == few[rows]):
                    continue
                yield rows, own, context
        if context == contexts[0]:
            beyond = ((rows, -(-rows // min(16, widest)), context) for rows in _beyond(quantum, counts, reachable))
            yield from (point for point in beyond if point[1] <= most)


def _beyond(quantum: int, counts: list[int], most: int) -> list[int]:
    """The first rows beyond each large count, where rows are padded.

    There a product has another tile of rows: a jump in the cost, which a line between the counts would hide.
    """
    beyond = (rows + quantum for rows in counts if quantum > 1 and rows >= _FIRST_JUMP)
    return [rows for rows in beyond if rows <= most and rows not in counts]


def _timed(bench: Bench, points: list[tuple[int, int, int]], effort: _Effort) -> list[CostSample]:
    """Rounds over the points until the time is up; points that would take too much of it are left out.

    Compilation in the first forward of a process counts neither as its time nor for the limit: it may take longer than
    all the others.
    """
    seconds: dict[tuple[int, int, int], list[float]] = {}
    bench.run(*points[0])
    first = bench.forwards * bench.run(*points[0])
    limit = min(max(effort.forwards * first, effort.seconds[0]), effort.seconds[1])
    begin = bench.clock()
    slowest = 0.0  # seconds per row so far, to guess the time of a larger forward
    for turn in range(effort.rounds):
        for point in points:
            spent = bench.clock() - begin
            known = seconds.get(point)
            guess = bench.forwards * (statistics.median(known) if known else slowest * point[0])
            if spent + guess > limit and len(seconds) >= effort.points:
                continue
            if turn == 0 and guess < limit / 50:
                bench.run(*point)  # steps do not pay for first touches of memory
            # In a job, short forwards follow others of their kind, with warm caches and threads.
            before = _BEFORE if guess < _SHORT else 0
            seconds.setdefault(point, []).append(bench.run(*point, before=before))
            slowest = statistics.median(seconds[point]) / point[0]
    return [
        CostSample(rows=rows, sequences=sequences, context=context, seconds=statistics.median(times))
        for (rows, sequences, context), times in seconds.items()
    ]
