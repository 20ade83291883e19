"""What a grammar allows, the slow way: a matcher that is run from the start of the output at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from wedlm_core.grammar import Grammar

__all__ = ["allowed_by", "allowed_tokens"]


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
