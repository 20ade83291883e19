"""Curves of a training."""

from wedlm_core.training.curves import plot_curves, smoothed


def test_curves_are_drawn_from_the_trainers_csv(tmp_path):
    curve = tmp_path / "curve.csv"
    curve.write_text("step,lr_factor,next_token,masked\n1,0.5,7.0,7.1\n2,1.0,5.0,5.5\n")
    plot_curves(curve, tmp_path / "curve.png", "two steps")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert smoothed([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]
