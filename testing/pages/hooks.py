"""Functions that mkdocs calls while it builds the site (``hooks`` in ``mkdocs.yml``)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # mkdocs loads this file by its path

from testing.pages.notebook import notebook_page  # noqa: E402
from testing.pages.places import RESULTS, outer_files, relink  # noqa: E402
from testing.pages.reference import reference_pages  # noqa: E402

_DRAWING = "[![The packages and who imports whom](../images/architecture.svg)](../images/architecture.svg)\n"

_BOOSTS = {"concepts/faq": 2, "design/": 0.5, "CONTRIBUTING": 0.5, "CHANGELOG": 0.5}
"""Begins of pages -> weight in the search: contracts are for engineers, questions for users."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in ``docs/``."""
    for name, page in outer_files(ROOT).items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    made = dict(reference_pages(ROOT))
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb")):
        page = notebook.relative_to(ROOT / "docs").with_suffix(".md").as_posix()
        made[page] = notebook_page(notebook)
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to the site's pages, show the drawing for its source, and weigh pages for the search."""
    if page.file.src_uri.startswith(RESULTS):
        page.meta["search"] = {"exclude": True}
    for start, boost in _BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    if page.file.src_uri == "design/packages.md":
        markdown = re.sub(r"^```mermaid\n.*?^```\n", _DRAWING, markdown, flags=re.MULTILINE | re.DOTALL)
    generated = page.file.abs_src_path is None
    return markdown if generated else relink(markdown, page.file.src_uri)
