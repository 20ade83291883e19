"""The deterministic automata of regular expressions over bytes, by the subset construction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from wedlm_core.grammar.regular import Both, ByteSet, Either, Expression, Repeat, Sequence, Text

__all__ = ["Table", "TooLarge", "compiled"]

_DEAD, _ACCEPTED = 0, 1  # sets of edges
_ACCEPT = 0  # the edge that says: a text may end here

_Pairs = dict[tuple[int, int], dict[tuple[int, int], int]]
"""Pairs of states of two automata, and the masks that lead to others."""


class TooLarge(Exception):  # noqa: N818
    """More states or more work than the limit."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A deterministic automaton.

    ``next_SC``: int32 ``[states, classes]``, -1 where no byte of the class may come; ``class_B``: uint8 ``[256]``;
    ``accepts_S``: bool ``[states]``. State 0 is the beginning. From every state an accepting one can be reached,
    unless the language is empty: then there is one state.
    """

    next_SC: np.ndarray[Any, np.dtype[np.int32]]
    class_B: np.ndarray[Any, np.dtype[np.uint8]]
    accepts_S: np.ndarray[Any, np.dtype[np.bool_]]


def compiled(expression: Expression, *, most_states: int, most_work: int) -> Table:
    """The automaton of an expression's language. States from which the same texts lead to an end are mostly one.

    Args:
        expression: what to compile.
        most_states: before equal ones are merged.
        most_work: edges made and looked at, about a microsecond each.

    Raises:
        TooLarge: one of both is not enough.
    """
    edges = _Edges(most_work)
    start = edges.before(expression, _ACCEPTED)
    return _merged(_determined(edges, start, most_states))


class _Edges:
    """A nondeterministic automaton, built from its end to its beginning: what is equal there is one and the same.

    A state is a set of edges; an edge is a mask of bytes and the set behind it. An edge with no bytes is a *place* in
    front of a loop: it stands for a set that is known once the loop's body is built.
    """

    def __init__(self, most_work: int) -> None:
        self.left = most_work
        self.edges: list[tuple[int, int]] = [(0, _DEAD)]
        self.sets: list[frozenset[int]] = [frozenset(), frozenset((_ACCEPT,))]
        self._set_ids = {edges: i for i, edges in enumerate(self.sets)}
        self._steps: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[Expression, int], int] = {}
        self._meanings: dict[int, int] = {}
        self._expanded: dict[int, int] = {}

    def work(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise TooLarge

    def set_id(self, edges: frozenset[int]) -> int:
        known = self._set_ids.get(edges)
        if known is None:
            known = self._set_ids[edges] = len(self.sets)
            self.sets.append(edges)
            self.work(len(edges))
        return known

    def before(self, expression: Expression, behind: int) -> int:
        """The set from which the texts of an expression lead to the set ``behind``."""
        if behind == _DEAD:
            return _DEAD
        if isinstance(expression, ByteSet):
            return self._step(expression.mask, behind)
        if isinstance(expression, Text):
            self.work(len(expression.text))  # besides that of new edges: long lists of texts take twice the time
            for byte in reversed(expression.text):
                behind = self._step(1 << byte, behind)
            return behind
        known = self._known.get((expression, behind))
        if known is None:
            known = self._known[expression, behind] = self._composed(expression, behind)
        return known

    def _composed(self, expression: Sequence | Either | Repeat | Both, behind: int) -> int:
        if isinstance(expression, Sequence):
            self.work(1 + len(expression.parts))
            for part in reversed(expression.parts):
                behind = self.before(part, behind)
            return behind
        if isinstance(expression, Either):
            return self.union([self.before(part, behind) for part in expression.parts])
        if isinstance(expression, Both):
            return self._both(*expression.parts, behind)
        set_id = behind
        if expression.most is None:
            set_id = self._loop(expression.part, behind)
        else:
            for _ in range(expression.most - expression.least):
                set_id = self.union((self.before(expression.part, set_id), behind))
        for _ in range(expression.least):
            set_id = self.before(expression.part, set_id)
        return set_id

    def _step(self, mask: int, behind: int) -> int:
        if not mask or behind == _DEAD:
            return _DEAD
        known = self._steps.get((mask, behind))
        if known is None:
            known = self._steps[mask, behind] = self._alone(mask, behind)
        return known

    def _alone(self, mask: int, behind: int) -> int:
        """The set of one new edge."""
        edges = frozenset((len(self.edges),))
        self.edges.append((mask, behind))
        known = self._set_ids[edges] = len(self.sets)
        self.sets.append(edges)
        self.work(1)
        return known

    def union(self, sets: Iterable[int]) -> int:
        return self.set_id(frozenset().union(*(self.sets[i] for i in sets)))

    def _loop(self, part: Expression, behind: int) -> int:
        place = self._alone(0, _DEAD)
        whole = self.union((self.before(part, place), behind))
        (edge,) = self.sets[place]
        self._meanings[edge] = whole
        return whole

    def _both(self, left: Expression, right: Expression, behind: int) -> int:
        """Walk through both automata at once, where an end can still be reached."""
        one, other = (compiled(part, most_states=self.left, most_work=self.left) for part in (left, right))
        rows, ends = self._pairs(one, other)
        places = {pair: self._alone(0, _DEAD) for pair in _alive(rows, ends)}
        for pair, place in places.items():
            found = [self._step(mask, places[target]) for target, mask in rows[pair].items() if target in places]
            (edge,) = self.sets[place]
            self._meanings[edge] = self.union([*found, behind] if pair in ends else found)
        return places.get((0, 0), _DEAD)

    def _pairs(self, one: Table, other: Table) -> tuple[_Pairs, set[tuple[int, int]]]:
        """The pairs of states that can be reached, with the bytes that lead on, and those where both accept."""
        rows: _Pairs = {}
        todo, ends = [(0, 0)], set[tuple[int, int]]()
        masks: dict[tuple[int, int], int] = {}
        for byte, classes in enumerate(zip(one.class_B.tolist(), other.class_B.tolist(), strict=True)):
            masks[classes] = masks.get(classes, 0) | 1 << byte
        one_rows, other_rows = one.next_SC.tolist(), other.next_SC.tolist()
        while todo:
            pair = todo.pop()
            if pair in rows:
                continue
            row = rows[pair] = {}
            self.work(len(masks))
            for (left, right), mask in masks.items():
                target = one_rows[pair[0]][left], other_rows[pair[1]][right]
                if min(target) >= 0:
                    row[target] = row.get(target, 0) | mask
            todo.extend(row)
            if one.accepts_S[pair[0]] and other.accepts_S[pair[1]]:
                ends.add(pair)
        return rows, ends

    def expanded(self, set_id: int) -> int:
        """The same set without places."""
        known = self._expanded.get(set_id)
        if known is None and self.sets[set_id].isdisjoint(self._meanings):
            known = self._expanded[set_id] = set_id
        if known is None:
            edges, seen, todo = set[int](), set[int](), list(self.sets[set_id])
            while todo:
                edge = todo.pop()
                if edge not in self._meanings:
                    edges.add(edge)
                elif edge not in seen:
                    seen.add(edge)
                    todo.extend(self.sets[self._meanings[edge]])
            known = self._expanded[set_id] = self.set_id(frozenset(edges))
        return known


def _alive(rows: _Pairs, ends: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The pairs from which an end can be reached."""
    before: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair, row in rows.items():
        for target in row:
            before.setdefault(target, []).append(pair)
    alive, todo = set(ends), list(ends)
    while todo:
        for pair in before.get(todo.pop(), ()):
            if pair not in alive:
                alive.add(pair)
                todo.append(pair)
    return alive


def _classes(masks: list[int]) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], list[list[int]]]:
    """The class of each byte, ``[256]``, and the classes of each mask."""
    raw = b"".join(mask.to_bytes(32, "little") for mask in masks)
    bits_MB = np.unpackbits(np.frombuffer(raw, dtype=np.uint8).reshape(-1, 32), axis=1, bitorder="little")
    _, first_C, class_B = np.unique(np.packbits(bits_MB, axis=0), axis=1, return_index=True, return_inverse=True)
    inside_MC = bits_MB[:, first_C]
    return class_B.reshape(256).astype(np.uint8), [np.flatnonzero(row).tolist() for row in inside_MC]


def _determined(edges: _Edges, start: int, most_states: int) -> Table:
    """The automaton whose states are the sets that can be reached."""
    masks = sorted({mask for mask, _ in edges.edges})
    class_B, classes = _classes(masks)
    classes_of = dict(zip(masks, classes, strict=True))
    order = [edges.expanded(start)]
    numbers = {order[0]: 0}
    accepts, sources, columns, targets = list[bool](), list[int](), list[list[int]](), list[int]()
    for source, set_id in enumerate(order):  # which grows
        members = edges.sets[set_id]
        accepts.append(_ACCEPT in members)
        for found, behind in _row(edges, members, classes_of):
            target = numbers.get(behind)
            if target is None:
                target = numbers[behind] = len(order)
                order.append(behind)
                if target >= most_states:
                    raise TooLarge
            sources.append(source)
            columns.append(found)
            targets.append(target)
    next_SC = np.full((len(order), int(class_B.max()) + 1), -1, dtype=np.int32)
    count_N = np.array([len(found) for found in columns], dtype=np.int64)
    column_E = np.fromiter(chain.from_iterable(columns), dtype=np.int64, count=int(count_N.sum()))
    source_E, target_E = (np.repeat(np.array(of, dtype=np.int64), count_N) for of in (sources, targets))
    next_SC[source_E, column_E] = target_E
    return Table(next_SC=next_SC, class_B=class_B, accepts_S=np.array(accepts))


def _row(
    edges: _Edges, members: frozenset[int], classes_of: Mapping[int, list[int]]
) -> Iterator[tuple[list[int], int]]:
    """Where the edges of a set lead: classes of bytes, and the set behind them."""
    masks = [edges.edges[edge] for edge in members if edge != _ACCEPT]
    union = total = 0
    for mask, _ in masks:
        union |= mask
        total += mask.bit_count()
    edges.work(len(masks))
    if union.bit_count() == total:  # no byte has two edges
        for mask, behind in masks:
            yield classes_of[mask], edges.expanded(behind)
        return
    row: dict[int, set[int]] = {}
    for mask, behind in masks:
        behind = edges.expanded(behind)
        for column in classes_of[mask]:
            row.setdefault(column, set()).add(behind)
        edges.work(len(classes_of[mask]))
    for column, behinds in row.items():
        yield [column], behinds.pop() if len(behinds) == 1 else edges.union(behinds)


def _merged(table: Table) -> Table:
    """The same language with states merged that have equal rows, until none have."""
    next_SC, accepts_S = table.next_SC, table.accepts_S
    while True:
        rows = np.ascontiguousarray(np.column_stack((next_SC, accepts_S.astype(np.int32))))
        keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
        _, first_N, new_S = np.unique(keys, return_index=True, return_inverse=True)
        if len(first_N) == len(keys):
            return Table(next_SC=next_SC, class_B=table.class_B, accepts_S=accepts_S)
        order_N = np.argsort(first_N)  # keeps the first state first
        place_N = np.empty_like(order_N)
        place_N[order_N] = np.arange(len(order_N))
        again_S = np.append(place_N[new_S.reshape(-1)], -1).astype(np.int32)
        next_SC, accepts_S = again_S[next_SC[first_N[order_N]]], accepts_S[first_N[order_N]]
