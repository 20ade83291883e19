"""``filter``: makes a new output of the good rows of another one, and reports the dropped rows with reasons."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline import layout
from pipeline.codec import redact
from pipeline.commands.begin import prepare_output, say
from pipeline.commands.published_output import PublishedOutput, dropped_by_reason, open_published
from pipeline.commands.read import read
from pipeline.commands.run_checks import check_writable
from pipeline.commands.summary import Fact, SummaryTable
from pipeline.commit.derive import DerivedTables, publish_derived
from pipeline.commit.index import Index
from pipeline.commit.lease import Lease, hold_lease
from pipeline.commit.manifest import Manifest
from pipeline.commit.publish import clean
from pipeline.commit.recover import recover
from pipeline.commit.repair import find_published_damage
from pipeline.commit.run_record import Derived, Origin, RunState, describe_differences
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DamagedError, FingerprintError, OutputError
from pipeline.selection.select import Selection
from pipeline.selection.settings import DedupConfig, FilterConfig, OutlierConfig
from pipeline.sinks import FORMATS
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import join, lies_inside

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from pipeline.commands.read import OutputTable


@dataclass(frozen=True, kw_only=True)
class FilterResult:
    """A finished filter and its output, read from the published files when it is used.

    Iterating gives one mapping for each kept row, in input order, a bounded number of rows in memory at a time.

    Attributes:
        output: the folder or URL of the rows that were kept.
        source: the output that they come from.
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
        """One note for each dropped row: its id, the reason, the row compared with it."""
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


_COMMAND = "filter"
_ANEW = "Restore it from a copy, or make the output again from its source with mode='new' (--mode new)."


def filter(
    output: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str],
    keep: str | None = None,
    score: str | None = None,
    by: str | Sequence[str] = (),
    dedup: bool | float | Mapping[str, Any] | DedupConfig | None = None,
    outliers: bool | Mapping[str, Any] | OutlierConfig | None = None,
    selection_column: str = "selection",
    mode: str = "resume",
    target_part_bytes: int = RunConfig.target_part_bytes,
    storage_options: Mapping[str, Any] | None = None,
    output_storage_options: Mapping[str, Any] | None = None,
) -> FilterResult:
    """Write the rows of an output that are worth keeping to a new one, with a note of each that is dropped.

    The new output has the rows in their order, all their columns, and a column of score and rank. It becomes visible at
    once, has checksums, and records its source's publications and its settings. Called again with the same arguments,
    it does nothing if it had finished. Otherwise it removes the remains of the killed call and begins again. Failed
    rows are dropped always; they stand in the dead letters of ``output``.

    Args:
        output: the folder or URL of a run, or of a filter.
        to: the folder or URL to write to.
        keep: which rows to keep; this and the next five: see :class:`~pipeline.selection.settings.FilterConfig`.
        score: name or expression that ranks rows; the highest are best.
        by: columns whose values form groups.
        dedup: whether, and how, to drop near-duplicates.
        outliers: whether, and how, to drop outliers.
        selection_column: name of the column of score and rank.
        mode: "resume"; "new" discards the content of ``to``; "error_if_exists" only starts.
        target_part_bytes: published files are closed when they reach about this size.
        storage_options: keyword arguments of the file system of ``output``, and of ``to`` unless it has its own.
        output_storage_options: of ``to``.

    Raises:
        ConfigError: a value is out of range; a column is not there (the message has the nearest names).
        ResourceError: a library is not installed; the message names it.
        OutputError: nothing is published in ``output``, or ``to`` is of another kind or has other tables.
        FingerprintError: ``to`` was made of other publications, or with other settings; each difference is named.
        DamagedError: a published file of ``output`` is missing or damaged.
        LeaseError: another run is writing to ``to``.
    """
    config = FilterConfig.from_mapping({
        "keep": keep, "score": score, "by": by, "dedup": dedup, "outliers": outliers,
        "selection_column": selection_column,
    })  # fmt: skip
    here, there = os.fspath(output), os.fspath(to)
    for one, other in ((there, here), (here, there)):
        if lies_inside(one, other):
            raise ConfigError(f"to={redact(there)!r}: one of it and {redact(here)!r} lies inside the other, and plain "
                              "readers would mix the two. Write to another folder.")  # fmt: skip
    options = dict(storage_options or {})
    target_options = options if output_storage_options is None else dict(output_storage_options)
    source = open_published(open_storage(here, layout.SCRATCH, options))
    run = RunConfig.from_mapping({
        "input": here, "output": there, "mode": mode, "output_format": source.format,
        "target_part_bytes": target_part_bytes,
    })  # fmt: skip
    storage = open_storage(there, layout.SCRATCH, target_options)
    check_writable(storage)
    return filter_on(source, storage, config, run, target_options)


def filter_on(
    source: PublishedOutput,
    storage: Storage,
    config: FilterConfig,
    run: RunConfig,
    options: Mapping[str, Any] | None = None,
) -> FilterResult:
    """:func:`filter` of given outputs; of ``run`` the mode and the size of parts count."""
    selects = Selection(config, source.schema, source.prefix, source.state.sampled)
    with selects as selection, hold_lease(storage) as lease:
        origin = prepare_output(run, storage, lease)
        state = _state_of(source, config, run, origin)
        found = recover(storage, lease, origin)
        say(found.notes)
        lease.forget_predecessors()
        manifest, added = found.manifest, not found.manifest.publications
        _check_same(_state_there(storage), state, storage)
        _check_whole(storage, manifest)
        with Index() as index:
            clean(storage, manifest, index, lease, unnamed=True)
            if added:
                state.save(storage, lease.epoch)
                manifest = _publish(source, storage, selection, state, run, manifest, index=index, lease=lease)
        return FilterResult(
            output=run.output,
            source=source.storage.url,
            rows=state.rows,
            dropped=dropped_by_reason(storage, manifest, source.prefix),
            publications=tuple(publication.name for publication in manifest.publications),
            format=run.output_format,
            added=added,
            storage_options=options or {},
        )


def _publish(
    source: PublishedOutput,
    storage: Storage,
    selection: Selection,
    state: RunState,
    run: RunConfig,
    manifest: Manifest,
    *,
    index: Index,
    lease: Lease,
) -> Manifest:
    source.check()
    selection.read(source.tables())
    selection.decide()
    tables = DerivedTables(
        format=FORMATS[run.output_format],
        schema=selection.schema,
        dropped_schema=selection.dropped_schema,
        pieces=lambda: ((piece.kept, piece.dropped) for piece in selection.divide(source.tables())),
        part_rows=max(1, int(run.target_part_bytes / source.bytes_per_row)),
    )
    return publish_derived(storage, manifest, tables, state.fingerprint_hash, index=index, lease=lease)


def _state_of(source: PublishedOutput, config: FilterConfig, run: RunConfig, origin: Origin) -> RunState:
    settings = {f"filter.{name}": value for name, value in config.to_dict().items()}
    identity = source.identity
    return RunState(
        begun=origin.begun,
        first=origin.first,
        fingerprint={
            **settings,
            **identity,
            "column_prefix": source.prefix,
            "id_column": source.state.fingerprint.get("id_column"),
            "output_format": run.output_format,
        },
        unit_rows=1,
        files={},
        columns=source.schema,
        units=0,
        rows=identity["source.rows"],
        derived=Derived(command=_COMMAND, source=source.storage.url),
        sampled=source.state.sampled,
    )


def _state_there(storage: Storage) -> RunState | None:
    try:
        return RunState.load(storage)
    except DamagedError as error:
        raise DamagedError(error.fault, _ANEW) from error


def _check_whole(storage: Storage, manifest: Manifest) -> None:
    """Check that the files that were published are there, of their size.

    Raises:
        DamagedError: one is not.
    """
    damages = find_published_damage(storage, manifest, prove=False)
    if damages:
        raise DamagedError("; ".join(f"{storage.url}/{damage.key}: {damage.fault}" for damage in damages[:3]), _ANEW)


def _check_same(old: RunState | None, new: RunState, storage: Storage) -> None:
    """Refuse to go on with an output that was made of something else, or otherwise.

    Raises:
        OutputError: a run generated it.
        FingerprintError: it is of other publications, or was made with other settings.
    """
    if old is None:
        return
    if old.derived is None:
        raise OutputError(f"{storage.url}: a run generated the rows there. Filter to another folder.")
    differences = describe_differences(dict(old.fingerprint), dict(new.fingerprint))
    if differences:
        raise FingerprintError(
            f"{storage.url} was made from other rows or with other settings:\n  "
            + "\n  ".join(differences)
            + "\nGo back to these, write to another folder, or discard the output with mode='new'."
        )
