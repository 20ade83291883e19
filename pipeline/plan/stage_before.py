"""The input of a later stage of a chain: the units of the stage before, one for one.

A unit's id follows from the settings of its stage and the id of the unit that it is made of, so it is the same on every
run, whatever has been committed. The ledger records the checksum of that unit's rows with the results (``made_of``). If
it changes, because failed or damaged rows were done again, the results no longer count.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline.codec import explain
from pipeline.commit.index import Index
from pipeline.commit.part_files import staged_place
from pipeline.errors import ConfigError, SourceError
from pipeline.plan.job import Job
from pipeline.selection.expression import Expression
from pipeline.sources.stage_rows import StageRows, carried_columns
from pipeline.types import CommitRecord, Place, Unit


def stage_unit_id(fingerprint: str, unit_id: str) -> str:
    """The id of a unit of a later stage."""
    return hashlib.blake2b(f"{fingerprint}\x1f{unit_id}".encode(), digest_size=10).hexdigest()


@dataclass(frozen=True)
class Where:
    """A condition on rows, as SQL. Picklable: each process parses it once."""

    text: str

    def __call__(self, rows: pa.Table) -> pa.ChunkedArray:
        """Whether it holds, of each row.

        Raises:
            ConfigError: it is no condition on these columns.
            ResourceError: DuckDB is not installed.
        """
        return _condition(self.text, rows.schema.remove_metadata()).values(rows)


@functools.lru_cache(maxsize=8)
def _condition(text: str, schema: pa.Schema) -> Expression:
    found = Expression(text, schema, "where")
    if not found.is_boolean:
        raise ConfigError(explain("where", text, "a condition", "Compare something: judge_score >= 4."))
    return found


@dataclass(frozen=True, kw_only=True)
class StageBefore:
    """A stage, as the next one sees it.

    Attributes:
        name: of the stage.
        settings: hash of everything that changes its output.
        job: its job.
        index: its planned, committed and published units.
        where: an SQL expression over its columns; the next stage reads the rows that fulfil it. None reads all.
        sampled: how often a number of a sample was added to the ids of its rows; see
            :class:`pipeline.commit.run_record.RunState`.
    """

    name: str
    settings: str
    job: Job
    index: Index
    where: str | None = None
    sampled: int = 0

    @property
    def sampled_after(self) -> int:
        """``sampled`` of the next stage."""
        return self.sampled + self._several

    @property
    def rows(self) -> StageRows:
        """Its rows that succeeded, as a source.

        Raises:
            ConfigError: ``where`` is no condition on these columns.
        """
        job = self.job
        keep = None if self.where is None else Where(self.where)
        rows = StageRows(
            job.storage, job.schema, len(job.columns), job.config.column_prefix, job.source.files,
            extra=job.own_columns, several=self._several, keep=keep,
        )  # fmt: skip
        if keep is not None:
            keep(rows.schema.empty_table())
        return rows

    @property
    def carried(self) -> list[str]:
        """The columns that the next stage passes on, unless it is told which."""
        job = self.job
        return carried_columns(job.schema, len(job.columns), job.config.column_prefix, job.own_columns)

    @property
    def _several(self) -> bool:
        config = self.job.config  # a line of an OpenAI batch may ask for several, too
        return config.sampling.n > 1 or "n" in config.sampling_columns or self.job.prompt_kind == "request"

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The input in the next stage's record."""
        own = {"stage_before": f"{self.name}@{self.settings}"}
        return own if self.where is None else {**own, "where": self.where}

    def units(self, fingerprint: str) -> Iterator[Unit]:
        """The units of the next stage, in order. Their number of rows is the most that it may be."""
        samples = self.job.config.sampling.n
        for own in self.index.units:
            rows = replace(own.rows, num_rows=own.num_rows * samples)
            yield Unit(unit_id=stage_unit_id(fingerprint, own.unit_id), index=own.index, rows=rows)

    def record(self, index: int) -> CommitRecord | None:
        """The committed results of the unit that unit ``index`` of the next stage is made of."""
        return self.index.records.get(self.index.units[index].unit_id)

    def is_stale(self, index: int, record: CommitRecord | None) -> bool:
        """Whether results of a unit of the next stage were made of other rows than are committed now."""
        own = self.record(index)
        return record is not None and own is not None and record.made_of != own.data_sha256

    def made_ready(self, unit: Unit, stage: int) -> Unit:
        """A unit of the next stage with the place and number of its rows, which are committed."""
        own = self.record(unit.index)
        assert own is not None, "its source is committed"
        return replace(unit, rows=replace(unit.rows, num_rows=own.samples), stage=stage, place=self._place(own))

    def _place(self, record: CommitRecord) -> Place:
        published = self.index.published.place(record.unit_id, record.attempt)
        place = staged_place(record, derived_ids=False) if published is None else published
        return replace(place, data_sha256=record.data_sha256)

    def check_all_planned(self, fingerprint: str, after: Index) -> None:
        """Check that units whose input files are gone are done in the next stage, too.

        Raises:
            SourceError: one is not, and so would be left out.
        """
        if self.index.published.unplanned() is None:
            return
        for position in self.index.published.positions():
            for own in self.index.published.units(position):
                if own.planned is None and after.records.get(stage_unit_id(fingerprint, own.unit.unit_id)) is None:
                    where = "a file" if own.record is None else repr(own.record.file_key)
                    raise SourceError(
                        f"stage {self.name!r} has published rows of {where}, which is not in the input any more, and "
                        "the stage after it has not done them. Put the file back until the chain is done."
                    )
