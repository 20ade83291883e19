"""WeDLM: model, training, and an engine with a paged KV pool, continuous batching and streaming decoding.

Knows prompts, tokens and tensors; knows nothing of Ray, Arrow, files of rows or clusters. Names are
resolved on first use, so that importing the package (or its torch-free leaves) stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wedlm_core.config import EngineConfig, ModelConfig
    from wedlm_core.errors import CapacityError, ConfigError, RequestError, WeDLMError, WeightsError
    from wedlm_core.llm import LLM
    from wedlm_core.types import (
        CommitStats,
        Delta,
        FinishReason,
        Generation,
        Request,
        SamplingParams,
        Strategy,
        Timings,
    )

__all__ = [
    "LLM",
    "CapacityError",
    "CommitStats",
    "ConfigError",
    "Delta",
    "EngineConfig",
    "FinishReason",
    "Generation",
    "ModelConfig",
    "Request",
    "RequestError",
    "SamplingParams",
    "Strategy",
    "Timings",
    "WeDLMError",
    "WeightsError",
]

_HOME = {
    "LLM": "llm",
    "EngineConfig": "config",
    "ModelConfig": "config",
    **dict.fromkeys(("CapacityError", "ConfigError", "RequestError", "WeDLMError", "WeightsError"), "errors"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'types')}"), name)
