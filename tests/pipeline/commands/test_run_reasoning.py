"""Runs that take the reasoning apart, by the real engine: forms make its texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pipeline
from pipeline import layout
from pipeline.commands.export import export
from pipeline.commands.report import report
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import RealExecutor
from testing.pipeline.openai_batch import chat_line, write_batch

TEXTS = ('<think>\nno</think>\n\n{"a": 1}', 'r</think>{"a": 2}', '<think>{"a": 3}', '{"a": 4}', "<think>x</think>")


def settings(output: Path, **more: Any) -> RunConfig:
    rows = [{"prompt": f"p{i}", "wanted": json.dumps({"choice": [text]})} for i, text in enumerate(TEXTS)]
    rows.append({"prompt": "So <think>\n", "wanted": json.dumps({"choice": ["r"]})})
    rows.append({"prompt": "", "wanted": None})
    return RunConfig.from_mapping({
        "input": rows, "output": str(output), "model": "tiny", "unit_rows": 3, "report": False,
        "sampling": {"max_tokens": 64}, "sampling_columns": {"structured_outputs": "wanted"},
        "reasoning_parser": "think", "parse": {"value": {"json": True}}, **more,
    })  # fmt: skip


def run(config: RunConfig) -> RunSummary:
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    return run_on(RealExecutor(), config, storage, lambda progress: None)


def test_each_text_is_one_of_two_columns_and_parsers_read_the_answer(tmp_path: Path) -> None:
    summary = run(settings(tmp_path / "out"))
    table = pipeline.read(str(tmp_path / "out")).to_arrow()
    assert table.column_names.index("reasoning") == table.column_names.index("text") + 1
    found = [(row["reasoning"], row["text"], row["value"]) for row in table.to_pylist()]
    assert found == [
        ("no", '{"a": 1}', '{"a": 1}'),
        ("r", '{"a": 2}', '{"a": 2}'),
        ('{"a": 3}', "", None),
        (None, '{"a": 4}', '{"a": 4}'),
        ("x", "", None),
        ("r", "", None),
        (None, None, None),
    ]
    assert summary.total.unparsed == {"reasoning:alone": 3, "value:invalid": 3}
    page = Path(report(str(tmp_path / "out"), to=str(tmp_path / "report.html"))).read_text(encoding="utf-8")
    assert "reasoning: of 6 generations 3 without an answer after it" in page
    assert verify(str(tmp_path / "out")).ok
    assert run(settings(tmp_path / "out")).total.unparsed == summary.total.unparsed, "continued, all is done"


def test_a_batch_has_the_reasoning_beside_the_content(tmp_path: Path) -> None:
    form = {"structured_outputs": {"choice": [TEXTS[0]]}, "logprobs": True, "max_tokens": 64}
    lines = [chat_line("a", "hi", **form), chat_line("b", "hi", structured_outputs={"choice": ["plain"]})]
    write_batch(tmp_path / "in.jsonl", lines)
    run(RunConfig(input=str(tmp_path / "in.jsonl"), output=str(tmp_path / "out"), model="tiny", report=False,
                  reasoning_parser="think"))  # fmt: skip
    export(str(tmp_path / "out"), tmp_path / "a.jsonl")
    first, second = (
        json.loads(line)["response"]["body"]["choices"][0] for line in (tmp_path / "a.jsonl").read_text().splitlines()
    )
    assert first["message"] == {"role": "assistant", "content": '{"a": 1}', "refusal": None, "reasoning_content": "no"}
    assert "".join(one["token"] for one in first["logprobs"]["content"]).startswith("<think>")
    assert "reasoning_content" not in second["message"]


def test_an_open_tag_at_the_end_of_a_prompt_is_found_whatever_its_length(tmp_path: Path) -> None:
    tags = ["<" + "\u00fcber" * 60 + ">", "</r>"]
    rows = [{"prompt": f"So {tags[0]}\n"}, {"prompt": "So"}]
    run(RunConfig.from_mapping({
        "input": rows, "output": str(tmp_path / "out"), "model": "tiny", "report": False, "reasoning_parser": tags,
        "sampling": {"structured_outputs": {"choice": ["r"]}},
    }))  # fmt: skip
    table = pipeline.read(str(tmp_path / "out")).to_arrow()
    assert list(zip(table["reasoning"].to_pylist(), table["text"].to_pylist(), strict=True)) == [("r", ""), (None, "r")]
