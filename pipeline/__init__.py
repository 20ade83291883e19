"""Rows in, rows out, exactly once: batch generation over Ray Data.

Knows tables, files, Ray and what was committed; knows nothing of tensors, training or command lines. Names
are resolved on first use, so that importing the package pulls in neither torch nor Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.codec import EngineConfig, SamplingParams
    from pipeline.config import RunConfig
    from pipeline.errors import (
        ConfigError,
        DamagedError,
        EngineDiedError,
        FingerprintError,
        LeaseError,
        LeaseLostError,
        OutputError,
        PipelineError,
        ResourceError,
        SinkError,
        SourceError,
        TooManyFailuresError,
    )
    from pipeline.estimating import Estimate, estimate
    from pipeline.inspecting import status
    from pipeline.previewing import preview
    from pipeline.progress import Progress, format_progress
    from pipeline.reading import read
    from pipeline.results import RunResult, RunSummary
    from pipeline.running import run
    from pipeline.validating import Validation, validate
    from pipeline.verifying import Verification, verify

__all__ = [
    "ConfigError",
    "DamagedError",
    "EngineConfig",
    "EngineDiedError",
    "Estimate",
    "FingerprintError",
    "LeaseError",
    "LeaseLostError",
    "OutputError",
    "PipelineError",
    "Progress",
    "ResourceError",
    "RunConfig",
    "RunResult",
    "RunSummary",
    "SamplingParams",
    "SinkError",
    "SourceError",
    "TooManyFailuresError",
    "Validation",
    "Verification",
    "estimate",
    "format_progress",
    "preview",
    "read",
    "run",
    "status",
    "validate",
    "verify",
]

_HOME = {
    **dict.fromkeys(("EngineConfig", "SamplingParams"), "codec"),
    "RunConfig": "config",
    **dict.fromkeys(("Progress", "format_progress"), "progress"),
    "read": "reading",
    "status": "inspecting",
    **dict.fromkeys(("RunResult", "RunSummary"), "results"),
    "run": "running",
    **dict.fromkeys(("Estimate", "estimate"), "estimating"),
    **dict.fromkeys(("Validation", "validate"), "validating"),
    **dict.fromkeys(("Verification", "verify"), "verifying"),
    "preview": "previewing",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
