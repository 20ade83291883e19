"""Batch generation: ``python -m jobs.generate --input prompts.parquet --output out/ --model tiny``.

Prints progress and a summary. Interrupted or killed, the same command continues. Exit status: 0 done,
1 the run failed, 2 the configuration or the input is wrong, 130 or 143 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

import pipeline
from jobs.cli import Parser, add_config_options, collect, show_stages
from pipeline import Progress, RunConfig, format_progress
from pipeline.codec import WeDLMError, redact

__all__ = ["main", "print_progress"]

_SECONDS_BETWEEN_LINES = 2.0


class _Printer:
    """Prints a line at most every two seconds, and always the first and the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = float("-inf")

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        if now - self._last >= _SECONDS_BETWEEN_LINES or progress.done.rows >= progress.total_rows:
            self._last = now
            print(format_progress(progress), flush=True)


print_progress = _Printer()
"""Progress listener for terminals and logs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit status."""
    parser = Parser(
        prog="python -m jobs.generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_options(parser)
    parser.add_argument("--preview", type=int, metavar="ROWS", help="generate the first rows here, write nothing")
    parser.add_argument("--validate", action="store_true", help="check everything, generate nothing")
    parser.add_argument("--estimate", type=int, nargs="?", const=64, metavar="ROWS",
                        help="generate a sample of rows (64) here, and extrapolate; writes nothing")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print the summary only, neither progress nor stages")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)
    if not args.quiet:
        show_stages()
    try:
        config = collect(args)
        if args.validate:
            return _validate(config)
        if args.estimate is not None:
            print(pipeline.estimate(config, args.estimate).describe())
            return 0
        if args.preview is not None:
            for row in pipeline.preview(config, args.preview).to_pylist():
                print(json.dumps(row, default=str, ensure_ascii=False))
            return 0
        result = pipeline.run(config=config, on_progress=None if args.quiet else print_progress)
    except (pipeline.ConfigError, pipeline.SourceError, pipeline.OutputError, pipeline.ResourceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (pipeline.PipelineError, WeDLMError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command continues from what is committed", file=sys.stderr)
        return 130
    print(result.summary.describe())
    return 0


def _validate(config: RunConfig) -> int:
    found = pipeline.validate(config)
    facts = {
        "rows": found.rows,
        "files": found.files,
        "prompt column": found.prompt_column,
        "sampled rows": f"{found.sampled_rows}, of which {found.failed_rows} would fail",
        "longest prompt of the sample (tokens)": found.max_prompt_tokens,
        "tokens of prompt and max_tokens together, at most": found.model_length,
    }
    for name, value in facts.items():
        print(f"{name}: {value}")
    for kind, texts in (("warning", found.warnings), ("problem", found.problems)):
        for text in texts:
            print(redact(f"{kind}: {text}"))
    print("ok" if found.ok else "not ok")
    return 0 if found.ok else 2


def _stop(signum: int, frame: FrameType | None) -> None:
    """End at once: units in flight are dropped, and done by the next run; what is committed stays."""
    print("terminated: the same command continues from what is committed", file=sys.stderr)
    logging.disable()  # libraries on the way out take this for a fault of theirs, and log it at length
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    raise SystemExit(main())
