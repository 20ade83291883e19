"""The count of schemas that compile: refusals by reason, valid instances refused, invalid ones allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.quality.real_schemas import Case, Outcome, cases, judge, report

PAIR = {"type": "object", "properties": {"a": {"type": "number", "maximum": 9}, "b": {"type": "string"}},
        "additionalProperties": False}  # fmt: skip


def instances(*pairs: tuple[bool, Any]) -> list[dict[str, Any]]:
    return [{"description": "", "valid": valid, "data": value} for valid, value in pairs]


def test_cases_are_read_from_both_forms_of_files(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps({"schema": PAIR, "tests": instances((True, {}))}))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "list.json").write_text(
        json.dumps([{"schema": {}, "tests": []}, {"schema": True, "tests": []}])
    )
    found = list(cases(tmp_path))
    assert [case.name for case in found] == ["one.json 0", "sub/list.json 0", "sub/list.json 1"]
    assert found[0].instances == ((True, {}),)


def test_each_instance_counts_once_and_says_why_it_is_no_output() -> None:
    tried = ((True, {"a": 1, "b": "x"}), (True, {"b": "x", "a": 1}), (True, {"a": 1e-7}), (True, {"b": "\0"}),
             (False, {"c": 1}), (False, {"a": 10}))  # fmt: skip
    found = judge(Case(name="n", schema=PAIR, instances=tried))
    assert (found.refusal, found.valid, found.invalid, found.allowed) == (None, 4, 2, 0)
    assert found.refused == {"order of fields": 1, "spelling of a number": 1, "control character": 1}


def test_keywords_next_to_a_reference_are_named_in_drafts_that_ignore_them() -> None:
    parts = {"whole": {"type": "integer"}}
    schema = {"$ref": "#/definitions/whole", "maximum": 3, "definitions": parts}
    for draft, reason in (("draft-07", "keywords next to $ref"), ("draft/2020-12", "other")):
        named = schema | {"$schema": f"http://json-schema.org/{draft}/schema#"}
        found = judge(Case(name="n", schema=named, instances=((True, 5), (True, 2))))
        assert (found.refusal, found.refused) == (None, {reason: 1})


def test_many_fields_in_another_order_are_found_by_the_schema() -> None:
    names = [f"field_{number}" for number in range(40)]
    inner = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    value = {"b": dict.fromkeys(reversed(names), 1), "a": dict.fromkeys(reversed(names), 1)}
    schema = {"type": "object", "properties": {"a": inner, "b": inner}}
    assert judge(Case(name="n", schema=schema, instances=((True, value),))).refused == {"order of fields": 1}


def test_a_suite_that_is_wrong_is_noticed() -> None:
    found = judge(Case(name="n", schema=PAIR, instances=((False, {"a": 1}), (True, {"a": "x"}))))
    assert (found.allowed, found.refused) == (1, {"other": 1})
    text = report([found])
    assert "allow an invalid instance: n." in text
    assert "for another reason: n." in text


def test_refusals_are_counted_by_reason() -> None:
    refused = [judge(Case(name=str(n), schema={"properties": {"p": {"contains": {}}}}, instances=())) for n in range(2)]
    assert all(isinstance(outcome, Outcome) and outcome.refusal for outcome in refused)
    text = report([*refused, judge(Case(name="fine", schema={}, instances=()))])
    assert "| schemas | 3 |" in text
    assert "| compiled | 1 (33.3%) |" in text
    assert "| contains: this keyword would not be enforced." in text
