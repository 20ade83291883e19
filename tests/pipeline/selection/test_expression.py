"""Expressions see one row and nothing else, and a mistake is an error that names it and the nearest names."""

from __future__ import annotations

import sys

import duckdb
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, ResourceError
from pipeline.selection.expression import Expression

TABLE = pa.table({
    "text": ["x", "2", None],
    "finish_reason": ["stop", "length", "error"],
    "tags": [["a"], ["a", "b"], None],
    "a b": [1, 2, 3],
    "evidence": [{"worst_logprob": -1.0, "truncated": False}, {"worst_logprob": -5.0, "truncated": True}, None],
})  # fmt: skip


def values(text: str) -> list[object]:
    return Expression(text, TABLE.schema, "keep").values(TABLE).to_pylist()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("evidence.worst_logprob > -3 and finish_reason = 'stop'", [True, False, False]),
        ("EVIDENCE.Worst_Logprob > -3", [True, False, None]),
        ("not evidence.truncated", [True, False, None]),
        ("len(list_filter(tags, lambda tag: tag = 'a')) = 1", [True, True, None]),
        ('"a b" % 2 = 1', [True, False, True]),
        ("text ~ '[0-9]' -- a remark", [False, True, None]),
        ("case when text in ('x', 'y') then true else false end", [True, False, False]),
        ("cast(text as int) = 2", [None, True, None]),
        ("100 / (\"a b\" - 1) > 60", [True, True, False]),
    ],
)  # fmt: skip
def test_it_is_sql_over_the_row_and_has_no_value_where_it_cannot_be_computed(text: str, wanted: list[object]) -> None:
    assert values(text) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evidence.worst_logprb > -3", "no column 'evidence.worst_logprb'. Near it: evidence.worst_logprob."),
        ("worst_logprob > -3", "Near it: evidence.worst_logprob."),
        ("fnish_reason = 'stop'", "no column 'fnish_reason'. Near it: finish_reason."),
        ("zzz > 1", "There are: text, finish_reason, tags, a b, evidence."),
        ("rows is null", "no column 'rows'"),
        ("tags.a > 1", "no column 'tags.a'"),
        ("random() > 0.5", "random may differ"),
        ("now() > date '2020-01-01'", "now may differ"),
        ("uuid() = 'x'", "uuid may differ"),
        ("getvariable('x') is null", "getvariable may differ"),
        ("(select 1) = 1", "a sub-query"),
        ("exists(from rows)", "a sub-query"),
        ("exists(from read_text('/etc/passwd'))", "a sub-query"),
        ("read_text('/etc/passwd') = 'x'", "table function"),
        ("count(*) > 1", "count_star looks at several rows"),
        ("max(\"a b\") = 1", "max looks at several rows"),
        ("row_number() over () = 1", "a window function"),
        ("*", "a star"),
        ("columns(*) > 1", "a star"),
        ("? = 1", "a parameter"),
        ("true; drop table rows", "syntax error"),
        ("1) from rows union select (2", "not one expression"),
        ("a b", "syntax error"),
        ("nosuch(text)", "nosuch does not exist"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        values(text)
    assert message in str(refused.value)
    assert str(refused.value).startswith("keep=")


def test_the_database_could_read_no_file_even_if_a_check_let_it_through() -> None:
    connection = Expression("text = 'x'", TABLE.schema, "keep")._connection
    for statement in ("FROM read_text('/etc/hostname')", "SET enable_external_access = true", "ATTACH 'a.db'"):
        with pytest.raises(duckdb.Error, match=r"disabled|locked"):
            connection.execute(statement)


def test_without_duckdb_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ResourceError, match=r'pip install "wedlm-batch\[filter\]"'):
        values("text = 'x'")
