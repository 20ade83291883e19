"""Text survives the tokenizer, streams give whole characters, and no torch is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from pipeline.codec import SamplingParams
from pipeline.commands.preview import preview
from pipeline.config import RunConfig
from wedlm_core import LLM
from wedlm_core.errors import ConfigError, RequestError, WeightsError
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import TextStream, Tokenizer

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(qwen3_folder: Path) -> Tokenizer:
    return Tokenizer.load(qwen3_folder)


def test_ids_and_sizes_come_from_the_folder(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_ids == (1, 0)
    assert tokenizer.mask_token_id == 2
    assert 256 < tokenizer.vocab_size <= 320


@given(text=st.text())
@settings(deadline=None)
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode_batch([text, "x"]) == [ids, tokenizer.encode("x")]


@pytest.mark.parametrize("template", ["$A \u010a", "<|im_start|> $A", "<|im_start|> $A <|im_end|>", "$A"])
def test_a_prompt_has_the_tokens_around_it_that_transformers_adds(tmp_path: Path, template: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve("tiny") / name, tmp_path)
    file = tmp_path / "tokenizer.json"
    backend = Backend.from_file(str(file))
    around = [(token, backend.token_to_id(token)) for token in template.split() if token != "$A"]
    backend.post_processor = TemplateProcessing(single=template, special_tokens=around)
    backend.save(str(file))
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    for text in ("Count from 3 to 9.", "a\n", "<|im_end|>"):
        assert ours.encode_prompt(text) == theirs(text).input_ids
    assert ours.encode_prompt("") == []
    assert ours.apply_chat_template(USER) == ours.encode(ours.apply_chat_template(USER, tokenize=False))


def test_special_tokens_are_recognised_and_skipped(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b")
    assert 1 in ids
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"
    assert tokenizer.decode([335]) == "", "padded vocabulary has no text"


@given(data=st.data(), ids=st.lists(st.integers(0, 335), max_size=40), skip=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_stream_joined_is_the_decoded_whole(
    tokenizer: Tokenizer, data: st.DataObject, ids: list[int], skip: bool
) -> None:
    stream, pieces, at = TextStream(tokenizer, skip), [], 0
    while at < len(ids):
        step = data.draw(st.integers(0, 5))
        pieces.append(stream.push(ids[at : at + step]))
        at += step
    pieces.append(stream.finish())
    assert "".join(pieces) == tokenizer.decode(ids, skip)


@given(text=st.text(alphabet="aé東😀👩‍ \n", max_size=30))
@settings(max_examples=25, deadline=None)
def test_a_stream_of_valid_text_never_shows_a_broken_character(tokenizer: Tokenizer, text: str) -> None:
    stream, shown = TextStream(tokenizer), ""
    for count, token in enumerate(ids := tokenizer.encode(text), start=1):
        piece = stream.push([token])
        assert "\ufffd" not in piece
        shown += piece
        # Nothing whole is held back either.
        assert shown == tokenizer.decode(ids[:count]).rstrip("\ufffd")
    assert shown + stream.finish() == text


def test_a_long_stream_decodes_only_its_end(tokenizer: Tokenizer) -> None:
    """Cost per token must not grow with the text: the ids decoded are counted."""
    decoded = 0

    class Counting(Tokenizer):
        def decode(self, ids, skip_special_tokens=True):  # type: ignore[no-untyped-def]
            nonlocal decoded
            decoded += len(ids)
            return super().decode(ids, skip_special_tokens)

    counting = Counting(tokenizer._fast)
    stream, ids = TextStream(counting), tokenizer.encode("counting from one to nine " * 100)
    for token in ids:
        stream.push([token])
    assert decoded < 10 * len(ids)


def test_chat_template(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi 😀"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|im_start|>user\nHi 😀<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(messages) == tokenizer.encode(text)
    assert tokenizer.apply_chat_template(messages, False, tokenize=False).endswith("<|im_end|>\n")
    assert messages == [{"role": "user", "content": "Hi 😀"}]
    for bad in ([{"role": "user"}], ["Hi"], [{"role": "user", "content": None}], [{"role": 3, "content": "Hi"}]):
        with pytest.raises(RequestError, match="messages"):
            tokenizer.apply_chat_template(bad)  # type: ignore[arg-type]


def test_a_message_with_tool_calls_may_have_no_content_in_any_form(tokenizer: Tokenizer) -> None:
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    chats = [
        [{"role": "user", "content": "Hi"}, {**call, **content}] for content in ({}, {"content": None}, {"content": ""})
    ]
    absent, null, empty = (tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats)
    assert absent == null == empty
    assert "None" not in null


def test_errors_name_the_remedy(tokenizer: Tokenizer, tmp_path: Path, qwen3_folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(WeightsError, match="cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((qwen3_folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="chat_template"):
        Tokenizer.load(tmp_path).apply_chat_template([{"role": "user", "content": "Hi"}])


def test_tokenising_scheduling_pages_and_history_need_no_torch(qwen3_folder: Path) -> None:
    code = (
        "import sys, wedlm_core.engine.scheduling.scheduler, wedlm_core.kv.pages, wedlm_core.engine.drafting.history\n"
        "from wedlm_core.tokenizer import Tokenizer, TextStream\n"
        f"t = Tokenizer.load({str(qwen3_folder)!r}); t.apply_chat_template([dict(role='user', content='Hi')])\n"
        "TextStream(t).push(t.encode('x')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("piece", ["word ", "a", " ", "\n\n", "é漢字\ud800", "<|im_end|>"])
def test_the_least_number_of_tokens_is_never_too_high_and_soon_known(tokenizer: Tokenizer, piece: str) -> None:
    text = piece * 200_000
    assert tokenizer.least_tokens(text, 10**6) == 0, "a text that is no longer is encoded"
    least = tokenizer.least_tokens(text, 10)
    assert least <= len(tokenizer.encode(text.replace("\ud800", "?")))
    if piece == "word ":
        assert least > 10


def test_a_token_that_takes_the_spaces_before_it_leaves_nothing_certain(qwen3_folder: Path) -> None:
    tokenizer = Tokenizer.load(qwen3_folder)
    tokenizer._backend.add_special_tokens([AddedToken("<|x|>", lstrip=True)])
    text = " " * 50_000 + "<|x|>"
    assert tokenizer.least_tokens(text, 10) <= len(tokenizer.encode(text))


def test_a_prompt_and_a_row_of_five_megabytes_are_refused_within_a_second(qwen3_folder: Path) -> None:
    llm, text = LLM(str(qwen3_folder)), "Count. " * (5_000_000 // 7)
    begin = time.process_time()
    with pytest.raises(RequestError, match=r"^prompt \+ max_tokens='at least \d+': at most max_model_len = 512"):
        llm.generate([text], SamplingParams(max_tokens=2))
    assert time.process_time() - begin < 1
    rows = [{"prompt": text}, {"prompt": "Count."}]
    config = RunConfig(input=rows, output="unused", model=str(qwen3_folder), sampling=SamplingParams(max_tokens=2))
    long, short = preview(config, rows=2).to_pylist()
    assert "prompt + max_tokens='at least" in long["error"]
    assert short["error"] is None
