"""Retries that differ from their run: with other settings, or with corrected rows. The run record lists them.

The column ``retry`` of an output row has the number of its retry; it is null for rows of the run as it was begun.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The differences between a retry and its run.

    Attributes:
        settings: setting -> plain value, of those in :data:`pipeline.fingerprint.RETRY_SETTINGS` that differ.
        files: key of each input file whose failed rows were corrected -> digest of the corrected file.
        rows: name of an input of corrected rows, which take the place of failed rows by row id; else empty.
        rows_key, rows_sha256: key of a copy of these rows in the output, and the checksum of its columns; else empty.
        number: from 1, in the order of the first attempts.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    rows: str = ""
    rows_key: str = ""
    rows_sha256: str = ""
    number: int = 0

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.settings or self.files or self.rows_key)

    def is_like(self, other: Retry) -> bool:
        """Whether the other one has the same differences."""
        return (self.settings, self.files, self.rows_key) == (other.settings, other.files, other.rows_key)

    def concerns(self, keys: Collection[str]) -> bool:
        """Whether anything differs for rows of these files."""
        return bool(self.settings or self.rows_key or not self.files.keys().isdisjoint(keys))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the number."""
        return {name: value for name, value in asdict(self).items() if value and name != "number"}

    def describe(self) -> str:
        """The differences in words."""
        parts = [f"{name}={value!r}" for name, value in self.settings.items()]
        parts += [f"corrected input file {key}" for key in self.files]
        parts += [f"corrected rows of {self.rows}"] if self.rows_key else []
        return ", ".join(parts)


def recorded(retries: Sequence[Retry], asked: Retry) -> tuple[Retry, ...]:
    """The retries with the one that is asked for, if it differs from the run and from all of them."""
    if not asked or any(own.is_like(asked) for own in retries):
        return tuple(retries)
    return (*retries, replace(asked, number=len(retries) + 1))


def describe_retries(retries: Sequence[Retry], rows: Mapping[str, int]) -> list[str]:
    """A line for each retry: how it differs from the run, and its number of input rows in the output."""
    counts = [(own, rows.get(str(own.number), 0)) for own in retries]
    return [f"retry {own.number} ({own.describe()}): {n} row{'' if n == 1 else 's'}" for own, n in counts]
