"""Encode problems as token ids: the prompt (plain or in the chat template) and the answer with its end token."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from wedlm_core.training.bpe import EOS, MASK, PAD, START


@dataclass(frozen=True, kw_only=True)
class Example:
    """Token ids of one document; ``answer`` ends with the end-of-sequence id."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def chat_prompt(prompt: str) -> str:
    """One user message in the chat template, followed by the opening of the assistant's turn."""
    return f"{START}user\n{prompt}{EOS}\n{START}assistant\n"


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Ids that training writes itself: after an answer, in place of a masked token, and at the end of a row."""

    eos: int
    mask: int
    pad: int


class Vocabulary:
    """Encodes problems with the tokenizer of :mod:`wedlm_core.training.bpe`; holds the special ids of training."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special = SpecialIds(eos=self._id(EOS), mask=self._id(MASK), pad=self._id(PAD))

    def _id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"the tokenizer lacks {token}: train it with wedlm_core.training.bpe")
        return found

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of ``text``; special tokens in it are recognised, none are added."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, prompt: str, *, chat: bool) -> tuple[int, ...]:
        """Ids of a prompt: in the chat template, or plain with a line end after it."""
        return self.encode(chat_prompt(prompt)) if chat else (*self.encode(prompt), *self.encode("\n"))

    def example(self, prompt: str, answer: str, *, chat: bool) -> Example:
        """A training document."""
        return Example(prompt=self.prompt(prompt, chat=chat), answer=(*self.encode(answer), self.special.eos))
