"""Find the work of a scheduled run: compare a listing of the input with the watermark.

Plain logic over the index: knows neither storages nor models. Both are in the index, on disk, and so are the
differences of :func:`compare`; :func:`draw_intake` takes the part for one publication, so that memory does not
grow with the number of files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pipeline.commit.index import Inputs, ProcessedFile
from pipeline.errors import SourceError
from pipeline.sources.listing import PartitionRange
from pipeline.types import ListedFile, Unread

OnChanged = Literal["error", "reprocess", "ignore"]
ON_CHANGED: tuple[OnChanged, ...] = ("error", "reprocess", "ignore")
_NAMED = 3
_SHOWN = 1000
"""Keys of ignored files that an intake has, for ``--print-plan``."""
_BATCH = 512
_FAULTS = {
    "changed": "its content changed after it was processed",
    "empty": "it was processed and is empty now",
    "gone": "it was processed and is gone",
}
AGAIN = "again"
"""In the index: a file whose rows are made again whatever has become of it."""


@dataclass(frozen=True, kw_only=True)
class IntakeCounts:
    """Numbers of files.

    Attributes:
        new: whose rows the table does not hold.
        again: whose rows are replaced.
        removed: whose rows are removed, as they are gone or empty.
        ignored: that have changed or are gone, and stay as they are.
        settling: that are too young, or empty and never processed.
        undated: in no folder of the range's key.
        unread: hidden, no files, or of no known kind.
    """

    new: int = 0
    again: int = 0
    removed: int = 0
    ignored: int = 0
    settling: int = 0
    undated: int = 0
    unread: Unread = field(default_factory=Unread)

    def plus(self, later: Intake) -> IntakeCounts:
        """Add the work of a later round of the same run."""
        own = later.counts
        return replace(
            self, new=self.new + own.new, again=self.again + own.again, removed=self.removed + own.removed
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Intake:
    """The files that a scheduled run processes at once, and the rows that it replaces or removes.

    Attributes:
        files: to process, by key.
        versions: file key -> version that its rows will be, where that is not 0.
        targets: file key -> position of the publication that holds the rows of the version before.
        gone: position -> keys of the files whose published rows go; those in ``files`` have new ones.
        removed: of these, the files that are not there any more, or are empty.
        restamped: processed files of the same content, with the stamps that they have now.
        ignored: keys of the first files that differ from the watermark, and stay as they are.
        counts: the numbers.
        last: key of the last new file; the next round goes on from there.
        left: files that are left for further rounds.
    """

    files: tuple[ListedFile, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, int] = field(default_factory=dict)
    gone: Mapping[int, frozenset[str]] = field(default_factory=dict)
    removed: tuple[ProcessedFile, ...] = ()
    restamped: tuple[ProcessedFile, ...] = ()
    ignored: tuple[str, ...] = ()
    counts: IntakeCounts = field(default_factory=IntakeCounts)
    last: str = ""
    left: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to do."""
        return not self.files and not self.gone

    @property
    def new(self) -> tuple[str, ...]:
        """Keys of the files that have no rows in the table yet."""
        return tuple(file.key for file in self.files if file.key not in self.targets)


def compare(
    inputs: Inputs,
    *,
    within: PartitionRange,
    on_changed: OnChanged,
    same: Callable[[Sequence[tuple[ListedFile, ProcessedFile]]], Iterable[bool]],
    redo: Iterable[str] = (),
) -> None:
    """Compare the listing with the watermark, and enter in the index which processed files differ.

    Args:
        inputs: the index with both.
        within: partitions that the listing shows; files outside of them are left alone.
        on_changed: treatment of processed files whose content has changed, or that are gone.
        same: whether each of these files, whose stamps have changed, has the content that was processed.
        redo: keys of processed files whose rows are made again in any case, if the listing shows them.

    Raises:
        SourceError: ``on_changed`` is "error", and a file has changed or is gone; names it.
    """
    touched = inputs.touched()
    while batch := list(itertools.islice(touched, _BATCH)):
        empty = [known for file, known in batch if not file.size]
        inputs.differ((known.key, known.position, "empty") for known in empty)
        filled = [pair for pair in batch if pair[0].size]
        equal = list(same(filled))
        pairs = list(zip(filled, equal, strict=True))
        inputs.differ((known.key, known.position, "changed") for (_, known), is_same in pairs if not is_same)
        inputs.restamp((known.key, file.stamp) for (file, known), is_same in pairs if is_same)
    gone = (known for known in inputs.unlisted() if within.holds(known.key.rpartition("/")[0]))
    inputs.differ((known.key, known.position, "gone") for known in gone)
    for kind, fault in _FAULTS.items() if on_changed == "error" else ():
        _refuse(inputs, kind, fault)
    for key in redo:
        known, there = inputs.get(key), inputs.listed(key)
        if known is not None and there is not None and there.size:
            inputs.differ([(key, known.position, AGAIN)])


def draw_intake(
    inputs: Inputs, *, within: PartitionRange, on_changed: OnChanged, most: int, after: str = ""
) -> Intake:  # fmt: skip
    """Files to process at once: replacements first, one publication after the other, then new files by key.

    A file that has not settled is left for a later run; if it was processed before, its rows stay until then. Where a
    changed or vanished file shares a unit with others (small files are done together), these are done again with it:
    the same rows come out.

    Args:
        inputs: the index, after :func:`compare`.
        within: as for that.
        on_changed: as for that.
        most: files, about: no further publication and no further new file is taken once there are so many.
        after: new files have later keys than this: :attr:`Intake.last` of the round before.

    Raises:
        SourceError: a file that has to be done again shares a unit with one that cannot be read now.
    """
    draft = _Draft(inputs, within, follows=on_changed == "reprocess")
    for position in inputs.differing_positions(draft.kinds):
        if len(draft.taken) >= most:
            break
        draft.take(position)
    listed, versions = list(draft.listed), dict(draft.versions)
    last = after
    for file, version in itertools.islice(inputs.new(after), max(0, most - len(draft.taken))):
        listed.append(file)
        last = file.key
        if version:
            versions[file.key] = version
    ignored = 0 if draft.follows else inputs.count_differing([*_FAULTS])
    return Intake(
        files=tuple(sorted(listed, key=lambda file: file.key)),
        versions=versions,
        targets=draft.targets,
        gone={position: frozenset(keys) for position, keys in sorted(draft.gone.items())},
        removed=tuple(draft.removed),
        restamped=tuple(file for file in inputs.take_restamped(most) if file.key not in draft.taken),
        ignored=tuple(itertools.islice(inputs.differing_keys([*_FAULTS]), _SHOWN)) if ignored else (),
        counts=IntakeCounts(
            new=len(listed) - len(draft.listed), again=len(draft.targets), removed=len(draft.removed), ignored=ignored,
            settling=inputs.count_settling(),
        ),
        last=last,
        left=inputs.count_new(last) + inputs.count_differing(draft.kinds),
    )  # fmt: skip


class _Draft:
    """The replacements of an intake, publication by publication.

    ``follows``: whether the table follows files that have changed or are gone.
    """

    def __init__(self, inputs: Inputs, within: PartitionRange, *, follows: bool) -> None:
        self.follows = follows
        self.kinds = [AGAIN, *(_FAULTS if follows else ())]
        self.listed: list[ListedFile] = []
        self.versions: dict[str, int] = {}
        self.targets: dict[str, int] = {}
        self.gone: dict[int, set[str]] = {}
        self.removed: list[ProcessedFile] = []
        self.taken: set[str] = set()
        self._inputs = inputs
        self._within = within

    def take(self, position: int) -> None:
        """Take all differing files of the publication there, with those that share units with them."""
        for known in list(self._inputs.differing_at(position, self.kinds)):
            for other in self._inputs.sharing(known):
                if other.key not in self.taken:
                    self.taken.add(other.key)
                    self._take(known, other)
        self._inputs.drop_differing(position, self.kinds)

    def _take(self, cause: ProcessedFile, other: ProcessedFile) -> None:
        there = self._inputs.ready(other.key)
        if there is not None:
            self.listed.append(there)
            self.versions[other.key], self.targets[other.key] = other.version + 1, other.position
        elif self.follows and self._is_gone(other):
            self.removed.append(other)
        else:
            raise SourceError(_cannot_do_again(cause, other))
        self.gone.setdefault(other.position, set()).add(other.key)

    def _is_gone(self, file: ProcessedFile) -> bool:
        there = self._inputs.listed(file.key)
        if there is None:
            return bool(self._within.holds(file.key.rpartition("/")[0]))
        return not there.size and self._inputs.has_settled(there)


def _cannot_do_again(file: ProcessedFile, other: ProcessedFile) -> str:
    return (
        f"input file {file.key!r} cannot be done again: it shares a unit with {other.key!r} (small files are done "
        "together), which is gone, empty, too young or outside of the partitions given. Put it back and widen the "
        "range; or use on_changed='reprocess', which removes the rows of files that are gone."
    )


def _refuse(inputs: Inputs, kind: str, fault: str) -> None:
    count = inputs.count_differing([kind])
    if not count:
        return
    names = ", ".join(map(repr, itertools.islice(inputs.differing_keys([kind]), _NAMED)))
    more = f" and {count - _NAMED} more" if count > _NAMED else ""
    raise SourceError(
        f"input file {names}{more}: {fault}. Put the old content back; or use on_changed='reprocess' (its rows are "
        "replaced by those of the new content, or removed with the file) or 'ignore' (the old rows stay)."
    )
