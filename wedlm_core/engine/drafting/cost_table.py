"""Fit, keep and load the seconds of a forward as a function of its rows and its KV. Torch-free.

The table is measured once per model, device, dtype and thread count (:mod:`wedlm_core.engine.drafting.measure`), and
kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from wedlm_core.cache import cache_folder, temporary_folder, writable_cache
from wedlm_core.config.step_cost import FloatArray, StepCost, why_not


@dataclass(frozen=True, kw_only=True)
class CostSample:
    """One measured kind of forward: ``sequences`` of equal ``context`` tokens with ``rows`` rows in all."""

    rows: int
    sequences: int
    context: int
    seconds: float


_PRIOR = 0.1
"""Weight, in samples, of slopes of 0: samples separate rows from sequences only where both vary."""


def fit(samples: Sequence[CostSample]) -> StepCost:
    """Fit the samples by relative least squares: a knot per row count, and three slopes.

    Time that the samples cannot separate is counted for rows. Negative slopes are noise and are left out. The table
    over rows never falls.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("samples is empty: measure at least one forward")
    knots = sorted({s.rows for s in samples})
    seconds = np.array([s.seconds for s in samples])
    table = np.array([[float(s.rows == knot) for knot in knots] for s in samples])
    slopes = np.array([[s.sequences, s.sequences * s.context, s.rows * s.context] for s in samples], dtype=np.float64)
    kept = [0, 1, 2]
    while True:
        terms = np.concatenate([table, slopes[:, kept]], axis=1) / seconds[:, None]
        scale = np.maximum(np.abs(terms).max(axis=0), 1e-30)  # columns differ by many orders of magnitude
        prior = _PRIOR * np.eye(len(scale))[len(knots) :]
        wanted = np.concatenate([np.ones(len(seconds)), np.zeros(len(kept))])
        solved = np.linalg.lstsq(np.concatenate([terms / scale, prior]), wanted, rcond=None)[0] / scale
        found = solved[len(knots) :]
        if not len(found) or found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    slope = dict(zip(kept, found.tolist(), strict=True))
    least = float(seconds.min()) / 10  # noise can leave nothing for rows, but no forward is free
    return StepCost(
        rows=tuple(knots),
        seconds=tuple(np.maximum(monotone(solved[: len(knots)].tolist()), least).tolist()),
        per_sequence=slope.get(0, 0.0),
        per_kv=slope.get(1, 0.0),
        per_row_kv=slope.get(2, 0.0),
    )


def monotone(values: Sequence[float]) -> FloatArray:
    """The never-falling sequence nearest to ``values`` in least squares (pool adjacent violators)."""
    levels: list[list[float]] = []  # [mean, weight]
    for value in values:
        levels.append([float(value), 1.0])
        while len(levels) > 1 and levels[-2][0] > levels[-1][0]:
            mean, weight = levels.pop()
            total = levels[-1][1] + weight
            levels[-1] = [(levels[-1][0] * levels[-1][1] + mean * weight) / total, total]
    return np.array([mean for mean, weight in levels for _ in range(int(weight))])


def cache_key(**facts: object) -> str:
    """File name of the table for these facts (model, device, dtype, threads ...)."""
    return hashlib.blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()


def load_cached(key: str) -> StepCost | None:
    """Load the table kept under ``key``; None if there is no readable one."""
    for folder in (cache_folder(), temporary_folder(cache_folder().name)):
        if (cost := _load(folder / f"step-cost-{key}.json")) is not None:
            return cost
    return None


def _load(file: Path) -> StepCost | None:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        cost = StepCost(
            rows=tuple(raw["rows"]),
            seconds=tuple(raw["seconds"]),
            per_sequence=float(raw["per_sequence"]),
            per_kv=float(raw["per_kv"]),
            per_row_kv=float(raw["per_row_kv"]),
            quantum=int(raw["quantum"]),
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return cost if why_not(cost) is None else None


def save_cached(key: str, cost: StepCost) -> None:
    """Keep a table in the cache folder, or else in a temporary one; if both fail, the next process measures again."""
    folder = writable_cache()
    aside = folder / f"step-cost-{key}.{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(asdict(cost)), encoding="utf-8")
        aside.replace(folder / f"step-cost-{key}.json")
    except OSError:
        return
