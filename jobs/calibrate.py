"""Find the fastest entropy threshold that keeps an agreement with the autoregressive output.

Example:
  wedlm-batch calibrate --input prompts.jsonl --model tiny --floor 0.98

Generates a sample of the rows in this process, once with the strategy verified and then with --strategy (streaming or
reference; streaming if it is not given) under rising thresholds, and prints agreement and speed of each. The answer is
the fastest threshold that keeps the floor, as all smaller ones tried do. If verified is as fast, the answer is
verified, which loses nothing. Takes the options of generate; writes nothing.

Exit status:
  0  found
  1  no threshold keeps the floor
  2  configuration, input or model are at fault
"""

from __future__ import annotations

import argparse
from typing import Final

from jobs.cli import NO_OUTPUT, collect, show_stages
from jobs.command import Command, Parser
from jobs.config_options import add_config_options
from pipeline.commands.calibrate import Calibration, CalibrationConfig, Trial, calibrate

_STRATEGY: Final = "streaming"


def add_options(parser: Parser) -> None:
    """The options."""
    add_config_options(parser)
    parser.add_argument("--floor", type=float, required=True, help="Keep this agreement, such as 0.98.")
    parser.add_argument("--measure", choices=("token", "answer"), default="token",
                        help="Compare tokens (the default) or answers.")  # fmt: skip
    parser.add_argument("--rows", type=int, default=200, help="Sample this many rows (200).")
    parser.add_argument(
        "--answer-regex", metavar="REGEX", help="Take the answer from the last match of this regex (its first group)."
    )
    parser.add_argument("--answer-column", metavar="NAME", help="Compare with this column of good answers.")
    parser.add_argument("--confident", action="store_true", help="Hold the low end of the 95%% interval to the floor.")
    parser.set_defaults(output=NO_OUTPUT)


def perform(args: argparse.Namespace) -> int:
    """Calibrate and print."""
    wanted = CalibrationConfig(
        floor=args.floor,
        measure=args.measure,
        strategy=args.strategy or _STRATEGY,
        rows=args.rows,
        answer_regex=args.answer_regex,
        answer_column=args.answer_column,
        confident=args.confident,
    )
    config = collect(args)
    show_stages()
    found = calibrate(config, wanted)
    print(report(found, wanted, window=config.sampling.window_size))
    return 0 if found.threshold is not None else 1


def report(found: Calibration, wanted: CalibrationConfig, window: int | str) -> str:
    """The table, the setting to use, and the limits of the sample."""
    head = (
        f"{'threshold':>10} {'agreement':>10} {'95% interval':>16} {'tokens/forward':>15} {'rows/token':>11} "
        f"{'tokens/s':>9}"
    )
    lines = [_line(trial, found) for trial in (found.verified, *found.trials)]
    return "\n".join([head, *lines, "", *_verdict(found, wanted, window)])


def _line(trial: Trial, found: Calibration) -> str:
    one = trial.agreement
    name = "verified" if trial.threshold is None else f"{trial.threshold:g}"
    mark = "  <- use" if trial.threshold == found.advised else ""
    return (
        f"{name:>10} {one.estimate:>10.4f} {f'{one.low:.4f}-{one.high:.4f}':>16} {trial.tokens_per_forward:>15.2f} "
        f"{trial.rows_per_token:>11.2f} {trial.tokens_per_second:>9.0f}{mark}"
    )


def _verdict(found: Calibration, wanted: CalibrationConfig, window: int | str) -> list[str]:
    unit = "sample" if found.samples == 1 else "samples"
    basis = f"{found.samples} {unit}, {wanted.measure} agreement with verified, floor {wanted.floor:g}"
    if found.threshold is None:
        best = max(found.trials, key=lambda trial: trial.agreement.estimate)
        return [
            f"no threshold of {wanted.strategy} keeps the floor ({basis}): the best is {best.agreement.estimate:.4f} "
            f"at {best.threshold:g}. Lower the floor, or use strategy=verified, which keeps every token."
        ]
    if found.advised is None:
        kept = [trial for trial in found.trials if trial.threshold is not None and trial.threshold <= found.threshold]
        fastest = max(kept, key=lambda trial: trial.tokens_per_second)
        lines = [
            "use: --set sampling.strategy=verified",
            f"({basis}; verified is best already: {found.verified.tokens_per_second:.0f} tokens/s, and it gives up "
            f"nothing; {wanted.strategy} at {fastest.threshold:g} makes {fastest.tokens_per_second:.0f})",
        ]
    else:
        lines = _advice(found, wanted, basis, found.advised)
    if window == "auto":
        lines.append("Windows followed the load of this sample; set sampling.window_size to a number to pin them.")
    return lines


def _advice(found: Calibration, wanted: CalibrationConfig, basis: str, advised: float) -> list[str]:
    """To use this threshold, why, and how sure it is."""
    chosen = next(trial for trial in found.trials if trial.threshold == advised)
    gain = chosen.tokens_per_second / found.verified.tokens_per_second
    shown = chosen.agreement.low >= wanted.floor
    lines = [
        f"use: --set sampling.strategy={wanted.strategy} --set sampling.entropy_threshold={advised:g}",
        f"({basis}; {gain:.2f} times as fast as verified; with 95% confidence agreement is at least "
        f"{chosen.agreement.low:.4f}" + (")" if shown else ": more rows, or --confident, if that is not enough)"),
    ]
    if found.threshold == found.trials[-1].threshold:
        lines.append(f"All thresholds up to {found.threshold:g} keep the floor: for these prompts it does not bind.")
    return lines


main = Command(name="calibrate", about=__doc__, add_options=add_options, perform=perform)

if __name__ == "__main__":
    raise SystemExit(main())
