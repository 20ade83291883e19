"""A progress bar for long lists of prompts: tqdm, where it is installed and someone looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_LONG = 16  # prompts; fewer are done before a bar is read


class Bar(Protocol):
    """The updates of a bar."""

    def update(self, n: int = 1) -> Any:
        """So many more are done."""
        ...


class _Silence:
    def update(self, n: int = 1) -> None:
        """Say nothing."""


@contextmanager
def progress_bar(total: int, wanted: bool | None) -> Iterator[Bar]:
    """A bar over ``total`` requests.

    Args:
        total: requests.
        wanted: True shows one, False none; None shows one for a long list in a terminal.
    """
    if wanted is None:
        wanted = total >= _LONG and sys.stderr.isatty()
    try:
        from tqdm.auto import tqdm
    except ImportError:
        wanted = False
    if not wanted:
        yield _Silence()
        return
    with tqdm(total=total, desc="Generating", unit="sample", dynamic_ncols=True) as bar:
        yield bar
