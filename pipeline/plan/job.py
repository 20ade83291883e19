"""The job: a resolved run (configuration, source, storage and schemas), as tasks and actors receive it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from pipeline.codec import explain, redact_forms
from pipeline.commit.part_files import OutputTables, Rows
from pipeline.commit.retries import Retry
from pipeline.commit.run_record import FileIdentity, Origin, RunState
from pipeline.config import MESSAGES, PROMPT_PLACES, RunConfig
from pipeline.errors import ConfigError, SourceError
from pipeline.fingerprint import fingerprint_fields
from pipeline.plan.units import check_any_rows
from pipeline.schema import check_collisions, dead_schema, output_schema, result_fields
from pipeline.settings.reasoning import REASONING
from pipeline.settings.template import WHOLE_ROW, PromptTemplate
from pipeline.settings.tool_calls import TOOL_CALLS, TOOL_CALLS_FIELD
from pipeline.sinks import FORMATS, check_format
from pipeline.sources import FileSource, SlicedSource, Source
from pipeline.sources.formats.openai_batch import BODY, CUSTOM_ID, OpenAIBatchSource
from pipeline.sources.source_schemas import check_names
from pipeline.sources.stage_rows import StageRows
from pipeline.sources.types import columns_named_by
from pipeline.storage.protocol import Storage
from pipeline.types import Unit, Unread

PromptKind = Literal["text", "messages", "token_ids", "turns", "template", "request"]

_KINDS: tuple[tuple[PromptKind, str, str], ...] = (
    ("text", "prompt_column", "prompt"),
    ("messages", "messages_column", "messages"),
    ("token_ids", "token_ids_column", "prompt_token_ids"),
)


_RECORDED = "conversations"
"""ShareGPT's column of messages; taken where none of the columns above is there."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A resolved run. Picklable.

    Attributes:
        config: the configuration, without its ``input``.
        source: the input.
        storage: the output.
        prompt_kind, prompt_column: kind of the prompts, and their column; for a template the name of the setting. A
            "request" is the body of a line of an OpenAI batch, which has sampling parameters too.
        columns: the input columns that pass through.
        schema: schema of the output table.
        dead_schema: schema of the dead-letter table.
        model_digest: digest of the model when the run began; empty if it was not computed.
        model_params: sampling parameters that the model brings.
        retry: how a retry of failed rows differs from the run; nothing differs otherwise.
        apart: numbers of retries whose rows are not those of the input, but corrected ones by row id.
        later: the jobs of a chain's further stages that the same actors work for; see :meth:`of_stage`.
    """

    config: RunConfig
    source: Source
    storage: Storage
    prompt_kind: PromptKind
    prompt_column: str
    columns: pa.Schema
    schema: pa.Schema
    dead_schema: pa.Schema
    model_digest: str = ""
    model_params: Mapping[str, Any] = field(default_factory=dict)
    retry: Retry = field(default_factory=Retry)
    apart: tuple[int, ...] = ()
    later: tuple[Job, ...] = ()

    def of_stage(self, stage: int) -> Job:
        """The job that units of this stage belong to; see :attr:`pipeline.types.Unit.stage`."""
        return self if stage == 0 else self.later[stage - 1]

    @property
    def sliced(self) -> SlicedSource:
        """The input, where it is cut into slices: not that of a later stage of a chain."""
        assert isinstance(self.source, SlicedSource)
        return self.source

    def retry_of(self, unit: Unit) -> int | None:
        """The value of the column ``retry`` for rows that are generated with this attempt at a unit."""
        keys = {self.source.files[piece.file].key for piece in unit.slices}
        return self.retry.number if self.retry and unit.attempt > 1 and self.retry.concerns(keys) else None

    @property
    def unread(self) -> Unread:
        """The files below the input that are not read."""
        return self.source.unread if isinstance(self.source, FileSource) else Unread()

    @property
    def rows(self) -> Rows:
        """The output table."""
        return self._rows(self.schema, aggregated=self.config.report)

    @property
    def dead_rows(self) -> Rows:
        """The dead-letter table."""
        return self._rows(self.dead_schema)

    @property
    def output(self) -> OutputTables:
        """The part of this run that publishing needs."""
        return OutputTables(
            storage=self.storage,
            rows=self.rows,
            dead_rows=self.dead_rows,
            target_part_bytes=self.config.target_part_bytes,
        )

    def _rows(self, schema: pa.Schema, *, aggregated: bool = False) -> Rows:
        return Rows(
            format=FORMATS[self.config.output_format],
            schema=schema,
            inputs=len(self.columns),
            prefix=self.config.column_prefix,
            derived_ids=self.config.id_column is None,
            aggregated=aggregated,
        )

    @property
    def result_fields(self) -> list[pa.Field]:
        """Output fields after the input's columns, without those that are parsed of the text."""
        stop = len(self.schema) - len(self.parsed_columns)
        return [self.schema.field(i) for i in range(len(self.columns), stop)]

    @property
    def parsed_columns(self) -> list[str]:
        """Names of the columns that are parsed of the text; the last ones of the output."""
        calls = [] if self.config.tool_choice is None else [TOOL_CALLS]
        return [self.config.column_prefix + name for name in (*calls, *self.config.parsed)]

    @property
    def own_columns(self) -> list[str]:
        """Names of the columns of scores, conversations and reasoning, and of those that are parsed of the text."""
        prefix, config = self.config.column_prefix, self.config
        scores = [prefix + field.name for field in config.score_columns]
        apart = _apart(config)
        return [*scores, *(prefix + name for name in apart), *self.parsed_columns]


def _apart(config: RunConfig) -> list[str]:
    """Names of the columns of conversations and of the reasoning, if the run has them."""
    return [MESSAGES] * (config.turns_column is not None) + [REASONING] * (config.reasoning is not None)


def resolve_job(
    config: RunConfig,
    source: Source,
    storage: Storage,
    leading: pa.Schema | None = None,
) -> Job:
    """Find the columns that the configuration names, and derive the schemas.

    Args:
        config: the run's configuration.
        source: the input.
        storage: the output.
        leading: columns that the output has already; they keep their place, others follow.

    Raises:
        SourceError: a column is missing, ambiguous or occurs twice.
        ConfigError: an input column has the name of an output column, or a type that the output's format lacks.
    """
    if source.input_format == OpenAIBatchSource.input_format:
        config = of_requests(config)
    names = source.schema.names
    if not names and isinstance(source, SlicedSource) and next(source.slices(1), None) is None:
        check_any_rows(0, config.input)
    if not isinstance(source, StageRows):  # they have a column of ours
        check_names(names, "the input")
    kind, column = _prompt_column(config, names)
    for setting, wanted in columns_named_by(config):
        if wanted not in names:
            raise SourceError(f"{setting}={wanted!r}: the input has no such column. It has {names}: name one of them.")
    _check_chat(config, kind)
    kept = [field for field in source.schema if config.columns is None or field.name in config.columns]
    first = [] if leading is None else leading.names
    kept.sort(key=lambda field: first.index(field.name) if field.name in first else len(first))
    columns = pa.schema(kept, metadata=source.schema.metadata if leading is None else leading.metadata)
    parsed = config.parsed
    scores = config.score_columns
    calls = [] if config.tool_choice is None else [TOOL_CALLS_FIELD]
    own = [*(field.name for field in (*scores, *calls)), *parsed, *_apart(config)]
    check_collisions(columns.names, config.column_prefix, own)
    per_row = config.sampling_columns.get("logprobs")
    counted = per_row is not None and not pa.types.is_boolean(source.schema.field(per_row).type)
    requests = kind == "request"  # any of them may ask for all of it
    fields = result_fields(
        token_ids=config.include_token_ids,
        logprobs=requests or bool(config.sampling.logprobs) or per_row is not None,
        top_logprobs=requests or config.sampling.top_logprobs > 0 or counted,
        reasoning=config.reasoning is not None,
        messages=config.turns_column is not None,
        prefix=config.column_prefix,
        scores=scores,
        parsed=[*calls, *(parse.field(name) for name, parse in parsed.items())],
    )
    schema = output_schema(columns, fields)
    check_format(config.output_format, schema)
    return Job(
        config=replace(config, input=None),
        source=source,
        storage=storage,
        prompt_kind=kind,
        prompt_column=column,
        columns=columns,
        schema=schema,
        dead_schema=dead_schema(columns, config.column_prefix),
    )


_IN_BODIES = (
    *PROMPT_PLACES,
    "tools",
    "tools_column",
    "chat_template_kwargs_column",
    "chat",
    "system_prompt",
    "sampling_columns",
    "task",
    "label_probabilities",
)


def of_requests(config: RunConfig) -> RunConfig:
    """The configuration of a run over an OpenAI batch: ids are the lines' own, and bodies have the rest.

    Raises:
        ConfigError: a setting is about rows of another kind.
    """
    rule = "an OpenAI batch has prompts and parameters in its bodies"
    for name in _IN_BODIES:
        if getattr(config, name):
            remedy = 'Leave it out; or set input_format="rows" for a plain table of custom_id, method, url and body.'
            raise ConfigError(explain(name, getattr(config, name), rule, remedy))
    if config.columns is not None and "url" not in config.columns:
        raise ConfigError(explain("columns", config.columns, "answers have the form of their url", "Add 'url'."))
    if not config.include_token_ids:
        rule = "log-probabilities are those of tokens, and any line may ask for them"
        raise ConfigError(explain("include_token_ids", False, rule, "Leave it out."))
    if config.id_column not in (None, CUSTOM_ID):
        raise ConfigError(explain("id_column", config.id_column, f"an OpenAI batch's is {CUSTOM_ID}", "Leave it out."))
    return replace(config, input_format="openai-batch", id_column=CUSTOM_ID)


def _check_chat(config: RunConfig, kind: PromptKind) -> None:
    """Refuse variables of a chat template that no prompt of the run goes through."""
    chats = kind in ("messages", "turns", "request") or (
        kind != "token_ids" and (config.chat or config.system_prompt is not None)
    )
    for name in ("chat_template_kwargs", "chat_template_kwargs_column", "tools", "tool_choice"):
        if getattr(config, name) and not chats:
            rule = f"prompts of kind {kind!r} do not go through the chat template"
            raise ConfigError(explain(name, getattr(config, name), rule, "Set chat=True, or leave it out."))
    if config.tool_choice is not None and kind != "request" and not config.tools and config.tools_column is None:
        raise ConfigError(
            explain("tool_choice", config.tool_choice, "there are no tools", "Set tools or tools_column.")
        )


def new_run_record(
    job: Job, model_digest: str, origin: Origin | None = None, *, scheduled: bool = False
) -> RunState:  # fmt: skip
    """The run record of a run that begins now, with a model of this digest."""
    origin, config = origin or Origin(), job.config
    return RunState(
        begun=origin.begun,
        first=origin.first,
        fingerprint={
            **fingerprint_fields(config),
            **_model_params(job),
            "model": f"{redact_forms(config.model)}@{model_digest}",
        },
        unit_rows=config.resolved_unit_rows(),
        files={file.key: FileIdentity(digest=file.digest, stamp=file.stamp) for file in job.source.files},
        columns=job.columns,
        source_columns=None if config.columns is None else job.source.schema,
        base=job.source.base if isinstance(job.source, FileSource) else "",
        scheduled=scheduled,
    )


def _model_params(job: Job) -> dict[str, Any]:
    """The model's sampling parameters as settings of the run."""
    shown = {name: list(value) if isinstance(value, tuple) else value for name, value in job.model_params.items()}
    return {f"generation_config.{name}": value for name, value in shown.items()}


def _prompt_column(config: RunConfig, names: list[str]) -> tuple[PromptKind, str]:
    if config.input_format == OpenAIBatchSource.input_format:
        return "request", BODY
    if config.prompt_template is not None:
        absent = sorted(PromptTemplate(config.prompt_template).names - {WHOLE_ROW, *names})
        if absent:
            raise SourceError(
                f"prompt_template names {absent}: the input has no such columns. It has {names}: name some of them."
            )
        return "template", "prompt_template"
    if config.turns_column is not None:
        return "turns", config.turns_column
    for kind, setting, _ in _KINDS:
        name = getattr(config, setting)
        if name is not None:
            return kind, name
    there = [(kind, name) for kind, _, name in _KINDS if name in names]
    if len(there) == 1:
        return there[0]
    if there:
        raise SourceError(
            f"the input has {[name for _, name in there]}: which one is the prompt? "
            "Set prompt_column, messages_column or token_ids_column."
        )
    if _RECORDED in names:
        return "messages", _RECORDED
    raise SourceError(
        f"the input has no column prompt, messages, prompt_token_ids or conversations. It has {names}. "
        "Set prompt_column, messages_column or token_ids_column to the one that holds the prompts, or prompt_template."
    )


def named_columns(config: RunConfig) -> list[str]:
    """The input columns that a run with this configuration cannot do without."""
    names = [name for _, name in columns_named_by(config)]
    if config.prompt_template is not None:
        return [*names, *(PromptTemplate(config.prompt_template).names - {WHOLE_ROW})]
    has_prompt = any(getattr(config, setting) is not None for setting in PROMPT_PLACES)
    return names if has_prompt else [*names, "prompt"]
