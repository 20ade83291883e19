"""``wedlm-batch generate`` as people see it: in a terminal, interrupted there, then in a pipe, and once more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from testing.pipeline.terminal import Terminal
from testing.repository import ROOT

pytest.importorskip("pyte", reason="pyte is not installed")

ROWS = 200  # more than are done one at a time before the run is interrupted
ESCAPE, RETURN = b"\x1b", b"\r"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show n")  # with a blank, which commands have to quote
    prompts = [f"Count from {i} to {i + 20}." if i % 75 else "" for i in range(ROWS)]
    pq.write_table(pa.table({"prompt": prompts}), folder / "in.parquet")
    return folder


def command(folder: Path, *more: str) -> list[str]:
    given = ["--input", str(folder / "in.parquet"), "--output", str(folder / "out"), "--model", "tiny"]
    return [sys.executable, "-m", "wedlm_batch", "generate", *given, "--max-tokens", "120", "--set", "unit_rows=16",
            "--set", "stop_seconds=0.5", *more]  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LANG": "C.UTF-8", **more}


@pytest.fixture(scope="module")
def interrupted(folder: Path) -> Iterator[Terminal]:
    """A run in a terminal of 80 columns, made narrower on the way, interrupted while it generates."""
    begin = time.monotonic()
    slow = command(folder, "--set", "engine.max_num_seqs=1")
    with Terminal(slow, columns=80, lines=30, environment=environment(), cwd=folder) as terminal:
        terminal.read_until(lambda: terminal.raw, 10)
        terminal.seconds_of_silence = time.monotonic() - begin  # type: ignore[attr-defined]
        terminal.read_until(lambda: "● planning" in terminal.text or "● starting" in terminal.text, 20)
        terminal.resize(60, 30)
        terminal.read_until(lambda: "● generating" in terminal.text, 60)
        terminal.read_until(lambda: re.search(r"rows [1-9]", terminal.text), 30)
        terminal.frame = terminal.shown  # type: ignore[attr-defined]
        terminal.hidden = not terminal.is_sane  # type: ignore[attr-defined]
        terminal.press_ctrl_c()
        terminal.status = terminal.wait(30)  # type: ignore[attr-defined]
        yield terminal


def test_a_terminal_shows_every_stage_and_figure_in_one_place(interrupted: Terminal) -> None:
    seen = interrupted.raw.decode()
    for stage in ("planning", "starting", "loading", "generating"):
        assert f"● {stage}" in seen, "each stage is the present one at some time"
    assert re.search("compiling", seen), "which may take less than a moment"
    frame = "\n".join(interrupted.frame)  # type: ignore[attr-defined]
    for figure in ("tokens/s", "rows/s", "tokens/forward", "KV in use", "actors 1 of 1 ready", "ends in", "failed"):
        assert figure in frame
    assert frame.count("tokens/forward") == 1, "drawn again where it was, also after the terminal was made narrower"
    assert re.search(rf"rows [\d,]+ of {ROWS:,}", frame)
    assert "[  " not in frame, "stages are no lines of their own here"


def test_something_is_said_within_a_second(interrupted: Terminal) -> None:
    assert interrupted.seconds_of_silence < 1.0  # type: ignore[attr-defined]


def test_ctrl_c_leaves_the_terminal_sane_and_says_what_stays(interrupted: Terminal) -> None:
    assert interrupted.hidden, "the cursor was hidden while the view was drawn"  # type: ignore[attr-defined]
    assert interrupted.status == 130  # type: ignore[attr-defined]
    assert interrupted.is_sane
    assert "interrupted: the same command continues" in interrupted.text
    assert b"raylet" not in interrupted.raw, "that Ray's tasks are cut off is no news"


@pytest.fixture(scope="module")
def piped(interrupted: Terminal, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """The same command in pipes, which does the rest."""
    argv = command(folder, "--progress-seconds", "0.1")
    done = subprocess.run(argv, capture_output=True, env=environment(), cwd=folder, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return done


def test_a_pipe_gets_lines_that_a_person_can_grep_and_no_escape_codes(
    piped: subprocess.CompletedProcess[bytes],
) -> None:
    for stream in (piped.stdout, piped.stderr):
        assert ESCAPE not in stream
        assert RETURN not in stream
    lines = [line for line in piped.stderr.decode().splitlines() if line.startswith("progress ")]
    keys = [[pair.partition("=")[0] for pair in line.split()[1:]] for line in lines]
    assert all(one == keys[0] for one in keys), "the same keys in every line"
    stages = [line.split()[1].removeprefix("stage=") for line in lines]
    wanted = ["planning", "starting", "loading", "compiling", "generating", "publishing", "done"]
    seen = list(dict.fromkeys(stages))
    assert seen == [stage for stage in wanted if stage in seen], "in their order"
    assert not {"planning", "loading", "generating", "done"} - set(seen), "others may take less than a moment"
    assert f"rows={ROWS} total_rows={ROWS} failed=3" in lines[-1]


def test_a_pipe_gets_nothing_that_is_for_others(piped: subprocess.CompletedProcess[bytes]) -> None:
    known = re.compile(r"progress stage=|\[ *[\d.]+ s\] |wedlm-batch [\d.]+: generate$")
    foreign = [line for line in piped.stderr.decode().splitlines() if not known.match(line)]
    assert not foreign, "no bars and no warnings of libraries"


def test_the_commands_that_come_next_run_as_typed(piped: subprocess.CompletedProcess[bytes], folder: Path) -> None:
    text = piped.stdout.decode()
    assert "3 failed" in text
    typed = dict(re.findall(r"^To ([\w ]+): (.+)$", text, re.MULTILINE))
    assert {"read", "verify", "retry failed rows"} <= set(typed)
    assert typed["retry failed rows"].endswith("--retry-failed")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for purpose in ("verify", "read"):
        done = subprocess.run(["bash", "-c", typed[purpose].replace("wedlm-batch", "python -m wedlm_batch")],
                              capture_output=True, text=True, cwd=folder, timeout=60, check=False,
                              env=environment(PATH=path))  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("proven" if purpose == "verify" else f"[{ROWS} rows") in done.stdout


def test_a_finished_run_in_a_terminal_ends_with_its_table_alone(
    piped: subprocess.CompletedProcess[bytes], folder: Path
) -> None:
    small = {"columns": 40, "lines": 60, "environment": environment(NO_COLOR="1"), "cwd": folder}
    with Terminal(command(folder), **small) as terminal:  # type: ignore[arg-type]
        assert terminal.wait(30) == 0
        assert "tokens/forward" not in terminal.text, "the view is gone"
        assert "nothing was left to do" in " ".join(terminal.text.split())
        assert "Failed" in terminal.text
        assert terminal.is_sane
        assert not re.search(rb"\x1b\[[\d;]*3\dm", terminal.raw), "NO_COLOR"


def test_quiet_prints_the_summary_alone(piped: subprocess.CompletedProcess[bytes], folder: Path) -> None:
    done = subprocess.run(command(folder, "--quiet"), capture_output=True, text=True, env=environment(), cwd=folder,
                          timeout=60, check=True)  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.startswith("Output: ")
    assert pipeline.read(folder / "out", format="arrow").num_rows == ROWS
