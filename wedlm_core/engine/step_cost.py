"""What a forward costs, as a function of its rows and of the KV it reads. Torch-free.

The table is measured once per model, device, dtype and thread count (:mod:`wedlm_core.engine.measure`), kept
in the user's cache folder, and read by the allotment, which spends rows where expected commits per second
rise (design, section 7).
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from wedlm_core.checks import is_number, is_whole

__all__ = [
    "CostSample",
    "StepCost",
    "cache_folder",
    "cache_key",
    "fit",
    "load_cached",
    "monotone",
    "save_cached",
    "why_not",
]

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class CostSample:
    """One measured kind of forward: ``sequences`` of equal ``context`` tokens with ``rows`` rows in all."""

    rows: int
    sequences: int
    context: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Seconds of one forward.

    ``table(rows) + per_sequence * sequences + per_kv * kv_tokens + per_row_kv * rows * mean context``

    Attributes:
        rows: knots of the table, ascending.
        seconds: its values, never falling.
        per_sequence: seconds per sequence, whatever it forwards.
        per_kv: seconds per cached token, whatever number of rows reads it (memory traffic).
        per_row_kv: seconds per row and cached token of its sequence (arithmetic).
        quantum: rows are padded to a multiple of this, and cost accordingly.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    per_sequence: float = 0.0
    per_kv: float = 0.0
    per_row_kv: float = 0.0
    quantum: int = 1

    def __call__(self, rows: FloatArray, kv_tokens: float, sequences: int) -> FloatArray:
        """Seconds of forwards of ``rows [N]`` rows over ``sequences`` sequences that cache ``kv_tokens`` in all.

        Between knots the table is linear; beyond the last one it goes on with the last slope.
        """
        rows = np.ceil(np.asarray(rows, dtype=np.float64) / self.quantum) * self.quantum
        knots, values = np.asarray(self.rows, dtype=np.float64), np.asarray(self.seconds)
        table = np.interp(rows, knots, values)
        if len(knots) > 1:
            slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
            table = table + np.maximum(rows - knots[-1], 0) * slope
        fixed = self.per_sequence * sequences + self.per_kv * kv_tokens
        return table + fixed + self.per_row_kv * rows * (kv_tokens / max(1, sequences))

    def one(self, rows: int, kv_tokens: float, sequences: int) -> float:
        """Seconds of one forward: the same, without the arrays."""
        padded = -(-rows // self.quantum) * self.quantum
        knots, values = self.rows, self.seconds
        if len(knots) == 1 or padded <= knots[0]:
            table = values[0]
        else:
            right = min(bisect_right(knots, padded), len(knots) - 1)
            slope = (values[right] - values[right - 1]) / (knots[right] - knots[right - 1])
            table = values[right - 1] + (padded - knots[right - 1]) * slope
        fixed = self.per_sequence * sequences + self.per_kv * kv_tokens
        return table + fixed + self.per_row_kv * padded * (kv_tokens / max(1, sequences))

    @classmethod
    def linear(cls, *, fixed: float, per_row: float, per_kv: float = 0.0, floor_rows: int = 0) -> StepCost:
        """``fixed`` seconds up to ``floor_rows`` rows, then ``per_row`` more for each."""
        return cls(
            rows=(max(1, floor_rows), max(1, floor_rows) + 1024),
            seconds=(fixed, fixed + 1024 * per_row),
            per_kv=per_kv,
        )


def why_not(cost: object) -> str | None:
    """Why this is no cost that a planner could reckon with; None where it is one."""
    if not isinstance(cost, StepCost):
        return "None or a StepCost"
    rows, seconds = cost.rows, cost.seconds
    if not (isinstance(rows, tuple) and isinstance(seconds, tuple) and 1 <= len(rows) == len(seconds)):
        return "rows and seconds are tuples of the same length, 1 or more"
    if not all(is_whole(r, 1) for r in rows) or any(a >= b for a, b in pairwise(rows)):
        return "rows are integers of 1 or more, ascending"
    if not all(is_number(s, _LEAST_SECONDS, _MOST_SECONDS) for s in seconds) or any(
        a > b for a, b in pairwise(seconds)
    ):
        return f"seconds are numbers above 0, never falling, {_MOST_SECONDS:g} at most"
    if not all(is_number(slope, 0, _MOST_SECONDS) for slope in (cost.per_sequence, cost.per_kv, cost.per_row_kv)):
        return f"per_sequence, per_kv and per_row_kv are seconds of 0 or more, {_MOST_SECONDS:g} at most"
    return None if is_whole(cost.quantum, 1) else "quantum is an integer of 1 or more"


_LEAST_SECONDS, _MOST_SECONDS = 1e-30, 1e9
_PRIOR = 0.1
"""Weight, in samples, of "rows explain it all": samples tell sequences from rows only where both vary."""


def fit(samples: Sequence[CostSample]) -> StepCost:
    """The cost that explains the samples best, in relative least squares: a knot per row count, three slopes.

    What the samples leave open is put down to rows. Slopes that come out negative are noise and are left out; the
    table over rows is made never to fall.

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


def cache_folder() -> Path:
    """Where tables are kept: ``$WEDLM_CACHE_HOME``, else ``$XDG_CACHE_HOME/wedlm``, else ``~/.cache/wedlm``."""
    if own := os.environ.get("WEDLM_CACHE_HOME"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wedlm"


def cache_key(**facts: object) -> str:
    """File name of the table for these facts (model, device, dtype, threads ...)."""
    return hashlib.blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()


def load_cached(key: str) -> StepCost | None:
    """The table kept under ``key``; None where there is none, or none that can be read."""
    try:
        raw = json.loads((cache_folder() / f"step-cost-{key}.json").read_text(encoding="utf-8"))
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
    """Keep a table; a folder that cannot be written to costs a measurement next time, nothing else."""
    folder = cache_folder()
    aside = folder / f"step-cost-{key}.{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(asdict(cost)), encoding="utf-8")
        aside.replace(folder / f"step-cost-{key}.json")
    except OSError:
        return
