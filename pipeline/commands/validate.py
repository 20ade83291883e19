"""``validate``: checks everything that can be checked before a model is loaded or a GPU is reserved."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline import layout
from pipeline.cluster.session import check_resources
from pipeline.codec import WeDLMError
from pipeline.commands.sample import prepared_sample
from pipeline.commit.run_record import RunState
from pipeline.config import RunConfig
from pipeline.errors import OutputError, PipelineError, SinkError
from pipeline.plan.job import Job, new_run_record, resolve_job
from pipeline.prompts.model_files import check_model, load_tokenizer, model_digest, model_length
from pipeline.prompts.tokenize import FAILURE, PROMPT_IDS, ROW_ID
from pipeline.sinks import check_format
from pipeline.sources import source_of
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage

__all__ = ["Validation", "validate"]

_PROBE = f"{layout.SCRATCH}/probe"
_SAMPLE_ROWS = 64

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The result of a validation.

    Attributes:
        problems: reasons why the run cannot begin; empty if it can.
        warnings: rows of a sample that would fail, with their reasons (10 at most).
        rows, files: size of the input.
        prompt_column: the column of prompts ("prompt_template" if a template makes them).
        sampled_rows, failed_rows: size of a sample spread over the input, and how many of its rows would fail.
        max_prompt_tokens: longest prompt of the sample.
        model_length: limit of prompt tokens plus ``max_tokens``.
    """

    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    rows: int | None = None
    files: int | None = None
    prompt_column: str | None = None
    sampled_rows: int = 0
    failed_rows: int = 0
    max_prompt_tokens: int | None = None
    model_length: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the run can begin."""
        return not self.problems


def validate(config: RunConfig) -> Validation:
    """Check source, columns, template, prompts, model, tokenizer, sink, an earlier run's settings, and resources.

    Loads no model and generates nothing; whether ids of ``id_column`` are unique is left to the run.

    Starts no Ray session: unless a cluster would be joined, the last of these asks this machine.
    """
    problems: list[str] = []

    def attempt(check: Callable[[], _T]) -> _T | None:
        try:
            return check()
        except (PipelineError, WeDLMError, OSError) as error:
            problems.append(f"{type(error).__name__}: {error}")
            return None

    attempt(lambda: _probe(open_storage(config.output, layout.SCRATCH, config.output_options)))
    attempt(lambda: check_model(config))
    tokenizer = attempt(lambda: load_tokenizer(config)) if not problems else None
    attempt(lambda: check_resources(config))
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder, layout.SCRATCH)
        job = attempt(lambda: resolve_job(config, source_of(config, storage), storage))
        facts: dict[str, Any] = {}
        if job is not None:
            facts = attempt(lambda: _facts(job, tokenises=tokenizer is not None)) or {}
            attempt(lambda: check_format(config.output_format, job.schema))
            if tokenizer is not None:
                attempt(lambda: _check_continues(config, job))
            if facts.get("sampled_rows") and facts["failed_rows"] == facts["sampled_rows"]:
                problems.append(
                    f"all {facts['sampled_rows']} sampled rows would fail; the first: {facts['warnings'][0]}"
                )
    return Validation(problems=tuple(problems), **facts)


def _probe(storage: Storage) -> None:
    """Write, read and delete one object."""
    try:
        with storage.create(_PROBE) as file:
            file.write(b"probe")
        if storage.read(_PROBE) != b"probe":
            raise OSError("what was written reads back otherwise")
        storage.delete(_PROBE)
        if not storage.keys(layout.STATE):
            storage.delete(layout.STATE)
    except OSError as error:
        raise SinkError(f"{storage.url}: cannot be written to ({error}). Check path, space and permissions.") from error


def _check_continues(config: RunConfig, job: Job) -> None:
    """Check that a run in the output was begun with the same settings, or is to be discarded."""
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    old = RunState.load(storage)
    if old is None or config.mode == "new":
        return
    if config.mode == "error_if_exists":
        raise OutputError(f"{storage.url}: a run was begun there. Use mode='resume' to continue it, or another folder.")
    old.continued_by(new_run_record(job, model_digest(config)), storage.url)


def _facts(job: Job, *, tokenises: bool) -> dict[str, Any]:
    """Size of the input, and the failures of a sample."""
    facts: dict[str, Any] = {"files": len(job.source.files), "prompt_column": job.prompt_column}
    if not tokenises:
        return {**facts, "rows": sum(piece.num_rows for piece in job.source.slices(_SAMPLE_ROWS))}
    facts["rows"], table = prepared_sample(job, _SAMPLE_ROWS)
    if table is not None:
        lengths = [len(ids) for ids in table[PROMPT_IDS].to_pylist() if ids is not None]
        faults = [
            f"row {row_id}: {why}"
            for row_id, why in zip(table[ROW_ID].to_pylist(), table[FAILURE].to_pylist(), strict=True)
            if why is not None
        ]
        facts |= {"sampled_rows": table.num_rows, "failed_rows": len(faults), "warnings": tuple(faults[:10])}
        facts |= {"max_prompt_tokens": max(lengths, default=None), "model_length": model_length(job.config)}
    return facts
