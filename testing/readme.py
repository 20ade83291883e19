"""What pages of the documentation show: code blocks, and the commands in them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["code_blocks", "console_commands", "text_of"]


def text_of(page: Path) -> str:
    """The page."""
    return page.read_text(encoding="utf-8")


def code_blocks(page: Path, language: str) -> list[str]:
    """Contents of the page's code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)


def console_commands(page: Path) -> list[tuple[str, list[str]]]:
    """Sub-commands of ``wedlm-batch`` on a page, each with its options."""
    found = []
    for piece in re.split(r"wedlm-batch (?=[a-z-])", re.sub(r"\s+", " ", text_of(page)))[1:]:
        command = re.split(r"[`#|,]| (?:echo|python|make|pip|wedlm-batch) ", piece + " ")[0]
        found.append((command.split()[0], re.findall(r"--[a-z][a-z-]*", command)))
    return found
