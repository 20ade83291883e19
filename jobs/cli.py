"""From a command line and a YAML file to a configuration; shared by the jobs.

Order of precedence, later wins: the YAML file, the options with a name of their own, ``--set``.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from jobs.resolved_yaml import as_yaml
from jobs.strict_yaml import read_yaml
from pipeline import ConfigError, RunConfig
from pipeline.codec import literal_secrets, redact
from pipeline.config import INPUT_FORMATS, LONG_PROMPTS, MODES, OUTPUT_FORMATS
from pipeline.stages import LOGGER, seconds_since_start
from wedlm_base.version import VERSION

__all__ = [
    "NO_OUTPUT", "Parser", "add_config_options", "collect", "collect_with", "merge", "parse_actors", "parse_options",
    "parse_setting", "read_mapping", "show_stages",
]  # fmt: skip

_NAMED = (
    "input", "output", "model", "actors", "mode", "limit", "prompt_column", "messages_column", "prompt_template",
    "system_prompt", "chat", "id_column", "on_long_prompt", "max_failed_fraction", "max_row_deaths", "retry_failed",
    "repair", "output_format", "storage_options", "input_format", "served_model_names",
)  # fmt: skip
_SAMPLING = ("max_tokens", "temperature")
_OF_COMMANDS = {"stages": "chain", "etl": "etl"}
"""Fields of a file that one command has beside those of ``RunConfig``."""
NO_OUTPUT = "."
"""The output of commands that write nothing; the configuration has no default for it."""


_T = TypeVar("_T")
_FIELD = re.compile(r"[A-Za-z_][\w.]*")
_QUOTED = re.compile(r"'[^'<>]{2,}'")
_URLS = ("input", "output", "model")


class Parser(argparse.ArgumentParser):
    """A parser with ``--version`` whose errors are short and show no values, which may be credentials."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_argument("--version", action="version", version=f"wedlm-batch {VERSION}")

    def error(self, message: str) -> NoReturn:
        """Print the message and what to do, and exit with status 2."""
        kind, unknown, words = message.partition("unrecognized arguments:")
        if unknown:
            names = [word.partition("=")[0] for word in words.split() if word.startswith("--")]
            message = f"{kind}{unknown} {' '.join(names) or 'values without an option'}{self._nearest(names)}"
        message = redact(re.sub(r"(--[\w-]+)=\S.*?(?= could match|$)", r"\1=(not shown)", message))
        self.exit(2, f"error: {message} ({self.prog} --help lists every option)\n")

    def _nearest(self, names: list[str]) -> str:
        known = [option for action in self._actions for option in action.option_strings]
        near = [other for name in names for other in difflib.get_close_matches(name, known, n=2, cutoff=0.75)]
        return f"; did you mean {' or '.join(near)}?" if near else ""


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


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--set``, and an option of its own for each of the fields that are set most often."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with fields of RunConfig")
    parser.add_argument("--input", metavar="PATH", help="file, folder, glob or URL; or the name of a hub dataset")
    parser.add_argument("--output", metavar="FOLDER", help="where to write; a re-run continues there")
    parser.add_argument("--output-format", choices=OUTPUT_FORMATS, help="format of the published files")
    parser.add_argument(
        "--storage-options",
        type=parse_options,
        metavar="YAML",
        help="keyword arguments of the file systems of URLs; secrets as {env: NAME} or {file: /path}",
    )
    parser.add_argument("--input-format", choices=INPUT_FORMATS,
                        help="openai-batch: lines with custom_id, url and body (recognised by itself)")  # fmt: skip
    parser.add_argument("--served-model-name", action="append", metavar="NAME", dest="served_model_names",
                        help="name of the model in bodies of an OpenAI batch (repeatable; * is any)")  # fmt: skip
    parser.add_argument("--model", metavar="NAME", help='a folder, a URL, a hub id, or "tiny" (shipped)')
    parser.add_argument("--actors", type=parse_actors, metavar="N|MIN-MAX",
                        help="generate actors: a number, or a range in which it follows the work (0-64)")  # fmt: skip
    parser.add_argument(
        "--mode", choices=MODES, help="what to do if the output exists: continue it, discard it, or stop"
    )
    parser.add_argument(
        "--retry-failed", action="store_true", default=None, help="generate the output's failed rows again"
    )
    parser.add_argument("--repair", action="store_true", default=None,
                        help="check every published file; generate rows of damaged or missing ones anew")  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="ROWS", help="read this many rows at most")
    parser.add_argument("--prompt-column", metavar="NAME", help="column of text prompts")
    parser.add_argument("--messages-column", metavar="NAME", help="column of conversations (role and content)")
    parser.add_argument("--prompt-template", metavar="JINJA", help='for example "{{ question }}"')
    parser.add_argument("--chat", action="store_true", default=None, help="wrap prompts in the chat template")
    parser.add_argument("--system-prompt", metavar="TEXT", help="system message for conversations without one")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens to generate for a row, at most")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 (the default) takes the likeliest token")
    parser.add_argument("--id-column", metavar="NAME", help="column of unique row ids")
    parser.add_argument("--on-long-prompt", choices=LONG_PROMPTS, help="what to do with prompts that do not fit")
    parser.add_argument(
        "--max-failed-fraction", type=float, metavar="SHARE", help="stop if a larger share of the rows fails"
    )
    parser.add_argument(
        "--max-row-deaths", type=int, metavar="N", help="quarantine a row after it has killed N processes"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        dest="settings",
        help="any field, dotted, value as in YAML; for example sampling.max_tokens=48",
    )
    parser.add_argument("--print-config", action="store_true",
                        help="print every setting as YAML for --config, and do nothing else")  # fmt: skip


def collect(args: argparse.Namespace) -> RunConfig:
    """The configuration that the parsed options describe. With ``--print-config`` it is printed.

    Raises:
        ConfigError: an unreadable file, an unknown field (the nearest known one is named), or a bad value.
        SystemExit: with status 0, after ``--print-config``.
    """
    config, _ = _collected(args, ())
    _end_after_printing(args, config, {})
    return config


def collect_with(args: argparse.Namespace, name: str, make: Callable[[RunConfig, Any], tuple[_T, Any]]) -> _T:
    """The configuration of a command that has one field of its own beside those of ``RunConfig``.

    Args:
        args: the options of :func:`add_config_options`.
        name: of that field.
        make: gives the command's configuration and the field's value to print, of the run's configuration and the value
            in the file (None if it is not there).

    Raises:
        ConfigError, SystemExit: see :func:`collect`.
    """
    run, apart = _collected(args, (name,))
    config, shown = make(run, apart[name])
    _end_after_printing(args, run, {name: shown})
    return config


def _collected(args: argparse.Namespace, own: Collection[str]) -> tuple[RunConfig, dict[str, Any]]:
    """The run's configuration, and the values of the command's own fields (None where one is not given)."""
    raw = read_mapping(args.config) if args.config is not None else {}
    named = {name: getattr(args, name) for name in _NAMED if getattr(args, name) is not None}
    sampling = {name: getattr(args, name) for name in _SAMPLING if getattr(args, name) is not None}
    raw = merge(raw, named | ({"sampling": sampling} if sampling else {}))
    for text in args.settings:
        raw = merge(raw, parse_setting(text))
    for name, command in _OF_COMMANDS.items():
        if name in raw and name not in own:
            raise ConfigError(
                f"{name}: a setting of the command {command} only. Give the file to that, or leave it out."
            )
    missing = [name for name in ("input", "output") if raw.get(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not given. Use --{' and --'.join(missing)}, or --config.")
    apart = {name: raw.pop(name, None) for name in own}
    config = RunConfig.from_mapping(raw)
    if not args.print_config:
        for given in (named, *map(parse_setting, args.settings)):
            _warn_of_literals({name: value for name, value in given.items() if name != "storage_options"})
    return config, apart


def _end_after_printing(args: argparse.Namespace, config: RunConfig, more: Mapping[str, Any]) -> None:
    if args.print_config:
        print(as_yaml(config) + (yaml.safe_dump(dict(more), sort_keys=False) if more else ""), end="")
        raise SystemExit(0)


def _warn_of_literals(given: Mapping[str, Any]) -> None:
    """Warn of secrets on the command line, where everybody on the machine can read them."""
    found = [place.lstrip(".") for place in literal_secrets(given, "")]
    for names, remedy in (
        ([name for name in found if name in _URLS], "Give the URL without credentials, and these in storage_options as "
                                                    "{env: NAME} or {file: /path}."),
        ([name for name in found if name not in _URLS], "Write {env: NAME} or {file: /path}, here or in --config."),
    ):  # fmt: skip
        if names:
            seen = "on the command line, which every user of this machine can list"
            print(f"warning: {', '.join(names)}: {seen}. {remedy}", file=sys.stderr)


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
        raise ConfigError(f"--set {_shown(name)}: the value is not YAML ({_fault(error)}). Quote it.") from None
    for part in reversed(name.strip().split(".")):
        parsed = {part: parsed}
    return parsed


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
        raise ConfigError(f"--config {path}: not YAML ({_fault(error)}). Correct it.") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(
            f"--config {path}: must be a mapping of fields, is a {type(raw).__name__}. Write name: value."
        )
    return raw


def parse_actors(text: str) -> int | dict[str, int]:
    """``"4"``, or ``"1-64"`` as a range, for ``argparse``."""
    least, dash, most = text.partition("-")
    try:
        return {"min": int(least), "max": int(most)} if dash and least else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a number or a range, for example 4 or 1-64") from None


def parse_options(text: str) -> dict[str, Any]:
    """Keyword arguments from YAML (or JSON) text, for ``argparse``; warns of secrets among them."""
    try:
        options = read_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not YAML ({_fault(error)}). Write for example {{anon: true}}.") from None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(
            f"must be a mapping, is a {type(options).__name__}. Write for example {{anon: true}}."
        )
    _warn_of_literals({"storage_options": options})
    return options


def _shown(name: str) -> str:
    """A field's name; of what cannot be one, nothing, since it may be a value."""
    return repr(name) if _FIELD.fullmatch(name.strip()) else "(not shown)"


def _fault(error: Exception) -> str:
    """Where and why text is not YAML, without the text: it may hold credentials."""
    mark = getattr(error, "problem_mark", None)
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return place + _QUOTED.sub("'...'", getattr(error, "problem", None) or type(error).__name__)
