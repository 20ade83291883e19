"""Assert that an invalid value is refused quickly, with the right exception and a one-line message."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from wedlm_core.errors import ConfigError, RequestError, WeDLMError, WeightsError

SOON = 5.0
"""Limit in seconds of CPU time. Most refusals take far less than one. A text of a million characters is tokenised
first, which takes a slow machine longer. Work in proportion to an absurd number would never end."""

FAMILIES: tuple[type[WeDLMError], ...] = (ConfigError, RequestError, WeightsError)


def assert_refused(make: Callable[[], object], words: str, family: tuple[type[WeDLMError], ...] = FAMILIES) -> str:
    """Assert that ``make`` soon raises one of ``family`` with ``name=value: rule. Remedy.`` that matches ``words``.

    The time limit is CPU time of this process, so a busy machine changes nothing.

    Returns:
        The message.
    """
    start = time.process_time()
    with pytest.raises(family) as caught:
        make()
    seconds, message = time.process_time() - start, str(caught.value)
    assert seconds < SOON, f"{seconds:.1f} s until {message}"
    assert_clear(message, words)
    return message


def assert_clear(message: str, words: str) -> None:
    """Assert that a message is one short line: name and value, the rule, then the remedy as a sentence."""
    assert re.search(words, message), message
    assert "\n" not in message, message
    assert len(message) < 700, f"{len(message)} characters: {message[:700]}"
    assert re.match(r"[^=]+=.+: .+\. \S.*\.$", message), message
    message.encode("utf-8")
