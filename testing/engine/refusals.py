"""What every refusal has to be: soon, of the family that says whose fault it is, one line with value, rule, remedy."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from wedlm_core.errors import ConfigError, RequestError, WeDLMError, WeightsError

SOON = 5.0
"""Seconds of work. A refusal that looks at the value takes far less than one; text of a million characters is
tokenised first, which takes a slow machine more than one; work that grows with an absurd number takes for ever."""

FAMILIES: tuple[type[WeDLMError], ...] = (ConfigError, RequestError, WeightsError)


def assert_refused(make: Callable[[], object], words: str, family: tuple[type[WeDLMError], ...] = FAMILIES) -> str:
    """``make`` raises soon: ``name=value: rule. Remedy.``, and ``words`` (a pattern) is in it.

    What counts is this process's work, so that a busy machine changes nothing.

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
    """One short line: a name and its value, the rule, then a sentence of what to do."""
    assert re.search(words, message), message
    assert "\n" not in message, message
    assert len(message) < 700, f"{len(message)} characters: {message[:700]}"
    assert re.match(r"[^=]+=.+: .+\. \S.*\.$", message), message
    message.encode("utf-8")
