"""The benchmark of float32 products: digits are nearer than vectors, and engines of both kinds serve requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.decode import float32_products
from wedlm_core.kernels.cpu.panels import numbers_here

pytestmark = pytest.mark.skipif("float32_amx" not in numbers_here(), reason="this CPU has no matrix units for int8")


def test_each_kind_has_a_line_for_products_and_for_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(
        float32_products.SHAPES["25m"], hidden_size=128, intermediate_size=256, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64,
    )  # fmt: skip
    monkeypatch.setattr(float32_products, "SHAPES", {"25m": small})
    monkeypatch.setattr(float32_products, "_NEW", 3)
    monkeypatch.setattr(float32_products, "_REST", 0.0)
    products = {str(line[1]): line for line in float32_products._products("25m", [5], 1)}
    assert set(products) == {"digits", "vectors", "oneDNN, packed"}
    for off, least in ((-2, 1), (-1, 4)):
        assert least * float(str(products["digits"][off])) < float(str(products["vectors"][off])) < 1e-5
    engines = float32_products._engines("25m", [2], 1)
    assert [line[:2] for line in engines] == [(2, "digits"), (2, "vectors")]
    assert all(float(str(line[2])) > 0 for line in engines)
