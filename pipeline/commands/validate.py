"""``validate``: checks everything that can be checked before a model is loaded or a GPU is reserved."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pipeline import layout
from pipeline.cluster.resources import surplus_actors
from pipeline.codec import WeDLMError
from pipeline.commands.run_checks import (
    Sample,
    check_foreign,
    check_resources,
    check_secrets,
    check_writable,
    on_this_cpu,
    plan_index,
    sample_rows,
)
from pipeline.commit.manifest import Manifest
from pipeline.commit.repair import find_published_damage, reading_error
from pipeline.commit.run_record import RunState
from pipeline.config import RunConfig
from pipeline.errors import OutputError, PipelineError
from pipeline.plan.corrections import Corrections, continued
from pipeline.plan.input_check import check_renamed
from pipeline.plan.job import Job, new_run_record, resolve_job
from pipeline.prompts.model_files import (
    ModelMemory,
    check_model,
    model_length,
    model_memory,
    model_notes,
    resolved_model,
)
from pipeline.prompts.structures import check_structure
from pipeline.sinks import check_format
from pipeline.sources import check_apart, check_files_apart, source_of
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage
from pipeline.storage.urls import is_url, local_path
from pipeline.types import PROMPT_COUNTS

_SHOWN = 10

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The result of a validation.

    Attributes:
        problems: reasons why the run cannot begin; empty if it can.
        warnings: a model without a mask token, or that does not fit in this machine's memory; actors that would have
            nothing to do; files below the input that are not read; and rows of a sample that would fail with their
            reasons (10 at most).
        rows, files: size of the input.
        prompt_column: the column of prompts ("prompt_template" if a template makes them).
        sampled_rows, failed_rows: size of a sample spread over the input, and how many of its rows would fail.
        max_prompt_tokens: longest prompt of the sample.
        blank_prompts, identical_prompts: prompts of the sample without a visible character, and prompts that equal an
            earlier one of it: signs of empty cells.
        model_length: limit of prompt tokens plus ``max_tokens``.
        memory: the model's part of an actor's memory, in each dtype.
    """

    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    rows: int | None = None
    files: int | None = None
    prompt_column: str | None = None
    sampled_rows: int = 0
    failed_rows: int = 0
    max_prompt_tokens: int | None = None
    blank_prompts: int = 0
    identical_prompts: int = 0
    model_length: int | None = None
    memory: ModelMemory | None = None

    @property
    def ok(self) -> bool:
        """Whether the run can begin."""
        return not self.problems


def validate(config: RunConfig) -> Validation:
    """Check source, columns, template, prompts, parameters, model, sink, an earlier run's settings, and resources.

    A run refuses the same: both call :mod:`pipeline.commands.run_checks`. Loads no model, starts no Ray (it asks a
    session that there is) and generates nothing. Only a run checks that ids of ``id_column`` are unique, and that ids
    of corrected rows are those of failed rows.
    """
    problems: list[str] = []

    def attempt(check: Callable[[], _T]) -> _T | None:
        try:
            return check()
        except (PipelineError, WeDLMError, OSError) as error:
            problems.append(f"{type(error).__name__}: {error}")
            return None

    attempt(lambda: check_secrets(config))
    attempt(lambda: check_apart(config.input, config.output))
    with _no_new_folders(config.output):
        attempt(lambda: check_writable(open_storage(config.output, layout.SCRATCH, config.output_options)))
    found_model = attempt(lambda: check_model(config))
    tokenizer = attempt(lambda: resolved_model(config).tokenizer) if not problems else None
    if tokenizer is not None:
        attempt(lambda: check_structure(config))
    attempt(lambda: check_resources(config))
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder, layout.SCRATCH)
        resolved = attempt(lambda: _resolved(config, storage))
        facts: dict[str, Any] = {}
        if resolved is not None:
            job, corrections = resolved
            found = None
            if corrections is not None:
                facts = {"files": 1, "rows": len(corrections.ids), "prompt_column": job.prompt_column}
            else:
                found = attempt(lambda: _facts(job, config, tokenises=tokenizer is not None))
            if found is not None:
                facts, sample = found
                attempt(sample.check)
            attempt(lambda: check_format(config.output_format, job.schema))
            if tokenizer is not None:
                attempt(lambda: _check_continues(config, job, corrections))
    if found_model is not None:
        facts["memory"] = memory = model_memory(config, found_model.config, on_cpu=on_this_cpu(config))
        short = (*model_notes(config, found_model.config), *(() if memory.shortfall is None else (memory.shortfall,)))
        facts["warnings"] = (*short, *facts.get("warnings", ()))
    return Validation(problems=tuple(problems), **facts)


@contextmanager
def _no_new_folders(output: str) -> Iterator[None]:
    """Remove, at the end of the block, the folders that it made for a local output, unless other processes use them."""
    path = None if is_url(output) else local_path(output) / layout.SCRATCH
    new = [] if path is None else [folder for folder in (path, *path.parents) if not folder.exists()]
    yield
    with suppress(OSError):
        for folder in new:
            folder.rmdir()


def _resolved(config: RunConfig, storage: LocalStorage) -> tuple[Job, Corrections | None]:
    """The job, with ``storage`` in place of the output; and the corrected rows of a retry that reads these.

    Raises:
        SourceError: the input cannot be read, or a file lies in the output.
    """
    old = None
    with suppress(PipelineError):  # reported where the output is checked, or the run is to be continued
        output = open_storage(config.output, layout.SCRATCH, config.output_options)
        old = RunState.load(output) if config.mode == "resume" else None
    source = source_of(config, storage, begun=None if old is None else old.input_base)
    if isinstance(config.input, (str, os.PathLike)):
        check_files_apart(source.files, config.output)
    corrections = None if old is None else continued(config, source, old, output, storage)
    return resolve_job(config, corrections.source if corrections else source, storage), corrections


def _check_continues(config: RunConfig, job: Job, corrections: Corrections | None) -> None:
    """Check that a run in the output was begun with the same settings and is whole, or is to be discarded."""
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    if config.mode == "new":
        return
    old = RunState.load(storage)
    if old is None:
        check_foreign(config, storage)
        return
    if config.mode == "error_if_exists":
        raise OutputError(f"{storage.url}: a run was begun there. Use mode='resume' to continue it, or another folder.")
    model = resolved_model(config)
    job = replace(job, model_params=dict(model.generation_defaults(config.generation_config).values))
    new, rows = new_run_record(job, model.digest(config.engine.smoothing)), None
    if corrections is None:
        check_renamed(job.source, old.files, storage.url)
    else:
        new, rows = replace(new, files={}), corrections.retry
    old.continued_by(new, storage.url, retry_failed=config.retry_failed, rows=rows)
    if not config.repair and (damages := find_published_damage(storage, Manifest.load(storage), prove=False)):
        raise reading_error(storage, damages)


def _facts(job: Job, config: RunConfig, *, tokenises: bool) -> tuple[dict[str, Any], Sample]:
    """Size of the input, findings of a sample, and the sample."""
    facts: dict[str, Any] = {"files": len(job.source.files), "prompt_column": job.prompt_column}
    with plan_index(job, config) as index:
        facts["rows"] = index.units.rows
        surplus = surplus_actors(config, len(index.units))
        sample = sample_rows(job, index.units) if tokenises else Sample()
    warnings = [] if surplus is None else [surplus]
    warnings += [f"not read: {job.unread.describe()}"] if job.unread.count else []
    warnings += sample.faults[:_SHOWN]
    facts |= {"warnings": tuple(warnings), "sampled_rows": sample.rows, "failed_rows": len(sample.faults)}
    if tokenises:
        facts |= {name: getattr(sample, name) for name in PROMPT_COUNTS}
        facts |= {"max_prompt_tokens": sample.max_prompt_tokens, "model_length": model_length(config)}
    return facts, sample
