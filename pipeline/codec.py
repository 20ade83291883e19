"""The border to ``wedlm_core``: rows to Requests, Generations to Arrow columns. Pure; imports no torch.

With the actors it is the only part of the pipeline that knows ``wedlm_core``; what others need from there
(``SamplingParams``, ``EngineConfig``, ``explain``) they take from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import pyarrow as pa

from wedlm_core.config import EngineConfig
from wedlm_core.errors import CapacityError, RequestError, WeDLMError, explain
from wedlm_core.seeds import row_seed, sample_seed
from wedlm_core.types import CommitStats, FinishReason, Generation, Request, SamplingParams

__all__ = [
    "CapacityError",
    "EngineConfig",
    "Failure",
    "FinishReason",
    "Generation",
    "Request",
    "RequestError",
    "RowResult",
    "SamplingParams",
    "WeDLMError",
    "explain",
    "failed_columns",
    "generation_columns",
    "make_requests",
    "params_hash",
    "params_of_row",
    "result_arrays",
]

_PARAM_NAMES = tuple(f.name for f in fields(SamplingParams))
_STATS_NAMES = tuple(f.name for f in fields(CommitStats) if f.name != "generated_tokens")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a row failed: the class of the error, for counting, and a message for people."""

    error_class: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """From an exception."""
        return cls(error_class=type(error).__name__, message=str(error) or type(error).__name__)


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """The verdict on one input row: its generations in sample order, or a failure (then no generation)."""

    row_id: str
    params: SamplingParams | None = None
    generations: tuple[Generation, ...] = ()
    failure: Failure | None = None


def params_of_row(base: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """``base`` with a row's own values; a null keeps the base's.

    Raises:
        RequestError: a value is out of its range, of another type, or not a sampling parameter.
    """
    unknown = sorted(set(given) - set(_PARAM_NAMES))
    if unknown:
        raise RequestError(explain("sampling_columns", unknown, f"each is one of {list(_PARAM_NAMES)}", "Rename it."))
    own = {name: _integral(name, value) for name, value in given.items() if value is not None}
    return replace(base, **own) if own else base


def _integral(name: str, value: Any) -> Any:
    # A column of integers that holds a null is floating point in pandas and JSON tools: 48.0 means 48.
    whole = name in ("max_tokens", "top_k", "seed", "n", "window_size")
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def params_hash(params: SamplingParams) -> str:
    """16 hex digits that are equal iff the sampling parameters are, seed apart (it has its own column)."""
    plain = {k: v for k, v in asdict(params).items() if k != "seed"}
    return hashlib.blake2b(json.dumps(plain, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def make_requests(
    key: str, row_id: str, token_ids: Sequence[int], params: SamplingParams, run_seed: int
) -> list[Request]:
    """The ``params.n`` requests of one row.

    Args:
        key: unique among unfinished requests of the engine; sample numbers are appended.
        row_id: identity of the row; with ``run_seed`` it decides the noise, unless ``params.seed`` is set.
        token_ids: the prompt.
        params: of this row.
        run_seed: of the run.
    """
    prompt = tuple(token_ids)
    return [
        Request(
            request_id=f"{key}/{sample}",
            prompt_token_ids=prompt,
            params=params,
            seed=row_seed(run_seed, row_id, sample) if params.seed is None else sample_seed(params.seed, sample),
            sample_index=sample,
        )
        for sample in range(params.n)
    ]


def generation_columns(row: RowResult, generation: Generation, model: str) -> dict[str, Any]:
    """Values of the result columns (unprefixed names) for one generation."""
    assert row.params is not None
    stats, timings = generation.stats, generation.timings
    return {
        "row_id": row.row_id,
        "sample_index": generation.sample_index,
        "text": generation.text,
        "token_ids": list(generation.token_ids),
        "finish_reason": str(generation.finish_reason.value),
        "error": None,
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": len(generation.token_ids),
        "model": model,
        "strategy": str(row.params.strategy),
        "params_hash": params_hash(row.params),
        "seed": generation.seed,
        "logprobs": None if generation.logprobs is None else list(generation.logprobs),
        "stats": {
            **{name: getattr(stats, name) for name in _STATS_NAMES},
            "commit_histogram": list(stats.commit_histogram),
            "tokens_per_forward": stats.tokens_per_forward,
            "prefix_cacheability": stats.prefix_cacheability,
        },
        "timings": {"queue_seconds": timings.queue_seconds, "run_seconds": timings.run_seconds},
    }


def failed_columns(row: RowResult, model: str) -> dict[str, Any]:
    """Values of the result columns for a row that failed: one output row, whatever ``n`` is."""
    assert row.failure is not None
    return {
        "row_id": row.row_id,
        "sample_index": 0,
        "finish_reason": FinishReason.ERROR.value,
        "error": row.failure.message,
        "model": model,
        "strategy": None if row.params is None else str(row.params.strategy),
        "params_hash": None if row.params is None else params_hash(row.params),
    }


def result_arrays(values: Sequence[Mapping[str, Any]], fields_: Sequence[pa.Field], prefix: str) -> list[pa.Array]:
    """One array per output field from rows of unprefixed values; absent values are null."""
    return [pa.array([row.get(f.name.removeprefix(prefix)) for row in values], f.type) for f in fields_]
