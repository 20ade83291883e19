"""One sequence's place in its grammar: takes in commits, drafts what must come, cuts what may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wedlm_core.statistics import DraftSource

__all__ = ["Constraint", "Drafts", "Proposals"]


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """Tokens proposed for positions in order, of which ``most`` may become drafts, and who proposed them."""

    tokens: Sequence[int]
    most: int
    source: DraftSource


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """Drafts of the next forward, in order, and where each comes from."""

    tokens: tuple[int, ...] = ()
    sources: tuple[DraftSource, ...] = ()


class Source(Protocol):
    """Gives matchers at the beginning of one grammar."""

    matcher: Any

    def renew(self) -> None:
        """Replace the matcher by one that shares nothing with those before."""


class Constraint:
    """The grammar's state behind the committed tokens of one sequence.

    Copies of a matcher share what they know of the grammar's texts, which has a limit. So a sequence that meets the
    limit takes a new matcher and goes on; whether it fails does not depend on sequences before it.

    Args:
        source: of the matcher.
        eos_token_ids: tokens that end the output.

    Attributes:
        drafts: of the next forward; set by :meth:`draft`. The matcher accepts them one after the other.
    """

    def __init__(self, source: Source, eos_token_ids: Sequence[int]) -> None:
        self._source, self._origin, self._eos = source, source.matcher, frozenset(eos_token_ids)
        self._matcher = source.matcher.deep_copy()
        self._taken: list[int] = []
        self._forced: list[int] = []  # behind the first drafts, which are not: long texts are spelled once
        self._unforced = 0
        self._end = eos_token_ids[0]
        self.drafts = Drafts()

    @property
    def matcher(self) -> Any:
        """Behind the committed tokens; whoever advances it has to roll it back."""
        return self._matcher

    def accept(self, tokens: Sequence[int]) -> str | None:
        """Take in committed tokens; None, or why the grammar refuses them. Nothing may follow an end of sequence."""
        ends = bool(tokens) and tokens[-1] in self._eos
        own = list(tokens[:-1] if ends else tokens)
        as_drafted = len(own) >= self._unforced and tuple(own) == self.drafts.tokens[: len(own)]
        self._forced = self._forced[len(own) - self._unforced :] if as_drafted else []
        self._unforced, self.drafts = 0, Drafts()
        reason = ""
        if self._matcher.is_error() or (own and not self._matcher.consume_tokens(own)):
            reason = " ".join(self._matcher.get_error().split("<state>")[0].split())[:200]
            if not self._goes_on_with(own):
                return reason or "no token that the grammar allows was left to choose"
        self._taken += own
        if ends and not self._matcher.is_accepting():
            return reason or "the output ended before it was complete"
        return None

    def _goes_on_with(self, tokens: list[int]) -> bool:
        """Whether a new matcher takes tokens that the old one refused."""
        return any(
            self.renew(fresh) and (not tokens or self._matcher.consume_tokens(tokens)) for fresh in (False, True)
        )

    def renew(self, fresh: bool) -> bool:
        """Take a new matcher to the same place; True unless it refuses what was committed.

        Args:
            fresh: one that no sequence has used; else the grammar's, which others may have renewed.
        """
        if fresh or self._source.matcher is self._origin:
            self._source.renew()
        self._origin = self._source.matcher
        self._matcher = self._origin.deep_copy()
        return not self._taken or bool(self._matcher.consume_tokens(self._taken))

    def draft(self, proposals: Proposals, *, most: int) -> Drafts:
        """Set and return the drafts of the next forward: forced tokens, and proposals that the grammar allows.

        A proposal stands at its position, so a forced token takes its place. The first proposal that the grammar
        forbids ends the walk, and so does the end of the output.

        Args:
            proposals: for the positions behind the committed tokens.
            most: drafts at most.
        """
        proposed = 0
        tokens: list[int] = []
        sources: list[DraftSource] = []
        while len(tokens) < most:
            if self._matcher.is_stopped():
                tokens.append(self._end)
                sources.append(DraftSource.GRAMMAR)
                break
            known = [] if tokens or self._unforced else self._forced
            forced = known or self._matcher.compute_ff_tokens()
            if forced:
                self._forced, self._unforced = forced, len(tokens)
                forced = forced[: most - len(tokens)]
                if not self._advance(forced):
                    break
                tokens += forced
                sources += [DraftSource.GRAMMAR] * len(forced)
                continue
            if len(tokens) >= len(proposals.tokens) or proposed >= proposals.most:
                break
            token = proposals.tokens[len(tokens)]
            ends = token in self._eos
            if not (self._matcher.is_accepting() if ends else self._advance([token])):
                break
            tokens.append(token)
            sources.append(proposals.source)
            proposed += 1
            if ends:
                break
        self.drafts = Drafts(tokens=tuple(tokens), sources=tuple(sources))
        if not self._matcher.is_error() and (not self.steps or self._matcher.rollback(self.steps)):
            return self.drafts
        self.drafts, self._forced, self._unforced = Drafts(), [], 0
        self.renew(fresh=False)
        return self.drafts

    @property
    def ends(self) -> bool:
        """Whether the last draft ends the output."""
        return bool(self.drafts.tokens) and self.drafts.tokens[-1] in self._eos

    @property
    def steps(self) -> int:
        """Drafts that lead to another state: all but an end of sequence."""
        return len(self.drafts.tokens) - self.ends

    def _advance(self, tokens: list[int]) -> bool:
        """Consume tokens if all of them are allowed. A token that is refused would leave the matcher in an error."""
        if self._matcher.validate_tokens(tokens) < len(tokens):
            return False
        return bool(self._matcher.consume_tokens(tokens))
