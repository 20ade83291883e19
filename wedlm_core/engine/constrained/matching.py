"""One sequence's place in its grammar: consumes commits, drafts forced tokens, cuts proposals that are not allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wedlm_core.grammar import Grammar
from wedlm_core.grammar.compiler import advance, take_forced
from wedlm_core.statistics import DraftSource

UNKNOWN = -1
"""Of a state: the matcher decides the allowed tokens."""
AN_END = -2
"""Of a state: the output ends here."""


class Proposals(NamedTuple):  # a step makes one for each sequence, which takes a frozen dataclass three times as long
    """Tokens proposed for positions in order, at most ``most`` of them to become drafts, and their source."""

    tokens: Sequence[int]
    most: int
    source: DraftSource


class Drafts:
    """Drafts of the next forward, found on a walk through the grammar, at first along the forced text ahead.

    Args:
        ahead: that text, which needs no note among ``texts``: it is known anyway.
        most: drafts at most.

    Attributes:
        tokens: ids, in order.
        sources: of each.
        states: before the first draft and after each: the only token that may come there, or :data:`UNKNOWN`,
            :data:`AN_END`.
        texts: forced texts among the drafts, by the place of their beginning.
        ends: whether the end of the output is to follow them. It is no draft: the row before it chooses it.
    """

    def __init__(self, ahead: list[int], most: int = 0) -> None:
        self.tokens: list[int] = []
        self.sources: list[DraftSource] = []
        self.states: list[int] = []
        self.texts: list[tuple[int, list[int]]] = []
        self.ends = False
        if ahead:
            self.force(ahead, most)
            self.texts = []

    def force(self, text: list[int], most: int) -> None:
        """Add a forced text as far as there may be drafts, and a state for the first token that may not be one."""
        begin = len(self.tokens)
        drafted = text[: most - begin]
        self.texts.append((begin, text))
        self.tokens += drafted
        self.sources += [DraftSource.GRAMMAR] * len(drafted)
        self.states += text[: len(drafted) + 1]


_NO_DRAFTS = Drafts([])
_NO_DRAFTS.states.append(UNKNOWN)
_REFUSED = "doesn't satisfy the grammar"  # the library's own words for such a token
_NONE_LEFT = "no token that the grammar allows was left to choose"


class Constraint:
    """The grammar's state after the committed tokens of one sequence.

    A *forced text* is the only text that may come next, spelled as the tokenizer spells it: each of its places allows
    one token. It is looked for after free text, so its beginning depends on the output alone, not on drafts. A forced
    text after the committed tokens is consumed at once, ahead of its commit.

    Copies of a matcher share a cache of the grammar's texts, which has a limit. So a sequence that meets the
    limit takes a new matcher and goes on; whether it fails does not depend on sequences before it.

    Attributes:
        matcher: after the committed tokens and the forced text that follows; who advances it has to roll it back.
        drafts: of the next forward; set by :meth:`draft`, replaced and never changed.
        failure: why the row fails, if its matcher cannot be asked; :meth:`accept` then refuses whatever was chosen.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._source = source = grammar.origin()
        self._origin, self._eos = source.matcher, grammar.eos_token_ids
        self.matcher = source.opened.deep_copy()
        self._taken: list[int] = []
        self._ahead = source.opening  # forced and consumed by the matcher, but not committed; replaced, never changed
        self.drafts = self._without_drafts()
        self.failure: str | None = None

    @property
    def unknown(self) -> tuple[int, ...]:
        """The states that are not known, counted from the one where :attr:`matcher` stands."""
        lead = len(self._ahead)
        return tuple(place - lead for place, state in enumerate(self.drafts.states) if state == UNKNOWN)

    def move(self, begin: int, end: int) -> bool:
        """Move the matcher along drafts between two states, counted as in :attr:`unknown`; False after an error."""
        if end > begin:
            lead = len(self._ahead)
            self.matcher.consume_tokens(self.drafts.tokens[lead + begin : lead + end])
        elif end < begin and not self.matcher.is_error():
            self.matcher.rollback(begin - end)
        return not self.matcher.is_error()

    def _without_drafts(self) -> Drafts:
        """No drafts: one state, that of the forced text ahead if there is any."""
        return Drafts(self._ahead) if self._ahead else _NO_DRAFTS

    def accept(self, tokens: Sequence[int]) -> str | None:
        """Consume committed tokens; None, or why the grammar refuses them. Nothing may follow an end of sequence."""
        if self.failure is not None:
            return self.failure
        ends = bool(tokens) and tokens[-1] in self._eos
        own = list(tokens[:-1] if ends else tokens)
        forced = self._forced_after(own)
        trouble = self._trouble()  # where no token was found to be allowed, the end was chosen
        reason = self._take(own)
        self.drafts = _NO_DRAFTS
        if reason is not None:
            return reason
        if ends and (self._ahead or not self.matcher.is_accepting()):
            return trouble or "the output ended before it was complete"
        if forced and self.matcher.consume_tokens(forced):
            self._ahead = forced
        self.drafts = self._without_drafts()
        return None

    def _take(self, tokens: list[int]) -> str | None:
        """Consume tokens, whose first are ahead already; why the grammar refuses them."""
        lead = min(len(tokens), len(self._ahead))
        if tokens[:lead] != self._ahead[:lead]:
            return _NONE_LEFT
        own, self._ahead = tokens[lead:], self._ahead[lead:]
        self._taken += tokens[:lead]
        if own and not self.matcher.consume_tokens(own):
            trouble = self._trouble()
            if not any(self.renew(fresh) and self.matcher.consume_tokens(own) for fresh in (False, True)):
                return _NONE_LEFT if _REFUSED in trouble else trouble or _NONE_LEFT
        self._taken += own
        return None

    def _trouble(self) -> str:
        """Why the matcher is in an error, on one line; empty if it is in none."""
        return " ".join(self.matcher.get_error().split("<state>")[0].split())[:200] if self.matcher.is_error() else ""

    def _forced_after(self, tokens: list[int]) -> list[int]:
        """The rest of a forced text, if committed tokens end in its middle."""
        for begin, text in self.drafts.texts:
            if begin < len(tokens) < begin + len(text) and tokens[begin:] == text[: len(tokens) - begin]:
                return text[len(tokens) - begin :]
        return []

    def renew(self, fresh: bool) -> bool:
        """Take a new matcher to the same place; True unless it refuses the output so far.

        Args:
            fresh: one that no sequence has used; else the grammar's, which others may have renewed.
        """
        if fresh or self._source.matcher is self._origin:
            self._source.renew()
        self._origin = self._source.matcher
        self.matcher = self._origin.deep_copy()
        before = self._taken + self._ahead
        return not before or bool(self.matcher.consume_tokens(before))

    def draft(self, proposals: Proposals, *, most: int) -> Drafts:
        """Set and return the drafts of the next forward: forced tokens, and proposals that the grammar allows.

        A proposal stands at its position, so a forced token takes its place. The first proposal that the grammar
        forbids ends the walk, and so does the end of the output.
        """
        while len(self._ahead) <= most and (forced := take_forced(self.matcher)):
            self._ahead = self._ahead + forced
        if not self._ahead and (not proposals.most or not most) and not self.matcher.is_stopped():
            self.drafts = _NO_DRAFTS  # as in each step of autoregressive decoding
            return self.drafts
        walk = Drafts(self._ahead, most)
        if len(self._ahead) <= most:
            self._walk_on(walk, proposals, most)
            steps = len(walk.tokens) - len(self._ahead)
            if self.matcher.is_error():
                self.renew(fresh=False)
                walk = Drafts(self._ahead, most)
                walk.states.append(UNKNOWN)
            elif steps and not self.matcher.rollback(steps):
                self.renew(fresh=False)
        self.drafts = walk
        return walk

    def _walk_on(self, walk: Drafts, proposals: Proposals, most: int) -> None:
        """Walk from the end of the forced text ahead, where nothing is forced; leaves the matcher where it ends."""
        matcher, left, looked = self.matcher, proposals.most, True
        tokens, states, offered = walk.tokens, walk.states, proposals.tokens
        room = min(most, len(offered))
        while not matcher.is_stopped():
            forced = [] if looked else matcher.compute_ff_tokens()
            looked = False
            if forced and advance(matcher, forced[: most - len(tokens)]):
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
