"""Long-lived objects are not looked through for garbage; later ones are."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pipeline.worker.load_engine import keep_what_is_there, nothing_collected


@pytest.fixture
def collector() -> Iterator[None]:
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_again_behind_the_block_if_it_was_before(collects: bool) -> None:
    def fails() -> None:
        with nothing_collected():
            assert not gc.isenabled()
            raise ImportError

    (gc.enable if collects else gc.disable)()
    with pytest.raises(ImportError):
        fails()
    assert gc.isenabled() == collects


class _Ring:
    def __init__(self) -> None:
        self.own = self


@pytest.mark.usefixtures("collector")
def test_what_is_there_is_kept_and_later_garbage_is_found() -> None:
    keep_what_is_there()
    assert gc.get_freeze_count() > 10_000
    gc.collect()
    _Ring()
    assert gc.collect() >= 1
