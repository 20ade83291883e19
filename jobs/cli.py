"""From a command line and a YAML file to a configuration; shared by the jobs.

Options and ``--set`` override the YAML file. An option and ``--set`` with different values for a field are refused.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from jobs.config_options import Option, as_yaml, read_yaml, warn_of_literals, yaml_fault
from pipeline import ConfigError, RunConfig
from pipeline.progress.figures import LINE_SECONDS
from pipeline.progress.views import PROGRESS_MODES, resolve_mode
from pipeline.stages import LOGGER, seconds_since_start

_OF_COMMANDS = {"stages": "chain", "etl": "etl"}
"""Fields of a file that one command has in addition to those of ``RunConfig``."""
NO_OUTPUT = "."
"""The output of commands that write nothing; the configuration has no default for it."""


_FIELD = re.compile(r"[A-Za-z_][\w.]*")


class _Stages(logging.Handler):
    """Writes each stage to standard error, with the seconds since the command."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        print(f"[{seconds_since_start():6.1f} s] {record.getMessage()}", file=sys.stderr, flush=True)


def show_stages() -> None:
    """Print, as they end, the stages of a run's start and end: one line each on standard error."""
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    LOGGER.handlers[:] = [_Stages()]


def collect(args: argparse.Namespace) -> RunConfig:
    """The configuration that the parsed options describe. With ``--print-config`` it is printed.

    Raises:
        ConfigError: an unreadable file, an unknown field (the nearest known one is named), or a bad value.
        SystemExit: with status 0, after ``--print-config``.
    """
    config, _ = collect_with(args)
    print_and_end(args, config)
    return config


def collect_with(args: argparse.Namespace, own: str = "") -> tuple[RunConfig, Any]:
    """The run's configuration, and the value of the field ``own`` that only this command has; None: it is not given.

    The command checks that value, and then calls :func:`print_and_end`.

    Raises:
        ConfigError: see :func:`collect`.
    """
    raw = read_mapping(args.config) if args.config is not None else {}
    given, settings = _given(args), [parse_setting(text) for text in args.settings]
    _check_agreement(given, settings)
    named = [_nested(option.path, value) for option, value in given]
    for one in (*named, *settings):
        raw = merge(raw, one)
    for name, command in _OF_COMMANDS.items():
        if name in raw and name != own:
            raise ConfigError(
                f"{name}: a setting of the command {command} only. Give the file to that, or leave it out."
            )
    missing = [name for name in ("input", "output") if raw.get(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not given. Use --{' and --'.join(missing)}, or --config.")
    apart = raw.pop(own, None)
    config = RunConfig.from_mapping(raw)
    if not args.print_config:
        for one in (*named, *settings):
            warn_of_literals({name: value for name, value in one.items() if name != "storage_options"})
    return config, apart


def _given(args: argparse.Namespace) -> list[tuple[Option, Any]]:
    """The options of the table that were given, each with its value."""
    values = [(option, getattr(args, option.dest)) for group in args.groups.values() for option in group]
    return [(option, value) for option, value in values if value is not None]


def _check_agreement(given: Iterable[tuple[Option, Any]], settings: Iterable[Mapping[str, Any]]) -> None:
    """Refuse an option and a ``--set`` that give one field different values.

    Raises:
        ConfigError: names both, without the values: they may be credentials.
    """
    for option, value in given:
        if option.path == "output" and value == NO_OUTPUT:
            continue
        own = _leaves(_nested(option.path, value))
        for name in (name for setting in settings for name, other in _leaves(setting).items()
                     if any(_contradict(name, other, *leaf) for leaf in own.items())):  # fmt: skip
            raise ConfigError(f"{option.flag} and --set {name}: they give one field two values. Leave out one of them.")


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names of values in nested mappings -> the value."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _contradict(name: str, value: Any, other_name: str, other: Any) -> bool:
    """Whether two leaves cannot both hold: different values of a field, or a value and a field inside it."""
    if name == other_name:
        return bool(value != other)
    return name.startswith(f"{other_name}.") or other_name.startswith(f"{name}.")


def _nested(name: str, value: Any) -> dict[str, Any]:
    """``"a.b"`` and 1 as ``{"a": {"b": 1}}``."""
    for part in reversed(name.split(".")):
        value = {part: value}
    found: dict[str, Any] = value
    return found


def print_and_end(args: argparse.Namespace, config: RunConfig, **own: Any) -> None:
    """With ``--print-config``, print the configuration, and the command's own fields, and exit with status 0."""
    if args.print_config:
        print(as_yaml(config) + (yaml.safe_dump(own, sort_keys=False) if own else ""), end="")
        raise SystemExit(0)


def parse_setting(text: str) -> dict[str, Any]:
    """``"a.b=1"`` as ``{"a": {"b": 1}}``; the value is YAML.

    Raises:
        ConfigError: no ``=``, or a value that is not YAML.
    """
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ConfigError(f"--set {_shown(name)}: must be FIELD=VALUE, for example sampling.max_tokens=48.")
    try:
        parsed: Any = read_yaml(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"--set {_shown(name)}: the value is not YAML ({yaml_fault(error)}). Quote it.") from None
    return _nested(name.strip(), parsed)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``over``; mappings are merged field by field. Neither is changed."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file's mapping; of an empty one, nothing.

    Raises:
        ConfigError: it cannot be read, is not YAML, or no mapping.
    """
    try:
        raw = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read ({error}). Give a YAML file.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: not YAML ({yaml_fault(error)}). Correct it.") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(
            f"--config {path}: must be a mapping of fields, is a {type(raw).__name__}. Write name: value."
        )
    return raw


def _shown(name: str) -> str:
    """A field's name; of other texts, nothing, since they may be values."""
    return repr(name) if _FIELD.fullmatch(name.strip()) else "(not shown)"


_OFFERED = [mode for mode in PROGRESS_MODES if mode != "notebook"]


def add_progress_options(parser: argparse._ActionsContainer) -> None:
    """``--progress``, ``--progress-seconds`` and ``--quiet``."""
    parser.add_argument("--progress", choices=_OFFERED, default="auto",
                        help="Show the run on standard error: in one place of a terminal (live), as lines of key=value "
                             "for logs (lines), or not at all (none); auto (the default) chooses.")  # fmt: skip
    parser.add_argument("--progress-seconds", type=float, default=LINE_SECONDS, metavar="S",
                        help=f"Print a line every so many seconds ({LINE_SECONDS:g}).")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="Print only the summary: no progress and no stages.")


def begin_showing(args: argparse.Namespace, *, runs: bool = True) -> Mapping[str, Any]:
    """Show the stages as lines, where there is no live view.

    Args:
        args: the options of :func:`add_progress_options`.
        runs: whether the command starts a run, which has a view of its own. If not, ``quiet`` is all that it needs.

    Returns:
        The arguments ``progress`` and ``progress_seconds`` of :func:`pipeline.run`.

    Raises:
        ConfigError: a bad value.
    """
    if not runs:
        if not args.quiet:
            show_stages()
        return {}
    mode = "none" if args.quiet else resolve_mode(args.progress, sys.stderr)
    if mode == "lines":
        show_stages()  # the live view has them
    return {"progress": mode, "progress_seconds": args.progress_seconds}
