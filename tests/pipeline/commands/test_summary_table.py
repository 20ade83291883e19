"""The table at the end of a run: on terminals of any width, and as lines."""

from __future__ import annotations

import contextlib
import os
import pty
import re

import pytest

from pipeline.commands.summary import Fact, SummaryTable

TABLE = SummaryTable(
    facts=(Fact(label="Output", value="out/sums"), Fact(label="Cost of this run", value="12.9 CPU-seconds")),
    sections=(
        SummaryTable(
            title="Stage write",
            facts=(Fact(label="Rows", value="161, 160 ok, 1 failed"),),
            failures=("1 row: the prompt is empty. For example row in.jsonl:7.",),
            advice="Failed rows: read them.",
            commands=(Fact(label="verify", value="wedlm-batch verify out/sums/write"),),
        ),
    ),
    commands=(Fact(label="retry failed rows", value="wedlm-batch chain --retry-failed"),),
)
WORDS = ("out/sums", "12.9 CPU-seconds", "Stage write", "161, 160 ok, 1 failed", "1 row: the prompt is empty",
         "For example row in.jsonl:7.", "wedlm-batch verify out/sums/write")  # fmt: skip


def written(columns: int) -> list[str]:
    """The lines that a terminal of this width gets, without escape codes."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as file:
        TABLE.write(file)
        os.set_blocking(master, False)
        data = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                data += os.read(master, 65_536)
    os.close(master)
    return re.sub(r"\x1b\[[\d;]*m|\r", "", data.decode()).splitlines()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_value_is_lost_on_a_terminal_however_narrow(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = written(columns)
    text = "".join("".join(lines).split())
    for words in WORDS:
        assert "".join(words.split()) in text
    longest = max(len(line.rstrip()) for line in lines if "wedlm-batch" not in line)
    assert longest <= columns


def test_lines_of_a_section_stand_below_its_title() -> None:
    assert TABLE.plain().splitlines() == [
        "Output: out/sums",
        "Cost of this run: 12.9 CPU-seconds",
        "Stage write:",
        "  Rows: 161, 160 ok, 1 failed",
        "  Failed rows by cause:",
        "    1 row: the prompt is empty. For example row in.jsonl:7.",
        "  Failed rows: read them.",
        "  To verify: wedlm-batch verify out/sums/write",
        "To retry failed rows: wedlm-batch chain --retry-failed",
    ]
