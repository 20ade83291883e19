"""The rows of a table as a filter decides on them: one tuple each in a temporary database, with the verdict.

A row takes about 150 bytes of local disk, and its text where near-duplicates are looked for. Memory holds the
database's cache. Rows are known by their ordinal, the number of the row in the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from pipeline.codec import explain
from pipeline.commit.index.scratch import Scratch
from pipeline.errors import ConfigError

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
    rule = '"best P%" (above 0, at most 100), "best N" or "best N per row", perhaps with "where EXPRESSION" after it'
    return ConfigError(explain("keep", text, rule, 'For example "best 50%", or an SQL expression.'))


_ORDER = "score IS NULL, score DESC, row_id, sample"
"""From the best to the worst; a total order, as no two rows have row id and sample in common."""


class Reason(StrEnum):
    """Why a row was dropped."""

    FAILED = "failed"
    CONDITION = "condition"
    OUTLIER = "outlier"
    SAMPLE = "another sample is better"
    DUPLICATE = "near-duplicate"
    BELOW = "not among the best"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The decision about a row.

    Attributes:
        reason: why it is dropped; None if it is kept.
        detail: more of it, for people; None if there is no more.
        score: None where it has none.
        rank: from 1, the best, among its candidates; None if it was dropped before they were ranked.
        candidates: how many were ranked with it.
        duplicate_of: row id and sample of the better row that it is a near-duplicate of.
        similarity: with that row.
    """

    reason: str | None
    detail: str | None
    score: float | None
    rank: int | None
    candidates: int | None
    duplicate_of: tuple[str, int] | None
    similarity: float | None


class Candidates:
    """All rows of one table; a context manager that drops its database at the end."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.scratch.run(
            "CREATE TABLE rows (ordinal INTEGER PRIMARY KEY, row_id TEXT, sample INTEGER, grp TEXT, score REAL, "
            "length INTEGER, script TEXT, reason TEXT, detail TEXT, rank INTEGER, candidates INTEGER, other INTEGER, "
            "similarity REAL)"
        )
        self.scratch.run("CREATE TABLE texts (ordinal INTEGER PRIMARY KEY, text TEXT)")

    def __enter__(self) -> Candidates:
        return self

    def __exit__(self, *error: object) -> None:
        self.scratch.close()

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows: ordinal, row id, sample, group, score, length, script, reason, detail."""
        self.scratch.write(
            "INSERT INTO rows (ordinal, row_id, sample, grp, score, length, script, reason, detail) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def add_texts(self, texts: Iterable[tuple[int, str]]) -> None:
        """Add the texts that near-duplicates are looked for in."""
        self.scratch.write("INSERT INTO texts VALUES (?, ?)", texts)

    def count(self, condition: str = "reason IS NULL") -> int:
        """Rows that meet an SQL condition; those that are not dropped, by default."""
        row = self.scratch.one(f"SELECT count(*) FROM rows WHERE {condition}")
        return 0 if row is None else int(row[0])

    def drop(self, reason: Reason, detail: str, condition: str, params: Sequence[Any] = ()) -> None:
        """Drop the rows that meet an SQL condition; ``detail`` is an SQL expression."""
        self.scratch.run(
            f"UPDATE rows SET reason = ?, detail = {detail} WHERE reason IS NULL AND ({condition})", (reason, *params)
        )

    def drop_duplicates(self, found: Iterable[tuple[int, int, float]]) -> None:
        """Drop rows: ordinal, that of the better row, similarity."""
        self.scratch.write(
            f"UPDATE rows SET reason = '{Reason.DUPLICATE}', other = ?2, similarity = ?3 WHERE ordinal = ?1", found
        )

    def keep_best(self, keep: Keep, reason: Reason) -> None:
        """Rank the remaining rows within groups, and drop those that are not among the best."""
        scratch = self.scratch
        scratch.run("DROP TABLE IF EXISTS ranked")
        scratch.run(
            "CREATE TEMP TABLE ranked AS SELECT ordinal, grp AS own, "
            f"row_number() OVER (PARTITION BY grp ORDER BY {_ORDER}) AS rank FROM rows WHERE reason IS NULL"
        )
        scratch.run("DROP TABLE IF EXISTS sizes")
        scratch.run("CREATE TEMP TABLE sizes (number INTEGER PRIMARY KEY, own TEXT UNIQUE, candidates INTEGER, most)")
        scratch.run("INSERT INTO sizes (own, candidates) SELECT own, count(*) FROM ranked GROUP BY own")
        sizes = scratch.stream("SELECT number, candidates FROM sizes WHERE number > ? ORDER BY number LIMIT ?")
        most = ((keep.most(candidates), number) for number, candidates in sizes)
        scratch.write("UPDATE sizes SET most = ? WHERE number = ?", most)
        scratch.run(
            "UPDATE rows SET rank = r.rank, candidates = s.candidates, "
            "reason = CASE WHEN r.rank > s.most THEN ? END "
            "FROM ranked r JOIN sizes s ON s.own = r.own WHERE r.ordinal = rows.ordinal",
            (reason,),
        )

    def best_first(self) -> Iterator[tuple[int, str]]:
        """Ordinal and text of the remaining rows, from the best to the worst."""
        self.scratch.run("CREATE TEMP TABLE places (place INTEGER PRIMARY KEY, ordinal INTEGER)")
        self.scratch.run(
            f"INSERT INTO places SELECT row_number() OVER (ORDER BY {_ORDER}), ordinal FROM rows WHERE reason IS NULL"
        )
        found = self.scratch.stream(
            "SELECT p.place, p.ordinal, t.text FROM places p JOIN texts t ON t.ordinal = p.ordinal "
            "WHERE p.place > ? ORDER BY p.place LIMIT ?"
        )
        return ((ordinal, text) for _, ordinal, text in found)

    def verdicts(self, first: int, count: int) -> list[Verdict]:
        """The verdicts on ``count`` rows from the ordinal ``first`` on, in order."""
        found = self.scratch.all(
            "SELECT a.reason, a.detail, a.score, a.rank, a.candidates, b.row_id, b.sample, a.similarity FROM rows a "
            "LEFT JOIN rows b ON b.ordinal = a.other WHERE a.ordinal >= ? AND a.ordinal < ? ORDER BY a.ordinal",
            (first, first + count),
        )
        return [
            Verdict(
                reason=reason,
                detail=detail,
                score=score,
                rank=rank,
                candidates=candidates,
                duplicate_of=None if other is None else (other, sample),
                similarity=similarity,
            )
            for reason, detail, score, rank, candidates, other, sample, similarity in found
        ]

    def scores_of(self, groups: Sequence[str]) -> Mapping[str, list[float | None]]:
        """The scores of all ranked rows of some groups, from the best on. Needs :meth:`index_groups`."""
        marks = ", ".join("?" * len(groups))
        found: dict[str, list[float | None]] = {}
        for group, score in self.scratch.all(
            f"SELECT grp, score FROM rows WHERE grp IN ({marks}) AND rank IS NOT NULL ORDER BY {_ORDER}", groups
        ):
            found.setdefault(group, []).append(score)
        return found

    def index_groups(self) -> None:
        """Make :meth:`scores_of` fast."""
        self.scratch.run("CREATE INDEX by_group ON rows (grp)")

    def counts(self) -> dict[str, int]:
        """Number of dropped rows by reason."""
        return dict(self.scratch.all("SELECT reason, count(*) FROM rows WHERE reason IS NOT NULL GROUP BY reason"))
