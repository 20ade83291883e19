"""Find prepared rows that would fail before anything is generated: by their prompts, or in an engine. No torch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import Failure, Request, SamplingParams, WeDLMError, params_of_row
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.prompts.model_files import model_length, resolved_model
from pipeline.prompts.tokenize import BLANK, CONTINUATIONS, FAILURE, FAILURE_CLASS, PARAMS, PROMPT_IDS, TURNS
from pipeline.types import PROMPT_COUNTS
from wedlm_core.config import ModelConfig
from wedlm_core.engine.scheduling.admission import Limits, check_request
from wedlm_core.model.memory import kv_bytes_per_token

_ANY = 2**62
"""Tokens of a pool whose size only the engine knows."""


def row_params(config: RunConfig, given: str | None) -> SamplingParams | Failure:
    """A row's sampling parameters: its own in JSON text, the run's, and the model's; or why they are invalid."""
    try:
        own = {name: value for name, value in json.loads(given or "{}").items() if value is not None}
        return (
            resolved_model(config)
            .generation_defaults(config.generation_config)
            .applied_to(params_of_row(config.sampling, own), own)
        )
    except Exception as error:  # this row's parameters are bad; the others are not
        return Failure.of(error)


def row_faults(table: pa.Table, job: Job) -> list[Failure | None]:
    """For each row of a table of :func:`~pipeline.prompts.tokenize.prepare_table` why it would fail, or None."""
    limits = _limits(job.config)
    names = (FAILURE_CLASS, FAILURE, PROMPT_IDS, PARAMS, CONTINUATIONS)
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    generates = job.config.task is None
    return [
        _refused(ids, row_params(job.config, given), [()] * generates + [tuple(own) for own in texts or ()], limits)
        if message is None
        else Failure(error_class=error_class, message=message)
        for error_class, message, ids, given, texts in rows
    ]


def _refused(
    ids: list[int], params: SamplingParams | Failure, continuations: Sequence[tuple[int, ...]], limits: Limits
) -> Failure | None:
    if isinstance(params, Failure):
        return params
    try:
        for own in continuations:
            request = Request(request_id="", prompt_token_ids=tuple(ids), params=params, continuation=own)
            check_request(request, limits)
    except WeDLMError as error:
        return Failure.of(error)
    return None


def _most_pool_tokens(config: RunConfig, model: ModelConfig) -> int:
    """KV entries that the pool of an actor has at most: where its dtype is not known here, the smallest one counts."""
    engine = config.engine
    if engine.num_pages is not None:
        return engine.num_pages * engine.page_size
    if engine.kv_cache_bytes is None:
        return _ANY
    dtype = "float32" if config.dtype == "float32" else "bfloat16"
    page_bytes = engine.page_size * kv_bytes_per_token(model, numbers=engine.kv_numbers(dtype))
    return max(1, engine.kv_cache_bytes // page_bytes) * engine.page_size


def _limits(config: RunConfig) -> Limits:
    """Limits of the run's engines on a request, as far as they are known without an engine."""
    model, engine = resolved_model(config).config, config.engine
    return Limits(
        vocab_size=model.vocab_size,
        max_model_len=model_length(config),
        max_window=engine.max_window,
        pool_tokens=_most_pool_tokens(config, model),
        page_size=engine.page_size,
        has_mask_token=model.mask_token_id is not None or resolved_model(config).tokenizer.mask_token_id is not None,
    )


def prompt_counts(table: pa.Table) -> dict[str, Any]:
    """Count over the rows of a table of :func:`~pipeline.prompts.tokenize.prepare_table`, by the names of the counts.

    Of several identical prompts, all but the first count. A prompt is blank if its row puts no visible character into
    it; a chat template around it does not matter. Rows that failed have no prompt. All turns count.
    """
    seen: set[tuple[bytes, str]] = set()
    later = map(str, table[TURNS].to_pylist() if TURNS in table.column_names else itertools.repeat(None))
    prompts = 0
    for chunk in table[PROMPT_IDS].chunks:
        ids, offsets = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_numpy()
        rows = zip(itertools.pairwise(offsets.tolist()), chunk.is_valid().to_pylist(), strict=True)
        for ((first, end), there), turns in zip(rows, later, strict=False):
            prompts += there
            if there:
                seen.add((ids[first:end].tobytes(), turns))
    blank = pc.sum(table[BLANK]).as_py() or 0 if BLANK in table.column_names else 0
    return dict(zip(PROMPT_COUNTS, (blank, prompts - len(seen)), strict=True))
