"""A stage of somebody else's Ray Data pipeline: actors whose engine threads answer batches of rows. Keeps no ledger.

Ray Data calls an actor with several batches at once, from threads of its own; their rows share the engine's forwards,
and a batch goes on as soon as its own last row is done.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline import layout
from pipeline.cluster.resources import ActorResources, connected_nodes, fit_actors
from pipeline.codec import masked_errors
from pipeline.config import RunConfig
from pipeline.errors import ResourceError
from pipeline.plan.job import Job, resolve_job
from pipeline.prompts.tokenize import CONTINUATIONS, FAILURE, PARAMS, PROMPT_IDS, ROW_ID, prepare_rows
from pipeline.settings.pools import ActorRange
from pipeline.storage.local import LocalStorage
from pipeline.types import Slice, SourceFile, Unit
from pipeline.worker.engine_thread import EngineThread
from pipeline.worker.load_engine import load_engine
from pipeline.worker.unit_worker import UnitWorker

if TYPE_CHECKING:
    from ray.data import Dataset

_ENGINE_DIED = 70
_QUEUED = 2
"""Batches sent to an actor in addition to those it runs, so that the next batch is there when one is done."""


class BatchSource:
    """A source that knows the columns of a batch; the rows come from the caller."""

    files = (SourceFile(key="batch", path="", digest="", stamp=""),)
    remedy = "Correct the rows before the stage."

    def __init__(self, schema: pa.Schema, input_format: str = "rows") -> None:
        self.schema, self.input_format = schema, input_format


class BatchJobs:
    """The job of each schema that batches come with: an empty block may lack the types of the others. Thread-safe."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._jobs: dict[pa.Schema, Job] = {}
        self._lock = threading.Lock()

    def of(self, schema: pa.Schema) -> Job:
        """The job over rows of these columns. Raises as :func:`pipeline.plan.job.resolve_job`."""
        schema = schema.remove_metadata()
        with self._lock:
            if schema not in self._jobs:
                # Nothing is written there.
                storage = LocalStorage(self._config.output, layout.SCRATCH)
                self._jobs[schema] = resolve_job(self._config, BatchSource(schema), storage)
            return self._jobs[schema]


def content_ids(prepared: pa.Table) -> list[str]:
    """Row ids that follow from the model's input: token ids, parameters, texts to score; without a prompt, its fault.

    The same wherever a batch begins and in whatever order batches come. Rows that ask the same have the same id, and so
    the same noise.
    """
    names = (PROMPT_IDS, PARAMS, FAILURE, CONTINUATIONS)
    rows = zip(*(prepared[name].to_pylist() for name in names), strict=True)
    texts = (json.dumps(row if row[-1] is not None else row[:-1]) for row in rows)
    return [hashlib.blake2b(text.encode(), digest_size=12).hexdigest() for text in texts]


class GenerateBatches:
    """The class of the stage's actors. Called from several threads at once."""

    def __init__(self, config: RunConfig, num_threads: int) -> None:
        self._config = config
        self._jobs = BatchJobs(config)
        self._numbers = itertools.count()
        self._workers: dict[int, UnitWorker] = {}
        self._lock = threading.Lock()
        with masked_errors():  # Ray writes them to its logs
            engine = load_engine(_job_without_rows(config), num_threads)
        self._engine = EngineThread(engine, on_fatal=_die, slots=config.engine.max_num_seqs)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The rows of a batch with their results; a row that fails has an ``error``."""
        with masked_errors():
            job = self._jobs.of(batch.schema)
            unit = Unit(
                unit_id=f"batch-{next(self._numbers)}",
                index=0,
                rows=Slice(file=0, first_row=0, num_rows=batch.num_rows),
            )
            prepared = prepare_rows(batch, range(batch.num_rows), unit, job)
            if self._config.id_column is None:
                ids = pa.array(content_ids(prepared), pa.string())
                prepared = prepared.set_column(prepared.schema.get_field_index(ROW_ID), ROW_ID, ids)
            return self._worker(job).generate(unit, prepared)

    def _worker(self, job: Job) -> UnitWorker:
        with self._lock:
            return self._workers.setdefault(id(job), UnitWorker(job, self._engine))


def _job_without_rows(config: RunConfig) -> Job:
    """A job to load the engine for, before any batch has come."""
    empty = pa.schema([])
    return Job(
        config=replace(config, input=None), source=BatchSource(empty), prompt_kind="text", prompt_column="",
        storage=LocalStorage(config.output, layout.SCRATCH), columns=empty, schema=empty, dead_schema=empty,
    )  # fmt: skip


def _die(error: BaseException) -> None:
    """End the process: its device cannot be trusted. Ray Data starts another one, and sends its batches again."""
    print(f"stage: ending this process: {error!r}", file=sys.stderr, flush=True)
    os._exit(_ENGINE_DIED)


def generate_batches(dataset: Dataset, config: RunConfig, *, rows: int, batches: int) -> Dataset:
    """``dataset`` with the result columns; nothing runs until it is consumed.

    Args:
        dataset: rows with a prompt.
        config: of the stage.
        rows: of a batch.
        batches: that an actor answers at once.

    Raises:
        SourceError, ConfigError: the columns are known already, and lack one that is named or have one of ours.
        ResourceError: the cluster has no room for the actors.
    """
    from ray.data import ActorPoolStrategy

    schema = dataset.schema(fetch_if_missing=False)
    if schema is not None and isinstance(schema.base_schema, pa.Schema):
        BatchJobs(config).of(pa.schema(schema.base_schema))
    own = stage_resources(config, connected_nodes())
    most = config.actors.max if isinstance(config.actors, ActorRange) else config.actors
    least = max(1, config.actors.min) if isinstance(config.actors, ActorRange) else config.actors
    pool = ActorPoolStrategy(
        min_size=least, max_size=most, initial_size=least, max_concurrent_calls_per_actor=batches,
        max_tasks_in_flight_per_actor=batches + _QUEUED, enable_true_multi_threading=True,
    )  # fmt: skip
    generate: Any = GenerateBatches  # takes and gives Arrow tables only, which Ray's types cannot say
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=DeprecationWarning)  # of max_restarts, which has no replacement yet
        return dataset.map_batches(
            generate, fn_constructor_args=(config, own.threads), batch_size=rows, batch_format="pyarrow", compute=pool,
            num_cpus=own.cpus, num_gpus=own.gpus or None, resources=dict(own.custom) or None,
            accelerator_type=own.accelerator_type, max_restarts=config.max_engine_deaths,
        )  # fmt: skip


def stage_resources(config: RunConfig, nodes: Sequence[Mapping[str, float]]) -> ActorResources:
    """The resources of each actor. With "auto", the actors share the CPUs but for one, which other steps need.

    Raises:
        ResourceError: the cluster has no room for the actors.
    """
    if config.expect_autoscaling or config.cpus_per_actor != "auto":
        return fit_actors(config, nodes)
    cpus = sum(node.get("CPU", 0.0) for node in nodes)
    share = math.floor(100 * (cpus - 1) / config.most_actors) / 100
    if share <= 0:
        raise ResourceError(
            f"actors={config.most_actors}: the cluster has {cpus:g} CPU and one is reserved for the other steps of the "
            "pipeline, so none is left for actors. Set cpus_per_actor, or give Ray more CPUs."
        )
    return fit_actors(replace(config, cpus_per_actor=min(1.0, share)), nodes)
