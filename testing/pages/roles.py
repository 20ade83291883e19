"""Docstrings on the site: their references are written for Sphinx (``:class:`name```), and shown as code here."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:py:)?(?:attr|class|data|exc|func|meth|mod):`(~?)([^`]+)`")


def plain_roles(text: str) -> str:
    """The text with each reference as code; of ``~a.b.c`` the last name alone, as Sphinx has it."""
    return _ROLE.sub(lambda role: f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`", text)


class PlainRoles(griffe.Extension):
    """Applies :func:`plain_roles` to every docstring that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute, once."""
        if obj.docstring is not None:
            obj.docstring.value = plain_roles(obj.docstring.value)
