"""Schemas that the backend would take very long for, or not survive, and those whose values never end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from wedlm_core.grammar.schema_references import definitions, subschemas

_MOST_PATTERNS = 12  # that one text obeys at once: time and memory double with each
_MOST_LEVELS = 400  # of schemas inside each other, references followed: the backend's stack ends at about 2,000
_DEEPEST_PATH = 8
_MOST_PATHS = 4_000
_ANY = "*"
_MOST_VISITS = 200_000

_Paths = dict[tuple[str, ...], frozenset[str]]
"""Places in a value, and the patterns that a text there obeys."""


def limit_fault(schema: Mapping[str, Any]) -> tuple[str, object, str] | None:
    """The keyword, the value and the rule of the limit that a schema breaks; None if it breaks none.

    Args:
        schema: in canonical form (:mod:`wedlm_core.grammar.canonical`).
    """
    named = definitions(schema)
    try:
        levels = _Levels(named).of_whole()
    except RecursionError:
        levels = _MOST_LEVELS + 1
    if levels > _MOST_LEVELS:
        rule = f"at most {_MOST_LEVELS} schemas inside each other, references followed"
        return "$ref", f"more than {_MOST_LEVELS}", rule
    patterns = _Patterns(named).most(schema)
    if patterns > _MOST_PATTERNS:
        return "pattern", patterns, f"at most {_MOST_PATTERNS} patterns for one text"
    return None


class _Levels:
    """An upper bound of how deep schemas are nested, in whatever order the backend follows references.

    Definitions that lead to each other, found by Tarjan's algorithm, count all of their levels.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._parts = {"": named["#"], **named}
        self._heights, self._edges = dict[str, int](), dict[str, set[str]]()
        self._order, self._low, self._longest = dict[str, int](), dict[str, int](), dict[str, int]()
        self._stack: list[str] = []

    def of_whole(self) -> int:
        """Levels of the whole schema.

        Raises:
            RecursionError: a path of references is longer than the limit.
        """
        self._visit("", 0)
        return self._longest[""]

    def _visit(self, name: str, depth: int) -> None:
        if depth > _MOST_LEVELS:
            raise RecursionError
        self._measure(name)
        self._order[name] = self._low[name] = len(self._order)
        self._stack.append(name)
        for target in self._edges[name]:
            if target not in self._order:
                self._visit(target, depth + 1)
            if target not in self._longest:
                self._low[name] = min(self._low[name], self._low[target])
        if self._low[name] == self._order[name]:
            place = self._stack.index(name)
            group, self._stack = self._stack[place:], self._stack[:place]
            targets = set().union(*(self._edges[one] for one in group)).difference(group)
            after = max((self._longest[target] for target in targets), default=0)
            self._longest.update(dict.fromkeys(group, after + sum(self._heights[one] for one in group)))

    def _measure(self, name: str) -> None:
        """The height of a definition, and the definitions that it refers to."""
        self._heights[name], self._edges[name] = 0, set()
        todo = [(self._parts[name], 1)]
        while todo:
            part, height = todo.pop()
            if not isinstance(part, Mapping):
                continue
            self._heights[name] = max(self._heights[name], height)
            self._edges[name] |= self._parts.keys() & {part.get("$ref")}
            todo += [(inner, height + 1) for at, inner in subschemas(part) if not at.startswith("$defs/")]


class _Patterns:
    """Counts the patterns that meet in one text, by ``allOf``, by references and by fields of one name."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named, self._known = named, dict[str, _Paths]()

    def most(self, schema: Mapping[str, Any]) -> int:
        paths = self._of(schema, frozenset())
        return max(
            (len(frozenset().union(*(paths.get(like, ()) for like in _alike(path)))) for path in paths), default=0
        )

    def _of(self, schema: Any, inside: frozenset[str]) -> _Paths:
        found: _Paths = {}
        if not isinstance(schema, Mapping):
            return found
        own = frozenset(f"{keyword} {schema[keyword]}" for keyword in ("pattern", "format") if keyword in schema)
        if own:
            found[()] = own
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference in self._named and reference not in inside:
            if reference not in self._known:
                self._known[reference] = {}  # while it is looked at
                self._known[reference] = self._of(self._named[reference], inside | {reference})
            _add(found, self._known[reference])
        for part in schema.get("allOf", ()):
            _add(found, self._of(part, inside))
        for keyword in ("anyOf", "oneOf"):
            either: _Paths = {}
            for part in schema.get(keyword, ()):
                for path, patterns in self._of(part, inside).items():
                    either[path] = max(either.get(path, frozenset()), patterns, key=len)
            _add(found, either)
        for step, part in _steps(schema):
            inner = {(step, *path): patterns for path, patterns in self._of(part, inside).items()}
            _add(found, {path: patterns for path, patterns in inner.items() if len(path) <= _DEEPEST_PATH})
        return dict(itertools.islice(found.items(), _MOST_PATHS))


def _add(found: _Paths, more: _Paths) -> None:
    for path, patterns in more.items():
        found[path] = found.get(path, frozenset()) | patterns


def _steps(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """From a value to the values inside of it. Fields and items that have no place of their own are any."""
    for name, part in schema.get("properties", {}).items():
        yield f".{name}", part
    for part in (
        *schema.get("patternProperties", {}).values(),
        schema.get("additionalProperties"),
        schema.get("items"),
    ):
        yield _ANY, part
    for number, part in enumerate(schema.get("prefixItems", ())):
        yield f"{number}", part


def _alike(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The path, and those with any field or item in place of a certain one."""
    return itertools.product(*((step, _ANY) if step != _ANY else (_ANY,) for step in path))


def has_finite_value(schema: Mapping[str, Any]) -> bool:
    """Whether a schema in canonical form has one, and each of its definitions, as an output that enters it has to end.

    True where that cannot be told, as with thousands of references.
    """
    return _FiniteValues(definitions(schema)).are_everywhere()


class _FiniteValues:
    """Removes definitions with a finite value from the endless ones, until a pass finds no more."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._endless, self._visits = named, 0

    def are_everywhere(self) -> bool:
        while found := [reference for reference, target in self._endless.items() if self._are_in(target)]:
            for reference in found:
                del self._endless[reference]
        return not self._endless

    def _are_in(self, schema: Any) -> bool:
        """Whether a part has a finite value, as far as definitions are known to."""
        self._visits += 1
        if not isinstance(schema, Mapping) or self._visits > _MOST_VISITS:
            return True  # also of a part that allows nothing: the backend reports that
        if schema.get("$ref") in self._endless or not all(map(self._are_in, schema.get("allOf", ()))):
            return False
        if not all(any(map(self._are_in, schema[keyword])) for keyword in ("anyOf", "oneOf") if schema.get(keyword)):
            return False
        given = schema.get("type")
        types = {name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)}
        if "const" in schema or "enum" in schema or not types or types - {"object", "array"}:
            return True
        return ("object" in types and self._are_in_objects(schema)) or ("array" in types and self._are_in_lists(schema))

    def _are_in_objects(self, schema: Mapping[str, Any]) -> bool:
        named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        others = True if "patternProperties" in schema or others is False else others
        return all(self._are_in(named.get(name, others)) for name in schema.get("required", ()))

    def _are_in_lists(self, schema: Mapping[str, Any]) -> bool:
        least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
        if not all(map(self._are_in, first[:least])):
            return False
        return least <= len(first) or self._are_in(schema.get("items", True))
