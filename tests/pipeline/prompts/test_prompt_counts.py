"""Blank and identical prompts are counted: by ``validate`` in its sample, by a run in each unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.run import run_on
from pipeline.commands.validate import validate
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor

SPACES, WORD = " \n ", "Count."
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], tuple[int, int]]] = {
    "prompts": ([{"prompt": p} for p in (WORD, SPACES, WORD, "a", SPACES, WORD, "")], {}, (2, 3)),
    "in the chat template": ([{"prompt": p} for p in (WORD, SPACES, "a", SPACES)], {"chat": True}, (2, 1)),
    "empty cells": ([{"q": q} for q in ("", "3", "", "4", " ")], {"prompt_template": "{{ q }} "}, (3, 1)),
    "empty cells in a sentence": ([{"q": q} for q in ("", "3", "")], {"prompt_template": "From {{ q }}."}, (0, 1)),
    "messages": ([{"messages": [{"role": "user", "content": c}]} for c in (WORD, " ", "")], {}, (2, 0)),
    "token ids": ([{"prompt_token_ids": ids} for ids in ([5], [5, 6], [5], [])], {}, (0, 1)),
    "conversations": ([{"c": c} for c in ([WORD], [WORD, "a"], [WORD, "b"], [WORD, "a"], [SPACES])],
                      {"turns_column": "c"}, (1, 1)),
    "different": ([{"prompt": str(i)} for i in range(5)], {}, (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_blank_and_identical_prompts_are_counted(qwen3_folder: Path, tmp_path: Path, case: str) -> None:
    rows, fields, counts = CASES[case]
    config = RunConfig(
        input=rows, output=str(tmp_path / "out"), model=str(qwen3_folder), report=False,
        sampling=SamplingParams(max_tokens=2), **fields,
    )  # fmt: skip
    found = validate(config)
    assert (found.blank_prompts, found.identical_prompts) == counts, found
    summary = run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH))
    assert (summary.session.blank_prompts, summary.session.identical_prompts) == counts
    assert (summary.total.blank_prompts, summary.total.identical_prompts) == counts
    line = f"{counts[0]} blank; {counts[1]} identical to an earlier one of the same unit"
    assert (line in summary.describe()) is any(counts)
