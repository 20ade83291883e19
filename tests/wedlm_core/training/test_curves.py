"""Curves of a training, and the shipped prompt file."""

import pyarrow.parquet as pq

from jobs.demo_prompts import DEMO_PROMPTS, demo_table
from wedlm_core.training import corpus
from wedlm_core.training.curves import plot_curves, smoothed


def test_the_shipped_prompt_file_is_what_its_command_makes():
    shipped = pq.read_table(DEMO_PROMPTS)
    assert shipped.equals(demo_table(12))
    rows = shipped.to_pylist()
    assert len(rows) >= 200
    assert {row["family"] for row in rows} == set(corpus.FAMILIES)
    assert all(corpus.split_of(row["prompt"]) == "test" for row in rows)
    assert all((row["expected"] is None) == (row["regime"] == "high") for row in rows)


def test_curves_are_drawn_from_the_trainers_csv(tmp_path):
    curve = tmp_path / "curve.csv"
    curve.write_text("step,lr_factor,next_token,masked\n1,0.5,7.0,7.1\n2,1.0,5.0,5.5\n")
    plot_curves(curve, tmp_path / "curve.png", "two steps")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert smoothed([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]
