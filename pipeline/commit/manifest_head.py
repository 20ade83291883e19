"""The head of a manifest: the little that tells whether there is anything new, whatever the number of publications.

A manifest repeats every publication record, so that reading one takes longer with each publication. Beside it lies its
head, under the same name in a folder of its own. It is written first, so a manifest that counts has one, unless an
earlier version wrote it or it was damaged; then the manifest itself is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from pipeline import layout
from pipeline.commit.part_files import PartRecord
from pipeline.commit.run_record import Origin
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.errors import DamagedError
from pipeline.storage.protocol import Storage


@dataclass(frozen=True, kw_only=True)
class ManifestHead:
    """The part of a manifest that scheduled runs need.

    Attributes:
        inputs: the lists of input files that make up the watermark, see :mod:`pipeline.commit.watermark`.
        positions: positions of the visible publications, as ranges; both bounds belong to them.
        next_number: number of the next publication.
    """

    inputs: tuple[PartRecord, ...] = ()
    positions: tuple[tuple[int, int], ...] = ()
    next_number: int = 0

    def save(self, storage: Storage, manifest: str) -> None:
        """Write the head of the manifest that will have this key, and remove those of earlier ones."""
        key = _key_of(manifest)
        raw = {"inputs": [asdict(part) for part in self.inputs], "positions": self.positions, "next": self.next_number}
        storage.put(key, seal(raw))
        storage.delete_objects([other for other in storage.keys(layout.HEADS) if other < key])

    @classmethod
    def load(cls, storage: Storage, origin: Origin) -> ManifestHead | None:
        """The head of the latest manifest; None if it has none that can be read, or there is no manifest."""
        keys = [key for key in storage.keys(layout.MANIFEST) if layout.epoch_of(key) >= origin.begun]
        with suppress(FileNotFoundError, DamagedError, LookupError, TypeError, ValueError):
            raw = unseal(read_state(storage, _key_of(max(keys))))
            return cls(
                inputs=tuple(PartRecord(**part) for part in raw["inputs"]),
                positions=tuple((first, last) for first, last in raw["positions"]),
                next_number=raw["next"],
            )
        return None


def ranges_of(positions: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges of neighbours."""

    def found() -> Iterator[tuple[int, int]]:
        first = last = None
        for position in positions:
            if last is not None and first is not None and position != last + 1:
                yield first, last
                first = None
            first, last = position if first is None else first, position
        if first is not None and last is not None:
            yield first, last

    return tuple(found())


def _key_of(manifest: str) -> str:
    return f"{layout.HEADS}/{manifest.rpartition('/')[2]}"
