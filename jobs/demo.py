"""Run the shipped model on the shipped prompts, then print a sample of the rows.

Example:
  wedlm-batch demo

Generates for jobs/data/demo_prompts.parquet: held-out problems of every family. A second call finds everything done.

Exit status:
  0         done
  1         the run failed; the same command continues
  2         model, output folder or resources are at fault
  130, 143  interrupted; the same command continues
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pyarrow.dataset import dataset

import pipeline
from jobs.cli import add_progress_options, begin_showing
from jobs.command import CONTINUES, Command, Parser
from jobs.next_commands import next_commands
from wedlm_core import EngineConfig, SamplingParams
from wedlm_core.statistics import tokens_per_forward

SEQUENCES = 8
"""Decoded at once, so that the gain is one of few sequences, which forwards of more rows do not slow."""
PROMPTS = Path(__file__).parent / "data" / "demo_prompts.parquet"


def regime_lines(rows: list[dict[str, Any]]) -> list[str]:
    """One line per entropy regime: rows, tokens per decode forward, exact answers, where the prompt has an answer."""
    lines = []
    for regime in ("low", "medium", "high"):
        part = [row for row in rows if row["regime"] == regime]
        tokens = sum(row["completion_tokens"] for row in part)
        forwards = sum(row["stats"]["decode_forwards"] for row in part)
        exact = [row["text"] == row["expected"] for row in part if row["expected"] is not None]
        answers = f"{sum(exact)} of {len(exact)} answers exact" if exact else "no unique answers"
        lines.append(
            f"{regime:>8}: {len(part)} rows, {tokens_per_forward(tokens, forwards):.2f} tokens per forward, {answers}"
        )  # fmt: skip
    return lines


def _sample(rows: list[dict[str, Any]], count: int) -> str:
    # A stride that shares no factor with the interleaved families shows different ones.
    shown = [rows[(i * (len(rows) // count + 1)) % len(rows)] for i in range(count)]
    blocks = []
    for row in shown:
        stats = row["stats"]
        blocks.append(
            f"{row['prompt']}\n    "
            + row["text"].replace("\n", "\n    ")
            + f"\n    [{row['finish_reason']}: {row['completion_tokens']} tokens, {stats['decode_forwards']} forwards, "
            f"commits {stats['commit_histogram']}]"
        )
    return "\n".join(blocks)


def add_options(parser: Parser) -> None:
    """The options."""
    parser.add_argument("--output", default="out/demo", help="Write to this folder (out/demo).")
    parser.add_argument("--model", default="tiny", help="Use this model (tiny).")
    parser.add_argument(
        "--max-tokens", type=int, default=192, help="Generate at most this many tokens for a row (192)."
    )
    parser.add_argument("--actors", type=int, default=1, help="Start this many actors (1).")
    add_progress_options(parser)


def perform(args: argparse.Namespace) -> int:
    """Generate, then show."""
    shown = begin_showing(args)
    config = pipeline.RunConfig(
        input=str(PROMPTS),
        output=args.output,
        model=args.model,
        sampling=SamplingParams(max_tokens=args.max_tokens),
        actors=args.actors,
        chat=True,
        unit_rows=32,
        engine=EngineConfig(max_num_seqs=SEQUENCES),
    )
    result = pipeline.run(config=config, **shown)
    # Plain Parquet: any reader takes the folder as one table and passes over names that begin with "_".
    rows = dataset(args.output, format="parquet").to_table().to_pylist()
    print(f"\nA sample of {len(rows)} rows:\n\n{_sample(rows, 6)}\n")
    print("Statistics:\n" + "\n".join(regime_lines(rows)))
    print(
        f"The gain below is that of {SEQUENCES} sequences at a time. A lone sequence gains more, and 64 gain less, as "
        "forwards of more rows take longer: benchmarks/README.md."
    )
    result.summary.table(next_commands(result.summary, config, *args.typed, retries=False)).write(sys.stdout)
    return 0


main = Command(name="demo", about=__doc__, add_options=add_options, perform=perform, continues=CONTINUES)

if __name__ == "__main__":
    raise SystemExit(main())
