"""Engines that decode side by side, each a few milliseconds in its turn.

A machine whose speed changes from second to second slows all of them then, where passes one after the other would
show its changes as differences between engines.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from wedlm_core import Generation, Request
from wedlm_core.engine import Engine

_TURN_SECONDS = 0.02


@dataclass(kw_only=True)
class Passage:
    """One engine's way through requests.

    Attributes:
        engine: is empty before and after.
        requests: in order of entry.
        batch: sequences in the engine at once; the next request enters when one ends.
        seconds: spent so far in its turns.
        done: sequences that ended so far.
    """

    engine: Engine
    requests: Sequence[Request]
    batch: int
    seconds: float = 0.0
    done: list[Generation] = field(default_factory=list)
    _entered: int = 0

    @property
    def ends(self) -> bool:
        """Whether all requests were served."""
        return len(self.done) == len(self.requests)

    @property
    def tokens(self) -> int:
        """Of ended sequences."""
        return sum(len(one.token_ids) for one in self.done)

    @property
    def seconds_per_token(self) -> float:
        """Of the whole way, its beginning and end included."""
        return self.seconds / self.tokens

    def go_on(self, seconds: float) -> None:
        """Step until so many seconds have passed, or all is done."""
        begin = time.perf_counter()
        until = begin + seconds
        while not self.ends and time.perf_counter() < until:
            while self._entered < len(self.requests) and self._entered - len(self.done) < self.batch:
                self.engine.add(self.requests[self._entered])
                self._entered += 1
            self.done += self.engine.step()
        self.seconds += time.perf_counter() - begin


def first_lengths(batch: int, spread: int) -> list[int]:
    """Tokens of the first sequences at most, so that they end one after the other.

    Outputs of one length would begin and end together as long as all take a token a forward, and no longer once windows
    were tried: their prompts are read in large forwards then, which no real job has, and no difference between ways.

    Args:
        batch: sequences at once.
        spread: their ends are spread over so many tokens.
    """
    return [1 + number * spread // batch for number in range(batch)]


def take_turns(passages: Sequence[Passage]) -> None:
    """Let all of them reach their end, in a new order each turn: who comes after whom makes a difference of 5%."""
    left, order = list(passages), random.Random(0)
    with old_objects_kept():
        while left:
            order.shuffle(left)
            for one in left:
                one.go_on(_TURN_SECONDS)
            left = [one for one in left if not one.ends]


@contextmanager
def old_objects_kept() -> Iterator[None]:
    """Context: earlier objects are no garbage.

    To look through all of them takes a tenth of a second, of whoever is at its turn then.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
