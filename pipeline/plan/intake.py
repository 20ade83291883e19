"""What a scheduled run has to do: compares a listing of the input with the watermark.

Plain logic over the index: knows neither storages nor models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.commit.index import Inputs, ProcessedFile
from pipeline.errors import SourceError
from pipeline.sources.listing import PartitionRange
from pipeline.types import ListedFile

__all__ = ["ON_CHANGED", "Intake", "OnChanged", "decide_intake"]

OnChanged = Literal["error", "reprocess", "ignore"]
ON_CHANGED: tuple[OnChanged, ...] = ("error", "reprocess", "ignore")
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Intake:
    """The files that a scheduled run processes, and the rows that it replaces or removes.

    Attributes:
        files: to process, by key.
        versions: file key -> version that its rows will be, where that is not 0.
        targets: file key -> position of the publication that holds the rows of the version before.
        gone: position -> keys of the files whose published rows go; those in ``files`` have new ones.
        removed: of these, the files that are not there any more.
        changed, vanished: keys that differ from the watermark, whatever is done about it.
        settling: number of files that are too young, or empty.
    """

    files: tuple[ListedFile, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, int] = field(default_factory=dict)
    gone: Mapping[int, frozenset[str]] = field(default_factory=dict)
    removed: tuple[ProcessedFile, ...] = ()
    changed: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    settling: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to do."""
        return not self.files and not self.gone

    @property
    def new(self) -> tuple[str, ...]:
        """Keys of the files that have no rows in the table yet."""
        return tuple(file.key for file in self.files if file.key not in self.targets)


def decide_intake(
    inputs: Inputs,
    *,
    within: PartitionRange,
    on_changed: OnChanged,
    ready: Callable[[ListedFile], bool],
    same: Callable[[Sequence[tuple[ListedFile, ProcessedFile]]], Iterable[bool]],
    redo: Iterable[str] = (),
) -> Intake:
    """Compare the listing with the watermark.

    A file that is not ``ready`` is left for a later run; if it was processed before, its rows stay until then. Where a
    changed or vanished file shares a unit with others (small files are done together), these are done again with it:
    the same rows come out.

    Args:
        inputs: the index with both.
        within: partitions that the listing shows; files outside of them are left alone.
        on_changed: what to do about files that were processed and are another content now, or gone.
        ready: whether a file has settled.
        same: whether each of these files, whose stamps have changed, has the content that was processed.
        redo: keys of processed files whose rows are made again in any case, if the listing shows them.

    Raises:
        SourceError: ``on_changed`` is "error", and a file has changed or is gone; names it.
    """
    listed: list[ListedFile] = []
    settling = 0
    versions: dict[str, int] = {}
    for file, version in inputs.new():
        if not ready(file):
            settling += 1
            continue
        listed.append(file)
        if version:
            versions[file.key] = version
    touched = [(file, known) for file, known in inputs.touched() if ready(file)]
    changed = [known for (_, known), equal in zip(touched, same(touched), strict=True) if not equal]
    vanished = [known for known in inputs.unlisted() if within.holds(known.key.rpartition("/")[0])]
    if on_changed == "error":
        _refuse(changed, "its content is not what was processed")
        _refuse(vanished, "it was processed and is gone")
    targets: dict[str, int] = {}
    gone: dict[int, set[str]] = {}
    leaving = {known.key for known in vanished} if on_changed == "reprocess" else set()
    again = [known for key in redo if (known := inputs.get(key)) is not None and inputs.listed(key) is not None]
    for known in (*again, *((*changed, *vanished) if on_changed == "reprocess" else ())):
        for other in inputs.sharing(known):
            there = inputs.listed(other.key)
            if there is None and other.key not in leaving:
                raise SourceError(_cannot_do_again(known, other))
            gone.setdefault(other.position, set()).add(other.key)
            if there is not None and other.key not in targets:
                listed.append(there)
                versions[other.key], targets[other.key] = other.version + 1, other.position
    return Intake(
        files=tuple(sorted(listed, key=lambda file: file.key)),
        versions=versions,
        targets=targets,
        gone={position: frozenset(keys) for position, keys in sorted(gone.items())},
        removed=tuple(vanished) if on_changed == "reprocess" else (),
        changed=tuple(known.key for known in changed),
        vanished=tuple(known.key for known in vanished),
        settling=settling,
    )


def _cannot_do_again(file: ProcessedFile, other: ProcessedFile) -> str:
    return (
        f"input file {file.key!r} cannot be done again: it shares a unit with {other.key!r} (small files are done "
        "together), which is gone or outside of the partitions given. Put it back and widen the range; or use "
        "on_changed='reprocess', which removes the rows of files that are gone."
    )


def _refuse(files: Sequence[ProcessedFile], fault: str) -> None:
    if not files:
        return
    names = ", ".join(repr(file.key) for file in files[:_NAMED])
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    raise SourceError(
        f"input file {names}{more}: {fault}. Put back what was there; or use on_changed='reprocess' (its rows are "
        "replaced by those of the new content, or removed with the file) or 'ignore' (the old rows stay)."
    )
