"""Names of columns that an input cannot have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.errors import SourceError

__all__ = ["check_names"]

_OURS = "__wedlm_"


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse several columns of one name, and names that this package gives to columns of its own.

    Args:
        names: of the columns.
        where: has them, for the message.

    Raises:
        SourceError: names the columns.
    """
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SourceError(f"{where} has several columns named {twice}. Rename them.")
    ours = [name for name in names if name.casefold().startswith(_OURS)]
    if ours:
        raise SourceError(
            f"{where} has columns {ours}: names that begin with {_OURS} are reserved for this package. Rename them."
        )
