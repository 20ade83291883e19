"""Batch generation over Ray: rows in, rows out, each exactly once.

Knows tables, files, Ray and commits; does not know tensors, training or command lines. Names are resolved on
first use, so importing the package imports neither torch nor Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wedlm_base.names import refuse_hidden

if TYPE_CHECKING:
    from pipeline.codec import EngineConfig, SamplingParams, StructuredOutputs
    from pipeline.commands.chain import chain
    from pipeline.commands.chain_config import ChainConfig
    from pipeline.commands.chain_summary import ChainResult, ChainSummary
    from pipeline.commands.estimate import Estimate, estimate
    from pipeline.commands.etl import EtlResult, etl
    from pipeline.commands.etl_config import EtlConfig
    from pipeline.commands.evaluate import Evaluation, evaluate
    from pipeline.commands.export import EXPORT_FORMATS, Exported, export
    from pipeline.commands.export_table import TableExported, export_table
    from pipeline.commands.filter import FilterResult, filter
    from pipeline.commands.hub_commit import Pushed
    from pipeline.commands.preview import preview
    from pipeline.commands.push import push
    from pipeline.commands.read import OutputTable, read
    from pipeline.commands.report import compare, report
    from pipeline.commands.run import run
    from pipeline.commands.stage import Stage, stage
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
    from pipeline.progress.snapshot import Progress, Snapshot
    from pipeline.progress.views import Observer
    from pipeline.reporting.comparison import Comparison
    from pipeline.selection.settings import DedupConfig, FilterConfig, OutlierConfig
    from pipeline.settings.parsing import Parse
    from pipeline.settings.pools import ActorRange, PoolConfig
    from pipeline.settings.scoring import Score
    from pipeline.sinks.table_sink import TABLE_FORMATS, ConflictError, TableCommit, TableFile, TableSink

if __name__ == "pipeline":
    refuse_hidden("wedlm_core")

__all__ = [
    "EXPORT_FORMATS",
    "TABLE_FORMATS",
    "ActorRange",
    "ChainConfig",
    "ChainResult",
    "ChainSummary",
    "ClusterLostError",
    "Comparison",
    "ConfigError",
    "ConflictError",
    "DamagedError",
    "DedupConfig",
    "EngineConfig",
    "EngineDiedError",
    "Estimate",
    "EtlConfig",
    "EtlResult",
    "Evaluation",
    "Exported",
    "FilterConfig",
    "FilterResult",
    "FingerprintError",
    "LeaseError",
    "LeaseLostError",
    "Observer",
    "OutlierConfig",
    "OutputError",
    "OutputTable",
    "Parse",
    "PipelineError",
    "PoolConfig",
    "Progress",
    "Pushed",
    "ResourceError",
    "RunConfig",
    "RunResult",
    "RunSummary",
    "SamplingParams",
    "Score",
    "SinkError",
    "Snapshot",
    "SourceError",
    "Stage",
    "StoppedError",
    "StructuredOutputs",
    "TableCommit",
    "TableExported",
    "TableFile",
    "TableSink",
    "TooManyFailuresError",
    "Validation",
    "Verification",
    "chain",
    "compare",
    "estimate",
    "etl",
    "evaluate",
    "export",
    "export_table",
    "filter",
    "preview",
    "push",
    "read",
    "report",
    "run",
    "stage",
    "status",
    "validate",
    "verify",
]

_HOME = {
    **dict.fromkeys(("EngineConfig", "SamplingParams", "StructuredOutputs"), "codec"),
    "RunConfig": "config",
    "Parse": "settings.parsing",
    "Score": "settings.scoring",
    "chain": "commands.chain",
    "ChainConfig": "commands.chain_config",
    **dict.fromkeys(("ChainResult", "ChainSummary"), "commands.chain_summary"),
    **dict.fromkeys(("ActorRange", "PoolConfig"), "settings.pools"),
    **dict.fromkeys(("Progress", "Snapshot"), "progress.snapshot"),
    "Observer": "progress.views",
    "OutputTable": "commands.read",
    "filter": "commands.filter",
    "FilterResult": "commands.filter",
    **dict.fromkeys(("DedupConfig", "FilterConfig", "OutlierConfig"), "selection.settings"),
    "read": "commands.read",
    "status": "commands.status",
    **dict.fromkeys(("RunResult", "RunSummary"), "commands.summary"),
    **dict.fromkeys(("compare", "report"), "commands.report"),
    "Comparison": "reporting.comparison",
    "run": "commands.run",
    **dict.fromkeys(("Stage", "stage"), "commands.stage"),
    **dict.fromkeys(("Estimate", "estimate"), "commands.estimate"),
    **dict.fromkeys(("Validation", "validate"), "commands.validate"),
    **dict.fromkeys(("Verification", "verify"), "commands.verify"),
    "preview": "commands.preview",
    **dict.fromkeys(("EtlResult", "etl"), "commands.etl"),
    "EtlConfig": "commands.etl_config",
    "Pushed": "commands.hub_commit",
    "push": "commands.push",
    **dict.fromkeys(("TableExported", "export_table"), "commands.export_table"),
    **dict.fromkeys(("TABLE_FORMATS", "ConflictError", "TableCommit", "TableFile", "TableSink"), "sinks.table_sink"),
    **dict.fromkeys(("EXPORT_FORMATS", "Exported", "export"), "commands.export"),
    **dict.fromkeys(("Evaluation", "evaluate"), "commands.evaluate"),
}


def _imported(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)


if not TYPE_CHECKING:  # a type checker would take any name for a member, also a misspelt one
    __getattr__ = _imported
