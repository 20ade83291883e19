"""``evaluate``: asks the questions of tasks through ordinary runs, and scores what they gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline import layout, stages
from pipeline.codec import redact_forms
from pipeline.commands.evaluate_config import EvaluationConfig, as_evaluation
from pipeline.commands.evaluate_samples import compare, judge_run
from pipeline.commands.read import read
from pipeline.commands.run import run
from pipeline.commands.summary import RunSummary
from pipeline.evaluation import report, sandbox
from pipeline.evaluation.results import Result
from pipeline.progress.log_lines import LINE_SECONDS
from pipeline.progress.observers import Observer
from pipeline.progress.snapshot import Progress
from pipeline.progress.views import ProgressMode
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage

__all__ = ["Evaluation", "evaluate"]

MARKDOWN, JSON = "evaluation.md", "evaluation.json"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A finished evaluation.

    Attributes:
        results: of every task in every setting, tasks first.
        markdown: the report, as it is in ``evaluation.md``.
        output: folder or URL of everything.
    """

    results: tuple[Result, ...]
    markdown: str
    output: str

    @property
    def all_failed(self) -> bool:
        """Whether nothing was generated for any question."""
        return all(result.counts.count("failed") == result.counts.questions for result in self.results)


def evaluate(
    config: EvaluationConfig | Mapping[str, Any],
    on_progress: Callable[[Progress], None] | None = None,
    *,
    progress: ProgressMode | Observer = "auto",
    progress_seconds: float = LINE_SECONDS,
) -> Evaluation:
    """Run every task in every setting, judge the answers, and write samples and a report.

    Each is a run of :func:`pipeline.run`, below ``config.output``: called again, it continues what was interrupted and
    generates nothing anew. Verdicts are made anew from the published rows.

    Args:
        config: tasks, settings and fields of a run; or a mapping of them, as a YAML file has it.
        on_progress: as for :func:`pipeline.run`, of each run.
        progress: how each run is shown, as for :func:`pipeline.run`.
        progress_seconds: as for :func:`pipeline.run`.

    Raises:
        ConfigError: an unknown task, setting or field, or code that nobody allowed to run.
        ResourceError: the sandbox for generated code cannot be set up here.
        PipelineError: as :func:`pipeline.run`.
    """
    if not isinstance(config, EvaluationConfig):
        config = as_evaluation(config)
    coding = [name for name in config.tasks if config.task(name).runs_code]
    barriers = sandbox.barriers() if coding else ()
    options = config.run_config(next(iter(config.tasks)), next(iter(config.settings))).output_options
    storage = open_storage(config.output, layout.SCRATCH, options)
    results = []
    shown = {"on_progress": on_progress, "progress": progress, "progress_seconds": progress_seconds}
    for name in config.tasks:
        found = [_measured(config, storage, name, setting, shown) for setting in config.settings]
        results += [_compared(config, storage, result) for result in found]
    facts = _facts(config, barriers)
    markdown = report.markdown(results, facts, config.confidence)
    storage.put(MARKDOWN, markdown.encode())
    storage.put(JSON, (json.dumps(report.plain(results, facts, config.confidence), indent=2) + "\n").encode())
    return Evaluation(results=tuple(results), markdown=markdown, output=config.output)


def _measured(
    config: EvaluationConfig,
    storage: Storage,
    name: str,
    setting: str,
    shown: Mapping[str, Any],
) -> Result:
    """Generate for a task in a setting, or continue, and judge."""
    own = config.run_config(name, setting)
    summary = run(config=own, **shown).summary
    with stages.stage(f"{name} judged in setting {setting}"):
        counts, groups = judge_run(
            read(own.output, storage_options=own.output_options),
            storage,
            name,
            setting,
            config.task(name),
            sandbox.Limits(seconds=config.code_seconds),
        )
    return Result(
        task=name,
        setting=setting,
        counts=counts,
        groups=groups,
        tokens_per_second=_speed(storage, name, setting, summary),
    )


def _compared(config: EvaluationConfig, storage: Storage, result: Result) -> Result:
    """With the comparison of a setting with the baseline."""
    if result.setting == config.baseline:
        return result
    assert config.baseline is not None
    return replace(result, comparison=compare(storage, result.task, config.baseline, result.setting, config.confidence))


def _speed(storage: Storage, name: str, setting: str, summary: RunSummary) -> float | None:
    """Tokens per second of a run that one call did from begin to end; kept, as a later call generates nothing."""
    key = f"speeds/{name}.{setting}.json"
    if summary.session.rows and summary.session.rows == summary.total.rows:
        storage.put(key, json.dumps({"tokens_per_second": summary.tokens_per_second}).encode())
        return summary.tokens_per_second
    if summary.session.rows:  # a continuation: no figure is the whole's
        storage.delete(key)
        return None
    return json.loads(storage.read(key))["tokens_per_second"] if storage.exists(key) else None


def _facts(config: EvaluationConfig, barriers: tuple[str, ...]) -> Mapping[str, Any]:
    """What a reader has to know to make the figures again."""
    first = config.run_config(next(iter(config.tasks)), next(iter(config.settings)))
    return {
        "model": first.model_name,
        "seed": first.seed,
        "chat": first.chat,
        "actors": config.run.get("actors", 1),
        "baseline": config.baseline,
        "confidence": config.confidence,
        "settings": {name: dict(values) for name, values in config.settings.items()},
        "tasks": {
            name: {
                "task": config.task(name).name,
                "input": redact_forms(str(given.input)) if isinstance(given.input, str) else "rows in memory",
                "shots": config.shots(name),
                "own examples": given.examples is not None,
                "sampling": _sampling(config, name),
                "limit": given.limit if given.limit is not None else config.run.get("limit"),
            }
            for name, given in config.tasks.items()
        },
        "sandbox": list(barriers),
    }


def _sampling(config: EvaluationConfig, name: str) -> Mapping[str, Any]:
    params = config.run_config(name, next(iter(config.settings))).sampling
    return {"max_tokens": params.max_tokens, "temperature": params.temperature, "stop": list(params.stop)}
