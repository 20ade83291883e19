"""The console script: ``wedlm-batch generate --input prompts.jsonl --output out --model tiny``.

Each sub-command is a module of ``jobs``, which is found from any folder (:mod:`wedlm_base.names`). The exit status is
the job's; 2 for an unknown sub-command.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from wedlm_base.names import load
from wedlm_base.version import VERSION

PROGRAM = "wedlm-batch"
COMMANDS = {
    "generate": "run a job, or continue it",
    "score": "read log-probabilities of given texts: choices, labels, continuations",
    "serve": "serve OpenAI's Files and Batches API: a queue of batches",
    "chain": "run several stages as one job: generate, judge and so on",
    "etl": "process the new files of a folder, and append their rows to a table; for schedulers",
    "validate": "check model, input and settings; generate nothing",
    "preview": "generate the first rows and print them; write nothing",
    "estimate": "estimate tokens, time and cost of a job from a sample; write nothing",
    "status": "print the state of an output, also while a run is writing",
    "report": "write a page about an output, or print two outputs side by side",
    "verify": "prove an output against its ledger and its input",
    "export": "write the rows of an output as results of an OpenAI batch, or to a Delta or Iceberg table",
    "push": "upload the published files, with a dataset card, to a Hugging Face hub",
    "filter": "keep the good rows of an output in a new one, and list the dropped rows with reasons",
    "calibrate": "find the entropy threshold that keeps streaming's agreement",
    "smooth": "scale a model's channels before its weights are rounded to 8 or 4 bits",
    "train": "train a model",
    "evaluate": "run a job, and score its texts against a column of answers",
    "lm-eval": "the command of lm-eval, with the model wedlm_batch",
    "demo": "run the shipped model on the shipped prompts, to out/demo",
}
"""Sub-commands, each a module of ``jobs`` (with ``_`` for ``-``), with a line for ``--help``."""

_RUNS = ("generate", "score", "serve", "etl", "demo")
"""Sub-commands that may take long."""
_SILENT = {"--quiet", "--help", "-h", "--version", "--print-config", "--print-plan"}
"""Options of these that print nothing but their own output."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command; the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given:
        print(_help(), file=sys.stderr)
        return 2
    command, *rest = given
    if command in ("-h", "--help", "help"):
        print(_help())
        return 0
    if command in ("-V", "--version"):
        print(f"{PROGRAM} {VERSION}")
        return 0
    if command not in COMMANDS:
        print(f"error: {_unknown(command)}", file=sys.stderr)
        return 2
    if command in _RUNS and not _SILENT.intersection(rest):
        # Before the imports, which may take a second.
        print(f"{PROGRAM} {VERSION}: {command}", file=sys.stderr, flush=True)
    job = importlib.import_module(f"{load('jobs').__name__}.{command.replace('-', '_')}")
    status: int = job.main(rest, prog=f"{PROGRAM} {command}")
    return status


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, about in COMMANDS.items()]
    usage = f"usage: {PROGRAM} COMMAND [OPTIONS]    ({PROGRAM} COMMAND --help: its options)"
    return "\n".join([usage, "", *lines, "", "  --version, --help"])


def _unknown(command: str) -> str:
    import difflib

    near = difflib.get_close_matches(command, COMMANDS, n=1)
    if near:
        remedy = f"Did you mean {near[0]!r}?"
    elif command.startswith("-"):
        remedy = f"Put options after it: `{PROGRAM} generate {command} ...`."
    else:
        remedy = f"See `{PROGRAM} --help`."
    shown = command.partition("=")[0]  # the value of an option may be a credential
    return f"{shown[:60]!r}: not one of the commands {', '.join(COMMANDS)}. {remedy.replace(command, shown[:60])}"
