"""Prefetches units: Ray Data tasks read, render and tokenise them in input order before the actors need them.

Tasks are given to Ray Data in batches, so that the driver's memory does not grow with the dataset. The actors work on
prefetched units while one batch of tasks ends and the next begins. A few tasks run without Ray Data, whose import and
graph would take longer than they do.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline.cluster.prepare_task import prepare_units, read_hints
from pipeline.plan.job import Job
from pipeline.plan.units import LaterUnits, ReadTask
from pipeline.types import Unit
from pipeline.worker.crash_bisection import CrashBisection
from pipeline.worker.lengths import Kind

Reserved = Callable[[], tuple[float, float]]
"""CPUs and GPUs that generate actors reserve, at the moment."""

TASK_CPUS = 0.25
"""CPUs that a prefetch task reserves; small, so that tasks and actors fit on a small machine."""
_TASKS_AT_ONCE = 64
_UNITS_AT_ONCE = 65_536
"""A task that reads a compressed file has as many."""
_FEW_TASKS, _FEW_UNITS = 4, 256
"""So many tasks, of so many units in all, have no need of Ray Data: all of their results fit in the object store."""


@dataclass(frozen=True, kw_only=True)
class PreparedUnit:
    """A unit whose envelope is in Ray's object store.

    Attributes:
        histogram: see :func:`pipeline.cluster.prepare_task.prefix_histogram`.
        kinds: of its rows; where it has very many, those with the largest limits.
    """

    unit: Unit
    block: Any
    histogram: Mapping[int, int]
    kinds: Sequence[Kind]


def prefetch_units(
    job: Job, tasks: Iterable[ReadTask], reserved: Reserved, bisection: CrashBisection
) -> Generator[PreparedUnit, None, None]:  # fmt: skip
    """The prepared units of ``tasks``, which are drawn lazily, in order; Ray Data works some tasks ahead of the caller.

    ``reserved``: the actors' resources; tasks use the rest of the cluster.
    """
    for some in _batches(tasks):
        yield from _read(job, some, reserved, bisection)


def prefetch_later(
    job: Job, later: LaterUnits, bisection: CrashBisection
) -> Generator[PreparedUnit, None, None]:  # fmt: skip
    """The prepared units of a chain's later stages, as they come; ends when no more will."""
    while not later.exhausted:
        if units := later.take(seconds=None):
            yield from _prepared(units, _blocks_of_few(job, [ReadTask(units=units)], bisection))


def _batches(tasks: Iterable[ReadTask]) -> Iterator[list[ReadTask]]:
    """Tasks to give to Ray Data at once: so many, or those of so many units, whatever is less; at least one."""
    held: list[ReadTask] = []
    for task in tasks:
        units = sum(len(other.units) for other in held) + len(task.units)
        if held and (len(held) == _TASKS_AT_ONCE or units > _UNITS_AT_ONCE):
            yield held
            held = []
        held.append(task)
    if held:
        yield held


def _read(
    job: Job, tasks: list[ReadTask], reserved: Reserved, bisection: CrashBisection
) -> Iterator[PreparedUnit]:  # fmt: skip
    units = [unit for task in tasks for unit in task.units]
    few = len(tasks) <= _FEW_TASKS and len(units) <= _FEW_UNITS
    yield from _prepared(
        units, _blocks_of_few(job, tasks, bisection) if few else _blocks(job, tasks, reserved, bisection)
    )


def _prepared(units: Sequence[Unit], blocks: Iterator[Any]) -> Iterator[PreparedUnit]:
    import ray

    for unit in units:
        # Two blocks for each unit, in order: its hints, then its envelope.
        histogram, kinds = read_hints(ray.get(next(blocks)))
        yield PreparedUnit(unit=unit, block=next(blocks), histogram=histogram, kinds=kinds)


def _blocks_of_few(job: Job, tasks: list[ReadTask], bisection: CrashBisection) -> Iterator[Any]:
    """:func:`_blocks` of a few tasks, which all start at once."""
    import ray

    shared = ray.put(job)
    # The crash bisection ends tasks that cannot succeed.
    remote: Any = ray.remote(prepare_units).options(num_cpus=TASK_CPUS, num_returns="streaming", max_retries=-1)
    for blocks in [remote.remote(task.units, shared, bisection) for task in tasks]:
        # "yield from" alone would close Ray's generator at the end, which it does not support.
        yield from map(_itself, blocks)


def _itself(block: Any) -> Any:
    return block


def _blocks(job: Job, tasks: list[ReadTask], reserved: Reserved, bisection: CrashBisection) -> Iterator[Any]:
    """References to the blocks that :func:`prepare_units` yields, in order."""
    import ray.data
    from ray.data import DataContext, ExecutionResources

    cpus, gpus = reserved()
    context = DataContext.get_current().copy()
    # Ray closes a block as soon as it holds a row, so the hints and the envelope of a unit are two.
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    with DataContext.current(context), warnings.catch_warnings():
        # Ray warns of arguments that will change and that have no replacement yet.
        warnings.simplefilter("ignore", category=DeprecationWarning)
        warnings.simplefilter("ignore", category=FutureWarning)
        context.execution_options.exclude_resources = ExecutionResources(cpu=cpus, gpu=gpus)
        shared = ray.put(job)
        reads = [partial(_prepare, task.units, shared, bisection) for task in tasks]
        dataset = ray.data.read_datasource(
            _source(reads),
            override_num_blocks=len(reads),
            num_cpus=TASK_CPUS,
            max_retries=-1,  # the crash bisection ends tasks that cannot succeed
        )
        for bundle in dataset.iter_internal_ref_bundles():
            yield from bundle.block_refs


def _prepare(units: Sequence[Unit], job: Any, bisection: CrashBisection) -> Iterator[pa.Table]:
    """:func:`prepare_units` with the job by reference, so that Ray sends it once to each node."""
    import ray

    return prepare_units(units, ray.get(job), bisection)


def _source(reads: Sequence[Callable[[], Iterator[pa.Table]]]) -> Any:
    """A Ray Data source with one task for each of ``reads``."""
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


Put = Callable[["UnitReader", PreparedUnit | BaseException | None], None]


class UnitReader:
    """A thread that draws units from a stream; a bounded number of them waits for an actor.

    Attributes:
        allowed: units that it was ever allowed to read and that no actor was given yet.

    Args:
        units: the stream.
        put: called with this reader and each unit, then with None at the end, or with the error that ends it.
    """

    def __init__(self, units: Generator[PreparedUnit, None, None], put: Put) -> None:
        self.allowed = 0
        self._may_read = threading.Semaphore(0)
        self._ended = False
        self._thread = threading.Thread(target=self._draw, args=(units, put), name="prefetch", daemon=True)
        self._thread.start()

    def allow(self, most: int) -> None:
        """Let so many units wait."""
        if (more := most - self.allowed) > 0:
            self.allowed += more
            self._may_read.release(more)

    def end(self) -> None:
        """Let the thread end."""
        self._ended = True
        self._may_read.release()

    def join(self, seconds: float) -> None:
        """Wait so long for its end."""
        self._thread.join(seconds)

    def _draw(self, units: Generator[PreparedUnit, None, None], put: Put) -> None:
        try:
            with closing(units):
                for unit in units:
                    put(self, unit)
                    self._may_read.acquire()
                    if self._ended:
                        return
            put(self, None)
        except BaseException as error:
            put(self, error)
