"""Evidence for or against a generation, from its statistics, tokens and text.

Cheap enough to be computed for every row, and a function of the generation alone: nothing here looks at other rows. A
leaf: imports no torch.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from wedlm_core.statistics import CommitStats

_NGRAM = 4


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence for or against a generation.

    With ``verified`` and ``autoregressive`` every value but ``draft_agreement`` is a function of the tokens: it is the
    same on any number of actors.

    Attributes:
        mean_logprob, worst_logprob: mean and lowest log-probability (nats) of its tokens under the next-token head;
            None where the strategy has none.
        mean_entropy, max_entropy: nats, over its tokens, of the distributions that they were taken from.
        draft_agreement: share of verified drafts that the next-token head agreed with; None where none was verified.
        repeated_ngrams: share of its runs of four tokens that had occurred in it before; 0 below four tokens.
        longest_repeat: tokens of its longest stretch that repeats tokens from before in it; 0 below four.
        truncated: whether it was cut at ``max_tokens``.
        script: writing system of most letters of its text, by the first word of their Unicode names (``LATIN``,
            ``CYRILLIC``, ``CJK``, ...); None without letters.
        script_share: share of its letters in that script; None without letters.
    """

    mean_logprob: float | None = None
    worst_logprob: float | None = None
    mean_entropy: float | None = None
    max_entropy: float | None = None
    draft_agreement: float | None = None
    repeated_ngrams: float = 0.0
    longest_repeat: int = 0
    truncated: bool = False
    script: str | None = None
    script_share: float | None = None


_ARROW = {"float": "float64", "int": "int32", "bool": "bool", "str": "string"}
EVIDENCE: tuple[tuple[str, str], ...] = tuple(
    (f.name, _ARROW[str(f.type).removesuffix(" | None")]) for f in fields(Evidence)
)
"""Name and Arrow type of each field of the output's ``evidence`` column."""


def evidence_of(stats: CommitStats, token_ids: Sequence[int], text: str, *, truncated: bool) -> Evidence:
    """The evidence of a generation."""
    script, share = script_of(text)
    repeated_ngrams, longest_repeat = repeats_of(token_ids)
    return Evidence(
        mean_logprob=stats.mean_logprob,
        worst_logprob=stats.worst_logprob,
        mean_entropy=stats.mean_entropy,
        max_entropy=stats.max_entropy,
        draft_agreement=stats.draft_agreement,
        repeated_ngrams=repeated_ngrams,
        longest_repeat=longest_repeat,
        truncated=truncated,
        script=script,
        script_share=share,
    )


def repeats_of(token_ids: Sequence[int]) -> tuple[float, int]:
    """The share of runs of four tokens that had occurred before, and the tokens of the longest stretch of such runs."""
    seen: set[tuple[int, ...]] = set()
    repeated = run = longest = 0
    for gram in zip(*(token_ids[i:] for i in range(_NGRAM)), strict=False):
        if gram in seen:
            repeated += 1
            run += 1
            longest = max(longest, run)
        else:
            seen.add(gram)
            run = 0
    count = len(token_ids) - _NGRAM + 1
    return (repeated / count if count > 0 else 0.0), (longest + _NGRAM - 1 if longest else 0)


def script_of(text: str) -> tuple[str | None, float | None]:
    """The script of most letters, and their share among the letters; ``(None, None)`` without letters."""
    if text.isascii():
        return ("LATIN", 1.0) if any(map(str.isalpha, text)) else (None, None)
    counts = Counter(filter(None, map(_script, text)))
    if not counts:
        return None, None
    # Of equally many the first in the alphabet, so that the result does not follow the order of letters.
    script, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    return script, count / counts.total()


@lru_cache(maxsize=65536)
def _script(character: str) -> str | None:
    return unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0] if character.isalpha() else None
