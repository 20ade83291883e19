"""Generate for every row of the input, and publish the rows exactly once.

Example:
  wedlm-batch generate --input prompts.jsonl --output out --model tiny

Prints progress and a summary. After an interruption the same command continues.

Exit status:
  0         done: at least one row succeeded (failed rows are counted, and are dead letters)
  1         the run failed; the same command continues
  2         configuration, input (also one without rows), model, output folder or resources are at fault
  3         done, and every row failed; correct the cause, then --retry-failed, or --mode new
  130, 143  interrupted; the same command continues
"""

from __future__ import annotations

import argparse
import json
import sys

import pipeline
from jobs.cli import add_progress_options, begin_showing, collect
from jobs.command import CONTINUES, Command, Parser
from jobs.config_options import add_config_options
from jobs.next_commands import next_commands
from pipeline import RunConfig
from pipeline.codec import redact

_ALL_FAILED = 3


def add_options(parser: Parser) -> None:
    """The options."""
    add_config_options(parser)
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """``--preview``, ``--validate``, ``--estimate``, and the options of progress."""
    parser.add_argument(
        "--preview", type=int, metavar="ROWS", help="Generate the first rows in this process, and write nothing."
    )
    parser.add_argument("--validate", action="store_true", help="Check everything, and generate nothing.")
    parser.add_argument("--estimate", type=int, nargs="?", const=64, metavar="ROWS",
                        help="Estimate tokens, time and cost from this many rows (64), and write nothing.")  # fmt: skip
    add_progress_options(parser)
    parser.set_defaults(scores=False)


def perform(args: argparse.Namespace) -> int:
    """Run, check, estimate or preview the job. ``args.scores``: whether it needs a task."""
    runs = not args.validate and args.estimate is None and args.preview is None
    shown = begin_showing(args, runs=runs)
    config = collect(args)
    if args.scores and config.task is None:
        options = "--choices, --choices-column or --continuation-column"
        raise pipeline.ConfigError(f"task: the texts to score are not given. Use {options}.")
    if args.validate:
        return _validate(config)
    if args.estimate is not None:
        found = pipeline.estimate(config, args.estimate)
        print(found.describe())
        return _ALL_FAILED if found.failed_rows == found.sampled_rows else 0
    if args.preview is not None:
        return _preview(config, args.preview)
    result = pipeline.run(config=config, **shown)
    result.summary.table(next_commands(result.summary, config, *args.typed)).write(sys.stdout)
    return end_status(result.summary.total.all_failed, "row", "or --mode new")


def end_status(all_failed: bool, what: str, other: str = "") -> int:
    """The exit status of a run that was done; if every row failed, print the remedies, ``other`` among them."""
    if not all_failed:
        return 0
    remedies = ", ".join(filter(None, ("correct the cause, then --retry-failed", other)))
    print(f"error: every {what} failed; {remedies}", file=sys.stderr)
    return _ALL_FAILED


def _preview(config: RunConfig, rows: int) -> int:
    shown = pipeline.preview(config, rows)
    for row in shown.to_pylist():
        print(json.dumps(row, default=str, ensure_ascii=False))
    errors = shown[f"{config.column_prefix}error"]
    return _ALL_FAILED if errors.null_count == 0 else 0


def _validate(config: RunConfig) -> int:
    found = pipeline.validate(config)
    facts = {
        "rows": found.rows,
        "files": found.files,
        "prompt column": found.prompt_column,
        "sampled rows": f"{found.sampled_rows}, of which {found.failed_rows} would fail",
        "prompts of the sample": f"{found.blank_prompts} blank, {found.identical_prompts} identical to an earlier one",
        "longest prompt of the sample (tokens)": found.max_prompt_tokens,
        "tokens of prompt and max_tokens together, at most": found.model_length,
    }
    for name, value in facts.items():
        print(f"{name}: {value}")
    for line in () if found.memory is None else found.memory.lines:
        print(line)
    for kind, texts in (("warning", found.warnings), ("problem", found.problems)):
        for text in texts:
            print(redact(f"{kind}: {text}"))
    print("ok" if found.ok else "not ok")
    return 0 if found.ok else 2


main = Command(name="generate", about=__doc__, add_options=add_options, perform=perform, continues=CONTINUES)

if __name__ == "__main__":
    raise SystemExit(main())
