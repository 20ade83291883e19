"""Seconds of accelerators become a figure per million tokens, and money."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline import RunConfig
from pipeline.commands.summary import RunSummary
from pipeline.errors import ConfigError
from pipeline.fingerprint import fingerprint_fields
from pipeline.progress.figures import describe_cost
from pipeline.progress.snapshot import ResourceSeconds
from pipeline.types import Totals


def test_accelerators_are_priced_where_there_are_any() -> None:
    used = ResourceSeconds(accelerators=7200, cpus=99999)
    assert (used.unit, used.per_million(4_000_000), used.cost(2.5)) == ("GPU", 1800.0, 5.0)
    assert describe_cost(used, 4_000_000, 2.5) == (
        "7200.0 GPU-seconds reserved by actors, 1800.0 per million tokens; at 2.5 per GPU-hour: 5, "
        "1.25 per million tokens"
    )


def test_cpus_are_priced_and_named_where_there_are_no_accelerators() -> None:
    used = ResourceSeconds(cpus=30) + ResourceSeconds(cpus=6)
    assert describe_cost(used, 1_000_000, None) == "36.0 CPU-seconds reserved by actors, 36.0 per million tokens"


def test_seconds_without_tokens_are_said_without_a_quotient() -> None:
    assert describe_cost(ResourceSeconds(cpus=36), 0, 100) == (
        "36.0 CPU-seconds reserved by actors; at 100 per CPU-hour: 1"
    )  # fmt: skip


def summary(session: Totals, used: ResourceSeconds, price: float | None) -> RunSummary:
    return RunSummary(
        output="out", total=session, session=session, seconds=2.0, generating_seconds=1.0, publications=(), used=used,
        price_per_hour=price,
    )  # fmt: skip


def test_the_summary_prices_what_this_call_committed() -> None:
    session = Totals(units=1, rows=3, completion_tokens=500_000)
    found = summary(session, ResourceSeconds(accelerators=3600), 4.0)
    assert (found.seconds_per_million_tokens, found.cost) == (7200.0, 4.0)
    assert "Cost of this run: 3600.0 GPU-seconds" in found.describe()
    assert summary(session, ResourceSeconds(accelerators=1), None).cost is None
    assert "Cost" not in summary(Totals(), ResourceSeconds(), 4.0).describe(), "nothing was done"


def test_the_summary_names_the_gain_where_it_is_known() -> None:
    found = summary(Totals(units=1, rows=3, completion_tokens=10), ResourceSeconds(), None)
    assert "autoregressive" not in found.describe()
    assert "3 rows/s; 1.62 times autoregressive decoding at this load" in replace(found, gain=1.618).describe()


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf"), "3", True])
def test_a_price_that_is_none_is_refused(price: object) -> None:
    with pytest.raises(ConfigError, match="price_per_hour"):
        RunConfig(input="in", output="out", price_per_hour=price)  # type: ignore[arg-type]


def test_a_price_does_not_change_the_output() -> None:
    plain, priced = (RunConfig(input="in", output="out", price_per_hour=price) for price in (None, 3.0))
    assert fingerprint_fields(plain) == fingerprint_fields(priced)
