"""Committed tokens per second of ``pipeline.run`` with each of its settings, over those of a plain run just before.

    python -m benchmarks.pipeline.run_settings [--rows 2000] [--rounds 2] [--settings "unit_rows 64" ...]

One private Ray session, one actor, the shipped model, one torch thread. Seconds are of generation: loading and
publishing are left out. A setting that changes the tokens changes the work too: its rate is the cost of a token then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray

import pipeline
from benchmarks.common import positive, table, write_result
from wedlm_core import SamplingParams

_PLAIN: Mapping[str, Any] = {"max_tokens": 64}
_SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "n 4": {"n": 4},
    "logprobs true": {"logprobs": True},
    "logprobs 5": {"logprobs": 5},
    "stop, 1 string": {"stop": "zzz"},
    "stop, 100 strings": {"stop": tuple(f"zzz{i}" for i in range(100))},
    "top_k 20, top_p 0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "structured_outputs, one regex": {"structured_outputs": {"regex": "[0-9 ]{40,60}"}},
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"sampling": SamplingParams(**{**_PLAIN, **own})} for name, own in _SAMPLING.items()},
    "structured_outputs, a schema a row": {
        "sampling_columns": {"structured_outputs": "schema"}
    },
    "sampling_columns temperature": {"sampling_columns": {"temperature": "heat"}},
    "prompt_template": {"prompt_template": "{{ prompt }}", "prompt_column": None},
    "chat": {"chat": True},
    "chat with tools": {"messages_column": "messages", "tools_column": "tools", "prompt_column": None},
    "long prompts": {"prompt_column": "long"},
    "id_column": {"id_column": "id"},
    "columns none": {"columns": ()},
    "include_token_ids false": {"include_token_ids": False},
    "special_tokens_in_text text": {"special_tokens_in_text": "text"},
    "unit_rows 64": {"unit_rows": 64},
    "units_in_flight 1": {"units_in_flight": 1},
    "target_part_bytes 100 kB": {"target_part_bytes": 100_000},
    "report false": {"report": False},
    "report_traces 8": {"report_traces": 8},
    "output_format jsonl": {"output_format": "jsonl"},
    "output_format ipc": {"output_format": "ipc"},
}  # fmt: skip


def rows_of(count: int) -> pa.Table:
    """Counting tasks of different lengths, with a column for each setting that needs one."""
    prompts = [f"Count from {i % 97} to {i % 97 + 10 + i % 33}." for i in range(count)]
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    schema = [
        json.dumps({"json": {"type": "object", "properties": {f"n{i}": {"type": "integer"}}, "required": [f"n{i}"]}})
        for i in range(count)
    ]
    return pa.table({
        "prompt": prompts,
        "messages": [[{"role": "user", "content": prompt}] for prompt in prompts],
        "tools": [json.dumps([tool])] * count,
        "long": [f"{i} " + "one two three four " * 40 + prompt for i, prompt in enumerate(prompts)],
        "id": [f"row-{i}" for i in range(count)],
        "heat": [0.5 + 0.5 * (i % 2) for i in range(count)],
        "schema": schema,
    })  # fmt: skip


def rate(source: Path, output: Path, own: Mapping[str, Any]) -> float:
    """Tokens per second of a run, while rows were generated. Raises :class:`AssertionError` if a row failed."""
    given = {"prompt_column": "prompt", "sampling": SamplingParams(**_PLAIN), **own}
    result = pipeline.run(
        str(source), model="tiny", output=str(output), num_threads=1, device="cpu", progress="none", **given
    )
    summary = result.summary
    assert not summary.total.failed_rows, f"{own}: {summary.total.failed_rows} rows failed"
    return float(summary.total.completion_tokens / summary.generating_seconds)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure in turns and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive, default=2000)
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS), metavar="SETTING")
    args = parser.parse_args(argv)
    lines = list[tuple[str, str, str]]()
    with tempfile.TemporaryDirectory(prefix="wedlm-settings-") as folder:
        source = Path(folder) / "rows.parquet"
        pq.write_table(rows_of(args.rows), source)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        for name in args.settings:
            pairs = [
                [
                    rate(source, Path(folder) / f"{len(lines)}-{turn}-{i}", own)
                    for i, own in enumerate(({}, SETTINGS[name]))
                ]
                for turn in range(args.rounds)
            ]
            ratio = statistics.median(plain / own for plain, own in pairs)
            lines.append((name, f"{statistics.median(own for _, own in pairs):.0f}", f"{ratio:.2f}"))
            print(*lines[-1], sep=" | ", flush=True)
        ray.shutdown()
    command = f"python -m benchmarks.pipeline.run_settings --rows {args.rows} --rounds {args.rounds}"
    body = table(("setting", "tokens/s", "plain run's rate over this one"), lines)
    write_result("run-settings", "Settings of a run", command, body, threads=1)


if __name__ == "__main__":
    main()
