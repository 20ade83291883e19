"""Compiles structured outputs for one tokenizer, each different one once, within bounds of time and memory."""

from __future__ import annotations

import functools
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import llguidance
import numpy as np

from wedlm_core.errors import RequestError, explain, first_line
from wedlm_core.grammar.grammar_sources import grammar_text
from wedlm_core.structured_outputs import StructuredOutputs

_KEPT = 256  # compiled grammars; some kilobytes each, megabytes for large ones
_MOST_STATES = 100_000  # of texts, that the sequences of a grammar share: 40 MB
# Of the library's work for a row. Matchers share a cache, so a limit of work would let other rows decide whether a row
# fails. Only the limit of states is the same for a row in any batch.
_NO_LIMIT = 1 << 62
_NOTHING_FITS = "NoExtension"  # why the library stops where no token may come
_REMEDY = "Correct it, or simplify it."

# Where RUST_BACKTRACE is set, the library records its stack each time an output is complete, which takes longer than
# most of its calls. Panics still show theirs.
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")


class Grammar:
    """A compiled grammar; its sequences share the compiled form.

    Matchers of one origin wait for each other, for they share their knowledge of texts. So where several threads ask
    them, sequences take turns among as many origins, each compiled when its first sequence comes.

    Args:
        make: compiles a matcher.
        eos_token_ids: any of them ends the output.
        origins: at most.

    Attributes:
        eos_token_ids: as given.
    """

    def __init__(self, make: Callable[[], Any], eos_token_ids: Sequence[int], origins: int) -> None:
        self._make, self.eos_token_ids, self._most = make, frozenset(eos_token_ids), origins
        self._origins = [Origin(make)]
        self._next = 0

    @property
    def matcher(self) -> Any:
        """At the beginning; never advanced."""
        return self._origins[0].matcher

    def origin(self) -> Origin:
        """The matchers of a new sequence."""
        if self._next == len(self._origins):
            self._origins.append(Origin(self._make))
        origin = self._origins[self._next]
        self._next = (self._next + 1) % self._most
        return origin


class Origin:
    """Matchers at the beginning of a grammar, which sequences copy.

    Attributes:
        matcher: at the beginning; never advanced.
        opening: the forced beginning of every output, if there is any.
        opened: a matcher after it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.renew()

    def renew(self) -> None:
        """Replace the matchers by ones that share nothing with those before."""
        self.matcher = self._make()
        self.opened = self.matcher.deep_copy()
        self.opening = take_forced(self.opened)


def take_forced(matcher: Any) -> list[int]:
    """Take a matcher over the forced text after it, and return that; empty where there is none."""
    forced: list[int] = [] if matcher.is_stopped() else matcher.compute_ff_tokens()
    return forced if forced and advance(matcher, forced) else []


def advance(matcher: Any, tokens: list[int]) -> bool:
    """Consume tokens if all of them are allowed, else none."""
    if not tokens:
        return True
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    return bool(matcher.consume_tokens(tokens))


class GrammarCompiler:
    """Grammars over the vocabulary of a model.

    Args:
        tokenizer: the tokenizer's JSON (``tokenizer.json``).
        vocab_size: of the model's logits.
        eos_token_ids: tokens that end an output; each is below ``vocab_size``.
        origins: matchers of a grammar that threads may ask at once.

    Raises:
        RequestError: there is no end-of-sequence token, or the tokenizer is of a kind that the library does not read.
    """

    def __init__(self, tokenizer: str, vocab_size: int, eos_token_ids: Sequence[int], *, origins: int = 1) -> None:
        if not eos_token_ids:
            rule = "the model has no end-of-sequence token, so no output could end"
            raise RequestError(explain("structured_outputs", None, rule, "Set eos_token_id in its config.json."))
        try:
            self._tokenizer = llguidance.LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_token_ids))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library's is no Exception, and tokens of 300 bytes are one
            rule = f"the grammar library cannot read this tokenizer ({first_line(error)})"
            raise RequestError(explain("structured_outputs", None, rule, "Use a byte-level tokenizer.")) from error
        self._eos, self._origins = tuple(eos_token_ids), origins
        limits = functools.partial(llguidance.LLParserLimits, max_grammar_size=200_000, max_lexer_states=_MOST_STATES)
        self._limits, self._limits_of_rows = limits(), limits(step_lexer_fuel=_NO_LIMIT)
        self._special = {
            token["content"]: token["id"]
            for token in json.loads(tokenizer).get("added_tokens", ())
            if token["id"] < vocab_size and self._tokenizer.is_special_token(token["id"])
        }
        self._compiled: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """The grammar of ``wanted``; compiled at the first call (0.1 ms to 1 s), kept for later ones.

        Raises:
            RequestError: it cannot be compiled, or allows no output at all.
        """
        known = self._compiled.get(wanted)
        if known is None:
            known = self._compiled[wanted] = self._compile(wanted)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(wanted)
        return known

    def check(self, wanted: StructuredOutputs) -> None:
        """Compile ``wanted`` as :meth:`compile` does, and keep nothing of it. Raises as that does."""
        self._compile(wanted)

    def _compile(self, wanted: StructuredOutputs) -> Grammar:
        value = getattr(wanted, wanted.kind)
        try:
            return self._compiled_matcher(wanted, value)
        except (RequestError, KeyboardInterrupt, SystemExit):
            raise
        except RecursionError as error:
            raise self._refused(wanted, value, "is nested too deeply") from error
        except BaseException as error:  # a panic of the library is no Exception
            raise self._refused(wanted, value, f"cannot be compiled ({first_line(error)})") from error

    def _compiled_matcher(self, wanted: StructuredOutputs, value: object) -> Grammar:
        text = grammar_text(wanted, self._special)

        def make(limits: llguidance.LLParserLimits) -> Any:
            return llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=limits)

        matcher = make(self._limits)
        if matcher.is_error():
            raise self._refused(wanted, value, f"cannot be compiled ({_reason(matcher.get_error())})")
        first, second = matcher.deep_copy(), matcher.deep_copy()
        allows = _allows_any(first)
        second.compute_bitmask()  # copies share limits, and the first may have used them up
        for one in (first, second):
            if one.is_error() and not one.get_error().startswith(_NOTHING_FITS):
                raise self._refused(wanted, value, f"cannot be compiled ({_reason(one.get_error())})")
        if not allows:
            raise self._refused(wanted, value, "allows no output, or none that this vocabulary can spell")
        return Grammar(functools.partial(make, self._limits_of_rows), self._eos, self._origins)

    def _refused(self, wanted: StructuredOutputs, value: object, rule: str) -> RequestError:
        return RequestError(explain(f"structured_outputs.{wanted.kind}", value, rule, _REMEDY))


def _allows_any(matcher: Any) -> bool:
    """Whether a token may come first. A matcher that finds none counts as stopped, and its mask names the end."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return bool(bits.any()) and not matcher.is_error() and matcher.stop_reason() in ("NotStopped", "EndOfSentence")


def _reason(message: str) -> str:
    """A message of the library, on one line, without its listing of the grammar."""
    if "coerce_one_of" in message:
        return (
            'the parts of oneOf cannot be told apart; use "anyOf", or let each have "type": "object" and another '
            '"const" of a field that all require'
        )
    lines = [line.strip() for line in message.split("<state>")[0].splitlines() if line.strip()]
    return " ".join(lines)[:300]


def checker(*arguments: Any) -> Callable[[StructuredOutputs], None]:
    """:meth:`GrammarCompiler.check` of a compiler with these arguments."""
    return GrammarCompiler(*arguments).check
