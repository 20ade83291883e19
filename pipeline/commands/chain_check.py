"""Checks that the stages of a chain fit the columns of what they read, before anything is discarded or generated."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.commands.chain_config import ChainConfig
from pipeline.commands.chain_stage import naming
from pipeline.commands.run_checks import check_input, spooled
from pipeline.commit.index import Index
from pipeline.commit.run_record import Origin
from pipeline.config import RunConfig
from pipeline.plan.job import Job, resolve_job
from pipeline.plan.stage_before import StageBefore
from pipeline.schema import SCHEMA_VERSION
from pipeline.selection.select import Selection
from pipeline.storage.protocol import Storage

__all__ = ["check_before_discarding", "check_later_stages"]


def check_before_discarding(config: ChainConfig, storages: Sequence[Storage]) -> list[str]:
    """:func:`check_later_stages` where the first stage is about to discard what is there.

    Returns:
        Keys of the first stage's output that stay, see :func:`~pipeline.commands.run_checks.spooled`.

    Raises:
        ConfigError, SourceError: see :func:`~pipeline.commands.run_checks.check_input`.
        ConfigError, SourceError, ResourceError: see :func:`check_later_stages`.
    """
    first = config.stages[0].run
    if first.mode != "new":
        return []
    with naming(config.stages[0].name):
        job = check_input(first, storages[0])
    check_later_stages(config, job, storages)
    return spooled(job, storages[0])


def check_later_stages(config: ChainConfig, first: Job, storages: Sequence[Storage]) -> None:
    """Check prompts, columns and conditions of the later stages, and the filters at the end. Reads no rows.

    Args:
        config: the chain.
        first: the job of its first stage.
        storages: of the stages that generate.

    Raises:
        ConfigError, SourceError: a column is not there, or an expression is none; names the stage.
        ResourceError: a library that an expression needs is not installed.
    """
    job, name = first, config.stages[0].name
    with Index() as index:
        for own, storage in zip(config.stages[1:], storages[1:], strict=True):
            before = StageBefore(name=name, settings="", job=job, index=index, where=own.where)
            with naming(own.name):
                run = own.run_after(before.carried)
                job, name = resolve_job(run, before.rows, storage, version=_version(run, storage)), own.name
    schema, prefix = job.schema, job.config.column_prefix
    for kept in config.filters:
        with naming(kept.name), Selection(kept.filter, schema, prefix) as selection:
            schema = selection.schema


def _version(run: RunConfig, storage: Storage) -> int:
    """Of the output's columns: the one that it was begun with, unless that is discarded."""
    return SCHEMA_VERSION if run.mode == "new" else Origin.of(storage).schema_version
