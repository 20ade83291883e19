"""The short language of ``keep``: an expression, or the best rows (of all, or of a row's samples) on a condition."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from pipeline.codec import explain
from pipeline.errors import ConfigError

__all__ = ["Keep", "parse_keep"]

_BEST = re.compile(
    r"\s*best\s+(?P<amount>[\d_.]+)\s*(?P<percent>%|percent\b)?(?P<per_row>\s+per\s+row\b)?\s*"
    r"(?:\bwhere\b(?P<where>.+))?",
    re.IGNORECASE | re.DOTALL,
)
_LOOKS_LIKE_BEST = re.compile(r"\s*best\b(?!\s*[=<>(.!])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Keep:
    """The rule for the rows to keep.

    Attributes:
        share: of the candidates, above 0 and at most 1; or None.
        number: how many of the candidates; or None.
        per_row: candidates are the samples of one input row.
        where: an SQL expression that has to hold; None if there is no condition.
    """

    share: Fraction | None = None
    number: int | None = None
    per_row: bool = False
    where: str | None = None

    def most(self, candidates: int) -> int:
        """How many of so many candidates are kept; of a share, rounded up."""
        if self.share is not None:
            return -(-candidates * self.share.numerator // self.share.denominator)
        return candidates if self.number is None else self.number


def parse_keep(text: str | None) -> Keep:
    """Parse a value of ``keep``.

    Raises:
        ConfigError: it begins with "best" and does not go on as it has to.
    """
    if text is None:
        return Keep()
    found = _BEST.fullmatch(text)
    if found is None:
        if _LOOKS_LIKE_BEST.match(text):
            raise _error(text)
        return Keep(where=text.strip())
    amount, where = found["amount"], found["where"]
    per_row, percent = found["per_row"] is not None, found["percent"] is not None
    if where is not None and not where.strip():
        raise _error(text)
    try:
        value = Fraction(amount)
    except (ValueError, ZeroDivisionError):
        raise _error(text) from None
    whole = value.denominator == 1 and value >= 1
    if (percent and (per_row or not 0 < value <= 100)) or (not percent and not whole):
        raise _error(text)
    return Keep(
        share=value / 100 if percent else None,
        number=None if percent else int(value),
        per_row=per_row,
        where=None if where is None else where.strip(),
    )


def _error(text: str) -> ConfigError:
    rule = '"best P%" (above 0, at most 100), "best N" or "best N per row", perhaps with "where EXPRESSION" behind it'
    return ConfigError(explain("keep", text, rule, 'For example "best 50%", or an SQL expression.'))
