"""Links of the repository's files, as they are on the site."""

from __future__ import annotations

import pytest

from testing.pages.places import file_of, outer_files, page_of, relink
from testing.repository import ROOT


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("index.md", "docs/reference/commands.md#caches", "reference/commands.md#caches"),
        ("index.md", "benchmarks/README.md", "benchmarks/README.md"),
        ("gpu.md", "../benchmarks/results/decoding.md", "benchmarks/results/decoding.md"),
        ("tutorials/distil.md", "../guarantees.md#rows", "../guarantees.md#rows"),
        ("tutorials/distil.md", "../../infra/README.md", "../infra/README.md"),
        ("infra/README.md", "../docs/actors.md", "../actors.md"),
        ("infra/README.md", "../README.md", "../index.md"),
        ("gpu.md", "https://example.com/docs/usage.md", "https://example.com/docs/usage.md"),
    ],
)
def test_a_link_leads_to_the_same_file(page: str, link: str, moved: str) -> None:
    assert relink(f"see [it]({link}), and [here](#there)", page) == f"see [it]({moved}), and [here](#there)"


def test_links_in_code_blocks_stay() -> None:
    text = "```text\n[a](docs/reference/commands.md)\n```\n"
    assert relink(text, "index.md") == text


def test_every_file_has_a_page_of_its_own_and_is_found_from_it() -> None:
    for name, page in outer_files(ROOT).items():
        assert (ROOT / name).exists()
        assert page_of(name) == page
        assert file_of(page) == name
