"""A grammar of a row's own that takes too much to compile is a failed row, and ends no other process than its own."""

from __future__ import annotations

import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wedlm_batch as wb
from pipeline.config import RunConfig
from pipeline.prompts import limited_process, structures
from pipeline.prompts.structures import grammar_faults

ENDLESS = {"grammar": "start: A\nA: " + " & ".join(f"/(.*{char}.{{9}})*/" for char in string.ascii_lowercase[:12])}
FINE = {"choice": ["yes", "no"]}


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(structures, "_SECONDS", 1)
    structures._compiler.cache_clear()
    yield
    structures._compiler.cache_clear()


def faults(*given: dict[str, Any] | None) -> dict[int, str]:
    config = RunConfig(input=[{"prompt": "x"}], output="none", model="tiny")
    own = [{"structured_outputs": fields, "max_tokens": 3} for fields in given]
    return {place: fault.message for place, fault in grammar_faults(own, config).items()}


def test_a_grammar_beyond_the_time_fails_alone() -> None:
    found = faults(FINE, ENDLESS, None, {"regex": "("}, FINE, ENDLESS)
    assert set(found) == {1, 3, 5}
    assert "its compilation takes more than 1 s. Simplify it." in found[1]
    assert found[1] == found[5]
    assert "cannot be compiled" in found[3]


def test_a_grammar_beyond_the_memory_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structures, "_BYTES", 32 << 20)
    monkeypatch.setattr(structures, "_SECONDS", 60)
    found = faults(ENDLESS, FINE)
    assert set(found) == {0}
    assert "its compilation ended its process (signal 6, Aborted), which may have 32 MiB of memory" in found[0]


def test_the_process_ends_when_it_has_nothing_to_do_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_process, "_IDLE_SECONDS", 0.1)
    assert faults(FINE) == {}
    time.sleep(0.5)
    assert faults({"choice": ["a"]}) == {}
    assert set(faults({"choice": ["b"]}, {"regex": "("})) == {1}


def test_other_rows_are_generated(tmp_path: Path) -> None:
    data = [{"prompt": "Is it?", "form": form} for form in (FINE, ENDLESS, {"choice": ["maybe"]})]
    config = wb.RunConfig(
        input=data, output=str(tmp_path / "none"), model="tiny", sampling_columns={"structured_outputs": "form"}
    )
    rows = wb.preview(config, rows=3).to_pylist()
    assert [row["text"] in ("yes", "no", "maybe") for row in rows] == [True, False, True]
    assert "takes more than 1 s" in rows[1]["error"]
