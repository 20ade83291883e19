"""A quiet decode step enters few files, and moves between them a bounded number of times."""

from __future__ import annotations

from itertools import groupby

from testing.engine.step_trace import moves, quiet_step

FILES, MOVES, ENTRIES = 21, 40, 3


def test_a_quiet_decode_step_passes_few_files() -> None:
    calls = quiet_step()
    files = {file for file, _ in calls}
    entries = [file for file, _ in groupby(calls, key=lambda call: call[0])].count("engine/engine.py")
    assert "engine/forward/runner.py" in files, "the step was traced"
    assert len(files) <= FILES
    assert moves(calls) <= MOVES
    assert 1 <= entries <= ENTRIES
