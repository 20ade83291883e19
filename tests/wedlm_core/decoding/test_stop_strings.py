"""A bad word is banned as the tokenizer spells it, at the beginning of a text and after a space."""

from __future__ import annotations

from functools import cache

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from wedlm_core.decoding.stop_strings import check_words
from wedlm_core.errors import RequestError

TEXTS = [" unhappy unhappily happy", "happy birthday", " birthday", " dog", "dogma dogma", " nineteen nine nineteen"]


class Encodes:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)


@cache
def tokenizer(vocabulary: int, *, space_apart: bool) -> Encodes:
    made = Tokenizer(models.BPE())
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    first = pre_tokenizers.Split(" ", "isolated") if space_apart else pre_tokenizers.Punctuation()
    made.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_of])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(TEXTS * 5, trainer)
    return Encodes(made)


@pytest.mark.parametrize("space_apart", [False, True])
@pytest.mark.parametrize("vocabulary", [256, 262, 270, 280, 300, 400])
def test_a_word_is_banned_at_the_beginning_and_after_a_space(vocabulary: int, space_apart: bool) -> None:
    tokens = tokenizer(vocabulary, space_apart=space_apart)
    for word in ("happy", "unhappy", "birthday", "dog", "dogma", "nine", "nineteen", " dog", "é", "x", "happy dog"):
        banned = check_words(tokens, (word,))
        for text in (word.lstrip(), "so " + word.lstrip(), "a dog " + word.lstrip()):
            spelled = tuple(tokens.encode(text))
            assert any(spelled[-len(ids) :] == ids for ids in banned), (word, text)
        if space_apart:
            assert len(banned) == 1, "a word after a space of its own is spelled as at the beginning"


def test_a_word_without_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="no token"):
        check_words(tokenizer(256, space_apart=False), ("  ",))
