"""The commands that make sense after a run, as they are typed in a POSIX shell."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline import ChainConfig, ChainSummary, FilterResult, RunConfig, RunSummary, layout
from pipeline.codec import redact
from pipeline.commands.summary import Fact

_FLAGS = {"--retry-failed", "--repair"}
_ONCE = ("--mode", "--redo")
"""Options of the run that ended, without and with a value, which the next one does not repeat."""


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

    Those that would need a credential in plain text are left out. After a retry with corrected rows alone the input of
    the run is not known here: rows are verified without it, and a further retry needs other rows.

    Args:
        summary: of the run.
        config: of the run.
        prog: the command that was typed, such as ``wedlm-batch generate``.
        argv: its options.
        scheduled: whether the output is a table of scheduled runs.
        retries: whether the command knows ``--retry-failed``.
    """
    unknown = scheduled or summary.corrected_rows
    found = _about_output(summary, config, prog, None if unknown else config.input)
    if summary.total.failed_rows and retries and not summary.corrected_rows:
        found += _retry(config, prog, argv)
    return tuple(found)


def commands_of_stages(summary: ChainSummary, config: ChainConfig, prog: str) -> dict[str, tuple[Fact, ...]]:
    """Name of each stage of a chain -> the commands about its output, as of :func:`next_commands`."""
    found: dict[str, tuple[Fact, ...]] = {}
    for own in config.stages:
        stage = summary.stages[own.name]
        source = None if stage.corrected_rows else own.run.input
        found[own.name] = tuple(_about_output(stage, own.run, prog, source))
    options, before = config.base.output_options, summary.stages[config.stages[-1].name].output
    for kept in config.filters:
        # A filter's rows can only be compared with the rows that it read.
        run = replace(kept.run, storage_options=options)
        found[kept.name] = tuple(_about_output(summary.filters[kept.name], run, prog, before))
        before = kept.run.output
    return found


def commands_of_chain(summary: ChainSummary, config: ChainConfig, prog: str, argv: Sequence[str]) -> tuple[Fact, ...]:
    """To retry the failed rows of all stages, if there are any."""
    stages = summary.stages.values()
    failed = any(own.total.failed_rows for own in stages) and not any(own.corrected_rows for own in stages)
    return tuple(_retry(config.base, prog, argv)) if failed else ()


def _about_output(
    summary: RunSummary | FilterResult, config: RunConfig, prog: str, source: object
) -> list[Fact]:  # fmt: skip
    """To read, to verify and to look at the report; ``source``: the source of the output, if it can be named."""
    found: list[Fact] = []
    options = config.output_options
    if not summary.publications or redact(summary.output) != summary.output or config.literal_secrets():
        return found
    if not options:
        name = json.dumps(summary.output, ensure_ascii=False)  # in double quotes, as the shell needs the others
        script = f"import wedlm_batch as wb; print(wb.read({name}).to_pandas())"
        found.append(Fact(label="read", value=_typed(["python", "-c", script])))
    verify = [*_other(prog, "verify"), summary.output]
    if isinstance(source, str) and (config.input_options == options or "://" not in source):
        verify += ["--input", source]
    if options:
        verify += ["--storage-options", json.dumps(options)]
    found.append(Fact(label="verify", value=_typed(verify)))
    page = os.path.join(summary.output, layout.STATE, "report.html")
    if "://" not in summary.output and os.path.exists(page):
        found.append(Fact(label="look at the report", value=_typed(["python", "-m", "webbrowser", page])))
    elif isinstance(summary, FilterResult) and not options:
        found.append(Fact(label="make a report", value=_typed([*_other(prog, "report"), summary.output])))
    return found


def _retry(config: RunConfig, prog: str, argv: Sequence[str]) -> list[Fact]:
    again = _typed([*prog.split(), *_repeatable(argv, config.mode), "--retry-failed"])
    if redact(again) != again or config.literal_secrets():
        return []
    return [Fact(label="retry failed rows", value=again)]


def _typed(words: Sequence[str]) -> str:
    """A line for the shell. The path of its program is given if the virtual environment is not active there."""
    name, *others = words
    own = Path(sys.prefix) / "bin" / name
    if sys.prefix != sys.base_prefix and own.exists() and shutil.which(name) != str(own):
        name = os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own)
    return shlex.join([name, *others])


def _other(prog: str, command: str) -> list[str]:
    """Another sub-command, called in the way of this one."""
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
        elif word in _ONCE:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in _ONCE)) and word not in _FLAGS:
            kept.append(word)
    return kept if mode == "resume" else [*kept, "--mode", "resume"]
