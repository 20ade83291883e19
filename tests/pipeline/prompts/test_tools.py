"""Which tools a row may call, and the form of an output that has to call one."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.codec import RequestError
from pipeline.config import RunConfig
from pipeline.prompts.structures import grammar_faults
from pipeline.prompts.tools import offer, with_form

TOOLS = [{"name": "f"}, {"name": "g.h", "parameters": {"properties": {'"\\\n': {"enum": ['"', "\u00e9"]}}}}]


def config(**more: Any) -> RunConfig:
    return RunConfig.from_mapping({"input": [], "output": "none", "model": "tiny", **more})


def test_a_choice_says_which_tools_there_are_and_whether_one_is_forced() -> None:
    free, forced, named = (offer("tools", TOOLS, choice) for choice in ("auto", "required", {"name": "f"}))
    assert free is not None
    assert forced is not None
    assert named is not None
    assert [own.names for own in (free, forced, named)] == [("f", "g.h"), ("f", "g.h"), ("f",)]
    assert free.form is None
    assert offer("tools", TOOLS, "none") is offer("tools", None, "auto") is offer("tools", [], "auto") is None
    for tools, choice in ((None, "required"), (TOOLS, {"name": "x"}), ([], {"name": "f"})):
        with pytest.raises(RequestError, match="Offer it"):
            offer("tools", tools, choice)
    rows = [{"structured_outputs": own.form} for own in (forced, named)]
    assert grammar_faults(rows, config()) == {}


def test_a_forced_call_comes_after_reasoning_that_the_prompt_opened() -> None:
    own = offer("tools", TOOLS, "required")
    assert own is not None
    apart = config(reasoning_parser="think")
    opened = with_form({"max_tokens": 3}, own, "a<think>\n", apart)
    assert opened is not None
    assert opened["max_tokens"] == 3
    assert opened["structured_outputs"]["after"] == "</think>"
    assert grammar_faults([opened], config()) == {}
    for prompt, run in (("a<think>", config()), ("a", apart), ("<think>a", apart), ([1], apart)):
        assert "after" not in (with_form(None, own, prompt, run) or {})["structured_outputs"]


def test_a_forced_call_and_another_form_contradict_each_other() -> None:
    own, free = offer("tools", TOOLS, "required"), offer("tools", TOOLS, "auto")
    assert own is not None
    assert free is not None
    form = {"structured_outputs": {"choice": ["a"]}}
    for params, run in ((form, config()), (None, config(sampling=form))):
        with pytest.raises(RequestError, match="a form of its own"):
            with_form(params, own, "p", run)
        assert with_form(params, free, "p", run) == params
