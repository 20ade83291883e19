"""The code blocks of a page, and the use of each. Sybil finds the fences.

The use of a block follows from its language and from a comment on the line above it, which readers do not see:

==========================================  ==========================================================================
```` ```bash ````, ```` ```python ````       is run
any language with ``title="job.yaml"``      is written to that file, for the blocks below it
```` ```yaml ```` without a title            is a part of a job's settings, and built into a configuration
``<!-- not run: REASON -->`` above it       is shown only
``<!-- run on: PAGE -->`` above it          is shown only; the same block is run on that page
``<!-- output -->`` above ```` ```text ```` marks the output of the block before it; ``...`` stands for anything
```` ```text ````, ```` ```mermaid ````      is a drawing or a listing
==========================================  ==========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sybil import Document, Region
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

Use = Literal["run", "file", "settings", "output", "shown"]

RUN = ("bash", "python")
SETTINGS = "yaml"
LISTINGS = ("text", "mermaid")
_FENCES = RawFencedCodeBlockLexer(re.compile(r"(?P<info>[^\n`]*)\n"))
_MARK = re.compile(r"<!-- (?:(?P<output>output)|not run: (?P<reason>[^>]+?)|run on: (?P<page>\S+)) -->\n*$")
_TITLE = re.compile(r'title="([^"]+)"')
_COMMAND = re.compile(r"^(?:\$ |wedlm-batch |python |pip |make |curl |kubectl )", re.MULTILINE)
_LEAST_WORDS = 3


@dataclass(frozen=True, kw_only=True)
class Block:
    """A code block.

    Attributes:
        page: path of its page.
        line: of the page, where its code begins, from 1.
        language: as after the fence; empty if there is none.
        title: the file that the block is, if it is one.
        code: its text.
        reason: why it is not run, if its page says so.
        elsewhere: the page that runs it, if that is another one.
        is_output: whether it is the output of the block before it.
        indented: whether it stands inside a list.
    """

    page: Path
    line: int
    language: str
    title: str | None
    code: str
    reason: str | None
    elsewhere: str | None
    is_output: bool
    indented: bool

    @property
    def use(self) -> Use:
        """Its use."""
        if self.reason is not None or self.elsewhere is not None:
            return "shown"
        if self.is_output:
            return "output"
        if self.title is not None:
            return "file"
        if self.language == SETTINGS:
            return "settings"
        return "run" if self.language in RUN else "shown"

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.name}:{self.line}"


def text_of(page: Path) -> str:
    """The page."""
    return page.read_text(encoding="utf-8")


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    return [block for _, block in regions_of(Document(text_of(page), str(page)))]


def regions_of(document: Document) -> Iterator[tuple[Region, Block]]:
    """The fenced regions of a page that Sybil found, each with its block."""
    for region in _FENCES(document):
        before, info, code = document.text[: region.start], region.lexemes["info"].strip(), region.lexemes["source"]
        mark, title = _MARK.search(before), _TITLE.search(info)
        yield (
            region,
            Block(
                page=Path(document.path),
                line=before.count("\n") + 2,
                language=info.split()[0] if info else "",
                title=title[1] if title else None,
                code=str(code),
                reason=mark["reason"] if mark else None,
                elsewhere=mark["page"] if mark else None,
                is_output=bool(mark and mark["output"]),
                indented=document.text[region.start] != "`",
            ),
        )


def faults(blocks: list[Block], run_elsewhere: dict[str, set[str]]) -> list[str]:
    """The faults in the marks of a page's blocks: a block is run, written, compared, or has a reason.

    Args:
        blocks: of one page.
        run_elsewhere: page -> the code of each block that it runs.
    """
    return [f"{block.place}: {wrong}" for number, block in enumerate(blocks)
            if (wrong := _fault(block, blocks[:number], run_elsewhere)) is not None]  # fmt: skip


def _fault(block: Block, before: list[Block], run_elsewhere: dict[str, set[str]]) -> str | None:
    if block.indented:
        return "the block stands inside a list: begin its fence in the first column"
    if not block.language:
        return "the block has no language: write ```text for a listing"
    if block.reason is not None:
        return None if len(block.reason.split()) >= _LEAST_WORDS else "the reason says too little"
    if block.elsewhere is not None:
        there = run_elsewhere.get(block.elsewhere)
        return None if there is not None and block.code in there else f"{block.elsewhere} does not run this block"
    if block.is_output:
        ran = before and before[-1].use in ("run", "output")
        return None if block.language == "text" and ran else "an output is ```text right after the block that prints it"
    if block.language in LISTINGS:
        command = _COMMAND.search(block.code) if block.title is None else None
        return f"a listing has a command: {command[0]!r}; make the block ```bash" if command else None
    if block.use == "shown":
        return (f"a block in {block.language!r} is neither run nor a file: write ```{block.language} title=\"NAME\", "
                "or <!-- not run: REASON --> above it")  # fmt: skip
    return None


def console_commands(page: Path) -> list[tuple[str, list[str]]]:
    """Sub-commands of ``wedlm-batch`` on a page, each with its options."""
    found = []
    for piece in re.split(r"wedlm-batch (?=[a-z-])", re.sub(r"\s+", " ", text_of(page)))[1:]:
        command = re.split(r"[`#|,]| (?:echo|python|make|pip|wedlm-batch) ", piece + " ")[0]
        found.append((command.split()[0], re.findall(r"--[a-z][a-z-]*", command)))
    return found
