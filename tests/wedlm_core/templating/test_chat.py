"""Chat templates give exactly transformers' text, and refuse the same conversations."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from testing.templates.chats import CONVERSATIONS, TEMPLATES, TOOLS
from wedlm_core.errors import ConfigError, RequestError
from wedlm_core.model.sources import resolve
from wedlm_core.templating import TemplateLimitError
from wedlm_core.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def fast() -> PreTrainedTokenizerFast:
    loaded = PreTrainedTokenizerFast.from_pretrained(str(resolve("tiny")))
    loaded.add_special_tokens({"bos_token": "<|bos|>"})
    return loaded


def with_template(fast: PreTrainedTokenizerFast, template: Any) -> Tokenizer:
    own = copy.copy(fast)
    own.chat_template = template
    return Tokenizer(own)


def outcome(render: Any) -> str:
    """The rendered text, or "refused"."""
    try:
        return str(render())
    except Exception:
        return "refused"


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_is_rendered_as_transformers_renders_it(
    fast: PreTrainedTokenizerFast, template: str, conversation: str, tools: Any
) -> None:
    tokenizer = with_template(fast, TEMPLATES[template])
    messages = CONVERSATIONS[conversation]
    before = copy.deepcopy((messages, tools))
    for opened in (True, False):
        options = {"tools": tools, "tokenize": False, "add_generation_prompt": opened}
        theirs = outcome(functools.partial(tokenizer._fast.apply_chat_template, messages, **options))
        ours = outcome(functools.partial(tokenizer.apply_chat_template, messages, **options))
        assert ours == theirs
    assert (messages, tools) == before, "nothing of the caller's is changed"


def test_most_of_these_chats_are_rendered_at_all(fast: PreTrainedTokenizerFast) -> None:
    outcomes = [
        outcome(lambda t=t, c=c: with_template(fast, t).apply_chat_template(c, tokenize=False))
        for t in TEMPLATES.values()
        for c in CONVERSATIONS.values()
    ]
    assert sum(text != "refused" for text in outcomes) >= len(outcomes) - 3


def test_of_several_templates_the_one_for_tools_is_taken_where_there_are_tools(fast: PreTrainedTokenizerFast) -> None:
    tokenizer = with_template(fast, {"default": "plain", "tool_use": "{{ tools | length }} tools"})
    chat = CONVERSATIONS["one question"]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "plain"
    assert tokenizer.apply_chat_template(chat, tokenize=False, tools=TOOLS) == "2 tools"
    with pytest.raises(ConfigError, match="default"):
        with_template(fast, {"rag": "x"}).apply_chat_template(chat, tokenize=False)


def test_a_chat_template_that_writes_too_much_is_an_error_of_the_request(fast: PreTrainedTokenizerFast) -> None:
    tokenizer = with_template(fast, "{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}")
    with pytest.raises(TemplateLimitError, match=r"the model's chat template: .*characters"):
        tokenizer.apply_chat_template(CONVERSATIONS["one question"])
    assert issubclass(TemplateLimitError, RequestError)


def test_a_chat_template_that_is_no_template_is_a_clear_error(fast: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConfigError, match=r"chat_template=.*not a Jinja template"):
        with_template(fast, "{% for %}").apply_chat_template(CONVERSATIONS["one question"])
