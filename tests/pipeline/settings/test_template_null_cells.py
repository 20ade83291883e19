"""A null, missing or NaN cell has no text in a prompt: a template tests it, replaces it, or fails its row by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pytest

from pipeline.codec import SamplingParams
from pipeline.commands.preview import preview
from pipeline.config import RunConfig
from pipeline.settings.template import NullCellError, PromptTemplate

ROW: dict[str, Any] = {
    "c": None, "n": math.nan, "s": {"x": None, "y": "a"}, "l": [None, "b"], "d": [{"q": None}], "m": [("k", None)],
    "t": "None",
}  # fmt: skip


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("{{ c }}", "c"), ("{{ n }}", "n"), ("{{ s.x }}", "s.x"), ("{{ s }}", "s.x"), ("{{ s.w }}", "s.w"),
        ("{{ s.get('w') }}", "s.w"), ("{{ row.c }}", "c"), ("{{ row['s'] }}", "s.x"), ("{{ c.x.y }}", "c"),
        ("{{ l }}", r"l\[0\]"), ("{{ l | join(', ') }}", r"l\[0\]"), ("{{ l | first }}", r"l\[0\]"),
        ("{{ m }}", r"m\[0\]\[1\]"), ("{% for x in l %}{{ x }}{% endfor %}", r"l\[0\]"),
        ("{% for x in c %}{{ x }}{% endfor %}", "c"), ("{% for x in d %}{{ x.q }}{% endfor %}", r"d\[0\]\.q"),
        ("{{ d | map(attribute='q') | join }}", r"d\[0\]\.q"), ("{{ l | map('upper') | join }}", r"l\[0\]"),
        ("{{ c | upper }}", "c"), ("{{ c.strip() }}", "c"), ("{{ 'a' ~ c }}", "c"), ("{{ '%s' % c }}", "c"),
        ("{{ '{}'.format(c) }}", "c"), ("{{ c | string }}", "c"), ("{{ (c, t) }}", "c"), ("{{ n + 1 }}", "n"),
        ("{{ range(c) | list }}", "c"), ("{{ range(s.w) | list }}", "s.w"), ("{{ 'abc'[:n] }}", "n"),
        ("{{ n | round }}", "n"), ("{{ c | int(3) }}", "c"), ("{{ n | tojson }}", "n"),
        ("{% for k, v in s.items() %}{{ v }}{% endfor %}", "s.x"),
        ("{% macro f(a) %}{{ a }}{% endmacro %}{{ f(c) }}", "c"),
        ("{{ c | map('upper') | join }}", "c"), ("{{ c.x | select | join }}", "c"),
        ("{{ s.w | reject | join }}", "s.w"),
        ("{{ c | selectattr('q') | list }}", "c"), ("{% for k, v in c | items %}{{ v }}{% endfor %}", "c"),
        ("{{ [s.w] }}", "s.w"), ("{{ {'k': s.w} }}", "s.w"),
    ],
)  # fmt: skip
def test_a_template_that_writes_a_null_cell_names_its_place(template: str, place: str) -> None:
    with pytest.raises(
        (NullCellError, TypeError),
        match=f"^column '{place}' is (null(, or missing in this row)?|NaN|missing)(, so it has no '\\w+')?$",
    ):
        PromptTemplate(template).render(ROW)


def test_a_null_that_a_template_makes_itself_is_not_written_either() -> None:
    found = "{% set ns = namespace(a=none) %}{% for x in l %}{% if x == t %}{% set ns.a = x %}{% endif %}{% endfor %}"
    with pytest.raises(NullCellError, match="an expression is null"):
        PromptTemplate(found + "{{ ns.a }}").render(ROW)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ c | default('x') }}", "x"), ("{{ n | default('x', true) }}", "x"), ("{{ c or 'x' }}", "x"),
        ("{{ c.x | default('x') }}", "x"), ("{{ s.w | default('x') }}", "x"), ("{{ s.get('w', 'x') }}", "x"),
        ("{% if c %}{{ c }}{% else %}x{% endif %}", "x"), ("{{ 'x' if c is none and c == none and n is none }}", "x"),
        ("{{ 'y' if c is defined else 'x' }}", "x"), ("{{ l | reject('none') | join }}{{ l | select | join }}", "bb"),
        ("{{ s | tojson }}", '{"x": null, "y": "a"}'), ("{{ t }}{{ s.y }}{{ l[1] }}{{ l | length }}", "Noneab2"),
    ],
)  # fmt: skip
def test_a_template_may_test_and_replace_a_null_cell(template: str, text: str) -> None:
    assert PromptTemplate(template + "{{ t }}").render(ROW) == text + "None"


SOURCES: dict[str, Any] = {
    "a list of dicts": [{"q": "3", "c": 9.0}, {"q": "4", "c": None}],
    "a field that is absent": [{"q": "3", "c": 9.0}, {"q": "4"}],
    "NaN of Arrow": pa.table({"q": ["3", "4"], "c": pa.array([9.0, math.nan], from_pandas=False)}),
    "NaN of pandas": pandas.DataFrame({"q": ["3", "4"], "c": [9.0, math.nan]}),
    "NaT of pandas": pandas.DataFrame({"q": ["3", "4"], "c": [pandas.Timestamp("2026-01-01"), pandas.NaT]}),
    "NA of pandas": pandas.DataFrame({"q": ["3", "4"], "c": pandas.array([9, None], dtype="Int64")}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_null_cell_fails_its_row_alone_and_names_the_column(qwen3_folder: Path, source: str) -> None:
    config = RunConfig(input=SOURCES[source], output="unused", model=str(qwen3_folder),
                       sampling=SamplingParams(max_tokens=2),
                       prompt_template="Count from {{ q }} to {{ c }}.")  # fmt: skip
    good, bad = preview(config, rows=2).to_pylist()
    assert good["error"] is None
    assert "prompt_template: column 'c' is" in bad["error"]
    assert "default" in bad["error"]


@pytest.mark.parametrize(
    "template",
    ["{{ n * 3 }}", "{{ 3 * n }}", "{{ n + 3 }}", "{{ 3 - n }}", "{{ n // 3 }}", "{{ n % 3 }}", "{{ 3 ** n }}",
     "{% if n == 12 %}a{% endif %}", "{% if 3 != n %}a{% endif %}", "{% if n > 3 %}a{% endif %}",
     "{% if 3 <= n %}a{% endif %}", "{% if n in [3] %}a{% endif %}", "{% if row.n == 12 %}a{% endif %}"],
)  # fmt: skip
def test_digits_of_a_column_that_became_text_are_never_taken_for_a_number(template: str) -> None:
    for text in ("12", "-1.5", "1e5"):
        with pytest.raises(TypeError, match=r"column 'n' is text, '.*n\|int or n\|float"):
            PromptTemplate(template).render({"n": text})
    PromptTemplate(template).render({"n": 12})


def test_a_text_of_digits_is_a_text_like_any_other() -> None:
    row = {"n": "12", "m": "x", "l": ["5"]}
    template = (
        "{{ n }}{{ n ~ 3 }}{{ n + m }}{{ m + n }} {{ n == '12' }} {{ n in ['12'] }} {{ '2' in n }} {{ n < '2' }} "
        "{{ {'12': 'y'}[n] }} {{ n | int * 3 }} {{ n | tojson }} {{ n.zfill(3) }} {{ l }} {{ '-' * 3 }} {{ n == m }}"
        "{{ n.format() }}"
    )
    assert PromptTemplate(template).render(row) == ("1212312xx12 True True True True y 36 \"12\" 012 ['5'] --- False12")
