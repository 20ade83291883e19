"""Scores, held-out problems, curves and the shipped prompt file."""

import pyarrow.parquet as pq
import pytest

from jobs.demo_prompts import DEMO_PROMPTS, demo_table
from wedlm_core.training import corpus
from wedlm_core.training.curves import plot_curves, smoothed
from wedlm_core.training.evaluation import by_family, by_regime, held_out, pooled
from wedlm_core.types import CommitStats, Generation


def answered(problem: corpus.Problem, text: str, tokens: int, forwards: int) -> Generation:
    stats = CommitStats(generated_tokens=tokens, decode_forwards=forwards, rows_forwarded=2 * tokens)
    return Generation(request_id="r", text=text, stats=stats)


def test_scores_are_ratios_of_sums_per_group():
    problems = [*corpus.distinct("sorting", "train", 2), *corpus.distinct("copying", "train", 1)]
    texts = [problems[0].answer, "wrong", problems[2].answer]
    generations = [
        answered(p, text, tokens, forwards)
        for p, text, tokens, forwards in zip(problems, texts, (10, 30, 8), (10, 5, 2), strict=True)
    ]
    family = by_family(problems, generations)["sorting"]
    assert (family.problems, family.correct, family.accuracy) == (2, 1, 0.5)
    assert family.tokens_per_forward == pytest.approx(40 / 15)
    assert family.mean_tokens_per_forward == pytest.approx((1 + 6) / 2)
    assert family.prefix_cacheability == 0.5
    regimes = by_regime(problems, generations)
    assert regimes["medium"] == family
    assert pooled(regimes.values()).tokens == 48


def test_held_out_problems_are_of_the_split_and_distinct():
    problems = held_out("test", 5)
    assert len({p.prompt for p in problems}) == len(problems) == 5 * len(corpus.FAMILIES)
    assert all(corpus.split_of(p.prompt) == "test" for p in problems)


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
