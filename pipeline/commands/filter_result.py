"""The result of a filter: kept rows, dropped rows with reasons, and access to both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.codec import redact
from pipeline.commands.read import read
from pipeline.progress.summary_table import Fact, SummaryTable
from pipeline.sinks import FORMATS
from pipeline.storage.urls import join

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from pipeline.commands.output_table import OutputTable

__all__ = ["FilterResult"]


@dataclass(frozen=True, kw_only=True)
class FilterResult:
    """A finished filter and its output, read from the published files when it is used.

    Iterating gives one mapping for each kept row, in input order, a bounded number of rows in memory at a time.

    Attributes:
        output: the folder or URL of the rows that were kept.
        source: of the output that they are of.
        rows: how many were read.
        dropped: how many were dropped, by reason; each row has one.
        publications: folders of the output that hold published parts.
        format: of these.
        added: False if everything had been done before.
        storage_options: keyword arguments of the output's file system.
    """

    output: str = field(repr=False)
    source: str
    rows: int
    dropped: Mapping[str, int]
    publications: tuple[str, ...]
    format: str
    added: bool
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def kept(self) -> int:
        """Rows that were kept."""
        return self.rows - sum(self.dropped.values())

    @property
    def glob(self) -> str:
        """The pattern that matches every published file and nothing else, for any reader of plain files."""
        return join(self.output, f"data-*/*{FORMATS[self.format].suffix}")

    @property
    def rows_kept(self) -> OutputTable:
        """The rows that were kept; :func:`pipeline.read` of the output."""
        return read(self.output, storage_options=self.storage_options)

    @property
    def rows_dropped(self) -> OutputTable:
        """One note for each row that was dropped: its id, the reason, and the row that it was compared with."""
        return read(self.output, table="dropped", storage_options=self.storage_options)

    def to_arrow(self) -> pyarrow.Table:
        """The rows that were kept, as a table in memory."""
        return self.rows_kept.to_arrow()

    def to_pandas(self) -> pandas.DataFrame:
        """The rows that were kept, as a pandas frame."""
        return self.rows_kept.to_pandas()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows_kept)

    def section(self, title: str, commands: tuple[Fact, ...] = ()) -> SummaryTable:
        """Its summary as a stage of a chain."""
        dropped = ", ".join(f"{reason} {count}" for reason, count in self.dropped.items())
        facts = {
            "Rows": f"{self.rows} read, {self.kept} kept, {self.rows - self.kept} dropped",
            **({"Dropped": dropped} if dropped else {}),
            **({} if self.added else {"This run": "nothing was left to do"}),
            "Files": redact(self.glob),
        }
        return SummaryTable(
            title=title, facts=tuple(Fact(label=label, value=value) for label, value in facts.items()),
            commands=commands,
        )  # fmt: skip

    def describe(self) -> str:
        """A few lines for people."""
        share = f" ({self.kept / self.rows:.1%})" if self.rows else ""
        lines = [
            f"Output: {redact(self.output)} ({', '.join(self.publications)})",
            f"Rows: {self.rows} of {redact(self.source)}, {self.kept} kept{share}, {self.rows - self.kept} dropped",
            *(f"  dropped, {reason}: {count}" for reason, count in self.dropped.items()),
        ]
        if not self.added:
            lines.append("This run: nothing was left to do")
        lines.append(f"Files: {redact(self.glob)} (a glob for Polars, DuckDB, Spark, datasets)")
        if self.dropped:
            lines.append("Dropped rows, with reasons: pipeline.read(output, table='dropped')")
        return "\n".join(lines)
