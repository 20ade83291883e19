"""A model trained on 2,000 rows of one's own: gain before and after. ``python -m benchmarks.quality.own_model``.

Runs the rows and the recipe of ``docs/tutorials/own-model.md`` as they stand there. Both models generate the same
held-out prompts, one sequence at a time; the gain is over autoregressive decoding of the same model and prompts.
"""

from __future__ import annotations

import contextlib
import csv
import os
import runpy
import tempfile
from pathlib import Path

from benchmarks.common import table, write_result
from jobs import train
from jobs.own_evaluation import STRATEGIES, evaluate_model
from jobs.own_examples import DATA
from testing.pages.blocks import blocks_of
from testing.repository import ROOT
from wedlm_core.training.example_file import ExampleFile
from wedlm_core.training.trainer import CURVE

_PAGE = ROOT / "docs" / "tutorials" / "own-model.md"
_RUN, _RECIPE = Path("runs/orders"), "recipe.yaml"


def main() -> None:
    """Train, evaluate both models, write the table."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks_of(_PAGE):
            if block.title is not None:
                Path(block.title).write_text(block.code, encoding="utf-8")
        runpy.run_path("orders.py")
        assert train.main(["--recipe", _RECIPE, "--output", str(_RUN), "--device", "cpu"]) == 0
        recipe = train.read_recipe(_RECIPE, [])
        held_out = ExampleFile(_RUN / DATA, held_out=True)
        examples = [held_out[number] for number in range(len(held_out))]
        rows = []
        for name, model in (("`tiny`", "tiny"), ("trained", _RUN / "model")):
            found = evaluate_model(model, examples, length=recipe.data.length, device="cpu")
            counts = [f"{found[key]} of {len(examples)}" for key in ("expected", "identical")]
            speeds = [f"{found[f'tokens_per_second.{strategy}']:.0f}" for strategy in STRATEGIES]
            shares = [f"{found[key]:.0%}" for key in ("acceptance", "mask_acceptance")]
            rows.append((name, *counts, *shares, f"{found['tokens_per_forward']:.2f}", *speeds, f"{found['gain']:.2f}"))
        curve = list(csv.DictReader((_RUN / CURVE).read_text(encoding="utf-8").splitlines()))
    names = ("model", "expected answers", "equal to autoregressive", "drafts accepted", "of those of masks",
             "tokens per forward", *(f"tokens/s {strategy}" for strategy in STRATEGIES), "gain")  # fmt: skip
    about = (
        f"{recipe.run.epochs} epoch in {float(curve[-1]['seconds']) / 60:.1f} minutes with "
        f"{recipe.run.threads} threads, {os.getloadavg()[0]:.1f} processes running at the end. Held-out prompts, one "
        f"sequence at a time, greedily, at most {recipe.data.length} tokens with the prompt."
    )
    body = f"{about}\n\n{table(names, rows)}"
    command = "python -m benchmarks.quality.own_model"
    write_result(
        "quality-own-model", "A model trained on 2,000 rows of one's own", command, body, threads=recipe.run.threads
    )


if __name__ == "__main__":
    main()
