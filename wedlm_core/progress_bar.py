"""A progress bar for long lists of prompts, where someone looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LONG = 16  # prompts; fewer are done before a bar is read


@contextmanager
def progress_bar(total: int, wanted: bool | None) -> Iterator[Callable[[int], object]]:
    """A bar over ``total`` requests; call the function with the number of those that were done since.

    Args:
        total: requests.
        wanted: True shows one, False none; None shows one for a long list in a terminal.
    """
    if wanted is None:
        wanted = total >= _LONG and sys.stderr.isatty()
    if not wanted:  # without tqdm, which starts a thread even for a hidden bar: an engine with threads can't be forked
        yield lambda count: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, desc="Generating", unit="sample", dynamic_ncols=True) as bar:
        yield bar.update
