"""The settings of a filter, frozen and validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.selection.candidates import Keep, parse_keep
from pipeline.settings.values import is_int, is_number, require

DEFAULT_SCORE = "mean_entropy"
"""How sure the model was of a row: tells good rows from bad ones."""
DEFAULT_SAMPLE_SCORE = "confidence"
"""How good the model thinks a sample is: tells good samples of one row from bad ones. Both were chosen on problems
other than those they are reported on (benchmarks/results, quality-evidence)."""


@dataclass(frozen=True, kw_only=True)
class DedupConfig:
    """The definition of a near-duplicate.

    Two rows are near-duplicates when the Jaccard similarity of their sets of ``ngram`` consecutive words is at least
    ``threshold``. Words are in lower case and without punctuation; a CJK character is a word of its own.

    Attributes:
        columns: of text; their values are compared as one text.
        threshold: least similarity, above 0 and at most 1.
        ngram: words in a row; a shorter text is compared as a whole.
        permutations: length of the MinHash signature that finds candidates. Every candidate is then compared exactly,
            so more permutations find more near-duplicates and drop no other row.
    """

    columns: Sequence[str] = ("text",)
    threshold: float = 0.8
    ngram: int = 3
    permutations: int = 128

    def __post_init__(self) -> None:
        """Check the values."""
        given = self.columns
        object.__setattr__(self, "columns", (given,) if isinstance(given, str) else tuple(given))
        require(bool(self.columns), "dedup.columns", self.columns, "at least one column", "Name one.")
        require(is_number(self.threshold) and 0 < self.threshold <= 1, "dedup.threshold", self.threshold,
                "a similarity above 0 and at most 1", "Use 0.8.")  # fmt: skip
        for name, least in (("ngram", 1), ("permutations", 16)):
            value = getattr(self, name)
            require(
                is_int(value) and value >= least,
                f"dedup.{name}",
                value,
                f"an integer of {least} or more",
                "Leave it out.",
            )


@dataclass(frozen=True, kw_only=True)
class OutlierConfig:
    """Which rows are unlike the others.

    Attributes:
        length: drop rows whose logarithm of tokens is more than this many deviations from the median. A deviation is
            1.4826 times the median distance from the median, at least 0.1. None keeps all lengths.
        script_share: drop rows whose script (``evidence.script``) is that of a smaller share of the rows. None keeps
            all scripts.
    """

    length: float | None = 4.0
    script_share: float | None = 0.01

    def __post_init__(self) -> None:
        """Check the values."""
        require(self.length is None or (is_number(self.length) and self.length > 0), "outliers.length", self.length,
                "None or a number above 0", "Use 4.")  # fmt: skip
        share = self.script_share
        require(share is None or (is_number(share) and 0 < share <= 1), "outliers.script_share", share,
                "None or a share above 0 and at most 1", "Use 0.01.")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """One filter: which rows of an output to keep.

    Rows are dropped in this order, each for the first reason that holds: it failed; the condition does not hold; it is
    an outlier; another sample of its row is better; it is a near-duplicate of a better row; it is not among the best.

    Attributes:
        keep: an SQL expression over the row's columns, ``"best 50%"``, ``"best 1000"``, or ``"best 1 per row"`` (of the
            samples of an input row; in a chain, of a row of the chain's input); each of the last three may go on
            ``"... where EXPRESSION"``. None keeps all.
        score: a name of :data:`pipeline.selection.score.SCORES`, or an SQL expression that gives a number; higher is
            better, null is the worst. Equals are ranked by row id, then sample. None is "confidence" for ``best N per
            row``, else "mean_entropy".
        by: columns; shares and numbers of ``keep`` are then of each group with equal values.
        dedup: drop near-duplicates: True, a threshold, or a :class:`DedupConfig`.
        outliers: drop outliers: True, or an :class:`OutlierConfig`.
        selection_column: name of the column with score and rank of the kept rows.
    """

    keep: str | None = None
    score: str | None = None
    by: Sequence[str] = ()
    dedup: DedupConfig | None = None
    outliers: OutlierConfig | None = None
    selection_column: str = "selection"

    def __post_init__(self) -> None:
        """Check the values, and read the short forms."""
        for name in ("keep", "score", "selection_column"):
            value = getattr(self, name)
            may_lack = name != "selection_column"
            fine = (value is None and may_lack) or (isinstance(value, str) and value.strip())
            require(bool(fine), name, value, "a text that is not empty", "Leave it out for the default.")
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else tuple(self.by))
        object.__setattr__(self, "dedup", _dedup_of(self.dedup))
        object.__setattr__(self, "outliers", _outliers_of(self.outliers))
        nothing = self.keep is None and self.dedup is None and self.outliers is None
        require(not nothing, "keep", None, "there is nothing to filter by", 'Set keep="best 50%", dedup=True, or both.')
        grouped = self.rule.share is not None or self.rule.number is not None
        require(not self.by or (grouped and not self.rule.per_row), "by", list(self.by),
                "groups are for shares and numbers", 'Use it with keep="best 50%".')  # fmt: skip

    @property
    def scored_by(self) -> str:
        """``score``, or the default for this ``keep``."""
        if self.score is not None:
            return self.score
        return DEFAULT_SAMPLE_SCORE if self.rule.per_row else DEFAULT_SCORE

    @property
    def rule(self) -> Keep:
        """``keep``, parsed."""
        return parse_keep(self.keep)

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> FilterConfig:
        """From plain data, as YAML gives it.

        Raises:
            ConfigError: an unknown field or a bad value.
        """
        known = list(cls.__dataclass_fields__)
        for name in raw:
            require(name in known, "filter", name, f"fields are {known}", "Correct the name.")
        return cls(**raw)

    def to_dict(self) -> dict[str, Any]:
        """Plain values of everything that bears on the choice of rows."""
        return {
            "keep": self.keep,
            "score": self.scored_by,
            "by": list(self.by),
            "dedup": None if self.dedup is None else {**asdict(self.dedup), "columns": list(self.dedup.columns)},
            "outliers": None if self.outliers is None else asdict(self.outliers),
            "selection_column": self.selection_column,
        }


def _dedup_of(given: Any) -> DedupConfig | None:
    if given is None or given is False or isinstance(given, DedupConfig):
        return given or None
    if given is True:
        return DedupConfig()
    if is_number(given):
        return DedupConfig(threshold=given)
    return DedupConfig(**_fields(given, "dedup", DedupConfig))


def _outliers_of(given: Any) -> OutlierConfig | None:
    if given is None or given is False or isinstance(given, OutlierConfig):
        return given or None
    return OutlierConfig() if given is True else OutlierConfig(**_fields(given, "outliers", OutlierConfig))


def _fields(given: Any, name: str, kind: type) -> Mapping[str, Any]:
    known = list(getattr(kind, "__dataclass_fields__", ()))
    fine = isinstance(given, Mapping) and set(given) <= set(known)
    require(fine, name, given, f"a mapping with fields of {known}, or true", "Write true for the defaults.")
    return given
