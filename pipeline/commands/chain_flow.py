"""Which units of a chain's later stages are due when: each as soon as the unit that it is made of is settled.

A unit of a stage is *settled* when its results will not change any more in this pass: it was not marked, or has been
committed. The unit of the next stage that is made of it is then read at once if it has to be done, and else settled,
too. So a chain has as many positions at work as there are units, and no stage waits for all of another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from pipeline.cluster.streams import drain
from pipeline.commands.chain_stage import StageRun
from pipeline.plan.retry_failed import with_previous
from pipeline.plan.units import LaterUnits, Work, read_tasks
from pipeline.types import CommitRecord, Unit

_T = TypeVar("_T")


class Flow:
    """One pass over the stages.

    Attributes:
        open: pairs of stage and unit that are not settled.
    """

    def __init__(self, stages: Sequence[StageRun], *, retry_failed: bool) -> None:
        """Mark the units that each stage has to do."""
        self._stages = stages
        for stage in stages:
            stage.mark(partial(self._earlier, stage.number), retry_failed=retry_failed)
        self._open = [0] * len(stages)
        for first in self._first_open():
            for number in range(first, len(stages)):
                self._open[number] += 1
        groups = 1 + max(stage.group for stage in stages)
        self._later = [LaterUnits(self._ready(group)) for group in range(groups)]
        self._end_settled()

    @property
    def open(self) -> int:
        """Pairs of stage and unit that are not settled."""
        return sum(self._open)

    def end(self) -> None:
        """No more units will be due, or the chain has stopped."""
        for later in self._later:
            later.end()

    def _end_settled(self) -> None:
        """End groups of stages without open units."""
        for group, later in enumerate(self._later):
            if not self._open_of(group):
                later.end()

    def _open_of(self, group: int) -> int:
        return sum(self._open[stage.number] for stage in self._stages if stage.group == group)

    def _earlier(self, number: int, index: int) -> bool:
        """Whether a stage before this one is to generate a unit."""
        return any(stage.index.units.attempt(index) for stage in self._stages[:number])

    def _first_open(self) -> Iterator[int]:
        """Of each unit, the number of the first stage that has it marked; one more than there are, if in none."""
        for attempts in zip(*(stage.index.units.attempts() for stage in self._stages), strict=True):
            yield next((number for number, attempt in enumerate(attempts) if attempt), len(attempts))

    def _ready(self, group: int) -> Iterator[Unit]:
        """Marked units of a group's later stages whose rows are settled from the beginning."""
        for stage in self._stages[1:]:
            if stage.group != group:
                continue
            for unit in stage.index.units.work():
                if not self._earlier(stage.number, unit.index):
                    yield stage.ready(unit)

    def work(self, group: int) -> Work | None:
        """The units that the actors of a group have to generate; None without any."""
        if not self._open_of(group):
            return None
        first = self._stages[0]
        marked = with_previous(first.index.units.work(), first.index, derived_ids=first.begun.job.rows.derived_ids)
        own = [stage for stage in self._stages if stage.group == group]
        return Work(
            tasks=read_tasks(marked) if first in own else (),
            units=self._open_of(group),
            unit_rows=max(1, *(stage.index.units.largest_work for stage in own)),
            later=self._later[group],
        )

    def stage_of(self, record: CommitRecord) -> StageRun:
        """The stage that a record belongs to."""
        return next(stage for stage in self._stages if stage.index.units.has(record.unit_id))

    def settle(self, stage: StageRun, record: CommitRecord) -> None:
        """Record a commit of a unit: the unit of the next stage is due, or settled as well."""
        index = stage.index.units.index_of(record.unit_id)
        assert index is not None, "it was planned"
        self._open[stage.number] -= 1
        for after in self._stages[stage.number + 1 :]:
            if (unit := after.due(index)) is not None:
                self._later[after.group].put(unit)
                break
            self._open[after.number] -= 1
        self._end_settled()


def merged(streams: Sequence[Callable[[], Iterator[_T]]], end: Callable[[], None]) -> Iterator[_T]:
    """The items of several streams, as they come; see :func:`drain`. A single one runs in this thread."""
    if len(streams) == 1:
        yield from streams[0]()
        return
    threads: list[threading.Thread] = []
    try:
        with closing(drain(streams, begun=threads.append, failed=end)) as lists:
            for items in lists:
                yield from items
    finally:
        end()
        for thread in threads:
            thread.join()
