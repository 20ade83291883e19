"""An engine that fails: nobody is told before the process had its chance to end. And the lengths it teaches."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from pipeline.codec import Request, SamplingParams
from pipeline.worker.engine_thread import EngineThread
from testing.pipeline.fakes import FakeEngine


def request(name: str) -> Request:
    return Request(request_id=name, prompt_token_ids=(1, 2), params=SamplingParams(max_tokens=2))


def test_no_unit_is_told_of_a_fatal_error_while_the_process_may_still_end_for_it() -> None:
    """Neither earlier nor later units: their error would reach the driver first."""
    told, go_on = threading.Event(), threading.Event()

    def on_fatal(error: BaseException) -> None:
        told.set()
        assert go_on.wait(10)

    thread = EngineThread(FakeEngine(fail_at_step=1), on_fatal)
    before = thread.submit([request("before")])
    assert told.wait(10)
    meanwhile = thread.submit([request("meanwhile")])
    for future in (before, meanwhile):
        with pytest.raises(TimeoutError):
            future.result(timeout=0.1)
    go_on.set()
    for future in (before, meanwhile, thread.submit([request("later")])):
        assert future.exception(timeout=10) is not None


def test_scored_requests_teach_nothing_of_the_lengths_of_generations() -> None:
    thread = EngineThread(FakeEngine())
    scored = [replace(request(f"s{i}"), continuation=(7,) * (1 + i)) for i in range(5)]
    done = thread.submit(scored).result(timeout=10)
    assert len(done) == 5
    assert thread.lengths.take_news() == {}
    thread.submit([request("generated")]).result(timeout=10)
    assert thread.lengths.take_news() != {}
    thread.close()
