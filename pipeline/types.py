"""Frozen data classes that the packages of the pipeline exchange. A leaf: imports nothing of this project."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from pipeline.causes import MOST_CAUSES, Cause, added_causes, causes_of
from pipeline.codec import DRAFT_COUNTS, prefix_cacheability, tokens_per_forward

_NO_FAILURES: Mapping[str, int] = {}
_NO_EXAMPLES: Mapping[str, str] = {}
_UNREAD_NAMES = 5


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of a source.

    Attributes:
        key: name inside the source, stable when the whole source moves; part of row ids.
        path: where to open it.
        digest: hash of size and (sampled) content; another digest under the same key is another file.
        stamp: the file system's metadata of it (see :mod:`pipeline.sources.identity`). An equal stamp means equal
            content; a different stamp may still have equal content.
        size: in bytes; 0 if it is not known.
        partitions: the ``name=value`` folders that it lies in, as name and text; a null value is None.
        version: how often rows of this file were replaced in the output by those of a newer one, see
            :mod:`pipeline.commit.lists`.
        begun: digest of the file when the run first read it, if its failed rows were corrected since; else empty.
    """

    key: str
    path: str
    digest: str
    stamp: str
    size: int = 0
    partitions: tuple[tuple[str, str | None], ...] = ()
    version: int = 0
    begun: str = ""

    @property
    def identity(self) -> str:
        """The part of unit ids: the first digest; of a later version of the file's rows, its number too."""
        digest = self.begun or self.digest
        return f"{digest}#{self.version}" if self.version else digest


@dataclass(frozen=True, kw_only=True)
class Unread:
    """The files below an input that are not read: how many, and the names of the first ones."""

    count: int = 0
    names: tuple[str, ...] = ()

    def plus(self, *names: str) -> Unread:
        """With further ones."""
        return Unread(count=self.count + len(names), names=(*self.names, *names)[:_UNREAD_NAMES])

    def describe(self) -> str:
        """A clause for people."""
        names = ", ".join(map(repr, self.names))
        more = f" and {self.count - len(self.names)} more" if self.count > len(self.names) else ""
        count = f"{self.count} file{'s' * (self.count != 1)}"
        return f"{count} below the input (hidden, of no known kind, or a folder that a pattern ends at): {names}{more}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """A file below an input folder, as a listing shows it; it is not opened for this.

    Attributes:
        key: path below the folder.
        path: where to open it.
        stamp: as in :class:`SourceFile`.
        size: in bytes; 0 if it is not known.
        modified: seconds since 1970, by the file system's clock; None if it does not say.
        info: the file system's metadata, as far as it tells one content from another; empty for local files.
    """

    key: str
    path: str
    stamp: str
    size: int
    modified: float | None
    info: Mapping[str, str] = field(default_factory=dict)


def derived_row_id(file_key: str, row: int) -> str:
    """Row id if no id column is configured: file key and row number, stable under re-runs and moves."""
    return f"{file_key}:{row}"


class Stretch(NamedTuple):
    """Consecutive rows of a file, by the file's key."""

    file_key: str
    first_row: int
    num_rows: int

    def __str__(self) -> str:
        return f"rows {self.first_row} to {self.first_row + self.num_rows - 1} of {self.file_key!r}"


def derived_row_ids(stretches: Iterable[Stretch]) -> list[str]:
    """:func:`derived_row_id` of each row."""
    return [
        derived_row_id(stretch.file_key, stretch.first_row + row)
        for stretch in stretches
        for row in range(stretch.num_rows)
    ]


def column_row_ids(values: Iterable[Any], derived: Sequence[str]) -> list[str]:
    """Row ids of an id column; a row without one (a line that is no request) has the derived id."""
    return [own if value in (None, "") else str(value) for value, own in zip(values, derived, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Consecutive rows of one file.

    Attributes:
        file: index into the source's files.
        first_row: 0-based row number in the file.
        num_rows: at least one.
        group: slices of one group are cheapest to read in one pass (a Parquet row group; a range of lines); negative
            if a slice can only be reached by reading all of the file that is before it.
        start, stop: byte range, for text files; else 0.
    """

    file: int
    first_row: int
    num_rows: int
    group: int = 0
    start: int = 0
    stop: int = 0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Consecutive rows of an object of the output: of a published part, or of a staged unit.

    Attributes:
        key: the object.
        first_row, num_rows: which of its rows.
        format: format of a published part; None for a staged unit.
        sha256: SHA-256 of the whole object, to be checked before its rows are used; None: not checked.
        data_sha256: checksum of the data columns of these rows, to be checked; None: not checked.
        input: where the rows of a staged unit are in the input, to check their ids; None: not checked.
    """

    key: str
    first_row: int
    num_rows: int
    format: str | None = None
    sha256: str | None = None
    data_sha256: str | None = None
    input: tuple[Stretch, ...] | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Place:
        """Inverse of ``asdict``, through JSON."""
        rows = raw["input"]
        return cls(**{**raw, "input": None if rows is None else tuple(Stretch(*stretch) for stretch in rows)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """The unit of work: rows of the input with an id, which are generated, staged and committed as a whole.

    Attributes:
        unit_id: hash of the files, the slices and the settings that change the output.
        index: position in the input's units, from 0.
        rows: the slice; of a unit that spans small files, the first file's.
        more: the slices of the further files, in input order.
        attempt: 1, or the number of this attempt if the unit is generated again.
        previous: the output rows of the attempt before, if only its failed rows are to be generated again.
        input_sha256: checksum of the input rows that the attempt before read; None if there was none.
        kept_sha256: checksum of those rows that succeeded, see :class:`CommitRecord`.
        stage: number of the stage of a chain that it belongs to; 0 for the first one, and for a run of one.
        place: of a later stage: the output rows of the stage before that it is made of; None otherwise.
    """

    unit_id: str
    index: int
    rows: Slice
    more: tuple[Slice, ...] = ()
    attempt: int = 1
    previous: Place | None = None
    input_sha256: str | None = None
    kept_sha256: str = ""
    stage: int = 0
    place: Place | None = None

    @property
    def slices(self) -> tuple[Slice, ...]:
        """All of its slices, in input order."""
        return (self.rows, *self.more)

    @property
    def num_rows(self) -> int:
        """Input rows in all slices."""
        return self.rows.num_rows + sum(piece.num_rows for piece in self.more)

    def stretches(self, files: Sequence[SourceFile]) -> tuple[Stretch, ...]:
        """Its rows by the keys of the source's files."""
        return tuple(
            Stretch(file_key=files[piece.file].key, first_row=piece.first_row, num_rows=piece.num_rows)
            for piece in self.slices
        )

    def to_json(self) -> str:
        """Text that :meth:`from_json` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Unit:
        """Inverse of :meth:`to_json`."""
        raw = json.loads(text)
        before, place = raw["previous"], raw["place"]
        return cls(
            unit_id=raw["unit_id"],
            index=raw["index"],
            rows=Slice(**raw["rows"]),
            more=tuple(Slice(**piece) for piece in raw["more"]),
            attempt=raw["attempt"],
            previous=None if before is None else Place.from_dict(before),
            input_sha256=raw["input_sha256"],
            kept_sha256=raw["kept_sha256"],
            stage=raw["stage"],
            place=None if place is None else Place.from_dict(place),
        )


PROMPT_COUNTS = ("blank_prompts", "identical_prompts")
"""Counts over the prompts of the rows that an attempt generated for."""
GENERATED_COUNTS = ("samples", "prompt_tokens", "completion_tokens", "decode_forwards", "rows_forwarded", *DRAFT_COUNTS)
"""Counts of a record that its generations add up to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRecord:
    """A ledger entry: the results of this unit are staged, under the key that follows from the entry.

    Counts are over the whole unit. Of a unit's records the one with the highest ``attempt`` counts.

    Attributes:
        file_key, first_row: where the unit's rows begin.
        num_rows: input rows of the unit.
        more: of a unit that spans files, the rows of each file but the first.
        samples: generations of rows that succeeded.
        data_sha256: checksum of the data columns, see :data:`pipeline.schema.DATA_COLUMNS`.
        engine_seconds: how long the actor's engine had been ready when the unit was staged.
        rows_sha256, dead_sha256: SHA-256 of the staged objects; ``dead_sha256`` is empty if no row failed.
        input_sha256: checksum of the input rows, all columns, as they were read.
        kept_sha256: if rows failed, or were corrected apart from the input, checksum of the other input rows: a retry
            accepts an input file that corrects failed rows only.
        copy: 0 for the first execution, 1 for a speculative backup on another actor.
        redone: why the good rows of the attempt before could not be kept; empty if they were, or there was none.
        rows_again: input rows that this attempt generated again; 0 in a first attempt.
        failures: number of failed rows by error class.
        causes: number of failed rows by cause, see :mod:`pipeline.causes`.
        examples: a failed row of each cause, see :func:`pipeline.causes.example_of`.
        unparsed: number of generations whose JSON could not be read, or not all of it, by ``column:reason``; the
            reasons are those of :data:`pipeline.settings.parsing.UNPARSED`.
        retried: number of input rows by the number of their retry, see :mod:`pipeline.commit.retries`.
        blank_prompts, identical_prompts: prompts of this attempt without a visible character, and prompts equal to an
        earlier one of the unit.
        made_of: of a unit of a chain's later stage: ``data_sha256`` of its source in the stage before.
        mask_drafts, mask_drafts_accepted, grammar_drafts, grammar_drafts_accepted, history_drafts,
            history_drafts_accepted: sums of the fields of ``stats``.
    """

    unit_id: str
    file_key: str
    first_row: int
    num_rows: int
    failed_rows: int
    samples: int
    prompt_tokens: int
    completion_tokens: int
    decode_forwards: int
    rows_forwarded: int
    staged_bytes: int
    data_sha256: str
    engine_seconds: float = 0.0
    attempt: int = 1
    copy: int = 0
    rows_sha256: str = ""
    dead_sha256: str = ""
    input_sha256: str = ""
    kept_sha256: str = ""
    redone: str = ""
    rows_again: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    unparsed: Mapping[str, int] = field(default_factory=dict)
    retried: Mapping[str, int] = field(default_factory=dict)
    more: tuple[Stretch, ...] = ()
    made_of: str = ""
    blank_prompts: int = 0
    identical_prompts: int = 0
    mask_drafts: int = 0
    mask_drafts_accepted: int = 0
    grammar_drafts: int = 0
    grammar_drafts_accepted: int = 0
    history_drafts: int = 0
    history_drafts_accepted: int = 0

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The input rows of the unit, file by file."""
        own = self.num_rows - sum(stretch.num_rows for stretch in self.more)
        return (Stretch(file_key=self.file_key, first_row=self.first_row, num_rows=own), *self.more)

    @property
    def where(self) -> str:
        """The input rows of the unit, in words."""
        first, *more = self.stretches
        return f"{first} and of {len(more)} more files up to {more[-1].file_key!r}" if more else str(first)

    @property
    def output_rows(self) -> int:
        """Rows in the output: one for each sample, and one for each failed row."""
        return self.samples + self.failed_rows

    def since(self, before: CommitRecord) -> CommitRecord:
        """The counts that this attempt added to those of the attempt ``before``; its rows are those generated again."""
        if self.redone:
            return self
        own = {name: getattr(self, name) - getattr(before, name) for name in GENERATED_COUNTS}
        failed = self.failed_rows - (before.failed_rows - self.rows_again)
        return replace(self, num_rows=self.rows_again, failed_rows=failed, **own)

    def to_json(self) -> str:
        """One line of JSON."""
        raw = asdict(self)
        for name in _LEFT_OUT:
            if not raw[name]:
                del raw[name]
        return json.dumps(raw)

    @classmethod
    def from_json(cls, line: str) -> CommitRecord:
        """Inverse of :meth:`to_json`; fields of later versions are ignored."""
        raw: dict[str, Any] = json.loads(line)
        raw["failures"], raw["examples"] = raw.get("failures") or _NO_FAILURES, raw.get("examples") or _NO_EXAMPLES
        raw["more"] = tuple(Stretch(*stretch) for stretch in raw.get("more", ()))
        return cls(**{name: raw[name] for name in RECORD_FIELDS if name in raw})


_LEFT_OUT = (
    "more", "made_of", "unparsed", "retried", "kept_sha256", "causes", "rows_again", *DRAFT_COUNTS, *PROMPT_COUNTS
)  # fmt: skip
"""Fields of a ledger record that its text lacks where they are empty or 0."""
RECORD_FIELDS = tuple(field.name for field in fields(CommitRecord))
"""Names of the fields of a ledger record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revocation:
    """A ledger entry: the results of a unit up to an attempt no longer count; the unit is generated again.

    Attributes:
        unit_id, attempt: the unit, and its latest attempt that no longer counts.
        reason: the fault of the results.
        input_sha256: checksum of the input rows of that attempt; the next attempt has to read the same rows.
    """

    unit_id: str
    attempt: int
    reason: str
    input_sha256: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"revoked": asdict(self)})


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over units; ``examples`` has one failed row of each cause, ``unparsed`` counts JSON not read.

    The other attributes are those of :class:`CommitRecord`; ``units`` is the number of records, and ``rows`` the sum of
    ``num_rows``.
    ``retried`` counts input rows by the number of their retry.
    """

    units: int = 0
    rows: int = 0
    failed_rows: int = 0
    samples: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    decode_forwards: int = 0
    rows_forwarded: int = 0
    mask_drafts: int = 0
    mask_drafts_accepted: int = 0
    grammar_drafts: int = 0
    grammar_drafts_accepted: int = 0
    history_drafts: int = 0
    history_drafts_accepted: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    unparsed: Mapping[str, int] = field(default_factory=dict)
    retried: Mapping[str, int] = field(default_factory=dict)
    blank_prompts: int = 0
    identical_prompts: int = 0

    @classmethod
    def of(cls, records: Iterable[CommitRecord]) -> Totals:
        """Sum of ``records``."""
        total = cls()
        for record in records:
            total = total.plus(record)
        return total

    def plus(self, record: CommitRecord) -> Totals:
        """These totals and one more unit."""
        own = {name: getattr(record, name) for name in _TOTALS if name not in ("units", "rows")}
        return self.merged_with(Totals(units=1, rows=record.num_rows, **own))

    def merged_with(self, other: Totals) -> Totals:
        """The sums of both."""
        both = ((name, getattr(self, name), getattr(other, name)) for name in _TOTALS)
        sums = {name: _SUMS.get(name, operator.add)(own, more) if more else own for name, own, more in both}
        return Totals(**sums)

    @property
    def drafts(self) -> dict[str, int]:
        """Drafts by source: the sums of the fields of ``stats`` under their names."""
        return {name: getattr(self, name) for name in DRAFT_COUNTS}

    @property
    def failed_by_cause(self) -> list[Cause]:
        """The causes of failed rows, the most frequent first."""
        return causes_of(self.causes, self.examples)

    @property
    def all_failed(self) -> bool:
        """Whether there are rows, and every one failed."""
        return self.rows > 0 and self.failed_rows == self.rows

    @property
    def are_scored(self) -> bool:
        """Whether the tokens are those of scored texts: no forward decoded one."""
        return self.completion_tokens > 0 and not self.decode_forwards

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per forward of all generations; see ``wedlm_core.statistics``."""
        return tokens_per_forward(self.completion_tokens, self.decode_forwards)

    @property
    def prefix_cacheability(self) -> float:
        """p_cache of all generations; see ``wedlm_core.statistics``."""
        return prefix_cacheability(self.completion_tokens, self.rows_forwarded)


def _examples(own: Mapping[str, str], more: Mapping[str, str]) -> Mapping[str, str]:
    """One example of each cause, of the first ones."""
    return {**more, **own} if len(own) < MOST_CAUSES else own


def _added(counts: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    return {name: counts.get(name, 0) + more.get(name, 0) for name in {**counts, **more}}


_TOTALS = tuple(field.name for field in fields(Totals))
_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("failures", "unparsed", "retried"), _added), "causes": added_causes, "examples": _examples,
}  # fmt: skip
"""How fields of totals that are no numbers are added up."""
