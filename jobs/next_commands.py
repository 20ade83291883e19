"""The commands that make sense after a run, as they are typed in a POSIX shell."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence

from pipeline import RunConfig, RunSummary, layout
from pipeline.codec import redact
from pipeline.progress.final import Fact

__all__ = ["next_commands"]

_FLAGS = {"--retry-failed", "--repair"}
"""Options of the run that ended, which the next one does not repeat."""


def next_commands(
    summary: RunSummary,
    config: RunConfig,
    prog: str,
    argv: Sequence[str],
    *,
    scheduled: bool = False,
    retries: bool = True,
) -> tuple[Fact, ...]:
    """To read the rows, to verify them, to look at the report, to retry failed rows: each if it applies.

    Those that would need a credential in plain text are left out.

    Args:
        summary: of the run.
        config: of the run.
        prog: the command that was typed, such as ``wedlm-batch generate``.
        argv: its options.
        scheduled: whether the output is a table of scheduled runs.
        retries: whether the command knows ``--retry-failed``.
    """
    found = []
    options = config.output_options
    if summary.publications and redact(summary.output) == summary.output and not config.literal_secrets():
        if not options:
            name = json.dumps(summary.output, ensure_ascii=False)  # in double quotes, as the shell needs the others
            script = f"import wedlm_batch as wb; print(wb.read({name}).to_pandas())"
            found.append(Fact(label="read", value=shlex.join(["python", "-c", script])))
        verify = [*_other(prog, "verify"), summary.output]
        inputs = None if scheduled or not isinstance(config.input, str) else config.input
        if inputs is not None and (config.input_options == options or "://" not in inputs):
            verify += ["--input", inputs]
        if options:
            verify += ["--storage-options", json.dumps(options)]
        found.append(Fact(label="verify", value=shlex.join(verify)))
        page = os.path.join(summary.output, layout.STATE, "report.html")
        if "://" not in summary.output and os.path.exists(page):
            found.append(Fact(label="look at the report", value=shlex.join(["python", "-m", "webbrowser", page])))
    if summary.total.failed_rows and retries:
        again = shlex.join([*prog.split(), *_repeatable(argv, config.mode), "--retry-failed"])
        if redact(again) == again and not config.literal_secrets():
            found.append(Fact(label="retry failed rows", value=again))
    return tuple(found)


def _other(prog: str, command: str) -> list[str]:
    """Another sub-command, called in the way in which this one was."""
    *start, last = prog.split()
    package, dot, _ = last.rpartition(".")
    return [*start, f"{package}{dot}{command}"]


def _repeatable(argv: Sequence[str], mode: str) -> list[str]:
    """The options without those that are not to be given a second time; the next run goes on with the output."""
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word == "--mode":
            skip = True
        elif not word.startswith("--mode=") and word not in _FLAGS:
            kept.append(word)
    return kept if mode == "resume" else [*kept, "--mode", "resume"]
