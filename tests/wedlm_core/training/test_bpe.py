"""The trained tokenizer: any text round-trips, digits are single, a word has one form, the chat template works."""

import itertools
import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from wedlm_core.tokenizer import Tokenizer as Loaded
from wedlm_core.training import corpus
from wedlm_core.training.bpe import EOS, MASK, PAD, save_tokenizer, train_tokenizer
from wedlm_core.training.examples import Vocabulary, chat_prompt

WEIGHTS = dict.fromkeys(corpus.FAMILIES, 1.0)


def texts(count: int) -> list[str]:
    return [f"{p.prompt}\n{p.answer}" for p in itertools.islice(corpus.stream(0, "train", WEIGHTS), count)]


@cache
def tokenizer() -> Backend:
    return train_tokenizer(texts(1500), 1024)


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer())


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_round_trips(text):
    assert tokenizer().decode(tokenizer().encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_vocabulary_holds_all_bytes_and_specials_within_its_bound():
    known = tokenizer().get_vocab()
    assert 256 + 4 < len(known) <= 1024
    assert len({EOS, MASK, PAD} & set(known)) == 3


@given(st.integers(0, 10**9))
def test_each_digit_is_one_token(number):
    assert tokenizer().encode(str(number)).tokens == list(str(number))


def test_a_word_is_the_same_tokens_at_the_start_and_after_a_space():
    alone = tokenizer().encode("river").ids
    assert tokenizer().encode("a river").ids[-len(alone) :] == alone


def test_prompt_and_answer_are_encoded_alike_together_and_apart():
    for problem in itertools.islice(corpus.stream(1, "train", WEIGHTS), 300):
        for chat in (False, True):
            example = vocabulary().example(problem.prompt, problem.answer, chat=chat)
            prompt = chat_prompt(problem.prompt) if chat else problem.prompt + "\n"
            assert [*example.prompt, *example.answer] == [
                *vocabulary().encode(prompt + problem.answer),
                vocabulary().special.eos,
            ]


def test_the_saved_folder_loads_with_template_and_special_ids(tmp_path):
    save_tokenizer(tokenizer(), tmp_path, max_length=512)
    loaded = Loaded.load(tmp_path)
    messages = [{"role": "user", "content": "Count from 3 to 9."}]
    assert tuple(loaded.apply_chat_template(messages)) == vocabulary().prompt("Count from 3 to 9.", chat=True)
    assert loaded.eos_token_ids == (vocabulary().special.eos,)
    assert loaded.mask_token_id == vocabulary().special.mask
    fast = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert (fast.pad_token, fast.eos_token) == (PAD, EOS)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [vocabulary().special.eos]


def test_a_tokenizer_without_the_special_tokens_is_refused():
    from tokenizers import Tokenizer, models

    with pytest.raises(ValueError, match="lacks"):
        Vocabulary(Tokenizer(models.BPE()))
