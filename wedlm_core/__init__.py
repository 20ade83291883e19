"""The WeDLM language model: network, training, and a batch inference engine (:class:`LLM`).

The engine has a paged KV pool, continuous batching and several decoding strategies. The package knows prompts, tokens
and tensors. It knows nothing of Ray, Arrow, data sets or clusters. Importing it is light: each public name is imported
when it is first used, so torch is loaded only by names that need it.
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
        CompletionOutput,
        Delta,
        Evidence,
        FinishReason,
        Generation,
        Logprob,
        Request,
        SamplingParams,
        ScoreOutput,
        Strategy,
        StructuredOutputs,
        Timings,
    )

__all__ = [
    "LLM",
    "CapacityError",
    "CommitStats",
    "CompletionOutput",
    "ConfigError",
    "Delta",
    "EngineConfig",
    "Evidence",
    "FinishReason",
    "Generation",
    "Logprob",
    "ModelConfig",
    "Request",
    "RequestError",
    "SamplingParams",
    "ScoreOutput",
    "Strategy",
    "StructuredOutputs",
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


def _imported(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'types')}"), name)


if not TYPE_CHECKING:  # a type checker would take any name for a member, also a misspelt one
    __getattr__ = _imported
