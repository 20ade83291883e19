"""Refused options of a Delta table's store, and the message."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.sinks.delta_options import check_delta_options


def test_names_of_the_store_are_taken_in_any_case_with_and_without_its_prefix() -> None:
    for name in ("AWS_REGION", "aws_region", "region", "Conditional_Put", "aws_conditional_put", "AWS_ALLOW_HTTP",
                 "timeout", "AWS_S3_ALLOW_UNSAFE_RENAME", "backoff_config.base"):  # fmt: skip
        check_delta_options("s3://bucket/table", [name])
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "account_name", "azure_client_id", "azure_skip_signature"):
        check_delta_options("abfss://container@account/table", [name])
    check_delta_options("gs://bucket/table", ["GOOGLE_SERVICE_ACCOUNT"])
    check_delta_options("/tables/one", ["MOUNT_ALLOW_UNSAFE_RENAME"])
    check_delta_options("lakefs://repository/main/table", ["whatever"])


@pytest.mark.parametrize(
    ("url", "name", "near"),
    [
        ("s3://bucket/table", "AWS_REGOIN", "aws_region"),
        ("s3://bucket/table", "aws_s3_allow_unsafe_renames", "aws_s3_allow_unsafe_rename"),
        ("az://container/table", "account_nam", "account_name"),
        ("/tables/one", "alow_unsafe_rename", "allow_unsafe_rename"),
    ],
)
def test_a_name_that_would_be_ignored_is_refused_with_the_nearest_and_all_known_ones(
    url: str, name: str, near: str
) -> None:
    with pytest.raises(ConfigError, match=rf"no option '{name}'\. Did you mean '{near}'\? Known: .*{near}"):
        check_delta_options(url, [name])


def test_an_option_of_another_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="s3:// has no option 'azure_client_id'"):
        check_delta_options("s3://bucket/table", ["azure_client_id"])
    with pytest.raises(ConfigError, match="a path has no option 'aws_region'"):
        check_delta_options("/tables/one", ["aws_region"])
