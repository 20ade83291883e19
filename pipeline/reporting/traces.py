"""Traces of rows for the player: tokens held, proposed and committed by each forward, as compact plain values.

Positions are counted from the first generated token. Tokens are ids; their texts are in ``vocabulary``, and the
pieces of text that committed tokens added, in order, are in ``pieces``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

MASK = -1
"""In place of a token id: the place is a mask."""


class Forward(NamedTuple):
    """One forward of a row. As JSON it is a list, in the order of the attributes.

    Attributes:
        at: tokens that were committed before it.
        rows: token rows that it computed for this row.
        window: token ids at the places from ``at`` on, or :data:`MASK`.
        committed: token ids that it committed.
        filled: place and token id of each mask that was filled; places are counted as in ``window``.
    """

    at: int
    rows: int
    window: tuple[int, ...]
    committed: tuple[int, ...]
    filled: tuple[tuple[int, int], ...]


def forwards_of(records: Sequence[Mapping[str, Any]], prompt_tokens: int) -> tuple[Forward, ...]:
    """The forwards of a generation's trace, see ``wedlm_core.engine.trace.step_record``."""
    forwards = []
    for record in records:
        base = record["base_position"]
        pairs = zip(record["window_tokens"], record["mask_flags"], strict=True)
        forwards.append(
            Forward(
                at=base - prompt_tokens,
                rows=len(record["positions"]),
                window=tuple(MASK if is_mask else token for token, is_mask in pairs),
                committed=tuple(record["committed"]),
                filled=tuple(
                    (position - base, token)
                    for position, token in zip(record["fill_positions"], record["fill_tokens"], strict=True)
                ),
            )
        )
    return tuple(forwards)


@dataclass(frozen=True, kw_only=True)
class RowTrace:
    """A row decoded once more, step by step, with its strategy and autoregressively.

    Attributes:
        prompt: its end, as text.
        window: masks of a forward, at most.
        tokens: that the row has in the output.
        pieces: text added by each token that is traced (``token_ids``).
        whole: whether they are all of the row's.
        same: whether they are those that the output has; None where it does not hold them.
        forwards: by the row's strategy.
        plain_ids: tokens of autoregressive decoding, one a forward; ``plain_pieces``: text added by each of these.
        vocabulary: token id -> its text by itself.
    """

    row_id: str
    sample_index: int
    strategy: str
    prompt: str
    window: int
    tokens: int
    pieces: tuple[str, ...]
    token_ids: tuple[int, ...]
    whole: bool
    same: bool | None
    forwards: tuple[Forward, ...]
    plain_ids: tuple[int, ...]
    plain_pieces: tuple[str, ...]
    vocabulary: Mapping[int, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "vocabulary": {str(token): text for token, text in self.vocabulary.items()}}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RowTrace:
        """Inverse of :meth:`to_dict`; names that are not known are left out."""
        lists = ("pieces", "token_ids", "plain_ids", "plain_pieces")
        return cls(**{
            **{own.name: raw[own.name] for own in fields(cls)},
            **{name: tuple(raw[name]) for name in lists},
            "forwards": tuple(Forward(at, rows, tuple(window), tuple(committed), tuple(map(tuple, filled)))
                              for at, rows, window, committed, filled in raw["forwards"]),
            "vocabulary": {int(token): text for token, text in raw["vocabulary"].items()},
        })  # fmt: skip


def pieces_of(token_ids: Sequence[int], push: Callable[[Sequence[int]], str], text: str | None) -> tuple[str, ...]:
    """The piece of text that each token adds.

    ``push`` is an incremental detokeniser: it gives the characters that are whole with these tokens. ``text``: where
    the text ends; None: with the last token. Text that a stop string cut off is in no piece.
    """
    pieces, left = [], text
    for token in token_ids:
        piece = push([token])
        if left is not None:
            piece = piece[: len(left)]
            left = left[len(piece) :]
        pieces.append(piece)
    if left and pieces:  # bytes that are no whole character to the end
        pieces[-1] += left
    return tuple(pieces)


def all_tokens(forwards: Sequence[Forward]) -> set[int]:
    """Every token id that occurs in them."""
    filled = {token for forward in forwards for _, token in forward.filled}
    return filled.union(*(forward.window + forward.committed for forward in forwards)) - {MASK}


ABOUT = {
    "verified": "Masks propose drafts. The next forward commits the drafts that agree with the next-token head, so the "
                "text is exactly that of autoregressive decoding.",
    "autoregressive": "Each forward commits one token.",
    "reference": "Masks that are certain enough are filled in any order. A token waits for all before it.",
    "streaming": "Masks that are certain enough are filled in any order. The next-token head fills the leftmost.",
    "blockwise": "Masks that are certain enough are filled. A block waits until all of its masks are filled.",
}  # fmt: skip
"""Strategy -> how it decodes."""
_SENT = ("strategy", "prompt", "window", "pieces", "token_ids", "forwards", "plain_ids", "plain_pieces", "vocabulary",
         "same")  # fmt: skip


def player_data(trace: RowTrace) -> dict[str, Any]:
    """The plain values that the script needs."""
    raw = trace.to_dict()
    return {**{name: raw[name] for name in _SENT}, "check": check_of(trace)}


def check_of(trace: RowTrace) -> str:
    """Compare these tokens with those of the output and with autoregressive decoding, in a sentence or two."""
    count, shared = len(trace.token_ids), min(len(trace.token_ids), len(trace.plain_ids))
    part = f"all {count}" if trace.whole else f"the first {count} of {trace.tokens}"
    if trace.same is None:
        said = "The output holds no token ids, so the tokens could not be compared."
    elif trace.same:
        said = f"Checked: {part} tokens are those of the output."
    else:
        said = "These tokens are not those of the output. " + (
            "With this strategy they depend on the window, which the run chose by load."
            if trace.strategy == "streaming" else "On a GPU nearly equal tokens may fall to either side."
        )  # fmt: skip
    if trace.strategy == "autoregressive":
        return said
    equal = trace.token_ids[:shared] == trace.plain_ids[:shared]
    return f"{said} {'They equal' if equal else 'They differ from'} autoregressive decoding's."
