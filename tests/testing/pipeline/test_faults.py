"""Faults that tests inject: which crashes need not be tried, as a later one leaves the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import layout
from pipeline.storage.local import LocalStorage
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Moment, Recorder, boundary, crash_points


def write(storage: FaultyStorage) -> None:
    """Every operation that changes something."""
    storage.put("a/one", b"1")
    assert storage.put_new("a/two", b"2")
    with storage.create("b/three") as file:
        file.write(b"3" * 10)
        storage.put("a/while", b"it is written")
    storage.promote("b", "visible")
    storage.delete_objects(["a/one", "a/two"])
    storage.put("a/four", b"4")
    storage.delete("a")
    storage.sweep(0.0)


def left_by(folder: Path, at: int) -> dict[str, bytes]:
    storage = LocalStorage(folder, "scratch")
    with pytest.raises(Killed):
        write(FaultyStorage(storage, CrashAt(at)))
    return {key: storage.read(key) for key in storage.keys(".")}


def test_a_crash_that_is_left_out_leaves_what_the_next_one_leaves(tmp_path: Path) -> None:
    recorder = Recorder()
    write(FaultyStorage(LocalStorage(tmp_path / "whole", "scratch"), recorder))
    left = [left_by(tmp_path / str(at), at) for at in range(len(recorder.moments))]
    kept = crash_points(recorder.moments)
    assert [left[at] for at in range(len(left)) if at not in kept] == [
        left[at + 1] for at in range(len(left)) if at not in kept
    ]
    assert len(left) / 2 <= len(kept) < 0.7 * len(left)
    everything = [state for n, state in enumerate(left) if n == 0 or state != left[n - 1]]
    tried = [left[at] for n, at in enumerate(kept) if n == 0 or left[at] != left[kept[n - 1]]]
    assert tried == everything, "no state is left out"


def test_operations_that_overlap_are_tried_on_both_sides() -> None:
    def moment(key: str, after: bool) -> Moment:
        return Moment(operation="put", key=key, after=after)

    both = [moment("a", False), moment("b", False), moment("a", True), moment("b", True)]
    assert crash_points(both) == [0, 1, 2, 3], "after one, the other may be half done"
    assert crash_points([moment("a", False), moment("a", True), moment("b", False), moment("b", True)]) == [0, 2, 3]


def test_of_each_kind_the_first_and_the_last_are_kept() -> None:
    moments = [Moment(operation=operation, key=f"{key}/{n}", after=after) for n in range(5)
               for operation, key in (("put", layout.STAGED), ("delete", layout.STAGED), ("put", layout.LEDGER))
               for after in (False, True)]  # fmt: skip
    every, some = crash_points(moments), crash_points(moments, every=False)
    assert set(some) < set(every)

    def kinds(found: list[int]) -> set[tuple[str, bool]]:
        return {(boundary(moments[at]), moments[at].after) for at in found}

    assert kinds(some) == kinds(every)
    assert len(some) == 2 * len(kinds(every)) - 1, "of single events, one"
    assert {every[0], every[-1]} <= set(some)
