"""A filter over a table decides as a plain program over all rows in memory does, piece by piece as well as at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import ConfigError
from pipeline.selection import select
from pipeline.selection.select import Selection
from pipeline.selection.settings import DedupConfig, FilterConfig, OutlierConfig


def table(rows: int = 40, samples: int = 3, seed: int = 0, **columns: Sequence[Any]) -> pa.Table:
    """Rows with few different scores, so that there are ties; some rows failed and some scores are null."""
    rng = random.Random(seed)
    made = []
    for row in range(rows):
        failed = rng.random() < 0.1
        for sample in range(1 if failed else samples):
            score = None if failed or rng.random() < 0.1 else -rng.randrange(6) / 2
            made.append({
                "row_id": f"f:{row}", "sample_index": sample, "topic": f"t{row % 3}",
                "finish_reason": "error" if failed else "stop", "text": None if failed else f"text {rng.random()}",
                "completion_tokens": None if failed else rng.randrange(5, 9),
                "evidence": None if failed else {
                    "worst_logprob": score, "mean_logprob": score, "mean_entropy": None if score is None else -score,
                    "script": "LATIN",
                },
            })  # fmt: skip
    found = pa.Table.from_pylist(made)
    for name, values in columns.items():
        found = found.set_column(found.column_names.index(name), name, pa.array(values))
    return found


def chosen(source: pa.Table, pieces: int = 1, **fields: Any) -> tuple[pa.Table, pa.Table]:
    """The kept rows, and the notes of dropped ones."""
    size = -(-source.num_rows // pieces)
    tables = [source.slice(first, size) for first in range(0, source.num_rows, size)]
    with Selection(FilterConfig(**fields), source.schema) as selection:
        selection.read(tables)
        selection.decide()
        every = list(selection.divide(tables))
    return pa.concat_tables([one.kept for one in every]), pa.concat_tables([one.dropped for one in every])


def ids(found: pa.Table) -> list[tuple[str, int]]:
    return list(zip(found["row_id"].to_pylist(), found["sample_index"].to_pylist(), strict=True))


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def key(row: dict[str, Any]) -> tuple[bool, float, str, int]:
        score = row["evidence"]["worst_logprob"]
        return score is None, -(score or 0), row["row_id"], row["sample_index"]

    return sorted(rows, key=key)


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("by", [(), ("topic",), ("topic", "completion_tokens")])
@pytest.mark.parametrize("keep", ["best 50%", "best 4", "best 33.3% where completion_tokens > 5"])
def test_the_best_are_those_of_a_sort_in_memory(keep: str, by: tuple[str, ...], pieces: int) -> None:
    source = table()
    kept, dropped = chosen(source, pieces, keep=keep, by=by, score="worst_logprob")
    good = [row for row in source.to_pylist() if row["finish_reason"] != "error"]
    ranked = [row for row in good if "where" not in keep or row["completion_tokens"] > 5]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in in_order(ranked):
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    wanted, ranks = set(), {}
    for group in groups.values():
        most = 4 if keep == "best 4" else -(-len(group) // 2) if keep == "best 50%" else -(-len(group) * 333 // 1000)
        wanted |= {(row["row_id"], row["sample_index"]) for row in group[:most]}
        ranks |= {(row["row_id"], row["sample_index"]): (i, len(group)) for i, row in enumerate(group, 1)}
    assert ids(kept) == [own for own in ids(source) if own in wanted], "in the order of the source"
    assert ids(dropped) == [own for own in ids(source) if own not in wanted]
    assert [(s["rank"], s["candidates"]) for s in kept["selection"].to_pylist()] == [ranks[own] for own in ids(kept)]
    reasons = dict(zip(ids(dropped), dropped["reason"].to_pylist(), strict=True))
    assert {own for own, why in reasons.items() if why == "failed"} == {
        (row["row_id"], 0) for row in source.to_pylist() if row["finish_reason"] == "error"
    }
    assert {own for own, why in reasons.items() if why == "condition"} == {
        (row["row_id"], row["sample_index"]) for row in good if row not in ranked
    }
    assert kept.drop_columns("selection").equals(source.filter(pa.array([own in wanted for own in ids(source)])))


@pytest.mark.parametrize("number", [1, 2])
def test_the_best_samples_of_each_row_tell_the_scores_of_all(number: int) -> None:
    source = table()
    kept, dropped = chosen(source, 3, keep=f"best {number} per row", score="worst_logprob")
    good = [row for row in source.to_pylist() if row["finish_reason"] != "error"]
    for row_id in {row["row_id"] for row in good}:
        own = in_order([row for row in good if row["row_id"] == row_id])
        best = [row for row in kept.to_pylist() if row["row_id"] == row_id]
        assert {row["sample_index"] for row in best} == {row["sample_index"] for row in own[:number]}
        for row in best:
            assert row["selection"]["scores"] == [one["evidence"]["worst_logprob"] for one in own]
            assert row["selection"]["candidates"] == len(own)
    assert {"failed", "another sample is better"} == set(dropped["reason"].to_pylist())


def test_of_near_duplicates_the_best_is_kept_and_named() -> None:
    source = table(rows=6, samples=1, seed=3)
    good = [row for row in source.to_pylist() if row["finish_reason"] != "error"]
    texts = [None if row["finish_reason"] == "error" else "the same words every time" for row in source.to_pylist()]
    kept, dropped = chosen(table(rows=6, samples=1, seed=3, text=texts), dedup=True, score="worst_logprob")
    best = in_order(good)[0]
    assert ids(kept) == [(best["row_id"], 0)]
    notes = [row for row in dropped.to_pylist() if row["reason"] == "near-duplicate"]
    assert len(notes) == len(good) - 1
    assert {(n["duplicate_of"], n["duplicate_of_sample"], n["similarity"]) for n in notes} == {(best["row_id"], 0, 1.0)}


def test_the_best_are_counted_after_near_duplicates_are_gone() -> None:
    source = table(30, 1)
    texts = [None if why == "error" else f"words {i // 2} and {i // 2}" for i, why in
             enumerate(source["finish_reason"].to_pylist())]  # fmt: skip
    source = table(30, 1, text=texts)
    kept, _ = chosen(source, keep="best 100%", dedup=DedupConfig(threshold=1.0), score="worst_logprob")
    assert sorted(kept["text"].to_pylist()) == sorted({text for text in texts if text})
    half, _ = chosen(source, keep="best 50%", dedup=DedupConfig(threshold=1.0), score="worst_logprob")
    assert half.num_rows == -(-kept.num_rows // 2)


def test_outliers_of_length_and_script_are_dropped_with_what_is_usual() -> None:
    source = table(rows=200, samples=1, seed=5)
    lengths = source["completion_tokens"].to_pylist()
    evidence = source["evidence"].to_pylist()
    long, foreign = [next(i for i in range(a, 200) if lengths[i]) for a in (20, 60)]
    lengths[long] = 4000
    evidence[foreign] = {**evidence[foreign], "script": "CJK"}
    kept, dropped = chosen(
        table(rows=200, samples=1, seed=5, completion_tokens=lengths, evidence=evidence), outliers=True,
        score="worst_logprob",
    )  # fmt: skip
    notes = {row["row_id"]: row["detail"] for row in dropped.to_pylist() if row["reason"] == "outlier"}
    assert set(notes) == {f"f:{long}", f"f:{foreign}"}
    assert notes[f"f:{long}"].startswith("4000 tokens, others have ")
    assert notes[f"f:{foreign}"].startswith("in CJK script, as 1 of ")
    assert kept.num_rows + dropped.num_rows == 200
    lax, _ = chosen(source, outliers=OutlierConfig(length=None, script_share=None), score="worst_logprob")
    assert lax.num_rows == 200 - sum(why == "error" for why in source["finish_reason"].to_pylist())


def test_nothing_left_is_no_error_and_no_score_at_all_is_one() -> None:
    kept, dropped = chosen(table(), keep="best 50% where false")
    assert (kept.num_rows, dropped.num_rows) == (0, table().num_rows)
    source = table(evidence=[{"worst_logprob": None, "mean_logprob": None, "script": "LATIN"}] * table().num_rows)
    source = source.set_column(6, "evidence", source["evidence"].cast(table().schema.field("evidence").type))
    with pytest.raises(ConfigError, match="no row has a value"):
        chosen(source, keep="best 50%")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keep": "best 50%", "score": "confidnce"}, "no column 'confidnce'"),
        ({"keep": "best 50%", "score": "text"}, "does not give a number"),
        ({"keep": "completion_tokens"}, "is not true or false"),
        ({"keep": "best 50%", "by": "topik"}, "by: the output has no column 'topik'. Near it: topic."),
        ({"dedup": {"columns": ["completion_tokens"]}}, "a column of int64"),
        ({"dedup": {"colums": ["text"]}}, "a mapping with fields of"),
        ({"dedup": 1.5}, "dedup.threshold=1.5"),
        ({"keep": "best 50%", "selection_column": "text"}, "has a column of this name"),
        ({"keep": "best 1 per row", "by": "topic"}, "groups are for shares and numbers"),
        ({}, "there is nothing to filter by"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_table_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        chosen(table(), **fields)
    assert message in str(refused.value)


def test_pieces_are_of_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chosen(table(), keep="best 50%")
    monkeypatch.setattr(select, "_ROWS_AT_ONCE", 3)
    assert chosen(table(), keep="best 50%") == whole
