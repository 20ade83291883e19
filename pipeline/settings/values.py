"""Checks of single values of a configuration: their kind, their range and their form."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pipeline.codec import MASK, CoreConfigError, check_references, explain, remember
from pipeline.errors import ConfigError

PLACES = ("input", "output", "model", "adapter")
OPTIONS = ("storage_options", "input_storage_options", "output_storage_options", "dataset_options")
_MOST_TRACES = 8
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_COUNTS = {
    "target_part_bytes": (1, "Give a count."), "max_engine_deaths": (0, "Use 3."), "max_row_deaths": (1, "Use 2."),
}  # fmt: skip
"""The least value, and the remedy of a smaller one."""


def require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    """Raise a ConfigError that names the value, the rule and the remedy, unless ``ok``."""
    if not ok:
        raise ConfigError(explain(name, value, rule, remedy))


def is_int(value: object) -> bool:
    """Whether a value is an integer, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold, finite, and no truth value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def choices_of(kind: Any, name: str) -> tuple[str, ...]:
    """The texts that a field of the class ``kind`` may have: the arguments of its ``Literal``."""
    return get_args(_hints(kind)[name])


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def check_values(config: Any) -> None:
    """Check the fields of a ``RunConfig`` one by one.

    Raises:
        ConfigError: one is bad; names it.
    """
    for name in OPTIONS:
        _check_options(name, getattr(config, name))
    _check_kinds(config)
    for name in PLACES:
        _check_place(name, getattr(config, name))
    _check_numbers(config)


def _check_kinds(config: Any) -> None:
    kind: Any = type(config)
    for name, hint in _hints(kind).items():
        value = getattr(config, name)
        if hint is bool:
            require(isinstance(value, bool), name, value, "true or false", "Write one of these.")
        elif hint in (str, str | None):
            fine = isinstance(value, str) or (value is None and hint is not str)
            require(fine, name, value, "text", "Quote it, or leave it out.")
        elif get_origin(hint) is Literal:
            require(value in get_args(hint), name, value, f"one of {list(get_args(hint))}", "Pick one of these.")
    require(config.dtype in _DTYPES, "dtype", config.dtype, f"one of {list(_DTYPES)}", "Pick one of these.")
    for name in ("revision", "accelerator_type"):
        require(getattr(config, name) != "", name, "", "a name", "Leave it out to use the default.")
    require(config.output != "", "output", config.output, "a folder", "Name the folder to write to.")
    require(not (isinstance(config.input, str) and not config.input), "input", "", "a path, URL or name",
            'Name a file or a folder ("." is this one).')  # fmt: skip


def _check_numbers(config: Any) -> None:
    for name, (least, remedy) in _COUNTS.items():
        value = getattr(config, name)
        require(is_int(value) and value >= least, name, value, f"an integer of {least} or more", remedy)
    for name in ("limit", "unit_rows", "units_in_flight"):
        value = getattr(config, name)
        require(value is None or (is_int(value) and value >= 1), name, value, "None or an integer of 1 or more",
                "Drop it to use the default.")  # fmt: skip
    stop, price, drain, share = (
        getattr(config, name) for name in ("stop_seconds", "price_per_hour", "drain_seconds", "max_failed_fraction")
    )
    require(stop == "auto" or stop == math.inf or (is_number(stop) and stop >= 0), "stop_seconds", stop,
            '"auto" or a number of 0 or more', 'Use "auto".')  # fmt: skip
    require(is_int(config.seed) and 0 <= config.seed < 2**63, "seed", config.seed, "an integer in [0, 2**63)",
            "Pick one in range.")  # fmt: skip
    traces = config.report_traces
    require(is_int(traces) and 0 <= traces <= _MOST_TRACES, "report_traces", traces,
            f"an integer from 0 to {_MOST_TRACES}", "Use 6.")  # fmt: skip
    require(price is None or (is_number(price) and price >= 0), "price_per_hour", price, "None or a price of 0 or more",
            "Give the price of one accelerator for an hour, or leave it out.")  # fmt: skip
    require(is_number(drain) and drain >= 0, "drain_seconds", drain, "a number of 0 or more",
            "Use 20, which fits in the 30 s that Ray and Kubernetes give.")  # fmt: skip
    require(is_number(share) and 0 <= share <= 1, "max_failed_fraction", share, "a share between 0 and 1",
            "Use 1 to never stop.")  # fmt: skip


def _check_place(name: str, value: object) -> None:
    if not isinstance(value, (str, os.PathLike)):
        return  # rows in memory
    text = os.fspath(value)
    require(_is_utf8(text), name, value, "a name in UTF-8 without NUL, as it becomes part of records", "Rename it.")
    require("://" not in text or MASK not in text, name, value, f"{MASK} stands for credentials that were left out",
            "Give them in storage_options, as {env: NAME} or {file: /path}.")  # fmt: skip


def _is_utf8(value: str | bytes) -> bool:
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _check_options(name: str, options: object) -> None:
    """Check keyword arguments. The message does not show them: they hold credentials."""
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise ConfigError(
            f"{name}: a mapping of keyword arguments, got a {type(options).__name__} (not shown). Write {{key: value}}."
        )
    if options is None and name == "storage_options":
        raise ConfigError(f"{name}=None: a mapping of keyword arguments. Leave it out, or write {{key: value}}.")
    if options is not None and "trust_remote_code" in options:
        raise ConfigError(f"{name}.trust_remote_code: no code of data sets or models is run. Drop it.")
    try:
        check_references(options, name)
    except CoreConfigError as error:
        raise ConfigError(str(error)) from None
    remember(options)
