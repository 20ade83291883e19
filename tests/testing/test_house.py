"""The house is counted as its table says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testing.house import code_lines, function_lengths, measured

SOURCE = '''"""A module."""

# A comment.
import os  # another


def one(
    a: int,
) -> int:
    """A docstring
    of two lines."""
    text = """no docstring

    """
    return a
'''


def test_code_is_neither_blank_nor_comment_nor_docstring() -> None:
    assert code_lines(SOURCE) == 8
    assert function_lengths(SOURCE) == [9]


def test_a_checkout_is_counted_by_its_tracked_files(tmp_path: Path) -> None:
    for name in ("pipeline/a.py", "pipeline/room/a.py", "pipeline/b.py", "jobs/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SOURCE, encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "pipeline", "jobs"], cwd=tmp_path, check=True)
    (tmp_path / "pipeline/untracked.py").write_text(SOURCE, encoding="utf-8")
    found = dict(measured(tmp_path))
    assert found["product: lines, code lines, files"] == "60, 32, 4"
    assert found["modules flat in pipeline"] == "2"
    assert found["file names used twice"] == "1"
    assert found["pipeline: lines"] == "45"
