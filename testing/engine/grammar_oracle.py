"""The tokens that a grammar allows, the slow way: a matcher that is run from the start of the output at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np

from wedlm_core.engine.constrained.grammar_masks import GrammarMasks
from wedlm_core.engine.constrained.matching import Constraint
from wedlm_core.fallback import Optimisations
from wedlm_core.grammar import Grammar
from wedlm_core.grammar.compiler import GrammarCompiler
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer


@cache
def tokenizer() -> Tokenizer:
    """The shipped model's."""
    return Tokenizer.load(resolve("tiny"))


@cache
def compiler() -> GrammarCompiler:
    """Of the shipped model."""
    return GrammarCompiler(tokenizer().to_json(), tokenizer().vocab_size, (2,))


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a text is a complete output."""
    matcher = grammar.matcher.deep_copy()
    return bool(matcher.consume_tokens(tokenizer().encode(text)) and matcher.is_accepting())


def grammar_masks(
    places: Iterable[tuple[int, Constraint, int]], slots: int, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> GrammarMasks:
    """The masks of sequences, to be filled; ``places`` have slot, constraint and position of each."""
    masks = GrammarMasks(
        slots=slots, vocab_size=vocab_size, eos_token_ids=eos_token_ids, guard=Optimisations().grammars
    )
    for slot, constraint, position in places:
        masks.add(slot, constraint, position)
    return masks


def allowed_bits(lines: GrammarMasks) -> np.ndarray:
    """Bool ``[N, V]``: whether each state allows a token; V is the vocabulary in whole words."""
    bits_UV = np.unpackbits(lines.bits_UW.view(np.uint8), axis=1, bitorder="little").astype(np.bool_)
    allowed_NV = np.ones((len(lines.line_N), bits_UV.shape[1]), dtype=np.bool_)
    for state, line in enumerate(lines.line_N.tolist()):
        if line >= 0:
            allowed_NV[state] = bits_UV[line]
        elif line < -1:
            allowed_NV[state] = np.arange(bits_UV.shape[1]) == -line - 2
    return allowed_NV


def allowed_tokens(grammar: Grammar, output: Sequence[int]) -> list[int]:
    """Ids that may follow ``output``, which the grammar allows."""
    matcher = grammar.matcher.deep_copy()
    for token in output:
        assert matcher.consume_token(token), matcher.get_error()
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def allowed_by(grammar: Grammar) -> Callable[[Sequence[int]], list[int]]:
    """:func:`allowed_tokens` of one grammar."""
    return lambda output: allowed_tokens(grammar, output)
