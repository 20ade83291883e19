"""The navigation takes in every page, also one that nobody entered."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.pages.nav import completed, named, pages_in


def test_a_page_without_a_place_is_added_to_the_guides(tmp_path: Path) -> None:
    for name in ("usage.md", "formats.md", "tutorials/a.md", "notebooks/b.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert pages_in(tmp_path) == ["formats.md", "notebooks/b.md", "tutorials/a.md", "usage.md"]
    nav = [{"Home": "index.md"}, {"Guides": [{"Usage": "usage.md"}]}, {"Start": ["tutorials/a.md"]}]
    full = completed(nav, tmp_path)
    assert list(named(full)) == ["index.md", "usage.md", "formats.md", "notebooks/b.md", "tutorials/a.md"]
    assert completed(full, tmp_path) == full


def test_without_a_section_for_guides_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Add it to mkdocs\.yml"):
        completed([{"Home": "index.md"}], tmp_path)
