"""Failures that end no run are logged, with a traceback where the cause is not outside."""

from __future__ import annotations

import logging

import pytest

from pipeline.errors import SinkError, log_failure


def test_a_failure_of_the_storage_is_logged_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test")
    for error in (SinkError("no space"), OSError(28, "no space"), KeyError("fault")):
        try:
            raise error
        except Exception as raised:
            log_failure(log, "the report could not be written", raised)
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, True]
    assert "no space" in caplog.text
