"""Joins small files into units: a unit per file would cost a task's turn, an object and a ledger entry for a few rows.

A small file is one that is a single slice of less than a unit's rows. Adjacent small files share a unit, whole, up to a
unit's rows. Which files share which unit is part of the run record: files that come later, or go, do not change it. A
file that an earlier version of this package has read keeps units of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.commit.index import CommittedUnits
from pipeline.commit.run_record import FileIdentity, RunState
from pipeline.plan.units import plan_units, unit_id_of
from pipeline.sources.source import SlicedSource
from pipeline.types import Slice, SourceFile, Stretch, Unit
from wedlm_base.version import VERSION

_MOST_FILES = 512
_MOST_BYTES = 64 * 2**20
"""Text files of a unit hold at most so many bytes, as its rows are in memory together."""


@dataclass(kw_only=True)
class SmallFiles:
    """Joins the units of small files; after that, knows which files share a unit.

    Attributes:
        known: files of the run so far, by key; files that are not among them are new and may be joined.
        group: only new files of the same group are joined; None: all are of one.
        shares: identity of each file that shares a unit, the known ones included.
        torn: of each unit some of whose files are gone: its id, their keys, and the keys of the others.
    """

    known: Mapping[str, FileIdentity]
    group: Callable[[SourceFile], Hashable] | None = None
    shares: dict[str, FileIdentity] = field(default_factory=dict)
    torn: list[tuple[str, list[str], list[str]]] = field(default_factory=list)

    def join(
        self, units: Iterable[Unit], files: Sequence[SourceFile], unit_rows: int, fingerprint: str
    ) -> Iterator[Unit]:  # fmt: skip
        """The units, in input order, those of small files joined.

        Args:
            units: each of one file, in input order; a file's units follow each other.
            files: the source's files.
            unit_rows: rows per unit.
            fingerprint: as for :func:`~pipeline.plan.units.plan_units`.
        """
        joined = self._joined(units, files, unit_rows, fingerprint)
        return (replace(unit, index=index) for index, unit in enumerate(joined))

    def _joined(
        self, units: Iterable[Unit], files: Sequence[SourceFile], unit_rows: int, fingerprint: str
    ) -> Iterator[Unit]:  # fmt: skip
        members: dict[int, list[str]] = {}
        for key, known in self.known.items():
            if known.unit is not None:
                members.setdefault(known.unit, []).append(key)
        number = itertools.count(1 + max(members, default=-1))
        waiting: dict[int, list[Slice]] = {number: [] for number in members}
        held: list[Unit] = []  # small new files that no unit was made of yet

        def flush() -> Iterator[Unit]:
            if held:
                yield self._new(held, files, fingerprint, number)
                held.clear()

        for _, group in itertools.groupby(units, key=lambda unit: unit.rows.file):
            own = iter(group)
            first, second = next(own), next(own, None)
            file = files[first.rows.file]
            share = self.known[file.key].unit if file.key in self.known else None
            if share is not None:
                waiting[share].append(first.rows)
                if len(waiting[share]) == len(members[share]):
                    yield from flush()
                    yield self._unit(waiting.pop(share), files, fingerprint)
            elif file.key not in self.known and second is None and first.num_rows < unit_rows:
                if not _has_room(held, first, unit_rows) or (held and not self._are_one_group(held[-1], first, files)):
                    yield from flush()
                held.append(first)
            else:
                yield from flush()
                yield first
                yield from itertools.chain([] if second is None else [second], own)
        yield from flush()
        self.shares |= {key: file for key, file in self.known.items() if file.unit is not None}
        there = {file.key for file in files}
        self.torn += [self._torn(members[share], there, fingerprint) for share in waiting]

    def _are_one_group(self, one: Unit, other: Unit, files: Sequence[SourceFile]) -> bool:
        return self.group is None or self.group(files[one.rows.file]) == self.group(files[other.rows.file])

    def _new(
        self, units: Sequence[Unit], files: Sequence[SourceFile], fingerprint: str, number: Iterator[int]
    ) -> Unit:  # fmt: skip
        if len(units) == 1:
            return units[0]
        share = next(number)
        for unit in units:
            file = files[unit.rows.file]
            self.shares[file.key] = FileIdentity(
                digest=file.digest, stamp=file.stamp, unit=share, rows=unit.num_rows
            )  # fmt: skip
        return self._unit([unit.rows for unit in units], files, fingerprint)

    def _unit(self, slices: Sequence[Slice], files: Sequence[SourceFile], fingerprint: str) -> Unit:
        unit = Unit(unit_id="", index=0, rows=slices[0], more=tuple(slices[1:]))
        digests = [files[piece.file].identity for piece in slices]
        stretches = zip(unit.stretches(files), digests, strict=True)
        return replace(unit, unit_id=unit_id_of(fingerprint, stretches))

    def _torn(self, keys: list[str], there: set[str], fingerprint: str) -> tuple[str, list[str], list[str]]:
        own = [(key, self.known[key]) for key in sorted(keys)]
        rows = [(Stretch(file_key=key, first_row=0, num_rows=file.rows), file.first_digest) for key, file in own]
        gone, left = [key for key, _ in own if key not in there], [key for key, _ in own if key in there]
        return unit_id_of(fingerprint, rows), gone, left


def planned_units(
    source: SlicedSource,
    state: RunState,
    known: Mapping[str, FileIdentity],
    group: Callable[[SourceFile], Hashable] | None = None,
) -> tuple[Iterator[Unit], SmallFiles]:  # fmt: skip
    """The units of a run, in input order; and the groups of small files once all units are drawn."""
    small = SmallFiles(known=known, group=group)
    limit = state.fingerprint["limit"]
    units = plan_units(source, state.unit_rows, state.fingerprint_hash, limit)
    # A limit cuts the input off in the middle of a file, and further files would move it: nothing is joined.
    if limit is None:
        units = small.join(units, source.files, state.unit_rows, state.fingerprint_hash)
    return units, small


def plan_key(files: Sequence[SourceFile], state: RunState, known: Mapping[str, FileIdentity]) -> str | None:
    """Hash everything that the units of a run follow from; None if files share units, as these depend on earlier runs.

    Args:
        files: of the source; a file with an equal stamp has equal content.
        state: the run record.
        known: the files of the run so far.
    """
    if any(file.unit is not None for file in known.values()):
        return None
    digest = hashlib.sha256(json.dumps([VERSION, state.fingerprint_hash, state.unit_rows]).encode())
    for file in files:
        digest.update(json.dumps([file.key, file.identity, file.stamp]).encode())
    return digest.hexdigest()


def _has_room(held: Sequence[Unit], unit: Unit, unit_rows: int) -> bool:
    """Whether a further unit fits in addition to those in ``held``."""
    every = [*held, unit]
    size = sum(own.rows.stop - own.rows.start for own in every)
    return sum(own.num_rows for own in every) <= unit_rows and size <= _MOST_BYTES and len(every) <= _MOST_FILES


def recorded_shares(records: CommittedUnits, files: Sequence[SourceFile]) -> dict[str, FileIdentity]:
    """Files that share units by the ledger (the files of all its records), where the run record is lost."""
    digests = {file.key: file for file in files}
    found: dict[str, FileIdentity] = {}
    for number, record in enumerate(records):
        for stretch in record.stretches:
            file = digests.get(stretch.file_key)
            found[stretch.file_key] = FileIdentity(
                digest="" if file is None else file.digest,
                stamp="" if file is None else file.stamp,
                unit=number if record.more else None,
                rows=stretch.num_rows if record.more else 0,
            )
    return found
