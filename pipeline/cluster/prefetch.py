"""Units read, rendered and tokenised ahead of the actors, by tasks of Ray Data, in input order.

The tasks are handed to Ray Data some at a time, so that what is known of them at once does not grow with the
dataset. The actors are none of its business: while one lot ends and the next begins they feed on what was read.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline.cluster.prepare_task import prepare_units, read_sketch
from pipeline.cluster.session import ActorResources
from pipeline.plan.job import Job
from pipeline.plan.units import ReadTask
from pipeline.types import Unit
from pipeline.worker.row_isolation import TallyLike

__all__ = ["TASK_CPUS", "PreparedUnit", "read_ahead"]

TASK_CPUS = 0.25
"""CPUs that a reading task reserves; small, so that tasks fit beside the actors on a small machine."""
_TASKS_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class PreparedUnit:
    """A unit whose envelope is in Ray's object store. ``sketch``: see :mod:`pipeline.prompts.prefix_histogram`."""

    unit: Unit
    block: Any
    sketch: Mapping[int, int]


def read_ahead(
    job: Job, tasks: Iterable[ReadTask], actors: ActorResources, tally: TallyLike
) -> Generator[PreparedUnit, None, None]:  # fmt: skip
    """The units of ``tasks``, in order, as they are asked for and some more.

    Args:
        job: what they belong to.
        tasks: read lazily.
        actors: what each actor reserves; tasks take their resources from the rest.
        tally: of rows that kill.
    """
    left = iter(tasks)
    while some := list(itertools.islice(left, _TASKS_AT_ONCE)):
        yield from _read(job, some, actors, tally)


def _read(
    job: Job, tasks: list[ReadTask], actors: ActorResources, tally: TallyLike
) -> Iterator[PreparedUnit]:  # fmt: skip
    import ray

    units = [unit for task in tasks for unit in task.units]
    blocks = _blocks(job, tasks, actors, tally)
    for unit in units:
        # The order of blocks is that of the units, and a sketch goes before each envelope.
        sketch = read_sketch(ray.get(next(blocks)))
        yield PreparedUnit(unit=unit, block=next(blocks), sketch=sketch)


def _blocks(job: Job, tasks: list[ReadTask], actors: ActorResources, tally: TallyLike) -> Iterator[Any]:
    """References to the blocks that :func:`prepare_units` gives, in order."""
    import ray.data
    from ray.data import DataContext, ExecutionResources

    context = DataContext.get_current().copy()
    # A block is closed as soon as it holds something: each envelope, hence each unit, is a block of its own.
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    count = job.config.actors
    with DataContext.current(context), warnings.catch_warnings():
        # Ray announces changes of arguments for which there is no other spelling yet.
        warnings.simplefilter("ignore", category=DeprecationWarning)
        warnings.simplefilter("ignore", category=FutureWarning)
        context.execution_options.exclude_resources = ExecutionResources(
            cpu=count * actors.cpus, gpu=count * actors.gpus
        )
        shared = ray.put(job)
        reads = [partial(_prepare, task.units, shared, tally) for task in tasks]
        dataset = ray.data.read_datasource(
            _source(reads),
            override_num_blocks=len(reads),
            num_cpus=TASK_CPUS,
            max_retries=-1,  # the tally ends what cannot succeed
        )
        for bundle in dataset.iter_internal_ref_bundles():
            yield from bundle.block_refs


def _prepare(units: Sequence[Unit], job: Any, tally: TallyLike) -> Iterator[pa.Table]:
    """:func:`prepare_units`; ``job`` is a reference, so that it is sent once to each node."""
    import ray

    return prepare_units(units, ray.get(job), tally)


def _source(reads: Sequence[Callable[[], Iterator[pa.Table]]]) -> Any:
    """A data source of Ray Data with one task for each of ``reads``."""
    from ray.data import Datasource
    from ray.data.block import BlockMetadata
    from ray.data.datasource import ReadTask as RayReadTask

    class Units(Datasource):
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[RayReadTask]:
            unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
            return [RayReadTask(read, unknown) for read in reads]

    return Units()
