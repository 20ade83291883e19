"""A progress bar for long lists of prompts, where someone looks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

_LONG = 16  # prompts; fewer are done before a bar is read


def progress_bar(total: int, wanted: bool | None) -> tqdm:
    """A bar over ``total`` requests, to be used in a ``with`` block.

    Args:
        total: requests.
        wanted: True shows one, False none; None shows one for a long list in a terminal.
    """
    from tqdm.auto import tqdm

    if wanted is None:
        wanted = total >= _LONG and sys.stderr.isatty()
    return tqdm(total=total, desc="Generating", unit="sample", dynamic_ncols=True, disable=not wanted)
