"""Limits of schemas that the backend would take very long for, or not survive."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from wedlm_core.grammar.schema_references import subschemas

__all__ = ["limit_fault"]

_MOST_PATTERNS = 12  # that one text obeys at once: time and memory double with each
_MOST_LEVELS = 400  # of schemas inside each other, references followed: the backend's stack ends at about 2,000
_DEEPEST_PATH = 8
_MOST_PATHS = 4_000
_ANY = "*"

_Paths = dict[tuple[str, ...], frozenset[str]]
"""Places in a value, and the patterns that a text there obeys."""


def limit_fault(schema: Mapping[str, Any]) -> tuple[str, object, str] | None:
    """The keyword, the value and the rule of the limit that a schema breaks; None if it breaks none.

    Args:
        schema: in canonical form (:mod:`wedlm_core.grammar.canonical`).
    """
    named = {f"#/$defs/{name}": part for name, part in schema.get("$defs", {}).items()} | {"#": schema}
    levels = _levels(schema, named)
    if levels > _MOST_LEVELS:
        return "$ref", levels, f"at most {_MOST_LEVELS} schemas inside each other, references followed"
    patterns = _Patterns(named).most(schema)
    if patterns > _MOST_PATTERNS:
        return "pattern", patterns, f"at most {_MOST_PATTERNS} patterns for one text"
    return None


def _levels(schema: Mapping[str, Any], named: Mapping[str, Any]) -> int:
    """An upper bound of how deep schemas are nested, in whatever order the backend follows references."""
    names = ["", *named]
    own = {name: (schema if not name else named[name]) for name in names}
    heights, edges = dict[str, int](), dict[str, set[str]]()
    for name in names:
        heights[name], edges[name] = 0, set()
        todo = [(own[name], 1)] if isinstance(own[name], Mapping) else []
        while todo:
            part, height = todo.pop()
            heights[name] = max(heights[name], height)
            edges[name] |= {part["$ref"]} & named.keys() if "$ref" in part else set()
            todo += [(inner, height + 1) for pointer, inner in subschemas(part)
                     if isinstance(inner, Mapping) and not pointer.startswith("$defs/")]  # fmt: skip
    longest = dict[str, int]()
    for group in _loops(edges):  # those that a group leads to come before it
        after = max((longest[target] for name in group for target in edges[name] if target not in group), default=0)
        longest.update(dict.fromkeys(group, after + sum(heights[name] for name in group)))
    return longest[""]


def _loops(edges: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """The strongly connected groups of a graph, each after the groups that it leads to (Tarjan's algorithm)."""
    order, low, stack, held = dict[str, int](), dict[str, int](), list[str](), set[str]()
    for root in edges:
        if root in order:
            continue
        path = [(root, iter(sorted(edges[root])))]
        order[root] = low[root] = len(order)
        stack.append(root)
        held.add(root)
        while path:
            node, targets = path[-1]
            target = next((t for t in targets if t not in order or t in held), None)
            if target is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    group = set(stack[stack.index(node) :])
                    del stack[stack.index(node) :]
                    held -= group
                    yield group
            elif target in order:
                low[node] = min(low[node], order[target])
            else:
                order[target] = low[target] = len(order)
                stack.append(target)
                held.add(target)
                path.append((target, iter(sorted(edges[target]))))


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
