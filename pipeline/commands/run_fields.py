"""The fields of ``RunConfig`` as keyword arguments, for type checkers, editors and ``help``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, Signature, signature
from typing import Any, Literal, TypedDict, TypeVar

from pipeline.codec import EngineConfig, SamplingParams
from pipeline.config import RunConfig
from pipeline.settings.parsing import Parse
from pipeline.settings.pools import ActorRange, PoolConfig
from pipeline.settings.scoring import Score

_F = TypeVar("_F", bound=Callable[..., Any])


class RunFields(TypedDict, total=False):
    """Each field of :class:`~pipeline.config.RunConfig` but input and output; described there.

    Where a field is a configuration of its own, a mapping of its fields is taken too.
    """

    input_format: Literal["auto", "rows", "openai-batch", "text"]
    model: str | os.PathLike[str] | Mapping[str, str]
    adapter: str | os.PathLike[str] | None
    served_model_names: Sequence[str]
    revision: str | None
    generation_config: Literal["auto", "off"]
    sampling: SamplingParams | Mapping[str, Any]
    engine: EngineConfig | Mapping[str, Any]
    seed: int
    prompt_column: str | None
    messages_column: str | None
    token_ids_column: str | None
    turns_column: str | None
    prompt_template: str | None
    tools: Sequence[Mapping[str, Any]]
    tools_column: str | None
    tool_choice: str | Mapping[str, str] | None
    chat_template_kwargs: Mapping[str, Any]
    chat_template_kwargs_column: str | None
    chat: bool
    system_prompt: str | None
    id_column: str | None
    sampling_columns: Mapping[str, str]
    task: Score | Mapping[str, Any] | None
    label_probabilities: bool
    reasoning_parser: str | Sequence[str] | None
    parse: Mapping[str, Parse | Mapping[str, Any]]
    on_long_prompt: Literal["fail", "truncate_left", "truncate_right"]
    special_tokens_in_text: Literal["control", "text", "fail"]
    columns: Sequence[str] | None
    column_prefix: str
    include_token_ids: bool
    limit: int | None
    mode: Literal["resume", "new", "error_if_exists"]
    actors: int | ActorRange | Mapping[str, int]
    gpus_per_actor: float | Literal["auto"]
    cpus_per_actor: float | Literal["auto"]
    accelerator_type: str | None
    resources_per_actor: Mapping[str, float]
    actors_per_node: int | None
    pools: Mapping[str, PoolConfig | Mapping[str, Any]]
    num_threads: int | None
    device: str
    dtype: str
    unit_rows: int | None
    units_in_flight: int | None
    target_part_bytes: int
    max_engine_deaths: int
    stop_seconds: float | Literal["auto"]
    max_row_deaths: int
    drain_seconds: float
    max_failed_fraction: float
    retry_failed: bool
    repair: bool
    report: bool
    report_traces: int
    price_per_hour: float | None
    expect_autoscaling: bool
    output_format: Literal["parquet", "ipc", "jsonl"]
    dataset_options: Mapping[str, Any] | None
    storage_options: Mapping[str, Any]
    input_storage_options: Mapping[str, Any] | None
    output_storage_options: Mapping[str, Any] | None


def lists_fields(function: _F) -> _F:
    """Decorator of a function with ``**fields: Unpack[RunFields]``: its signature at run time names each field."""
    own = [one for one in signature(function).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    taken = {"input", *(one.name for one in own)}
    defaults = RunConfig(input="in", output="out")
    named = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=getattr(defaults, field.name), annotation=field.type)
        for field in fields(RunConfig)
        if field.name not in taken
    ]
    function.__signature__ = Signature([*own, *named], return_annotation="RunResult")  # type: ignore[attr-defined]
    return function
