"""A SIMULATION of window allocation with the constants of an H200: no window, fixed windows, and the planner.

    python -m benchmarks.decode.simulation

See :mod:`testing.engine.planner_simulation` for what is simulated.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

from benchmarks.common import table, write_result
from testing.engine.planner_simulation import (
    H200,
    KV_SECONDS,
    ROW_SECONDS,
    TOKENS,
    WEIGHTS_SECONDS,
    FixedWindow,
    Planned,
    Policy,
    Result,
    Scenario,
    simulate,
)

__all__ = ["main"]

BATCHES = (1, 8, 32, 64, 128, 256)
CONTEXTS = (1024, 4096)
ACCEPTANCES: tuple[tuple[float, ...], ...] = ((0.5,), (0.8,), (0.95,), (0.5, 0.8, 0.95))
WINDOWS = (2, 4, 8, 16, 32)
STALE = (1.0, 0.7)  # of the acceptance, behind a token that turned out wrong: a table for each


def _line(scenario: Scenario, forwards: int, warm_up: int) -> tuple[tuple[object, ...], float, float]:
    """A row of the table, and the planner against autoregressive and against the best fixed window."""

    def run(policy: Policy) -> Result:
        return simulate(scenario, policy, forwards=forwards, warm_up=warm_up)

    plain, auto = run(FixedWindow(0)), run(Planned(H200))
    fixed = {window: run(FixedWindow(window)) for window in WINDOWS}
    best = max(fixed, key=lambda window: fixed[window].rate)
    gain, against = auto.rate / plain.rate, auto.rate / max(plain.rate, fixed[best].rate)
    acceptance = "mixed" if len(scenario.acceptance) > 1 else f"{scenario.acceptance[0]:g}"
    row = (
        scenario.batch, scenario.context, acceptance, f"{plain.rate:.0f}", f"{fixed[16].rate / plain.rate:.2f}",
        best, f"{fixed[best].rate / plain.rate:.2f}", f"{auto.rate:.0f}", f"{gain:.2f}", f"{against:.2f}",
        f"{auto.tokens_per_forward:.2f}", f"{auto.rows_per_token:.2f}",
    )  # fmt: skip
    return row, gain, against


def main() -> None:
    """Simulate all scenarios and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forwards", type=int, default=1000)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    args = parser.parse_args()
    parts = []
    for stale in STALE:
        lines = []
        for context, acceptance, batch in itertools.product(CONTEXTS, ACCEPTANCES, args.batches):
            scenario = Scenario(batch=batch, context=context, acceptance=acceptance, stale=stale)
            lines.append(_line(scenario, args.forwards, args.warm_up))
            print(*lines[-1][0], sep=" | ", flush=True)
        parts.append(f"## Behind a wrong token: {stale:g} of the acceptance\n\n{_table(lines)}")
    title = "Window allocation: a simulation for an H200, not a measurement"
    body = "\n\n".join([_preface(args.forwards), *parts])
    write_result("allocation-simulation", title, "python -m benchmarks.decode.simulation", body)


def _table(lines: Sequence[tuple[tuple[object, ...], float, float]]) -> str:
    header = ("batch", "context", "acceptance", "AR tokens/s", "W=16 / AR", "best W", "best W / AR", "planned tokens/s",
              "planned / AR", "planned / best of AR and all W", "tokens/forward", "rows/token")  # fmt: skip
    return (
        f"Lowest planned / AR: {min(gain for _, gain, _ in lines):.2f}. Lowest planned / best of AR and all fixed "
        f"windows ({', '.join(map(str, WINDOWS))}): {min(against for _, _, against in lines):.2f}.\n\n"
        + table(header, (row for row, _, _ in lines))
    )


def _preface(forwards: int) -> str:
    return (
        "**This is a simulation**: no GPU and no model is involved, and the machine above only ran the arithmetic. A "
        f"forward costs max({WEIGHTS_SECONDS * 1e3:g} ms, {ROW_SECONDS * 1e6:g} us per row) plus "
        f"{KV_SECONDS * 1e9:g} ns per cached token of each sequence (WeDLM-8B in bf16 on an H200, by arithmetic). "
        "Drafts survive geometrically: each is right with the acceptance given that those before it are. Sequences "
        f"have {TOKENS} tokens and are replaced when done; prefill is left out; {forwards} forwards after a warm-up. "
        "The planner is the engine's, with its own estimates of acceptance; mixed has equal parts of 0.5, 0.8 and "
        "0.95 in one batch."
    )


if __name__ == "__main__":
    main()
