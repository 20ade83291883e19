"""One sequence's place in its grammar: reads commits, drafts forced tokens, cuts forbidden ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from wedlm_core.statistics import DraftSource

__all__ = ["AN_END", "UNKNOWN", "Constraint", "Drafts", "Proposals", "take_forced"]

UNKNOWN = -1
"""Of a state: the matcher decides the allowed tokens."""
AN_END = -2
"""Of a state: the output ends here."""


class Proposals(NamedTuple):  # a step makes one for each sequence, which takes a frozen dataclass three times as long
    """Tokens proposed for positions in order, at most ``most`` of them to become drafts, and their source."""

    tokens: Sequence[int]
    most: int
    source: DraftSource


class Drafts(NamedTuple):
    """Drafts of the next forward, in order, and where each comes from.

    Attributes:
        tokens: ids.
        sources: of each.
        states: before the first draft and after each: the only token that may come there, or :data:`UNKNOWN`,
            :data:`AN_END`.
    """

    tokens: tuple[int, ...] = ()
    sources: tuple[DraftSource, ...] = ()
    states: tuple[int, ...] = (UNKNOWN,)


class Source(Protocol):
    """Gives matchers at the beginning of one grammar.

    Attributes:
        matcher: at the beginning; never advanced.
        opening: the forced text at the begin of every output, if there is any.
        opened: a matcher after it.
    """

    matcher: Any
    opening: list[int]
    opened: Any

    def renew(self) -> None:
        """Replace the matchers by ones that share nothing with those before."""


_NO_DRAFTS = Drafts()


def _without_drafts(ahead: list[int]) -> Drafts:
    """No drafts: one state, that of the forced text ahead if there is any."""
    return Drafts(states=(ahead[0],)) if ahead else _NO_DRAFTS


_REFUSED = "doesn't satisfy the grammar"  # the library's own words for such a token
_NONE_LEFT = "no token that the grammar allows was left to choose"


class Constraint:
    """The grammar's state after the committed tokens of one sequence.

    A *forced text* is the only possible continuation, as the tokenizer spells it: each of its places allows one token.
    It is looked for after free text, so its begin depends on the output alone, not on drafts. Forced tokens after the
    committed ones are read at once, ahead of their commit.

    Copies of a matcher share a cache of the grammar's texts, which has a limit. So a sequence that meets the
    limit takes a new matcher and goes on; whether it fails does not depend on sequences before it.

    Args:
        source: of the matcher.
        eos_token_ids: tokens that end the output.

    Attributes:
        drafts: of the next forward; set by :meth:`draft`.
        ends: whether the end of the output is to follow them. It is no draft: the row before it chooses it.
        failure: why the row fails, if its matcher cannot be asked; :meth:`accept` then refuses whatever was chosen.
    """

    def __init__(self, source: Source, eos_token_ids: Sequence[int]) -> None:
        self._source, self._origin, self._eos = source, source.matcher, frozenset(eos_token_ids)
        self._matcher = source.opened.deep_copy()
        self._passed = 0  # drafts of the walk that the matcher has passed: it is moved where it is needed, not before
        self._taken: list[int] = []
        self._ahead = source.opening  # forced, and taken in by the matcher, but not committed; replaced, never changed
        self._texts: list[tuple[int, list[int]]] = []  # forced texts among the drafts, by the place of their beginning
        self.drafts, self.ends = _without_drafts(self._ahead), False
        self.failure: str | None = None

    @property
    def matcher(self) -> Any:
        """After the committed tokens and the forced text that follows; who advances it has to roll it back."""
        self._move(0)
        return self._matcher

    @property
    def unknown(self) -> tuple[int, ...]:
        """The states that are not known, counted from the one where :attr:`matcher` stands."""
        lead = len(self._ahead)
        return tuple(place - lead for place, state in enumerate(self.drafts.states) if state == UNKNOWN)

    @property
    def walk(self) -> tuple[int, ...]:
        """The drafts after the place where :attr:`matcher` stands."""
        return self.drafts.tokens[len(self._ahead) :]

    def _move(self, place: int) -> None:
        """Take the matcher to the place after so many drafts of the walk; it is in an error where that cannot be."""
        back = self._passed - place
        if not back or self._matcher.is_error():
            return
        if back < 0:
            self._matcher.consume_tokens(list(self.walk[self._passed : place]))
        elif not self._matcher.rollback(back):
            self.renew(fresh=False)
            if place:
                self._matcher.consume_tokens(list(self.walk[:place]))
        self._passed = place

    def accept(self, tokens: Sequence[int]) -> str | None:
        """Take in committed tokens; None, or why the grammar refuses them. Nothing may follow an end of sequence."""
        if self.failure is not None:
            return self.failure
        ends = bool(tokens) and tokens[-1] in self._eos
        own = list(tokens[:-1] if ends else tokens)
        if ends and self.ends and tuple(own) == self.drafts.tokens:
            return None  # the walk that drafted them came here
        forced = self._forced_behind(own)
        trouble = self._trouble()  # where no token was found to be allowed, the end was chosen
        reason = self._take(own)
        self._forget_drafts()
        if reason is not None:
            return reason
        if ends and (self._ahead or not self._matcher.is_accepting()):
            return trouble or "the output ended before it was complete"
        if forced and self._matcher.consume_tokens(forced):
            self._ahead = forced
        self.drafts = _without_drafts(self._ahead)
        return None

    def _take(self, tokens: list[int]) -> str | None:
        """Take in tokens, the first of them ahead already; why the grammar refuses them."""
        lead = min(len(tokens), len(self._ahead))
        if tokens[:lead] != self._ahead[:lead]:
            return _NONE_LEFT
        own, went_on = tokens[lead:], self._follow(tokens[lead:])
        self._ahead = self._ahead[lead:]
        self._taken += tokens[:lead]
        if not went_on:
            trouble = self._trouble()
            if not self._goes_on_with(own):
                return _NONE_LEFT if _REFUSED in trouble else trouble or _NONE_LEFT
        self._taken += own
        return None

    def _follow(self, tokens: list[int]) -> bool:
        """Take the matcher along tokens after the forced text ahead; the first may be drafts that it has passed."""
        walk, same = self.walk[: self._passed], 0
        while same < min(len(walk), len(tokens)) and walk[same] == tokens[same]:
            same += 1
        self._move(same)
        if self._matcher.is_error():
            return False
        self._passed = 0  # counted from where it will stand
        return same == len(tokens) or bool(self._matcher.consume_tokens(tokens[same:]))

    def _trouble(self) -> str:
        """Why the matcher is in an error, on one line; empty if it is in none."""
        return " ".join(self._matcher.get_error().split("<state>")[0].split())[:200] if self._matcher.is_error() else ""

    def _forced_behind(self, tokens: list[int]) -> list[int]:
        """The rest of a forced text if committed tokens end inside it."""
        for begin, text in self._texts:
            if begin < len(tokens) < begin + len(text) and tokens[begin:] == text[: len(tokens) - begin]:
                return text[len(tokens) - begin :]
        return []

    def _goes_on_with(self, tokens: list[int]) -> bool:
        """Whether a new matcher takes tokens that the old one refused."""
        return any(
            self.renew(fresh) and (not tokens or self._matcher.consume_tokens(tokens)) for fresh in (False, True)
        )

    def renew(self, fresh: bool) -> bool:
        """Take a new matcher to the same place; True unless it refuses the tokens read.

        Args:
            fresh: one that no sequence has used; else the grammar's, which others may have renewed.
        """
        if fresh or self._source.matcher is self._origin:
            self._source.renew()
        self._origin = self._source.matcher
        self._matcher, self._passed = self._origin.deep_copy(), 0
        before = self._taken + self._ahead
        return not before or bool(self._matcher.consume_tokens(before))

    def draft(self, proposals: Proposals, *, most: int) -> Drafts:
        """Set and return the drafts of the next forward: forced tokens, and proposals that the grammar allows.

        A proposal stands at its position, so a forced token takes its place. The first proposal that the grammar
        forbids ends the walk, and so does the end of the output.

        Args:
            proposals: for the positions after the committed tokens.
            most: drafts at most.
        """
        self._move(0)
        self._take_forced(most)
        if not self._ahead and (not proposals.most or not most) and not self._matcher.is_stopped():
            self._forget_drafts()  # as in each step of autoregressive decoding
            return self.drafts
        walk = _Walk(self._ahead, most)
        if len(self._ahead) <= most:
            self._walk_on(walk, proposals, most)
            self._passed = len(walk.tokens) - len(self._ahead)
            if self._matcher.is_error():
                self.renew(fresh=False)
                walk = _Walk(self._ahead, most)
                walk.states.append(UNKNOWN)
        self._texts, self.ends = walk.texts, walk.ends
        self.drafts = Drafts(tuple(walk.tokens), tuple(walk.sources), tuple(walk.states))
        return self.drafts

    def _forget_drafts(self) -> None:
        self.drafts, self._texts, self.ends = _NO_DRAFTS, [], False

    def _take_forced(self, most: int) -> None:
        """Take in the forced text after the committed tokens, as far as drafts may reach into it."""
        while len(self._ahead) <= most and (forced := take_forced(self._matcher)):
            self._ahead = self._ahead + forced

    def _walk_on(self, walk: _Walk, proposals: Proposals, most: int) -> None:
        """Walk from the end of the forced text ahead, where nothing is forced; leaves the matcher where it ends."""
        matcher, left, looked = self._matcher, proposals.most, True
        tokens, states, offered = walk.tokens, walk.states, proposals.tokens
        room = min(most, len(offered))
        while not matcher.is_stopped():
            forced = [] if looked else matcher.compute_ff_tokens()
            looked = False
            if forced and _advance(matcher, forced[: most - len(tokens)]):
                walk.force(forced, most)
                if len(states) > len(tokens):
                    return
                continue
            states.append(UNKNOWN)
            place = len(tokens)
            if place >= room or not left:
                return
            token = offered[place]
            if token in self._eos:
                walk.ends = matcher.is_accepting()
                return
            if not matcher.try_consume_tokens([token]):
                return
            left -= 1
            tokens.append(token)
            walk.sources.append(proposals.source)
        states.append(AN_END)
        walk.ends = True


def take_forced(matcher: Any) -> list[int]:
    """Take a matcher over the forced text after it, and return that; empty where there is none."""
    forced: list[int] = [] if matcher.is_stopped() else matcher.compute_ff_tokens()
    return forced if forced and _advance(matcher, forced) else []


def _advance(matcher: Any, tokens: list[int]) -> bool:
    """Consume tokens if all of them are allowed, else none."""
    if not tokens:
        return True
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    return bool(matcher.consume_tokens(tokens))


class _Walk:
    """Drafts as they are found: a walk through the grammar, at first along the forced text ahead."""

    def __init__(self, ahead: list[int], most: int) -> None:
        self.tokens: list[int] = []
        self.sources: list[DraftSource] = []
        self.states: list[int] = []
        self.texts: list[tuple[int, list[int]]] = []
        self.ends = False  # whether an end follows
        if ahead:
            self.force(ahead, most)
            self.texts = []  # ahead of commits it is known anyway

    def force(self, text: list[int], most: int) -> None:
        """Add a forced text as far as there may be drafts, and a state for the first token that may not be one."""
        begin = len(self.tokens)
        drafted = text[: most - begin]
        self.texts.append((begin, text))
        self.tokens += drafted
        self.sources += [DraftSource.GRAMMAR] * len(drafted)
        self.states += text[: len(drafted) + 1]
