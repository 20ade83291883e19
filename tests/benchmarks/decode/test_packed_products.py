"""The benchmark of packed products times all weights of a model that an engine runs."""

from __future__ import annotations

import pytest

from benchmarks.decode import packed_products
from benchmarks.decode.workloads import open_subject


def test_products_of_a_model_whose_weights_its_engine_took_over_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_products, "ROWS", (4,))
    with open_subject("tiny") as subject:
        (found,) = packed_products._products(subject, 1)
    assert found[:2] == ("tiny", 4)
    assert all(float(str(figure)) > 0 for figure in found[2:4])
