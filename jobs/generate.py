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
import logging
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import pipeline
from jobs.cli import Parser, add_progress_options, begin_showing, collect
from jobs.config_options import add_config_options
from jobs.next_commands import next_commands
from jobs.quiet_end import end_quietly
from pipeline import RunConfig
from pipeline.codec import WeDLMError, redact

_ALL_FAILED = 3
RUN_ENDS = (pipeline.PipelineError, WeDLMError, KeyboardInterrupt)
"""Errors that end a run with a line or two."""
_REFUSED = (pipeline.ConfigError, pipeline.SourceError, pipeline.OutputError, pipeline.ResourceError)


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.generate") -> int:
    """Run the job; the exit status."""
    parser = Parser(prog, __doc__)
    add_config_options(parser)
    add_run_options(parser)
    return perform(parser.parse_args(argv), prog, sys.argv[1:] if argv is None else argv)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """``--preview``, ``--validate``, ``--estimate``, and the options of progress."""
    parser.add_argument(
        "--preview", type=int, metavar="ROWS", help="Generate the first rows in this process, and write nothing."
    )
    parser.add_argument("--validate", action="store_true", help="Check everything, and generate nothing.")
    parser.add_argument("--estimate", type=int, nargs="?", const=64, metavar="ROWS",
                        help="Estimate tokens, time and cost from this many rows (64), and write nothing.")  # fmt: skip
    add_progress_options(parser)


def perform(args: argparse.Namespace, prog: str = "", argv: Sequence[str] = (), *, scores: bool = False) -> int:
    """The configuration of the parsed options; the exit status.

    Args:
        args: the options of :func:`jobs.config_options.add_config_options` and :func:`add_run_options`.
        prog: the command as it was typed.
        argv: its options.
        scores: whether the run needs a task.
    """
    signal.signal(signal.SIGTERM, stop)
    try:
        runs = not args.validate and args.estimate is None and args.preview is None
        shown = begin_showing(args, runs=runs)
        config = collect(args)
        if scores and config.task is None:
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
    except RUN_ENDS as error:
        return report_end(error)
    result.summary.table(next_commands(result.summary, config, prog, argv)).write(sys.stdout)
    return end_status(result.summary.total.all_failed, "row", "or --mode new")


def end_status(all_failed: bool, what: str, other: str = "") -> int:
    """The exit status of a run that was done; if every row failed, print the remedies, ``other`` among them."""
    if not all_failed:
        return 0
    remedies = ", ".join(filter(None, ("correct the cause, then --retry-failed", other)))
    print(f"error: every {what} failed; {remedies}", file=sys.stderr)
    return _ALL_FAILED


def report_end(error: BaseException) -> int:
    """Say why a run ended; its exit status. The reason is the last line printed."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted: the same command continues from the committed rows", file=sys.stderr)
        return 130
    print(f"error: {error}", file=sys.stderr)
    return 2 if isinstance(error, (*_REFUSED, WeDLMError)) else 1


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


def stop(signum: int, frame: FrameType | None) -> None:
    """End at once: units in flight are dropped, and done by the next run; committed rows stay."""
    print("terminated: the same command continues from the committed rows", file=sys.stderr)
    logging.disable()  # libraries on the way out take this for a fault of theirs, and log it at length
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "generate"))
