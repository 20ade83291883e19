"""The navigation of the site: the pages in ``mkdocs.yml``, and all others of ``docs/`` at the end of one section."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

GUIDES = "Guides"
"""The section for pages of ``docs/`` without a place in ``mkdocs.yml``."""

Nav = list[Any]


def pages_in(docs: Path) -> list[str]:
    """Pages below ``docs/``, by their path on the site; a notebook is the page that is made of it."""
    found = [path for suffix in ("md", "ipynb") for path in docs.rglob(f"*.{suffix}")]
    return sorted(path.relative_to(docs).with_suffix(".md").as_posix() for path in found)


def named(nav: Nav) -> Iterator[str]:
    """Pages that a navigation names, in order."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from [below] if isinstance(below, str) else named(below)


def completed(nav: Nav, docs: Path) -> Nav:
    """The navigation with each unnamed page at the end of the section :data:`GUIDES`, under its own title.

    Raises:
        ValueError: there is no such section.
    """
    missing = sorted(set(pages_in(docs)) - set(named(nav)))
    sections = [entry for entry in nav if isinstance(entry, dict) and GUIDES in entry]
    if len(sections) != 1:
        raise ValueError(f"the navigation has {len(sections)} sections {GUIDES!r}; it needs one. Add it to mkdocs.yml.")
    return [{GUIDES: [*entry[GUIDES], *missing]} if entry is sections[0] else entry for entry in nav]
