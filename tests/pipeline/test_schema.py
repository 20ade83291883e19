"""The output's schema is a promise to its readers: names, order, types and nullability stand here once more."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from pipeline.codec import RowResult, output_arrays
from pipeline.errors import ConfigError
from pipeline.schema import DEAD_FIELDS, RESULT_FIELDS, STATS_TYPE, check_collisions, output_schema, result_fields
from wedlm_core import CommitStats, Generation

STATS = (
    "struct<decode_forwards: int32, rows_forwarded: int64, tokens_per_forward: double, prefix_cacheability: double, "
    "commit_histogram: list<item: int32>, mean_entropy: double, max_entropy: double, out_of_order_fills: int32, "
    "mean_logprob: double, draft_agreement: double, mask_drafts: int32, mask_drafts_accepted: int32, "
    "grammar_drafts: int32, grammar_drafts_accepted: int32, history_drafts: int32, history_drafts_accepted: int32, "
    "cached_prompt_tokens: int32, preemptions: int32, "
    "window_mean: double, max_window: int32>"
)
EVIDENCE = (
    "struct<mean_logprob: double, worst_logprob: double, mean_entropy: double, max_entropy: double, "
    "draft_agreement: double, repeated_ngrams: double, longest_repeat: int32, truncated: bool, script: string, "
    "script_share: double>"
)
RESULT = (
    "row_id: string not null",
    "sample_index: int32 not null",
    "text: string",
    "token_ids: list<item: int32>",
    "finish_reason: string not null",
    "error: string",
    "retry: int32",
    "prompt_tokens: int32",
    "completion_tokens: int32",
    "model: string not null",
    "strategy: string",
    "params_hash: string",
    "seed: int64",
    "logprobs: list<item: float>",
    "top_logprobs: list<item: list<item: struct<token_id: int32, logprob: float>>>",
    f"evidence: {EVIDENCE}",
    f"stats: {STATS}",
    "timings: struct<queue_seconds: double, run_seconds: double>",
)
DEAD = (
    "row_id: string not null",
    "error_class: string not null",
    "error: string not null",
    "attempt: int32 not null",
    "raw: string",
)


def test_the_columns_are_those_that_readers_rely_on() -> None:
    assert tuple(str(field) for field in RESULT_FIELDS) == tuple(f"pyarrow.Field<{text}>" for text in RESULT)
    assert tuple(str(field) for field in DEAD_FIELDS) == tuple(f"pyarrow.Field<{text}>" for text in DEAD)
    assert str(STATS_TYPE) == STATS


def test_the_schema_carries_its_version_behind_the_input_columns() -> None:
    fields = result_fields(token_ids=True, logprobs=True, top_logprobs=True)
    found = output_schema(pa.schema([("a", pa.int64())]), fields)
    assert found.names == ["a", *(text.partition(":")[0] for text in RESULT)]
    assert found.metadata == {b"wedlm.schema_version": b"4"}


def test_every_column_has_a_value_for_rows_that_succeeded_and_rows_that_failed() -> None:
    stats = CommitStats(
        generated_tokens=6, decode_forwards=3, rows_forwarded=8, commit_histogram=(0, 1, 1), mean_entropy=0.5,
        max_entropy=0.75, out_of_order_fills=1, mean_logprob=-0.5, worst_logprob=-2.0, draft_agreement=0.25,
        mask_drafts=5, mask_drafts_accepted=4, grammar_drafts=3, grammar_drafts_accepted=2, history_drafts=6,
        history_drafts_accepted=1, cached_prompt_tokens=4, preemptions=2, window_mean=1.5, max_window=5,
    )  # fmt: skip
    generation = Generation(request_id="0/0", text="a", token_ids=(7,), prompt_tokens=3, stats=stats)
    rows = [RowResult(row_id="r", generations=(generation,)), RowResult(row_id="s")]
    arrays = output_arrays(rows, RESULT_FIELDS, "", "tiny")
    assert [array.type for array in arrays] == [field.type for field in RESULT_FIELDS]
    done, failed = pa.Table.from_arrays(arrays, names=[field.name for field in RESULT_FIELDS]).to_pylist()
    assert done["stats"] == {
        "decode_forwards": 3, "rows_forwarded": 8, "tokens_per_forward": 2.0, "prefix_cacheability": 0.75,
        "commit_histogram": [0, 1, 1], "mean_entropy": 0.5, "max_entropy": 0.75, "out_of_order_fills": 1,
        "mean_logprob": -0.5, "draft_agreement": 0.25, "mask_drafts": 5, "mask_drafts_accepted": 4, "grammar_drafts": 3,
        "grammar_drafts_accepted": 2, "history_drafts": 6, "history_drafts_accepted": 1, "cached_prompt_tokens": 4,
        "preemptions": 2,
        "window_mean": 1.5, "max_window": 5,
    }  # fmt: skip
    assert done["evidence"] == {
        "mean_logprob": -0.5, "worst_logprob": -2.0, "mean_entropy": 0.5, "max_entropy": 0.75, "draft_agreement": 0.25,
        "repeated_ngrams": 0.0, "longest_repeat": 0, "truncated": True, "script": "LATIN", "script_share": 1.0,
    }  # fmt: skip
    assert (failed["stats"], failed["evidence"]) == (None, None)
    assert (done["text"], done["token_ids"], done["prompt_tokens"]) == ("a", [7], 3)
    assert (failed["text"], failed["finish_reason"]) == (None, "error")


@pytest.mark.parametrize(
    ("columns", "prefix", "named"),
    [
        (["prompt", "Text"], "", "['Text']"), (["MODEL", "Error"], "", "['MODEL', 'Error']"),
        (["Gen_Text"], "gen_", "['Gen_Text']"), (["Raw"], "", "['Raw']"), (["Score"], "", "['Score']"),
        (["k", "K"], "", "['k', 'K']"), (["\u00e9tat", "\u00c9TAT", "x"], "gen_", "['\u00e9tat', '\u00c9TAT']"),
    ],
)  # fmt: skip
def test_names_that_differ_in_case_only_are_refused(columns: list[str], prefix: str, named: str) -> None:
    with pytest.raises(ConfigError, match="columns=") as raised:
        check_collisions(columns, prefix, parsed=["score"])
    assert f"input columns {named}" in str(raised.value)
    assert "upper and lower case" in str(raised.value)


def test_names_that_differ_in_more_than_case_are_taken() -> None:
    check_collisions(["prompt", "Texts", "k", "k2"], "")
    check_collisions(["Text", "MODEL"], "gen_")


def test_many_columns_are_compared_in_linear_time() -> None:
    names = [f"k{i}" for i in range(100_000)]
    begin = time.perf_counter()
    check_collisions(names, "")
    assert time.perf_counter() - begin < 10, "comparing each with each takes minutes"
