"""Stages of a run: told when they end, with their seconds, and kept for whoever asks this process."""

from __future__ import annotations

import logging
import re
import time

import psutil
import pytest

from jobs.cli import show_stages
from pipeline import stages


def test_a_stage_is_a_line_with_its_seconds_and_one_that_fails_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_TAKEN", {})
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(stages.LOGGER, name, getattr(stages.LOGGER, name))
    show_stages()
    stages.announce("starting 1 actor")
    with stages.stage("model loaded"):
        pass
    with pytest.raises(RuntimeError), stages.stage("kernels ready"):
        raise RuntimeError
    stages.LOGGER.setLevel(logging.NOTSET)
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    told = [re.sub(r" *[\d.]+", " N", line) for line in lines]
    assert told == ["[ N s] starting N actor", "[ N s] model loaded: N s"]
    assert list(stages.taken()) == ["model loaded"]


def test_the_seconds_since_the_start_are_those_of_the_process() -> None:

    assert stages.seconds_since_start() == pytest.approx(time.time() - psutil.Process().create_time(), abs=1.5)
