"""Automata say what the backend's matcher says, in every state, on whatever way it was reached."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.engine.schemas import OTHERS, SCHEMAS
from wedlm_core.errors import RequestError
from wedlm_core.grammar import GrammarCompiler
from wedlm_core.grammar.automaton import Automaton, automaton_of
from wedlm_core.grammar.regular import (
    EMPTY,
    NOTHING,
    Both,
    ByteSet,
    Either,
    Expression,
    Repeat,
    Text,
    byte_range,
    characters,
    optional,
    sequence,
)
from wedlm_core.grammar.subsets import TooLarge, compiled
from wedlm_core.model.sources import resolve
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(resolve("tiny"))
COMPILER = GrammarCompiler(TOKENIZER.to_json(), TOKENIZER.vocab_size, (2,))
END = 2
LIBRARY = COMPILER._tokenizer
BYTES = {
    token: text
    for token in range(TOKENIZER.vocab_size)
    if not LIBRARY.is_special_token(token) and (text := LIBRARY.decode_bytes([token]))
}


class Walker:
    """An automaton over tokens."""

    def __init__(self, automaton: Automaton) -> None:
        self.next_SB = automaton.next_SC[:, automaton.class_B].tolist()
        self.accepts_S = automaton.accepts_S.tolist()
        self.followed = functools.cache(self._followed)

    def _followed(self, state: int) -> dict[int, int]:
        """The allowed tokens, and where they lead."""
        found = ((token, self.walk(state, text)) for token, text in BYTES.items())
        return {token: target for token, target in found if target >= 0}

    def walk(self, state: int, text: bytes) -> int:
        for byte in text:
            state = self.next_SB[state][byte]
            if state < 0:
                break
        return state

    def forced(self, state: int) -> bytes:
        """The bytes that have to come, up to where there is a choice."""
        text = bytearray()
        while not self.accepts_S[state]:
            following = [byte for byte, target in enumerate(self.next_SB[state]) if target >= 0]
            if len(following) != 1:
                break
            text.append(following[0])
            state = self.next_SB[state][following[0]]
        return bytes(text)


def assert_same_state(wanted: StructuredOutputs, walker: Walker, state: int, path: Sequence[int]) -> None:
    matcher = COMPILER.compile(wanted).matcher.deep_copy()
    text = b"".join(BYTES[token] for token in path)
    assert not path or matcher.consume_tokens(list(path)), text
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    assert bool(bits[END]) == walker.accepts_S[state], text
    followed = set(walker.followed(state))
    if matcher.is_stopped():  # nothing may follow; the matcher takes a mask then for what may come before
        assert not followed, text
        return
    assert matcher.compute_ff_bytes() == walker.forced(state), text
    forced = matcher.compute_ff_tokens()
    # Where a text is forced, the mask has the token that spells it. Others are taken all the same.
    assert {token for token in BYTES if bits[token]} == (set(forced[:1]) or followed), text
    if forced:
        assert {token for token in BYTES if matcher.validate_tokens([token])} == followed, text


def assert_same_language(wanted: StructuredOutputs, *, most_states: int = 120, walks: int = 6) -> Automaton | None:
    """Compare in every state, up to some, then along random walks, which reach states in more than one way."""
    automaton = automaton_of(wanted)
    if automaton is None:
        return None
    walker, rng = Walker(automaton), random.Random(1)
    assert_is_trimmed(automaton)
    paths, todo = {0: list[int]()}, [0]
    for state in todo:  # which grows
        if len(todo) <= most_states:
            for token, target in walker.followed(state).items():
                if target not in paths:
                    paths[target] = [*paths[state], token]
                    todo.append(target)
        else:
            break
    for state in todo[:most_states]:
        assert_same_state(wanted, walker, state, paths[state])
    for _ in range(walks):
        state, path = 0, list[int]()
        while len(path) < 40 and (followed := walker.followed(state)):
            path.append(rng.choice(sorted(followed)))
            state = followed[path[-1]]
            if rng.random() < 0.2:
                assert_same_state(wanted, walker, state, path)
        assert_same_state(wanted, walker, state, path)
    return automaton


def assert_is_trimmed(automaton: Automaton) -> None:
    """State 0 leads to all states, and each of them to one that accepts; no two have equal rows."""
    next_SC, accepts_S = automaton.next_SC, automaton.accepts_S
    assert (next_SC.dtype, automaton.class_B.dtype, accepts_S.dtype) == (np.int32, np.uint8, np.bool_)
    assert automaton.class_B.shape == (256,)
    assert automaton.class_B.max() < next_SC.shape[1]
    rows = [row[row >= 0].tolist() for row in next_SC]
    before: list[list[int]] = [[] for _ in rows]
    for state, targets in enumerate(rows):
        for target in targets:
            before[target].append(state)
    assert reached([0], rows) == set(range(len(rows)))
    assert reached(np.flatnonzero(accepts_S).tolist(), before) == set(range(len(rows)))
    assert len({(row.tobytes(), bool(ends)) for row, ends in zip(next_SC, accepts_S, strict=True)}) == len(rows)


def reached(begin: list[int], targets: list[list[int]]) -> set[int]:
    seen, todo = set(begin), list(begin)
    while todo:
        new = set(targets[todo.pop()]) - seen
        seen |= new
        todo.extend(new)
    return seen


def _takes(automaton: Automaton, text: bytes) -> bool:
    state = 0
    for byte in text:
        state = int(automaton.next_SC[state, automaton.class_B[byte]])
        if state < 0:
            return False
    return bool(automaton.accepts_S[state])


def fields(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False,
            "required": list(properties) if required is None else required}  # fmt: skip


OUTSIDE = {
    "multiple of 5", "duration", "ipv6", "email", "hostname", "additional digits", "pattern properties",
    "at most one field", "allOf of bounds", "allOf of objects", "linked list", "tree",
    "words", "inside a class", "not words", "any case", "lark", "gbnf", "object", "behind a tag",
    "behind a special token",
}  # fmt: skip
ALL = {name: StructuredOutputs(json=schema) for name, schema in SCHEMAS.items()} | dict(OTHERS)

INT, TEXT, BOOL = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
TRICKY: dict[str, Any] = {
    "any text": TEXT,
    "text of 3 and more": {"type": "string", "minLength": 3},
    "integers up to 12": {"type": "integer", "maximum": 12},
    "integers from -12": {"type": "integer", "minimum": -12},
    "integers down from -12": {"type": "integer", "maximum": -12},
    "integers from -7 to 0": {"type": "integer", "minimum": -7, "maximum": 0},
    "integers from -1999 to -101": {"type": "integer", "minimum": -1999, "maximum": -101},
    "integers between fractions": {"type": "integer", "minimum": 0.5, "exclusiveMaximum": 21.5},
    "integers of many digits": {"type": "integer", "minimum": 98765, "maximum": 2**53},
    "one integer": {"type": "integer", "minimum": 7, "maximum": 7},
    "numbers up to 1.25": {"type": "number", "maximum": 1.25},
    "numbers from -0.5": {"type": "number", "minimum": -0.5},
    "numbers above 99.5": {"type": "number", "exclusiveMinimum": 99.5},
    "numbers down from -3": {"type": "number", "maximum": -3},
    "numbers from -1 to 1": {"type": "number", "minimum": -1, "maximum": 1},
    "probability": {"type": "number", "minimum": 0, "maximum": 1},
    "numbers between close ones": {"type": "number", "exclusiveMinimum": 0.0123, "maximum": 0.0125},
    "numbers, or integers": {"type": ["number", "integer"]},
    "bounds of a list of types": {"type": ["integer", "string", "null"], "minimum": 3, "maxLength": 2},
    "integer const of a float": {"type": "integer", "const": 2.0},
    "enum filtered by type": {"type": ["integer", "null"], "enum": [1, 1.5, "a", None, True]},
    "small constants": {"enum": [0.00001, -1.5, 1e15, 123456.789]},
    "enum of escapes": {"enum": ['a"b', "a\\b", "a\nb", "a/b", "é", "\U0001f600", "\t\r\b\f", ""]},
    "enum or any text": {"anyOf": [{"enum": ["yes", "no"]}, TEXT]},
    "texts of two lengths": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 4}]},
    "numbers and integers of parts": {"$defs": {"i": INT, "n": {"type": "number"}},
                                      "anyOf": [{"$ref": "#/$defs/i"}, {"$ref": "#/$defs/n"}]},
    "nested choices": {"anyOf": [{"anyOf": [INT, {"type": "null"}]}, {"type": "array", "items": INT, "maxItems": 2}]},
    "array of any length": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "array of 2 and more": {"type": "array", "items": BOOL, "minItems": 2},
    "prefix and any rest": {"type": "array", "prefixItems": [BOOL, {"type": "null"}], "items": INT, "minItems": 1},
    "prefix that is cut": {"type": "array", "prefixItems": [BOOL, BOOL, BOOL], "maxItems": 2},
    "prefix that may be short": {"type": "array", "prefixItems": [BOOL, INT], "items": False},
    "prefix with a gap": {"type": "array", "prefixItems": [BOOL, False, INT], "items": False},
    "prefix of more": {"type": "array", "prefixItems": [BOOL], "items": INT, "minItems": 3, "maxItems": 4},
    "no items but few": {"type": "array", "items": False},
    "arrays of texts": {"type": "array", "items": {"type": "array", "items": TEXT, "maxItems": 1}, "maxItems": 2},
    "optional in the middle": fields(["a", "d"], a=INT, b=INT, c=INT, d=INT),
    "optional in front": fields(["c"], a=INT, b=INT, c=INT),
    "optional that cannot be": fields(["b"], a=False, b=INT, c=False),
    "keys that begin alike": fields([], a=INT, ab=BOOL, abc=INT, b=BOOL),
    "text at the end": fields(name={"type": "string", "minLength": 1, "maxLength": 3}, note=TEXT),
    "objects of texts": {"type": "array", "items": fields([], k=TEXT), "minItems": 1},
    "empty constants": {"enum": [{}, [], "", {"a": {}}]},
    "a part of one": {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": fields(x=INT)}, "description": "one"},
    "parts used twice": {"$defs": {"s": {"type": "string", "maxLength": 2}},
                         **fields(a={"$ref": "#/$defs/s"}, b={"$ref": "#/$defs/s"})},
    "pattern in the middle": {"type": "string", "pattern": "ab"},
    "pattern at the beginning": {"type": "string", "pattern": "^a[^b]"},
    "pattern at the end": {"type": "string", "pattern": "a.$"},
    "pattern of alternatives": {"type": "string", "pattern": "a(b|cd)*e?"},
    "pattern of special characters": {"type": "string", "pattern": r'^["\\\n/\-]{1,2}[^a-z\s]\.$'},
    "pattern without its length": {"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 7},
    "pattern of space": {"type": "string", "pattern": r"^\s\S\d$"},
    "pattern that lengths end": {"type": "string", "pattern": "a", "maxLength": 3},
    "format and length": {"type": "string", "format": "ipv4", "maxLength": 8},
    "format and pattern": {"type": "string", "format": "time", "pattern": "^2.:..:..Z$"},
    "day of a year": {"type": "string", "format": "date", "pattern": "^(2023|2024)-02-"},
    "all of texts": {"type": "string", "minLength": 1, "allOf": [{"pattern": "a"}, {"maxLength": 3, "minLength": 2}]},
    "older draft": {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"i": INT},
                    **fields(a={"type": "array", "items": {"$ref": "#/definitions/i"}, "minItems": 1})},
    "pattern of beyond": {"type": "string", "pattern": "^[\u0080-\U0001f600][\ud7ff-\ue000]$"},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ALL))
def test_schemas_of_every_feature(name: str) -> None:
    assert (assert_same_language(ALL[name]) is None) == (name in OUTSIDE)


@pytest.mark.parametrize("name", sorted(TRICKY))
def test_tricky_schemas(name: str) -> None:
    assert assert_same_language(StructuredOutputs(json=TRICKY[name])) is not None


@pytest.mark.parametrize("separators", [(",", ":"), (" ,", " : "), (",\n", ":\t")])
def test_separators(separators: tuple[str, str]) -> None:
    schema = fields(["a"], a={"type": "array", "items": {"type": "number"}}, b=fields(c=TEXT), d=INT)
    assert assert_same_language(StructuredOutputs(json=schema, separators=separators)) is not None


@pytest.mark.parametrize("space", [" ?", r"[ \n]{0,2}", r"[ \t\r\n]*", r" ( \n)?", r"\n"])
def test_free_whitespace(space: str) -> None:
    inner = {"type": "array", "items": {"anyOf": [BOOL, fields()]}}
    schema = fields(["a"], a=inner, b={"type": "array", "prefixItems": [INT], "items": BOOL, "minItems": 1})
    assert assert_same_language(StructuredOutputs(json=schema, whitespace_pattern=space)) is not None
    constant = {"const": {"a": [1, [], {}], "b": "x y"}}
    assert assert_same_language(StructuredOutputs(json=constant, whitespace_pattern=space)) is not None


@pytest.mark.parametrize(
    "regex",
    ["a", "^a$", "(ab|a)(c|bcd)", "a*b+c?", "[^a]", ".", "(a|b|)*?c{2,3}", r"\S+\s", "a{0}b", "(?:x|yz){2,}",
     r"\d+(\.\d{1,2})?", "[\U00010000-\U0010ffff]x", "[à-ÿ]+", r"\"\/\-", "(?P<year>[0-9]{4})"],
)  # fmt: skip
def test_regexes(regex: str) -> None:
    assert assert_same_language(StructuredOutputs(regex=regex)) is not None


@pytest.mark.parametrize("texts", [["a", "ab", "abc", "b"], ["é", "è", "\U0001f600"], ['\n"\\', "</s>"]])
def test_choices(texts: list[str]) -> None:
    assert assert_same_language(StructuredOutputs(choice=texts)) is not None


_ENDS = st.one_of(
    st.integers(-1200, 1200),
    st.sampled_from([0, 1, -1, 10, 99, 100, 0.5, -0.5, 1.25, 9.99, 0.001, -7.125, 1e-5]),
    st.sampled_from([10**15, -(10**15), 10**15 + 1, 2**53 - 1, -(2**53)]),
)
_BOUNDS = st.fixed_dictionaries(
    {},
    optional={
        "low": st.tuples(st.sampled_from(["minimum", "exclusiveMinimum"]), _ENDS),
        "high": st.tuples(st.sampled_from(["maximum", "exclusiveMaximum"]), _ENDS),
    },
).map(lambda bounds: dict(bounds.values()))
_NUMBERS = st.builds(lambda kind, bounds: {"type": kind, **bounds}, st.sampled_from(["integer", "number"]), _BOUNDS)
_TEXTS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(2, 4),
        "format": st.sampled_from(["date", "uuid", "ipv4"]),
        "pattern": st.sampled_from(["^a+$", "b", "^[a-c]{2}", "(x|yz)$", r"^\d?[^b]*$", "^.é"]),
    },
)
_ENUMS = st.lists(
    st.one_of(st.none(), st.booleans(), st.integers(-20, 20), st.text(alphabet="ab\"\\é\n ", max_size=3)),
    min_size=1, max_size=4,
).map(lambda values: {"enum": values})  # fmt: skip
_KEYS = st.sampled_from(["a", "b", "ab", "abc", "", 'x"y', "é"])


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda properties, chosen: fields([k for k, c in zip(properties, chosen, strict=False) if c], **properties),
            st.dictionaries(_KEYS, inner, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4),
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": st.one_of(inner, st.just(False))},
            optional={"prefixItems": st.lists(inner, min_size=1, max_size=3), "minItems": st.integers(0, 3),
                      "maxItems": st.integers(1, 4)},
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
    )  # fmt: skip


_SCHEMAS = st.recursive(st.one_of(_NUMBERS, _TEXTS, _ENUMS, st.sampled_from([BOOL, {"type": "null"}])), _composed,
                        max_leaves=6)  # fmt: skip


_REGEXES = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", ".", r"\d", r"\s", "é", "[à-ÿ\U0001f600]", r"\.", "-", "/", '"', r"\\"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,1}", "{2,}", "*?", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_REGEXES, st.sampled_from(["", "^"]), st.sampled_from(["", "$"]))
def test_regexes_that_chance_composes(regex: str, begin: str, end: str) -> None:
    for wanted in (
        StructuredOutputs(regex=regex),
        StructuredOutputs(json={"type": "string", "pattern": f"{begin}{regex}{end}"}),
    ):
        assert assert_same_language(wanted, most_states=30, walks=4) is not None, regex


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_SCHEMAS)
def test_schemas_that_chance_composes(schema: dict[str, Any]) -> None:
    wanted = StructuredOutputs(json=schema)
    try:
        COMPILER.compile(wanted)
    except RequestError:
        return
    assert assert_same_language(wanted, most_states=40, walks=4) is not None, json.dumps(schema)


_LONGEST = 5
_Node = tuple[Expression, frozenset[bytes]]
"""An expression, and its texts that are not too long."""


def _behind(*languages: frozenset[bytes]) -> frozenset[bytes]:
    return functools.reduce(
        lambda left, right: frozenset(a + b for a in left for b in right if len(a + b) <= _LONGEST),
        languages,
        frozenset({b""}),
    )


def _repeated(node: _Node, least: int, more: int | None) -> _Node:
    expression, texts = node
    counts = range(least, least + (_LONGEST if more is None else more) + 1)
    repeated = Repeat(part=expression, least=least, most=None if more is None else least + more)
    return repeated, frozenset().union(*(_behind(*[texts] * count) for count in counts))


_NODES: st.SearchStrategy[_Node] = st.recursive(
    st.one_of(
        st.sampled_from([b"a", b"b", b"ab", b"", b"ba"]).map(lambda text: (Text(text=text), frozenset({text}))),
        st.just((ByteSet(mask=byte_range(0x61, 0x62)), frozenset({b"a", b"b"}))),
        st.just((NOTHING, frozenset())),
        st.just((EMPTY, frozenset({b""}))),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda n: (sequence(*(e for e, _ in n)), _behind(*(t for _, t in n)))),
        st.lists(inner, max_size=3).map(
            lambda n: (Either(parts=tuple(e for e, _ in n)), frozenset().union(*(t for _, t in n)))
        ),
        st.builds(_repeated, inner, st.integers(0, 2), st.one_of(st.none(), st.integers(0, 2))),
        st.tuples(inner, inner).map(lambda n: (Both(parts=(n[0][0], n[1][0])), n[0][1] & n[1][1])),
    ),
    max_leaves=8,
)
_WORDS = [bytes(word) for size in range(_LONGEST + 1) for word in itertools.product(b"ab", repeat=size)]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_NODES)
def test_automata_take_the_texts_of_their_expressions(node: _Node) -> None:
    expression, texts = node
    automaton = _small(expression)
    if automaton.accepts_S.any():
        assert_is_trimmed(automaton)
    assert {word for word in _WORDS if _takes(automaton, word)} == texts


@pytest.mark.parametrize("regex", ["(a|ab)(c|bcd)(d*)", "a*?b{2,}|[^b]c", "((a|b)*abb)+", "(a{1,2}){2}b?"])
def test_expressions_of_regexes_are_what_python_matches(regex: str) -> None:
    automaton = automaton_of(StructuredOutputs(regex=regex))
    assert automaton is not None
    for size in range(7):
        for word in map("".join, itertools.product("abcd", repeat=size)):
            assert _takes(automaton, word.encode()) == bool(re.fullmatch(regex, word)), word


def _small(expression: Expression) -> Automaton:
    table = compiled(expression, most_states=1000, most_work=100_000)
    return Automaton(next_SC=table.next_SC, class_B=table.class_B, accepts_S=table.accepts_S)


@pytest.mark.parametrize(
    "ranges",
    [((0, 0x10FFFF),), ((0x7F, 0x80),), ((0x7FF, 0x801),), ((0xD7FF, 0xE000),), ((0xFFFF, 0x10001),), ((0xE9, 0xE9),),
     ((0x41, 0x43), (0x3B1, 0x3C9), (0x4E00, 0x9FFF), (0x1F600, 0x1F64F)), ((0xD800, 0xDFFF),)],
)  # fmt: skip
def test_characters_are_encoded_ones(ranges: tuple[tuple[int, int], ...]) -> None:
    walker = Walker(_small(characters(ranges)))
    points = {p + d for pair in (*ranges, (0, 0x10FFFF)) for p in pair for d in (-1, 0, 1)}
    points |= set(random.Random(1).sample(range(0x110000), 2000)) | set(range(0, 0x3000, 7))
    for point in sorted(points & set(range(0x110000)) - set(range(0xD800, 0xE000))):
        state = walker.walk(0, chr(point).encode())
        assert (state >= 0 and walker.accepts_S[state]) == any(a <= point <= b for a, b in ranges), hex(point)
    for text in (
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xff",
        b"\x80",
        b"\xf0\x80\x80\x80",
    ):
        assert walker.walk(0, text) < 0


def test_states_are_merged() -> None:
    letter = ByteSet(mask=byte_range(0x61, 0x7A))
    either = Either(
        parts=(sequence(Text(text=b"x"), letter, Text(text=b"!")), sequence(Text(text=b"y"), letter, Text(text=b"!")))
    )
    assert len(_small(sequence(either, optional(either))).next_SC) == 7
    same = Either(
        parts=tuple(sequence(Repeat(part=Text(text=t), least=2, most=2), Text(text=b"z")) for t in (b"p", b"q"))
    )
    assert len(_small(same).next_SC) == 5


def test_too_much_is_refused() -> None:
    # The 20th letter from the end is an a: a million states.
    letter = ByteSet(mask=byte_range(0x61, 0x62))
    exponential = sequence(
        Repeat(part=letter, least=0, most=None), Text(text=b"a"), Repeat(part=letter, least=20, most=20)
    )
    with pytest.raises(TooLarge):
        compiled(exponential, most_states=1000, most_work=10**7)
    with pytest.raises(TooLarge):
        compiled(exponential, most_states=10**7, most_work=10_000)


@pytest.mark.parametrize(
    "wanted",
    [
        {"json": {"type": "string", "maxLength": 10_000}},
        {"json": {"type": "array", "items": {"type": "string", "maxLength": 100}, "maxItems": 100}},
        {"json": {"type": "array", "items": {"type": "array", "items": INT, "maxItems": 9000}, "maxItems": 9000}},
        {"json": fields([], **{f"f{i}": INT for i in range(3000)})},
        {"json": {"const": [1] * 3000}},
        {"choice": [str(random.Random(i).random()) for i in range(12_000)]},
        {"regex": "[ab]*a[ab]{20}"},
        {"regex": "((a{0,99}b){0,99}c){0,99}"},
        {"json": {"type": "string", "pattern": "a.{0,30}b.{0,30}c", "maxLength": 5000}},
    ],
)
def test_what_is_too_large_has_no_automaton(wanted: dict[str, Any]) -> None:
    assert automaton_of(StructuredOutputs(**wanted)) is None


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "array"},
        {"type": "object", "properties": {"a": INT}, "required": ["a"]},
        fields(a={}),
        {**fields(a=INT), "additionalProperties": INT},
        {**fields(a=INT), "maxProperties": 1},
        {**fields(), "patternProperties": {"^a": INT}},
        {"$defs": {"n": fields(next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})}, "$ref": "#/$defs/n"},
        fields([], a={"$ref": "#"}),
        {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "minimum": 3},
        {"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": 1}]},
        {"type": "string", "enum": ["aa", "b"], "maxLength": 1},
        {"type": "integer", "multipleOf": 2},
        {"allOf": [INT, {"minimum": 3}]},
        {"type": "string", "minimum": 3},
        {"minLength": 3},
        {"type": "array", "items": {}, "maxItems": 2},
        {"type": "array", "prefixItems": [INT]},
        {"type": "string", "format": "email"},
        {"type": "string", "pattern": r"\w"},
        {"type": "string", "pattern": "a|^b$"},
        {"type": "string", "pattern": "a$b"},
        {"type": "string", "pattern": "(?i)a"},
        {"type": "string", "pattern": r"\bword\b"},
        {"enum": ["\x7f"]},
        fields(**{"\x7f": INT}),
        {"const": -0.0},
        {"const": 2**60},
        {"type": "number", "minimum": 10**15},
        {"type": "number", "exclusiveMinimum": 2**53 - 1},
        {"type": "number", "maximum": -(10**15)},
        {"type": "string", "allOf": [{"type": "string", "maxLength": 3}]},
        {"type": ["string", "null"], "allOf": [{"maxLength": 3}]},
    ],
)
def test_what_is_not_understood_has_no_automaton(schema: dict[str, Any]) -> None:
    assert automaton_of(StructuredOutputs(json=schema)) is None


@pytest.mark.parametrize(
    "schema",
    [False, {"type": "string", "minLength": 2, "maxLength": 1}, fields(["a"]), {"enum": []}, fields(a=False),
     {"type": "integer", "minimum": 0.2, "maximum": 0.8}, {"type": "array", "items": False, "minItems": 1},
     {"type": "string", "pattern": "^abc$", "maxLength": 2}],
)  # fmt: skip
def test_an_empty_language_has_no_automaton(schema: Any) -> None:
    assert automaton_of(StructuredOutputs(json={"anyOf": [schema]})) is None


def test_other_kinds_have_no_automaton() -> None:
    for wanted in (
        StructuredOutputs(json=INT, after="</think>"),
        StructuredOutputs(json=INT, whitespace_pattern=" |x"),
        StructuredOutputs(json=INT, whitespace_pattern=r"\s"),
        StructuredOutputs(json={"type": "object"}, whitespace_pattern=" ?"),
        StructuredOutputs(grammar='start: "a"'),
        StructuredOutputs(json_object=True),
        *(StructuredOutputs(regex=regex) for regex in (r"\w", "a(?=b)", r"(a)\1", "(?i)a", r"\<a", "a{,3}", "[a&&b]",
                                                        "a++", "(?>a)", "a^b", "[[a]]", r"\p{L}")),
    ):  # fmt: skip
        assert automaton_of(wanted) is None


def test_texts_are_accepted_as_they_are_dumped() -> None:
    automaton = automaton_of(StructuredOutputs(json=fields(name={"type": "string", "maxLength": 5}, age=INT)))
    assert automaton is not None
    for value, fits in (
        ({"name": 'é"\n\U0001f600', "age": -5}, True),
        ({"name": "", "age": 0}, True),
        ({"name": "123456", "age": 0}, False),
        ({"name": "x"}, False),
        ({"age": 1, "name": "x"}, False),
    ):
        assert _takes(automaton, json.dumps(value, ensure_ascii=False).encode()) == fits
