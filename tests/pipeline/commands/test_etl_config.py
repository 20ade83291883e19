"""Settings of scheduled runs: odd values are refused by name, whoever gives them; dates and numbers become text."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest

from pipeline.commands.etl_config import EtlConfig
from pipeline.config import RunConfig
from pipeline.errors import ConfigError


def made(**fields: Any) -> EtlConfig:
    return EtlConfig(run=RunConfig(input="in", output="out"), **fields)


@pytest.mark.parametrize("value", ["", " ", True, 1.5, ["a"], {}, ("a", "b")])
@pytest.mark.parametrize("name", ["since", "until"])
def test_a_bound_that_is_no_value_of_a_partition_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=.*the value of a partition"):
        made(**{name: value})


@pytest.mark.parametrize("value", ["2026-10-01", ("a",), ("a", "b", "c"), 5, {"a": 1, "b": 2}, (None, None), ("a", "")])
def test_a_backfill_that_is_no_range_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="backfill="):
        made(backfill=value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition_key", 5),
        ("partition_key", None),
        ("settle_seconds", True),
        ("settle_seconds", math.inf),
        ("settle_seconds", math.nan),
        ("settle_seconds", None),
        ("wait", True),
        ("wait", math.nan),
        ("max_files", 0),
        ("max_files", True),
        ("max_files", 2.5),
        ("run", None),
    ],
)
def test_values_of_another_kind_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}="):
        EtlConfig(**{"run": RunConfig(input="in", output="out"), name: value})


def test_dates_and_numbers_as_yaml_reads_them_are_text() -> None:
    config = made(since=datetime.date(2026, 11, 1), until="2026-11-02")
    assert (config.since, config.until) == ("2026-11-01", "2026-11-02")
    assert made(backfill=[7, 10]).backfill == ("7", "10")
    assert made(wait=math.inf).wait == math.inf
