"""The second line of defence: an optimisation that raises is left out, and the engine goes on without it.

An optimisation only saves time: the plain way gives the same tokens. So its exception must not end the process with all
of its requests. The grammar of one row must not either: the row goes on with a new matcher, or fails alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from wedlm_core.errors import first_line

logger = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Optimisation:
    """A part of one engine that may raise.

    Args:
        name: for the log.
        plain: the engine's way instead.
        most_failures: it is off after so many. 1 where its own state is in doubt after an exception.

    Attributes:
        is_on: whether its calls are made.
        fallbacks: exceptions so far.
        last: the first line of the last one.
        turn_off: called once, when it goes off.
    """

    def __init__(self, name: str, plain: str, most_failures: int = 1) -> None:
        self._name, self._plain, self._most_failures = name, plain, most_failures
        self.is_on, self.fallbacks, self.last = True, 0, ""
        self.turn_off: Callable[[], None] = lambda: None

    def attempt(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """The result of a call; None where it raises, or the optimisation is off."""
        if not self.is_on:
            return None
        try:
            return call(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a Rust library is no Exception
            self._fall_back(error)
            return None

    def _fall_back(self, error: BaseException) -> None:
        self.fallbacks, self.last = self.fallbacks + 1, first_line(error)
        if self.fallbacks == 1:
            logger.warning("%s failed; %s", self._name, self._plain, exc_info=error)
        if self.fallbacks >= self._most_failures:
            self.is_on = False
            self.turn_off()


class Optimisations:
    """Those of one engine."""

    def __init__(self) -> None:
        same = "and results stay the same"
        self.prefixes = Optimisation("the prefix cache", f"prompts are computed whole from now on, {same}")
        self.drafting = Optimisation("drafting", f"tokens come one by one from now on, {same}")
        self.grammars = Optimisation(
            "a row's grammar", "the row goes on with a new matcher; if that fails too, the row fails", sys.maxsize
        )

    @property
    def fallbacks(self) -> int:
        """Exceptions of all of them so far."""
        return self.prefixes.fallbacks + self.drafting.fallbacks + self.grammars.fallbacks
