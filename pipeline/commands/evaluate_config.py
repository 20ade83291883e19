"""EvaluationConfig: which tasks are asked in which settings, and how the runs are made of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pipeline.codec import SamplingParams, explain
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.evaluation.plugins import task_named
from pipeline.evaluation.task import Row, Task
from pipeline.settings.pools import is_int
from pipeline.settings.pools import require as _require
from pipeline.storage.urls import is_url, join

__all__ = ["EvaluationConfig", "TaskInput", "as_evaluation"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=-]*")
_NOT_HERE = ("input", "output", "sampling_columns", "prompt_column", "messages_column", "token_ids_column",
             "prompt_template", "columns", "column_prefix", "include_token_ids", "id_column", "mode")  # fmt: skip
_SHORT = {"strategy": "", "window_size": "w", "entropy_threshold": "tau", "position_penalty": "lambda"}


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """A task and its data.

    Attributes:
        input: as ``RunConfig.input``; a relative path begins in ``EvaluationConfig.data``.
        task: name of the task; None where the key says it.
        shots: examples in front of each question; None takes the task's number.
        examples: rows in the data set's layout, in place of the task's own.
        sampling: fields of ``SamplingParams``, in place of the task's.
        limit: rows at most.
        dataset_options: as in ``RunConfig``.
    """

    input: Any
    task: str | None = None
    shots: int | None = None
    examples: Sequence[Row] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    dataset_options: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """An evaluation: every task in every setting is a run of its own, below ``output``.

    Attributes:
        output: folder or URL; has a run in ``TASK/SETTING`` each, ``samples/``, ``evaluation.md``, ``evaluation.json``.
        tasks: a name -> its data. The name is that of the task, unless ``TaskInput.task`` says another one.
        settings: a name -> fields of ``SamplingParams`` (strategy, window_size, entropy_threshold, ...).
        grid: a field -> values; every combination is a further setting.
        baseline: the setting that the others are compared with, question by question; None takes the first.
        data: folder or URL in front of relative inputs.
        execute_code: run what the model wrote, in a sandbox, for tasks that need it.
        code_seconds: processor time of such a program.
        confidence: of the intervals.
        run: all other fields of ``RunConfig``: model (the shipped one by default), actors, engine, chat, limit, ...

    Raises:
        ConfigError: no task or setting, unknown names, or values that contradict each other.
    """

    output: str
    tasks: Mapping[str, TaskInput]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    baseline: str | None = None
    data: str | None = None
    execute_code: bool = False
    code_seconds: float = 10.0
    confidence: float = 0.95
    run: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check names, expand the grid, and make every run's configuration once."""
        _require(isinstance(self.tasks, Mapping) and bool(self.tasks), "tasks", self.tasks,
                 "at least one, as a mapping of names to inputs", "Write gsm8k: {input: test.jsonl}.")  # fmt: skip
        for name in ("settings", "grid", "run"):
            _require(isinstance(getattr(self, name), Mapping), name, getattr(self, name), "a mapping", "See the docs.")
        settings = {**self.settings, **dict(_combinations(self.grid))} or {"verified": {"strategy": "verified"}}
        object.__setattr__(self, "settings", settings)
        tasks = {name: _task_input(name, given) for name, given in self.tasks.items()}
        object.__setattr__(self, "tasks", tasks)
        for name in (*tasks, *settings):
            _require(isinstance(name, str) and bool(_NAME.fullmatch(name)), "name of a task or setting", name,
                     "letters, digits, _ . = and -, as it names a folder", "Rename it.")  # fmt: skip
        for name in _NOT_HERE:
            _require(name not in self.run, name, self.run.get(name), "an evaluation decides this itself", "Drop it.")
        if self.baseline is None:
            object.__setattr__(self, "baseline", next(iter(settings)))
        _require(self.baseline in settings, "baseline", self.baseline, f"one of {list(settings)}", "Name a setting.")
        _require(isinstance(self.confidence, float) and 0 < self.confidence < 1, "confidence", self.confidence,
                 "a number between 0 and 1", "Use 0.95.")  # fmt: skip
        seconds = self.code_seconds
        _require(is_int(seconds) or isinstance(seconds, float), "code_seconds", seconds, "a number", "Use 10.")
        _require(0 < seconds <= 3600, "code_seconds", seconds, "above 0 and up to 3600", "Use 10.")
        coding = [name for name in tasks if self.task(name).runs_code]
        _require(self.execute_code or not coding, "execute_code", self.execute_code,
                 f"{coding} is scored by running what the model writes, which nobody has read",
                 "Say --execute-code if this machine may run it in a sandbox, or leave the task out.")  # fmt: skip
        for task, setting in itertools.product(tasks, settings):
            self.run_config(task, setting)

    def task(self, name: str) -> Task:
        """The task behind one of ``tasks``."""
        return task_named(self.tasks[name].task or name)

    def shots(self, name: str) -> int:
        """How many examples stand in front of a question."""
        given = self.tasks[name].shots
        return self.task(name).shots if given is None else given

    def run_config(self, name: str, setting: str) -> RunConfig:
        """The run of a task in a setting."""
        task, given = self.task(name), self.tasks[name]
        own = {"max_tokens": task.max_tokens, "temperature": task.temperature, "stop": task.stop}
        base = dict(self.run.get("sampling") or {})
        sampling = {**own, **base, **given.sampling, **self.settings[setting]}
        limit = given.limit if given.limit is not None else self.run.get("limit")
        config = RunConfig.from_mapping(
            {
                "model": "tiny",
                **self.run,
                "input": self._located(given.input),
                "output": join(self.output, f"{name}/{setting}"),
                "sampling": sampling,
                "prompt_template": task.prompt_template(given.shots, given.examples),
                "columns": task.columns,
                "limit": limit,
                "dataset_options": given.dataset_options or self.run.get("dataset_options"),
            }
        )
        params: SamplingParams = config.sampling
        _require(params.n == 1, "sampling.n", params.n, "an evaluation takes one answer to a question", "Drop it.")
        return config

    def _located(self, given: Any) -> Any:
        if self.data is None or not isinstance(given, str) or is_url(given) or given.startswith(("/", "~")):
            return given
        return join(self.data, given)


def as_evaluation(raw: Mapping[str, Any]) -> EvaluationConfig:
    """From nested plain data, as YAML gives it: own fields by their names, the others are those of ``RunConfig``.

    Raises:
        ConfigError: as :class:`EvaluationConfig`.
    """
    own = {f.name for f in fields(EvaluationConfig)} - {"run"}
    missing = [name for name in ("output", "tasks") if not raw.get(name)]
    if missing:
        raise ConfigError(f"{' and '.join(missing)}: an evaluation needs them. Write tasks: {{gsm8k: {{input: "
                          "test.jsonl}}, or --tasks gsm8k=test.jsonl --output out/evaluation.")  # fmt: skip
    run = {name: value for name, value in raw.items() if name not in own}
    return EvaluationConfig(**{name: value for name, value in raw.items() if name in own}, run=run)


def _task_input(name: str, given: Any) -> TaskInput:
    if isinstance(given, TaskInput):
        return given
    if not isinstance(given, Mapping):
        return TaskInput(input=given)
    known = [f.name for f in fields(TaskInput)]
    unknown = [key for key in given if key not in known]
    rule = f"fields are {known}"
    if unknown or "input" not in given:
        raise ConfigError(explain(f"tasks.{name}", unknown or "no input", rule, "Write {input: test.jsonl}."))
    return TaskInput(**given)


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every combination of a grid's values, by a name that tells them."""
    for name, values in grid.items():
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        _require(listed and len(values) > 0, f"grid.{name}", values, "a list of values", f"Write {name}: [...].")
    if not grid:
        return
    for values in itertools.product(*grid.values()):
        fields_ = dict(zip(grid, values, strict=True))
        yield "-".join(f"{_SHORT.get(name, name)}{value}" for name, value in fields_.items()), fields_
