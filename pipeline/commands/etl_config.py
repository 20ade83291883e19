"""The settings of a scheduled job: generation, folders, and the rule for files that change."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pipeline.codec import explain
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plan.intake import ON_CHANGED, OnChanged
from pipeline.settings.values import is_int, is_number
from pipeline.sources.listing import PartitionRange
from pipeline.storage.urls import plain_name


@dataclass(frozen=True, kw_only=True)
class EtlConfig:
    """A scheduled job.

    Attributes:
        run: the settings of generation. ``input`` is a folder or URL prefix.
        partition_key: name of the ``key=value`` folders that ``since``, ``until`` and ``backfill`` are about.
        since, until: partitions to look at, as text (or an integer or a date, which become text); both bounds belong to
            the range; None is no bound.
        backfill: first and last partition of a range to look at in place of ``since`` and ``until``.
        on_changed: for processed files that have another content now, or are gone: "error" ends
            the run, "reprocess" replaces or removes their rows, "ignore" leaves the rows of the old content.
        settle_seconds: files younger than this are left for a later run, because a writer may not have finished them.
        max_files: files that are processed and published at once; a run with more does them in rounds, so that its
            memory does not grow with them.
        wait: seconds to wait for another run of this table to end; None does not wait, ``math.inf`` has no limit.

    Raises:
        ConfigError: a value is out of range, or two contradict each other.
    """

    run: RunConfig
    partition_key: str = "dt"
    since: str | None = None
    until: str | None = None
    backfill: tuple[str, str] | None = None
    on_changed: OnChanged = "error"
    settle_seconds: float = 0.0
    max_files: int = 50_000
    wait: float | None = None

    def __post_init__(self) -> None:
        """Check ranges and contradictions."""
        run = self.run
        if not isinstance(run, RunConfig):
            _refuse("run", run, "a RunConfig", "Write EtlConfig(run=RunConfig(input=..., output=...)).")
        if not isinstance(run.input, (str, os.PathLike)) or any(c in plain_name(run.input) for c in "*?"):
            _refuse("input", run.input, "a folder or URL prefix", "Name the folder; --since and --until choose in it.")
        if self.on_changed not in ON_CHANGED:
            _refuse("on_changed", self.on_changed, f"one of {list(ON_CHANGED)}", "Pick one of these.")
        key = self.partition_key
        if not isinstance(key, str) or not key or "=" in key or "/" in key:
            _refuse("partition_key", key, "the name in name=value folders", "Use dt.")
        if not is_number(self.settle_seconds) or self.settle_seconds < 0:
            _refuse("settle_seconds", self.settle_seconds, "a number of 0 or more", "Give seconds.")
        if not is_int(self.max_files) or self.max_files < 1:
            _refuse("max_files", self.max_files, "an integer of 1 or more", "Use 50000.")
        if self.wait is not None and not (is_number(self.wait) and self.wait >= 0) and self.wait != math.inf:
            _refuse("wait", self.wait, "None or a number of 0 or more", "Give seconds, or leave it out.")
        self._check_bounds()
        if self.backfill is not None and (self.since is not None or self.until is not None):
            _refuse("backfill", self.backfill, "a range in place of since and until", "Give one of the two.")
        for name in ("limit", "dataset_options"):
            if getattr(run, name):
                _refuse(name, getattr(run, name), "not for scheduled runs", "Leave it out.")
        if run.input_format == "openai-batch":
            rule = "scheduled runs append rows to a table, and a batch file is a job of its own"
            _refuse("input_format", run.input_format, rule, "Give each file to `wedlm-batch generate`.")
        self.within  # noqa: B018  # checks the bounds

    def _check_bounds(self) -> None:
        """Make text of the bounds."""
        for name in ("since", "until"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _bound(name, getattr(self, name)))
        if self.backfill is None:
            return
        given = self.backfill
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
            _refuse("backfill", given, "the first and the last partition", 'Write ["2026-10-01", "2026-10-31"].')
        object.__setattr__(self, "backfill", tuple(_bound("backfill", value) for value in given))

    @property
    def within(self) -> PartitionRange:
        """The partitions to look at."""
        first, last = (self.since, self.until) if self.backfill is None else self.backfill
        return PartitionRange(key=self.partition_key, first=first, last=last)


def _bound(name: str, value: object) -> str:
    """A bound as text: YAML reads ``2026-11-01`` as a date, and ``7`` as a number."""
    if not (isinstance(value, (str, date)) or is_int(value)) or not str(value).strip():
        _refuse(name, value, "the value of a partition", 'Write one such as "2026-11-01".')
    return str(value)


def _refuse(name: str, value: object, rule: str, remedy: str) -> None:
    raise ConfigError(explain(name, value, rule, remedy))
