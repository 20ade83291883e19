"""From a command line and a YAML file to a configuration; shared by the jobs.

Order of precedence, later wins: the YAML file, the options with a name of their own, ``--set``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline import ConfigError, RunConfig

__all__ = ["add_config_options", "collect", "merge", "parse_options", "parse_setting"]

_NAMED = ("input", "output", "model", "actors")


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--input``, ``--output``, ``--model``, ``--actors``, ``--set``."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with fields of RunConfig")
    parser.add_argument("--input", metavar="PATH", help="file, folder or glob of Parquet or JSON Lines")
    parser.add_argument("--output", metavar="FOLDER", help="where to write; a re-run continues there")
    parser.add_argument("--model", metavar="NAME", help='"tiny", a folder, a URL or a hub id')
    parser.add_argument("--actors", type=int, metavar="N", help="generate actors")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        dest="settings",
        help="any field, dotted, value as in YAML; for example sampling.max_tokens=48",
    )


def collect(args: argparse.Namespace) -> RunConfig:
    """The configuration that the parsed options describe.

    Raises:
        ConfigError: an unreadable file, an unknown field (the nearest known one is named), or a bad value.
    """
    raw = _read_yaml(args.config) if args.config is not None else {}
    named = {name: getattr(args, name) for name in _NAMED if getattr(args, name) is not None}
    raw = merge(raw, named)
    for text in args.settings:
        raw = merge(raw, parse_setting(text))
    missing = [name for name in ("input", "output") if raw.get(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not given. Use --{' and --'.join(missing)}, or --config.")
    return RunConfig.from_mapping(raw)


def parse_setting(text: str) -> dict[str, Any]:
    """``"a.b=1"`` as ``{"a": {"b": 1}}``; the value is YAML.

    Raises:
        ConfigError: no ``=``, or a value that is not YAML.
    """
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ConfigError(f"--set {text!r}: must be FIELD=VALUE, for example sampling.max_tokens=48.")
    try:
        parsed: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is not YAML ({error}). Quote it.") from error
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


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: cannot be read ({error}). Give a YAML file.") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"--config {path}: must be a mapping of fields, is a {type(raw).__name__}.")
    return raw


def parse_options(text: str) -> dict[str, Any]:
    """Keyword arguments from YAML (or JSON) text.

    Raises:
        ConfigError: it is no mapping.
    """
    try:
        options = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--storage-options {text!r}: not YAML ({error}). Write {{key: value}}.") from error
    if not isinstance(options, dict):
        raise ConfigError(f"--storage-options {text!r}: must be a mapping. Write {{key: value}}.")
    return options
