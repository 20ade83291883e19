"""Manifests: the last one written counts, also after publications were withdrawn; heads are of their manifest only."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import layout
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.manifest_head import ManifestHead, ranges_of
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
    assert ManifestHead.load(storage, Origin()) == manifest(0).head


def test_a_head_says_what_its_manifest_says() -> None:
    storage = MemoryStorage()
    manifest(0, 1, 2, 5).save(storage, 1)
    head = ManifestHead.load(storage, Origin())
    assert head == manifest(0, 1, 2, 5).head
    assert head == ManifestHead(inputs=(LIST,), positions=((0, 2), (5, 5)), next_number=6)
    assert ManifestHead.load(storage, Origin(begun=2)) is None, "of a run that was discarded"


@pytest.mark.parametrize("damage", ["gone", "cut", "of another manifest"])
def test_without_a_head_of_its_own_the_manifest_counts(damage: str) -> None:
    storage = MemoryStorage()
    manifest(0, 1).save(storage, 1)
    (key,) = storage.keys(layout.HEADS)
    if damage == "gone":
        storage.delete(key)
    elif damage == "cut":
        storage.objects[key] = storage.objects[key][:-9]
    else:
        (own,) = storage.keys(layout.MANIFEST)
        storage.objects[layout.manifest(2, 7)] = storage.objects.pop(own)
    assert ManifestHead.load(storage, Origin()) is None


@given(st.sets(st.integers(0, 40)))
def test_ranges_hold_these_positions_and_no_others(positions: set[int]) -> None:
    found = ranges_of(sorted(positions))
    assert {p for first, last in found for p in range(first, last + 1)} == positions
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found))


def test_an_output_without_a_watermark_has_no_head() -> None:
    storage, own = MemoryStorage(), manifest(0)
    replace(own, decided=tuple(replace(p, inputs=()) for p in own.decided)).save(storage, 1)
    assert storage.keys(layout.HEADS) == []
