"""``validate``: everything that can be known to be wrong before a model is loaded or a GPU is taken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from pipeline import layout
from pipeline.actors.model import check_model, load_tokenizer
from pipeline.actors.tokenise import FAILURE, PROMPT_IDS, prepare_table
from pipeline.cluster import plan_actors, ray_session
from pipeline.codec import WeDLMError
from pipeline.config import RunConfig
from pipeline.errors import PipelineError, SinkError
from pipeline.job import Job, resolve_job
from pipeline.sources import source_of
from pipeline.storage import LocalStorage, Storage, open_storage
from pipeline.types import Unit

__all__ = ["Validation", "validate"]

_PROBE = f"{layout.SCRATCH}/probe"
_SAMPLE_ROWS = 64

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What was found.

    Attributes:
        problems: what would stop the run; empty when it can begin.
        warnings: rows among the first 64 that would fail, with their reasons.
        rows, files: size of the input.
        prompt_column: where the prompts are.
        max_prompt_tokens: longest prompt among the first 64 rows.
    """

    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    rows: int | None = None
    files: int | None = None
    prompt_column: str | None = None
    max_prompt_tokens: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the run can begin."""
        return not self.problems


def validate(config: RunConfig) -> Validation:
    """Check source, columns, model, tokenizer, sink and the cluster's resources. Generates nothing.

    Needs (or starts and ends) a Ray session for the last of these.
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
    attempt(lambda: _check_resources(config))
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder, layout.SCRATCH)
        job = attempt(lambda: resolve_job(config, source_of(config, storage), storage))
        facts: dict[str, Any] = {}
        if job is not None:
            facts = attempt(lambda: _facts(job, tokenises=tokenizer is not None)) or {}
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


def _check_resources(config: RunConfig) -> None:
    with ray_session():
        plan_actors(config)


def _facts(job: Job, *, tokenises: bool) -> dict[str, Any]:
    """Size of the input, and how its first rows fare."""
    slices = list(job.source.slices(_SAMPLE_ROWS))
    facts: dict[str, Any] = {
        "rows": sum(piece.num_rows for piece in slices),
        "files": len(job.source.files),
        "prompt_column": job.prompt_column,
    }
    if slices and tokenises:
        first = slices[0]
        table = prepare_table(next(job.source.read([first])), Unit(unit_id="sample", index=0, rows=first), job)
        lengths = [len(ids) for ids in table[PROMPT_IDS].to_pylist() if ids is not None]
        faults = ((i, why) for i, why in enumerate(table[FAILURE].to_pylist()) if why is not None)
        facts["max_prompt_tokens"] = max(lengths, default=None)
        facts["warnings"] = tuple(f"row {i}: {why}" for i, why in islice(faults, 10))
    return facts
