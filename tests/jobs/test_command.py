"""Commands whose reader has enough end without a traceback, as modules and by the console."""

from __future__ import annotations

import importlib
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
from jobs.command import CONTINUES, CUT_OFF, Command
from testing.repository import ROOT
from wedlm_batch.console import COMMANDS


def cut_off(arguments: list[str]) -> tuple[int, str]:
    """Status and errors of a command whose reader goes before it prints."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read().decode()
    return process.wait(), said


def test_what_only_prints_is_done_when_its_reader_has_enough(tmp_path: Path) -> None:
    status, said = cut_off(["-m", "jobs.validate", "--input", "none", "--output", str(tmp_path), "--model", "tiny"])
    assert (status, said) == (0, "")


def test_what_has_more_to_do_says_by_its_status_that_it_was_cut_off() -> None:
    status, said = cut_off(["-m", "wedlm_batch", "etl", "--input", "none", "--output", "none", "--print-config"])
    assert (status, said) == (CUT_OFF, "")


@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-"])
def test_closed_streams_change_nothing_else(closed: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "jobs.validate", "--input", "none", "--output", str(tmp_path), "--model", "tiny"]
    done = subprocess.run(["sh", "-c", f"{shlex.join(words)} {closed}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_output_without_room_is_one_clear_line() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "jobs.etl", "--input", "none", "--output", "none", "--print-config"]
        done = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no room is left (")
    assert done.stderr.count("\n") == 1


def test_every_command_ends_so() -> None:
    for command in COMMANDS.keys() - {"lm-eval"}:
        name = command.replace("-", "_")
        main = importlib.import_module(f"jobs.{name}").main
        assert isinstance(main, Command)
        assert main.name == name


@pytest.mark.parametrize(
    ("error", "status"),
    [(pipeline.LeaseLostError("lost"), 1), (pipeline.LeaseError("held"), 2), (KeyboardInterrupt(), 130)],
)
def test_a_run_that_lost_its_lease_is_status_1_and_one_that_cannot_begin_2(error: BaseException, status: int) -> None:
    def fail(args: object) -> int:
        raise error

    main = Command(name="x", about="", add_options=lambda parser: None, perform=fail, continues=CONTINUES)
    before = signal.getsignal(signal.SIGTERM)
    assert main([]) == status
    signal.signal(signal.SIGTERM, before)
