"""The part of ``wedlm-batch evaluate`` that asks the questions of data sets: its options, and what they do."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.cli import merge, parse_actors, parse_setting, read_mapping
from jobs.generate import RUN_ENDS, report_end
from jobs.showing import add_progress_options, begin_showing
from pipeline import ConfigError, evaluate
from pipeline.evaluation.plugins import all_tasks

__all__ = ["add_options", "is_asked_for", "perform"]

SHIPPED = Path(__file__).parent / "evaluations"
_ALL_FAILED = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options for data sets, in a group of their own."""
    group = parser.add_argument_group(
        "data sets",
        "With any of --tasks, --table, --figure and --config, questions of data sets are asked through ordinary runs "
        "(docs/evaluation.md), and --output is needed.",
    )
    group.add_argument("--tasks", nargs="+", metavar="TASK=INPUT", help=f"of {', '.join(all_tasks())}")
    group.add_argument("--table", type=int, choices=(1, 2), help="tasks and settings of this table of arXiv 2512.22737")
    group.add_argument("--figure", type=int, choices=(4, 5), help="tasks and settings of this figure")
    group.add_argument("--config", type=Path, metavar="FILE", help="YAML: tasks, settings, grid and fields of a run")
    group.add_argument(
        "--data", metavar="FOLDER", help="folder or URL in front of inputs of --table, --figure, --config"
    )
    group.add_argument("--only", nargs="+", metavar="TASK", help="these of the tasks")
    group.add_argument("--baseline", metavar="SETTING", help="what the other settings are compared with")
    group.add_argument("--limit", type=int, metavar="ROWS", help="questions of each task, at most")
    group.add_argument("--actors", type=parse_actors, metavar="N|MIN-MAX", help="as for generate")
    group.add_argument("--chat", action="store_true", default=None, help="wrap prompts in the chat template")
    group.add_argument("--execute-code", action="store_true", default=None,
                       help="run what the model writes, in a sandbox, for tasks that need it")  # fmt: skip
    group.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="fields",
                       help="any field, dotted, for example tasks.gsm8k.shots=5")  # fmt: skip
    add_progress_options(group)


def is_asked_for(args: argparse.Namespace) -> bool:
    """Whether the options are about data sets."""
    return any(value is not None for value in (args.tasks, args.table, args.figure, args.config))


def perform(args: argparse.Namespace) -> int:
    """Evaluate, print the report; the exit status."""
    try:
        found = evaluate(_collected(args), **begin_showing(args))
    except RUN_ENDS as error:
        return report_end(error)
    print(found.markdown)
    if not found.all_failed:
        return 0
    print("error: nothing was generated for any question; correct the cause, and evaluate anew", file=sys.stderr)
    return _ALL_FAILED


def _collected(args: argparse.Namespace) -> dict[str, Any]:
    """Everything that is set: what is shipped, then the file, then options, then ``--set``."""
    raw: dict[str, Any] = {}
    for kind, number in (("table", args.table), ("figure", args.figure)):
        if number is not None:
            raw = merge(raw, read_mapping(SHIPPED / f"{kind}-{number}.yaml"))
    if args.config is not None:
        raw = merge(raw, read_mapping(args.config))
    if args.tasks is not None:
        raw = merge(raw, {"tasks": dict(map(_task, args.tasks))})
    if args.strategies is not None:
        raw["settings"] = {str(name): _setting(name, args.window) for name in args.strategies}
        raw.pop("grid", None)
        raw.pop("baseline", None)  # of the settings that these take the place of
    named = {"model": args.model, "output": args.output, "seed": args.seed}
    named |= {name: getattr(args, name) for name in ("data", "baseline", "limit", "actors", "chat", "execute_code")}
    raw = merge(raw, {name: value for name, value in named.items() if value is not None})
    if args.temperature is not None:
        raw = merge(raw, {"sampling": {"temperature": args.temperature}})
    for text in args.fields:
        raw = merge(raw, parse_setting(text))
    if args.only is not None:
        raw["tasks"] = _only(raw.get("tasks") or {}, args.only)
    return raw


def _task(text: str) -> tuple[str, dict[str, Any]]:
    name, sign, location = text.partition("=")
    if not sign or not location:
        raise ConfigError(f"--tasks {text!r}: must be TASK=INPUT, for example gsm8k=test.jsonl.")
    return name, {"input": location}


def _setting(strategy: str, window: int | None) -> dict[str, Any]:
    return {"strategy": str(strategy), **({} if window is None else {"window_size": window})}


def _only(tasks: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    unknown = [name for name in names if name not in tasks]
    if unknown:
        raise ConfigError(f"--only {' '.join(unknown)}: not among the tasks {list(tasks)}. Name some of these.")
    return {name: tasks[name] for name in names}
