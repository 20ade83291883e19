"""The program that a completion stands for: what was asked to be continued, what came, and the test behind it."""

from __future__ import annotations

import re
import textwrap

__all__ = ["program_of"]

_FENCE = re.compile(r"```(?:python|py)?[^\S\n]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_NEXT = re.compile(r"\n(?=(?:class |def |async def |@|if __name__|print\(|assert |#|```|\"\"\"|'''))")
"""Where something else begins at the left margin: the function that was asked for has ended."""


def program_of(prompt: str, completion: str, entry_point: str) -> str:
    """Source text that defines ``entry_point``.

    A completion that defines the function itself (a chat's answer, in a fence or not) stands for itself, with the
    imports and helpers of the prompt in front. Otherwise it is the body, and goes on where the prompt ends.
    """
    is_body = re.match(r"\s*\n?[ \t]+\S", completion) is not None
    blocks = [] if is_body else [block for block in _FENCE.findall(completion) if block.strip()]
    whole = next((block for block in blocks if _defines(block, entry_point)), None)
    if whole is None and not blocks and _defines(completion, entry_point) and not completion[:1].isspace():
        whole = completion[completion.index(_first_line(completion)) :]
    if whole is not None:
        return f"{_before(prompt, entry_point)}\n{textwrap.dedent(whole)}\n"
    body = blocks[0] if blocks else completion
    if blocks and body.strip() and not body[:1].isspace():
        body = textwrap.indent(body, "    ")
    cut = _NEXT.search(body)
    return f"{prompt}{body[: cut.start()] if cut else body}\n"


def _defines(text: str, name: str) -> bool:
    return re.search(rf"^(?:async )?def {re.escape(name)}\s*\(", text, re.MULTILINE) is not None


def _first_line(text: str) -> str:
    """The first line of code: an import, a decorator or a definition."""
    found = re.search(r"^(?:from |import |@|def |async def |class )", text, re.MULTILINE)
    return found.group() if found else ""


def _before(prompt: str, name: str) -> str:
    """What stands in a prompt before the function that is asked for."""
    found = re.search(rf"^(?:async )?def {re.escape(name)}\s*\(", prompt, re.MULTILINE)
    return prompt[: found.start()] if found else ""
