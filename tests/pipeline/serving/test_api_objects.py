"""Batches: the fields of a request, and the changes of a status."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from openai.types import Batch as ClientBatch
from openai.types import FileObject

from pipeline.serving.api_objects import ApiError, Batch, Status, StoredFile, is_id, new_batch, new_id

BODY = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}


def batch(**fields: Any) -> Batch:
    return new_batch({**BODY, **fields})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": ["a"]}, "metadata"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"priority": "high"}}, "metadata.priority"),
        ({"priority": 3}, "priority"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        batch(**fields)
    error = refused.value.as_dict()["error"]
    assert (refused.value.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert len(error["message"]) < 400


@pytest.mark.parametrize("body", [None, [], "text", 1, {}])
def test_a_body_that_is_no_batch_is_refused(body: Any) -> None:
    with pytest.raises(ApiError):
        new_batch(body)


def test_a_batch_and_a_file_are_those_of_the_official_client() -> None:
    made = batch(metadata={"priority": "-2", "who": "me"}, completion_window="90m")
    assert made.priority == -2
    assert made.expires_at - made.created_at == 90 * 60
    for own in (made, made.moved(Status.FAILED, errors=({"code": "x", "message": "y", "line": 1, "param": None},))):
        shown = ClientBatch.model_validate_json(json.dumps(own.as_dict()), strict=True)
        assert not shown.model_extra
        assert shown.status == own.status
    file = StoredFile(id=new_id("file-"), bytes=1, created_at=2, filename="a", purpose="batch", batch="x")
    assert not FileObject.model_validate_json(json.dumps(file.as_dict()), strict=True).model_extra


@pytest.mark.parametrize("name", ["", "file-", "file-../../../etc/passwd", "file-" + "a" * 23, "file-" + "A" * 24,
                                  "file-" + "a" * 24 + "\n", "batch_" + "a" * 24 + "/..", None, 3])  # fmt: skip
def test_only_ids_of_ours_are_ids(name: object) -> None:
    assert not is_id(name)


def test_ids_sort_by_time_and_results_have_the_same_ids_each_time() -> None:
    first = new_id("file-")
    time.sleep(0.002)
    assert first < new_id("file-")
    made = batch()
    assert is_id(made.id, "batch_")
    assert is_id(made.result_id("output"), "file-")
    assert made.result_id("output") == made.result_id("output") != made.result_id("errors")


@pytest.mark.parametrize("status", Status)
def test_a_batch_is_cancelled_while_it_waits_or_runs(status: Status) -> None:
    before = batch().moved(status) if status is not Status.VALIDATING else batch()
    if status in (Status.VALIDATING, Status.IN_PROGRESS):
        after = before.cancelled()
        assert after is not None
        assert after.status is Status.CANCELLING
        assert after.cancelling_at is not None
    elif status in (Status.CANCELLING, Status.CANCELLED):
        assert before.cancelled() is None, "a client may ask twice"
    else:
        with pytest.raises(ApiError, match=f"the batch is {status}"):
            before.cancelled()


def test_a_batch_whose_time_is_over_is_closed_unless_its_results_are_written() -> None:
    from dataclasses import replace

    late = replace(batch(), expires_at=0)
    assert late.must_close
    assert late.moved(Status.IN_PROGRESS).must_close
    assert late.moved(Status.FINALIZING).must_close
    assert not batch().must_close
    assert not any(late.moved(own).must_close for own in (Status.COMPLETED, Status.EXPIRED, Status.FAILED))
