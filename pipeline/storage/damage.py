"""Damage: an object of the output that is missing, unreadable or changed since its commit; and its errors.

A damaged object is not read any further; its rows are generated again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.errors import PipelineError

_UNREADABLE = (errno.EIO, errno.EACCES, errno.EPERM, errno.EISDIR, errno.EUCLEAN)
"""Errors of a file system that holds a file and cannot read it; another attempt fails too."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """An object of the output, and its damage."""

    key: str
    fault: str


class FoundDamageError(PipelineError):
    """Objects of the output differ from the committed ones. Raised before any of their content is used.

    Attributes:
        damages: each object with its fault.
    """

    def __init__(self, damages: Sequence[Damage]) -> None:
        super().__init__(tuple(damages))
        self.damages = tuple(damages)

    def __str__(self) -> str:
        return "; ".join(f"{damage.key}: {damage.fault}" for damage in self.damages)


class StageDamageError(FoundDamageError):
    """Rows of an earlier stage of a chain, for a later one to read, differ from the committed ones.

    Attributes:
        url: of the earlier stage's output.
    """

    def __init__(self, damages: Sequence[Damage], url: str = "") -> None:
        super().__init__(damages)
        self.url = url


@contextmanager
def as_damage(key: str) -> Iterator[None]:
    """Turn errors of reading the object ``key`` into damage.

    Raises:
        FoundDamageError: the object is missing, or is there and cannot be read.
        OSError, PipelineError: any other error, such as a store that does not answer.
    """
    try:
        yield
    except FileNotFoundError:
        raise FoundDamageError([Damage(key=key, fault="missing")]) from None
    except (OSError, PipelineError) as error:
        if isinstance(error, FoundDamageError) or not is_unreadable(error):
            raise
        raise FoundDamageError([Damage(key=key, fault=f"cannot be read ({error.__cause__ or error})")]) from error


def is_unreadable(error: BaseException) -> bool:
    """Whether an error, or its cause, says that a file exists but cannot be read."""
    cause = error.__cause__ if isinstance(error, PipelineError) else error
    return isinstance(cause, (PermissionError, IsADirectoryError)) or (
        isinstance(cause, OSError) and cause.errno in _UNREADABLE
    )
