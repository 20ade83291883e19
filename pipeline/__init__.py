"""Batch generation over Ray: rows in, rows out, each exactly once.

Knows tables, files, Ray and what is committed; does not know tensors, training or command lines. Names are resolved on
first use, so importing the package imports neither torch nor Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wedlm_batch.names import refuse_hidden

if TYPE_CHECKING:
    from pipeline.codec import EngineConfig, SamplingParams
    from pipeline.commands.estimate import Estimate, estimate
    from pipeline.commands.etl import EtlResult, etl
    from pipeline.commands.etl_config import EtlConfig
    from pipeline.commands.output_table import OutputTable
    from pipeline.commands.preview import preview
    from pipeline.commands.read import read
    from pipeline.commands.report import report
    from pipeline.commands.run import run
    from pipeline.commands.status import status
    from pipeline.commands.summary import RunResult, RunSummary
    from pipeline.commands.validate import Validation, validate
    from pipeline.commands.verify import Verification, verify
    from pipeline.config import RunConfig
    from pipeline.errors import (
        ClusterLostError,
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
        StoppedError,
        TooManyFailuresError,
    )
    from pipeline.pools import ActorRange, PoolConfig
    from pipeline.progress.figures import format_progress
    from pipeline.progress.observers import Observer
    from pipeline.progress.snapshot import Progress, Snapshot

if __name__ == "pipeline":
    refuse_hidden("wedlm_core")

__all__ = [
    "ActorRange",
    "ClusterLostError",
    "ConfigError",
    "DamagedError",
    "EngineConfig",
    "EngineDiedError",
    "Estimate",
    "EtlConfig",
    "EtlResult",
    "FingerprintError",
    "LeaseError",
    "LeaseLostError",
    "Observer",
    "OutputError",
    "OutputTable",
    "PipelineError",
    "PoolConfig",
    "Progress",
    "ResourceError",
    "RunConfig",
    "RunResult",
    "RunSummary",
    "SamplingParams",
    "SinkError",
    "Snapshot",
    "SourceError",
    "StoppedError",
    "TooManyFailuresError",
    "Validation",
    "Verification",
    "estimate",
    "etl",
    "format_progress",
    "preview",
    "read",
    "report",
    "run",
    "status",
    "validate",
    "verify",
]

_HOME = {
    **dict.fromkeys(("EngineConfig", "SamplingParams"), "codec"),
    "RunConfig": "config",
    **dict.fromkeys(("ActorRange", "PoolConfig"), "pools"),
    **dict.fromkeys(("Progress", "Snapshot"), "progress.snapshot"),
    "Observer": "progress.observers",
    "format_progress": "progress.figures",
    "OutputTable": "commands.output_table",
    "read": "commands.read",
    "status": "commands.status",
    **dict.fromkeys(("RunResult", "RunSummary"), "commands.summary"),
    "report": "commands.report",
    "run": "commands.run",
    **dict.fromkeys(("Estimate", "estimate"), "commands.estimate"),
    **dict.fromkeys(("Validation", "validate"), "commands.validate"),
    **dict.fromkeys(("Verification", "verify"), "commands.verify"),
    "preview": "commands.preview",
    **dict.fromkeys(("EtlResult", "etl"), "commands.etl"),
    "EtlConfig": "commands.etl_config",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
