"""The section of products times each of a model's matrices in each form, and finds bits that are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.products import products, shapes_of
from benchmarks.gpu.section import FULL, TOY, Clock, Report, Scene
from wedlm_core.model.int8 import Int8Linear

_FORMS = ("float32", "fp8", "_int_mm", "int8", "int4")


def measured(seconds: float = 60.0) -> Report:
    return products(Scene(device=torch.device("cpu"), scale=TOY, clock=Clock(seconds), bandwidth=1e9, gemm_rate=1e9))


def test_shapes_are_those_of_the_layers() -> None:
    assert shapes_of(FULL.config) == {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (24576, 4096),
        "down": (4096, 12288),
        "head": (151936, 4096),
    }


def test_every_product_is_measured_at_every_row_count() -> None:
    report = measured()
    assert [(row["product"], row["rows"]) for row in report.rows] == [
        (name, rows) for name in shapes_of(TOY.config) for rows in TOY.product_rows
    ]
    for row in report.rows:
        assert row["bits"] == "equal"
        assert float(row["int8 / fastest other"]) > 0
        for name in _FORMS:
            assert row[f"{name} us"] == "not available" or float(row[f"{name} us"].split()[0]) > 0
    speed, bits = report.goals
    assert speed.claim == "int8 product / fastest of the others"
    assert bits.reached
    assert "Our kernels do not run here" in report.notes


def test_weights_are_more_than_a_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied: list[int] = []
    plain = Int8Linear.multiply

    def multiply(self: Int8Linear, *given: object) -> torch.Tensor:
        multiplied.append(self.weight.data_ptr())
        return plain(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Int8Linear, "multiply", multiply)
    scale = replace(TOY, product_rows=(1,), product_bytes=10 * 64 * 64)
    products(Scene(device=torch.device("cpu"), scale=scale, clock=Clock(60), bandwidth=1e9))
    assert multiplied[:5] == multiplied[5:10]
    assert len(set(multiplied[:5])) == 5, "qkv: five copies of 128 x 64, in turns"


def test_wrong_bits_and_failures_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Int8Linear.multiply
    monkeypatch.setattr(Int8Linear, "multiply", lambda self, *given: plain(self, *given) * (1 + 2**-20))
    report = measured()
    assert {row["bits"] for row in report.rows} == {"not of int8"}
    assert (report.goals[1].found, report.goals[1].reached) == (len(report.rows), False)

    monkeypatch.setattr(Int8Linear, "multiply", lambda self, *given: 1 / 0)
    report = measured()
    assert {(row["int8 us"], row["bits"]) for row in report.rows} == {("not available", "not of int8")}
    assert "int8 is not available: ZeroDivisionError: division by zero." in report.notes


def test_what_there_was_no_time_for_says_so() -> None:
    report = measured(0.0)
    assert {row["note"] for row in report.rows} == {"not measured: the section's time was over"}
    assert "not measured" in report.markdown()
