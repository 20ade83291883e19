"""Options of a table's store, in the names of the library; and questions to a table of somebody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, OutputError
from pipeline.sinks.delta_table import DeltaLake, table_options

pytest.importorskip("deltalake", reason="deltalake is not installed")


@pytest.mark.parametrize(
    ("url", "options", "wanted"),
    [
        ("/tmp/table", {"anything": 1}, {}),
        ("s3://bucket/table", {}, {}),
        ("s3://b/t", {"key": "k", "token": None}, {"AWS_ACCESS_KEY_ID": "k"}),
        ("s3://b/t", {"secret": "s"}, {"AWS_SECRET_ACCESS_KEY": "s"}),
        (
            "s3://b/t",
            {"endpoint_url": "http://127.0.0.1:1"},
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"},
        ),
        (
            "s3a://b/t",
            {"client_kwargs": {"endpoint_url": "https://store", "region_name": "eu"}},
            {"AWS_ENDPOINT_URL": "https://store", "AWS_REGION": "eu"},
        ),
    ],
)  # fmt: skip
def test_options_of_s3_are_translated(url: str, options: dict[str, Any], wanted: dict[str, str]) -> None:
    assert table_options(url, options) == wanted


def test_an_option_without_a_translation_is_named_and_not_dropped() -> None:
    with pytest.raises(ConfigError, match=r"storage_options \['anon'\].*delta_options"):
        table_options("s3://b/t", {"anon": True, "key": "k"})
    given = {"skip_signature": "true"}
    assert table_options("s3://b/t", {"anon": True, "key": "k"}, given) == {"AWS_ACCESS_KEY_ID": "k", **given}


def test_what_is_no_table_and_what_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    assert not DeltaLake(str(tmp_path / "none"), {}).load()
    (tmp_path / "bad" / "_delta_log").mkdir(parents=True)
    (tmp_path / "bad" / "_delta_log" / f"{0:020d}.json").write_text("no json")
    with pytest.raises(OutputError, match="the Delta table cannot be read"):
        DeltaLake(str(tmp_path / "bad"), {}).load()
