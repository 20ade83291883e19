"""Manifests: the last one written counts, also after publications were withdrawn."""

from __future__ import annotations

import pyarrow as pa

from pipeline import layout
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import PartRecord
from pipeline.commit.run_record import Origin
from testing.pipeline.fakes import MemoryStorage

LIST = PartRecord(name="list", rows=1, bytes=1, sha256="x")


def manifest(*positions: int) -> Manifest:
    nothing = PartRecord(name="", rows=0, bytes=0, sha256="")
    return Manifest(decided=tuple(
        Publication(number=p, position=p, revision=0, epoch=1, format="parquet", schema=pa.schema([]),
                    dead_schema=pa.schema([]), parts=(), dead_letters=None, units=nothing, inputs=(LIST,))
        for p in positions
    ))  # fmt: skip


def test_of_one_writer_the_last_manifest_counts_though_it_has_fewer_publications() -> None:
    storage = MemoryStorage()
    for positions in ((0, 1, 2, 3), (0, 2, 3), (0, 3), (0,), (0, 4)):
        manifest(*positions).save(storage, 5)
        assert [p.position for p in Manifest.load(storage, Origin()).decided] == list(positions)
        assert len(storage.keys(layout.MANIFEST)) == 1


def test_a_later_writer_counts_whatever_an_earlier_one_still_writes() -> None:
    storage = MemoryStorage()
    manifest(0, 1, 2).save(storage, 5)
    manifest(0).save(storage, 6)
    manifest(0, 1, 2, 3).save(storage, 5)
    assert len(Manifest.load(storage, Origin()).decided) == 1
