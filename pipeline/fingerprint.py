"""The settings of a run that change its output: a continuation has to have the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from pipeline.codec import EXACT_WEIGHT_DTYPES, plain_params, redact_forms
from pipeline.config import RunConfig
from pipeline.settings.plain_data import build

_OWN = ("seed", "prompt_column", "messages_column", "token_ids_column", "prompt_template", "tools_column", "chat",
        "system_prompt", "on_long_prompt", "id_column", "column_prefix", "include_token_ids", "limit", "output_format",
        "dtype")  # fmt: skip
_OF_ENGINE = ("max_model_len", "max_window", "batch_invariant", "kv_cache_dtype", "weight_dtype")
_LATER: Mapping[str, Any] = {
    "chat_template_kwargs": {}, "chat_template_kwargs_column": None, "served_model_names": (),
    "special_tokens_in_text": "control", "generation_config": "auto",
    "label_probabilities": False, "reasoning_parser": None, "tools": [], "tool_choice": None,
    "turns_column": None,
}  # fmt: skip
"""Settings that outputs of earlier versions lack, with their defaults: other values are recorded."""

RETRY_SETTINGS = (
    "on_long_prompt", "sampling.max_tokens", "engine.max_model_len", "engine.max_window", "served_model_names",
    "special_tokens_in_text",
)  # fmt: skip
"""Settings among these that decide whether a row runs: a retry of failed rows may change them. Limits that are not
recorded (KV pages, deaths, times) may change anyway."""


def retry_advice(*, scheduled: bool) -> str:
    """The ways for failed rows to succeed; ``scheduled``: of a table that scheduled runs keep."""
    again = "Once the cause is gone, --retry-failed (retry_failed=True) does"
    if scheduled:
        return (
            f"{again} their files again, with the settings of the table; on_changed='reprocess' does corrected files."
        )
    return (
        f"{again} them again: with another {', '.join(RETRY_SETTINGS)}; with the rows corrected in their input file; "
        "or with corrected rows and their row_id as --input. Any other setting needs a new output."
    )


def fingerprint_fields(config: RunConfig) -> dict[str, Any]:
    """The settings by dotted name, as plain values. Input and model are added by content."""
    sampling = {f"sampling.{name}": value for name, value in plain_params(config.sampling).items()}
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in sampling.items()},
        **{name: getattr(config, name) for name in _OWN},
        **_of_engine(config),
        **{name: value for name in _LATER if (value := getattr(config, name)) != _LATER[name]},
        **({} if config.input_format in ("auto", "rows") else {"input_format": config.input_format}),
        **({"parse": {name: parse.as_dict() for name, parse in config.parse.items()}} if config.parse else {}),
        **({} if config.task is None else {"task": config.task.as_dict()}),
        **({} if config.adapter is None else {"adapter": redact_forms(config.adapter)}),
        "columns": None if config.columns is None else list(config.columns),
        "sampling_columns": dict(sorted(config.sampling_columns.items())),
    }


def config_of(fingerprint: Mapping[str, Any], **others: Any) -> RunConfig:
    """The configuration that has these settings: the inverse of :func:`fingerprint_fields`.

    Args:
        fingerprint: the settings, as a run record has them.
        others: fields that no fingerprint has, such as ``input``, ``output`` and ``model``.

    Raises:
        ConfigError: one of the values is out of range.
    """
    known = {own.name for own in fields(RunConfig)} - {"model"}
    sampling, engine = (_inside(fingerprint, name) for name in ("sampling", "engine"))
    sampling.pop("top_logprobs", None)  # of the value of logprobs
    plain = {name: value for name, value in fingerprint.items() if name in known}
    nested = {"sampling": sampling, "engine": {**engine, "streaming": _inside(fingerprint, "engine.streaming")}}
    config: RunConfig = build(RunConfig, {**plain, **nested, **others}, root=RunConfig)
    return config


def _inside(fingerprint: Mapping[str, Any], outer: str) -> dict[str, Any]:
    """The settings one level below a dotted name."""
    own = {name.removeprefix(f"{outer}."): value for name, value in fingerprint.items() if name.startswith(f"{outer}.")}
    return {name: value for name, value in own.items() if "." not in name}


def _of_engine(config: RunConfig) -> dict[str, Any]:
    engine = config.engine
    found = {f"engine.{name}": getattr(engine, name) for name in _OF_ENGINE}
    if engine.weight_dtype in EXACT_WEIGHT_DTYPES:
        found["engine.quantised_head"] = engine.quantised_head
        if config.dtype in ("auto", "float32"):  # the meaning of "auto" now: earlier versions recorded "auto"
            found["engine.kv_cache_dtype"] = engine.kv_numbers("float32")
    return found | {f"engine.streaming.{name}": value for name, value in asdict(engine.streaming).items()}
