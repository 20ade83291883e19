"""Index table of committed units: the ledger record of each unit's latest attempt that was not revoked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from pipeline.causes import MOST_CAUSES, added_causes
from pipeline.commit.index.scratch import Scratch, load_snapshot, save_snapshot
from pipeline.types import GENERATED_COUNTS, PROMPT_COUNTS, RECORD_FIELDS, CommitRecord, Revocation, Stretch, Totals

COLUMNS = RECORD_FIELDS
"""Columns of the table, one for each field of a record; those of :data:`_MAPPINGS` and ``more`` are JSON text, or null
if empty."""
_SUMS = ("num_rows", "failed_rows", *GENERATED_COUNTS, *PROMPT_COUNTS)
_MAPPINGS = ("failures", "causes", "examples", "unparsed", "retried")
_JSON = (*_MAPPINGS, "more")
_DEFAULTS = {field.name: field.default for field in fields(CommitRecord) if field.default is not MISSING}
_DEFAULTS |= dict.fromkeys(_JSON)
_UNIT_ID, _ATTEMPT = 1 + COLUMNS.index("unit_id"), 1 + COLUMNS.index("attempt")
_EMPTY: dict[str, Any] = {}


def row_of(raw: Mapping[str, Any]) -> list[Any]:
    """The tuple of :data:`COLUMNS` from the plain values of a record, such as a line of the ledger.

    Raises:
        KeyError: a field is missing that has no default.
    """
    named = {**_DEFAULTS, **raw}
    for name in _JSON:
        named[name] = json.dumps(named[name]) if named[name] else None
    return [named[name] for name in COLUMNS]


def record_of(row: Sequence[Any]) -> CommitRecord:
    """The record from a tuple of :data:`COLUMNS`."""
    named = dict(zip(COLUMNS, row, strict=True))
    named |= {name: json.loads(named[name]) if named[name] else _EMPTY for name in _MAPPINGS}
    named["more"] = tuple(Stretch(*stretch) for stretch in json.loads(named["more"])) if named["more"] else ()
    return CommitRecord(**named)


class CommittedUnits:
    """The table: unit id -> record, and unit id -> revocation."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        rest = ", ".join(name for name in COLUMNS if name != "unit_id")
        scratch.run(f"CREATE TABLE records (unit_id TEXT, {rest})")
        scratch.run("CREATE UNIQUE INDEX records_by_id ON records (unit_id)")
        scratch.run("CREATE TABLE revoked (unit_id TEXT PRIMARY KEY, attempt INTEGER, reason TEXT, input_sha256 TEXT)")
        changes = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != "unit_id")
        values = ", ".join(f"?{i}" for i in range(1, 1 + len(COLUMNS)))
        self._insert = (
            f"INSERT INTO records ({', '.join(COLUMNS)}) SELECT {values} "
            f"WHERE NOT EXISTS (SELECT 1 FROM revoked WHERE unit_id = ?{_UNIT_ID} AND attempt >= ?{_ATTEMPT}) "
            f"ON CONFLICT (unit_id) DO UPDATE SET {changes} WHERE excluded.attempt >= records.attempt"
        )

    def add(self, records: Iterable[CommitRecord]) -> None:
        """Enter records; a record of an earlier attempt than the known or the revoked one is ignored."""
        self.enter(row_of({name: getattr(record, name) for name in COLUMNS}) for record in records)

    def enter(self, rows: Iterable[Sequence[Any]]) -> None:
        """:meth:`add` records as tuples of :data:`COLUMNS`, see :func:`row_of`."""
        self._scratch.write(self._insert, rows)

    def save(self, path: str, facts: Mapping[str, object]) -> None:
        """Write a snapshot of the index; see :func:`pipeline.commit.index.scratch.save_snapshot`."""
        save_snapshot(self._scratch, path, facts)

    def load(self, path: str) -> dict[str, Any] | None:
        """Load a snapshot into an empty index; see :func:`pipeline.commit.index.scratch.load_snapshot`."""
        return load_snapshot(self._scratch, path)

    def clear(self) -> None:
        """Forget everything."""
        for table in ("records", "revoked"):
            self._scratch.run(f"DELETE FROM {table}")

    def revoke(self, revocations: Sequence[Revocation]) -> None:
        """Drop the records of these attempts and earlier ones, and ignore any that are entered later."""
        rows = [(r.unit_id, r.attempt, r.reason, r.input_sha256) for r in revocations]
        self._scratch.write(
            "INSERT INTO revoked VALUES (?, ?, ?, ?) ON CONFLICT (unit_id) DO UPDATE SET attempt = excluded.attempt, "
            "reason = excluded.reason, input_sha256 = excluded.input_sha256 WHERE excluded.attempt >= revoked.attempt",
            rows,
        )
        self._scratch.write("DELETE FROM records WHERE unit_id = ? AND attempt <= ?", (row[:2] for row in rows))

    def revoked(self, unit_id: str) -> Revocation | None:
        """The last revocation of a unit."""
        query = "SELECT unit_id, attempt, reason, input_sha256 FROM revoked WHERE unit_id = ?"
        row = self._scratch.one(query, (unit_id,))
        return None if row is None else _revocation(row)

    def revocations(self) -> Iterator[Revocation]:
        """The last revocation of each unit that has one."""
        query = (
            "SELECT rowid, unit_id, attempt, reason, input_sha256 FROM revoked WHERE rowid > ? ORDER BY rowid LIMIT ?"
        )
        return (_revocation(row[1:]) for row in self._scratch.stream(query))

    def get(self, unit_id: str) -> CommitRecord | None:
        """The record of a unit."""
        row = self._scratch.one(f"SELECT {', '.join(COLUMNS)} FROM records WHERE unit_id = ?", (unit_id,))
        return None if row is None else record_of(row)

    def among(self, unit_ids: Sequence[str]) -> list[CommitRecord]:
        """The records of these units; units without a record are left out."""
        query = f"SELECT {', '.join(COLUMNS)} FROM records WHERE unit_id IN (SELECT value FROM json_each(?))"
        return [record_of(row) for row in self._scratch.all(query, (json.dumps(list(unit_ids)),))]

    def __len__(self) -> int:
        row = self._scratch.one("SELECT count(*) FROM records")
        return 0 if row is None else int(row[0])

    def __iter__(self) -> Iterator[CommitRecord]:
        """All records, in the order of their units' first entries."""
        query = f"SELECT rowid, {', '.join(COLUMNS)} FROM records WHERE rowid > ? ORDER BY rowid LIMIT ?"
        return (record_of(row[1:]) for row in self._scratch.stream(query))

    def unpublished(self) -> Iterator[CommitRecord]:
        """Records of units that no publication holds, in the same order."""
        query = (
            f"SELECT rowid, {', '.join(COLUMNS)} FROM records WHERE rowid > ? AND NOT EXISTS "
            "(SELECT 1 FROM published p WHERE p.unit_id = records.unit_id) ORDER BY rowid LIMIT ?"
        )
        return (record_of(row[1:]) for row in self._scratch.stream(query))

    def unpublished_in_order(self) -> Iterator[CommitRecord]:
        """Records of units that no publication holds now, by file key and row; ends those that were begun before."""
        self._scratch.run("DROP TABLE IF EXISTS unpublished")
        self._scratch.run(
            "CREATE TABLE unpublished AS SELECT unit_id FROM records WHERE NOT EXISTS "
            "(SELECT 1 FROM published p WHERE p.unit_id = records.unit_id) ORDER BY file_key, first_row"
        )
        names = ", ".join(f"r.{name}" for name in COLUMNS)
        query = (
            f"SELECT u.rowid, {names} FROM unpublished u CROSS JOIN records r ON r.unit_id = u.unit_id "
            "WHERE u.rowid > ? ORDER BY u.rowid LIMIT ?"
        )
        return (record_of(row[1:]) for row in self._scratch.stream(query))

    def attempts(self) -> dict[int, int]:
        """Attempt -> number of units."""
        return dict(self._scratch.all("SELECT attempt, count(*) FROM records GROUP BY attempt ORDER BY attempt"))

    def totals(self, among: str = "") -> Totals:
        """Sums over all records, or those that match ``among``, an SQL condition on the table ``records``."""
        where = f"WHERE {among}" if among else ""
        sums = ", ".join(f"coalesce(sum({name}), 0)" for name in _SUMS)
        row = self._scratch.one(f"SELECT count(*), {sums} FROM records {where}")
        assert row is not None
        failures: Counter[str] = Counter()
        unparsed: Counter[str] = Counter()
        retried: Counter[str] = Counter()
        causes: Mapping[str, int] = {}
        examples: dict[str, str] = {}
        told = f"coalesce(failures, unparsed, retried) IS NOT NULL AND rowid > ? {f'AND {among}' if among else ''}"
        names = "failures, causes, unparsed, retried, examples"
        query = f"SELECT rowid, {names} FROM records WHERE {told} ORDER BY rowid LIMIT ?"
        for _, failed, why, unread, again, texts in self._scratch.stream(query):
            failures.update(json.loads(failed) if failed else {})
            causes = added_causes(causes, json.loads(why or "{}"))
            unparsed.update(json.loads(unread) if unread else {})
            retried.update(json.loads(again) if again else {})
            examples = {**json.loads(texts), **examples} if texts and len(examples) < MOST_CAUSES else examples
        own = dict(zip(("units", "rows", *_SUMS[1:]), row, strict=True))
        return Totals(
            **own, failures=dict(failures), causes=causes, examples=examples, unparsed=dict(unparsed),
            retried=dict(retried),
        )  # fmt: skip


def _revocation(row: Sequence[Any]) -> Revocation:
    unit_id, attempt, reason, input_sha256 = row
    return Revocation(unit_id=unit_id, attempt=attempt, reason=reason, input_sha256=input_sha256)
