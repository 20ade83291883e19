"""The benchmark of two checkouts: a model that is named by its shape is written, and decodes its own prompts."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

import pytest

from benchmarks.decode import versions, versions_child


@pytest.mark.parametrize("numbers", versions._NUMBERS)
def test_a_shape_decodes_random_prompts_in_the_numbers_that_are_asked_for(
    numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(
        versions.SHAPES["0.6b"], hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, vocab_size=1024, mask_token_id=3, eos_token_ids=(2,), pad_token_id=0,
        bos_token_id=None,
    )  # fmt: skip
    monkeypatch.setitem(versions.SHAPES, "0.6b", shape)
    monkeypatch.setattr(versions, "_NEW", 3)
    dtype, weights = versions._NUMBERS[numbers]
    args = argparse.Namespace(batches=[2], strategies=["autoregressive"])
    ((point, work),) = versions._points(args, "0.6b", numbers)
    assert (point.model, point.numbers, point.batch) == ("0.6b", numbers, 2)
    with versions._folder("0.6b") as folder:
        order = {
            "model": str(folder), "dtype": dtype, "threads": 1, "step_cost": {},
            "config": {"max_num_seqs": 2, "max_model_len": 128, "weight_dtype": weights},
        }  # fmt: skip
        engine = versions_child.load(order)
        again = versions_child.load(order | {"step_cost": asdict(engine.measure_step_cost())})
        work_order = versions._order(work, point.strategy)
        passages = [
            versions_child.Passage(one, work_order["requests"], work_order["concurrency"], 0) for one in (engine, again)
        ]
        assert not passages[0].go_on(0.0)["ends"]
        whole, same = (one.go_on(100.0) for one in passages)
    assert again.config.step_cost == engine.measure_step_cost()
    assert whole["rate"] > 0
    assert whole["digest"] == same["digest"]
