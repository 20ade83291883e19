"""Checks that ``validate`` reports, and the other commands make before they start anything expensive."""

from __future__ import annotations

import itertools
import logging
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline import layout
from pipeline.cluster.resources import connected_nodes, fit_pools, is_private, local_node
from pipeline.cluster.session import ray_session, stays_on_this_machine
from pipeline.codec import TemplateLimitError
from pipeline.commit.index import Index, PlannedUnits
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, OutputError, SinkError, SourceError
from pipeline.plan.input_check import check_unique_ids
from pipeline.plan.job import Job, resolve_job
from pipeline.plan.units import check_any_rows, plan_units
from pipeline.prompts.model_files import check_model, model_notes
from pipeline.prompts.row_faults import prompt_counts, row_faults
from pipeline.prompts.structures import check_structure
from pipeline.prompts.tokenize import FAILURE_CLASS, PROMPT_IDS, ROW_ID, prepare_table
from pipeline.sinks import FORMATS
from pipeline.sources import source_of
from pipeline.storage.local import LocalStorage
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import join
from pipeline.types import Unit
from pipeline.worker.load_engine import check_attention, count_gpus

_FEW = 3
_SMALL_UNIT = 8
"""Rows of a unit where a sample is spread over units: it is taken from many places."""


def sample_units(units: PlannedUnits, rows: int, spread: int | None = None) -> list[Unit]:
    """The first rows of evenly spread units (``spread`` at most), ``rows`` rows in all at most."""
    every = len(units)
    count = min(every, rows, spread or rows)
    if not count:
        return []
    share, left = divmod(rows, count)
    sample = []
    for i in range(count):
        unit = units[i * every // count]
        take = min(share + (i < left), unit.rows.num_rows)
        sample.append(replace(unit, rows=replace(unit.rows, num_rows=take)))
    return sample


def prepared_sample(job: Job, units: PlannedUnits, rows: int, spread: int | None = None) -> pa.Table:
    """A sample of the input, prepared as for a generate actor.

    If the template exceeds its limits for all of the first rows, only those are the sample: every other row would take
    as long.
    """
    sample = sample_units(units, rows, spread)
    first = sample[0].rows
    few = _prepared(replace(sample[0], rows=replace(first, num_rows=min(_FEW, first.num_rows))), job)
    if set(few[FAILURE_CLASS].to_pylist()) == {TemplateLimitError.__name__}:
        return few
    return pa.concat_tables([_prepared(unit, job) for unit in sample])


def _prepared(unit: Unit, job: Job) -> pa.Table:
    return prepare_table(next(job.sliced.read([unit.rows])), unit, job)


_LOG = logging.getLogger(__name__)

SAMPLE_ROWS = 64
_PROBE = f"{layout.SCRATCH}/probe"
_FIRST_LOOK = 4
"""Units that a run reads from at first; only if all these rows would fail, it looks at as many as ``validate``."""


def check_setup(config: RunConfig) -> None:
    """Check model and resources; where a Ray session is to be joined, the resources are left to that.

    Raises:
        ConfigError: see :func:`check_secrets`.
        WeightsError, ConfigError: see :func:`~pipeline.prompts.model_files.check_model` and
            :func:`~pipeline.prompts.structures.check_structure`.
        ResourceError: see :func:`check_resources`.
    """
    check_secrets(config)
    for note in model_notes(config, check_model(config).config):
        _LOG.warning(note)
    check_structure(config)
    if is_private():
        check_resources(config, runs=True)


def check_secrets(config: RunConfig) -> None:
    """Check that a configuration that is sent to other machines holds no credentials, only references to them.

    Raises:
        ConfigError: it does.
    """
    found = config.literal_secrets()
    if not found or stays_on_this_machine():
        return
    urls = [name for name in found if name in ("input", "output", "model")]
    if urls:
        raise ConfigError(
            f"{', '.join(urls)}: credentials in the URL, and on a cluster they would be stored and sent to every node. "
            "Give them in storage_options, as {env: NAME} or {file: /path} (each node has the variable or file). "
            "If only a signed URL gives the file, copy it to where the nodes can read it."
        )
    raise ConfigError(
        f"{', '.join(found)}: given literally, and on a cluster that would be stored and sent to every node. Write "
        "{env: NAME} or {file: /path} (each node has the variable or file), or leave it out where the nodes have "
        "a role or profile."
    )


def check_writable(storage: Storage) -> None:
    """Write, read and delete one object of the output.

    Raises:
        OutputError: that fails.
    """
    probe = f"{_PROBE}-{uuid.uuid4().hex[:12]}"  # of several processes each has its own
    try:
        storage.put(probe, b"probe")
        with suppress(FileNotFoundError):  # the holder of the lease has swept unfinished files
            if storage.read(probe) != b"probe":
                raise OSError("the bytes read back are not the bytes written")
        storage.delete(probe)
    except (OSError, SinkError) as error:
        raise OutputError(
            f"{storage.url}: cannot be written to ({error}). Check path, space and permissions."
        ) from error


def check_input(config: RunConfig, storage: Storage) -> Job:
    """The job of a new run whose input can be read, before anything is removed for it.

    Raises:
        ConfigError, SourceError: the input cannot be read, lacks a column, has no rows, or all its rows would fail.
    """
    job = resolve_job(config, source_of(config, storage), storage)
    with plan_index(job, config, most=_FIRST_LOOK if job.config.id_column is None else None) as index:
        if job.config.id_column is not None:
            check_unique_ids(job.source, index.units, job.config.id_column, derives=job.prompt_kind == "request")
        looked = sample_rows(job, index.units, spread=_FIRST_LOOK)
    if looked.all_fail:
        with plan_index(job, config) as index:
            sample_rows(job, index.units).check()
    return job


def spooled(job: Job, storage: Storage) -> list[str]:
    """Keys of the files of a job's input that lie in its output: rows in memory are written there."""
    place = join(storage.url, "")
    return [file.path.removeprefix(place) for file in job.source.files if file.path.startswith(place)]


def check_foreign(config: RunConfig, storage: Storage) -> None:
    """Check that an output without a run holds no tables of others, which readers would mix with ours.

    Raises:
        OutputError: it does.
    """
    suffix = FORMATS[config.output_format].suffix
    there = itertools.chain.from_iterable(storage.walk("."))
    foreign = next((key for key in there if key.endswith(suffix) and layout.STATE not in key), None)
    if foreign is not None:
        raise OutputError(
            f"{storage.url}: holds {foreign!r}: files of another program, or of a run whose state folder is gone. "
            "Write to an empty folder; mode='new' discards published rows."
        )


def check_resources(config: RunConfig, *, runs: bool = False) -> None:
    """Check that the cluster can hold the actors; asks the Ray session there is, or looks at this machine.

    Args:
        config: asks for actors.
        runs: whether a run is about to begin here. Else ``expect_autoscaling`` means that it will elsewhere.

    Raises:
        ResourceError: it cannot, or has no use for so many, or no such device.
        ConfigError: there is no such attention backend, or it or the weights' dtype does not run where the actors will.
    """
    for run in config.runs_of_pools().values():
        if run.engine.attention != "auto" or run.engine.weight_dtype == "int4":
            alone = run.device == "auto" and is_private() and not local_node()["GPU"] and not count_gpus()
            check_attention(run.engine, on_cpu=run.device == "cpu" or alone, on_gpu=run.device.startswith("cuda"))
    if not is_private():
        with ray_session():
            fit_pools(config, connected_nodes())
        return
    here = dict(local_node())
    if any(run.device.startswith("cuda") for run in config.runs_of_pools().values()) and not here["GPU"]:
        here["GPU"] = float(count_gpus())  # of a driver that does not say so in /proc
    fit_pools(config, [here], private=runs or not config.expect_autoscaling)


def on_this_cpu(config: RunConfig) -> bool:
    """Whether the actors of a run run on the CPU of this machine, as far as can be told without torch."""
    run = next(iter(config.runs_of_pools().values()))
    return is_private() and (run.device == "cpu" or (run.device == "auto" and not local_node()["GPU"]))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows of the input, and which of them would fail.

    Attributes:
        rows: number of rows.
        faults: row id and reason of each that would fail.
        max_prompt_tokens: the longest prompt.
        blank_prompts, identical_prompts: how many prompts are blank, and how many equal an earlier one of the sample.
    """

    rows: int = 0
    faults: Sequence[str] = ()
    max_prompt_tokens: int | None = None
    blank_prompts: int = 0
    identical_prompts: int = 0

    @property
    def all_fail(self) -> bool:
        """Whether there are rows, and all would fail."""
        return 0 < self.rows == len(self.faults)

    def check(self) -> None:
        """Raise SourceError if all rows would fail."""
        if self.all_fail:
            raise SourceError(
                f"all {self.rows} sampled rows would fail; the first: {self.faults[0].rstrip('.')}. Correct the "
                "settings, or the rows: --preview 5 shows them."
            )


def plan_index(job: Job, config: RunConfig, most: int | None = None) -> Index:
    """An index of the input's units (of the first ``most``), for commands that write no output; the caller closes it.

    Raises:
        SourceError: the input has no rows.
    """
    index = Index()
    units = plan_units(job.sliced, config.resolved_unit_rows(), "sample", config.limit)
    index.units.fill(itertools.islice(units, most))
    check_any_rows(len(index.units), config.input)
    return index


@contextmanager
def job_without_output(config: RunConfig, rows: int) -> Iterator[Job]:
    """Context: the job of a command that reads ``rows`` rows and writes no output.

    Raises:
        ConfigError, SourceError, WeightsError: as :func:`pipeline.run` would.
    """
    if rows < 1:
        raise ConfigError(f"rows={rows}: at least 1. Ask for more.")
    check_model(config)
    check_structure(config)
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder, layout.SCRATCH)
        yield resolve_job(config, source_of(config, storage), storage)


@contextmanager
def sampled(config: RunConfig, rows: int) -> Iterator[tuple[Job, int, pa.Table]]:
    """Context: the job of a command that writes no output, the rows of its input, and a sample of them.

    Raises:
        ConfigError, SourceError, WeightsError: as :func:`pipeline.run` would.
    """
    with job_without_output(config, rows) as job:
        small = replace(config, unit_rows=config.unit_rows or min(_SMALL_UNIT, config.resolved_unit_rows()))
        with plan_index(job, small) as index:
            total, table = index.units.rows, prepared_sample(job, index.units, rows)
        yield job, total, table


def sample_rows(job: Job, units: PlannedUnits, rows: int = SAMPLE_ROWS, spread: int = SAMPLE_ROWS) -> Sample:
    """Prepare rows of at most ``spread`` units, and build their parameters and requests."""
    table = prepared_sample(job, units, rows, spread)
    ids, reasons = table[ROW_ID].to_pylist(), row_faults(table, job)
    return Sample(
        rows=table.num_rows,
        faults=tuple(f"row {i}: {why.message}" for i, why in zip(ids, reasons, strict=True) if why is not None),
        max_prompt_tokens=_longest(table),
        **prompt_counts(table),
    )


def check_rows(job: Job, units: PlannedUnits) -> None:
    """Check that not all rows of a sample would fail, as ``validate`` does; reads little if the first rows are good.

    Raises:
        SourceError: they would.
    """
    if sample_rows(job, units, spread=_FIRST_LOOK).all_fail:
        sample_rows(job, units).check()


def _longest(table: pa.Table) -> int | None:
    return max((len(ids) for ids in table[PROMPT_IDS].to_pylist() if ids is not None), default=None)
