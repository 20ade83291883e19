"""RunConfig: all settings of a run, frozen and validated; built in code, from YAML or from a command line.

:func:`pipeline.fingerprint.fingerprint_fields` has the settings that change the output; all others (actors, threads,
units in flight) may change between a run and its continuation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import pyarrow as pa

from pipeline.codec import (
    EngineConfig,
    SamplingParams,
    WeDLMError,
    has_url_credentials,
    known_fields_only,
    literal_secrets,
    masked,
    redact,
    redact_forms,
    remember,
)
from pipeline.errors import ConfigError
from pipeline.settings.parsing import Parse, parse_settings, parsed_columns
from pipeline.settings.plain_data import build, unknown_field
from pipeline.settings.pools import ActorRange, PoolConfig, actor_range, check_actors, check_reserved, pool_config
from pipeline.settings.reasoning import REASONING, Tags, tags_of
from pipeline.settings.scoring import Score, score_columns, task_of
from pipeline.settings.template import check_template
from pipeline.settings.tool_calls import TOOL_CALLS, checked_tools
from pipeline.settings.values import OPTIONS, PLACES, check_values, require

PROMPT_PLACES = ("prompt_column", "messages_column", "token_ids_column", "turns_column", "prompt_template")
"""Settings that name the prompts; one at most."""
MESSAGES = "messages"
"""Output column of whole conversations."""


@known_fields_only(ConfigError, {}, describe=lambda name: unknown_field(name, "", RunConfig))
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One generation job.

    Attributes:
        input: a path, folder, glob or URL of Parquet, JSONL, CSV or Arrow files, the name of a
            dataset on the hub, the folder of one saved to disk, a list of dicts, a ``pyarrow.Table``, a pandas
            frame, a ``datasets.Dataset``, or a ``ray.data.Dataset``.
        output: folder or URL to write to; holds the published tables and the state that a re-run continues from.
        input_format: "openai-batch" for JSON Lines of OpenAI's batch API, whose bodies hold prompts and sampling
            parameters; "text" for text files, one prompt each; "rows" for any other table; "auto"
            recognises lines of that API where no setting names the prompts.
        model: a folder, an fsspec URL, a hub id, or ``"tiny"`` (shipped). A job has no default: empty is an error. A
            mapping ``{path, adapter}`` sets ``adapter``, too.
        adapter: a LoRA adapter of the model in peft's format: a folder, URL or hub id. It is added to the weights when
            they are loaded.
        served_model_names: names of ``model`` that the bodies of an OpenAI batch may have, in addition to its own; "*"
            is any.
        revision: of a hub id.
        generation_config: "auto" applies ``repetition_penalty`` and ``suppress_tokens`` of the model's
            ``generation_config.json``, as transformers does, where run and row set no value of their own; "off" does
            not.
        sampling: how to decode; rows may override it (``sampling_columns``).
        engine: how each engine runs.
        seed: run seed; with row id and sample index it decides each sample's noise.
        prompt_column, messages_column, token_ids_column: the column of prompts: text, chat messages, or token
            ids. At most one; when none is set, the one column named ``prompt``, ``messages`` or
            ``prompt_token_ids``.
        turns_column: column of conversations: lists of the user's texts or messages, or JSON text of them. They are
            answered one after the other, and the column ``messages`` has the whole conversation.
        prompt_template: Jinja template of the prompt over the input's columns, in place of a prompt column:
            ``"{{ question }}"``, or ``"{{ row['a name'] }}"``. A name that a row lacks is that row's failure.
        tools: descriptions of tools for the chat template, each with ``name``, ``description`` and ``parameters`` (a
            JSON schema), or with these under ``function``.
        tools_column: column of tools (a list of mappings, or JSON text of one) in place of ``tools``; null keeps these.
        tool_choice: how outputs call tools. "auto": calls in the text become the column ``tool_calls``; "required": at
            least one call, or ``{"name": ...}``: one call of this tool, by a grammar; "none": calls are not read. None
            is "auto" with ``tools``, else "none".
        chat_template_kwargs: variables for the chat template, such as ``{"enable_thinking": False}``.
        chat_template_kwargs_column: column of such variables (a mapping, or JSON text of one), in place of those of
            the same names.
        chat: wrap each text prompt as a user message in the model's chat template.
        system_prompt: system message in front of each conversation that has none; implies the chat template.
        id_column: column of unique row ids (text or integers); None derives ids from file and row number.
        sampling_columns: sampling parameter -> column with per-row values; null cells keep the value of ``sampling``.
            The column of ``structured_outputs`` has JSON schemas, OpenAI's ``response_format``, or fields of
            ``StructuredOutputs``: JSON text or structs.
        task: None generates; :class:`~pipeline.settings.scoring.Score` reads log-probabilities of given texts instead
            (``{choices: ["yes", "no"]}``), and ``sampling`` then has ``logprobs`` at most.
        label_probabilities: of outputs that are one of some choices (``sampling.structured_outputs``: ``choice``, or
            JSON of a schema that is one ``enum``), write the column ``label_probabilities``: the model's probability
            of each choice after the prompt. Null for a row whose own form is another one.
        reasoning_parser: "think", or a list of two tags such as ``["<think>", "</think>"]``: the text between them goes
            to the column ``reasoning``, and ``text`` is the answer after it.
        parse: name of a column -> :class:`~pipeline.settings.parsing.Parse`: a value read from each text, such as a
            score (``{score: {pattern: "Score: ([0-9]+)", type: int64}}``); null where the text has none. With
            ``sampling.structured_outputs.json``, and no schemas of rows' own, there is a column ``parsed`` by itself.
        on_long_prompt: a prompt that with its ``max_tokens`` exceeds the model's length: "fail" its row, or cut
            tokens off at its begin ("truncate_left") or end ("truncate_right").
        special_tokens_in_text: a special token, such as ``<|im_end|>``, in a text of a row: "control" encodes it as
            that token, as other tools do, so a text can end its own turn; "text" as ordinary text; "fail" fails its
            row. Those of templates and of ``system_prompt`` are control tokens always.
        columns: input columns to pass through (None: all); columns that are read for prompts, ids or
            parameters need not be among them.
        column_prefix: put before the names of all result columns.
        include_token_ids: write the ``token_ids`` column.
        limit: read this many rows at most.
        mode: "resume" continues or starts; "error_if_exists" only starts; "new" discards the output there.
        actors: generate actors, each with an engine, a model and a KV pool of its own: a number, or a range
            (:class:`~pipeline.settings.pools.ActorRange`, in YAML ``{min: 1, max: 64}``) that follows the work.
        gpus_per_actor: "auto" is 1 where the cluster has GPUs or an ``accelerator_type`` is given, else 0. Below 1,
            actors share a GPU, and ``engine.gpu_memory_utilization`` is of an actor's part of it.
        cpus_per_actor: Ray CPUs reserved per actor; "auto" leaves a quarter of the cluster to other tasks.
        accelerator_type: actors run on nodes with this accelerator only, by Ray's name for it, such as "H100".
        resources_per_actor: custom Ray resources that an actor reserves, name -> amount.
        actors_per_node: actors on one node at most; None lets resources decide.
        pools: name -> :class:`~pipeline.settings.pools.PoolConfig`: several pools with resources and engines of their
            own, which take units from one queue. Each says how many actors it has; ``actors`` is then left out.
        num_threads: torch threads per actor; None is the cluster's CPUs over actors, at least 1.
        device, dtype: of the model, or "auto".
        unit_rows: input rows per unit; None sizes units by expected tokens.
        units_in_flight: units an actor works on at once; None takes units of about 8 times as many rows as the engine
            has slots.
        target_part_bytes: published files are closed when they reach about this size.
        max_engine_deaths: the job stops after this many deaths of generate actors in a row without a finished unit.
        drain_seconds: an actor that has to go (machine drained, spot notice, SIGTERM) takes no new unit, has this time
            to finish its units, and hands back the rest.
        stop_seconds: time for units in flight once the run is asked to stop (SIGTERM, Ctrl-C); "auto" fits
            in the time that ``ray job stop`` waits: 1.5 of 3 s, or more where RAY_JOB_STOP_WAIT_TIME_S says so.
        max_row_deaths: a row is quarantined after its process died this many times while the row ran alone.
        max_failed_fraction: stop once a larger share of the rows done (at least 100) has failed; 1 never stops.
        retry_failed: do the failed rows of the output again; those that succeed take their place.
        repair: check every published file, and generate the rows of those that are damaged or missing again.
        report: write the report of the output, ``__wedlm/report.html``, at the end.
        report_traces: rows of the report that are decoded once more, step by step, for its player; 0 leaves it out.
        price_per_hour: of one accelerator (of one CPU where actors reserve no accelerator), in any currency, for the
            cost in the summary.
        expect_autoscaling: start although the cluster lacks resources, because it will grow.
        output_format: of the published files: "parquet", "ipc" (Arrow, Feather version 2) or "jsonl".
        dataset_options: keyword arguments of ``datasets.load_dataset``; ``input`` is the data set's name then;
            ``split`` alone also chooses from a folder of datasets saved to disk.
        storage_options: keyword arguments for the file systems of input, output and model, where they are URLs.
            Secrets in them, as in ``dataset_options``, by reference: ``{"env": "NAME"}`` or ``{"file": "/path"}``.
        input_storage_options, output_storage_options: in place of ``storage_options`` for input or output.

    Raises:
        ConfigError: a value is out of range, or two contradict each other.
    """

    input: Any
    output: str
    input_format: Literal["auto", "rows", "openai-batch", "text"] = "auto"
    model: str = ""
    adapter: str | None = None
    served_model_names: Sequence[str] = ()
    revision: str | None = None
    generation_config: Literal["auto", "off"] = "auto"
    sampling: SamplingParams = field(default_factory=SamplingParams)
    engine: EngineConfig = field(default_factory=EngineConfig)
    seed: int = 0
    prompt_column: str | None = None
    messages_column: str | None = None
    token_ids_column: str | None = None
    turns_column: str | None = None
    prompt_template: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tools_column: str | None = None
    tool_choice: str | Mapping[str, str] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    chat_template_kwargs_column: str | None = None
    chat: bool = False
    system_prompt: str | None = None
    id_column: str | None = None
    sampling_columns: Mapping[str, str] = field(default_factory=dict)
    task: Score | None = None
    label_probabilities: bool = False
    reasoning_parser: str | Sequence[str] | None = None
    parse: Mapping[str, Parse] = field(default_factory=dict)
    on_long_prompt: Literal["fail", "truncate_left", "truncate_right"] = "fail"
    special_tokens_in_text: Literal["control", "text", "fail"] = "control"
    columns: Sequence[str] | None = None
    column_prefix: str = ""
    include_token_ids: bool = True
    limit: int | None = None
    mode: Literal["resume", "new", "error_if_exists"] = "resume"
    actors: int | ActorRange = 1
    gpus_per_actor: float | Literal["auto"] = "auto"
    cpus_per_actor: float | Literal["auto"] = "auto"
    accelerator_type: str | None = None
    resources_per_actor: Mapping[str, float] = field(default_factory=dict)
    actors_per_node: int | None = None
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    num_threads: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    unit_rows: int | None = None
    units_in_flight: int | None = None
    target_part_bytes: int = 256 * 2**20
    max_engine_deaths: int = 3
    stop_seconds: float | Literal["auto"] = "auto"
    max_row_deaths: int = 2
    drain_seconds: float = 20.0
    max_failed_fraction: float = 1.0
    retry_failed: bool = False
    repair: bool = False
    report: bool = True
    report_traces: int = 6
    price_per_hour: float | None = None
    expect_autoscaling: bool = False
    output_format: Literal["parquet", "ipc", "jsonl"] = "parquet"
    dataset_options: Mapping[str, Any] | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    input_storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    output_storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check ranges and contradictions; fix the types of collections."""
        self._split_model()
        self._check_places()
        require(isinstance(self.sampling_columns, Mapping), "sampling_columns", self.sampling_columns,
                "a mapping of sampling parameters to columns", "Write {max_tokens: my_column}.")  # fmt: skip
        object.__setattr__(self, "sampling_columns", dict(self.sampling_columns))
        given = self.chat_template_kwargs
        require(isinstance(given, Mapping) and all(isinstance(key, str) for key in given), "chat_template_kwargs",
                given, "a mapping of names to values", "Write {enable_thinking: false}, or leave it out.")  # fmt: skip
        object.__setattr__(self, "chat_template_kwargs", dict(given))
        object.__setattr__(self, "parse", parse_settings(self.parse))
        has_none = self.tools in ((), []) and self.tool_choice is None
        tools, choice = ([], None) if has_none else checked_tools(self.tools, self.tool_choice)
        object.__setattr__(self, "tools", tools)
        object.__setattr__(self, "tool_choice", "auto" if choice is None and tools else choice)
        if self.reasoning is not None and not isinstance(self.reasoning_parser, str):
            object.__setattr__(self, "reasoning_parser", list(self.reasoning_parser or ()))
        object.__setattr__(self, "task", None if self.task is None else task_of(self.task))
        check_values(self)
        if self.columns is not None:
            require(not isinstance(self.columns, str), "columns", self.columns, "a list of names", "Use [name].")
            object.__setattr__(self, "columns", tuple(self.columns))
        require(isinstance(self.sampling, SamplingParams), "sampling", self.sampling, "SamplingParams",
                "Pass SamplingParams(...), or a mapping in YAML.")  # fmt: skip
        require(isinstance(self.engine, EngineConfig), "engine", self.engine, "EngineConfig",
                "Pass EngineConfig(...), or a mapping in YAML.")  # fmt: skip
        names = self.served_model_names
        listed = isinstance(names, Sequence) and not isinstance(names, str)
        require(listed and all(isinstance(name, str) and name for name in names), "served_model_names", names,
                "a list of names", 'Write ["gpt-4o-mini"], or ["*"] for any.')  # fmt: skip
        object.__setattr__(self, "served_model_names", tuple(names))
        self._check_actors()
        self._check_prompts()
        self._check_task()
        require(not (self.retry_failed and self.mode == "new"), "retry_failed", True,
                "mode='new' discards the rows that failed", "Drop one of the two.")  # fmt: skip
        require(not (self.repair and self.mode == "new"), "repair", True,
                "mode='new' discards rows that could be repaired", "Drop one of the two.")  # fmt: skip
        known = {f.name for f in fields(SamplingParams)}
        unknown = [name for name in self.sampling_columns if name not in known]
        require(not unknown, "sampling_columns", unknown, f"keys are sampling parameters: {sorted(known)}",
                "Map a parameter to a column, for example max_tokens: my_column.")  # fmt: skip

    def _check_places(self) -> None:
        for name, example in (("output", "out/"), ("model", "tiny"), ("adapter", "my-adapter/")):
            value = getattr(self, name)
            if name == "adapter" and value is None:
                continue
            require(isinstance(value, (str, os.PathLike)), name, value, "a path, URL or name", f"Write {example!r}.")
            object.__setattr__(self, name, os.fspath(value))

    def _split_model(self) -> None:
        """Take a mapping of model and adapter apart."""
        given: Any = self.model
        if not isinstance(given, Mapping):
            return
        require(set(given) == {"path", "adapter"} and self.adapter is None, "model", dict(given),
                "a name, or a mapping of path and adapter", "Write {path: ..., adapter: ...}.")  # fmt: skip
        object.__setattr__(self, "model", given["path"])
        object.__setattr__(self, "adapter", given["adapter"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle: a process that receives a configuration masks its credentials, too."""
        self.__dict__.update(state)
        for name in OPTIONS:
            remember(state[name])

    def __repr__(self) -> str:
        """Every field; credentials in URLs and options are masked."""
        shown = ((f.name, getattr(self, f.name)) for f in fields(self))
        return f"RunConfig({', '.join(f'{name}={redact(repr(masked(value)))}' for name, value in shown)})"

    def literal_secrets(self) -> list[str]:
        """Where options or URLs hold credentials themselves, not references to them; dotted names."""
        urls = [name for name in PLACES if has_url_credentials(getattr(self, name))]
        return [*urls, *(place for name in OPTIONS for place in literal_secrets(getattr(self, name), name))]

    @property
    def parsed(self) -> dict[str, Parse]:
        """Every column that is read out of the texts: those of ``parse``, and that of a JSON schema of the run."""
        per_row = self.input_format == "openai-batch" or "structured_outputs" in self.sampling_columns
        found = parsed_columns(self.parse, self.sampling.structure, per_row=per_row)
        if self.reasoning is None:
            return found
        # The tag is not in the answer any more.
        close = self.reasoning.close
        return {name: replace(own, after=None) if own.after == close else own for name, own in found.items()}

    @property
    def reasoning(self) -> Tags | None:
        """The tags around the reasoning that is taken apart; None: it is not."""
        return None if self.reasoning_parser is None else tags_of(self.reasoning_parser)

    @property
    def has_scores(self) -> bool:
        """Whether it reads log-probabilities of given texts, as its task or in addition to generating."""
        return self.task is not None or self.label_probabilities

    @property
    def is_traceable(self) -> bool:
        """Whether a row is one generation, which can be decoded once more, step by step."""
        return self.task is None and self.turns_column is None

    @property
    def score_columns(self) -> list[pa.Field]:
        """The columns of log-probabilities of given texts."""
        if not self.has_scores:
            return []
        return score_columns(self.task, label_probabilities=self.label_probabilities)

    @property
    def model_name(self) -> str:
        """The model, and its adapter, as they are written into outputs: without credentials."""
        return redact_forms(self.model if self.adapter is None else f"{self.model} + {self.adapter}")

    @property
    def output_name(self) -> str:
        """The output as it is written into metrics: without credentials."""
        return redact_forms(self.output)

    def _check_prompts(self) -> None:
        given = [name for name in PROMPT_PLACES if getattr(self, name) is not None]
        require(len(given) <= 1, "prompt columns", given, "at most one may be set", "Keep the one to generate from.")
        if self.prompt_template is not None:
            check_template(self.prompt_template)
        if self.turns_column is not None:
            self._check_turns()

    def _check_turns(self) -> None:
        rule = "rows of turns_column are conversations, which do not take this setting"
        for name in ("task", "label_probabilities", "tools", "tools_column", "tool_choice"):
            require(not getattr(self, name), name, getattr(self, name), rule, "Leave it out.")
        require(self.on_long_prompt == "fail", "on_long_prompt", self.on_long_prompt,
                "with turns_column it would cut earlier turns", "Leave it out.")  # fmt: skip
        require(MESSAGES not in self.parse, "parse", MESSAGES, "turns_column makes a column of this name",
                "Rename this one.")  # fmt: skip

    def _check_task(self) -> None:
        require(self.reasoning is None or REASONING not in self.parse, "parse", REASONING,
                "reasoning_parser makes a column of this name", "Rename this one.")  # fmt: skip
        require(self.tool_choice is None or TOOL_CALLS not in self.parse, "parse", TOOL_CALLS,
                "tool_choice makes a column of this name", "Rename this one.")  # fmt: skip
        if self.task is None:
            return
        rule, remedy = "task=Score generates nothing", "Leave it out; sampling.logprobs=True is taken."
        plain = replace(SamplingParams(), logprobs=self.sampling.logprobs is True)
        differ = [f.name for f in fields(plain) if getattr(self.sampling, f.name) != getattr(plain, f.name)]
        for name in differ:
            require(False, f"sampling.{name}", getattr(self.sampling, name), rule, remedy)
        for name in ("sampling_columns", "label_probabilities", "reasoning_parser", "tool_choice"):
            require(not getattr(self, name), name, getattr(self, name), rule, "Leave it out.")

    def _check_actors(self) -> None:
        object.__setattr__(self, "actors", actor_range(self.actors))
        check_actors(self.actors)
        check_reserved(self)
        require(isinstance(self.pools, Mapping), "pools", self.pools, "a mapping of names to pools",
                "Write {fast: {actors: 2}}.")  # fmt: skip
        pools = {name: pool_config(name, given) for name, given in self.pools.items()}
        object.__setattr__(self, "pools", pools)
        require(not pools or self.actors == 1, "actors", self.actors, "each of the pools says how many it has",
                "Drop it, or pools.")  # fmt: skip
        devices = {run.device.partition(":")[0] for run in self.runs_of_pools().values()}
        require(self.dtype != "auto" or not {"cpu", "cuda"} <= devices, "dtype", self.dtype,
                "pools on CPU and on GPU would compute in different precisions",
                'Set it, for example "float32".')  # fmt: skip

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> RunConfig:
        """From nested plain data, as YAML gives it; ``sampling`` and ``engine`` are mappings of their own.

        Raises:
            ConfigError: unknown fields (the nearest known name is suggested) or bad values.
        """
        return build(cls, raw, root=cls)

    def runs_of_pools(self) -> dict[str, RunConfig]:
        """Name of each pool -> the run as its actors see it: a run of one pool. Without ``pools`` it is one run, "".

        Raises:
            ConfigError: a value of a pool does not fit the run.
        """
        if not self.pools:
            return {"": self}
        runs = {}
        for name, pool in self.pools.items():
            try:
                engine = replace(self.engine, **pool.engine)
                runs[name] = replace(self, pools={}, actors=pool.actors, engine=engine, **pool.overrides())
            except WeDLMError as error:
                raise ConfigError(f"pools.{name}: {error}") from error
        return runs

    @property
    def most_actors(self) -> int:
        """Actors at most, those of all pools together."""
        pools: Iterable[RunConfig | PoolConfig] = self.pools.values() or (self,)
        return sum(pool.actors.max if isinstance(pool.actors, ActorRange) else pool.actors for pool in pools)

    @property
    def actor_engine(self) -> EngineConfig:
        """``engine`` of one actor: if several share a GPU, each has its part of the memory."""
        share = self.gpus_per_actor
        if share == "auto" or not 0 < share < 1:
            return self.engine
        return replace(self.engine, gpu_memory_utilization=self.engine.gpu_memory_utilization * share)

    @property
    def input_options(self) -> dict[str, Any]:
        """Keyword arguments for the file system of the input."""
        return dict(self.storage_options if self.input_storage_options is None else self.input_storage_options)

    @property
    def output_options(self) -> dict[str, Any]:
        """Keyword arguments for the file system of the output."""
        return dict(self.storage_options if self.output_storage_options is None else self.output_storage_options)

    def resolved_unit_rows(self) -> int:
        """Rows per unit: as set, else so many that a unit is at most about 8k tokens, between 8 and 512."""
        if self.unit_rows is not None:
            return self.unit_rows
        generated = self.sampling.max_tokens * self.sampling.n
        tokens_per_row = max(1, generated if self.task is None else self.task.expected_tokens)
        return min(512, max(8, 8192 // tokens_per_row))

    def resolved_units_in_flight(self, unit_rows: int) -> int:
        """Units per actor: as set, else about 8 times the engine's slots in rows, between 2 and 64."""
        if self.units_in_flight is not None:
            return self.units_in_flight
        rows = 8 * self.engine.max_num_seqs
        each = self.sampling.n if self.task is None else max(1, len(self.task.choices))
        return min(_MOST_UNITS_IN_FLIGHT, max(2, -(-rows // (unit_rows * each))))

    def most_units_in_flight(self) -> int:
        """Upper bound of :meth:`resolved_units_in_flight`, known before the units are."""
        return self.units_in_flight or _MOST_UNITS_IN_FLIGHT


_MOST_UNITS_IN_FLIGHT = 64
