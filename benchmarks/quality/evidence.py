"""Does evidence tell good rows from bad? ``python -m benchmarks.quality.evidence [--per-family 200]``.

The shipped model answers hard tasks, greedily and with four samples a row. :func:`pipeline.filter` keeps the better
half of the greedy rows, and the best of the four samples, each by its default score.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

import pipeline
from benchmarks.common import positive, table, write_result
from benchmarks.quality.tasks import FAMILIES, draw, is_right
from pipeline.selection.settings import DEFAULT_SAMPLE_SCORE, DEFAULT_SCORE

_TEMPERATURES = (0.7, 1.0)
_SAMPLES = 4
_MAX_TOKENS = 256


def _generate(rows: Sequence[dict[str, str]], output: Path, temperature: float) -> np.ndarray:
    """Generate the rows; which answers are right, bool ``[P, n]``, with one sample where the temperature is 0."""
    n = _SAMPLES if temperature else 1
    sampling = pipeline.SamplingParams(max_tokens=_MAX_TOKENS, temperature=temperature, n=n)
    pipeline.run(rows, model="tiny", output=str(output), sampling=sampling)
    found = pipeline.read(output, format="arrow")
    columns = [found[name].to_pylist() for name in ("family", "prompt", "answer", "text")]
    return np.array([is_right(*values) for values in zip(*columns, strict=True)]).reshape(-1, n)


def _chosen(output: Path, keep: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the problems, and of the samples, that the filter keeps."""
    kept = pipeline.filter(output, to=str(folder), keep=keep).to_arrow()
    problems = [int(row_id.rpartition(":")[2]) for row_id in kept["row_id"].to_pylist()]
    return np.array(problems), np.array(kept["sample_index"].to_pylist())


def _share(right: np.ndarray) -> str:
    """A share in percent with its 95% interval (Wilson)."""
    found = stats.binomtest(int(right.sum()), right.size).proportion_ci(method="wilson")
    return f"{100 * right.mean():.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def _difference(one_P: np.ndarray, other_P: np.ndarray) -> str:
    """The mean difference over problems, in points, with its 95% interval (percentile bootstrap over problems)."""
    values_P = one_P.astype(float) - other_P.astype(float)
    found = stats.bootstrap((values_P,), np.mean, method="percentile", random_state=0).confidence_interval
    return f"{100 * values_P.mean():+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _section(group: str, per_family: int, work: Path) -> str:
    rows = [
        {"prompt": problem.prompt, "answer": problem.answer, "family": problem.family}
        for problem in draw(group, per_family)
    ]
    greedy_P1 = _generate(rows, work / "greedy", 0.0)
    half, _ = _chosen(work / "greedy", "best 50%", work / "half")
    lines = [("all greedy rows", _share(greedy_P1), "", "")]
    lines.append((f"the better half, by `{DEFAULT_SCORE}`", _share(greedy_P1[half]), "", ""))
    for temperature in _TEMPERATURES:
        output = work / f"sampled-{temperature}"
        right_PS = _generate(rows, output, temperature)
        problems, samples = _chosen(output, "best 1 per row", work / f"best-{temperature}")
        best_P = right_PS[problems, samples]
        lines.append((f"best of {_SAMPLES} at {temperature}, by `{DEFAULT_SAMPLE_SCORE}`", _share(best_P),
                      _difference(best_P, right_PS[problems].mean(axis=1)),
                      _difference(best_P, greedy_P1[problems, 0])))  # fmt: skip
    head = ("rows", "right, %", "over one sample, points", "over greedy, points")
    return f"## {group.capitalize()}: {len(rows)} problems, {', '.join(FAMILIES[group])}\n\n{table(head, lines)}"


def main(argv: Sequence[str] | None = None) -> None:
    """Generate, grade and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-family", type=positive, default=200)
    per_family = parser.parse_args(argv).per_family
    sections = []
    for group in FAMILIES:
        with tempfile.TemporaryDirectory(prefix="wedlm-evidence-") as folder:
            sections.append(_section(group, per_family, Path(folder)))
    introduction = (
        "Model `tiny`, `verified`. The tasks go beyond its training (`benchmarks/quality/tasks.py`): in `exact` one "
        "answer is right, to the letter; in `open` many are, and the checker of the corpus accepts them. 95% "
        "intervals: Wilson's for shares; for differences the percentile bootstrap over problems."
    )
    command = f"python -m benchmarks.quality.evidence --per-family {per_family}"
    write_result("quality-evidence", "The worth of evidence: best half and best of four", command,
                 "\n\n".join((introduction, *sections)))  # fmt: skip


if __name__ == "__main__":
    main()
