"""Outputs that another version began with other columns are refused in one line; those of the version before go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pipeline
from pipeline import layout
from pipeline.commit.sealed import seal, unseal
from testing.pipeline.exactly_once import SmallJob


def written_by(job: SmallJob, **fields: Any) -> None:
    """Change the record of a run as another version would have written it; None leaves a field out."""
    key = max(job.storage.keys(layout.RUN))
    raw = {**unseal(job.storage.read(key)), **fields}
    job.storage.put(key, seal({name: value for name, value in raw.items() if value is not None}))


@pytest.mark.parametrize("fields", [
    {"schema_version": 3}, {"schema_version": 5}, {"version": 2}, {"version": 2, "partitioned": True}, {"version": 4},
])  # fmt: skip
def test_another_version_is_refused_in_one_line(make_job: Callable[[], SmallJob], fields: dict[str, Any]) -> None:
    job = make_job()
    job.stop_after(3)
    before = dict.fromkeys(job.storage.keys("."))
    written_by(job, **fields)
    own = (str(fields.get("version", 3)), str(fields.get("schema_version", 4)))
    for command in (job.run, lambda: pipeline.status(job.config.output), lambda: pipeline.verify(job.config.output)):
        with pytest.raises(
            pipeline.OutputError, match=r"another version .* write to a new folder, or discard"
        ) as found:
            command()
        assert "\n" not in str(found.value)
        assert all(f"{name} {value}" in str(found.value) for name, value in zip(("state", "schema"), own, strict=True))
    assert before.keys() - set(job.storage.keys(".")) == set(), "nothing is removed"
    job.run(mode="new")
    assert job.problems() == ()


def test_an_output_of_the_version_before_goes_on(make_job: Callable[[], SmallJob]) -> None:
    job = make_job()
    job.stop_after(3)
    written_by(job, version=2, partitioned=True, whole_numbers=[])
    job.run()
    assert job.problems() == ()
