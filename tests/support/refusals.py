"""What every refusal has to be: soon, of the family that says whose fault it is, one line with value, rule, remedy."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from wedlm_core.errors import ConfigError, RequestError, WeDLMError, WeightsError

FAMILIES: tuple[type[WeDLMError], ...] = (ConfigError, RequestError, WeightsError)


def assert_refused(make: Callable[[], object], words: str, family: tuple[type[WeDLMError], ...] = FAMILIES) -> str:
    """``make`` raises within a second: ``name=value: rule. Remedy.``, and ``words`` (a pattern) is in it.

    The second is one of this process's work, so that a busy machine changes nothing.

    Returns:
        The message.
    """
    start = time.process_time()
    with pytest.raises(family) as caught:
        make()
    seconds, message = time.process_time() - start, str(caught.value)
    assert seconds < 1, f"{seconds:.1f} s until {message}"
    assert_clear(message, words)
    return message


def assert_clear(message: str, words: str) -> None:
    """One short line: a name and its value, the rule, then a sentence of what to do."""
    assert re.search(words, message), message
    assert "\n" not in message, message
    assert len(message) < 700, f"{len(message)} characters: {message[:700]}"
    assert re.match(r"[^=]+=.+: .+\. \S.*\.$", message), message
    message.encode("utf-8")
