"""Where the files of the repository lie on the site, and links between them.

Pages are written for whoever reads the repository: their links are relative to the file. The site holds ``docs/`` at
its root, and some files from elsewhere under their own paths.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

DOCS = "docs"
HOME = "index.md"
"""The README's place on the site."""
RESULTS = "benchmarks/results"
_OUTER = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "infra/README.md",
          "wedlm_core/tiny/README.md")  # fmt: skip
_FENCES = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def outer_files(root: Path) -> dict[str, str]:
    """Files outside of ``docs/`` that are on the site: path in the repository -> path on the site."""
    results = sorted((root / RESULTS).rglob("*.*"))
    names = [*_OUTER, *(file.relative_to(root).as_posix() for file in results)]
    return {name: page_of(name) for name in names}


def page_of(name: str) -> str:
    """Path on the site of a file of the repository."""
    if name == "README.md":
        return HOME
    return name.removeprefix(f"{DOCS}/")


def file_of(page: str) -> str:
    """Path in the repository of a file of the site; the other way round of :func:`page_of`."""
    if page == HOME:
        return "README.md"
    inside = page.startswith(("benchmarks/", "infra/", "wedlm_core/")) or page in _OUTER
    return page if inside else f"{DOCS}/{page}"


def relink(text: str, page: str) -> str:
    """The text of a page with its relative links as they are on the site; code blocks stay as they are.

    Args:
        text: Markdown.
        page: its path on the site.
    """
    return _outside_of_fences(text, lambda part: _LINK.sub(lambda link: _moved(link, page), part))


def _outside_of_fences(text: str, change: Callable[[str], str]) -> str:
    parts = _FENCES.split(text)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _moved(link: re.Match[str], page: str) -> str:
    begin, target, anchor, end = link[1], link[2], link[3] or "", link[4]
    if re.match(r"[a-z][a-z+.-]*:", target):
        return link[0]
    named = posixpath.normpath(posixpath.join(posixpath.dirname(file_of(page)), target))
    there = posixpath.relpath(page_of(named), posixpath.dirname(page) or ".")
    return f"{begin}{there}{anchor}{end}"
