"""Absurd values that every parameter of an engine and of a pipeline job must refuse, with test ids."""

from __future__ import annotations

import math
from typing import Any

HALF = "half a pair \ud800"
HUGE = 10**400  # too large for a float
ENDLESS = 10**5000  # too large for Python to print

SAMPLING: list[tuple[str, Any]] = [
    *(("top_k", v) for v in (2**70, 2**31, ENDLESS, -2, 1.5, True, math.nan, "5", None)),
    *(("temperature", v) for v in (HUGE, -HUGE, -0.1, ENDLESS, math.nan, math.inf, 1e39, 1e-40, True, "0.7", None)),
    *(("top_p", v) for v in (HUGE, math.nan, math.inf, 0, -1, 1.1, 1e-400, True, "1")),
    *(("max_tokens", v) for v in (2**70, 2**31, ENDLESS, math.inf, math.nan, True, 1.5, -1)),
    *(("min_tokens", v) for v in (2**70, math.nan, True, -1, 257, None)),
    *(("min_p", v) for v in (HUGE, math.nan, -0.1, 1.1, True, "0.1", None)),
    *(("repetition_penalty", v) for v in (HUGE, math.nan, math.inf, 0, -1, 1e-9, True, "1", None)),
    *((name, v) for name in ("presence_penalty", "frequency_penalty") for v in (HUGE, math.nan, 2.1, -3, True, None)),
    *(("logit_bias", v) for v in ({-1: 1.0}, {"a": 1.0}, {1: math.nan}, {1: 101}, {1: "x"}, {True: 1}, 5, "5", [5],
                                  [(1, 2, 3)], [(1, 1.0), (1, 2.0)], dict.fromkeys(range(2000), 1.0), {2**70: 1.0})),
    *(("bad_words", v) for v in (HALF, [HALF], [""], " ", [3], 5, {"a": 1}, b"x", ["x"] * 2000, "x" * 1000)),
    *(("n", v) for v in (2**70, 10**9, 0, True, 1.0)),
    *(("seed", v) for v in (2**63, 2**70, ENDLESS, -1, True, 1.0, math.nan)),
    *(("window_size", v) for v in (2**70, 2**31, 0, True, 4.0, math.nan, "wide", None)),
    *(("entropy_threshold", v) for v in (HUGE, math.nan, math.inf, 1e300, -0.1, True, "0.4")),
    *(("position_penalty", v) for v in (HUGE, math.nan, math.inf, 1e300, -0.1, True, None)),
    *(("stop", v) for v in (HALF, [HALF], [""], "", [3], 5, {"a": 1}, {"a"}, b"x", ["x"] * 2000, "x" * 10**6)),
    *(("stop_token_ids", v) for v in ([2**70], [2**31], [-1], [True], [1.0], "12", b"12", 5, list(range(5000)))),
    *(("suppress_tokens", v) for v in ([2**70], [-1], [True], [1.0], "12", 5, list(range(5000)))),
    *(("strategy", v) for v in ("fast", HALF, 3, None, ["verified"])),
    *(("ignore_eos", v) for v in (1, "false", None)),
    *(("logprobs", v) for v in (-1, 101, 1.0, "true")),
]  # fmt: skip


def name_of(case: tuple[str, Any]) -> str:
    """A short test id for any value."""
    return f"{case[0]}-{type(case[1]).__name__}"
