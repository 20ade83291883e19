"""Generates for the hard tasks: greedily, and four samples a row at two temperatures, each as an ordinary output."""

from __future__ import annotations

import itertools
from pathlib import Path

import pipeline
from benchmarks.quality.tasks import FAMILIES, SPLITS, draw

__all__ = ["GREEDY", "SAMPLED", "generate", "output_of"]

GREEDY = "greedy"
SAMPLED = {"0.7": 0.7, "1.0": 1.0}
"""Name -> temperature of the outputs with four samples a row."""
_MAX_TOKENS = 256


def output_of(folder: Path, group: str, split: str, name: str) -> Path:
    """The output of a group of families and a split, greedy or sampled."""
    return folder / f"{group}-{split}-{name}"


def generate(folder: Path, per_family: int, model: str = "tiny") -> None:
    """Generate whatever is not there yet, ``per_family`` problems of each family and split."""
    for group, split in itertools.product(FAMILIES, SPLITS):
        rows = [
            {"prompt": problem.prompt, "answer": problem.answer, "family": problem.family}
            for problem in draw(group, split, per_family)
        ]
        for name in (GREEDY, *SAMPLED):
            sampling = pipeline.SamplingParams(
                max_tokens=_MAX_TOKENS, temperature=SAMPLED.get(name, 0.0), n=4 if name in SAMPLED else 1
            )
            output = str(output_of(folder, group, split, name))
            done = pipeline.run(rows, model=model, output=output, sampling=sampling)
            print(f"{group} {split} {name}: {done.summary.describe()}", flush=True)
