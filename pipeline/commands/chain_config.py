"""The settings of a chain: those of all stages, and those of each one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pipeline.codec import EngineConfig, SamplingParams, WeDLMError, explain
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.selection.settings import FilterConfig
from pipeline.settings.plain_data import build
from pipeline.sources.stage_rows import STAGE_ID
from pipeline.storage.urls import join

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_OF_FIRST = (
    "prompt_column", "messages_column", "token_ids_column", "turns_column", "prompt_template", "tools_column",
    "chat_template_kwargs_column", "id_column", "sampling_columns", "columns", "column_prefix", "limit", "parse",
    "task", "label_probabilities", "reasoning_parser", "tools", "tool_choice",
    "system_prompt", "chat", "input_format", "served_model_names",
)  # fmt: skip
"""Settings about the input's columns and prompts. Next to ``stages`` they are the first stage's."""
_OF_ALL = (
    "input", "output", "mode", "repair", "retry_failed", "unit_rows", "stop_seconds", "drain_seconds",
    "max_engine_deaths", "max_row_deaths", "price_per_hour", "expect_autoscaling", "dataset_options", "storage_options",
    "input_storage_options", "output_storage_options",
)  # fmt: skip
"""Settings of all stages together."""
_OF_ACTORS = (
    "model", "adapter", "revision", "engine", "device", "dtype", "actors", "pools", "gpus_per_actor", "cpus_per_actor",
    "accelerator_type", "resources_per_actor", "actors_per_node", "num_threads", "units_in_flight",
)  # fmt: skip
"""Settings of actors. Stages with equal values run on the same ones."""
_PROMPTS = ("prompt_template", "prompt_column", "messages_column", "token_ids_column", "turns_column")


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """A stage that generates.

    Attributes:
        name: its folder below the chain's output.
        run: the run it is. Of a later stage, ``columns`` is completed once those of the stage before are known.
        where: an SQL expression over the columns of the stage before; rows that fulfil it are read.
    """

    name: str
    run: RunConfig
    where: str | None = None

    def run_after(self, carried: Sequence[str]) -> RunConfig:
        """The run with its columns, once those are known that the stage before passes on."""
        return self.run if self.run.columns is not None else replace(self.run, columns=tuple(carried))


@dataclass(frozen=True, kw_only=True)
class FilterStage:
    """A stage at the end that keeps rows of the one before: a whole output, once that is published.

    Attributes:
        name: its folder below the chain's output.
        run: of its settings, where it writes, and ``mode``, count.
        filter: which rows to keep.
    """

    name: str
    run: RunConfig
    filter: FilterConfig


@dataclass(frozen=True, kw_only=True)
class ChainConfig:
    """A chain of stages; each generates for the rows of the one before.

    Attributes:
        base: the settings that the stages share. ``input`` is the first stage's; ``output`` the folder above theirs.
        stages: those that generate, in order, one or more.
        filters: the stages after these, in order.
        redo: the name of the first stage to run again; None to continue all.

    Raises:
        ConfigError: a value is out of range, or is not one of a stage's.
    """

    base: RunConfig
    stages: tuple[StageConfig, ...]
    filters: tuple[FilterStage, ...] = ()
    redo: str | None = None

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the stages that run on the same actors, group by group."""
        found: dict[int, list[int]] = {}
        for number, own in enumerate(self.stages):
            first = next(n for n, other in enumerate(self.stages) if _has_same_actors(own.run, other.run))
            found.setdefault(first, []).append(number)
        return tuple(map(tuple, found.values()))

    @classmethod
    def of(cls, base: RunConfig, stages: object, redo: str | None = None) -> ChainConfig:
        """From the shared settings and, for each stage, a mapping of its own ones, ``name`` among them."""
        if isinstance(stages, (str, Mapping)) or not isinstance(stages, Sequence) or len(stages) < 2:
            remedy = "Write - {name: generate}, - {name: judge, prompt_template: ...}; for one stage, generate does."
            raise ConfigError(explain("stages", stages, "a list of two stages or more", remedy))
        found: list[StageConfig | FilterStage] = []
        for number, given in enumerate(stages):
            found.append(_stage(base, given, number))
            names = [own.name for own in found]
            if names[-1].lower() in (name.lower() for name in names[:-1]):
                rule = "each stage has its own, in more than case: some file systems and stores fold it"
                raise ConfigError(explain("stages.name", names[-1], rule, "Rename one."))
            if isinstance(found[-1], StageConfig) and number and isinstance(found[-2], FilterStage):
                rule = "filters look at whole outputs, and are the last stages"
                remedy = "Put it last; in a stage that generates, where says which rows it reads."
                raise ConfigError(explain("stages.filter", names[-2], rule, remedy))
        if redo is not None and redo not in [own.name for own in found]:
            raise ConfigError(explain("redo", redo, f"one of the stages {[s.name for s in found]}", "Name one."))
        again = len(found) if redo is None else [own.name for own in found].index(redo)
        for number in range(again, len(found)):
            found[number] = replace(found[number], run=replace(found[number].run, mode="new"))
        return cls(
            base=base,
            stages=tuple(own for own in found if isinstance(own, StageConfig)),
            filters=tuple(own for own in found if isinstance(own, FilterStage)),
            redo=redo,
        )


def _has_same_actors(one: RunConfig, other: RunConfig) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _OF_ACTORS)


def _stage(base: RunConfig, given: object, number: int) -> StageConfig | FilterStage:
    place = f"stages[{number}]"
    if not isinstance(given, Mapping):
        raise ConfigError(explain(place, given, "a mapping of fields", "Write {name: judge, ...}."))
    own = dict(given)
    name = own.pop("name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        rule = "letters, digits and underscores, beginning with a letter: it is a folder, and the prefix of columns"
        raise ConfigError(explain(f"{place}.name", name, rule, "Write for example name: judge."))
    if "filter" in own:
        return _filter(base, own, name, place, number)
    where = own.pop("where", None)
    if where is not None and (not number or not isinstance(where, str) or not where.strip()):
        rule = "SQL text, in a stage after the first: it is about the rows of the stage before"
        raise ConfigError(explain(f"{place}.where", where, rule, 'Write for example where: "judge_score >= 4".'))
    if shared := [field for field in own if field in _OF_ALL]:
        rule = "all stages share it"
        raise ConfigError(explain(f"{place}.{shared[0]}", own[shared[0]], rule, "Write it next to stages."))
    if number and not any(own.get(field) for field in _PROMPTS):
        raise ConfigError(
            explain(f"{place} ({name})", own, f"a later stage names the source of its prompts, by one of {_PROMPTS}",
                    'Write for example prompt_template: "Rate this: {{ text }}".')
        )  # fmt: skip
    if number and own.get("id_column") is not None:
        rule = "a later stage has the row ids of the stage before"
        raise ConfigError(explain(f"{place}.id_column", own["id_column"], rule, "Leave it out."))
    return StageConfig(name=name, run=_run(base, own, name, number), where=where)


def _filter(base: RunConfig, own: Mapping[str, Any], name: str, place: str, number: int) -> FilterStage:
    if not number:
        raise ConfigError(explain(f"{place}.filter", own["filter"], "there is nothing before it", "Generate first."))
    others = [field for field in own if field != "filter"]
    if others or not isinstance(own["filter"], Mapping):
        rule = "a filter stage has a name and filter, a mapping"
        raise ConfigError(explain(place, {"name": name, **own}, rule, 'Write filter: {keep: "best 50%"}.'))
    try:
        chosen = FilterConfig.from_mapping({"selection_column": f"{name}_selection", **own["filter"]})
    except WeDLMError as error:
        raise ConfigError(f"stage {name!r}: {error}") from error
    output, mode, part = join(base.output, name), base.mode, base.target_part_bytes
    return FilterStage(
        name=name, filter=chosen, run=RunConfig(input=None, output=output, mode=mode, target_part_bytes=part)
    )


def _run(base: RunConfig, own: Mapping[str, Any], name: str, number: int) -> RunConfig:
    """The stage as a run."""
    values = {field.name: getattr(base, field.name) for field in fields(RunConfig)}
    values["output"] = join(base.output, name)
    if number:
        default = RunConfig(input=None, output=base.output)
        values |= {field: getattr(default, field) for field in _OF_FIRST}
        values |= {"input": None, "column_prefix": f"{name}_", "id_column": STAGE_ID, "dataset_options": None}
    if own.get("task") is not None:  # the others' sampling is not about it
        values["sampling"] = SamplingParams()
    try:
        if isinstance(own.get("sampling"), Mapping):
            made = build(SamplingParams, own["sampling"], "sampling.", root=RunConfig)  # names the unknown part
            given = {name: getattr(made, name) for name in own["sampling"]}
            own = {**own, "sampling": replace(values["sampling"], **given)}
        if isinstance(own.get("engine"), Mapping):
            build(EngineConfig, own["engine"], "engine.", root=RunConfig)
            own = {**own, "engine": replace(base.engine, **own["engine"])}
        return RunConfig.from_mapping({**values, **own})
    except WeDLMError as error:
        raise ConfigError(f"stage {name!r}: {error}") from error
