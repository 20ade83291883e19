"""The fields of ``EngineConfig`` as keyword arguments, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from wedlm_core.config.engine_config import StreamingSwitches
from wedlm_core.config.step_cost import StepCost


class EngineFields(TypedDict, total=False):
    """Each field of :class:`~wedlm_core.config.EngineConfig`; described there."""

    max_num_seqs: int
    max_batch_rows: int
    prefill_chunk: int | None
    max_window: int
    max_model_len: int | None
    page_size: int
    num_pages: int | None
    kv_cache_bytes: int | None
    gpu_memory_utilization: float
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "fp8_e4m3", "int8"]
    weight_dtype: Literal["auto", "int8", "int4", "fp8_e4m3"]
    quantised_head: bool
    smoothing: str
    prefix_caching: bool
    batch_invariant: bool | Literal["auto"]
    attention: str
    logits_chunk_rows: int
    logits_chunk_bytes: int
    seed: int
    step_cost: StepCost | None
    streaming: StreamingSwitches | Mapping[str, Any]
    history_drafts: bool | Literal["auto"]
    history_bytes: int
    overlap: bool | Literal["auto"]
    cuda_graphs: bool | Literal["auto"]
    graph_rows: int
    graph_seconds: float
    graph_bytes: int
    trace: bool
