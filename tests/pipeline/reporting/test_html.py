"""Markup is made here or it is text."""

from __future__ import annotations

import html
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from pipeline.reporting.html import Safe, el, escape, join, script_json

ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=40)


@given(ANY_TEXT)
def test_text_cannot_leave_its_element_or_attribute(text: str) -> None:
    made = el("p", text, title=text, data_tip=text)
    assert made.count("<") == 2
    assert made.count('"') == 4
    made.encode()
    found = re.fullmatch(r'<p title="([^"<>]*)" data-tip="[^"<>]*">([^<>]*)</p>', made, re.DOTALL)
    assert found is not None
    assert html.unescape(found[1]) == html.unescape(found[2])


@given(ANY_TEXT)
def test_data_for_scripts_is_what_it_was_and_cannot_end_its_element(text: str) -> None:
    made = script_json("data", {"text": text})
    assert made.count("<") == 2
    body = re.fullmatch(r"<script[^>]*>(.*)</script>", made)
    assert body is not None
    assert json.loads(body[1]) == {"text": text}


def test_plain_text_is_kept_but_for_what_html_cannot_hold() -> None:
    assert escape("a & b < c\n\t\u05d0 \U0001f600") == "a &amp; b &lt; c\n\t\u05d0 \U0001f600"
    assert escape("\x00\x1b\x7f\ud800") == "\ufffd\ufffd\ufffd?"


def test_markup_is_not_escaped_twice_and_attributes_may_be_left_out() -> None:
    inner = el("b", "x")
    assert join(inner, None, "&") == "<b>x</b>&amp;"
    assert isinstance(join("<"), Safe)
    assert el("i", a=None, b=False, c=True, class_="k", x=1.5, y=2.0) == '<i c class="k" x="1.5" y="2"></i>'
    assert el("br") == "<br>"
