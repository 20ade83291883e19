"""Deterministic automata over bytes: the language of structured outputs, where it is regular and small enough.

What an automaton says is what the backend, llguidance, says of the same structured outputs: which bytes may come, and
where an output may end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wedlm_core.grammar.json_language import language_of
from wedlm_core.grammar.patterns import with_python_classes
from wedlm_core.grammar.regexes import regex_language
from wedlm_core.grammar.regular import Either, Expression, Outside, Text, characters, optional
from wedlm_core.grammar.schemas import for_backend
from wedlm_core.grammar.subsets import TooLarge, compiled
from wedlm_core.structured_outputs import StructuredOutputs

__all__ = ["Automaton", "automaton_of"]

_MOST_STATES = 20_000
_MOST_WORK = 220_000  # 0.15 to 0.3 s


@dataclass(frozen=True, kw_only=True)
class Automaton:
    """A deterministic automaton over bytes.

    ``next_SC``: int32 ``[states, classes]``, -1 where no byte of the class may come; ``class_B``: uint8 ``[256]``;
    ``accepts_S``: bool ``[states]``: an output may end here. State 0 is the beginning; from every state an accepting
    one can be reached.
    """

    next_SC: np.ndarray[Any, np.dtype[np.int32]]
    class_B: np.ndarray[Any, np.dtype[np.uint8]]
    accepts_S: np.ndarray[Any, np.dtype[np.bool_]]


def automaton_of(wanted: StructuredOutputs) -> Automaton | None:
    """The automaton of structured outputs that the backend has compiled; None where there is none.

    There is none where the language is not regular, not known to the byte, empty or too large.
    """
    try:
        expression = _expression_of(wanted)
        table = compiled(expression, most_states=_MOST_STATES, most_work=_MOST_WORK)
    except (Outside, TooLarge, RecursionError):
        return None
    if not table.accepts_S.any():
        return None
    return Automaton(next_SC=table.next_SC, class_B=table.class_B, accepts_S=table.accepts_S)


def _expression_of(wanted: StructuredOutputs) -> Expression:
    if wanted.after is not None:
        raise Outside
    if wanted.is_json:
        schema = for_backend(wanted.schema)
        if wanted.whitespace_pattern is None:
            return language_of(schema, wanted.separators)
        return language_of(schema, (",", ":"), _space(wanted.whitespace_pattern))
    if wanted.choice is not None:
        return Either(parts=tuple(Text(text=text.encode()) for text in wanted.choice))
    if wanted.regex is not None:
        return regex_language(with_python_classes(wanted.regex), characters)
    raise Outside


def _space(regex: str) -> Expression:
    """Whitespace between parts. Where it is something else, it could be taken for a part."""
    space = regex_language(regex, characters)
    table = compiled(space, most_states=_MOST_STATES, most_work=_MOST_WORK)
    others_B = [byte for byte in range(256) if byte not in b" \t\r\n"]
    if (table.next_SC[:, table.class_B[others_B]] >= 0).any() or not table.accepts_S.any():
        raise Outside
    return optional(space)
