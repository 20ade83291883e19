"""HTML and SVG that cannot hold foreign markup: text is escaped unless this module made it."""

from __future__ import annotations

import functools
import html
import json
import re
from typing import Any

__all__ = ["Safe", "el", "escape", "join", "script_json"]

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
_PLAIN = re.compile(r"[ !#-%(-;=?-~\t\n]*")
"""ASCII text that stands in HTML as it is."""
_VOID = frozenset({"meta", "br", "input", "hr"})


class Safe(str):
    """Markup that was made here."""

    __slots__ = ()


def escape(text: str) -> Safe:
    """Any text as text of a page or a quoted attribute: of what may not stand in HTML there is a replacement mark."""
    if isinstance(text, Safe):
        return text
    if _PLAIN.fullmatch(text):  # most of a page's thousands of attributes
        return Safe(text)
    clean = _CONTROL.sub("\ufffd", text.encode("utf-8", "replace").decode())
    return Safe(html.escape(clean, quote=True))


def el(_tag: str, /, *children: str | None, **attributes: Any) -> Safe:
    """An element.

    Args:
        _tag: its name.
        *children: markup, or text, which is escaped; None is left out.
        **attributes: their values are escaped. ``class_`` is ``class``, ``data_tip`` is ``data-tip``; None and False
            leave an attribute out, True gives it no value.
    """
    parts = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        plain = _attribute(name)
        parts.append(f" {plain}" if value is True else f' {plain}="{escape(_shown(value))}"')
    opened = f"<{_tag}{''.join(parts)}>"
    if _tag in _VOID:
        return Safe(opened)
    return Safe(f"{opened}{join(*children)}</{_tag}>")


@functools.cache
def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def join(*children: str | None) -> Safe:
    """Children one after the other, as in :func:`el`."""
    return Safe("".join(escape(child) for child in children if child is not None))


def script_json(name: str, value: Any) -> Safe:
    """Data for scripts, under an id. No text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Safe(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
